"""Kills imports with SIGKILL, in every phase, and compares what the resumed ones made with a clean one.

    python tests/crash/kill_import.py --rounds 100 --triples 1000000

Each round imports the same made-up file into a copy of the same filled store, is killed somewhere in the
phase whose turn it is, perhaps again while it goes on, and is then left to finish. The store must equal that
of an import that nobody killed: names and their ids, triples and theirs, vectors, answers, statistics; and
check() must find nothing. Prints a histogram of the phases in which the kills fell.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pymemstore
from pymemstore import ingest

SOURCE = "import.tsv"


def name(number: int) -> str:
    """Two made-up words and the number: names that are alike would make every one a candidate."""
    digits = hashlib.md5(str(number).encode()).hexdigest()
    letters = digits.translate(str.maketrans("0123456789abcdef", "aeioubdfglmnrstz"))
    return f"{letters[:6].title()} {letters[6:13].title()} {number}"


def write_file(path: Path, triples: int, seed: int = 1) -> None:
    """Facts with hubs, repetitions and facts that the store has already."""
    rng = random.Random(seed)
    entities = max(100, triples // 5)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(triples):
            s, o = int(entities * rng.random() ** 1.5), int(entities * rng.random() ** 3)
            r = int(300 * rng.random() ** 2)
            file.write(f"{name(s)}\trelation {r}\t{name(o)}\n")


def fill(store: Path, triples: int) -> None:
    rng = random.Random(2)
    with pymemstore.open(store) as memory:
        facts = [
            (
                name(rng.randrange(100)),
                f"relation {rng.randrange(9)}",
                f"Thing {rng.randrange(500)}",
            )
            for _ in range(triples)
        ]
        memory.add_many(facts, source="before")
        memory.compact()
        memory.remove(*facts[0])
        memory.add(name(5), "relation 1", "Thing of the delta")
        memory.alias("the fifth", name(5))


def child(store: str, file: str) -> None:
    """The import, with a checkpoint at every chance; tells each phase as it begins."""
    last = ""

    def tell(p: ingest.BulkProgress) -> None:
        nonlocal last
        if p.phase != last:
            last = p.phase
            os.write(1, f"{p.phase}\n".encode())

    with pymemstore.open(store, create=False) as memory:
        ingest.bulk_import(memory, [file], "tsv", source=SOURCE, checkpoint_every=0.02, progress=tell)
    os.write(1, b"done\n")


def start(store: Path, file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--child", str(store), str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def timeline(store: Path, file: Path) -> dict[str, float]:
    """The phases of an import that nobody kills, with their durations, in order."""
    running, phases = start(store, file), {}
    assert running.stdout is not None
    began, name = time.monotonic(), "starting"
    for line in running.stdout:
        now = time.monotonic()
        phases[name] = phases.get(name, 0.0) + now - began
        began, name = now, line.strip()
    assert running.wait() == 0 and name == "done"
    return phases


def killed(store: Path, file: Path, phase: str, delay: float) -> str | None:
    """Starts the import, kills it `delay` seconds into `phase`; the phase it was in, None: it had ended."""
    running = start(store, file)
    assert running.stdout is not None
    current = "starting"
    if phase != "starting":
        for line in running.stdout:
            current = line.strip()
            if current in (phase, "done"):
                break
    time.sleep(delay)
    running.kill()
    # What it said between the wait and the kill
    for line in running.stdout:
        current = line.strip()
    running.wait()
    return None if current == "done" else current


def content(store: Path) -> dict[str, Any]:
    """What must be equal. Long lists as hashes, so that a difference is told and not printed."""

    def digest(items: Any) -> tuple[int, str]:
        count, h = 0, hashlib.sha256()
        for item in items:
            count += 1
            h.update(repr(item).encode())
        return count, h.hexdigest()

    with pymemstore.open(store, create=False) as memory:
        report = memory.check()
        assert report.ok, report.problems
        assert not (store / "load").exists()
        names = []
        while page := memory._store.names(False, names[-1][0] + 1 if names else 0, 10_000):
            names += page
        sample = random.Random(3).sample([name for _, name in names], min(50, len(names)))
        asked = [memory.query(name, f"relation {i % 9}", limit=20) for i, name in enumerate(sample)]
        answers = [[(h.name, h.triple_id, round(h.score, 9)) for h in answer.hits] for answer in asked]
        stats = memory.stats()
        return {
            "names": digest(names),
            "relations": digest(memory._store.names(True, 0, 10_000)),
            "triples": digest(memory.triples()),
            "vectors": digest(memory.vector(name).tobytes() for name in sample),  # type: ignore[union-attr]
            "aliases": memory.aliases(name(5)),
            "sources": [[s.source for s in memory.sources(t.id)] for t in list(memory.triples())[:200]],
            "answers": answers,
            "changes": digest(
                (c.seq, c.op, c.triple)
                for since in (0, max(0, stats.seq - 1000))
                for c in itertools.islice(memory.changes(since), 1000)
            ),
            "counts": (stats.entities, stats.relations, stats.triples, stats.unembedded_entities, stats.seq),
        }


def rounds(count: int, triples: int, work: Path, seed: int = 0) -> collections.Counter[str]:
    """Raises AssertionError on the first store that differs; the phases of all kills otherwise."""
    rng = random.Random(seed)
    file, filled, store = work / "facts.tsv", work / "filled.mem", work / "store.mem"
    write_file(file, triples)
    fill(filled, min(20_000, triples // 4))
    shutil.copytree(filled, store)
    phases = timeline(store, file)
    clean = content(store)
    histogram: collections.Counter[str] = collections.Counter()
    number = 0
    while histogram.total() < count:
        shutil.rmtree(store)
        shutil.copytree(filled, store)
        # Mostly one kill, sometimes more before it may finish.
        for _ in range(1 if rng.random() < 0.7 else 3):
            phase = list(phases)[number % len(phases)]
            number += 1
            fell = killed(store, file, phase, rng.random() * phases[phase])
            if fell is None:
                break
            histogram[fell] += 1
        assert timeline(store, file)
        found = content(store)
        for what, value in clean.items():
            assert found[what] == value, f"{what} differ after kills; last in {fell}"
        print(f"{histogram.total()} of {count} kills", file=sys.stderr, flush=True)
    return histogram


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100, help="kills")
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, default=1, help="so many at once, each with its share of the kills"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    histogram: collections.Counter[str] = collections.Counter()
    share = -(-args.rounds // args.jobs)
    with tempfile.TemporaryDirectory() as work, ProcessPoolExecutor(args.jobs) as pool:
        running = []
        for job in range(args.jobs):
            (folder := Path(work) / str(job)).mkdir()
            running.append(pool.submit(rounds, share, args.triples, folder, args.seed + job))
        for each in running:
            histogram += each.result()
    print(f"python tests/crash/kill_import.py {' '.join(sys.argv[1:])}")
    print(f"{datetime.date.today()}, pymemstore {pymemstore.__version__}, {args.triples:,} triples")
    print(f"{histogram.total()} kills, every resumed store equal to the clean one. Where they fell:")
    for phase, n in histogram.most_common():
        print(f"  {phase:20} {n:4}  {'#' * n}")


if __name__ == "__main__":
    main()
