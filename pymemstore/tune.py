"""Measures, on a store and queries of one's own, what each threshold gives: how many candidates, how many of
the names that were meant, how fast; and recommends one. docs/tuning.md tells how to read it."""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core, _input
from .embedders import check_embedding
from .errors import InvalidArgument, NotFound
from .memory import Memory, Search
from .transaction import Progress

__all__ = [
    "MOST_CANDIDATES",
    "TAUS",
    "Candidates",
    "Graph",
    "Latency",
    "Question",
    "Recommendation",
    "SlipRow",
    "TauRow",
    "Tuning",
    "TuningReport",
    "measure",
    "read_queries",
    "slip",
]

TAUS = tuple(round(0.5 + 0.05 * i, 2) for i in range(11))
_KEPT = 0.95  # share of the names found at the least threshold that the recommended one still finds
MOST_CANDIDATES = 10.0  # candidates a query, on average, that a threshold should not exceed
_FEW_LABELS = 50  # with fewer queries that tell what they mean, a report says that it is a guess
_DRAWN = 4  # names drawn for each that is asked
_WARM = 32  # searches before any is timed: after 24 the core makes its index (docs/exact_scan.md)
_TIMED = 20  # queries that are timed at each threshold
_SLACK = 1e-6  # a score passes from tau - _SLACK on (docs/semantics.md)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Question(NamedTuple):
    """A query text; the stored name it means, if that is known; what made it; what errors call it."""

    text: str
    intended: str | None = None
    slip: str = ""
    where: str = ""


Queries = Sequence[str | tuple[str, str] | Question]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Names that pass a threshold, a query. `none`: the share of queries, in [0, 1], with no candidate."""

    mean: float
    median: float
    p95: float
    max: int
    none: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of a search, candidates' names included, embedding excluded."""

    median: float
    p95: float
    searches: int


@dataclass(frozen=True, slots=True)
class Graph:
    """search="graph" against search="exact", in [0, 1]. `micro`: the share of all exact candidates that the
    graph finds; `macro`: the mean of that share over the queries that have any. None: no query has any."""

    micro: float | None
    macro: float | None
    latency: Latency


@dataclass(frozen=True, slots=True)
class TauRow:
    """What one threshold gives.

    `found`: labelled queries whose intended name is a candidate; `recall` is its share of them, with its 95 %
    interval (Wilson's). `false_candidates`: candidates other than the intended name, a labelled query. None
    without labelled queries; `exact` and `graph` are None where not measured.
    """

    tau: float
    candidates: Candidates
    found: int
    recall: float | None
    recall_interval: tuple[float, float] | None
    false_candidates: float | None
    exact: Latency | None
    graph: Graph | None


@dataclass(frozen=True, slots=True)
class SlipRow:
    """Recall of the queries with one kind of slip, for each of the report's rows."""

    slip: str
    queries: int
    recall: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which threshold to take; None where the queries can't tell.

    `tau`: the highest that finds at least 95 % of the intended names that the least one finds. `size_tau`:
    the lowest with at most MOST_CANDIDATES candidates a query on average. `tau_r`: up to here tau_r takes
    nothing away, given `tau` and the store's threshold of the other kind.
    """

    tau: float | None
    size_tau: float | None
    tau_r: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What `measure` found; `dataclasses.asdict` gives what json can write.

    `kind`: "entity" or "relation". `names` in the store, `unembedded` of them without vector. `source`:
    "slips" or "queries". `planned`, `asked`, `labelled`: queries. `left_out`: those whose intended name has
    no vector. `by_rule`: share of the labelled whose intended name the core rules find at any threshold.
    `store_tau`, `other_tau`: the store's thresholds of this kind and of the other. `rows`: least tau first.
    """

    path: str
    kind: str
    embedder: str
    names: int
    unembedded: int
    graph_rows: int
    source: str
    seed: int
    planned: int
    asked: int
    labelled: int
    left_out: int
    by_rule: float | None
    store_tau: float
    other_tau: float
    rows: tuple[TauRow, ...]
    slips: tuple[SlipRow, ...]
    recommendation: Recommendation

    @property
    def complete(self) -> bool:
        """False when the measurement was stopped before its last query."""
        return self.asked == self.planned

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; no NaN."""
        return asdict(self) | {"complete": self.complete}


def measure(
    memory: Memory,
    queries: Queries | None = None,
    *,
    relation: bool = False,
    taus: Sequence[float] = TAUS,
    sample: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> TuningReport:
    """Asks `queries` at every threshold, by vector alone, and tells what came of it. Writes nothing.

    Args:
        queries: texts, or pairs of a text and the stored name that it means (`Question`s too). None: `sample`
            of the store's own names, drawn by `seed`, each with a slip (see `slip`).
        relation: measure relation names and tau_t, not entity names and tau_e.
        taus: thresholds in [-1, 1].
        sample: how many names are asked, at least 1; fewer where fewer have a vector and allow a slip.
        progress: called as progress(done, total) after each query. To keep what was measured before it
            raises, use `Tuning`.

    Raises:
        InvalidArgument: a wrong argument, no queries, no embedder for text.
        NotFound: the store has no names of this kind, or none with a vector; or it lacks an intended name.
    """
    tuning = Tuning(memory, queries, relation=relation, taus=taus, sample=sample, seed=seed)
    tuning.run(progress)
    return tuning.report()


class _Answer(NamedTuple):
    """What one query gave; tuples are by threshold. `score`: the intended name's, None where not found."""

    counts: tuple[int, ...]
    score: float | None
    by_rule: bool
    exact_ms: tuple[float, ...]  # empty: not timed
    graph_ms: tuple[float, ...]
    graph_found: tuple[int, ...]


class Tuning:
    """A measurement that can be stopped: `run` asks, `report` tells what has been asked so far."""

    def __init__(
        self,
        memory: Memory,
        queries: Queries | None = None,
        *,
        relation: bool = False,
        taus: Sequence[float] = TAUS,
        sample: int = 200,
        seed: int = 0,
    ) -> None:
        """Draws the names, or checks the queries. Arguments and errors are those of `measure`."""
        self._memory, self._relation = memory, bool(relation)
        self._kind = "relation" if relation else "entity"
        self._taus = _thresholds(taus)
        size = _input.integer(sample, "sample", 1)
        self._seed = _input.integer(seed, "seed", 0)
        stats = memory.stats()
        self._names = stats.relations if relation else stats.entities
        self._unembedded = stats.unembedded_relations if relation else stats.unembedded_entities
        self._embedder_name = stats.relation_embedder if relation else stats.entity_embedder
        # Relations are few: they are always scanned.
        self._graph_rows = 0 if relation else int(getattr(stats, "graph_rows", 0))
        if not self._names:
            raise NotFound(f"the store at {memory.path} has no {self._kind} names: nothing to measure")
        if self._unembedded >= self._names:
            raise NotFound(
                f"none of the {self._names:,} {self._kind} names at {memory.path} has a vector: "
                "embed_missing() gives them theirs"
            )
        self._source = "slips" if queries is None else "queries"
        asked = self._drawn(size) if queries is None else _questions(queries)
        found = [q for q in asked if self._can_be_found(q)]
        self._left_out = 0 if queries is None else len(asked) - len(found)
        self._questions = found[:size] if queries is None else found
        if not found:
            raise NotFound(
                f"none of the {len(asked)} intended names has a vector: nothing to measure"
                if asked
                else f"no {self._kind} name has letters to slip in: give queries"
            )
        self._vectors: npt.NDArray[np.float32] | None = None
        self._answers: list[_Answer] = []

    @property
    def planned(self) -> int:
        """How many queries `run` asks."""
        return len(self._questions)

    @property
    def asked(self) -> int:
        """How many queries it has asked."""
        return len(self._answers)

    def run(self, progress: Progress | None = None) -> None:
        """Asks what is not asked yet. An exception (Ctrl-C) loses the query that was being asked."""
        call = _input.callback(progress, "progress")
        if self._vectors is None:
            self._vectors = self._embedded()
            for i in range(_WARM):
                self._search(self._vectors[i % self.planned], self._taus[-1], "exact")
        while self.asked < self.planned:
            self._answers.append(self._ask(self.asked))
            if call is not None:
                call(self.asked, self.planned)

    # ---- the queries ----------------------------------------------------------------------------

    def _drawn(self, size: int) -> list[Question]:
        """Names with slips, more than `size` of them: some may have no vector, some allow no slip."""
        rng = random.Random(self._seed)
        wanted = set(rng.sample(range(self._names), min(_DRAWN * size, self._names)))
        every = self._memory.relations() if self._relation else self._memory.entities()
        names = [name for i, name in zip(range(max(wanted) + 1), every, strict=False) if i in wanted]
        rng.shuffle(names)  # so that a part of them is a fair sample too
        slipped = [(name, *slip(name, rng)) for name in names]
        return [Question(text, name, kind, f"name {name!r:.60}") for name, text, kind in slipped if kind]

    def _can_be_found(self, question: Question) -> bool:
        if question.intended is None:
            return True
        try:
            return self._memory.vector(question.intended, relation=self._relation) is not None
        except NotFound:
            raise NotFound(
                f"{question.where}: the store has no {self._kind} {question.intended!r:.200} "
                "(an alias is not found by vector: give the name it stands for)"
            ) from None

    def _embedded(self) -> npt.NDArray[np.float32]:
        """The queries' vectors, float32 (n, dim)."""
        embedder = self._memory.relation_embedder if self._relation else self._memory.embedder
        if embedder is None:
            raise InvalidArgument(
                f"no embedder for {self._kind} text: the store's vectors are of {self._embedder_name!r}; "
                "open it with that embedder"
            )
        texts = [question.text for question in self._questions]
        return check_embedding(embedder, texts, embedder.encode(texts))

    # ---- asking ---------------------------------------------------------------------------------

    def _search(self, vector: npt.NDArray[np.float32], tau: float, search: Search) -> list[tuple[str, float]]:
        ask = self._memory.similar_relations if self._relation else self._memory.similar_entities
        return ask(vector, tau, search=search)

    def _timed(
        self, vector: npt.NDArray[np.float32], tau: float, search: Search
    ) -> tuple[list[tuple[str, float]], float]:
        began = time.perf_counter()
        found = self._search(vector, tau, search)
        return found, (time.perf_counter() - began) * 1e3

    def _ask(self, index: int) -> _Answer:
        """One exact search at the least threshold: best come first, so each higher one has a prefix of it."""
        assert self._vectors is not None
        question, vector = self._questions[index], self._vectors[index]
        found = self._search(vector, self._taus[0], "exact")
        falling = -np.fromiter((score for _, score in found), np.float64, len(found))
        counts = tuple(int(np.searchsorted(falling, _SLACK - tau, "right")) for tau in self._taus)
        exact_ms: tuple[float, ...] = ()
        if index % math.ceil(self.planned / _TIMED) == 0:
            exact_ms = tuple(self._timed(vector, tau, "exact")[1] for tau in self._taus)
        graph_ms: list[float] = []
        graph_found: list[int] = []
        for tau, count in zip(self._taus, counts, strict=True) if self._graph_rows else ():
            near, spent = self._timed(vector, tau, "graph")
            names = {name for name, _ in near}
            graph_ms.append(spent)
            graph_found.append(sum(name in names for name, _ in found[:count]))
        score = next((score for name, score in found if name == question.intended), None)
        return _Answer(counts, score, self._by_rule(question), exact_ms, tuple(graph_ms), tuple(graph_found))

    def _by_rule(self, question: Question) -> bool:
        text, name = question.text, question.intended
        if name is None:
            return False
        mask = _input.rules(["folded"] if self._relation else "core")
        return (
            text == name
            or _core.match_names(text, name, mask) < len(_input.MATCHES)
            or name in self._memory.named_by(text, relation=self._relation)
        )

    # ---- telling --------------------------------------------------------------------------------

    def report(self) -> TuningReport:
        """What the queries asked so far gave. InvalidArgument when none was."""
        if not self._answers:
            raise InvalidArgument("nothing was measured yet: call run()")
        labelled = [
            (q, a) for q, a in zip(self._questions, self._answers, strict=False) if q.intended is not None
        ]
        rows = tuple(self._row(i, tau, [a for _, a in labelled]) for i, tau in enumerate(self._taus))
        kinds = sorted({q.slip for q, _ in labelled if q.slip})
        by_kind = {kind: [a for q, a in labelled if q.slip == kind] for kind in kinds}
        thresholds = self._memory.thresholds
        own, other = thresholds.tau_e, thresholds.tau_t
        if self._relation:
            own, other = other, own
        return TuningReport(
            path=self._memory.path,
            kind=self._kind,
            embedder=self._embedder_name,
            names=self._names,
            unembedded=self._unembedded,
            graph_rows=self._graph_rows,
            source=self._source,
            seed=self._seed,
            planned=self.planned,
            asked=self.asked,
            labelled=len(labelled),
            left_out=self._left_out,
            by_rule=sum(a.by_rule for _, a in labelled) / len(labelled) if labelled else None,
            store_tau=own,
            other_tau=other,
            rows=rows,
            slips=tuple(
                SlipRow(kind, len(some), tuple(_found(some, tau) / len(some) for tau in self._taus))
                for kind, some in by_kind.items()
            ),
            recommendation=self._recommended(rows, len(labelled), other),
        )

    def _row(self, i: int, tau: float, labelled: Sequence[_Answer]) -> TauRow:
        counts = np.array([a.counts[i] for a in self._answers])
        found, n = _found(labelled, tau), len(labelled)
        return TauRow(
            tau=tau,
            candidates=Candidates(
                float(counts.mean()),
                float(np.median(counts)),
                float(np.percentile(counts, 95)),
                int(counts.max()),
                float((counts == 0).mean()),
            ),
            found=found,
            recall=found / n if n else None,
            recall_interval=_wilson(found, n) if n else None,
            false_candidates=(sum(a.counts[i] for a in labelled) - found) / n if n else None,
            exact=_latency([a.exact_ms[i] for a in self._answers if a.exact_ms]),
            graph=self._graph(i),
        )

    def _graph(self, i: int) -> Graph | None:
        latency = _latency([a.graph_ms[i] for a in self._answers if a.graph_ms])
        if latency is None:
            return None
        pairs = [(a.graph_found[i], a.counts[i]) for a in self._answers if a.counts[i]]
        if not pairs:
            return Graph(None, None, latency)
        micro = sum(found for found, _ in pairs) / sum(count for _, count in pairs)
        return Graph(micro, sum(found / count for found, count in pairs) / len(pairs), latency)

    def _recommended(self, rows: Sequence[TauRow], labelled: int, other: float) -> Recommendation:
        small = [row for row in rows if row.candidates.mean <= MOST_CANDIDATES]
        most = rows[0].found
        kept = [row for row in rows if most and row.found >= _KEPT * most and len(rows) > 1]
        best = kept[-1] if kept else None
        notes = self._doubts(rows, labelled)
        if len(rows) == 1:
            notes.append(
                "Only one threshold was measured, so there is nothing to compare: none is recommended."
            )
        if best is not None and best is rows[0]:
            notes.append(f"The least threshold measured, {best.tau:g}, is the best of them: try lower ones.")
        after = next((row for row in rows if best is not None and row.tau > best.tau), None)
        if after and after.recall_interval and after.recall_interval[1] * labelled >= _KEPT * most:
            notes.append(f"{after.tau:g} may do as well: ask more queries to tell the two apart.")
        if best is not None and best.candidates.mean > MOST_CANDIDATES:
            notes.append(
                f"At {best.tau:g} a query has {best.candidates.mean:,.1f} candidates on average; at "
                f"{small[0].tau:g} at most {MOST_CANDIDATES:g}, with {small[0].found} of {most} still found."
                if small
                else f"No threshold measured leaves at most {MOST_CANDIDATES:g} candidates on average."
            )
        if best is None:
            return Recommendation(None, small[0].tau if small else None, None, tuple(notes))
        tau_r = (best.tau + other) / 2
        mine, its = ("tau_t", "tau_e") if self._relation else ("tau_e", "tau_t")
        notes.append(
            f"tau_r takes nothing away up to {tau_r:.3f}, the mean of {mine} {best.tau:g} and the store's "
            f"{its} {other:g}; names alone can't tell how much higher it should be."
        )
        return Recommendation(best.tau, small[0].tau if small else None, tau_r, tuple(notes))

    def _doubts(self, rows: Sequence[TauRow], labelled: int) -> list[str]:
        """Why the figures may mislead."""
        notes: list[str] = []
        if self.asked < self.planned:
            notes.append(f"Stopped early: {self.asked:,} of {self.planned:,} queries were asked.")
        if not labelled:
            notes.append(
                "No query tells which name it means, so what a threshold misses isn't known: none is "
                "recommended. Put the name behind the query, after a tab."
            )
        elif labelled < _FEW_LABELS:
            notes.append(
                f"Only {labelled} queries tell which name they mean: recall is a guess (see its interval)."
            )
        if labelled and not rows[0].found:
            notes.append(
                f"No intended name was found even at {rows[0].tau:g}, so none is recommended: try lower "
                "ones, aliases, or another embedder."
            )
        elif labelled and rows[0].found < labelled / 2:
            notes.append(
                f"Even at {rows[0].tau:g} only {rows[0].found} of {labelled} intended names were found: "
                "try lower ones, aliases, or another embedder."
            )
        if self._source == "slips":
            notes.append("The queries are names with made-up slips: your users' queries tell more.")
        if self._unembedded:
            notes.append(f"{self._unembedded:,} names wait for vectors and were not found.")
        if self._left_out:
            notes.append(f"{self._left_out} queries were left out: the names they mean have no vectors.")
        return notes


def _thresholds(taus: Sequence[float]) -> tuple[float, ...]:
    listed = sorted({_input.threshold(tau, "taus") for tau in _input.each(taus, "taus: expected numbers")})
    if not listed:
        raise InvalidArgument("taus is empty, expected at least one threshold")
    return tuple(listed)


def _questions(queries: Queries) -> list[Question]:
    made: list[Question] = []
    for i, query in enumerate(_input.each(queries, "queries: expected texts or (text, name) pairs")):
        if isinstance(query, Question):
            where = query.where or f"query {i}"
            text, intended, kind = query.text, query.intended, query.slip
        elif isinstance(query, str):
            where, text, intended, kind = f"query {i}", query, None, ""
        elif isinstance(query, (tuple, list)) and len(query) == 2:
            where, (text, intended), kind = f"query {i}", query, ""
        else:
            raise InvalidArgument(
                f"query {i}: expected a text or a pair (text, name), not {_input.shown(query)}"
            )
        _input.name(text, f"{where}: the query")
        if intended is not None:
            _input.name(intended, f"{where}: the intended name")
        made.append(Question(text, intended, kind, where))
    if not made:
        raise InvalidArgument("there are no queries")
    return made


def _found(labelled: Sequence[_Answer], tau: float) -> int:
    return sum(a.score is not None and a.score >= tau - _SLACK for a in labelled)


def _latency(times: Sequence[float]) -> Latency | None:
    if not times:
        return None
    return Latency(float(np.median(times)), float(np.percentile(times, 95)), len(times))


def _wilson(found: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share, found of n."""
    z, p = 1.96, found / n
    middle, reach = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Around p, whatever the rounding: at 0 and 1 the interval ends there.
    return max(0.0, min(p, (middle - reach) / scale)), min(1.0, max(p, (middle + reach) / scale))


def slip(name: str, rng: random.Random) -> tuple[str, str]:
    """`name` as somebody might mistype it, and the kind of slip, drawn from those that the name allows:
    "letter" (one is another, or outside ASCII left out), "word" (one is left out), "case" (all lower case);
    (name, "") where it allows none, as a number does."""
    words = name.split()
    letters = [i for i, c in enumerate(name) if c.isalpha()]
    fitting = {"letter": len(letters) > 1, "word": len(words) > 1, "case": name.lower() != name}
    kinds = [kind for kind, fits in fitting.items() if fits]
    kind = rng.choice(kinds) if kinds else ""
    if kind == "letter":
        i = rng.choice(letters)
        other = ""
        if name[i].isascii():
            other = rng.choice([c for c in _LETTERS if c != name[i].lower()])
            other = other.upper() if name[i].isupper() else other
        return name[:i] + other + name[i + 1 :], kind
    if kind == "word":
        i = rng.randrange(len(words))
        return " ".join(words[:i] + words[i + 1 :]), kind
    return (name.lower() if kind == "case" else name), kind


def read_queries(file: str | os.PathLike[str]) -> list[Question]:
    """Queries from a UTF-8 file ("-": standard input): a text on each line, or a text, a tab and the stored
    name that it means. Blank lines, a byte order mark and CR LF are fine.

    Raises:
        InvalidArgument: a wrong line, named by its number; no line at all.
        OSError: the file can't be read.
    """
    name = "standard input" if str(file) == "-" else str(file)
    data = sys.stdin.buffer.read() if str(file) == "-" else Path(file).read_bytes()
    made: list[Question] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        where = f"{name}, line {number}"
        try:
            parts = line.removesuffix(b"\r").decode().split("\t")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{where}: not UTF-8 at byte {error.start}") from None
        if not any(part.strip() for part in parts):
            continue
        if len(parts) > 2:
            raise InvalidArgument(
                f"{where}: {len(parts) - 1} tabs, expected a query, or a query, a tab and a name"
            )
        made.append(Question(parts[0], parts[1] if len(parts) == 2 else None, "", where))
        _questions(made[-1:])
    if not made:
        raise InvalidArgument(f"{name} has no queries")
    return made
