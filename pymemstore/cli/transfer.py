"""Commands that move many facts: import and export."""

from __future__ import annotations

import io
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from pymemstore import ingest
from pymemstore.cli.common import (
    Embedder,
    ExitCode,
    Json,
    RelationEmbedder,
    StorePath,
    bar,
    err,
    fail,
    guarded,
    out,
    print_json,
    text,
)
from pymemstore.errors import MemstoreError
from pymemstore.ingest.exporters import DEFAULT_BASE
from pymemstore.ingest.loader import DEFAULT_BATCH
from pymemstore.memory import open as open_memory

__all__ = ["export", "import_"]

_SHOWN_ERRORS = 20


class ImportFormat(str, Enum):
    auto = "auto"
    jsonl = "jsonl"
    tsv = "tsv"
    docred = "docred"


class ExportFormat(str, Enum):
    jsonl = "jsonl"
    ntriples = "ntriples"


@guarded
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help='"-" is standard input.', show_default=False)],
    store: Annotated[Path, typer.Option("--into", metavar="STORE", help="The store.", show_default=False)],
    format: Annotated[ImportFormat, typer.Option("--format", help="auto tells it from the content.")] = (
        ImportFormat.auto
    ),
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Records written in one transaction.")
    ] = DEFAULT_BATCH,
    source: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="The source of facts that bring none.")
    ] = None,
    relations: Annotated[
        Path | None,
        typer.Option("--relations", metavar="FILE", help="DocRED: JSON object of relation codes to labels."),
    ] = None,
    aliases: Annotated[
        bool,
        typer.Option("--aliases/--no-aliases", help="DocRED: an entity's other mentions become aliases."),
    ] = True,
    create: Annotated[bool, typer.Option("--create", help="Make the store when it is not there.")] = False,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Import facts: JSON lines, tab-separated, or DocRED. Run it again to complete an interrupted one."""
    labels = ingest.load_relation_labels(relations) if relations is not None else None
    report = ingest.ImportReport()
    problem: Exception | KeyboardInterrupt | None = None
    with ingest.Source(file) as opened:
        report.format, items = ingest.read(opened, format.value, relations=labels, aliases=aliases)
        with open_memory(
            store, create=create, embedder=embedder, relation_embedder=relation_embedder
        ) as memory:
            try:
                with bar(f"Importing {opened.name}", opened.size, "records", json) as update:
                    ingest.load(
                        memory, items, batch=batch, source=source, report=report,
                        progress=lambda so_far: update(opened.position, so_far.read),
                    )  # fmt: skip
            except (MemstoreError, OSError, KeyboardInterrupt) as error:
                problem = error
    interrupted = isinstance(problem, KeyboardInterrupt)
    if json:
        status = "complete" if problem is None else "interrupted" if interrupted else "failed"
        said = (
            None
            if problem is None
            else {"type": type(problem).__name__, "message": str(problem) or "interrupted"}
        )
        print_json(report.as_dict() | {"status": status, "error": said})
    else:
        _show(report, complete=problem is None)
    if interrupted:
        err().print(
            f"Interrupted. {report.batches:,} whole batches were committed, {report.inserted:,} new triples; "
            "run the same command again to complete the import."
        )
        raise typer.Exit(ExitCode.INTERRUPTED)
    if problem is not None:
        raise fail(f"{problem} (what is counted above was committed)" if report.batches else str(problem))
    if report.skipped:
        raise typer.Exit(ExitCode.SKIPPED)


def _show(report: ingest.ImportReport, complete: bool) -> None:
    rate = f", {report.read / report.seconds:,.0f} records/s" if report.seconds > 0 else ""
    names = f", {report.aliases:,} new aliases" if report.aliases else ""
    names += f", {report.external_ids:,} new external ids" if report.external_ids else ""
    out().print(
        text(
            f"{'Read' if complete else 'So far: read'} {report.read:,} {report.format} records: "
            f"{report.inserted:,} new triples, {report.existed:,} known ones{names}; {report.skipped:,} "
            f"skipped ({report.seconds:.1f} s{rate})."
        )
    )
    unit = "document" if report.format == "docred" else "line"
    for line, why in report.errors[:_SHOWN_ERRORS]:
        err().print(text(f"  {unit} {line}: {why}"))
    if report.skipped > _SHOWN_ERRORS:
        err().print(f"  ... and {report.skipped - _SHOWN_ERRORS:,} more; --json lists them all.")


@guarded
def export(
    store: StorePath,
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help='Replaced when it exists; "-" is standard output.')
    ] = Path("-"),
    format: Annotated[ExportFormat, typer.Option("--format")] = ExportFormat.jsonl,
    names: Annotated[
        bool, typer.Option("--names", help="JSON lines: names, aliases and external ids too.")
    ] = False,
    base: Annotated[
        str, typer.Option("--base", metavar="IRI", help="N-Triples: what every IRI starts with.")
    ] = DEFAULT_BASE,
    json: Json = False,
) -> None:
    """Export every fact as JSON lines or N-Triples."""
    to_stdout = str(file) == "-"
    if json and to_stdout:
        raise typer.BadParameter("--json needs a FILE, as the facts themselves go to standard output")
    if to_stdout and isinstance(sys.stdout, io.TextIOWrapper):
        # The formats are UTF-8, whatever the terminal's encoding is
        sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    with (
        open_memory(store, read_only=True) as memory,
        bar("Exporting", len(memory), "lines", json or to_stdout) as update,
    ):
        count = ingest.export(
            memory, sys.stdout if to_stdout else file, format.value, names=names, base=base,
            progress=lambda done: update(done, done),
        )  # fmt: skip
    if json:
        print_json({"path": str(file), "format": format.value, "lines": count})
    elif not to_stdout:
        out().print(text(f"Wrote {count:,} lines to {file}."))
