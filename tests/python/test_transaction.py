"""Transactions: buffered, applied together or not at all, results filled in by the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import InvalidArgument, Memory, Transaction


@pytest.fixture
def embedder() -> Hashed:
    return Hashed()


@pytest.fixture
def memory(tmp_path: Path, embedder: Hashed) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder, timeout=2) as m:
        m.add_many([("a", "r", "b"), ("a", "r", "c"), ("b", "q", "c")])
        yield m


def state(memory: Memory) -> tuple[object, ...]:
    """All that a failed transaction might have touched."""
    return (
        set(memory.triples()),
        list(memory.entities()),
        list(memory.relations()),
        memory.aliases("a"),
        memory.external_ids("a"),
        list(memory.changes()),
        memory.vector("a").tolist(),  # type: ignore[union-attr]
    )


def test_results_are_filled_in_by_the_commit(memory: Memory) -> None:
    with memory.transaction() as t:
        added = t.add("d", "r", "a", source="letter")
        many = t.add_many([("d", "r", "a"), ("e", "s", "a")])
        removed, missing = t.remove("b", "q", "c"), t.remove("b", "q", "nothing")
        replaced = t.replace("a", "r", "e")
        alias = t.alias("A.", "a")
        gone = t.unalias("B.", "b")
        names = t.add_entities(["a", "f", "g"])
        kinds = t.add_relations(["r", "z"])
        external = t.set_external_id("Q1", "a")
        t.set_vector("f", np.eye(1, 16)[0])
        t.rename("g", "gg")
        forgotten = t.forget("c")
        assert len(t) == 13
        assert not memory.contains("d", "r", "a")
        for field in (
            lambda: added.triple_id,
            lambda: added.inserted,
            lambda: many.triple_ids,
            lambda: replaced.removed,
            lambda: removed.value,
            lambda: bool(alias),
        ):
            with pytest.raises(InvalidArgument, match="not committed"):
                field()
        assert "not committed" in repr(added)
    assert memory.triple(added.triple_id)[:3] == ("d", "r", "a") and added.inserted
    assert many.inserted_mask.tolist() == [False, True] and int(many.triple_ids[0]) == added.triple_id
    assert removed.value is True and removed and missing.value is False and not missing
    assert {x.object for x in replaced.removed} == {"b", "c"}
    assert alias.value is True and gone.value is False and external.value is True
    assert names.value == 2 and kinds.value == 1
    assert forgotten.value == 0  # its facts were removed and replaced before
    assert {x[:3] for x in memory.triples()} == {("d", "r", "a"), ("e", "s", "a"), ("a", "r", "e")}
    assert set(memory.entities()) == {"a", "b", "d", "e", "f", "gg"}
    assert memory.vector("f").tolist() == np.eye(1, 16)[0].tolist()  # type: ignore[union-attr]
    assert memory.query("A.", "r").names == ["e"] and memory.by_external_id("Q1") == "a"
    assert memory.stats().unembedded_entities == memory.stats().unembedded_relations == 0


def test_operations_see_those_before_them(memory: Memory) -> None:
    with memory.transaction() as t:
        first, again = t.add("x", "r", "y"), t.add("x", "r", "y")
        gone = t.remove("x", "r", "y")
        back = t.add("x", "r", "y")
    assert (first.inserted, again.inserted, gone.value, back.inserted) == (True, False, True, True)
    assert first.triple_id == again.triple_id != back.triple_id


def test_an_exception_in_the_block_writes_nothing(memory: Memory, embedder: Hashed) -> None:
    before = state(memory)
    embedder.calls.clear()
    with pytest.raises(ZeroDivisionError), memory.transaction() as t:
        added = t.add("new", "r", "b")
        t.forget("a")
        raise ZeroDivisionError
    assert state(memory) == before and embedder.calls == []
    with pytest.raises(InvalidArgument, match="ZeroDivisionError"):
        added.triple_id  # noqa: B018


@pytest.mark.parametrize(
    "bad",
    [
        lambda t: t.forget("nobody"),
        lambda t: t.alias("N.", "nobody"),
        lambda t: t.rename("nobody", "somebody"),
        lambda t: t.rename("a", "b"),
        lambda t: t.set_vector("nobody", np.ones(16)),
        lambda t: t.set_external_id("Q9", "nobody"),
    ],
    ids=["forget", "alias", "rename unknown", "rename to a taken name", "set_vector", "set_external_id"],
)
def test_an_operation_that_fails_at_the_commit_undoes_all(
    memory: Memory, bad: Callable[[Transaction], object]
) -> None:
    before = state(memory)
    with pytest.raises((pymemstore.NotFound, InvalidArgument)) as error, memory.transaction() as t:
        t.add("new", "r", "b")
        t.alias("A.", "a")
        t.set_external_id("Q1", "a")
        t.set_vector("a", np.ones(16))
        bad(t)
        late = t.add("newer", "r", "b")
    assert "nobody" in str(error.value) or "'b'" in str(error.value) or '"b"' in str(error.value)
    assert state(memory) == before
    with pytest.raises(InvalidArgument, match="failed"):
        late.inserted  # noqa: B018
    assert memory.check().ok


def test_a_refused_argument_leaves_the_transaction_usable(memory: Memory) -> None:
    rows: list[tuple[str, str, str | None]] = [(f"s{i}", "r", "o") for i in range(12_000)]
    rows.append(("s", "r", None))
    with memory.transaction() as t:
        with pytest.raises(InvalidArgument, match="triple 12000: object is None"):
            t.add_many(rows)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            t.add("x", "r", "")
        with pytest.raises(InvalidArgument):
            t.add_many([("x", "r", "y")], vectors=(np.ones((2, 16)), None, None))
        kept = t.add("kept", "r", "b")
    assert kept.inserted and len(memory) == 4 and set(memory.entities()) == {"a", "b", "c", "kept"}


def test_a_failing_embedder_writes_nothing(tmp_path: Path) -> None:
    class Failing(Hashed):
        fails = False

        def encode(self, texts):  # type: ignore[no-untyped-def]
            if self.fails:
                raise ConnectionError("the model server is away")
            return super().encode(texts)

    embedder = Failing()
    with pymemstore.open(tmp_path / "m.mem", embedder=embedder) as memory:
        memory.add("a", "r", "b")
        before = state(memory)
        embedder.fails = True
        with pytest.raises(ConnectionError), memory.transaction() as t:
            t.alias("A.", "a")
            added = t.add("new", "r", "b")
        assert state(memory) == before
        with pytest.raises(InvalidArgument, match="ConnectionError"):
            added.triple_id  # noqa: B018
        embedder.fails = False
        assert memory.add("new", "r", "b").inserted


def test_no_lock_is_held_in_the_block(memory: Memory, tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(), timeout=2) as other:
        with memory.transaction() as t:
            mine = t.add("x", "r", "y")
            theirs = other.add("x", "r", "y")
            memory.add("z", "r", "y")  # the same handle, too
        assert theirs.inserted and not mine.inserted and mine.triple_id == theirs.triple_id


def test_a_transaction_in_anothers_block_is_independent(memory: Memory) -> None:
    with pytest.raises(ZeroDivisionError), memory.transaction() as outer:
        outer.add("outer", "r", "b")
        with memory.transaction() as inner:
            added = inner.add("inner", "r", "b")
        assert added.inserted and memory.contains("inner", "r", "b")
        raise ZeroDivisionError
    assert memory.contains("inner", "r", "b") and not memory.contains("outer", "r", "b")


def test_a_name_forgotten_and_made_anew_gets_its_vector(memory: Memory, embedder: Hashed) -> None:
    with memory.transaction() as t:
        t.forget("a")
        t.add("a", "r", "b")
        t.rename("b", "bb")
        t.add("b", "r", "a")
    assert memory.stats().unembedded_entities == 0
    for name in ("a", "b", "bb"):
        np.testing.assert_allclose(memory.vector(name), embedder.one(name), atol=1e-6)


def test_a_name_that_the_transaction_drops_again_does_not_come_back(memory: Memory) -> None:
    with memory.transaction() as t:
        t.add("x", "r", "b")
        t.forget("x")
        t.add("y", "r", "b")
        t.rename("y", "z")
    assert set(memory.entities()) == {"a", "b", "c", "z"}


def test_a_vector_set_in_the_transaction_needs_no_embedder(tmp_path: Path) -> None:
    given = np.eye(3, 4, dtype=np.float32)
    with pymemstore.open(tmp_path / "m.mem", embedder=pymemstore.embedders.External(4, "theirs")) as memory:
        with memory.transaction() as t:
            t.add("a", "r", "b", vectors=(None, given[1], given[2]))
            t.set_vector("a", given[0])
        assert [memory.vector(n).tolist() for n in ("a", "b")] == given[[0, 2]].tolist()  # type: ignore[union-attr]
        with pytest.raises(InvalidArgument, match="theirs"), memory.transaction() as t:
            t.add("c", "r", "b")
        assert set(memory.entities()) == {"a", "b"}


def test_a_transaction_is_used_once(memory: Memory) -> None:
    t = memory.transaction()
    with pytest.raises(InvalidArgument, match="with block"):
        t.add("x", "r", "y")
    with t:
        pass
    with pytest.raises(InvalidArgument, match="over"):
        t.add("x", "r", "y")
    with pytest.raises(InvalidArgument, match="over"):
        t.__enter__()
    assert len(memory) == 3


def test_an_embedder_that_fails_after_the_commit_does_not_undo_it(tmp_path: Path) -> None:
    # While the new name is embedded, another writer forgets a known one: the commit makes that anew, without
    # a vector, and asks the embedder once more, which then fails.
    class Breaks(Hashed):
        def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            if "known" in texts:
                raise ConnectionError("the server is gone")
            if "new" in texts:
                other.forget("known")
            return super().encode(texts)

    path = tmp_path / "m.mem"
    with pymemstore.open(path, embedder=Hashed()) as other, pymemstore.open(path, embedder=Breaks()) as mine:
        other.add_entities(["known"])
        assert mine.add("known", "r", "new").inserted
        assert mine.contains("known", "r", "new") and mine.vector("known") is None
        assert other.embed_missing() == 1


def test_an_empty_transaction_changes_nothing(memory: Memory) -> None:
    before = state(memory)
    with memory.transaction() as t:
        report = t.add_many([])
        names = t.add_entities([])
    assert report.inserted == 0 and names.value == 0 and state(memory) == before
