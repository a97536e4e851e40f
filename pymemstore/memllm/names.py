"""Names that a slot of a call may take: those of a store, kept up to date, and the spans of a text."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _core
from ..calls import escape
from ..errors import InvalidArgument, NotFound
from ..memory import Memory

__all__ = ["Spans", "StoreNames", "rendered"]

_PAGE = 4096
_RELOAD = 200_000  # changes of the store after which all names are read again
# A page of names, joined by NUL, in which none needs an escape. Conservative: others are escaped one by one.
_NEEDS_ESCAPE = re.compile(r"[\\;>{}\x01-\x1f\x7f-\x9f]|\) *-|(?:\A|\x00)[\s\x00]|\s(?:\Z|\x00)|\x00\Z")
_CHUNK = 128


def rendered(names: Sequence[str]) -> list[str]:
    """The names as `calls.escape` writes them. InvalidArgument for what can't be a name."""
    written: list[str] = []
    for at in range(0, len(names), _CHUNK):
        chunk = names[at : at + _CHUNK]
        try:
            joined = "\0".join(chunk)
        except TypeError:
            joined = ""  # `escape` says which
        if (
            joined
            and joined.count("\0") == len(chunk) - 1
            and not _NEEDS_ESCAPE.search(joined)
            and all(chunk)
        ):
            written += chunk
        else:
            written += map(escape, chunk)
    return written


class StoreNames:
    """The names of a store's entities, or relations. Aliases are not among them.

    They are read once, about a second per million, and kept sorted in memory (about 40 bytes and the name's
    own each). A guide calls `refresh` when it begins: names added, renamed and forgotten since, by any
    process, are taken over without reading the others. May be used from several threads.

    Args:
        memory: an open store; must stay open.
        relation: the relations.
    """

    def __init__(self, memory: Memory, *, relation: bool = False) -> None:
        self._memory, self._relation = memory, bool(relation)
        self._lock = threading.Lock()
        self.set = _core.NameSet()
        self._next = self._seq = 0
        with self._lock:
            self._load()

    def __len__(self) -> int:
        return len(self.set)

    def refresh(self) -> bool:
        """Takes over what the store's names have become; whether anything had changed. Errors as those of the
        store's methods (Closed, Corruption)."""
        store = self._memory._store
        with self._lock:
            if not store.names(self._relation, self._next, 1) and not store.changes(self._seq, 1):
                return False
            if int(store.stats()["seq"]) - self._seq > _RELOAD:
                self._load()
                return True
            touched = self._touched()  # before the names: what changes in between is seen next time
            gone: list[str] = []
            there: list[str] = []
            for name in touched:
                (there if self._exists(name) else gone).append(name)
            fresh = self._unseen()
            if gone or there or fresh:
                self.set.update(rendered([*there, *fresh]), rendered(gone))
            return True

    def _load(self) -> None:
        self._seq, self._next = int(self._memory._store.stats()["seq"]), 0
        whole = _core.NameSet()
        whole.update(rendered(self._unseen()), [])
        self.set = whole

    def _unseen(self) -> list[str]:
        found: list[str] = []
        while page := self._memory._store.names(self._relation, self._next, _PAGE):
            found += [name for _, name in page]
            self._next = page[-1][0] + 1
        return found

    def _touched(self) -> list[str]:
        """Names that were forgotten, or given or taken by a rename, since the last look."""
        found: dict[str, None] = {}
        while page := self._memory._store.changes(self._seq, _PAGE):
            for seq, op, _, _, _, name, other in page:
                if op in ("forget", "rename"):
                    found.update(dict.fromkeys(text for text in (name, other) if text))
                self._seq = seq
        return list(found)

    def _exists(self, name: str) -> bool:
        try:
            self._memory._store.aliases(name, self._relation)
        except NotFound:
            return False
        return True


class Spans:
    """The spans of a text that may be names: from a beginning of a word to an end of a word.

    Words are runs of letters, digits and marks; any other character, and each character of scripts that are
    written without spaces, is a word of its own. Line breaks and tabs count as a space; no span goes over
    an empty line.

    Args:
        text: the text.
        max_bytes: of a span, as it is written.
    """

    def __init__(self, text: str, *, max_bytes: int = 128) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"expected a text, not {text!r:.40}")
        if max_bytes < 1:
            raise InvalidArgument(f"max_bytes must be at least 1, not {max_bytes}")
        self.max_bytes = max_bytes
        self._text, self._starts, self._ends = _words(text)

    def index(self, vocabulary: _core.Vocabulary) -> _core.NameSet:
        """For one vocabulary."""
        return _core.NameSet.spans(self._text, self._starts, self._ends, self.max_bytes, vocabulary)


# ---- words ------------------------------------------------------------------------------------------

_BREAK = "\0"
# Written without spaces between words: Thai to Burmese, Khmer, kana, Han, Hangul has spaces.
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
             (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
_LINES = re.compile(r"[^\S ]*\n[\s]*\n\s*|[^\S\n]*\n[^\S\n]*|[\t\v\f\r\x1c-\x1f\x85]+")
_WORD = re.compile(r"[wm]+|[uo]m*(?:jom*)*|[mj]+")
_ESCAPED = re.compile(r"[\\;>{}]|\)(?= *-)|(?<=\})\)")


class _Classes(dict[str, str]):
    """w: of a word; u: a word of its own; m: a mark; j: a joiner; o: other; s: space; c: control."""

    def __missing__(self, char: str) -> str:
        code, category = ord(char), unicodedata.category(char)
        if char == _BREAK or category == "Cc" or category == "Cs":
            found = "c"
        elif char.isspace():
            found = "s"
        elif char == "\u200d":
            found = "j"
        elif category[0] == "M" or 0x1F3FB <= code <= 0x1F3FF or category == "Cf":
            found = "m"
        elif any(first <= code <= last for first, last in _UNSPACED) and category[0] in "LN":
            found = "u"
        else:
            found = "w" if category[0] in "LN" or char == "_" else "o"
        self[char] = found
        return found


_CLASSES = _Classes()


def _words(text: str) -> tuple[str, list[int], list[int]]:
    """The text escaped, controls as NUL, and the offsets in its UTF-8 where words begin and end."""
    text = _LINES.sub(lambda found: _BREAK if found[0].count("\n") > 1 else " ", text)
    classes = "".join(map(_CLASSES.__getitem__, text))
    if "c" in classes:
        text = "".join(_BREAK if kind == "c" else char for char, kind in zip(text, classes, strict=True))
    words = [found.span() for found in _WORD.finditer(classes)]
    # From a place in the text to one in what is written.
    pieces, bounds, last, offset = [], sorted({at for word in words for at in word}), 0, 0
    places: dict[int, int] = {}
    escaped = {found.start() for found in _ESCAPED.finditer(text)}
    for at in bounds:
        piece = text[last:at]
        if escaped and not escaped.isdisjoint(range(last, at)):
            piece = "".join(("\\" if i in escaped else "") + char for i, char in enumerate(piece, last))
        pieces.append(piece)
        offset += len(piece.encode())
        places[at], last = offset, at
    return "".join(pieces), sorted(places[a] for a, _ in words), sorted(places[b] for _, b in words)


def name_set(names: Iterable[str]) -> Any:
    """A set that does not change. InvalidArgument for what can't be a name."""
    made = _core.NameSet()
    made.update(rendered(list(names)), [])
    return made
