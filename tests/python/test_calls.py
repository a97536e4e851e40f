"""The call syntax: the fault cases, a slow twin, round trips, the same events for any pieces of a text."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_file
from hypothesis import given
from hypothesis import strategies as st

import pymemstore
from pymemstore import InvalidArgument, calls
from pymemstore.calls import CallError, Event, Fact, Parser, Question, Read, Results, Text, Write


def cases(name: str) -> list[Any]:
    lines = shared_file(f"cases/calls/{name}.jsonl").read_text("utf-8").splitlines()
    return [pytest.param(json.loads(line), id=json.loads(line)["id"]) for line in lines]


def merged(events: list[Event]) -> list[Event]:
    """Neighbouring texts made one."""
    whole: list[Event] = []
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + event.text, last.start, event.end)
        else:
            whole.append(event)
    return whole


def fed(pieces: list[str] | list[bytes]) -> list[Event]:
    parser = Parser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged(events + parser.finish())


def outcome(events: list[Event]) -> tuple[list[Fact], list[Question], int, str]:
    """Facts, pending queries, number of errors, visible text."""
    facts = [fact for e in events if isinstance(e, Write) for fact in e.facts]
    errors = sum(len(e.errors) if isinstance(e, (Write, Read)) else isinstance(e, CallError) for e in events)
    return facts, calls.pending(events), errors, "".join(e.text for e in events if isinstance(e, Text))


# ---- the cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("write_calls") + cases("read_calls") + cases("stream_chunks"))
def test_cases(case: dict[str, Any]) -> None:
    chunks = case.get("chunks") or [case["text"]]
    events = fed(chunks)
    facts, queries, errors, text = outcome(events)
    assert [list(fact) for fact in facts] == case.get("triples", [])
    assert [q._asdict() for q in queries] == case.get("queries", [])
    assert errors == case.get("errors", 0)
    for key in ("rest", "visible"):
        assert text == case.get(key, text)
    whole = "".join(chunks)
    assert fed([whole]) == fed(list(whole)) == events
    assert fed([bytes([byte]) for byte in whole.encode()]) == events


def test_a_query_is_there_with_its_last_chunk_and_not_before() -> None:
    parser = Parser()
    assert parser.feed("({MEM_READ(A>>r") == parser.feed(">>)-") == []
    assert parser.feed("->") == [Read((Question("A", "r", None),), 0, (), 0, 21)]
    assert parser.finish() == []


@pytest.mark.parametrize("case", [case for case in cases("results_with_delimiters") if case.id != "d4"])
def test_results_with_delimiters(case: dict[str, Any], tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m.mem") as memory:
        memory.add_many(case["stored"])
        names = memory.query(**case["query"]).names
    assert sorted(names) == sorted(o for _, _, o in case["stored"])
    for separator in (";", ","):
        text = "before ({MEM_READ(A>>r>>)-->" + calls.render_results(names, separator) + " after"
        _, asked, answered, after = merged(calls.parse(text, separator))
        assert isinstance(asked, Read) and isinstance(answered, Results)
        assert answered.names == tuple(names) and after == Text(" after", len(text) - 6, len(text))


def test_more_results_than_the_limit_are_told(tmp_path: Path) -> None:
    (case,) = (p.values[0] for p in cases("results_with_delimiters") if p.id == "d4")
    with pymemstore.open(tmp_path / "m.mem") as memory:
        memory.add_many(case["stored"])
        result = memory.query(**case["query"], limit=case["limit"])
        assert len(result) == 30 and result.truncated
        assert result.names == memory.query(**case["query"]).names[:30]


# ---- a slow twin --------------------------------------------------------------------------------------

# The whole grammar as a few regular expressions, for text without backslashes, control characters and calls
# inside calls: what follows an opening is found by looking for the first end.
TWIN = re.compile(
    r"\(\{ *MEM_WRITE *-->(?P<write>.*?)\}\)"
    r"|\(\{ *MEM_READ *\((?P<read>(?:(?!\}\)).)*?)\) *-->(?:(?P<results>.*?)\}\))?"
    r"|\(\{ *MEM_[A-Z_]* *(?:-->|\().*?(?:\}\)|\Z)",
    re.DOTALL,
)


def twin(text: str) -> tuple[list[Fact], list[Question], int, str]:
    facts: list[Fact] = []
    queries: list[Question] = []
    errors, visible, at = 0, "", 0
    for call in TWIN.finditer(text):
        visible += text[at : call.start()]
        at = call.end()
        kind = next((k for k in ("write", "read") if call[k] is not None), None)
        if kind is None:
            errors += 1
            continue
        parts = [part for part in call[kind].split(";") if part.strip()]
        errors += kind == "read" and not parts
        good: list[Any] = []
        for part in parts:
            slots = [slot.strip() for slot in part.split(">>")]
            if kind == "write":
                fine = len(slots) == 3 and all(slots)
            else:
                fine = len(slots) == 3 and bool(slots[1]) and bool(slots[0]) != bool(slots[2])
            errors += not fine
            if fine and kind == "write":
                good.append(Fact(*slots))
            elif fine:
                good.append(Question(slots[0] or None, slots[1], slots[2] or None))
        if kind == "write":
            facts += dict.fromkeys(good)
        elif call["results"] is None:
            if text[call.end() :].strip():  # results that have no end
                errors, at = errors + 1, len(text)
            queries += good
    return facts, list(dict.fromkeys(queries)), errors, visible + text[at:]


MARKS = [
    "({",
    "})",
    "-->",
    ">>",
    ";",
    "MEM_WRITE",
    "MEM_READ(",
    ")",
    "a",
    "b",
    " ",
    ">",
    "(",
    "-",
    "MEM_X",
    "{",
]


def test_a_slow_twin_agrees() -> None:
    rng, seen = random.Random(7), 0
    for _ in range(30_000):
        text = "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 14)))
        text = rng.choice(["", "({MEM_WRITE-->", "({MEM_READ(", "({MEM_READ(a>>b>>)-->"]) + text
        if len(re.findall(r"\(\{ *MEM_[A-Z_]* *(?:-->|\()", text)) != 1:
            continue  # calls inside calls are another test's
        seen += 1
        assert outcome(merged(calls.parse(text))) == twin(text), text
    assert seen > 10_000


# ---- pieces, totality -----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from([*MARKS, "\\", "é", "\x00", "\n", "\ud800", "x" * 50]), max_size=40).map(
    "".join
)


@given(texts, st.randoms(use_true_random=False))
def test_any_pieces_give_the_same_events_and_nothing_is_lost(text: str, rng: random.Random) -> None:
    events = merged(calls.parse(text))
    pieces, rest = [], text
    while rest:
        cut = rng.randint(0, len(rest))
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert fed(pieces) == fed(list(text)) == events
    place = 0
    for event in events:  # each begins where the last ended, and shows what stands there
        assert event.start == place or (isinstance(event, Results) and event.start >= place)
        place = event.end
        if isinstance(event, (Text, CallError)):
            assert text[event.start : event.end] == event.text
        for error in getattr(event, "errors", ()):
            assert text[error.start : error.end] == error.text
    assert place == len(text)


@given(st.lists(st.sampled_from(["a>>r>>b", "a>>r", " ", "", ">>r>>b", "a>>r>>b>>c", "x>>y>>z"]), max_size=8))
def test_every_part_is_a_fact_a_repeat_or_an_error(parts: list[str]) -> None:
    (write,) = calls.parse("({MEM_WRITE-->" + ";".join(parts) + "})")
    assert isinstance(write, Write)
    told = len(write.facts) + write.repeats + len(write.errors)
    assert told == sum(bool(part.strip()) for part in parts)


def test_a_call_inside_a_call_has_no_effect_and_the_text_goes_on_after_it() -> None:
    text = "a ({MEM_WRITE-->A>>r>>({MEM_READ(B>>r>>)-->C});D>>r>>E}) b ({MEM_WRITE-->F>>r>>G})"
    before, error, between, write = calls.parse(text)
    assert (
        isinstance(error, CallError)
        and error.kind == "nested"
        and text[error.start : error.end] == error.text
    )
    assert (before, between) == (Text("a ", 0, 2), Text(" b ", error.end, error.end + 3))
    assert isinstance(write, Write) and write.facts == (("F", "r", "G"),)


@pytest.mark.parametrize("size", [calls.MAX_CALL, calls.MAX_CALL + 1])
def test_a_call_has_a_longest_length(size: int) -> None:
    body = "a>>r>>" + "x" * (size - len("a>>r>>})"))
    text = "({MEM_WRITE-->" + body + "})"
    events = merged(calls.parse(text))
    assert fed([text[i : i + 1000] for i in range(0, len(text), 1000)]) == events
    if size <= calls.MAX_CALL:
        assert outcome(events)[0] == [("a", "r", body[6:])]
    else:
        error, rest = events
        assert isinstance(error, CallError) and error.kind == "too long" and isinstance(rest, Text)
        assert error.text + rest.text == text


def test_long_texts_take_linear_work() -> None:
    # A quadratic parser would not come back from these.
    assert outcome(merged(calls.parse("plain (text) " * 300_000)))[3] == "plain (text) " * 300_000
    assert outcome(fed(["({"] * 100_000))[3] == "({" * 100_000
    assert outcome(fed(["x"] * 300_000))[3] == "x" * 300_000
    assert outcome(fed(["({MEM_WRITE-->", *["("] * 200_000]))[2] == 1


def test_bytes_that_are_no_text() -> None:
    assert merged(calls.parse(b"a\xffb")) == [Text("a\ufffdb", 0, 3)]
    parser = Parser()
    events = parser.feed(b"caf\xc3") + parser.feed("x") + parser.finish()
    assert outcome(events)[3] == "caf\ufffdx"


# ---- round trips ----------------------------------------------------------------------------------------

characters = st.one_of(st.sampled_from("\\;,<>{}()- \n\t\x00\x85\xa0a"), st.characters(codec="utf-8"))
marks = st.sampled_from([")", " ", "-", "})", "({", ">>", "-->", ") -->", "\\", "a"])
names = st.one_of(st.text(characters, min_size=1), st.lists(marks, min_size=1).map("".join))


@given(st.lists(st.tuples(names, names, names), max_size=4))
def test_written_facts_are_read_back(facts: list[tuple[str, str, str]]) -> None:
    (write,) = calls.parse(calls.render_write(facts))
    assert isinstance(write, Write)
    assert list(write.facts) == list(dict.fromkeys(facts)) and write.errors == ()


@given(st.lists(st.tuples(names, names, st.booleans()), min_size=1, max_size=4), st.lists(names, min_size=1))
@pytest.mark.parametrize("separator", [";", ","])
def test_reads_and_results_are_read_back(
    separator: str, asked: list[tuple[str, str, bool]], found: list[str]
) -> None:
    queries = [(e, r, None) if subject else (None, r, e) for e, r, subject in asked]
    text = calls.render_read(queries) + calls.render_results(found, separator) + "."
    read, results, end = calls.parse(text, separator)
    assert isinstance(read, Read) and list(read.queries) == list(dict.fromkeys(queries))
    assert isinstance(results, Results) and list(results.names) == found
    assert isinstance(end, Text) and end.text == "."
    assert calls.pending([read]) == list(read.queries) and calls.pending([read, results, end]) == []
    written = [calls.escape(name, separator) for name in found]
    assert [calls.unescape(name) for name in written] == found
    # A server that looks for these strings doesn't find them in a name.
    assert not any(mark in name for name in written for mark in ("({", "})", ">>", "-->"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("A (band)", "A (band)"),
        ("x --> y", r"x --\> y"),
        ("Rock; Pop", r"Rock\; Pop"),
        ("smile :})", r"smile :\}\)"),
        ("f(x)-1", r"f(x\)-1"),
        ("x) --", r"x\) --"),
        ("C:\\new", r"C:\\new"),
        (" ", r"\ "),
        (" a ", r"\ a\ "),
        ("a\nb", "a\\\nb"),
    ],
)
def test_the_escape(name: str, written: str) -> None:
    assert calls.escape(name) == written and calls.unescape(written) == name


def test_a_backslash_before_what_needs_none_is_data() -> None:
    (write,) = calls.parse(r"({MEM_WRITE-->C:\new>>is a>>folder})")
    assert isinstance(write, Write) and write.facts == (("C:\\new", "is a", "folder"),)


@pytest.mark.parametrize(
    ("render", "said"),
    [
        (lambda: calls.render_write([("a", "b", "c"), ("a", "b")]), "fact 1"),
        (lambda: calls.render_write([("a", "", "c")]), "fact 0"),
        (lambda: calls.render_write([("a", "b", "\ud800")]), "surrogate"),
        (lambda: calls.render_read([("a", "b", "c")]), "query 0"),
        (lambda: calls.render_read([(None, "b", None)]), "query 0"),
        (lambda: calls.render_read([("a", None, None)]), "relation"),
        (lambda: calls.render_read([]), "needs a query"),
        (lambda: calls.render_results(["a", ""]), "result 1"),
        (lambda: calls.render_results(["a"], "|"), "separator"),
        (lambda: Parser("|"), "separator"),
        (lambda: calls.parse_results("a", ""), "separator"),
    ],
)
def test_what_can_not_be_written_is_refused(render: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        render()
