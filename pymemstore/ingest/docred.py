"""DocRED's JSON: an array of documents, each with its entities' mentions (`vertexSet`) and its `labels`."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pymemstore.ingest.readers import Alias, Bad, Fact, Item, Source, Wrong, checked_name

__all__ = ["read_docred"]

_CHUNK = 1 << 20
_SPACE = " \t\r\n"


def read_docred(
    source: Source, *, relations: Mapping[str, str] | None = None, aliases: bool = True
) -> Iterator[Item]:
    """A fact for each label of each document; its `line` is the document's number, from 1.

    An entity's name is its first mention in the document's `vertexSet`; its other mentions become aliases
    (unless `aliases` is False) when a label uses the entity. A relation is `relations[code]` where that is
    known, else its code. The fact's source is the document's title. A label, or a whole document, that is not
    of this shape is Bad. The array is read a piece at a time: memory is bounded by the largest document.
    """
    for number, document in _array(source):
        if isinstance(document, Wrong):
            yield Bad(number, str(document))
            continue
        try:
            yield from _document(number, document, relations or {}, aliases)
        except Wrong as wrong:
            yield Bad(number, f"document {number}: {wrong}")


def _document(number: int, document: Any, relations: Mapping[str, str], aliases: bool) -> Iterator[Item]:
    if not isinstance(document, dict):
        raise Wrong("not an object")
    vertices, labels = document.get("vertexSet"), document.get("labels", [])
    if not isinstance(vertices, list) or not isinstance(labels, list):
        raise Wrong("no list called vertexSet" if not isinstance(vertices, list) else "labels is not a list")
    title = document.get("title")
    origin = checked_name(title, "title") if title else None
    told: set[int] = set()
    for position, label in enumerate(labels, 1):
        try:
            if not isinstance(label, dict):
                raise Wrong("not an object")
            head, tail = _mentions(vertices, label, "h"), _mentions(vertices, label, "t")
            code = checked_name(label.get("r"), "relation")
        except Wrong as wrong:
            yield Bad(number, f"document {number}, label {position}: {wrong}")
            continue
        yield Fact(number, head[0], relations.get(code, code), tail[0], origin)
        for slot, names in (("h", head), ("t", tail)):
            if aliases and label[slot] not in told:
                told.add(label[slot])
                for other in dict.fromkeys(names[1:]):
                    if other != names[0]:
                        yield Alias(number, other, names[0])


def _mentions(vertices: list[Any], label: Mapping[str, Any], slot: str) -> list[str]:
    index = label.get(slot)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(vertices):
        raise Wrong(f"{slot} is {index!r}, not one of the document's {len(vertices)} entities")
    mentions = vertices[index]
    if not isinstance(mentions, list) or not mentions:
        raise Wrong(f"entity {index} has no mentions")
    return [
        checked_name(mention.get("name") if isinstance(mention, dict) else mention, f"name of entity {index}")
        for mention in mentions
    ]


def _array(source: Source) -> Iterator[tuple[int, Any]]:
    """The array's elements with their numbers; a Wrong, the last, where it stops being JSON."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    parse = json.JSONDecoder().raw_decode
    text, at, ended, chunk = "", 0, False, _CHUNK
    number, opened = 0, False

    while True:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        why = ""
        if at < len(text):
            char = text[at]
            if not opened and char != "[":
                yield 1, Wrong("not a JSON array of documents")
                return
            if not opened:
                opened, at = True, at + 1
                continue
            if char == "]":
                if text[at + 1 :].strip(_SPACE):
                    yield number + 1, Wrong("something follows the end of the JSON array")
                return
            if number and char != ",":
                yield number + 1, Wrong(f"no comma after document {number}")
                return
            try:
                start = at + 1 if number else at
                while start < len(text) and text[start] in _SPACE:
                    start += 1
                value, at = parse(text, start)
                number += 1
                yield number, value
                chunk = _CHUNK
                continue
            except (ValueError, RecursionError) as error:
                why = f"document {number + 1} is not JSON: {error}"
        if ended:
            yield number + 1, Wrong(why or f"the file ends after {number} documents, inside the JSON array")
            return
        piece = source.stream.read(chunk)
        ended, chunk = not piece, chunk * 2  # doubled, so that one huge document isn't parsed too often
        try:
            text, at = text[at:] + decode(piece, ended), 0
        except UnicodeDecodeError as error:
            yield number + 1, Wrong(f"not UTF-8 near document {number + 1}: {error.reason}")
            return
