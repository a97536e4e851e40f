"""`pymemstore import FORMAT`: bulk import with progress, interruption and a report."""

from __future__ import annotations

import json as json_module
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from pymemstore import ingest
from pymemstore.cli.common import (
    Embedder,
    ExitCode,
    Json,
    RelationEmbedder,
    err,
    fail,
    guarded,
    out,
    phases,
    print_json,
    table,
    text,
)
from pymemstore.errors import InvalidArgument, MemstoreError
from pymemstore.memory import open as open_memory

__all__ = ["app"]

app = typer.Typer(
    help="Import facts. wikidata, ntriples, tsv and parquet are bulk imports: of any size, resumable, "
    "visible at once when all is read. facts takes smaller files of JSON lines, tab-separated lines or "
    "DocRED in batches.",
    no_args_is_help=True,
)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help='Plain or compressed; "-" is standard input.')
]
Into = Annotated[
    Path,
    typer.Option("--into", metavar="DIR", help="The store; made when it is not there.", show_default=False),
]
Source = Annotated[
    str, typer.Option("--source", metavar="TEXT", help="The source of the facts; empty for none.")
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="Memory for sorting and names, such as 2G; 0: a quarter of RAM."
    ),
]
Embed = Annotated[
    bool,
    typer.Option("--embed/--no-embed", help="Embed new names and make their rule keys, to be found by both."),
]
Restart = Annotated[bool, typer.Option("--restart", help="Drop what an interrupted import staged.")]
Rejects = Annotated[
    Path | None, typer.Option("--rejects", metavar="FILE", help="Gets a JSON line for each rejected line.")
]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Gets the report as JSON.")]
Language = Annotated[
    str,
    typer.Option("--language", metavar="LIST", help="Languages of names, best first; en-* is any English."),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="P17", help="Only these properties; may be repeated, @FILE reads a list."
    ),
]
Items = Annotated[
    list[str] | None,
    typer.Option("--item", metavar="Q42", help="Only these items; may be repeated, @FILE reads a list."),
]
Aliases = Annotated[
    bool, typer.Option("--aliases/--no-aliases", help="Other names of entities become aliases.")
]
Update = Annotated[
    bool,
    typer.Option("--update", help="A newer dump: rename what it renames, withdraw what it does not repeat."),
]


@app.command()
@guarded
def wikidata(
    files: Files,
    into: Into,
    language: Language = "en,en-*,mul",
    rank: Annotated[str, typer.Option("--rank", help="best, nondeprecated or all statements.")] = "best",
    property: Properties = None,
    item: Items = None,
    aliases: Aliases = True,
    external_ids: Annotated[
        bool, typer.Option("--external-ids/--no-external-ids", help="Facts whose value is an id elsewhere.")
    ] = True,
    skip_datatype: Annotated[
        list[str] | None,
        typer.Option("--skip-datatype", metavar="TYPE", help="Such as commonsMedia; repeatable."),
    ] = None,
    time_qualifiers: Annotated[
        bool,
        typer.Option("--time-qualifiers", help="Keep start time, end time and point in time of statements."),
    ] = False,
    update: Update = False,
    source: Source = "wikidata",
    memory: Memory = "0",
    embed: Embed = True,
    restart: Restart = False,
    rejects: Rejects = None,
    report: Report = None,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Wikidata's JSON dump (.json, .gz, .bz2, .zst), or entities as its web API returns them."""
    options = {
        "languages": language,
        "ranks": rank,
        "qualifiers": "time" if time_qualifiers else "none",
        "aliases": str(int(aliases)),
        "external_ids": str(int(external_ids)),
        "properties": ",".join(_listed(property)),
        "items": ",".join(_listed(item)),
        "skip_datatypes": ",".join(skip_datatype or []),
    }
    _run("wikidata", files, into, options, source, update, memory, embed, restart, rejects, report, embedder,
         relation_embedder, json)  # fmt: skip


@app.command()
@guarded
def ntriples(
    files: Files,
    into: Into,
    vocabulary: Annotated[
        str,
        typer.Option("--vocabulary", help="wikidata (the truthy dump) or any: names are labels, else IRIs."),
    ] = "wikidata",
    language: Language = "en,en-*,mul",
    property: Properties = None,
    item: Items = None,
    aliases: Aliases = True,
    update: Update = False,
    source: Source = "wikidata",
    memory: Memory = "0",
    embed: Embed = True,
    restart: Restart = False,
    rejects: Rejects = None,
    report: Report = None,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """N-Triples, such as Wikidata's truthy dump (plain or compressed)."""
    options = {
        "vocabulary": vocabulary,
        "languages": language,
        "aliases": str(int(aliases)),
        "properties": ",".join(_listed(property)),
        "items": ",".join(_listed(item)),
    }
    _run("ntriples", files, into, options, source, update, memory, embed, restart, rejects, report, embedder,
         relation_embedder, json)  # fmt: skip


@app.command()
@guarded
def tsv(
    files: Files,
    into: Into,
    source: Source = "",
    memory: Memory = "0",
    embed: Embed = True,
    restart: Restart = False,
    rejects: Rejects = None,
    report: Report = None,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Lines of subject, relation and object, parted by tabs."""
    _run("tsv", files, into, {}, source, False, memory, embed, restart, rejects, report, embedder,
         relation_embedder, json)  # fmt: skip


@app.command()
@guarded
def parquet(
    files: Files,
    into: Into,
    columns: Annotated[
        str, typer.Option("--columns", metavar="LIST", help="The columns of subject, relation and object.")
    ] = "subject,relation,object",
    source: Source = "",
    memory: Memory = "0",
    embed: Embed = True,
    restart: Restart = False,
    rejects: Rejects = None,
    report: Report = None,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Parquet or Arrow files with a column each for subject, relation and object."""
    _run("parquet", files, into, {}, source, False, memory, embed, restart, rejects, report, embedder,
         relation_embedder, json, tuple(columns.split(",")))  # fmt: skip


def _listed(values: list[str] | None) -> list[str]:
    """Ids; @FILE stands for those in a file: parted by white space or commas, or a JSON object's keys."""
    ids: list[str] = []
    for value in values or []:
        if not value.startswith("@"):
            ids.append(value)
            continue
        content = Path(value[1:]).read_text(encoding="utf-8")
        if content.lstrip().startswith("{"):
            ids += json_module.loads(content)
        else:
            ids += content.replace(",", " ").split()
    for one in ids:
        if "," in one or not one:
            raise InvalidArgument(f"{one!r} is not an id")
    return ids


def _bytes(size: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (size[:-1], size[-1].upper()) if size[-1:].upper() in units else (size, "")
    try:
        return int(float(number) * units.get(unit, 1))
    except ValueError:
        raise InvalidArgument(f"--memory is {size!r}, expected a size such as 500M or 2G") from None


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the import as Ctrl-C does: with a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(
    format: str,
    files: list[Path],
    into: Path,
    options: dict[str, str],
    source: str,
    update: bool,
    memory: str,
    embed: bool,
    restart: bool,
    rejects: Path | None,
    report_file: Path | None,
    embedder: str | None,
    relation_embedder: str | None,
    json: bool,
    columns: tuple[str, ...] = ("subject", "relation", "object"),
) -> None:
    report = ingest.BulkReport()
    problem: Exception | KeyboardInterrupt | None = None
    for file in files:
        if str(file) != "-" and not file.is_fifo():  # whose writer would find it closed
            file.open("rb").close()  # said before a store is made
    limit, pace = _bytes(memory), _Pace()
    with (
        open_memory(into, embedder=embedder, relation_embedder=relation_embedder) as opened,
        _terminable(),
        phases(json) as show,
    ):
        try:
            ingest.bulk_import(
                opened, files, format,
                options=options, source=source or None, update=update, memory_limit=limit, restart=restart,
                embed=embed, rejects=rejects, columns=columns, report=report,
                progress=lambda p: show(p.phase, p.done, p.total, pace(p)),
            )  # fmt: skip
        except (MemstoreError, OSError, KeyboardInterrupt) as error:
            problem = error
    document = report.as_dict() | {"error": None if problem is None else _said(problem)}
    if report_file is not None:
        report_file.write_text(json_module.dumps(document, indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(document)
    else:
        _show(report)
    if isinstance(problem, KeyboardInterrupt):
        err().print(
            f"Interrupted. {report.staged:,} facts are staged; the same command goes on from there."
            if report.read == 0
            else "Interrupted while embedding. The facts are stored. The same command goes on, but reads the "
            "input again; Memory.embed_missing() and build_rules() go on at once."
        )
        raise typer.Exit(ExitCode.INTERRUPTED)
    if problem is not None:
        raise fail(
            str(problem)
            + (f" ({report.staged:,} facts are staged)" if report.staged and not report.read else "")
        )
    for why in report.incomplete:
        err().print(text(f"Incomplete: {why}; what came before it is stored."))
    if report.incomplete:
        raise typer.Exit(ExitCode.ERROR)
    if report.rejected:
        raise typer.Exit(ExitCode.SKIPPED)


def _said(problem: BaseException) -> dict[str, Any]:
    return {"type": type(problem).__name__, "message": str(problem) or "interrupted"}


_SHOWN = [
    "read",
    "inserted",
    "existed",
    "duplicates",
    "withdrawn",
    "renamed",
    "redirects",
    "redirect_loops",
    "new_entities",
    "new_relations",
    "aliases",
    "external_ids",
    "embedded",
]


class _Pace:
    """What stands beside a bar: how much is done, and how fast."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}

    def __call__(self, p: ingest.BulkProgress) -> str:
        now = time.monotonic()
        began, first = self._began.setdefault(p.phase, (now, p.done))
        rate = (p.done - first) / (now - began) if now > began else 0
        if p.phase != "reading":
            return f"{p.done:,}, {rate:,.0f}/s"
        lines = p.report.counts.get("lines", 0)
        return f"{lines:,} lines, {p.done / 1e6:,.0f} MB, {rate / 1e6:,.1f} MB/s"


def _show(report: ingest.BulkReport) -> None:
    rows = table("what", ">count")
    for name, count in sorted(report.counts.items()):
        if count and not name.endswith("brackets") and name != "rejected":
            rows.add_row(text(f"read: {name}" if not name.startswith("skipped") else name), f"{count:,}")
    rows.add_row("rejected lines", f"{report.rejected:,}")
    for name in _SHOWN:
        value = getattr(report, name)
        if value or name in ("read", "inserted"):
            rows.add_row("facts given" if name == "read" else name.replace("_", " "), f"{value:,}")
    out().print(rows)
    rate = f", {report.read / report.seconds:,.0f} facts/s" if report.seconds and report.read else ""
    out().print(text(f"{report.status}: {report.format}, {report.seconds:.1f} s{rate}"))
    if report.resumed:
        err().print("Went on with an interrupted import.")
    if report.discarded:
        err().print(f"Dropped {report.discarded:,} facts that another import had staged.")
    for file, line, why in report.rejects[:20]:
        err().print(text(f"  {file}, {'row' if report.format == 'parquet' else 'line'} {line}: {why}"))
    if report.rejected > 20:
        err().print(f"  ... and {report.rejected - 20:,} more; --rejects FILE lists them all.")
