"""A slow twin of late stopping, from MemLLM's Appendix A alone, and streams of scores to try it on."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pymemstore.memllm.late_stopping import ClosingPoint, LateStopResult

torch = pytest.importorskip("torch")
INF = math.inf
Stream = Callable[[Sequence[int]], Any]  # generated tokens -> (vocabulary,) float32 scores
CLOSING, EOS = 3, 1


def twin(
    stream: Stream, limit: int, patience: int = 5, prompt: int = 0, closing: int = CLOSING, eos: int = EOS
) -> LateStopResult:
    """The whole path first, as if there were no patience; then all scores at once; then where it would have
    ended.

    prompt > 0: the published code's average.
    """
    path: list[int] = []
    gained: list[float] = []
    ends: dict[int, float] = {}  # position -> log-probability of the closing token there
    reason = "length"
    while len(path) < limit and reason == "length":
        scores = stream(path)
        logprobs = torch.log_softmax(torch.as_tensor(scores), -1).tolist()
        order = sorted((-s, i) for i, s in enumerate(scores.tolist()) if s != -INF)
        tokens = [i for _, i in order]
        if tokens[0] == closing:
            ends[len(path)] = logprobs[closing]
            tokens = tokens[1:]
        if not tokens:
            reason = "only closing"
        elif tokens[0] == eos:
            reason = "eos"
        else:
            path.append(tokens[0])
            gained.append(logprobs[tokens[0]])
    sums = [0.0, *itertools.accumulate(gained)]
    points = [ClosingPoint(n, (sums[n] + p) / (n + (prompt or 1))) for n, p in ends.items()]
    better = [all(q.score < p.score for q in points[:i]) for i, p in enumerate(points)]
    for i in range(len(points)):
        if i + 1 >= patience and not any(better[i + 1 - patience : i + 1]):
            points, reason = points[: i + 1], "patience"
            path = path[: points[-1].position]
            break
    best = max(points, key=lambda p: p.score, default=None)  # the first of equals
    kept = path if best is None else [*path[: best.position], closing]
    place, score = best or (None, None)
    return LateStopResult(tuple(kept), place, score, tuple(points), reason)  # type: ignore[arg-type]


def stream_of(seed: int, vocabulary: int = 7) -> Stream:
    """Scores with many ties, masks, and a closing token that is often best; EOS and dead ends are rare."""
    seen: dict[tuple[int, ...], Any] = {}
    style = random.Random(seed)
    boost, masks, eos = style.choice([0, 1, 2, 4]), style.choice([0, 0.2, 0.6]), style.choice([0, 0.05])
    smooth, flat = style.random() < 0.4, style.random() < 0.05

    def scores(prefix: Sequence[int]) -> Any:
        key = tuple(prefix)
        if key not in seen:
            rng = random.Random(f"{seed} {key}")
            row = [
                rng.gauss(0, 2) if smooth else rng.choice([-2.0, 0, 0.5, 1, 1, 3]) for _ in range(vocabulary)
            ]
            row = [-INF if rng.random() < masks else x for x in row]
            row[EOS] = 3.0 if rng.random() < eos else -INF
            row[CLOSING] += boost
            if flat:  # so that whole averages are equal
                row = [-INF] * CLOSING + [0.0] * (vocabulary - CLOSING)
            if max(row) == -INF or rng.random() < 0.002:
                row = [-INF] * vocabulary
                row[CLOSING] = 0.0
            seen[key] = np.array(row, np.float32)
        return seen[key]

    return scores


def ranked_of(scores: Any) -> list[tuple[int, float]]:
    logprobs = torch.log_softmax(torch.as_tensor(scores), -1).tolist()
    order = sorted((-s, i) for i, s in enumerate(scores.tolist()) if s != -INF)
    return [(i, logprobs[i]) for _, i in order]
