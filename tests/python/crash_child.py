"""What child processes do in the tests of faults: write until killed, look at what is left, run into limits.

Each function runs in a process of its own (see `start`), takes the connection to its parent first, and sends
what it found. `main` is for those that must end as an interpreter does.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hashed import Hashed

import pymemstore
from pymemstore import Memory, MemstoreError

DIM = 8
BATCH = 8000  # triples of one call that is interrupted
HERE = Path(__file__).resolve().parent
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["crash_child"])


def environment() -> dict[str, str]:
    """For a new interpreter: it finds this module and the same pymemstore."""
    roots = [str(HERE), str(Path(pymemstore.__file__).resolve().parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])}


def start(function: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    """Runs `function(connection, *args)` in a new process, which has never seen a store of this one."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]  # the server that forks them reads it once
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    here, there = _context.Pipe()
    process = _context.Process(target=function, args=(there, *args), daemon=True)
    process.start()
    there.close()
    return process, here


def result(function: Callable[..., None], *args: object, seconds: float = 60) -> Any:
    """What the process sends, or ("died", exit code)."""
    process, connection = start(function, *args)
    try:
        if not connection.poll(seconds):
            return "hangs"
        answer = connection.recv()
    except EOFError:
        process.join(seconds)
        return "died", process.exitcode
    finally:
        if process.is_alive():
            process.join(10)
        if process.is_alive():
            process.kill()
        process.join()
        connection.close()
    return answer


def open_store(path: str, **options: Any) -> Memory:
    return pymemstore.open(path, embedder=Hashed(DIM), **options)


def batch(i: int) -> list[tuple[str, str, str]]:
    return [(f"s{i}.{j}", f"r{i % 7}", f"o{(i + j) % 50}") for j in range(5)]


# ---- writing until killed ----------------------------------------------------------------------------


def write(connection: Connection, path: str, first: int, compact_every: int = 0) -> None:
    """Stores batch after batch and acknowledges each."""
    connection.send("go")
    with open_store(path) as m:
        connection.send("open")
        for i in itertools.count(first):
            m.add_many(batch(i), source=f"batch {i}")
            connection.send(i)
            if compact_every and i % compact_every == 0:
                with m.transaction() as t:  # leaves dead vectors behind
                    t.set_vector("s0.0", Hashed(DIM).one(f"another {i}"))
                    t.set_vector("s0.0", Hashed(DIM).one("s0.0"))
                m.compact()


def look(connection: Connection, path: str) -> None:
    """Opens the store anew and tells what is in it and what is wrong with it."""
    try:
        with open_store(path, timeout=20) as m:
            facts = {t[:3]: t.id for t in m.triples()}
            whole: set[int] = set()
            torn: set[int] = set()
            for i in {int(s[1:].split(".")[0]) for s, _, _ in facts}:
                (whole if set(batch(i)) <= set(facts) else torn).add(i)
            strays = set(facts).difference(*(batch(i) for i in whole))
            one = Hashed(DIM).one
            unfound = [n for n in m.entities() if n not in dict(m.similar_entities(one(n), 0.9999))]
            unfound += [n for n in m.relations() if n not in dict(m.similar_relations(one(n), 0.9999))]
            known = set(m.entities())
            unknown = [n for n, _ in m.similar_entities(one("s0.0"), -1.0) if n not in known]
            unnamed = [f for f in facts if not {f[0], f[2]} <= known or f[1] not in set(m.relations())]
            before = m.stats()
            again = m.add_many(list(facts))  # the same names and facts again: the same ids
            ids = dict(zip(facts, (int(i) for i in again.triple_ids), strict=True))
            log = sum(c.op == "add" for c in m.changes())
            problems = m.check().problems
            new = again.inserted + again.new_entities + again.new_relations
            moved = ids != facts or new or m.stats().entities != before.entities
            connection.send(
                {
                    "whole": whole, "torn": torn or strays, "unfound": unfound, "unknown": unknown,
                    "unnamed": unnamed, "moved": moved, "problems": problems, "log": log,
                    "pending": before.unembedded_entities + before.unembedded_relations,
                }
            )  # fmt: skip
    except MemstoreError as e:
        connection.send(f"{type(e).__name__}: {e}")


def copy_and_compact(connection: Connection, path: str) -> None:
    """A copy and a compaction of a store in which one rule key has more names than a page holds."""
    with open_store(path, sync="relaxed") as m:
        m.add_many([(f"s{i}", "r", "o") for i in range(3000)])
        m.backup(f"{path}.copy")
        m.compact()
        connection.send((len(m), m.check().problems))


def write_one(connection: Connection, path: str) -> None:
    with open_store(path) as m:
        m.add("one more", "r", "B")
        connection.send((len(m), m.check().problems))


def write_list(connection: Connection, path: str, rows: list[tuple[str, str, str]]) -> None:
    """One triple a commit."""
    with open_store(path, sync="relaxed") as m:
        connection.send("open")
        connection.recv()
        connection.send(sum(m.add(*row).inserted for row in rows))


# ---- damaged files -----------------------------------------------------------------------------------


def examine(connection: Connection, names: list[str]) -> None:
    """Reads all of each store whose path comes in; sends the error's name, or (problems, names found)."""
    one = Hashed(DIM).one
    while (path := connection.recv()) is not None:
        try:
            with open_store(path, read_only=True) as m:
                problems = m.check().problems
                found = 0
                for n in names:
                    scored = dict(m.similar_entities(one(n), 0.9999))
                    found += n in scored
                m.query_many([(n, "r0", None) for n in names[:20]], tau_e=-1, tau_t=-1, tau_r=-1)
                list(m.triples()), list(m.changes()), list(m.entities())
                connection.send((problems, found))
        except MemstoreError as e:
            connection.send(type(e).__name__)


# ---- limits and signals ------------------------------------------------------------------------------


def small_address_space(connection: Connection, path: str, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        with open_store(path) as m:
            for i in range(40):
                m.add_many(batch(i))
            found = m.query("s3.1", "r3", tau_e=0.99, tau_t=0.99).names
            connection.send((found, m.stats().map_size, m.check().problems))
    except MemstoreError as e:
        connection.send(f"{type(e).__name__}: {e}")


def full_disk(connection: Connection, path: str, limit: int) -> None:
    """Writes until the system refuses, looks at what is left, gets room again and goes on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    connection.send(None)
    m = open_store(path)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    stored = 0
    errors: list[tuple[str, object, str]] = []
    while len(errors) < 3:  # the second and third try meet the same wall and change nothing either
        try:
            m.add_many([(f"s{i}", "r", f"o{i % 100}") for i in range(stored * 500, stored * 500 + 500)])
            stored += 1
        except MemstoreError as e:
            errors.append((type(e).__name__, getattr(e, "errno", None), str(e)))
    readable = sum(1 for _ in m.triples()), len(m), m.check().problems
    connection.send((errors, stored * 500, readable))
    connection.recv()  # by now the parent has freed space
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    m.add_many([(f"s{i}", "r", f"o{i % 100}") for i in range(stored * 500, stored * 500 + 500)])
    after = len(m), m.check().problems
    m.close()
    connection.send(after)


def interrupted(connection: Connection, path: str, what: str, delay: float) -> None:
    """Is sent SIGINT in a long call; tells what the call raised and what it left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open_store(path, sync="relaxed") as m:
        acknowledged = -1
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        raised = "nothing"
        try:
            timer.start()
            if what == "add_many":
                for i in itertools.count():
                    m.add_many([(f"s{i}.{j}", "r", f"o{j}") for j in range(BATCH)])
                    acknowledged = i
            questions = [(f"s0.{j}", "r", None) for j in range(2000)]
            while True:
                m.query_many(questions, tau_e=-1, tau_t=-1, tau_r=0.9)
        except BaseException as e:  # whatever it is, the parent compares it
            raised = type(e).__name__
        timer.join()
        sizes = [disk_sizes(path)]
        m.add("after", "r", "it")
        m.remove("after", "r", "it")  # the handle works
        counts: dict[str, int] = {}
        for t in m.triples():
            key = t.subject.split(".")[0]
            counts[key] = counts.get(key, 0) + 1
        sizes.append(disk_sizes(path))
        threading.Event().wait(0.3)
        sizes.append(disk_sizes(path))
        connection.send((raised, acknowledged, counts, sizes[1] == sizes[2], m.check().problems))


def disk_sizes(path: str) -> dict[str, int]:
    return {str(f): f.stat().st_size for f in sorted(Path(path).rglob("*")) if f.is_file()}


def hold_read(connection: Connection, generation: str) -> None:
    """Holds a slot of the reader table until killed."""
    import lmdb

    with lmdb.open(generation, readonly=True, max_dbs=64) as env, env.begin():
        connection.send("reading")
        connection.recv()


def hold_writer_lock(connection: Connection, path: str) -> None:
    """Holds the lock that a long write holds."""
    import fcntl

    with open(Path(path) / "LOCK", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        connection.send(os.getpid())
        connection.recv()


def follow_growth(connection: Connection, path: str) -> None:
    """Opens with a small map; reads and writes after another process has grown the file."""
    with open_store(path, map_size=1 << 20) as m:
        connection.send(len(m))
        threads_done = threading.Event()
        errors: list[BaseException] = []

        def read() -> None:
            try:
                while not threads_done.is_set():
                    m.query("s0", "r", tau_e=0.99, tau_t=0.99)
            except BaseException as e:
                errors.append(e)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for r in readers:
            r.start()
        connection.recv()
        threads_done.set()
        for r in readers:
            r.join()
        seen = sum(1 for _ in m.triples())
        added = m.add("from the second", "r", "process").inserted
        connection.send((seen, added, [repr(e) for e in errors], m.check().problems))


# ---- forks -------------------------------------------------------------------------------------------


def fork_after_open(path: str) -> None:
    """Prints one line per process; ends children by os._exit and by normal exit."""
    m = open_store(path, threads=4)
    m.add("parent", "r", "before")
    assert m.query("parent", "r", tau_e=0.9, tau_t=0.9).names == ["before"]
    facts = m.triples()
    assert next(facts)[:3] == ("parent", "r", "before")  # a read under way
    for end in ("_exit", "exit"):
        if (pid := os.fork()) == 0:
            said = []
            for call in (lambda: m.add("x", "r", "y"), lambda: len(m), lambda: m.query("parent", "r")):
                try:
                    call()
                    said.append("worked")
                except MemstoreError as e:
                    said.append(type(e).__name__)
            with open_store(path) as own:
                said.append(str(own.contains("parent", "r", "before")))
                own.add(f"child {end}", "r", "own handle")
            m.close()
            print("child", *said, flush=True)
            if end == "_exit":
                os._exit(0)
            return
        print("status", os.waitpid(pid, 0)[1], flush=True)
        m.add("parent", "r", f"after {end}")
        assert m.contains(f"child {end}", "r", "own handle")
    assert list(facts) == []
    m.close()
    print("parent done", flush=True)


_pooled: Memory | None = None


def _search(path: str) -> tuple[str, list[str]]:
    assert _pooled is not None
    try:
        _pooled.query("a", "r")
        inherited = "worked"
    except MemstoreError as e:
        inherited = type(e).__name__
    with open_store(path, read_only=True) as own:
        return inherited, own.query("a", "r", tau_e=0.9, tau_t=0.9).names


def fork_pool(path: str) -> None:
    """Four forked workers search while a thread of the parent does too."""
    global _pooled
    from concurrent.futures import ProcessPoolExecutor

    _pooled = open_store(path, threads=4)
    _pooled.add("a", "r", "b")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            assert _pooled is not None
            _pooled.query("a", "r", tau_e=0.9, tau_t=0.9)

    thread = threading.Thread(target=busy)
    thread.start()
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        answers = list(pool.map(_search, [path] * 16, timeout=60))
    stop.set()
    thread.join()
    print(sorted({str(a) for a in answers}), _pooled.query("a", "r").names, flush=True)
    _pooled.close()


if __name__ == "__main__":
    {"fork_after_open": fork_after_open, "fork_pool": fork_pool}[sys.argv[1]](sys.argv[2])
