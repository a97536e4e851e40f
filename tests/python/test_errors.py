"""Bad input: each refused with a typed error that names the item, and nothing half written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import Closed, InvalidArgument, Memory, NotFound, Query, ReadOnly, errors
from pymemstore.embedders import External

DIM = 16
GOOD = np.ones(DIM, np.float32)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(DIM)) as m:
        m.add("a", "r", "b")
        yield m


@pytest.fixture
def unchanged(memory: Memory) -> Iterator[None]:
    """The store is as it was, after the test."""

    def state() -> tuple[Any, ...]:
        stats = memory.stats()
        return (
            list(memory.triples()),
            list(memory.entities()),
            list(memory.relations()),
            memory.aliases("a"),
            memory.external_ids("a"),
            memory.vector("a").tolist(),  # type: ignore[union-attr]
            stats.seq,
            stats.entity_vector_rows,
            stats.relation_vector_rows,
        )

    before = state()
    yield
    assert state() == before and memory.check().ok


def test_every_error_is_a_memstore_error() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.MemstoreError) and getattr(pymemstore, name) is kind
    assert issubclass(errors.InvalidArgument, ValueError) and issubclass(errors.NotFound, KeyError)
    assert issubclass(errors.IOError, OSError)


# ---- names -------------------------------------------------------------------------------------------

BAD_NAMES = {
    "empty": ("", "is empty"),
    "lone surrogate": ("x\ud800y", "has a lone surrogate, U\\+D800, at character 1"),
    "None": (None, "is None, expected str"),
    "int": (1912, "is 1912 \\(int\\), expected str"),
    "bytes": (b"a", "is b'a' \\(bytes\\), expected str"),
    "nan": (float("nan"), "is nan \\(float\\), expected str"),
    "too long": ("é" * (1 << 19) + "x", "has 1048577 bytes, more than 1048576"),
}
bad_name = pytest.mark.parametrize(("value", "why"), BAD_NAMES.values(), ids=list(BAD_NAMES))


@bad_name
@pytest.mark.parametrize("slot", ["subject", "relation", "object"])
@pytest.mark.parametrize("method", ["add", "replace", "remove", "contains"])
def test_names_of_facts(
    memory: Memory, unchanged: None, method: str, slot: str, value: Any, why: str
) -> None:
    names = {"subject": "new subject", "relation": "new relation", "object": "new object", slot: value}
    if method == "contains" and value == "":  # a lookup: nothing has that name
        assert not memory.contains(**names)
        return
    with pytest.raises(InvalidArgument, match=f"^{slot} {why}"):
        getattr(memory, method)(**names)


@bad_name
@pytest.mark.parametrize("index", [0, 17, 12_345])
def test_names_in_a_batch(memory: Memory, unchanged: None, index: int, value: Any, why: str) -> None:
    rows: list[Any] = [(f"s{i}", "r", f"o{i}") for i in range(12_346)]
    rows[index] = ("s", "r", value)
    with pytest.raises(InvalidArgument, match=f"^triple {index}: object {why}"):
        memory.add_many(rows)


@bad_name
def test_names_elsewhere(memory: Memory, unchanged: None, value: Any, why: str) -> None:
    for call in (
        lambda: memory.forget(value),
        lambda: memory.alias(value, "a"),
        lambda: memory.alias("A.", value),
        lambda: memory.unalias(value, "a"),
        lambda: memory.rename("a", value),
        lambda: memory.rename(value, "c"),
        lambda: memory.set_vector(value, GOOD),
        lambda: memory.set_external_id(value, "a"),
        lambda: memory.set_external_id("Q1", value),
        lambda: memory.add_entities(["c", value]),
        lambda: memory.add_relations(["c", value]),
    ):
        with pytest.raises(InvalidArgument, match=why):
            call()
    lookups = (
        memory.vector,
        memory.external_ids,
        memory.by_external_id,
        memory.aliases,
        memory.named_by,
    )
    for lookup in lookups if value != "" else ():  # of "": finds nothing (S03)
        with pytest.raises(InvalidArgument, match=why):
            lookup(value)
    for source in ([value, "s"], value) if value is not None else ():
        with pytest.raises(InvalidArgument, match="source"):
            memory.add_many([("c", "r", "d"), ("d", "r", "c")], source=source)
    if value is not None:  # None: not given
        for ask in (
            lambda: memory.query(value, "r"),
            lambda: memory.query("a", value),
            lambda: memory.query(relation="r", object=value),
            *((lambda: memory.triples(value), lambda: memory.triples(relation=value)) if value else ()),
            lambda: memory.add("c", "r", "d", source=value),
        ):
            with pytest.raises(InvalidArgument, match=why):
                ask()


@pytest.mark.parametrize(
    ("triples", "why"),
    [
        ("abc", "iterable of triples, not str"),
        (7, "iterable of triples, not int"),
        (None, "iterable of triples, not NoneType"),
        ([("c", "r", "d"), "abc"], "triple 1: expected \\(subject, relation, object\\), not 'abc'"),
        ([("c", "r", "d"), ("c", "r")], "triple 1: expected 3 names, not 2"),
        ([("c", "r", "d"), ("c", "r", "d", "e")], "triple 1: expected 3 names, not 4"),
        ([None], "triple 0: expected"),
        ([{"c", "r", "d"}], "triple 0: expected"),
    ],
)
def test_no_triples(memory: Memory, unchanged: None, triples: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        memory.add_many(triples)


def test_sources_of_another_number(memory: Memory, unchanged: None) -> None:
    with pytest.raises(InvalidArgument, match="source: 1 given for 2 triples"):
        memory.add_many([("c", "r", "d"), ("d", "r", "c")], source=["one"])
    with pytest.raises(InvalidArgument, match="source"):
        memory.add_many([("c", "r", "d")], source=3)  # type: ignore[arg-type]


def test_a_name_list_is_not_one_name(memory: Memory, unchanged: None) -> None:
    for names in ("abc", b"abc", 5, None):
        with pytest.raises(InvalidArgument, match="iterable of entity names"):
            memory.add_entities(names)  # type: ignore[arg-type]


# ---- vectors -----------------------------------------------------------------------------------------


def bad_vectors(dim: int) -> dict[str, tuple[Any, str]]:
    last = [1.0] * (dim - 1)
    return {
        "nan": ([*last, float("nan")], f"component {dim - 1} is nan"),
        "inf": ([*last, float("inf")], f"component {dim - 1} is inf"),
        "-inf, float32": (np.array([-np.inf, *last], np.float32), "component 0 is -inf"),
        "zero": ([0.0] * dim, "is zero"),
        "minus zero": ([-0.0] * dim, "is zero"),
        "overflow": ([1e39, *last], "component 0 is 1e\\+39, too large for float32"),
        "underflow to zero": ([1e-60] * dim, "is zero"),
        "too short": (np.full(dim, 1e-41, np.float32), "has length 4e-41"),
        "too long": (np.full(dim, 3e38, np.float32), "has length 1.2e\\+39"),
        "short": (last, f"shape is \\({dim - 1},\\), expected \\({dim},\\)"),
        "long": ([*last, 1, 1], f"shape is \\({dim + 1},\\)"),
        "empty": ([], "shape is \\(0,\\)"),
        "scalar": (1.0, "shape is \\(\\)"),
        "2-D": (np.ones((1, dim)), f"shape is \\(1, {dim}\\)"),
        "text": (["a"] * dim, "dtype is <U1"),
        "bytes": (b"x" * dim, "dtype is \\|S16"),
        "bool": ([True] * dim, "dtype is bool"),
        "complex": ([1j] * dim, "dtype is complex128"),
        "object": ([None] * dim, "dtype is object"),
        "ragged": ([[1.0], [1.0, 2.0]], "not a numeric array|dtype is object"),
        "dates": (np.ones(dim, "M8[s]"), "dtype is datetime64"),
    }


BAD_VECTORS = bad_vectors(DIM)
bad_vector = pytest.mark.parametrize(("value", "why"), BAD_VECTORS.values(), ids=list(BAD_VECTORS))
# numpy itself makes numbers of a row of bools among rows of numbers.
bad_row = pytest.mark.parametrize(
    ("value", "why"), [pytest.param(*v, id=k) for k, v in BAD_VECTORS.items() if k != "bool"]
)


@bad_vector
def test_one_vector(memory: Memory, unchanged: None, value: Any, why: str) -> None:
    for call in (
        lambda: memory.set_vector("a", value),
        lambda: memory.set_vector("r", value, relation=True),
        lambda: memory.add("new", "s", "b", vectors=(value, None, None)),
        lambda: memory.add("new", "s", "b", vectors=(None, value, None)),
        lambda: memory.add("new", "s", "b", vectors=(GOOD, GOOD, value)),
        lambda: memory.query(subject_vector=value, relation="r"),
        lambda: memory.query(object_vector=value, relation="r"),
        lambda: memory.query("a", relation_vector=value),
        lambda: memory.similar_entities(value, 0.5),
        lambda: memory.similar_relations(value, 0.5),
    ):
        with pytest.raises(InvalidArgument, match=why):
            call()


@bad_row
@pytest.mark.parametrize("row", [0, 2])
def test_one_row_of_many(memory: Memory, unchanged: None, row: int, value: Any, why: str) -> None:
    rows: list[Any] = [[1.0 + i] * DIM for i in range(3)]
    rows[row] = value
    names = [("x", "s", "y"), ("y", "s", "z"), ("z", "s", "x")]
    for call in (
        lambda: memory.add_many(names, vectors=(rows, None, None)),
        lambda: memory.add_many(names, vectors=(None, rows, None)),
        lambda: memory.add_many(names, vectors=(None, np.ones((3, DIM)), rows)),
        lambda: memory.add_entities(["x", "y", "z"], vectors=rows),
        lambda: memory.add_relations(["x", "y", "z"], vectors=rows),
    ):
        with pytest.raises(InvalidArgument) as error:
            call()
        if "component" in why or "zero" in why or "length" in why:
            assert f"row {row}" in str(error.value)


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        ((np.ones((1, DIM)), None, None), "subject vectors: 1 rows for 2 names"),
        ((None, None, np.ones((3, DIM))), "object vectors: 3 rows for 2 names"),
        ((None, np.ones((2, DIM + 1)), None), "relation vectors: shape is \\(2, 17\\), expected \\(2, 16\\)"),
        ((np.ones(2 * DIM), None, None), "subject vectors: shape is \\(32,\\)"),
        ((None, None), "expected 3 of them"),
        (np.ones((3, 2, DIM)), "expected 3 of them"),
        (5, "expected 3 of them"),
    ],
)
def test_unequal_lengths(memory: Memory, unchanged: None, vectors: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        memory.add_many([("x", "s", "y"), ("y", "s", "x")], vectors=vectors)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "longdouble", "i1", "u2", "i8", ">f4", ">i4"])
def test_other_number_types_are_taken(memory: Memory, dtype: str) -> None:
    given = np.zeros(2 * DIM, dtype)
    given[::2] = np.arange(DIM)
    memory.set_vector("a", given[::2])  # not contiguous either
    expected = np.arange(DIM) / np.linalg.norm(np.arange(DIM))
    np.testing.assert_allclose(memory.vector("a"), expected, atol=1e-6)


def test_the_cases_bad_vectors(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    case = json.loads(shared_case("vectors/bad_vectors.json").read_text())

    def floats(value: Any) -> Any:
        if isinstance(value, list):
            return [floats(v) for v in value]
        return float(value) if value in ("NaN", "Infinity", "-Infinity", "-0.0") else value

    with pymemstore.open(tmp_path / "m.mem", embedder=External(case["dim"])) as memory:
        for bad in case["bad"]:
            vector = floats(bad["v"])
            reason = {
                "nan_one": "nan",
                "norm_overflow": "length 1.2e\\+39",
                "short15": "15",
                "null": "object",
            }
            with pytest.raises(InvalidArgument, match=reason.get(bad["id"])):
                memory.add_entities([bad["id"]], vectors=[vector])
            with pytest.raises(InvalidArgument, match=reason.get(bad["id"])):
                memory.similar_entities(vector, 0.5)
            assert list(memory.entities()) == [] and len(memory) == 0
        clean = {str(row["id"]): row["vector"] for row in case["clean"]}
        assert memory.add_entities(clean, vectors=list(clean.values())) == 50
        for name, vector in clean.items():
            scores = memory.similar_entities(vector, -1)
            assert scores[0][0] == name and scores[0][1] >= 0.999
            assert all(abs(score) <= 1.000001 for _, score in scores)
        for i in range(1000):
            with pytest.raises(InvalidArgument):
                memory.similar_entities(np.ones((15, 17, 1, 32)[i % 4], np.float32), 0.5)


def test_what_an_embedder_gives_is_checked(tmp_path: Path) -> None:
    class Wrong(Hashed):
        out: Any = None

        def encode(self, texts):  # type: ignore[no-untyped-def]
            return self.out

    embedder = Wrong(4, "wrong-model")
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as memory:
        nan = np.ones((2, 4), np.float32)
        nan[1, 2] = np.nan
        for embedder.out in (
            None,
            np.ones((2, 5), np.float32),
            np.zeros((2, 4), np.float32),
            nan,
            [[1] * 4] * 2,
        ):
            with pytest.raises(InvalidArgument, match="wrong-model"):
                memory.add_entities(["a", "b"])
        assert list(memory.entities()) == []


# ---- queries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "why"),
    [
        ({}, "neither subject nor object"),
        ({"relation": "r"}, "neither subject nor object"),
        ({"subject": "a", "relation": "r", "object": "b"}, "both subject and object"),
        ({"subject": "a", "relation": "r", "object_vector": GOOD}, "both subject and object"),
        ({"subject": "a", "object": "b"}, "both subject and object"),
        ({"subject": "a"}, "no relation"),
        ({"object_vector": GOOD}, "no relation"),
    ],
)
def test_slots(memory: Memory, slots: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        memory.query(**slots)
    with pytest.raises(InvalidArgument, match=f"^query 1: .*{why}"):
        memory.query_many([("a", "r", None), slots])


BIG = pytest.param(10**400, id="more than a float")


@pytest.mark.parametrize("name", ["tau_e", "tau_t", "tau_r"])
@pytest.mark.parametrize("value", [1.0001, -1.5, float("nan"), float("inf"), "0.5", True, 1j, [0.5], {}, BIG])
def test_thresholds(memory: Memory, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} is"):
        memory.query("a", "r", **{name: value})
    with pytest.raises(InvalidArgument, match=f"^query 0: {name} is"):
        memory.query_many([("a", "r", None)], **{name: value})
    with pytest.raises(InvalidArgument, match=r"^tau is"):
        memory.similar_entities("a", value)


@pytest.mark.parametrize("value", [-1, 1, 0, np.float32(0.5), np.float64(-0.25)])
def test_thresholds_at_the_border_are_good(memory: Memory, value: Any) -> None:
    memory.query("a", "r", tau_e=value, tau_t=value, tau_r=value)
    memory.similar_entities("a", value)


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("limit", 0, "limit is 0, expected at least 1"),
        ("limit", -1, "limit is -1, expected at least 1"),
        ("limit", 1.5, "limit is 1.5, expected an integer"),
        ("limit", True, "limit is True"),
        ("limit", "3", "limit is '3'"),
        ("limit", 2**70, "limit is .*, expected at most"),
        ("search", "fast", "search is 'fast', expected one of 'auto', 'exact', 'graph'"),
        ("search", 1, "search is 1"),
        ("rules", "all", "rules is 'all'"),
        ("rules", ["exact", "sounds_like"], "no rule 'sounds_like'"),
        ("rules", ["vector"], "no rule 'vector'"),
        ("rules", [3], "no rule 3"),
        ("rules", 255, "rules is 255"),
        ("numbers", "close", "numbers is 'close'"),
        pytest.param("limit", 10**5000, "limit is <int without repr>, expected at most", id="no repr"),
        ("rules", [np.array([1, 2])], "no rule array"),
        ("exclude", 5, "exclude: expected an iterable"),
        ("exclude", np.array(1), "exclude: expected an iterable"),
        ("exclude", np.array(1, np.uint64), "exclude: expected an iterable"),
        ("exclude", "5", "exclude: expected an iterable"),
        ("exclude", [1, -2], "exclude, item 1 is -2"),
        ("exclude", [1.0], "exclude, item 0 is 1.0, expected an integer"),
        ("exclude", [2**64], "exclude, item 0 is 18446744073709551616, expected at most"),
    ],
)
def test_options(memory: Memory, argument: str, value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        memory.query("a", "r", **{argument: value})
    with pytest.raises(InvalidArgument, match=why):
        memory.query_many([{"subject": "a", "relation": "r", argument: value}])


@pytest.mark.parametrize(
    ("queries", "why"),
    [
        ([("a", "r", None), ("a", "r")], "query 1: expected a Query, a dict or"),
        (["a r ?"], "query 0: expected"),
        ([None], "query 0: expected"),
        ([{"subject": "a", "relation": "r", "limits": 3}], "query 0: 'limits' is not an argument of query"),
        ([{"subject": "a", "relation": "r", 3: 3}], "query 0: 3 is not an argument of query"),
        ([("a", "r", None), Query("a", "")], "query 1: relation is empty"),
        (Query("a", "r"), "iterable of queries, not Query"),
        ("a", "iterable of queries, not str"),
        (np.array(1), "iterable of queries, not ndarray"),
        (None, "iterable of queries, not NoneType"),
    ],
)
def test_forms_of_queries(memory: Memory, queries: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        memory.query_many(queries)


def test_other_arguments(memory: Memory, unchanged: None, tmp_path: Path) -> None:
    for call, why in (
        (lambda: memory.triple(-1), "triple_id is -1"),
        (lambda: memory.triple("1"), "triple_id is '1'"),  # type: ignore[arg-type]
        (lambda: memory.sources(1.0), "triple_id is 1.0"),  # type: ignore[arg-type]
        (lambda: memory.changes(-1), "since is -1"),
        (lambda: memory.embed_missing(batch=0), "batch is 0"),
        (lambda: memory.embed_missing(progress=3), "progress is 3"),  # type: ignore[arg-type]
        (lambda: memory.add_many([], progress="bar"), "progress is 'bar'"),  # type: ignore[arg-type]
        (lambda: memory.similar_entities(""), "text is empty"),
        (lambda: memory.backup(""), "path is ''"),
        (lambda: memory.backup(3), "path is 3"),  # type: ignore[arg-type]
        (lambda: memory.add_many(np.array("a")), "iterable of triples, not ndarray"),  # type: ignore[arg-type]
        (lambda: memory.add_entities(np.array("a")), "entity names, not ndarray"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument, match=why):
            call()
    with pytest.raises(NotFound, match="12345"):
        memory.triple(12345)
    with pytest.raises(NotFound, match="12345"):
        memory.sources(12345)


# ---- the handle --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"timeout": -1}, "timeout is -1"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": 10**400}, "timeout is inf"),
        ({"timeout": "30"}, "timeout is '30'"),
        ({"timeout": None}, "timeout is None"),
        ({"sync": "off"}, "sync is 'off'"),
        ({"map_size": 0}, "map_size is 0"),
        ({"map_size": 1.5}, "map_size is 1.5"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": -2}, "threads is -2"),
        ({"embedder": 5}, "5"),
        ({"embedder": "no such embedder"}, "no such embedder"),
        ({"embedder": "x" * 5000}, "no embedder 'xxx"),  # longer than a file's name can be
        ({"relation_embedder": object()}, "object"),
        ({"embedder": Hashed("4")}, "dim of embedder 'hashed-test' is '4', expected an integer"),  # type: ignore[arg-type]
        ({"embedder": Hashed(4.0)}, "dim of embedder 'hashed-test' is 4.0, expected an integer"),  # type: ignore[arg-type]
        ({"embedder": Hashed(True)}, "dim of embedder 'hashed-test' is True"),
        ({"embedder": Hashed(2**70)}, "dim of embedder 'hashed-test' is .*, expected at most"),
        ({"relation_embedder": Hashed(0)}, "dim of relation_embedder 'hashed-test' is 0"),
        ({"embedder": Hashed(4, "")}, "embedder.name is empty"),
        ({"embedder": Hashed(4, 5)}, r"embedder.name is 5 \(int\)"),  # type: ignore[arg-type]
        ({"embedder": External(4, "x\ud800")}, "embedder.name has a lone surrogate"),
        ({"embedder": External(4, thresholds=(0.5, 0.5))}, "thresholds of embedder 'external': "),  # type: ignore[arg-type]
        ({"embedder": External(4, thresholds=0.5)}, "thresholds of embedder 'external': 0.5"),  # type: ignore[arg-type]
        ({"embedder": External(4, thresholds="0.5")}, "thresholds of embedder 'external': '0.5'"),  # type: ignore[arg-type]
        (
            {"relation_embedder": External(4, thresholds=(0.5, 2, 0.5))},  # type: ignore[arg-type]
            "tau_t of embedder 'external' is 2.0, outside",
        ),
    ],
)
def test_open(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        pymemstore.open(tmp_path / "m.mem", **arguments)
    assert not (tmp_path / "m.mem").exists()


def test_thresholds_of_an_embedder_may_be_any_three_numbers(tmp_path: Path) -> None:
    plain = External(np.int64(4), thresholds=(0, np.float32(0.5), 1))  # type: ignore[arg-type]
    with pymemstore.open(tmp_path / "m.mem", embedder=plain) as memory:
        assert memory.thresholds == (0.0, 0.5, 1.0) and memory.thresholds.tau_t == 0.5


def test_open_a_wrong_path(tmp_path: Path) -> None:
    for path in ("", "a\0b", b"bytes", 3, None, "a\ud800b"):
        with pytest.raises(InvalidArgument, match="path is"):
            pymemstore.open(path)  # type: ignore[arg-type]
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound, match="absent"):
            pymemstore.open(tmp_path / "absent.mem", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


WRITES: dict[str, Callable[[Memory], object]] = {
    "add": lambda m: m.add("x", "r", "y"),
    "add a known fact": lambda m: m.add("a", "r", "b"),
    "add_many": lambda m: m.add_many([("x", "r", "y")]),
    "add_many nothing": lambda m: m.add_many([]),
    "replace": lambda m: m.replace("a", "r", "y"),
    "remove": lambda m: m.remove("a", "r", "b"),
    "forget": lambda m: m.forget("a"),
    "alias": lambda m: m.alias("A.", "a"),
    "unalias": lambda m: m.unalias("A.", "a"),
    "rename": lambda m: m.rename("a", "c"),
    "add_entities": lambda m: m.add_entities(["x"]),
    "add_relations": lambda m: m.add_relations(["x"]),
    "set_vector": lambda m: m.set_vector("a", GOOD),
    "set_external_id": lambda m: m.set_external_id("Q1", "a"),
    "transaction": lambda m: m.transaction(),
    "embed_missing": lambda m: m.embed_missing(),
}
READS: dict[str, Callable[[Memory], object]] = {
    "query": lambda m: m.query("a", "r"),
    "query_many": lambda m: m.query_many([("a", "r", None)]),
    "query_many nothing": lambda m: m.query_many([]),
    "similar_entities": lambda m: m.similar_entities("a"),
    "similar_relations": lambda m: m.similar_relations("r"),
    "entities": lambda m: m.entities(),
    "relations": lambda m: m.relations(),
    "triples": lambda m: m.triples(),
    "changes": lambda m: m.changes(),
    "contains": lambda m: m.contains("a", "r", "b"),
    "triple": lambda m: m.triple(1),
    "vector": lambda m: m.vector("a"),
    "aliases": lambda m: m.aliases("a"),
    "named_by": lambda m: m.named_by("A."),
    "external_ids": lambda m: m.external_ids("a"),
    "by_external_id": lambda m: m.by_external_id("Q1"),
    "sources": lambda m: m.sources(1),
    "stats": lambda m: m.stats(),
    "check": lambda m: m.check(),
    "len": lambda m: len(m),
    "with": lambda m: m.__enter__(),
}


@pytest.mark.parametrize("call", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS])
def test_closed(memory: Memory, call: Callable[[Memory], object]) -> None:
    memory.close()
    memory.close()
    assert memory.closed
    with pytest.raises(Closed):
        call(memory)


def test_upkeep_of_a_closed_store(memory: Memory, tmp_path: Path) -> None:
    memory.close()
    for call in (memory.compact, lambda: memory.backup(tmp_path / "copy.mem")):
        with pytest.raises(Closed):
            call()
    assert not (tmp_path / "copy.mem").exists()


@pytest.mark.parametrize("call", WRITES.values(), ids=list(WRITES))
def test_read_only(memory: Memory, tmp_path: Path, call: Callable[[Memory], object]) -> None:
    before = list(memory.triples())
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(DIM), read_only=True) as reader:
        assert reader.read_only
        with pytest.raises(ReadOnly):
            call(reader)
        assert list(reader.triples()) == before and reader.query("a", "r").names == ["b"]


def test_a_commit_after_close_writes_nothing(memory: Memory, tmp_path: Path) -> None:
    with pytest.raises(Closed), memory.transaction() as t:
        t.add("x", "r", "y")
        memory.close()
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(DIM)) as again:
        assert len(again) == 1
