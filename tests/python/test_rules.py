"""The rules between two spellings of a name, and their keys, against the Python twin."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import twin_surface as twin
from hypothesis import given, settings
from hypothesis import strategies as st

from pymemstore import _core

PIECES = (
    *(
        "the ",
        "a ",
        "Obama",
        "obama",
        "Barack ",
        "B. ",
        "BH ",
        "J. R. ",
        "John ",
        "Ronald ",
        "ab ",
        "abs",
        "xes",
    ),
    *(
        "of ",
        "Inc ",
        "1",
        "12 ",
        "States ",
        "State",
        "U. S. ",
        "US",
        "UK",
        "British",
        "’s",
        "II",
        "River",
        "Sea ",
    ),
    *("seas", "हिन्दी ", "é ", "-", " ", "😀", "İ ", "SS", "ß "),
)
NAMES = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
# Names of one another's kind, so that every rule is met often.
RELATED = (
    *(
        "US",
        "America",
        "the US",
        "the United States",
        "United State",
        "UK",
        "British",
        "Church",
        "the churches",
        "sea",
        "Seas",
    ),
    *("JR", "John Rowe", "J. Rowe", "Rowe", "BO", "Bank of Oslo", "Oslo Bank", "BoO", "J. R. R. Tolkien"),
    *(
        "John Ronald Reuel Tolkien",
        "J R Tolkien",
        "Tolkien",
        "IBM",
        "International Business Machines Corp",
        "",
        "!",
    ),
)


def agrees(a: str, b: str) -> int:
    """Checks the rules and keys of one pair; the match."""
    match = _core.match_names(a, b, twin.WIDE)
    assert match == twin.match_names(a, b, twin.WIDE), (a, b)
    assert match == _core.match_names(b, a, twin.WIDE), (a, b)
    for rule in twin.RULES:
        alone = _core.match_names(a, b, 1 << rule)
        assert alone == twin.match_names(a, b, 1 << rule), (a, b, rule)
        if alone == rule:
            asked = set(_core.rule_keys(a, 1 << rule, True))
            assert asked & set(_core.rule_keys(b, 1 << rule, False)), (a, b, rule)
            assert asked & set(_core.rule_keys(b, twin.WIDE, False)), (a, b, rule)
    assert _core.numbers_agree(a, b) == (twin.parse(a).numbers == twin.parse(b).numbers), (a, b)
    return match


@settings(max_examples=1000, deadline=None)
@given(NAMES, NAMES, NAMES)
def test_random_names(a: str, b: str, prefix: str) -> None:
    agrees(a, b)
    agrees(a, prefix + a)
    agrees(a + "s", a)


def test_related_names() -> None:
    seen = Counter(agrees(a, b) for a, b in itertools.product(RELATED, repeat=2))
    assert set(seen) == {*twin.RULES, twin.VECTOR}


@pytest.fixture(scope="module")
def entities(test_data: Callable[[str], Path]) -> list[list[list[str]]]:
    """For each document its entities, each a list of names."""
    documents = json.loads(test_data("docred/dev_revised.json").read_text(encoding="utf-8"))
    return [[sorted({m["name"] for m in v}) for v in d["vertexSet"]] for d in documents]


def test_names_of_one_document(entities: list[list[list[str]]]) -> None:
    seen: Counter[int] = Counter()
    for document in entities[::10]:
        names = sorted({name for entity in document for name in entity})
        seen.update(agrees(a, b) for a, b in itertools.combinations(names, 2))
    assert sum(seen.values()) > 5000
    assert len(seen) >= 7


def test_aliases(entities: list[list[list[str]]]) -> None:
    pairs = {pair for d in entities for entity in d for pair in itertools.combinations(entity, 2)}
    seen = Counter(agrees(a, b) for a, b in sorted(pairs))
    # A tenth of the aliases is found by the core rules, twice that by the trailing words.
    assert sum(seen[rule] for rule in range(2, 8)) > 0.09 * len(pairs)
    assert seen[9] > 0.15 * len(pairs)


def test_keys_find_just_what_the_rules_relate(entities: list[list[list[str]]]) -> None:
    """A lookup by keys then rules equals the rules on every stored name, and keys find few others."""
    names = sorted({name for d in entities[:25] for entity in d for name in entity})
    listed: dict[int, set[str]] = {}
    for name in names:
        for key in _core.rule_keys(name, twin.CORE, False):
            listed.setdefault(key, set()).add(name)
    looked_at = 0
    for query in names[::4]:
        found = set().union(*(listed.get(key, ()) for key in _core.rule_keys(query, twin.CORE, True)))
        looked_at += len(found)
        related = {name for name in names if twin.match_names(query, name, twin.CORE) != twin.VECTOR}
        assert {n for n in found if _core.match_names(query, n, twin.CORE) != twin.VECTOR} == related
    assert looked_at < 3 * len(names[::4])


def test_keys_are_part_of_the_format() -> None:
    assert _core.rule_keys("The Beatles", 1 << 2, False) == [twin.hash64("Fthebeatles")]
    assert _core.rule_keys("The Beatles", twin.CORE, False) == sorted(
        map(twin.hash64, ("Fthebeatles", "Fbeatles", "Fbeatle", "Etb", "Gtbeatles"))
    )
    assert set(_core.rule_keys("NATO", 1 << 6, True)) == {twin.hash64("Enato")}
    assert _core.rule_keys("?!", twin.WIDE, True) == []


@pytest.mark.parametrize(
    "name", ["", "\0", "😀", "the", "'s", "x " * 100_000, "x" * (1 << 20)], ids=lambda n: n[:3]
)
def test_any_name_has_keys_and_matches(name: str) -> None:
    parsed, numbers = _core.parse_name(name)
    match = _core.match_names(name, name, twin.CORE)
    assert match == (2 if parsed else twin.VECTOR)
    assert bool(_core.rule_keys(name, twin.CORE, False)) == bool(parsed)
    assert numbers == []


def test_lone_surrogates_are_refused() -> None:
    for call in (
        lambda: _core.parse_name("\ud800"),
        lambda: _core.match_names("a", "\ud800", twin.CORE),
        lambda: _core.rule_keys("\ud800", twin.CORE, True),
        lambda: _core.numbers_agree("\ud800", "a"),
        lambda: _core.encode_surface(["a", "\ud800"]),
    ):
        with pytest.raises(ValueError):
            call()
