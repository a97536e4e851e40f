"""The reference design as it is published: the memory in a server of its own, a call for each lookup.

The published one speaks Pyro4 over TCP; this one a local socket with pickled tuples, which is cheaper. A
query is a call for the entities, one for the relations, and one for each pair of candidates that passes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from .reference_design import SLACK, PeerHit, ReferenceMemory

F32 = npt.NDArray[np.float32]


def _serve(connection: Connection, memory: ReferenceMemory) -> None:
    calls = {"entity": memory.find_entity, "relation": memory.find_relation, "pair": memory.find_pair}
    while (request := connection.recv()) is not None:
        name, *arguments = request
        connection.send(calls[name](*arguments))


class RemoteReference:
    """A forked copy of a filled `ReferenceMemory` behind a socket."""

    def __init__(self, memory: ReferenceMemory) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, memory), daemon=True)
        self._process.start()

    def close(self) -> None:
        """End the server."""
        self._connection.send(None)
        self._process.join()

    def _call(self, *request: Any) -> Any:
        self._connection.send(request)
        return self._connection.recv()

    def query(
        self, entity: F32, relation: F32, tau_e: float, tau_t: float, tau_r: float, *, objects: bool = True
    ) -> list[PeerHit]:
        """Answers for one pair of unit vectors, best first."""
        found: dict[int, float] = self._call("entity", entity, tau_e)
        kinds: dict[int, float] = self._call("relation", relation, tau_t)
        hits: list[PeerHit] = []
        for e, es in found.items():
            for t, ts in kinds.items():
                if (es + ts) / 2 >= tau_r - SLACK:
                    rows: Sequence[tuple[int, str]] = self._call("pair", e, t, objects)
                    hits += [PeerHit(name, (es + ts) / 2, triple_id) for triple_id, name in rows]
        hits.sort(key=lambda hit: (-hit.score, hit.triple_id))
        return hits
