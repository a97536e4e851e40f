"""Exporters: every fact of a Memory as JSON lines or N-Triples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from pymemstore.errors import InvalidArgument, NotFound
from pymemstore.memory import Memory

__all__ = ["EXPORT_FORMATS", "export", "export_jsonl", "export_ntriples"]

EXPORT_FORMATS = ("jsonl", "ntriples")
DEFAULT_BASE = "urn:pymemstore:"
_EVERY = 1_000


def export_jsonl(memory: Memory, *, names: bool = False) -> Iterator[str]:
    """A line for each triple and each of its sources: {"subject", "relation", "object"[, "source"]}.

    `names`: then every name follows, as {"entity" or "relation": ...}, so that one without facts is not lost,
    and after it its aliases and external ids, as {"alias" or "external_id": ..., "entity" or "relation":
    ...}. The import reads all of it back. What others remove meanwhile may be missing.
    """
    for triple in memory.triples():
        line = {"subject": triple.subject, "relation": triple.relation, "object": triple.object}
        try:
            origins = memory.sources(triple.id)
        except NotFound:
            continue  # removed since its page was read
        if not origins:
            yield _json(line)
        for origin in origins:
            yield _json(line | {"source": origin.source})
    if not names:
        return
    for relation, slot, all_names in (
        (False, "entity", memory.entities()),
        (True, "relation", memory.relations()),
    ):
        for name in all_names:
            try:
                aliases = memory.aliases(name, relation=relation)
                external_ids = memory.external_ids(name, relation=relation)
            except NotFound:
                continue  # forgotten or renamed since its page was read
            yield _json({slot: name})
            for alias in aliases:
                yield _json({"alias": alias, slot: name})
            for external_id in external_ids:
                yield _json({"external_id": external_id, slot: name})


def _json(value: dict[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def export_ntriples(memory: Memory, *, base: str = DEFAULT_BASE) -> Iterator[str]:
    """A line of N-Triples for each triple.

    A name becomes an IRI: `base`, "entity:" or "relation:", and the name's UTF-8 percent-encoded (letters,
    digits and -._~ are kept), so any name can be had back. Raises InvalidArgument for a base that no IRI can
    start with.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20<>\"{}|^`\\]*", base):
        raise InvalidArgument(
            f"{base!r} can't start an IRI: it needs a scheme such as urn: and no space or <>\"{{}}|^`\\"
        )
    for triple in memory.triples():
        subject, relation, object = (quote(name, safe="") for name in triple[:3])
        yield f"<{base}entity:{subject}> <{base}relation:{relation}> <{base}entity:{object}> ."


def export(
    memory: Memory,
    target: str | os.PathLike[str] | IO[str],
    format: str = "jsonl",
    *,
    names: bool = False,
    base: str = DEFAULT_BASE,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write `memory` to `target` (a path, or a text stream) and return the number of lines.

    A file appears whole or not at all: it is written beside its place and moved there at the end. `progress`
    is called with the number of lines every 1,000 lines. Raises InvalidArgument for another format, OSError.
    """
    if format == "jsonl":
        lines = export_jsonl(memory, names=names)
    elif format == "ntriples":
        lines = export_ntriples(memory, base=base)
    else:
        raise InvalidArgument(f"format {format!r} is not one of {', '.join(EXPORT_FORMATS)}")
    if not isinstance(target, (str, os.PathLike)):
        return _write(lines, target, progress)
    place = Path(target)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with open(beside, "x", encoding="utf-8", newline="\n") as out:
            count = _write(lines, out, progress)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _write(lines: Iterator[str], out: IO[str], progress: Callable[[int], None] | None) -> int:
    count = 0
    for count, line in enumerate(lines, 1):
        out.write(line + "\n")
        if progress is not None and count % _EVERY == 0:
            progress(count)
    if progress is not None:
        progress(count)
    return count
