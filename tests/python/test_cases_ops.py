"""The fault cases of operation: handles, processes, threads, forks, signals (S04-S11, C01-C12, K04)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crash_child
import numpy as np
import pytest
from crash_child import BATCH, DIM, batch, disk_sizes, environment, open_store, result, start
from hashed import Hashed

import pymemstore
from pymemstore import Closed, InvalidArgument, Locked, Memory, ReadOnly, _core, aio

A, B = ("A", "r", "B"), ("C", "r", "D")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m.mem")


@pytest.fixture
def memory(path: str) -> Iterator[Memory]:
    with open_store(path) as m:
        yield m


def test_lifecycle_scenarios_are_those_known(shared_case: Callable[[str], Path]) -> None:
    scenarios = json.loads(shared_case("ops/lifecycle.json").read_text())["scenarios"]
    assert len(scenarios) == 20  # each is a test here or in test_cases_crash.py, which its name begins with
    tests = "".join((Path(__file__).with_name(f"test_cases_{f}.py")).read_text() for f in ("ops", "crash"))
    assert [s["id"] for s in scenarios if f"def test_{s['id']}" not in tests] == []


# ---- handles -----------------------------------------------------------------------------------------


def use_both(a: Memory, b: Memory) -> None:
    a.add(*A)
    assert b.contains(*A)
    b.add("from b", "r", "B")
    b.close()
    a.add(*B)
    assert a.contains(*A) and a.contains(*B) and a.contains("from b", "r", "B") and a.check().ok


def test_open_twice_same_C01(path: str) -> None:
    with open_store(path) as a:
        use_both(a, open_store(path))
    with open_store(path) as a:
        assert len(a) == 3


@pytest.mark.parametrize("spelling", ["dots", "slash", "symlink", "relative", "hard_link"])
def test_open_twice_alias_C01(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    with open_store(path) as a:
        other = {"dots": f"{path}/../m.mem", "slash": f"{path}//", "relative": "m.mem"}.get(spelling)
        if spelling == "relative":
            monkeypatch.chdir(tmp_path)
        elif other is None:
            other = str(tmp_path / "other.mem")
            if spelling == "symlink":
                os.symlink(path, other)
            else:
                shutil.copytree(path, other, copy_function=os.link)
        use_both(a, open_store(str(other)))
    with open_store(path) as a:
        assert len(a) == 3 and a.check().ok


def test_open_twice_alias_K04_by_another_copy_of_lmdb(path: str) -> None:
    """A reader of the tables belongs into another process; here the data must stay whole even so."""
    lmdb = pytest.importorskip("lmdb")
    with open_store(path) as m:
        m.add(*A)
        for lock in (False, True):
            with (
                lmdb.open(f"{path}/gen-000001", readonly=True, lock=lock, max_dbs=64) as env,
                env.begin() as txn,
            ):
                assert txn.stat(env.open_db(b"delta_spo", txn=txn))["entries"] == len(m)
            m.add(f"after {lock}", "r", "it")
    assert result(crash_child.write_one, path) == (4, ())


def writes(m: Memory) -> dict[str, Callable[[], object]]:
    one = Hashed(DIM).one("x")

    def transaction() -> None:
        with m.transaction() as t:
            t.add("x", "r", "y")

    return {
        "add": lambda: m.add("x", "r", "y"),
        "add known": lambda: m.add(*A),
        "add_many": lambda: m.add_many([("x", "r", "y")]),
        "replace": lambda: m.replace("A", "r", "y"),
        "remove": lambda: m.remove(*A),
        "forget": lambda: m.forget("A"),
        "alias": lambda: m.alias("a", "A"),
        "unalias": lambda: m.unalias("a", "A"),
        "rename": lambda: m.rename("A", "a"),
        "add_entities": lambda: m.add_entities(["x"]),
        "add_relations": lambda: m.add_relations(["x"]),
        "set_vector": lambda: m.set_vector("A", one),
        "set_external_id": lambda: m.set_external_id("Q1", "A"),
        "embed_missing": lambda: m.embed_missing(),
        "compact": lambda: m.compact(),
        "transaction": transaction,
    }


def reads(m: Memory, elsewhere: str) -> dict[str, Callable[[], object]]:
    one = Hashed(DIM).one("A")
    return {
        "query": lambda: m.query("A", "r"),
        "query by vector": lambda: m.query(subject_vector=one, relation_vector=one),
        "query_many": lambda: m.query_many([("A", "r", None)]),
        "no queries": lambda: m.query_many([]),
        "similar_entities": lambda: m.similar_entities("A", 0.5),
        "similar_relations": lambda: m.similar_relations(one, 0.5),
        "entities": lambda: list(m.entities()),
        "relations": lambda: list(m.relations()),
        "triples": lambda: list(m.triples()),
        "changes": lambda: list(m.changes()),
        "contains": lambda: m.contains(*A),
        "triple": lambda: m.triple(1),
        "vector": lambda: m.vector("A"),
        "aliases": lambda: m.aliases("A"),
        "named_by": lambda: m.named_by("A"),
        "external_ids": lambda: m.external_ids("A"),
        "by_external_id": lambda: m.by_external_id("Q1"),
        "sources": lambda: m.sources(1),
        "stats": lambda: m.stats(),
        "len": lambda: len(m),
        "check": lambda: m.check(),
        "backup": lambda: m.backup(elsewhere),
        "with": lambda: m.__enter__(),
    }


def test_read_only_S11(path: str, tmp_path: Path) -> None:
    with open_store(path) as m:
        m.add(*A)
        known = next(m.triples()).id
    before = {f: Path(f).read_bytes() for f in disk_sizes(path) if not f.endswith("lock.mdb")}
    with open_store(path, read_only=True) as m:
        for name, write in writes(m).items():
            with pytest.raises(ReadOnly):
                write()
            assert m.contains(*A) and len(m) == 1, name
        assert m.query("A", "r", tau_e=0.9, tau_t=0.9).names == ["B"] and m.triple(known)[:3] == A
        m.backup(tmp_path / "copy.mem")  # writes elsewhere
        assert m.check().ok
        with pytest.raises(InvalidArgument, match="read-only"):
            open_store(path)  # one environment in a process: it can't be both
    assert {f: Path(f).read_bytes() for f in disk_sizes(path) if not f.endswith("lock.mdb")} == before


def test_handle_after_close_C10(path: str, tmp_path: Path) -> None:
    m = open_store(path)
    m.add(*A)
    vector = m.vector("A")
    hit = m.query("A", "r", tau_e=0.9, tau_t=0.9).hits[0]
    m.close()
    for name, call in {**writes(m), **reads(m, str(tmp_path / "copy.mem"))}.items():
        with pytest.raises(Closed):
            call()
            pytest.fail(name)
    m.close()  # a second close does nothing
    assert m.closed and repr(m)
    assert vector is not None and np.array_equal(vector, Hashed(DIM).one("A"))  # values are copies
    assert hit.triple[:3] == A
    assert not (tmp_path / "copy.mem").exists()


@pytest.mark.parametrize("what", ["triples", "entities", "relations", "changes"])
def test_iter_then_close_C10(path: str, what: str) -> None:
    m = open_store(path, sync="relaxed")
    m.add_many([(f"s{i}", f"r{i}", f"o{i}") for i in range(2500)])  # more than a page
    for taken in (0, 1, 1000, 1500):
        with open_store(path) as second:
            rows = getattr(second, what)()
            for _ in range(taken):
                next(rows)
        with pytest.raises(Closed):
            next(rows)
    m.close()


def test_nested_write_C08(path: str) -> None:
    """No public call holds the writer's lock while code of the caller runs."""

    class Writing(Hashed):
        memory: Memory | None = None

        def encode(self, texts: Any) -> Any:
            if (memory := self.memory) is not None:
                self.memory = None  # once: the inner write embeds too
                memory.add("inner", "r", "embedding")
            return super().encode(texts)

    embedder = Writing(DIM)
    with pymemstore.open(path, embedder=embedder, timeout=5) as m:
        embedder.memory = m
        m.add("outer", "r", "embedding")
        assert embedder.memory is None
        with m.transaction() as t:
            t.add("outer", "r", "transaction")
            m.add("inner", "r", "transaction")
            with m.transaction() as inner:
                inner.add("inner", "r", "nested transaction")
        m.add_many([("outer", "r", "progress")], progress=lambda *_: m.add("inner", "r", "progress"))
        m.add_many((t.subject, "r2", t.object) for t in m.triples())  # an iterator of its own while writing
        for what in ("embedding", "transaction", "progress"):
            assert m.contains("outer", "r", what) and m.contains("inner", "r", what)
        assert len(m) == 2 * 7 and m.check().ok


# ---- several processes -------------------------------------------------------------------------------


def test_two_writers_C06(path: str, shared_case: Callable[[str], Path]) -> None:
    data = json.loads(shared_case("ops/two_writers.json").read_text())
    lists = [[tuple(t) for t in data[w]] for w in ("writer_1", "writer_2")]
    children = [start(crash_child.write_list, path, rows) for rows in lists]
    for _, connection in children:
        assert connection.recv() == "open"
    for _, connection in children:
        connection.send("go")
    assert sum(connection.recv() for _, connection in children) == data["expect"]["distinct_triples"] == 360
    for process, _ in children:
        process.join()
    with open_store(path) as m:
        stats = m.stats()
        assert (stats.triples, stats.entities, stats.relations) == (360, 90, 1)
        assert (stats.entity_vector_rows, stats.relation_vector_rows) == (90, 1)  # one vector each, ever
        assert {t[:3] for t in m.triples()} == {*lists[0], *lists[1]}
        assert len(set(m.entities())) == len(list(m.entities())) == 90
        assert all(m.contains(*t) for rows in lists for t in rows)
        for name in m.entities():
            assert [n for n, _ in m.similar_entities(Hashed(DIM).one(name), 0.9999)] == [name]
        assert m.check().ok


def run_script(name: str, path: str) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", crash_child.__file__, name, path]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_fork_after_open_C02(path: str) -> None:
    child, fine = "child Closed Closed Closed True", "status 0"
    assert run_script("fork_after_open", path) == [child, fine, child, fine, "parent done"]
    with open_store(path) as m:
        assert {t.subject + " " + t.object for t in m.triples()} == {
            "parent before", "parent after _exit", "parent after exit",
            "child _exit own handle", "child exit own handle",
        }  # fmt: skip
        assert m.check().ok


def test_fork_pool_C02(path: str) -> None:
    assert run_script("fork_pool", path) == ["[\"('Closed', ['b'])\"] ['b']"]


def test_dead_readers_C03(path: str) -> None:
    pytest.importorskip("lmdb")
    stamp = ("hashed-test", DIM, "")
    store = _core.Store.open(
        os.fsencode(path), create=True, read_only=False, timeout=5.0, sync="full", map_size=0, threads=1,
        max_readers=4,
        entity_stamp=stamp, relation_stamp=stamp, stamps_if_new=False,
    )  # fmt: skip
    entry = _core.Batch()
    entry.add([A])
    store.apply(entry)
    assert store.stats()["max_readers"] == 4
    children = [start(crash_child.hold_read, f"{path}/gen-000001") for _ in range(4)]
    for _, connection in children:
        assert connection.recv() == "reading"
    with pytest.raises(Locked, match="reader table is full"):  # all four are alive
        store.find(*A)
    for process, _ in children:
        process.kill()
        process.join()
    assert store.find(*A) == 1  # works: the dead slots are cleared
    assert store.apply(entry)[0][0][1].tolist() == [False]
    store.close()
    with open_store(path) as m:
        assert len(m) == 1 and m.check().ok


def test_busy_is_not_broken_C11(path: str) -> None:
    with open_store(path) as m:
        m.add(*A)
    process, connection = start(crash_child.hold_writer_lock, path)
    pid = connection.recv()
    before = disk_sizes(path)
    with open_store(path, timeout=0.05) as m:  # opens and reads
        assert m.query("A", "r", tau_e=0.9, tau_t=0.9).names == ["B"]
        for name, write in writes(m).items():
            if name not in ("embed_missing",):  # nothing waits for a vector
                with pytest.raises(Locked, match=str(pid)):
                    write()
        assert m.contains(*A) and m.check().ok
    assert disk_sizes(path) == before
    with open_store(path, timeout=30) as m:
        threading.Timer(0.3, process.kill).start()  # the lock goes with its holder
        assert m.add(*B).inserted
    process.join()


# ---- the map -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [500, 20_000])
def test_map_full_S04(path: str, size: int) -> None:
    rows = [(f"subject {i}", "r", f"object {i % 997}") for i in range(20_000)]
    with open_store(path, map_size=1 << 20, sync="relaxed") as m:
        assert m.stats().map_size == 1 << 20
        for i in range(0, len(rows), size):
            assert m.add_many(rows[i : i + size]).inserted == size
        assert len(m) == 20_000 and m.stats().map_size > 1 << 20
        m.add(*A)
        assert all(m.contains(*row) for row in rows[::997]) and m.check().ok


def test_map_full_S04_the_size_asked_for_is_the_size_reported(path: str) -> None:
    for size in (5 << 30, 1 << 20, 9 << 30):
        with open_store(path, map_size=size) as m:
            assert m.stats().map_size == size


def test_map_full_two_procs_S05(path: str) -> None:
    with open_store(path, map_size=1 << 20, sync="relaxed") as m:
        m.add("s0", "r", "o0")
        process, connection = start(crash_child.follow_growth, path)
        assert connection.recv() == 1
        for i in range(1, 9000, 1000):
            m.add_many([(f"s{j}", "r", f"o{j % 50}") for j in range(i, i + 1000)])
        assert m.stats().map_size > 1 << 20
        connection.send("grown")
        assert connection.poll(30), "hangs"
        assert connection.recv() == (9001, True, [], ())
        process.join()
        assert m.contains("from the second", "r", "process") and m.check().ok


def test_long_reader_S08(tmp_path: Path) -> None:
    """Iterators that are left open hold no pages: the file is no larger for them."""
    used = []
    for leave_open in (False, True):
        with open_store(str(tmp_path / f"{leave_open}.mem"), sync="relaxed") as m:
            m.add_many([(f"{i:0200}", "r", "first") for i in range(2000)])
            left = [m.triples(), m.entities(), m.changes()] if leave_open else []
            for rows in left:
                next(rows)
            for k in range(60):
                with m.transaction() as t:
                    for i in range(50):
                        t.replace(f"{i:0200}", "r", f"object {k}")
            used.append(m.stats().map_used)
            assert m.stats().readers <= 1
            assert all(sum(1 for _ in rows) > 1000 for rows in left)
    assert used[1] <= 1.2 * used[0]


def test_S09_churn_and_compact(path: str, tmp_path: Path) -> None:
    # First in a process of its own: LMDB's copying has crashed on tables whose duplicates fill pages.
    assert result(crash_child.copy_and_compact, str(tmp_path / "c.mem")) == (3000, ())
    rows = [(f"s{i}", f"r{i % 5}", f"o{i % 100}") for i in range(1500)]

    def size(where: str) -> int:
        return sum(disk_sizes(where).values())

    def answers(m: Memory) -> list[object]:
        asked = m.query_many([(f"s{i}", f"r{i % 5}", None) for i in range(0, 1500, 50)], tau_e=0.8, tau_t=0.9)
        return [[[(h.name, h.score) for h in r] for r in asked], sorted(t[:3] for t in m.triples())]

    with open_store(path, sync="relaxed") as m:
        m.add_many(rows)
        first = size(path)
        for _ in range(9):
            with m.transaction() as t:
                for name in list(m.entities()):
                    t.forget(name)
            assert len(m) == 0 and m.stats().entities == 0
            m.add_many(rows)
        assert size(path) <= 10 * first  # the edit log and the vector file keep every round; see compact
        before = answers(m)
        report = m.compact()
        assert report.bytes_after < report.bytes_before
        assert answers(m) == before and m.check().ok
        assert m.stats().entity_vector_rows == m.stats().entities == 1600
    with open_store(str(tmp_path / "fresh.mem"), sync="relaxed") as fresh:
        fresh.add_many(rows)
        assert answers(fresh)[1] == before[1]
    with open_store(path) as m:
        assert answers(m) == before


# ---- threads and signals -----------------------------------------------------------------------------


def run_threads(targets: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(t,)) for t in targets]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert errors == [] and not any(t.is_alive() for t in threads)


def test_C04_searches_beside_a_writer(path: str) -> None:
    """4 threads beside growth and compaction: what was acknowledged before a search is in its answer."""
    acknowledged = [0]
    done = threading.Event()
    one = Hashed(DIM).one
    with open_store(path, map_size=1 << 20, sync="relaxed") as m:

        def write() -> None:
            for i in range(40):
                m.add_many([(f"s{i}.{j}", "r", f"o{i}") for j in range(100)])
                acknowledged[0] = i + 1
                if i % 15 == 10:
                    m.compact()
            done.set()

        def search() -> None:
            rng = np.random.default_rng(threading.get_ident())
            while not done.is_set():
                if n := acknowledged[0]:
                    i, j = int(rng.integers(n)), int(rng.integers(100))
                    name = f"s{i}.{j}"
                    assert name in dict(m.similar_entities(one(name), 0.9999))
                    found = m.query(name, "r", tau_e=0.9999, tau_t=0.9, rules="none")
                    assert f"o{i}" in found.names
                    assert all(-1 <= h.cosine <= 1 for h in found)

        run_threads([write, search, search, search, search])
        assert m.stats().map_size > 1 << 20 and len(m) == 4000 and m.check().ok


def test_C05_parameters_are_per_call(path: str) -> None:
    rng = np.random.default_rng(5)
    with open_store(path, threads=2) as m:
        m.add_many([(f"s{i}", f"r{i % 4}", f"o{i % 300}") for i in range(2000)])
        asked: list[tuple[str, str, dict[str, Any]]] = [
            (f"s{i}", f"r{i % 4}", {"tau_e": float(t), "tau_t": 0.5, "tau_r": -1.0, "limit": limit})
            for i, (t, limit) in enumerate(zip(rng.uniform(0.2, 1, 64), [None, 1, 5, 13] * 16, strict=True))
        ]

        def ask(i: int) -> tuple[object, bool, list[tuple[str, float]]]:
            s, r, options = asked[i]
            answer = m.query(s, r, **options)
            similar = m.similar_entities(s, options["tau_e"], limit=options["limit"])
            return answer.hits, answer.truncated, similar

        alone = [ask(i) for i in range(64)]
        assert len({len(a[0]) for a in alone}) > 5  # type: ignore[arg-type]

        def thread(k: int) -> None:
            for i in range(64):
                n = (i * 5 + k * 8) % 64
                assert ask(n) == alone[n]

        run_threads([lambda k=k: thread(k) for k in range(8)])  # type: ignore[misc]


def test_D08_compact_beside_writers(path: str) -> None:
    done = threading.Event()
    with open_store(path, sync="relaxed") as m:
        m.add_many([row for i in range(20) for row in batch(i)])
        m.forget("s0.0")

        def write(start: int) -> None:
            for i in range(start, start + 30):
                m.add_many(batch(i))
                m.remove(*batch(i)[0])
            done.set()

        def compact() -> None:
            while not done.is_set():
                m.compact()

        run_threads([lambda: write(100), lambda: write(200), compact])
        wanted = {row for i in range(20) for row in batch(i)} - {batch(0)[0]}
        wanted |= {row for s in (100, 200) for i in range(s, s + 30) for row in batch(i)[1:]}
        assert {t[:3] for t in m.triples()} == wanted
        assert "s0.0" not in m.entities() and m.check().ok and m.stats().generation > 1
    with open_store(path) as m:
        assert {t[:3] for t in m.triples()} == wanted


@pytest.mark.parametrize(("what", "delay"), [("add_many", 0.2), ("add_many", 0.7), ("query", 0.3)])
def test_ctrl_c_C12(path: str, what: str, delay: float) -> None:
    if what == "query":
        with open_store(path, sync="relaxed") as m:
            m.add_many([(f"s0.{j}", "r", f"o{j}") for j in range(2000)])
    answer = result(crash_child.interrupted, path, what, delay)
    assert isinstance(answer, tuple) and len(answer) == 5, answer
    raised, acknowledged, counts, stable, problems = answer
    assert raised == "KeyboardInterrupt" and stable and problems == ()
    if what == "add_many":  # whole batches: those acknowledged, and perhaps the one whose answer was cut off
        whole = {f"s{i}": BATCH for i in range(acknowledged + 1)}
        assert counts in (whole, {**whole, f"s{acknowledged + 1}": BATCH})
        with open_store(path, sync="relaxed") as m:  # a second run completes
            rows = [(f"s{i}.{j}", "r", f"o{j}") for i in range(2) for j in range(BATCH)]
            m.add_many(rows)
            assert len(m) == BATCH * max(2, len(counts))


def test_async_C09(path: str) -> None:
    async def main() -> tuple[int, int]:
        ticks = 0
        done = asyncio.Event()

        async def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                await asyncio.sleep(0.01)

        async with aio.open(path, embedder=Hashed(DIM), sync="relaxed") as m:
            ticker = asyncio.create_task(tick())
            started = ticks
            for i in range(4):
                await m.add_many([(f"s{i}.{j}", "r", f"o{j}") for j in range(5000)])
            await m.query("s0.1", "r")
            during = ticks - started
            done.set()
            await ticker
            return during, (await m.stats()).triples

    during, triples = asyncio.run(main())
    assert triples == 20_000 and during > 10  # a blocked loop would have ticked a few times at most
