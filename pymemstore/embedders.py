"""What turns names into vectors: the protocol, the defaults that work offline, and models of one's own.

`Surface` and `RelationWords` need numpy alone and give the same bits on every machine; docs/embeddings.md has
their construction and figures. `Transformer` (in embedders_transformer.py) is any Hugging Face encoder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from . import _core
from .embedders_base import MEMLLM, SMALL_STORE, Embedder, Thresholds
from .embedders_relation import encode_relations
from .embedders_transformer import Transformer
from .errors import InvalidArgument

__all__ = [
    "Embedder",
    "External",
    "RelationWords",
    "Surface",
    "Thresholds",
    "Transformer",
    "check_embedding",
    "contriever",
    "resolve",
    "sentence_transformer",
]


def _checked_texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise InvalidArgument("texts must be a sequence of str, not one str")
    out = list(texts)
    for i, text in enumerate(out):
        if not isinstance(text, str):
            raise InvalidArgument(f"text {i} is not a str: {text!r:.200}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"text {i} has a lone surrogate: {text!r:.200}") from error
    return out


class Surface:
    """surf256: entity names by surface form, numbers and acronyms apart. Offline and deterministic."""

    name = "surf256"
    dim = 256
    version = "1"
    thresholds = SMALL_STORE

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        """Unit vectors, float32 (n, 256). Any text has one, the empty one included.

        Raises:
            InvalidArgument: an item is not a str, or has a lone surrogate.
        """
        return _core.encode_surface(_checked_texts(texts))


class RelationWords:
    """rel256: relation names by meaning, the sum of a table's word vectors and eight contrasts. Offline and
    deterministic. The table is distilled from all-MiniLM-L6-v2 (see NOTICE)."""

    name = "rel256"
    dim = 256
    version = "1"
    thresholds = SMALL_STORE

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        """Unit vectors, float32 (n, 256). Any text has one, the empty one included.

        Raises:
            InvalidArgument: an item is not a str, or has a lone surrogate.
        """
        return encode_relations(_checked_texts(texts))


class External:
    """For vectors that the caller always brings, such as an inference server's: a name and a dimension."""

    def __init__(self, dim: int, name: str = "external", *, thresholds: Thresholds | None = None) -> None:
        """Raises InvalidArgument where `dim` is not a positive int or `name` is empty."""
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
            raise InvalidArgument(f"dim must be a positive int, not {dim!r}")
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"name must be a non-empty str, not {name!r}")
        self.dim = int(dim)
        self.name = name
        self.thresholds = thresholds if thresholds is not None else MEMLLM

    def encode(self, texts: Sequence[str], /) -> NoReturn:
        """Raises InvalidArgument: text can't be embedded here."""
        shown = repr(next(iter(texts), ""))
        raise InvalidArgument(f"{self.name!r} embeds no text, give vectors: no vector for {shown:.200}")


def contriever(**options: Any) -> Transformer:
    """Contriever (Izacard et al., 2022), the embedder of MemLLM: mean pooling, 768 dimensions.

    Args:
        options: as for `Transformer`, for example `device` or `batch_size`.
    """
    return Transformer("facebook/contriever", pooling="mean", **options)


def sentence_transformer(model: str | os.PathLike[str], **options: Any) -> Transformer:
    """Any sentence-transformers model, without that package.

    Args:
        model: a folder or hub id whose modules.json tells the pooling; mean pooling where there is none.
        options: as for `Transformer`.
    """
    return Transformer(model, pooling="auto", **options)


_BUILT_IN: dict[str, Callable[[], Embedder]] = {
    "surf256": Surface,
    "rel256": RelationWords,
    "contriever": contriever,
}


def resolve(spec: str | os.PathLike[str] | Embedder | None) -> Embedder:
    """The embedder that `spec` stands for.

    Args:
        spec: None or "surf256": `Surface`. "rel256": `RelationWords`. "contriever". A folder or a hub id with
            an owner ("owner/model"): a `Transformer` with the pooling that its modules.json tells, else mean.
            An object with `name`, `dim` and `encode` is returned as it is.

    Raises:
        InvalidArgument: it is none of these.
    """
    if spec is None:
        return Surface()
    if isinstance(spec, (str, os.PathLike)):
        text = os.fspath(spec)
        if text in _BUILT_IN:
            return _BUILT_IN[text]()
        hub_id = isinstance(spec, str) and text.count("/") == 1 and not text.startswith(("/", "."))
        if isinstance(text, str) and (hub_id or (text and os.path.isdir(text))):
            return sentence_transformer(text)
        raise InvalidArgument(
            f"no embedder {text!r:.200}: none of {', '.join(_BUILT_IN)}, no folder, no hub id 'owner/model'"
        )
    if isinstance(spec, type) or not isinstance(spec, Embedder):
        raise InvalidArgument(f"an embedder has name, dim and encode(texts); {spec!r:.200} has not")
    return spec


def check_embedding(embedder: Embedder, texts: Sequence[str], vectors: object) -> npt.NDArray[np.float32]:
    """What `embedder` returned for `texts`, if it is right: contiguous float32 (n, dim).

    Other float dtypes are converted.

    Raises:
        InvalidArgument: not a float array of that shape, or a vector that is zero, infinite or not a number;
            the message names the embedder and the text.
    """
    who = f"embedder {embedder.name!r}"
    if not isinstance(vectors, np.ndarray):
        raise InvalidArgument(f"{who} returned {type(vectors).__name__}, not a numpy array")
    if vectors.dtype.kind != "f":
        raise InvalidArgument(f"{who} returned dtype {vectors.dtype}, not float32")
    expected = (len(texts), embedder.dim)
    if vectors.shape != expected:
        first = f" (first text: {texts[0]!r:.200})" if len(texts) else ""
        raise InvalidArgument(f"{who} returned shape {vectors.shape}, not {expected}{first}")
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(vectors, dtype=np.float32)
    for what, good in (("not finite", np.isfinite(out).all(axis=1)), ("zero", out.any(axis=1))):
        if not good.all():
            text = texts[int(np.argmin(good))]
            raise InvalidArgument(f"{who} returned a vector that is {what} for {text!r:.200}")
    return out
