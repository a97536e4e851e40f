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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    if not _is_unicode(name):
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


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _separator(separator: str) -> str:
    if separator not in _SEPARATORS:
        raise InvalidArgument(f"separator must be ';' or ',', not {separator!r:.20}")
    return separator


# ---- render -----------------------------------------------------------------------------------------


def render_write(facts: Iterable[Sequence[str]]) -> str:
    """A whole write call. InvalidArgument names the first item that is not three names."""
    parts = []
    for i, fact in enumerate(facts):
        if isinstance(fact, str) or len(fact) != 3:
            raise InvalidArgument(f"fact {i}: expected three names, not {fact!r:.60}")
        parts.append(">>".join(_slot(f"fact {i}", name) for name in fact))
    return f"({{MEM_WRITE-->{';'.join(parts)}}})"


def render_read(queries: Iterable[Sequence[str | None]]) -> str:
    """A read call up to its arrow. InvalidArgument names the first item that is not a query: (subject,
    relation, object) with just one of subject and object None."""
    parts = []
    for i, query in enumerate(queries):
        if isinstance(query, str) or len(query) != 3 or (query[0] is None) == (query[2] is None):
            raise InvalidArgument(
                f"query {i}: expected three slots, the first or the last None, not {query!r:.60}"
            )
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
    joined = _separator(separator).join(_slot(f"result {i}", name, separator) for i, name in enumerate(names))
    return joined + "})"


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
        units = [unit[0] for unit in _UNIT.finditer(text)]
        while units and units[0].isspace():
            units.pop(0)
        while units and units[-1].isspace():
            units.pop()
        wrong = next((m for unit in units if len(unit) == 1 and (m := _CONTROL.match(unit))), None)
        name = unescape("".join(units))
    if wrong:
        return name, "control"
    return name, None if _is_unicode(name) else "surrogate"


_SAID = {"control": "a raw control character in a name", "surrogate": "a lone surrogate in a name"}


def _facts(body: str, at: int) -> tuple[list[Fact], list[CallError]]:
    facts, errors = [], []
    for offset, part in _split(body, ";"):
        if not part.strip():
            continue
        slots = [_name(slot) for _, slot in _split(part, ">>")]
        wrong = next((kind for _, kind in slots if kind), None)
        place = (part, at + offset, at + offset + len(part))
        if len(slots) != 3:
            errors.append(CallError("slots", f"{len(slots)} slots, a fact has three", *place))
        elif not all(name for name, _ in slots):
            errors.append(CallError("empty", "a slot of the fact is empty", *place))
        elif wrong:
            errors.append(CallError(wrong, _SAID[wrong], *place))
        else:
            facts.append(Fact(*(name for name, _ in slots)))
    return facts, errors


def _questions(body: str, at: int) -> tuple[list[Question], list[CallError]]:
    questions, errors = [], []
    parts = [part for part in _split(body, ";") if part[1].strip()]
    if not parts:
        errors.append(CallError("empty", "a read without a query", body, at, at + len(body)))
    for offset, part in parts:
        slots = [_name(slot) for _, slot in _split(part, ">>")]
        wrong = next((kind for _, kind in slots if kind), None)
        place = (part, at + offset, at + offset + len(part))
        if len(slots) != 3:
            errors.append(CallError("slots", f"{len(slots)} slots, a query has three", *place))
            continue
        (subject, _), (relation, _), (object, _) = slots
        if not relation:
            errors.append(CallError("empty", "the relation is empty", *place))
        elif subject and object:
            errors.append(CallError("both slots", "both entities are given, one must be open", *place))
        elif not subject and not object:
            errors.append(CallError("empty", "both entities are empty", *place))
        elif wrong:
            errors.append(CallError(wrong, _SAID[wrong], *place))
        else:
            questions.append(Question(subject or None, relation, object or None))
    return questions, errors


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
        self._text = ""  # not given out yet
        self._at = 0  # its place in the stream
        self._scan = 0  # how much of it has been looked at
        self._state: Literal["text", "write", "read", "results", "skip"] = "text"
        self._start = 0  # of the call, in the stream
        self._depth = 0  # of calls inside the call
        self._whole = ""  # the call's opening, for its error
        self._wrong: tuple[Kind, str] = ("verb", "")  # of a skipped call
        self._events: list[Event] = []

    def feed(self, piece: str | bytes) -> list[Event]:
        """Takes more of the text, gives the events that it completes. Bytes are UTF-8; what is none becomes
        U+FFFD."""
        if isinstance(piece, str):
            piece = self._decoder.decode(b"", True) + piece
        else:
            piece = self._decoder.decode(piece)
        self._text += piece
        while self._step():
            pass
        return self._take()

    def finish(self) -> list[Event]:
        """Ends the text: the last events."""
        events = self.feed("")
        if self._state == "text" or (self._state == "results" and not self._text.strip()):
            self._give(len(self._text))
        else:
            what = "results have" if self._state == "results" else "a call has"
            self._skip("unterminated", f"{what} no end")
            self._fail(len(self._text))
        self._state, self._text = "text", ""
        return events + self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _give(self, count: int) -> None:
        """The next characters are plain text."""
        if count:
            self._events.append(Text(self._text[:count], self._at, self._at + count))
            self._drop(count)

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]
        self._at += count
        self._scan = 0

    def _step(self) -> bool:
        """Goes on to the next state; False: more text is needed."""
        return self._in_text() if self._state == "text" else self._in_call()

    def _in_text(self) -> bool:
        at = self._text.find("(", self._scan)
        while at >= 0:
            opening = _OPEN.match(self._text, at)
            if opening:
                self._give(at)
                self._open(opening[1], opening[2], opening.end() - at)
                return True
            if len(self._text) - at < _LONGEST_OPENING and _MAYBE.match(self._text, at):
                break
            at = self._text.find("(", at + 1)
        self._give(at if at >= 0 else len(self._text))
        return False

    def _open(self, verb: str, sign: str, length: int) -> None:
        self._start, self._depth = self._at, 1
        self._whole = self._text[:length]
        self._drop(length)
        if (verb, sign) == ("MEM_WRITE", "-->"):
            self._state = "write"
        elif (verb, sign) == ("MEM_READ", "("):
            self._state = "read"
        else:
            self._skip("verb", f"no call begins with {verb}{sign}")

    def _in_call(self) -> bool:
        view = self._text[:MAX_CALL]
        pattern = _IN_READ if self._state == "read" else _IN_WRITE
        while found := pattern.search(view, self._scan):
            mark, at = found[0], found.start()
            self._scan = found.end()
            if mark == "({":
                inner = _OPEN.match(view, at)
                if inner is None and len(view) - at < _LONGEST_OPENING and _MAYBE.match(view, at):
                    self._scan = at
                    break
                if inner:  # nothing of either takes effect
                    self._scan, self._depth = inner.end(), self._depth + 1
                    self._skip("nested", "a call inside a call")
                    pattern = _IN_WRITE
            elif mark == "})":
                self._depth -= 1
                if self._depth == 0:
                    self._close(at)
                    return True
            elif mark[0] == ")":
                self._asked(at, found.end())
                return True
        else:
            # The end may be the first part of a mark.
            tail = max(self._scan, len(view) - 1)
            if view[tail:] not in ("\\", "(", "}"):
                tail = len(view)
            if self._state == "read":
                maybe = _MAYBE_ARROW.search(view, max(self._scan, len(view) - 12))
                tail = min(tail, maybe.start()) if maybe else tail
            self._scan = tail
        if len(self._text) > MAX_CALL:
            self._skip("too long", f"more than {MAX_CALL} characters without an end")
            self._fail(MAX_CALL)
            self._state = "text"
            self._drop(MAX_CALL)
            return True
        return False

    def _skip(self, kind: Kind, message: str) -> None:
        """The call is an error; the first one counts. Its end is looked for all the same."""
        if self._state != "skip":
            self._state, self._wrong = "skip", (kind, message)

    def _fail(self, length: int) -> None:
        """The error of a skipped call, which ends after so many more characters."""
        text = self._whole + self._text[:length]
        self._events.append(CallError(*self._wrong, text, self._start, self._at + length))

    def _close(self, at: int) -> None:
        """The call's own `})`."""
        body, end = self._text[:at], at + len("})")
        if self._state == "write":
            facts, errors = _facts(body, self._at)
            once = tuple(dict.fromkeys(facts))
            repeats = len(facts) - len(once)
            self._events.append(Write(once, repeats, tuple(errors), self._start, self._at + end))
        elif self._state == "results":
            names = tuple(parse_results(body, self._separator))
            self._events.append(Results(names, self._at, self._at + end))
        else:
            self._skip("unterminated", "a read without its arrow")
            self._fail(end)
        self._state = "text"
        self._drop(end)

    def _asked(self, at: int, end: int) -> None:
        questions, errors = _questions(self._text[:at], self._at)
        once = tuple(dict.fromkeys(questions))
        repeats = len(questions) - len(once)
        self._events.append(Read(once, repeats, tuple(errors), self._start, self._at + end))
        self._state, self._whole = "results", ""
        self._drop(end)
        self._start = self._at


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
