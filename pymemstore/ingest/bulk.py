"""Bulk import: files of any size staged beside the store, resumably, and made part of it at once.

`bulk_import` reads; the core (`_core.BulkLoad`) parses, looks names up, sorts and builds the next generation.
It holds a bounded amount of memory: names and triples lie in files until they are sorted. A run that is
interrupted, even by a kill, goes on from its last checkpoint when the same files are imported again with the
same options.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from pymemstore import _core
from pymemstore.errors import InvalidArgument, IOError
from pymemstore.ingest.ahead import Ahead, Piece
from pymemstore.ingest.readers import Source
from pymemstore.memory import Memory

__all__ = ["BULK_FORMATS", "BulkProgress", "BulkReport", "bulk_import"]

BULK_FORMATS = ("wikidata", "ntriples", "tsv", "parquet")
_HEAD = 1 << 16
_ROWS = 65536
_SHOWN_REJECTS = 100


@dataclass
class BulkReport:
    """What a bulk import read and did. Brought up to date as it goes, so it is true after an interruption.

    `counts` are the reader's: "lines", "rejected", "items", "skipped: ...". What was sealed: `read` triples,
    of which `inserted` were new, `existed` in the store and `duplicates` came more than once: read is the sum
    of the three. `status`: "complete"; "incomplete", when an input ended too early (`incomplete` says how)
    and what came before it was stored; "interrupted" and "failed": when `read` is 0 nothing was stored, and
    the staging waits for the next run; else all was, and only vectors and rule keys of new names are missing.
    `rejected` counts every rejected line, `rejects` has the first 100 of this run as (file, line, why).
    `seconds` is wall time of this run.
    """

    format: str = ""
    status: str = "running"
    inputs: list[str] = field(default_factory=list)
    resumed: bool = False
    discarded: int = 0
    staged: int = 0
    read: int = 0
    inserted: int = 0
    existed: int = 0
    duplicates: int = 0
    new_entities: int = 0
    new_relations: int = 0
    aliases: int = 0
    external_ids: int = 0
    redirects: int = 0
    redirect_loops: int = 0
    renamed: int = 0
    withdrawn: int = 0
    rejected: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)
    rejects: list[tuple[str, int, str]] = field(default_factory=list)
    embedded: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self) | {"rejects": [{"file": f, "line": n, "why": why} for f, n, why in self.rejects]}


@dataclass
class BulkProgress:
    """Where an import is: `phase` ("reading", then what sealing does, "embedding"), `done` of `total` (bytes
    while reading, else items; 0: not known), and the report so far."""

    phase: str
    done: int
    total: int
    report: BulkReport


Progress = Callable[[BulkProgress], object]


def bulk_import(
    memory: Memory,
    files: Iterable[str | os.PathLike[str]],
    format: str,
    *,
    options: Mapping[str, str] | None = None,
    source: str | None = None,
    update: bool = False,
    memory_limit: int = 0,
    restart: bool = False,
    embed: bool = True,
    columns: Sequence[str] = ("subject", "relation", "object"),
    rejects: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    progress: Progress | None = None,
    report: BulkReport | None = None,
) -> BulkReport:
    """Import `files` ("-" is standard input) in one of BULK_FORMATS into `memory`, empty or not.

    options: the reader's, as text; docs/import.md lists them. source: of the facts that the import adds.
    update: names follow the labels of this newer dump, and facts from `source` that it does not repeat about
    an entity that it holds are withdrawn; needs `source`. memory_limit: bytes for sorting and for the table
    of names, 0: a quarter of the machine's; past it they are files. restart: drop what an interrupted import
    staged. embed: embed the new names, make their rule keys and seal the vectors (`Memory.reindex`)
    afterwards. columns: of a Parquet or Arrow file. rejects: a file that gets a JSON line for each rejected
    line; what it held is replaced, unless an interrupted import goes on. checkpoint_every: seconds. progress:
    called with a BulkProgress every so often, in this thread. report: the one to fill in.

    Nothing is visible before everything is read; a rejected line is left out, counted and reported. An input
    that ends too early makes the report "incomplete". A damaged or truncated archive raises IOError, with its
    position, and a full disk OSError: nothing is stored then, and the same call goes on later. Raises
    InvalidArgument for wrong options, Locked while another import into the store is under way,
    KeyboardInterrupt after a checkpoint.
    """
    paths = [os.fspath(file) for file in files]
    if format not in BULK_FORMATS:
        raise InvalidArgument(f"format {format!r} is not one of {', '.join(BULK_FORMATS)}")
    if not paths:
        raise InvalidArgument("no file to import")
    if paths.count("-") > 1:
        raise InvalidArgument("standard input can be read once only")
    if update and not source:
        raise InvalidArgument("update needs a source: only facts from it are withdrawn")
    report = BulkReport() if report is None else report
    report.format, report.inputs = format, paths
    run = _Run(memory, paths, format, report, progress, checkpoint_every)
    started = time.monotonic()
    try:
        with _rejects_file(rejects) as rejects_file:
            run.rejects_file = rejects_file
            run.whole(dict(options or {}), source or "", update, memory_limit, restart, tuple(columns))
        if embed:
            report.embedded = memory.embed_missing(
                progress=lambda done, total: run.tell("embedding", done, total)
            )
            memory.build_rules(progress=run.tell)
            memory.reindex(progress=run.tell)
    except KeyboardInterrupt:
        report.status = "interrupted"
        raise
    except BaseException:
        report.status = "failed"
        raise
    finally:
        report.seconds = time.monotonic() - started
    report.status = "incomplete" if report.incomplete else "complete"
    return report


class _Run:
    def __init__(
        self,
        memory: Memory,
        paths: list[str],
        format: str,
        report: BulkReport,
        progress: Progress | None,
        checkpoint_every: float,
    ) -> None:
        self.memory, self.paths, self.format, self.report = memory, paths, format, report
        self.progress, self.checkpoint_every = progress, checkpoint_every
        self.rejects_file: IO[str] | None = None
        self._checked = time.monotonic()
        self._number = 0  # the input that is read
        self._pending: deque[tuple[int, int, str]] = deque()  # rejects that were taken and not told yet
        self._refused = self._refused_here = 0  # rows of all tables, and of the current one

    def tell(self, phase: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(BulkProgress(phase, done, total, self.report))

    def whole(
        self,
        options: dict[str, str],
        source: str,
        update: bool,
        limit: int,
        restart: bool,
        columns: tuple[str, ...],
    ) -> None:
        opened: list[_Input] = []
        try:
            for path in self.paths:
                opened.append(_Table(path, columns) if self.format == "parquet" else _Text(path))
            identity = json.dumps(
                [self.format, sorted(options.items()), source, update, [each.identity() for each in opened]]
            )
            load = self._open(options, source, update, limit, identity)
            if restart and load.resumed and not load.sealed:
                self.report.discarded = load.counts().get("staged", 0)
                load.discard()
                load = self._open(options, source, update, limit, identity)
            try:
                self._feed(load, opened)
                self._count(load)
                result = load.seal(self.tell)
            finally:
                load.close()
        finally:
            for each in opened:
                each.close()
        for name, value in result.items():
            setattr(self.report, name, value)

    def _open(
        self, options: dict[str, str], source: str, update: bool, limit: int, identity: str
    ) -> _core.BulkLoad:
        load = _core.BulkLoad(
            self.memory._store,
            format="facts" if self.format == "parquet" else self.format,
            options=options,
            identity=identity,
            memory=limit,
            source=source,
            update=update,
        )
        self.report.resumed = load.resumed
        self.report.discarded = self.report.discarded or load.discarded
        return load

    def _feed(self, load: _core.BulkLoad, opened: list[_Input]) -> None:
        known: dict[str, Any] = json.loads(load.note) if load.note else {}
        self.report.incomplete = list(known.get("incomplete", []))
        self._refused, self._refused_here = known.get("refused", (0, 0))
        if load.sealed:
            return
        self._cut_rejects(known)
        total = sum(each.size or 0 for each in opened) if all(each.size for each in opened) else 0
        self._number = load.input
        try:
            for number in range(load.input, len(opened)):
                before = sum(each.size or 0 for each in opened[:number])
                each = opened[number]
                for _ in each.feed(load, self._refused_here):
                    self._refuse(each)
                    self._count(load)
                    self.tell("reading", before + each.position, total)
                    if time.monotonic() - self._checked > self.checkpoint_every:
                        self._checkpoint(load)
                self._refuse(each)
                missing = load.end_input()
                if missing:
                    self.report.incomplete.append(f"{each.name}: {missing}")
                self._refused_here = 0
                self._number = number + 1
                self._count(load)
                self._checkpoint(load)
        except KeyboardInterrupt:
            self._count(load)
            # Not between the end of an input and the note of how it ended
            if load.input == self._number:
                self._checkpoint(load)
            raise

    def _checkpoint(self, load: _core.BulkLoad) -> None:
        note: dict[str, Any] = {
            "incomplete": self.report.incomplete,
            "refused": (self._refused, self._refused_here),
        }
        if self.rejects_file is not None:
            self.rejects_file.flush()
            size = os.fstat(self.rejects_file.fileno()).st_size
            note["rejects"] = (os.path.abspath(self.rejects_file.name), size)
        load.checkpoint(json.dumps(note))
        self._checked = time.monotonic()

    def _cut_rejects(self, known: dict[str, Any]) -> None:
        """Leaves in the file what it had at the checkpoint: lines behind that are read, and told, again."""
        file = self.rejects_file
        if file is None or not os.path.isfile(file.name):
            return
        path, size = known.get("rejects", ("", 0))
        if not known or path == os.path.abspath(file.name):
            file.truncate(min(size, os.fstat(file.fileno()).st_size))

    def _count(self, load: _core.BulkLoad) -> None:
        self._pending.extend(load.take_rejects())
        while self._pending:
            self._reject(*self._pending[0])
            self._pending.popleft()
        self.report.counts = load.counts()
        self.report.staged = self.report.counts.pop("staged", 0)
        self.report.rejected = self.report.counts.get("rejected", 0) + self._refused

    def _refuse(self, each: _Input) -> None:
        while each.refused:
            self._reject(self._number, *each.refused[0])
            each.refused.popleft()
            self._refused += 1
            self._refused_here += 1

    def _reject(self, number: int, line: int, why: str) -> None:
        name = self.paths[number]
        if len(self.report.rejects) < _SHOWN_REJECTS:
            self.report.rejects.append((name, line, why))
        if self.rejects_file is not None:
            self.rejects_file.write(json.dumps({"file": name, "line": line, "why": why}) + "\n")


class _Input(ABC):
    """One file: what identifies it, and its content for the core."""

    name: str
    size: int | None  # bytes on disk; None for a pipe
    position = 0  # bytes of them that were read

    def __init__(self) -> None:
        self.refused: deque[tuple[int, str]] = deque()  # rows that the core did not get, and why

    @abstractmethod
    def identity(self) -> object: ...

    @abstractmethod
    def feed(self, load: _core.BulkLoad, refused: int) -> Iterator[None]:
        """Hands the core all of the file from where it is; yields after each piece.

        Where the core is says the core, so that nothing is lost or given twice wherever a signal comes.
        `refused`: how many of the first rows that are to be refused were told before.
        """

    @abstractmethod
    def close(self) -> None: ...


class _Text(_Input):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._source = Source(path)
        self.name, self.size = self._source.name, self._source.size
        self._ahead = Ahead(self._source.stream, self._source.plain)
        self._head: list[Piece] = []
        try:
            self._head = self._ahead.at_least(_HEAD)
        except OSError as error:
            self._failure: OSError | None = error
        else:
            self._failure = None
        if self._failure is None and not self._head:
            self.close()
            raise InvalidArgument(f"{self.name}: the file is empty")

    def identity(self) -> object:
        return [self.size, hashlib.sha256(b"".join(self._head)[:_HEAD]).hexdigest()]

    def feed(self, load: _core.BulkLoad, refused: int) -> Iterator[None]:
        skip = load.consumed
        for piece in self._pieces(load):
            if skip >= len(piece):
                skip -= len(piece)
                continue
            load.feed(memoryview(piece)[skip:])
            skip = 0
            self.position = self._source.position
            yield
        if skip:
            raise IOError(f"{self.name} is shorter than it was when this import was interrupted")

    def _pieces(self, load: _core.BulkLoad) -> Iterator[Piece]:
        read = 0
        try:
            if self._failure is not None:
                raise self._failure
            for piece in self._ahead.pieces(self._head):
                read += len(piece)
                yield piece
        except IOError as error:
            where = f"{read:,} decompressed bytes, {load.lines:,} whole lines"
            raise IOError(f"{error}, after {where}; nothing was stored") from error

    def close(self) -> None:
        self._ahead.close()
        self._source.__exit__(None, None, None)


class _Table(_Input):
    """A Parquet file, or an Arrow (Feather) one; rows come in batches."""

    def __init__(self, path: str, columns: tuple[str, ...]) -> None:
        super().__init__()
        try:
            import pyarrow.ipc
            import pyarrow.parquet
        except ImportError:
            raise InvalidArgument(
                'Parquet and Arrow files need the package pyarrow: pip install "pymemstore[parquet]"'
            ) from None
        if len(columns) != 3:
            raise InvalidArgument(f"{len(columns)} columns, expected the names of three")
        self.name, self._columns = path, list(columns)
        self.size = Path(path).stat().st_size
        if not self.size:
            raise InvalidArgument(f"{path}: the file is empty")
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        self._digest = hashlib.sha256(head).hexdigest()
        try:
            if head[:4] == b"PAR1":
                self._table: Any = pyarrow.parquet.ParquetFile(path)
                names, self._rows = self._table.schema_arrow.names, self._table.metadata.num_rows
            else:
                self._table = pyarrow.ipc.open_file(path)
                names, self._rows = self._table.schema.names, 0
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise IOError(f"{path}: not a whole Parquet or Arrow file ({error})") from error
        missing = [column for column in self._columns if column not in names]
        if missing:
            raise InvalidArgument(
                f"{path} has no column {missing[0]!r}; it has {', '.join(map(repr, names))}"
            )

    def identity(self) -> object:
        return [self.size, self._digest, self._columns]

    def feed(self, load: _core.BulkLoad, refused: int) -> Iterator[None]:
        row, given = 0, load.lines
        for batch in self._batches():
            facts = []
            rows = zip(*map(_texts, batch.columns), strict=True)
            for number, fact in enumerate(rows, row + 1):
                wrong = [
                    why for name, text in zip(self._columns, fact, strict=True) if (why := _why(name, text))
                ]
                if not wrong:
                    facts.append(fact)
                elif refused:
                    refused -= 1
                else:
                    self.refused.append((number, wrong[0]))
            row += batch.num_rows
            load.add(facts[given:])
            given = max(given - len(facts), 0)
            self.position = int((self.size or 0) * row / self._rows) if self._rows else 0
            yield
        if given:
            raise IOError(f"{self.name} is shorter than it was when this import was interrupted")

    def _batches(self) -> Iterator[Any]:
        import pyarrow

        done = 0
        try:
            if self._rows:
                for batch in self._table.iter_batches(batch_size=_ROWS, columns=self._columns):
                    yield batch
                    done += batch.num_rows
            elif hasattr(self._table, "num_record_batches"):
                for i in range(self._table.num_record_batches):
                    whole = self._table.get_batch(i).select(self._columns)
                    for start in range(0, whole.num_rows, _ROWS):
                        yield whole.slice(start, _ROWS)
                    done += whole.num_rows
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise IOError(
                f"{self.name}: damaged behind row {done:,} ({error}); nothing was stored"
            ) from error

    def close(self) -> None:
        """Pyarrow closes its file with the object."""


def _texts(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # Arrow's files may hold any bytes
        values = []
        for value in column:
            try:
                values.append(value.as_py())
            except UnicodeDecodeError:
                values.append(None)
    return values


def _why(column: str, text: object) -> str | None:
    """Why a cell can't be a name; None when it can."""
    if not isinstance(text, str) or not text:
        return f"the column {column!r} holds no text"
    limit = _core.MAX_NAME_BYTES
    if len(text) > limit // 4 and len(text.encode()) > limit:
        return f"the text in the column {column!r} is over the limit of {limit:,} bytes"
    return None


@contextmanager
def _rejects_file(path: str | os.PathLike[str] | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    # Appended to: an import that goes on adds to what it said before, others cut the file first
    with open(path, "a", encoding="utf-8") as file:
        yield file
