"""Late stopping, MemLLM Appendix A: a memory write goes on past its closing token while its score gets
better.

Greedy decoding, but where the closing token scores highest that is noted, with the average log-probability of
the sequence so far, and the second best token is taken. When `patience` such points in a row brought nothing
better the generation ends, and it is cut at the best of them. Where the appendix is silent:

- The average runs over the generated tokens up to and including the closing token, as if it were taken there.
  "Better" is strictly greater; the first point always is. A call closed at its first token is a point too.
- An EOS token that is to be taken ends the generation and is no closing point. So does the closing token
  where no other is allowed. At the token limit the cut is at the best point so far; without any nothing is
  cut.
- Of equal scores the lower id goes first. Log-probabilities are those of the scores as given: where a guide
  has masked some, of what it left.

`LateStop` is the algorithm for one row, without torch; `LateStoppingChooser` runs it in a backend that sees
the scores; `replay` finds the cut in what a server returned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..errors import InvalidArgument

__all__ = ["ClosingPoint", "LateStop", "LateStopResult", "LateStoppingChooser", "best_two", "replay"]

PATIENCE = 5  # the paper's K
Average = Literal["generated", "reference"]
Reason = Literal["patience", "eos", "only closing", "length"]
Ranked = Sequence[tuple[int, float]]


class ClosingPoint(NamedTuple):
    """Where the closing token scored highest: how many tokens come before it, and the average with it."""

    position: int
    score: float


@dataclass(frozen=True)
class LateStopResult:
    """What late stopping made of one row.

    Attributes:
        tokens: what is kept: up to and with the closing token; all that was generated, without EOS, if there
            was no closing point.
        cut: how many tokens are kept before the closing token; None: no closing point.
        score: of the cut; None: no closing point.
        points: all closing points, in order.
        reason: why the generation ended: "patience": no better point came; "eos"; "only closing": no other
            token was allowed; "length": none of these, so the caller ended it.
    """

    tokens: tuple[int, ...]
    cut: int | None
    score: float | None
    points: tuple[ClosingPoint, ...]
    reason: Reason


class LateStop:
    """The state of one row: `step` for each token, then `result`.

    Args:
        closing: id of the token that closes the call.
        eos: ids that end the generation.
        patience: how many points in a row may be no better, the paper's K; >= 1.
        average: "generated": as above. "reference": as MemLLM's published code, which divides the same sum by
            the tokens of prompt and generation before the closing token, that one not counted. The longer
            the prompt, the more that favours early ends.
        prompt_tokens: the prompt's length, >= 1; for "reference" only.
        prompt_logprob: log-probability of the prompt, added to the sum; for "reference" only, and 0 there.

    Attributes:
        tokens: what was taken so far.
        points: the closing points so far.
        best: the best of them, None before the first.
        reason: None while the row goes on.
        last: the token that ended the row: EOS or the closing token; not in `tokens`.
    """

    def __init__(
        self,
        closing: int,
        eos: Collection[int] = (),
        *,
        patience: int = PATIENCE,
        average: Average = "generated",
        prompt_tokens: int = 0,
        prompt_logprob: float = 0.0,
    ) -> None:
        if patience < 1:
            raise InvalidArgument(f"patience must be at least 1, not {patience}")
        if closing in eos:
            raise InvalidArgument(f"token {closing} closes the call, so it can't be an EOS token")
        if average not in ("generated", "reference"):
            raise InvalidArgument(f'average must be "generated" or "reference", not {average!r:.40}')
        if average == "reference" and prompt_tokens < 1:
            raise InvalidArgument(f'average="reference" needs prompt_tokens >= 1, not {prompt_tokens}')
        if average == "generated" and (prompt_tokens or prompt_logprob):
            raise InvalidArgument('prompt_tokens and prompt_logprob are for average="reference"')
        self.closing, self.eos, self.patience = closing, frozenset(eos), patience
        self._extra = (
            prompt_tokens if average == "reference" else 1
        )  # what the tokens before are counted on top of
        self._sum = float(prompt_logprob)
        self._misses = 0
        self.tokens: list[int] = []
        self.points: list[ClosingPoint] = []
        self.best: ClosingPoint | None = None
        self.reason: Reason | None = None
        self.last: int | None = None

    def step(self, ranked: Ranked) -> int | None:
        """Takes one token and returns it; None: the row ends here, see `reason`.

        ranked: (id, log-probability) of the two best tokens that are allowed, best first, of equals the lower
        id; one where no other is allowed. More are not looked at. Raises InvalidArgument if the row has ended
        or no token is allowed.
        """
        if self.reason is not None:
            raise InvalidArgument(f"the row has ended ({self.reason}) after {len(self.tokens)} tokens")
        if not ranked or not ranked[0][1] > -math.inf:
            raise InvalidArgument(f"no token is allowed after {len(self.tokens)} tokens, or scores are NaN")
        token, logprob = ranked[0]
        if token == self.closing:
            place = len(self.tokens)
            point = ClosingPoint(place, (self._sum + logprob) / (place + self._extra))
            self.points.append(point)
            if self.best is None or point.score > self.best.score:
                self.best, self._misses = point, 0
            else:
                self._misses += 1
                if self._misses >= self.patience:
                    self.reason, self.last = "patience", token
                    return None
            if len(ranked) < 2 or not ranked[1][1] > -math.inf:
                self.reason, self.last = "only closing", token
                return None
            if ranked[1][0] == token or ranked[1][1] > logprob:
                raise InvalidArgument(f"not ranked, best first: {ranked[:2]!r:.100}")
            token, logprob = ranked[1]
        if token in self.eos:
            self.reason, self.last = "eos", token
            return None
        self.tokens.append(token)
        self._sum += logprob
        return token

    @property
    def result(self) -> LateStopResult:
        """What is kept if the row ends now."""
        cut = None if self.best is None else self.best.position
        kept = self.tokens if cut is None else [*self.tokens[:cut], self.closing]
        return LateStopResult(
            tokens=tuple(kept),
            cut=cut,
            score=None if self.best is None else self.best.score,
            points=tuple(self.points),
            reason=self.reason or "length",
        )

    def mark(self) -> tuple[Any, ...]:
        """The state now, for `back`; cheap."""
        return len(self.tokens), len(self.points), self._sum, self._misses, self.best, self.reason, self.last

    def back(self, mark: tuple[Any, ...]) -> None:
        """Undoes the steps since `mark`."""
        tokens, points, self._sum, self._misses, self.best, self.reason, self.last = mark
        del self.tokens[tokens:], self.points[points:]


def best_two(logits: Any, closing: int, scored: Any = None) -> list[list[tuple[int, float]]]:
    """What `LateStop.step` asks for, of each row: the closing token and the best other one, best first.

    logits: (rows, vocabulary) tensor, -inf where a token is forbidden; such tokens are left out, so that a
    row may come back with one or none. Log-probabilities are of log_softmax in float32 over `logits`, or over
    `scored`, a tensor of the same shape. Ranks are those of the scores, of equals the lower id. One pass for
    all rows and one copy from the device.
    """
    import torch

    if logits.ndim != 2 or not 0 <= closing < logits.shape[1]:
        raise InvalidArgument(
            f"no token {closing} in scores of shape {tuple(logits.shape)}: (rows, vocabulary)"
        )
    if not logits.shape[0]:
        return []
    logits = logits.detach().float()
    scores = logits if scored is None else scored.detach().float()
    # Tensor.max gives the first of equal values; the closing token is compared with them below.
    sides = [side.max(-1) for side in (logits[:, :closing], logits[:, closing + 1 :]) if side.shape[1]]
    if not sides:
        return [[(closing, 0.0)] if row > -math.inf else [] for row in logits[:, 0].tolist()]
    value, other = sides[0].values, sides[0].indices + (0 if closing else 1)
    if len(sides) == 2:
        right = sides[1].values > value
        other = torch.where(right, sides[1].indices + closing + 1, other)
        value = torch.maximum(value, sides[1].values)
    logprobs = torch.log_softmax(scores, -1)
    table = torch.stack(
        [
            other.float(),  # exact below 2^24
            value,
            logits[:, closing],
            logprobs.gather(1, other[:, None])[:, 0],
            logprobs[:, closing],
        ],
        1,
    ).tolist()
    found = []
    for number, other_score, closing_score, other_logprob, closing_logprob in table:
        others, closings = (int(number), other_logprob), (closing, closing_logprob)
        first = closing_score > other_score or (closing_score == other_score and closing < others[0])
        pairs = [(closing_score, closings), (other_score, others)]
        found.append([pair for score, pair in (pairs if first else pairs[::-1]) if score != -math.inf])
    return found


class LateStoppingChooser:
    """Late stopping for the rows of a batch: a `backends.base.Chooser`. Of two rows none depends on the
    other.

    The work over the vocabulary is done for all rows at once (`best_two`). A row that ends gives its EOS or
    closing token as the last choice. `kept` counts the tokens before the closing token, which itself need not
    be among what was chosen: the text is theirs plus the closing token's. It is right at any time, so also
    for a row that the token limit ended; None: no closing point, the call is not terminated.

    Args: those of `LateStop`; rows: size of the batch; prompt_tokens: one number a row.
    """

    def __init__(
        self,
        rows: int,
        closing: int,
        eos: Collection[int] = (),
        *,
        patience: int = PATIENCE,
        average: Average = "generated",
        prompt_tokens: Sequence[int] | None = None,
    ) -> None:
        if prompt_tokens is not None and len(prompt_tokens) != rows:
            raise InvalidArgument(f"prompt_tokens: {len(prompt_tokens)} numbers for {rows} rows")
        self._closing = closing
        self._rows = [
            LateStop(closing, eos, patience=patience, average=average, prompt_tokens=tokens)
            for tokens in (prompt_tokens or [0] * rows)
        ]

    def choose(self, rows: Sequence[int], logits: Any) -> list[int]:
        """logits: (len(rows), vocabulary) tensor, -inf where a guide forbids; float32 is computed with. The
        ids.

        Raises InvalidArgument for a row that has ended, or in which no token is allowed or a score is NaN.
        """
        if logits.ndim != 2 or logits.shape[0] != len(rows):
            raise InvalidArgument(f"scores of shape {tuple(logits.shape)} for {len(rows)} rows")
        chosen = []
        for row, ranked in zip(rows, best_two(logits, self._closing), strict=True):
            state = self._rows[row]
            try:
                token = state.step(ranked)
            except InvalidArgument as error:
                raise InvalidArgument(f"row {row}: {error}") from None
            ended = token is None
            chosen.append(state.last if ended else token)
        return chosen  # type: ignore[return-value]

    def done(self, row: int) -> bool:
        """Whether the row ends here."""
        return self._rows[row].reason is not None

    def kept(self, row: int) -> int | None:
        """How many of its tokens stand before the closing token; None: no closing point, all stand."""
        best = self._rows[row].best
        return None if best is None else best.position

    def result(self, row: int) -> LateStopResult:
        """The row's outcome, as it is now."""
        return self._rows[row].result


def replay(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[Mapping[int, float]],
    closing: int,
    eos: Collection[int] = (),
    *,
    patience: int = PATIENCE,
    average: Average = "generated",
    prompt_tokens: int = 0,
    prompt_logprob: float = 0.0,
    closing_allowed: Sequence[bool] | None = None,
) -> LateStopResult:
    """Finds the cut in what a server generated that masks the closing token as late stopping does.

    tokens, logprobs: as generated, with the log-probabilities that the server gave them before any mask.
    tops: of each place at least the best token's, by id (more, where several may be equal). The closing
    token was best where it is among them and ahead of the token that came. A closing token among `tokens`
    ends the call.
    closing_allowed: where a guide forbade the closing token: False; None: nowhere. What the server made after
    the patience was used up is left out. The others: as of `LateStop`.
    """
    if not len(tokens) == len(logprobs) == len(tops):
        raise InvalidArgument(f"{len(tokens)} tokens, {len(logprobs)} log-probabilities, {len(tops)} tops")
    if closing_allowed is not None and len(closing_allowed) != len(tokens):
        raise InvalidArgument(f"closing_allowed: {len(closing_allowed)} values for {len(tokens)} tokens")
    state = LateStop(
        closing,
        eos,
        patience=patience,
        average=average,
        prompt_tokens=prompt_tokens,
        prompt_logprob=prompt_logprob,
    )
    for place, (token, logprob, top) in enumerate(zip(tokens, logprobs, tops, strict=True)):
        ranked = [(token, logprob)]
        if token != closing and (closing_allowed is None or closing_allowed[place]):
            ahead = top.get(closing, -math.inf)
            if ahead > logprob or (ahead == logprob and closing < token):
                ranked.insert(0, (closing, ahead))
        try:
            taken = state.step(ranked)
        except InvalidArgument as error:
            raise InvalidArgument(f"token {place}: {error}") from None
        if taken is None:
            break
    return state.result
