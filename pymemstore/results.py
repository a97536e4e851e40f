"""What the calls of `Memory` take and give back: plain, typed values with no link to the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument

__all__ = [
    "AddReport",
    "Added",
    "Change",
    "CheckReport",
    "CompactReport",
    "Hit",
    "Pending",
    "Query",
    "QueryResult",
    "Replaced",
    "Source",
    "Stats",
    "Triple",
    "TripleLike",
]

_T = TypeVar("_T")


class Triple(NamedTuple):
    """A stored fact. `id` is its 64-bit id: given at first insertion, never reused."""

    subject: str
    relation: str
    object: str
    id: int


# What add_many takes: three names, or a Triple, whose id is left aside.
TripleLike = Sequence[str] | Triple


class Hit(NamedTuple):
    """One answer of a query.

    `score` = (`entity_similarity` + `relation_similarity`) / 2, all on the cosine's scale (1 identical, -1
    opposite). `entity_similarity` is the effective one: by rule, or the cosine if higher. `cosine` is the
    raw cosine of the entity, nan while the name has no vector. `match` says why the entity is a candidate:
    "exact", "alias", "folded", "article", "plural", "word_order", "acronym", "initials", "demonym",
    "trailing" or "vector".
    """

    name: str
    score: float
    entity_similarity: float
    relation_similarity: float
    cosine: float
    triple: Triple
    triple_id: int
    match: str


class Source(NamedTuple):
    """Where a triple came from. `time`: seconds since 1970, when it was written."""

    source: str
    time: float


class Change(NamedTuple):
    """One row of the edit log.

    `op`: "add", "remove", "replace", "forget", "alias", "unalias", "rename", "vector" or "external_id".
    `triple`: of add, remove and replace. `removed`: what a replace displaced. `name`, `other`: forget:
    name, ""; alias and unalias: the name, the alias; rename: old, new; external_id: the name, the id;
    vector: the name, "". `time`: seconds since 1970.

    Triples, and the names of aliases, vectors and external ids, are shown with the names that they have now
    (a forgotten name with its last); forget and rename show the names of their time. To replay a log exactly,
    go by triple id.
    """

    seq: int
    op: str
    time: float
    triple: Triple | None
    removed: tuple[Triple, ...]
    name: str
    other: str


class _Result:
    """Fields that are known once the write has committed; in a transaction, reading one before raises."""

    __slots__ = ("_state",)
    _fields: ClassVar[tuple[str, ...]] = ()
    _state: tuple[Any, ...] | str

    def __init__(self, values: tuple[Any, ...] | None = None) -> None:
        self._state = "the transaction has not committed yet" if values is None else values

    def _fill(self, *values: Any) -> None:
        self._state = values

    def _fail(self, why: str) -> None:
        if isinstance(self._state, str):
            self._state = why

    def _get(self, index: int) -> Any:
        if isinstance(self._state, str):
            raise InvalidArgument(f"{type(self).__name__}.{self._fields[index]} is not known: {self._state}")
        return self._state[index]

    def __repr__(self) -> str:
        if isinstance(self._state, str):
            return f"<{type(self).__name__}: {self._state}>"
        shown = ", ".join(f"{k}={v!r}" for k, v in zip(self._fields, self._state, strict=True))
        return f"{type(self).__name__}({shown})"


class Added(_Result):
    """The outcome of `add`: the triple's id, and whether it is new. Unpacks as (triple_id, inserted)."""

    __slots__ = ()
    _fields = ("triple_id", "inserted")

    @property
    def triple_id(self) -> int:
        """The triple's id, whether it was new or not."""
        return cast(int, self._get(0))

    @property
    def inserted(self) -> bool:
        """True when the triple was not in the store before."""
        return cast(bool, self._get(1))

    def __iter__(self) -> Iterator[int]:
        return iter((self.triple_id, self.inserted))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Added) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # its fields may still be open


class AddReport(_Result):
    """The outcome of `add_many`."""

    __slots__ = ()
    _fields = ("inserted", "existed", "new_entities", "new_relations", "triple_ids", "inserted_mask")

    @property
    def inserted(self) -> int:
        """Triples that were not in the store before (a triple given twice counts once)."""
        return cast(int, self._get(0))

    @property
    def existed(self) -> int:
        """Triples that were there already, or came earlier in the same call."""
        return cast(int, self._get(1))

    @property
    def new_entities(self) -> int:
        """Entity names first seen by this write; in a transaction, by the whole transaction."""
        return cast(int, self._get(2))

    @property
    def new_relations(self) -> int:
        """Relation names first seen by this write; in a transaction, by the whole transaction."""
        return cast(int, self._get(3))

    @property
    def triple_ids(self) -> npt.NDArray[np.uint64]:
        """uint64 (n,): the id of each triple given, in the order given."""
        return cast("npt.NDArray[np.uint64]", self._get(4))

    @property
    def inserted_mask(self) -> npt.NDArray[np.bool_]:
        """bool (n,): which of the triples given were new."""
        return cast("npt.NDArray[np.bool_]", self._get(5))


class Replaced(_Result):
    """The outcome of `replace`: the triple's id, whether it is new, and the triples that it displaced."""

    __slots__ = ()
    _fields = ("triple_id", "inserted", "removed")

    @property
    def triple_id(self) -> int:
        """The triple's id, whether it was new or not."""
        return cast(int, self._get(0))

    @property
    def inserted(self) -> bool:
        """True when the triple was not in the store before."""
        return cast(bool, self._get(1))

    @property
    def removed(self) -> tuple[Triple, ...]:
        """The triples of the same subject and relation that are gone now."""
        return cast("tuple[Triple, ...]", self._get(2))


class Pending(_Result, Generic[_T]):
    """The outcome of an operation in a transaction; its value is known once the transaction has committed."""

    __slots__ = ()
    _fields = ("value",)

    @property
    def value(self) -> _T:
        """What the same method of `Memory` returns. InvalidArgument before the commit."""
        return cast(_T, self._get(0))

    def __bool__(self) -> bool:
        return bool(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A question for `Memory.query_many`; the fields are `Memory.query`'s parameters.

    A field left at None takes the default that was given to `query_many`, and `Memory.query`'s default
    otherwise.
    """

    subject: str | None = None
    relation: str | None = None
    object: str | None = None
    tau_e: float | None = None
    tau_t: float | None = None
    tau_r: float | None = None
    limit: int | None = None
    search: str | None = None
    rules: str | Iterable[str] | None = None
    numbers: str | None = None
    exclude: Iterable[int] | None = None
    subject_vector: npt.ArrayLike | None = None
    relation_vector: npt.ArrayLike | None = None
    object_vector: npt.ArrayLike | None = None


class QueryResult:
    """The answers of one query, best first; ties: exact names first, then by triple id. Sized and iterable
    over its hits; false when empty."""

    __slots__ = ("_hits", "_raw")

    def __init__(self, raw: tuple[Any, ...]) -> None:
        self._raw = raw
        self._hits: list[Hit] | None = None

    @property
    def hits(self) -> list[Hit]:
        """The answers, best first."""
        if self._hits is None:
            self._hits = [
                Hit(name, score, e, r, cosine, Triple(*triple), triple[3], match)
                for name, score, e, r, cosine, triple, match in self._raw[0]
            ]
        return self._hits

    @property
    def names(self) -> list[str]:
        """The answers' names, each once, best first."""
        return list(dict.fromkeys(hit[0] for hit in self._raw[0]))

    @property
    def truncated(self) -> bool:
        """True when the caller's `limit` cut the answers."""
        return cast(bool, self._raw[1])

    @property
    def complete(self) -> bool:
        """False while names that the search would have looked at wait for their vectors, and when the graph
        was searched, which may leave some out."""
        return cast(bool, self._raw[2])

    @property
    def unembedded(self) -> int:
        """How many names waited for their vectors."""
        return cast(int, self._raw[3])

    @property
    def search(self) -> str:
        """How the entities were searched: "exact" or "graph"."""
        return cast(str, self._raw[4])

    @property
    def entity_candidates(self) -> int:
        """Entities, by cosine or by rule, at or above `tau_e`, or the higher threshold that `tau_r` and the
        best relation imply."""
        return cast(int, self._raw[5])

    @property
    def relation_candidates(self) -> int:
        """Relations at or above `tau_t`, by cosine or by rule."""
        return cast(int, self._raw[6])

    @property
    def rows_scanned(self) -> int:
        """Vectors that the search looked at, of entities and relations; shared out evenly in `query_many`."""
        return cast(int, self._raw[7])

    @property
    def search_reason(self) -> str:
        """Why `search` is what it is; "" where no entity was searched by vector."""
        return cast(str, self._raw[8])

    def __len__(self) -> int:
        return len(self._raw[0])

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __repr__(self) -> str:
        cut = ", truncated" if self.truncated else ""
        why = "searched by graph" if self.search == "graph" else f"{self.unembedded} names wait for vectors"
        waiting = "" if self.complete else f", incomplete ({why})"
        return f"<QueryResult: {len(self)} hits{cut}{waiting}, names={_shown(self.names)}>"


def _shown(names: Sequence[str], most: int = 5) -> str:
    return repr(names) if len(names) <= most else repr(names[:most])[:-1] + ", ...]"


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of a store. Sizes are in bytes; `dataclasses.asdict` gives a plain dict.

    `delta_rows`: changes to triples since the last merge. `sealed_entities`: names in the sealed base;
    `unruled_entities`: those of them whose rule keys `build_rules` has still to make. `merge_error`: why the
    last merge, or sealing of vectors, in this handle's background failed, "" when it didn't.

    `entity_sealed_rows`, `relation_sealed_rows`: rows of the vector files that have sealed codes;
    `..._index_problem`: why a file of theirs is not used, "" when none is refused. `graph_rows`: entities'
    rows in the graph, 0 without one; `graph_missed`: those that its searches scan besides. `clusters`,
    `code_bits`: of the entities' codes; the bits an axis of both stages.
    """

    entities: int
    relations: int
    triples: int
    aliases: int
    external_ids: int
    unembedded_entities: int
    unembedded_relations: int
    entity_vector_rows: int
    relation_vector_rows: int
    delta_rows: int
    sealed_entities: int
    unruled_entities: int
    entity_sealed_rows: int
    relation_sealed_rows: int
    entity_index_problem: str
    relation_index_problem: str
    graph_rows: int
    graph_missed: int
    clusters: int
    code_bits: str
    seq: int
    map_size: int
    map_used: int
    disk_bytes: int
    readers: int
    max_readers: int
    generation: int
    format_version: int
    store_id: str
    merge_error: str
    entity_embedder: str
    relation_embedder: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found: `problems` in words (at most the first 100), `counts` of what was looked at."""

    ok: bool
    problems: tuple[str, ...]
    counts: dict[str, int | str]


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Bytes on disk before and after `compact`."""

    bytes_before: int
    bytes_after: int
