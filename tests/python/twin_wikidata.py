"""What an import of Wikidata's JSON must store, said again in plain Python with the json module.

`expected` takes entities (as the dump or the web API gives them) and answers with the facts as names. It
follows docs/import.md, not the core's code; it keeps everything in memory and knows the default options only.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

Fact = tuple[str, str, str]
SPANS = ["10^9 years", "10^8 years", "10^7 years", "10^6 years", "10^5 years", "10^4 years", "millennium",
         "century", "decade"]  # fmt: skip


def entities_of(path: Path) -> list[dict[str, Any]]:
    """The entities of a dump, an answer of the web API, or a single one."""
    text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if line.startswith("{")]
    if isinstance(found, dict):
        found = list(found["entities"].values()) if "entities" in found else [found]
    return found


def label(entity: dict[str, Any]) -> str | None:
    labels = entity.get("labels") or {}
    english = sorted(tag for tag in labels if tag.startswith("en-"))
    for tag in ("en", *english, "mul"):
        if labels.get(tag, {}).get("value"):
            return str(labels[tag]["value"])
    return None


def best(statements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    preferred = [s for s in statements if s.get("rank") == "preferred"]
    return preferred or [s for s in statements if s.get("rank") != "deprecated"]


def number(value: float) -> str:
    return format(Decimal(repr(value)).normalize(), "f") if value else "0"


def time(value: dict[str, Any]) -> str:
    sign, (year, month, rest) = value["time"][0], value["time"][1:].split("-")
    day, precision = rest[:2], value["precision"]
    text = year.lstrip("0") or "0"
    if precision >= 10 and month != "00":
        text += f"-{month}"
        if precision >= 11 and day != "00":
            text += f"-{day}"
    text += " BCE" * (sign == "-")
    if precision < 9:
        text += f" ({SPANS[precision]})"
    return text + " (Julian)" * value["calendarmodel"].endswith("/Q1985786")


def value(snak: dict[str, Any]) -> tuple[str, str] | None:
    """("key", an id) or ("text", a literal); None for what is not stored."""
    if snak["snaktype"] != "value":
        return None
    kind, v = snak["datavalue"]["type"], snak["datavalue"]["value"]
    if kind == "string":
        return ("text", v)
    if kind == "wikibase-entityid":
        prefix = {"item": "Q", "property": "P"}.get(v.get("entity-type", ""), "?")
        return ("key", v["id"] if "id" in v else f"{prefix}{v['numeric-id']}")
    if kind == "time":
        return ("text", time(v))
    if kind == "quantity":
        text = v["amount"].removeprefix("+")
        if v["unit"] != "1":
            text += " " + v["unit"].rsplit("/", 1)[1]
        if "upperBound" in v or "lowerBound" in v:
            text += f" [{v['lowerBound'].removeprefix('+')}, {v['upperBound'].removeprefix('+')}]"
        return ("text", text)
    if kind == "globecoordinate":
        text = f"{number(v['latitude'])}, {number(v['longitude'])}"
        if v.get("precision") is not None:
            text += f" ±{number(v['precision'])}"
        globe = v["globe"].rsplit("/", 1)[1]
        return ("text", text if globe == "Q2" else f"{text} on {globe}")
    if kind == "monolingualtext":
        return ("text", f"{v['text']} ({v['language']})")
    return None


def names(entities: Iterable[dict[str, Any]], keys: set[str]) -> dict[str, str]:
    """Each key's name: its label, the key itself, or both where labels meet."""
    wanted = {key: key for key in keys}
    for entity in entities:
        if entity["id"] in wanted:
            wanted[entity["id"]] = label(entity) or entity["id"]
    holders = defaultdict(list)
    for key, name in wanted.items():
        holders[name].append(key)
    named = {}
    for name, those in holders.items():
        those.sort(key=lambda key: (key != name, len(key), key))
        for place, key in enumerate(those):
            anothers = name != key and name in keys
            named[key] = f"{name} ({key})" if place or anothers else name
    return named


def expected(entities: list[dict[str, Any]]) -> set[Fact]:
    """The facts that an import with default options stores."""
    read = [e for e in entities if e.get("id", "")[:1] in ("Q", "P")]
    redirects = {e["entity"]: e["redirect"] for e in entities if "redirect" in e}
    raw = []
    for entity in read:
        for prop, statements in (entity.get("claims") or {}).items():
            raw += [(entity["id"], prop, v) for s in best(statements) if (v := value(s["mainsnak"]))]
    keys = {s for s, _, _ in raw} | {v for _, _, (kind, v) in raw if kind == "key"} | {e["id"] for e in read}
    keys |= set(redirects.values())
    properties = {p for _, p, _ in raw} | {e["id"] for e in read if e["id"][0] == "P"}
    entity_names = names(read, {k for k in keys if k not in redirects})
    relation_names = names(read, properties)
    return {
        (entity_names[s], relation_names[p], v if kind == "text" else entity_names[redirects.get(v, v)])
        for s, p, (kind, v) in raw
    }
