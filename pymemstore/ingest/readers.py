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
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, Any, BinaryIO, NamedTuple, TypeAlias

from pymemstore.errors import IOError

__all__ = [
    "BOM", "Alias", "Bad", "ExternalId", "Fact", "Item", "Name", "Source", "Wrong", "checked_name",
    "read_jsonl", "read_tsv",
]  # fmt: skip

BOM = b"\xef\xbb\xbf"
_SNIFF_STEP = 1 << 16
_SNIFF_LIMIT = 1 << 22
_INPUT = 1 << 17  # compressed bytes at once
_OUTPUT = 1 << 20


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
        self.head: bytes | memoryview = b""

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
        # A decompressor may give more than it was asked for
        piece = memoryview(self.head or self.take(len(buffer)))
        size = min(len(piece), len(buffer))
        buffer[:size] = piece[:size]
        self.head = piece[size:]
        return size


# What damaged data raises; the optional packages' errors are added as they are imported.
_BAD_DATA: list[type[Exception]] = [EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile]


def _expect(error: type[Exception]) -> None:
    if error not in _BAD_DATA:
        _BAD_DATA.append(error)


def _gzip(raw: BinaryIO) -> Any:
    """isal is four times as fast as zlib; it reads the same."""
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile(fileobj=raw)
    _expect(isal_zlib.error)
    return igzip.IGzipFile(fileobj=raw)


def _bzip2(raw: BinaryIO) -> Any:
    """lbzip2 and pbzip2 use all cores, where one is installed."""
    tool = next((found for name in ("lbzip2", "pbzip2") if (found := shutil.which(name))), None)
    if tool is None:
        return _Streams(raw, bz2.BZ2Decompressor, _OUTPUT)
    mark = os.urandom(16)
    return Piped([tool, "-dc"], raw, mark, bz2.compress(mark))


def _xz(raw: BinaryIO) -> Any:
    return _Streams(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), _OUTPUT)


def _is_zstandard(magic: bytes) -> bool:
    """Whether a file starts with a frame, or with one to be skipped, as parallel compressors put there."""
    return magic[:4] == b"\x28\xb5\x2f\xfd" or (magic[1:4] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5)


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
    _expect(zstandard.ZstdError)
    return _Streams(raw, zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj)


class _Streams(io.RawIOBase):
    """All streams (or frames) of a file, one behind the other; zero bytes may follow one.

    One that is cut or damaged is an error. The standard library's own readers pass over what follows a whole
    stream and does not begin like another, and so lose the rest of a file that is damaged there. `new` makes
    a decompressor for a stream; `limit` is what it takes as its output's greatest length.
    """

    def __init__(self, raw: BinaryIO, new: Callable[[], Any], *limit: int) -> None:
        self._raw, self._new, self._limit, self._object = raw, new, limit, new()

    def read1(self, size: int = -1) -> bytes:
        while True:
            data = b""
            if self._object.eof:
                data = self._object.unused_data.lstrip(b"\0")
                while not data:
                    more = self._raw.read(_INPUT)
                    if not more:
                        return b""
                    data = more.lstrip(b"\0")
                self._object = self._new()
            elif getattr(self._object, "needs_input", True):
                data = self._raw.read(_INPUT)
                if not data:
                    raise EOFError("it ends too early")
            out: bytes = self._object.decompress(data, *self._limit)
            if out:
                return out


class Piped(io.RawIOBase):
    """The output of a decompressing tool that is fed from a thread. A tool that fails is an EOFError.

    `mark` comes last, compressed as `end`. A tool that passes over what follows a damaged header, and calls
    that a success, does not give it back.
    """

    def __init__(self, command: list[str], raw: BinaryIO, mark: bytes = b"", end: bytes = b"") -> None:
        # A session of its own: Ctrl-C is for the import, which would else find the tool failing
        self._tool = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self._raw, self._command, self._mark, self._end, self._held = raw, command, mark, end, b""
        self._failure: Exception | None = None
        self._feeder = threading.Thread(target=self._feed, name="pymemstore-pipe", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        assert self._tool.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError), self._tool.stdin as stdin:
            while True:
                try:
                    piece = self._raw.read(_INPUT)
                except Exception as error:  # told when the tool's output ends
                    self._failure = error
                    return
                _write_all(stdin, piece or self._end)
                if not piece:
                    return

    def read1(self, size: int = -1) -> bytes:
        assert self._tool.stdout is not None and self._tool.stderr is not None
        while piece := self._tool.stdout.read(_OUTPUT):
            self._held += piece
            whole = len(self._held) - len(self._mark)
            if whole > 0:
                piece, self._held = self._held[:whole], self._held[whole:]
                return piece
        failed = self._tool.wait()
        if self._failure is not None:
            raise self._failure
        if failed:
            said = " ".join(self._tool.stderr.read().decode(errors="replace").split())
            raise EOFError(f"{self._command[0]}: {said or failed}")
        if self._held != self._mark:
            raise EOFError(f"{self._command[0]} stops before the end, at something else than its format")
        return b""

    def close(self) -> None:
        if not self.closed:
            self._tool.kill()
            self._tool.wait()
        super().close()


def _write_all(stdin: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:  # the pipe has no buffer, and may take a part
        view = view[stdin.write(view) :]


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
        about = os.fstat(inner.fileno()) if self._owned else None
        self.size: int | None = about.st_size if about is not None and stat.S_ISREG(about.st_mode) else None
        self._counted = _Counted(inner)
        buffered = io.BufferedReader(self._counted, 1 << 16)
        magic = self._counted.magic
        body: Any = buffered
        if magic.startswith(b"\x1f\x8b"):
            body = _gzip(buffered)
        elif magic.startswith(b"BZh"):
            body = _bzip2(buffered)
        elif magic.startswith(b"\xfd7zXZ"):
            body = _xz(buffered)
        elif _is_zstandard(magic):
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
