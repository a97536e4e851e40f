"""The table that the benchmarks print, and where they ran."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np


@dataclass
class Row:
    """One line of the table. `gate`: the least ratio wanted, None where the row only informs."""

    what: str
    unit: str
    ours: float
    theirs: float
    gate: float | None
    ratio: float

    @property
    def verdict(self) -> str:
        """What the last column says."""
        if self.gate is None:
            return "info"
        return f"{'pass' if self.ratio >= self.gate else 'FAIL'} (>= {self.gate:g})"


def table(rows: Sequence[tuple[str, Row]]) -> str:
    """Rows as aligned text."""
    cells: list[tuple[str, ...]] = [("data", "what", "pymemstore", "reference", "unit", "ratio", "gate")]
    for name, row in rows:
        values = [f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" for value in (row.ours, row.theirs)]
        cells.append((name, row.what, *values, row.unit, f"{row.ratio:.1f}x", row.verdict))
    widths = [max(len(line[i]) for line in cells) for i in range(7)]
    right = {2, 3, 5}
    text = []
    for line in cells:
        padded = zip(line, widths, range(7), strict=True)
        text.append("  ".join(cell.rjust(w) if i in right else cell.ljust(w) for cell, w, i in padded))
    text.insert(1, "-" * len(text[0]))
    return "\n".join(line.rstrip() for line in text)


def machine(threads: int) -> dict[str, str]:
    """Where and with what this ran."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")
        ]
        model = f"{names[0]}, {len(names)} cores" if names else model
    core = sys.modules.get("pymemstore._core")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": model,
        "load": f"{os.getloadavg()[0]:.1f}",
        "threads": str(threads),
        "pymemstore": version("pymemstore"),
        "kernels": "/".join(filter(None, core.kernel())) if core is not None else "?",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hnswlib": version("hnswlib"),
        "sqlite": sqlite3.sqlite_version,
    }
