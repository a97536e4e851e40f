"""`Memory`: the one typed door to a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core, _input, _question
from ._space import Space
from ._upkeep import Upkeep
from .embedders import Embedder, RelationWords, Surface, Thresholds, resolve
from .errors import Closed, EmbedderMismatch, InvalidArgument
from .results import (
    Added,
    AddReport,
    Change,
    Query,
    QueryResult,
    Replaced,
    Source,
    Triple,
    TripleLike,
)
from .transaction import Progress, Transaction

__all__ = ["Memory", "open"]

Search = Literal["auto", "exact", "graph"]
Numbers = Literal["any", "exact"]
Rules = Literal["none", "core", "wide"] | Iterable[str]
_PAGE = 1000
_Stamp = tuple[str, int, str]
_T = TypeVar("_T")
_SYNCS = ("full", "relaxed")


def open(  # as dbm.open: read as pymemstore.open
    path: str | os.PathLike[str],
    *,
    embedder: str | Embedder | None = None,
    relation_embedder: str | Embedder | None = None,
    read_only: bool = False,
    create: bool = True,
    timeout: float = 30.0,
    sync: Literal["full", "relaxed"] = "full",
    map_size: int | None = None,
    threads: int | None = None,
    auto_merge: bool = True,
) -> Memory:
    """Opens the store in the folder `path`, or makes it.

    Args:
        path: the store's folder.
        embedder: what turns entity names into vectors: an object with `name`, `dim` and `encode`, or a
            string that `pymemstore.embedders.resolve` knows. Given alone it serves relations too. None: in
            a new store the offline defaults; in an existing one what the store was made with, if that is
            built in. Otherwise the store opens without embedder: text can't be embedded then, while vectors
            can be given.
        relation_embedder: the same for relation names.
        read_only: open for reading only. The store must exist.
        create: False: NotFound where there is no store, instead of making one.
        timeout: seconds that a write waits for another writer before it gives up with Locked.
        sync: "full": what a call has written is on the disk when it returns. "relaxed": a power loss may
            undo the last commits, but never damage the store.
        map_size: first size of the memory map in bytes; it grows by itself.
        threads: threads of a search; None: as many as there are CPUs.
        auto_merge: merge what was written since the last merge into the sealed base, in a thread of this
            handle, when it is more than 250,000 rows and more than 1 % of the store. `compact` does so too.

    Raises:
        NotFound: no store there (with create=False or read_only=True).
        EmbedderMismatch: the store was made with another embedder.
        Corruption, VersionMismatch: the folder holds something else, damaged files, or a newer format.
        InvalidArgument, IOError: a wrong argument; the operating system refused.
    """
    where = _input.path(path)
    wait = _input.seconds(timeout, "timeout")
    _input.choice(sync, "sync", _SYNCS)
    first_map = 0 if map_size is None else _input.integer(map_size, "map_size", 1, 2**63 - 1)
    thread_count = 0 if threads is None else _input.integer(threads, "threads", 1, 1024)

    given = None if embedder is None else resolve(embedder)
    given_r = given if relation_embedder is None else resolve(relation_embedder)
    new = given if given is not None else Surface()
    new_r = given_r if given_r is not None else RelationWords()
    stamps = _input.stamp(new, "embedder"), _input.stamp(new_r, "relation_embedder")
    for chosen, (name, _, _) in zip((new, new_r), stamps, strict=True):
        _input.three_thresholds(getattr(chosen, "thresholds", None), f"embedder {name!r:.60}")
    store = _core.Store.open(
        where,
        create=bool(create) and not read_only,
        read_only=bool(read_only),
        timeout=wait,
        sync=sync,
        map_size=first_map,
        auto_merge=bool(auto_merge),
        threads=thread_count,
        entity_stamp=stamps[0],
        relation_stamp=stamps[1],
        stamps_if_new=given is None or given_r is None,
    )
    try:
        stamp, stamp_r = store.stamps()
        spaces = (
            Space("entity", stamp, _fitting("entity", given, new, stamp)),
            Space("relation", stamp_r, _fitting("relation", given_r, new_r, stamp_r)),
        )
    except BaseException:
        store.close()
        raise
    return Memory(store, spaces)


def _fitting(kind: str, given: Embedder | None, default: Embedder, stamp: _Stamp) -> Embedder | None:
    """The embedder of a space: the given one, which must fit; else a built-in one, if the stamp names it."""
    if given is not None:
        theirs = _input.stamp(given, "embedder")
        if theirs != stamp:
            raise EmbedderMismatch(f"the store's {kind} vectors are of {stamp}, not of {theirs}")
        return given
    for known in (default, Surface(), RelationWords()):
        if _input.stamp(known, "embedder") == stamp:
            return known
    return None


class Memory(Upkeep):
    """A store of facts that can be asked by meaning. Made by `pymemstore.open`; a context manager.

    Facts are unique triples of names: subject, relation, object. Names are kept byte for byte; they must
    not be empty or hold lone surrogates (InvalidArgument). Entities and relations live apart: a text may be
    both.

    May be used from several threads. A child process made by fork must open the store again (Closed
    otherwise). Every write is one transaction: all of it or nothing, and on the disk when the call returns.
    Writes raise Locked when another writer holds the store for longer than the timeout, ReadOnly on a
    read-only store, MapFull or IOError when there is no room. After `close` every method raises Closed.
    """

    def __init__(self, store: _core.Store, spaces: tuple[Space, Space]) -> None:
        self._store = store
        self._spaces = spaces
        self._thresholds = _question.thresholds(spaces)
        self._pid = os.getpid()

    # ---- the handle -----------------------------------------------------------------------------

    def __enter__(self) -> Memory:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the handle. A second call does nothing."""
        self._store.close()

    @property
    def closed(self) -> bool:
        """True once the handle has been closed."""
        return self._store.closed

    @property
    def path(self) -> str:
        """The store's folder."""
        return os.fsdecode(self._store.path)

    @property
    def read_only(self) -> bool:
        """True for a handle that can't write."""
        return self._store.read_only

    @property
    def embedder(self) -> Embedder | None:
        """What embeds entity names; None when the store's embedder was not given and is not built in."""
        return self._spaces[0].embedder

    @property
    def relation_embedder(self) -> Embedder | None:
        """What embeds relation names; None as for `embedder`."""
        return self._spaces[1].embedder

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of a query that gives none: tau_e and tau_r of the entities' embedder, tau_t of the
        relations'; (.7, .7, .85), those of the MemLLM paper, where an embedder has none."""
        return self._thresholds

    def _check_open(self) -> None:
        # The process first: after a fork a lock may be held for ever, the cache's or the store's.
        if os.getpid() != self._pid:
            raise Closed(
                f"{self.path} was opened by process {self._pid}, which forked this one: open it again here"
            )
        if self._store.closed:
            raise Closed(f"the store at {self.path} was closed")

    def __len__(self) -> int:
        """The number of triples."""
        return self.stats().triples

    def __bool__(self) -> bool:  # an empty memory is not a missing one
        return True

    def __repr__(self) -> str:
        state = "closed" if self.closed else "read-only" if self.read_only else "open"
        return f"<Memory {self.path!r}, {state}>"

    # ---- writing --------------------------------------------------------------------------------

    def _write(self, operation: Callable[[Transaction], _T], progress: Progress | None = None) -> _T:
        self._check_open()
        with Transaction(self._store, self._spaces, progress) as transaction:
            return operation(transaction)

    def transaction(self) -> Transaction:
        """A context manager that buffers writes and applies them together at its end."""
        self._check_open()
        return Transaction(self._store, self._spaces)

    def add(
        self,
        subject: str,
        relation: str,
        object: str,
        *,
        source: str | None = None,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
    ) -> Added:
        """Adds a fact. A fact that is there already keeps its id; its source is recorded all the same.

        Args:
            source: where the fact comes from.
            vectors: (subject's, relation's, object's) vectors, (dim,) each, any of them None: embedded.
                Used for names that are new or have none yet; a name keeps the vector it has (see
                `set_vector`).
        """
        return self._write(lambda t: t.add(subject, relation, object, source=source, vectors=vectors))

    def add_many(
        self,
        triples: Iterable[TripleLike],
        *,
        vectors: Sequence[npt.ArrayLike | None] | None = None,
        source: str | Sequence[str | None] | None = None,
        progress: Progress | None = None,
    ) -> AddReport:
        """Adds facts, all of them or none.

        Args:
            triples: n sequences of three names, or `Triple`s (of another store, say).
            vectors: (subjects' (n, dim), relations' (n, rdim), objects' (n, dim)), any of them None:
                embedded. Numbers of any real type; float32 is stored. As in `add`; of a name that comes
                twice the first counts.
            source: one for all, or n of them (None: no source).
            progress: called as progress(done, total) with the names embedded so far, in this thread, before
                the transaction begins. An exception from it stops the call with nothing written.

        Raises:
            InvalidArgument: names the first wrong item, such as "triple 17: object is None, expected str".
        """
        _input.callback(progress, "progress")
        return self._write(lambda t: t.add_many(triples, vectors=vectors, source=source), progress)

    def replace(self, subject: str, relation: str, object: str, *, source: str | None = None) -> Replaced:
        """Makes `object` the only object of (subject, relation); tells what it displaced."""
        return self._write(lambda t: t.replace(subject, relation, object, source=source))

    def remove(self, subject: str, relation: str, object: str) -> bool:
        """Removes a fact; False when it was not there. The names stay."""
        return self._write(lambda t: t.remove(subject, relation, object)).value

    def forget(self, entity: str) -> int:
        """Removes an entity with its facts, aliases and external ids; how many facts. NotFound if unknown."""
        return self._write(lambda t: t.forget(entity)).value

    def alias(self, name: str, entity: str, *, relation: bool = False) -> bool:
        """Makes `name` another name of an entity (or relation); False when it was one. Many-to-many, and no
        name is merged with another by it. NotFound when the entity is unknown."""
        return self._write(lambda t: t.alias(name, entity, relation=relation)).value

    def unalias(self, name: str, entity: str, *, relation: bool = False) -> bool:
        """Takes an alias back; False when it was none."""
        return self._write(lambda t: t.unalias(name, entity, relation=relation)).value

    def rename(self, old: str, new: str, *, relation: bool = False) -> None:
        """Gives an entity (or relation) a new name; its facts, aliases and ids stay. NotFound when `old` is
        unknown, InvalidArgument when `new` is taken."""
        self._write(lambda t: t.rename(old, new, relation=relation))

    def add_entities(self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None) -> int:
        """Adds names without facts; how many were new. vectors: (n, dim), None: embedded."""
        return self._write(lambda t: t.add_entities(names, vectors=vectors)).value

    def add_relations(self, names: Iterable[str], *, vectors: npt.ArrayLike | None = None) -> int:
        """Adds relation names without facts; how many were new. vectors: (n, rdim), None: embedded."""
        return self._write(lambda t: t.add_relations(names, vectors=vectors)).value

    def set_vector(self, name: str, vector: npt.ArrayLike, *, relation: bool = False) -> None:
        """Gives a name another vector, (dim,); it is scaled to unit length. NotFound when the name is
        unknown."""
        self._write(lambda t: t.set_vector(name, vector, relation=relation))

    def set_external_id(self, external_id: str, name: str, *, relation: bool = False) -> bool:
        """Ties an id of another catalogue (a Wikidata QID) to a name; False when it was. NotFound for an
        unknown name."""
        return self._write(lambda t: t.set_external_id(external_id, name, relation=relation)).value

    # ---- queries --------------------------------------------------------------------------------

    def query(
        self,
        subject: str | None = None,
        relation: str | None = None,
        object: str | None = None,
        *,
        tau_e: float | None = None,
        tau_t: float | None = None,
        tau_r: float | None = None,
        limit: int | None = None,
        search: Search = "auto",
        rules: Rules = "core",
        numbers: Numbers = "any",
        exclude: Iterable[int] = (),
        subject_vector: npt.ArrayLike | None = None,
        relation_vector: npt.ArrayLike | None = None,
        object_vector: npt.ArrayLike | None = None,
    ) -> QueryResult:
        """The facts <subject, relation, ?> or <?, relation, object>, by meaning (MemLLM, section 3.1).

        The relation and exactly one of subject and object must be given, each as text, vector or both (the
        text for the rules, the vector for the cosine). Candidates are the entities with cos >= tau_e and
        the relations with cos >= tau_t; a fact that joins two of them is a hit if the mean of the two
        similarities is >= tau_r. All that qualify are returned, best first.

        Args:
            tau_e, tau_t, tau_r: thresholds in [-1, 1]; None: `thresholds`.
            limit: at most so many hits (>= 1); None: all. `truncated` tells when it cut.
            search: "exact" is complete; "graph" is approximate and fast; "auto" chooses.
            rules: ways beside the cosine in which a text finds a name: "none" (the paper's plain definition),
                "core", "wide", or an iterable of match names (see `Hit`).
            numbers: "exact": a candidate must agree with the query text in its numbers, dates and ordinals.
            exclude: ids of triples that shall not be hits.
            subject_vector, relation_vector, object_vector: (dim,), of any length but zero.

        Raises:
            InvalidArgument: both or no slot, a wrong threshold or vector, text without an embedder for it.
        """
        return self._run(
            [
                Query(
                    subject, relation, object, tau_e, tau_t, tau_r, limit, search, rules, numbers, exclude,
                    subject_vector, relation_vector, object_vector,
                )
            ],
            single=True,
        )[0]  # fmt: skip

    def query_many(
        self,
        queries: Iterable[Query | Mapping[str, Any] | Sequence[str | None]],
        *,
        tau_e: float | None = None,
        tau_t: float | None = None,
        tau_r: float | None = None,
        limit: int | None = None,
        search: Search = "auto",
        rules: Rules = "core",
        numbers: Numbers = "any",
        exclude: Iterable[int] = (),
    ) -> list[QueryResult]:
        """Answers many queries on one snapshot; their texts are embedded in one call.

        Args:
            queries: `Query`s, dicts of `query`'s arguments, or (subject, relation, object) with None for
                the open slot. What one leaves out is taken from the keywords here, which are `query`'s.

        Raises:
            InvalidArgument: as `query`; the message begins with the query's index.
        """
        if isinstance(queries, (Query, Mapping)):
            raise InvalidArgument(f"expected an iterable of queries, not {type(queries).__name__}")
        listed = _input.each(queries, "expected an iterable of queries")
        shared = (tau_e, tau_t, tau_r, limit, search, rules, numbers, exclude)
        if not isinstance(exclude, (tuple, list, np.ndarray)):
            shared = (*shared[:-1], list(_input.each(exclude, "exclude: expected an iterable of triple ids")))
        return self._run([_question.as_query(i, q, shared) for i, q in enumerate(listed)])

    def _run(self, queries: list[Query], *, single: bool = False) -> list[QueryResult]:
        self._check_open()
        asked = _question.specs(queries, self._spaces, self._thresholds, single)
        try:
            return [QueryResult(raw) for raw in self._store.query(asked)]
        except InvalidArgument:
            _question.check_vectors(asked, self._spaces, single)
            raise

    def similar_entities(
        self,
        text_or_vector: str | npt.ArrayLike,
        tau: float | None = None,
        *,
        search: Search = "auto",
        limit: int | None = None,
    ) -> list[tuple[str, float]]:
        """Entities whose cosine with a text's vector, or a vector (dim,), is >= tau; best first, ties by
        id. No rules. tau None: `thresholds.tau_e`."""
        return self._similar(text_or_vector, tau, search, limit, False)

    def similar_relations(
        self,
        text_or_vector: str | npt.ArrayLike,
        tau: float | None = None,
        *,
        search: Search = "auto",
        limit: int | None = None,
    ) -> list[tuple[str, float]]:
        """As `similar_entities`, for relations. tau None: `thresholds.tau_t`."""
        return self._similar(text_or_vector, tau, search, limit, True)

    def _similar(
        self, asked: str | npt.ArrayLike, tau: float | None, search: str, limit: int | None, relation: bool
    ) -> list[tuple[str, float]]:
        self._check_open()
        default = self._thresholds.tau_t if relation else self._thresholds.tau_e
        least = default if tau is None else _input.threshold(tau, "tau")
        most = _input.limit(limit)
        _input.search(search)
        space = self._spaces[relation]
        if isinstance(asked, str):
            vector = space.text_vectors([_input.name(asked, "text")])[asked]
        else:
            vector = _input.vector(asked, space.dim, "vector")
        return self._store.similar(vector[None, :], least, most, relation, search)[0]

    # ---- reading --------------------------------------------------------------------------------

    def entities(self) -> Iterator[str]:
        """All entity names, in the order of their ids. Names added meanwhile may be seen or not."""
        return self._each(self._name_pages(False))

    def relations(self) -> Iterator[str]:
        """All relation names, in the order of their ids."""
        return self._each(self._name_pages(True))

    def triples(
        self, subject: str | None = None, relation: str | None = None, object: str | None = None
    ) -> Iterator[Triple]:
        """The facts with just these names; None stands for any. Facts added meanwhile may be seen or not."""
        return self._each(self._triple_pages(subject, relation, object))

    def changes(self, since: int = 0) -> Iterator[Change]:
        """The edit log's rows whose `seq` is greater than `since`, oldest first."""
        return self._each(self._change_pages(since))

    def _each(self, pages: Iterator[list[_T]]) -> Iterator[_T]:
        self._check_open()

        def rows() -> Iterator[_T]:
            for page in pages:
                for row in page:
                    self._check_open()
                    yield row
            self._check_open()

        return rows()

    def _name_pages(self, relation: bool) -> Iterator[list[str]]:
        after = 0
        while page := self._store.names(relation, after, _PAGE):
            after = page[-1][0] + 1
            yield [name for _, name in page]

    def _triple_pages(
        self, subject: str | None, relation: str | None, object: str | None
    ) -> Iterator[list[Triple]]:
        for what, value in (("subject", subject), ("relation", relation), ("object", object)):
            if value is not None:
                _input.known(value, what)

        def pages() -> Iterator[list[Triple]]:
            cursor: bytes | None = None
            while True:
                rows, cursor = self._store.triples(subject, relation, object, cursor, _PAGE)
                yield [Triple(*row) for row in rows]
                if cursor is None:
                    return

        return pages()

    def _change_pages(self, since: int) -> Iterator[list[Change]]:
        first = _input.integer(since, "since", 0, 2**63 - 1)

        def pages() -> Iterator[list[Change]]:
            after = first
            while rows := self._store.changes(after, _PAGE):
                after = rows[-1][0]
                yield [
                    Change(seq, op, time, t and Triple(*t), tuple(Triple(*r) for r in removed), name, other)
                    for seq, op, time, t, removed, name, other in rows
                ]

        return pages()

    def contains(self, subject: str, relation: str, object: str) -> bool:
        """Whether just this fact is stored."""
        s, r = _input.known(subject, "subject"), _input.known(relation, "relation")
        return self._store.find(s, r, _input.known(object, "object")) != 0

    def triple(self, triple_id: int) -> Triple:
        """The fact with this id. NotFound when there is none, or no more."""
        return Triple(*self._store.triple(_input.integer(triple_id, "triple_id")))

    def vector(self, name: str, *, relation: bool = False) -> npt.NDArray[np.float32] | None:
        """A name's vector as it is stored: float32 (dim,), of unit length. None while the name waits for one;
        NotFound for an unknown name."""
        return self._store.vector(_input.known(name, "name"), bool(relation))

    def aliases(self, entity: str, *, relation: bool = False) -> list[str]:
        """The other names of an entity (or relation). NotFound when it is unknown."""
        return self._store.aliases(_input.known(entity, "name"), bool(relation))

    def named_by(self, alias: str, *, relation: bool = False) -> list[str]:
        """The entities (or relations) that have this alias; none is fine."""
        return self._store.named_by(_input.known(alias, "alias"), bool(relation))

    def external_ids(self, name: str, *, relation: bool = False) -> list[str]:
        """The external ids of a name. NotFound when the name is unknown."""
        return self._store.external_ids(_input.known(name, "name"), bool(relation))

    def by_external_id(self, external_id: str, *, relation: bool = False) -> str | None:
        """The name that an external id is tied to; None when it is tied to none."""
        return self._store.by_external_id(_input.known(external_id, "external id"), bool(relation))

    def sources(self, triple_id: int) -> list[Source]:
        """Where a fact came from, oldest first. NotFound when there is no such fact."""
        return [Source(*row) for row in self._store.sources(_input.integer(triple_id, "triple_id"))]
