"""What was asked, in the core's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from . import _input
from ._space import Space
from .embedders import Thresholds
from .errors import InvalidArgument
from .results import Query

_FIELDS = tuple(f.name for f in fields(Query))
# Where an embedder has none: those of the MemLLM paper (section 3.1).
_PLAIN_THRESHOLDS = (0.7, 0.7, 0.85)


def thresholds(spaces: tuple[Space, Space]) -> Thresholds:
    """The defaults for a pair of embedders: tau_e and tau_r of the entities', tau_t of the relations'."""
    entities, relations = (
        _input.three_thresholds(getattr(space.embedder, "thresholds", None), f"embedder {space.name!r:.60}")
        for space in spaces
    )
    tau_e, tau_t, tau_r = _PLAIN_THRESHOLDS
    return Thresholds(
        tau_e if entities is None else entities.tau_e,
        tau_t if relations is None else relations.tau_t,
        tau_r if entities is None else entities.tau_r,
    )


def as_query(index: int, value: object, shared: tuple[Any, ...]) -> Query:
    """A Query from any of the forms that query_many takes. `shared`: its keywords, tau_e to exclude."""
    if isinstance(value, Query):
        given = [getattr(value, name) for name in _FIELDS]
    elif isinstance(value, Mapping):
        wrong = [key for key in value if key not in _FIELDS]
        if wrong:
            raise InvalidArgument(f"query {index}: {_input.shown(wrong[0])} is not an argument of query()")
        given = [value.get(name) for name in _FIELDS]
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) == 3:
        return Query(value[0], value[1], value[2], *shared)
    else:
        raise InvalidArgument(
            f"query {index}: expected a Query, a dict or (subject, relation, object), "
            f"not {_input.shown(value)}"
        )
    own = (default if mine is None else mine for mine, default in zip(given[3:11], shared, strict=True))
    return Query(*given[:3], *own, *given[11:])


def specs(
    queries: Sequence[Query], spaces: tuple[Space, Space], defaults: Thresholds, single: bool
) -> list[tuple[Any, ...]]:
    """The core's form of all queries, their texts embedded in one call a space."""
    asked: list[list[Any]] = []
    try:
        for q in queries:
            asked.append(spec(q, spaces, defaults))
    except InvalidArgument as e:
        raise (e if single else InvalidArgument(f"query {len(asked)}: {e}")) from None
    for at, space in ((1, spaces[0]), (2, spaces[1])):
        texts = [a[at] for a in asked if a[at + 2] is None]
        if texts:
            vectors = space.text_vectors(texts)
            for a in asked:
                if a[at + 2] is None:
                    a[at + 2] = vectors[a[at]]
    return [tuple(a) for a in asked]


def check_vectors(asked: Sequence[Sequence[Any]], spaces: tuple[Space, Space], single: bool) -> None:
    """Says what is wrong with the first query whose vectors the core refused, if that was the reason."""
    for i, q in enumerate(asked):
        entity = "object" if q[0] else "subject"
        for vector, space, slot in ((q[3], spaces[0], entity), (q[4], spaces[1], "relation")):
            try:
                _input.vector(vector, space.dim, f"{slot}_vector")
            except InvalidArgument as e:
                raise (e if single else InvalidArgument(f"query {i}: {e}")) from None


def spec(q: Query, spaces: tuple[Space, Space], defaults: Thresholds) -> list[Any]:
    """The core's form of a query, with None for vectors that are to be embedded."""
    has_subject = q.subject is not None or q.subject_vector is not None
    has_object = q.object is not None or q.object_vector is not None
    if has_subject == has_object:
        which = "both subject and object are" if has_subject else "neither subject nor object is"
        raise InvalidArgument(f"{which} given: one of them is the question, the other the answer")
    if q.relation is None and q.relation_vector is None:
        raise InvalidArgument("no relation is given, neither as text nor as vector")
    what = "object" if has_object else "subject"
    text = q.object if has_object else q.subject
    vector = q.object_vector if has_object else q.subject_vector
    entities, relations = spaces
    r_vector = q.relation_vector
    return [
        has_object,
        None if text is None else _input.name(text, what),
        None if q.relation is None else _input.name(q.relation, "relation"),
        None if vector is None else _input.query_vector(vector, entities.dim, f"{what}_vector"),
        None if r_vector is None else _input.query_vector(r_vector, relations.dim, "relation_vector"),
        defaults.tau_e if q.tau_e is None else _input.threshold(q.tau_e, "tau_e"),
        defaults.tau_t if q.tau_t is None else _input.threshold(q.tau_t, "tau_t"),
        defaults.tau_r if q.tau_r is None else _input.threshold(q.tau_r, "tau_r"),
        _input.limit(q.limit),
        _input.search(q.search),
        _input.rules(q.rules),
        _input.choice(q.numbers, "numbers", ("any", "exact")) == "exact",
        _input.exclude(q.exclude),
    ]
