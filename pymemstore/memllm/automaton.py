"""Which token may come next in a MemLLM call: constrained decoding (docs/constrained-decoding.md).

`ReadCall` and `WriteCall` make guides, one for each row, for `Params.guide`, `GuideLogitsProcessor` and the
vLLM plugin. Their slots take free text, names of a store or a list, or spans of a text. Nothing is compiled:
a change of the store is in the next guide.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, memory
from ..errors import InvalidArgument
from .names import Spans, StoreNames, name_set

__all__ = ["CallGuide", "ReadCall", "Spans", "StoreNames", "Vocabulary", "WriteCall", "guide_from_spec"]

Names = StoreNames | Spans | Iterable[str] | None
# A special token that is a piece of this is written as its text.
_SYNTAX = ("({MEM_READ(", "({MEM_WRITE-->", ">>;>>", ">>)-->", ">>})", ">>;", ";>>")


class Vocabulary:
    """The bytes that each token stands for. Made once for a tokenizer.

    Args:
        tokens: of each id; None: never allowed.
        eos: ids that may end a row after a write.
    """

    def __init__(self, tokens: Sequence[bytes | None], eos: Collection[int] = ()) -> None:
        if not tokens:
            raise InvalidArgument("a vocabulary without tokens")
        for token in eos:
            if not 0 <= token < len(tokens):
                raise InvalidArgument(f"the EOS id {token} is not among {len(tokens)} tokens")
        self.eos = tuple(sorted(set(eos)))
        self.core = _core.Vocabulary([None if i in self.eos else token for i, token in enumerate(tokens)])

    def __len__(self) -> int:
        return len(self.core)

    @property
    def complete(self) -> bool:
        """Whether each single byte is a token, so that any name can be written."""
        return self.core.complete

    def token(self, token: int) -> bytes | None:
        """A token's bytes; None: it is never allowed in a call."""
        return self.core.token(token)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, size: int | None = None, eos: Collection[int] | None = None
    ) -> Vocabulary:
        """Of a transformers tokenizer, or one of the `tokenizers` library.

        Byte-level (GPT-2's) and Metaspace (SentencePiece's, with or without byte fallback) vocabularies are
        known. Added tokens stand for their text; special ones only if that is a piece of the call syntax.
        A leading space that the decoder strips from the beginning of a text is counted here.

        Args:
            size: of the model's vocabulary, where it is larger than the tokenizer's.
            eos: None: the tokenizer's EOS.

        Raises:
            InvalidArgument: a tokenizer of another kind (WordPiece, WordLevel), or not of that library; size
                is too small.
        """
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        try:
            layout = json.loads(backend.to_str())
            model, pieces = layout["model"], backend.get_vocab(with_added_tokens=False)
        except (AttributeError, TypeError, KeyError, ValueError):
            raise InvalidArgument(
                f"{type(tokenizer).__name__}: its tokens' bytes are not known: give Vocabulary(tokens) itself"
            ) from None
        bytes_of = _reading(
            model, layout.get("decoder"), layout.get("pre_tokenizer"), layout.get("normalizer")
        )
        count = 1 + max([*pieces.values(), *(token["id"] for token in layout.get("added_tokens") or ())])
        if size is not None and size < count:
            raise InvalidArgument(f"size {size} is less than the tokenizer's {count} tokens")
        tokens: list[bytes | None] = [None] * (size or count)
        for piece, token in pieces.items():
            tokens[token] = bytes_of(piece)
        named = {
            getattr(tokenizer, f"{kind}_token", None)
            for kind in ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
        }
        unknown = model.get("unk_token")
        if isinstance(unknown, str) and unknown in pieces:
            tokens[pieces[unknown]] = None
        for added in layout.get("added_tokens") or ():
            text = added["content"]
            part_of_call = any(text in syntax for syntax in _SYNTAX)
            special = added["special"] or text in named
            tokens[added["id"]] = text.encode() if text and (part_of_call or not special) else None
        if eos is None:
            known = getattr(tokenizer, "eos_token_id", None)
            eos = () if known is None else (known,)
        return cls(tokens, eos)


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}


def _parts(spec: Any) -> list[dict[str, Any]]:
    """The members of a decoder, pre-tokenizer or normalizer."""
    if not spec:
        return []
    inner = spec.get("decoders") or spec.get("pretokenizers") or spec.get("normalizers")
    return [spec] if inner is None else [part for member in inner for part in _parts(member)]


def _reading(model: Mapping[str, Any], decoder: Any, pre_tokenizer: Any, normalizer: Any) -> Any:
    """What turns a piece into its bytes."""
    kind = model.get("type")
    if kind not in ("BPE", "Unigram"):
        raise InvalidArgument(
            f"a {kind} tokenizer does not keep the spaces between its tokens: no call can be checked"
        )
    if (model.get("continuing_subword_prefix") or "") or (model.get("end_of_word_suffix") or ""):
        raise InvalidArgument("a BPE with word prefixes or suffixes does not keep spaces in its tokens")
    parts = _parts(decoder) or _parts(pre_tokenizer)
    if any(part["type"] == "ByteLevel" for part in parts):
        alphabet = _byte_alphabet()

        def byte_level(piece: str) -> bytes | None:
            try:
                return bytes(alphabet[char] for char in piece)
            except KeyError:  # decoded as it stands
                return piece.encode()

        return byte_level
    space = None
    for part in [*parts, *_parts(pre_tokenizer), *_parts(normalizer)]:
        if part["type"] == "Metaspace":
            space = part["replacement"]
        elif part["type"] == "Replace":
            pattern, content = part["pattern"].get("String"), part["content"]
            if content == " " and pattern:
                space = pattern
            elif pattern == " " and content:
                space = content
    if space is None:
        raise InvalidArgument(f"a {kind} tokenizer that is neither byte-level nor of Metaspace is not known")
    fallback = bool(model.get("byte_fallback"))

    def metaspace(piece: str) -> bytes | None:
        if fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(space, " ").encode()

    return metaspace


class CallGuide:
    """The place of one row in its call: `backends.base.Guide`. For one thread at a time.

    At the end of a read, behind `-->`, any token may come (`mask` is None), and `done` is true. After a
    write only EOS may, if the vocabulary has one.
    """

    def __init__(self, core: _core.CallGuide, vocabulary: Vocabulary, write: bool) -> None:
        self._core, self._vocabulary, self._write = core, vocabulary, write
        self._mask: npt.NDArray[np.bool_] = np.zeros(len(vocabulary), np.bool_)

    @property
    def done(self) -> bool:
        """Whether the call is closed."""
        return self._core.done

    @property
    def to_end(self) -> int:
        """Bytes of the shortest text that closes the call from here."""
        return self._core.to_end

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """(vocabulary,) bool; see `Guide`."""
        if not self._core.done:
            self._core.mask(self._mask)
        elif self._write and self._vocabulary.eos:
            self._mask[:] = False
            self._mask[list(self._vocabulary.eos)] = True
        else:
            return None
        return self._mask

    def advance(self, token: int) -> None:
        """Takes a token. InvalidArgument for one that the mask forbids."""
        if not self._core.done:
            self._core.advance(token)
        elif self._write and self._vocabulary.eos and token not in self._vocabulary.eos:
            raise InvalidArgument(f"token {token} may not come here: the write is closed")


class _Call:
    """Makes guides: call it."""

    _write: bool

    def __init__(
        self,
        vocabulary: Vocabulary,
        entities: Names,
        relations: Names,
        max_parts: int,
        max_name_bytes: int,
        max_tokens: int | None,
        prefix: str,
        allow_empty: bool,
    ) -> None:
        if not isinstance(vocabulary, Vocabulary):
            raise InvalidArgument(f"vocabulary: expected a Vocabulary, not {vocabulary!r:.40}")
        for what, number in (
            ("max_parts", max_parts),
            ("max_name_bytes", max_name_bytes),
            ("max_tokens", max_tokens),
        ):
            if number is not None and (not isinstance(number, int) or not 1 <= number < 2**31):
                raise InvalidArgument(f"{what} must be an integer of at least 1, not {number!r:.40}")
        self._vocabulary, self._prefix, self._max_tokens = vocabulary, prefix, max_tokens
        self._stores = [names for names in (entities, relations) if isinstance(names, StoreNames)]
        self._sets: tuple[Any, Any] = (None, None)
        self._given = entities, relations
        self._options: dict[str, Any] = {
            "max_parts": max_parts,
            "max_name_bytes": max_name_bytes,
            "allow_empty": allow_empty,
        }
        self._fixed = [
            None if names is None or isinstance(names, StoreNames) else _set_of(names, what, vocabulary)
            for names, what in ((entities, "entities"), (relations, "relations"))
        ]
        self._lock = threading.Lock()
        self._masks = self._made()

    def _made(self) -> _core.CallMasks:
        sets = [
            names.set if isinstance(names, StoreNames) else fixed
            for names, fixed in zip(self._given, self._fixed, strict=True)
        ]
        self._sets = sets[0], sets[1]
        return _core.CallMasks(
            self._vocabulary.core, write=self._write, entities=sets[0], relations=sets[1], **self._options
        )

    def __call__(self, prefix: str | None = None, max_tokens: int | None = None) -> CallGuide:
        """A guide for one row. The arguments override those of the constructor.

        Raises InvalidArgument: the prefix is no beginning of a call; there are no names to choose from, or
        none that the vocabulary spells. Closed, Corruption: of a store.
        """
        for names in self._stores:
            names.refresh()
        with self._lock:
            if any(
                isinstance(n, StoreNames) and n.set is not s
                for n, s in zip(self._given, self._sets, strict=True)
            ):
                self._masks = self._made()
            masks = self._masks
        budget = self._max_tokens if max_tokens is None else max_tokens
        core = masks.start(self._prefix if prefix is None else prefix, budget)
        return CallGuide(core, self._vocabulary, self._write)

    @property
    def unspelled(self) -> int:
        """Names that the vocabulary can't write, and that are left out; as of the last guide."""
        return self._masks.unspelled


class ReadCall(_Call):
    """Guides for `({MEM_READ(...)-->`: queries with one empty slot each. Call it for a guide.

    Args:
        vocabulary: the model's.
        entities, relations: what their slots take: None: free text; `StoreNames`; a list of names; `Spans`.
        max_parts: most queries; the paper trains with at most 3.
        max_name_bytes: most bytes of free text in a slot, as written.
        max_tokens: what the model may write from the prefix on; near its end only what leads to the close is
            allowed. None: no limit.
        prefix: what of the call is there already, from `({` on; "": nothing.

    Raises:
        InvalidArgument: a wrong argument; the vocabulary lacks a character of the syntax.
    """

    _write = False

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        entities: Names = None,
        relations: Names = None,
        max_parts: int = 3,
        max_name_bytes: int = 256,
        max_tokens: int | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__(
            vocabulary, entities, relations, max_parts, max_name_bytes, max_tokens, prefix, False
        )


class WriteCall(_Call):
    """Guides for `({MEM_WRITE-->...})`: facts. Arguments and errors as of `ReadCall`, and

    Args:
        allow_empty: whether a write may hold no fact.
    """

    _write = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        entities: Names = None,
        relations: Names = None,
        max_parts: int = 32,
        max_name_bytes: int = 256,
        max_tokens: int | None = None,
        prefix: str = "",
        allow_empty: bool = True,
    ) -> None:
        super().__init__(
            vocabulary, entities, relations, max_parts, max_name_bytes, max_tokens, prefix, bool(allow_empty)
        )


def _set_of(names: Any, what: str, vocabulary: Vocabulary) -> Any:
    if isinstance(names, Spans):
        return names.index(vocabulary.core)
    if isinstance(names, str):
        raise InvalidArgument(f"{what}: expected names, not the string {names!r:.40}")
    try:
        return name_set(names)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None


# ---- from a request ---------------------------------------------------------------------------------

_KEYS = {"kind", "entities", "relations", "store", "context", "prefix", "max_tokens", "max_parts",
         "max_name_bytes", "allow_empty"}  # fmt: skip
_CALLS_KEPT = 16
_lock = threading.Lock()
_stores: dict[tuple[int, str], tuple[StoreNames, StoreNames]] = {}
_calls: OrderedDict[Any, tuple[Vocabulary, _Call]] = OrderedDict()


def guide_from_spec(spec: Mapping[str, Any], vocabulary: Vocabulary) -> CallGuide:
    """A guide from a description that fits into a server's request.

    spec: `kind`: "read" or "write"; `entities`: "free" (default), "store", "context" or a list of names;
    `relations`: the same; `store`: the store's folder, opened for reading once a process; `context`: the
    text whose spans are meant; the others as of `ReadCall` and `WriteCall`.

    Raises:
        InvalidArgument: what the spec says is wrong, named by its key. NotFound, Corruption: of the store.
    """
    if not isinstance(spec, Mapping):
        raise InvalidArgument(f"a guide's spec must be an object, not {spec!r:.40}")
    if unknown := sorted(map(str, set(spec) - _KEYS)):
        raise InvalidArgument(f"a guide's spec has no key {', '.join(unknown)}")
    if spec.get("kind") not in ("read", "write"):
        raise InvalidArgument(f"kind must be 'read' or 'write', not {spec.get('kind')!r:.40}")
    modes = [spec.get("entities", "free"), spec.get("relations", "free")]
    for key, mode in zip(("entities", "relations"), modes, strict=True):
        listed = isinstance(mode, Sequence) and not isinstance(mode, str)
        if not listed and mode not in ("free", "store", "context"):
            raise InvalidArgument(f"{key} must be 'free', 'store', 'context' or a list, not {mode!r:.40}")
    for needed, mode in (("store", "store"), ("context", "context")):
        if mode in modes and not isinstance(spec.get(needed), str):
            raise InvalidArgument(f"{needed}: expected a string, not {spec.get(needed)!r:.40}")
    for key in ("prefix", "context"):
        if not isinstance(spec.get(key, ""), str):
            raise InvalidArgument(f"{key}: expected a string, not {spec[key]!r:.40}")
    if spec["kind"] == "read" and "allow_empty" in spec:
        raise InvalidArgument("allow_empty is of writes")
    own = ("prefix", "max_tokens", "context") if "context" not in modes else ("prefix", "max_tokens")
    shared = {key: value for key, value in spec.items() if key not in own}
    known = id(vocabulary), os.getpid(), json.dumps(shared, sort_keys=True, default=list)
    with _lock:
        _, call = _calls.pop(known, (None, None))
        if call is None:
            call = _call_from(shared, modes, vocabulary)
        _calls[known] = vocabulary, call  # holds the vocabulary, so that its id stays its own
        while len(_calls) > _CALLS_KEPT:
            _calls.popitem(last=False)
    budget = spec.get("max_tokens")
    if budget is not None and (not isinstance(budget, int) or not 1 <= budget < 2**31):
        raise InvalidArgument(f"max_tokens must be an integer of at least 1, not {budget!r:.40}")
    return call(spec.get("prefix", ""), budget)


def _call_from(spec: Mapping[str, Any], modes: Sequence[Any], vocabulary: Vocabulary) -> _Call:
    def names(mode: Any, relation: bool) -> Names:
        if mode == "free":
            return None
        if mode == "store":
            return _store_names(spec["store"])[relation]
        return Spans(spec["context"]) if mode == "context" else list(mode)

    options = {key: spec[key] for key in ("max_parts", "max_name_bytes", "allow_empty") if key in spec}
    made = WriteCall if spec["kind"] == "write" else ReadCall
    return made(vocabulary, entities=names(modes[0], False), relations=names(modes[1], True), **options)


def _store_names(path: str) -> tuple[StoreNames, StoreNames]:
    key = os.getpid(), os.path.realpath(path)
    if key not in _stores:
        opened = memory.open(path, read_only=True)
        _stores[key] = StoreNames(opened), StoreNames(opened, relation=True)
    return _stores[key]
