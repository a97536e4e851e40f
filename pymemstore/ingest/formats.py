"""Which reader a file needs: told by its name for the format, or by its content."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pymemstore.errors import InvalidArgument
from pymemstore.ingest.docred import read_docred
from pymemstore.ingest.readers import BOM, Item, Source, read_jsonl, read_tsv

__all__ = ["FORMATS", "detect_format", "load_relation_labels", "read"]

FORMATS = ("jsonl", "tsv", "docred")


def detect_format(source: Source) -> str:
    """ "jsonl", "tsv" or "docred", told from the first bytes. Raises InvalidArgument when they don't tell."""
    text = source.head().removeprefix(BOM).lstrip()
    if not text:
        raise InvalidArgument(f"{source.name} is empty; name its format to read it as one with no records")
    if text[:1] == b"[":
        return "docred" if text[1:].lstrip()[:1] in (b"{", b"]", b"") else "jsonl"
    if text[:1] == b"{":
        return "jsonl"
    if b"\t" in text.split(b"\n", 1)[0]:
        return "tsv"
    raise InvalidArgument(f"{source.name}: the first line is neither JSON nor tab-separated; name the format")


def read(
    source: Source,
    format: str = "auto",
    *,
    relations: Mapping[str, str] | None = None,
    aliases: bool = True,
) -> tuple[str, Iterator[Item]]:
    """The format and the items of `source`.

    `format`: "auto", "jsonl", "tsv" or "docred". `relations`: DocRED's relation codes to labels. `aliases`:
    an entity's other mentions in a DocRED document become aliases. Raises InvalidArgument for an unknown
    format.
    """
    if format == "auto":
        format = detect_format(source)
    if format == "jsonl":
        return format, read_jsonl(source)
    if format == "tsv":
        return format, read_tsv(source)
    if format == "docred":
        return format, read_docred(source, relations=relations, aliases=aliases)
    raise InvalidArgument(f"format {format!r} is not one of auto, {', '.join(FORMATS)}")


def load_relation_labels(path: str | os.PathLike[str]) -> dict[str, str]:
    """A JSON object of relation codes to labels, such as {"P17": "country"}.

    Codes that share a label stay apart: theirs become "label (code)". Raises InvalidArgument
    for a file of another shape, OSError.
    """
    try:
        labels = json.loads(Path(path).read_bytes().removeprefix(BOM))
    except ValueError as error:
        raise InvalidArgument(f"{os.fspath(path)}: not JSON: {error}") from error
    if not isinstance(labels, dict) or not all(isinstance(label, str) and label for label in labels.values()):
        raise InvalidArgument(f"{os.fspath(path)}: not a JSON object of codes to labels")
    shared = Counter(labels.values())
    return {code: label if shared[label] == 1 else f"{label} ({code})" for code, label in labels.items()}
