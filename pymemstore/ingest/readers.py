"""Readers: facts out of JSONL and TSV files, one item at a time, every bad record told by its number.

A reader yields `Fact`, `Name`, `Alias` and `ExternalId` items, and a `Bad` for each record that can't be
taken. Files are read as bytes and decoded line by line, so one bad line costs that line only; a UTF-8 byte
order mark and CR LF line ends are taken off. gzip, bzip2 and xz are told by their first bytes, never by the
file's name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from pymemstore.errors import IOError

__all__ = [
    "BOM", "Alias", "Bad", "ExternalId", "Fact", "Item", "Name", "Source", "Wrong", "checked_name",
    "read_jsonl", "read_tsv",
]  # fmt: skip

BOM = b"\xef\xbb\xbf"
_SNIFF_STEP = 1 << 16
_SNIFF_LIMIT = 1 << 22


class Fact(NamedTuple):
    """A triple, with the number of the record (a line, a document, a row) that it comes from."""

    line: int
    subject: str
    relation: str
    object: str
    source: str | None = None


class Name(NamedTuple):
    """An entity (or relation), which need not have facts."""

    line: int
    name: str
    relation: bool = False


class Alias(NamedTuple):
    """Another name for the entity (or relation) `name`."""

    line: int
    alias: str
    name: str
    relation: bool = False


class ExternalId(NamedTuple):
    """An identifier in another data set, such as "geonames:2988507", for the entity (or relation) `name`."""

    line: int
    external_id: str
    name: str
    relation: bool = False


class Bad(NamedTuple):
    """A record that can't be taken, and why."""

    line: int
    why: str


Item: TypeAlias = Fact | Name | Alias | ExternalId | Bad


class Wrong(Exception):
    """Why one record can't be taken."""


class _Counted(io.RawIOBase):
    """The bytes as they come from the disk or the pipe; `position` feeds the progress bar."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self.position = 0
        self._head = b""
        while len(self._head) < 6:  # a pipe may hand over a byte at a time
            more = inner.read(6 - len(self._head))
            if not more:
                break
            self._head += more
        self.magic = self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            piece = self._head[: len(buffer)]
            self._head = self._head[len(piece) :]
        else:
            # read1 hands over what a pipe has; read would wait for a full buffer
            read1 = getattr(self._inner, "read1", self._inner.read)
            piece = read1(len(buffer))
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


class _Body(io.RawIOBase):
    """The decompressed bytes; what was looked at to tell the format comes first again."""

    def __init__(self, inner: BinaryIO, name: str) -> None:
        self._inner = inner
        self._name = name
        self.head = b""

    def readable(self) -> bool:
        return True

    def take(self, size: int) -> bytes:
        try:
            return self._inner.read1(size) if hasattr(self._inner, "read1") else self._inner.read(size)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise IOError(f"{self._name}: the compressed data is truncated or damaged ({error})") from error
        except OSError as error:
            if error.errno is None:  # bz2's "Invalid data stream"
                raise IOError(
                    f"{self._name}: the compressed data is truncated or damaged ({error})"
                ) from error
            raise

    def readinto(self, buffer: Any) -> int:
        if self.head:
            piece = self.head[: len(buffer)]
            self.head = self.head[len(piece) :]
        else:
            piece = self.take(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class Source:
    """A file, or standard input for "-", opened for reading. A context manager.

    `size` is the file's length in bytes (None for a pipe), `position` how many of them have been read
    (compressed bytes for a compressed file). Raises OSError when the file can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = "standard input" if os.fspath(path) == "-" else os.fspath(path)
        self._owned = os.fspath(path) != "-"
        inner: BinaryIO = open(path, "rb") if self._owned else sys.stdin.buffer  # noqa: SIM115
        self._file = inner
        self.size: int | None = os.fstat(inner.fileno()).st_size if self._owned else None
        self._counted = _Counted(inner)
        buffered = io.BufferedReader(self._counted, 1 << 16)
        magic = self._counted.magic
        body: Any = buffered
        if magic.startswith(b"\x1f\x8b"):
            body = gzip.GzipFile(fileobj=buffered)
        elif magic.startswith(b"BZh"):
            body = bz2.BZ2File(buffered)
        elif magic.startswith(b"\xfd7zXZ"):
            body = lzma.LZMAFile(buffered)  # noqa: SIM115
        self._body = _Body(body, self.name)
        self.stream = io.BufferedReader(self._body, 1 << 16)

    @property
    def position(self) -> int:
        return self._counted.position

    def head(self) -> bytes:
        """The first bytes, to the end of the first line that isn't blank (4 MiB at most). Call it first."""
        taken = b""
        while len(taken) < _SNIFF_LIMIT:
            text = taken.removeprefix(BOM).lstrip()
            if b"\n" in text or (text[:1] == b"[" and text[1:].lstrip()):
                break
            piece = self._body.take(_SNIFF_STEP)
            if not piece:
                break
            taken += piece
        self._body.head = taken
        return taken

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._owned:
            self._file.close()


def checked_name(value: object, what: str) -> str:
    """`value` when it is a name that can be stored; raises Wrong that says what is wrong with it."""
    if not isinstance(value, str):
        shown = (
            "null"
            if value is None
            else {bool: "true or false", dict: "an object", list: "a list"}.get(type(value))
        )
        raise Wrong(f"the {what} is {shown or 'a number'}, not a string")
    if not value:
        raise Wrong(f"the {what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Wrong(f"the {what} holds a lone surrogate (character {error.start + 1})") from None
    return value


def _lines(source: Source) -> Iterator[tuple[int, str] | Bad]:
    for number, raw in enumerate(source.stream, 1):
        if number == 1:
            raw = raw.removeprefix(BOM)
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not line.strip(b" "):
            continue
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            yield Bad(
                number, f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
            )


def read_tsv(source: Source) -> Iterator[Item]:
    """Lines of subject, relation, object and perhaps source, parted by tabs. No quotes, escapes or header."""
    for entry in _lines(source):
        if isinstance(entry, Bad):
            yield entry
            continue
        number, text = entry
        cells = text.split("\t")
        try:
            if len(cells) not in (3, 4):
                raise Wrong(f"{len(cells)} columns, not 3 or 4")
            s, r, o = (checked_name(cell, what) for cell, what in zip(cells, _SLOTS, strict=False))
            yield Fact(number, s, r, o, cells[3] or None if len(cells) == 4 else None)
        except Wrong as wrong:
            yield Bad(number, str(wrong))


_SLOTS = ("subject", "relation", "object")


def read_jsonl(source: Source) -> Iterator[Item]:
    """One JSON value a line.

    A triple is ["s", "r", "o"] or {"subject": ..., "relation": ..., "object": ..., "source": ...} (source
    optional). {"entity": ...} or {"relation": ...} with no other key, {"alias": ..., "entity": ...},
    {"alias": ..., "relation": ...} and the same with "external_id" are what an export with names adds.
    Elsewhere other keys are passed over.
    """
    for entry in _lines(source):
        if isinstance(entry, Bad):
            yield entry
            continue
        number, text = entry
        try:
            yield _json_item(number, json.loads(text))
        except Wrong as wrong:
            yield Bad(number, str(wrong))
        except ValueError as error:
            yield Bad(number, f"not JSON: {error}")
        except RecursionError:
            yield Bad(number, "not a triple: JSON nested too deep")


def _json_item(number: int, value: object) -> Item:
    if isinstance(value, list):
        if len(value) != 3:
            raise Wrong(f"a list of {len(value)}, not of subject, relation and object")
        s, r, o = (checked_name(name, what) for name, what in zip(value, _SLOTS, strict=True))
        return Fact(number, s, r, o)
    if not isinstance(value, dict):
        raise Wrong("neither a list nor an object")
    if len(value) == 1:
        for slot in ("entity", "relation"):
            if slot in value:
                return Name(number, checked_name(value[slot], slot), slot == "relation")
    for key, kind in (("alias", Alias), ("external_id", ExternalId)):
        if key in value and "subject" not in value:
            slot = "entity" if "entity" in value else "relation"
            return kind(
                number, checked_name(value[key], key), checked_name(value.get(slot), slot), slot == "relation"
            )
    missing = [slot for slot in _SLOTS if slot not in value]
    if missing:
        raise Wrong(f"no {' and no '.join(missing)}")
    s, r, o = (checked_name(value[slot], slot) for slot in _SLOTS)
    origin = value.get("source")
    return Fact(number, s, r, o, None if origin is None or origin == "" else checked_name(origin, "source"))
