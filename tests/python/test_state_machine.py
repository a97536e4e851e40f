"""Random histories of a store, each step compared with a plain-Python model.

PYMEMSTORE_EXAMPLES=1000 tries other histories, and more of them.
"""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle import MATCHES, Model, Rational, Refused, Unknown, compare, unit

import pymemstore
from pymemstore import Memory
from pymemstore.transaction import Transaction

EXAMPLES = os.environ.get("PYMEMSTORE_EXAMPLES")
# Each history has a store of its own; in memory, where the system offers that, they cost little.
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ENTITIES = (
    "a", "A", "the a", "as", "b c", "C B", "BC", "é", "e", "1912", "May 1912", "J. Smith", "John Smith",
    "x\0y", "n" * 700,
)  # fmt: skip
RELATIONS = ("r", "R", "is r of", "a")
EMBEDDER = Rational(dim=6, width=3)

entities = st.sampled_from(ENTITIES)
relations = st.sampled_from(RELATIONS)
sources = st.sampled_from([None, None, "web", "book"])
vectors = st.integers(0, 30).map(lambda i: EMBEDDER.one(f"vector {i}"))
ids = st.sampled_from(["Q1", "Q2", "P1"])
facts = st.tuples(entities, relations, entities)


# An operation is the name of a method of Memory, of Transaction and of the model, and its arguments.
Op = tuple[str, tuple[Any, ...]]


def operations(entities: st.SearchStrategy[str], relations: st.SearchStrategy[str]) -> st.SearchStrategy[Op]:
    def of_kind(*parts: Any) -> st.SearchStrategy[tuple[Any, ...]]:
        """Tuples of the parts (None: a name) and whether they are about relations."""
        return st.one_of(
            *(
                st.tuples(*(kind if part is None else part for part in parts), st.just(kind is relations))
                for kind in (entities, relations)
            )
        )

    added = st.tuples(st.just("add"), st.tuples(entities, relations, entities, sources))
    return st.one_of(
        added,
        added,
        st.tuples(st.just("replace"), st.tuples(entities, relations, entities, sources)),
        st.tuples(st.just("remove"), st.tuples(entities, relations, entities)),
        st.tuples(st.just("forget"), st.tuples(entities)),
        st.tuples(st.just("alias"), of_kind(None, None)),
        st.tuples(st.just("unalias"), of_kind(None, None)),
        st.tuples(st.just("rename"), of_kind(None, None)),
        st.tuples(st.just("set_vector"), of_kind(None, vectors)),
        st.tuples(st.just("set_external_id"), of_kind(ids, None)),
    )


ops = operations(entities, relations)
few_ops = operations(st.sampled_from(["a", "A"]), st.sampled_from(["r", "a"]))  # what one does, others undo
WITH_SOURCE = ("add", "replace")
WITH_KIND = ("alias", "unalias", "rename", "set_vector", "set_external_id")


def apply(target: Memory | Transaction, op: Op) -> Any:
    method, args = op
    call = getattr(target, method)
    if method in WITH_SOURCE:
        return call(*args[:-1], source=args[-1])
    return call(*args[:-1], relation=args[-1]) if method in WITH_KIND else call(*args)


def apply_to_model(model: Model, op: Op) -> Any:
    return getattr(model, op[0])(*op[1])


def plain(result: Any) -> Any:
    """A result of Memory or of Transaction as the model gives it."""
    if isinstance(result, pymemstore.Added):
        return result.triple_id, result.inserted
    if isinstance(result, pymemstore.Replaced):
        return result.triple_id, result.inserted, {t.id for t in result.removed}
    return result.value if isinstance(result, pymemstore.results.Pending) else result


def error_for(refusal: Exception) -> type[Exception]:
    return pymemstore.NotFound if isinstance(refusal, Unknown) else pymemstore.InvalidArgument


def new_model() -> Model:
    return Model(lambda text, relation: unit(EMBEDDER.one(text)))


class Histories(RuleBasedStateMachine):
    memory: Memory

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=SCRATCH)
        self.path = Path(self.folder.name) / "m.mem"
        self.model = new_model()
        self.memory = pymemstore.open(self.path, embedder=EMBEDDER)

    def teardown(self) -> None:
        try:
            self.whole_store()
        finally:
            self.memory.close()
            self.folder.cleanup()

    @initialize(rows=st.lists(facts, max_size=12))
    def begin(self, rows: list[tuple[str, str, str]]) -> None:
        self.add_many(rows, "start")

    # ---- writes ----------------------------------------------------------------------------------

    @rule(op=ops)
    def one(self, op: Op) -> None:
        # The model first: where it refuses, the store must.
        try:
            expected: Any = apply_to_model(self.model, op)
        except (Unknown, Refused) as e:
            with pytest.raises(error_for(e)):
                apply(self.memory, op)
        else:
            assert plain(apply(self.memory, op)) == expected

    @rule(rows=st.lists(facts, max_size=5), source=sources)
    def add_many(self, rows: list[tuple[str, str, str]], source: str | None) -> None:
        e, r = map(len, self.model.names)
        report = self.memory.add_many(rows, source=source)
        expected = [self.model.add(*row, source) for row in rows]
        assert list(zip(report.triple_ids.tolist(), report.inserted_mask.tolist(), strict=True)) == expected
        inserted = sum(new for _, new in expected)
        assert (report.inserted, report.existed) == (inserted, len(rows) - inserted)
        now_e, now_r = map(len, self.model.names)
        assert (report.new_entities, report.new_relations) == (now_e - e, now_r - r)

    @rule(
        some=st.lists(ops, max_size=6) | st.lists(few_ops, max_size=10),
        fail=st.sampled_from(["no", "no", "no", "an operation", "the block"]),
    )
    def transaction(self, some: list[Op], fail: str) -> None:
        after = copy.deepcopy(self.model)
        error: type[Exception] | None = ZeroDivisionError if fail == "the block" else None
        asked, expected = [], []
        for op in some:
            try:
                expected.append(apply_to_model(after, op))
            except (Unknown, Refused) as e:
                if fail != "an operation":
                    continue  # without those that would be refused
                error = error or error_for(e)
            asked.append(op)
        results = []
        try:
            with self.memory.transaction() as t:
                for op in asked:
                    results.append(apply(t, op))
                if fail == "the block":
                    raise ZeroDivisionError
        except (pymemstore.MemstoreError, ZeroDivisionError) as e:
            assert error is not None and isinstance(e, error)
        else:
            assert error is None
            assert [plain(r) for r in results] == expected
            self.model = after

    # ---- upkeep ----------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.memory.close()
        self.memory = pymemstore.open(self.path, embedder=EMBEDDER, create=False)

    @rule()
    def compact(self) -> None:
        self.memory.compact()
        stats = self.memory.stats()
        for relation, rows in ((False, stats.entity_vector_rows), (True, stats.relation_vector_rows)):
            assert rows == len(self.model.live(relation))

    # ---- reads -----------------------------------------------------------------------------------

    @rule(
        name=entities,
        relation=relations,
        slot=st.sampled_from(["subject", "object"]),
        taus=st.tuples(*[st.sampled_from([-1.0, 0.0, 0.6, 0.8, 0.9, 0.95, 0.96, 0.99, 1.0])] * 3),
        rules=st.sampled_from(["none", "core", "wide", ("folded",), *((m,) for m in MATCHES[:8])]),
        numbers=st.sampled_from(["any", "any", "exact"]),
    )
    def query(
        self, name: str, relation: str, slot: str, taus: tuple[float, ...], rules: Any, numbers: str
    ) -> None:
        question: dict[str, Any] = {slot: name, "relation": relation, "rules": rules, "numbers": numbers}
        question |= dict(zip(("tau_e", "tau_t", "tau_r"), taus, strict=True))
        compare(self.memory, self.model, question, [1, 3])

    @rule(fact=facts, known=st.integers(0, 7))
    def listing(self, fact: tuple[str, str, str], known: int) -> None:
        parts = [part if known >> i & 1 else None for i, part in enumerate(fact)]
        rows = list(self.memory.triples(*parts))
        assert len(set(rows)) == len(rows) and set(rows) == self.model.facts(*parts)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data())
    def changes_since(self, data: st.DataObject) -> None:
        since = data.draw(st.integers(0, len(self.model.log) + 1))
        assert [c.seq for c in self.memory.changes(since)] == list(range(since + 1, len(self.model.log) + 1))

    @invariant()
    def facts_are_the_models(self) -> None:
        rows = list(self.memory.triples())
        assert len(set(rows)) == len(rows) and set(rows) == self.model.facts()
        assert len(self.memory) == len(rows)

    def whole_store(self) -> None:
        memory, model = self.memory, self.model
        report = memory.check()
        assert report.ok, report.problems
        for relation in (False, True):
            live = model.live(relation)
            shown = memory.relations() if relation else memory.entities()
            assert list(shown) == [n.text for n in live]
            for n in live:
                assert np.array_equal(memory.vector(n.text, relation=relation), n.vector), n.text  # type: ignore[arg-type]
                assert memory.aliases(n.text, relation=relation) == n.aliases
                assert set(memory.external_ids(n.text, relation=relation)) == set(n.external)
                for external in n.external:
                    assert memory.by_external_id(external, relation=relation) == n.text
            for text in RELATIONS if relation else ENTITIES:
                named = [n.text for n in live if text in n.aliases]
                assert memory.named_by(text, relation=relation) == named
                if text not in model.index[relation]:
                    with pytest.raises(pymemstore.NotFound):
                        memory.vector(text, relation=relation)
        for triple, names_of in model.ever.items():
            if triple in model.triples.values():
                assert memory.triple(triple) == model.triple(triple)
                assert {s.source for s in memory.sources(triple)} == model.sources.get(triple, set())
                assert len(memory.sources(triple)) == len(model.sources.get(triple, set()))
            else:
                with pytest.raises(pymemstore.NotFound):
                    memory.triple(triple)
            texts = [n.text for n in names_of]
            assert memory.contains(*texts) == (texts in [list(t[:3]) for t in model.facts()])
        stats = memory.stats()
        assert stats.triples == len(model.triples) and stats.seq == len(model.log)
        assert (stats.entities, stats.relations) == (len(model.live(False)), len(model.live(True)))
        everyone = [n for relation in (False, True) for n in model.live(relation)]
        assert stats.aliases == sum(len(n.aliases) for n in everyone)
        assert stats.external_ids == sum(len(n.external) for n in everyone)
        self.edit_log()

    def edit_log(self) -> None:
        changes = list(self.memory.changes())
        assert [c.seq for c in changes] == list(range(1, len(changes) + 1))
        rows = [(c.op, c.triple, frozenset(c.removed), c.name, c.other) for c in changes]
        assert in_order(rows) == in_order(self.model.log_shown())
        # Replayed by triple id, the log gives the facts.
        state: dict[int, pymemstore.Triple] = {}
        for c in changes:
            if c.op in ("add", "replace"):
                assert c.triple is not None and (c.op == "replace" or c.triple.id not in state)
                state[c.triple.id] = c.triple
            elif c.op == "remove":
                assert c.triple is not None
                del state[c.triple.id]
            for gone in c.removed:
                del state[gone.id]
        assert set(state.values()) == set(self.memory.triples())


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows, those of one run of removals sorted by id: a forgotten name's facts go in any order."""
    out: list[tuple[Any, ...]] = []
    run: list[tuple[Any, ...]] = []
    for row in [*rows, None]:
        if row is not None and row[0] == "remove":
            run.append(row)
            continue
        out += sorted(run, key=lambda r: int(r[1][3]))
        run = []
        if row is not None:
            out.append(row)
    return out


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=int(EXAMPLES or 150),
    stateful_step_count=30,
    deadline=None,
    derandomize=EXAMPLES is None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize(
    "some",
    [
        [("forget", ("a",)), ("add", ("a", "r", "b c", None))],
        [("rename", ("a", "A", False)), ("add", ("a", "r", "b c", None))],
        [("rename", ("a", "A", False)), ("rename", ("e", "a", False))],
    ],
    ids=["forgotten and added", "renamed and added", "renamed and its name given on"],
)
def test_a_vector_belongs_to_the_entity_that_had_the_name(some: list[Op], tmp_path: Path) -> None:
    # In one transaction: what is called "a" afterwards is another entity, with its text's own vector.
    model = new_model()
    with pymemstore.open(tmp_path / "m.mem", embedder=EMBEDDER) as memory:
        for name in ("a", "e"):
            memory.add(name, "r", "1912")
            model.add(name, "r", "1912")
        everything: list[Op] = [("set_vector", ("a", EMBEDDER.one("vector 1"), False)), *some]
        with memory.transaction() as t:
            for op in everything:
                apply(t, op)
                apply_to_model(model, op)
        assert set(memory.triples()) == model.facts()
        for n in model.live(False):
            assert np.array_equal(memory.vector(n.text), n.vector), n.text  # type: ignore[arg-type]
