"""The fault cases of vectors (V01-V22): thresholds, order, bad input, deletes, stamps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import EmbedderMismatch, InvalidArgument, Memory, NotFound, Triple
from pymemstore.embedders import External

Cases = Callable[[str], Path]
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0.0": -0.0}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Memory]]:
    """Opens a store for vectors of a dimension that the test brings."""
    opened: list[Memory] = []

    def make(dim: int, name: str = "external", path: str = "v.mem", **options: Any) -> Memory:
        opened.append(pymemstore.open(tmp_path / path, embedder=External(dim=dim, name=name), **options))
        return opened[-1]

    yield make
    for m in opened:
        m.close()


@pytest.fixture
def case(shared_case: Cases) -> Callable[[str], Any]:
    return lambda name: json.loads(shared_case(f"vectors/{name}.json").read_text())


def ids(found: Sequence[tuple[str, float]]) -> list[int]:
    return [int(name) for name, _ in found]


def put_all(m: Memory, rows: Sequence[dict[str, Any]]) -> None:
    assert m.add_entities([str(r["id"]) for r in rows], vectors=[r["vector"] for r in rows]) == len(rows)


def vector_of(m: Memory, name: str) -> npt.NDArray[np.float32]:
    vector = m.vector(name)
    assert vector is not None
    return vector


def cosine(a: object, b: object) -> float:
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def run_steps(m: Memory, steps: Sequence[dict[str, Any]]) -> int:
    """Carries out add, delete and query steps and compares what they expect; returns the queries asked."""
    live: set[str] = set()
    asked = 0
    for step in steps:
        name = str(step.get("id"))
        if step["op"] == "add":
            assert m.add_entities([name], vectors=[step["vector"]]) == 1
            live.add(name)
        elif step["op"] == "delete" and name in live:
            assert m.forget(name) == 0
            live.remove(name)
        elif step["op"] == "delete":
            with pytest.raises(NotFound):
                m.forget(name)
        elif step.get("k", 1) < 1:
            with pytest.raises(ValueError, match="limit"):
                m.similar_entities(step["vector"], -1.0, limit=step["k"])
        else:
            found = m.similar_entities(step["vector"], step.get("min_cosine", -1.0), limit=step.get("k"))
            assert ids(found) == step["expect"]
            asked += 1
        assert m.stats().entities == len(live) and set(m.entities()) == live
    return asked


# ---- thresholds --------------------------------------------------------------------------------------


def test_V01_identical_10000(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("identical_10000")
    m = make(data["dim"])
    one = data["repeated"]["vector"]
    m.add_entities([str(i) for i in range(10_000)], vectors=np.tile(np.asarray(one, np.float32), (10_000, 1)))
    put_all(m, data["others"])
    found = m.similar_entities(one, data["checks"][0]["min_cosine"])
    assert ids(found) == list(range(10_000))  # all of them, ties by id
    assert all(abs(score - 1) <= 1e-6 for _, score in found)
    ten = m.similar_entities(one, -1.0, limit=10)
    assert ids(ten) == list(range(10)) and min(score for _, score in ten) >= 0.999
    assert len(m.similar_entities(one, -1.0)) == 10_100
    for row in data["others"]:  # the copies hide nobody
        assert ids(m.similar_entities(row["vector"], 0.999)) == [row["id"]]


def test_V03_outlier_101(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("outlier_101")
    m = make(data["dim"])
    put_all(m, data["vectors"])
    outlier, everything = data["checks"]
    assert ids(m.similar_entities(outlier["query"], outlier["min_cosine"])) == outlier["expected"]
    found = m.similar_entities(everything["query"], everything["min_cosine"])
    assert sorted(ids(found)) == list(range(everything["expected_count"]))
    assert found[-1][0] == "100"


@pytest.mark.parametrize("name", ["k_and_empty", "delete_one_duplicate", "replace_first_added"])
def test_V04_V13_V14_V20_steps(make: Callable[..., Memory], case: Callable[[str], Any], name: str) -> None:
    data = case(name)
    m = make(data["dim"])
    asked = run_steps(m, data["steps"])
    assert asked == sum(s["op"] == "query" and s.get("k", 1) > 0 for s in data["steps"]) > 0
    assert m.check().ok


def test_V05_circle_1500(make: Callable[..., Memory], shared_case: Cases) -> None:
    text = shared_case("vectors/circle_1500.tsv").read_text()
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    m = make(2)
    m.add_entities([r[0] for r in rows], vectors=[[float(r[1]), float(r[2])] for r in rows])
    m.add_relations(["r"], vectors=[[1, 0]])
    m.add_many([(r[0], "r", r[0]) for r in rows])
    tau = 0.9552625792
    assert ids(m.similar_entities([1, 0], tau)) == list(range(601))
    result = m.query(
        subject_vector=[1, 0], relation_vector=[1, 0], tau_e=tau, tau_t=0.9, tau_r=-1.0, rules="none"
    )
    assert [int(n) for n in result.names] == list(range(601))
    assert result.entity_candidates == 601 and not result.truncated and result.complete
    cut = m.query(subject_vector=[1, 0], relation_vector=[1, 0], tau_e=tau, tau_t=0.9, tau_r=-1.0, limit=300)
    assert cut.truncated and cut.names == result.names[:300]  # a cap is the caller's, and is reported


def test_V06_V07_V08_threshold_boundary(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("threshold_boundary")
    m = make(data["dim"])
    put_all(m, data["vectors"])
    exact = {int(i): eval_fraction(text) for i, text in data["exact_cosines"].items()}
    for tau, expected in data["expected_at_or_above"].items():
        found = m.similar_entities(data["query"], float(tau))
        assert ids(found) == expected, tau
        for name, score in found:
            assert -1 <= score <= 1 and score == pytest.approx(exact[int(name)], abs=1e-7)
    everything = m.similar_entities(data["query"], -1.0)
    for tau in np.linspace(-1, 1, 20):  # a higher threshold only drops from the end
        assert m.similar_entities(data["query"], float(tau)) == [x for x in everything if x[1] >= tau - 1e-6]


def eval_fraction(text: str) -> float:
    top, _, bottom = text.partition("/")
    return int(top) / int(bottom or 1)


def test_V06_V08_threshold_boundary_in_query(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    """The same cosines decide the candidates and the mean of query()."""
    data = case("threshold_boundary")
    m = make(data["dim"])
    put_all(m, data["vectors"])
    m.add_relations(["r"], vectors=[[1, 0]])
    m.add_many([(str(v["id"]), "r", str(v["id"])) for v in data["vectors"]])
    for tau, expected in data["expected_at_or_above"].items():
        shared = {"subject_vector": data["query"], "relation_vector": [1, 0], "rules": "none", "tau_t": 1.0}
        by_entity = m.query(**shared, tau_e=float(tau), tau_r=-1.0)
        assert [int(n) for n in by_entity.names] == expected
        by_mean = m.query(**shared, tau_e=-1.0, tau_r=(float(tau) + 1) / 2)
        assert [int(n) for n in by_mean.names] == expected
        for hit in by_mean:
            assert hit.score == pytest.approx((hit.cosine + 1) / 2, abs=1e-12) and hit.match == "vector"


@pytest.mark.parametrize(
    "tau", [-1.0000001, 1.0000001, 2, -7.5, math.nan, math.inf, -math.inf, "0.5", None, True]
)
def test_V06_thresholds_outside_the_scale_are_refused(make: Callable[..., Memory], tau: object) -> None:
    m = make(2)
    m.add("a", "r", "b", vectors=([1, 0], [1, 0], [0, 1]))
    for which in ("tau_e", "tau_t", "tau_r"):
        if tau is not None:  # None stands for the default
            with pytest.raises(InvalidArgument, match=which):
                m.query(subject_vector=[1, 0], relation_vector=[1, 0], **{which: tau})  # type: ignore[arg-type]
    if tau is None:
        assert [n for n, _ in m.similar_entities([1, 0], None)] == ["a"]
    else:
        with pytest.raises(InvalidArgument, match="tau"):
            m.similar_entities([1, 0], tau)  # type: ignore[arg-type]


# ---- bad vectors -------------------------------------------------------------------------------------


def bad(value: Any) -> Any:
    if isinstance(value, list):
        return [bad(v) for v in value]
    return SPECIAL.get(value, value) if isinstance(value, str) else value


BAD = (
    "nan_one", "nan_all", "inf", "ninf", "zero", "minus_zero", "overflow32", "norm_overflow", "short15",
    "long17", "empty", "flat32", "text", "nested", "null",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_V09_V11_bad_vectors(make: Callable[..., Memory], case: Callable[[str], Any], name: str) -> None:
    data = case("bad_vectors")
    assert {b["id"] for b in data["bad"]} == set(BAD)
    vector = bad(next(b["v"] for b in data["bad"] if b["id"] == name))
    m = make(data["dim"])
    assert data["insert_bad_first"]
    good = data["clean"][0]["vector"]
    inserts: list[Callable[[], object]] = [
        lambda: m.add_entities(["bad"], vectors=[vector]),
        lambda: m.add_entities(["good", "bad"], vectors=[good, vector]),
        lambda: m.add_relations(["bad"], vectors=[vector]),
        lambda: m.add("bad", "r", "o", vectors=(vector, good, good)),
        lambda: m.add("s", "bad", "o", vectors=(good, vector, good)),
        lambda: m.add_many(
            [("s", "r", "o"), ("s", "r", "bad")], vectors=([good] * 2, [good] * 2, [good, vector])
        ),
    ]
    for insert in inserts:
        with pytest.raises(InvalidArgument) as caught:
            insert()
        assert len(str(caught.value)) > 10
    stats = m.stats()
    assert (stats.entities, stats.relations, stats.triples, stats.seq) == (0, 0, 0, 0)

    put_all(m, data["clean"])
    m.add_relations(["r"], vectors=[good])
    m.add_many([(str(i), "r", "0") for i in range(50)])
    asks: list[Callable[[], object]] = [
        lambda: m.set_vector("0", vector),
        lambda: m.set_vector("r", vector, relation=True),
        lambda: m.similar_entities(vector, 0.5),
        lambda: m.similar_relations(vector, 0.5),
        lambda: m.query(subject_vector=vector, relation_vector=good),
        lambda: m.query(object_vector=vector, relation_vector=good),
        lambda: m.query(subject_vector=good, relation_vector=vector),
        lambda: m.query_many([{"subject_vector": vector, "relation_vector": good}]),
    ]
    before = m.stats()
    for ask in asks:
        with pytest.raises(InvalidArgument):
            ask()
    assert m.stats() == before
    for row in data["clean"]:
        found = m.similar_entities(row["vector"], -1.0)
        assert len(found) == 50 and found[0][0] == str(row["id"]) and found[0][1] >= 0.999
        assert all(-1.000001 <= score <= 1.000001 for _, score in found)
    assert m.check().ok


def test_V11_bad_vectors_wrong_length_1000_times(
    make: Callable[..., Memory], case: Callable[[str], Any]
) -> None:
    data = case("bad_vectors")
    m = make(data["dim"])
    put_all(m, data["clean"])
    for i in range(200):
        for n in (15, 17, 1, 0, 32):
            with pytest.raises(InvalidArgument, match=rf"\({n},\).*16"):
                m.similar_entities(np.full(n, 0.1, np.float32), 0.5)
        if i == 0:
            for n in (15, 17, 1, 0, 32):
                with pytest.raises(InvalidArgument, match=f"{n}"):
                    m.set_vector("0", np.full(n, 0.1, np.float32))
    assert all(m.similar_entities(row["vector"], 0.999)[0][0] == str(row["id"]) for row in data["clean"])


@pytest.mark.parametrize(
    "kind", ["int64", "uint8", "float64", "float16", "fortran", "strided", "reversed", "swapped"]
)
def test_V11_real_dtypes_and_layouts_are_the_same_vector(make: Callable[..., Memory], kind: str) -> None:
    m = make(4)
    rows = np.array([[3, 4, 0, 0], [0, 5, 12, 0], [8, 0, 15, 0]], np.float32)
    given: dict[str, Any] = {
        "fortran": np.asfortranarray(rows),
        "strided": np.repeat(np.repeat(rows, 2, axis=0), 3, axis=1)[::2, ::3],
        "reversed": rows[::-1, ::-1].copy()[::-1, ::-1],
        "swapped": rows.astype(">f4"),
    }
    m.add_entities(["a", "b", "c"], vectors=given[kind] if kind in given else rows.astype(kind))
    for name, row in zip("abc", rows, strict=True):
        assert np.allclose(vector_of(m, name), row / np.linalg.norm(row), atol=1e-7)
        assert [n for n, _ in m.similar_entities(row, 1.0)] == [name]


@pytest.mark.parametrize("dtype", ["complex64", "bool", "object", "U1", "datetime64[s]"])
def test_V11_wrong_dtypes_are_refused_by_name(make: Callable[..., Memory], dtype: str) -> None:
    m = make(4)
    with pytest.raises(InvalidArgument, match=r"dtype|numeric"):
        m.add_entities(["a"], vectors=np.ones((1, 4)).astype(dtype))
    with pytest.raises(InvalidArgument, match=r"dtype|numeric"):
        m.similar_entities(np.ones(4).astype(dtype), 0.5)
    assert m.stats().entities == 0


def test_V11_unequal_lengths_are_refused(make: Callable[..., Memory]) -> None:
    m = make(2)
    for rows in ([[1, 0]], [[1, 0]] * 3, [], [1, 0], [[[1, 0]]], [[1, 0], [1]]):
        with pytest.raises(InvalidArgument, match="vectors"):
            m.add_entities(["a", "b"], vectors=rows)
        with pytest.raises(InvalidArgument, match="vectors"):
            m.add_many([("a", "r", "b"), ("b", "r", "a")], vectors=(rows, [[1, 0]] * 2, [[1, 0]] * 2))
    for three in ([[1, 0]], ([[1, 0]], [[1, 0]]), np.ones((3, 1, 2)), "ab"):
        with pytest.raises(InvalidArgument, match="3 of them"):
            m.add_many([("a", "r", "b")], vectors=three)  # type: ignore[arg-type]
    assert m.stats().entities == m.stats().relations == 0


# ---- replacing and deleting --------------------------------------------------------------------------


def test_V13_V15_V19_churn_600_ops(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("churn_600_ops")
    m = make(data["dim"], sync="relaxed")
    live: dict[str, list[int]] = {}
    assert len(data["ops"]) == 600
    for start in range(0, 600, 8):
        with m.transaction() as t:
            for op, number, *rest in data["ops"][start : start + 8]:
                name = str(number)
                if op == "put" and name in live:
                    t.set_vector(name, rest[0])
                elif op == "put":
                    t.add_entities([name], vectors=rest)
                else:
                    t.forget(name)
                    del live[name]
                if op == "put":
                    live[name] = rest[0]
    expected = data["expected"]
    for _ in range(2):
        assert m.stats().entities == expected["count"] == 41
        assert sorted(int(n) for n in m.entities()) == expected["live_ids"]
        for number, alone in expected["self_query_at_0_999999"].items():
            assert ids(m.similar_entities(live[number], 0.999999)) == alone
        for number, near in expected["at_or_above_0_3"].items():
            assert sorted(ids(m.similar_entities(live[number], 0.3))) == near
        for vector in live.values():
            whole = m.similar_entities(vector, -1.0)
            assert len(whole) == 41
            brute = {n: cosine(vector, v) for n, v in live.items()}
            assert all(score == pytest.approx(brute[n], abs=1e-6) for n, score in whole)
            assert all(m.similar_entities(vector, -1.0, limit=k) == whole[:k] for k in (1, 5, 13))
        assert m.check().ok
        m.compact()  # changes no answer


def test_V17_same_answers_before_close_and_after_open(make: Callable[..., Memory], tmp_path: Path) -> None:
    rng = np.random.default_rng(17)
    vectors, questions = rng.normal(size=(2000, 24)), rng.normal(size=(200, 24))
    relations = rng.normal(size=(9, 24))
    m = make(24)
    m.add_entities([f"e{i}" for i in range(2000)], vectors=vectors)
    m.add_relations([f"r{i}" for i in range(9)], vectors=relations)
    m.add_many([(f"e{i}", f"r{i % 9}", f"e{i * 7 % 2000}") for i in range(2000)])
    for i in range(0, 2000, 3):
        m.set_vector(f"e{i}", vectors[(i * 11) % 2000]) if i < 60 else None

    def answers(m: Memory) -> list[object]:
        similar = [m.similar_entities(q, 0.3) for q in questions]
        asked = m.query_many(
            [{"subject_vector": q, "relation_vector": relations[i % 9]} for i, q in enumerate(questions)],
            tau_e=0.3, tau_t=0.9, tau_r=-1.0,
        )  # fmt: skip
        return [similar, [r.hits for r in asked]]

    before = answers(m)
    assert sum(map(len, before[0])) > 1000 and sum(map(len, before[1])) > 1000  # type: ignore[call-overload]
    m.close()
    assert answers(make(24)) == before
    assert answers(make(24, threads=1, read_only=True)) == before


def test_V20_a_name_that_is_not_there_has_no_vector(make: Callable[..., Memory]) -> None:
    m = make(2)
    m.add_entities(["a", "b"], vectors=[[1, 0], [0, 1]])
    for _ in range(20):
        assert m.vector("a") is not None
        with pytest.raises(KeyError, match="'c'"):
            m.vector("c")
    m.forget("a")
    with pytest.raises(NotFound, match="'a'"):
        m.vector("a")
    with pytest.raises(NotFound, match="'a'"):
        m.set_vector("a", [1, 0])


def test_V21_embedding_jitter(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("embedding_jitter")
    m = make(data["dim"])
    name, alone, batched = data["name"], data["vector_alone"], data["vector_in_batch"]
    assert m.add_entities([name], vectors=[alone]) == 1
    first = vector_of(m, name)
    assert m.add_entities([name], vectors=[batched]) == 0
    m.add(name, "r", name, vectors=(batched, alone, batched))
    assert np.array_equal(vector_of(m, name), first)  # the first vector stays, as documented
    assert list(m.entities()) == data["expected"]["query_with_either_at_0_9999"] == [name]
    for vector in (alone, batched):
        assert [n for n, _ in m.similar_entities(vector, 0.9999)] == [name]


def test_V22_not_normalised(make: Callable[..., Memory], case: Callable[[str], Any]) -> None:
    data = case("not_normalised")
    m = make(data["dim"])
    put_all(m, data["vectors"])
    assert sorted(ids(m.similar_entities(data["query"], 0.999))) == data["expected"]["min_cosine_0_999"]
    found = dict(m.similar_entities(data["query"], -1.0))
    assert found.pop("10") == pytest.approx(-1, abs=1e-5)
    assert list(found.values()) == pytest.approx([1] * 5, abs=1e-5)
    for row in data["vectors"]:  # documented: unit vectors come back
        v = np.asarray(row["vector"])
        assert np.allclose(vector_of(m, str(row["id"])), v / np.linalg.norm(v), atol=1e-6)
    for scale in (1e-30, 1e30):  # of a query too only the direction counts
        scaled = dict(m.similar_entities(scale * np.asarray(data["query"]), -1.0))
        assert scaled.pop("10") == pytest.approx(-1, abs=1e-6)
        assert scaled == pytest.approx(found, abs=1e-6)


# ---- growth and stamps -------------------------------------------------------------------------------


def test_V16_1001_relations_and_growth(make: Callable[..., Memory], tmp_path: Path) -> None:
    rng = np.random.default_rng(16)
    m = make(8, sync="relaxed", map_size=1 << 20)
    relations = rng.normal(size=(1001, 8)).astype(np.float32)
    m.add_relations([f"r{i}" for i in range(1001)], vectors=relations)
    assert m.stats().relations == m.stats().relation_vector_rows == 1001
    for i in (0, 998, 999, 1000):
        assert [n for n, _ in m.similar_relations(relations[i], 0.99999)] == [f"r{i}"]
    total = 0
    vectors = rng.normal(size=(200_000, 8)).astype(np.float32)
    for n in (1, 99, 900, 9000, 190_000):  # past any power of two that could be a first capacity
        names = [f"e{i}" for i in range(total, total + n)]
        m.add_entities(names, vectors=vectors[total : total + n])
        total += n
        stats = m.stats()
        assert stats.entities == stats.entity_vector_rows == total and stats.unembedded_entities == 0
        for i in (total - n, total - 1):
            [(name, score)] = m.similar_entities(vectors[i], -1.0, limit=1)
            assert name == f"e{i}" and score == pytest.approx(1, abs=1e-6)
    for q in vectors[:3]:
        brute = vectors.astype(np.float64) @ q / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(q))
        found = m.similar_entities(q, 0.8)
        assert (brute >= 0.8 + 2e-6).sum() <= len(found) <= (brute >= 0.8 - 2e-6).sum()


def test_V12_model_stamp(make: Callable[..., Memory], case: Callable[[str], Any], tmp_path: Path) -> None:
    create, store, close, *opens = case("model_stamp")["steps"]
    m = make(create["create"]["dim"], create["create"]["embedder"])
    m.add_entities([store["store"]], vectors=[[1] + [0] * 7])
    assert close == "close"
    m.close()
    for step in opens:
        given = step["open"]
        if step["expect"].startswith("refused"):
            with pytest.raises(EmbedderMismatch) as caught:
                make(given["dim"], given["embedder"])
            text = str(caught.value)
            assert (
                "model-a" in text and "8" in text and given["embedder"] in text and str(given["dim"]) in text
            )
        else:
            m = make(given["dim"], given["embedder"])
            assert list(m.entities()) == [store["store"]] and step["expect"] == "opens, 1 entity"
            m.close()
    assert m.closed
    with pymemstore.open(tmp_path / "v.mem") as plain:  # no embedder given: vectors still work, text does not
        assert plain.embedder is None
        assert [n for n, _ in plain.similar_entities([1] + [0] * 7, 0.9)] == ["Recife"]
        with pytest.raises(InvalidArgument, match="model-a"):
            plain.add("Olinda", "r", "Recife")
        assert list(plain.entities()) == ["Recife"]


def test_V12_of_the_relations_too(tmp_path: Path) -> None:
    one, two = External(dim=4, name="one"), External(dim=6, name="two")
    with pymemstore.open(tmp_path / "m.mem", embedder=one, relation_embedder=two) as m:
        m.add("a", "r", "b", vectors=([1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 0]))
        with pytest.raises(EmbedderMismatch, match=r"relation.*two.*6"):
            pymemstore.open(tmp_path / "m.mem", embedder=one)  # while another handle is open
    with pytest.raises(EmbedderMismatch, match=r"relation.*two.*6"):
        pymemstore.open(tmp_path / "m.mem", embedder=one)
    with pytest.raises(EmbedderMismatch, match="entity"):
        pymemstore.open(tmp_path / "m.mem", embedder=two)
    with pymemstore.open(tmp_path / "m.mem", embedder=one, relation_embedder=two) as m:
        assert [t[:3] for t in m.triples()] == [("a", "r", "b")]


def test_V09_an_embedder_that_returns_bad_vectors_stores_nothing(tmp_path: Path) -> None:
    class Bad(Hashed):
        answer: Callable[[int], Any]

        def encode(self, texts: Sequence[str]) -> npt.NDArray[Any]:
            return self.answer(len(texts))  # type: ignore[no-any-return]

    embedder = Bad(4)
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as m:
        answers: list[Callable[[int], Any]] = [
            lambda n: np.zeros((n, 4), np.float32),
            lambda n: np.full((n, 4), np.nan, np.float32),
            lambda n: np.full((n, 4), np.inf, np.float32),
            lambda n: np.ones((n, 3), np.float32),
            lambda n: np.ones((n + 1, 4), np.float32),
            lambda n: np.ones(4, np.float32),
            lambda n: [[1.0] * 4] * n,
        ]
        for answer in answers:
            embedder.answer = answer
            with pytest.raises(InvalidArgument, match="hashed-test"):
                m.add("a", "r", "b")
            assert m.stats().entities == m.stats().relations == m.stats().triples == 0
        embedder.answer = lambda n: np.ones((n, 4), np.float32)
        added = m.add("a", "r", "b")
        assert m.triple(added.triple_id) == Triple("a", "r", "b", added.triple_id)
