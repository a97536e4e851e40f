"""Causal language models of the package transformers, in this process.

The decode loop is one of our own rather than the model's `generate`: it keeps keys and values between calls,
cuts and continues them, matches stop strings in the text, and takes guides and choosers for each row.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..errors import BackendError, InvalidArgument
from ._kv import Decoding, ForwardPass, KVStore
from ._rows import Row, choose
from ._tokens import Tokens
from .base import AsyncStream, Chooser, Generation, Params, Prompt, Stream

__all__ = ["TransformersBackend"]

_Steps = Generator[list[str], None, list[Generation]]  # yields the new text of each row after each token


class TransformersBackend:
    """A `Backend` over a causal model and its tokenizer.

    What it adds to the protocol:

    - Prompts are tokenised as `Tokens` says; data segments can't become added tokens, special or not.
    - Keys and values of the last sequences are kept; a prompt that begins like one of them is computed from
      where they part. `usage.computed` counts the tokens that really went through the model: in a batch each
      row is given as many as the row that needs most. Models with states that can't be cut (recurrent,
      hybrid, chunked) compute every prompt in whole and the rows of a batch one after another. Call
      `clear_cache` after changing the model's weights or adapters.
    - `usage.generated` counts every token that was taken, also EOS, those of a stop string and those that a
      chooser gives up; `logprobs` has one for each, of the model's own scores, before guides and bans.
    - Guides aren't told of the EOS token that ends a row. It ends every row, also one with a chooser.
    - A row that its chooser ends has finish "stop" without a stop string. Where it says how many tokens stand
      (`kept`), the text is theirs, whatever ended the row; a stream gives its text at the end then.
    - A chooser goes with neither `ban` nor a temperature.
    - Sampling draws from a generator for each row, seeded with seed + row.
    - `max_tokens` beyond the model's positions ends with finish "length" where they end.

    Several threads may call it: the model computes one step at a time, and streams may be interleaved. The
    asynchronous calls run in a thread of the backend's own, one after another; cancelling one ends it between
    two tokens.

    Attributes:
        name: the model's name.
        tokenizer: the tokenizer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        device: Any = None,
        cache_sequences: int = 16,
        cache_tokens: int = 32768,
    ) -> None:
        """Puts the model into evaluation mode.

        Args:
            model: a causal model, with adapters or without.
            tokenizer: its tokenizer.
            name: for traces and reports; None: the model's own.
            device: where to move the model; None: it stays.
            cache_sequences: at most so many sequences are kept for reuse; 0: none.
            cache_tokens: at most so many tokens of them in all. A token takes 2 · layers · key heads · head
                size numbers, 128 KiB in Mistral 7B with 16 bits.

        Raises:
            InvalidArgument: an encoder-decoder, or a negative size.
        """
        for what, size in (("cache_sequences", cache_sequences), ("cache_tokens", cache_tokens)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise InvalidArgument(f"{what} must be an int >= 0, not {size!r}")
        if getattr(model.config, "is_encoder_decoder", False):
            raise InvalidArgument("an encoder-decoder model; a causal one is needed")
        self._model = (model if device is None else model.to(device)).eval()
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self._tokens = Tokens(tokenizer)
        self._forward = ForwardPass(self._model)
        self._store = KVStore(cache_sequences, cache_tokens)
        # For the model, the tokenizer and the kept sequences. A stream that is garbage takes it too, maybe in
        # a thread that has it.
        self._lock = threading.RLock()
        self._thread: ThreadPoolExecutor | None = None
        config = model.config.get_text_config(decoder=True)
        self._positions: int | None = getattr(config, "max_position_embeddings", None)
        self._rows = int(model.get_input_embeddings().weight.shape[0])
        self._eos = frozenset(
            int(i)
            for given in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id)
            for i in (given if isinstance(given, (list, tuple)) else (given,))
            if i is not None
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        device: Any = None,
        dtype: Any = "auto",
        cache_sequences: int = 16,
        cache_tokens: int = 32768,
        **options: Any,
    ) -> TransformersBackend:
        """A model and its tokenizer from a folder, or from the hub by its id.

        device: None: "cuda" where there is one, else "cpu"; with `device_map` in the options the model stays
        where that puts it. dtype: such as "bfloat16"; "auto": that of the weights. options: for
        `AutoModelForCausalLM.from_pretrained`. The others: as of the class.

        Raises:
            InvalidArgument: it can't be loaded.
        """
        source = os.fspath(path)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
        except (OSError, ValueError, ImportError) as error:
            raise InvalidArgument(f"can't load model {source!r}: {str(error).strip()[:300]}") from error
        if device is None and "device_map" not in options:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        sizes = {"cache_sequences": cache_sequences, "cache_tokens": cache_tokens}
        return cls(model, tokenizer, name=name or source, device=device, **sizes)

    @property
    def can(self) -> frozenset[str]:
        """What it honours."""
        return frozenset({"ban", "guide", "chooser", "logprobs"} | ({"data"} if self._tokens.safe else set()))

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end a row: of the model's generation settings and of the tokenizer."""
        return self._eos

    def generate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """Continues the prompts as one batch. See `Backend`."""
        return self._finish(self._steps(prompts, params), threading.Event())

    def stream(self, prompt: Prompt, params: Params) -> Stream:
        """Continues one prompt, piece by piece. See `Backend`."""
        return _Stream(self._steps([prompt], params))

    async def agenerate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """`generate` for asyncio."""
        cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._executor(), self._finish, self._steps(prompts, params), cancelled
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def astream(self, prompt: Prompt, params: Params) -> AsyncStream:
        """`stream` for asyncio."""
        return _AsyncStream(_Stream(self._steps([prompt], params)), self._executor())

    def clear_cache(self) -> None:
        """Forgets the keys and values that are kept."""
        with self._lock:
            self._store.clear()

    def close(self) -> None:
        """Gives back the cache and the thread; the model is the caller's. It may be used again."""
        self.clear_cache()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="pymemstore-model")
            return self._thread

    @staticmethod
    def _finish(steps: _Steps, cancelled: threading.Event) -> list[Generation]:
        while not cancelled.is_set():
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)
        steps.close()
        return []

    # ---- the decode loop ----------------------------------------------------------------------------

    def _steps(self, prompts: Sequence[Prompt], params: Params) -> _Steps:
        self._check(params)
        with self._lock:
            rows = [self._row(number, prompt, params) for number, prompt in enumerate(prompts)]
        chooser = params.chooser(len(rows)) if params.chooser is not None and rows else None
        together = [rows] if self._forward.plain else [[row] for row in rows]
        for group in together:
            if group:
                yield from self._decode(group, params, chooser)
        return [row.generation() for row in rows]

    def _check(self, params: Params) -> None:
        if params.grammar is not None:
            raise InvalidArgument("this backend takes no grammar; give a guide")
        if params.extra:
            raise InvalidArgument(f"extra: there is no server to send {sorted(params.extra)} to")
        if params.chooser is not None and (params.ban or params.temperature):
            raise InvalidArgument("a chooser goes with neither ban nor temperature")

    def _row(self, number: int, prompt: Prompt, params: Params) -> Row:
        ids = self._tokens.encode(prompt)
        if not ids:
            raise InvalidArgument(f"prompt {number} is empty, and the tokenizer has no token to start with")
        if not all(0 <= i < self._rows for i in ids):
            bad = next(i for i in ids if not 0 <= i < self._rows)
            raise InvalidArgument(
                f"prompt {number}: token {bad} is not among the model's {self._rows}; were tokens added to "
                "the tokenizer and not to the model?"
            )
        room = params.max_tokens
        if self._positions is not None:
            if len(ids) >= self._positions:
                raise InvalidArgument(
                    f"prompt {number} has {len(ids)} tokens and the model {self._positions} positions: no "
                    "room for a new one"
                )
            room = min(room, self._positions - len(ids))
        return Row(number, ids, room, params, self._tokens, self._eos)

    def _decode(self, rows: list[Row], params: Params, chooser: Chooser | None) -> _Steps:
        decoding: Decoding | None = None
        chosen: list[int] = []
        try:
            while rows:
                with self._lock, torch.inference_mode():
                    if self._model.training:
                        self._model.eval()
                    try:
                        if decoding is None:
                            decoding = Decoding(self._forward, [row.ids for row in rows], self._store)
                            logits = decoding.start()
                            for row, computed in zip(rows, decoding.computed, strict=True):
                                row.computed = computed
                        else:
                            logits = decoding.step(chosen)
                    except RuntimeError as error:
                        raise BackendError(f"the model failed: {error}", text=rows[0].text) from error
                    chosen = choose(rows, logits, params, chooser)
                    pieces = [row.take(token, chooser) for row, token in zip(rows, chosen, strict=True)]
                    ended = [place for place, row in enumerate(rows) if row.finish is not None]
                    decoding.leave(ended)
                    chosen = [token for place, token in enumerate(chosen) if place not in ended]
                    rows = [row for row in rows if row.finish is None]
                yield pieces
        except GeneratorExit:  # between two tokens: what was computed is whole
            if decoding is not None:
                with self._lock, torch.inference_mode():
                    decoding.leave(range(len(rows)))
            raise
        return []


class _Stream:
    """A running generation of one row."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._generation: Generation | None = None
        self._cancelled = threading.Event()
        self._running = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._running:
            while not self._cancelled.is_set():
                try:
                    (piece,) = next(self._steps)
                except StopIteration as end:
                    if end.value:
                        (self._generation,) = end.value
                    raise StopIteration from None
                if piece:
                    return piece
            self._steps.close()
            raise StopIteration

    def cancel(self) -> None:
        """Ends it after the token that is being computed; does not wait."""
        self._cancelled.set()

    def close(self) -> None:
        """Ends it, after the token that is being computed if another thread iterates."""
        self._cancelled.set()
        with self._running:
            self._steps.close()

    @property
    def generation(self) -> Generation:
        if self._generation is None:
            state = "was ended early" if self._cancelled.is_set() else "has not ended"
            raise InvalidArgument(f"the stream {state}: there is no whole generation")
        return self._generation


class _AsyncStream:
    """`_Stream` for asyncio; it runs in the thread of `executor`."""

    def __init__(self, stream: _Stream, executor: ThreadPoolExecutor) -> None:
        self._stream, self._executor = stream, executor

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            piece = await loop.run_in_executor(self._executor, next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Ends it early."""
        self._stream.cancel()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._stream.close)

    @property
    def generation(self) -> Generation:
        return self._stream.generation
