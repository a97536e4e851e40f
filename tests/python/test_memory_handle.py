"""Memory: opening, upkeep, embedders that are absent or others, names as they come, threads and forks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import Memory, aio


@pytest.fixture
def embedder() -> Hashed:
    return Hashed()


@pytest.fixture
def memory(tmp_path: Path, embedder: Hashed) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as m:
        yield m


# ---- the handle and upkeep ---------------------------------------------------------------------------


def test_upkeep(memory: Memory, tmp_path: Path) -> None:
    memory.add_many([("a", "r", f"o{i}") for i in range(100)])
    memory.alias("alpha", "a")
    memory.remove("a", "r", "o7")
    stats = dataclasses.asdict(memory.stats())
    assert (stats["entities"], stats["relations"], stats["triples"], stats["aliases"]) == (101, 1, 99, 1)
    assert stats["disk_bytes"] > 0
    before = set(memory.triples())
    assert memory.check().ok and memory.check().problems == ()
    compacted = memory.compact()
    assert compacted.bytes_before > 0 and compacted.bytes_after > 0
    assert set(memory.triples()) == before and memory.check().ok
    memory.backup(tmp_path / "copy.mem")
    memory.add("later", "r", "x")
    with pymemstore.open(tmp_path / "copy.mem", embedder=Hashed()) as copy:
        assert set(copy.triples()) == before and copy.named_by("alpha") == ["a"] and copy.check().ok


def test_the_default_embedders_are_taken_up_again(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m.mem") as memory:
        memory.add("Ana Lima", "place of birth", "Recife")
        assert memory.embedder is not None and memory.embedder.name == "surf256"
        assert memory.thresholds.tau_e == memory.embedder.thresholds.tau_e  # type: ignore[attr-defined]
    with pymemstore.open(tmp_path / "m.mem") as memory:
        assert memory.relation_embedder is not None and memory.relation_embedder.name == "rel256"
        assert memory.query("Ana Lima", "place of birth").names == ["Recife"]
        assert memory.query("Lima, Ana", "place of birth").hits[0].match in ("word_order", "folded")


def test_thresholds_without_the_embedders_are_the_papers(memory: Memory) -> None:
    assert tuple(memory.thresholds) == (0.7, 0.7, 0.85)


def test_a_store_keeps_to_its_embedder(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    steps = json.loads(shared_case("vectors/model_stamp.json").read_text())["steps"]
    path = tmp_path / "m.mem"
    for step in steps:
        if step == "close" or "store" in step:
            continue
        setting = step.get("create") or step["open"]
        embedder = Hashed(setting["dim"], setting["embedder"])
        if "create" in step:
            with pymemstore.open(path, embedder=embedder) as memory:
                memory.add_entities(["Recife"])
        elif step["expect"].startswith("refused"):
            with pytest.raises(pymemstore.EmbedderMismatch) as error:
                pymemstore.open(path, embedder=embedder)
            assert "model-a" in str(error.value) and setting["embedder"] in str(error.value)
        else:
            with pymemstore.open(path, embedder=embedder) as memory:
                assert list(memory.entities()) == ["Recife"]
    with pytest.raises(pymemstore.EmbedderMismatch):
        pymemstore.open(path, relation_embedder=Hashed(8, "model-c"))


def test_without_the_embedder_vectors_do(tmp_path: Path) -> None:
    embedder = Hashed(8, "their-model")
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as memory:
        memory.add("a", "r", "b")
    with pymemstore.open(tmp_path / "m.mem") as memory:
        assert memory.embedder is None and memory.relation_embedder is None
        for call in (
            lambda: memory.query("a", "r"),
            lambda: memory.add("new", "r", "b"),
            lambda: memory.similar_entities("a", 0.5),
        ):
            with pytest.raises(pymemstore.InvalidArgument, match="their-model"):
                call()
        assert "new" not in set(memory.entities())
        memory.add("b", "r", "a")  # known names need nothing
        one = embedder.one
        memory.add("new", "r", "b", vectors=(one("new"), None, None))
        found = memory.query("NEW", "r", subject_vector=one("unlike"), relation_vector=one("r"))
        assert found.names == ["b"] and found.hits[0].match == "folded"
        memory.rename("new", "newer")
        np.testing.assert_allclose(memory.vector("newer"), one("new"), atol=1e-6)


def test_names_are_kept_byte_for_byte(memory: Memory, shared_case: Callable[[str], Path]) -> None:
    rows = [json.loads(line) for line in shared_case("names/names.jsonl").read_text().splitlines()]
    good = [row["name"] for row in rows if row["policy"] in ("accept", "policy", "accept_or_reject")]
    bad = [row["name"] for row in rows if row["policy"] == "reject"]
    assert len(good) > 50 and len(bad) == 2
    for name in bad:
        with pytest.raises(pymemstore.InvalidArgument):
            memory.add(name, "named", "thing")
    report = memory.add_many([(name, "named", "thing") for name in good])
    assert report.inserted == len(set(good))
    assert set(memory.entities()) == {*good, "thing"}
    for name, i in zip(good, report.triple_ids, strict=True):
        assert memory.triple(int(i)).subject == name and memory.contains(name, "named", "thing")
        assert [t.subject for t in memory.triples(subject=name)] == [name]


def test_triples_are_unique(memory: Memory, shared_case: Callable[[str], Path]) -> None:
    rows = [json.loads(line) for line in shared_case("names/triples_unique.jsonl").read_text().splitlines()]
    report = memory.add_many(rows)
    assert (report.inserted, report.existed, len(memory)) == (6, 2, 6)
    assert memory.add_many(rows).inserted == 0 and len(memory) == 6
    assert set(memory.entities()) == {"Ana Lima", "Recife", "Olinda", "born in"}
    assert set(memory.relations()) == {"born in", "BORN IN", "part of"}


def test_threads_share_one_memory(memory: Memory) -> None:
    failed: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(20):
                memory.add(f"s{k}", "r", f"o{k}-{i}")
                assert len(memory.query(f"s{k}", "r", tau_e=0.99)) == i + 1
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(memory) == 80


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_the_store_again(memory: Memory, tmp_path: Path) -> None:
    memory.add("a", "r", "b")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                memory.query("a", "r")
            except pymemstore.Closed:
                with pymemstore.open(tmp_path / "m.mem", embedder=Hashed()) as own:
                    own.add("child", "r", "b")
                    code = 0 if own.query("a", "r").names == ["b"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.contains("child", "r", "b") and memory.add("parent", "r", "b").inserted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_lock_held_at_the_fork_does_not_stop_the_child(memory: Memory, tmp_path: Path) -> None:
    memory.add("a", "r", "b")
    calls: tuple[Callable[[], object], ...] = (
        lambda: memory.query("a", "r"),
        lambda: memory.similar_relations("r"),
        lambda: memory.add("c", "r", "d"),
        lambda: memory.transaction(),
        lambda: memory.triples(),
        lambda: asyncio.run(aio.AsyncMemory(memory, ThreadPoolExecutor(1)).query("a", "r")),
    )
    with memory._spaces[0]._lock, memory._spaces[1]._lock:  # as another thread's query may
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # a child that waits for ever is ended
            refused = 0
            try:
                for call in calls:
                    try:
                        call()
                    except pymemstore.Closed as error:
                        refused += f"by process {os.getppid()}, which forked this one" in str(error)
            finally:
                os._exit(0 if refused == len(calls) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.query("a", "r").names == ["b"]


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    path, copy = (os.fspath(tmp_path / os.fsdecode(name)) for name in (b"\xff.mem", b"\xfe.mem"))
    with pymemstore.open(path, embedder=Hashed()) as memory:
        memory.add("a", "r", "b")
        assert memory.path == path and path in eval(repr(memory).split(" ", 1)[1].rsplit(",", 1)[0])
        memory.backup(copy)
    with pytest.raises(pymemstore.Closed):
        memory.query("a", "r")
    with pytest.raises(pymemstore.MemstoreError):
        memory.stats()
    with pytest.raises(pymemstore.NotFound):
        pymemstore.open(path + ".not", create=False)
    with pytest.raises(pymemstore.EmbedderMismatch):
        pymemstore.open(path, embedder=Hashed(8))
    with pymemstore.open(copy, embedder=Hashed(), read_only=True) as memory:
        assert memory.contains("a", "r", "b")
        with pytest.raises(pymemstore.ReadOnly):
            memory.add("c", "r", "d")
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [b"\xfe.mem", b"\xff.mem"]


def test_a_name_goes_before_those_that_have_it_as_an_alias(tmp_path: Path) -> None:
    """Whatever fact is older; also when a limit cuts, in both directions."""
    with pymemstore.open(tmp_path / "m.mem") as m:
        m.add("Paris (Texas, US)", "country", "United States")
        m.add("Paname", "country", "Nowhere")
        m.add("Paris", "country", "France")
        m.add("x", "near", "Paris (Texas, US)")
        m.add("y", "near", "Paris")
        for other in ("Paris (Texas, US)", "Paname"):
            m.alias("Paris", other)
        assert m.query("Paris", "country").names == ["France", "United States", "Nowhere"]
        assert m.query("Paris", "country", limit=1).names == ["France"]
        assert m.query("Paris", "country", limit=2).names == ["France", "United States"]
        assert m.query(relation="near", object="Paris").names == ["y", "x"]
        assert m.query(relation="near", object="Paris", limit=1).names == ["y"]
