"""Bulk import: formats, several inputs, the report, the phases that follow it, its progress."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pymemstore
from pymemstore import Memory, _core, ingest
from pymemstore.cli.app import app
from pymemstore.cli.common import ExitCode

CRASH = Path(__file__).resolve().parents[1] / "crash"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "s.mem") as opened:
        yield opened


def facts(memory: Memory) -> set[tuple[str, str, str]]:
    return {(t.subject, t.relation, t.object) for t in memory.triples()}


def lines(n: int, start: int = 0) -> str:
    return "".join(f"subject {i}\trelation {i % 7}\tobject {i % 501}\n" for i in range(start, start + n))


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_parquet_and_arrow(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.ipc
    import pyarrow.parquet

    rows = [(f"s{i}", f"r{i % 3}", f"o{i % 10}") for i in range(150_000)]
    rows[7], rows[9] = ("s7", None, "o7"), ("s9", "r0", "")  # type: ignore[assignment]
    table = pa.table(dict(zip(("subject", "relation", "object"), zip(*rows, strict=True), strict=True)))
    parquet, arrow = tmp_path / "facts.parquet", tmp_path / "facts.arrow"
    pyarrow.parquet.write_table(table, parquet)
    with pyarrow.ipc.new_file(str(arrow), table.schema) as writer:
        writer.write_table(table)
    for path in (parquet, arrow):
        with pymemstore.open(tmp_path / f"{path.suffix}.mem") as memory:
            report = ingest.bulk_import(memory, [path], "parquet", embed=False)
            assert (report.inserted, report.rejected) == (149_998, 2)
            assert [(line, why) for _, line, why in report.rejects] == [
                (8, "the column 'relation' holds no text"), (10, "the column 'object' holds no text"),
            ]  # fmt: skip
            assert facts(memory) == {r for r in rows if all(r)}
    renamed = tmp_path / "renamed.parquet"
    pyarrow.parquet.write_table(table.rename_columns(["s", "p", "o"]), renamed)
    ran = cli(
        "import",
        "parquet",
        renamed,
        "--into",
        tmp_path / "x.mem",
        "--columns",
        "s,p,o",
        "--no-embed",
        "--json",
    )
    assert ran.exit_code == ExitCode.SKIPPED and json.loads(ran.stdout)["inserted"] == 149_998
    assert "no column 'subject'" in cli("import", "parquet", renamed, "--into", tmp_path / "x.mem").stderr
    parquet.write_bytes(parquet.read_bytes()[:-50])
    assert "not a whole Parquet" in cli("import", "parquet", parquet, "--into", tmp_path / "x.mem").stderr


def test_several_files_and_standard_input(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.tsv").write_text(lines(1000, i * 900).rstrip("\n"))
    store = tmp_path / "s.mem"
    files = [tmp_path / f"{i}.tsv" for i in range(2)]
    ran = CliRunner().invoke(
        app, ["import", "tsv", *map(str, files), "-", "--into", str(store), "--no-embed", "--json"],
        input=(tmp_path / "2.tsv").read_bytes(),
    )  # fmt: skip
    report = json.loads(ran.stdout)
    assert ran.exit_code == 0, ran.output
    assert (report["read"], report["inserted"], report["duplicates"]) == (3000, 2800, 200)
    assert report["inputs"] == [*map(str, files), "-"] and report["counts"]["lines"] == 3000


def test_the_report_as_a_table_and_a_file(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    store, told, rejects = tmp_path / "s.mem", tmp_path / "report.json", tmp_path / "rejects.jsonl"
    ran = cli("import", "wikidata", shared_case("import/line_bad.json"), "--into", store, "--no-embed",
              "--report", told, "--rejects", rejects)  # fmt: skip
    assert ran.exit_code == ExitCode.SKIPPED
    assert (
        "read: items" in ran.stdout and "rejected lines" in ran.stdout and "complete: wikidata" in ran.stdout
    )
    assert ", line 6: not JSON" in ran.stderr
    report = json.loads(told.read_text())
    assert report["rejected"] == len(rejects.read_text().splitlines()) == 4
    assert report["rejects"][0]["line"] == 4 and report["status"] == "complete"
    incomplete = cli(
        "import", "wikidata", shared_case("import/line_noend.json"), "--into", store, "--no-embed"
    )
    assert incomplete.exit_code == ExitCode.ERROR and "Incomplete: " in incomplete.stderr
    lists = tmp_path / "ids.txt"
    lists.write_text("P17, P31\nP36")
    some = ["--property", f"@{lists}", "--no-embed", "--json"]
    ran = cli("import", "wikidata", shared_case("import/values.json"), "--into", tmp_path / "t.mem", *some)
    assert json.loads(ran.stdout)["inserted"] == 3
    assert cli("import", "tsv", told, "--into", store, "--memory", "lots").exit_code == ExitCode.ERROR


def test_restart_drops_what_was_staged(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(3000))

    def stop(p: ingest.BulkProgress) -> None:
        if p.phase == "sorting":
            raise KeyboardInterrupt

    with pymemstore.open(tmp_path / "s.mem") as memory:
        with pytest.raises(KeyboardInterrupt):
            ingest.bulk_import(memory, [path], "tsv", progress=stop, embed=False)
        report = ingest.bulk_import(memory, [path], "tsv", restart=True, embed=False)
        assert not report.resumed and report.discarded == 3000 and report.inserted == 3000


def test_phases_after_an_import(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("The Beatles\tformed in\tLiverpool\nJohn Lennon\tborn in\tLiverpool\n")
    with pymemstore.open(tmp_path / "s.mem") as memory:
        memory.add("Bern", "located in", "Switzerland")
        ingest.bulk_import(memory, [path], "tsv", embed=False)
        stats = memory.stats()
        assert (stats.unembedded_entities, stats.unembedded_relations, stats.unruled_entities) == (3, 2, 3)
        exact = memory.query("The Beatles", "formed in")
        assert exact.names == ["Liverpool"] and not exact.complete and exact.unembedded == 5
        assert memory.query("beatles", "formed in", tau_e=0.94).names == []
        assert memory.embed_missing() == 5
        half = memory.query("beatles", "formed in", tau_e=0.94)
        assert not half.complete and half.unembedded == 0
        memory.build_rules()
        answer = memory.query("beatles", "formed in", tau_e=0.94)
        assert answer.complete and answer.hits[0].match == "article" and memory.stats().unruled_entities == 0
        memory.build_rules()  # nothing to do
        assert memory.embed_missing() == 0 and memory.check().ok


def test_more_relations_than_ten_bits_hold(tmp_path: Path) -> None:
    # Wikidata has over 12,000 properties.
    wanted = {(f"s{i % 977}", f"P{i}", f"o{i % 1009}") for i in range(20_000)}
    path = tmp_path / "facts.tsv"
    path.write_text("".join("\t".join(fact) + "\n" for fact in wanted))
    with pymemstore.open(tmp_path / "s.mem") as memory:
        ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert facts(memory) == wanted and memory.stats().relations == 20_000 and memory.check().ok


def test_progress_tells_phases_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(100_000))
    told: list[tuple[str, int, int]] = []
    with pymemstore.open(tmp_path / "s.mem") as memory:
        ingest.bulk_import(memory, [path], "tsv", progress=lambda p: told.append((p.phase, p.done, p.total)))
    size = path.stat().st_size
    assert [(done, total) for phase, done, total in told if phase == "reading"][-1] == (size, size)
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    wanted = ["reading", "resolving names", "sorting", "by subject", "by object", "sync"]
    wanted += ["embedding", "rule keys"]
    assert [p for p in phases if p in wanted] == wanted


def test_feeding_from_any_buffer(memory: Memory) -> None:
    load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
    with pytest.raises(pymemstore.InvalidArgument, match="takes text"):
        load.add([("a", "b", "c")])
    for piece in (bytearray(b"a\tr"), memoryview(b"\tb\nc\tr\td\n")[:6], io.BytesIO(b"\td\n").getbuffer()):
        load.feed(piece)
    load.end_input()
    load.seal()
    assert facts(memory) == {("a", "r", "b"), ("c", "r", "d")}
    taken = _core.BulkLoad(memory._store, format="facts", options={}, identity="y")
    with pytest.raises(pymemstore.InvalidArgument, match="fact 1: the name of an entity is empty"):
        taken.add([("e", "r", "f"), ("", "r", "f")])
    with pytest.raises(pymemstore.InvalidArgument, match="fact 0 has 2 parts"):
        taken.add([("e", "r")])  # type: ignore[list-item]
    taken.discard()
    assert len(memory) == 2
