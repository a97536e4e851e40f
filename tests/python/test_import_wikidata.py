"""`pymemstore import wikidata` on each real excerpt and each fault case, with the counts explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import twin_wikidata as twin
from typer.testing import CliRunner

import pymemstore
from pymemstore import Memory, ingest
from pymemstore.cli.app import app

Import = Callable[..., tuple[Memory, ingest.BulkReport]]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Import]:
    """Imports files into a new store, and checks it."""
    opened = []

    def run(*files: Path, format: str = "wikidata", **arguments: Any) -> tuple[Memory, ingest.BulkReport]:
        memory = pymemstore.open(tmp_path / f"{len(opened)}.mem")
        opened.append(memory)
        arguments.setdefault("source", "wikidata")
        report = ingest.bulk_import(memory, files, format, embed=False, **arguments)
        assert report.read == report.inserted + report.existed + report.duplicates
        assert memory.check().ok
        return memory, report

    yield run
    for memory in opened:
        memory.close()


def facts(memory: Memory, **where: str) -> set[tuple[str, str, str]]:
    return {(t.subject, t.relation, t.object) for t in memory.triples(**where)}


# ---- real excerpts -------------------------------------------------------------------------------------

# What each file holds, counted by hand: entities by type, statements stored, what is left out.
EXCERPTS: dict[str, dict[str, int]] = {
    # 55 items and 46 properties of 2014, one a line; 149 statements, all normal, all with a value
    "mock-dump-for-long-testing.json": {"items": 55, "properties": 46, "facts": 149, "lines": 103},
    # the same of 2015
    "sample-dump-20150815.json.gz": {"items": 55, "properties": 46, "facts": 149, "lines": 103},
    # Q8's labels and P53's claims are [] for {}: read as empty, so P53's one statement is gone
    "mock-dump-with-bugs.json": {"items": 55, "properties": 46, "facts": 148, "lines": 103},
    # Q1, Q8, P16 and a lexeme
    "mock-dump-for-testing.json": {"items": 2, "properties": 1, "lexemes": 1, "facts": 5, "lines": 6},
    # a single item, pretty-printed: 13 statements
    "item.json": {"items": 1, "facts": 13, "aliases": 1},
    "property.json": {"properties": 1, "facts": 10},
    "lexeme.json": {"lexemes": 1, "facts": 0},
    "mediainfo.json": {"other": 1, "facts": 0},
    "wd_L3354.json": {"lexemes": 1, "facts": 0},
    # 29 best statements, one of them "no value"; P1855 names one thing twice
    "wd_P279.json": {"properties": 1, "facts": 28, "skipped: novalue": 1},
    # answers of the web API; 1 statement is deprecated
    "wbgetentities-Q1.json": {"items": 1, "facts": 15, "skipped: deprecated": 1, "aliases": 2},
    # 78 populations and the like of other years stand beside a preferred one
    "wbgetentities-Q32063953.json": {"items": 1, "facts": 95, "skipped: not best rank": 78, "redirects": 1},
    # the API says of Q6 that there is none: an item and a property are there
    "wbgetentities-Q6-Q42-P31.json": {
        "items": 1,
        "properties": 1,
        "facts": 65,
        "skipped: not best rank": 5,
        "skipped: missing entity": 1,
    },
}


@pytest.mark.parametrize("name", EXCERPTS)
def test_each_excerpt_stores_what_the_twin_says(
    name: str, load: Import, test_data: Callable[[str], Path], tmp_path: Path
) -> None:
    path = test_data(f"wikidata/{name}")
    memory, report = load(path)
    wanted = EXCERPTS[name]
    assert {key: report.counts.get(key, 0) for key in wanted} == wanted
    assert report.status == "complete" and report.rejected == 0
    plain = path
    if path.suffix == ".gz":
        import gzip

        plain = tmp_path / "plain.json"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert facts(memory) == twin.expected(twin.entities_of(plain))
    assert report.read == wanted["facts"]


@pytest.mark.parametrize("name", EXCERPTS)
def test_the_command_on_each_excerpt(name: str, test_data: Callable[[str], Path], tmp_path: Path) -> None:
    store = tmp_path / "s.mem"
    command = ["import", "wikidata", str(test_data(f"wikidata/{name}")), "--into", str(store), "--json"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["status"] == "complete" and report["read"] == EXCERPTS[name]["facts"]
    with pymemstore.open(store, create=False) as memory:
        stats = memory.stats()
        assert stats.unembedded_entities == stats.unembedded_relations == stats.unruled_entities == 0
        assert report["embedded"] == stats.entities + stats.relations
        for fact in list(memory.triples())[:20]:
            answer = memory.query(fact.subject, fact.relation)
            assert answer.complete and fact.object in answer.names


@pytest.mark.parametrize(
    "name", ["P10_truthy.ttl", "Q57160439_truthy.ttl", "dates_truthy.ttl", "corrupted.ttl"]
)
def test_turtle_is_not_taken_for_n_triples(name: str, load: Import, test_data: Callable[[str], Path]) -> None:
    # Nearly every line has prefixed names or no dot: rejected with its number, never a silent success.
    path = test_data(f"wikidata/{name}")
    _, report = load(path, format="ntriples")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert report.rejected >= len([line for line in lines if not line.startswith(("<", "#", "_"))]) > 0
    assert report.read == report.counts.get("facts", 0) <= len(lines) - report.rejected


@pytest.mark.parametrize("kind, labels", [("dates", 1), ("langstrings", 1), ("numbers", 15), ("strings", 12)])
def test_n_triples_of_many_literals(
    kind: str, labels: int, load: Import, test_data: Callable[[str], Path]
) -> None:
    _, report = load(test_data(f"wikidata/import-ntriples-{kind}.nt"), format="ntriples")
    assert report.counts["labels"] == report.counts["lines"] == labels and report.rejected == 0


# ---- fault cases: cases/import, ids of cases/log.md ----------------------------------------------------


def test_labels_I01_I02_I05(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/labels.json"))
    assert report.counts["items"] == 15 and report.rejected == 0
    objects = [t.object for t in memory.triples(subject="Hub")]
    assert len(objects) == len(set(objects)) == 13
    by_id = {f"Q9000{i:02}": memory.by_external_id(f"Q9000{i:02}") for i in range(1, 14)}
    assert by_id["Q900001"] == "Testville" and by_id["Q900003"] == "Keybase Demo"
    assert by_id["Q900004"] == "Colourtown" and by_id["Q900008"] == "English wins"
    for i in (2, 5, 6, 7, 9):
        assert by_id[f"Q90000{i}"] == f"Q90000{i}"
    assert len(by_id["Q900013"].encode()) == 750  # type: ignore[union-attr]
    assert not {"", "None", "null"} & set(memory.entities())


@pytest.mark.parametrize("ranks, count", [("best", 4), ("nondeprecated", 5), ("all", 7)])
def test_ranks_I04(ranks: str, count: int, load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, _ = load(shared_case("import/ranks.json"), options={"ranks": ranks})
    assert len(memory) == count
    if ranks == "best":
        assert {t.object for t in memory.triples(relation="population")} == {"2000", "2500"}
        assert {t.object for t in memory.triples(relation="country")} == {"Q900001", "Q900002"}


def test_snaks_I03(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/snaks.json"))
    assert facts(memory) == {("Snakland", "country", "Q900001")}
    assert report.counts["skipped: novalue"] == report.counts["skipped: somevalue"] == 2
    assert not {"novalue", "somevalue", "None"} & set(memory.entities())


def test_values_I06_I09(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/values.json"))
    found = {r: {t.object for t in memory.triples(relation=r)} for r in memory.relations()}
    assert found["height"] == {"1.75 Q11573", "-0.5 Q11573 [-0.6, -0.4]"}
    assert found["population"] == {"12", "100000000000000000000000.5", "0"}
    assert found["coordinate location"] == {"-8.05, -34.9 ±0.0001", "12.5, 45.25 on Q405"}
    assert found["title"] == {"O Exemplo (pt)", "O Exemplo (pt-br)", 'a>>b; "c"\\ \u202e (en)'}
    assert found["VIAF ID"] == {"000123", "LCCN-x"}
    assert found["Wikidata property"] == {"capital"} and memory.by_external_id("P36") == "capital"
    assert found["instance of"] == {"Q900001", "Valuemont"}
    assert found["P9999"] == {"L900-F1"} and report.counts["skipped: unknown datatype"] == 1
    assert found["country"] == {"Q900001"} and report.duplicates == 1


def test_times_I07(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, _ = load(shared_case("import/times.json"))
    assert {t.object for t in memory.triples()} == {
        "2019-11", "2019", "2019-11-05", "44-03-15 BCE (Julian)", "1 BCE", "2500000 BCE (10^5 years)",
        "49500-01-01", "1800 (century)", "13798000000 BCE (10^6 years)", "0",
    }  # fmt: skip


def test_properties_I06(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/properties.json"))
    assert report.rejected == 0 and len(list(memory.triples(subject="capital of region"))) == 2
    assert {t.relation for t in memory.triples(subject="User")} == {"P900501", "P900599"}
    french, _ = load(shared_case("import/properties.json"), options={"languages": "en,fr"})
    assert {t.relation for t in french.triples(subject="User")} == {"sans anglais", "P900599"}


def test_lexemes_redirects_and_others_I05_I11_I12(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/lexeme_redirect.json"))
    wanted = {"items": 2, "lexemes": 2, "redirects": 1, "other": 1}
    assert {k: report.counts[k] for k in wanted} == wanted and report.rejected == 0
    assert {t.object for t in memory.triples(subject="Points at old id")} == {"Merged Target", "Q900699"}
    # The old id leads to the target too.
    assert memory.by_external_id("Q900610") == memory.by_external_id("Q900611") == "Merged Target"


def test_shared_labels_I10(load: Import, shared_case: Callable[[str], Path], tmp_path: Path) -> None:
    path = shared_case("import/duplicate_labels.json")
    memory, _ = load(path)
    names = {f"Q90070{i}": memory.by_external_id(f"Q90070{i}") for i in range(4)}
    assert names == {
        "Q900700": "Springton", "Q900701": "Springton (Q900701)", "Q900702": "springton",
        "Q900703": "Q900701 (Q900703)",
    }  # fmt: skip
    assert {t.object for t in memory.triples("Springton", "country")} == {"Q900001"}
    assert {t.object for t in memory.triples("Springton (Q900701)", "country")} == {"Q900002"}
    # The same names in another order of the file
    first, *lines, last = path.read_text(encoding="utf-8").splitlines()
    shuffled = tmp_path / "shuffled.json"
    lines = [line.rstrip(",") + "," for line in reversed(lines)]
    shuffled.write_text("\n".join([first, *lines, last]), encoding="utf-8")
    again, _ = load(shuffled)
    assert {key: again.by_external_id(key) for key in names} == names
    assert facts(again) == facts(memory)


def test_forward_references(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, _ = load(shared_case("import/forward_reference.json"))
    assert facts(memory) == {("Early", "country", "Late"), ("Early", "late relation", "Late")}
    assert not {"Q900801", "P900810"} & (set(memory.entities()) | set(memory.relations()))


@pytest.mark.parametrize("name", ["crlf", "bom", "blank", "oneline"])
def test_line_ends_I18(name: str, load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case(f"import/line_{name}.json"))
    assert report.counts["items"] == len(memory) == 5 and report.rejected == 0
    assert not any(n.endswith("\r") for n in (*memory.entities(), *memory.relations()))


def test_no_closing_bracket(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/line_noend.json"))
    assert report.status == "incomplete" and len(memory) == 5
    assert "incomplete dump" in report.incomplete[0]


def test_an_empty_dump_and_an_empty_file(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/line_empty.json"))
    assert report.status == "complete" and len(memory) == report.counts.get("items", 0) == 0
    with pytest.raises(pymemstore.InvalidArgument, match="is empty"):
        load(shared_case("import/zero_bytes.json"))


def test_faulty_lines_I16(load: Import, shared_case: Callable[[str], Path], tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    memory, report = load(shared_case("import/line_bad.json"), rejects=rejects)
    assert [line for _, line, _ in report.rejects] == [4, 6, 8, 9] and report.rejected == 4
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [4, 6, 8, 9]
    assert {t.subject for t in memory.triples()} == {"Place 0", "Place 2", "Place 4", "Place 5"}
    assert memory.by_external_id("Q2") == "Q2" and memory.by_external_id("Q1") is None


# ---- N-Triples -----------------------------------------------------------------------------------------


def test_truthy_line_by_line_I16_I17_I23(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/truthy.nt"), format="ntriples")
    assert [line for _, line, _ in report.rejects] == [28, 29, 30, 31, 32, 33, 34, 35, 36, 37]
    # 6 labels are the 5 items' and the relation's; one is German, which the default chain leaves out.
    wanted = {"labels": 6, "aliases": 1, "redirects": 1, "lines": 38}
    wanted |= {
        f"skipped: {w}": 1 for w in ("blank node", "novalue", "somevalue", "label in another language")
    }
    assert {k: report.counts.get(k, 0) for k in wanted} == wanted
    cafe, country = "Café \U0001f600", 'Tab\there "quoted" back\\slash \\n'
    assert facts(memory) == {
        (cafe, "P17", country), (cafe, "P17", "Q950008"), (cafe, "capital", "line\nbreak\rcr"),
        (cafe, "P31", "Q950003"), (cafe, "P1476", 'a >> b; c . d <x> " . (pt-br)'), (cafe, "P1082", "12"),
        (cafe, "P214", "000123"), (cafe, "P585", "-0043-03-15"), (cafe, "P585", "-13798000000-01-01"),
        (cafe, "P625", "12.5, 45.25 on Q405"), ("Q950006", "P17", country), ("Q950013", "P17", country),
        ("http://www.wikidata.org/entity/Q950007?x=%C3%A9&y=é", "P17", country),
    }  # fmt: skip
    assert memory.aliases(cafe) == ["Old Name"] and memory.by_external_id("Q950004") == "Default Name"


def test_crlf_and_seams_of_n_triples_I18_I19(load: Import, shared_case: Callable[[str], Path]) -> None:
    memory, report = load(shared_case("import/truthy_crlf.nt"), format="ntriples")
    assert len(memory) == 3 and report.counts["labels"] == 2
    assert not any("\r" in name.removesuffix("cr") for name in memory.relations())
    both = [shared_case(f"import/seam_{x}.nt") for x in "ab"]
    memory, report = load(*both, format="ntriples")
    assert len(memory) == 2 and report.counts["labels"] == 1 and report.rejected == 0
    assert any(t.object == "x (de)" for t in memory.triples())


def test_n_triples_of_any_vocabulary(load: Import, tmp_path: Path) -> None:
    path = tmp_path / "x.nt"
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    path.write_text(
        f'<http://e/1> {label} "One"@en .\n<http://e/1> <http://r/likes> <http://e/2> .\n'
        '<http://e/1> <http://r/age> "7" .\n'
    )
    memory, report = load(path, format="ntriples", options={"vocabulary": "any"}, source=None)
    assert facts(memory) == {("One", "http://r/likes", "http://e/2"), ("One", "http://r/age", "7")}
    assert memory.by_external_id("http://e/1") == "One" and report.counts["labels"] == 1


# ---- policy --------------------------------------------------------------------------------------------


def test_filters_and_switches(load: Import, test_data: Callable[[str], Path]) -> None:
    path = test_data("wikidata/wbgetentities-Q6-Q42-P31.json")
    memory, report = load(path, options={"properties": "P31,P21", "items": "Q42", "aliases": "0"})
    assert {t.relation for t in memory.triples()} <= {"P21", "instance of"} and report.counts["items"] == 1
    assert report.counts["skipped: property filter"] > 0 and report.counts["skipped: item filter"] == 1
    assert report.aliases == 0
    everything, _ = load(path)
    fewer, report = load(path, options={"external_ids": "0", "skip_datatypes": "commonsMedia,url"})
    left_out = sum(n for name, n in report.counts.items() if name in (
        "skipped: external ids", "skipped: datatype commonsMedia", "skipped: datatype url"))  # fmt: skip
    assert len(fewer) < len(everything) and report.read + left_out >= len(everything)
    with pytest.raises(pymemstore.InvalidArgument, match="no option 'nonsense'"):
        load(path, options={"nonsense": "1"})
    with pytest.raises(pymemstore.InvalidArgument, match="ranks"):
        load(path, options={"ranks": "worst"})


def test_time_qualifiers(load: Import, test_data: Callable[[str], Path]) -> None:
    path = test_data("wikidata/wbgetentities-Q6-Q42-P31.json")
    plain, _ = load(path)
    memory, report = load(path, options={"qualifiers": "time"})
    extra = facts(memory) - facts(plain)
    assert facts(plain) < facts(memory) and report.counts["qualifier facts"] == len(extra) > 0
    statements = {s for s, r, _ in extra if r == "statement of"}
    assert {s for s, _, _ in extra} == statements
    for name in statements:
        told = {t.relation: t.object for t in memory.triples(subject=name)}
        assert set(told) & {"P580", "P582", "P585"}
        # The statement's own fact is there, too.
        other = next(r for r in told if r not in ("statement of", "P580", "P582", "P585"))
        assert memory.contains(told["statement of"], other, told[other])


def item(qid: str, label: str, claims: dict[str, list[str]], aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    def statement(prop: str, target: str) -> dict[str, Any]:
        value = {"entity-type": "item", "id": target}
        return {
            "mainsnak": {
                "snaktype": "value", "property": prop, "datatype": "wikibase-item",
                "datavalue": {"value": value, "type": "wikibase-entityid"},
            },
            "rank": "normal",
        }  # fmt: skip

    return {
        "type": "item", "id": qid, "labels": {"en": {"language": "en", "value": label}},
        "aliases": {"en": [{"language": "en", "value": a} for a in aliases]},
        "claims": {p: [statement(p, t) for t in targets] for p, targets in claims.items()},
    }  # fmt: skip


def dump(path: Path, *items: dict[str, Any]) -> Path:
    path.write_text("[\n" + ",\n".join(json.dumps(i) for i in items) + "\n]\n", encoding="utf-8")
    return path


def test_a_newer_dump_renames_adds_and_withdraws(tmp_path: Path) -> None:
    old = dump(
        tmp_path / "old.json",
        item("Q1", "Constantinople", {"P17": ["Q2"], "P31": ["Q3"]}, ("Byzantium",)),
        item("Q2", "Ottoman Empire", {}), item("Q3", "city", {}), item("Q4", "Ankara", {"P31": ["Q3"]}),
    )  # fmt: skip
    new = dump(
        tmp_path / "new.json",
        item("Q1", "Istanbul", {"P17": ["Q43"], "P31": ["Q3"]}, ("Byzantium", "Stamboul")),
        item("Q43", "Turkey", {}), item("Q3", "city", {}),
    )  # fmt: skip
    with pymemstore.open(tmp_path / "s.mem") as memory:
        first = ingest.bulk_import(memory, [old], "wikidata", source="wikidata")
        assert first.inserted == 3 and first.embedded > 0
        memory.add("Constantinople", "has nickname", "Queen of Cities", source="me")
        kept = next(memory.triples("Constantinople", "P31")).id
        report = ingest.bulk_import(memory, [new], "wikidata", source="wikidata", update=True)
        assert (report.inserted, report.existed, report.withdrawn, report.renamed) == (1, 1, 1, 1)
        assert facts(memory) == {
            ("Istanbul", "P17", "Turkey"), ("Istanbul", "P31", "city"), ("Ankara", "P31", "city"),
            ("Istanbul", "has nickname", "Queen of Cities"),
        }  # fmt: skip
        assert next(memory.triples("Istanbul", "P31")).id == kept  # the same fact, the same id
        assert memory.aliases("Istanbul") == ["Byzantium", "Stamboul"]
        assert memory.by_external_id("Q1") == "Istanbul"
        assert [c.op for c in memory.changes(4)] == ["rename", "remove", "add"]
        assert memory.vector("Istanbul") is not None and memory.check().ok
        # A name that another entity took in the meantime is not stolen.
        taken = dump(tmp_path / "taken.json", item("Q4", "Istanbul", {"P31": ["Q3"]}))
        ingest.bulk_import(memory, [taken], "wikidata", source="wikidata", update=True)
        assert memory.by_external_id("Q4") == "Istanbul (Q4)" and memory.by_external_id("Q1") == "Istanbul"
        assert memory.check().ok
    with (
        pymemstore.open(tmp_path / "s.mem") as memory,
        pytest.raises(pymemstore.InvalidArgument, match="source"),
    ):
        ingest.bulk_import(memory, [new], "wikidata", update=True)


def test_importing_again_changes_nothing(tmp_path: Path, test_data: Callable[[str], Path]) -> None:
    path = test_data("wikidata/mock-dump-for-long-testing.json")
    with pymemstore.open(tmp_path / "s.mem") as memory:
        first = ingest.bulk_import(memory, [path], "wikidata", embed=False)
        before = list(memory.triples()), list(memory.entities())
        again = ingest.bulk_import(memory, [path], "wikidata", embed=False)
        assert (first.inserted, again.inserted, again.existed) == (149, 0, 149)
        assert (again.new_entities, again.new_relations, again.external_ids) == (0, 0, 0)
        assert (list(memory.triples()), list(memory.entities())) == before


def test_a_source_counts_for_what_the_import_added(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a\tr\tb\na\tr\tc\n")
    with pymemstore.open(tmp_path / "s.mem") as memory:
        memory.add("a", "r", "b", source="by hand")
        ingest.bulk_import(memory, [path], "tsv", source="x.tsv")
        told = {t.object: [s.source for s in memory.sources(t.id)] for t in memory.triples()}
        assert told == {"b": ["by hand"], "c": ["x.tsv"]}
        memory.compact()
        assert [s.source for s in memory.sources(2)] == ["x.tsv"]
        assert [s.source for s in memory.sources(1)] == ["by hand"]
