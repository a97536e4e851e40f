"""Imports made-up Wikidata-like triples at growing sizes and measures what the engine does with them.

    python benchmarks/scale.py --sizes 1,3,10,30,111 --peers --out scale.json --report results.md
    python benchmarks/scale.py --quick

The triples come through a pipe from `generate_triples`; each step runs in a process of its own, whose CPU
time and memory are its own. A size whose result is in --out already is not run again. docs/scale.md says what
each figure is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import scale_report
from peers import oxigraph_store, sqlite_store

HERE = Path(__file__).resolve().parent
MILLION = 1_000_000
QUICK = 200_000


def tool(name: str) -> str:
    """A program of benchmarks/, as the build made it, or compiled now where it needs nothing of ours."""
    build = Path(os.environ.get("PYMEMSTORE_BUILD_DIR", HERE.parent / "build" / "release"))
    if (build / name).is_file():
        return str(build / name)
    made = Path(tempfile.gettempdir()) / f"pymemstore-{name}-{os.getuid()}"
    source = HERE / f"{name}.cc"
    if not made.is_file() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["c++", "-O2", "-std=c++17", str(source), "-o", str(made)], check=True)
    return str(made)


# ---- steps, each in a process of its own -------------------------------------------------------------


class Usage:
    """CPU and wall time since it was made, and the largest memory seen, anonymous and of files apart."""

    def __init__(self) -> None:
        self._cpu, self._wall = self._now(), time.monotonic()
        self.anonymous = self.file = 0
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def _now() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def _watch(self) -> None:
        while True:
            with open("/proc/self/status") as status:
                for line in status:
                    if line.startswith("RssAnon:"):
                        self.anonymous = max(self.anonymous, int(line.split()[1]) * 1024)
                    elif line.startswith("RssFile:"):
                        self.file = max(self.file, int(line.split()[1]) * 1024)
            time.sleep(0.05)

    def taken(self) -> dict[str, float]:
        return {"cpu_s": self._now() - self._cpu, "wall_s": time.monotonic() - self._wall}


def step_import(store: str, _: argparse.Namespace) -> dict[str, Any]:
    import pymemstore
    from pymemstore import ingest

    usage = Usage()
    with pymemstore.open(store) as memory:
        report = ingest.bulk_import(memory, ["-"], "tsv", embed=False, checkpoint_every=1e9)
        stats = memory.stats()
    return {
        **usage.taken(), "anonymous_bytes": usage.anonymous, "file_bytes": usage.file,
        "read": report.read, "triples": stats.triples, "entities": stats.entities,
        "relations": stats.relations, "disk_bytes": stats.disk_bytes,
    }  # fmt: skip


def step_open(store: str, _: argparse.Namespace) -> dict[str, Any]:
    import pymemstore

    started = time.monotonic()
    with pymemstore.open(store, create=False) as memory:
        opened = time.monotonic() - started
        memory.contains("nobody", "relation 1", "nothing")
        return {"open_s": opened, "open_and_lookup_s": time.monotonic() - started}


def step_cold(store: str, _: argparse.Namespace) -> dict[str, Any]:
    """Lookups after the system was told to forget the file's pages, which it may or may not do."""
    import pymemstore

    with pymemstore.open(store, create=False, read_only=True) as memory:
        pages = [memory._store.names(False, i, 1)[0][1] for i in _sample(memory.stats().entities, 200)]
    for file in Path(store).glob("gen-*/data.mdb"):
        with file.open("rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    times = []
    with pymemstore.open(store, create=False, read_only=True) as memory:
        for name in pages:
            started = time.perf_counter()
            memory._store.triples(name, None, None, None, 30)
            times.append((time.perf_counter() - started) * 1e6)
    times.sort()
    return {"cold_mean_us": sum(times) / len(times), "cold_p99_us": times[len(times) * 99 // 100]}


def step_write(store: str, _: argparse.Namespace) -> dict[str, Any]:
    """Durable commits without vectors, then a merge of about a million rows while a thread reads."""
    import pymemstore
    from pymemstore import _core

    result: dict[str, Any] = {}
    with pymemstore.open(store, create=False, auto_merge=False) as memory:
        count = memory.stats().entities
        names = [n for _, n in memory._store.names(False, count // 3, min(200_000, count // 2))]
        rng = random.Random(5)

        def batch(n: int) -> Any:
            entry = _core.Batch()
            entry.add(
                [(rng.choice(names), f"relation {rng.randrange(1000)}", rng.choice(names)) for _ in range(n)],
                None,
            )
            return entry

        before = memory.stats().delta_rows
        wanted = min(MILLION, memory.stats().triples // 4)
        for size, commits in ((1000, 100), (100_000, max(1, wanted // 100_000 - 1))):
            batches = [batch(size) for _ in range(commits)]  # making them is Python's time
            usage, started = Usage(), time.monotonic()
            for entry in batches:
                memory._store.apply(entry)
            spent = time.monotonic() - started
            result[f"write_{size}_per_s"] = size * commits / spent
            result[f"write_{size}_per_cpu_s"] = size * commits / usage.taken()["cpu_s"]
        result["merged_rows"] = memory.stats().delta_rows - before
        result |= {f"delta_{key}": value for key, value in native(Path(store)).items()}
        worst, reads, stop = 0.0, 0, threading.Event()

        def read() -> None:
            nonlocal worst, reads
            while not stop.is_set():
                began = time.perf_counter()
                memory._store.triples(rng.choice(names), None, None, None, 30)
                worst, reads = max(worst, time.perf_counter() - began), reads + 1
                time.sleep(0.005)

        reader = threading.Thread(target=read)
        reader.start()
        usage = Usage()
        memory.compact()
        taken = usage.taken()
        stop.set()
        reader.join()
        result |= {"merge_cpu_s": taken["cpu_s"], "merge_wall_s": taken["wall_s"]}
        result |= {"reads_during_merge": reads, "slowest_read_ms": worst * 1e3}
    return result


def step_rules(store: str, _: argparse.Namespace) -> dict[str, Any]:
    import pymemstore

    usage = Usage()
    with pymemstore.open(store, create=False) as memory:
        memory.build_rules()
        return {
            "rules_cpu_s": usage.taken()["cpu_s"], "rules_wall_s": usage.taken()["wall_s"],
            "ruled_disk_bytes": memory.stats().disk_bytes,
        }  # fmt: skip


def step_embed(store: str, _: argparse.Namespace) -> dict[str, Any]:
    import pymemstore

    with pymemstore.open(store, create=False) as memory:
        usage = Usage()
        done = memory.embed_missing()
        taken = usage.taken()
        entities = list(_sample(memory.stats().entities, 60))
        names = [memory._store.names(False, i, 1)[0][1] for i in entities]
        asked = [(name, f"relation {i % 20}") for i, name in enumerate(names)]
        memory.query(*asked[0])  # builds the codes
        times = []
        for subject, relation in asked[1:]:
            began = time.perf_counter()
            memory.query(subject, relation, limit=30)
            times.append((time.perf_counter() - began) * 1e3)
        times.sort()
        return {
            "embedded": done, "embed_per_cpu_s": done / taken["cpu_s"], "embed_per_s": done / taken["wall_s"],
            "query_mean_ms": sum(times) / len(times), "query_p95_ms": times[len(times) * 95 // 100],
            "embedded_disk_bytes": memory.stats().disk_bytes,
        }  # fmt: skip


def _sample(count: int, n: int) -> list[int]:
    return random.Random(3).sample(range(count), min(n, count))


STEPS: dict[str, Callable[[str, argparse.Namespace], dict[str, Any]]] = {
    "import": step_import,
    "open": step_open,
    "cold": step_cold,
    "write": step_write,
    "rules": step_rules,
    "embed": step_embed,
    "sqlite_best": sqlite_store.best_case,
    "sqlite_reference": sqlite_store.reference_order,
    "oxigraph": oxigraph_store.bulk_load,
}


# ---- the run -------------------------------------------------------------------------------------------


def run_step(step: str, store: Path, count: int = 0, form: str = "tsv") -> dict[str, Any]:
    """One step in a new process; with a count, fed by the generator."""
    print(f"  {step} ...", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), "--step", step, "--store", str(store)]
    feed = None
    if count:
        feed = subprocess.Popen([tool("generate_triples"), str(count), form], stdout=subprocess.PIPE)
    done = subprocess.run(command, stdin=feed.stdout if feed else None, stdout=subprocess.PIPE, check=False)
    failed = 0
    if feed is not None and feed.stdout is not None:
        feed.stdout.close()
        failed = feed.wait()
    if done.returncode:
        raise SystemExit(f"the step {step} failed")
    if failed:  # less than was asked for came: no figure of it may be kept
        raise SystemExit(f"the generator failed with status {failed}")
    print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    if result.get("read", count) != count:
        raise SystemExit(f"the step {step} read {result['read']} of {count} triples")
    return result


def native(store: Path) -> dict[str, float]:
    """Latencies in C++, by lookup_bench; empty where the build has not made it (make cpp-test does)."""
    build = Path(os.environ.get("PYMEMSTORE_BUILD_DIR", HERE.parent / "build" / "release"))
    if not (build / "lookup_bench").is_file():
        print("  no lookup_bench in the build: its latencies are left out", file=sys.stderr)
        return {}
    out = subprocess.run([build / "lookup_bench", store, "20000"], capture_output=True, text=True, check=True)
    found = {}
    for line in out.stdout.splitlines():
        name, mean, p99 = line.split()
        found |= {f"{name}_mean_us": float(mean), f"{name}_p99_us": float(p99)}
    return found


def one_size(count: int, work: Path, embed_most: int) -> dict[str, Any]:
    store = work / f"{count}.mem"
    shutil.rmtree(store, ignore_errors=True)
    result: dict[str, Any] = {"count": count}
    result |= run_step("import", store, count)
    result |= run_step("open", store)
    result |= native(store)
    result |= run_step("cold", store)
    result |= run_step("write", store)
    result |= run_step("rules", store)
    if count <= embed_most:
        result |= run_step("embed", store)
    shutil.rmtree(store)
    return result


def one_peer(count: int, work: Path, reference_too: bool, oxigraph_too: bool) -> dict[str, Any]:
    """Ours and theirs on the same triples, in one run."""
    folder = work / f"peers-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    result: dict[str, Any] = {"count": count, "ours": run_step("import", folder / "ours.mem", count)}
    result["sqlite_best"] = run_step("sqlite_best", folder / "best.db", count)
    if reference_too:
        result["sqlite_reference"] = run_step("sqlite_reference", folder / "reference.db", count)
    if oxigraph_too:
        result["oxigraph"] = run_step("oxigraph", folder / "oxigraph", count, "ntriples")
    shutil.rmtree(folder)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1,3,10", help="millions of triples, parted by commas")
    parser.add_argument("--embed-most", type=float, default=10, help="embed sizes up to so many millions")
    parser.add_argument(
        "--peers", action="store_true", help="the peers at 3 and (SQLite's best case) 11 million"
    )
    parser.add_argument("--quick", action="store_true", help="200,000 triples, the peers too")
    parser.add_argument("--work", type=Path, help="folder for the stores; a temporary one by default")
    parser.add_argument("--out", type=Path, help="JSON, with what earlier runs put there")
    parser.add_argument("--report", type=Path, help="Markdown page made from all results")
    parser.add_argument("--plot", type=Path, help="SVG of the sizes; needs matplotlib")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        json.dump(STEPS[args.step](args.store, args), sys.stdout)
        return
    results: dict[str, Any] = {"sizes": {}, "peers": {}}
    if args.out and args.out.exists():
        results |= json.loads(args.out.read_text())
    sizes = [QUICK] if args.quick else [int(float(s) * MILLION) for s in args.sizes.split(",")]
    peers = [QUICK] if args.quick else [3 * MILLION, 11 * MILLION] if args.peers else []
    sizes = [count for count in sizes if str(count) not in results["sizes"]]
    peers = [count for count in peers if str(count) not in results["peers"]]
    if sizes or peers or "machine" not in results:  # else these are the figures of another day
        results["machine"] = _machine()
        command = "python " + " ".join(["benchmarks/scale.py", *sys.argv[1:]])
        if command not in results.get("command", "").split("; "):
            results["command"] = "; ".join(filter(None, [results.get("command"), command]))
        results["sqlite"] = sqlite3.sqlite_version
    work = Path(tempfile.mkdtemp(dir=args.work))
    try:
        for count in sizes:
            print(f"{count:,} triples", file=sys.stderr)
            results["sizes"][str(count)] = one_size(count, work, int(args.embed_most * MILLION))
            _save(args.out, results)
        for count in peers:
            print(f"{count:,} triples, peers", file=sys.stderr)
            small = count <= 3 * MILLION
            results["peers"][str(count)] = one_peer(count, work, small, small)
            _save(args.out, results)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    page = scale_report.page(results)
    print(page)
    if args.report:
        args.report.write_text(page, encoding="utf-8")
    if args.plot:
        scale_report.plot(results, str(args.plot))


def _machine() -> dict[str, str]:
    from pymemstore import _core  # noqa: F401  (the report asks it for its kernels)

    return scale_report.machine() | {"pyoxigraph": version("pyoxigraph")}


def _save(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
