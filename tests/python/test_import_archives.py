"""Archives for imports: streams one behind the other, damage where one should begin, tools, named pipes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pymemstore
from pymemstore import ingest

KINDS = ["gz", "bz2", "xz", "zst"]


def lines(start: int, end: int) -> bytes:
    return "".join(f"subject {i}\trelation {i % 7}\tobject {i % 501}\n" for i in range(start, end)).encode()


def compress(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        zstandard = pytest.importorskip("zstandard")
        return bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


def streams(kind: str, size: int) -> list[bytes]:
    return [compress(kind, lines(i * size, (i + 1) * size)) for i in range(3)]


def count(path: Path, store: Path) -> int:
    with pymemstore.open(store) as memory:
        report = ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert report.status == "complete" and report.rejected == 0
        return len(memory)


def refused(path: Path, store: Path, why: str = "truncated or damaged") -> None:
    with pymemstore.open(store) as memory:
        with pytest.raises(pymemstore.IOError, match=f"{why}.*decompressed bytes.*nothing was stored"):
            ingest.bulk_import(memory, [path], "tsv", embed=False)
        assert len(memory) == memory.stats().entities == 0


@pytest.mark.parametrize("size", [200, 60_000])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_where_the_second_stream_begins(kind: str, size: int, tmp_path: Path) -> None:
    # What a reader that takes it for padding leaves out are two thirds of the facts.
    first, second, third = streams(kind, size)
    path = tmp_path / "facts"
    path.write_bytes(first + second + third)
    assert count(path, tmp_path / "whole.mem") == 3 * size
    for number, bad in enumerate((
        bytes([second[0] ^ 0x55]) + second[1:] + third,
        second[:3] + bytes([second[3] ^ 0x55]) + second[4:] + third,
        second[:-2] + bytes([second[-2] ^ 0x55]) + second[-1:] + third,
        second[:5],
        b"something else",
    )):  # fmt: skip
        path.write_bytes(first + bad)
        refused(path, tmp_path / f"{number}.mem")


@pytest.mark.parametrize("kind", KINDS)
def test_zero_bytes_behind_a_stream(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # lbzip2 and pbzip2 take none
    first, second, _ = streams(kind, 200)
    path = tmp_path / "facts"
    for number, data in enumerate((first + b"\0" * 512, first + b"\0" * 300_000, first + b"\0" * 8 + second)):
        path.write_bytes(data)
        assert count(path, tmp_path / f"{number}.mem") == (400 if data.endswith(second) else 200)


def test_zstd_frames_that_are_to_be_skipped(tmp_path: Path) -> None:
    first, second, third = streams("zst", 200)
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path = tmp_path / "facts"
    path.write_bytes(skipped + first + skipped + second + skipped + third)
    assert count(path, tmp_path / "s.mem") == 600


@pytest.mark.parametrize("kind", KINDS)
def test_one_stream_that_expands_a_thousandfold(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_bytes(compress(kind, b'["a", "r", "b"]\n' * 400_000 + b'["c", "r", "d"]\n'))
    with pymemstore.open(tmp_path / "s.mem") as memory:
        _, items = ingest.read(ingest.Source(path))
        report = ingest.load(memory, items)
        assert (report.read, report.inserted, report.skipped, len(memory)) == (400_001, 2, 0, 2)


def tool(folder: Path, name: str, code: str) -> None:
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport bz2, sys\nread, write = sys.stdin.buffer, sys.stdout.buffer\n{code}\n"
    )
    path.chmod(0o755)


@pytest.mark.parametrize("name", ["lbzip2", "pbzip2"])
def test_a_tool_that_passes_over_damage_is_found_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The standard library's reader is such a one: it stops before a damaged header, and is content.
    tools = tmp_path / "tools"
    tools.mkdir()
    tool(tools, name, "write.write(bz2.BZ2File(read).read())")
    monkeypatch.setenv("PATH", str(tools))
    first, second, third = streams("bz2", 200)
    path = tmp_path / "facts"
    path.write_bytes(first + second + third)
    assert count(path, tmp_path / "whole.mem") == 600
    path.write_bytes(first + b"X" + second[1:] + third)
    refused(path, tmp_path / "damaged.mem", f"{name} stops before the end")
    tool(tools, name, "write.write(bz2.decompress(read.read())[:5000]); sys.exit('no\\nmore')")
    path.write_bytes(first)
    refused(path, tmp_path / "failed.mem", f"{name}: no more")


@pytest.mark.parametrize("name", ["lbzip2", "pbzip2"])
def test_the_real_tools(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no tool {name}")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    first, second, third = streams("bz2", 60_000)
    path = tmp_path / "facts"
    path.write_bytes(first + second + third)
    assert count(path, tmp_path / "whole.mem") == 180_000
    for number, bad in enumerate((b"X" + second[1:] + third, second[: len(second) // 2], b"something else")):
        path.write_bytes(first + bad)
        refused(path, tmp_path / f"{number}.mem")


def test_a_named_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    writer = subprocess.Popen([sys.executable, "-c", code, str(pipe)], stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "pymemstore.cli", "import", "tsv", str(pipe)]
    command += ["--into", str(tmp_path / "s.mem"), "--no-embed", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        writer.communicate(gzip.compress(lines(0, 20_000)), timeout=60)
        out, _ = running.communicate(timeout=60)
    finally:
        writer.kill()
        running.kill()
    assert (writer.returncode, running.returncode) == (0, 0)
    assert json.loads(out)["inserted"] == 20_000


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, shared_case: Callable[[str], Path]) -> None:
    nothing = tmp_path / "nothing"
    for data in (shared_case("import/zero_bytes.json").read_bytes(), gzip.compress(b""), bz2.compress(b"")):
        nothing.write_bytes(data)
        with (
            pymemstore.open(tmp_path / "s.mem") as memory,
            pytest.raises(pymemstore.InvalidArgument, match="the file is empty"),
        ):
            ingest.bulk_import(memory, [nothing], "wikidata", embed=False)
