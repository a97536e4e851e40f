"""Reading and decompressing ahead in a thread of its own, so that the core parses meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["Ahead"]

_PIECE = 4 << 20
_PIECES = 4


class Ahead:
    """The bytes of a stream in pieces of up to 4 MiB, at most four of them waiting. Close it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._queue: queue.Queue[bytes | BaseException] = queue.Queue(_PIECES)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="pymemstore-read", daemon=True)
        self._thread.start()

    def _put(self, item: bytes | BaseException) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue

    def _read(self) -> None:
        read1 = getattr(self._stream, "read1", self._stream.read)
        try:
            while not self._stop.is_set():
                piece = read1(_PIECE)
                self._put(piece)
                if not piece:
                    return
        except BaseException as error:  # told to the reader, in its thread
            self._put(error)

    def _next(self) -> bytes:
        if self._ended:
            return b""
        item = self._queue.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        self._ended = not item
        return item

    def at_least(self, size: int) -> bytes:
        """The first `size` bytes or more; fewer at the end, or before a failure, which comes later."""
        taken = [b""]
        total = 0
        while total < size:
            item = b"" if self._ended else self._queue.get()
            if isinstance(item, BaseException):
                if not total:
                    self._ended = True
                    raise item
                failure = item
                self._ended = False
                # Comes again behind what was taken
                self._queue = queue.Queue(_PIECES)
                self._queue.put(failure)
                break
            if not item:
                self._ended = True
                break
            taken.append(item)
            total += len(item)
        return b"".join(taken)

    def pieces(self, head: bytes) -> Iterator[bytes]:
        """`head`, then the rest. Raises what reading raised."""
        if head:
            yield head
        while piece := self._next():
            yield piece

    def close(self) -> None:
        """Stops reading. A read that waits for a pipe ends with its process."""
        self._stop.set()
        self._thread.join(timeout=1.0)
