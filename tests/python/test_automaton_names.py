"""What the slots of guided calls take: spans, a store that changes; and guides from descriptions."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin_automaton import SMALL, span_twin

import pymemstore
from pymemstore import calls
from pymemstore.errors import InvalidArgument, NotFound
from pymemstore.memllm.automaton import ReadCall, Spans, StoreNames, Vocabulary, WriteCall, guide_from_spec

# ---- spans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Ana Lima was born in Recife.",
        "A (band)) - x)-y\nB; C\n\nnot over an empty line",
        "cafe\u0301 Köln 日本語 U.S. O'Neill {a} \\b\\ c>d",
        "x" * 200 + " y",
        "a a a ab",
    ],
)
def test_spans_are_all_from_word_to_word(text: str) -> None:
    most = 20
    call = WriteCall(
        SMALL, entities=Spans(text, max_bytes=most), relations=["r"], max_parts=1, allow_empty=False
    )
    found, stack = set(), [""]
    while stack:  # every path of single characters
        prefix = stack.pop()
        mask = call(f"({{MEM_WRITE-->{prefix}")
        allowed = mask.mask()
        escaping = (len(prefix) - len(prefix.rstrip("\\"))) % 2 == 1
        if allowed[1 + ord(">")] and not escaping:
            found.add(calls.unescape(prefix))
        for char in set(text) | {"\\"}:
            raw = char.encode()
            if char != ">" or escaping:
                guide = call(f"({{MEM_WRITE-->{prefix}")
                try:
                    for byte in raw:
                        guide.advance(1 + byte)
                except InvalidArgument:
                    continue
                if char != " " or prefix:
                    stack.append(prefix + char)
    expected = span_twin(text, most)
    assert found <= span_twin(text, 10**6)
    # `)` before `-` is escaped in a span that ends there too, which costs it a byte.
    assert {s for s in expected if len(calls.escape(s).encode()) <= most - 2} <= found


def test_an_empty_context_has_no_names() -> None:
    for text in ("", " \n\n ", "x" * 500):
        with pytest.raises(InvalidArgument, match="no entity"):
            ReadCall(SMALL, entities=Spans(text))()
        guide = WriteCall(SMALL, entities=Spans(text))("({MEM_WRITE-->")
        assert {SMALL.token(int(i)) for i in np.flatnonzero(guide.mask())} == {b"})", b"}", b" "}


# ---- a store that changes ------------------------------------------------------------------------


def firsts(call: Any, prefix: str = "({MEM_READ(") -> set[str]:
    """The names that a slot may take, by trying each."""
    found = set()
    for name in ("Ana", "Bob", "Cy", "Di", "Ev;e", "Fay"):
        guide = call(prefix)
        try:
            for byte in (calls.escape(name) + ">>").encode():
                guide.advance(1 + byte)
        except InvalidArgument:
            continue
        found.add(name)
    return found


CHILD = """
import sys, pymemstore
with pymemstore.open(sys.argv[1]) as memory:
    memory.add("Fay", "likes", "Ana")
    memory.rename("Di", "Cy")
"""


def test_a_store_change_is_in_the_next_guide(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m") as memory:
        memory.add("Ana", "likes", "Bob")
        memory.add("Ana", "owns", "Cy")
        entities, relations = StoreNames(memory), StoreNames(memory, relation=True)
        call = ReadCall(SMALL, entities=entities, relations=relations)
        assert firsts(call) == {"Ana", "Bob", "Cy"}
        old = call("({MEM_READ(")
        memory.add("Ev;e", "likes", "Ana")
        memory.rename("Cy", "Di")
        memory.forget("Bob")
        assert firsts(call) == {"Ana", "Di", "Ev;e"}
        assert old.mask()[1 + ord("B")]  # a guide keeps the names that it began with
        memory.rename("likes", "Di", relation=True)  # a relation of an entity's name
        memory.rename("Di", "Bob")
        memory.rename("owns", "Cy", relation=True)
        assert firsts(call) == {"Ana", "Bob", "Ev;e"}
        memory.rename("Bob", "Di")
        memory.add("Bob", "Di", "Ana")
        memory.forget("Bob")
        memory.add_entities(["Bob"])
        assert firsts(call) == {"Ana", "Bob", "Di", "Ev;e"}
        assert firsts(call, "({MEM_READ(Ana>>") == {"Di", "Cy"}
        subprocess.run([sys.executable, "-c", CHILD, tmp_path / "m"], check=True)
        assert firsts(call) == {"Ana", "Bob", "Cy", "Ev;e", "Fay"}
        assert not entities.refresh()
        assert len(entities) == 5 == len(list(memory.entities()))


def test_random_changes_end_in_the_names_of_the_store(tmp_path: Path) -> None:
    rng = random.Random(4)
    with pymemstore.open(tmp_path / "m") as memory:
        memory.add_many([(f"n{i}", "r", f"m{i}") for i in range(3000)])
        names = StoreNames(memory)
        for step in range(60):
            there = list(memory.entities())
            kind = rng.random()
            if kind < 0.4:
                memory.add_entities(
                    [f"{rng.choice('xyz')}{step};{i}" for i in range(rng.choice([1, 5, 200]))]
                )
            elif kind < 0.7:
                memory.forget(rng.choice(there))
            else:
                memory.rename(rng.choice(there), f"re{step}")
            if step % 7 == 0:
                memory.add_entities([f"big{step}.{i}" for i in range(1500)])  # past a merge
            names.refresh()
            now = list(memory.entities())
            assert len(names) == len(now)
            call = ReadCall(SMALL, entities=names, relations=["r"])
            for name in rng.sample(now, 5):
                assert not call(f"({{MEM_READ({calls.escape(name)}>>").done
            for name in set(there) - set(now):
                with pytest.raises(InvalidArgument):
                    call(f"({{MEM_READ({calls.escape(name)}>>")


def test_long_names_of_a_list_are_allowed() -> None:
    long = "ab" * 5000
    call = ReadCall(SMALL, entities=[long, "z"], relations=["r"], max_name_bytes=10)
    assert not call(f"({{MEM_READ({long}>>").done
    # With a budget the long one is out of reach, and the guide takes the other.
    guide = call("({MEM_READ(", 30)
    assert not guide.mask()[1 + ord("a")] and guide.mask()[1 + ord("z")]


# ---- descriptions, errors, grammar ---------------------------------------------------------------


def test_specs_make_the_same_guides(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    with pymemstore.open(path) as memory:
        memory.add("Ana", "likes", "Bob")
        opening, names = "({MEM_READ(", (StoreNames(memory), StoreNames(memory, relation=True))
        stored: dict[str, Any] = {"kind": "read", "entities": "store", "relations": "store", "store": path}
        listed: dict[str, Any] = {"kind": "read", "entities": "context", "relations": ["r"]}
        facts: dict[str, Any] = {"kind": "write", "allow_empty": False, "prefix": "({MEM_WRITE-->"}
        cases: list[tuple[dict[str, Any], Any]] = [
            ({"kind": "read"}, ReadCall(SMALL)()),
            (facts, WriteCall(SMALL, allow_empty=False)("({MEM_WRITE-->")),
            ({**stored, "prefix": opening}, ReadCall(SMALL, entities=names[0], relations=names[1])(opening)),
            (
                {**listed, "context": "Ana Lima", "prefix": opening, "max_tokens": 15},
                ReadCall(SMALL, entities=Spans("Ana Lima"), relations=["r"])(opening, 15),
            ),
        ]
        for spec, guide in cases:
            made = guide_from_spec(json.loads(json.dumps(spec)), SMALL)
            assert made.mask().tolist() == guide.mask().tolist(), spec
        spec = cases[2][0]
        memory.add("Zoe", "likes", "Bob")
        assert guide_from_spec(spec, SMALL).mask()[1 + ord("Z")]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, "kind must be"),
        ({"kind": "read", "x": 1}, "no key x"),
        ({"kind": "read", "entities": "all"}, "entities must be"),
        ({"kind": "read", "relations": 5}, "relations must be"),
        ({"kind": "read", "entities": "store"}, "store: expected a string"),
        ({"kind": "read", "relations": "context"}, "context: expected a string"),
        ({"kind": "read", "prefix": 4}, "prefix: expected"),
        ({"kind": "read", "allow_empty": True}, "of writes"),
        ({"kind": "read", "max_tokens": 0}, "max_tokens must be"),
        ({"kind": "read", "max_parts": "2"}, "max_parts must be"),
        ({"kind": "read", "relations": [""]}, "relations: a name must be"),
        ({"kind": "read", "relations": ["\ud800"]}, "lone surrogate"),
        ({"kind": "write", "relations": [3]}, "relations"),
        ("read", "must be an object"),
    ],
)
def test_wrong_specs_say_what_is_wrong(spec: Any, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        guide_from_spec(spec, SMALL)


def test_wrong_arguments_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="expected a Vocabulary"):
        ReadCall("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not the string"):
        ReadCall(SMALL, relations="born in")
    with pytest.raises(InvalidArgument, match="EOS id 9"):
        Vocabulary([b"a"], eos=(9,))
    with pytest.raises(InvalidArgument, match="token 1: expected bytes"):
        Vocabulary([b"a", "b"])  # type: ignore[list-item]
    with pytest.raises(NotFound):
        guide_from_spec({"kind": "read", "entities": "store", "store": str(tmp_path / "none")}, SMALL)
