"""Single operations of the engine, for comparing one build with another (pytest-benchmark).

    pytest benchmarks/bench_engine.py --benchmark-columns=median,iqr,ops

The names are made up, seeded and of three words each, so that this needs no data.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import pymemstore

FACTS = 20_000
RELATIONS = ["country", "capital of", "place of birth", "occupation", "part of", "date of birth", "spouse"]
_SYLLABLES = [c + v + e for c in "kmtrlvsbdgnpf" for v in "aeiou" for e in ("", "n", "r")]


def make_facts(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Distinct facts, about five for each subject."""
    rng = random.Random(seed)

    def name() -> str:
        words = ("".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))).capitalize() for _ in range(3))
        return " ".join(words)

    names = [name() for _ in range(count // 5)]
    facts: dict[tuple[str, str, str], None] = {}
    while len(facts) < count:
        facts[rng.choice(names), rng.choice(RELATIONS), rng.choice(names)] = None
    return list(facts)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pymemstore.Memory]:
    """A store of FACTS facts, asked often enough that its scan codes exist."""
    with pymemstore.open(tmp_path_factory.mktemp("engine") / "facts.mem", threads=1) as memory:
        memory.add_many(make_facts(FACTS, 1))
        for s, r, _ in make_facts(100, 1):
            memory.query(s, r)
        yield memory


@pytest.fixture(scope="module")
def facts() -> Iterator[tuple[str, str, str]]:
    """The stored facts, over and over."""
    return itertools.cycle(make_facts(FACTS, 1))


def test_query_by_text(
    benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]]
) -> None:
    def ask() -> pymemstore.QueryResult:
        s, r, _ = next(facts)
        return store.query(s, r)

    assert benchmark(ask).hits


@pytest.mark.parametrize("rules", ["none", "core"])
def test_query_by_vectors(
    benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]], rules: str
) -> None:
    asked = [
        (s, r, store.vector(s), store.vector(r, relation=True)) for s, r, _ in itertools.islice(facts, 500)
    ]
    turns = itertools.cycle(asked)

    def ask() -> pymemstore.QueryResult:
        s, r, sv, rv = next(turns)
        text: dict[str, Any] = {"subject": s, "relation": r} if rules == "core" else {}
        return store.query(subject_vector=sv, relation_vector=rv, rules=rules, **text)

    assert benchmark(ask).hits


def test_query_many_100(
    benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]]
) -> None:
    queries = [(s, r, None) for s, r, _ in itertools.islice(facts, 100)]
    assert all(benchmark(store.query_many, queries))


def test_contains(benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]]) -> None:
    assert benchmark(lambda: store.contains(*next(facts)))


def test_triples_of_a_subject(
    benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]]
) -> None:
    assert benchmark(lambda: list(store.triples(subject=next(facts)[0])))


def test_similar_entities(
    benchmark: Any, store: pymemstore.Memory, facts: Iterator[tuple[str, str, str]]
) -> None:
    found = (store.vector(s) for s, _, _ in itertools.islice(facts, 500))
    vectors = itertools.cycle([v for v in found if v is not None])
    assert benchmark(lambda: store.similar_entities(next(vectors), 0.7))


@pytest.mark.parametrize("sync", ["full", "relaxed"])
def test_add_one(benchmark: Any, tmp_path: Path, sync: Literal["full", "relaxed"]) -> None:
    new = iter(make_facts(FACTS, 2))
    with pymemstore.open(tmp_path / "one.mem", sync=sync) as memory:
        benchmark.pedantic(lambda: memory.add(*next(new)), rounds=200, warmup_rounds=5)
        assert len(memory) == 205


def test_add_many_10000(benchmark: Any, tmp_path: Path) -> None:
    rows = make_facts(10_000, 3)
    numbers = itertools.count()

    def add() -> int:
        with pymemstore.open(tmp_path / f"{next(numbers)}.mem") as memory:
            return memory.add_many(rows).inserted

    assert benchmark.pedantic(add, rounds=5, warmup_rounds=1) == len(rows)
