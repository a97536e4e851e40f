"""The EBNF grammar of calls, as a regular expression, against the automaton."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from twin_automaton import SMALL, head

from pymemstore import calls
from pymemstore.errors import InvalidArgument
from pymemstore.memllm.automaton import ReadCall, WriteCall
from pymemstore.memllm.grammar import ebnf

PIECE = re.compile(
    r'(?P<literal>"(?:[^"\\]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<rule>[a-z]+)|'
    r"(?P<sign>[()|*+?]|\{\d+,\d+\})|\s+"
)


def unquoted(escape: re.Match[str]) -> str:
    return chr(int(escape[1][1:], 16)) if len(escape[1]) > 1 else escape[1]


def as_pattern(grammar: str) -> re.Pattern[str]:
    """The grammar as a regular expression: it has no recursion."""
    rules = dict(line.split(" ::= ") for line in grammar.strip().split("\n"))

    def of(rule: str) -> str:
        written, at = "", 0
        while at < len(rules[rule]):
            piece = PIECE.match(rules[rule], at)
            assert piece, rules[rule][at:]
            at = piece.end()
            if piece["literal"]:
                text = re.sub(r"\\(u[0-9a-f]{4}|U[0-9a-f]{8}|.)", unquoted, piece["literal"][1:-1])
                written += f"(?:{re.escape(text)})"
            else:
                written += piece["set"] or (
                    f"(?:{of(piece['rule'])})" if piece["rule"] else piece["sign"] or ""
                )
        return written

    return re.compile(of("root"))


def accepted(call: Any, text: str) -> bool:
    guide = call()
    for byte in text.encode():
        if guide.done:
            return False
        try:
            guide.advance(1 + byte)
        except InvalidArgument:
            return False
    return bool(guide.done)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("relations", [None, ["r", 'say "x"', "a\\b", "x\ny", "日本🦊", "ab\u2028c"]])
def test_the_grammar_accepts_what_the_automaton_accepts(write: bool, relations: list[str] | None) -> None:
    grammar = ebnf("write" if write else "read", relations=relations, max_parts=2, opened=False)
    pattern = as_pattern(grammar)
    make: Any = WriteCall if write else ReadCall
    call, rng = make(SMALL, relations=relations, max_parts=2, max_name_bytes=10_000), random.Random(8)
    units = ["a", "A", " ", ")", "-", ">", ">>", ";", "\\", "{", "}", "(", "-->", ")-->", "})", "r"]
    units += ["\u2003", "\n", "é", "🦊", "\\;", ") -", "\x85", "\xa0"]
    both = 0
    for _ in range(4000):
        parts = []
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            names = ["".join(rng.choices(units, k=rng.randint(0, 4))) for _ in range(3)]
            names = [calls.escape(n) if n and rng.random() < 0.7 else n for n in names]
            if relations and rng.random() < 0.9:
                names[1] = calls.escape(rng.choice(relations))
            if not write and rng.random() < 0.9:
                names[rng.choice([0, 2])] = rng.choice(["", " "])
            parts.append(">>".join(names))
        text = head(write)[rng.random() < 0.2] + ";".join(parts) + ("})" if write else ")-->")
        agreed = pattern.fullmatch(text) is not None
        assert agreed == accepted(call, text), text
        both += agreed
        if agreed:
            assert not calls.parse(text + "})")[0].errors  # type: ignore[union-attr]
    assert both > 150
    opened = as_pattern(ebnf("write" if write else "read", relations=relations, max_parts=2))
    texts = ["MEM_WRITE-->})", " MEM_WRITE-->a>>r>>b})", "MEM_READ(a>>r>>)-->", "MEM_READ( >>r>>a\\;b)-->"]
    assert [opened.fullmatch(text) is not None for text in texts] == [write, write, not write, not write]


def test_grammars_refuse_what_they_can_not_say() -> None:
    with pytest.raises(InvalidArgument, match="kind must be"):
        ebnf("ask")
    with pytest.raises(InvalidArgument, match="there is none"):
        ebnf("read", relations=[])
    with pytest.raises(InvalidArgument, match="max_parts"):
        ebnf("read", max_parts=0)
    with pytest.raises(InvalidArgument, match="a name must be"):
        ebnf("read", relations=[""])
