"""Errors that pymemstore raises, all under `MemstoreError`; each names the item and what was wrong."""

from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "BackendError",
    "BackendTimeout",
    "BackendUnavailable",
    "BadResponse",
    "Closed",
    "Corruption",
    "EmbedderMismatch",
    "IOError",
    "Interrupted",
    "InvalidArgument",
    "Locked",
    "MapFull",
    "MemstoreError",
    "NotFound",
    "ReadOnly",
    "VersionMismatch",
]


class MemstoreError(Exception):
    """Base class of every error that pymemstore raises.

    Attributes:
        partial: what a loop over a language model had done when the error came (a `ReadResult`, a
            `WriteReport`); None elsewhere.
    """

    partial: Any = None


class InvalidArgument(MemstoreError, ValueError):
    """An argument is wrong: an empty name, a vector of another dimension, a threshold outside [-1, 1], ..."""


class EmbedderMismatch(InvalidArgument):
    """The store was made with another embedder; the message names both."""


class NotFound(MemstoreError, KeyError):
    """No such store, name, triple or change."""

    def __str__(self) -> str:  # KeyError would show the message's repr
        return Exception.__str__(self)


class Corruption(MemstoreError):
    """A file is damaged, or is not a pymemstore file."""


class VersionMismatch(MemstoreError):
    """The store's format is newer than this library reads."""


class MapFull(MemstoreError):
    """The store's memory map is full and cannot grow; the batch was not written."""


class Locked(MemstoreError):
    """Another writer held the store for longer than the timeout; the message names its process id."""


class ReadOnly(MemstoreError):
    """A write on a store that was opened read-only."""


class Closed(MemstoreError):
    """The handle was closed, or was opened by the parent of this forked process."""


class IOError(MemstoreError, builtins.OSError):
    """The operating system refused: disk full, no permission, a file gone. `errno` is set where known."""


class Interrupted(MemstoreError):
    """The call was asked to stop; nothing of it was written."""


class BackendError(MemstoreError):
    """A language model or its server failed. Bad HTTP answers are raised as this class itself.

    Attributes:
        text: what the model had written when it failed; "" if nothing.
        status: the HTTP status, None where none came.
    """

    def __init__(self, message: str, *, text: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.text = text
        self.status = status


class BackendUnavailable(BackendError):
    """No connection to the server, after the retries."""


class BackendTimeout(BackendError):
    """The server did not answer, or fell silent, for longer than the timeout."""


class BadResponse(BackendError):
    """The server broke off, or answered with something that is no completion."""
