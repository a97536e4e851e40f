"""Wikidata's JSON to stored facts: megabytes of dump a CPU-second, against json and plain Python.

    python benchmarks/bench_wikidata.py            # 300 MB
    python benchmarks/bench_wikidata.py --quick    # 10 MB

The dump is made of the real entities in data/wikidata (what the web API returned for them), again and again
under other ids and labels, so that names are as many as in a dump. The alternative parses each line with the
json module and picks the same facts out of it; it stores nothing. The number of facts that both find is
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import pymemstore
from pymemstore import ingest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
import report
import twin_wikidata as twin

DATA = Path(os.environ.get("PYMEMSTORE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared")


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write_dump(path: Path, megabytes: int) -> int:
    """How many entities it holds."""
    entities = []
    for file in sorted((DATA / "data" / "wikidata").glob("wbgetentities-*.json")):
        entities += [e for e in json.loads(file.read_bytes())["entities"].values() if e.get("type") == "item"]
    count = size = 0
    with path.open("wb") as file:
        file.write(b"[\n")
        while size < megabytes * 1_000_000:
            entity = dict(entities[count % len(entities)])
            entity["id"] = f"Q{10_000_000 + count}"
            label = entity.get("labels", {}).get("en", {}).get("value", "entity")
            entity["labels"] = entity.get("labels", {}) | {
                "en": {"language": "en", "value": f"{label} {count}"}
            }
            line = json.dumps(entity, ensure_ascii=False, separators=(",", ":")).encode() + b",\n"
            file.write(line)
            size += len(line)
            count += 1
        file.write(b"]\n")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--megabytes", type=int)
    args = parser.parse_args()
    if not (DATA / "data" / "wikidata").exists():
        print("no data/wikidata: set PYMEMSTORE_TEST_DATA", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as work:
        dump = Path(work) / "dump.json"
        count = write_dump(dump, args.megabytes or (10 if args.quick else 300))
        size = dump.stat().st_size / 1e6
        with pymemstore.open(Path(work) / "s.mem") as memory:
            started = cpu()
            imported = ingest.bulk_import(memory, [dump], "wikidata", embed=False)
            ours = cpu() - started
        started = cpu()
        facts = 0
        share = 0
        with dump.open(encoding="utf-8") as file:
            for line in file:
                if not line.startswith("{"):
                    continue
                entity = json.loads(line.rstrip(",\n"))
                for statements in entity["claims"].values():
                    facts += sum(twin.value(s["mainsnak"]) is not None for s in twin.best(statements))
                share += 1
        theirs = cpu() - started
        assert share == imported.counts["items"] == count
        assert facts == imported.read, (facts, imported.read)
    print(", ".join(f"{k}: {v}" for k, v in report.machine(1).items()))
    print(f"{size:,.0f} MB, {count:,} items, {imported.read:,} facts, {imported.inserted:,} distinct")
    print(f"pymemstore, to stored facts: {size / ours:,.0f} MB a CPU-second")
    print(
        f"json and Python, storing nothing: {size / theirs:,.0f} MB a CPU-second; ratio {theirs / ours:.1f}x"
    )


if __name__ == "__main__":
    main()
