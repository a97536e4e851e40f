"""The read loop: a model that asks the memory while it writes (MemLLM section 3.2, figure 2b)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._input import three_thresholds
from ..aio import AsyncMemory
from ..backends.base import (
    AsyncStream,
    Backend,
    Guide,
    Params,
    Prompt,
    Stream,
    segments,
)
from ..errors import InvalidArgument, MemstoreError
from ..memory import Memory
from ..results import Query, QueryResult
from . import turn as _turn
from .constraints import CONTROL, Constraint, Guides, constrained
from .trace import Trace
from .turn import Answer, Emit, Generate, Lookup, ReadOptions, ReadResult, Request

if TYPE_CHECKING:
    from .automaton import Vocabulary

__all__ = ["AsyncReadStream", "ReadOptions", "ReadResult", "ReadStream", "Reader", "Trace"]

_WORD = re.compile(r"\w")
# Hits asked for at first: as many as Q_thr names can have in most stores. A full answer is asked for only
# where these have too few distinct names to tell.
_HITS_A_NAME = 4
_Turn = Generator[Request, Answer, ReadResult]


class Reader:
    """Lets a model read a memory while it writes.

    A turn: the model writes text; where it opens a call, it writes the call up to `-->`; its queries are put
    to the memory, the answers are merged and spliced in after the arrow, and the model goes on. A call is
    taken out of the context again when there is no answer, when the distinct names are more than
    `max_results` (Q_thr = 30: dropped, not cut) and when the model opens the next one.

    A query is asked once a turn; the same call again where it was just dropped or answered ends the calls of
    the turn. Names out of the memory are data: they are escaped, and tokenised so that they can't become
    control tokens or calls; where a server takes text only, names that hold what looks like a control token
    are left out and counted (`Call.unsafe`).

    Args:
        memory: a `Memory` or an `AsyncMemory`. The coroutines ask it in a thread.
        backend: the model.
        max_tokens: most tokens that the model writes in a turn, calls included.
        max_reads: most calls in a turn.
        call_tokens: most tokens of one call.
        max_results: Q_thr.
        stop: strings that end the turn, as of `Params`.
        stop_after_success: no more calls in the turn after the first one that was answered.
        separator: between results: ";" or ",". See docs/calls.md.
        temperature, seed: as of `Params`; calls are written with them too.
        tau_e, tau_t, tau_r, rules, search: as of `Memory.query`.
        numbers: as of `Memory.query`; "exact" here, since a reader asks for what the text says.
        constraint: "auto": hold the calls to the syntax where the backend can, by guide or by grammar; with a
            guide the relations are those of the memory, and entities are spans of the text so far, since a
            read can only ask for what has occurred. None: free. Or a function from the text so far to a
            maker of guides.

    Raises:
        InvalidArgument: a wrong option.
    """

    def __init__(
        self,
        memory: Memory | AsyncMemory,
        backend: Backend,
        *,
        max_tokens: int = 256,
        max_reads: int = 8,
        call_tokens: int = 128,
        max_results: int = 30,
        stop: Sequence[str] = (),
        stop_after_success: bool = False,
        separator: str = ";",
        temperature: float = 0.0,
        seed: int | None = None,
        tau_e: float | None = None,
        tau_t: float | None = None,
        tau_r: float | None = None,
        rules: Any = "core",
        numbers: Any = "exact",
        search: Any = "auto",
        constraint: Constraint = "auto",
    ) -> None:
        if separator not in (";", ","):
            raise InvalidArgument(f"separator must be ';' or ',', not {separator!r:.20}")
        for name, value in (("max_reads", max_reads), ("max_results", max_results)):
            if not isinstance(value, int) or value < 0:
                raise InvalidArgument(f"{name} must be an integer >= 0, not {value!r:.40}")
        self.memory = memory.memory if isinstance(memory, AsyncMemory) else memory
        self.backend = backend
        self.options = ReadOptions(
            max_tokens, max_reads, call_tokens, max_results, tuple(stop), stop_after_success, separator,
            temperature, seed,
        )  # fmt: skip
        Params(max_tokens=max_tokens, stop=self.options.stop, temperature=temperature)  # checks them
        Params(max_tokens=call_tokens)
        for tau in (tau_e, tau_t, tau_r):
            if tau is not None:
                three_thresholds((tau, tau, tau), "reader")
        self._ask: dict[str, Any] = {"tau_e": tau_e, "tau_t": tau_t, "tau_r": tau_r}
        self._ask.update(rules=rules, numbers=numbers, search=search)
        self._notes: list[str] = []
        self._guide, self._grammar = constrained(constraint, backend, "read", self._guides, self._notes)
        self._is_safe = self._safety()

    # ---- a turn -------------------------------------------------------------------------------------

    def read(self, prompt: Prompt) -> ReadResult:
        """Runs a turn.

        Raises:
            BackendError, MemstoreError: of the model and of the memory, with `partial`: the turn so far.
            InvalidArgument: the prompt is too long for the model (with `partial` too).
        """
        stream = self.stream(prompt)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt) -> ReadStream:
        """Runs a turn piece by piece: iterate over the text, which holds no calls, then read `result`."""
        return ReadStream(self, self._start(prompt))

    def read_many(self, prompts: Sequence[Prompt]) -> list[ReadResult]:
        """Runs a turn for each prompt, together: turns that wait for the model are one batch. The results
        are those of `read` one by one. Errors as `read`: one row's ends all; `partial` is of that row."""
        if isinstance(prompts, str):
            raise InvalidArgument("prompts: expected a sequence of prompts, not a string")
        return _together(self, [self._start(prompt) for prompt in prompts])

    async def aread(self, prompt: Prompt) -> ReadResult:
        """`read` for asyncio."""
        stream = self.astream(prompt)
        async for _ in stream:
            pass
        return stream.result

    def astream(self, prompt: Prompt) -> AsyncReadStream:
        """`stream` for asyncio."""
        return AsyncReadStream(self, self._start(prompt))

    # ---- parts --------------------------------------------------------------------------------------

    def _start(self, prompt: Prompt) -> _Turn:
        return _turn.turn(
            segments(prompt), self.options, self.backend.can, self._guide, self._grammar, self._is_safe,
            self._notes,
        )  # fmt: skip

    def _guides(self, vocabulary: Vocabulary) -> Guides:
        """Of the memory's relations, and of entities that have occurred."""
        from .automaton import ReadCall, Spans, StoreNames

        relations = StoreNames(self.memory, relation=True)
        tokens = self.options.call_tokens

        def guides(seen: str) -> Callable[[], Guide]:
            relations.refresh()
            return ReadCall(
                vocabulary,
                entities=Spans(seen) if _WORD.search(seen) else None,
                relations=relations if len(relations) else None,
                max_tokens=tokens,
                prefix=_turn.OPEN,
            )

        return guides

    def _safety(self) -> Callable[[str], bool]:
        if "data" in self.backend.can:
            return lambda name: True
        tokenizer = self.backend.tokenizer
        own = [] if tokenizer is None else [str(token) for token in tokenizer.get_added_vocab()]
        pattern = re.compile("|".join([CONTROL.pattern, *map(re.escape, own)]))
        return lambda name: pattern.search(name) is None

    def _queries(self, lookup: Lookup, limit: int | None) -> list[Query]:
        return [Query(*query, limit=limit, **self._ask) for query in lookup.queries]

    def _lookup(self, lookup: Lookup) -> list[QueryResult]:
        """The answers, whole or with more distinct names than `max_results`."""
        first = _HITS_A_NAME * (self.options.max_results + 1)
        answers = self.memory.query_many(self._queries(lookup, first))
        if any(self._too_short(answer) for answer in answers):
            answers = self.memory.query_many(self._queries(lookup, None))
        return answers

    def _too_short(self, answer: QueryResult) -> bool:
        return answer.truncated and len(answer.names) <= self.options.max_results


class ReadStream:
    """A running turn: its visible text, piece by piece. `close` ends it early."""

    def __init__(self, reader: Reader, turn: _Turn) -> None:
        self._reader, self._turn = reader, turn
        self._result: ReadResult | None = None
        self._stream: Stream | None = None
        self._pieces = self._run()

    @property
    def result(self) -> ReadResult:
        """The turn's result, once the iteration has ended. InvalidArgument before."""
        return _finished(self._result)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Ends the turn; there is no result then."""
        self._pieces.close()

    def _run(self) -> Generator[str, None, None]:
        turn, backend = self._turn, self._reader.backend
        advance: Callable[[], Request] = lambda: next(turn)  # noqa: E731
        while True:
            try:
                request = advance()
            except StopIteration as end:
                self._result = end.value
                return
            try:
                answer: Answer = None
                if isinstance(request, Lookup):
                    answer = self._reader._lookup(request)
                elif isinstance(request, Emit):
                    yield request.text
                elif request.visible:
                    stream = backend.stream(request.prompt, request.params)
                    try:
                        yield from stream
                    finally:
                        stream.close()
                    answer = stream.generation
                else:
                    answer = backend.generate([request.prompt], request.params)[0]
            except MemstoreError as error:
                advance = _thrower(turn, error)
            else:
                advance = _sender(turn, answer)


class AsyncReadStream:
    """`ReadStream` for asyncio."""

    def __init__(self, reader: Reader, turn: _Turn) -> None:
        self._reader, self._turn = reader, turn
        self._result: ReadResult | None = None
        self._pieces = self._run()

    @property
    def result(self) -> ReadResult:
        """As of `ReadStream`."""
        return _finished(self._result)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return await self._pieces.__anext__()

    async def aclose(self) -> None:
        """As `ReadStream.close`."""
        await self._pieces.aclose()

    async def _run(self) -> AsyncGenerator[str, None]:
        turn, backend = self._turn, self._reader.backend
        advance: Callable[[], Request] = lambda: next(turn)  # noqa: E731
        while True:
            try:
                request = advance()
            except StopIteration as end:
                self._result = end.value
                return
            try:
                answer: Answer = None
                if isinstance(request, Lookup):
                    answer = await asyncio.to_thread(self._reader._lookup, request)
                elif isinstance(request, Emit):
                    yield request.text
                elif request.visible:
                    stream: AsyncStream = backend.astream(request.prompt, request.params)
                    try:
                        async for piece in stream:
                            yield piece
                    finally:
                        await stream.aclose()
                    answer = stream.generation
                else:
                    answer = (await backend.agenerate([request.prompt], request.params))[0]
            except MemstoreError as error:
                advance = _thrower(turn, error)
            else:
                advance = _sender(turn, answer)


def _thrower(turn: _Turn, error: MemstoreError) -> Callable[[], Request]:
    return lambda: turn.throw(error)


def _sender(turn: _Turn, answer: Answer) -> Callable[[], Request]:
    return lambda: turn.send(answer)


def _finished(result: ReadResult | None) -> ReadResult:
    if result is None:
        raise InvalidArgument("the turn has not ended: there is no result yet")
    return result


def _together(reader: Reader, turns: list[_Turn]) -> list[ReadResult]:
    """Runs the turns side by side: all that wait for the model in the same way make one batch."""
    results: dict[int, ReadResult] = {}
    waiting: dict[int, Generate] = {}

    def settle(row: int, advance: Callable[[], Request]) -> None:
        """Runs a row until it needs the model or ends."""
        while True:
            try:
                request = advance()
            except StopIteration as end:
                results[row] = end.value
                return
            if isinstance(request, Generate):
                waiting[row] = request
                return
            try:
                answer = reader._lookup(request) if isinstance(request, Lookup) else None
            except MemstoreError as error:
                advance = _thrower(turns[row], error)
            else:
                advance = _sender(turns[row], answer)

    for row, turn in enumerate(turns):
        settle(row, turn.__next__)

    def ask(rows: list[int], params: Params) -> None:
        """Puts the rows to the model as a batch."""
        try:
            answers = reader.backend.generate([waiting[row].prompt for row in rows], params)
        except InvalidArgument as error:
            if len(rows) > 1:  # find out which
                for row in rows:
                    ask([row], waiting[row].params)
                return
            advances = [_thrower(turns[rows[0]], error)]
        except MemstoreError as error:
            rows, advances = rows[:1], [_thrower(turns[rows[0]], error)]
        else:
            advances = [_sender(turns[row], answer) for row, answer in zip(rows, answers, strict=True)]
        for row, advance in zip(rows, advances, strict=True):
            del waiting[row]
            settle(row, advance)

    while waiting:
        ask(*_batch(waiting))
    return [results[row] for row in range(len(turns))]


def _batch(waiting: dict[int, Generate]) -> tuple[list[int], Params]:
    """The largest group of rows whose requests differ in guide and length only, and its parameters."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, request in waiting.items():
        p = request.params
        groups.setdefault((request.visible, p.stop, p.ban, p.guide is None, p.grammar), []).append(row)
    rows = max(groups.values(), key=len)
    params = [waiting[row].params for row in rows]
    # A visible text that is cut early is simply continued; a call is not, and all have the same limit but
    # near the end of a turn.
    if not waiting[rows[0]].visible:
        rows = [row for row in rows if waiting[row].params.max_tokens == params[0].max_tokens]
        params = [waiting[row].params for row in rows]
    makers = [p.guide for p in params if p.guide is not None]
    following = iter(makers)
    return rows, replace(
        params[0],
        max_tokens=min(p.max_tokens for p in params),
        guide=(lambda: next(following)()) if makers else None,
    )
