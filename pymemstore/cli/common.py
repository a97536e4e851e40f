"""What the commands share: exit codes, options, errors to exit codes, text for the terminal."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from pymemstore.errors import MemstoreError

__all__ = [
    "Embedder",
    "ExitCode",
    "Json",
    "RelationEmbedder",
    "StorePath",
    "bar",
    "fail",
    "guarded",
    "phases",
    "print_json",
]

_P = ParamSpec("_P")


class ExitCode(IntEnum):
    """The codes that `pymemstore` exits with. docs/cli.md says when; a test compares the two."""

    OK = 0
    ERROR = 1
    USAGE = 2  # given by typer itself
    SKIPPED = 3
    NOTHING_FOUND = 4
    INTERRUPTED = 130


StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Embedder = Annotated[
    str | None,
    typer.Option(
        "--embedder", metavar="NAME", help="What embeds names; without it the store's own, if built in."
    ),
]
RelationEmbedder = Annotated[
    str | None, typer.Option("--relation-embedder", metavar="NAME", help="The same for relations alone.")
]


def out() -> Console:
    """Results: standard output."""
    wide = None if sys.stdout.isatty() else 200  # a pipe has no width; don't fold names there
    return Console(highlight=False, width=wide)


def err() -> Console:
    """Progress and messages: standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One line of strict JSON (no NaN), ASCII only so that any terminal and pipe takes it."""
    print(json.dumps(value, allow_nan=False))


def shown(name: str) -> str:
    """`name` for a terminal: control, bidirectional and other invisible characters become escapes."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else ascii(c)[1:-1]
        for c in name
    )


def text(name: str, style: str = "") -> Text:
    """`name` as it is: brackets in it are not markup."""
    return Text(shown(name), style=style)


def table(*columns: str) -> Table:
    """A compact table; columns whose name starts with ">" are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return made


def fail(message: str, code: int = ExitCode.ERROR) -> typer.Exit:
    """Say on standard error what went wrong; to be raised."""
    err().print(Text("Error: ", style="bold red") + Text(shown(message)))
    return typer.Exit(code)


def guarded(command: Callable[_P, None]) -> Callable[_P, None]:
    """A command with its errors made exit codes; with --json they are also printed as {"error": {...}}."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        as_json = bool(kwargs.get("json"))
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output left, as `head` does. Python would complain again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.ERROR) from None
        except KeyboardInterrupt:
            err().print("Interrupted.")
            if as_json:
                print_json({"error": {"type": "KeyboardInterrupt", "message": "interrupted"}})
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except (MemstoreError, OSError) as error:
            if as_json:
                print_json({"error": {"type": type(error).__name__, "message": str(error)}})
            raise fail(str(error)) from None

    # typer reads the parameters; the annotations are text here, to be read where the command was written
    run.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    run.__annotations__ = inspect.get_annotations(command, eval_str=True)
    return run


@contextmanager
def bar(what: str, total: float | None, unit: str, quiet: bool) -> Iterator[Callable[[float, int], None]]:
    """A progress bar on standard error with rate and remaining time; nothing where that isn't a terminal.

    Gives update(done, count): `done` of `total`, and the count whose rate is shown, in `unit`s a second.
    """
    console = err()
    if quiet or not console.is_terminal:
        yield lambda done, count: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=total, rate="")

        def update(done: float, count: int) -> None:
            spent = progress.tasks[0].elapsed or 0.0
            rate = f"{count:,} {unit}" + (f", {count / spent:,.0f}/s" if spent > 0.1 else "")
            progress.update(task, completed=done, rate=rate)

        yield update


@contextmanager
def phases(quiet: bool) -> Iterator[Callable[[str, int, int, str], None]]:
    """Progress of work in phases on standard error, a bar each, with rate and remaining time; nothing where
    that isn't a terminal. Gives show(phase, done, total, note); total 0: not known."""
    console = err()
    if quiet or not console.is_terminal:
        yield lambda phase, done, total, note: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int, note: str) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=total or None, note=note)
            progress.update(tasks[phase], completed=done, total=total or None, note=note)

        yield show
