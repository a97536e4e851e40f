"""Slow twins of the token guides: all call texts and all spans, written out; and a random generation."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymemstore import calls
from pymemstore.memllm.automaton import Vocabulary

BYTES = [bytes([b]) for b in range(256)]
MERGES = [
    b"({", b"({MEM", b"_READ(", b"_WRITE-->", b">>", b">>;", b";>>", b")-->", b">>)-->", b"})", b"))", b") ",
    b"A", b"AB", b"A (", b"band)", b"(band))", b"A>>r>>", b"B>>r", b" A", b" r", b"\\)", b"\\;", b"\\\\",
    "é".encode(), "é>>".encode(), "ß;".encode(), "日本".encode()[:4], "🦊".encode()[1:], b"-", b" -",
    b"B>>)-->", b"r>>A;A>>r>>;", b"})x", b"--> ", b"\n", b"\t",
]  # fmt: skip
SMALL = Vocabulary([None, *BYTES, *MERGES, None], eos=(0,))
# Every delimiter, names that begin each other, marks, and what is written with an escape.
HARD = ["A", "A (band)", "A (band))", "AB", "a;b>c", "\\", "x\\;", "{r}", ")-", "é", "e\u0301", "日本", "🦊",
        " lead", "trail ", "a\nb", "})", "({", "A>>r", "-->", "> >"]  # fmt: skip


def head(write: bool) -> list[str]:
    return ["({MEM_WRITE-->", "({ MEM_WRITE-->"] if write else ["({MEM_READ(", "({ MEM_READ("]


def all_calls(
    write: bool, entities: Sequence[str], relations: Sequence[str], parts: int, empty: bool
) -> set[bytes]:
    """Every call over the names, with and without the optional spaces, written out."""
    spaced = [["", " "]] * 3
    es, rs = [calls.escape(e) for e in entities], [calls.escape(r) for r in relations]
    bodies = []
    for a, b, c in itertools.product(*spaced):
        for r in rs:
            if write:
                bodies += [f"{a}{e}>>{b}{r}>>{c}{o}" for e in es for o in es]
            else:
                bodies += [f"{a}{e}>>{b}{r}>>{c}" for e in es] + [f"{a}>>{b}{r}>>{c}{e}" for e in es]
    close = "})" if write else ")-->"
    found = {f"{h}{';'.join(body)}{close}" for h in head(write) for n in range(1, parts + 1)
             for body in itertools.product(bodies, repeat=n)}  # fmt: skip
    if write and empty:
        found |= {f"{h}{space}{close}" for h in head(write) for space in ("", " ")}
    return {text.encode() for text in found}


class Written:
    """The twin: what the texts allow after a prefix, and the fewest bytes to an end."""

    def __init__(self, texts: set[bytes]) -> None:
        self.need: dict[bytes, int] = {}
        for text in texts:
            for n in range(len(text) + 1):
                key = text[:n]
                self.need[key] = min(self.need.get(key, 1 << 30), len(text) - n)

    def mask(self, vocabulary: Vocabulary, prefix: bytes, left: int | None) -> list[bool]:
        needs = [
            None if (t := vocabulary.token(i)) is None else self.need.get(prefix + t)
            for i in range(len(vocabulary))
        ]
        if left is not None:
            most = max(left - 1, min(n for n in needs if n is not None))
            needs = [n if n is not None and n <= most else None for n in needs]
        return [n is not None for n in needs]


def walk(
    guide: Any,
    vocabulary: Vocabulary,
    rng: random.Random,
    check: Callable[[bytes, int], None] | None = None,
) -> tuple[bytes, int]:
    """A random generation: its bytes and its number of tokens."""
    text, count = b"", 0
    while not guide.done:
        mask = guide.mask()
        if check:
            check(text, count)
        allowed = np.flatnonzero(mask)
        assert len(allowed) > 0
        token = int(allowed[rng.randrange(len(allowed))])
        guide.advance(token)
        written = vocabulary.token(token)
        assert written
        text += written
        count += 1
        assert count <= 4000
    return text, count


def span_twin(text: str, most: int = 128) -> set[str]:
    """All spans, a cut at each place that is not inside a word."""
    found = set()
    for block in text.split("\n\n"):
        flat = " ".join(block.split("\n"))

        def cut(at: int, flat: str = flat) -> bool:
            if at in (0, len(flat)):
                return True
            a, b = flat[at - 1], flat[at]
            if unicodedata.category(b)[0] == "M":
                return False
            wordy = [c == "_" or unicodedata.category(c)[0] in "LNM" for c in (a, b)]
            return not all(wordy) or "\u3040" < b < "\ua000" or "\u3040" < a < "\ua000"

        cuts = [at for at in range(len(flat) + 1) if cut(at)]
        for a, b in itertools.combinations(cuts, 2):
            span = flat[a:b]
            if not span[0].isspace() and not span[-1].isspace() and len(calls.escape(span).encode()) <= most:
                found.add(span)
    return found
