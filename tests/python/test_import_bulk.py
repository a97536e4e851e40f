"""Bulk import: archives, resuming, interruption, bad input, bounded memory, two imports at once."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
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


# ---- archives ------------------------------------------------------------------------------------------

SIXTY = [
    "ok.json.gz", "ok.json.bz2", "multi.json.bz2", "multi.json.gz", "multi_midline.json.bz2",
    "garbage.json.gz", "wrongname.json.bz2", "plain_named.json.gz", "sixty.json",
]  # fmt: skip


@pytest.mark.parametrize("name", SIXTY)
def test_sixty_items_I13_I14_I20_I22(name: str, memory: Memory, shared_case: Callable[[str], Path]) -> None:
    report = ingest.bulk_import(memory, [shared_case(f"import/{name}")], "wikidata", embed=False)
    assert (report.status, report.counts["items"], len(memory), report.rejected) == ("complete", 60, 60, 0)


@pytest.mark.parametrize("kind", ["gz", "bz2"])
def test_a_cut_archive_I14(kind: str, tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    store = tmp_path / "s.mem"
    cut = shared_case(f"import/cut.json.{kind}")
    ran = cli("import", "wikidata", cut, "--into", store, "--no-embed", "--json")
    report = json.loads(ran.stdout)
    assert ran.exit_code == ExitCode.ERROR and report["status"] == "failed"
    assert "truncated" in report["error"]["message"] and "decompressed bytes" in report["error"]["message"]
    assert report["read"] == 0 and "staged" in report
    with pymemstore.open(store, create=False) as memory:
        assert len(memory) == memory.stats().entities == 0 and memory.check().ok
    whole = cli(
        "import", "wikidata", shared_case(f"import/ok.json.{kind}"), "--into", store, "--no-embed", "--json"
    )
    assert whole.exit_code == 0 and json.loads(whole.stdout)["counts"]["items"] == 60
    with pymemstore.open(store, create=False) as memory:
        assert len(memory) == 60 and not (store / "load").exists()


def compressed(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2
        compress = zstandard.ZstdCompressor().compress
        return bytes(compress(data[:half]) + compress(data[half:]))  # two frames
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_every_compression_whole_cut_and_damaged(kind: str, tmp_path: Path) -> None:
    text = lines(40_000).encode()
    data = compressed(kind, text)
    path = tmp_path / "facts"
    path.write_bytes(data)
    with pymemstore.open(tmp_path / "s.mem") as memory:
        ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert len(memory) == 40_000
        for bad in (
            data[: len(data) * 2 // 3],
            data[: len(data) // 2] + b"\0" * 40 + data[len(data) // 2 + 40 :],
        ):
            path.write_bytes(bad)
            with pytest.raises(pymemstore.IOError, match=r"truncated or damaged.*nothing was stored"):
                ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert len(memory) == 40_000 and memory.check().ok


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no tool zstd")
def test_a_tool_decompresses_where_the_package_is_missing(tmp_path: Path, monkeypatch: Any) -> None:
    data = compressed("zst", lines(5000).encode())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "facts"
    path.write_bytes(data)
    with pymemstore.open(tmp_path / "s.mem") as memory:
        ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert len(memory) == 5000
        path.write_bytes(data[:-20])
        with pytest.raises(pymemstore.IOError, match="truncated or damaged"):
            ingest.bulk_import(memory, [path], "tsv", embed=False)


def test_a_line_of_megabytes_I21(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    code = (
        "import sys, pymemstore; from pymemstore import ingest\n"
        "with pymemstore.open(sys.argv[1]) as m:\n"
        "    r = ingest.bulk_import(m, [sys.argv[2]], 'wikidata', embed=False)\n"
        "    peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
        "    print(r.counts['items'], len(m), int(peak) * 1024)\n"
    )
    command = [
        sys.executable,
        "-c",
        code,
        str(tmp_path / "s.mem"),
        str(shared_case("import/bigline.json.gz")),
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    items, triples, peak = map(int, out.split())
    assert (items, triples) == (3, 12_001) and peak < 300 << 20


def test_memory_stays_bounded_and_spills(tmp_path: Path) -> None:
    # 64 MiB, the least, are far below the 32 bytes a triple that sorting in memory would take here.
    path = tmp_path / "facts.tsv"
    with path.open("w") as file:
        for i in range(3_000_000):
            file.write(f"s{i * 7919 % 1_000_003}\tr{i % 11}\to{i % 997}\n")
    code = (
        "import sys, threading, time, pymemstore; from pymemstore import ingest\n"
        "peak = 0\n"
        "def watch():\n"
        "    global peak\n"
        "    while True:\n"
        "        s = open('/proc/self/status').read()\n"
        "        peak = max(peak, int(s.split('RssAnon:')[1].split()[0]) * 1024)\n"
        "        time.sleep(0.02)\n"
        "with pymemstore.open(sys.argv[1]) as m:\n"
        "    time.sleep(0.1)\n"
        "    threading.Thread(target=watch, daemon=True).start(); time.sleep(0.1); before = peak\n"
        "    ingest.bulk_import(m, [sys.argv[2]], 'tsv', embed=False, memory_limit=1)\n"
        "    print(len(m), peak - before)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.mem"), str(path)],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    triples, grown = map(int, out.split())
    with pymemstore.open(tmp_path / "s.mem", create=False) as memory:
        assert len(memory) == triples and memory.contains("s0", "r0", "o0")
    wanted = {(i * 7919 % 1_000_003, i % 11, i % 997) for i in range(3_000_000)}
    assert triples == len(wanted)
    assert grown < 160 << 20  # the limit, and what reading ahead and the transactions of the build take


# ---- resuming ------------------------------------------------------------------------------------------


def test_interrupted_after_any_line_I20(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    text = shared_case("import/sixty.json").read_bytes()
    with pymemstore.open(tmp_path / "clean.mem") as memory:
        load = _core.BulkLoad(memory._store, format="wikidata", options={}, identity="x")
        load.feed(text)
        load.end_input()
        load.seal()
        clean = facts(memory), memory._store.names(False, 0, 1000)
    rows = text.splitlines(keepends=True)
    with pymemstore.open(tmp_path / "s.mem") as memory:
        at = 0
        for stop in range(1, len(rows), 3):
            load = _core.BulkLoad(memory._store, format="wikidata", options={}, identity="x")
            assert load.consumed == at and load.resumed == (stop > 1)
            data = text[load.consumed :]
            size = sum(map(len, rows[:stop])) - at + 5  # into the next line
            load.feed(data[:size])
            load.checkpoint("")
            at = load.consumed
            assert at == sum(map(len, rows[:stop]))
            load.feed(data[size : size + 2000])  # lost
            load.close()
        load = _core.BulkLoad(memory._store, format="wikidata", options={}, identity="x")
        load.feed(text[load.consumed :])
        assert load.end_input() == "" and load.counts()["items"] == 60
        load.seal()
        assert (facts(memory), memory._store.names(False, 0, 1000)) == clean and len(memory) == 60


def test_a_load_that_was_sealed_is_not_sealed_twice(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "s.mem") as memory:
        load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        load.feed(lines(100).encode())
        load.end_input()
        load.checkpoint("")
        shutil.copytree(tmp_path / "s.mem" / "load", tmp_path / "kept")
        sealed = load.seal()
        # As a crash between the switch and the removal of the staging leaves it
        shutil.copytree(tmp_path / "kept", tmp_path / "s.mem" / "load")
        again = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        assert again.sealed and again.seal() == sealed
        assert not (tmp_path / "s.mem" / "load").exists() and memory.stats().seq == 100


def test_another_input_starts_afresh(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "s.mem") as memory:
        load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        load.feed(lines(100).encode())
        load.checkpoint("half")
        load.close()
        again = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        assert again.resumed and again.note == "half" and again.lines == 100
        again.close()
        other = _core.BulkLoad(memory._store, format="tsv", options={}, identity="y")
        assert not other.resumed and other.discarded == 100 and other.consumed == 0
        with pytest.raises(pymemstore.Closed):
            again.feed(b"x")


def test_a_damaged_state_file_starts_afresh(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "s.mem") as memory:
        load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        load.feed(lines(100).encode())
        load.checkpoint("")
        load.close()
        state = tmp_path / "s.mem" / "load" / "state"
        data = bytearray(state.read_bytes())
        data[20] ^= 1
        state.write_bytes(data)
        assert not _core.BulkLoad(memory._store, format="tsv", options={}, identity="x").resumed


def test_killed_at_random_points_the_resumed_store_is_the_clean_one(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("kill_import", CRASH / "kill_import.py")
    assert spec is not None and spec.loader is not None
    kill_import = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill_import)
    histogram = kill_import.rounds(8, 20_000, tmp_path, seed=int(os.environ.get("PYMEMSTORE_SEED", "1")))
    assert histogram.total() >= 8 and len(histogram) >= 3


def test_ctrl_c_and_sigterm(tmp_path: Path) -> None:
    for number, stop in enumerate((signal.SIGINT, signal.SIGTERM)):
        store = tmp_path / f"{number}.mem"
        command = [
            sys.executable,
            "-m",
            "pymemstore.cli",
            "import",
            "tsv",
            "-",
            "--into",
            str(store),
            "--json",
        ]
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        assert running.stdin is not None
        text = lines(20_000).encode()
        running.stdin.write(text)
        running.stdin.flush()  # and left open: the import waits for more
        deadline = time.monotonic() + 60
        while not (store / "load" / "state").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        running.send_signal(stop)
        out, err = running.communicate(timeout=60)
        assert running.returncode == ExitCode.INTERRUPTED, (out, err)
        report = json.loads(out)
        assert (
            report["status"] == "interrupted"
            and b"the same command goes on" in err
            and b"Traceback" not in err
        )
        done = subprocess.run(command, input=text, capture_output=True, timeout=120, check=True)
        report = json.loads(done.stdout)
        assert report["resumed"] and report["inserted"] == 20_000 and report["counts"]["lines"] == 20_000


def test_interrupted_while_sealing(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(5000))
    with pymemstore.open(tmp_path / "s.mem") as memory:
        memory.add("before", "r", "o")
        seen: list[str] = []

        def stop_at(phase: str) -> Callable[[ingest.BulkProgress], None]:
            def told(p: ingest.BulkProgress) -> None:
                seen.append(p.phase)
                if p.phase == phase:
                    raise KeyboardInterrupt

            return told

        for phase in ("resolving names", "by subject", "by object", "sync"):
            report = ingest.BulkReport()
            with pytest.raises(KeyboardInterrupt):
                ingest.bulk_import(memory, [path], "tsv", progress=stop_at(phase), report=report, embed=False)
            assert report.status == "interrupted" and seen[-1] == phase
            assert len(memory) == 1 and memory.stats().generation == 1
        report = ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert report.resumed and report.inserted == 5000 and len(memory) == 5001 and memory.check().ok


# ---- bad input -----------------------------------------------------------------------------------------


def test_tsv_lines_that_are_none(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_bytes(
        b"\xef\xbb\xbfa\tr\tb\r\n\n   \nonly two\tcolumns\nfour\tr\to\tsource\n\tr\tempty\nbad\tr\t\xff\xfe\n"
        b"a\tr\tb\n" + b"x" * (1 << 20) + b"y\tr\tlong\nlast\tr\tline without end"
    )
    report = ingest.bulk_import(memory, [path], "tsv", embed=False)
    assert facts(memory) == {("a", "r", "b"), ("last", "r", "line without end")}
    assert [line for _, line, _ in report.rejects] == [4, 5, 6, 7, 9] and report.rejected == 5
    why = [why for _, _, why in report.rejects]
    assert "2 columns" in why[0] and "one source" in why[1] and "empty" in why[2]
    assert "not UTF-8: at byte 7" in why[3] and "limit" in why[4]
    assert (report.read, report.inserted, report.duplicates) == (3, 2, 1)


def test_wrong_arguments(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(1))
    for arguments, message in (
        ({"files": [path], "format": "xml"}, "not one of"),
        ({"files": [], "format": "tsv"}, "no file"),
        ({"files": ["-", "-"], "format": "tsv"}, "once only"),
        ({"files": [path], "format": "tsv", "options": {"x": "1"}}, "no option"),
        ({"files": [path], "format": "tsv", "update": True}, "needs a source"),
    ):
        with pytest.raises(pymemstore.InvalidArgument, match=message):
            ingest.bulk_import(memory, **arguments)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        ingest.bulk_import(memory, [tmp_path / "none"], "tsv")
    assert len(memory) == 0 and not (tmp_path / "s.mem" / "load").exists()
    with pymemstore.open(tmp_path / "s.mem", read_only=True) as reader, pytest.raises(pymemstore.ReadOnly):
        ingest.bulk_import(reader, [path], "tsv")


def test_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(60_000))
    code = (
        "import resource, signal, sys, pymemstore; from pymemstore import ingest\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with pymemstore.open(sys.argv[1]) as m:\n"
        "    m.add('before', 'r', 'o')\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))\n"
        "    try: ingest.bulk_import(m, [sys.argv[2]], 'tsv', embed=False)\n"
        "    except OSError as e: print(type(e).__name__, e.errno)\n"
        "    assert len(m) == 1 and m.check().ok\n"
    )
    for limit in (100_000, 400_000, 900_000, 1_200_000):
        store = tmp_path / f"{limit}.mem"
        command = [sys.executable, "-c", code, str(store), str(path), str(limit)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split()[0] in ("IOError", "OSError"), (limit, ran.stdout)
        # With room it goes on.
        with pymemstore.open(store, create=False) as memory:
            report = ingest.bulk_import(memory, [path], "tsv", embed=False)
            assert report.inserted == 60_000 and len(memory) == 60_001 and memory.check().ok


def test_two_imports_at_once(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(10))
    with pymemstore.open(tmp_path / "s.mem", timeout=0.2) as memory:
        load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="x")
        load.feed(lines(100).encode())
        with pytest.raises(
            pymemstore.Locked, match=f"imported into by another thread of this process .{os.getpid()}"
        ):
            ingest.bulk_import(memory, [path], "tsv", embed=False)
        code = (
            "import sys, pymemstore; from pymemstore import ingest\n"
            "with pymemstore.open(sys.argv[1], timeout=0.2) as m:\n"
            "    m.add('writers', 'go', 'on')\n"
            "    try: ingest.bulk_import(m, [sys.argv[2]], 'tsv')\n"
            "    except pymemstore.Locked as e: print(e)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "s.mem"), str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        assert f"by process {os.getpid()}" in said
        load.end_input()
        load.seal()
        assert len(memory) == 101
        assert ingest.bulk_import(memory, [path], "tsv", embed=False).existed == 10


def test_readers_and_writers_during_an_import(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(lines(200_000))
    with pymemstore.open(tmp_path / "s.mem") as memory:
        memory.add("before", "r", "o")
        stop, seen, failures = threading.Event(), set(), []

        def read() -> None:
            while not stop.is_set():
                try:
                    seen.add(len(memory))
                    assert memory.contains("before", "r", "o")
                except Exception as error:
                    failures.append(error)
                    return

        def write() -> None:
            for i in range(1000):
                if stop.is_set():
                    return
                memory.add(f"written {i}", "meanwhile", "o")

        threads = [threading.Thread(target=read), threading.Thread(target=write)]
        for t in threads:
            t.start()
        report = ingest.bulk_import(memory, [path], "tsv", embed=False)
        stop.set()
        for t in threads:
            t.join()
        assert not failures and report.inserted == 200_000
        # Never a part of the import
        assert all(n < 2000 or n >= 200_001 for n in seen)
        assert memory.check().ok and len(memory) == 200_001 + len(list(memory.triples(relation="meanwhile")))
