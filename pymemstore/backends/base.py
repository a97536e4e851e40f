"""What the loops ask of a language model, whoever runs it: one small protocol.

A backend continues prompts. It knows nothing of memories and calls: the loops give it stop strings, token
guides and, where it takes text only, a grammar.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument

__all__ = [
    "AsyncStream",
    "Backend",
    "Chooser",
    "Generation",
    "Guide",
    "Params",
    "Prompt",
    "Segment",
    "Stream",
    "Usage",
    "prompt_text",
    "segments",
]

Finish = Literal["stop", "length", "eos"]


@dataclass(frozen=True)
class Segment:
    """A stretch of a prompt.

    Attributes:
        text: its text.
        ids: its token ids in the backend's tokenizer, where they are known: what a model generated is given
            back as it was, so that its cache stays valid. Must decode to `text`.
        data: foreign text (a name out of the memory): no part of it may become a control token.
    """

    text: str
    ids: tuple[int, ...] | None = None
    data: bool = False


Prompt = str | Sequence[Segment]


def segments(prompt: Prompt) -> tuple[Segment, ...]:
    """The prompt as segments; a string is one."""
    return (Segment(prompt),) if isinstance(prompt, str) else tuple(prompt)


def prompt_text(prompt: Prompt) -> str:
    """The prompt's text."""
    return prompt if isinstance(prompt, str) else "".join(part.text for part in prompt)


class Guide(Protocol):
    """Which token may come next in one row, for backends that see the scores."""

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """(vocabulary,) bool, True where a token may come; None: any. Not to be written to; valid until the
        next call. Never all False."""

    def advance(self, token: int) -> None:
        """Takes the token that came, one that `mask` allowed. Not called for the EOS that ends the row."""


class Chooser(Protocol):
    """Chooses the next token of each row of a batch in place of greedy decoding, and says when a row ends."""

    def choose(self, rows: Sequence[int], logits: Any) -> list[int]:
        """logits: (len(rows), vocabulary) tensor of float32 scores, -inf where a guide forbids. The ids."""

    def done(self, row: int) -> bool:
        """Whether the row ends here; what was chosen last is then not part of it if `kept` says so."""

    def kept(self, row: int) -> int | None:
        """Of an ended row: how many of its generated tokens stand; None: all."""


@dataclass(frozen=True)
class Params:
    """How to continue a prompt. What a backend can't do it refuses with InvalidArgument: see `Backend.can`.

    Attributes:
        max_tokens: at most so many new tokens, >= 1.
        stop: strings that end the generation; it ends right before the first that appears, whether its
            tokens are special or not.
        ban: strings that must not appear: where one would be completed, the next best token is taken.
        guide: makes the guide of one row; called once a row, in the order of the prompts.
        grammar: an EBNF grammar (xgrammar's dialect, start rule `root`) of the whole continuation.
        chooser: makes the chooser of a batch, given its number of rows. Not with ban or a temperature.
        temperature: 0: greedy. Above: sampling, with `seed`.
        logprobs: whether the generation's log-probabilities are wanted.
        extra: what a server takes beside (sent with the request as it is).
    """

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ban: tuple[str, ...] = ()
    guide: Callable[[], Guide] | None = None
    grammar: str | None = None
    chooser: Callable[[int], Chooser] | None = None
    temperature: float = 0.0
    seed: int | None = None
    logprobs: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1, not {self.max_tokens}")
        for what in ("stop", "ban"):
            given = getattr(self, what)
            if isinstance(given, str) or not all(isinstance(s, str) and s for s in given):
                raise InvalidArgument(f"{what}: expected non-empty strings, not {given!r:.80}")
        if not self.temperature >= 0:
            raise InvalidArgument(f"temperature must be >= 0, not {self.temperature}")


@dataclass(frozen=True)
class Usage:
    """Tokens of one generation.

    Attributes:
        prompt: tokens of the prompt.
        computed: tokens of the prompt that went through the model; the others were in its cache. None: the
            server doesn't say.
        generated: new tokens; EOS, those of a stop string and those that a chooser gave up are among them.
    """

    prompt: int = 0
    computed: int | None = None
    generated: int = 0


@dataclass(frozen=True)
class Generation:
    """What a model wrote.

    Attributes:
        text: without the stop string.
        parts: the same as segments, with ids where the backend knows them: to be put into the next prompt.
        finish: "stop": a stop string came, or a chooser ended it; "eos": the model ended; "length": it had
            max_tokens.
        stop: the stop string, if one came.
        logprobs: one for each of `usage.generated`, natural logarithm, if they were asked for.
        usage: token counts.
    """

    text: str
    parts: tuple[Segment, ...]
    finish: Finish
    stop: str | None = None
    logprobs: tuple[float, ...] | None = None
    usage: Usage = Usage()


class Stream(Protocol):
    """A running generation: iterate over its text, then read `generation`.

    The pieces together are `generation.text`: what may be the beginning of a stop string is held back. An
    error of the model or the server is raised by the iteration (`BackendError`, with the text so far).
    """

    def __iter__(self) -> Iterator[str]: ...
    def __next__(self) -> str: ...
    def close(self) -> None:
        """Ends the generation early; without effect at its end."""

    @property
    def generation(self) -> Generation:
        """The whole, once the iteration has ended. InvalidArgument before."""


class AsyncStream(Protocol):
    """`Stream` for asyncio."""

    def __aiter__(self) -> AsyncIterator[str]: ...
    async def __anext__(self) -> str: ...
    async def aclose(self) -> None:
        """Ends the generation early; without effect at its end."""

    @property
    def generation(self) -> Generation:
        """As of `Stream`."""


class Backend(Protocol):
    """A model to continue prompts with. May be used from one thread at a time unless it says otherwise.

    Attributes:
        name: the model's name, for traces and reports.
        can: what of `Params` it honours beside max_tokens, stop and temperature: "ban", "guide", "grammar",
            "chooser", "logprobs"; "data" where `Segment.data` is kept from becoming control tokens by
            tokenisation. Where "data" is missing the caller must keep hostile names out.
    """

    @property
    def name(self) -> str: ...
    @property
    def can(self) -> frozenset[str]: ...
    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer whose ids the backend takes; None where it takes text only."""

    def generate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """Continues the prompts as one batch, in their order.

        Raises:
            InvalidArgument: params that the backend does not honour; a prompt that is too long for the
                model.
            BackendError: the server refused, failed or broke off; `text` is what had come.
        """

    def stream(self, prompt: Prompt, params: Params) -> Stream:
        """Continues one prompt, piece by piece. Errors as `generate`, by the iteration."""

    async def agenerate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """`generate` for asyncio."""

    def astream(self, prompt: Prompt, params: Params) -> AsyncStream:
        """`stream` for asyncio."""

    def close(self) -> None:
        """Gives back what it holds (connections, caches)."""
