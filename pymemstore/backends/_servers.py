"""What servers do differently, and the requests that even it out; docs/servers.md has the table."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from ..errors import BackendError, InvalidArgument
from ._completion import Completion, server_message
from ._servertokens import ServerTokens
from .base import Params, Prompt, prompt_text

__all__ = ["ServerKind", "capabilities", "completion_request", "refused", "tokenizer_probe"]

ServerKind = Literal["vllm", "transformers", "generic"]

# Set by the backend itself: with others a completion of another shape would come.
_RESERVED = frozenset({"model", "prompt", "stream", "n", "best_of", "echo", "suffix", "stop", "max_tokens"})
# `transformers serve` takes these and does nothing with them.
_IGNORED = frozenset({"logprobs", "logit_bias", "presence_penalty", "stream_options", "user"})
_TOO_LONG = re.compile(
    r"context (length|window|size)|max_model_len|maximum .{0,20}length|too long", re.IGNORECASE
)


def capabilities(kind: ServerKind, tokens: ServerTokens | None) -> frozenset[str]:
    """What `Backend.can` says of a server."""
    if kind == "vllm":
        known = {"ban", "data"} if tokens is not None and tokens.safe else {"ban"} if tokens else set()
        return frozenset({"grammar", "logprobs"} | known)
    if kind == "generic":
        return frozenset({"logprobs"} | ({"ban"} if tokens else set()))
    return frozenset()


def completion_request(
    kind: ServerKind, model: str, tokens: ServerTokens | None, prompt: Prompt, params: Params
) -> tuple[bytes, Completion]:
    """The body of a request, and what reads its answer.

    Raises InvalidArgument: params that the server does not honour.
    """
    can = capabilities(kind, tokens)
    for what in ("guide", "chooser", "grammar", "logprobs", "ban"):
        if getattr(params, what) and what not in can:
            why = " without a tokenizer" if what == "ban" and kind != "transformers" else ""
            raise InvalidArgument(f"{what}: not with this server ({kind}){why}")
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt_text(prompt),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "stream": True,
    }
    if params.seed is not None:
        body["seed"] = params.seed
    if params.logprobs:
        body["logprobs"] = 1
    if tokens is not None and params.ban:
        _ban(body, kind, tokens, params)
    _check_extra(kind, params)
    if kind == "vllm":
        completion = _vllm(body, tokens, prompt, params)
    else:
        # These strip special tokens from text, so that nobody would see such a stop string.
        lost = [s for s in params.stop if tokens is not None and any(mark in s for mark in tokens.special)]
        if lost:
            raise InvalidArgument(
                f"stop: {lost[0]!r:.80} holds a special token, which this server ({kind}) strips from text, "
                "so that it can't be told from the end: register the token with special=False, or use vLLM"
            )
        if kind == "transformers":
            # The stop string stays in the text. "generic" gets none: most servers cut it off and then don't
            # tell a stop from the end, so the text is watched and the connection closed.
            if params.stop:
                body["stop"] = list(params.stop)
        else:
            body["stream_options"] = {"include_usage": True}
        completion = Completion(params)
    body.update(params.extra)
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), completion
    except (TypeError, ValueError) as error:  # also a lone surrogate
        raise InvalidArgument(f"the prompt or params can't be sent: {error}") from None


def _check_extra(kind: ServerKind, params: Params) -> None:
    wrong = _RESERVED.intersection(params.extra)
    if wrong:
        raise InvalidArgument(f"extra: {', '.join(sorted(wrong))}: set by the backend itself")
    if kind == "transformers":
        ignored = _IGNORED.intersection(params.extra)
        if ignored:
            raise InvalidArgument(f"extra: {', '.join(sorted(ignored))}: transformers serve ignores it")
    if params.ban and "logit_bias" in params.extra:
        raise InvalidArgument("extra: logit_bias together with ban")


def _ban(body: dict[str, Any], kind: ServerKind, tokens: ServerTokens, params: Params) -> None:
    """Bars the tokens that hold a banned string. Where it comes by several tokens all the same, the
    completion raises."""
    ids = {text: tokens.containing(text) for text in params.ban}
    several = [text for text, found in ids.items() if not found]
    if several and kind != "vllm":
        raise InvalidArgument(f"ban: {several[0]!r:.80} is no single token: not with this server ({kind})")
    if several:
        body["bad_words"] = several
    body["logit_bias"] = {str(i): -100 for found in ids.values() for i in found}


def _vllm(body: dict[str, Any], tokens: ServerTokens | None, prompt: Prompt, params: Params) -> Completion:
    """Completes a request to vLLM.

    Special tokens stay in the text, so that stop strings find them; the stop string too, so that it is told
    from the end, and of several the first is found: vLLM itself goes by their order in the list. The end
    token's text comes along then; it is taken off where the tokenizer is known. A request that brings its
    own stop ids gets its text without them.
    """
    body["skip_special_tokens"] = False
    body["spaces_between_special_tokens"] = False
    body["stream_options"] = {"include_usage": True}
    given = params.extra.get("stop_token_ids") or ()
    if params.stop:
        body["stop"] = list(params.stop)
    whole = bool(params.stop) and not given
    body["include_stop_str_in_output"] = whole
    if params.grammar is not None:
        body["structured_outputs"] = {"grammar": params.grammar}
    ids: list[int] | None = None
    stop_ids: dict[int, str] = {}
    if tokens is not None:
        ids = body["prompt"] = tokens.encode(prompt)
        body["add_special_tokens"] = False
        body["return_token_ids"] = True
        stop_ids = tokens.stop_ids(params.stop)
        if stop_ids and not given:
            body["stop_token_ids"] = list(stop_ids)
        stop_ids = {**{int(i): tokens.decode([int(i)]) for i in given}, **stop_ids}
    ends = [str(tokens.tokenizer.eos_token)] if whole and tokens is not None else []
    return Completion(params, tokens=tokens, prompt_ids=ids, stop_ids=stop_ids, ends=ends)


def tokenizer_probe(tokens: ServerTokens) -> tuple[str, list[int]]:
    """A text, and the ids that the same tokenizer makes of it."""
    text = "Ana Lima née 1975 " + "".join(list(tokens.marks)[:64])
    return text, list(tokens.tokenizer(text, add_special_tokens=False)["input_ids"])


def refused(status: int, answer: bytes, where: str) -> BackendError | InvalidArgument:
    """The error for an answer of another status than 200."""
    try:
        message = server_message(json.loads(answer))
    except ValueError:
        message = answer[:500].decode("utf-8", "replace").strip()
    if status in (400, 413, 422) and _TOO_LONG.search(message):
        return InvalidArgument(f"too long for the model: {message}")
    return BackendError(f"{where} answered {status}: {message or 'no message'}", status=status)
