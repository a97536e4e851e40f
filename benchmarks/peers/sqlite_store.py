"""The same triples in SQLite, with the tables of MemLLM's reference: names with unique text, triples with
UNIQUE (s, r, o) and an index for each direction.

Two times: SQLite's own, in which names are numbers already and rows are made, 200,000 at a time; and all of
the import, with the reading of lines and the numbering of names by a dict, in Python. Both cases end as ours
does, with the file on the disk.
"""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

_TABLES = """
CREATE TABLE entities (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE relations (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE triples (id INTEGER PRIMARY KEY, s INTEGER NOT NULL, r INTEGER NOT NULL, o INTEGER NOT NULL);
"""
_INDICES = """
CREATE UNIQUE INDEX entity_names ON entities (name);
CREATE UNIQUE INDEX relation_names ON relations (name);
CREATE UNIQUE INDEX by_parts ON triples (s, r, o);
CREATE INDEX by_subject ON triples (s, r);
CREATE INDEX by_object ON triples (o, r);
"""
_ROWS = 200_000


def _numbered() -> tuple[dict[str, int], dict[str, int], list[tuple[int, int, int]]]:
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    triples = set()
    for line in sys.stdin:
        s, r, o = line.rstrip("\n").split("\t")
        triples.add(
            (
                entities.setdefault(s, len(entities)),
                relations.setdefault(r, len(relations)),
                entities.setdefault(o, len(entities)),
            )
        )
    return entities, relations, list(triples)


class _Clock:
    """CPU and wall time of the stretches inside `with`."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._start = used.ru_utime + used.ru_stime, time.monotonic()

    def __exit__(self, *_: object) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu += used.ru_utime + used.ru_stime - self._start[0]
        self.wall += time.monotonic() - self._start[1]


def _pieces(rows: Iterable[Any], size: int = _ROWS) -> Iterator[list[Any]]:
    piece = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    yield piece


def _load(path: str, best: bool) -> dict[str, Any]:
    whole, clock = _Clock(), _Clock()
    whole.__enter__()
    entities, relations, triples = _numbered()
    if best:
        triples.sort()
    else:
        random.Random(1).shuffle(triples)
    with clock:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -2000000")
        db.executescript(_TABLES + ("" if best else _INDICES))
        db.execute("BEGIN")
    for table, names in (("entities", entities), ("relations", relations)):
        for piece in _pieces((i, name) for name, i in names.items()):
            with clock:
                db.executemany(f"INSERT INTO {table} VALUES (?, ?)", piece)
    for piece in _pieces(triples):
        with clock:
            db.executemany("INSERT OR IGNORE INTO triples (s, r, o) VALUES (?, ?, ?)", piece)
    with clock:
        db.execute("COMMIT")
        if best:
            db.executescript(_INDICES)
        db.close()
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    whole.__exit__()
    size = os.path.getsize(path)
    # UNIQUE (s, r, o) answers what by_subject answers; the reference has both.
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DROP INDEX by_subject")
    db.execute("VACUUM")
    db.close()
    return {
        "cpu_s": whole.cpu,
        "wall_s": whole.wall,
        "own_cpu_s": clock.cpu,
        "triples": len(triples),
        "disk_bytes": size,
        "lean_disk_bytes": os.path.getsize(path),
    }


def best_case(path: str, _: object) -> dict[str, Any]:
    """Sorted rows in one transaction without journal, the indices made afterwards."""
    return _load(path, True)


def reference_order(path: str, _: object) -> dict[str, Any]:
    """As MemLLM's reference does it: the indices first, triples in no order."""
    return _load(path, False)
