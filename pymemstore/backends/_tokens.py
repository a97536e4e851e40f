"""Prompts to token ids and ids to text, for tokenizers of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from ..errors import InvalidArgument
from .base import Prompt, segments

__all__ = ["TextDecoder", "Tokens"]

# Put before a text so that it is tokenised as a continuation: characters that hardly merge with others.
_HEADS = ("\ue000", "\n", ":", ".", "a", "e")
_CONTEXT = 8  # tokens of the prompt that the first new one may be decoded with
_LONGEST_CHARACTER = 8  # tokens that may wait for the rest of a character; UTF-8 has 4 bytes


class Tokens:
    """A tokenizer as the loops need it.

    What a tokenizer puts before a text by itself (BOS) comes once, at the start of the prompt. The first
    text is tokenised as the beginning of a text; every other one as the continuation that it is, so no space
    comes before it that isn't in it. Behind an added token it is what the tokenizer makes of it there: some
    (Llama's) put a space before. Neighbouring texts of one kind are one text.

    Attributes:
        control: the ids of all added tokens, special or not, but white space.
        safe: whether data is kept from becoming control tokens by tokenisation alone; else such data is
            refused.
        start: what comes before every prompt.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self.safe = self._backend is not None
        added = tokenizer.added_tokens_decoder.items()
        self._unknown = tokenizer.unk_token_id
        self.control = frozenset(
            int(i) for i, token in added if i != self._unknown and not str(token).isspace()
        )
        plain, whole = self._text("a"), list(tokenizer("a", verbose=False)["input_ids"])
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        self.start: tuple[int, ...] = tuple(whole[:at])
        self._anew = self._begins_anew()
        self._direct = {
            encode: all(encode(probe) == self._after(encode, probe) for probe in ("a", " a"))
            for encode in (self._text, self._data)
        }

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's ids. No part of a data segment becomes a control token.

        Raises:
            InvalidArgument: text that is no valid Unicode; data that the vocabulary can't write otherwise
                than by a control token.
        """
        ids: list[int] = []
        for (known, data), group in groupby(segments(prompt), key=lambda s: (s.ids is not None, s.data)):
            if known:
                ids.extend(i for part in group for i in part.ids or ())
                continue
            text = "".join(part.text for part in group)
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"prompt: {text[max(0, error.start - 20) :]!r:.60}: {error}") from None
            encode = self._data if data else self._text
            if text:
                first = not ids or (self._anew and ids[-1] in self.control)
                ids.extend(encode(text) if first or self._direct[encode] else self._after(encode, text))
        start = list(self.start)
        return ids if ids[: len(start)] == start else start + ids

    def decode(self, ids: Sequence[int]) -> str:
        """Their text, special tokens included."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(list(ids), **options))

    def decoder(self, ids: Sequence[int]) -> TextDecoder:
        """For what follows these ids."""
        return TextDecoder(self.decode, list(ids)[len(self.start) :])

    def _begins_anew(self) -> bool:
        """Whether text behind an added token is tokenised as at the beginning."""
        for token in sorted(self.control):
            ids = self._text(f"{self._tokenizer.convert_ids_to_tokens(token)}a")
            if len(ids) > 1 and ids[0] == token:
                return ids[1:] == self._text("a") != self._after(self._text, "a")
        return False

    def _text(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _data(self, text: str) -> list[int]:
        """Without added tokens: the tokenizer's own `split_special_tokens` leaves those in that are not
        special, and a model may have control tokens in its vocabulary."""
        if self._backend is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            if bad := self.control.intersection(ids):
                raise InvalidArgument(f"the tokenizer makes control tokens {sorted(bad)} of {text!r:.80}")
            return list(ids)
        if self._backend.normalizer is not None:
            text = self._backend.normalizer.normalize_str(text)
        pieces = [text]
        if self._backend.pre_tokenizer is not None:
            pieces = [piece for piece, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]
        return [i for piece in pieces for i in self._uncontrolled(piece)]

    def _uncontrolled(self, piece: str) -> list[int]:
        """The ids of a piece that was normalised and pre-tokenised; control tokens are taken apart."""
        model, ids = self._backend.model, []
        for token in model.tokenize(piece):
            if token.id not in self.control:
                ids.append(int(token.id))
            elif len(token.value) > 1:
                ids += self._uncontrolled(token.value[:1]) + self._uncontrolled(token.value[1:])
            else:
                found = [model.token_to_id(f"<0x{byte:02X}>") for byte in token.value.encode()]
                if None in found or self.control.intersection(found):
                    raise InvalidArgument(f"the vocabulary has {token.value!r} as a control token only")
                ids += found
        return ids

    def _after(self, encode: Callable[[str], list[int]], text: str) -> list[int]:
        """The ids of a text that follows another."""
        for character in _HEADS:
            head = encode(character)
            whole = encode(character + text)
            if head and self._unknown not in head and whole[: len(head)] == head:
                return whole[len(head) :]
        return encode(text)


class TextDecoder:
    """The text of ids that come one by one, as they read behind those before them.

    A character that is spread over several tokens comes with the last of them; bytes that are no UTF-8 come
    as U+FFFD.

    Attributes:
        waiting: how many of the last tokens wait for the rest of a character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int]) -> None:
        self._decode = decode
        # Decoders drop a space at the very start and join bytes, so tokens are decoded with those before.
        self._before: list[int] = []
        for n in range(1, min(_CONTEXT, len(before)) + 1):
            self._before = list(before[-n:])
            if "\ufffd" not in decode(self._before):
                break
        self._known = len(decode(self._before)) if self._before else 0
        self._waiting: list[int] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def peek(self, token: int) -> str:
        """The text of those that wait and this token, without any effect. Where a character is incomplete
        U+FFFD stands for it."""
        return self._decode([*self._before, *self._waiting, token])[self._known :]

    def push(self, token: int) -> str:
        """Takes the next token; the text that is complete with it."""
        whole = self._decode([*self._before, *self._waiting, token])
        self._waiting.append(token)
        if whole.endswith("\ufffd") and len(self._waiting) < _LONGEST_CHARACTER:
            return ""
        return self._emit(whole)

    def flush(self) -> str:
        """The text of the tokens that wait."""
        return self._emit(self._decode([*self._before, *self._waiting])) if self._waiting else ""

    def _emit(self, whole: str) -> str:
        text = whole[self._known :]
        self._before, self._waiting = self._waiting, []
        self._known = len(self._decode(self._before))
        return text
