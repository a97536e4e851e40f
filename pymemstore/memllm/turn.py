"""One turn of the read loop, without any input or output: what to ask next, given the answers so far.

MemLLM section 3.2. `Reader` drives it, with a model and a memory, in a thread or under asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from .. import calls
from ..backends.base import Generation, Guide, Params, Segment
from ..errors import BackendError, InvalidArgument, MemstoreError
from ..results import QueryResult
from .trace import Asked, Call, Finish, Trace

__all__ = ["Emit", "Generate", "Lookup", "ReadOptions", "ReadResult", "Request", "turn"]

_Slots = tuple[str | None, str, str | None]  # of a query; None is the open one
OPEN, ARROW, CLOSE = "({", "-->", "})"
# Of a call that is held to the syntax: there "-->" alone may be the end of a name and a part of ">>".
END = ")-->"
# Where a call was just dropped the model would open the same one again; it may not for so many tokens. More
# than one, since the opening may be made of several.
_BAN_TOKENS = 4


@dataclass(frozen=True)
class ReadOptions:
    """How a turn goes. See `Reader`."""

    max_tokens: int = 256
    max_reads: int = 8
    call_tokens: int = 128
    max_results: int = 30
    stop: tuple[str, ...] = ()
    stop_after_success: bool = False
    separator: str = ";"
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Generate:
    """Continue the prompt. visible: the text belongs to the turn's text and may be streamed."""

    prompt: tuple[Segment, ...]
    params: Params
    visible: bool


@dataclass(frozen=True)
class Lookup:
    """Ask the memory: (subject, relation, object), one of subject and object None."""

    queries: tuple[_Slots, ...]


@dataclass(frozen=True)
class Emit:
    """Text that turned out to be no call."""

    text: str


Request = Generate | Lookup | Emit
Answer = Generation | Sequence[QueryResult] | None


@dataclass(frozen=True)
class ReadResult:
    """A turn's outcome.

    Attributes:
        text: what the model wrote, without calls.
        finish: "eos", "stop" (one of the given stop strings), "length" (max_tokens); "incomplete call": the
            model ended, or max_tokens were reached, inside a call. Where the model can't be kept from opening
            calls, the turn ends when it opens one that it may not: "repeated read", "no result", "max reads",
            "first success". None: an error ended the turn (`MemstoreError.partial`).
        reads_ended: why no more calls were allowed, if so: one of the latter four.
        stop: the stop string of finish "stop".
        trace: every call, query, result and drop.
        parts: `text` as segments with token ids, where the backend knows them: for the next prompt.
        context: all that the model last saw and wrote: prompt, text, and the call that is in effect.
    """

    text: str
    finish: Finish | None
    reads_ended: Finish | None
    stop: str | None
    trace: Trace
    parts: tuple[Segment, ...] = field(repr=False)
    context: tuple[Segment, ...] = field(repr=False)


class _Turn:
    """The state of a turn. `run` is the loop."""

    def __init__(
        self,
        prompt: tuple[Segment, ...],
        options: ReadOptions,
        can: frozenset[str],
        guide: Callable[[str], Callable[[], Guide]] | None,
        grammar: str | None,
        is_safe: Callable[[str], bool],
        notes: Sequence[str],
    ) -> None:
        self.prompt, self.options, self.can = prompt, options, can
        self.guide, self.grammar, self.is_safe = guide, grammar, is_safe
        self.trace = Trace(notes=list(notes))
        self.visible: list[Segment] = []  # what the model wrote, calls left out
        self.call: list[Segment] = []  # the call in effect
        self.call_at = 0  # its place in `visible`
        self.answers: dict[_Slots, Asked] = {}
        self.left = options.max_tokens
        self.ended: Finish | None = None
        self.text_at_call = -1  # length of the text when the last call was opened
        self.in_call = False  # whether the model is writing a call
        self.fresh = False  # whether the model has not gone on yet behind the call in effect

    # ---- what the model sees ----------------------------------------------------------------------

    def text(self) -> str:
        return "".join(part.text for part in self.visible)

    def context(self) -> tuple[Segment, ...]:
        at = self.call_at
        return (*self.prompt, *self.visible[:at], *self.call, *self.visible[at:])

    def result(self, finish: Finish | None, stop: str | None = None, tail: str = "") -> ReadResult:
        extra = (Segment(tail),) if tail else ()
        return ReadResult(
            self.text() + tail,
            finish,
            self.ended,
            stop,
            self.trace,
            (*self.visible, *extra),
            (*self.context(), *extra),
        )

    # ---- asking the model -------------------------------------------------------------------------

    def generate(
        self, prompt: tuple[Segment, ...], params: Params, visible: bool
    ) -> Generator[Request, Answer, Generation]:
        began = time.perf_counter()
        self.in_call = not visible
        answer = yield Generate(prompt, params, visible)
        self.in_call = False
        assert isinstance(answer, Generation)
        trace, usage = self.trace, answer.usage
        trace.model_seconds += time.perf_counter() - began
        trace.generations += 1
        trace.prompt_tokens += usage.prompt
        trace.generated_tokens += usage.generated
        if trace.computed_tokens is not None:
            trace.computed_tokens = None if usage.computed is None else trace.computed_tokens + usage.computed
        self.left -= max(usage.generated, 1)  # at least one: a silent model must not go on for ever
        return answer

    def params(self, tokens: int, stop: tuple[str, ...], ban: bool) -> Params:
        return Params(
            max_tokens=tokens,
            stop=stop,
            ban=(OPEN,) if ban else (),
            temperature=self.options.temperature,
            seed=self.options.seed,
        )

    def may_open(self) -> bool:
        """Whether the model may open one more call; sets why not."""
        if self.ended is None and len(self.trace.calls) >= self.options.max_reads:
            self.ended = "max reads"
        return self.ended is None

    # ---- the loop -----------------------------------------------------------------------------------

    def run(self) -> Generator[Request, Answer, ReadResult]:
        options, just_dropped = self.options, False
        while self.left > 0:
            allowed = self.may_open()
            can_ban = "ban" in self.can
            ban = can_ban and (not allowed or just_dropped)
            tokens = min(self.left, _BAN_TOKENS) if ban and allowed else self.left
            stop = options.stop if ban else (OPEN, *options.stop)
            try:
                wrote = yield from self.generate(self.context(), self.params(tokens, stop, ban), True)
            except InvalidArgument:
                if not self.fresh:
                    raise
                # What was spliced in is more than the model takes: without it the prompt was fine.
                self.trace.calls[-1].dropped = "too long"
                self.call, self.fresh, just_dropped = [], False, True
                continue
            self.fresh = False
            self.visible.extend(wrote.parts)
            just_dropped = False
            if wrote.finish == "eos":
                return self.result("eos")
            if wrote.finish == "stop" and wrote.stop != OPEN:
                return self.result("stop", wrote.stop)
            if wrote.finish == "length":
                continue
            if not allowed:
                return self.result(self.ended)
            finish = yield from self.read()
            if finish is not None:
                return self.result(finish)
            just_dropped = not self.call
        return self.result("length")

    def read(self) -> Generator[Request, Answer, Finish | None]:
        """The model has written `({`. Afterwards `call` holds the call in effect, or nothing."""
        if self.call:
            self.trace.calls[-1].dropped = "new call"
            self.call = []
        if self.left <= 0:
            return "length"
        text = self.text()
        call = Call(len(text), OPEN)
        budget = min(self.options.call_tokens, self.left)
        end = ARROW if self.guide is None and self.grammar is None else END
        params = self.params(budget, (end,), False)
        if self.guide is not None:
            seen = "".join(part.text for part in self.prompt) + text
            params = replace(params, guide=self.guide(seen))
        elif self.grammar is not None:
            params = replace(params, grammar=self.grammar)
        call.guided = params.guide is not None or params.grammar is not None
        began = time.perf_counter()
        opened = (*self.prompt, *self.visible, Segment(OPEN))
        wrote = yield from self.generate(opened, params, False)
        call.model_seconds = time.perf_counter() - began
        call.text += wrote.text + (wrote.stop or "")
        read, errors = _parsed(call.text)
        if read is None and not errors:  # an opening mark in plain text
            yield Emit(call.text)
            self.visible.extend((Segment(OPEN), *wrote.parts))
            if wrote.stop:
                self.visible.append(Segment(wrote.stop))
            return "eos" if wrote.finish == "eos" else None
        self.trace.calls.append(call)
        call.errors = errors
        if not wrote.stop:
            call.dropped = "incomplete"
            if wrote.finish == "eos" or self.left <= 0:
                return "incomplete call"
            self.stuck(len(text))
            return None
        if not read:
            call.dropped = "malformed"
            self.stuck(len(text))
            return None
        repeated = all(query in self.answers for query in read)
        began = time.perf_counter()
        yield from self.ask(call, read)
        call.memory_seconds = time.perf_counter() - began
        self.trace.memory_seconds += call.memory_seconds
        self.settle(call)
        if repeated and not call.results:
            self.ended = "no result"
        elif repeated and len(text) == self.text_at_call:
            self.ended = "repeated read"
        elif call.results and call.dropped is None and self.options.stop_after_success:
            self.ended = "first success"
        self.text_at_call = len(text)
        if call.dropped is None:
            self.splice(call, wrote)
        return None

    def stuck(self, at: int) -> None:
        """A call came to nothing: the second one at the same place is the last of the turn."""
        if at == self.text_at_call:
            self.ended = "no result"
        self.text_at_call = at

    def ask(self, call: Call, queries: Sequence[_Slots]) -> Generator[Request, Answer, None]:
        """Each query once a turn; the answers go into `call.asked`."""
        new = tuple(query for query in queries if query not in self.answers)
        if new:
            answers = yield Lookup(new)
            assert isinstance(answers, Sequence)
            for query, answer in zip(new, answers, strict=True):
                best: dict[str, float] = {}
                for hit in answer:
                    best.setdefault(hit.name, hit.score)
                self.answers[query] = Asked(
                    *query,
                    tuple(best.items()),
                    answer.entity_candidates,
                    answer.relation_candidates,
                    answer.search,
                    answer.complete,
                )
        for query in queries:
            asked = self.answers[query]
            call.asked.append(asked if query in new else replace(asked, cached=True))

    def settle(self, call: Call) -> None:
        """Merges the answers: distinct names, best first. Too many are dropped, not cut (section 3.2)."""
        best: dict[str, float] = {}
        for asked in call.asked:
            for name, score in asked.names:
                best[name] = max(score, best.get(name, -2.0))
        names = sorted(best, key=lambda name: -best[name])  # stable: ties in the order of the queries
        call.unsafe = tuple(name for name in names if not self.is_safe(name))
        names = [name for name in names if name not in call.unsafe]
        if not names:
            call.dropped = "unsafe names" if call.unsafe else "no result"
        elif len(names) > self.options.max_results:
            call.dropped = "too many results"
        else:
            call.results = tuple(names)

    def splice(self, call: Call, wrote: Generation) -> None:
        separator = self.options.separator
        parts = [Segment(OPEN), *wrote.parts, Segment(wrote.stop or ARROW)]
        for i, name in enumerate(call.results):
            if i:
                parts.append(Segment(separator))
            parts.append(Segment(calls.escape(name, separator), data=True))
        parts.append(Segment(CLOSE))
        self.call, self.call_at, self.fresh = parts, len(self.visible), True


def _parsed(text: str) -> tuple[list[_Slots] | None, list[str]]:
    """The queries of a call, up to and including its arrow, and what was wrong. (None, []): it is no call."""
    queries: list[_Slots] | None = None
    errors = []
    for event in calls.parse(text):
        if isinstance(event, calls.Read):
            queries = list(event.queries)
            errors += [error.message for error in event.errors]
        elif isinstance(event, calls.CallError):
            errors.append(event.message)
    return queries, errors


def turn(
    prompt: tuple[Segment, ...],
    options: ReadOptions,
    can: frozenset[str],
    guide: Callable[[str], Callable[[], Guide]] | None,
    grammar: str | None,
    is_safe: Callable[[str], bool],
    notes: Sequence[str] = (),
) -> Generator[Request, Answer, ReadResult]:
    """Runs a turn: yields requests, is sent their answers, returns the result.

    An error thrown in at a request comes out again with `partial` set to what there was.
    """
    state = _Turn(prompt, options, can, guide, grammar, is_safe, notes)
    try:
        return (yield from state.run())
    except MemstoreError as error:
        tail = error.text if isinstance(error, BackendError) and not state.in_call else ""
        error.partial = state.result(None, tail=tail)
        raise
