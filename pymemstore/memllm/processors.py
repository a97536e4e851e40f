"""Late stopping and token guides as logits processors of transformers, for a plain `model.generate`.

A processor sees only what was generated so far and the scores, so each keeps the state of every row itself
and checks that the steps follow each other. One object serves one `generate` at a time and begins anew when
it sees another prompt. Beams and assisted decoding reorder or take back rows: they are refused at the first
step that shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from ..backends.base import Guide
from ..errors import InvalidArgument
from .late_stopping import PATIENCE, Average, LateStop, LateStopResult, best_two

__all__ = ["GuideLogitsProcessor", "LateStoppingLogitsProcessor"]


class _Steps:
    """Tells a new `generate` from the next step of the one that runs.

    seen: (rows, tokens) ids of the last step; width: tokens of the prompts, padding included.
    """

    def __init__(self) -> None:
        self.seen: Any = None
        self.width = 0

    def begins(self, input_ids: Any) -> bool:
        """Whether a `generate` begins here. InvalidArgument: the step is neither its first nor its next."""
        seen, self.seen = self.seen, input_ids
        if seen is not None and seen.shape[0] == input_ids.shape[0]:
            width = input_ids.shape[1]
            if width == seen.shape[1] + 1 and torch.equal(input_ids[:, :-1], seen):
                return False
            prompts = seen[:, : self.width]
            if width > self.width and torch.equal(input_ids[:, : self.width], prompts):
                self.seen = seen
                raise InvalidArgument(
                    f"a step of {width} tokens a row after one of {seen.shape[1]}, whose rows don't go on: "
                    "beams and assisted decoding are not supported; call reset() before another generate"
                )
        self.width = input_ids.shape[1]
        return True

    def reset(self) -> None:
        self.seen = None


class LateStoppingLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Late stopping (MemLLM Appendix A, see `late_stopping`) for each row of a greedy `generate`.

    Call `generate(..., logits_processor=LogitsProcessorList([processor]), eos_token_id=...)` with `end` among
    its EOS ids, this processor last, then `cut` with what it returned. Where a row goes on past the closing
    token, that is masked; a row that ended gets `end`. A closing token in a prompt counts for nothing. Only
    the best token may be taken: sampling and beams are refused with InvalidArgument as soon as another one
    was, at the latest by `cut`.

    A new prompt begins anew, and so does any after `cut` or `reset`. A `generate` whose prompts are what the
    last one returned, without either between, is taken for its continuation.

    Args: as of `LateStop`, and
        end: what a row that ended gets; None: the first of `eos`, the closing token if there is none.
        prompt_tokens: one number a row, for average="reference"; None: the width of the prompts, padding
        included.
    """

    def __init__(
        self,
        closing: int,
        eos: Sequence[int] = (),
        *,
        patience: int = PATIENCE,
        average: Average = "generated",
        end: int | None = None,
        prompt_tokens: Sequence[int] | None = None,
    ) -> None:
        self._closing, self._eos, self._prompt_tokens = closing, tuple(eos), prompt_tokens
        self._patience, self._average = patience, average
        self._end = end if end is not None else next(iter(eos), closing)
        self._state(1)  # refuses what is wrong at once
        self._steps = _Steps()
        self._rows: list[LateStop] = []
        self._due: list[int | None] = []  # what each row takes next; None: it ended before, anything

    def reset(self) -> None:
        """Forgets the last `generate`."""
        self._steps.reset()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """input_ids: (rows, tokens) so far; scores: (rows, vocabulary). The scores, masked; a copy if
        changed.

        Raises InvalidArgument: see the class; also if no token is allowed in a row.
        """
        if scores.ndim != 2 or scores.shape[0] != input_ids.shape[0]:
            raise InvalidArgument(f"scores of shape {tuple(scores.shape)} for {input_ids.shape[0]} rows")
        if self._steps.begins(input_ids):
            given = self._prompt_tokens
            if given is not None and len(given) != input_ids.shape[0]:
                raise InvalidArgument(f"prompt_tokens: {len(given)} numbers for {input_ids.shape[0]} rows")
            counts = given if given is not None else [input_ids.shape[1]] * input_ids.shape[0]
            self._rows = [self._state(count) for count in counts]
        else:
            self._took(input_ids[:, -1].tolist())
        due: list[int | None] = []
        masked, ended = [], []
        for row, (state, ranked) in enumerate(zip(self._rows, best_two(scores, self._closing), strict=True)):
            if state.reason is not None:
                due.append(None)
                ended.append(row)
                continue
            try:
                token = state.step(ranked)
            except InvalidArgument as error:
                raise InvalidArgument(f"row {row}: {error}") from None
            if state.reason in ("patience", "only closing"):
                ended.append(row)
                token = self._end
            else:
                if ranked[0][0] == self._closing:
                    masked.append(row)
                token = state.last if token is None else token
            due.append(token)
        self._due = due
        if masked or ended:
            scores = scores.clone()
            scores[masked, self._closing] = -torch.inf
            scores[ended] = -torch.inf
            scores[ended, self._end] = 0
        return scores

    @property
    def results(self) -> list[LateStopResult]:
        """Each row's outcome in the last `generate`, positions counted from the end of the prompts."""
        return [state.result for state in self._rows]

    def cut(self, sequences: Any) -> list[list[int]]:
        """The generated tokens that each row keeps, up to and with its closing token; see `results` for why.

        sequences: (rows, tokens) ids as `generate` returned them, prompts included. Raises InvalidArgument if
        they are not of the last `generate`, or if that did not take the best token. The next call begins
        anew.
        """
        seen = self._steps.seen
        if seen is None:
            raise InvalidArgument("nothing was generated since the last cut or reset")
        given = sequences.to(seen.device)
        width = given.shape[-1] if given.ndim == 2 and given.shape[0] == seen.shape[0] else 0
        if width == seen.shape[1] + 1 and torch.equal(given[:, :-1], seen):
            self._took(given[:, -1].tolist())
        elif not (  # on some devices `generate` runs a few steps past the end and takes them back
            self._steps.width < width <= seen.shape[1]
            and torch.equal(given, seen[:, :width])
            and all(state.reason and self._steps.width + len(state.tokens) < width for state in self._rows)
        ):
            raise InvalidArgument(
                f"sequences of shape {tuple(given.shape)} are not what the last generate returned"
            )
        self.reset()
        return [list(result.tokens) for result in self.results]

    def _state(self, prompt_tokens: int) -> LateStop:
        return LateStop(
            self._closing,
            self._eos,
            patience=self._patience,
            average=self._average,
            prompt_tokens=prompt_tokens if self._average == "reference" else 0,
        )

    def _took(self, tokens: Sequence[int]) -> None:
        for row, (token, due) in enumerate(zip(tokens, self._due, strict=True)):
            if due is not None and token != due:
                raise InvalidArgument(
                    f"row {row}: token {token} was taken where {due} is the best: late stopping is greedy, "
                    "without sampling and beams; it must be the last processor and know all EOS ids"
                )


class GuideLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Masks the scores of each row by a guide of its own, from the end of its prompt on.

    guides: makes the guide of a row, given its number; called anew for each `generate`. ends: ids after which
    a row has ended and its guide is not asked any more: all EOS ids of the `generate`, and the padding id
    where a stopping criterion may end a row. Scores beyond a guide's mask (a padded vocabulary) are
    forbidden. Sampling is fine; beams are refused. Put it before late stopping.
    """

    def __init__(self, guides: Callable[[int], Guide], ends: Collection[int] = ()) -> None:
        self._make, self._ends = guides, frozenset(ends)
        self._steps = _Steps()
        self._guides: list[Guide | None] = []  # None: the row has ended

    def reset(self) -> None:
        """Forgets the last `generate`; a new prompt does that by itself."""
        self._steps.reset()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """input_ids: (rows, tokens) so far; scores: (rows, vocabulary). The scores, masked; a copy if
        changed.

        Raises InvalidArgument where a row took a token that its guide forbids, and where a guide allows none.
        """
        if scores.ndim != 2 or scores.shape[0] != input_ids.shape[0]:
            raise InvalidArgument(f"scores of shape {tuple(scores.shape)} for {input_ids.shape[0]} rows")
        if self._steps.begins(input_ids):
            self._guides = [self._make(row) for row in range(input_ids.shape[0])]
        else:
            for row, token in enumerate(input_ids[:, -1].tolist()):
                self._advance(row, token)
        copied = False
        for row, guide in enumerate(self._guides):
            mask = None if guide is None else guide.mask()
            if mask is None:
                continue
            if not mask[: scores.shape[1]].any():
                raise InvalidArgument(f"row {row}: its guide allows none of {scores.shape[1]} tokens")
            if not copied:
                scores, copied = scores.clone(), True
            allowed = torch.tensor(mask[: scores.shape[1]], device=scores.device)
            scores[row, : len(allowed)].masked_fill_(~allowed, -torch.inf)
            scores[row, len(allowed) :] = -torch.inf
        return scores

    def _advance(self, row: int, token: int) -> None:
        guide = self._guides[row]
        if guide is None:
            return
        if token in self._ends:
            self._guides[row] = None
            return
        mask = guide.mask()
        if mask is not None and not (token < len(mask) and mask[token]):
            raise InvalidArgument(
                f"row {row}: token {token} was taken, which its guide forbids; is it missing in `ends`?"
            )
        guide.advance(token)
