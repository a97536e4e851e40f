"""rel256: relation names by meaning. Integer sums over a word table, so equal on every machine."""

from __future__ import annotations

import functools
import io
import math
import re
import zlib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core

TABLE_DIM = 248
AXES = 8
AXIS_WEIGHT = 0.3  # of a contrast's square beside the words' unit vector
UNKNOWN_NORM = 0.35 * 2**20  # length of an unknown word's vector on the table's scale
SUFFIXES = ("s", "ed", "ing", "es")
BATCH = 1024
CACHED_WORDS = 20_000
FEW_WORDS = 8  # of them, all squares of a sum add up within a double's 53 bits
EXACT = 1 << 27  # sums below this have squares that add up within int64

STOP_WORDS = frozenset("aesy")  # of surf256's stop words those that the table lacks
STOP_WEIGHT = 0.2
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

# Of each axis what counts as plus, what as minus: birth and death, start and end, male and female, before and
# after, parent and child, place and date. A seventh tells "x of" from "has x"; the eighth is spare.
CONTRASTS = (
    (
        "born birth birthplace birthday birthdate",
        "died death dead deathplace deathday deceased passed burial buried",
    ),
    (
        "start started starts starting begin began begins beginning inception founded formed formation "
        "opened established establishment foundation founder founders",
        "end ended ends ending dissolved dissolution abolished disbanded closed ceased until",
    ),
    (
        "father dad son brother husband uncle king male paternal",
        "mother mom daughter sister wife aunt queen female maternal",
    ),
    (
        "previous predecessor prequel preceded follows replaces before took",
        "next successor sequel succeeded followed after superseded replaced",
    ),
    ("father mother dad mom parent parents", "son daughter child children subsidiary subsidiaries kid kids"),
    (
        "place city where location residence birthplace town venue home headquarters",
        "date when year day birthday birthdate time month",
    ),
)
BEFORE, PARENT, MALE, PLACE, INVERSE = 3, 4, 2, 5, 6
LOCATED = frozenset(("born", "died", "lives", "resides", "lived", "formed", "based", "headquartered"))
HAVING = frozenset(("has", "have", "contains", "includes", "consists", "comprises", "divided"))


def _signs() -> dict[str, list[tuple[int, int]]]:
    signs: dict[str, list[tuple[int, int]]] = {}
    for axis, poles in enumerate(CONTRASTS):
        for sign, words in zip((1, -1), poles, strict=True):
            for word in words.split():
                signs.setdefault(word, []).append((axis, sign))
    return signs


SIGNS = _signs()


def contrasts(words: Sequence[str]) -> list[int]:
    """The eight axes of a relation's folded words, each -1, 0 or 1."""
    v = [0] * AXES
    for i, word in enumerate(words):
        for axis, sign in SIGNS.get(word, ()):
            if word != "took" or words[i + 1 : i + 2] == ["over"]:
                v[axis] += sign
    if not words:
        return v
    first, last = words[0], words[-1]
    if last == "on":
        v[PLACE] -= 1
    if last == "in" and len(words) > 1 and words[-2] in LOCATED:
        v[PLACE] += 1
    if last == "from" and "succeeded" in words:
        v[BEFORE] = 1
    if last == "of":
        if v[PARENT]:  # "son of" names the other end: the parent
            v[PARENT] = -v[PARENT]
            v[MALE] = 0
        if len(words) > 1 and first not in ("place", "date"):
            v[INVERSE] = 1
    if first in HAVING:
        v[INVERSE] = -1
    if "belongs" in words:
        v[INVERSE] = 1
    return [(x > 0) - (x < 0) for x in v]


class _Table(NamedTuple):
    rows: npt.NDArray[np.int8]  # (25000, 248)
    scales: npt.NDArray[np.int32]  # (25000, 1)
    row_of: dict[str, int]


@functools.cache
def _table() -> _Table:
    packed = (resources.files(__package__) / "data" / "reltab.npz").read_bytes()
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        words = str(arrays["words"]).split("\n")
        return _Table(arrays["q"], arrays["m"].astype(np.int32)[:, None], {w: i for i, w in enumerate(words)})


def _add_feature(sums: list[int], feature: str, weight: float) -> None:
    """surf256's hash, on 248 dimensions."""
    data = feature.encode()
    h = zlib.crc32(data) | len(data) << 32
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> 33) * multiplier & 0xFFFFFFFFFFFFFFFF
    h ^= h >> 33
    x = math.floor(weight * 4096 + 0.5)
    for i in (0, 1):
        sums[(h >> 20 * i & 0xFFFFF) % TABLE_DIM] += x if h >> 63 - i & 1 else -x


@functools.lru_cache(CACHED_WORDS)
def _unknown_word(text: str) -> npt.NDArray[np.int32]:
    """By surface form, as surf256 but for idf, the last word's weight and acronyms: int32 (248,)."""
    tokens, numbers = _core.parse_name(text)
    sums = [0] * TABLE_DIM
    for number in numbers:
        _add_feature(sums, "#" + number, 1.5)
    if not numbers:
        for word, _ in tokens:
            marked = f"^{word}$"
            grams: dict[str, float] = {}
            for n in (2, 3):
                for j in range(len(marked) - n + 1):
                    gram = marked[j : j + n]
                    grams[gram] = grams.get(gram, 0.0) + (1.0 if j else 1.5)
            norm = math.sqrt(sum(v * v for v in grams.values()))
            for gram, v in grams.items():
                _add_feature(sums, gram, (STOP_WEIGHT if word in STOP_WORDS else 1.0) * v / norm)
    if not any(sums):
        for c in text or "\0":
            _add_feature(sums, "!" + c, 1.0)
    length = math.sqrt(sum(x * x for x in sums))
    if length == 0:
        sums[0] = 1
        length = 1.0
    unit = (np.array(sums, np.float64) / length).astype(np.float32)
    vector: npt.NDArray[np.int32] = np.floor(unit.astype(np.float64) * UNKNOWN_NORM + 0.5).astype(np.int32)
    vector.flags.writeable = False
    return vector


def _row_of(word: str, index: dict[str, int]) -> int:
    """The word's row in the table, or that of its stem; -1 for an unknown word."""
    row = index.get(word, -1)
    if row < 0 and len(word) > 3:
        for suffix in SUFFIXES:
            if word.endswith(suffix):
                row = index.get(word[: -len(suffix)], -1)
                if row >= 0:
                    break
    return row


def _squared_lengths(sums: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    if sums.size == 0 or int(np.abs(sums).max()) < EXACT:
        squares: npt.NDArray[np.int64] = np.einsum("ij,ij->i", sums, sums)
        return squares.astype(np.float64)
    return np.array([float(sum(x * x for x in row)) for row in sums.tolist()], np.float64)


def _encode(texts: Sequence[str], out: npt.NDArray[np.float32]) -> None:
    table = _table()
    index = table.row_of
    rows: list[int] = []
    starts: list[int] = []
    unknown: list[tuple[int, str]] = []
    axes: list[list[int]] = []
    for text in texts:
        starts.append(len(rows))
        words = [folded for folded, _ in _core.parse_name(CAMEL.sub(" ", text))[0]]
        axes.append(contrasts(words))
        for word in words:
            row = index.get(word, -1)
            if row < 0:
                row = _row_of(word, index)
                if row < 0:
                    unknown.append((len(rows), word))
            rows.append(row)
        if not words:
            unknown.append((len(rows), text))
            rows.append(-1)
    vectors = table.rows[rows] * table.scales[rows]  # int32 (tokens, 248)
    for position, word in unknown:
        vectors[position] = _unknown_word(word)
    sums = np.add.reduceat(vectors, starts, axis=0, dtype=np.int64)
    lengths = np.sqrt(_squared_lengths(sums))
    cancelled = lengths == 0
    if cancelled.any():
        sums[cancelled, 0] = 1
        lengths[cancelled] = 1.0
    signs = np.array(axes, np.float64)
    whole = np.sqrt(1 + AXIS_WEIGHT * np.abs(signs).sum(axis=1))[:, None]
    out[:, :TABLE_DIM] = sums / lengths[:, None] / whole
    out[:, TABLE_DIM:] = signs * math.sqrt(AXIS_WEIGHT) / whole


@functools.lru_cache(CACHED_WORDS)
def _word(word: str) -> npt.NDArray[np.float64]:
    """A word's vector on the table's scale: whole numbers below 2**19, float64 (248,)."""
    table = _table()
    row = _row_of(word, table.row_of)
    vector = _unknown_word(word) if row < 0 else table.rows[row] * table.scales[row]
    return vector.astype(np.float64)


def _encode_one(text: str, out: npt.NDArray[np.float32]) -> bool:
    """The same bits as `_encode` for one short text, sooner; False where doubles might not be exact."""
    words = [folded for folded, _ in _core.parse_name(CAMEL.sub(" ", text))[0]]
    if not 0 < len(words) <= FEW_WORDS:
        return False
    sums = _word(words[0])
    for word in words[1:]:
        sums = sums + _word(word)
    length = math.sqrt(float(sums @ sums))
    if length == 0:
        return False
    signs = contrasts(words)
    whole = math.sqrt(1 + AXIS_WEIGHT * sum(map(abs, signs)))
    out[:TABLE_DIM] = sums / length / whole
    step = math.sqrt(AXIS_WEIGHT)
    out[TABLE_DIM:] = [sign * step / whole for sign in signs]
    return True


def encode_relations(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Unit vectors of relation names: float32 (n, 256), 248 of words and 8 of contrasts."""
    out = np.empty((len(texts), TABLE_DIM + AXES), np.float32)
    if len(texts) == 1 and _encode_one(texts[0], out[0]):
        return out
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        _encode(part, out[start : start + BATCH])
    return out
