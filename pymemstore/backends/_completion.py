"""The answer to one completion request: pieces of text and server-sent events in, a `Generation` out.

Nothing here does I/O: both faces of `openai.py` and `vllm.py` feed it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BackendError, BadResponse
from ._servertokens import ServerTokens
from ._stops import StopMatcher
from .base import Finish, Generation, Params, Segment, Usage

__all__ = ["Completion", "EventReader", "ServerGeneration", "excerpt", "server_message"]

_LARGEST = 1 << 24  # bytes of one event; a server that sends more without an end is broken
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
# What servers call it: OpenAI, vLLM, TGI, SGLang.
_ENDS: dict[str, Finish] = {
    "stop": "eos",  # or a stop string: told apart by what else came
    "stop_sequence": "eos",
    "eos": "eos",
    "eos_token": "eos",
    "length": "length",
}


@dataclass(frozen=True)
class ServerGeneration(Generation):
    """A generation with what the server told beside.

    Attributes:
        token_ids: all new tokens, those of a stop string and the end token among them; None: not told.
        server_logprobs: the choice's `logprobs` object (`tokens`, `token_logprobs`, `top_logprobs`) of all
            new tokens, if it was asked for.
    """

    token_ids: tuple[int, ...] | None = None
    server_logprobs: Mapping[str, Any] | None = field(default=None, compare=False)


class Completion:
    """One completion as it comes.

    Attributes:
        finish: the server's finish reason; None so far.
        settled: how it ended is known: what fails afterwards does no harm.
        over: text came after the stop string: the server goes on, and need not be listened to.
    """

    def __init__(
        self,
        params: Params,
        *,
        tokens: ServerTokens | None = None,
        prompt_ids: Sequence[int] | None = None,
        stop_ids: Mapping[int, str] | None = None,
        ends: Sequence[str] = (),
    ) -> None:
        """ends: texts of the end token, where the server leaves it in the text."""
        self._params = params
        self._tokens = tokens
        self._prompt_ids = prompt_ids
        self._stop_ids = dict(stop_ids or {})
        self._ends = frozenset(ends) - frozenset(params.stop)
        self._stops = StopMatcher((*params.stop, *self._ends))
        self._bans = StopMatcher(params.ban)
        self._text: list[str] = []
        self._ids: list[int] | None = None
        self._logprobs: dict[str, list[Any]] = {}
        self._stop_reason: object = None
        self._usage: Mapping[str, Any] = {}
        self._pieces = 0
        self.finish: str | None = None
        self.over = False

    @property
    def settled(self) -> bool:
        return self.finish is not None or self._stops.stop is not None

    @property
    def text(self) -> str:
        """What has come, as far as it stands before the stop string."""
        return "".join(self._text) + self._stops.held

    def add(
        self,
        text: str = "",
        *,
        ids: Sequence[int] | None = None,
        logprobs: Mapping[str, Any] | None = None,
        finish: str | None = None,
        stop_reason: object = None,
    ) -> str:
        """Takes the next piece; the text that may be handed on. BadResponse where a banned string comes."""
        if self._stops.stop is not None and text:
            self.over = True
            return ""
        if ids is not None:
            self._ids = [*(self._ids or ()), *ids]
        for key in _LISTS:
            if logprobs and isinstance(logprobs.get(key), list):
                self._logprobs.setdefault(key, []).extend(logprobs[key])
        if finish is not None:
            self.finish = finish
            self._stop_reason = stop_reason
        self._pieces += bool(text)
        return self._pass(self._stops.feed(text))

    def _pass(self, text: str) -> str:
        if text:
            self._text.append(text)
            self._bans.feed(text)
        if self._bans.stop is not None:
            raise BadResponse(
                f"the server let the banned string {self._bans.stop!r:.80} through", text=self.text
            )
        return text

    def usage(self, counts: Mapping[str, Any]) -> None:
        """Takes the server's token counts."""
        self._usage = counts

    def end(self) -> str:
        """The answer is complete; the text that was held back. BadResponse if it isn't."""
        if not self.settled:
            raise BadResponse("the server broke off before the end of the completion", text=self.text)
        if self.finish is not None and self.finish not in _ENDS and self._stops.stop is None:
            raise BackendError(f"the server ended the completion with {self.finish!r:.80}", text=self.text)
        return self._pass(self._stops.finish())

    def generation(self) -> ServerGeneration:
        """The whole, after `end`."""
        text = "".join(self._text)
        finish, stop = self._ending()
        parts: tuple[Segment, ...] = (Segment(text),) if text else ()
        if self._tokens is not None and self._ids is not None:
            parts = self._tokens.parts(text, self._ids, self._prompt_ids or ())
        return ServerGeneration(
            text,
            parts,
            finish,
            stop,
            self._values() if self._params.logprobs else None,
            self._counts(),
            None if self._ids is None else tuple(self._ids),
            self._logprobs or None,
        )

    def _ending(self) -> tuple[Finish, str | None]:
        if self._stops.stop is not None:
            return ("eos", None) if self._stops.stop in self._ends else ("stop", self._stops.stop)
        reason = self._stop_reason
        if isinstance(reason, str) and reason in self._params.stop:
            return "stop", reason
        last = self._ids[-1] if self._ids else None
        for token in (reason, last):
            if self.finish != "length" and isinstance(token, int) and token in self._stop_ids:
                return "stop", self._stop_ids[token]
        return _ENDS[self.finish or "stop"], None

    def _values(self) -> tuple[float, ...]:
        try:
            return tuple(float(value) for value in self._logprobs["token_logprobs"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadResponse(
                f"log-probabilities were asked for, and none came that can be read: {error!r:.200}",
                text=self.text,
            ) from None

    def _counts(self) -> Usage:
        def count(value: object) -> int | None:
            return value if isinstance(value, int) and not isinstance(value, bool) else None

        prompt = count(self._usage.get("prompt_tokens"))
        if prompt is None:
            prompt = len(self._prompt_ids or ())
        generated = count(self._usage.get("completion_tokens"))
        if generated is None:
            generated = self._pieces if self._ids is None else len(self._ids)
        details = self._usage.get("prompt_tokens_details")
        cached = count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        return Usage(prompt, None if cached is None else prompt - cached, generated)


class EventReader:
    """Reads the body of an answer, server-sent events or one JSON object, into a completion.

    Lines are split as bytes: a text's own U+2028 or U+0085 ends no line of the stream.
    """

    def __init__(self, completion: Completion, *, events: bool) -> None:
        self._completion = completion
        self._events = events
        self._buffer = b""
        self._data: list[bytes] = []
        self._strange = b""  # the first line that belongs to no event stream
        self.done = False

    @property
    def finished(self) -> bool:
        """Nothing more needs to be read."""
        return self.done or self._completion.over

    def feed(self, chunk: bytes) -> str:
        """Takes the next bytes; the text that may be handed on. BackendError, BadResponse."""
        self._buffer += chunk
        if len(self._buffer) > _LARGEST:
            raise self._bad(f"more than {_LARGEST} bytes without the end of an event", b"")
        if not self._events:
            return ""
        end = len(self._buffer) - self._buffer.endswith(b"\r")  # its line feed may follow
        lines = re.split(rb"\r\n|\n|\r", self._buffer[:end])
        self._buffer = lines.pop() + self._buffer[end:]
        return "".join(self._line(line) for line in lines)

    def end(self) -> str:
        """The body has ended; the text that was held back."""
        if not self._events:
            out = self._event(self._buffer)
            if not self._completion.settled:
                raise self._bad("the completion has no finish_reason", self._buffer)
            return out + self._completion.end()
        rest = self.feed(b"\n\n") if not self.done and self._whole() else ""
        if not self._completion.settled and (self._strange or self._buffer):
            raise self._bad("the server's answer is cut or no event stream", self._strange or self._buffer)
        return rest + self._completion.end()

    def _whole(self) -> bool:
        """Whether what is left is an event that lacks its blank line only."""
        try:
            left = self._buffer.strip()
            json.loads(left.removeprefix(b"data:") if left else b"\n".join(self._data))
        except ValueError:
            return False
        return True

    def _line(self, line: bytes) -> str:
        if self.done:
            return ""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name not in (b"", b"event", b"id", b"retry"):  # b"": a comment
                self._strange = self._strange or line
            return ""
        data, self._data = b"\n".join(self._data), []
        if data.strip() == b"[DONE]":
            self.done = True
            return ""
        return self._event(data) if data else ""

    def _event(self, data: bytes) -> str:
        completion = self._completion
        try:
            event = json.loads(data)
        except ValueError:  # also of bytes that are no UTF-8
            raise self._bad("the server's answer is no JSON", data) from None
        if not isinstance(event, dict):
            raise self._bad("the server's answer is no completion", data)
        if event.get("error"):
            inner = event["error"]
            code = inner.get("code") if isinstance(inner, dict) else None
            raise BackendError(
                f"the server failed: {server_message(event)}",
                text=completion.text,
                status=code if isinstance(code, int) else None,
            )
        if isinstance(event.get("usage"), dict):
            completion.usage(event["usage"])
        choices = event.get("choices")
        if choices == [] and self._events and "usage" in event:
            return ""
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise self._bad("the server's answer has no choices", data)
        text, finish, ids = choice.get("text"), choice.get("finish_reason"), choice.get("token_ids")
        if text is None and finish is not None and self._events:
            text = ""
        if not isinstance(text, str) or not (finish is None or isinstance(finish, str)):
            raise self._bad("the server's answer has no text", data)
        if re.search("[\ud800-\udfff]", text):
            raise self._bad("the server's text has half a character", data)
        if ids is not None and not (isinstance(ids, list) and all(isinstance(i, int) for i in ids)):
            raise self._bad("the server's token_ids are no numbers", data)
        logprobs = choice.get("logprobs")
        return completion.add(
            text,
            ids=ids,
            logprobs=logprobs if isinstance(logprobs, dict) else None,
            finish=finish,
            stop_reason=choice.get("stop_reason", choice.get("matched_stop")),
        )

    def _bad(self, what: str, data: bytes) -> BadResponse:
        return BadResponse(f"{what}{': ' + excerpt(data) if data else ''}", text=self._completion.text)


def excerpt(data: bytes) -> str:
    """The beginning of an answer, for a message."""
    return repr(data[:200].decode("utf-8", "replace"))


def server_message(body: object) -> str:
    """What a server says in the body of an error."""
    if isinstance(body, dict):
        for key in ("error", "message", "detail"):
            if body.get(key):
                return server_message(body[key])
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False))[:500]
