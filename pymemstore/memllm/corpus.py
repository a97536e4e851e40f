"""A folder of plain texts into a memory, with any write model (the paper's run over Wikipedia, 4.2)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import Corruption, InvalidArgument
from .writer import Document, Writer, WriteReport

__all__ = ["JOURNAL", "CorpusReport", "Progress", "write_folder"]

JOURNAL = "write-journal.jsonl"
Progress = Callable[[int, int, str], object]


@dataclass
class CorpusReport:
    """What came of a folder.

    Attributes:
        files: texts (*.txt) in the folder and below it.
        written: documents stored in this run.
        done_before: documents that the journal names, and that are not read again.
        rejected: (file, why): not UTF-8, unreadable.
        other: files with another ending; they are not read.
        sentences, facts, repeats, new, existing, replaced, errors, unterminated, skipped, cut, prompt_tokens,
            generated_tokens: sums over the documents of this run; see `WriteReport`.
        notes: what was done otherwise than asked.
    """

    files: int = 0
    written: int = 0
    done_before: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)
    other: int = 0
    sentences: int = 0
    facts: int = 0
    repeats: int = 0
    new: int = 0
    existing: int = 0
    replaced: int = 0
    errors: int = 0
    unterminated: int = 0
    skipped: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, report: WriteReport) -> None:
        """Counts a document."""
        self.written += 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(report, name))
        self.notes += [note for note in report.notes if note not in self.notes]


_SUMMED = (
    "sentences", "facts", "repeats", "new", "existing", "replaced", "errors", "unterminated", "skipped",
    "cut", "prompt_tokens", "generated_tokens",
)  # fmt: skip


def write_folder(
    writer: Writer,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    restart: bool = False,
    report: CorpusReport | None = None,
) -> CorpusReport:
    """Writes all texts (*.txt, UTF-8) in a folder and below it into the writer's memory.

    A document's id is its path in the folder, with "/". Documents are stored one by one, in the order of
    their ids. A journal in the store's folder (`write-journal.jsonl`, a JSON line a document) names those
    that are done, so an interrupted run goes on where it stopped; a text that has changed since is read
    again. A run that is killed between a document's commit and its line reads that document once more, which
    changes nothing: its facts are there already, and a source is recorded once.

    A text is taken as it is, line ends too, but for a byte order mark: its provenance counts the characters
    of the decoded file.

    Args:
        progress: called as progress(done, files, id) after each document; an exception from it ends the run.
        restart: read all documents, whatever the journal says.
        report: is filled while the run goes on, for when an error ends it; a new one by default.

    Raises:
        InvalidArgument: no such folder.
        Corruption: a line of the journal is damaged (but the last, which a kill may cut).
        BackendError, MemstoreError: see `Writer.write_many`; what is done stays done.
    """
    root = Path(os.fspath(folder))
    if not root.is_dir():
        raise InvalidArgument(f"no folder at {root}")
    journal = Path(writer.memory.path) / JOURNAL
    done = {} if restart else _done(journal)
    report = CorpusReport() if report is None else report
    names = []
    for path in sorted(root.rglob("*"), key=lambda p: p.relative_to(root).as_posix()):
        if path.suffix.lower() == ".txt" and (path.is_file() or not path.exists()):
            names.append(path.relative_to(root).as_posix())
        elif path.is_file():
            report.other += 1
    report.files = len(names)
    marks: dict[str, list[int]] = {}

    def documents() -> Iterator[Document]:
        for name in names:
            path = root / name
            try:
                found = path.stat()
                mark = [found.st_size, found.st_mtime_ns]
                if done.get(name) == mark:
                    report.done_before += 1
                    continue
                text = path.read_bytes().decode("utf-8-sig")
                name.encode()
            except UnicodeDecodeError as error:
                report.rejected.append((name, f"not UTF-8 at byte {error.start}"))
            except UnicodeEncodeError:
                report.rejected.append((ascii(name), "the file's name is not UTF-8"))
            except OSError as error:
                report.rejected.append((name, str(error.strerror or error)))
            else:
                marks[name] = mark
                yield Document(text, name)

    with journal.open("a", encoding="utf-8") as lines:
        for written in writer.write_many(documents()):
            report.add(written)
            summary = {key: value for key, value in asdict(written).items() if key in _SUMMED}
            line = {"id": written.document, "mark": marks.pop(written.document), **summary}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            lines.flush()
            if progress is not None:
                finished = report.written + report.done_before + len(report.rejected)
                progress(finished, report.files, written.document)
    return report


def _done(journal: Path) -> dict[str, list[int]]:
    """The marks (size, time of change) of the documents that a journal names."""
    if not journal.exists():
        return {}
    text = journal.read_text(encoding="utf-8", errors="replace")
    *lines, last = text.split("\n")
    if last:  # cut by a kill: it is written anew
        with journal.open("r+b") as file:
            file.truncate(len(journal.read_bytes()) - len(journal.read_bytes().rpartition(b"\n")[2]))
    return dict(_marks(lines, journal))


def _marks(lines: Iterable[str], journal: Path) -> Iterator[tuple[str, list[int]]]:
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            yield entry["id"], entry["mark"]
        except (ValueError, TypeError, KeyError) as error:
            raise Corruption(f"{journal}, line {number}: not a line of a journal") from error
