"""`pymemstore write`, `read` and `demo-llm`: a language model in front of a memory (MemLLM)."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from pymemstore.backends.base import Backend
from pymemstore.cli.common import ExitCode, Json, StorePath, bar, err, fail, guarded, out, print_json, text
from pymemstore.errors import InvalidArgument, MemstoreError
from pymemstore.memory import open as open_memory

__all__ = ["demo_llm", "read", "write"]

Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="DIR|URL", help="A folder with a transformers model, or a server's address."
    ),
]
Served = Annotated[
    str | None, typer.Option("--served-name", metavar="NAME", help="The model's name on the server.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", metavar="DIR", help="The tokenizer of a server's model, where it is at hand."
    ),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", metavar="N", help="Most tokens that the model writes.")
]


def _backend(model: str, served: str | None, tokenizer: str | None) -> Backend:
    try:
        if not model.startswith(("http://", "https://")):
            from pymemstore.backends.transformers import TransformersBackend

            return TransformersBackend.load(model)
        from pymemstore.backends.openai import OpenAIBackend

        if served is None:
            raise InvalidArgument("a server's model needs --served-name")
        loaded = None
        if tokenizer is not None:
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(tokenizer)
        return OpenAIBackend(model, served, tokenizer=loaded)
    except ImportError as error:
        raise InvalidArgument(f'{error.name} is not there: pip install "pymemstore[llm]"') from error


@guarded
def write(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Texts: *.txt, UTF-8, also below it.")],
    into: Annotated[
        Path, typer.Option("--into", metavar="STORE", help="The store; made when it is not there.")
    ],
    model: Model,
    served_name: Served = None,
    tokenizer: Tokenizer = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="append|replace", help="What becomes of facts that are there.")
    ] = "append",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Sentences in a batch.")] = 8,
    max_tokens: MaxTokens = 256,
    context_tokens: Annotated[
        int | None, typer.Option("--context-tokens", metavar="N", help="Most tokens before a sentence.")
    ] = None,
    language: Annotated[str, typer.Option("--language", metavar="CODE", help="Of the texts.")] = "en",
    restart: Annotated[bool, typer.Option("--restart", help="Read texts again that are done.")] = False,
    json: Json = False,
) -> None:
    """Let a write model extract the facts of texts, and store them."""
    from pymemstore.memllm.corpus import CorpusReport, write_folder
    from pymemstore.memllm.writer import Writer

    backend = _backend(model, served_name, tokenizer)
    report = CorpusReport()
    problem: Exception | KeyboardInterrupt | None = None
    with open_memory(into) as memory, bar("Reading texts", None, "texts", json) as update:
        writer = Writer(
            memory, backend, policy=cast(Any, policy), language=language, batch=batch, max_tokens=max_tokens,
            context_tokens=context_tokens,
        )  # fmt: skip
        try:
            write_folder(
                writer, folder, restart=restart, report=report,
                progress=lambda done, files, name: update(done / files, done),
            )  # fmt: skip
        except (MemstoreError, OSError, KeyboardInterrupt) as error:
            problem = error
        finally:
            backend.close()
    if json:
        said = {"type": type(problem).__name__, "message": str(problem) or "interrupted"}
        print_json(asdict(report) | {"error": None if problem is None else said})
    else:
        _show(report)
    if isinstance(problem, KeyboardInterrupt):
        err().print("Interrupted. The texts that are done stay; the same command goes on.")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if problem is not None:
        raise fail(f"{problem} (the texts that are done stay; the same command goes on)")
    if report.rejected or report.skipped or report.errors:
        raise typer.Exit(ExitCode.SKIPPED)


def _show(report: Any) -> None:
    console = out()
    console.print(
        text(
            f"{report.written:,} of {report.files:,} texts read ({report.done_before:,} were done), "
            f"{report.sentences:,} sentences: {report.facts:,} facts, {report.new:,} new, "
            f"{report.replaced:,} replaced."
        )
    )
    console.print(
        text(
            f"Not stored: {report.errors:,} malformed parts, {report.unterminated:,} calls without an end; "
            f"{report.skipped:,} sentences not shown to the model, {report.cut:,} with less text before them."
        )
    )
    for name, why in report.rejected:
        console.print(text(f"rejected: {name}: {why}"))
    if report.other:
        console.print(text(f"{report.other:,} files with other endings were left alone."))
    for note in report.notes:
        console.print(text(f"note: {note}"))


@guarded
def read(
    store: StorePath,
    prompt: Annotated[str, typer.Argument(metavar="TEXT", help="What the model shall continue.")],
    model: Model,
    served_name: Served = None,
    tokenizer: Tokenizer = None,
    max_tokens: MaxTokens = 256,
    trace: Annotated[bool, typer.Option("--trace", help="Print every call, query and result.")] = False,
    json: Json = False,
) -> None:
    """Let a model continue a text, asking the memory while it writes."""
    from pymemstore.memllm.reader import Reader

    backend = _backend(model, served_name, tokenizer)
    with open_memory(store, create=False) as memory:
        try:
            stream = Reader(memory, backend, max_tokens=max_tokens).stream(prompt)
            for piece in stream:
                if not json:
                    typer.echo(piece, nl=False)
        finally:
            backend.close()
    result = stream.result
    if json:
        print_json({"text": result.text, "finish": result.finish, "trace": result.trace.as_dict()})
        return
    typer.echo()
    if trace:
        out().print(text(f"({result.finish})"))
        for line in result.trace.render().splitlines():
            out().print(text(line))


# People and places of the tiny model's world (docs/tiny-model.md); the people are not in its training data.
DEMO_TEXTS = (
    "Bakedo Filuma was born in Zorani in 1931. He studied at Bakako College and works for Mafasu Bank. The "
    "weather was mild. Mafasu Bank, founded in 1902, is based in Rudulo.",
    "Fukeso Taviza is married to Befuza Matulo. She lives in Fozumi. Fozumi is a city in Nofure.",
)
DEMO_PROMPTS = ("Bakedo Filuma was born in", "Mafasu Bank is based in", "The home of Fukeso Taviza is in")
_EDIT = ("Bakedo Filuma", "place of birth", "Vanafo")


@guarded
def demo_llm(
    file: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="A text of your own to be read.")
    ] = None,
    json: Json = False,
) -> None:
    """Let the shipped tiny model read texts, store their facts, and use them in what it writes."""
    from pymemstore.memllm.reader import Reader
    from pymemstore.memllm.writer import Writer
    from pymemstore.train import tiny

    console = Console(quiet=True) if json else out()
    texts = DEMO_TEXTS if file is None else (file.read_text(encoding="utf-8"),)
    backend = _backend(str(tiny.path()), None, None)
    turns: list[dict[str, Any]] = []

    def go_on(prompt: str) -> None:
        result = reader.read(prompt)
        turns.append({"prompt": prompt, "text": result.text, "trace": result.trace.as_dict()})
        console.print(text(f"{prompt} ...{result.text}", "italic"))
        for line in result.trace.render().splitlines():
            console.print(text(f"    {line}"))

    with tempfile.TemporaryDirectory() as folder, open_memory(Path(folder) / "demo.mem") as memory:
        writer, reader = Writer(memory, backend), Reader(memory, backend, max_tokens=80)
        console.print(text("The model reads texts, and writes a call for each sentence", "bold underline"))
        for i, document in enumerate(texts):
            report = writer.write(document, f"text {i}")
            for sentence in report.trace:
                console.print(text(document[sentence.start : sentence.end], "italic"))
                console.print(text(f"    {sentence.output}"))
        facts = [list(triple[:3]) for triple in memory.triples()]
        console.print(text(f"{len(facts)} facts stored, each with its sentence as provenance."))
        console.print()
        console.print(
            text("It goes on with sentences, and asks the memory before it names", "bold underline")
        )
        for prompt in DEMO_PROMPTS:
            go_on(prompt)
        console.print()
        console.print(text("A fact is replaced, and so is what it writes", "bold underline"))
        memory.replace(*_EDIT)
        go_on(DEMO_PROMPTS[0])
    backend.close()
    if json:
        print_json({"facts": facts, "turns": turns})
