"""Reading and decompressing ahead in a thread of its own, so that the core parses meanwhile."""

from __future__ import annotations

import io
import queue
import select
import threading
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

__all__ = ["Ahead"]

_PIECE = 1 << 20
_PIECES = 8
Piece: TypeAlias = bytes | memoryview


class Ahead:
    """The bytes of a stream in pieces of up to 1 MiB, at most eight of them waiting. Close it.

    `plain`: a raw stream to read from instead, straight into the pieces.
    """

    def __init__(self, stream: BinaryIO, plain: io.RawIOBase | None = None) -> None:
        self._stream, self._plain = stream, plain
        self._queue: queue.Queue[Piece | BaseException] = queue.Queue(_PIECES)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="pymemstore-read", daemon=True)
        self._thread.start()

    def _put(self, item: Piece | BaseException) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue

    def _piece(self) -> Piece:
        if self._plain is None:
            read1 = getattr(self._stream, "read1", self._stream.read)
            piece: bytes = read1(_PIECE)
            return piece
        # A pipe gives little at a time: what it has is gathered, but not waited for
        view = memoryview(bytearray(_PIECE))
        size = self._plain.readinto(view) or 0
        while 0 < size < _PIECE and self._ready():
            got = self._plain.readinto(view[size:]) or 0
            if not got:
                break
            size += got
        return view[:size]

    def _ready(self) -> bool:
        try:
            return self._plain is not None and bool(select.select([self._plain.fileno()], [], [], 0)[0])
        except (OSError, ValueError):
            return False

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                piece = self._piece()
                self._put(piece)
                if not piece:
                    return
        except BaseException as error:  # told to the reader, in its thread
            self._put(error)

    def at_least(self, size: int) -> list[Piece]:
        """The first pieces, `size` bytes or more; fewer at the end, or before a failure, which follows."""
        taken: list[Piece] = []
        while sum(map(len, taken)) < size and not self._ended:
            item = self._queue.get()
            if isinstance(item, BaseException):
                if not taken:
                    self._ended = True
                    raise item
                self._queue = queue.Queue(_PIECES)
                self._queue.put(item)  # comes again behind what was taken
                break
            self._ended = not item
            if item:
                taken.append(item)
        return taken

    def pieces(self, head: list[Piece]) -> Iterator[Piece]:
        """`head`, then the rest. Raises what reading raised."""
        yield from head
        while not self._ended:
            item = self._queue.get()
            if isinstance(item, BaseException):
                self._ended = True
                raise item
            self._ended = not item
            if item:
                yield item

    def close(self) -> None:
        """Stops reading. A read that waits for a pipe ends with its process."""
        self._stop.set()
        self._thread.join(timeout=1.0)
