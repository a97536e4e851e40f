"""Makes `v1.mem`, the store of format version 1 that every later version must read.

    python tests/golden/make_v1.py FOLDER

writes it to FOLDER, which must not exist yet. The committed one stays as it is: a store made by a later
library would only show that the library reads what it writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pymemstore
from pymemstore import Memory, _core

LONG = "ein langer Name " * 60  # 960 bytes, beyond LMDB's largest key


class Golden:
    """Vectors of small integers, from the text's UTF-8 bytes by arithmetic that stays what it is."""

    name = "golden"
    version = "1"
    dim = 6

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        rows = []
        for text in texts:
            row = [0] * self.dim
            for i, byte in enumerate(text.encode()):
                row[(byte + i) % self.dim] += byte % 7 - 2
            rows.append(row if any(row) else [1, *row[1:]])
        return np.array(rows, np.float32)


def build(memory: Memory) -> None:
    """Something in every table, and a trace of every operation."""
    memory.add_many(
        [
            ("The Beatles", "formed in", "Liverpool"),
            ("The Beatles", "has member", "John Lennon"),
            ("The Beatles", "has member", "Paul McCartney"),
            ("John Lennon", "born in", "Liverpool"),
            ("Zürich", "located in", "Schweiz"),
            ("東京", "located in", "日本"),
            ("nul\0byte", "is", " spaces kept "),
            (LONG, "is", "nul\0byte"),
        ],
        source="first.jsonl",
    )
    memory.add("John Lennon", "born in", "Liverpool", source="second.jsonl")
    memory.alias("The Fab Four", "The Beatles")
    memory.alias("Fab Four", "The Beatles")
    memory.alias("Tokio", "東京")
    memory.alias("lies in", "located in", relation=True)
    memory.unalias("Fab Four", "The Beatles")
    memory.set_external_id("Q1299", "The Beatles")
    memory.set_external_id("Q1203", "John Lennon")
    memory.set_external_id("P19", "born in", relation=True)
    memory.set_vector("Schweiz", [3, 4, 0, 0, 0, 0])
    memory.replace("John Lennon", "lives in", "London")
    memory.replace("John Lennon", "lives in", "New York", source="third.jsonl")
    memory.remove("The Beatles", "formed in", "Liverpool")
    memory.add("The Beatles", "formed in", "Liverpool")  # a new id
    memory.rename("Schweiz", "Switzerland")
    memory.rename("is", "is a", relation=True)
    memory.set_vector("Zürich", [0, 0, 12, 5, 0, 0])
    memory.add("Atlantis", "located in", "Switzerland")
    memory.forget("Atlantis")
    waiting = _core.Batch()
    waiting.add_names(["waits for a vector"], False)
    memory._store.apply(waiting)


def make(folder: Path) -> None:
    with pymemstore.open(folder, embedder=Golden()) as memory:
        build(memory)
        memory.compact()
    # Made anew when the store is opened.
    for name in ("LOCK", "gen-000002/USE", "gen-000002/lock.mdb"):
        (folder / name).unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
