"""An embedded memory of facts for language models: unique triples, asked by meaning with thresholds.

import pymemstore

with pymemstore.open("facts.mem") as memory:
    memory.add("Ana Lima", "born in", "Recife")
    for hit in memory.query("Ana Lima", "place of birth"):
        print(hit.name, hit.score)
"""

from __future__ import annotations

from . import errors
from ._core import __version__
from .embedders import Embedder, Thresholds
from .errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadResponse,
    Closed,
    Corruption,
    EmbedderMismatch,
    Interrupted,
    InvalidArgument,
    Locked,
    MapFull,
    MemstoreError,
    NotFound,
    ReadOnly,
    VersionMismatch,
)
from .errors import IOError as IOError
from .memory import Memory
from .memory import open as open
from .results import (
    Added,
    AddReport,
    Change,
    CheckReport,
    CompactReport,
    Hit,
    Pending,
    Query,
    QueryResult,
    Replaced,
    Source,
    Stats,
    Triple,
)
from .transaction import Transaction

# Not `open` and `IOError`: a star import must not hide Python's own.
__all__ = [
    "AddReport",
    "Added",
    "BackendError",
    "BackendTimeout",
    "BackendUnavailable",
    "BadResponse",
    "Change",
    "CheckReport",
    "Closed",
    "CompactReport",
    "Corruption",
    "Embedder",
    "EmbedderMismatch",
    "Hit",
    "Interrupted",
    "InvalidArgument",
    "Locked",
    "MapFull",
    "Memory",
    "MemstoreError",
    "NotFound",
    "Pending",
    "Query",
    "QueryResult",
    "ReadOnly",
    "Replaced",
    "Source",
    "Stats",
    "Thresholds",
    "Transaction",
    "Triple",
    "VersionMismatch",
    "__version__",
    "errors",
]
