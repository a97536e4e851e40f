"""The same triples in pyoxigraph, by its bulk loader: names as IRIs, both directions."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any


def bulk_load(path: str, _: object) -> dict[str, Any]:
    """N-Triples on standard input into a store at `path`."""
    import pyoxigraph

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    before, started = cpu(), time.monotonic()
    store = pyoxigraph.Store(path)
    store.bulk_load(input=sys.stdin.buffer, format=pyoxigraph.RdfFormat.N_TRIPLES)
    store.flush()
    taken = {"cpu_s": cpu() - before, "wall_s": time.monotonic() - started}
    count = len(store)
    del store
    size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    return {**taken, "triples": count, "disk_bytes": size}
