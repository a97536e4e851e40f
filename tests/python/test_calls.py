"""The call syntax: the fault cases, a slow twin, round trips, the same events for any pieces of a text."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
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


def cut(text: str, rng: random.Random) -> list[str]:
    """The text in pieces; some are empty."""
    pieces = []
    while text:
        size = rng.choice([0, 1, 2, 3, 5, 8, len(text)])
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def outcome(events: list[Event]) -> tuple[list[Fact], list[Question], int, str]:
    """Facts, pending queries, number of errors, visible text."""
    facts = [fact for e in events if isinstance(e, Write) for fact in e.facts]
    errors = sum(len(e.errors) if isinstance(e, (Write, Read)) else isinstance(e, CallError) for e in events)
    return facts, calls.pending(events), errors, "".join(e.text for e in events if isinstance(e, Text))


def assert_covers(text: str, events: list[Event]) -> None:
    """Each event begins where the last ended, and shows what stands there."""
    place = 0
    for event in events:
        assert event.start == place < event.end, ascii(text)
        place = event.end
        if isinstance(event, (Text, CallError)):
            assert text[event.start : event.end] == event.text, ascii(text)
        last = event.start
        for error in getattr(event, "errors", ()):
            assert last <= error.start <= error.end <= event.end, ascii(text)
            assert text[error.start : error.end] == error.text, ascii(text)
            last = error.end
    assert place == len(text), ascii(text)


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
    rng = random.Random(case["id"])
    assert all(fed(cut(whole, rng)) == events for _ in range(20))


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

# The grammar once more, on the whole text and one character at a time: no state is kept between pieces.


def opening(text: str, at: int, end: int) -> tuple[str, int] | None:
    """The kind of the call that begins there, and where its body does."""
    found = re.compile(r"\({ {0,8}(MEM_[A-Z_]{0,32}) {0,8}(-->|[(])").match(text[:end], at)
    if found is None:
        return None
    kind = {"MEM_WRITE-->": "write", "MEM_READ(": "read"}.get(found[1] + found[2], "unknown")
    return kind, found.end()


def body_end(text: str, kind: str, at: int, end: int) -> tuple[str, int, int] | None:
    """How a body ends ("close", "arrow", "nested"), where its end begins and ends; None: it does not."""
    depth, nested = 1, False
    while at < end:
        if text[at] == "\\":
            at += 2
        elif inner := opening(text, at, end):
            depth, nested, at = depth + 1, True, inner[1]
        elif text[at : min(at + 2, end)] == "})":
            depth, at = depth - 1, at + 2
            if not depth:
                return "nested" if nested else "close", at - 2, at
        elif kind == "read" and not nested and (arrow := re.match(r"\) {0,8}-->", text[at:end])):
            return "arrow", at, at + arrow.end()
        else:
            at += 1
    return None


def units(text: str) -> list[str]:
    """Characters, each with the backslash before it."""
    out: list[str] = []
    while text:
        out.append(text[: 2 if text[0] == "\\" else 1])
        text = text[len(out[-1]) :]
    return out


def split(parts: list[str], mark: str) -> list[list[str]]:
    out: list[list[str]] = [[]]
    while parts:
        if parts[: len(mark)] == list(mark):
            out.append([])
            parts = parts[len(mark) :]
        else:
            out[-1].append(parts[0])
            parts = parts[1:]
    return out


def is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def slot(parts: list[str]) -> str | None:
    """The name in a slot; None: it can't be one."""
    while parts and parts[0].isspace():
        parts = parts[1:]
    while parts and parts[-1].isspace():
        parts = parts[:-1]
    name = ""
    for unit in parts:
        data = unit[-1]
        if unicodedata.category(data) == "Cs" or (len(unit) == 1 and is_control(unit)):
            return None
        plain = len(unit) == 2 and (data in "\\;,<>{}()" or data.isspace() or is_control(data))
        name += data if plain else unit
    return name


def told(kind: str, body: str) -> tuple[list[Any], int]:
    """What the parts of a body say, and how many say nothing."""
    parts = [part for part in split(units(body), ";") if "".join(part).strip()]
    good: list[Any] = []
    for part in parts:
        slots = [slot(piece) for piece in split(part, ">>")]
        if len(slots) != 3 or None in slots:
            continue
        subject, relation, object = slots
        assert subject is not None and relation is not None and object is not None
        if kind == "write" and subject and relation and object:
            good.append(Fact(subject, relation, object))
        elif kind == "read" and relation and bool(subject) != bool(object):
            good.append(Question(subject or None, relation, object or None))
    return good, len(parts) - len(good) + (kind == "read" and not parts)


def twin(text: str, longest: int) -> tuple[list[Fact], list[Question], int, str]:
    """Facts (those told again in one call, once), pending queries, number of errors, visible text."""
    facts: list[Fact] = []
    queries: list[Question] = []
    errors, visible, at = 0, "", 0
    while at < len(text):
        call = opening(text, at, len(text))
        if call is None:
            visible, at = visible + text[at], at + 1
            continue
        kind, start = call
        asked: list[Question] = []
        while True:
            limit = min(len(text), start + longest)
            ended = body_end(text, kind, start, limit)
            if ended is None:
                if kind == "results" and limit == len(text) and not text[start:].strip():
                    visible += text[start:]
                else:
                    errors += 1
                queries += asked
                at = limit
                break
            how, end, at = ended
            if how == "arrow":
                asked, wrong = told("read", text[start:end])
                errors += wrong
                kind, start = "results", at
                continue
            if how == "close" and kind == "write":
                good, wrong = told("write", text[start:end])
                facts += dict.fromkeys(good)
                errors += wrong
            elif not (how == "close" and kind == "results"):  # else it has been answered
                errors += 1
                queries += asked
            break
    return facts, list(dict.fromkeys(queries)), errors, visible


MARKS = [
    *("({", "})", "-->", ">>", ";", ",", "(", ")", "{", "}", "-", ">", " ", "        ", "\\"),
    *("({MEM_WRITE-->", "({ MEM_WRITE --> ", "({MEM_READ(", "({MEM_X(", "MEM_WRITE", "MEM_READ(", "MEM_"),
    *("a", "b", "a>>b>>c", "a>>b>>", ")-->", "\xa0", "\n", "\x00", "\ud800", "é"),
]


@pytest.mark.parametrize("longest", [9, 20, 40, calls.MAX_CALL])
def test_a_slow_twin_agrees(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_CALL", longest)
    rng, seen = random.Random(longest), Counter[str]()
    for _ in range(8_000):
        text = "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 24)))
        text = rng.choice(["", "({MEM_WRITE-->", "({MEM_READ(", "({MEM_READ(a>>b>>)-->"]) + text
        events = merged(calls.parse(text))
        assert outcome(events) == twin(text, longest), ascii(text)
        assert fed(cut(text, rng)) == events, ascii(text)
        assert_covers(text, events)
        seen.update(e.kind if isinstance(e, CallError) else type(e).__name__ for e in events)
    kinds = {"Text", "Write", "Read", "Results", "verb", "nested", "unterminated"}
    assert all(seen[kind] > 20 for kind in kinds) and (seen["too long"] > 100) == (longest < 100)


# ---- pieces, totality -----------------------------------------------------------------------------------

texts = st.lists(st.sampled_from([*MARKS, "x" * 50]), max_size=40).map("".join)


@given(texts)
def test_a_slow_twin_agrees_on_any_text(text: str) -> None:
    assert outcome(merged(calls.parse(text))) == twin(text, calls.MAX_CALL)


@given(texts, st.randoms(use_true_random=False))
def test_any_pieces_give_the_same_events_and_nothing_is_lost(text: str, rng: random.Random) -> None:
    events = merged(calls.parse(text))
    assert fed(cut(text, rng)) == fed(list(text)) == events
    assert_covers(text, events)


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
    (error,) = calls.parse("({MEM_WRITE-->" + "x" * calls.MAX_CALL)
    assert isinstance(error, CallError) and error.kind == "unterminated"


def test_long_texts_take_linear_work() -> None:
    # A quadratic parser would not come back from these.
    assert outcome(merged(calls.parse("plain (text) " * 300_000)))[3] == "plain (text) " * 300_000
    assert outcome(fed(["({"] * 100_000))[3] == "({" * 100_000
    assert outcome(fed(["x"] * 300_000))[3] == "x" * 300_000
    assert outcome(fed(["({MEM_WRITE-->", *["("] * 200_000]))[2] == 1
    assert len(calls.parse("({MEM_WRITE-->a>>b>>c})" * 100_000)) == 100_000
    assert outcome(merged(calls.parse("({MEM_WRITE-->" * 100_000)))[2] == -(
        -1_400_000 // (calls.MAX_CALL + 14)
    )


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
        (lambda: calls.render_results("ab"), "iterable of names, not 'ab'"),
        (lambda: calls.render_results(None), "iterable of names"),  # type: ignore[arg-type]
        (lambda: calls.render_write("abc"), "iterable of facts"),
        (lambda: calls.render_write([("a", "b", "c"), 5]), "fact 1"),  # type: ignore[list-item]
        (lambda: calls.render_write([{"a", "b", "c"}]), "fact 0"),  # type: ignore[list-item]
        (lambda: calls.render_read([None]), "query 0"),  # type: ignore[list-item]
        (lambda: calls.parse(None), "string or bytes"),  # type: ignore[arg-type]
        (lambda: calls.render_results(["a"], "|"), "separator"),
        (lambda: Parser("|"), "separator"),
        (lambda: calls.parse_results("a", ""), "separator"),
    ],
)
def test_what_can_not_be_written_is_refused(render: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        render()
