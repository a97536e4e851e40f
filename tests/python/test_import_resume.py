"""Imports that are interrupted: nothing is lost, given twice or told twice, wherever the signal comes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pymemstore
from pymemstore import Memory, _core, ingest

Row = tuple[Any, ...]
ROWS = 65_536  # that an import takes at once
TERMINAL = {"TERM": "xterm", "COLUMNS": "200", "LINES": "50"}


def facts(memory: Memory) -> set[Row]:
    return {(t.subject, t.relation, t.object) for t in memory.triples()}


def told(path: Path) -> list[int]:
    return [json.loads(line)["line"] for line in path.read_text().splitlines()]


def interrupted_by(monkeypatch: pytest.MonkeyPatch, method: str, calls: int, after: bool) -> None:
    """Ctrl-C in the given call of a method of the core's load: before it has done anything, or all of it."""
    real = getattr(_core.BulkLoad, method)
    count = 0

    def wrapped(load: _core.BulkLoad, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count != calls:
            return real(load, *arguments)
        if after:
            real(load, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(_core.BulkLoad, method, wrapped)


# ---- tables --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Row]]:
    """A Parquet file and an Arrow file of one batch with these rows, of which some hold no fact."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.ipc
    import pyarrow.parquet

    rows: list[Row] = [(f"s{i}", f"r{i % 3}", f"o{i % 10}") for i in range(3 * ROWS - 1000)]
    for i in (7, 9, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5):
        rows[i] = (f"s{i}", None, "o")
    columns = pa.table(dict(zip(("subject", "relation", "object"), zip(*rows, strict=True), strict=True)))
    folder = tmp_path_factory.mktemp("table")
    pyarrow.parquet.write_table(columns, folder / "facts.parquet")
    with pyarrow.ipc.new_file(str(folder / "facts.arrow"), columns.schema) as writer:
        writer.write_table(columns.combine_chunks(), max_chunksize=len(rows))
    return folder / "facts.parquet", folder / "facts.arrow", rows


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_table_goes_on_at_the_row(
    kind: int, call: int, after: bool, table: tuple[Path, Path, list[Row]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path, rows = table[kind], table[2]
    rejects = tmp_path / "rejects.jsonl"
    with pymemstore.open(tmp_path / "s.mem") as memory:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupted_by(patch, "add", call, after)
            ingest.bulk_import(memory, [path], "parquet", embed=False, rejects=rejects)
        assert len(memory) == 0
        report = ingest.bulk_import(memory, [path], "parquet", embed=False, rejects=rejects)
        wanted = {row for row in rows if all(row)}
        assert report.resumed and facts(memory) == wanted
        assert (report.read, report.duplicates) == (len(wanted), 0) and report.counts["lines"] == len(wanted)
    bad = [i for i, row in enumerate(rows, 1) if not all(row)]
    assert report.rejected == len(bad) and told(rejects) == bad


def test_refused_rows_of_an_earlier_file_stay_counted(
    table: tuple[Path, Path, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [i for i, row in enumerate(table[2], 1) if not all(row)]
    rejects = tmp_path / "rejects.jsonl"
    with pymemstore.open(tmp_path / "s.mem") as memory:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupted_by(patch, "add", 5, True)
            ingest.bulk_import(memory, table[:2], "parquet", embed=False, rejects=rejects)
        report = ingest.bulk_import(memory, table[:2], "parquet", embed=False, rejects=rejects)
        assert report.resumed and report.rejected == 2 * len(bad) and told(rejects) == bad + bad
        assert report.inserted == report.duplicates == len(table[2]) - len(bad)


def test_cells_that_are_no_names(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    limit = _core.MAX_NAME_BYTES
    wide = "é" * (limit // 2)
    subjects = ["a", wide, wide + "x", "b", ""]
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 2, 3, 5, 6)))
    objects = pa.Array.from_buffers(pa.string(), 5, [None, offsets, pa.py_buffer(b"xyz\xff\xfew")])
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(
        pa.table({"subject": subjects, "relation": ["r"] * 5, "object": objects}), path
    )
    with pymemstore.open(tmp_path / "s.mem") as memory:
        report = ingest.bulk_import(memory, [path], "parquet", embed=False)
        assert facts(memory) == {("a", "r", "x"), (wide, "r", "y")}
        assert [(line, why.split(" (")[0]) for _, line, why in report.rejects] == [
            (3, f"the text in the column 'subject' is over the limit of {limit:,} bytes"),
            (4, "the column 'object' holds no text"), (5, "the column 'subject' holds no text"),
        ]  # fmt: skip


def test_a_full_disk_is_not_taken_for_a_damaged_table(
    table: tuple[Path, Path, list[Row]], tmp_path: Path
) -> None:
    code = (
        "import resource, signal, sys, pymemstore; from pymemstore import ingest\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with pymemstore.open(sys.argv[1]) as m:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "    try: ingest.bulk_import(m, [sys.argv[2]], 'parquet', embed=False)\n"
        "    except OSError as e: print(e)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s.mem"), str(table[0])]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "File too large" in said and "damaged" not in said and "facts.parquet" not in said


# ---- rejects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_each_rejected_line_is_told_once(stop: type[BaseException], pieces: int, tmp_path: Path) -> None:
    path, rejects = tmp_path / "facts.tsv", tmp_path / "rejects.jsonl"
    path.write_text("".join(f"subject {i}\tr\to\n" if i % 1000 else "bad\n" for i in range(200_000)))
    rejects.write_text("of another import\n")
    seen = 0

    def progress(p: ingest.BulkProgress) -> None:
        nonlocal seen
        seen += 1
        if seen == pieces:
            raise stop  # RuntimeError: as a crash, without a checkpoint

    with pymemstore.open(tmp_path / "s.mem") as memory:
        with pytest.raises(stop):
            ingest.bulk_import(memory, [path], "tsv", embed=False, rejects=rejects, progress=progress)
        report = ingest.bulk_import(memory, [path], "tsv", embed=False, rejects=rejects)
        assert report.resumed and report.rejected == 200 and len(memory) == 199_800
    assert told(rejects) == list(range(1, 200_001, 1000))


def test_rejects_to_another_file_when_an_import_goes_on(tmp_path: Path) -> None:
    path, other = tmp_path / "facts.tsv", tmp_path / "other.jsonl"
    path.write_text("bad\n" + "s\tr\to\n")

    def stop(p: ingest.BulkProgress) -> None:
        if p.phase != "reading":
            raise KeyboardInterrupt

    other.write_text("kept\n")
    with pymemstore.open(tmp_path / "s.mem") as memory:
        with pytest.raises(KeyboardInterrupt):
            ingest.bulk_import(memory, [path], "tsv", rejects=tmp_path / "one.jsonl", progress=stop)
        ingest.bulk_import(memory, [path], "tsv", rejects=other)
        assert told(tmp_path / "one.jsonl") == [1] and other.read_text() == "kept\n"


# ---- incomplete input ----------------------------------------------------------------------------------


def cut_dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.json"
    path.write_text('[\n{"type": "item", "id": "Q1"},\n')
    return path


def test_incomplete_stays_so_when_the_end_of_the_input_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pymemstore.open(tmp_path / "s.mem") as memory:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupted_by(patch, "end_input", 1, True)
            ingest.bulk_import(memory, [cut_dump(tmp_path)], "wikidata", embed=False)
        report = ingest.bulk_import(memory, [cut_dump(tmp_path)], "wikidata", embed=False)
        assert report.resumed and report.status == "incomplete" and report.counts["items"] == 1


def test_incomplete_stays_so_when_the_load_was_sealed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "s.mem"
    real = _core.BulkLoad.seal

    def seal(load: _core.BulkLoad, *arguments: Any) -> Any:
        shutil.copytree(store / "load", tmp_path / "kept")
        return real(load, *arguments)

    with pymemstore.open(store) as memory:
        with monkeypatch.context() as patch:
            patch.setattr(_core.BulkLoad, "seal", seal)
            ingest.bulk_import(memory, [cut_dump(tmp_path)], "wikidata", embed=False)
        # As a crash between the switch and the removal of the staging leaves it
        shutil.copytree(tmp_path / "kept", store / "load")
        report = ingest.bulk_import(memory, [cut_dump(tmp_path)], "wikidata", embed=False)
        assert report.status == "incomplete" and "closing bracket" in report.incomplete[0]


# ---- the phases behind, and what a terminal shows ------------------------------------------------------


def test_interrupted_while_embedding(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join(f"subject {i}\trelation {i % 7}\tobject {i % 501}\n" for i in range(70_000)))

    def stop(p: ingest.BulkProgress) -> None:
        if p.phase == "embedding" and p.done:  # a batch is
            raise KeyboardInterrupt

    with pymemstore.open(tmp_path / "s.mem") as memory:
        report = ingest.BulkReport()
        with pytest.raises(KeyboardInterrupt):
            ingest.bulk_import(memory, [path], "tsv", progress=stop, report=report)
        assert report.status == "interrupted" and report.inserted == len(memory) == 70_000
        stats = memory.stats()
        waiting = stats.unembedded_entities + stats.unembedded_relations
        assert 0 < waiting < 70_508
        again = ingest.bulk_import(memory, [path], "tsv")
        assert (again.status, again.existed, again.inserted) == ("complete", 70_000, 0)
        assert again.embedded == waiting
        stats = memory.stats()
        assert stats.unembedded_entities == stats.unembedded_relations == stats.unruled_entities == 0


def test_a_terminal_shows_how_much_how_fast_and_how_long(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join(f"subject {i}\trelation {i % 7}\tobject {i % 501}\n" for i in range(200_000)))
    command = [sys.executable, "-m", "pymemstore.cli", "import", "tsv", str(path)]
    command += ["--into", str(tmp_path / "s.mem"), "--no-embed"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | TERMINAL
    ) as running:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # how Linux says that the other side is closed
            pass
        assert running.wait(60) == 0
    os.close(ours)
    text = shown.decode()
    assert "reading" in text and "200,000 lines" in text and "MB/s" in text and "left" in text
    assert "by subject" in text and "100%" in text


def test_the_columns_of_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    from pymemstore.cli import bulk

    now = [100.0]
    monkeypatch.setattr(bulk.time, "monotonic", lambda: now[0])
    pace: Callable[[ingest.BulkProgress], str] = bulk._Pace()
    report = ingest.BulkReport(counts={"lines": 5})
    assert pace(ingest.BulkProgress("reading", 4_000_000, 0, report)) == "5 lines, 4 MB, 0.0 MB/s"
    now[0] += 2
    report.counts["lines"] = 1234
    # From where this run began: what an earlier one read is not its pace.
    assert pace(ingest.BulkProgress("reading", 24_000_000, 0, report)) == "1,234 lines, 24 MB, 10.0 MB/s"
    assert pace(ingest.BulkProgress("embedding", 0, 900, report)) == "0, 0/s"
    now[0] += 2
    assert pace(ingest.BulkProgress("embedding", 900, 900, report)) == "900, 450/s"
