"""Makes the store of format version 2 that the tests keep: a sealed base, and a delta that overrides some.

    python make_v2.py STORE

It was run once, with version 0.1.0, for v2.mem beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from make_v1 import Golden, build

import pymemstore
from pymemstore import _core


def change(memory: pymemstore.Memory) -> None:
    """On the content of version 1's store."""
    memory.compact()
    memory.remove("東京", "located in", "日本")
    memory.add("東京", "located in", "日本")  # again, under a new id
    memory.remove("Zürich", "located in", "Switzerland")
    memory.rename("Paul McCartney", "Sir Paul")
    memory.forget("nul\0byte")
    memory.add("Bern", "located in", "Switzerland", source="delta")
    # A bulk import seals all of that, and leaves names without vectors and rule keys.
    load = _core.BulkLoad(memory._store, format="tsv", options={}, identity="golden", source="load.tsv")
    load.feed(b"Bern\tis a\tcity\nBern\tlocated in\tSwitzerland\nBasel\tis a\tcity\n")
    load.end_input()
    load.seal()
    memory.remove("Bern", "is a", "city")
    memory.alias("Bâle", "Basel")
    memory.replace("Basel", "is a", "town")


if __name__ == "__main__":
    with pymemstore.open(Path(sys.argv[1]), embedder=Golden()) as made:
        build(made)
        change(made)
    # Made anew when the store is opened.
    for name in ("LOCK", "gen-000003/USE", "gen-000003/lock.mdb"):
        (Path(sys.argv[1]) / name).unlink()
