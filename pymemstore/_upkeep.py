"""The upkeep of a store: what `Memory` has beside facts and queries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields

from . import _core, _input
from ._space import Space, embed_missing
from .errors import ReadOnly
from .results import CheckReport, CompactReport, Stats

__all__ = ["Upkeep"]

Progress = Callable[[int, int], object]
PhaseProgress = Callable[[str, int, int], object]


class Upkeep:
    """Methods of `Memory`, which is the only one to derive from it."""

    _store: _core.Store
    _spaces: tuple[Space, Space]

    def embed_missing(self, *, batch: int | None = None, progress: Progress | None = None) -> int:
        """Embeds the names that wait for a vector, in batches of their own commits; how many.

        A call that was stopped has embedded whole batches; the next call goes on from there. batch: names a
        commit; None: 4,096, and 65,536 for entities of the default embedder, which runs in the core on all of
        the store's threads. progress: called as progress(done, total) after each batch.
        """
        _input.callback(progress, "progress")
        if self._store.read_only:
            raise ReadOnly(f"the store at {os.fsdecode(self._store.path)} was opened read-only")
        return embed_missing(self._store, self._spaces, batch, progress)

    def build_rules(self, *, progress: Callable[[str, int, int], object] | None = None) -> None:
        """Makes the rule keys that names from a bulk import wait for; until then queries that use rules say
        that they are not complete.

        Nothing to do is fine. Builds the next generation of the store; interrupted, it leaves all as it was.
        progress: called as progress(phase, done, total), total 0 when it is not known. Raises Locked while
        another merge or import builds, ReadOnly.
        """
        _input.callback(progress, "progress")
        _core.build_rules(self._store, progress)

    def reindex(
        self, *, graph: bool = False, force: bool = False, progress: PhaseProgress | None = None
    ) -> None:
        """Seals the vectors: makes the files under index/ that searches read before the vectors themselves,
        of all names that have a vector now, in place of older, damaged or foreign ones.

        Below 4,096 vectors there is nothing to make. It also happens by itself, in the background, when
        100,000 vectors and a quarter of the sealed ones are new. Others read and write meanwhile; searches
        use the new files at once, in other processes within a second.

        graph: also build the graph, for `search="graph"` and for "auto" in very large stores: some 2,000
        names a second and core. It is saved every minute, and an interrupted build goes on from there.
        force: make what is there and whole again. progress: called as progress(phase, done, total). Raises
        Locked while another process does this, ReadOnly, IOError when the disk is full; what was there stays.
        """
        _input.callback(progress, "progress")
        _core.reindex(self._store, bool(graph), bool(force), progress)

    def stats(self) -> Stats:
        """Counts and sizes."""
        raw = self._store.stats()
        raw.update(entity_embedder=self._spaces[0].name, relation_embedder=self._spaces[1].name)
        return Stats(**{f.name: raw[f.name] for f in fields(Stats)})  # type: ignore[arg-type]

    def check(self) -> CheckReport:
        """Reads the whole store and tells what does not fit together. Changes nothing."""
        problems, counts = self._store.check()
        return CheckReport(not problems, tuple(problems), dict(counts))

    def compact(self, *, progress: Callable[[str, int, int], object] | None = None) -> CompactReport:
        """Merges base and delta into the next generation, without free pages and dead vectors, while others
        read and write. progress: as for `build_rules`. Raises Locked while another merge or import builds."""
        _input.callback(progress, "progress")
        raw = _core.compact(self._store, progress)
        return CompactReport(raw["bytes_before"], raw["bytes_after"])

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Writes a consistent copy, a store of its own, to a path that does not exist yet. Writers go on
        meanwhile."""
        self._store.backup(_input.path(path))
