"""Other libraries' answers to a thresholded vector search: all stored unit vectors with cosine >= tau.

* `ReferenceKnn`: hnswlib, the 300 nearest, then cut at tau, as MemLLM's published implementation does.
* `FaissHnsw`, `FaissIvf`: faiss's range_search over a graph, and over lists of 8-bit codes.
* `UsearchKnn`: usearch, the 300 nearest, then cut at tau, in float32 or in 8 bits.

Choices, each in the peers' favour where there is one:

* Graphs have M=16 and ef_construction=200 each; IVF has 4 * sqrt(n) lists. Input is one float32 vector a
  query, or all queries at once (`batched`); searching uses one thread, building may use more.
* Where the library's scores are exact, its own are compared with tau. Eight-bit scores are not: both are
  cut at tau less a margin, and what is left is rescored from the float32 vectors, inside the time.
* Every answer is cut once more by the exact cosine, outside the time: no score's error adds to an answer.
* hnswlib's own search by threshold (EpsilonSearchStopCondition) exists in C++ only and is not here.

The time is the process's CPU time from the library's call to the ids, Python's share included.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
SLACK = 1e-6  # a score passes with it, as in pymemstore
K = 300
_NOISE = 1e-5  # float32 scores of two libraries differ by less
_BLOCK = 1 << 14

# Truth and recall


def truth(base: F32, queries: F32, taus: Sequence[float]) -> dict[float, list[I64]]:
    """For each tau and each query: the ids with cosine >= tau, ascending, by a scan of all."""
    parts: list[tuple[I64, I64, F32]] = []
    for start in range(0, len(base), _BLOCK):
        scores = queries @ base[start : start + _BLOCK].T
        rows, columns = np.nonzero(scores >= min(taus) - _NOISE)
        parts.append((rows, columns + start, scores[rows, columns]))
    owners, ids, found = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((ids, owners))
    owners, ids, exact = owners[order], ids[order], found[order].astype(np.float64)
    near = np.abs(exact[:, None] - np.asarray(taus)).min(axis=1) < _NOISE
    for piece in np.array_split(np.flatnonzero(near), 1 + int(near.sum()) // _BLOCK):
        wide = queries[owners[piece]].astype(np.float64)
        exact[piece] = np.einsum("ij,ij->i", wide, base[ids[piece]].astype(np.float64))
    answers = {}
    for tau in taus:
        passed = exact >= tau
        ends = np.searchsorted(owners[passed], np.arange(1, len(queries)))
        answers[tau] = np.split(ids[passed], ends)
    return answers


def recall(found: Sequence[I64], expected: Sequence[I64]) -> tuple[float, float]:
    """Micro: the share of all true pairs that is found. Macro: the mean of it over queries that have any."""
    hits = [np.intersect1d(f, t).size for f, t in zip(found, expected, strict=True)]
    sizes = [t.size for t in expected]
    if not sum(sizes):
        return math.nan, math.nan
    shares = [hit / size for hit, size in zip(hits, sizes, strict=True) if size]
    return sum(hits) / sum(sizes), sum(shares) / len(shares)


# Peers


class Peer:
    """One library with its index. `cache`: a folder in which a built index is kept for the next run."""

    name: str
    exact_scores = True
    margin = _NOISE  # how far below tau the library's own scores are still taken

    def __init__(self, cache: Path | None = None, *, build_threads: int | None = None) -> None:
        self._cache = cache
        self._build_threads = build_threads or os.cpu_count() or 1
        self._index: Any = None
        self._base: F32 = np.empty((0, 0), np.float32)

    def build(self, base: F32) -> float:
        """Index (n, dim) unit vectors, or load an earlier run's index of them. Seconds that building took."""
        self._base = base = np.ascontiguousarray(base, np.float32)
        if self._cache is None:
            return self._timed_build(base)
        path = self._cache / f"{self._key()}-{len(base)}x{base.shape[1]}-{_digest(base)}.index"
        notes = path.with_suffix(".json")
        if notes.exists():
            self._load(path, base)
            return float(json.loads(notes.read_text())["seconds"])
        seconds = self._timed_build(base)
        self._cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        self._save(part)
        part.replace(path)
        notes.write_text(json.dumps({"seconds": seconds, "threads": self._build_threads}))
        return seconds

    def settings(self, tau: float) -> Iterable[str]:
        """Labels for `search`, from the fastest on."""
        raise NotImplementedError

    def search(
        self, queries: F32, tau: float, setting: str, *, batched: bool = False
    ) -> tuple[list[I64], float]:
        """Ids for each query, in no order, and the CPU seconds. `batched`: all queries in one call."""
        queries = np.ascontiguousarray(queries, np.float32)
        if not len(queries):
            return [], 0.0
        self._set(setting)
        self._find(queries[:1], tau)  # what the first call allocates is not in the time
        step = min(len(queries), self._most_queries()) if batched else 1
        found: list[I64] = []
        start = time.process_time()
        for i in range(0, len(queries), step):
            piece = queries[i : i + step]
            answers = self._find(piece, tau)
            if not self.exact_scores:
                answers = [self._cut(q, ids, tau) for q, ids in zip(piece, answers, strict=True)]
            found += answers
        seconds = time.process_time() - start
        if self.exact_scores:
            found = [self._cut(q, ids, tau) for q, ids in zip(queries, found, strict=True)]
        return found, seconds

    def _cut(self, query: F32, ids: I64, tau: float) -> I64:
        """Those of the ids that reach tau by the exact cosine."""
        return ids[self._base[ids] @ query >= tau - SLACK]

    def _timed_build(self, base: F32) -> float:
        start = time.monotonic()
        self._make(base)
        return time.monotonic() - start

    def _key(self) -> str:
        """The name and what was built with, as part of a file's name."""
        raise NotImplementedError

    def _make(self, base: F32) -> None:
        raise NotImplementedError

    def _save(self, path: Path) -> None:
        raise NotImplementedError

    def _load(self, path: Path, base: F32) -> None:
        raise NotImplementedError

    def _set(self, setting: str) -> None:
        """Prepare the index for one thread and a setting."""
        raise NotImplementedError

    def _most_queries(self) -> int:
        """How many queries one call may hold."""
        return 1 << 30

    def _find(self, queries: F32, tau: float) -> list[I64]:
        """Ids for each query that reach tau less the margin by the library's scores."""
        raise NotImplementedError


class ReferenceKnn(Peer):
    """hnswlib, float32, inner product: the k nearest, then cut."""

    name = f"reference kNN-{K}"

    def settings(self, tau: float) -> Iterable[str]:
        return [f"ef={K}"]

    def _key(self) -> str:
        return "hnswlib-M16-efc200"

    def _make(self, base: F32) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=base.shape[1])
        self._index.init_index(max_elements=len(base), M=16, ef_construction=200, random_seed=100)
        self._index.add_items(base, np.arange(len(base)), num_threads=self._build_threads)

    def _save(self, path: Path) -> None:
        self._index.save_index(str(path))

    def _load(self, path: Path, base: F32) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=base.shape[1])
        self._index.load_index(str(path), max_elements=len(base))

    def _set(self, setting: str) -> None:
        self._index.set_ef(_number(setting))
        self._index.set_num_threads(1)

    def _find(self, queries: F32, tau: float) -> list[I64]:
        labels, distances = self._index.knn_query(queries, k=min(K, len(self._base)))
        counts = (distances <= 1.0 - tau + self.margin).sum(axis=1)  # each row comes sorted, nearest first
        return [row[:n].astype(np.int64) for row, n in zip(labels, counts, strict=True)]


class _Faiss(Peer):
    """What both of faiss's indices share."""

    _efforts: ClassVar[Sequence[str]]

    def settings(self, tau: float) -> Iterable[str]:
        return self._efforts

    def _save(self, path: Path) -> None:
        import faiss

        faiss.write_index(self._index, str(path))

    def _load(self, path: Path, base: F32) -> None:
        import faiss

        self._index = faiss.read_index(str(path))

    def _find(self, queries: F32, tau: float) -> list[I64]:
        # By inner product, a result is what scores above the radius; scores come in no order.
        ends, _, ids = self._index.range_search(queries, tau - self.margin)
        return [ids] if len(queries) == 1 else np.split(ids, ends[1:-1].astype(np.int64))


class FaissHnsw(_Faiss):
    """faiss's graph over float32, inner product, searched by radius."""

    name = "faiss HNSW"
    _efforts = ("efSearch=64", "efSearch=128", "efSearch=300")

    def _key(self) -> str:
        return "faiss-hnsw-M16-efc200"

    def _make(self, base: F32) -> None:
        import faiss

        faiss.omp_set_num_threads(self._build_threads)
        self._index = faiss.IndexHNSWFlat(base.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = 200
        self._index.add(base)

    def _set(self, setting: str) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self._index.hnsw.efSearch = _number(setting)

    def _most_queries(self) -> int:
        # faiss 1.15 looks for Ctrl-C after about 1e8 / (levels * dim * efSearch) queries, and range_search
        # over a graph aborts the process when a call holds more than that.
        graph = self._index.hnsw
        return max(1, int(5e7 / max(1, graph.max_level * self._index.d * graph.efSearch)))


class FaissIvf(_Faiss):
    """faiss's inverted lists of 8-bit codes, inner product, searched by radius, then rescored."""

    name = "faiss IVF-SQ8"
    exact_scores = False
    margin = 0.01  # an 8-bit score is off by less
    _efforts = ("nprobe=16", "nprobe=64", "nprobe=128")

    def _key(self) -> str:
        return "faiss-ivf-sq8"

    def _make(self, base: F32) -> None:
        import faiss

        n, dim = base.shape
        lists = min(round(4 * math.sqrt(n)), max(1, n // 39))  # k-means asks for 39 vectors a list
        faiss.omp_set_num_threads(self._build_threads)
        self._quantizer = faiss.IndexFlatIP(dim)  # the index does not own it
        self._index = faiss.IndexIVFScalarQuantizer(
            self._quantizer, dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.max_points_per_centroid = 64
        self._index.train(base)
        self._index.add(base)

    def _set(self, setting: str) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self._index.nprobe = _number(setting)


class UsearchKnn(Peer):
    """usearch: the k nearest, then cut. `dtype`: "f32" or "i8" (then rescored)."""

    def __init__(
        self, dtype: str = "f32", cache: Path | None = None, *, build_threads: int | None = None
    ) -> None:
        super().__init__(cache, build_threads=build_threads)
        self.name = f"usearch {dtype} kNN-{K}"
        self._dtype = dtype
        self.exact_scores = dtype == "f32"
        self.margin = _NOISE if self.exact_scores else 0.04  # an 8-bit score is off by less

    def settings(self, tau: float) -> Iterable[str]:
        return [f"expansion={K}"]

    def _key(self) -> str:
        return f"usearch-{self._dtype}-M16-efc200"

    def _new(self, dim: int) -> Any:
        from usearch.index import Index

        # The inner product is a little faster, but in 8 bits it is not scaled back to a cosine.
        metric = "ip" if self._dtype == "f32" else "cos"
        return Index(ndim=dim, metric=metric, dtype=self._dtype, connectivity=16, expansion_add=200)

    def _make(self, base: F32) -> None:
        self._index = self._new(base.shape[1])
        self._index.add(np.arange(len(base), dtype=np.uint64), base, threads=self._build_threads)

    def _save(self, path: Path) -> None:
        self._index.save(str(path))

    def _load(self, path: Path, base: F32) -> None:
        self._index = self._new(base.shape[1])
        self._index.load(str(path))

    def _set(self, setting: str) -> None:
        self._index.expansion_search = _number(setting)

    def _find(self, queries: F32, tau: float) -> list[I64]:
        # Its `radius` has no effect in 2.26: the k nearest come whatever their distances.
        matches = self._index.search(
            queries[0] if len(queries) == 1 else queries, min(K, len(self._base)), threads=1
        )
        # In a batch, what is past a row's count is no answer; indexing leaves it out.
        answers = [matches] if len(queries) == 1 else [matches[i] for i in range(len(queries))]
        limit = 1.0 - tau + self.margin
        return [a.keys[a.distances <= limit].astype(np.int64) for a in answers]


def peers(cache: Path | None = None) -> list[Peer]:
    """One of each."""
    return [
        ReferenceKnn(cache),
        FaissHnsw(cache),
        FaissIvf(cache),
        UsearchKnn("f32", cache),
        UsearchKnn("i8", cache),
    ]


def _number(setting: str) -> int:
    return int(setting.partition("=")[2])


def _digest(base: F32) -> str:
    return hashlib.blake2b(base.view(np.uint8).data, digest_size=8).hexdigest()
