"""Commands about the store as a whole: init, stats, check, backup."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pymemstore.cli.common import (
    Embedder,
    ExitCode,
    Json,
    RelationEmbedder,
    StorePath,
    fail,
    guarded,
    out,
    phases,
    print_json,
    table,
    text,
)
from pymemstore.errors import NotFound
from pymemstore.memory import open as open_memory

__all__ = ["backup", "check", "init", "reindex", "stats"]

_CHECKED = ("entities", "relations", "triples", "aliases", "external_ids")


@guarded
def init(
    store: StorePath,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Make an empty store."""
    try:
        open_memory(store, create=False, read_only=True).close()
    except NotFound:
        pass
    else:
        if json:
            print_json({"error": {"type": "Exists", "message": f"there is a store at {store} already"}})
        raise fail(f"there is a store at {store} already")
    with open_memory(store, embedder=embedder, relation_embedder=relation_embedder) as memory:
        stats = memory.stats()
        made = {
            "path": memory.path,
            "entity_embedder": stats.entity_embedder,
            "relation_embedder": stats.relation_embedder,
        }
    if json:
        print_json(made)
    else:
        out().print(
            text(f"Made {store} (embedders: {made['entity_embedder']}, {made['relation_embedder']}).")
        )


@guarded
def stats(store: StorePath, json: Json = False) -> None:
    """Counts and sizes."""
    with open_memory(store, read_only=True) as memory:
        found = asdict(memory.stats())
    if json:
        print_json(found)
        return
    rows = table("what", ">value")
    for key, value in found.items():
        rows.add_row(key.replace("_", " "), text(f"{value:,}" if isinstance(value, int) else str(value)))
    out().print(rows)


@guarded
def check(store: StorePath, json: Json = False) -> None:
    """Read everything and tell what does not fit together. Exit code 1 when something does not."""
    with open_memory(store, read_only=True) as memory:
        report = memory.check()
    if json:
        print_json({"ok": report.ok, "problems": list(report.problems), "counts": report.counts})
    else:
        for problem in report.problems:
            out().print(text(problem))
        counts = ", ".join(
            f"{report.counts[what]:,} {what.replace('_', ' ')}" for what in _CHECKED if what in report.counts
        )
        out().print(
            text(f"{'Sound' if report.ok else f'{len(report.problems)} problems'}: looked at {counts}.")
        )
    if not report.ok:
        raise typer.Exit(ExitCode.ERROR)


@guarded
def reindex(
    store: StorePath,
    graph: Annotated[
        bool, typer.Option("--graph", help="Also build the graph, for very large stores.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Make what is there and whole again.")] = False,
    json: Json = False,
) -> None:
    """Seal the vectors: make the files that searches read, anew where they are damaged or old."""
    with open_memory(store, create=False) as memory, phases(json) as show:
        memory.reindex(
            graph=graph,
            force=force,
            progress=lambda phase, done, total: show(phase, done, total, f"{done:,}"),
        )
        found = memory.stats()
    made = {
        "sealed_entities": found.entity_sealed_rows,
        "sealed_relations": found.relation_sealed_rows,
        "graph": found.graph_rows,
        "clusters": found.clusters,
        "code_bits": found.code_bits,
    }
    if json:
        print_json(made)
    else:
        graphed = f", {found.graph_rows:,} in the graph" if found.graph_rows else ""
        out().print(text(f"Sealed {found.entity_sealed_rows:,} entity vectors{graphed}."))


@guarded
def backup(
    store: StorePath,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="The copy's folder; it must not exist yet.", show_default=False
        ),
    ],
    json: Json = False,
) -> None:
    """Write a consistent copy while others may go on writing."""
    with open_memory(store, read_only=True) as memory:
        memory.backup(target)
        triples = len(memory)
    if json:
        print_json({"path": str(target), "triples": triples})
    else:
        out().print(text(f"Wrote {target}."))
