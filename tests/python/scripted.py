"""A `Backend` whose model is a Python function, for tests of the loops. A character is a token."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from pymemstore import InvalidArgument
from pymemstore.backends._stops import StopMatcher
from pymemstore.backends.base import Generation, Params, Prompt, Segment, Usage, prompt_text, segments

__all__ = ["Script", "Scripted"]

Script = Callable[[str, Params], str]


class Scripted:
    """Continues a prompt with what `script(prompt_text, params)` returns.

    The text is cut at `max_tokens` characters (finish "length"), then at the first stop string ("stop"); a
    text that is neither cut is the model's whole answer ("eos"). A script that writes what is banned is
    wrong. An exception of the script is the backend's: a stream raises it by its iteration.

    Args:
        script: is called once a generation, in the order of the prompts.
        can: as of `Backend`; params that need more are refused.
        piece: characters of one piece of a stream.
        tokenizer: what `tokenizer` gives.

    Attributes:
        prompts: texts of all prompts, in order.
        given: the same as segments.
        params: the parameters of each.
        batches: how many prompts each `generate` had.
    """

    def __init__(
        self,
        script: Script,
        *,
        can: frozenset[str] = frozenset({"data"}),
        piece: int = 3,
        name: str = "scripted",
        tokenizer: Any = None,
    ) -> None:
        self.script, self.can, self.piece, self.name, self.tokenizer = script, can, piece, name, tokenizer
        self.prompts: list[str] = []
        self.given: list[tuple[Segment, ...]] = []
        self.params: list[Params] = []
        self.batches: list[int] = []
        self.closed = False
        self._lock = threading.Lock()

    def _continue(self, prompt: Prompt, params: Params) -> Generation:
        for what in ("ban", "guide", "grammar", "chooser", "logprobs"):
            if getattr(params, what) and what not in self.can:
                raise InvalidArgument(f"{self.name} takes no {what}")
        before = prompt_text(prompt)
        with self._lock:
            self.prompts.append(before)
            self.given.append(segments(prompt))
            self.params.append(params)
            wrote = self.script(before, params)
        matcher = StopMatcher(params.stop)
        text = matcher.feed(wrote[: params.max_tokens])
        text += matcher.finish()
        written = [banned for banned in params.ban if banned in text]
        assert not written, f"the script wrote {written}, which is banned"
        finish = "stop" if matcher.stop else "length" if len(wrote) > params.max_tokens else "eos"
        usage = Usage(len(before), len(before), len(text) + len(matcher.stop or ""))
        return Generation(
            text,
            (Segment(text),) if text else (),
            finish,
            matcher.stop,
            usage=usage,  # type: ignore[arg-type]
        )

    def generate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        self.batches.append(len(prompts))
        return [self._continue(prompt, params) for prompt in prompts]

    def stream(self, prompt: Prompt, params: Params) -> ScriptedStream:
        return ScriptedStream(self, prompt, params)

    async def agenerate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        return self.generate(prompts, params)

    def astream(self, prompt: Prompt, params: Params) -> AsyncScriptedStream:
        return AsyncScriptedStream(self.stream(prompt, params))

    def close(self) -> None:
        self.closed = True


class ScriptedStream:
    """A `Stream`."""

    def __init__(self, backend: Scripted, prompt: Prompt, params: Params) -> None:
        self._backend, self._prompt, self._params = backend, prompt, params
        self._whole: Generation | None = None
        self._ended = self._closed = False
        self._pieces = self._run()

    def _run(self) -> Iterator[str]:
        self._whole = self._backend._continue(self._prompt, self._params)
        text, piece = self._whole.text, self._backend.piece
        for start in range(0, len(text), piece):
            yield text[start : start + piece]
        self._ended = True

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._closed:
            raise StopIteration
        return next(self._pieces)

    def close(self) -> None:
        self._closed = True

    @property
    def generation(self) -> Generation:
        if not self._ended or self._whole is None:
            raise InvalidArgument("the stream has not ended")
        return self._whole


class AsyncScriptedStream:
    """An `AsyncStream`."""

    def __init__(self, stream: ScriptedStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        try:
            return next(self._stream)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self._stream.close()

    @property
    def generation(self) -> Generation:
        return self._stream.generation
