"""The loader: items in, whole batches into a Memory, and a report of what became of each."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from pymemstore.errors import InvalidArgument, NotFound
from pymemstore.ingest.readers import Alias, Bad, ExternalId, Fact, Item, Name
from pymemstore.memory import Memory

__all__ = ["ImportReport", "load", "whole_batches"]

DEFAULT_BATCH = 10_000


@dataclass
class ImportReport:
    """What an import did. It is brought up to date after each commit, so it is true after an interruption.

    `read` counts records: triples, names, aliases, external ids and bad ones. `inserted` and `existed` count
    triples, `aliases` and `external_ids` those that are new, `skipped` equals len(errors); `seconds` is wall
    time.
    """

    format: str = ""
    read: int = 0
    inserted: int = 0
    existed: int = 0
    skipped: int = 0
    aliases: int = 0
    external_ids: int = 0
    new_entities: int = 0
    new_relations: int = 0
    batches: int = 0
    seconds: float = 0.0
    errors: list[tuple[int, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The fields, with the errors as {"line": ..., "why": ...}: ready for JSON."""
        return asdict(self) | {"errors": [{"line": line, "why": why} for line, why in self.errors]}


class _Gate:
    """Holds Ctrl-C back while a batch is being written, so that a batch and its counts are whole."""

    def __init__(self) -> None:
        self._closed = False
        self._wanted = False

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        if not self._closed:
            raise KeyboardInterrupt
        self._wanted = True

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._closed = True
        try:
            yield
        finally:
            self._closed = False
        if self._wanted:
            self._wanted = False
            raise KeyboardInterrupt


@contextmanager
def whole_batches() -> Iterator[_Gate]:
    """While open, SIGINT becomes KeyboardInterrupt between two batches, never inside one.

    Only the main thread may set signal handlers; elsewhere, and where SIGINT is ignored, nothing is changed.
    """
    gate = _Gate()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):
        yield gate
        return
    before = signal.signal(signal.SIGINT, gate.interrupt)
    try:
        yield gate
    finally:
        signal.signal(signal.SIGINT, before)


def load(
    memory: Memory,
    items: Iterable[Item],
    *,
    batch: int = DEFAULT_BATCH,
    source: str | None = None,
    report: ImportReport | None = None,
    progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Write `items` into `memory`, `batch` of them in each transaction, and return the report.

    `source` names the source of facts that bring none. A record that the store refuses (a name that is too
    long, an alias for an unknown name) is reported in `errors` like one that couldn't be read; the rest of
    its batch is written. `report`, when given, is the one filled in: after a KeyboardInterrupt, or an error
    such as a full disk, it says what was committed. A failure of the reader itself (a truncated file) is
    raised after what came before it has been written. Running the same import again completes it: facts that
    are there count as existed. `progress` is called after each batch. Raises InvalidArgument for a batch
    below 1.
    """
    if batch < 1:
        raise InvalidArgument(f"batch is {batch}; it must be at least 1")
    if memory.embedder is None or memory.relation_embedder is None:
        # Said once here, instead of once for each record
        raise InvalidArgument(
            "the store is open without its embedder, so new names can't be embedded; give it to open()"
        )
    report = ImportReport() if report is None else report
    started = time.monotonic()
    pending: list[Fact | Name | Alias | ExternalId] = []
    with whole_batches() as gate:

        def flush() -> None:
            # Facts and names first: an alias may come before the first fact of its entity
            ordered = sorted(pending, key=lambda item: not isinstance(item, (Fact, Name)))
            with gate.closed():
                if ordered:
                    _write(memory, ordered, source, report)
                    report.batches += 1
                pending.clear()
                report.seconds = time.monotonic() - started
            if progress is not None:
                progress(report)

        try:
            failure = _collect(items, pending, batch, report, flush)
            flush()
        except KeyboardInterrupt:
            report.read -= len(pending)  # read, but not written
            raise
        finally:
            report.errors.sort()
        if failure is not None:
            raise failure
    return report


def _collect(
    items: Iterable[Item],
    pending: list[Fact | Name | Alias | ExternalId],
    batch: int,
    report: ImportReport,
    flush: Callable[[], None],
) -> Exception | None:
    """Take all items; returns the reader's failure, so that what came before it can be written first."""
    source = iter(items)
    while True:
        try:
            item = next(source, None)
        except Exception as error:
            return error
        if item is None:
            return None
        report.read += 1
        if isinstance(item, Bad):
            _refuse(report, item.line, item.why)
            continue
        pending.append(item)
        if len(pending) >= batch:
            flush()


def _refuse(report: ImportReport, line: int, why: str) -> None:
    report.skipped += 1
    report.errors.append((line, why))


def _write(
    memory: Memory, items: list[Fact | Name | Alias | ExternalId], source: str | None, report: ImportReport
) -> None:
    facts = [item for item in items if isinstance(item, Fact)]
    try:
        with memory.transaction() as transaction:
            added = None
            if facts:
                origins = [fact.source or source for fact in facts]
                added = transaction.add_many(
                    [(fact.subject, fact.relation, fact.object) for fact in facts],
                    source=origins if any(origins) else None,
                )
            entities = transaction.add_entities(_bare(items, False))
            relations = transaction.add_relations(_bare(items, True))
            named = []
            for item in items:
                if isinstance(item, Alias):
                    named.append(transaction.alias(item.alias, item.name, relation=item.relation))
            identified = []
            for item in items:
                if isinstance(item, ExternalId):
                    identified.append(
                        transaction.set_external_id(item.external_id, item.name, relation=item.relation)
                    )
    except (InvalidArgument, NotFound) as error:
        # Nothing of the batch was written. Halve it until the record that the store refuses stands alone.
        if len(items) == 1:
            _refuse(report, items[0].line, str(error))
            return
        middle = len(items) // 2
        _write(memory, items[:middle], source, report)
        _write(memory, items[middle:], source, report)
        return
    if added is not None:
        report.inserted += added.inserted
        report.existed += added.existed
        report.new_entities += added.new_entities  # of the whole transaction
        report.new_relations += added.new_relations
    else:
        report.new_entities += entities.value
        report.new_relations += relations.value
    report.aliases += sum(bool(pending.value) for pending in named)
    report.external_ids += sum(bool(pending.value) for pending in identified)


def _bare(items: Iterable[Item], relation: bool) -> list[str]:
    return [item.name for item in items if isinstance(item, Name) and item.relation == relation]
