"""Bulk input and output: readers, the loader and the exporters."""

from __future__ import annotations

from pymemstore.ingest.exporters import export, export_jsonl, export_ntriples
from pymemstore.ingest.formats import load_relation_labels, read
from pymemstore.ingest.loader import ImportReport, load
from pymemstore.ingest.readers import Alias, Bad, ExternalId, Fact, Item, Name, Source

__all__ = [
    "Alias",
    "Bad",
    "ExternalId",
    "Fact",
    "ImportReport",
    "Item",
    "Name",
    "Source",
    "export",
    "export_jsonl",
    "export_ntriples",
    "load",
    "load_relation_labels",
    "read",
]
