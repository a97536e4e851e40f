"""The files under index/: faults, full disks, kills, interrupts, two processes, and `pymemstore reindex`."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_search import SEARCHES, all_agree, named, near_vectors, opened, self_found

import pymemstore
from pymemstore import InvalidArgument, Memory

DIM, ROWS = 24, 5000
PHASES = ("clustering", "coding", "sealing", "linking", "finding")
CODES, GRAPH = "index/entities-000001.codes", "index/entities-000001.graph"
SMALL = 6  # sections of a codes file that are checked whenever it is opened
VECTORS = near_vectors(DIM, ROWS, DIM)
QUERIES = VECTORS[::499]
ANSWERS = "[[m.similar_entities(q, t) for q in queries] for t in (.5, .9, .999)]"


def answers(m: Memory) -> list[list[list[tuple[str, float]]]]:
    return [[m.similar_entities(q, t) for q in QUERIES] for t in (0.5, 0.9, 0.999)]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A sealed store with a graph, and the answers before it was sealed."""
    path = tmp_path_factory.mktemp("sealed") / "m.mem"
    with opened(path, DIM) as m:
        m.add_entities(named(ROWS), vectors=VECTORS)
        before = answers(m)
        assert all_agree(m, dict(zip(named(ROWS), VECTORS, strict=True)), QUERIES) > 300
        m.reindex(graph=True)
        assert answers(m) == before
    return path, before


@pytest.fixture
def store(sealed: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed[0], tmp_path / "m.mem"))


def sections(data: bytes) -> list[tuple[int, int]]:
    """Offset and size of each section of a derived file."""
    (count,) = struct.unpack_from("<I", data, 44)
    return [struct.unpack_from("<QQ", data, 56 + 20 * i) for i in range(count)]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def refused(store: Path, name: str, data: bytes, before: Any, check: bool = True) -> str:
    """Opens the store with the file so: the answers are right, stats() and check() say why it is refused."""
    (store / name).write_bytes(data)
    with opened(store, DIM) as m:
        assert answers(m) == before
        problem = m.stats().entity_index_problem
        assert Path(name).name in problem
        report = m.check() if check else None
        assert report is None or (not report.ok and any(problem in p for p in report.problems))
    return problem


def mended(store: Path, before: Any, **options: Any) -> None:
    with opened(store, DIM) as m:
        m.reindex(**options)
        stats = m.stats()
        assert (stats.entity_index_problem, stats.entity_sealed_rows) == ("", ROWS)
        assert answers(m) == before and m.check().ok
        if (store / GRAPH).exists():
            assert stats.graph_rows == ROWS and self_found(m, named(ROWS)[::99]) == []


# ---- damaged files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CODES, GRAPH])
def test_a_truncated_file_is_not_used(store: Path, sealed: tuple[Path, Any], name: str) -> None:
    data = (store / name).read_bytes()
    last = max(offset + size for offset, size in sections(data))
    for length in (0, 1, 55, 100, 4095, 4096, 4097, len(data) // 2, last - 1):
        problem = refused(store, name, data[:length], sealed[1])
        assert "short" in problem or "damaged" in problem, (length, problem)
    mended(store, sealed[1], graph=name == GRAPH)
    assert (store / name).stat().st_size == len(data)


@pytest.mark.parametrize("name", [CODES, GRAPH])
def test_a_flipped_bit_in_the_header_is_seen(store: Path, sealed: tuple[Path, Any], name: str) -> None:
    data = (store / name).read_bytes()
    end = 56 + 20 * len(sections(data)) + 4
    rng = random.Random(1)
    for at in [0, 7, 8, 12, 16, 31, 32, 36, 40, 44, 47, 48, 55, end - 1, *rng.sample(range(end), 20)]:
        refused(store, name, flipped(data, at, rng.randrange(8)), sealed[1], check=at < 20)
    mended(store, sealed[1], graph=name == GRAPH)


def test_a_flipped_bit_in_a_small_section_is_seen(store: Path, sealed: tuple[Path, Any]) -> None:
    rng = random.Random(2)
    for name, small in ((CODES, SMALL), (GRAPH, 1)):
        data = (store / name).read_bytes()
        for offset, size in sections(data)[:small]:
            for at in [offset, offset + size - 1, offset + rng.randrange(size)] if size else []:
                problem = refused(
                    store, name, flipped(data, at, rng.randrange(8)), sealed[1], check=at == offset
                )
                assert "damaged" in problem
        mended(store, sealed[1], graph=name == GRAPH)


@pytest.mark.parametrize("name", [CODES, GRAPH])
def test_a_flipped_bit_in_the_bulk_is_found_by_check(
    store: Path, sealed: tuple[Path, Any], name: str
) -> None:
    """Searches don't read all of a big file, so they may miss it; they don't crash, and check() tells."""
    data = (store / name).read_bytes()
    rng = random.Random(3)
    bulk = [s for s in sections(data)[SMALL if name == CODES else 1 :] if s[1]]
    assert len(bulk) >= 2
    for offset, size in bulk:
        for at in sorted(
            {offset, offset + 3, offset + size - 1, *(offset + rng.randrange(size) for _ in "123")}
        ):
            (store / name).write_bytes(flipped(data, at, rng.randrange(8)))
            with opened(store, DIM) as m:
                for search in SEARCHES:
                    for q in QUERIES[:4]:
                        for found, cosine in m.similar_entities(q, 0.7, search=search):
                            assert found.startswith("e") and cosine >= 0.7 - 2e-6
                report = m.check()
                assert not report.ok and name in report.problems[0]
                assert "checksum" in report.problems[0] or "other vectors" in report.problems[0]
    mended(store, sealed[1], graph=name == GRAPH)


def test_noise_in_the_bulk_does_not_crash(store: Path, sealed: tuple[Path, Any]) -> None:
    rng = np.random.default_rng(4)
    for name, small in ((CODES, SMALL), (GRAPH, 1)):
        data = (store / name).read_bytes()
        for offset, size in sections(data)[small:]:
            for noise in (rng.bytes(size), b"\xff" * size):
                (store / name).write_bytes(data[:offset] + noise + data[offset + size :])
                with opened(store, DIM) as m:
                    for search in SEARCHES:
                        for q in QUERIES[:4]:
                            m.similar_entities(q, 0.7, search=search)
                    m.query_many([{"subject_vector": q, "relation_vector": q} for q in QUERIES])
                    assert noise == data[offset : offset + size] or not m.check().ok
        mended(store, sealed[1], graph=name == GRAPH)


@pytest.mark.parametrize("name", [CODES, GRAPH])
def test_other_files_in_its_place_are_not_used(
    store: Path, sealed: tuple[Path, Any], name: str, tmp_path: Path
) -> None:
    data = (store / name).read_bytes()
    with opened(tmp_path / "other.mem", DIM) as other:  # of the same numbers
        other.add_entities(named(ROWS), vectors=VECTORS[::-1])
        other.reindex(graph=True)
    assert "another store" in refused(store, name, (tmp_path / "other.mem" / name).read_bytes(), sealed[1])
    another = GRAPH if name == CODES else CODES
    assert "another kind" in refused(store, name, (sealed[0] / another).read_bytes(), sealed[1])
    refused(store, name, b"\0" * len(data), sealed[1])
    refused(store, name, b"text\n" * 2000, sealed[1])
    newer = data[:8] + struct.pack("<I", 2) + data[12:]
    assert "version" in refused(store, name, newer, sealed[1])
    (store / name).unlink()
    (store / name).symlink_to(store / "nowhere")
    with opened(store, DIM) as m:
        assert answers(m) == sealed[1]
    mended(store, sealed[1], graph=name == GRAPH)
    (store / name).unlink()
    with opened(store, DIM) as m:  # what is not there is no damage
        assert answers(m) == sealed[1] and m.stats().entity_index_problem == "" and m.check().ok


def test_a_damaged_graph_does_not_outlive_a_reindex(store: Path, sealed: tuple[Path, Any]) -> None:
    (store / GRAPH).write_bytes((store / GRAPH).read_bytes()[:5000])
    with opened(store, DIM) as m:
        m.reindex()
        assert answers(m) == sealed[1] and m.stats().entity_sealed_rows == ROWS
        assert m.stats().entity_index_problem == "" and m.check().ok


def test_the_file_of_a_copy_that_went_its_own_way_is_not_used(store: Path, tmp_path: Path) -> None:
    """As when an old copy of a store is put back and its newer index/ stays: the same ids and numbers."""
    copy = Path(shutil.copytree(store, tmp_path / "copy.mem"))
    with opened(copy, DIM) as m:
        m.add_entities(named(500, "theirs"), vectors=near_vectors(77, 500, DIM))
        m.reindex()
    own = near_vectors(78, 500, DIM)
    with opened(store, DIM) as m:
        m.add_entities(named(500, "own"), vectors=own)
    (store / GRAPH).unlink()
    (store / CODES).write_bytes((copy / CODES).read_bytes())
    with opened(store, DIM) as m:
        missing = [i for i in range(500) if f"own{i}" not in dict(m.similar_entities(own[i], 0.99))]
        assert missing == []


def test_a_folder_in_a_files_place(store: Path, sealed: tuple[Path, Any]) -> None:
    (store / CODES).unlink()
    (store / CODES).mkdir()
    with opened(store, DIM) as m:
        assert answers(m) == sealed[1] and "entities-000001.codes" in m.stats().entity_index_problem
        with pytest.raises(OSError, match=r"entities-000001\.codes"):
            m.reindex()
        assert answers(m) == sealed[1]
    assert sorted(p.name for p in (store / "index").iterdir()) == [Path(CODES).name, Path(GRAPH).name]


def test_the_folder_is_gone_or_a_file(store: Path, sealed: tuple[Path, Any]) -> None:
    shutil.rmtree(store / "index")
    with opened(store, DIM) as m:
        assert answers(m) == sealed[1] and m.stats().entity_sealed_rows == 0 and m.check().ok
    (store / "index").write_text("")
    with opened(store, DIM) as m:
        assert answers(m) == sealed[1]
        with pytest.raises(OSError, match="index"):
            m.reindex()
    (store / "index").unlink()
    mended(store, sealed[1], graph=True)


def test_files_removed_while_the_store_is_open(store: Path, sealed: tuple[Path, Any]) -> None:
    with opened(store, DIM) as m:
        assert answers(m) == sealed[1] and m.stats().graph_rows == ROWS
        shutil.rmtree(store / "index")
        assert answers(m) == sealed[1] and m.stats().entity_sealed_rows == 0
        m.reindex()
        assert answers(m) == sealed[1] and m.stats().entity_sealed_rows == ROWS


# ---- full disks and kills ------------------------------------------------------------------------------

CHILD = """
import json, os, resource, signal, sys, numpy as np, pymemstore
from pymemstore.embedders import External
from test_search import near_vectors
path, what = sys.argv[1], sys.argv[2]
queries = near_vectors(24, 5000, 24)[::499]
m = pymemstore.open(path, embedder=External(24), sync="relaxed", threads=2)
def say(*about): print(json.dumps(about), flush=True)
"""


@contextmanager
def child(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    here = Path(__file__).resolve().parent
    root = Path(pymemstore.__file__).resolve().parents[1]
    paths = [str(root), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD + code, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the child ended"
    return json.loads(line)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97, 1.02])
def test_a_full_disk_leaves_the_old_files(store: Path, sealed: tuple[Path, Any], share: float) -> None:
    """share: of the codes file that still has room; more than all of it: the graph has not."""
    with opened(store, DIM) as m:
        m.add_entities(named(500, "new"), vectors=near_vectors(77, 500, DIM))
        before = answers(m)
    old = {p.name: p.read_bytes() for p in (store / "index").iterdir()}
    limit = int(len(old[Path(CODES).name]) * share * 5500 / ROWS)
    code = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(what), resource.RLIM_INFINITY))\n"
        "try: m.reindex(graph=True, force=True)\n"
        "except pymemstore.errors.IOError as e: say(e.errno, str(e), m.stats().entity_sealed_rows)\n"
        "say(*" + ANSWERS + ")\n"
    )
    with child(code, store, limit) as process:
        number, text, rows = heard(process)
        theirs = heard(process)
    assert "index/" in text and (number == errno.EFBIG or os.strerror(errno.EFBIG) in text)
    assert [[[tuple(x) for x in found] for found in each] for each in theirs] == before
    now = {p.name: p.read_bytes() for p in (store / "index").iterdir()}
    if share < 1:
        assert now == old and rows == ROWS
    else:
        assert rows == 5500 and Path(CODES).name in now
    with opened(store, DIM) as m:
        assert answers(m) == before
        m.reindex(graph=True)
        assert m.stats().graph_rows == m.stats().entity_sealed_rows == 5500
        assert answers(m) == before and m.check().ok
    assert {p.suffix for p in (store / "index").iterdir()} == {".codes", ".graph"}


def test_a_kill_at_any_moment(store: Path, sealed: tuple[Path, Any]) -> None:
    rng = random.Random(6)
    live: dict[str, Any] = dict(zip(named(ROWS), VECTORS, strict=True))
    code = "say('go')\nwhile True: m.reindex(graph=True, force=True)\n"
    for i in range(5):
        more = dict(zip(named(100, f"n{i} "), near_vectors(i, 100, DIM), strict=True))
        with opened(store, DIM) as m:
            m.add_entities(list(more), vectors=list(more.values()))
            live |= more
        with child(code, store, "") as process:
            assert heard(process) == ["go"]
            time.sleep(rng.uniform(0, 1.2))
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        with opened(store, DIM, timeout=5) as m:
            assert all_agree(m, live, QUERIES) > 0
            if i % 2:
                m.reindex(graph=True)
                assert m.stats().graph_rows == m.stats().entity_sealed_rows == len(live) and m.check().ok
                assert self_found(m, [*live][::50]) == [] and all_agree(m, live, QUERIES) > 0
    with opened(store, DIM) as m:
        m.reindex(graph=True, force=True)
        assert m.check().ok and all_agree(m, live, QUERIES) > 0
    assert {p.suffix for p in (store / "index").iterdir()} == {".codes", ".graph"}


# ---- two processes -------------------------------------------------------------------------------------


def test_another_process_sees_the_new_files(tmp_path: Path, sealed: tuple[Path, Any]) -> None:
    path = tmp_path / "m.mem"
    code = (
        "for line in sys.stdin:\n"
        "    found = " + ANSWERS + "\n"
        "    s = m.stats()\n"
        "    say(found, s.entity_sealed_rows, s.graph_rows)\n"
    )
    with opened(path, DIM) as m:
        m.add_entities(named(ROWS), vectors=VECTORS)
        with child(code, path, "") as process:
            assert process.stdin is not None

            def ask() -> Any:
                assert process.stdin is not None
                process.stdin.write("?\n")
                process.stdin.flush()
                found, rows, graph = heard(process)
                assert [[[tuple(x) for x in one] for one in each] for each in found] == sealed[1]
                return rows, graph

            assert ask() == (0, 0)
            for graph, wanted in ((False, (ROWS, 0)), (True, (ROWS, ROWS))):
                m.reindex(graph=graph)
                until = time.monotonic() + 2
                while (seen := ask()) != wanted and time.monotonic() < until:
                    time.sleep(0.05)
                assert seen == wanted
            process.stdin.close()


def test_one_process_reindexes_at_a_time(store: Path, sealed: tuple[Path, Any]) -> None:
    code = (
        "m.close()\n"
        "m = pymemstore.open(path, embedder=External(24), timeout=.3)\n"
        "try: m.reindex(force=True)\n"
        "except pymemstore.Locked as e: say(str(e))\n"
        "m.add_entities(['new'], vectors=queries[:1])\n"  # writers are not held up
        "say(m.stats().entity_sealed_rows)\n"
    )
    said: list[Any] = []

    def hold(phase: str, done: int, total: int) -> None:
        if phase == "coding" and not said:
            said.append(())
            with child(code, store, "") as process:
                said[:] = [heard(process), heard(process)]

    with opened(store, DIM) as m:
        m.reindex(force=True, progress=hold)
        assert str(os.getpid()) in said[0][0] and said[1] == [ROWS]
        m.reindex()
        assert m.stats().entity_sealed_rows == ROWS + 1


# ---- reindex -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupted_reindex_changes_nothing(tmp_path: Path, phase: str) -> None:
    vectors = near_vectors(2, 6000, 16)
    live: dict[str, Any] = dict(zip(named(5000), vectors, strict=False))
    index = tmp_path / "m.mem/index"
    sealing = PHASES.index(phase) < 3
    told: list[tuple[str, int, int]] = []

    def stop(at: str, done: int, total: int) -> None:
        told.append((at, done, total))
        if at == phase:
            raise KeyboardInterrupt

    with opened(tmp_path / "m.mem", 16) as m:
        m.add_entities(list(live), vectors=vectors[:5000])
        m.reindex(graph=sealing)
        m.add_entities(named(1000, "n"), vectors=vectors[5000:])
        live.update(zip(named(1000, "n"), vectors[5000:], strict=True))
        before = {p.name: p.read_bytes() for p in index.iterdir()}
        with pytest.raises(KeyboardInterrupt):
            m.reindex(graph=True, progress=stop)
        assert told[-1][0] == phase
        if sealing:
            assert {p.name: p.read_bytes() for p in index.iterdir()} == before
            assert (m.stats().entity_sealed_rows, m.stats().graph_rows) == (5000, 5000)
        else:
            assert (m.stats().entity_sealed_rows, m.stats().graph_rows) == (6000, 0)
        assert all_agree(m, live, vectors[::800]) > 0 and m.stats().entity_index_problem == ""
        again: list[tuple[str, int, int]] = []
        m.reindex(graph=True, progress=lambda *at: again.append(at))
        named_phases = list(dict.fromkeys(at for at, _, _ in again))
        # What was linked when "finding" was interrupted is not linked again
        left = PHASES if sealing else PHASES[3:] if phase == "linking" else PHASES[4:]
        assert named_phases == list(left)
        assert all(0 <= done <= total > 0 for _, done, total in told + again)
        if phase == "linking":  # it goes on where it was
            assert next(done for at, done, _ in again if at == "linking") > 0
        assert m.stats().graph_rows == 6000 and self_found(m, [*live][::60]) == [] and m.check().ok
        assert {p.suffix for p in index.iterdir()} == {".codes", ".graph"}


def test_reindex_makes_again_only_what_it_must(tmp_path: Path) -> None:
    with opened(tmp_path / "m.mem", 16) as m:
        m.add_entities(named(5000), vectors=near_vectors(2, 5000, 16))

        def phases(**options: Any) -> set[str]:
            seen: set[str] = set()
            m.reindex(progress=lambda phase, *_: seen.add(phase), **options)
            return seen

        assert phases() == set(PHASES[:3]) and phases() == set()
        assert phases(graph=True) == set(PHASES[3:]) and phases(graph=True) == phases() == set()
        assert phases(force=True) == set(PHASES[:3]) and m.stats().graph_rows == 5000
        assert phases(graph=True, force=True) == set(PHASES)
        with pytest.raises(InvalidArgument, match="progress"):
            m.reindex(progress=3)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="mine"):
            m.reindex(force=True, progress=lambda *_: (_ for _ in ()).throw(RuntimeError("mine")))
        assert m.check().ok
    with pytest.raises(pymemstore.Closed):
        m.reindex()


def test_an_interrupt_while_finding_keeps_the_links(store: Path) -> None:
    def stop(phase: str, done: int, total: int) -> None:
        if phase == "finding":
            raise KeyboardInterrupt

    (store / GRAPH).unlink()
    again: list[tuple[str, int, int]] = []
    with opened(store, DIM) as m:
        with pytest.raises(KeyboardInterrupt):
            m.reindex(graph=True, progress=stop)
        m.reindex(graph=True, progress=lambda *at: again.append(at))
    assert not [at for at in again if at[0] == "linking" and at[1] < 4096]


# ---- sealing without the graph, and by itself -----------------------------------------------------------


@pytest.fixture
def lagging(store: Path) -> Iterator[Memory]:
    """A store whose graph lacks rows that were sealed since, as it happens in the background."""
    with opened(store, DIM) as m:
        m.add_entities(named(500, "new"), vectors=near_vectors(77, 500, DIM))
        m.reindex()
        yield m


def test_a_graph_that_lacks_rows_is_not_used(lagging: Memory) -> None:
    m = lagging
    stats = m.stats()
    assert (stats.entity_sealed_rows, stats.graph_rows) == (ROWS + 500, 0)
    assert "graph" in stats.entity_index_problem
    live = dict(zip([*named(ROWS), *named(500, "new")], [*VECTORS, *near_vectors(77, 500, DIM)], strict=True))
    assert all_agree(m, live, QUERIES) > 300
    m.reindex(graph=True)
    assert m.stats().graph_rows == ROWS + 500 and m.stats().entity_index_problem == "" and m.check().ok


def test_a_graph_that_lacks_rows_is_no_damage(lagging: Memory) -> None:
    assert lagging.check().problems == ()


def test_codes_beside_a_graph_that_lacks_rows_are_not_made_again(lagging: Memory) -> None:
    seen: set[str] = set()
    lagging.reindex(progress=lambda phase, *_: seen.add(phase))
    assert seen == set()


def test_a_store_seals_itself(tmp_path: Path) -> None:
    vectors = near_vectors(3, 100_000, 4)
    with opened(tmp_path / "m.mem", 4) as m:
        m.add_entities(named(99_999), vectors=vectors[:-1])
        time.sleep(0.3)
        assert m.stats().entity_sealed_rows == 0
        m.add_entities(["last"], vectors=vectors[-1:])
        until = time.monotonic() + 10
        while m.stats().entity_sealed_rows == 0 and time.monotonic() < until:
            time.sleep(0.1)
        assert m.stats().entity_sealed_rows == 100_000 and m.stats().merge_error == ""
        live = dict(zip([*named(99_999), "last"], vectors, strict=True))
        assert all_agree(m, live, vectors[:3], (0.99, 0.9999)) > 0
    with opened(tmp_path / "n.mem", 4, auto_merge=False) as m:
        m.add_entities(named(100_000), vectors=vectors)
        time.sleep(0.3)
        assert m.stats().entity_sealed_rows == 0


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    pytest.importorskip("typer", reason="the command line needs typer")
    pytest.importorskip("rich", reason="the command line needs rich")
    from pymemstore.cli.app import app

    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([str(a) for a in arguments], prog_name="pymemstore")
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_the_command(cli: Callable[..., Any], store: Path, sealed: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.rmtree(store / "index")
    code, out, _ = cli("reindex", store)
    assert code == 0 and "Sealed 5,000 entity vectors." in out
    code, out, err = cli("reindex", store, "--graph", "--json")
    assert code == 0 and out.count("\n") == 1 and err == ""
    made = json.loads(out)
    with opened(store, DIM) as m:
        stats = m.stats()
        assert answers(m) == sealed[1]
    assert made == {
        "sealed_entities": ROWS, "sealed_relations": 0, "graph": ROWS,
        "clusters": stats.clusters, "code_bits": stats.code_bits,
    }  # fmt: skip
    before = (store / CODES).stat().st_ino
    assert cli("reindex", store)[1].endswith("5,000 in the graph.\n")
    assert (store / CODES).stat().st_ino == before
    assert cli("reindex", store, "--force")[0] == 0 and (store / CODES).stat().st_ino != before
    (store / CODES).write_bytes(b"")
    assert cli("check", store)[0] == 1 and cli("reindex", store)[0] == 0 and cli("check", store)[0] == 0
    with pymemstore.open(tmp_path / "small.mem") as memory:
        memory.add("Ana", "lives in", "Recife")
    code, out, _ = cli("reindex", tmp_path / "small.mem", "--graph")
    assert code == 0 and "Sealed 0 entity vectors." in out
    assert json.loads(cli("reindex", tmp_path / "small.mem", "--json")[1])["sealed_entities"] == 0


def test_the_command_without_a_store(cli: Callable[..., Any], tmp_path: Path) -> None:
    for more in ((), ("--json",)):
        code, out, err = cli("reindex", tmp_path / "none.mem", *more)
        other, other_out, other_err = cli("stats", tmp_path / "none.mem", *more)
        assert code == other != 0 and "none.mem" in (out + err) and bool(out) == bool(other_out)
        assert bool(err) == bool(other_err)
    assert cli("reindex")[0] == cli("stats")[0] == 2
    assert not (tmp_path / "none.mem").exists()
