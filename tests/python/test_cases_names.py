"""The fault cases of names (S01 S03 S13 S14 N01-N08): stored, found and told apart byte for byte."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import shared_file
from hashed import Hashed

import pymemstore
from pymemstore import InvalidArgument, Memory, NotFound
from pymemstore.embedders import External

Triple3 = tuple[str, str, str]


def lines(path: str) -> list[str]:
    return shared_file(path).read_text("utf-8").splitlines()


# A missing folder skips this module, so that the names can be the tests' parameters.
CASES = [json.loads(line) for line in lines("cases/names/names.jsonl")]
NAMES = {case["id"]: case["name"] for case in CASES if case["policy"] != "reject"}
REJECTED = {case["id"]: case["name"] for case in CASES if case["policy"] == "reject"}
EXTERNAL_ID_BYTES = 480
TRIPLES: list[Triple3] = [tuple(json.loads(line)) for line in lines("cases/names/triples_unique.jsonl")]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """A store in which every name is an entity, a relation, an alias, an external id and a source."""
    path = tmp_path_factory.mktemp("names") / "m.mem"
    with pymemstore.open(path, embedder=Hashed()) as m, m.transaction() as t:
        for case, name in NAMES.items():
            t.add(name, name, f"object of {case}", source=name)
            t.alias(name, f"object of {case}")
            if len(name.encode()) <= EXTERNAL_ID_BYTES:
                t.set_external_id(name, f"object of {case}")
    with pymemstore.open(path, embedder=Hashed()) as m:  # what is looked at has been read back from the files
        yield m


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed()) as m:
        yield m


def nothing_stored(m: Memory) -> bool:
    stats = m.stats()
    counts = (stats.entities, stats.relations, stats.triples, stats.aliases, stats.external_ids, stats.seq)
    return counts == (0, 0, 0, 0, 0, 0) and m.check().ok


# ---- names.jsonl -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NAMES, ids=lambda case: f"S01-N01-N08-{case}")
def test_name_comes_back_byte_for_byte_everywhere(full: Memory, case: str) -> None:
    name, other = NAMES[case], f"object of {case}"
    recorded = next(c["utf8_bytes"] for c in CASES if c["id"] == case)
    assert len(name.encode()) == recorded  # the file's own figure: nothing was lost on the way here
    assert full.contains(name, name, other)
    assert [t[:3] for t in full.triples(subject=name)] == [(name, name, other)]
    assert [t[:3] for t in full.triples(relation=name)] == [(name, name, other)]
    assert [t[:3] for t in full.triples(object=other)] == [(name, name, other)]
    assert full.aliases(other) == [name] and full.named_by(name) == [other]
    fits = recorded <= EXTERNAL_ID_BYTES
    assert full.external_ids(other) == [name] * fits and full.by_external_id(name) == (
        other if fits else None
    )
    [found] = full.triples(name, name, other)
    assert [s.source for s in full.sources(found.id)] == [name]
    assert full.vector(name) is not None and full.vector(name, relation=True) is not None
    hits = full.query(name, name, tau_e=1.0, tau_t=1.0, tau_r=1.0, rules="none").hits
    assert [hit.triple[:3] for hit in hits] == [(name, name, other)]
    assert [n for n, _ in full.similar_entities(name, 1.0)] == [name]
    changed = [c.triple[:3] for c in full.changes() if c.triple and c.triple.object == other]
    assert changed == [(name, name, other)]


def test_N02_names_are_raw_so_49_accepted_ones_have_49_ids(full: Memory) -> None:
    accepted = {case["name"] for case in CASES if case["policy"] == "accept"}
    listed = [name for name in full.entities() if not name.startswith("object of ")]
    assert len(accepted & set(listed)) == 49
    assert sorted(listed) == sorted(NAMES.values())  # every one once, and nothing else
    assert sorted(full.relations()) == sorted(NAMES.values())
    # Composed and decomposed forms are different names here: NFC would have merged three pairs.
    assert len({unicodedata.normalize("NFC", name) for name in accepted}) == 46
    assert full.check().ok


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: f"S03-N03-{case}")
def test_rejected_name_is_a_named_error_and_nothing_is_stored(memory: Memory, case: str) -> None:
    bad = REJECTED[case]
    writes: dict[str, Callable[[], object]] = {
        "subject": lambda: memory.add(bad, "r", "o"),
        "relation": lambda: memory.add("s", bad, "o"),
        "object": lambda: memory.add("s", "r", bad),
        "triple 1: object": lambda: memory.add_many([("a", "r", "b"), ("a", "r", bad)]),
        "name 1": lambda: memory.add_entities(["fine", bad]),
        "name 0": lambda: memory.add_relations([bad]),
        "source": lambda: memory.add("s", "r", "o", source=bad),
        "replace": lambda: memory.replace("s", bad, "o"),
        "alias": lambda: memory.alias(bad, "s"),
        "rename": lambda: memory.rename("s", bad),
        "external id": lambda: memory.set_external_id(bad, "s"),
    }
    for what, write in writes.items():
        with pytest.raises(InvalidArgument, match=r"empty|lone surrogate") as caught:
            write()
        assert isinstance(caught.value, ValueError)
        assert "MDB" not in str(caught.value)
        if what in ("subject", "relation", "object", "triple 1: object", "source"):
            assert what in str(caught.value)  # names the item
    assert nothing_stored(memory)


def test_lookup_of_the_empty_name_S03_finds_nothing(memory: Memory) -> None:
    memory.add("s", "r", "o")
    assert not memory.contains("", "r", "o") and not memory.contains("s", "", "o")
    assert list(memory.triples(subject="")) == list(memory.triples(relation="")) == []
    assert memory.named_by("") == [] and memory.by_external_id("") is None
    lookups = (memory.vector, memory.aliases, memory.external_ids)
    for lookup in lookups:
        with pytest.raises(NotFound, match="no entity ''") as caught:
            lookup("")
        assert "MDB" not in str(caught.value)
    # A question with an empty slot is no question (P07).
    for ask in (
        lambda: memory.query("", "r"),
        lambda: memory.query("s", ""),
        lambda: memory.similar_entities(""),
    ):
        with pytest.raises(InvalidArgument, match="is empty"):
            ask()


def test_lookup_of_a_lone_surrogate_S03_is_a_named_error(memory: Memory) -> None:
    bad = "\ud800x"
    memory.add("s", "r", "o")
    lookups: list[Callable[[], object]] = [
        lambda: memory.contains(bad, "r", "o"),
        lambda: memory.vector(bad),
        lambda: memory.aliases(bad),
        lambda: memory.named_by(bad),
        lambda: memory.by_external_id(bad),
        lambda: list(memory.triples(subject=bad)),
        lambda: memory.query(bad, "r"),
        lambda: memory.similar_entities(bad, 0.5),
    ]
    for lookup in lookups:
        with pytest.raises(InvalidArgument, match="lone surrogate"):
            lookup()


@pytest.mark.parametrize("size", [511, 512, 600, 4096, 65_536, 1 << 20])
def test_S01_long_names_that_differ_in_the_last_byte_are_two(memory: Memory, size: int) -> None:
    first, second = "n" * (size - 1) + "1", "n" * (size - 1) + "2"
    a, b = memory.add(first, first, second), memory.add(second, first, first)
    assert a.inserted and b.inserted and a.triple_id != b.triple_id
    assert list(memory.entities()) == [first, second] and list(memory.relations()) == [first]
    assert memory.check().ok


def test_S01_the_limit_is_documented_named_and_spares_the_rest(memory: Memory) -> None:
    limit = 1 << 20
    too_long = "x" * (limit + 1)
    with pytest.raises(InvalidArgument, match=rf"triple 2: object.*{limit + 1}.*{limit}"):
        memory.add_many([("a", "r", "b"), ("c", "r", "d"), ("e", "r", too_long)])
    assert nothing_stored(memory)  # a batch is all or nothing, and it says so
    wide = "é" * (limit // 2) + "x"  # fewer characters than the limit, but more bytes
    with pytest.raises(InvalidArgument, match=str(limit)):
        memory.add_entities([wide])
    assert memory.add_many([("a", "r", "b"), ("c", "r", "d")]).inserted == 2


def test_S01_a_long_external_id_is_a_named_error_that_tells_the_limit(memory: Memory) -> None:
    memory.add_entities(["a"])
    assert memory.set_external_id("Q" * EXTERNAL_ID_BYTES, "a")
    with pytest.raises(InvalidArgument, match=f"{EXTERNAL_ID_BYTES + 1} bytes.*{EXTERNAL_ID_BYTES}"):
        memory.set_external_id("Q" * (EXTERNAL_ID_BYTES + 1), "a")
    assert memory.external_ids("a") == ["Q" * EXTERNAL_ID_BYTES]


def test_N01_a_NUL_neither_ends_a_name_nor_joins_two(memory: Memory) -> None:
    names = ["Ana", "Ana\0", "Ana\0Lima", "\0", "\0\0", "\0Ana"]
    memory.add_many([(name, "r", "o") for name in names])
    assert list(memory.entities()) == ["Ana", "o", *names[1:]]
    assert memory.forget("Ana") == 1
    assert memory.contains("Ana\0Lima", "r", "o") and not memory.contains("Ana", "r", "o")


def test_N04_case_and_white_space_are_kept_apart(memory: Memory) -> None:
    """The one rule for white space: it is part of a name."""
    names = ["Paris", "paris", " Paris", "Paris ", "Paris\t", " ", "   ", "\u00a0", "\u200b"]
    assert memory.add_entities(names) == len(names)
    assert memory.add_entities(names) == 0
    assert list(memory.entities()) == names


def test_N05_near_names_are_never_merged(memory: Memory) -> None:
    """Not by likeness, and not by equal vectors either."""
    one = Hashed().one("the same for both")
    memory.add("ASR1603", "made by", "A", vectors=(one, None, None))
    memory.add("ASR1605", "made by", "B", vectors=(one, None, None))
    assert [t.object for t in memory.triples(subject="ASR1603")] == ["A"]
    assert [t.object for t in memory.triples(subject="ASR1605")] == ["B"]
    assert [n for n, _ in memory.similar_entities(one, 1.0)] == ["ASR1603", "ASR1605"]


def test_N06_null_is_never_a_name_and_words_are(memory: Memory) -> None:
    for bad in (None, 0, 1.5, True, float("nan"), b"None", ["None"]):
        with pytest.raises(InvalidArgument, match="expected str"):
            memory.add("s", "r", bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="triple 1"):
            memory.add_many([("s", "r", "o"), ("s", bad, "o")])  # type: ignore[list-item]
    assert nothing_stored(memory)
    words = ["None", "null", "nan", "0", "00", "1e3", "True", "-1"]
    memory.add_many([(word, "is", "a word") for word in words])
    assert [t.subject for t in memory.triples(relation="is")] == words
    with pytest.raises(InvalidArgument):
        memory.query(None, "is", None)  # both slots open: no question, least of all one about "None"


INVISIBLE = ["abc\u202ecba\u202c", "\u200fשלום", "\ufeffData", "a\u200bb", "a\x1b[31mb", "a\nb\0c"]


@pytest.mark.parametrize("name", INVISIBLE)
def test_N08_errors_show_invisible_characters_escaped(memory: Memory, name: str) -> None:
    asks: list[Callable[[], object]] = [
        lambda: memory.vector(name),
        lambda: memory.forget(name),
        lambda: memory.rename(name, "x"),
        lambda: memory.add_many([(name, "r")]),
        lambda: memory.add(name, "r", ("o",)),  # type: ignore[arg-type]
    ]
    hidden = {c for c in name if not c.isprintable()}
    assert hidden
    for ask in asks:
        with pytest.raises((NotFound, InvalidArgument)) as caught:
            ask()
        assert not hidden & set(str(caught.value))


# ---- triples_unique.jsonl ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_S13_stored_n_times_is_one_triple(memory: Memory, order: str) -> None:
    rows = TRIPLES if order == "forward" else TRIPLES[::-1]
    ids: dict[Triple3, int] = {}
    for _ in range(2):
        for row in rows:
            added = memory.add(*row)
            assert added.inserted == (row not in ids)
            assert ids.setdefault(row, added.triple_id) == added.triple_id
    assert len(memory) == len(set(ids.values())) == 6
    assert {t[:3] for t in memory.triples()} == set(TRIPLES)
    assert set(memory.entities()) == {"Ana Lima", "Recife", "Olinda", "born in"}
    assert set(memory.relations()) == {"born in", "BORN IN", "part of"}
    before = memory.stats()
    report = memory.add_many(rows)  # once more, in one batch
    assert (report.inserted, report.existed) == (0, 8)
    assert [int(i) for i in report.triple_ids] == [ids[row] for row in rows]
    assert memory.stats().triples == before.triples and memory.stats().seq == before.seq
    assert memory.check().ok


def test_S13_in_one_batch_as_one_by_one(memory: Memory) -> None:
    report = memory.add_many(TRIPLES)
    assert (report.inserted, report.existed) == (6, 2)
    assert report.inserted_mask.tolist() == [True, False, True, True, True, True, False, True]
    assert report.triple_ids[0] == report.triple_ids[1] and report.triple_ids[5] == report.triple_ids[6]
    assert memory.query("born in", "born in", rules="none", tau_e=1, tau_t=1).names == ["born in"]


# ---- every write path is visible to every read path ----------------------------------------------------


def _in_transaction(m: Memory, t: Triple3) -> None:
    with m.transaction() as transaction:
        transaction.add(*t)


WRITES: dict[str, Callable[[Memory, Triple3], object]] = {
    "add": lambda m, t: m.add(*t),
    "add_many": lambda m, t: m.add_many([t]),
    "replace": lambda m, t: m.replace(*t),
    "transaction": _in_transaction,
}
READS: dict[str, Callable[[Memory, Triple3], bool]] = {
    "contains": lambda m, t: m.contains(*t),
    "triples": lambda m, t: t in [row[:3] for row in m.triples(object=t[2])],
    "query_object": lambda m, t: t[2] in m.query(t[0], t[1], tau_e=0.99, tau_t=0.99, tau_r=0.99).names,
    "query_subject": lambda m, t: m.query_many([(None, *t[1:])], tau_e=0.99, tau_t=0.99)[0].names == [t[0]],
    "changes": lambda m, t: t in [c.triple[:3] for c in m.changes() if c.triple],
    "entities": lambda m, t: {t[0], t[2]} <= set(m.entities()) and t[1] in m.relations(),
    "similar": lambda m, t: m.similar_entities(t[0], 0.99)[0][0] == t[0],
    "count": lambda m, t: len(m) == m.stats().triples == 1,
}


@pytest.mark.parametrize("write", WRITES)
def test_S14_every_write_is_seen_by_every_read_at_once(memory: Memory, tmp_path: Path, write: str) -> None:
    triple = ("Ana Lima", "born in", "Recife")
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(), read_only=True) as second:
        WRITES[write](memory, triple)
        for handle in (memory, second):
            assert {name: read(handle, triple) for name, read in READS.items()} == dict.fromkeys(READS, True)
    memory.remove(*triple)
    assert not memory.contains(*triple) and not memory.query("Ana Lima", "born in") and len(memory) == 0


def test_S14_names_given_vectors_are_seen_as_those_embedded(tmp_path: Path) -> None:
    embedder = Hashed()
    one = embedder.one
    with pymemstore.open(tmp_path / "v.mem", embedder=External(dim=embedder.dim)) as m:
        m.add("a", "r", "b", vectors=(one("a"), one("r"), one("b")))
        m.add_entities(["c"], vectors=[one("c")])
        m.add_many([("c", "r", "a")])  # all its names have vectors by now
        assert m.query(subject_vector=one("c"), relation_vector=one("r")).names == ["a"]
        assert m.query(object_vector=one("b"), relation_vector=one("r")).names == ["a"]
