"""The engine inside a process: threads at its end, forks, long calls that are interrupted, damage seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pymemstore
from pymemstore.embedders import External


def run(code: str, *arguments: object, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """A new interpreter that sees this pymemstore."""
    root = str(Path(pymemstore.__file__).resolve().parents[1])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_daemon_threads_in_calls_do_not_abort_the_exit(tmp_path: Path) -> None:
    code = """
import sys, threading, time, pymemstore
m = pymemstore.open(sys.argv[1])
m.add_many([(f"s{i}", "r", f"o{i}") for i in range(300)])
def loop():
    while True:
        m.query("s1", "r")
for _ in range(4):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(3):
        done = run(code, tmp_path / "m.mem")
        assert (done.returncode, done.stderr) == (0, "")


def test_children_forked_amid_calls_are_told_at_once(tmp_path: Path) -> None:
    """A child must not wait for a mutex that a thread of its parent held."""
    code = """
import os, sys, threading, warnings, pymemstore
warnings.simplefilter("ignore")
m = pymemstore.open(sys.argv[1])
m.add("a", "r", "b")
stop = False
def loop(call):
    while not stop:
        call()
calls = [lambda: m.contains("a", "r", "b"), lambda: m.query("a", "r"), lambda: m.vector("a")]
threads = [threading.Thread(target=loop, args=(c,)) for c in calls * 2]
for t in threads:
    t.start()
good = 0
for i in range(40):
    pid = os.fork()
    if pid == 0:
        import signal
        signal.alarm(20)
        told = 0
        for call in calls:
            try:
                call()
            except pymemstore.Closed:
                told += 1
        os._exit(0 if told == 3 else 1)
    good += os.waitpid(pid, 0)[1] == 0
stop = True
for t in threads:
    t.join()
print(good)
"""
    done = run(code, tmp_path / "m.mem", seconds=120)
    assert done.stdout.strip() == "40", done.stderr


def many(tmp_path: Path, entities: int, relations: int) -> tuple[pymemstore.Memory, np.ndarray]:
    """A store in which every entity and relation is a candidate, with few triples."""
    memory = pymemstore.open(tmp_path / "many.mem", embedder=External(dim=2, name="x"))
    one = np.array([1, 0], np.float32)
    memory.add_entities([f"e{i}" for i in range(entities)], vectors=np.tile(one, (entities, 1)))
    memory.add_relations([f"r{i}" for i in range(relations)], vectors=np.tile(one, (relations, 1)))
    memory.add_many([(f"e{i * 7 % entities}", f"r{i * 3 % relations}", f"e{i}") for i in range(500)])
    return memory, one


def test_a_limit_over_very_many_pairs_is_the_prefix_of_all(tmp_path: Path) -> None:
    memory, one = many(tmp_path, 5000, 300)  # 1,500,000 pairs
    with memory:
        everything = memory.query(subject_vector=one, relation_vector=one, tau_e=0.9, tau_t=0.9, tau_r=0.9)
        assert len(everything) == 500 and not everything.truncated
        for limit in (1, 30, 499, 500, 501):
            some = memory.query(
                subject_vector=one, relation_vector=one, tau_e=0.9, tau_t=0.9, tau_r=0.9, limit=limit
            )
            assert some.hits == everything.hits[:limit]
            assert some.truncated == (limit < 500)


def test_a_long_join_can_be_interrupted(tmp_path: Path) -> None:
    memory, one = many(tmp_path, 20_000, 40)
    with memory:
        # 400 of these take tens of seconds; nothing is measured but that it ends with the signal.
        queries = [
            {"subject_vector": one, "relation_vector": one, "tau_e": 0.9, "tau_t": 0.9, "tau_r": 0.9}
        ] * 2000
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            memory.query_many(queries)
        assert time.monotonic() - began < 60
        assert len(memory.query(**queries[0], limit=3)) == 3


DAMAGE = {
    "log": ("log", lambda txn, db: txn.put((1).to_bytes(8, "big"), b"\xff" * 9, db=db), "edit log"),
    "source": ("source", lambda txn, db: txn.delete((0).to_bytes(4, "big"), db=db), "source has no text"),
    "external id": (
        "ent_external_of",
        lambda txn, db: txn.delete((0).to_bytes(4, "big"), db=db),
        "external id",
    ),
    "rule key": ("ent_rule", lambda txn, db: txn.drop(db, delete=False), "rule key is missing"),
    "orders": ("delta_ops", lambda txn, db: txn.drop(db, delete=False), "order by object"),
    "name index": ("ent_hash", lambda txn, db: txn.drop(db, delete=False), "lead back"),
    "triple": ("triple", lambda txn, db: txn.delete((1).to_bytes(8, "big"), db=db), "leads elsewhere"),
}
CHANGE = """
import sys, lmdb
sys.path.insert(0, sys.argv[3])
from test_process import DAMAGE
table, change, _ = DAMAGE[sys.argv[2]]
with lmdb.open(sys.argv[1], max_dbs=64) as env:
    info = {"dupsort": table in ("ent_rule", "ent_hash", "ent_external_of")}
    db = env.open_db(table.encode(), create=False, **info)
    with env.begin(write=True) as txn:
        change(txn, db)
"""


@pytest.mark.parametrize("what", DAMAGE)
def test_check_sees_damage_in_every_table(tmp_path: Path, what: str) -> None:
    with pymemstore.open(tmp_path / "m.mem") as memory:
        memory.add("a", "r", "b", source="s")
        memory.alias("A.", "a")
        memory.set_external_id("Q1", "a")
        assert memory.check().ok
    done = run(CHANGE, tmp_path / "m.mem" / "gen-000001", what, Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    with pymemstore.open(tmp_path / "m.mem") as memory:
        report = memory.check()
        assert not report.ok
        assert any(DAMAGE[what][2] in problem for problem in report.problems), report.problems
