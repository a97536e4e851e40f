"""Merging base and delta while threads and other processes read and write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pymemstore

WRITER = """
import random, sys, time, pymemstore
store, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rng = random.Random(number)
mine = set()
with pymemstore.open(store, sync="relaxed") as m:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if mine and rng.random() < 0.3:
            fact = rng.choice(sorted(mine))
            assert m.remove(*fact)
            mine.discard(fact)
        else:
            batch = [(f"s{number} {rng.randrange(200)}", f"r{rng.randrange(5)}", f"o{rng.randrange(300)}")
                     for _ in range(rng.randrange(1, 30))]
            m.add_many(batch)
            mine.update(batch)
        if rng.random() < 0.1:
            name = f"s{number} {rng.randrange(200)}"
            if any(s == name for s, _, _ in mine):
                m.alias(f"alias {rng.randrange(50)}", name)
with open(f"{store}.{number}", "w") as file:
    for fact in sorted(mine):
        print(*fact, sep="\\t", file=file)
"""


def test_other_processes_write_while_one_merges(tmp_path: Path) -> None:
    store = tmp_path / "s.mem"
    with pymemstore.open(store) as memory:
        memory.add_many((f"base {i}", "r0", f"o{i % 97}") for i in range(3000))
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(store), str(n), "4"]) for n in range(2)
        ]
        merges = 0
        while any(w.poll() is None for w in writers):
            memory.compact()
            merges += 1
            assert memory.contains("base 5", "r0", "o5")
        wanted = {(f"base {i}", "r0", f"o{i % 97}") for i in range(3000)}
        for number, writer in enumerate(writers):
            assert writer.wait() == 0
            rows = Path(f"{store}.{number}").read_text().splitlines()
            wanted |= {tuple(line.split("\t")) for line in rows}  # type: ignore[misc]
        assert merges >= 3 and memory.stats().generation == merges + 1
        report = memory.check()
        assert report.ok, report.problems
        assert {(t.subject, t.relation, t.object) for t in memory.triples()} == wanted
    assert [p.name for p in store.glob("gen-*")] == [f"gen-{merges + 1:06}"]


def test_a_killed_merge_leaves_a_store_that_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "s.mem"
    with pymemstore.open(store) as memory:
        memory.add_many((f"s{i}", "r", f"o{i % 97}") for i in range(6_000))
    code = (
        "import sys, pymemstore\n"
        "with pymemstore.open(sys.argv[1]) as m:\n"
        "    print('go', flush=True)\n"
        "    m.compact()\n"
    )
    for round_ in range(6):
        child = subprocess.Popen([sys.executable, "-c", code, str(store)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.01 * round_)
        child.send_signal(signal.SIGKILL)
        child.wait()
        with pymemstore.open(store) as memory:
            memory.add(f"after {round_}", "r", "o")  # noted for a merge that is no more
            assert len(memory) == 6_001 + round_ and memory.check().ok
    with pymemstore.open(store) as memory:
        memory.compact()
        assert len(memory) == 6_006 and memory.check().ok and memory.stats().delta_rows == 0


def test_two_merges_at_once(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "s.mem", timeout=0) as memory:
        memory.add_many((f"s{i}", "r", f"o{i % 97}") for i in range(30_000))
        started, errors = threading.Event(), []

        def merge() -> None:
            try:
                memory.compact(progress=lambda *_: started.set())
            except pymemstore.MemstoreError as error:
                errors.append(error)

        thread = threading.Thread(target=merge)
        thread.start()
        started.wait(10)
        try:
            memory.compact()
        except pymemstore.Locked as error:
            assert f"another thread of this process ({os.getpid()})" in str(error)
        thread.join()
        assert not errors and memory.check().ok and len(memory) == 30_000


def test_an_exception_in_progress_stops_the_merge(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "s.mem") as memory:
        memory.add_many((f"s{i}", "r", f"o{i % 97}") for i in range(1000))

        def refuse(phase: str, done: int, total: int) -> None:
            raise RuntimeError(f"enough of {phase}")

        with pytest.raises(RuntimeError, match="enough of"):
            memory.compact(progress=refuse)
        assert memory.stats().generation == 1 and memory.add("new", "r", "o").inserted
        memory.compact()
        assert memory.stats().generation == 2 and len(memory) == 1001 and memory.check().ok


def test_the_background_merge_is_an_option(tmp_path: Path) -> None:
    facts = [(f"s{i}", "r", f"o{i % 997}") for i in range(260_000)]
    for auto in (False, True):
        with pymemstore.open(tmp_path / f"{auto}.mem", auto_merge=auto, sync="relaxed") as memory:
            from pymemstore import _core

            entry = _core.Batch()
            entry.add(facts, None)
            memory._store.apply(entry)
            deadline = time.monotonic() + 30
            while auto and memory.stats().generation == 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            stats = memory.stats()
            assert (stats.generation, stats.delta_rows) == ((2, 0) if auto else (1, 260_000))
            assert stats.merge_error == "" and len(memory) == 260_000
