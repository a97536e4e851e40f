"""surf256, its tokenizer and the name rules in plain Python: the truth that the C++ is tested against.

Written from docs/embeddings.md with `re`, `unicodedata` and dicts, sharing no code with the core; only the
word weights and the demonym table are read from the core's data files. Under another Unicode version than
14.0 some code points are treated otherwise (`UNICODE_AGREES`).
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UNICODE_AGREES = unicodedata.unidata_version == "14.0.0"
CSRC = Path(__file__).resolve().parents[2] / "csrc"
IDF = {
    m[1]: int(m[2]) / 64
    for m in re.finditer(r'\{"(.+)", (\d+)\}', (CSRC / "idf_table.inc").read_text(encoding="utf-8"))
}


def _words(text: str) -> list[str]:
    return text.split()


STOP = set(
    _words(
        "the of and a an in on at for to by de la le les du des di da del della el los las von van "
        "der den und et y e al s"
    )
)
MONTHS = {
    month: i + 1
    for i, month in enumerate(
        _words("january february march april may june july august september october november december")
    )
}
CARDINALS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
ORDINALS = _words(
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)[1:]
NUMBER_WORDS = {
    **{w: i for i, w in enumerate(CARDINALS)},
    **{w: i + 1 for i, w in enumerate(ORDINALS)},
    **{w: 10 * i + 30 for i, w in enumerate(_words("thirty forty fifty sixty seventy eighty ninety"))},
    **{"dozen": 12, "hundred": 100, "thousand": 1000, "million": 1000000},
}
TYPES_AND_HONOURS = set(
    _words(
        "mr mrs ms dr sir lady lord saint st prof president king queen prince princess general "
        "colonel captain major rev father pope emperor duke count baron senator governor river lake "
        "mount mountain county city town village island islands street road avenue university college "
        "school company corporation corp inc ltd group band party army navy museum park church "
        "cathedral airport station district province state kingdom republic empire award awards "
        "championship championships tournament league cup association club film album song series "
        "novel book war battle"
    )
)
PLAIN = str.maketrans(
    {
        **{"ß": "ss", "ø": "o", "đ": "d", "ł": "l", "æ": "ae", "œ": "oe"},
        **{"þ": "th", "ð": "d", "ı": "i", "ħ": "h", "ŋ": "ng"},
    }
)
KEPT = (0, 8, 9)  # combining classes
IGNORABLE = [0x34F, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
MARKS = "".join(
    c
    for c in map(chr, range(0x110000))
    if unicodedata.category(c) in ("Mn", "Mc")
    and unicodedata.combining(c) in KEPT
    and ord(c) not in IGNORABLE
)
WORD = rf"[\w{MARKS}]"
START, END = rf"(?<!{WORD})", rf"(?!{WORD})"
ISO_DATE = re.compile(rf"{START}(\d{{4}})-(\d{{2}})(?:-(\d{{2}}))?{END}")
GROUPING = re.compile(r"(?<=\d)[,\u00a0](?=\d{3}(?!\d))")
POSSESSIVE = re.compile(rf"\s+['’]\s*s{END}|['’]s{END}")
APOSTROPHES = re.compile("['’‘ʿʾʼ`]")
DOTTED = re.compile(rf"{START}([A-Za-z])\.\s?(?=[A-Za-z]\.)")
TOKEN = re.compile(rf"\d+|(?:[^\W\d_]|[{MARKS}])+")
ROMAN = re.compile(r"(?=[IVXL])(XL|L?X{0,3})(IX|IV|V?I{0,3})")


class Token(NamedTuple):
    folded: str
    original: str

    @property
    def digit(self) -> bool:
        return self.original.isdecimal()


class Name(NamedTuple):
    tokens: list[Token]
    numbers: list[str]
    words: list[Token]


def decompose(text: str) -> str:
    """NFKD without accents; no-break spaces stay, an acute accent typed alone is an apostrophe."""
    parts = re.split("[\u00a0\u202f]", text.replace("´", "’"))
    normal = "\u00a0".join(unicodedata.normalize("NFKD", part) for part in parts)
    return "".join(c for c in normal if unicodedata.combining(c) in KEPT)


def fold(text: str) -> str:
    return "".join(
        str(unicodedata.decimal(c)) if c.isdecimal() else c.casefold().translate(PLAIN) for c in text
    )


def tokenize(text: str) -> list[Token]:
    text = APOSTROPHES.sub("", POSSESSIVE.sub("", GROUPING.sub("", text)))
    return [Token(fold(t), t) for t in TOKEN.findall(DOTTED.sub(r"\1", text))]


def roman(text: str) -> int:
    if not text or not ROMAN.fullmatch(text):
        return 0
    values = [{"I": 1, "V": 5, "X": 10, "L": 50}[c] for c in text]
    return sum(-v if v < after else v for v, after in zip(values, [*values[1:], 0], strict=True))


@functools.lru_cache(100_000)
def parse(name: str) -> Name:
    text = decompose(name)
    date = ISO_DATE.search(text)
    if date and not (1 <= int(date[2]) <= 12 and 1 <= int(date[3] or 1) <= 31):
        date = None
    iso: list[Token] = []
    before, after = tokenize(text), []
    numbers: set[str] = set()
    if date:
        before, after = tokenize(text[: date.start()]), tokenize(text[date.end() :])
        iso = [Token(fold(g), g) for g in date.groups() if g]
        numbers = {str(int(date[1])), f"m{int(date[2])}"} | ({str(int(date[3]))} if date[3] else set())
    rest = before + after
    dated = bool(iso) or any(t.digit for t in rest)
    words = []
    for i, t in enumerate(rest):
        if t.digit:
            numbers.add(t.folded.lstrip("0") or "0")
        elif t.folded in ("st", "nd", "rd", "th") and i and rest[i - 1].digit:
            pass
        elif t.folded in NUMBER_WORDS:
            numbers.add(str(NUMBER_WORDS[t.folded]))
        elif t.folded in MONTHS and (dated or len(rest) == 1):
            numbers.add(f"m{MONTHS[t.folded]}")
        elif i and roman(t.original):
            numbers.add(str(roman(t.original)))
        else:
            words.append(t)
    return Name(before + iso + after, sorted(numbers, key=str.encode), words)


def hash64(text: str) -> int:
    data = text.encode()
    h = zlib.crc32(data) | len(data) << 32
    for k in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h ^= h >> 33
        h = h * k % 2**64
    return h ^ h >> 33


def features(name: str) -> Iterable[tuple[str, float]]:
    """Hashed texts with their weights."""
    parsed = parse(name)
    words = [t.folded for t in parsed.words]
    for i, word in enumerate(words):
        weight = IDF.get(word, 1.0) * (0.2 if word in STOP else 1.0) * (1.2 if i == len(words) - 1 else 1.0)
        marked = f"^{word}$"
        grams: dict[str, float] = defaultdict(float)
        for n in (2, 3):
            for j in range(len(marked) - n + 1):
                grams[marked[j : j + n]] += 1.0 if j else 1.5
        norm = math.sqrt(sum(v * v for v in grams.values()))
        yield from ((g, weight * v / norm) for g, v in grams.items())
    yield from (("#" + n, 1.5) for n in parsed.numbers)
    if len(words) > 1:
        for initials in {"".join(w[0] for w in words), "".join(w[0] for w in words if w not in STOP)}:
            if 2 <= len(initials) <= 7:
                yield "@" + initials, 0.8 if len(initials) > 2 else 0.4
    elif words and parsed.words[0].original.isupper() and 2 <= len(parsed.words[0].original) <= 7:
        yield "@" + words[0], 0.8
    if not words and not parsed.numbers:
        yield from (("!" + c, 1.0) for c in name or "\0")


@functools.lru_cache(200_000)
def places(feature: str) -> tuple[tuple[int, int], ...]:
    """Index and sign of a feature's two dimensions."""
    h = hash64(feature)
    return tuple((((h >> 20 * i) & 0xFFFFF) % 256, 1 if h >> (63 - i) & 1 else -1) for i in (0, 1))


def encode(names: Iterable[str]) -> npt.NDArray[np.float32]:
    """Unit vectors: float32 (n, 256)."""
    rows = []
    for name in names:
        sums = [0] * 256
        for feature, weight in features(name):
            for i, sign in places(feature):
                sums[i] += sign * math.floor(weight * 4096 + 0.5)
        length = math.sqrt(sum(x * x for x in sums))
        rows.append([x / length for x in sums] if length else [1.0] + [0.0] * 255)
    return np.array(rows, np.float64).astype(np.float32).reshape(len(rows), 256)


# The rules. Each is a function of two parsed names, symmetric.


def _folded(name: Name) -> list[str]:
    return [t.folded for t in name.tokens]


def _plain(name: Name) -> list[str]:
    return [f for f in _folded(name) if f not in ("the", "a", "an")]


def _content(name: Name) -> list[str]:
    return [f for f in _folded(name) if f not in STOP]


def singular(f: str) -> str:
    if len(f) > 5 and f[-2:] == "es" and f[-3] in "sxzh":
        return f[:-2]
    return f[:-1] if len(f) > 3 and f[-1] == "s" and f[-2] != "s" else f


def folded(a: Name, b: Name) -> bool:
    return "".join(_folded(a)) == "".join(_folded(b)) != ""


def article(a: Name, b: Name) -> bool:
    return "".join(_plain(a)) == "".join(_plain(b)) != ""


def plural(a: Name, b: Name) -> bool:
    return [singular(f) for f in _plain(a)] == [singular(f) for f in _plain(b)] != []


def word_order(a: Name, b: Name) -> bool:
    return len(_content(a)) >= 2 and Counter(_content(a)) == Counter(_content(b))


def acronym(a: Name, b: Name) -> bool:
    for short, long in ((a.tokens, b), (b.tokens, a)):
        if len(short) != 1 or len(long.tokens) < 2 or not short[0].original.isupper():
            continue
        f = short[0].folded
        if len(f) < 2:
            continue
        bare = [w for w in _content(long) if w not in ("inc", "ltd", "corp", "company", "co")]
        if f in ("".join(w[0] for w in _folded(long)), "".join(w[0] for w in _content(long))):
            return True
        if len(f) >= 3 and f == "".join(w[0] for w in bare):
            return True
    return False


def initials(a: Name, b: Name) -> bool:
    if len(a.tokens) < 2 or len(b.tokens) < 2 or a.tokens[-1].folded != b.tokens[-1].folded:
        return False

    def given(name: Name) -> list[str]:
        out: list[str] = []
        for t in name.tokens[:-1]:
            out += list(t.folded) if t.original.isupper() and 2 <= len(t.folded) <= 3 else [t.folded]
        return out

    def stands_for(x: str, y: str) -> bool:
        return len(x) == 1 and x not in "0123456789" and y[0] == x

    x, y = sorted((given(a), given(b)), key=len)
    if x[0][0] != y[0][0]:
        return False
    left = iter(y)
    pairs = []
    for w in x:
        partner = next((v for v in left if v == w or stands_for(v, w) or stands_for(w, v)), None)
        if partner is None:
            return False
        pairs.append((w, partner))
    return any(w != v for w, v in pairs)


def _countries() -> dict[str, str]:
    rows = re.search(r'R"\((.*)\)"', (CSRC / "demonyms.inc").read_text(encoding="utf-8"), re.DOTALL)
    assert rows is not None
    table = [row.split("|") for row in rows[1].split("\n")]
    return {name.replace(" ", ""): row[0] for row in table for name in row}


COUNTRIES = _countries()


def demonym(a: Name, b: Name) -> bool:
    x, y = (COUNTRIES.get("".join(f for f in _folded(n) if f != "the")) for n in (a, b))
    return x is not None and x == y


def trailing(a: Name, b: Name) -> bool:
    if len(a.tokens) == len(b.tokens):
        return False
    short, long = sorted((a, b), key=lambda n: len(n.tokens))
    x, y = _content(short), _content(long)
    if not x or len(x) >= len(y) or all(re.fullmatch("[0-9]+", f) for f in x):
        return False
    barred = x[0] in TYPES_AND_HONOURS or len(x[0]) < 3 or short.tokens[0].original[0].islower()
    return y[-len(x) :] == x and not (len(x) == 1 and barred)


# By the number of the core's Match, strongest first.
RULES: dict[int, Callable[[Name, Name], bool]] = {
    2: folded, 3: article, 4: plural, 5: word_order, 6: acronym, 7: initials, 8: demonym, 9: trailing,
}  # fmt: skip
CORE = sum(1 << n for n in range(8))
WIDE = CORE | 1 << 8 | 1 << 9
VECTOR = 10


def match_names(query: str, stored: str, rules: int) -> int:
    """The strongest rule that relates the two; 10 where none does."""
    a, b = parse(query), parse(stored)
    return next((n for n, rule in RULES.items() if rules >> n & 1 and rule(a, b)), VECTOR)
