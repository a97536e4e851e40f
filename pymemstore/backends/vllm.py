"""vLLM in this process: `vllm.LLM` behind the protocol. Needs vllm, and its V1 engine."""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from ..errors import BackendError, InvalidArgument
from ._completion import Completion, ServerGeneration
from ._servertokens import ServerTokens
from .base import Generation, Params, Prompt

__all__ = ["AsyncVLLMStream", "VLLMBackend", "VLLMStream"]

# Set by the backend itself.
_RESERVED = frozenset(
    {"n", "stop", "max_tokens", "output_kind", "detokenize", "structured_outputs", "extra_args"}
)
# Fields of a request to the server that mean nothing here: ids are always told.
_OF_SERVERS = frozenset({"return_tokens_as_token_ids", "return_token_ids"})


class VLLMBackend:
    """A `Backend` over a `vllm.LLM`.

    It honours what the server does (`OpenAIBackend` with server "vllm"), and takes the same `Params.extra`:
    fields of `SamplingParams`, and `vllm_xargs` for logits processors that the model was loaded with. Streams
    may be interleaved; several threads may call it.

    llm: the model. name: for reports; None: the model's.
    """

    def __init__(self, llm: Any, *, name: str | None = None) -> None:
        self._engine = llm.llm_engine
        self._name = name or str(llm.llm_engine.model_config.model)
        self._tokens = ServerTokens(llm.get_tokenizer())
        self._lock = threading.RLock()
        self._running: dict[str, VLLMStream] = {}

    @classmethod
    def load(cls, model: str, *, name: str | None = None, **options: Any) -> VLLMBackend:
        """Loads a model. options: of `vllm.LLM`, e.g. `enforce_eager=True` or
        `logits_processors=["pymemstore.memllm.vllm_plugin:MemllmLogitsProcessor"]`."""
        return cls(LLM(model=model, **options), name=name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def can(self) -> frozenset[str]:
        return frozenset({"ban", "grammar", "logprobs"} | ({"data"} if self._tokens.safe else set()))

    @property
    def tokenizer(self) -> Any:
        return self._tokens.tokenizer

    def generate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """As of `Backend`; the engine runs the prompts as one batch."""
        streams = [self.stream(prompt, params) for prompt in prompts]
        try:
            for stream in streams:
                stream.begin()
            for stream in streams:
                for _ in stream:
                    pass
        finally:
            for stream in streams:
                stream.close()
        return [stream.generation for stream in streams]

    def stream(self, prompt: Prompt, params: Params) -> VLLMStream:
        """As of `Backend`."""
        return VLLMStream(self, prompt, params)

    async def agenerate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """`generate` for asyncio, in a thread."""
        return await asyncio.to_thread(self.generate, prompts, params)

    def astream(self, prompt: Prompt, params: Params) -> AsyncVLLMStream:
        """`stream` for asyncio, in threads."""
        return AsyncVLLMStream(self.stream(prompt, params))

    def close(self) -> None:
        """Ends what runs. The model is given back with the last reference to it."""
        for stream in list(self._running.values()):
            stream.close()

    def _prepared(self, prompt: Prompt, params: Params) -> tuple[list[int], Any, Completion]:
        """The prompt's ids, vLLM's parameters, and what takes the answer."""
        for what in ("guide", "chooser"):
            if getattr(params, what) is not None:
                raise InvalidArgument(f"{what}: not with vLLM, whose scores stay in its engine")
        extra = dict(params.extra)
        wrong = _RESERVED.intersection(extra)
        if wrong:
            raise InvalidArgument(f"extra: {', '.join(sorted(wrong))}: set by the backend itself")
        given = list(extra.get("stop_token_ids") or ())
        stop_ids = self._tokens.stop_ids(params.stop)
        whole = bool(params.stop) and not given
        fields: dict[str, Any] = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "stop": list(params.stop),
            "stop_token_ids": list(stop_ids),
            # As in a request to the server: stop strings are to be found and told from the end.
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "include_stop_str_in_output": whole,
            "logprobs": 0 if params.logprobs else None,
            "output_kind": RequestOutputKind.DELTA,
            "extra_args": extra.pop("vllm_xargs", None),
        }
        if params.grammar is not None:
            fields["structured_outputs"] = StructuredOutputsParams(grammar=params.grammar)
        if params.ban:
            ids = {text: self._tokens.containing(text) for text in params.ban}
            fields["logit_bias"] = {i: -100.0 for found in ids.values() for i in found}
            fields["bad_words"] = [text for text, found in ids.items() if not found] or None
        fields.update({key: value for key, value in extra.items() if key not in _OF_SERVERS})
        unknown = fields.keys() - inspect.signature(SamplingParams).parameters.keys()
        if unknown:
            raise InvalidArgument(f"extra: vLLM knows no {', '.join(sorted(unknown))}")
        ids_of_prompt = self._tokens.encode(prompt)
        stop_ids = {**{i: self._tokens.decode([i]) for i in given}, **stop_ids}
        try:
            sampling = SamplingParams(**fields)
        except Exception as error:
            raise InvalidArgument(f"vLLM refused the parameters: {error}") from error
        ends = [str(self._tokens.tokenizer.eos_token)] if whole else []
        completion = Completion(
            params, tokens=self._tokens, prompt_ids=ids_of_prompt, stop_ids=stop_ids, ends=ends
        )
        return ids_of_prompt, sampling, completion

    def _add(self, stream: VLLMStream, ids: list[int], sampling: Any) -> str:
        request = f"pymemstore-{uuid.uuid4().hex}"
        with self._lock:
            try:
                self._engine.add_request(request, {"prompt_token_ids": ids}, sampling)
            except Exception as error:  # its own classes, which differ between versions
                if type(error).__name__.startswith("Engine"):
                    raise BackendError(f"vLLM failed: {error}") from error
                # Too long, a bad grammar, an unknown token, what a logits processor refuses.
                raise InvalidArgument(f"vLLM refused the request: {error}") from error
            self._running[request] = stream
        return request

    def _step(self, stream: VLLMStream) -> None:
        """One step of the engine, unless another thread's step has served the stream meanwhile."""
        with self._lock:
            if stream.ready:
                return
            for output in self._engine.step():
                one = self._running.get(output.request_id)
                if one is not None:
                    one.take(output)
                if output.finished:
                    self._running.pop(output.request_id, None)

    def _abort(self, request: str) -> None:
        with self._lock:
            if self._running.pop(request, None) is not None:
                self._engine.abort_request([request])


class VLLMStream:
    """A `Stream` of one request. It is put to the engine with the first piece asked for, or by `begin`."""

    def __init__(self, backend: VLLMBackend, prompt: Prompt, params: Params) -> None:
        self._backend = backend
        self._ids, self._sampling, self._completion = backend._prepared(prompt, params)
        self._request: str | None = None
        self._pieces: deque[str] = deque()
        self._error: BackendError | None = None
        self._ended = self._closed = False
        self._generation: ServerGeneration | None = None

    @property
    def ready(self) -> bool:
        """Whether a piece, an error or the end is there."""
        return bool(self._pieces) or self._ended or self._error is not None

    def begin(self) -> None:
        if self._request is None:
            self._request = self._backend._add(self, self._ids, self._sampling)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._closed:
            raise StopIteration
        self.begin()
        while not self.ready:
            try:
                self._backend._step(self)
            except Exception as error:
                self.close()
                raise BackendError(f"vLLM failed: {error}", text=self._completion.text) from error
        if self._pieces:
            return self._pieces.popleft()
        self.close()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        if self._request is not None:
            self._backend._abort(self._request)

    @property
    def generation(self) -> ServerGeneration:
        """As of `Stream`; a generation that was closed early has none."""
        if self._generation is None:
            raise InvalidArgument("the generation has not ended")
        return self._generation

    def take(self, output: Any) -> None:
        """Takes what one step of the engine gave."""
        if self._ended or self._error is not None:
            return
        completion, new = self._completion, output.outputs[0]
        try:
            piece = completion.add(
                new.text,
                ids=list(new.token_ids),
                logprobs=_logprobs(new.token_ids, new.logprobs),
                finish=new.finish_reason,
                stop_reason=new.stop_reason,
            )
            self._pieces.extend([piece] if piece else [])
            if output.finished or completion.over:
                counts: dict[str, Any] = {"prompt_tokens": len(self._ids)}
                if output.num_cached_tokens is not None:
                    counts["prompt_tokens_details"] = {"cached_tokens": output.num_cached_tokens}
                completion.usage(counts)
                tail = completion.end()
                self._pieces.extend([tail] if tail else [])
                self._generation = completion.generation()
                self._ended = True
        except BackendError as error:
            self._error = error


class AsyncVLLMStream:
    """An `AsyncStream`: a stream whose pieces are waited for in threads."""

    def __init__(self, stream: VLLMStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        piece = await asyncio.to_thread(next, self._stream, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        await asyncio.to_thread(self._stream.close)

    @property
    def generation(self) -> ServerGeneration:
        return self._stream.generation


def _logprobs(ids: Sequence[int], given: Any) -> dict[str, list[Any]] | None:
    """The same as a server's `logprobs` object, its tokens as "token_id:N"."""
    if given is None:
        return None
    return {
        "tokens": [f"token_id:{i}" for i in ids],
        "token_logprobs": [tops[i].logprob for i, tops in zip(ids, given, strict=True)],
        "top_logprobs": [{f"token_id:{i}": top.logprob for i, top in tops.items()} for tops in given],
    }
