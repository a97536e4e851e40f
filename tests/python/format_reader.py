"""Reads a store as csrc/FORMAT.md says, with the `lmdb` package and nothing of ours.

    python format_reader.py STORE

prints what it found as JSON and fails where the store breaks a rule of the format. Bytes are hexadecimal.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import format_blocks as blocks
import lmdb

KINDS = (("ent", "entity", "entities"), ("rel", "relation", "relations"))
Rows = list[tuple[bytes, bytes]]


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4 (Aumasson and Bernstein, 2012), 64 bits."""
    mask = 2**64 - 1
    k = struct.unpack("<2Q", key)
    words = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [k[i % 2] ^ word for i, word in enumerate(words)]

    def rotate(i: int, bits: int) -> None:
        v[i] = (v[i] << bits | v[i] >> 64 - bits) & mask

    def half(a: int, b: int, c: int, d: int, s: int, t: int) -> None:
        v[a] = (v[a] + v[b]) & mask
        v[c] = (v[c] + v[d]) & mask
        rotate(b, s)
        rotate(d, t)
        v[b] ^= v[a]
        v[d] ^= v[c]
        rotate(a, 32)

    def rounds(n: int) -> None:
        for _ in range(n):
            half(0, 1, 2, 3, 13, 16)
            half(2, 1, 0, 3, 17, 21)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    result: int = v[0] ^ v[1] ^ v[2] ^ v[3]
    return result


class Fields:
    """The fields of a value, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        n = self.take("<I")
        assert self.at + n <= len(self.data)
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def done(self) -> None:
        assert self.at == len(self.data), self.data


def be(data: bytes, sizes: str) -> tuple[int, ...]:
    """Big-endian integers: "4" and "8" in `sizes` are their bytes."""
    return struct.unpack(">" + sizes.replace("4", "I").replace("8", "Q"), data)


def read(store: Path) -> dict[str, Any]:
    current = (store / "CURRENT").read_text()
    assert current.startswith("gen-") and current.endswith("\n") and len(current) == 11
    folder = store / current.strip()
    with lmdb.open(str(folder), readonly=True, max_dbs=64) as env, env.begin() as txn:
        tables: dict[str, Rows] = {}
        flags = {}
        for name in [bytes(key).decode() for key, _ in txn.cursor()]:
            db = env.open_db(name.encode(), txn, create=False)
            tables[name] = [(bytes(k), bytes(v)) for k, v in txn.cursor(db)]
            flags[name] = {f for f, on in db.flags().items() if on}
        found = decode(tables, store / "vectors")
        found["flags"] = {name: sorted(f) for name, f in flags.items()}
        found["folders"] = sorted(p.name for p in store.iterdir())
    return found


def decode(tables: dict[str, Rows], vectors: Path) -> dict[str, Any]:
    meta = dict(tables["meta"])
    (version,) = struct.unpack("<I", meta[b"version"])
    assert meta[b"magic"] == b"pymemstore" and version in (1, 2)
    for name in ("name", "hash", "rule", "row", "spo", "ops", "triple"):
        tables.setdefault(f"base_{name}", [])  # version 1 has none
    assert b"superseded_by" not in meta
    store_id = meta[b"store_id"]
    assert len(store_id) == 16
    counters = struct.unpack(f"<{7 if version == 1 else 14}Q", meta[b"counters"])
    found: dict[str, Any] = {"version": version, "counters": counters[:7], "store_id": store_id.hex()}
    names: list[dict[int, dict[str, Any]]] = []
    for k, (short, long, plural) in enumerate(KINDS):
        stamp = Fields(meta[b"embedder." + long.encode()])
        found[f"embedder.{long}"] = (dim := stamp.take("<I"), stamp.text(), stamp.text())
        stamp.done()
        file_name = meta[b"vectors." + long.encode()].decode()
        assert file_name.startswith(f"{plural}-") and file_name.endswith(".vec")
        rows = vector_rows(vectors / file_name, store_id, k, dim, counters[4 + k])
        names.append(name_tables(tables, short, store_id, rows))
        assert all(i < counters[k] for i in names[k])
        found[long] = [names[k][i] for i in sorted(names[k])]
        found[f"{long}.rows"] = len(rows)
    found["triples"] = triples(tables, names, counters[2])
    if version == 2:
        live, embedded, count, sealed, ruled = counters[7:9], counters[9:11], *counters[11:]
        for k in range(2):
            assert live[k] == sum(not n["forgotten"] for n in names[k].values())
            assert embedded[k] == sum(n["vector"] is not None for n in names[k].values())
        assert count == sum(t[4] for t in found["triples"])
        assert sealed == len(list(blocks.sealed_names(tables["base_name"]))) and ruled <= counters[0]
    live_ids = {t[0] for t in found["triples"] if t[4]}
    found["sources"] = sources(tables, store_id, counters[6], live_ids)
    found["log"] = log(tables["log"], counters[3])
    return found


def vector_rows(path: Path, store_id: bytes, kind: int, dim: int, count: int) -> list[tuple[int, bytes]]:
    """Owner and vector of each committed row."""
    data = path.read_bytes()
    head = b"PMSVEC1\0" + struct.pack("<4I", 1, kind, dim, 0) + store_id
    assert data[:4096] == (head + struct.pack("<I", zlib.crc32(head))).ljust(4096, b"\0")
    stride = 4 * dim + 8
    assert len(data) >= 4096 + count * stride
    rows = []
    for i in range(count):
        row = data[4096 + i * stride :][:stride]
        owner, crc = struct.unpack("<2I", row[-8:])
        assert crc == zlib.crc32(row[:-4]), f"row {i} of {path.name}"
        vector = struct.unpack(f"<{dim}f", row[:-8])
        assert abs(sum(x * x for x in vector) - 1) < 1e-6
        rows.append((owner, row[:-8]))
    return rows


def name_tables(
    tables: dict[str, Rows], short: str, store_id: bytes, rows: list[tuple[int, bytes]]
) -> dict[int, dict[str, Any]]:
    """All that the tables of one kind say of each name, forgotten ones too."""
    names: dict[int, dict[str, Any]] = {}
    hashes, waiting = set(), set()
    sealed: dict[int, tuple[int, int, bytes]] = {}
    base_keys: dict[int, list[int]] = defaultdict(list)
    if short == "ent":
        base_rows = blocks.sealed_rows(tables["base_row"])
        sealed = {
            i: (base_rows.get(i, 0), int(forgotten), name)
            for i, name, forgotten in blocks.sealed_names(tables["base_name"])
        }
        for key40, i in blocks.pairs(tables["base_rule"]):
            base_keys[i].append(key40)
    delta = {be(k, "4")[0]: (*struct.unpack_from("<QB", v), v[9:]) for k, v in tables[f"{short}_name"]}
    for i, (row, flag, text) in sorted({**sealed, **delta}.items()):
        assert text and flag in (0, 1)
        text.decode()
        vector = None
        if row:
            owner, vector = rows[row - 1]
            assert owner == i and not flag
        elif not flag and i in delta:
            waiting.add(i)
        if not flag:
            hashes.add((siphash(store_id, text), i))
        names[i] = {
            "id": i, "name": text.hex(), "forgotten": bool(flag), "vector": vector and vector.hex(),
            "aliases": [], "external": [], "keys": [], "sealed": i in sealed, "base_keys": base_keys[i],
        }  # fmt: skip
    live = {i for i, n in names.items() if not n["forgotten"]}
    # Sealed pairs may be out of date; a live name has one or the other.
    delta_hashes = {(*be(k, "8"), *be(v, "4")) for k, v in tables[f"{short}_hash"]}
    base_hashes = set(blocks.pairs(tables["base_hash"])) if short == "ent" else set()
    assert delta_hashes <= hashes
    assert all((h >> 24, i) in base_hashes for h, i in hashes - delta_hashes)
    assert [be(k, "4")[0] for k, v in tables[f"{short}_pending"] if not v] == sorted(waiting)
    assert len(tables[f"{short}_pending"]) == len(waiting)

    alias_hashes = set()
    for key, value in tables[f"{short}_alias"]:
        i, number = be(key, "44")
        names[i]["aliases"].append(value.hex())
        alias_hashes.add((siphash(store_id, value), i, number))
        assert i in live
    assert {(*be(k, "8"), *be(v, "44")) for k, v in tables[f"{short}_alias_hash"]} == alias_hashes

    external = [(k, be(v, "4")[0]) for k, v in tables[f"{short}_external"]]
    assert sorted((i, e) for e, i in external) == sorted(
        (be(k, "4")[0], v) for k, v in tables[f"{short}_external_of"]
    )
    for name, i in external:
        names[i]["external"].append(name.hex())
        assert i in live
    for key, value in tables[f"{short}_rule"]:
        (i,) = be(value, "4")
        names[i]["keys"].append(*be(key, "8"))
        assert i in live
    return names


def triples(
    tables: dict[str, Rows], names: list[dict[int, dict[str, Any]]], after: int
) -> list[tuple[int, ...]]:
    """Id, subject, relation, object and 1 if live of every triple there ever was."""
    sealed = blocks.triples_by_id(tables["base_triple"])
    newer = {be(k, "8")[0]: be(v, "444") for k, v in tables["triple"]}
    assert not set(sealed) & set(newer)
    ever = {**sealed, **newer}
    assert sorted(ever) == list(range(1, after))
    by_parts = {(s, r, o): i for s, r, o, i in blocks.triple_rows(tables["base_spo"], False)}
    for k, v in tables["delta_spo"]:
        (i,) = be(v, "8")
        if i:
            by_parts[be(k, "444")] = i
        else:
            del by_parts[be(k, "444")]  # removed from the base
    spo = {i: parts for parts, i in by_parts.items()}
    assert len(spo) == len(by_parts)
    ops = {i: (s, r, o) for o, r, i, s in blocks.triple_rows(tables["base_ops"], True)}
    for k, v in tables["delta_ops"]:
        o, r, i = be(k, "448")
        if v:
            assert i not in ops
            ops[i] = (*be(v, "4"), r, o)
        else:
            del ops[i]
    assert ops == spo
    for i, (s, r, o) in spo.items():
        assert ever[i] == (s, r, o)
        assert not any(n["forgotten"] for n in (names[0][s], names[1][r], names[0][o]))
    return [(i, *parts, int(i in spo)) for i, parts in sorted(ever.items())]


def sources(
    tables: dict[str, Rows], store_id: bytes, after: int, live: set[int]
) -> dict[int, list[tuple[str, int]]]:
    """Texts and times by triple id."""
    texts = {be(k, "4")[0]: v.decode() for k, v in tables["source"]}
    assert sorted(texts) == list(range(after))
    expected = {(siphash(store_id, t.encode()), i) for i, t in texts.items()}
    assert {(*be(k, "8"), *be(v, "4")) for k, v in tables["source_hash"]} == expected
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key, value in tables["provenance"]:
        (triple,), (source, time) = be(key, "8"), be(value, "48")
        assert triple in live
        found[triple].append((texts[source], time))
    for key, value in tables.get("load", []):
        (first,), (count, source, time) = be(key, "8"), struct.unpack("<QIQ", value)
        for triple in range(first, first + count):
            if source and triple in live:
                found[triple].append((texts[source - 1], time))
    return found


def log(rows: Rows, last: int) -> list[dict[str, Any]]:
    """The edit log, one entry for a sequence number."""
    entries: list[dict[str, Any]] = []
    types = {4: "forget", 5: "alias", 6: "unalias", 7: "rename", 8: "vector", 9: "external_id"}
    for key, value in rows:
        (seq,) = be(key, "8")
        assert seq == len(entries) + 1
        f = Fields(value)
        kind, time = f.take("<B"), f.take("<Q")
        if kind == 1:
            first, n = f.take("<Q"), f.take("<I")
            entries += [{"op": "add", "time": time, "triple": first + i} for i in range(n)]
        elif kind == 2:
            entries.append({"op": "remove", "time": time, "triple": f.take("<Q")})
        elif kind == 3:
            triple, n = f.take("<Q"), f.take("<I")
            removed = [f.take("<Q") for _ in range(n)]
            entries.append({"op": "replace", "time": time, "triple": triple, "removed": removed})
        else:
            relation, name = f.take("<B"), f.take("<I")
            assert relation in (0, 1)
            entry = {"op": types[kind], "time": time, "relation": relation, "name": name}
            entries.append(entry | {"text": f.text(), "other": f.text()})
        f.done()
    assert len(entries) == last
    return entries


if __name__ == "__main__":
    json.dump(read(Path(sys.argv[1])), sys.stdout)
