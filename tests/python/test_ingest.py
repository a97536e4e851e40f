"""Readers, the loader and the exporters: every record is taken, or refused by its number."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pymemstore
from pymemstore import ingest
from pymemstore.ingest import docred, exporters, loader
from pymemstore.ingest.formats import detect_format
from pymemstore.ingest.readers import Alias, Bad, ExternalId, Fact, Item, Name, Source

Triples = set[tuple[str, str, str]]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[pymemstore.Memory]:
    with pymemstore.open(tmp_path / "store.mem") as opened:
        yield opened


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes | str], Path]:
    def make(content: bytes | str) -> Path:
        path = tmp_path / "input.dat"  # the name tells nothing: the content has to
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def read_all(path: Path, format: str = "auto", **options: Any) -> list[Item]:
    with Source(path) as source:
        return list(ingest.read(source, format, **options)[1])


def stored(memory: pymemstore.Memory) -> Triples:
    return {triple[:3] for triple in memory.triples()}


# ---- JSON lines and TSV --------------------------------------------------------------------------


def test_jsonl_forms(write: Callable[..., Path]) -> None:
    path = write(
        '["a", "r", "b"]\n'
        '{"subject": "a", "relation": "r", "object": "c", "source": "s", "weight": 3}\n'
        '{"subject": "a", "relation": "r", "object": "d", "source": null}\n'
        '{"alias": "A.", "entity": "a"}\n'
        '{"alias": "rel", "relation": "r"}\n'
        '{"external_id": "Q1", "entity": "a"}\n'
        '{"external_id": "P1", "relation": "r"}\n'
        '{"entity": "e"}\n'
        '{"relation": "q"}'
    )
    assert read_all(path) == [
        Fact(1, "a", "r", "b"),
        Fact(2, "a", "r", "c", "s"),
        Fact(3, "a", "r", "d"),
        Alias(4, "A.", "a"),
        Alias(5, "rel", "r", True),
        ExternalId(6, "Q1", "a"),
        ExternalId(7, "P1", "r", True),
        Name(8, "e"),
        Name(9, "q", True),
    ]


def test_byte_order_mark_crlf_and_blank_lines(write: Callable[..., Path]) -> None:
    jsonl = write(b'\xef\xbb\xbf["a","r","b"]\r\n\r\n  \n["a","r","c"]\r\n')
    assert read_all(jsonl) == [Fact(1, "a", "r", "b"), Fact(4, "a", "r", "c")]
    tsv = write(b"\xef\xbb\xbfa\tr\tb\r\n\r\na\tr\tc\tsource\r\n")
    assert read_all(tsv) == [Fact(1, "a", "r", "b"), Fact(3, "a", "r", "c", "source")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'["a", "r"]', "a list of 2"),
        (b'["a", "r", "b", "c"]', "a list of 4"),
        (b'["a", "r", 7]', "the object is a number"),
        (b'["a", null, "b"]', "the relation is null"),
        (b'["a", "r", true]', "the object is true or false"),
        (b'[["a"], "r", "b"]', "the subject is a list"),
        (b'["", "r", "b"]', "the subject is empty"),
        (b'["a", "r", "\\ud800"]', "lone surrogate"),
        (b'{"subject": "a", "object": "b"}', "no relation"),
        (b'{"subject": "a", "relation": "r", "object": "b", "source": 1}', "the source is a number"),
        (b'{"entity": ""}', "the entity is empty"),
        (b'{"relation": 3}', "the relation is a number"),
        (b'{"relation": "r", "source": "s"}', "no subject and no object"),
        (b'{"entity": "a", "relation": "r"}', "no subject and no object"),
        (b'{"alias": "x"}', "the relation is null"),
        (b'"a"', "neither a list nor an object"),
        (b"12", "neither a list nor an object"),
        (b'["a", "r", "b"', "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'["a", "r", "\xff"]', "not UTF-8: byte 0xff at byte 13"),
    ],
)
def test_a_bad_json_line_costs_that_line_only(write: Callable[..., Path], line: bytes, why: str) -> None:
    path = write(b'["a", "r", "b"]\n' + line + b'\n["a", "r", "c"]\n')
    first, bad, last = read_all(path, "jsonl")
    assert (first, last) == (Fact(1, "a", "r", "b"), Fact(3, "a", "r", "c"))
    assert isinstance(bad, Bad) and bad.line == 2 and why in bad.why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"a\tr", "2 columns"),
        (b"a\tr\tb\ts\tmore", "5 columns"),
        (b"a\t\tb", "the relation is empty"),
        (b"\t\t", "the subject is empty"),
        (b"a\tr\t\xc3", "not UTF-8: byte 0xc3 at byte 5"),
    ],
)
def test_a_bad_tsv_line_costs_that_line_only(write: Callable[..., Path], line: bytes, why: str) -> None:
    first, bad, last = read_all(write(b"a\tr\tb\n" + line + b"\na\tr\tc\t\n"))
    assert (first, last) == (Fact(1, "a", "r", "b"), Fact(3, "a", "r", "c"))
    assert isinstance(bad, Bad) and bad.line == 2 and why in bad.why


def test_names_keep_every_byte(write: Callable[..., Path]) -> None:
    assert read_all(write(' a \t"r"\tb\\t \n')) == [Fact(1, " a ", '"r"', "b\\t ")]


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1)] * 3),
        min_size=1,
    )
)
def test_any_names_come_back_from_json_lines(tmp_path_factory: Any, triples: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    path.write_text("\n".join(json.dumps(triple) for triple in triples))
    assert read_all(path) == [Fact(line, *triple) for line, triple in enumerate(triples, 1)]


# ---- what a file is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b'["a","r","b"]', "jsonl"),
        (b'\n \n{"subject": "a"}', "jsonl"),
        (b"a\tr\tb", "tsv"),
        (b'[{"title": "t"}]', "docred"),
        (b'\xef\xbb\xbf[\n\n  {"title"', "docred"),
        (b"[]", "docred"),
    ],
)
def test_format_is_told_from_the_content(write: Callable[..., Path], content: bytes, format: str) -> None:
    with Source(write(content)) as source:
        assert detect_format(source) == format
        assert source.stream.read() == content  # looking takes nothing away


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "is empty"), (b"\n\n", "is empty"), (b"hello\n", "neither")]
)
def test_a_format_that_cannot_be_told_is_refused(
    write: Callable[..., Path], content: bytes, why: str
) -> None:
    with Source(write(content)) as source, pytest.raises(pymemstore.InvalidArgument, match=why):
        ingest.read(source)
    assert all(isinstance(item, Bad) for item in read_all(write(content), "jsonl"))


def test_an_unknown_format_is_refused(write: Callable[..., Path]) -> None:
    with (
        Source(write(b"x")) as source,
        pytest.raises(pymemstore.InvalidArgument, match="'xml' is not one of"),
    ):
        ingest.read(source, "xml")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compression_is_told_by_the_first_bytes(
    write: Callable[..., Path], memory: pymemstore.Memory, compress: Callable[[bytes], bytes]
) -> None:
    lines = [json.dumps([f"s{n}", "r", os.urandom(8).hex()]) for n in range(5_000)]
    content = "\n".join(lines).encode()
    assert [item[1:4] for item in read_all(write(compress(content)))] == [tuple(json.loads(x)) for x in lines]
    # two streams end to end, the seam inside a line
    two = compress(content[:1001]) + compress(content[1001:])
    assert len(read_all(write(two))) == 5_000

    report = ingest.ImportReport()
    with (
        Source(write(compress(content)[:-2000])) as source,
        pytest.raises(pymemstore.IOError, match="truncated"),
    ):
        ingest.load(memory, ingest.read(source, "jsonl")[1], batch=100, report=report)
    least = 0 if compress is bz2.compress else 1  # bzip2's block may be all of it
    assert least <= report.inserted < 5_000 and report.inserted == len(memory) == report.read
    with Source(write(compress(content))) as source:
        again = ingest.load(memory, ingest.read(source)[1])
    assert (again.inserted, again.existed) == (5_000 - report.inserted, report.inserted)


# ---- DocRED --------------------------------------------------------------------------------------

DOCUMENT: dict[str, Any] = {
    "title": "Ana",
    "vertexSet": [
        [{"name": "Ana Lima"}, {"name": "Lima"}, {"name": "Ana Lima"}, {"name": "Lima"}],
        [{"name": "Recife"}],
        [{"name": "Brazil"}, {"name": "Brasil"}],
        [{"name": "unused"}, {"name": "never"}],
    ],
    "labels": [
        {"h": 0, "t": 1, "r": "P19", "evidence": [0]},
        {"h": 0, "t": 2, "r": "P27"},
        {"h": 1, "t": 2, "r": "P17"},
    ],
}


def test_docred_document(write: Callable[..., Path]) -> None:
    path = write(json.dumps([DOCUMENT]))
    assert read_all(path, relations={"P19": "place of birth"}) == [
        Fact(1, "Ana Lima", "place of birth", "Recife", "Ana"),
        Alias(1, "Lima", "Ana Lima"),
        Fact(1, "Ana Lima", "P27", "Brazil", "Ana"),
        Alias(1, "Brasil", "Brazil"),
        Fact(1, "Recife", "P17", "Brazil", "Ana"),
    ]
    assert [type(item) for item in read_all(path, aliases=False)] == [Fact] * 3


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1 << 20])
def test_docred_pieces_of_any_size(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(docred, "_CHUNK", chunk)
    documents = [DOCUMENT | {"title": f"Título {n}"} for n in range(5)]
    path = write(b"\xef\xbb\xbf \n" + json.dumps(documents, indent=1, ensure_ascii=False).encode() + b"\r\n")
    facts = [item for item in read_all(path) if isinstance(item, Fact)]
    assert [(fact.line, fact.source) for fact in facts[::3]] == [(n + 1, f"Título {n}") for n in range(5)]


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ({"h": 4, "t": 1, "r": "P1"}, "h is 4, not one of the document's 4"),
        ({"h": 0, "t": -1, "r": "P1"}, "t is -1"),
        ({"h": True, "t": 1, "r": "P1"}, "h is True"),
        ({"t": 1, "r": "P1"}, "h is None"),
        ({"h": 0, "t": 1}, "the relation is null"),
        ({"h": 0, "t": 1, "r": ""}, "the relation is empty"),
        (3, "not an object"),
    ],
)
def test_a_bad_label_costs_that_label_only(write: Callable[..., Path], label: object, why: str) -> None:
    items = read_all(write(json.dumps([DOCUMENT, DOCUMENT | {"labels": [label, DOCUMENT["labels"][0]]}])))
    bad = [item for item in items if isinstance(item, Bad)]
    assert len(bad) == 1 and bad[0].line == 2 and f"document 2, label 1: {why}" in bad[0].why
    assert sum(isinstance(item, Fact) for item in items) == 4


@pytest.mark.parametrize(
    ("content", "facts", "why"),
    [
        ('[{"title": "x"}, DOC]', 3, "document 1: no list called vertexSet"),
        ('[{"vertexSet": [], "labels": 3}, DOC]', 3, "document 1: labels is not a list"),
        ("[7, DOC]", 3, "document 1: not an object"),
        ("[DOC, DOC", 6, "ends after 2 documents"),
        ("[DOC, {]", 3, "document 2 is not JSON"),
        ("[DOC DOC]", 3, "no comma after document 1"),
        ("[DOC] DOC", 3, "something follows"),
        ("DOC", 0, "not a JSON array"),
        ("", 0, "ends after 0 documents"),
    ],
)
def test_broken_docred_files(write: Callable[..., Path], content: str, facts: int, why: str) -> None:
    items = read_all(write(content.replace("DOC", json.dumps(DOCUMENT))), "docred", aliases=False)
    bad = [item for item in items if isinstance(item, Bad)]
    assert len(bad) == 1 and why in bad[0].why
    assert sum(isinstance(item, Fact) for item in items) == facts


def test_re_docred_dev(memory: pymemstore.Memory, test_data: Callable[[str], Path]) -> None:
    path, labels_path = test_data("docred/dev_revised.json"), test_data("wikidata/properties_en.json")
    names = json.loads(labels_path.read_text())
    expected, aliases, labels = set(), set(), 0
    for document in json.loads(path.read_text()):
        vertices = [[mention["name"] for mention in entity] for entity in document["vertexSet"]]
        for label in document["labels"]:
            labels += 1
            head, tail = vertices[label["h"]], vertices[label["t"]]
            expected.add((head[0], names[label["r"]], tail[0]))
            aliases |= {
                (other, entity[0]) for entity in (head, tail) for other in entity if other != entity[0]
            }
    with Source(path) as source:
        format, items = ingest.read(source, relations=ingest.load_relation_labels(labels_path))
        report = ingest.load(memory, items, batch=3_000)
    assert format == "docred" and labels == 17_284
    assert (report.inserted, report.existed) == (len(expected), labels - len(expected))
    assert (report.skipped, report.errors, report.aliases) == (0, [], len(aliases))
    assert stored(memory) == expected
    assert {(alias, name) for name in memory.entities() for alias in memory.aliases(name)} == aliases
    assert set(memory.relations()) == {relation for _, relation, _ in expected}


@pytest.mark.parametrize("content", ["[1]", '{"P1": 2}', '{"P1": ""}', "{"])
def test_bad_relation_labels_are_refused(write: Callable[..., Path], content: str) -> None:
    with pytest.raises(pymemstore.InvalidArgument):
        ingest.load_relation_labels(write(content))


def test_relations_that_share_a_label_stay_apart(write: Callable[..., Path]) -> None:
    labels = ingest.load_relation_labels(write('{"P1": "part of", "P2": "country", "P3": "part of"}'))
    assert labels == {"P1": "part of (P1)", "P2": "country", "P3": "part of (P3)"}


# ---- the loader ----------------------------------------------------------------------------------


def facts(first: int, last: int) -> list[Item]:
    return [Fact(n, f"s{n}", "r", f"o{n}") for n in range(first, last)]


def test_counts_and_sources(memory: pymemstore.Memory) -> None:
    items = [*facts(0, 25), Fact(25, "s0", "r", "o0"), Bad(26, "broken"), Fact(27, "x", "r", "y", "own")]
    seen: list[tuple[int, int]] = []
    report = ingest.load(
        memory,
        items,
        batch=10,
        source="file",
        progress=lambda r: seen.append((r.read, r.inserted + r.existed)),
    )
    assert (report.read, report.inserted, report.existed, report.skipped) == (28, 26, 1, 1)
    assert report.errors == [(26, "broken")]
    assert (report.new_entities, report.new_relations, report.batches) == (52, 1, 3)
    assert seen == [(10, 10), (20, 20), (28, 27)]
    sources = {t.subject: [s.source for s in memory.sources(t.id)] for t in memory.triples()}
    assert sources["s0"] == ["file"] and sources["x"] == ["own"]
    again = ingest.load(memory, items)
    assert (again.inserted, again.existed, again.new_entities) == (0, 27, 0)


def test_the_shared_file_of_repeated_triples(
    memory: pymemstore.Memory, shared_case: Callable[[str], Path]
) -> None:
    for inserted in (6, 0):
        with Source(shared_case("names/triples_unique.jsonl")) as source:
            report = ingest.load(memory, ingest.read(source)[1])
        assert (report.read, report.inserted, report.existed, report.skipped) == (
            8,
            inserted,
            8 - inserted,
            0,
        )
    assert set(memory.entities()) == {"Ana Lima", "Recife", "Olinda", "born in"}
    assert set(memory.relations()) == {"born in", "BORN IN", "part of"}


def test_names_of_every_kind_go_through(
    memory: pymemstore.Memory, write: Callable[..., Path], shared_case: Callable[[str], Path]
) -> None:
    rows = [json.loads(line) for line in shared_case("names/names.jsonl").read_text().splitlines()]
    path = write("\n".join(json.dumps([row["name"], "r", "o"]) for row in rows))
    with Source(path) as source:
        report = ingest.load(memory, ingest.read(source)[1])
    kept = {row["name"] for row in rows if row["policy"] in ("accept", "policy")}
    assert kept <= {triple.subject for triple in memory.triples()}
    refused = [n for n, row in enumerate(rows, 1) if row["policy"] == "reject"]
    assert len(refused) == 2 and set(refused) <= {line for line, _ in report.errors}
    assert report.inserted + report.skipped == len(rows)


def test_a_record_that_the_store_refuses_stands_alone(memory: pymemstore.Memory) -> None:
    long = "x" * (1 << 21)
    items: list[Item] = [*facts(0, 50), Fact(50, long, "r", "o"), *facts(51, 70), Alias(70, "a", "unknown")]
    items += [Alias(71, "first", "s0"), ExternalId(72, "Q1", "s1"), ExternalId(73, "Q2", "unknown")]
    report = ingest.load(memory, items)
    assert [line for line, _ in report.errors] == [50, 70, 73] and report.skipped == 3
    assert (report.inserted, report.aliases, report.external_ids) == (69, 1, 1)
    assert stored(memory) == {item[1:4] for item in [*facts(0, 50), *facts(51, 70)]}
    assert memory.named_by("first") == ["s0"] and memory.by_external_id("Q1") == "s1"


def test_an_alias_may_come_before_its_entity(memory: pymemstore.Memory) -> None:
    report = ingest.load(memory, [Alias(1, "first", "s0"), *facts(0, 1)])
    assert report.errors == [] and memory.aliases("s0") == ["first"]


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_below_one_is_refused(memory: pymemstore.Memory, batch: int) -> None:
    with pytest.raises(pymemstore.InvalidArgument, match="at least 1"):
        ingest.load(memory, [], batch=batch)


def test_the_readers_failure_is_raised_after_what_came_before_it(memory: pymemstore.Memory) -> None:
    def items() -> Iterator[Item]:
        yield from facts(0, 7)
        raise OSError("the cable was pulled")

    report = ingest.ImportReport()
    with pytest.raises(OSError, match="cable"):
        ingest.load(memory, items(), batch=5, report=report)
    assert report.inserted == report.read == len(memory) == 7


def test_a_failing_write_is_raised_and_not_tried_again(
    memory: pymemstore.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def full(self: object) -> None:
        calls.append(1)
        raise pymemstore.MapFull("full")

    report = ingest.ImportReport()
    ingest.load(memory, facts(0, 5))
    monkeypatch.setattr(type(memory), "transaction", full)
    with pytest.raises(pymemstore.MapFull):
        ingest.load(memory, facts(5, 20), batch=5, report=report)
    assert len(calls) == 1 and report.inserted == 0 and len(memory) == 5


def test_ctrl_c_between_batches(memory: pymemstore.Memory) -> None:
    def items() -> Iterator[Item]:
        yield from facts(0, 25)
        os.kill(os.getpid(), signal.SIGINT)
        yield from facts(25, 1_000)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        report = ingest.ImportReport()
        with pytest.raises(KeyboardInterrupt):
            ingest.load(memory, items(), batch=10, report=report)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.inserted == report.read == len(memory) == 20  # the 5 of the open batch are not there
    assert ingest.load(memory, facts(0, 1_000)).inserted == 980


def test_ctrl_c_inside_a_batch_waits_for_its_commit(
    memory: pymemstore.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loader._write

    def interrupted(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(*args)

    monkeypatch.setattr(loader, "_write", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        report = ingest.ImportReport()
        with pytest.raises(KeyboardInterrupt):
            ingest.load(memory, facts(0, 25), batch=10, report=report)
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.inserted == report.read == len(memory) == 10


# ---- exporters -----------------------------------------------------------------------------------

ODD = [
    'a "quoted" name',
    "tab\there",
    "new\nline",
    "back\\slash",
    "<a> .",
    "é漢😀",
    " padded ",
    "x/y?z#%20",
    "[b]",
]


@pytest.fixture
def odd(memory: pymemstore.Memory) -> pymemstore.Memory:
    memory.add_many([(name, other, name[::-1]) for name in ODD for other in ODD[:3]], source="first")
    memory.add(ODD[0], ODD[0], ODD[0][::-1], source="second")
    memory.add("no", "source", "at all")
    memory.alias("Odd", ODD[0])
    memory.alias("Odd", ODD[1])
    memory.alias("relation", ODD[0], relation=True)
    memory.set_external_id("Q1", ODD[0])
    memory.set_external_id("P1", ODD[0], relation=True)
    memory.add_entities(["without facts", "without anything"])
    memory.add_relations(["bare"])
    memory.alias("Alone", "without facts")
    memory.set_external_id("Q2", "without facts")
    memory.set_external_id("P2", "bare", relation=True)
    return memory


def test_json_lines_bring_everything_back(odd: pymemstore.Memory, tmp_path: Path) -> None:
    lines = ingest.export(odd, tmp_path / "out.jsonl", names=True)
    names = len(list(odd.entities())) + len(list(odd.relations()))
    assert lines == len(odd) + 1 + names + 4 + 4  # a second source, names, aliases, external ids
    with pymemstore.open(tmp_path / "copy.mem") as copy:
        with Source(tmp_path / "out.jsonl") as source:
            report = ingest.load(copy, ingest.read(source)[1], batch=7)
        assert report.errors == [] and stored(copy) == stored(odd)
        for mine, theirs in ((copy.entities, odd.entities), (copy.relations, odd.relations)):
            assert set(mine()) == set(theirs())
        assert copy.named_by("Alone") == ["without facts"] and copy.by_external_id("Q2") == "without facts"
        assert copy.by_external_id("P2", relation=True) == "bare"
        with pymemstore.open(tmp_path / "one.mem") as one, Source(tmp_path / "out.jsonl") as source:
            again = ingest.load(one, ingest.read(source)[1])
            for total in (again, report):
                assert (total.new_entities, total.new_relations) == (
                    one.stats().entities, one.stats().relations,
                )  # fmt: skip

        def sources(memory: pymemstore.Memory) -> dict[Any, list[str]]:
            return {t[:3]: sorted(s.source for s in memory.sources(t.id)) for t in memory.triples()}

        assert sources(copy) == sources(odd)
        assert sorted(copy.named_by("Odd")) == sorted(ODD[:2])
        assert copy.named_by("relation", relation=True) == [ODD[0]]
        assert (copy.by_external_id("Q1"), copy.by_external_id("P1", relation=True)) == (ODD[0], ODD[0])
    ingest.export(odd, tmp_path / "plain.jsonl")
    assert not any("alias" in line for line in (tmp_path / "plain.jsonl").read_text().splitlines())


def test_an_export_goes_on_when_others_edit(odd: pymemstore.Memory) -> None:
    everything = list(ingest.export_jsonl(odd, names=True))
    lines = ingest.export_jsonl(odd, names=True)
    taken = [next(lines)]
    gone = list(odd.triples())[5]
    odd.remove(*gone[:3])
    for line in lines:
        taken.append(line)
        if json.loads(line).keys() == {"entity"} and odd.by_external_id("Q2"):
            odd.forget("without facts")
            odd.rename("without anything", "renamed")
    lost = [line for line in everything if line not in taken]
    told = [json.loads(line) for line in lost]
    assert told[0] == dict(zip(("subject", "relation", "object"), gone[:3], strict=True)) | {
        "source": "first"
    }
    assert told[1:] == [
        {"entity": "without facts"},
        {"alias": "Alone", "entity": "without facts"},
        {"external_id": "Q2", "entity": "without facts"},
        {"entity": "without anything"},
    ]


def test_n_triples_follow_the_grammar_and_keep_every_name(odd: pymemstore.Memory, tmp_path: Path) -> None:
    ingest.export(odd, tmp_path / "out.nt", "ntriples", base="https://example.org/id#")
    content = (tmp_path / "out.nt").read_bytes()
    line = re.compile(rb"<https://example\.org/id#entity:([!-;=?-~]+?)> <https://example\.org/id#relation:"
                      rb"([!-;=?-~]+?)> <https://example\.org/id#entity:([!-;=?-~]+?)> \.")  # fmt: skip
    found = [line.fullmatch(text) for text in content.splitlines()]
    names = [tuple(unquote(part.decode()) for part in match.groups()) for match in found if match]
    assert len(names) == len(found) == len(odd) and set(names) == stored(odd)


@pytest.mark.parametrize("base", ["", "no scheme", "http://a b/", "x:<", "urn:é\n"])
def test_a_base_that_is_no_iri_is_refused(odd: pymemstore.Memory, tmp_path: Path, base: str) -> None:
    with pytest.raises(pymemstore.InvalidArgument, match="can't start an IRI"):
        ingest.export(odd, tmp_path / "out.nt", "ntriples", base=base)
    assert not (tmp_path / "out.nt").exists()


def test_an_export_that_fails_leaves_the_old_file(
    odd: pymemstore.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "folder" / "out.jsonl"
    place.parent.mkdir()
    place.write_text("old")

    def broken(memory: pymemstore.Memory, *, names: bool = False) -> Iterator[str]:
        yield "new"
        raise pymemstore.Closed("gone")

    monkeypatch.setattr(exporters, "export_jsonl", broken)
    with pytest.raises(pymemstore.Closed):
        ingest.export(odd, place)
    assert place.read_text() == "old" and list(place.parent.iterdir()) == [place]
    with pytest.raises(pymemstore.InvalidArgument, match="'csv' is not one of"):
        ingest.export(odd, place, "csv")
