"""Memory: writing, asking, reading, upkeep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import Memory, Query, Triple, _core
from pymemstore.embedders import External


@pytest.fixture
def embedder() -> Hashed:
    return Hashed()


@pytest.fixture
def memory(tmp_path: Path, embedder: Hashed) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as m:
        yield m


def facts(memory: Memory) -> set[tuple[str, str, str]]:
    return {t[:3] for t in memory.triples()}


# ---- writing -----------------------------------------------------------------------------------------


def test_add_tells_new_from_known_and_keeps_the_id(memory: Memory) -> None:
    first = memory.add("Ana Lima", "born in", "Recife")
    again = memory.add("Ana Lima", "born in", "Recife")
    other = memory.add("Ana Lima", "born in", "Olinda")
    assert (first.inserted, again.inserted, other.inserted) == (True, False, True)
    assert first.triple_id == again.triple_id != other.triple_id
    assert tuple(first) == (first.triple_id, True)
    assert memory.triple(first.triple_id) == ("Ana Lima", "born in", "Recife", first.triple_id)
    assert len(memory) == 2
    assert memory.contains("Ana Lima", "born in", "Olinda")
    assert not memory.contains("Olinda", "born in", "Ana Lima")


def test_add_many_reports_in_the_order_given(memory: Memory) -> None:
    known = memory.add("b", "r", "c")
    rows = [("a", "r", "b"), ["b", "r", "c"], ("a", "r", "b"), ("c", "q", "a")]
    report = memory.add_many(rows)
    assert (report.inserted, report.existed) == (2, 2)
    assert report.inserted_mask.tolist() == [True, False, False, True]
    assert report.inserted_mask.dtype == np.bool_ and report.triple_ids.dtype == np.uint64
    assert report.triple_ids[1] == known.triple_id and report.triple_ids[0] == report.triple_ids[2]
    assert [memory.triple(int(i))[:3] for i in report.triple_ids] == [tuple(row) for row in rows]
    assert (report.new_entities, report.new_relations) == (1, 1)  # a; q


def test_add_many_of_nothing_and_of_a_generator(memory: Memory) -> None:
    empty = memory.add_many([])
    assert (empty.inserted, empty.existed, len(empty.triple_ids)) == (0, 0, 0)
    assert memory.add_many((f"s{i}", "r", "o") for i in range(5)).inserted == 5


def test_add_many_over_several_slices(memory: Memory) -> None:
    rows = [(f"s{i % 7000}", f"r{i % 3}", f"o{i % 11}") for i in range(25_000)]
    report = memory.add_many(rows, source=[f"line {i}" if i % 2 else None for i in range(25_000)])
    assert report.inserted == len(set(rows)) == len(memory)
    for i in (0, 9_999, 10_000, 20_001, 24_999):
        assert memory.triple(int(report.triple_ids[i]))[:3] == rows[i]
        said = {s.source for s in memory.sources(int(report.triple_ids[i]))}
        assert said == {f"line {k}" for k in range(25_000) if k % 2 and rows[k] == rows[i]}


def test_triples_of_another_store_can_be_added(memory: Memory, tmp_path: Path) -> None:
    memory.add_many([("a", "r", "b"), ("b", "r", "c")])
    with pymemstore.open(tmp_path / "other.mem", embedder=Hashed()) as other:
        assert other.add_many(memory.triples()).inserted == 2
        assert facts(other) == facts(memory)


def test_only_names_without_a_vector_are_embedded(memory: Memory, embedder: Hashed) -> None:
    memory.add_many([("a", "r", "b"), ("b", "r", "a")])
    assert sorted(embedder.texts) == ["a", "b", "r"]
    embedder.calls.clear()
    memory.add_many([("a", "r", "c")])
    assert embedder.texts == ["c"]


def test_no_lock_is_held_while_names_are_embedded(tmp_path: Path) -> None:
    # The embedder writes to the store through a handle of its own: under a lock it would time out.
    class Writing(Hashed):
        inner: Memory | None = None

        def encode(self, texts):  # type: ignore[no-untyped-def]
            if self.inner is not None and "from inside" not in texts:
                self.inner.add("from inside", "r", "x")
            return super().encode(texts)

    embedder = Writing()
    with (
        pymemstore.open(tmp_path / "m.mem", embedder=embedder, timeout=2) as outer,
        pymemstore.open(tmp_path / "m.mem", embedder=Hashed(), timeout=2) as inner,
    ):
        inner.add_entities(["x"])
        embedder.inner = inner
        outer.add("a", "r", "b")
        assert facts(outer) == {("from inside", "r", "x"), ("a", "r", "b")}


def test_progress_counts_embedded_names(memory: Memory) -> None:
    seen: list[tuple[int, int]] = []
    memory.add_many([(f"s{i}", "r", "o") for i in range(5000)], progress=lambda *at: seen.append(at))
    assert seen[0] == (0, 5002) and seen[-1] == (5002, 5002) and len(seen) > 2
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_an_exception_from_progress_writes_nothing(memory: Memory) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.add_many([("a", "r", "b")], progress=stop)
    assert len(memory) == 0 and list(memory.entities()) == []


def test_replace_displaces_and_tells(memory: Memory) -> None:
    one, two = memory.add("Ana", "lives in", "Recife"), memory.add("Ana", "lives in", "Olinda")
    memory.add("Ana", "born in", "Recife")
    replaced = memory.replace("Ana", "lives in", "Natal", source="letter")
    assert replaced.inserted
    assert set(replaced.removed) == {
        Triple("Ana", "lives in", "Recife", one.triple_id),
        Triple("Ana", "lives in", "Olinda", two.triple_id),
    }
    assert facts(memory) == {("Ana", "lives in", "Natal"), ("Ana", "born in", "Recife")}
    again = memory.replace("Ana", "lives in", "Natal")
    assert (again.inserted, again.removed, again.triple_id) == (False, (), replaced.triple_id)
    assert [s.source for s in memory.sources(replaced.triple_id)] == ["letter"]


def test_remove_and_a_new_id_for_a_fact_that_comes_back(memory: Memory) -> None:
    first = memory.add("a", "r", "b").triple_id
    assert memory.remove("a", "r", "b") is True
    assert memory.remove("a", "r", "b") is False and memory.remove("x", "y", "z") is False
    assert len(memory) == 0 and set(memory.entities()) == {"a", "b"}
    assert memory.add("a", "r", "b").triple_id != first
    with pytest.raises(pymemstore.NotFound, match=str(first)):
        memory.triple(first)


def test_forget_takes_facts_in_both_directions(memory: Memory) -> None:
    memory.add_many([("a", "r", "b"), ("b", "r", "a"), ("a", "r", "a"), ("b", "r", "c")])
    assert memory.forget("a") == 3
    assert facts(memory) == {("b", "r", "c")} and set(memory.entities()) == {"b", "c"}
    with pytest.raises(pymemstore.NotFound, match="a"):
        memory.forget("a")


def test_aliases_are_many_to_many_and_merge_nothing(memory: Memory) -> None:
    memory.add_many([("Paris", "in", "France"), ("Paris (Texas)", "in", "United States")])
    assert memory.alias("Paree", "Paris") is True and memory.alias("Paree", "Paris") is False
    assert memory.alias("Paree", "Paris (Texas)") is True
    assert memory.alias("City of Light", "Paris")
    assert sorted(memory.aliases("Paris")) == ["City of Light", "Paree"]
    assert sorted(memory.named_by("Paree")) == ["Paris", "Paris (Texas)"]
    found = memory.query("Paree", "in")
    assert sorted(found.names) == ["France", "United States"]
    assert {hit.match for hit in found} == {"alias"} and {hit.entity_similarity for hit in found} == {1.0}
    assert memory.unalias("Paree", "Paris") is True and memory.unalias("Paree", "Paris") is False
    assert memory.query("Paree", "in").names == ["United States"]
    assert memory.alias("located in", "in", relation=True) and memory.aliases("in", relation=True) == [
        "located in"
    ]
    assert memory.query("Paris", "located in").names == ["France"]


def test_rename_keeps_facts_and_ids_and_takes_the_new_names_vector(memory: Memory, embedder: Hashed) -> None:
    added = memory.add("Bombay", "in", "India")
    memory.rename("Bombay", "Mumbai")
    assert memory.triple(added.triple_id) == ("Mumbai", "in", "India", added.triple_id)
    assert set(memory.entities()) == {"Mumbai", "India"}
    vector = memory.vector("Mumbai")
    assert vector is not None
    np.testing.assert_allclose(vector, embedder.one("Mumbai"), atol=1e-6)
    memory.rename("in", "part of", relation=True)
    assert list(memory.relations()) == ["part of"]
    with pytest.raises(pymemstore.InvalidArgument):
        memory.rename("Mumbai", "India")


def test_names_without_facts(memory: Memory, embedder: Hashed) -> None:
    memory.add("a", "r", "b")
    assert memory.add_entities(["a", "c", "c", "d"]) == 2
    assert memory.add_relations(["r", "s"], vectors=np.eye(2, 16)) == 1
    assert list(memory.entities()) == ["a", "b", "c", "d"] and list(memory.relations()) == ["r", "s"]
    vector = memory.vector("s", relation=True)
    assert vector is not None and vector.tolist() == np.eye(2, 16)[1].tolist()
    assert "s" not in embedder.texts
    np.testing.assert_allclose(memory.vector("r", relation=True), embedder.one("r"), atol=1e-6)


def test_external_ids(memory: Memory) -> None:
    memory.add("Douglas Adams", "born in", "Cambridge")
    assert memory.set_external_id("Q42", "Douglas Adams") is True
    assert memory.set_external_id("Q42", "Douglas Adams") is False
    assert memory.by_external_id("Q42") == "Douglas Adams" and memory.by_external_id("Q43") is None
    assert memory.external_ids("Douglas Adams") == ["Q42"] and memory.external_ids("Cambridge") == []
    assert memory.set_external_id("P19", "born in", relation=True)
    assert memory.by_external_id("P19") is None
    assert memory.by_external_id("P19", relation=True) == "born in"


# ---- vectors -----------------------------------------------------------------------------------------


def test_given_vectors_are_bound_by_name(memory: Memory, embedder: Hashed) -> None:
    rng = np.random.default_rng(1)
    rows = [("a", "r", "b"), ("b", "r", "a"), ("c", "q", "a")]
    s, o = rng.normal(size=(3, 16)), rng.normal(size=(3, 16)).astype(np.float32)
    memory.add_many(rows, vectors=(s, None, o))
    assert sorted(embedder.texts) == ["q", "r"]
    # Of a name that comes twice the first counts: as a subject here, since subjects come first.
    for name, given in (("a", s[0]), ("b", s[1]), ("c", s[2])):
        np.testing.assert_allclose(memory.vector(name), given / np.linalg.norm(given), atol=1e-6)
    memory.add("a", "r", "d", vectors=(rng.normal(size=16), None, np.arange(16)))
    np.testing.assert_allclose(memory.vector("a"), s[0] / np.linalg.norm(s[0]), atol=1e-6)  # it keeps its own
    np.testing.assert_allclose(memory.vector("d"), np.arange(16) / np.linalg.norm(np.arange(16)), atol=1e-6)


def test_given_vectors_are_copied(memory: Memory) -> None:
    given = np.eye(1, 16, dtype=np.float32)
    with memory.transaction() as t:
        t.add_many([("a", "r", "b")], vectors=(given, None, None))
        t.add("c", "r", "b", vectors=(given[0], None, None))
        given[:] = 7
    for name in ("a", "c"):
        vector = memory.vector(name)
        assert vector is not None and vector[0] == 1


def test_lengths_do_not_matter(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    case = json.loads(shared_case("vectors/not_normalised.json").read_text())
    with pymemstore.open(tmp_path / "m.mem", embedder=External(case["dim"])) as memory:
        given = [row["vector"] for row in case["vectors"]]
        memory.add_entities([f"id {row['id']}" for row in case["vectors"]], vectors=given)
        scores = dict(memory.similar_entities(case["query"], -1))
        assert {n for n, c in scores.items() if c >= 0.999} == {f"id {i}" for i in range(5)}
        assert [scores[f"id {i}"] for i in range(5)] == pytest.approx([1] * 5, abs=1e-5)
        assert scores["id 10"] == pytest.approx(-1, abs=1e-5)


def test_a_name_is_one_entity_whatever_its_vector(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    case = json.loads(shared_case("vectors/embedding_jitter.json").read_text())
    with pymemstore.open(tmp_path / "m.mem", embedder=External(case["dim"])) as memory:
        assert memory.add_entities([case["name"]], vectors=[case["vector_alone"]]) == 1
        first = memory.vector(case["name"])
        assert memory.add_entities([case["name"]], vectors=[case["vector_in_batch"]]) == 0
        assert list(memory.entities()) == [case["name"]] and first is not None
        assert memory.vector(case["name"]).tolist() == first.tolist()  # type: ignore[union-attr]
        for vector in (case["vector_alone"], case["vector_in_batch"]):
            assert [n for n, _ in memory.similar_entities(vector, 0.9999)] == [case["name"]]


def test_vector_is_of_unit_length(memory: Memory) -> None:
    memory.add("a", "r", "b")
    memory.set_vector("a", [0, 0, 3] + [0] * 13)
    vector = memory.vector("a")
    assert vector is not None and vector.dtype == np.float32 and vector.tolist() == [0, 0, 1] + [0] * 13
    with pytest.raises(pymemstore.NotFound):
        memory.vector("nobody")
    with pytest.raises(pymemstore.NotFound):
        memory.set_vector("nobody", np.ones(16))


# ---- queries -----------------------------------------------------------------------------------------


def brute_force(
    triples: list[Triple],
    vectors: dict[str, np.ndarray],
    relations: dict[str, np.ndarray],
    entity: np.ndarray,
    relation: np.ndarray,
    taus: tuple[float, float, float],
    object_known: bool,
) -> list[tuple[str, int]]:
    """The paper's definition, in double precision: [(answer, triple id)], best first."""
    hits = []
    for t in triples:
        known, answer = (t.object, t.subject) if object_known else (t.subject, t.object)
        e = float(vectors[known].astype(float) @ entity.astype(float))
        r = float(relations[t.relation].astype(float) @ relation.astype(float))
        if e >= taus[0] and r >= taus[1] and (e + r) / 2 >= taus[2]:
            hits.append((-(e + r) / 2, t.id, answer))
    return [(answer, i) for _, i, answer in sorted(hits)]


@pytest.mark.parametrize("seed", range(3))
def test_queries_equal_brute_force_in_both_directions(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    embedder = Hashed(dim=3)
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as memory:
        memory.add_many(
            [(f"e{a}", f"r{b}", f"e{c}") for a, b, c in rng.integers(0, [40, 6, 40], size=(300, 3))]
        )
        triples = list(memory.triples())
        vectors = {n: v for n in memory.entities() if (v := memory.vector(n)) is not None}
        relations = {n: v for n in memory.relations() if (v := memory.vector(n, relation=True)) is not None}
        asked = 0
        for _ in range(30):
            taus = tuple(rng.uniform(-0.5, 0.95, size=3))
            e, r = f"e{rng.integers(60)}", f"r{rng.integers(9)}"
            for object_known in (False, True):
                expected = brute_force(
                    triples, vectors, relations, embedder.one(e), embedder.one(r), taus, object_known
                )
                slots = {"object": e} if object_known else {"subject": e}
                got = memory.query(
                    relation=r, **slots, tau_e=taus[0], tau_t=taus[1], tau_r=taus[2], rules="none"
                )
                assert [(hit.name, hit.triple_id) for hit in got] == expected
                assert got.search == "exact" and got.complete and not got.truncated and got.unembedded == 0
                assert got.names == list(dict.fromkeys(name for name, _ in expected))
                asked += len(expected)
        assert asked > 100


def test_a_hit_explains_itself(memory: Memory) -> None:
    added = memory.add("Ana Lima", "born in", "Recife")
    (hit,) = memory.query("Ana Lima", "born in")
    assert hit.name == "Recife" and hit.match == "exact" and hit.triple_id == added.triple_id
    assert hit.triple == ("Ana Lima", "born in", "Recife", added.triple_id)
    assert hit.score == pytest.approx((hit.entity_similarity + hit.relation_similarity) / 2)
    assert hit.cosine == pytest.approx(1, abs=1e-6)
    (folded,) = memory.query("ANA LIMA", "born in")
    assert folded.match == "folded" and folded.entity_similarity == pytest.approx(0.99)
    assert not memory.query("ANA LIMA", "born in", rules="none")
    assert not memory.query("ANA LIMA", "born in", rules=["exact", "alias"])
    assert memory.query("ANA LIMA", "born in", rules=["folded"]).names == ["Recife"]


def test_limit_cuts_and_says_so(memory: Memory) -> None:
    memory.add_many([("a", "r", f"o{i}") for i in range(5)])
    everything = memory.query("a", "r")
    cut = memory.query("a", "r", limit=3)
    assert (len(everything), everything.truncated, len(cut), cut.truncated) == (5, False, 3, True)
    assert cut.hits == everything.hits[:3]
    assert not memory.query("a", "r", limit=5).truncated
    assert bool(cut) and not memory.query("nobody", "r")


def test_excluded_triples_are_no_hits(memory: Memory) -> None:
    report = memory.add_many([("a", "r", f"o{i}") for i in range(4)])
    out = report.triple_ids[[0, 2]]
    for form in (out, out.tolist(), {int(i) for i in out}, iter(out)):
        assert sorted(memory.query("a", "r", exclude=form).names) == ["o1", "o3"]


def test_vectors_may_stand_for_texts(memory: Memory, embedder: Hashed) -> None:
    memory.add("a", "r", "b")
    embedder.calls.clear()
    found = memory.query(subject_vector=embedder.one("a") * 5, relation_vector=embedder.one("r").tolist())
    assert (
        found.names == ["b"] and found.hits[0].match == "vector" and found.hits[0].score == pytest.approx(1)
    )
    assert memory.query(object_vector=embedder.one("b"), relation="r").names == ["a"]
    # Text and vector: the text for the rules, the vector for the cosine.
    both = memory.query("A", "r", subject_vector=embedder.one("b"))
    assert both.names == ["b"] and both.hits[0].match == "folded"
    assert embedder.texts == ["r"]


def test_query_many_takes_three_forms_and_own_values_win(memory: Memory) -> None:
    memory.add_many([("a", "r", f"o{i}") for i in range(4)])
    results = memory.query_many(
        [
            ("a", "r", None),
            {"object": "o1", "relation": "r"},
            Query("a", "r", limit=1),
            {"subject": "A", "relation": "r", "rules": "none"},
        ],
        limit=2,
    )
    assert [r.names for r in results] == [["o0", "o1"], ["a"], ["o0"], []]
    assert [r.truncated for r in results] == [True, False, True, False]
    assert memory.query_many([]) == []
    skipping = memory.query_many([("a", "r", None)] * 2, exclude=iter([results[0].hits[0].triple_id]))
    assert [r.names for r in skipping] == [["o1", "o2", "o3"]] * 2


def test_query_texts_are_embedded_in_one_call_and_kept(memory: Memory, embedder: Hashed) -> None:
    memory.add("a", "r", "b")
    embedder.calls.clear()
    memory.query_many([("x", "r", None), ("y", "r", None), (None, "r", "x"), ("x", "q", None)])
    assert [sorted(call) for call in embedder.calls] == [["x", "y"], ["q", "r"]]
    memory.query("y", "q")
    memory.similar_entities("x", -1)
    assert len(embedder.calls) == 2


def test_the_text_cache_is_bounded(memory: Memory, embedder: Hashed) -> None:
    memory.add("a", "r", "b")
    memory.query("first", "r")
    for start in range(0, 5000, 1000):
        memory.query_many([(f"t{i}", "r", None) for i in range(start, start + 1000)])
    embedder.calls.clear()
    memory.query("t4999", "r")
    assert embedder.calls == []
    memory.query("first", "r")
    assert embedder.texts == ["first"]


def test_similar_names(memory: Memory, embedder: Hashed) -> None:
    memory.add_many([(f"e{i}", f"r{i % 4}", f"e{i + 1}") for i in range(30)])
    names = list(memory.entities())
    cosines = {n: float(embedder.one(n).astype(float) @ embedder.one("e3").astype(float)) for n in names}
    expected = sorted((n for n in names if cosines[n] >= 0.1), key=lambda n: -cosines[n])
    got = memory.similar_entities("e3", 0.1)
    assert [n for n, _ in got] == expected and got[0][0] == "e3"
    assert [c for _, c in got] == pytest.approx([cosines[n] for n in expected], abs=1e-6)
    assert memory.similar_entities(embedder.one("e3"), 0.1, limit=2) == got[:2]
    assert len(memory.similar_relations("r1", -1)) == 4
    assert [n for n, _ in memory.similar_relations("r1")] == ["r1"]


# ---- reading -----------------------------------------------------------------------------------------


def test_iterators_page_through_everything(memory: Memory) -> None:
    rows = [(f"s{i % 50}", f"r{i % 2}", f"o{i}") for i in range(2500)]
    memory.add_many(rows)
    assert len(list(memory.triples())) == 2500 and facts(memory) == set(rows)
    assert len(list(memory.entities())) == len(set(memory.entities())) == 2550
    assert sorted(memory.relations()) == ["r0", "r1"]
    for s, r, o in [("s1", None, None), (None, "r1", None), (None, None, "o7"), ("s1", "r1", None),
                    ("s2", None, "o2"), (None, "r0", "o2"), ("s2", "r0", "o2"), ("s2", "r1", "o2"),
                    ("none", None, None)]:  # fmt: skip
        expected = {t for t in rows if s in (None, t[0]) and r in (None, t[1]) and o in (None, t[2])}
        assert {t[:3] for t in memory.triples(s, r, o)} == expected
        assert len(list(memory.triples(s, r, o))) == len(expected)


def test_changes_are_in_order_and_can_be_resumed(memory: Memory) -> None:
    old = memory.add("a", "r", "b").triple_id
    memory.replace("a", "r", "c")
    memory.alias("A.", "a")
    memory.remove("a", "r", "c")
    memory.rename("a", "aa")
    memory.set_external_id("Q1", "aa")
    memory.set_vector("aa", np.ones(16))
    memory.unalias("A.", "aa")
    memory.forget("aa")
    log = list(memory.changes())
    assert [c.op for c in log] == [
        "add", "replace", "alias", "remove", "rename", "external_id", "vector", "unalias", "forget",
    ]  # fmt: skip
    assert [c.seq for c in log] == sorted({c.seq for c in log})
    assert log[1].removed[0].id == old and log[1].triple is not None and log[1].triple.object in ("b", "c")
    assert (log[4].name, log[4].other) == ("a", "aa")
    assert (log[5].name, log[5].other) == ("aa", "Q1") and (log[2].name, log[2].other)[1] == "A."
    assert list(memory.changes(since=log[3].seq)) == log[4:]
    assert list(memory.changes(since=log[-1].seq)) == []


def test_a_long_log_is_paged(memory: Memory) -> None:
    memory.add_many([("a", "r", f"o{i}") for i in range(2500)])
    log = list(memory.changes())
    assert [c.seq for c in log] == list(range(log[0].seq, log[0].seq + 2500))
    assert [c.triple and c.triple.object for c in log] == [f"o{i}" for i in range(2500)]


def test_iterating_a_closed_memory_raises(memory: Memory) -> None:
    memory.add_many([("a", "r", f"o{i}") for i in range(5)])
    running = [memory.triples(), memory.entities(), memory.changes()]
    for it in running:
        next(it)
    memory.close()
    for it in running:
        with pytest.raises(pymemstore.Closed):
            next(it)


# ---- names that wait ---------------------------------------------------------------------------------


def test_embed_missing_in_batches_that_can_be_stopped(memory: Memory, embedder: Hashed) -> None:
    batch = _core.Batch()
    batch.add([(f"e{i}", "r", "hub") for i in range(9)])
    memory._store.apply(batch)  # as a bulk load does: names first, their vectors later
    assert memory.vector("e3") is None
    waiting = memory.query("nearly e3", "r")
    assert not waiting.complete and waiting.unembedded > 0

    def stop(done: int, total: int) -> None:
        assert total == 11
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.embed_missing(batch=4, progress=stop)
    assert memory.stats().unembedded_entities == 6
    assert memory.embed_missing(batch=4) == 7
    assert memory.embed_missing() == 0
    assert sorted(embedder.texts) == sorted([*(f"e{i}" for i in range(9)), "hub", "nearly e3", "r", "r"])
    np.testing.assert_allclose(memory.vector("e8"), embedder.one("e8"), atol=1e-6)
    assert memory.query("e3", "r").complete
