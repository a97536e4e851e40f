"""The fault cases of durability: killed at any moment, damaged files, full disks (D01-D08, S07, S12, V18)."""

from __future__ import annotations

import contextlib
import errno as errno_module
import json
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crash_child
import pytest
from crash_child import DIM, batch, open_store, result, start
from hashed import Hashed

import pymemstore
from pymemstore import Corruption, NotFound

NAMES = [f"e{i}" for i in range(200)]
REL = {"vectors": "vectors/entities-000001.vec", "relations": "vectors/relations-000001.vec"}
FILES = {**REL, "data": "gen-000001/data.mdb", "current": "CURRENT"}


def kill_at(seconds: float, *args: Any) -> set[int]:
    """Starts a writer, kills it so long after it began, and returns what it had acknowledged."""
    process, connection = start(crash_child.write, *args)
    assert connection.recv() == "go"
    time.sleep(seconds)
    process.kill()
    process.join()
    acknowledged = set()
    with contextlib.suppress(EOFError):
        while True:
            if isinstance(said := connection.recv(), int):
                acknowledged.add(said)
    connection.close()
    return acknowledged


def assert_sound(seen: Any, acknowledged: set[int]) -> None:
    """crash_points.json's five expectations, as a new process finds them."""
    assert isinstance(seen, dict), seen  # the store opens
    assert seen["torn"] == set() and seen["whole"] >= acknowledged
    in_flight = seen["whole"] - acknowledged
    assert not in_flight or in_flight == {max(acknowledged, default=-1) + 1}
    assert seen["unfound"] == [] and seen["pending"] == 0
    assert seen["unknown"] == [] and seen["unnamed"] == []
    assert not seen["moved"]
    assert seen["problems"] == () and seen["log"] == 5 * len(seen["whole"])


def leftovers(path: Path) -> list[str]:
    """Files of other generations than the live one."""
    live = (path / "CURRENT").read_text().strip()
    return [p.name for p in path.iterdir() if p.name not in {live, "CURRENT", "LOCK", "vectors"}]


def test_crash_points_are_those_known(shared_case: Callable[[str], Path]) -> None:
    points = json.loads(shared_case("ops/crash_points.json").read_text())
    # What the kills and `assert_sound` stand for.
    assert len(points["points"]) == 9 and len(points["expect"]) == 5


@pytest.mark.parametrize("seed", range(3))
def test_crash_points_D01_D04_S12_killed_while_writing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = str(tmp_path / "m.mem")
    acknowledged: set[int] = set()
    for _ in range(4):
        acknowledged |= kill_at(rng.uniform(0.02, 0.3), path, len(acknowledged))
        seen = result(crash_child.look, path)
        assert_sound(seen, acknowledged)
        acknowledged = seen["whole"]
    assert acknowledged


@pytest.mark.parametrize("seed", range(3))
def test_crash_points_D06_D08_killed_while_compacting(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "m.mem"
    with open_store(str(path), sync="relaxed") as m:
        m.add_many([row for i in range(40) for row in batch(i)])
    acknowledged = set(range(40))
    for _ in range(4):
        acknowledged |= kill_at(rng.uniform(0.02, 0.3), str(path), len(acknowledged), 1)
        seen = result(crash_child.look, str(path))
        assert_sound(seen, acknowledged)
        acknowledged = seen["whole"]
    # What a compaction that was cut short left is gone after the next one.
    with open_store(str(path)) as m:
        m.compact()
    assert leftovers(path) == [] and len(list((path / "vectors").iterdir())) == 2


def test_crash_points_D07_killed_while_creating(tmp_path: Path) -> None:
    rng = random.Random(0)
    for i in range(10):
        path = str(tmp_path / f"{i}.mem")
        acknowledged = kill_at(rng.uniform(0.0, 0.06), path, 0)
        seen = result(crash_child.look, path)
        assert_sound(seen, acknowledged)
        with open_store(path) as m:
            assert m.add_many(batch(len(seen["whole"]))).inserted == 5


# ---- damaged files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "sound.mem"
    with open_store(str(path), sync="relaxed") as m:
        facts = [(n, f"r{i % 3}", NAMES[i * 7 % 200]) for i, n in enumerate(NAMES)]
        for start in range(0, 200, 20):  # ten commits
            m.add_many(facts[start : start + 20])
            if start == 100:
                shutil.copytree(path, path.with_name("older.mem"))
    return path


class Examiner:
    """A child process that opens damaged stores; a new one when it dies."""

    def __init__(self) -> None:
        self.process, self.connection = start(crash_child.examine, NAMES)

    def __call__(self, path: Path) -> Any:
        """The error's name, (problems, names found), or ("died", exit code)."""
        self.connection.send(str(path))
        try:
            return self.connection.recv() if self.connection.poll(60) else "hangs"
        except (EOFError, ConnectionResetError):
            self.process.join()
            died = "died", self.process.exitcode
            self.__init__()  # type: ignore[misc]
            return died

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(5)
        self.process.kill()


@pytest.fixture
def examine() -> Iterator[Examiner]:
    examiner = Examiner()
    yield examiner
    examiner.close()


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(path)): f.read_bytes()
        for f in sorted(path.rglob("*"))
        if f.is_file() and f.name not in ("lock.mdb", "USE", "LOCK")
    }


def damaged(sound: Path, to: Path, file: str, data: bytes) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(sound, to)
    (to / FILES[file]).write_bytes(data)
    return to


@pytest.mark.parametrize("file", FILES)
def test_index_damaged_V18_cut_anywhere(sound: Path, tmp_path: Path, examine: Examiner, file: str) -> None:
    whole = (sound / FILES[file]).read_bytes()
    rng = random.Random(1)
    answers = {}
    for size in sorted({rng.randrange(len(whole)) for _ in range(20)} | {0}):
        store = damaged(sound, tmp_path / "d.mem", file, whole[:size])
        before = contents(store)
        answers[size] = examine(store)
        assert contents(store) == before
    # Cut in what is committed: a named error. A CURRENT without its newline is whole, and a data.mdb may have
    # lost pages that nothing uses; then everything must be there.
    named = {a for size, a in answers.items() if file != "current" or size < 10}
    assert named - ({((), 200)} if file == "data" else set()) == {"Corruption"}, answers


@pytest.mark.parametrize("file", ["vectors", "data"])
def test_index_damaged_V18_one_bit_flipped(sound: Path, tmp_path: Path, examine: Examiner, file: str) -> None:
    whole = (sound / FILES[file]).read_bytes()
    rng = random.Random(2)
    seen = []
    for _ in range(100):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        store = damaged(sound, tmp_path / "d.mem", file, bytes(flipped))
        before = contents(store)
        answer = examine(store)
        assert contents(store) == before
        seen.append(answer)
        if answer != "Corruption":
            problems, found = answer  # else it died or hangs
            # Told by check(), or without effect (a byte that nothing uses).
            assert problems or found == 200
    assert any(a == "Corruption" or a[0] for a in seen)  # the flips do reach what is used


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3.4028234e38, 0.0])
def test_index_damaged_V09_a_vector_gone_bad_on_disk(
    sound: Path, tmp_path: Path, examine: Examiner, value: float
) -> None:
    """NaN, infinities, the largest float, zeros: reported, and the other names are found all the same."""
    whole = bytearray((sound / FILES["vectors"]).read_bytes())
    stride = 4 * DIM + 8
    rows = len(whole) - 200 * stride
    for row in (0, 77, 199):
        whole[rows + row * stride : rows + row * stride + 4 * DIM] = struct.pack("<f", value) * DIM
    store = damaged(sound, tmp_path / "d.mem", "vectors", bytes(whole))
    problems, found = examine(store)
    assert len(problems) == 3 and found == 197
    with open_store(str(store)) as m:
        bad = [n for n in m.entities() if any(repr(n) in p for p in problems)]
        assert len(bad) == 3
        for n in bad:
            with pytest.raises(Corruption, match=n):
                m.vector(n)
        scores = [s for _, s in m.similar_entities(Hashed(DIM).one("e5"), -1.0)]
        assert all(-1.000001 <= s <= 1.000001 for s in scores)
        m.set_vector("e5", Hashed(DIM).one("e5"))  # a dead vector, so that compact() rewrites them
        with pytest.raises(Corruption, match=r"damaged: not compacted"):
            m.compact()  # does not drop what it cannot read
        for n in bad:
            m.set_vector(n, Hashed(DIM).one(n))  # mends it
        assert m.check().ok
        assert all(n in dict(m.similar_entities(Hashed(DIM).one(n), 0.9999)) for n in NAMES)


@pytest.mark.parametrize("header", range(0, 40, 4))
def test_index_damaged_in_the_header(sound: Path, tmp_path: Path, examine: Examiner, header: int) -> None:
    whole = bytearray((sound / FILES["vectors"]).read_bytes())
    whole[header] ^= 0x10
    assert examine(damaged(sound, tmp_path / "d.mem", "vectors", bytes(whole))) == "Corruption"


def test_index_gone_D03(sound: Path, tmp_path: Path, examine: Examiner) -> None:
    """The vector files are the truth, not an index: without them, or with older ones, there is a named error,
    nothing is made anew, and with the right ones back all is there."""
    store = tmp_path / "d.mem"
    older = sound.with_name("older.mem")
    for file in REL.values():
        shutil.copytree(sound, store)
        kept = (store / file).read_bytes()
        (store / file).unlink()
        before = contents(store)
        assert examine(store) == "Corruption"
        with pytest.raises(Corruption, match=f"{Path(file).name} is missing"):
            open_store(str(store))
        assert contents(store) == before
        (store / file).write_bytes((older / file).read_bytes())
        if file == FILES["vectors"]:
            assert examine(store) == "Corruption"
            with pytest.raises(Corruption, match=f"{Path(file).name}.*rows"):
                open_store(str(store))
        (store / file).write_bytes(kept)
        assert examine(store) == ((), 200)
        shutil.rmtree(store)
    # Of another store, of the same size: the same dimension and count do not make it this store's.
    with open_store(str(tmp_path / "other.mem"), sync="relaxed") as m:
        m.add_many([(n, f"r{i % 3}", NAMES[i * 7 % 200]) for i, n in enumerate(NAMES)])
    foreign = (tmp_path / "other.mem" / FILES["vectors"]).read_bytes()
    with pytest.raises(Corruption, match="another store"):
        open_store(str(damaged(sound, store, "vectors", foreign)))


def test_absent_path_D07(sound: Path, tmp_path: Path) -> None:
    def refused(path: Path, error: type[Exception], match: str, **options: Any) -> None:
        before = contents(path) if path.is_dir() else None
        with pytest.raises(error, match=match) as caught:
            open_store(str(path), **options)
        assert path.name in str(caught.value)
        assert (contents(path) if path.is_dir() else None) == before

    for options in ({"create": False}, {"read_only": True}):
        refused(tmp_path / "absent.mem", NotFound, "no store", **options)
        assert not (tmp_path / "absent.mem").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("Dear Ana")
    refused(other, Corruption, "letter.txt")
    (tmp_path / "file.mem").write_text("not a folder")
    refused(tmp_path / "file.mem", Corruption, "folder")
    (tmp_path / "empty.mem").mkdir()
    refused(tmp_path / "empty.mem", NotFound, "no store", create=False)
    for name, data in {"CURRENT": b"gen-000099\n", "current2": b"../../etc\n", "current3": b""}.items():
        store = damaged(sound, tmp_path / f"{name}.mem", "current", data)
        refused(store, Corruption, "CURRENT|missing")
    store = damaged(sound, tmp_path / "no-data.mem", "data", b"")
    (store / FILES["data"]).unlink()
    refused(store, Corruption, "data.mdb")
    store = damaged(sound, tmp_path / "foreign.mem", "data", os.urandom(1 << 16))
    refused(store, Corruption, "data.mdb")
    store = tmp_path / "no-current.mem"
    shutil.copytree(sound, store)
    (store / "CURRENT").unlink()
    refused(store, Corruption, "CURRENT")  # facts without a CURRENT are damage, not a creation cut short
    (store / "CURRENT").write_text("gen-000001\n")
    with open_store(str(store)) as m:
        assert len(m) == 200 and m.check().ok


def test_S15_a_newer_format_is_refused_by_name(sound: Path, tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    store = tmp_path / "newer.mem"
    shutil.copytree(sound, store)
    with lmdb.open(str(store / "gen-000001"), max_dbs=64) as env, env.begin(write=True) as txn:
        assert txn.put(b"version", (99).to_bytes(4, "little"), db=env.open_db(b"meta", txn=txn))
    with pytest.raises(pymemstore.VersionMismatch, match=r"99.*newer"):
        open_store(str(store))


# ---- limits ------------------------------------------------------------------------------------------


def run_full_disk(path: Path, limit: int, free: Callable[[], object]) -> None:
    process, connection = start(crash_child.full_disk, str(path), limit)
    try:
        connection.recv()
        assert connection.poll(60), "hangs"
        errors, stored, (listed, counted, problems) = connection.recv()  # EOFError: it died (SIGBUS)
        assert stored > 0 and (listed, counted, problems) == (stored, stored, ())
        for kind, errno, text in errors:
            assert kind == "IOError" and errno in (errno_module.EFBIG, errno_module.ENOSPC), errors
            assert "No space" in text or "too large" in text, errors
        free()
        connection.send("go on")
        assert connection.poll(60), "hangs"
        assert connection.recv() == (stored + 500, ())
    finally:
        process.kill()
        process.join()
    with open_store(str(path)) as m:
        assert len(m) == stored + 500 and m.check().ok


def test_enospc_D05_S07_file_size_limit(tmp_path: Path) -> None:
    run_full_disk(tmp_path / "m.mem", 3 << 20, lambda: None)


def test_enospc_D05_S07_16_MiB_file_system(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    may = os.geteuid() == 0 and shutil.which("mount")
    if not may or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(8 << 20))
        run_full_disk(disk / "m.mem", 0, ballast.unlink)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_huge_map_small_box_S10(tmp_path: Path) -> None:
    answer = result(crash_child.small_address_space, str(tmp_path / "m.mem"), 2 << 30)
    assert isinstance(answer, tuple) and len(answer) == 3, answer
    found, map_size, problems = answer
    assert found == ["o4"] and problems == () and map_size < 2 << 30
