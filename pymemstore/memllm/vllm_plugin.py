"""Late stopping and token guides in a vLLM server, as a logits processor of its V1 engine.

Start the server with `--logits-processors pymemstore.memllm.vllm_plugin:MemllmLogitsProcessor` and leave its
`--logprobs-mode` at raw_logprobs. A request switches on what it wants by `vllm_xargs`:

    pymemstore_late_stop    id of the closing token: late stopping (MemLLM Appendix A)
    pymemstore_patience     the paper's K, 5
    pymemstore_average      "generated" or "reference", see `LateStop`
    pymemstore_guide        JSON of a guide, for `automaton.guide_from_spec`

A processor can mask but not end a request: where the patience is used up it lets only the closing token
through, so the request must name that one in `stop_token_ids`. `request_fields` makes all that a request
needs, and `cut_from_logprobs` finds the cut in its answer. Log-probabilities are the model's, before the
guide's mask: those that the server returns, so that both sides count the same.

The module can be imported without vLLM; the processor can't be made then.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.base import Guide
from ..errors import BadResponse, InvalidArgument, MemstoreError
from .late_stopping import PATIENCE, Average, LateStop, LateStopResult, best_two, replay

__all__ = ["MemllmLogitsProcessor", "RequestProcessor", "cut_from_logprobs", "plugin_class", "request_fields"]

_LOG = logging.getLogger(__name__)
_PREFIX = "pymemstore_"
_REMEMBERED = 256  # requests whose state is kept in case they come back after a preemption
_TOKEN = "token_id:"  # what servers put before ids under return_tokens_as_token_ids


@dataclass(frozen=True)
class _Wish:
    """What a request asks for."""

    closing: int | None
    patience: int
    average: Average
    guide: dict[str, Any] | None


def _wish(extra: Mapping[str, Any] | None) -> _Wish | None:
    """Reads `vllm_xargs`; None: nothing of ours. Raises InvalidArgument."""
    ours = {key: value for key, value in (extra or {}).items() if key.startswith(_PREFIX)}
    if not ours:
        return None
    closing, spec = ours.pop("pymemstore_late_stop", None), ours.pop("pymemstore_guide", None)
    patience = ours.pop("pymemstore_patience", PATIENCE)
    average = ours.pop("pymemstore_average", "generated")
    if ours:
        raise InvalidArgument(f"vllm_xargs: no such key: {', '.join(sorted(ours))}")
    for key, number in (("late_stop", closing), ("patience", patience)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise InvalidArgument(f"vllm_xargs: pymemstore_{key}: expected a number, not {number!r:.80}")
    LateStop(closing or 0, patience=patience, average=average, prompt_tokens=int(average == "reference"))
    guide = None
    if spec is not None:
        try:
            guide = json.loads(spec) if isinstance(spec, str) else spec
        except ValueError as error:
            raise InvalidArgument(f"vllm_xargs: pymemstore_guide is no JSON: {error}") from None
        if not isinstance(guide, dict):
            raise InvalidArgument(f"vllm_xargs: pymemstore_guide: expected an object, not {spec!r:.80}")
    return _Wish(closing, patience, average, guide)


class RequestProcessor:
    """Late stopping, a guide or both for one request: called with (output ids, scores) before each token.

    Scores are one row, (vocabulary,), and come back masked; under late stopping all but one token are. The
    state follows from the output ids: a call with the same ones again (a part of a prompt) or with fewer
    takes steps back. Where they don't go on from what it saw, the guide reads them anew, and late stopping,
    which can't know their scores, counts from there (`resets`, and a warning in the log); `replay` is right
    all the same. An error of a guide is logged and kept in `error`, and the request goes on without a mask:
    raised here it would end the whole server.
    """

    def __init__(
        self, wish: _Wish, guide: Callable[[], Guide] | None = None, prompt_tokens: int | None = None
    ) -> None:
        self._wish, self._make = wish, guide
        self._guide: Guide | None = None
        self._fed: list[int] = []
        self._late: LateStop | None = None
        self._prompt_tokens = prompt_tokens
        self._before: list[int] = []  # tokens from before a reset
        self._marks: list[tuple[Any, ...]] = []  # the state of `_late` before each of its steps
        self.resets = 0
        self.error: MemstoreError | None = None

    def __call__(self, output_ids: Sequence[int], row: Any) -> Any:
        if self.error is not None:
            return row
        try:
            return self._masked(list(output_ids), row)
        except MemstoreError as error:
            self.error = error
            _LOG.error("pymemstore: no more masks for a request after %d tokens: %s", len(output_ids), error)
            return row

    def _masked(self, tokens: list[int], row: Any) -> Any:
        if -1 in tokens:
            raise InvalidArgument(
                "the engine hides tokens that it has chosen: name the processor in --logits-processors"
            )
        allowed = self._allowed(tokens, row)
        if self._wish.closing is None:
            return row if allowed is None else row.masked_fill(~allowed, -math.inf)
        token = self._choice(tokens, row, allowed)
        row = row.new_full(row.shape, -math.inf)
        row[token] = 0
        return row

    def _allowed(self, tokens: list[int], row: Any) -> Any:
        """The guide's mask, as long as the row; None: anything."""
        if self._make is None:
            return None
        if self._guide is None or tokens[: len(self._fed)] != self._fed:
            self._guide, self._fed = self._make(), []
        for token in tokens[len(self._fed) :]:
            mask = self._guide.mask()
            if mask is not None and not (token < len(mask) and mask[token]):
                raise InvalidArgument(f"token {token} was taken, which the guide forbids")
            self._guide.advance(token)
            self._fed.append(token)
        mask = self._guide.mask()
        if mask is None:
            return None
        allowed = row.new_zeros(row.shape, dtype=_torch().bool)
        common = min(len(mask), len(row))
        allowed[:common] = _torch().tensor(mask[:common], device=row.device)
        if not mask[:common].any():
            raise InvalidArgument("the guide allows no token")
        return allowed

    def _choice(self, tokens: list[int], row: Any, allowed: Any) -> int:
        """The token that late stopping takes."""
        assert self._wish.closing is not None
        late = self._at(tokens)
        if late.reason is None:
            left = row if allowed is None else row.masked_fill(~allowed, -math.inf)
            self._marks.append(late.mark())
            (ranked,) = best_two(left[None], self._wish.closing, row[None])
            taken = late.step(ranked)
            if taken is not None:
                return taken
        return self._wish.closing

    def _at(self, tokens: list[int]) -> LateStop:
        """`_late` as it was when just these tokens were there."""
        late = self._late
        if late is not None:
            known = self._before + late.tokens
            if late.reason and len(tokens) > len(known) and tokens[: len(known)] == known:
                return late  # the server goes on although the row has ended
            steps = len(tokens) - len(self._before)
            if steps >= 0 and tokens == known[: len(tokens)]:
                if steps < len(self._marks):
                    late.back(self._marks[steps])
                    del self._marks[steps:]
                return late
        if tokens:
            self.resets += 1
            _LOG.warning("pymemstore: late stopping of a request counts anew after %d tokens", len(tokens))
        wish = self._wish
        assert wish.closing is not None
        prompt = self._prompt_tokens + len(tokens) if self._prompt_tokens is not None else 0
        self._late = LateStop(
            wish.closing, patience=wish.patience, average=wish.average, prompt_tokens=prompt
        )
        self._before, self._marks = tokens, []
        return self._late


class _WithPrompt(RequestProcessor):
    """The same where the average needs the prompt's length: vLLM looks at the number of arguments."""

    def __call__(  # type: ignore[override]
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], row: Any
    ) -> Any:
        self._prompt_tokens = len(prompt_ids)
        return super().__call__(output_ids, row)


def plugin_class(adapter: type) -> type:
    """The processor for the engine, made from vLLM's AdapterLogitsProcessor."""

    class MemllmLogitsProcessor(adapter):  # type: ignore[misc]
        """Masks the rows of requests that ask for it; see the module."""

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
            super().__init__(vllm_config, device, is_pin_memory)
            self._config = vllm_config
            self._remembered: OrderedDict[int, tuple[Any, RequestProcessor]] = OrderedDict()

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            """Refuses a request, in the server's front: InvalidArgument is a ValueError, as vLLM wants."""
            wish = _wish(sampling_params.extra_args)
            if wish is None or wish.closing is None:
                return
            if sampling_params.temperature:
                raise InvalidArgument(
                    f"late stopping is greedy: temperature must be 0, not {sampling_params.temperature}"
                )
            if wish.closing not in (sampling_params.stop_token_ids or ()):
                raise InvalidArgument(f"late stopping needs stop_token_ids to hold {wish.closing}")

        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> RequestProcessor | None:
            """Called when a request enters the batch: also when it comes back after a preemption, with the
            state it had."""
            wish = _wish(params.extra_args)
            if wish is None:
                return None
            running = [getattr(entry, "func", None) for entry in self.req_info.values()]
            _, known = self._remembered.pop(id(params), (None, None))
            if known is None or known.error or any(entry is known for entry in running):
                kind = _WithPrompt if wish.average == "reference" else RequestProcessor
                known = kind(wish, None if wish.guide is None else self._guides(wish.guide))
            self._remembered[id(params)] = params, known  # holds params, so that its id stays its own
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
            return known

        def _guides(self, spec: dict[str, Any]) -> Callable[[], Guide]:
            def make() -> Guide:
                automaton = importlib.import_module(".automaton", __package__)
                guide: Guide = automaton.guide_from_spec(spec, self._vocabulary)
                return guide

            return make

        @functools.cached_property
        def _vocabulary(self) -> Any:
            automaton = importlib.import_module(".automaton", __package__)
            return automaton.Vocabulary.from_tokenizer(_tokenizer(self._config))

    MemllmLogitsProcessor.__qualname__ = "MemllmLogitsProcessor"  # as it is found here, to be pickled
    return MemllmLogitsProcessor


def _torch() -> Any:
    return importlib.import_module("torch")


def _tokenizer(vllm_config: Any) -> Any:
    """The tokenizer of the served model."""
    made = importlib.import_module("vllm.tokenizers").cached_tokenizer_from_config(vllm_config.model_config)
    if made is None:
        raise InvalidArgument("a guide needs the tokenizer, and the server was started without one")
    return made


class _Absent:
    """Stands for vLLM's class where it is not installed."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        raise InvalidArgument("MemllmLogitsProcessor runs inside vLLM, which is not installed here")


def _adapter() -> type:
    try:
        module = importlib.import_module("vllm.v1.sample.logits_processor")
    except ImportError:
        return _Absent
    adapter: type = module.AdapterLogitsProcessor
    return adapter


MemllmLogitsProcessor = plugin_class(_adapter())


def request_fields(
    closing: int,
    *,
    patience: int = PATIENCE,
    average: Average = "generated",
    guide: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a completions request needs beside prompt and max_tokens for late stopping and
    `cut_from_logprobs`.

    guide: for `automaton.guide_from_spec`. The others: as of `LateStop`.
    """
    xargs: dict[str, Any] = {
        "pymemstore_late_stop": closing,
        "pymemstore_patience": patience,
        "pymemstore_average": average,
    }
    if guide is not None:
        xargs["pymemstore_guide"] = json.dumps(guide, ensure_ascii=False)
    _wish(xargs)
    return {
        "temperature": 0,
        "stop_token_ids": [closing],
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "vllm_xargs": xargs,
    }


def cut_from_logprobs(
    logprobs: Mapping[str, Any],
    closing: int,
    eos: Collection[int] = (),
    *,
    patience: int = PATIENCE,
    average: Average = "generated",
    prompt_tokens: int = 0,
    closing_allowed: Sequence[bool] | None = None,
) -> LateStopResult:
    """The cut in an answer to a request of `request_fields`.

    logprobs: the `logprobs` object of a completions choice, its tokens as "token_id:N". The others: as of
    `replay`. Raises BadResponse where it is not of that form.
    """

    def number(token: str) -> int:
        if not token.startswith(_TOKEN):
            raise ValueError(f"{token!r:.40} is not {_TOKEN}N: return_tokens_as_token_ids was not honoured")
        return int(token[len(_TOKEN) :])

    try:
        tokens = [number(token) for token in logprobs["tokens"]]
        values = [float(value) for value in logprobs["token_logprobs"]]
        tops = [
            {number(token): float(value) for token, value in top.items()} for top in logprobs["top_logprobs"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadResponse(f"the server's log-probabilities can't be read: {error!r:.200}") from None
    return replay(
        tokens,
        values,
        tops,
        closing,
        eos,
        patience=patience,
        average=average,
        prompt_tokens=prompt_tokens,
        closing_allowed=closing_allowed,
    )
