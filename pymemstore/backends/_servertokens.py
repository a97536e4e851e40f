"""What backends of servers need of the served model's tokenizer beside `Tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._tokens import Tokens
from .base import Segment

__all__ = ["ServerTokens"]


class ServerTokens(Tokens):
    """`Tokens` with its marks by their text.

    Attributes:
        tokenizer: the tokenizer.
        marks: its added tokens, special or not: text to id.
        special: the texts of the special ones; servers strip these from text.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.marks: dict[str, int] = {str(token): int(i) for i, token in added}
        self.special = frozenset(
            [*(str(token) for _, token in added if token.special), *map(str, tokenizer.all_special_tokens)]
        )
        self._vocabulary: list[str] = []
        self._containing: dict[str, tuple[int, ...]] = {}

    def stop_ids(self, stops: Sequence[str]) -> dict[int, str]:
        """The stop strings that are one added token: id to string."""
        return {self.marks[stop]: stop for stop in stops if stop in self.marks}

    def containing(self, text: str) -> tuple[int, ...]:
        """All tokens whose text contains `text`."""
        if not self._vocabulary:
            self._vocabulary = [self.decode([i]) for i in range(len(self.tokenizer))]
        if text not in self._containing:
            self._containing[text] = tuple(i for i, token in enumerate(self._vocabulary) if text in token)
        return self._containing[text]

    def parts(self, text: str, ids: Sequence[int], before: Sequence[int]) -> tuple[Segment, ...]:
        """Generated text as segments, with ids as far as they make it up.

        ids: the generated ones; they may go on past the text (a stop string, the end token). before: the
        prompt's.
        """
        if not text:
            return ()
        decoder = self.decoder(before)
        written, whole, length = "", 0, 0
        for n, token in enumerate(ids, 1):
            written += decoder.push(int(token))
            if not text.startswith(written):
                break
            if not decoder.waiting:
                whole, length = n, len(written)
                if written == text:
                    break
        else:
            if written + decoder.flush() == text:
                whole, length = len(ids), len(text)
        known = (Segment(text[:length], tuple(int(i) for i in ids[:whole])),) if length else ()
        return known if length == len(text) else (*known, Segment(text[length:]))
