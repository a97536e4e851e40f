"""Readers: facts out of JSONL and TSV files, one item at a time, every bad record told by its number.

A reader yields `Fact`, `Name`, `Alias` and `ExternalId` items, and a `Bad` for each record that can't be
taken. Files are read as bytes and decoded line by line, so one bad line costs that line only; a UTF-8 byte
order mark and CR LF line ends are taken off. gzip, bzip2, xz and zstd are told by their first bytes, never by
the file's name.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import threading
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
        # Without its buffer: a read gives what a pipe has, and waits for no more
        self._inner: Any = getattr(inner, "raw", inner)
        self.position = 0
        self._head = b""
        while len(self._head) < 6:  # a pipe may hand over a byte at a time
            more = self._inner.read(6 - len(self._head))
            if not more:
                break
            self._head += more
        self.magic = self._head

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        number: int = self._inner.fileno()
        return number

    def readinto(self, buffer: Any) -> int:
        if self._head:
            piece = self._head[: len(buffer)]
            self._head = self._head[len(piece) :]
            buffer[: len(piece)] = piece
            got = len(piece)
        else:
            got = self._inner.readinto(buffer)
        self.position += got
        return got


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
        except Exception as error:
            # An OSError without a number is bz2's "Invalid data stream"
            if isinstance(error, tuple(_BAD_DATA)) or (isinstance(error, OSError) and error.errno is None):
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


# What damaged data raises; the optional packages' errors are added as they are imported.
_BAD_DATA: list[type[Exception]] = [EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile]


def _gzip(raw: BinaryIO) -> Any:
    """isal is four times as fast as zlib; it reads the same."""
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile(fileobj=raw)
    error: type[Exception] = isal_zlib.error
    _BAD_DATA.append(error)
    return igzip.IGzipFile(fileobj=raw)


def _bzip2(raw: BinaryIO) -> Any:
    """lbzip2 and pbzip2 use all cores, where one is installed."""
    tool = next((found for name in ("lbzip2", "pbzip2") if (found := shutil.which(name))), None)
    return bz2.BZ2File(raw) if tool is None else Piped([tool, "-dc"], raw)


def _zstandard(raw: BinaryIO, name: str) -> Any:
    try:
        import zstandard
    except ImportError:
        tool = shutil.which("zstd")
        if tool is None:
            raise IOError(
                f"{name} is compressed by zstd: install its package "
                '(pip install "pymemstore[import]") or the tool zstd'
            ) from None
        return Piped([tool, "-dcq"], raw)
    error: type[Exception] = zstandard.ZstdError
    _BAD_DATA.append(error)
    return _WholeZstd(zstandard, raw)


class _WholeZstd(io.RawIOBase):
    """All frames of a stream. A frame that is cut is an error, which zstandard's own reader passes over."""

    def __init__(self, zstandard: Any, raw: BinaryIO) -> None:
        self._new = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
        self._raw, self._object, self._rest, self._started = raw, self._new(), b"", False

    def read1(self, size: int = -1) -> bytes:
        while True:
            data = self._rest or self._raw.read(1 << 17)
            self._rest = b""
            if not data:
                if self._started and not self._object.eof:
                    raise EOFError("a zstd frame ends too early")
                return b""
            if self._object.eof:
                self._object = self._new()
            self._started = True
            out: bytes = self._object.decompress(data)
            self._rest = self._object.unused_data if self._object.eof else b""
            if out:
                return out


class Piped(io.RawIOBase):
    """The output of a decompressing tool that is fed from a thread. A tool that fails is an EOFError."""

    def __init__(self, command: list[str], raw: BinaryIO) -> None:
        self._tool = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._raw, self._command = raw, command
        self._feeder = threading.Thread(target=self._feed, name="pymemstore-pipe", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        assert self._tool.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._tool.stdin as stdin:
            while piece := self._raw.read(1 << 18):
                stdin.write(piece)

    def read1(self, size: int = -1) -> bytes:
        assert self._tool.stdout is not None and self._tool.stderr is not None
        piece = self._tool.stdout.read(size if size > 0 else 1 << 20)
        if piece:
            return piece
        if self._tool.wait():
            said = self._tool.stderr.read().decode(errors="replace").strip()
            raise EOFError(f"{self._command[0]}: {said or self._tool.returncode}")
        return b""

    def close(self) -> None:
        if not self.closed:
            self._tool.kill()
            self._tool.wait()
        super().close()


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
            body = _gzip(buffered)
        elif magic.startswith(b"BZh"):
            body = _bzip2(buffered)
        elif magic.startswith(b"\xfd7zXZ"):
            body = lzma.LZMAFile(buffered)  # noqa: SIM115
        elif magic.startswith(b"\x28\xb5\x2f\xfd"):
            body = _zstandard(buffered, self.name)
        # Plain bytes may be had without the layers above
        self.plain: io.RawIOBase | None = self._counted if body is buffered else None
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
        if isinstance(self._body._inner, Piped):
            self._body._inner.close()
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
