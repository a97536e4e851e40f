"""The asyncio face."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import Memory, Transaction, aio


class Slow(Hashed):
    """Encodes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.begun.set()
        assert self.go.wait(30)
        return super().encode(texts)


async def until(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def test_the_same_names_and_parameters_as_the_synchronous_face() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(Memory) <= public(aio.AsyncMemory)
    assert public(Transaction) == public(aio.AsyncTransaction)
    for sync, other in ((Memory, aio.AsyncMemory), (Transaction, aio.AsyncTransaction)):
        for name in public(sync):
            if inspect.isfunction(vars(sync)[name]):
                theirs = inspect.signature(getattr(other, name)).parameters
                ours = inspect.signature(getattr(sync, name)).parameters
                assert list(theirs) == list(ours), name
                assert [p.default for p in theirs.values()] == [p.default for p in ours.values()], name
    opened = inspect.signature(aio.open).parameters
    assert [name for name in opened if name != "workers"] == list(
        inspect.signature(pymemstore.open).parameters
    )


def test_calls_do_what_the_synchronous_ones_do(tmp_path: Path) -> None:
    async def main() -> None:
        embedder = Hashed()
        async with aio.open(tmp_path / "m.mem", embedder=embedder) as m:
            assert m.path == str(tmp_path / "m.mem") and not m.closed and not m.read_only
            assert m.embedder is embedder and m.relation_embedder is embedder
            assert tuple(m.thresholds) == (0.7, 0.7, 0.85)
            added = await m.add("a", "r", "b", source="letter")
            assert added.inserted and await m.contains("a", "r", "b")
            assert (await m.triple(added.triple_id)).object == "b"
            assert [s.source for s in await m.sources(added.triple_id)] == ["letter"]
            assert (await m.add_many([("a", "r", "c"), ("b", "r", "c")])).inserted == 2
            assert (await m.query("a", "r")).names == ["b", "c"]
            assert [len(r) for r in await m.query_many([("a", "r", None), (None, "r", "c")])] == [2, 2]
            assert [n for n, _ in await m.similar_entities("a", 0.99)] == ["a"]
            assert [n for n, _ in await m.similar_relations("r", 0.99)] == ["r"]
            assert len((await m.replace("a", "r", "d")).removed) == 2
            assert await m.remove("b", "r", "c")
            assert await m.alias("A.", "a") and await m.aliases("a") == ["A."]
            assert await m.named_by("A.") == ["a"] and await m.unalias("A.", "a")
            assert await m.set_external_id("Q1", "a") and await m.by_external_id("Q1") == "a"
            assert await m.external_ids("a") == ["Q1"]
            await m.rename("b", "bb")
            assert await m.add_entities(["e"]) == 1 and await m.add_relations(["q"]) == 1
            await m.set_vector("e", np.eye(1, 16)[0])
            assert (await m.vector("e")).tolist() == np.eye(1, 16)[0].tolist()  # type: ignore[union-attr]
            assert await m.forget("c") == 0
            assert await m.embed_missing() == 0
            assert (await m.stats()).triples == 1 and (await m.check()).ok
            assert (await m.compact()).bytes_after > 0
            await m.backup(tmp_path / "copy.mem")
            assert [name async for name in m.entities()] == ["a", "bb", "d", "e"]
            assert [name async for name in m.relations()] == ["r", "q"]
            assert [t[:3] async for t in m.triples(subject="a")] == [("a", "r", "d")]
            assert [c.op async for c in m.changes()][:3] == ["add"] * 3
        assert m.closed
        with pymemstore.open(tmp_path / "copy.mem", embedder=Hashed()) as copy:
            assert len(copy) == 1

    asyncio.run(main())


def test_errors_come_through(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(pymemstore.NotFound):
            await aio.open(tmp_path / "none.mem", create=False)
        m = await aio.open(tmp_path / "m.mem", embedder=Hashed())
        with pytest.raises(pymemstore.InvalidArgument, match="object is None"):
            await m.add("a", "r", None)  # type: ignore[arg-type]
        with pytest.raises(pymemstore.InvalidArgument, match="since"):
            m.changes(-1)
        await m.add_many([("a", "r", f"o{i}") for i in range(5)])
        running = m.triples()
        await anext(running)
        await m.close()
        await m.close()
        with pytest.raises(pymemstore.Closed):
            await anext(running)
        with pytest.raises(pymemstore.Closed):
            await m.query("a", "r")
        with pytest.raises(pymemstore.Closed):
            m.transaction()

    asyncio.run(main())


def test_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "m.mem", embedder=Hashed()) as m:
            async with m.transaction() as t:
                added = await t.add("a", "r", "b")
                report = await t.add_many([("a", "r", "b"), ("b", "r", "c")])
                alias = await t.alias("A.", "a")
                assert len(t) == 3 and not await m.contains("a", "r", "b")
            assert added.inserted and report.inserted == 1 and alias.value
            with pytest.raises(ZeroDivisionError):
                async with m.transaction() as t:
                    await t.add("x", "r", "y")
                    raise ZeroDivisionError
            assert (await m.stats()).triples == 2

    asyncio.run(main())


def test_the_loop_goes_on_during_an_import(tmp_path: Path) -> None:
    # 100,000 facts in one call, a tick each 10 ms. The gap allowed is the case's (ops/lifecycle.json, async).
    # Another program may take the processor from us: up to three tries, of which the best counts.
    async def longest_gap(path: Path) -> float:
        rows = [(f"subject {i % 20_000}", f"r{i % 10}", f"object {i}") for i in range(100_000)]
        async with aio.open(path) as m:
            done = False
            gaps: list[float] = []

            async def tick() -> None:
                last = time.monotonic()
                while not done:
                    await asyncio.sleep(0.01)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now

            ticking = asyncio.create_task(tick())
            report = await m.add_many(rows)
            found = await m.query_many([(f"Subject {i}", f"r{i % 10}", None) for i in range(100)])
            done = True
            await ticking
            assert report.inserted == 100_000 and all(found)
            assert len(gaps) > 10, "the loop stood still"
            return max(gaps)

    tries: list[float] = []
    while len(tries) < 3 and (not tries or min(tries) >= 0.2):
        tries.append(asyncio.run(longest_gap(tmp_path / f"{len(tries)}.mem")))
    assert min(tries) < 0.2, f"longest gaps of the tries: {tries} s"


def test_a_cancelled_wait_leaves_the_write_whole(tmp_path: Path) -> None:
    async def main() -> None:
        embedder = Slow()
        async with aio.open(tmp_path / "m.mem", embedder=embedder, workers=1) as m:
            embedder.go.clear()
            running = asyncio.create_task(m.add_many([("a", "r", "b"), ("b", "r", "c")]))
            await until(embedder.begun)
            queued = asyncio.create_task(m.add("never", "r", "begun"))
            await asyncio.sleep(0)
            for task in (running, queued):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            embedder.go.set()
            assert (await m.stats()).triples == 2  # by the one thread, after what it had begun
            assert not await m.contains("never", "r", "begun")

    asyncio.run(main())


def test_close_waits_for_what_runs(tmp_path: Path) -> None:
    async def main() -> None:
        embedder = Slow()
        m = await aio.open(tmp_path / "m.mem", embedder=embedder)
        embedder.go.clear()
        adding = asyncio.create_task(m.add("a", "r", "b"))
        await until(embedder.begun)
        closing = asyncio.create_task(m.close())
        await asyncio.sleep(0.02)
        assert not closing.done() and m.closed
        with pytest.raises(pymemstore.Closed):
            await m.contains("a", "r", "b")
        embedder.go.set()
        assert (await adding).inserted
        await closing
        with pymemstore.open(tmp_path / "m.mem", embedder=Hashed()) as memory:
            assert memory.contains("a", "r", "b")

    asyncio.run(main())


def test_many_calls_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "m.mem", embedder=Hashed()) as m:
            await asyncio.gather(*(m.add(f"s{i}", "r", "o") for i in range(50)))
            results = await asyncio.gather(*(m.query(f"s{i}", "r", tau_e=0.99) for i in range(50)))
            assert all(r.names == ["o"] for r in results)

    asyncio.run(main())
