"""The tuning aid: its figures against brute force, its refusals, and the command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hashed import Hashed

import pymemstore
from pymemstore import tune
from pymemstore.embedders import External, RelationWords, Surface

SYLLABLES = ["ba", "den", "ko", "lin", "mar", "no", "pe", "ras", "sel", "ti", "und", "vor", "wex", "yu"]
FLAWS = 60
SLACK = 1e-6


def made_names(count: int, seed: int = 1) -> list[str]:
    """Names of two or three words of few syllables, so that many are near one another."""
    rng, names = random.Random(seed), dict[str, None]()
    while len(names) < count:
        words = [
            "".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))).title() for _ in range(rng.randint(2, 3))
        ]
        names[" ".join(words)] = None
    return list(names)


NAMES = made_names(2_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "names.mem"
    with pymemstore.open(path) as memory:
        memory.add_entities(NAMES)
        memory.add_relations(["place of birth", "date of birth", "capital of", "spouse", "Field of Work"])
    return path


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    rng = random.Random(7)
    return [(tune.slip(name, rng)[0], name) for name in rng.sample(NAMES, FLAWS)]


def cosines(texts: list[str], names: list[str]) -> npt.NDArray[np.float64]:
    """All cosines, (texts, names), of what the embedder gives, by numpy alone."""
    a, b = (Surface().encode(part).astype(np.float64) for part in (texts, names))
    return (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T


def test_the_figures_are_those_of_brute_force(store: Path, pairs: list[tuple[str, str]]) -> None:
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, pairs, taus=[*tune.TAUS, 0.0])
    assert [row.tau for row in report.rows] == [0.0, *tune.TAUS]
    assert (report.planned, report.asked, report.labelled, report.names) == (FLAWS, FLAWS, FLAWS, 2_000)
    truth = cosines([text for text, _ in pairs], NAMES)
    meant = truth[np.arange(FLAWS), [NAMES.index(name) for _, name in pairs]]
    seen = set()
    for row in report.rows:
        counts, found = (truth >= row.tau - SLACK).sum(axis=1), int((meant >= row.tau - SLACK).sum())
        assert row.candidates.mean == pytest.approx(counts.mean(), abs=1e-9)
        assert row.candidates.median == np.median(counts)
        assert row.candidates.p95 == pytest.approx(np.percentile(counts, 95))
        assert (row.candidates.max, row.candidates.none) == (counts.max(), (counts == 0).mean())
        assert (row.found, row.recall) == (found, found / FLAWS)
        assert row.false_candidates == pytest.approx((counts.sum() - found) / FLAWS)
        assert row.recall_interval is not None
        assert 0 <= row.recall_interval[0] <= row.recall <= row.recall_interval[1] <= 1
        assert row.exact is not None and 0 < row.exact.median <= row.exact.p95 and row.exact.searches == 20
        assert row.graph is None  # the store has none
        seen.add(found)
    assert len(seen) > 4  # the queries do tell thresholds apart

    rows = report.rows
    assert report.recommendation.tau == max(row.tau for row in rows if row.found >= 0.95 * rows[0].found)
    assert report.recommendation.size_tau == min(row.tau for row in rows if row.candidates.mean <= 10)
    assert report.recommendation.tau_r == (report.recommendation.tau + Surface.thresholds.tau_t) / 2
    assert (report.store_tau, report.other_tau) == Surface.thresholds[:2]


def test_up_to_the_told_tau_r_nothing_is_taken_away(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m") as memory:
        memory.add_many((NAMES[i], ("place of birth", "date of birth")[i % 2], "x") for i in range(500))
        advice = tune.measure(memory, sample=100).recommendation
        assert advice.tau is not None and advice.tau_r is not None
        assert any(f"{advice.tau_r:.3f}" in note for note in advice.notes)
        asked = [{"subject": name.lower()[:-1], "relation": "birth place"} for name in NAMES[:500:5]]
        all_hits, same = (
            [result.hits for result in memory.query_many(asked, tau_e=advice.tau, tau_r=tau_r, rules="none")]
            for tau_r in (-1.0, advice.tau_r)
        )
    assert any(all_hits) and all_hits == same


def test_made_up_queries(store: Path) -> None:
    told: list[tuple[int, int]] = []
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, sample=40, seed=3, progress=lambda *so_far: told.append(so_far))
        again = tune.measure(memory, sample=40, seed=3)
        other = tune.measure(memory, sample=40, seed=4)
    assert told == [(i + 1, 40) for i in range(40)]

    def found(report: tune.TuningReport) -> list[Any]:
        return [(row.candidates, row.found) for row in report.rows]

    assert found(report) == found(again) != found(other)
    assert report.source == "slips" and report.labelled == 40 and report.complete
    assert sum(row.queries for row in report.slips) == 40
    assert {row.slip for row in report.slips} == {"letter", "word", "case"}
    at_one = {row.slip: row.recall[-1] for row in report.slips}
    assert at_one["case"] == 1 and at_one["letter"] < 0.5  # surf256 folds case
    assert report.by_rule is not None and report.by_rule > 0
    assert any("made-up slips" in note for note in report.recommendation.notes)
    assert json.loads(json.dumps(asdict(report), allow_nan=False))["planned"] == 40


def test_slips() -> None:
    rng = random.Random(0)
    for name in NAMES[:300]:
        text, kind = tune.slip(name, rng)
        if kind == "letter":
            assert len(text) == len(name) and sum(a != b for a, b in zip(text, name, strict=True)) == 1
        elif kind == "word":
            assert len(text.split()) == len(name.split()) - 1 and set(text.split()) <= set(name.split())
        else:
            assert kind == "case" and text == name.lower() != name
    assert tune.slip("1963", rng) == ("1963", "")
    assert tune.slip("x", rng) == ("x", "")
    assert tune.slip("東京", rng) in [("東", "letter"), ("京", "letter")]


def test_relations(store: Path) -> None:
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, [("birth place", "place of birth")], relation=True, taus=[0.4, 0.9])
    assert (report.kind, report.names, report.embedder) == ("relation", 5, "rel256")
    assert report.store_tau == RelationWords.thresholds.tau_t
    assert report.rows[0].found == 1
    assert any("Only 1 queries" in note for note in report.recommendation.notes)


def test_without_known_answers_nothing_is_recommended(store: Path) -> None:
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, NAMES[:3], taus=[0.6, 1.0])
        mixed = tune.measure(memory, [NAMES[0], (NAMES[1].lower(), NAMES[1])], taus=[1.0])
    assert report.recommendation.tau is None and report.recommendation.size_tau is not None
    assert report.rows[0].recall is None and report.rows[0].false_candidates is None
    assert "none is recommended" in report.recommendation.notes[0]
    assert (mixed.asked, mixed.labelled, mixed.rows[0].recall) == (2, 1, 1.0)


def test_a_lone_threshold_is_not_recommended(store: Path, pairs: list[tuple[str, str]]) -> None:
    with pymemstore.open(store, read_only=True) as memory:
        advice = tune.measure(memory, pairs, taus=[0.3]).recommendation
    assert advice.tau is None and any("Only one threshold" in note for note in advice.notes)


def test_both_sides_of_a_conflict_are_told(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m") as memory:
        memory.add_entities(f"Benko Marlin Tivor {i}" for i in range(100))  # near one another
        pairs = [(f"Benko Marlin {i}", f"Benko Marlin Tivor {i}") for i in range(60)]
        report = tune.measure(memory, pairs, taus=[0.2, 0.3, 1.0])
    advice, rows = report.recommendation, report.rows
    assert advice.tau is not None and advice.size_tau is not None and advice.tau < advice.size_tau == 1.0
    assert any(f"{rows[-1].found} of {rows[0].found} still found" in note for note in advice.notes)


def test_when_nothing_is_found_nothing_is_recommended(store: Path) -> None:
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, [("qqqq 77", NAMES[0])] * 60, taus=[0.9, 1.0])
    assert report.recommendation.tau is None
    assert any("No intended name was found" in note for note in report.recommendation.notes)


def test_a_graph_is_measured_against_the_exact_search(
    store: Path, pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = pymemstore.Memory.similar_entities

    def lossy(memory: Any, asked: Any, tau: float, *, search: str = "auto", limit: None = None) -> Any:
        found = exact(memory, asked, tau)
        return found[: (len(found) + 1) // 2] if search == "graph" else found

    class WithGraph:
        def __init__(self, stats: pymemstore.Stats) -> None:
            self.stats, self.graph_rows = stats, 2_000

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stats, name)

    stats = pymemstore.Memory.stats
    monkeypatch.setattr(pymemstore.Memory, "similar_entities", lossy)
    monkeypatch.setattr(pymemstore.Memory, "stats", lambda memory: WithGraph(stats(memory)))
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, pairs)
    truth = cosines([text for text, _ in pairs], NAMES)
    for row in report.rows:
        counts = (truth >= row.tau - SLACK).sum(axis=1)
        halves, counts = ((counts + 1) // 2)[counts > 0], counts[counts > 0]
        assert row.graph is not None and row.graph.latency.searches == FLAWS
        if len(counts):
            assert row.graph.micro == pytest.approx(halves.sum() / counts.sum())
            assert row.graph.macro == pytest.approx((halves / counts).mean())
        else:
            assert row.graph.micro is None and row.graph.macro is None
    assert any(row.graph and row.graph.micro and row.graph.micro < 0.9 for row in report.rows)


# ---- refusals ------------------------------------------------------------------------------------


def test_a_store_with_nothing_to_measure(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "empty") as memory:
        for relation, kind in ((False, "entity"), (True, "relation")):
            with pytest.raises(pymemstore.NotFound, match=f"has no {kind} names"):
                tune.measure(memory, relation=relation)
        memory.add_entities(["1912", "1913"])
        with pytest.raises(pymemstore.NotFound, match="give queries"):
            tune.measure(memory)
        assert tune.measure(memory, [("1912", "1912")]).rows[-1].recall == 1


def test_names_without_vectors(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("Ana Lima\tborn in\tRecife\n")
    from pymemstore import ingest

    with pymemstore.open(tmp_path / "m") as memory:
        ingest.bulk_import(memory, [tmp_path / "facts.tsv"], "tsv", embed=False)
        with pytest.raises(pymemstore.NotFound, match="embed_missing"):
            tune.measure(memory)
        memory.add_entities(["Olinda Nova"])
        report = tune.measure(memory)  # of the one name that has a vector
        assert (report.asked, report.unembedded) == (1, 2)
        report = tune.measure(memory, [("ana", "Ana Lima"), ("olinda", "Olinda Nova")])
        assert (report.asked, report.left_out) == (1, 1)
        with pytest.raises(pymemstore.NotFound, match="none of the 1 intended names has a vector"):
            tune.measure(memory, [("ana", "Ana Lima")])


def test_text_without_embedder(tmp_path: Path) -> None:
    vector = np.ones((1, 4), np.float32)
    with pymemstore.open(tmp_path / "m", embedder=External(4, "theirs")) as memory:
        memory.add_entities(["Ana Lima"], vectors=vector)
        with pytest.raises(pymemstore.InvalidArgument, match="theirs"):
            tune.measure(memory)
    with (
        pymemstore.open(tmp_path / "m") as memory,
        pytest.raises(pymemstore.InvalidArgument, match=r"no embedder for entity text.*theirs"),
    ):
        tune.measure(memory)


def test_another_embedder_is_asked_once(tmp_path: Path) -> None:
    embedder = Hashed()
    with pymemstore.open(tmp_path / "m", embedder=embedder) as memory:
        memory.add_entities(NAMES[:20])
        embedder.calls.clear()
        report = tune.measure(memory, sample=5)
    assert len(embedder.calls) == 1 and len(embedder.texts) == 5
    assert report.embedder == "hashed-test"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": []}, "there are no queries"),
        ({"queries": "Ana"}, "queries: expected"),
        ({"queries": ["a", 3]}, "query 1: expected a text or a pair"),
        ({"queries": ["a", ""]}, "query 1: the query is empty"),
        ({"queries": [("a", "")]}, "query 0: the intended name is empty"),
        ({"taus": []}, "taus is empty"),
        ({"taus": [0.5, 2]}, r"taus is 2.0, outside \[-1, 1\]"),
        ({"sample": 0}, "sample is 0, expected at least 1"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"progress": 3}, "progress is 3"),
    ],
)
def test_wrong_arguments(store: Path, arguments: dict[str, Any], message: str) -> None:
    with (
        pymemstore.open(store, read_only=True) as memory,
        pytest.raises(pymemstore.InvalidArgument, match=message),
    ):
        tune.measure(memory, **arguments)


def test_an_unknown_intended_name(store: Path) -> None:
    with (
        pymemstore.open(store, read_only=True) as memory,
        pytest.raises(pymemstore.NotFound, match="query 1: the store has no entity 'Nobody'"),
    ):
        tune.measure(memory, ["a", ("nobody", "Nobody")])


def test_a_file_of_queries(tmp_path: Path) -> None:
    file = tmp_path / "q.tsv"
    file.write_bytes("\ufeffben ko\tBen Ko\r\n\nplain\n \n\u2028 odd\tName\n".encode())
    asked = tune.read_queries(file)
    assert [(q.text, q.intended) for q in asked] == [
        ("ben ko", "Ben Ko"),
        ("plain", None),
        ("\u2028 odd", "Name"),
    ]
    assert asked[1].where == f"{file}, line 3"
    for content, message in (
        (b"fine\na\tb\tc\n", "line 2: 2 tabs"),
        (b"fine\n\nq\xff\n", "line 3: not UTF-8 at byte 1"),
        (b"fine\n\tname\n", "line 2: the query is empty"),
        (b"fine\nquery\t\n", "line 2: the intended name is empty"),
        (b"\n \n", "has no queries"),
    ):
        file.write_bytes(content)
        with pytest.raises(pymemstore.InvalidArgument, match=message):
            tune.read_queries(file)


def test_what_was_measured_before_an_interruption_is_kept(store: Path, pairs: list[tuple[str, str]]) -> None:
    def stop(done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pymemstore.open(store, read_only=True) as memory:
        tuning = tune.Tuning(memory, pairs)
        with pytest.raises(pymemstore.InvalidArgument, match="nothing was measured"):
            tuning.report()
        with pytest.raises(KeyboardInterrupt):
            tuning.run(stop)
        part = tuning.report()
        assert (part.asked, part.planned, part.complete) == (10, FLAWS, False)
        assert any("10 of 60 queries" in note for note in part.recommendation.notes)
        first = tune.measure(memory, pairs[:10])
        assert [row.candidates for row in part.rows] == [row.candidates for row in first.rows]
        tuning.run()  # goes on
        assert tuning.report().complete
        whole = tune.measure(memory, pairs)
        assert [row.candidates for row in tuning.report().rows] == [row.candidates for row in whole.rows]


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    pytest.importorskip("typer", reason="the command line needs typer")
    pytest.importorskip("rich", reason="the command line needs rich")
    from pymemstore.cli.app import app

    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(["tune", *map(str, arguments)], prog_name="pymemstore")
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_command(cli: Callable[..., tuple[int, str, str]], store: Path) -> None:
    code, out, err = cli(store, "--sample", "30", "--tau", "0.6", "--tau", "0.8")
    assert (code, err) == (0, "")
    assert "2,000 entity names, surf256; 30 names with slips (seed 0)" in out
    lines = [line.split() for line in out.splitlines() if line.startswith(("0.6", "0.8"))]
    assert len(lines) == 4  # the figures, then the bars
    assert "Recommended tau_e: 0.6 (the store's: 0.6)." in out
    assert "Found at 0.6 by kind of slip: case 100% of" in out
    code, out, _ = cli(store, "--relations", "--sample", "3")
    assert code == 0 and "Recommended tau_t" in out and "5 relation names, rel256" in out


def test_the_command_as_json(
    cli: Callable[..., tuple[int, str, str]], store: Path, tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    file = tmp_path / "q.tsv"
    file.write_text("".join(f"{text}\t{name}\n" for text, name in pairs), encoding="utf-8")
    code, out, err = cli(store, "--queries", file, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    told = json.loads(out)
    with pymemstore.open(store, read_only=True) as memory:
        report = tune.measure(memory, pairs)
    assert told.keys() == report.to_json().keys() and told["complete"] is True
    for row, expected in zip(told["rows"], report.rows, strict=True):
        assert row["candidates"] == asdict(expected.candidates)
        assert (row["tau"], row["found"], row["recall"]) == (expected.tau, expected.found, expected.recall)
    assert told["recommendation"]["tau"] == report.recommendation.tau

    file.write_text("fine\nbad\tbad\tbad\n")
    code, out, err = cli(store, "--queries", file, "--json")
    assert code == 1 and json.loads(out)["error"]["type"] == "InvalidArgument"
    assert "line 2" in err and "line 2" in json.loads(out)["error"]["message"]
    assert cli(store, "--queries", tmp_path / "none")[0] == 1
    assert cli(store, "--tau", "3")[0] == 2
    assert cli(tmp_path / "no store")[0] == 1 and not (tmp_path / "no store").exists()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_in_the_command(
    cli: Callable[..., tuple[int, str, str]], store: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    ask, stop = tune.Tuning._ask, 12

    def interrupted(tuning: tune.Tuning, index: int) -> Any:
        if index == stop:
            raise KeyboardInterrupt
        return ask(tuning, index)

    monkeypatch.setattr(tune.Tuning, "_ask", interrupted)
    code, out, err = cli(store, *options)
    assert code == 130 and "12 of 200 queries" in err
    if options:
        assert json.loads(out)["asked"] == 12 and json.loads(out)["complete"] is False
    else:
        assert "Stopped early: 12 of 200" in out and "Recommended" in out
    stop = 0  # nothing to tell
    code, out, err = cli(store, *options)
    assert code == 130 and err == "Interrupted.\n"
    assert json.loads(out)["error"]["type"] == "KeyboardInterrupt" if options else out == ""


def test_the_plot(cli: Callable[..., tuple[int, str, str]], store: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="a plot needs matplotlib")
    file = tmp_path / "p.png"
    code, out, _ = cli(store, "--sample", "10", "--plot", file)
    assert code == 0 and f"Wrote {file}." in out.replace("\n", "")
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.rstrip().endswith(b"IEND\xaeB`\x82")
    assert len(data) > 10_000
    assert cli(store, "--sample", "10", "--relations", "--tau", "0.5", "--plot", file, "--json")[0] == 0
    for wrong, message in (
        (tmp_path / "p.pdf", "does not end in .png"),
        (tmp_path / "no" / "p.png", "folder"),
    ):
        code, _, err = cli(store, "--plot", wrong)
        assert code == 1 and message in err


def test_a_plot_without_matplotlib(
    cli: Callable[..., tuple[int, str, str]], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = cli(store, "--plot", tmp_path / "p.png")
    assert code == 1 and out == "" and 'pip install "pymemstore[plot]"' in err


def test_a_terminal_without_utf8(store: Path) -> None:
    pytest.importorskip("typer", reason="the command line needs typer")
    ran = subprocess.run(
        [sys.executable, "-m", "pymemstore.cli", "tune", str(store), "--sample", "10"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert ran.returncode == 0 and b"####" in ran.stdout and b"\\u" not in ran.stdout
