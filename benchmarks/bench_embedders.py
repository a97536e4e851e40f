"""The table of the embedders: how well they relate names and relations, and how fast.

    python benchmarks/bench_embedders.py [--quick] [--embedder SPEC ...]

Entities, on the aliases of Re-DocRED's dev split
(PYMEMSTORE_TEST_DATA/data/docred/dev_revised.json, by default in ../shared). Positives are the
names of one entity, negatives the names of two entities of one type in one document:

- F: every such pair of people, organisations, places and other names (no times and numbers),
  without negatives that are equal but for spaces, case and "the".
- H: the positives of all types, and 5,000 of their negatives, drawn with a fixed seed.

Relations, on relation_paraphrases.json: each paraphrase is ranked against the 96 labels. Recall at
1 % and at 5 % is the share of positives above all but that share of the negatives. `apart` is the
AUC of the right labels against pairs that must be told apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pymemstore import _core
from pymemstore.embedders import Embedder, resolve

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("PYMEMSTORE_TEST_DATA") or HERE.parents[1] / "shared")
NAMED = {"PER", "ORG", "LOC", "MISC"}
H_NEGATIVES = 5000
MATCHES = {
    "folded": (2,),
    "article, plural": (3, 4),
    "word order": (5,),
    "acronym": (6,),
    "initials": (7,),
    "core": (2, 3, 4, 5, 6, 7),
    "demonym": (8,),
    "trailing": (9,),
    "wide": (2, 3, 4, 5, 6, 7, 8, 9),
}

Pair = tuple[str, str]
Scores = npt.NDArray[np.float64]


class Pairs(NamedTuple):
    """Alias pairs and pairs of different entities, with their type."""

    positive: dict[Pair, str]
    negative: dict[Pair, str]


class Quality(NamedTuple):
    """Of scores of positives against those of negatives."""

    auc: float
    ap: float
    recall1: float
    recall5: float


def quality(positive: Scores, negative: Scores) -> Quality:
    """AUC (ties count half), average precision, recall at 1 % and 5 % false positives."""
    scores = np.concatenate([positive, negative])
    values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, m = len(positive), len(negative)
    auc = (ranks[:n].sum() - n * (n + 1) / 2) / (n * m)
    hits = np.bincount(inverse[:n], minlength=len(values))[::-1].cumsum()
    precision = hits / counts[::-1].cumsum()
    ap = float((np.diff(hits / n, prepend=0) * precision).sum())
    above = [float((positive > np.quantile(negative, q)).mean()) for q in (0.99, 0.95)]
    return Quality(float(auc), ap, *above)


def name_pairs(documents: Sequence[Any]) -> Pairs:
    """Pairs of names of one entity, and of two entities of one type in one document."""
    positive: dict[Pair, str] = {}
    negative: dict[Pair, str] = {}
    for document in documents:
        entities = [(v[0]["type"], sorted({m["name"] for m in v})) for v in document["vertexSet"]]
        for kind, names in entities:
            positive.update((pair, kind) for pair in itertools.combinations(names, 2))
        for (kind, one), (other_kind, other) in itertools.combinations(entities, 2):
            if kind == other_kind:
                negative.update(((min(a, b), max(a, b)), kind) for a in one for b in other if a != b)
    return Pairs(positive, {pair: kind for pair, kind in negative.items() if pair not in positive})


def bare(name: str) -> str:
    """Folded, without spaces and "the"."""
    return "".join(folded for folded, _ in _core.parse_name(name)[0] if folded != "the")


def sets(pairs: Pairs) -> dict[str, tuple[list[Pair], list[Pair]]]:
    """F and H, each positives and negatives."""
    sample = random.Random(0).sample(list(pairs.negative), min(H_NEGATIVES, len(pairs.negative)))
    return {
        "F": (
            [pair for pair, kind in pairs.positive.items() if kind in NAMED],
            [p for p, kind in pairs.negative.items() if kind in NAMED and bare(p[0]) != bare(p[1])],
        ),
        "H": (list(pairs.positive), sample),
    }


def unit(vectors: npt.NDArray[np.float32]) -> Scores:
    """Rows of length 1, in double precision."""
    out = vectors.astype(np.float64)
    result: Scores = out / np.linalg.norm(out, axis=1, keepdims=True)
    return result


def cosines(embedder: Embedder, pairs: Sequence[Pair]) -> Scores:
    """The cosine of each pair."""
    names = sorted({name for pair in pairs for name in pair})
    vectors = dict(zip(names, unit(embedder.encode(names)), strict=True))
    return np.array([vectors[a] @ vectors[b] for a, b in pairs])


class RelationQuality(NamedTuple):
    """Of paraphrases ranked against labels."""

    top1: float
    mrr: float
    recall1: float
    recall5: float
    apart: float


def relations(embedder: Embedder, data: dict[str, Any]) -> RelationQuality:
    """How well paraphrases find their label."""
    ids = list(data["labels"])
    near = {frozenset(pair) for pair in data["near"]}
    queries = [text for text, _ in data["paraphrases"]]
    right = np.array([ids.index(label) for _, label in data["paraphrases"]])
    scores = unit(embedder.encode(queries)) @ unit(embedder.encode(list(data["labels"].values()))).T
    wrong = np.array(
        [
            [other != label and frozenset((other, label)) not in near for other in ids]
            for _, label in data["paraphrases"]
        ]
    )
    found = scores[np.arange(len(right)), right]
    rank = 1 + (wrong & (scores >= found[:, None])).sum(axis=1)
    ranking = quality(found, scores[wrong])
    apart = quality(found, cosines(embedder, [(a, b) for a, b in data["apart"]]))
    return RelationQuality(
        float((rank == 1).mean()), float((1 / rank).mean()), ranking.recall1, ranking.recall5, apart.auc
    )


def rate(encode: Callable[[Sequence[str]], object], names: Sequence[str], seconds: float) -> float:
    """Names a second of one thread, best of three runs of at least `seconds`."""
    best = 0.0
    for _ in range(3):
        done, start = 0, time.perf_counter()
        while (taken := time.perf_counter() - start) < seconds or not done:
            encode(names)
            done += len(names)
        best = max(best, done / taken)
    return best


def rules_table(positive: Sequence[Pair], negative: Sequence[Pair]) -> None:
    """Recall and false positives of each rule by itself, on F."""
    print("\nRules on F (recall / false positives)")
    for label, matches in MATCHES.items():
        mask = sum(1 << m for m in matches)
        share = [
            sum(_core.match_names(a, b, mask) in matches for a, b in pairs) / len(pairs)
            for pairs in (positive, negative)
        ]
        print(f"  {label:16s} {share[0]:.3f} / {share[1]:.4f}")


class WordsAlone:
    """rel256 without its contrasts: they and the paraphrases were written by one hand."""

    name = "rel256, no contrasts"
    dim = 248

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return resolve("rel256").encode(texts)[:, : self.dim]


def crowding_table(names: Sequence[str], pairs: Pairs) -> None:
    """How many names a lookup meets that are not meant, and what the rule keys list."""
    aliases: dict[str, set[str]] = {name: {name} for name in names}
    for a, b in pairs.positive:
        aliases[a].add(b)
        aliases[b].add(a)
    vectors = unit(resolve("surf256").encode(names)).astype(np.float32)
    at = {name: i for i, name in enumerate(names)}
    taus = (0.6, 0.7, 0.8, 0.85)
    near = np.zeros(len(taus))
    for i, name in enumerate(names):
        scores = vectors @ vectors[i]
        scores[[at[alias] for alias in aliases[name]]] = -1
        near += [(scores >= tau).sum() for tau in taus]
    print(f"\nsurf256, other names than the aliases at or above tau, a lookup among {len(names)} names")
    print("  " + "   ".join(f"{tau}: {n / len(names):.2f}" for tau, n in zip(taus, near, strict=True)))

    core = _core.RULES_CORE
    listed: dict[int, set[str]] = {}
    for name in names:
        for key in _core.rule_keys(name, core, False):
            listed.setdefault(key, set()).add(name)
    met = [set().union(*(listed.get(k, set()) for k in _core.rule_keys(n, core, True))) - {n} for n in names]
    keys = sum(map(len, listed.values())) / len(names)
    print(
        f"Core rule keys: {keys:.1f} a name; a lookup meets {sum(map(len, met)) / len(names):.2f} other names"
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents, short timings")
    parser.add_argument(
        "--embedder",
        action="append",
        default=[],
        help="surf256, rel256, a folder or a hub id; repeat for several",
    )
    options = parser.parse_args()
    path = SHARED / "data" / "docred" / "dev_revised.json"
    if not path.exists():
        raise SystemExit(f"no {path}: set PYMEMSTORE_TEST_DATA to the folder that holds data/")
    documents = json.loads(path.read_text(encoding="utf-8"))
    documents = documents[: len(documents) // 10] if options.quick else documents
    paraphrases = json.loads((HERE / "relation_paraphrases.json").read_text(encoding="utf-8"))
    pairs = name_pairs(documents)
    chosen = sets(pairs)
    names = sorted({name for pair in (*pairs.positive, *pairs.negative) for name in pair})
    seconds = 0.2 if options.quick else 1.0
    embedders = [resolve(spec) for spec in options.embedder or ("surf256", "rel256")]

    print(f"Entities ({len(names)} names)   AUC   AP    recall at 1 % / 5 % false positives   names/s")
    for embedder in embedders:
        speed = rate(embedder.encode, names, seconds)
        for label, (positive, negative) in chosen.items():
            q = quality(cosines(embedder, positive), cosines(embedder, negative))
            print(
                f"  {embedder.name:20.20s} {label} ({len(positive)} against {len(negative)}) "
                f"{q.auc:.3f} {q.ap:.3f} {q.recall1:.3f} / {q.recall5:.3f}  {speed:,.0f}"
            )
    print(f"\nRelations ({len(paraphrases['paraphrases'])} paraphrases, {len(paraphrases['labels'])} labels)")
    print("                       top-1 MRR   recall at 1 % / 5 %  apart  names/s")
    texts = [text for text, _ in paraphrases["paraphrases"]] * 10
    for embedder in [*embedders, *([] if options.embedder else [WordsAlone()])]:
        r = relations(embedder, paraphrases)
        print(
            f"  {embedder.name:20.20s} {r.top1:.3f} {r.mrr:.3f} {r.recall1:.3f} / {r.recall5:.3f}        "
            f"{r.apart:.3f}  {rate(embedder.encode, texts, seconds):,.0f}"
        )

    positive, negative = chosen["F"]
    rules_table(positive, negative)
    print("\nsurf256 on F (recall / false positives; with the core rules; with them and the number guard)")
    surface = resolve("surf256")
    core = sum(1 << m for m in MATCHES["core"])
    for tau in (0.6, 0.7, 0.8, 0.85):
        cells = []
        for part in (positive, negative):
            close = cosines(surface, part) >= tau
            ruled = np.array([_core.match_names(a, b, core) < 10 for a, b in part])
            agree = np.array([_core.numbers_agree(a, b) for a, b in part])
            cells.append([close.mean(), (close | ruled).mean(), ((close | ruled) & agree).mean()])
        print(f"  tau {tau:.2f}  " + "   ".join(f"{p:.3f} / {n:.4f}" for p, n in zip(*cells, strict=True)))
    crowding_table(names, pairs)


if __name__ == "__main__":
    main()
