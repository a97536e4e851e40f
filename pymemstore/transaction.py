"""Writes: operations are buffered, names without vectors embedded, and all of it applied in one
transaction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core, _input
from ._space import Space
from .errors import InvalidArgument, NotFound, ReadOnly
from .results import Added, AddReport, Pending, Replaced, Triple, TripleLike, _Result

__all__ = ["Transaction"]

Progress = Callable[[int, int], object]
_Summary = dict[str, int]
_KINDS = (False, True)
_R = TypeVar("_R", bound=_Result | None)


class Transaction:
    """Operations that are written together, in order, or not at all. Made by `Memory.transaction`.

    Nothing is locked or written until the `with` block ends; other writers go on meanwhile, and reads, in
    the block too, don't see what is buffered. An exception in the block writes nothing. Results are filled
    in by the commit; reading a field of one earlier raises InvalidArgument. To be used from one thread at a
    time. A transaction opened inside another one's block is independent of it: it commits first.
    """

    def __init__(
        self, store: _core.Store, spaces: tuple[Space, Space], progress: Progress | None = None
    ) -> None:
        if store.read_only:
            raise ReadOnly(f"the store at {os.fsdecode(store.path)} was opened read-only")
        self._store = store
        self._spaces = spaces
        self._progress = progress
        self._batch = _core.Batch()
        self._state = "not begun"
        # Per kind: names that need a vector, in order, and the vectors that the caller brought for some.
        self._names: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self._given: tuple[dict[str, npt.NDArray[np.float32]], dict[str, npt.NDArray[np.float32]]] = ({}, {})
        # Names that cease to exist inside this batch (the vectors that the store has now don't count), and
        # names that entities are renamed to (these keep the old vector where nothing can embed the new
        # name).
        self._dropped: tuple[set[str], set[str]] = (set(), set())
        self._renamed: tuple[set[str], set[str]] = (set(), set())
        # One for each operation: how many of the batch's entries are its own, its result and what fills
        # that in.
        self._open: list[tuple[int, _Result | None, Callable[[list[Any], _Summary], tuple[Any, ...]]]] = []

    # ---- the context ----------------------------------------------------------------------------

    def __enter__(self) -> Transaction:
        if self._state != "not begun":
            raise InvalidArgument(f"the transaction is {self._state}; begin another one")
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._check_open()
            self._commit()
        else:
            self._drop(f"the transaction was dropped because of {kind.__name__}")

    def __len__(self) -> int:
        """Operations buffered so far."""
        return len(self._open)

    # ---- operations -----------------------------------------------------------------------------

    def add(
        self, subject: str, relation: str, object: str, *, source: str | None = None, vectors: Any = None
    ) -> Added:
        """As `Memory.add`."""
        self._check_open()
        s, r, o = _names3(subject, relation, object)
        source = _input.source(source)
        parts = _input.three_vectors(vectors)
        rows = [
            None if part is None else _input.vector(part, self._spaces[i == 1].dim, f"{what} vector")
            for i, (part, what) in enumerate(zip(parts, ("subject", "relation", "object"), strict=True))
        ]
        self._batch.add([(s, r, o)], source)
        for i, (name, row) in enumerate(zip((s, r, o), rows, strict=True)):
            self._need((name,), i == 1, None if row is None else row[None, :].copy())
        return self._result(Added(), 1, lambda e, _: (int(e[0][0][0]), bool(e[0][1][0])))

    def add_many(
        self,
        triples: Iterable[TripleLike],
        *,
        vectors: Any = None,
        source: str | Sequence[str | None] | None = None,
    ) -> AddReport:
        """As `Memory.add_many`; the embedding is done at the commit."""
        self._check_open()
        # All is checked before any of it is buffered: a refused call leaves the transaction as it was.
        parts = list(_input.triples(triples))
        n = sum(len(rows) for rows, _ in parts)
        said = _input.sources(source, n)
        given = [
            None
            if v is None
            else _input.vectors(v, n, self._spaces[i == 1].dim, f"{what} vectors", copy=True)
            for i, (v, what) in enumerate(
                zip(_input.three_vectors(vectors), ("subject", "relation", "object"), strict=True)
            )
        ]
        start = 0
        with self._whole():
            for rows, columns in parts:
                end = start + len(rows)
                self._batch.add(rows, said[start:end] if isinstance(said, list) else said)
                for i, column in enumerate(columns):
                    all_rows = given[i]
                    self._need(column, i == 1, None if all_rows is None else all_rows[start:end])
                start = end
        return self._result(AddReport(), len(parts), _report)

    def replace(self, subject: str, relation: str, object: str, *, source: str | None = None) -> Replaced:
        """As `Memory.replace`."""
        self._check_open()
        s, r, o = _names3(subject, relation, object)
        self._batch.replace(s, r, o, _input.source(source))
        self._need((s, o), False)
        self._need((r,), True)
        return self._result(
            Replaced(), 1, lambda e, _: (int(e[0][0]), bool(e[0][1]), tuple(Triple(*t) for t in e[0][2]))
        )

    def remove(self, subject: str, relation: str, object: str) -> Pending[bool]:
        """As `Memory.remove`."""
        self._check_open()
        self._batch.remove(*_names3(subject, relation, object))
        return self._result(Pending[bool](), 1, _first)

    def forget(self, entity: str) -> Pending[int]:
        """As `Memory.forget`."""
        self._check_open()
        self._batch.forget(_input.name(entity, "entity"))
        self._ends(entity, False)
        return self._result(Pending[int](), 1, _first)

    def alias(self, name: str, entity: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.alias`."""
        self._check_open()
        self._batch.alias(_input.name(name, "alias"), _input.name(entity, _kind(relation)), bool(relation))
        return self._result(Pending[bool](), 1, _first)

    def unalias(self, name: str, entity: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.unalias`."""
        self._check_open()
        self._batch.unalias(_input.name(name, "alias"), _input.name(entity, _kind(relation)), bool(relation))
        return self._result(Pending[bool](), 1, _first)

    def rename(self, old: str, new: str, *, relation: bool = False) -> None:
        """As `Memory.rename`."""
        self._check_open()
        self._batch.rename(_input.name(old, "old name"), _input.name(new, "new name"), bool(relation))
        self._need((new,), bool(relation))
        self._ends(old, bool(relation))
        self._renamed[bool(relation)].add(new)
        self._result(None, 1, _first)

    def set_vector(self, name: str, vector: npt.ArrayLike, *, relation: bool = False) -> None:
        """As `Memory.set_vector`."""
        self._check_open()
        _input.name(name, _kind(relation))
        row = _input.vector(vector, self._spaces[bool(relation)].dim, f"vector of {name!r:.60}")
        self._batch.set_vectors([name], row[None, :], bool(relation))
        # If this batch also makes the name, then there is nothing to embed.
        self._given[bool(relation)].setdefault(name, row.copy())
        self._result(None, 1, _first)

    def add_entities(self, names: Iterable[str], *, vectors: Any = None) -> Pending[int]:
        """As `Memory.add_entities`."""
        return self._add_names(names, vectors, False)

    def add_relations(self, names: Iterable[str], *, vectors: Any = None) -> Pending[int]:
        """As `Memory.add_relations`."""
        return self._add_names(names, vectors, True)

    def set_external_id(self, external_id: str, name: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.set_external_id`."""
        self._check_open()
        external_id = _input.name(external_id, "external id")
        self._batch.external_id(external_id, _input.name(name, _kind(relation)), bool(relation))
        return self._result(Pending[bool](), 1, _first)

    def _add_names(self, names: Iterable[str], vectors: Any, relation: bool) -> Pending[int]:
        self._check_open()
        listed = _input.names(names, _kind(relation))
        rows = None
        if vectors is not None:
            dim = self._spaces[relation].dim
            rows = _input.vectors(vectors, len(listed), dim, f"{_kind(relation)} vectors", copy=True)
        starts = range(0, len(listed), _input.SLICE)
        with self._whole():
            for start in starts:
                self._batch.add_names(listed[start : start + _input.SLICE], relation)
        self._need(listed, relation, rows)
        return self._result(Pending[int](), len(starts), lambda e, _: (sum(map(int, e)),))

    # ---- the commit -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidArgument(f"the transaction is {self._state}: use it inside its with block")

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """An operation of several entries: if it fails half way, the transaction can't be committed any
        more."""
        try:
            yield
        except BaseException as e:
            self._drop(f"an operation failed half way with {type(e).__name__}")
            raise

    def _result(self, result: _R, entries: int, fill: Callable[[list[Any], _Summary], tuple[Any, ...]]) -> _R:
        self._open.append((entries, result, fill))
        return result

    def _need(
        self, names: Sequence[str], relation: bool, rows: npt.NDArray[np.float32] | None = None
    ) -> None:
        self._names[relation].update(dict.fromkeys(names))
        if rows is not None:
            given = self._given[relation]
            for name, row in zip(names, rows, strict=True):
                given.setdefault(name, row)  # the first vector of a name counts

    def _ends(self, name: str, relation: bool) -> None:
        """The entity or relation of this name ceases to have it: a later one of the name is another."""
        self._dropped[relation].add(name)
        if self._spaces[relation].embeds:
            self._given[relation].pop(name, None)

    def _drop(self, why: str) -> None:
        self._state = "over"
        for _, result, _ in self._open:
            if result is not None:
                result._fail(why)
        self._open.clear()

    def _commit(self) -> None:
        self._state = "committing"
        try:
            if len(self._batch):
                self._supply(self._batch, self._progress)
                results, summary = self._store.apply(self._batch)
            else:
                results, summary = [], {"new_entities": 0, "new_relations": 0, "unembedded": 0}
        except BaseException as e:
            self._drop(f"the transaction failed with {type(e).__name__}")
            raise
        self._state = "over"
        at = 0
        for entries, result, fill in self._open:
            if result is not None:
                result._fill(*fill(results[at : at + entries], summary))
            at += entries
        if summary["unembedded"]:
            self._supply_again()

    def _supply(self, batch: _core.Batch, progress: Progress | None) -> None:
        """Adds the vectors of names that have none to `batch`."""
        work: list[tuple[bool, list[str]]] = []
        for relation in _KINDS:
            dropped, given = self._dropped[relation], self._given[relation]
            names = list(self._names[relation])
            lacking = _lacking(self._store, [name for name in names if name not in dropped], relation)
            lacking.extend(name for name in names if name in dropped)
            if not self._spaces[relation].embeds:
                lacking = [n for n in lacking if n in given or n not in self._renamed[relation]]
            brought = [name for name in lacking if name in given]
            for start in range(0, len(brought), _input.SLICE):
                some = brought[start : start + _input.SLICE]
                batch.supply_vectors(some, np.stack([given[name] for name in some]), relation)
            work.append((relation, [name for name in lacking if name not in given]))
        total = sum(len(names) for _, names in work)
        so_far = 0
        if progress is not None:
            progress(0, total)
        for relation, names in work:
            for part, vectors in self._spaces[relation].encode(names):
                batch.supply_vectors(part, vectors, relation)
                so_far += len(part)
                if progress is not None:
                    progress(so_far, total)

    def _supply_again(self) -> None:
        # Some name waits for a vector. It may be one of ours, if another writer forgot it between our look
        # and our commit, and our commit then made it anew. What is written is written: if this fails, then
        # the name goes on waiting, for embed_missing. An embedder may raise anything.
        with contextlib.suppress(Exception):
            batch = _core.Batch()
            for relation in _KINDS:
                lacking = _lacking(self._store, list(self._names[relation]), relation)
                if not self._spaces[relation].embeds:
                    lacking = [name for name in lacking if name in self._given[relation]]
                waiting = [name for name in lacking if self._waits(name, relation)]
                if waiting:
                    batch.add_names(waiting, relation)
            if len(batch):
                self._supply(batch, None)
                self._store.apply(batch)

    def _waits(self, name: str, relation: bool) -> bool:
        try:
            return self._store.vector(name, relation) is None
        except NotFound:
            return False


def _lacking(store: _core.Store, names: list[str], relation: bool) -> list[str]:
    """The names, all different, that the store does not know or has no vector of."""
    found: list[str] = []
    for start in range(0, len(names), _input.SLICE):
        part = names[start : start + _input.SLICE]
        found.extend(part[i] for i in store.lacking(part, relation))
    return found


def _kind(relation: bool) -> str:
    return "relation" if relation else "entity"


def _names3(subject: object, relation: object, object: object) -> tuple[str, str, str]:
    return _input.name(subject, "subject"), _input.name(relation, "relation"), _input.name(object, "object")


def _first(elements: list[Any], _: _Summary) -> tuple[Any, ...]:
    return (elements[0],)


def _report(elements: list[Any], summary: _Summary) -> tuple[Any, ...]:
    ids = np.concatenate([e[0] for e in elements]) if elements else np.empty(0, np.uint64)
    mask = np.concatenate([e[1] for e in elements]) if elements else np.empty(0, np.bool_)
    inserted = int(mask.sum())
    return inserted, len(mask) - inserted, summary["new_entities"], summary["new_relations"], ids, mask
