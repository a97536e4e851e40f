"""The Typer application: which commands there are."""

from __future__ import annotations

from typing import Annotated

import typer

from pymemstore.cli import bulk, demo, facts, llm, store, transfer, tune

__all__ = ["app"]

app = typer.Typer(
    name="pymemstore",
    help="A memory of facts on disk, questioned by meaning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 done but records were skipped, 4 nothing found, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from pymemstore import __version__

        typer.echo(f"pymemstore {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("init")(store.init)
app.command("add")(facts.add)
app.command("query")(facts.query)
bulk.app.command("facts")(transfer.import_)
app.add_typer(bulk.app, name="import")
app.command("export")(transfer.export)
app.command("stats")(store.stats)
app.command("check")(store.check)
app.command("backup")(store.backup)
app.command("reindex")(store.reindex)
app.command("tune")(tune.tune)
app.command("demo")(demo.demo)
app.command("write")(llm.write)
app.command("read")(llm.read)
app.command("demo-llm")(llm.demo_llm)
