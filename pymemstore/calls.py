"""The syntax of MemLLM's calls: parse and render (section 3.2). docs/calls.md has the grammar.

A write `({MEM_WRITE-->e>>t>>e;e>>t>>e})`; a read `({MEM_READ(e>>t>>;>>t>>e)-->` with one empty slot a query,
then results, each a name, and `})`.

`Parser` takes text in any pieces and gives the same events for any of them. It never fails and drops nothing
in silence: what is not plain text, a fact, a query or a result is an error with its place. Only what is
terminated and well formed takes effect.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from .errors import InvalidArgument

__all__ = [
    "MAX_CALL",
    "CallError",
    "Event",
    "Fact",
    "Parser",
    "Question",
    "Read",
    "Results",
    "Text",
    "Write",
    "escape",
    "parse",
    "parse_results",
    "pending",
    "render_read",
    "render_results",
    "render_write",
    "unescape",
]

MAX_CALL = 1 << 16  # characters; a longer call is an error, and its rest is text
_T = TypeVar("_T")
Kind = Literal[
    "slots", "empty", "both slots", "control", "surrogate", "verb", "nested", "unterminated", "too long"
]


class Fact(NamedTuple):
    """What a write stores."""

    subject: str
    relation: str
    object: str


class Question(NamedTuple):
    """What a read asks; one of subject and object is None, the open slot."""

    subject: str | None
    relation: str
    object: str | None


@dataclass(frozen=True)
class CallError:
    """Something that takes no effect.

    Attributes:
        kind: of a part of a call: "slots" (not three), "empty" (a slot that must not be), "both slots" (a
            query without an open one), "control" (a raw control character), "surrogate" (a lone one). Of a
            call: "verb" (unknown), "nested" (a call inside it), "unterminated", "too long" (`MAX_CALL`).
        message: says what was wrong.
        text: the part, or the call as far as it came.
        start, end: its place in the stream, in characters.
    """

    kind: Kind
    message: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Text:
    """Plain text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Write:
    """A terminated write. Attributes: facts, each once, in order; repeats: how many more were told again;
    errors: the other parts. facts + repeats + errors are all parts that are not blank."""

    facts: tuple[Fact, ...]
    repeats: int
    errors: tuple[CallError, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Read:
    """A read up to its arrow. It asks unless `Results` follow. Attributes as of `Write`."""

    queries: tuple[Question, ...]
    repeats: int
    errors: tuple[CallError, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Results:
    """What follows a read's arrow, up to and including `})`: the read has been answered."""

    names: tuple[str, ...]
    start: int
    end: int


Event = Text | Write | Read | Results | CallError

_OPEN = re.compile(r"\(\{ {0,8}(MEM_[A-Z_]{0,32}) {0,8}(-->|\()")
# What may still become an opening when more text comes.
_MAYBE = re.compile(r"\((\{ {0,8}(M(E(M(_([A-Z_]{0,32}( {0,8}(-(-)?)?)?)?)?)?)?)?)?\Z")
_LONGEST_OPENING = 96
# What ends a body, or is none of its data. An escaped character is one with its backslash.
_IN_WRITE = re.compile(r"\\.|\(\{|\}\)", re.DOTALL)
_IN_READ = re.compile(r"\\.|\(\{|\}\)|\) {0,8}-->", re.DOTALL)
_MAYBE_ARROW = re.compile(r"\) {0,8}(-(-)?)?\Z")
_UNIT = re.compile(r"\\.|.", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPABLE = re.compile(r"\\([\\;,<>{}()\s\x00-\x1f\x7f-\x9f])")
# `)` behind `}` too, so that no written name holds `})`, which ends calls where strings are looked for.
_ESCAPED = re.compile(r"[\\;>{}\x00-\x1f\x7f-\x9f]|\)(?= {0,8}-)|(?<=\})\)")
_ESCAPED_COMMA = re.compile(r"[\\;,>{}\x00-\x1f\x7f-\x9f]|\)(?= {0,8}-)|(?<=\})\)")
_SEPARATORS = (";", ",")


# ---- names ------------------------------------------------------------------------------------------


def escape(name: str, separator: str = ";") -> str:
    """A name as it is written in a slot or a result: a backslash before what would not be data.

    That is `\\ ; > { }`, control characters, `)` before `-` (and spaces) or behind `}`, white space at either
    end, and `,` where it is the separator.

    Raises:
        InvalidArgument: what can't be a name (empty, a lone surrogate); a wrong separator.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a name must be a string that is not empty, not {name!r:.40}")
    if _SURROGATE.search(name):
        raise InvalidArgument(f"{name!r:.60} holds a lone surrogate: it can't be a name")
    pattern = _ESCAPED_COMMA if _separator(separator) == "," else _ESCAPED
    written = pattern.sub(r"\\\g<0>", name)
    if name[0].isspace() and not written.startswith("\\"):
        written = "\\" + written
    if len(name) > 1 and name[-1].isspace() and not _CONTROL.match(name[-1]):
        written = f"{written[:-1]}\\{written[-1]}"
    return written


def unescape(text: str) -> str:
    """The name that is written so. A backslash before what needs none is data."""
    return _ESCAPABLE.sub(r"\1", text) if "\\" in text else text


def _separator(separator: str) -> str:
    if separator not in _SEPARATORS:
        raise InvalidArgument(f"separator must be ';' or ',', not {separator!r:.20}")
    return separator


# ---- render -----------------------------------------------------------------------------------------


def render_write(facts: Iterable[Sequence[str]]) -> str:
    """A whole write call. InvalidArgument names the first item that is not three names."""
    parts = []
    for i, fact in enumerate(_each(facts, "facts")):
        if not _has_three(fact):
            raise InvalidArgument(f"fact {i}: expected three names, not {fact!r:.60}")
        parts.append(">>".join(_slot(f"fact {i}", name) for name in fact))
    return f"({{MEM_WRITE-->{';'.join(parts)}}})"


def render_read(queries: Iterable[Sequence[str | None]]) -> str:
    """A read call up to its arrow. InvalidArgument names the first item that is not a query: (subject,
    relation, object) with just one of subject and object None."""
    parts = []
    for i, query in enumerate(_each(queries, "queries")):
        if not _has_three(query) or (query[0] is None) == (query[2] is None):
            raise InvalidArgument(f"query {i}: expected three slots, first or last None, not {query!r:.60}")
        subject, relation, object = query
        if relation is None:
            raise InvalidArgument(f"query {i}: the relation is None")
        parts.append(
            ">>".join("" if s is None else _slot(f"query {i}", s) for s in (subject, relation, object))
        )
    if not parts:
        raise InvalidArgument("a read needs a query")
    return f"({{MEM_READ({';'.join(parts)})-->"


def render_results(names: Iterable[str], separator: str = ";") -> str:
    """What follows a read's arrow, `})` included."""
    listed = enumerate(_each(names, "names"))
    return _separator(separator).join(_slot(f"result {i}", name, separator) for i, name in listed) + "})"


def _each(values: Iterable[_T], what: str) -> Iterable[_T]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"expected an iterable of {what}, not {values!r:.40}")
    return values


def _has_three(item: object) -> bool:
    """A set is none: its order is not the caller's."""
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item) == 3


def _slot(where: str, name: str, separator: str = ";") -> str:
    try:
        return escape(name, separator)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


# ---- parts ------------------------------------------------------------------------------------------


def _split(text: str, delimiter: str) -> list[tuple[int, str]]:
    """The pieces between unescaped delimiters, with their offsets."""
    if delimiter not in text:
        return [(0, text)]
    pieces, last = [], 0
    for found in re.finditer(rf"\\.|{re.escape(delimiter)}", text, re.DOTALL):
        if found[0] == delimiter:
            pieces.append((last, text[last : found.start()]))
            last = found.end()
    pieces.append((last, text[last:]))
    return pieces


def _name(text: str) -> tuple[str, Kind | None]:
    """A slot's name, without outer white space, and what is wrong with it."""
    if "\\" not in text:
        name = text.strip()
        wrong = _CONTROL.search(name)
    else:
        units = _UNIT.findall(text.lstrip())
        while units and units[-1].isspace():
            units.pop()
        wrong = next((m for unit in units if (m := _CONTROL.match(unit))), None)  # not behind a backslash
        name = unescape("".join(units))
    if wrong:
        return name, "control"
    return name, "surrogate" if _SURROGATE.search(name) else None


_SAID = {"control": "a raw control character in a name", "surrogate": "a lone surrogate in a name"}


def _wrong_fact(subject: str, relation: str, object: str) -> tuple[Kind, str] | None:
    return None if subject and relation and object else ("empty", "a slot of the fact is empty")


def _wrong_query(subject: str, relation: str, object: str) -> tuple[Kind, str] | None:
    if not relation:
        return "empty", "the relation is empty"
    if subject and object:
        return "both slots", "both entities are given, one must be open"
    return None if subject or object else ("empty", "both entities are empty")


def _told(
    body: str,
    at: int,
    what: str,
    wrong: Callable[[str, str, str], tuple[Kind, str] | None],
    make: Callable[[str, str, str], _T],
) -> tuple[tuple[_T, ...], int, tuple[CallError, ...]]:
    """The parts of a body that begins there: those well formed, each once; the repeats; the errors."""
    items, errors = [], []
    for offset, part in _split(body, ";"):
        if not part.strip():
            continue
        slots = [_name(slot) for _, slot in _split(part, ">>")]
        error: tuple[Kind, str] | None = ("slots", f"{len(slots)} slots, a {what} has three")
        if len(slots) == 3:
            (subject, _), (relation, _), (object, _) = slots
            error = wrong(subject, relation, object)
            error = error or next(((kind, _SAID[kind]) for _, kind in slots if kind), None)
            if not error:
                items.append(make(subject, relation, object))
        if error:
            errors.append(CallError(*error, part, at + offset, at + offset + len(part)))
    if what == "query" and not items and not errors:
        errors.append(CallError("empty", "a read without a query", body, at, at + len(body)))
    once = tuple(dict.fromkeys(items))
    return once, len(items) - len(once), tuple(errors)


def parse_results(text: str, separator: str = ";") -> list[str]:
    """The names of a rendered list of results, without its `})`. Blank ones are none."""
    names = (_name(part)[0] for _, part in _split(text, _separator(separator)))
    return [name for name in names if name]


# ---- the parser -------------------------------------------------------------------------------------


class Parser:
    """Takes a text in pieces. Not to be used after `finish`.

    Args:
        separator: between results.
    """

    def __init__(self, separator: str = ";") -> None:
        self._separator = _separator(separator)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0  # its place in the stream
        self._from = 0  # how much of it has been given out
        self._scan = 0  # how much of it has been looked at
        self._state: Literal["text", "write", "read", "results", "skip"] = "text"
        self._start = 0  # of the call, in the stream
        self._depth = 0  # of calls inside the call
        self._whole = ""  # the call's opening, for its error
        self._wrong: tuple[Kind, str] = ("verb", "")  # of a skipped call
        self._events: list[Event] = []

    def feed(self, piece: str | bytes) -> list[Event]:
        """Takes more of the text, gives the events that it completes. Bytes are UTF-8; what is none becomes
        U+FFFD. InvalidArgument: neither a string nor bytes; nothing of it is taken."""
        if isinstance(piece, str):
            piece = self._decoder.decode(b"", True) + piece
        elif isinstance(piece, (bytes, bytearray, memoryview)):
            piece = self._decoder.decode(piece)
        else:
            raise InvalidArgument(f"a piece of text must be a string or bytes, not {piece!r:.40}")
        self._text += piece
        while self._in_text() if self._state == "text" else self._in_call():
            pass
        # Once a piece, not once an event: many calls in one piece take linear work.
        self._text = self._text[self._from :]
        self._at += self._from
        self._scan -= self._from
        self._from = 0
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """Ends the text: the last events."""
        events = self.feed("")
        if self._state == "text" or (self._state == "results" and not self._text.strip()):
            self._give(len(self._text))
        else:
            what = "results have" if self._state == "results" else "a call has"
            self._skip("unterminated", f"{what} no end")
            self._fail(len(self._text))
        return events + self._events

    def _give(self, end: int) -> None:
        """What comes before is plain text."""
        if end > self._from:
            text = self._text[self._from : end]
            self._events.append(Text(text, self._at + self._from, self._at + end))
        self._drop(end)

    def _drop(self, end: int) -> None:
        self._from = self._scan = end

    # _in_text and _in_call go on to the next state. False: more text is needed.

    def _in_text(self) -> bool:
        at = self._text.find("({", self._scan)
        while at >= 0:
            if opening := _OPEN.match(self._text, at):
                self._give(at)
                self._open(opening)
                return True
            if len(self._text) - at < _LONGEST_OPENING and _MAYBE.match(self._text, at):
                break
            at = self._text.find("({", at + 1)
        self._give(at if at >= 0 else len(self._text) - self._text.endswith("(", self._from))
        return False

    def _open(self, opening: re.Match[str]) -> None:
        self._start, self._depth, self._whole = self._at + opening.start(), 1, opening[0]
        self._drop(opening.end())
        if opening.groups() == ("MEM_WRITE", "-->"):
            self._state = "write"
        elif opening.groups() == ("MEM_READ", "("):
            self._state = "read"
        else:
            self._skip("verb", f"no call begins with {opening[1]}{opening[2]}")

    def _in_call(self) -> bool:
        text, end = self._text, min(len(self._text), self._from + MAX_CALL)
        pattern = _IN_READ if self._state == "read" else _IN_WRITE
        while found := pattern.search(text, self._scan, end):
            mark, at = found[0], found.start()
            self._scan = found.end()
            if mark == "({":
                inner = _OPEN.match(text, at, end)
                if inner is None and end - at < _LONGEST_OPENING and _MAYBE.match(text, at, end):
                    self._scan = at
                    break
                if inner:  # nothing of either takes effect
                    self._scan, self._depth = inner.end(), self._depth + 1
                    self._skip("nested", "a call inside a call")
                    pattern = _IN_WRITE
            elif mark == "})":
                self._depth -= 1
                if self._depth == 0:
                    self._close(at, found.end())
                    return True
            elif mark[0] == ")":
                self._asked(at, found.end())
                return True
        else:
            # The end may be the first part of a mark.
            tail = max(self._scan, end - 1)
            if text[tail:end] not in ("\\", "(", "}"):
                tail = end
            if self._state == "read":
                maybe = _MAYBE_ARROW.search(text, max(self._scan, end - 12), end)
                tail = min(tail, maybe.start()) if maybe else tail
            self._scan = tail
        if len(text) - self._from > MAX_CALL:
            self._skip("too long", f"more than {MAX_CALL} characters without an end")
            self._fail(end)
            self._state = "text"
            return True
        return False

    def _skip(self, kind: Kind, message: str) -> None:
        """The call is an error; the first one counts. Its end is looked for all the same."""
        if self._state != "skip":
            self._state, self._wrong = "skip", (kind, message)

    def _fail(self, end: int) -> None:
        """The error of a skipped call, which ends there."""
        text = self._whole + self._text[self._from : end]
        self._events.append(CallError(*self._wrong, text, self._start, self._at + end))
        self._drop(end)

    def _close(self, at: int, end: int) -> None:
        """The call's own `})`."""
        body, place = self._text[self._from : at], self._at + self._from
        if self._state == "write":
            told = _told(body, place, "fact", _wrong_fact, Fact)
            self._events.append(Write(*told, self._start, self._at + end))
        elif self._state == "results":
            names = tuple(parse_results(body, self._separator))
            self._events.append(Results(names, self._start, self._at + end))
        else:
            self._skip("unterminated", "a read without its arrow")
            self._fail(end)
        self._state = "text"
        self._drop(end)

    def _asked(self, at: int, end: int) -> None:
        body, place = self._text[self._from : at], self._at + self._from
        told = _told(body, place, "query", _wrong_query, lambda s, r, o: Question(s or None, r, o or None))
        self._events.append(Read(*told, self._start, self._at + end))
        self._state, self._whole, self._start = "results", "", self._at + end
        self._drop(end)


def parse(text: str | bytes, separator: str = ";") -> list[Event]:
    """All events of a whole text."""
    parser = Parser(separator)
    return parser.feed(text) + parser.finish()


def pending(events: Iterable[Event]) -> list[Question]:
    """The queries of the reads that have no results yet, each once."""
    asked: dict[Question, None] = {}
    last: Read | None = None
    for event in events:
        if last is not None and not isinstance(event, Results):
            asked.update(dict.fromkeys(last.queries))
        last = event if isinstance(event, Read) else None
    if last is not None:
        asked.update(dict.fromkeys(last.queries))
    return list(asked)
