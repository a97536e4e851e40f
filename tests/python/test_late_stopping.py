"""Late stopping against a slow twin written from MemLLM's Appendix A: the algorithm, and batches."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from twin_late_stopping import CLOSING, EOS, INF, Stream, ranked_of, stream_of, twin

from pymemstore.errors import InvalidArgument
from pymemstore.memllm.late_stopping import (
    ClosingPoint,
    LateStop,
    LateStoppingChooser,
    LateStopResult,
    best_two,
    replay,
)

torch = pytest.importorskip("torch")


def run(state: LateStop, stream: Stream, limit: int) -> LateStopResult:
    tokens: list[int] = []
    while len(tokens) < limit and (token := state.step(ranked_of(stream(tokens)))) is not None:
        tokens.append(token)
    return state.result


def at(*points: tuple[int, float]) -> tuple[ClosingPoint, ...]:
    return tuple(ClosingPoint(*point) for point in points)


# Streams worked by hand. (id, log-probability), best first; the closing token is 9, EOS 0.

HAND: dict[str, tuple[list[list[tuple[int, float]]], dict[str, Any], LateStopResult]] = {
    # 5; then } at 1: (-.5 - 1)/2 = -.75, on with 6, sum -2; then } at 2: (-2 - .25)/3 = -.75, equal, so no
    # better, on with 7, sum -4; then } at 3: (-4 - 1)/4 = -1.25: the second in a row. Cut at 1.
    "equal is no better": (
        [[(5, -0.5), (6, -1.0)], [(9, -1.0), (6, -1.5)], [(9, -0.25), (7, -2.0)], [(9, -1.0), (5, -1.5)]],
        {"patience": 2},
        LateStopResult((5, 9), 1, -0.75, at((1, -0.75), (2, -0.75), (3, -1.25)), "patience"),
    ),
    # } at 0: -1/1 = -1, an empty write, on with 5, sum -1.5; 6, sum -2; } at 2: (-2 - 1)/3 = -1: a miss, on
    # with 7, sum -3.25; } at 3: (-3.25 - .25)/4 = -.875, better, so misses start again; on with 8, sum -4.25;
    # } at 4: (-4.25 - .75)/5 = -1, on with 5, sum -5.75; } at 5: (-5.75 - .25)/6 = -1: the second. Cut at 3.
    "better in between": (
        [
            [(9, -1.0), (5, -1.5)], [(6, -0.5), (9, -1.0)], [(9, -1.0), (7, -1.25)], [(9, -0.25), (8, -1.0)],
            [(9, -0.75), (5, -1.5)], [(9, -0.25), (6, -1.0)],
        ],
        {"patience": 2},
        LateStopResult(
            (5, 6, 7, 9), 3, -0.875, at((0, -1.0), (2, -1.0), (3, -0.875), (4, -1.0), (5, -1.0)), "patience"
        ),
    ),
    # } at 0: -2, on with 5, sum -3; } at 1: (-3 - .5)/2 = -1.75, better, and the second best is EOS: the end.
    "EOS is second": (
        [[(9, -2.0), (5, -3.0)], [(9, -0.5), (0, -1.0)]],
        {},
        LateStopResult((5, 9), 1, -1.75, at((0, -2.0), (1, -1.75)), "eos"),
    ),
    # } at 0: -.5, on with 5, sum -3; at 1 nothing but } is allowed: (-3 + 0)/2 = -1.5. Cut at 0: an empty
    # write.
    "nothing else allowed": (
        [[(9, -0.5), (5, -3.0)], [(9, 0.0), (5, -INF)]],
        {},
        LateStopResult((9,), 0, -0.5, at((0, -0.5), (1, -1.5)), "only closing"),
    ),
    # The published average, 3 tokens of prompt. 5, sum -1; } at 1: (-1 - 1.5)/(3 + 1) = -.625, on with 6, sum
    # -3; 7, sum -3.5; } at 3: (-3.5 - .25)/(3 + 3) = -.625, no better: cut at 1. By the generated tokens it
    # were -2.5/2 = -1.25 and -3.75/4 = -.9375: cut at 3.
    "published average": (
        [[(5, -1.0), (9, -2.0)], [(9, -1.5), (6, -2.0)], [(7, -0.5), (9, -1.0)], [(9, -0.25), (8, -1.0)]],
        {"average": "reference", "prompt_tokens": 3},
        LateStopResult((5, 9), 1, -0.625, at((1, -0.625), (3, -0.625)), "length"),
    ),
    # No closing point at all: nothing is cut.
    "never closed": (
        [[(5, -1.0), (9, -2.0)], [(6, -1.0), (9, -1.0)]], {}, LateStopResult((5, 6), None, None, (), "length")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_streams_worked_by_hand(name: str) -> None:
    steps, options, expected = HAND[name]
    state = LateStop(9, {0}, **options)
    taken = [state.step(ranked) for ranked in steps]
    assert state.result == expected
    assert (taken[-1] is None) == (expected.reason != "length") and None not in taken[:-1]
    tokens = [state.last if token is None else token for token in taken]
    logprobs = [dict(ranked)[token] for token, ranked in zip(tokens, steps, strict=True)]
    tops = [dict(ranked) for ranked in steps]
    assert replay(tokens, logprobs, tops, 9, {0}, **options) == expected


def test_algorithm_equals_the_twin() -> None:
    reasons: dict[str, int] = {}
    uncut = ties = 0
    for seed in range(4000):
        stream, limit, patience = stream_of(seed), 1 + seed % 41, 1 + seed % 5
        prompt = seed % 3 and seed % 7 + 1
        options: dict[str, Any] = {"average": "reference", "prompt_tokens": prompt} if prompt else {}
        expected = twin(stream, limit, patience, prompt)
        assert run(LateStop(CLOSING, {EOS}, patience=patience, **options), stream, limit) == expected, seed
        reasons[expected.reason] = reasons.get(expected.reason, 0) + 1
        uncut += expected.cut is None
        ties += len({p.score for p in expected.points}) < len(expected.points)
    assert len(reasons) == 4 and min(*reasons.values(), uncut, ties) > 50, (reasons, uncut, ties)


def test_chooser_in_batches_equals_the_twin_row_by_row() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        size, limit, patience = rng.choice([1, 2, 5, 16]), rng.randint(1, 30), rng.randint(1, 5)
        streams = [stream_of(seed * 100 + row) for row in range(size)]
        prompts = [rng.randint(1, 9) for _ in streams] if seed % 2 else None
        average: Any = "reference" if prompts else "generated"
        chooser = LateStoppingChooser(
            size, CLOSING, [EOS], patience=patience, average=average, prompt_tokens=prompts
        )
        tokens: list[list[int]] = [[] for _ in streams]
        while rows := [r for r in range(size) if not chooser.done(r) and len(tokens[r]) < limit]:
            rng.shuffle(rows)
            logits = torch.tensor(np.stack([streams[r](tokens[r]) for r in rows]))
            before = logits.clone()
            for row, token in zip(rows, chooser.choose(rows, logits), strict=True):
                tokens[row].append(token)
            assert torch.equal(before, logits)
        for row, stream in enumerate(streams):
            expected = twin(stream, limit, patience, prompts[row] if prompts else 0)
            assert chooser.result(row) == expected, (seed, row)
            assert chooser.kept(row) == expected.cut
            if chooser.done(row):
                assert tokens[row][-1] == (EOS if expected.reason == "eos" else CLOSING)
            if expected.cut is not None:
                assert [*tokens[row][: expected.cut], CLOSING] == list(expected.tokens)


def test_best_two_ranks_as_sorting_does_and_a_row_as_in_any_batch() -> None:
    rng = np.random.default_rng(5)
    for vocabulary, closing in [(1, 0), (2, 0), (2, 1), (9, 0), (9, 8), (9, 4), (1003, 500), (32000, 29871)]:
        for kind in range(12 if vocabulary < 2000 else 4):
            logits = rng.integers(-3, 3, (17, vocabulary)).astype(np.float32)
            if kind % 3:
                logits += rng.normal(size=logits.shape).astype(np.float32) * 3
            if kind % 2:
                logits[rng.random(logits.shape) < rng.choice([0.2, 0.95])] = -INF
            logits[:, closing] += kind % 4
            tensor = torch.tensor(logits)
            found = best_two(tensor, closing)
            singles = [best_two(tensor[i : i + 1], closing)[0] for i in range(17)]
            assert found == singles == best_two(torch.cat([tensor, tensor])[:, :], closing)[17:]
            for row, pair in zip(logits, found, strict=True):
                order = ranked_of(row) if (row > -INF).any() else []
                wanted = order[:2] if order and order[0][0] == closing else order[:1]
                assert [i for i, _ in pair[: len(wanted)]] == [i for i, _ in wanted]
                assert np.allclose(
                    [p for _, p in pair[: len(wanted)]], [p for _, p in wanted], rtol=0, atol=1e-5
                )


def test_half_precision_is_computed_in_single() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert best_two(logits, 7) == best_two(logits.float(), 7)


def test_steps_back_and_forth_change_nothing() -> None:
    for seed in range(300):
        rng, stream = random.Random(seed), stream_of(seed)
        state, tokens, marks = LateStop(CLOSING, {EOS}, patience=2), [], []
        while len(tokens) < 25 and state.reason is None:
            marks.append(state.mark())
            token = state.step(ranked_of(stream(tokens)))
            tokens += [] if token is None else [token]
            if rng.random() < 0.3:
                place = rng.randrange(len(marks))
                state.back(marks[place])
                del marks[place:], tokens[place:]
        assert state.result == twin(stream, 25, 2)


def test_wrong_arguments() -> None:
    for options in (
        {"patience": 0},
        {"eos": {CLOSING}},
        {"average": "mean"},
        {"average": "reference"},
        {"prompt_tokens": 3},
    ):
        with pytest.raises(InvalidArgument):
            LateStop(CLOSING, **options)  # type: ignore[arg-type]
    for ranked in ([], [(5, -INF)], [(5, math.nan)], [(CLOSING, -1.0), (CLOSING, -1.0)]):
        with pytest.raises(InvalidArgument):
            LateStop(CLOSING).step(ranked)
    state = LateStop(CLOSING, {EOS})
    assert state.step([(EOS, -1.0)]) is None
    with pytest.raises(InvalidArgument, match="ended"):
        state.step([(5, -1.0)])
    chooser = LateStoppingChooser(2, CLOSING)
    for logits in (
        torch.full((2, 9), -INF),
        torch.full((2, 9), math.nan),
        torch.zeros(1, 9),
        torch.zeros(2, 3),
    ):
        with pytest.raises(InvalidArgument):
            chooser.choose([0, 1], logits)
    with pytest.raises(InvalidArgument, match="2 numbers for 3 rows"):
        LateStoppingChooser(3, CLOSING, average="reference", prompt_tokens=[1, 2])
    with pytest.raises(InvalidArgument, match="tops"):
        replay([5], [-1.0], [], CLOSING)
    with pytest.raises(InvalidArgument, match="closing_allowed"):
        replay([5], [-1.0], [{}], CLOSING, closing_allowed=[])
