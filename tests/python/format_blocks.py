"""The blocks of a store's sealed tables, as csrc/FORMAT.md says, with nothing of ours."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Rows = list[tuple[bytes, bytes]]


class Varints:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        value = self.next()
        return value >> 1 ^ -(value & 1)

    @property
    def done(self) -> bool:
        return self.at == len(self.data)


def triple_rows(rows: Rows, by_object: bool) -> list[tuple[int, int, int, int]]:
    """(a, b, c, x) of base_spo or base_ops; ascending, as LMDB's keys are."""
    found: list[tuple[int, int, int, int]] = []
    for key, value in rows:
        a, b, c = struct.unpack(">IIQ" if by_object else ">III", key)
        reader = Varints(value)
        x = reader.next()
        found.append((a, b, c, x))
        while not reader.done:
            head = reader.next()
            delta, tag = head >> 3, head >> 1 & 3
            if tag == 0:
                c += delta
            elif tag == 1:
                b, c = b + delta, reader.next()
            else:
                assert tag == 2
                a, b, c = a + delta, reader.next(), reader.next()
            x = x + reader.signed() if head & 1 else x + 1
            found.append((a, b, c, x))
    assert [row[:3] for row in found] == sorted({row[:3] for row in found})
    return found


def pairs(rows: Rows) -> list[tuple[int, int]]:
    """(upper 40 bits of a hash, id) of base_hash or base_rule."""
    found: list[tuple[int, int]] = []
    for key, value in rows:
        assert len(key) == 9
        h, i = int.from_bytes(key[:5], "big"), int.from_bytes(key[5:], "big")
        reader = Varints(value)
        found.append((h, i))
        while not reader.done:
            delta, number = reader.next(), reader.next()
            h, i = h + delta, number if delta else i + number
            found.append((h, i))
    assert found == sorted(set(found))
    return found


def sealed_names(rows: Rows) -> Iterator[tuple[int, bytes, bool]]:
    """(id, name, forgotten) of base_name."""
    expected = 0
    for key, value in rows:
        (first,) = struct.unpack(">I", key)
        assert first == expected
        reader = Varints(value)
        lengths = [reader.next() for _ in range(reader.next())]
        at = reader.at
        for i, length in enumerate(lengths):
            yield first + i, value[at : at + (length >> 1)], bool(length & 1)
            at += length >> 1
        assert at == len(value)
        expected = first + len(lengths)


def sealed_rows(rows: Rows) -> dict[int, int]:
    """Row in the vector file + 1 by id, of base_row."""
    found: dict[int, int] = {}
    for key, value in rows:
        (first,), (row, count) = struct.unpack(">I", key), struct.unpack(">QI", value)
        for i in range(count):
            assert first + i not in found
            found[first + i] = row + i + 1
    return found


def triples_by_id(rows: Rows) -> dict[int, tuple[int, int, int]]:
    """Subject, relation and object by id, of base_triple."""
    found: dict[int, tuple[int, int, int]] = {}
    for key, value in rows:
        (i,) = struct.unpack(">Q", key)
        reader = Varints(value)
        s = r = o = 0
        while not reader.done:
            head = reader.next()
            delta = (head >> 2) ^ -(head >> 1 & 1)
            s += delta
            if head & 1:
                r = reader.next()
            o = o + reader.signed() if delta == 0 and not head & 1 else reader.next()
            found[i] = (s, r, o)
            i += 1
    return found
