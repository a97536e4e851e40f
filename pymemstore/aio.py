"""The asyncio face: `Memory`'s methods as coroutines that never block the event loop.

    from pymemstore import aio

    async with aio.open("facts.mem") as memory:
        await memory.add("Ana Lima", "born in", "Recife")
        result = await memory.query("Ana Lima", "place of birth")
        async for triple in memory.triples(subject="Ana Lima"):
            print(triple)

Each call runs in a thread of the memory's own pool. Calls that run at the same time are not ordered among
themselves; await one before the next where the order counts. **Cancelling** a task that waits for a call
gives up the wait, not the work: a call that a thread has begun runs to its end, and a write among them is
committed whole or not at all; one that no thread has taken up yet is dropped. `close`, and the end of the
`async with`, wait for the calls that run.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from . import _input
from . import memory as _memory
from .embedders import Embedder, Thresholds
from .errors import Closed
from .memory import Memory, Numbers, Rules, Search
from .results import (
    Added,
    AddReport,
    Change,
    CheckReport,
    CompactReport,
    Pending,
    Query,
    QueryResult,
    Replaced,
    Source,
    Stats,
    Triple,
    TripleLike,
)
from .transaction import Progress, Transaction

__all__ = ["AsyncMemory", "AsyncTransaction", "open"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WORKERS = 4


class open:  # as the function `pymemstore.open`; a class, so that it can be awaited or entered
    """Opens a store: `async with aio.open(path) as memory`, or `memory = await aio.open(path)`.

    Takes what `pymemstore.open` takes, and `workers`: how many calls may run at the same time (threads).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        embedder: str | Embedder | None = None,
        relation_embedder: str | Embedder | None = None,
        read_only: bool = False,
        create: bool = True,
        timeout: float = 30.0,
        sync: Literal["full", "relaxed"] = "full",
        map_size: int | None = None,
        threads: int | None = None,
        auto_merge: bool = True,
        workers: int = _WORKERS,
    ) -> None:
        self._workers = _input.integer(workers, "workers", 1, 1024)
        self._open = functools.partial(
            _memory.open,
            path,
            embedder=embedder,
            relation_embedder=relation_embedder,
            read_only=read_only,
            create=create,
            timeout=timeout,
            sync=sync,
            map_size=map_size,
            threads=threads,
            auto_merge=auto_merge,
        )
        self._memory: AsyncMemory | None = None

    def __await__(self) -> Generator[Any, None, AsyncMemory]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncMemory:
        self._memory = await self._opened()
        return self._memory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            await self._memory.close()

    async def _opened(self) -> AsyncMemory:
        pool = ThreadPoolExecutor(self._workers, "pymemstore")
        future = pool.submit(self._open)
        try:
            return AsyncMemory(await asyncio.wrap_future(future), pool)
        except BaseException:
            # A cancelled wait: what the thread still opens is nobody's.
            future.add_done_callback(_close_opened)
            pool.shutdown(wait=False)
            raise


def _close_opened(future: Future[Memory]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


class AsyncMemory:
    """`Memory` for asyncio: the same methods, arguments, results and errors, as coroutines. See `Memory`."""

    def __init__(self, memory: Memory, pool: ThreadPoolExecutor) -> None:
        self._memory = memory
        self._pool = pool
        self._closing = False

    async def __aenter__(self) -> AsyncMemory:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncMemory of {self._memory!r}>"

    def _check_open(self) -> None:
        self._memory._check_open()  # in a forked child too, where the pool has no threads
        if self._closing:
            raise Closed(f"the store at {self.path} was closed")

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(call, *args, **kwargs))

    async def close(self) -> None:
        """Waits for the calls that run, then closes. New calls raise Closed from now on."""
        self._closing = True
        # Not in our own pool, which could not wait for itself.
        await asyncio.get_running_loop().run_in_executor(None, self._finish)

    def _finish(self) -> None:
        self._pool.shutdown(wait=True)
        self._memory.close()

    @property
    def memory(self) -> Memory:
        """The synchronous face of the same handle. Its calls block."""
        return self._memory

    @property
    def closed(self) -> bool:
        """True once `close` has been called."""
        return self._closing or self._memory.closed

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._memory.path

    @property
    def read_only(self) -> bool:
        """True for a handle that can't write."""
        return self._memory.read_only

    @property
    def embedder(self) -> Embedder | None:
        """What embeds entity names. Its `encode` is called in the pool's threads."""
        return self._memory.embedder

    @property
    def relation_embedder(self) -> Embedder | None:
        """What embeds relation names."""
        return self._memory.relation_embedder

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of a query that gives none."""
        return self._memory.thresholds

    # ---- writing --------------------------------------------------------------------------------

    def transaction(self) -> AsyncTransaction:
        """An async context manager that buffers writes and applies them together at its end."""
        self._check_open()
        return AsyncTransaction(self)

    async def add(
        self,
        subject: str,
        relation: str,
        object: str,
        *,
        source: str | None = None,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
    ) -> Added:
        """As `Memory.add`."""
        return await self._run(self._memory.add, subject, relation, object, source=source, vectors=vectors)

    async def add_many(
        self,
        triples: Iterable[TripleLike],
        *,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
        source: str | Sequence[str | None] | None = None,
        progress: Progress | None = None,
    ) -> AddReport:
        """As `Memory.add_many`. `triples` is read, and `progress` called, in a thread of the pool."""
        return await self._run(
            self._memory.add_many, triples, vectors=vectors, source=source, progress=progress
        )

    async def replace(
        self, subject: str, relation: str, object: str, *, source: str | None = None
    ) -> Replaced:
        """As `Memory.replace`."""
        return await self._run(self._memory.replace, subject, relation, object, source=source)

    async def remove(self, subject: str, relation: str, object: str) -> bool:
        """As `Memory.remove`."""
        return await self._run(self._memory.remove, subject, relation, object)

    async def forget(self, entity: str) -> int:
        """As `Memory.forget`."""
        return await self._run(self._memory.forget, entity)

    async def alias(self, name: str, entity: str, *, relation: bool = False) -> bool:
        """As `Memory.alias`."""
        return await self._run(self._memory.alias, name, entity, relation=relation)

    async def unalias(self, name: str, entity: str, *, relation: bool = False) -> bool:
        """As `Memory.unalias`."""
        return await self._run(self._memory.unalias, name, entity, relation=relation)

    async def rename(self, old: str, new: str, *, relation: bool = False) -> None:
        """As `Memory.rename`."""
        await self._run(self._memory.rename, old, new, relation=relation)

    async def add_entities(self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None) -> int:
        """As `Memory.add_entities`."""
        return await self._run(self._memory.add_entities, names, vectors=vectors)

    async def add_relations(self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None) -> int:
        """As `Memory.add_relations`."""
        return await self._run(self._memory.add_relations, names, vectors=vectors)

    async def set_vector(self, name: str, vector: npt.ArrayLike, *, relation: bool = False) -> None:
        """As `Memory.set_vector`."""
        await self._run(self._memory.set_vector, name, vector, relation=relation)

    async def set_external_id(self, external_id: str, name: str, *, relation: bool = False) -> bool:
        """As `Memory.set_external_id`."""
        return await self._run(self._memory.set_external_id, external_id, name, relation=relation)

    async def embed_missing(self, *, batch: int | None = None, progress: Progress | None = None) -> int:
        """As `Memory.embed_missing`. `progress` is called in a thread of the pool."""
        return await self._run(self._memory.embed_missing, batch=batch, progress=progress)

    async def build_rules(self, *, progress: Callable[[str, int, int], object] | None = None) -> None:
        """As `Memory.build_rules`. `progress` is called in a thread of the pool."""
        await self._run(self._memory.build_rules, progress=progress)

    # ---- queries --------------------------------------------------------------------------------

    async def query(
        self,
        subject: str | None = None,
        relation: str | None = None,
        object: str | None = None,
        *,
        tau_e: float | None = None,
        tau_t: float | None = None,
        tau_r: float | None = None,
        limit: int | None = None,
        search: Search = "auto",
        rules: Rules = "core",
        numbers: Numbers = "any",
        exclude: Iterable[int] = (),
        subject_vector: npt.ArrayLike | None = None,
        relation_vector: npt.ArrayLike | None = None,
        object_vector: npt.ArrayLike | None = None,
    ) -> QueryResult:
        """As `Memory.query`."""
        return await self._run(
            self._memory.query,
            subject,
            relation,
            object,
            tau_e=tau_e,
            tau_t=tau_t,
            tau_r=tau_r,
            limit=limit,
            search=search,
            rules=rules,
            numbers=numbers,
            exclude=exclude,
            subject_vector=subject_vector,
            relation_vector=relation_vector,
            object_vector=object_vector,
        )

    async def query_many(
        self,
        queries: Iterable[Query | Mapping[str, Any] | Sequence[str | None]],
        *,
        tau_e: float | None = None,
        tau_t: float | None = None,
        tau_r: float | None = None,
        limit: int | None = None,
        search: Search = "auto",
        rules: Rules = "core",
        numbers: Numbers = "any",
        exclude: Iterable[int] = (),
    ) -> list[QueryResult]:
        """As `Memory.query_many`."""
        return await self._run(
            self._memory.query_many,
            queries,
            tau_e=tau_e,
            tau_t=tau_t,
            tau_r=tau_r,
            limit=limit,
            search=search,
            rules=rules,
            numbers=numbers,
            exclude=exclude,
        )

    async def similar_entities(
        self,
        text_or_vector: str | npt.ArrayLike,
        tau: float | None = None,
        *,
        search: Search = "auto",
        limit: int | None = None,
    ) -> list[tuple[str, float]]:
        """As `Memory.similar_entities`."""
        return await self._run(self._memory.similar_entities, text_or_vector, tau, search=search, limit=limit)

    async def similar_relations(
        self,
        text_or_vector: str | npt.ArrayLike,
        tau: float | None = None,
        *,
        search: Search = "auto",
        limit: int | None = None,
    ) -> list[tuple[str, float]]:
        """As `Memory.similar_relations`."""
        return await self._run(
            self._memory.similar_relations, text_or_vector, tau, search=search, limit=limit
        )

    # ---- reading --------------------------------------------------------------------------------

    def entities(self) -> AsyncIterator[str]:
        """As `Memory.entities`, for `async for`; a page at a time is read in the pool."""
        return self._each(self._memory._name_pages(False))

    def relations(self) -> AsyncIterator[str]:
        """As `Memory.relations`, for `async for`."""
        return self._each(self._memory._name_pages(True))

    def triples(
        self, subject: str | None = None, relation: str | None = None, object: str | None = None
    ) -> AsyncIterator[Triple]:
        """As `Memory.triples`, for `async for`."""
        return self._each(self._memory._triple_pages(subject, relation, object))

    def changes(self, since: int = 0) -> AsyncIterator[Change]:
        """As `Memory.changes`, for `async for`."""
        return self._each(self._memory._change_pages(since))

    def _each(self, pages: Iterator[list[_T]]) -> AsyncIterator[_T]:
        self._check_open()

        async def rows() -> AsyncIterator[_T]:
            while (page := await self._run(_next_page, pages)) is not None:
                for row in page:
                    self._check_open()
                    yield row

        return rows()

    async def contains(self, subject: str, relation: str, object: str) -> bool:
        """As `Memory.contains`."""
        return await self._run(self._memory.contains, subject, relation, object)

    async def triple(self, triple_id: int) -> Triple:
        """As `Memory.triple`."""
        return await self._run(self._memory.triple, triple_id)

    async def vector(self, name: str, *, relation: bool = False) -> npt.NDArray[np.float32] | None:
        """As `Memory.vector`."""
        return await self._run(self._memory.vector, name, relation=relation)

    async def aliases(self, entity: str, *, relation: bool = False) -> list[str]:
        """As `Memory.aliases`."""
        return await self._run(self._memory.aliases, entity, relation=relation)

    async def named_by(self, alias: str, *, relation: bool = False) -> list[str]:
        """As `Memory.named_by`."""
        return await self._run(self._memory.named_by, alias, relation=relation)

    async def external_ids(self, name: str, *, relation: bool = False) -> list[str]:
        """As `Memory.external_ids`."""
        return await self._run(self._memory.external_ids, name, relation=relation)

    async def by_external_id(self, external_id: str, *, relation: bool = False) -> str | None:
        """As `Memory.by_external_id`."""
        return await self._run(self._memory.by_external_id, external_id, relation=relation)

    async def sources(self, triple_id: int) -> list[Source]:
        """As `Memory.sources`."""
        return await self._run(self._memory.sources, triple_id)

    # ---- upkeep ---------------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """As `Memory.stats`."""
        return await self._run(self._memory.stats)

    async def check(self) -> CheckReport:
        """As `Memory.check`."""
        return await self._run(self._memory.check)

    async def reindex(
        self,
        *,
        graph: bool = False,
        force: bool = False,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> None:
        """As `Memory.reindex`. `progress` is called in a thread of the pool."""
        await self._run(self._memory.reindex, graph=graph, force=force, progress=progress)

    async def compact(self, *, progress: Callable[[str, int, int], object] | None = None) -> CompactReport:
        """As `Memory.compact`. `progress` is called in a thread of the pool."""
        return await self._run(self._memory.compact, progress=progress)

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """As `Memory.backup`."""
        await self._run(self._memory.backup, path)


def _next_page(pages: Iterator[list[_T]]) -> list[_T] | None:
    return next(pages, None)


class AsyncTransaction:
    """`Transaction` for asyncio, of one task: operations are buffered, the commit runs in the pool.

    Cancelled in its block it writes nothing; cancelled during its commit, the commit runs to its end.
    """

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory
        self._inner: Transaction = memory.memory.transaction()

    async def __aenter__(self) -> AsyncTransaction:
        self._inner.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._memory._run(self._inner.__exit__, None, None, None)
        else:
            self._inner.__exit__(kind, error, trace)

    def __len__(self) -> int:
        """Operations buffered so far."""
        return len(self._inner)

    async def add(
        self,
        subject: str,
        relation: str,
        object: str,
        *,
        source: str | None = None,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
    ) -> Added:
        """As `Memory.add`."""
        return self._inner.add(subject, relation, object, source=source, vectors=vectors)

    async def add_many(
        self,
        triples: Iterable[TripleLike],
        *,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
        source: str | Sequence[str | None] | None = None,
    ) -> AddReport:
        """As `Memory.add_many`. Runs in the pool, since there may be many."""
        return await self._memory._run(self._inner.add_many, triples, vectors=vectors, source=source)

    async def replace(
        self, subject: str, relation: str, object: str, *, source: str | None = None
    ) -> Replaced:
        """As `Memory.replace`."""
        return self._inner.replace(subject, relation, object, source=source)

    async def remove(self, subject: str, relation: str, object: str) -> Pending[bool]:
        """As `Memory.remove`."""
        return self._inner.remove(subject, relation, object)

    async def forget(self, entity: str) -> Pending[int]:
        """As `Memory.forget`."""
        return self._inner.forget(entity)

    async def alias(self, name: str, entity: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.alias`."""
        return self._inner.alias(name, entity, relation=relation)

    async def unalias(self, name: str, entity: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.unalias`."""
        return self._inner.unalias(name, entity, relation=relation)

    async def rename(self, old: str, new: str, *, relation: bool = False) -> None:
        """As `Memory.rename`."""
        self._inner.rename(old, new, relation=relation)

    async def set_vector(self, name: str, vector: npt.ArrayLike, *, relation: bool = False) -> None:
        """As `Memory.set_vector`."""
        self._inner.set_vector(name, vector, relation=relation)

    async def add_entities(
        self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None
    ) -> Pending[int]:
        """As `Memory.add_entities`. Runs in the pool, since there may be many."""
        return await self._memory._run(self._inner.add_entities, names, vectors=vectors)

    async def add_relations(
        self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None
    ) -> Pending[int]:
        """As `Memory.add_relations`. Runs in the pool, since there may be many."""
        return await self._memory._run(self._inner.add_relations, names, vectors=vectors)

    async def set_external_id(self, external_id: str, name: str, *, relation: bool = False) -> Pending[bool]:
        """As `Memory.set_external_id`."""
        return self._inner.set_external_id(external_id, name, relation=relation)
