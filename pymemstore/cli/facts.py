"""Commands about single facts: add and query."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Any

import typer
from rich.table import Table

from pymemstore.cli.common import (
    Embedder,
    ExitCode,
    Json,
    RelationEmbedder,
    StorePath,
    err,
    guarded,
    out,
    print_json,
    table,
    text,
)
from pymemstore.memory import open as open_memory
from pymemstore.results import QueryResult, Triple

__all__ = ["add", "hits_table", "query"]


class Search(str, Enum):
    auto = "auto"
    exact = "exact"
    graph = "graph"


class Rules(str, Enum):
    none = "none"
    core = "core"
    wide = "wide"


class Numbers(str, Enum):
    any = "any"
    exact = "exact"


def _triple(triple: Triple) -> dict[str, Any]:
    return {"subject": triple.subject, "relation": triple.relation, "object": triple.object, "id": triple.id}


@guarded
def add(
    store: StorePath,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", show_default=False)],
    relation: Annotated[str, typer.Argument(metavar="RELATION", show_default=False)],
    object: Annotated[str, typer.Argument(metavar="OBJECT", show_default=False)],
    source: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="Where the fact comes from.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make OBJECT the only one of SUBJECT and RELATION.")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the store when it is not there.")] = False,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Add one fact."""
    removed: tuple[Triple, ...] = ()
    with open_memory(store, create=create, embedder=embedder, relation_embedder=relation_embedder) as memory:
        if replace:
            replaced = memory.replace(subject, relation, object, source=source)
            triple_id, inserted, removed = replaced.triple_id, replaced.inserted, replaced.removed
        else:
            added = memory.add(subject, relation, object, source=source)
            triple_id, inserted = added.triple_id, added.inserted
    if json:
        print_json(
            {"triple_id": triple_id, "inserted": inserted, "removed": [_triple(triple) for triple in removed]}
        )
        return
    out().print(text(f"{'Added' if inserted else 'It was there already'} (triple {triple_id})."))
    for triple in removed:
        out().print(
            text(f"Removed {triple.subject} | {triple.relation} | {triple.object} (triple {triple.id}).")
        )


@guarded
def query(
    store: StorePath,
    relation: Annotated[
        str, typer.Option("--relation", "-r", metavar="TEXT", help="The relation.", show_default=False)
    ],
    subject: Annotated[
        str | None,
        typer.Option("--subject", "-s", metavar="TEXT", help="The known subject; objects are asked for."),
    ] = None,
    object: Annotated[
        str | None,
        typer.Option("--object", "-o", metavar="TEXT", help="The known object; subjects are asked for."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many hits; without it all.")
    ] = None,
    tau_e: Annotated[
        float | None,
        typer.Option("--tau-e", min=-1, max=1, help="Least entity similarity; without it the store's."),
    ] = None,
    tau_t: Annotated[
        float | None,
        typer.Option("--tau-t", min=-1, max=1, help="Least relation similarity; without it the store's."),
    ] = None,
    tau_r: Annotated[
        float | None, typer.Option("--tau-r", min=-1, max=1, help="Least score; without it the store's.")
    ] = None,
    search: Annotated[
        Search, typer.Option("--search", help="exact is complete, graph approximate and fast.")
    ] = Search.auto,
    rules: Annotated[
        Rules, typer.Option("--rules", help="Ways beside the vectors in which text finds a name.")
    ] = (Rules.core),
    numbers: Annotated[
        Numbers, typer.Option("--numbers", help="exact: names must agree with the text in their numbers.")
    ] = Numbers.any,
    embedder: Embedder = None,
    relation_embedder: RelationEmbedder = None,
    json: Json = False,
) -> None:
    """Ask for the facts that fit, by meaning. Give --relation and one of --subject and --object."""
    if (subject is None) == (object is None):
        raise typer.BadParameter("give exactly one of --subject and --object")
    with open_memory(store, read_only=True, embedder=embedder, relation_embedder=relation_embedder) as memory:
        result = memory.query(
            subject, relation, object, tau_e=tau_e, tau_t=tau_t, tau_r=tau_r, limit=limit,
            search=search.value, rules=rules.value, numbers=numbers.value,
        )  # fmt: skip
    if json:
        print_json(_as_dict(result))
    elif result:
        out().print(hits_table(result))
    if not result:
        err().print("Nothing found.")
    if not json and result.truncated:
        err().print(f"Cut at {limit} hits; there are more.")
    if not json and not result.complete:
        err().print(f"{result.unembedded:,} names wait for vectors and can't be found by meaning yet.")
    if not result:
        raise typer.Exit(ExitCode.NOTHING_FOUND)


def _as_dict(result: QueryResult) -> dict[str, Any]:
    return {
        "hits": [
            {
                "name": hit.name,
                "score": hit.score,
                "entity_similarity": hit.entity_similarity,
                "relation_similarity": hit.relation_similarity,
                "cosine": None if math.isnan(hit.cosine) else hit.cosine,
                "match": hit.match,
                "triple": _triple(hit.triple),
            }
            for hit in result.hits
        ],
        "names": result.names,
        "truncated": result.truncated,
        "complete": result.complete,
        "unembedded": result.unembedded,
        "search": result.search,
        "entity_candidates": result.entity_candidates,
        "relation_candidates": result.relation_candidates,
        "rows_scanned": result.rows_scanned,
    }


def hits_table(result: QueryResult, most: int | None = None) -> Table:
    """The hits (the first `most`) with their scores and the reason why each entity matched."""
    rows = table("answer", ">score", ">entity", ">relation", "match", "fact")
    for hit in result.hits[:most]:
        s, r, o = hit.triple[:3]
        rows.add_row(
            text(hit.name, "bold"),
            f"{hit.score:.3f}",
            f"{hit.entity_similarity:.3f}",
            f"{hit.relation_similarity:.3f}",
            hit.match,
            text(f"{s} | {r} | {o}"),
        )
    return rows
