"""Searches of sealed vectors: the same answers as without the files, the graph's, and `reindex` itself."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_cases_vectors as cases

import pymemstore
from pymemstore import InvalidArgument, Memory, ReadOnly
from pymemstore.embedders import External

Cases = Callable[[str], Path]
Floats = npt.NDArray[np.float32]
LEAST = 4096  # fewer vectors are not sealed
SEARCHES: tuple[Any, ...] = ("exact", "graph")
TAUS = (0.5, 0.7, 0.9, 1.0)
SLACK = 1e-6  # below a threshold that still counts
CLOSE = 1e-7  # what a given vector's scaling to unit length may shift a score


def opened(path: Path, dim: int, **options: Any) -> Memory:
    return pymemstore.open(path, embedder=External(dim), sync="relaxed", **options)


def near_vectors(seed: int, n: int, dim: int) -> npt.NDArray[Any]:
    """Directions around some centres at many distances; some are the same twice and more."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n // 25 + 1, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    spread = rng.choice([0, 0.05, 0.3, 0.5, 0.8, 1.2], size=(n, 1))
    out: npt.NDArray[Any] = centres[rng.integers(len(centres), size=n)]
    out += spread * rng.normal(size=(n, dim)) / np.sqrt(dim)
    return out


def named(n: int, prefix: str = "e") -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def unit(q: object) -> npt.NDArray[Any]:
    v: npt.NDArray[Any] = np.asarray(q, np.float64)
    v = (v / np.linalg.norm(v)).astype(np.float32)
    return v.astype(np.float64)


def agrees(
    found: Sequence[tuple[str, float]], at: Mapping[str, int], matrix: npt.NDArray[Any], q: object, tau: float
) -> int:
    """Compares an answer with all scores in double precision; how many there are."""
    scores = matrix @ unit(q)
    rows = [at[name] for name, _ in found]
    assert len(rows) == len(set(rows))
    missing = set(np.flatnonzero(scores >= tau - SLACK + CLOSE).tolist()) - set(rows)
    assert not missing, [name for name, i in at.items() if i in missing][:5]
    assert (scores[rows] >= tau - SLACK - CLOSE).all()
    assert np.allclose(np.clip(scores[rows], -1, 1), [score for _, score in found], atol=CLOSE, rtol=0)
    assert all(a[1] >= b[1] for a, b in pairwise(found))
    return len(rows)


def all_agree(
    m: Memory, live: Mapping[str, object], queries: Iterable[Any], taus: Sequence[float] = (0.5, 0.9, 1.0)
) -> int:
    """The store holds just `live`, and its exact answers are those of all its vectors; how many there are."""
    at = {name: i for i, name in enumerate(live)}
    matrix = np.array(list(live.values()), np.float64)
    matrix = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32).astype(np.float64)
    found = [(q, tau, m.similar_entities(q, tau, search="exact")) for q in queries for tau in taus]
    return sum(agrees(answer, at, matrix, q, tau) for q, tau, answer in found)


def self_found(m: Memory, names: Sequence[str], tau: float = 0.999) -> list[str]:
    """Names that a search of the graph by their own vector does not find."""
    return [
        name
        for name in names
        if name not in {n for n, _ in m.similar_entities(cases.vector_of(m, name), tau, search="graph")}
    ]


# ---- exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [3, 64, 256, 384])
def test_exact_answers_are_those_of_all_vectors(tmp_path: Path, dim: int) -> None:
    n = 5000 + dim
    names = named(n)
    with opened(tmp_path / "m.mem", dim) as m:
        m.add_entities(names, vectors=near_vectors(dim, n, dim))
        m.add_relations(["r"], vectors=np.eye(1, dim))
        m.add_many([(name, "r", name) for name in names])
        matrix = np.stack([cases.vector_of(m, name) for name in names])
        at = {name: i for i, name in enumerate(names)}
        queries = [*matrix[::371], *np.random.default_rng(1).normal(size=(7, dim)).astype(np.float32)]
        assert len(queries) >= 16

        def answers(search: Any) -> list[Any]:
            single = [[m.similar_entities(q, t, search=search) for q in queries] for t in TAUS]
            asked = [{"subject_vector": q, "relation_vector": np.eye(1, dim)[0]} for q in queries]
            many = [
                m.query_many(asked, tau_e=t, tau_t=0.9, tau_r=-1.0, rules="none", search=search) for t in TAUS
            ]
            assert all(r.search == "exact" and r.complete and r.search_reason for rs in many for r in rs)
            return [single, [[r.hits for r in results] for results in many]]

        before = answers("exact")
        assert m.stats().entity_sealed_rows == 0
        m.reindex()
        stats = m.stats()
        assert stats.entity_sealed_rows == stats.entity_vector_rows == n and stats.clusters > 1
        assert re.fullmatch(r"[24]\+[024]", stats.code_bits) and stats.entity_index_problem == ""
        for search in ("exact", "auto"):
            assert answers(search) == before  # bit for bit
        exact = matrix.astype(np.float64)
        for tau, single, many in zip(TAUS, *before, strict=True):
            counts = [agrees(found, at, exact, q, tau) for q, found in zip(queries, single, strict=True)]
            assert sum(counts) >= len(matrix[::371])
            for q, hits in zip(queries, many, strict=True):
                agrees([(hit.name, hit.cosine) for hit in hits], at, exact, q, tau)
        assert m.check().ok
    with opened(tmp_path / "m.mem", dim, read_only=True, threads=1) as m:
        assert answers("exact") == before and m.stats().entity_sealed_rows == n
        with pytest.raises(ReadOnly):
            m.reindex()


def test_changes_after_sealing_count_at_once(tmp_path: Path) -> None:
    dim = 24
    vectors = near_vectors(7, 7000, dim)
    live: dict[str, Any] = dict(zip(named(5200), vectors, strict=False))
    queries = vectors[::700]
    with opened(tmp_path / "m.mem", dim) as m:
        m.add_entities(list(live), vectors=vectors[:5200])
        m.reindex(graph=True)
        for i in range(5200, 5300):
            m.add_entities([f"e{i}"], vectors=vectors[i : i + 1])
            live[f"e{i}"] = vectors[i]
            assert f"e{i}" in dict(m.similar_entities(vectors[i], 0.99999))
        assert all_agree(m, live, queries) > 300
        for i in range(0, 5300, 31):
            old, live[f"e{i}"] = live[f"e{i}"], vectors[5500 + i // 31]
            m.set_vector(f"e{i}", live[f"e{i}"])
            for search in SEARCHES:
                near = dict(m.similar_entities(old, 0.99, search=search))
                assert f"e{i}" not in near or unit(old) @ unit(live[f"e{i}"]) > 0.98
                assert f"e{i}" in dict(m.similar_entities(live[f"e{i}"], 0.9999, search=search))
        assert all_agree(m, live, queries) > 300
        assert m.stats().entity_sealed_rows == 5200
        m.compact()  # seals again what was sealed, the graph too
        stats = m.stats()
        assert stats.entity_sealed_rows == stats.graph_rows == stats.entity_vector_rows == 5300
        assert sorted(p.name for p in (tmp_path / "m.mem/index").iterdir()) == [
            "entities-000002.codes", "entities-000002.graph",
        ]  # fmt: skip
        assert all_agree(m, live, queries) > 300 and self_found(m, [*live][::50]) == [] and m.check().ok
        with m.transaction() as t:
            for name in [name for i, name in enumerate(live) if i % 10]:
                t.forget(name)
                del live[name]
        assert len(live) == 530 and m.stats().entity_sealed_rows == 5300
        all_agree(m, live, queries)
        for q in queries:
            assert {n for n, _ in m.similar_entities(q, -1.0, search="graph")} <= set(live)
        m.reindex()  # the dead rows are still in the file
        all_agree(m, live, queries, (-1.0, 0.5))
        m.add_entities(["e1", "e2"], vectors=vectors[6000:6002])  # forgotten names come back as others
        live |= {"e1": vectors[6000], "e2": vectors[6001]}
        all_agree(m, live, queries)
        m.compact()  # too few are left to be sealed
        assert m.stats().entity_sealed_rows == 0 and m.stats().entity_vector_rows == 532
        assert list((tmp_path / "m.mem/index").iterdir()) == []
        all_agree(m, live, queries, (-1.0, 0.5))
        assert m.check().ok


def test_a_store_that_was_not_sealed_is_not_when_compacted(tmp_path: Path) -> None:
    with opened(tmp_path / "m.mem", 4) as m:
        m.add_entities(named(5000), vectors=near_vectors(1, 5000, 4))
        m.compact()
        assert m.stats().entity_sealed_rows == 0


@pytest.mark.parametrize("n", [0, LEAST - 1, LEAST])
def test_the_least_that_is_sealed(tmp_path: Path, n: int) -> None:
    with opened(tmp_path / "m.mem", 8) as m:
        m.add_entities(named(n), vectors=near_vectors(1, n, 8))
        m.add_relations(named(n), vectors=near_vectors(2, n, 8))
        m.reindex(graph=True)
        stats = m.stats()
        assert stats.entity_sealed_rows == stats.relation_sealed_rows == (n if n == LEAST else 0)
        assert stats.graph_rows == stats.entity_sealed_rows
        for i in range(0, n, 501):
            assert f"e{i}" in dict(m.similar_relations(near_vectors(2, n, 8)[i], 0.9999))


# ---- the cases of vectors, sealed ----------------------------------------------------------------------


class Sealing(Memory):
    """Seals all rows before each search."""

    searches = 0
    graph = False

    def _seal(self) -> None:
        if not self.read_only and not self.closed:
            self.reindex(graph=self.graph)
            stats = self.stats()
            self.searches += stats.entity_sealed_rows == stats.entity_vector_rows >= LEAST

    def _similar(self, *arguments: Any) -> list[tuple[str, float]]:
        self._seal()
        return super()._similar(*arguments)

    def _run(self, *arguments: Any, **options: Any) -> Any:
        self._seal()
        return super()._run(*arguments, **options)

    def close(self) -> None:
        self._seal()
        super().close()


@pytest.fixture(params=[False, True])
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Memory]]:
    """As in test_cases_vectors.py, beside 4,200 rows of forgotten names, so that all is sealed."""
    made: list[Sealing] = []

    def make(dim: int, name: str = "external", path: str = "v.mem", **options: Any) -> Memory:
        m = pymemstore.open(tmp_path / path, embedder=External(dim, name), **options)
        m.__class__ = Sealing
        assert isinstance(m, Sealing)
        made.append(m)
        m.graph = request.param
        if m.stats().entity_vector_rows == 0:
            extra = named(LEAST + 104, "extra ")
            m.add_entities(extra, vectors=near_vectors(dim, len(extra), dim))
            with m.transaction() as t:
                for name in extra:
                    t.forget(name)
        return m

    yield make
    for m in made:
        m.close()
    assert sum(m.searches for m in made) > 0


@pytest.fixture
def case(shared_case: Cases) -> Callable[[str], Any]:
    return lambda name: json.loads(shared_case(f"vectors/{name}.json").read_text())


@pytest.mark.parametrize(
    "test",
    [
        cases.test_V01_identical_10000, cases.test_V03_outlier_101,
        cases.test_V06_V07_V08_threshold_boundary, cases.test_V06_V08_threshold_boundary_in_query,
        cases.test_V13_V15_V19_churn_600_ops, cases.test_V21_embedding_jitter, cases.test_V22_not_normalised,
    ],
)  # fmt: skip
def test_cases_hold_when_sealed(
    make: Callable[..., Memory], case: Callable[[str], Any], test: Callable[..., None]
) -> None:
    test(make, case)


@pytest.mark.parametrize("name", ["k_and_empty", "delete_one_duplicate", "replace_first_added"])
def test_steps_hold_when_sealed(make: Callable[..., Memory], case: Callable[[str], Any], name: str) -> None:
    cases.test_V04_V13_V14_V20_steps(make, case, name)


def test_more_cases_hold_when_sealed(
    make: Callable[..., Memory], case: Callable[[str], Any], shared_case: Cases, tmp_path: Path
) -> None:
    cases.test_V12_model_stamp(make, case, tmp_path)
    (tmp_path / "v.mem").rename(tmp_path / "other.mem")
    cases.test_V05_circle_1500(make, shared_case)


def case_vectors(shared_case: Cases, name: str) -> dict[str, list[float]]:
    """What a case leaves in the store."""
    path = shared_case(f"vectors/{name}")
    if name.endswith(".tsv"):
        table = [line.split("\t") for line in path.read_text().splitlines()[1:]]
        return {r[0]: [float(r[1]), float(r[2])] for r in table}
    data = json.loads(path.read_text())
    if name.startswith("embedding_jitter"):
        return {data["name"]: data["vector_alone"]}
    rows: list[dict[str, Any]]
    if name.startswith("identical"):
        rows = [{"id": i, "vector": data["repeated"]["vector"]} for i in range(10_000)] + data["others"]
    else:
        rows = data.get("vectors") or data.get("clean") or []
    live = {str(r["id"]): r["vector"] for r in rows}
    for op in data.get("ops", []) + [[s["op"], s.get("id"), s.get("vector")] for s in data.get("steps", [])]:
        if op[0] in ("put", "add"):
            live[str(op[1])] = op[2]
        elif op[0] in ("del", "delete"):
            live.pop(str(op[1]), None)
    return live


@pytest.mark.parametrize(
    "name",
    [
        "bad_vectors.json", "churn_600_ops.json", "circle_1500.tsv", "delete_one_duplicate.json",
        "embedding_jitter.json", "identical_10000.json", "k_and_empty.json", "not_normalised.json",
        "outlier_101.json", "replace_first_added.json", "threshold_boundary.json",
    ],
)  # fmt: skip
def test_case_vectors_among_others(tmp_path: Path, shared_case: Cases, name: str) -> None:
    live = case_vectors(shared_case, name)
    assert live or name == "k_and_empty.json"
    dim = len(next(iter(live.values()), [0] * 4))
    extra = dict(zip(named(LEAST + 104, "extra "), near_vectors(dim, LEAST + 104, dim), strict=True))
    with opened(tmp_path / "m.mem", dim) as m:
        m.add_entities(list(extra)[::2], vectors=list(extra.values())[::2])
        m.add_entities(list(live), vectors=list(live.values()) or None)
        m.add_entities(list(extra)[1::2], vectors=list(extra.values())[1::2])
        queries = [*live.values()][:: len(live) // 20 + 1] + [*extra.values()][::999]
        before = [m.similar_entities(q, t) for q in queries for t in (0.3, 0.8, 0.999999)]
        m.reindex(graph=True)
        stats = m.stats()
        assert stats.entity_sealed_rows == stats.graph_rows == len(live) + len(extra)
        assert [m.similar_entities(q, t) for q in queries for t in (0.3, 0.8, 0.999999)] == before
        assert all_agree(m, {**live, **extra}, queries, (0.3, 0.8, 0.999999)) >= len(queries)
        if name.startswith("identical"):
            q = live["9999"]
            for search in SEARCHES:
                found = m.similar_entities(q, 0.999, search=search)
                assert {n for n, _ in found} >= {str(i) for i in range(10_000)}
            assert self_found(m, [*live][9990:]) == self_found(m, [*extra][::7]) == []
        else:
            assert self_found(m, [*live][:: len(live) // 500 + 1] + [*extra][::9], 0.99999) == []


def test_bad_vectors_are_refused_as_before(tmp_path: Path, case: Callable[[str], Any]) -> None:
    data = case("bad_vectors")
    with opened(tmp_path / "m.mem", data["dim"]) as m:
        names, vectors = named(LEAST), near_vectors(3, LEAST, data["dim"])
        m.add_entities(names, vectors=vectors)
        m.reindex(graph=True)
        for bad in data["bad"]:
            for search in (*SEARCHES, "auto"):
                with pytest.raises(InvalidArgument):
                    m.similar_entities(cases.bad(bad["v"]), 0.5, search=search)
            with pytest.raises(InvalidArgument):
                m.set_vector("e0", cases.bad(bad["v"]))
        wrong: list[Any] = ["fast", "", None]
        for given in wrong:
            with pytest.raises(InvalidArgument, match="search"):
                m.similar_entities(vectors[0], 0.5, search=given)
        assert all_agree(m, dict(zip(names, vectors, strict=True)), vectors[:9]) >= 9


def test_churn_on_a_sealed_store(tmp_path: Path, case: Callable[[str], Any]) -> None:
    data = case("churn_600_ops")
    extra = dict(zip(named(5000, "extra "), near_vectors(5, 5000, 8), strict=True))
    live: dict[str, Any] = dict(extra)
    with opened(tmp_path / "m.mem", 8) as m:
        m.add_entities(list(extra), vectors=list(extra.values()))
        m.reindex()
        for i, (op, number, *rest) in enumerate(data["ops"]):
            name = str(number)
            if op == "del":
                m.forget(name)
                del live[name]
            elif name in live:
                m.set_vector(name, rest[0])
            else:
                m.add_entities([name], vectors=rest)
            if op == "put":
                live[name] = rest[0]
                assert name in dict(m.similar_entities(rest[0], 0.999999))
            if i % 100 == 50:
                all_agree(m, live, [rest[0]] if rest else [], (0.3, 0.9))
            if i in (200, 400):
                m.reindex(graph=i == 400)
                assert m.stats().entity_sealed_rows == m.stats().entity_vector_rows > 5000
        expected = data["expected"]
        for compacted in (False, True):
            for number, near in expected["at_or_above_0_3"].items():
                found = m.similar_entities(live[number], 0.3)
                assert sorted(int(n) for n, _ in found if n not in extra) == near
            all_agree(m, live, [*live.values()][5000::9], (0.3, 0.999999))
            assert m.check().ok
            if not compacted:
                m.compact()
                assert m.stats().entity_sealed_rows == m.stats().entity_vector_rows == 5041


# ---- the graph ---------------------------------------------------------------------------------------


def test_identical_vectors_hide_nobody(tmp_path: Path) -> None:
    distinct = np.random.default_rng(4).normal(size=(2000, 32))
    names = named(12_000)
    with opened(tmp_path / "m.mem", 32) as m:
        m.add_entities(names, vectors=np.concatenate([np.tile(distinct[:1], (10_000, 1)), distinct]))
        m.reindex(graph=True)
        assert m.stats().graph_rows == 12_000
        for search in SEARCHES:
            found = m.similar_entities(distinct[0], 0.9999, search=search)
            assert [n for n, _ in found] == names[:10_001]  # all of them, ties by id
        assert self_found(m, names[10_001:]) == []
        assert len(m.similar_entities(distinct[0], 0.9999, limit=7, search="graph")) == 7


def made_names(n: int) -> list[str]:
    rng = random.Random(11)
    parts = ["".join(rng.choice("bdklmnprst") + rng.choice("aeiou") for _ in range(k)) for k in (2, 3) * 150]
    made = dict.fromkeys(
        " ".join(rng.choice(parts).capitalize() for _ in range(rng.randint(1, 3))) for _ in range(2 * n)
    )
    return list(made)[:n]


def test_the_graph_finds_names(tmp_path: Path) -> None:
    names = made_names(6000)
    assert len(names) == 6000
    with pymemstore.open(tmp_path / "m.mem", sync="relaxed") as m:  # surf256
        m.add_many([(name, "knows", name) for name in names])
        unsealed = m.query("Bada", "knows", search="graph")
        assert unsealed.search == "exact" and "sealed" in unsealed.search_reason
        m.reindex()
        no_graph = m.query("Bada", "knows", search="graph")
        assert (no_graph.search, no_graph.complete) == (
            "exact",
            True,
        ) and "no graph" in no_graph.search_reason
        assert no_graph.hits == unsealed.hits == m.query("Bada", "knows", search="exact").hits
        m.reindex(graph=True)
        assert m.stats().graph_rows == m.stats().entity_sealed_rows == 6000
        assert self_found(m, names) == []
        rng = random.Random(5)
        asked: list[dict[str, Any]] = []
        for name in rng.sample(names, 300):
            at = rng.randrange(len(name))
            asked.append(
                {"subject": name[:at] + rng.choice("aeiouklm") + name[at + 1 :], "relation": "knows"}
            )
        exact = m.query_many(asked, search="exact", rules="none", tau_r=-1.0, tau_e=0.6)
        graph = m.query_many(asked, search="graph", rules="none", tau_r=-1.0, tau_e=0.6)
        true, got = ([{(i, h.triple_id) for i, r in enumerate(x) for h in r}] for x in (exact, graph))
        assert len(true[0]) > 600 and got[0] <= true[0]
        assert len(got[0] & true[0]) / len(true[0]) >= 0.9
        assert {(r.search, r.complete, r.search_reason) for r in exact} == {("exact", True, "asked for")}
        assert {(r.search, r.complete, r.search_reason) for r in graph} == {("graph", False, "asked for")}
        assert "searched by graph" in repr(graph[0])
        for one, many in zip(asked[:20], graph, strict=False):
            alone = m.query(**one, search="graph", rules="none", tau_r=-1.0, tau_e=0.6)
            assert alone.hits == many.hits and alone.search == "graph"
        mixed = m.query_many([q | {"search": s} for q in asked[:8] for s in ("graph", "exact", "auto")])
        assert [r.search for r in mixed] == ["graph", "exact", "exact"] * 8
        assert {r.search_reason for r in mixed[2::3]} != {""} and all(r.complete for r in mixed[2::3])
        m.add("Someone new", "knows", "Bada")  # newer than the graph: found all the same
        assert m.query("Someone new", "knows", search="graph", rules="none").names == ["Bada"]


# ---- relations that tighten the entities' threshold ----------------------------------------------------


def test_the_best_relation_raises_the_entities_threshold(tmp_path: Path) -> None:
    dim, n, tau_e, tau_t, tau_r = 16, 4500, 0.1, -0.2, 0.62
    rng = np.random.default_rng(8)
    names, relations = named(n), named(12, "r")
    facts = [(int(s), int(r), int(o)) for s, r, o in rng.integers(0, [n, 12, n], size=(9000, 3))]
    with opened(tmp_path / "m.mem", dim) as m:
        m.add_entities(names, vectors=near_vectors(8, n, dim))
        m.add_relations(relations, vectors=rng.normal(size=(12, dim)))
        report = m.add_many([(names[s], relations[r], names[o]) for s, r, o in facts])
        entity = np.stack([cases.vector_of(m, name) for name in names]).astype(np.float64)
        relation = np.array([m.vector(name, relation=True) for name in relations], np.float64)
        s, r, o = np.array(facts).T
        queries = [
            (entity[rng.integers(n)] + 0.1 * rng.normal(size=dim), rng.normal(size=dim), bool(i % 2))
            for i in range(200)
        ]
        expected, tightened, within, loose = [], 0, [], 0
        for q, t, by_object in queries:
            e, rel = entity @ unit(q), relation @ unit(t)
            tight = 2 * tau_r - rel.max()
            assert rel.max() < 0.95
            tightened += tight > tau_e
            within.append([int((e >= max(tau_e, tight) + d).sum()) for d in (1e-5, -1e-5)])
            loose += int((e >= tau_e).sum())
            mean = (e[o if by_object else s] + rel[r]) / 2
            good = (e[o if by_object else s] >= tau_e) & (rel[r] >= tau_t) & (mean >= tau_r)
            found = {int(report.triple_ids[i]): float(mean[i]) for i in np.flatnonzero(good)}
            expected.append(found)
        assert tightened >= 190 and sum(map(len, expected)) > 200
        asked = [
            {"object_vector" if by_object else "subject_vector": q, "relation_vector": t}
            for q, t, by_object in queries
        ]
        taus: dict[str, Any] = {"tau_e": tau_e, "tau_t": tau_t, "tau_r": tau_r, "rules": "none"}
        seen = []
        for _ in range(2):
            many = m.query_many(asked, **taus)
            singly = [m.query(**q, **taus) for q in asked]
            for one, other, true, (least, most) in zip(many, singly, expected, within, strict=True):
                assert one.hits == other.hits
                assert {h.triple_id: pytest.approx(h.score, abs=1e-6) for h in one} == true
                assert least <= one.entity_candidates == other.entity_candidates <= most
                assert one.complete
            assert sum(one.entity_candidates for one in many) * 5 < loose
            all_of_them = m.query_many(asked, **taus | {"tau_r": -1.0})
            assert sum(x.entity_candidates for x in all_of_them) == pytest.approx(loose, abs=2)
            seen.append([one.hits for one in many])
            m.reindex()
        assert m.stats().entity_sealed_rows == n and seen[0] == seen[1]


# ---- threads -----------------------------------------------------------------------------------------


def test_searches_while_another_thread_seals(tmp_path: Path) -> None:
    dim, steps = 24, [5000, 5600, 6200, 6800]
    vectors, names = near_vectors(6, steps[-1], dim), named(steps[-1])
    with opened(tmp_path / "m.mem", dim) as m:
        m.add_entities(names[: steps[0]], vectors=vectors[: steps[0]])
        matrix = np.stack([unit(v) for v in vectors])
        committed = [steps[0]]
        done: list[bool] = []
        asked = vectors[:: steps[-1] // 40]
        true = [np.flatnonzero(matrix @ unit(q) >= 0.7 - SLACK) for q in asked]

        def ask(worker: int) -> int:
            count = 0
            while not done or count == 0:
                for i in range(worker, len(asked), 4):
                    least = committed[-1]
                    got = {int(n[1:]) for n, _ in m.similar_entities(asked[i], 0.7)}
                    of = [set(true[i][true[i] < k].tolist()) for k in steps if k >= least]
                    assert got in of, (len(got), [len(x) for x in of], least)
                    count += 1
            return count

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(ask, i) for i in range(4)]
            try:
                for k, (first, end) in enumerate(pairwise(steps)):
                    m.add_entities(names[first:end], vectors=vectors[first:end])
                    committed.append(end)
                    if k < 2:
                        m.reindex(graph=k == 1)
            finally:
                done.append(True)
            assert sum(f.result() for f in running) > 40
        stats = m.stats()
        assert stats.entity_sealed_rows == stats.graph_rows == 6200 and m.check().ok
