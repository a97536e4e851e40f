"""Bulk input and output: readers, the loader and the exporters."""

from __future__ import annotations

from pymemstore.ingest.bulk import BULK_FORMATS, BulkProgress, BulkReport, bulk_import
from pymemstore.ingest.exporters import export, export_jsonl, export_ntriples
from pymemstore.ingest.formats import load_relation_labels, read
from pymemstore.ingest.loader import ImportReport, load
from pymemstore.ingest.readers import Alias, Bad, ExternalId, Fact, Item, Name, Source

__all__ = [
    "BULK_FORMATS",
    "Alias",
    "Bad",
    "BulkProgress",
    "BulkReport",
    "ExternalId",
    "Fact",
    "ImportReport",
    "Item",
    "Name",
    "Source",
    "bulk_import",
    "export",
    "export_jsonl",
    "export_ntriples",
    "load",
    "load_relation_labels",
    "read",
]
