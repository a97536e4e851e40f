"""The rows of a generation: what each has written, how its next token is chosen, and when it ends."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ..errors import BackendError, InvalidArgument
from ._stops import StopMatcher
from ._tokens import Tokens
from .base import Chooser, Finish, Generation, Params, Segment, Usage

__all__ = ["Row", "choose"]


class Row:
    """One prompt's continuation.

    Attributes:
        number: its place among the prompts.
        finish: why it ended; None while it goes on.
        text: what is sure to be its text so far.
    """

    def __init__(
        self, number: int, ids: list[int], room: int, params: Params, tokens: Tokens, eos: frozenset[int]
    ) -> None:
        self.number, self.ids, self.computed = number, ids, 0
        self.finish: Finish | None = None
        self.text = ""
        self.guide = params.guide() if params.guide is not None else None
        self.random = torch.Generator()
        if params.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(params.seed + number)
        self.logprobs: list[float] | None = [] if params.logprobs else None
        self._room, self._tokens, self._eos = room, tokens, eos
        self._decoder = tokens.decoder(ids)
        self._matcher = StopMatcher(params.stop)
        self._taken: list[int] = []
        self._kept: int | None = None  # tokens that the text is of, where a chooser says so
        self._marks = [(0, 0)]  # (tokens, their text's length), where no character is cut
        self._decoded = 0
        self._ban = params.ban
        self._tail, self._longest = "", max(map(len, params.ban), default=1) - 1

    def bans(self, token: int) -> bool:
        """Whether a banned string would be complete with this token."""
        if not self._ban or token in self._eos:
            return False
        text = self._tail + self._decoder.peek(token)
        return any(banned in text for banned in self._ban)

    def take(self, token: int, chooser: Chooser | None) -> str:
        """Takes the next token; the text that is now sure, all of it at the end of a row with a chooser."""
        before = len(self.text)
        self._taken.append(token)
        ends = token in self._eos and not self._stops_with(token)
        if self.guide is not None and token not in self._eos:
            self.guide.advance(token)
        self._feed(self._decoder.flush() if ends else self._decoder.push(token))
        if not self._decoder.waiting and not ends:
            self._marks.append((len(self._taken), self._decoded))
        if self._matcher.stop is not None:
            self.finish = "stop"
        elif ends or token in self._eos:
            self.finish = "eos"
        elif chooser is not None and chooser.done(self.number):
            self.finish = "stop"
        elif len(self._taken) >= self._room:
            self.finish = "length"
        if self.finish is not None:
            self._end(chooser)
        elif chooser is not None:
            return ""
        return self.text if chooser is not None else self.text[before:]

    def _stops_with(self, token: int) -> bool:
        matcher = copy.copy(self._matcher)
        matcher.feed(self._decoder.peek(token))
        return matcher.stop is not None

    def _feed(self, piece: str) -> None:
        self._decoded += len(piece)
        self.text += self._matcher.feed(piece)
        if self._longest:
            self._tail = (self._tail + piece)[-self._longest :]

    def _end(self, chooser: Chooser | None) -> None:
        if self.finish in ("length", "stop"):
            self._feed(self._decoder.flush())
        if self._matcher.stop is not None:
            self.finish = "stop"
        self.text += self._matcher.finish()
        if chooser is None:
            return
        kept = chooser.kept(self.number)
        if kept is not None and chooser.done(self.number):
            self.finish = "stop"
        if kept is not None and kept < len(self._taken):
            decoder = self._tokens.decoder(self.ids)
            text = "".join(decoder.push(token) for token in self._taken[:kept]) + decoder.flush()
            if len(text) <= len(self.text):
                self.text, self._kept = text, kept

    def generation(self) -> Generation:
        """The outcome."""
        assert self.finish is not None
        if self._kept is not None:
            tokens, length = self._kept, len(self.text)
        elif self._matcher.stop is not None:
            tokens, length = max(mark for mark in self._marks if mark[1] <= len(self.text))
        else:
            tokens, length = len(self._taken) - (self.finish == "eos"), len(self.text)
        parts = []
        if tokens:
            parts.append(Segment(self.text[:length], tuple(self._taken[:tokens])))
        if length < len(self.text):
            parts.append(Segment(self.text[length:]))
        return Generation(
            self.text,
            tuple(parts),
            self.finish,
            self._matcher.stop if self._kept is None else None,
            None if self.logprobs is None else tuple(self.logprobs),
            Usage(len(self.ids), self.computed, len(self._taken)),
        )


def choose(rows: list[Row], logits: Any, params: Params, chooser: Chooser | None) -> list[int]:
    """The next token of each row. logits: (rows, vocabulary) float32, left as it is."""
    if bool(torch.isnan(logits).any()):
        raise BackendError("the model gave scores that are no numbers", text=rows[0].text)
    scores = logits
    for place, row in enumerate(rows):
        mask = row.guide.mask() if row.guide is not None else None
        if mask is None:
            continue
        if scores is logits:
            scores = logits.clone()
        allowed = torch.tensor(mask[: scores.shape[1]], device=scores.device)
        scores[place, : len(allowed)].masked_fill_(~allowed, -torch.inf)
        scores[place, len(allowed) :] = -torch.inf
        if not bool((scores[place] > -torch.inf).any()):
            raise InvalidArgument(f"row {row.number}: its guide allows none of {scores.shape[1]} tokens")
    if chooser is not None:
        chosen = [int(token) for token in chooser.choose([row.number for row in rows], scores)]
        if len(chosen) != len(rows) or not all(0 <= token < scores.shape[1] for token in chosen):
            raise InvalidArgument(f"the chooser gave {chosen!r:.80} for {len(rows)} rows")
    elif params.temperature > 0:
        chosen = [_sample(row, scores[place], params) for place, row in enumerate(rows)]
    else:
        chosen = scores.argmax(-1).tolist()  # the first of equal ones
    for place, row in enumerate(rows):
        if row.bans(chosen[place]):
            chosen[place] = _next_best(row, scores[place].clone(), chosen[place], params)
    if params.logprobs:
        taken = torch.tensor(chosen, device=logits.device)[:, None]
        for row, logprob in zip(rows, logits.log_softmax(-1).gather(1, taken)[:, 0].tolist(), strict=True):
            assert row.logprobs is not None
            row.logprobs.append(logprob)
    return chosen


def _next_best(row: Row, scores: Any, token: int, params: Params) -> int:
    """The token in place of one that completes a banned string. scores: (vocabulary,), written to."""
    while row.bans(token):
        scores[token] = -torch.inf
        if not bool((scores > -torch.inf).any()):
            raise BackendError(f"row {row.number}: every token completes a banned string", text=row.text)
        token = _sample(row, scores, params) if params.temperature > 0 else int(scores.argmax())
    return token


def _sample(row: Row, scores: Any, params: Params) -> int:
    scores = scores.double().cpu()
    weights = ((scores - scores.max()) / params.temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=row.random))
