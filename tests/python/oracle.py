"""A memory in plain Python: what the engine's answers and state are compared with.

Dicts and lists hold the facts, names and the edit log; a question is answered by comparing everything with
everything, cosines in double precision over the stored float32 vectors, and the rules by `twin_surface`.
Written from docs/semantics.md; it shares no code with the core.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import twin_surface as twin

import pymemstore

Vector = npt.NDArray[np.float32]
Embed = Callable[[str, bool], Vector]

SLACK = 1e-6
# Scores nearer than this to a threshold's edge may fall on either side: sums of another order.
DOUBT = 1e-11
MATCHES = (
    "exact", "alias", "folded", "article", "plural", "word_order",
    "acronym", "initials", "demonym", "trailing",
)  # fmt: skip
RULE_SETS = {"none": (), "core": MATCHES[:8], "wide": MATCHES}
RELATION_RULES = ("exact", "alias", "folded")
VALUES = {"exact": 1.0, "alias": 1.0, "folded": 0.99, "demonym": 0.90, "trailing": 0.90}  # others: .95


def unit(vector: npt.ArrayLike) -> Vector:
    """The float32 unit vector, scaled in double precision."""
    v = np.asarray(np.asarray(vector, np.float32), np.float64)
    return np.asarray(v / math.sqrt(math.fsum(v * v)), np.float32)


class Rational:
    """An embedder of integer vectors of integer length, so that cosines are rational and often equal."""

    TUPLES = (
        (1,), (3, 4), (4, 3), (5, 12), (8, 15), (1, 2, 2), (2, 3, 6), (4, 4, 7), (2, 6, 9), (1, 1, 1, 1),
        (1, 1, 3, 5), (1, 3, 3, 9), (1, 1, 1, 2, 3),
    )  # fmt: skip

    def __init__(self, dim: int = 11, width: int = 5, name: str = "rational-test") -> None:
        """`width`: the first so many components are in use; few of them make many vectors alike."""
        self.dim, self.width, self.name = dim, min(width, dim), name
        self.tuples = [t for t in self.TUPLES if len(t) <= self.width]

    def one(self, text: str) -> Vector:
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        numbers = self.tuples[rng.integers(len(self.tuples))]
        v = np.zeros(self.dim, np.float32)
        signs = rng.choice([1, 1, 1, 1, -1], len(numbers))
        v[rng.permutation(self.width)[: len(numbers)]] = np.array(numbers) * signs
        return v

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.stack([self.one(text) for text in texts])


# ---- the facts ---------------------------------------------------------------------------------------


class Unknown(Exception):
    """The engine says NotFound."""


class Refused(Exception):
    """The engine says InvalidArgument."""


@dataclass(eq=False)
class Name:
    id: int
    text: str
    vector: Vector | None
    aliases: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)
    live: bool = True


class Event(NamedTuple):
    """A row of the edit log. Names as objects: the log shows them by the text they have when it is read."""

    op: str
    triple: int = 0
    removed: tuple[int, ...] = ()
    name: Name | str = ""
    other: str = ""


class Model:
    """Everything that a store knows, and how its operations change it."""

    def __init__(self, embed: Embed) -> None:
        self.embed = embed
        self.names: tuple[list[Name], list[Name]] = ([], [])
        self.index: tuple[dict[str, Name], dict[str, Name]] = ({}, {})
        self.triples: dict[tuple[Name, Name, Name], int] = {}
        self.ever: dict[int, tuple[Name, Name, Name]] = {}  # every triple id there ever was
        self.sources: dict[int, set[str]] = {}
        self.log: list[Event] = []

    # Operations; each returns what the engine's returns.

    def name(self, text: str, relation: bool, vector: Vector | None = None) -> Name:
        found = self.index[relation].get(text)
        if found is None:
            v = self.embed(text, relation) if vector is None else vector
            found = Name(len(self.names[relation]), text, v)
            self.names[relation].append(found)
            self.index[relation][text] = found
        return found

    def known(self, text: str, relation: bool) -> Name:
        if text not in self.index[relation]:
            raise Unknown(text)
        return self.index[relation][text]

    def live(self, relation: bool) -> list[Name]:
        return [n for n in self.names[relation] if n.live]

    def _insert(self, s: str, r: str, o: str, source: str | None) -> tuple[int, bool]:
        key = (self.name(s, False), self.name(r, True), self.name(o, False))
        inserted = key not in self.triples
        if inserted:
            self.triples[key] = len(self.ever) + 1
            self.ever[self.triples[key]] = key
        if source:
            self.sources.setdefault(self.triples[key], set()).add(source)
        return self.triples[key], inserted

    def _delete(self, triple: int) -> None:
        del self.triples[self.ever[triple]]
        self.sources.pop(triple, None)

    def add(self, s: str, r: str, o: str, source: str | None = None) -> tuple[int, bool]:
        triple, inserted = self._insert(s, r, o, source)
        if inserted:
            self.log.append(Event("add", triple))
        return triple, inserted

    def replace(self, s: str, r: str, o: str, source: str | None = None) -> tuple[int, bool, set[int]]:
        triple, inserted = self._insert(s, r, o, source)
        key = self.ever[triple]
        gone = [t for k, t in self.triples.items() if k[:2] == key[:2] and k[2] is not key[2]]
        for t in gone:
            self._delete(t)
        if inserted or gone:
            self.log.append(Event("replace", triple, tuple(gone)))
        return triple, inserted, set(gone)

    def remove(self, s: str, r: str, o: str) -> bool:
        names = (self.index[0].get(s), self.index[1].get(r), self.index[0].get(o))
        triple = self.triples.get(names)  # type: ignore[arg-type]
        if triple is None:
            return False
        self._delete(triple)
        self.log.append(Event("remove", triple))
        return True

    def forget(self, text: str) -> int:
        name = self.known(text, False)
        # The order in which the engine removes them is not promised; `log_shown` sorts such runs.
        gone = [t for (s, _, o), t in self.triples.items() if name in (s, o)]
        for t in gone:
            self._delete(t)
            self.log.append(Event("remove", t))
        self.log.append(Event("forget", name=text))
        del self.index[0][text]
        name.live, name.vector, name.aliases, name.external = False, None, [], []
        return len(gone)

    def alias(self, alias: str, text: str, relation: bool) -> bool:
        name = self.known(text, relation)
        if alias in name.aliases:
            return False
        name.aliases.append(alias)
        self.log.append(Event("alias", name=name, other=alias))
        return True

    def unalias(self, alias: str, text: str, relation: bool) -> bool:
        name = self.known(text, relation)
        if alias not in name.aliases:
            return False
        name.aliases.remove(alias)
        self.log.append(Event("unalias", name=name, other=alias))
        return True

    def rename(self, old: str, new: str, relation: bool) -> None:
        name = self.known(old, relation)
        if old == new:
            return
        if new in self.index[relation]:
            raise Refused(new)
        del self.index[relation][old]
        self.index[relation][new] = name
        name.text, name.vector = new, self.embed(new, relation)
        self.log.append(Event("rename", name=old, other=new))

    def set_vector(self, text: str, vector: Vector, relation: bool) -> None:
        name = self.known(text, relation)
        name.vector = unit(vector)
        self.log.append(Event("vector", name=name))

    def set_external_id(self, external: str, text: str, relation: bool) -> bool:
        name = self.known(text, relation)
        for other in self.live(relation):
            if external in other.external:
                if other is name:
                    return False
                raise Refused(external)
        name.external.append(external)
        self.log.append(Event("external_id", name=name, other=external))
        return True

    # What it shows.

    def triple(self, triple: int) -> tuple[str, str, str, int]:
        s, r, o = self.ever[triple]
        return s.text, r.text, o.text, triple

    def facts(self, s: str | None = None, r: str | None = None, o: str | None = None) -> set[tuple[Any, ...]]:
        shown = (self.triple(t) for t in self.triples.values())
        return {t for t in shown if s in (None, t[0]) and r in (None, t[1]) and o in (None, t[2])}

    def log_shown(self) -> list[tuple[Any, ...]]:
        """Rows as (op, triple, removed, name, other)."""
        rows: list[tuple[Any, ...]] = []
        for e in self.log:
            name = e.name.text if isinstance(e.name, Name) else e.name
            triple = self.triple(e.triple) if e.triple else None
            rows.append((e.op, triple, frozenset(map(self.triple, e.removed)), name, e.other))
        return rows

    def fetch(self, memory: pymemstore.Memory) -> None:
        """Takes the vectors as the store has them."""
        for relation in (False, True):
            for name in self.live(relation):
                name.vector = memory.vector(name.text, relation=relation)

    # ---- questions -----------------------------------------------------------------------------------

    def cosines(self, names: list[Name], vector: Vector) -> list[float]:
        """nan: the name has no vector."""
        rows = [np.full(len(vector), np.nan, np.float32) if n.vector is None else n.vector for n in names]
        matrix = np.array(rows, np.float64).reshape(len(names), len(vector))
        found: list[float] = np.clip(matrix @ np.asarray(vector, np.float64), -1, 1).tolist()
        return found

    def candidates(
        self, text: str | None, vector: Vector, rules: Collection[str], exact_numbers: bool, relation: bool
    ) -> list[Candidate]:
        names = self.live(relation)
        found = []
        for name, cosine in zip(names, self.cosines(names, vector), strict=True):
            match = "vector" if text is None else reason(text, name, rules)
            if match == "vector" and math.isnan(cosine):
                continue
            similarity, by_rule = cosine, False
            if match != "vector" and not cosine > VALUES.get(match, 0.95):
                similarity, by_rule = VALUES.get(match, 0.95), True
            if exact_numbers and match not in RELATION_RULES:
                assert text is not None
                if twin.parse(text).numbers != twin.parse(name.text).numbers:
                    continue
            # Equal origins give equal bits, whatever the order of summation.
            origin = similarity if by_rule else name.vector.tobytes() if name.vector is not None else b""
            found.append(Candidate(name, similarity, cosine, match, origin))
        return found

    def ask(
        self,
        subject: str | None = None,
        relation: str | None = None,
        object: str | None = None,
        *,
        tau_e: float,
        tau_t: float,
        tau_r: float,
        rules: str | Iterable[str] = "core",
        numbers: str = "any",
        exclude: Iterable[int] = (),
        subject_vector: npt.ArrayLike | None = None,
        relation_vector: npt.ArrayLike | None = None,
        object_vector: npt.ArrayLike | None = None,
    ) -> Answer:
        """`Memory.query` by brute force, without its limit."""
        allowed = RULE_SETS[rules] if isinstance(rules, str) else tuple(rules)
        object_known = object is not None or object_vector is not None
        text, vector = (object, object_vector) if object_known else (subject, subject_vector)

        def asked(text: str | None, vector: npt.ArrayLike | None, is_relation: bool) -> Vector:
            if vector is not None:
                return unit(vector)
            assert text is not None
            return self.embed(text, is_relation)

        entities = self.candidates(text, asked(text, vector, False), allowed, numbers == "exact", False)
        relations = self.candidates(
            relation,
            asked(relation, relation_vector, True),
            [r for r in allowed if r in RELATION_RULES],
            False,
            True,
        )
        by_entity = {c.name: c for c in entities}
        by_relation = {c.name: c for c in relations}
        left_out = set(exclude)
        hits = {}
        for (s, r, o), triple in self.triples.items():
            e, t = by_entity.get(o if object_known else s), by_relation.get(r)
            if e is None or t is None or triple in left_out:
                continue
            mean = (e.similarity + t.similarity) / 2
            over = min(e.similarity - tau_e, t.similarity - tau_t, mean - tau_r) + SLACK
            if over >= -DOUBT:
                hits[triple] = Expected((s if object_known else o).text, mean, e, t, over > DOUBT)
        return Answer(
            hits,
            sum(c.similarity >= tau_e - SLACK for c in entities),
            sum(c.similarity >= tau_t - SLACK for c in relations),
            sum(n.vector is None for names in (self.live(False), self.live(True)) for n in names),
        )

    def similar(self, vector: npt.ArrayLike, tau: float, relation: bool) -> dict[str, float]:
        names = self.live(relation)
        found = zip(names, self.cosines(names, unit(vector)), strict=True)
        return {n.text: c for n, c in found if c >= tau - SLACK}


class Candidate(NamedTuple):
    name: Name
    similarity: float
    cosine: float
    match: str
    origin: float | bytes


class Expected(NamedTuple):
    name: str
    score: float
    entity: Candidate
    relation: Candidate
    sure: bool


class Answer(NamedTuple):
    hits: dict[int, Expected]
    entities: int  # at or above tau_e
    relations: int
    unembedded: int


def reason(text: str, name: Name, rules: Collection[str]) -> str:
    """The strongest rule for which `name` is a candidate for `text`; "vector" where there is none."""
    return _reason(text, name.text, tuple(name.aliases), tuple(rules))


@functools.lru_cache(200_000)
def _reason(text: str, name: str, aliases: tuple[str, ...], rules: tuple[str, ...]) -> str:
    if "exact" in rules and text == name:
        return "exact"
    if "alias" in rules and text in aliases:
        return "alias"
    query = twin.parse(text)
    if "folded" in rules and any(twin.folded(query, twin.parse(t)) for t in (name, *aliases)):
        return "folded"
    stored = twin.parse(name)
    for number, rule in twin.RULES.items():
        if number > 2 and MATCHES[number] in rules and rule(query, stored):
            return MATCHES[number]
    return "vector"


# ---- comparing ---------------------------------------------------------------------------------------


def compare(
    memory: pymemstore.Memory, model: Model, question: dict[str, Any], limits: Iterable[int] = ()
) -> pymemstore.QueryResult:
    """Asks the store and the model, and the store again with each limit."""
    full = memory.query(**question)
    agree(full, model, question)
    for limit in limits:
        cut = memory.query(**question, limit=limit)
        assert cut.truncated == (len(full) > limit), question
        assert repr(cut.hits) == repr(full.hits[:limit]), question
        assert (cut.complete, cut.unembedded) == (full.complete, full.unembedded)
    return full


def agree(result: pymemstore.QueryResult, model: Model, question: dict[str, Any]) -> None:
    """An answer without limit is the model's."""
    answer = model.ask(**question)
    got = {hit.triple_id: hit for hit in result.hits}
    assert len(got) == len(result.hits), ("a fact came twice", question)
    missing = [model.triple(t) for t, h in answer.hits.items() if h.sure and t not in got]
    surplus = [hit for t, hit in got.items() if t not in answer.hits]
    assert not missing and not surplus, (question, "missing:", missing, "surplus:", surplus)
    scores: dict[Any, float] = {}
    for t, hit in got.items():
        expected = answer.hits[t]
        assert tuple(hit.triple) == model.triple(t), question
        assert (hit.name, hit.match) == (expected.name, expected.entity.match), (question, hit, expected)
        for mine, theirs in (
            (expected.score, hit.score),
            (expected.entity.similarity, hit.entity_similarity),
            (expected.relation.similarity, hit.relation_similarity),
            (expected.entity.cosine, hit.cosine),
        ):
            both_nan = math.isnan(mine) and math.isnan(theirs)
            assert both_nan or abs(mine - theirs) <= DOUBT, (question, hit, expected)
        assert hit.score == (hit.entity_similarity + hit.relation_similarity) / 2
        origin = (expected.entity.origin, expected.relation.origin)
        assert scores.setdefault(origin, hit.score) == hit.score, ("equal vectors, unequal scores", question)
    order = [(-hit.score, hit.match != "exact", hit.triple_id) for hit in result.hits]
    assert order == sorted(order), question
    assert result.names == list(dict.fromkeys(hit.name for hit in result.hits))
    assert not result.truncated and result.search == "exact"
    assert result.unembedded == answer.unembedded
    assert result.complete == (answer.unembedded == 0)
    assert result.relation_candidates == answer.relations, question
    # The best relation may tighten tau_e, so fewer may have been looked at, but none that a hit needs.
    needed = {expected.entity.name for expected in answer.hits.values() if expected.sure}
    assert len(needed) <= result.entity_candidates <= answer.entities, question
    if question["tau_r"] == -1 and answer.relations:
        assert result.entity_candidates == answer.entities, question
