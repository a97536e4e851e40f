"""One of a store's two vector spaces: its embedder, if there is one, and the texts embedded lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .embedders import Embedder, External, check_embedding
from .errors import InvalidArgument

CACHED_TEXTS = 4096
ENCODE_BATCH = 4096


class Space:
    """The entities' or the relations' vectors. Thread-safe as far as the embedder is."""

    def __init__(self, kind: str, stamp: tuple[str, int, str], embedder: Embedder | None) -> None:
        self.kind = kind
        self.name, self.dim, self.version = stamp
        self.embedder = embedder
        self._cache: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def embeds(self) -> bool:
        """Whether text can be turned into vectors here."""
        return self.embedder is not None and not isinstance(self.embedder, External)

    def _encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.embedder is None:
            shown = repr(texts[0]) if len(texts) == 1 else f"{texts[0]!r} and {len(texts) - 1} more"
            raise InvalidArgument(
                f"no embedder for {self.kind} text {shown:.200}: the store's vectors are of {self.name!r} "
                f"(dimension {self.dim}); give that embedder to open(), or vectors"
            )
        return check_embedding(self.embedder, texts, self.embedder.encode(texts))

    def encode(
        self, names: Sequence[str], *, batch: int = ENCODE_BATCH, done: Callable[[int], object] | None = None
    ) -> Iterator[tuple[Sequence[str], npt.NDArray[np.float32]]]:
        """Batches of `names` with their vectors, float32 (n, dim). `done` is told each batch's size."""
        for start in range(0, len(names), batch):
            part = names[start : start + batch]
            vectors = self._encode(part)
            if done is not None:
                done(len(part))
            yield part, vectors

    def text_vectors(self, texts: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
        """The vectors of query texts, float32 (dim,) each; those not cached are embedded in one call."""
        found: dict[str, npt.NDArray[np.float32]] = {}
        cache = self._cache
        with self._lock:
            for text in texts:
                vector = cache.get(text)
                if vector is not None:
                    cache.move_to_end(text)
                    found[text] = vector
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            # Own copies: a row of a large batch would keep all of the batch alive.
            found.update((text, row.copy()) for text, row in zip(new, self._encode(new), strict=True))
            with self._lock:
                for text in new[-CACHED_TEXTS:]:
                    cache[text] = found[text]
                while len(cache) > CACHED_TEXTS:
                    cache.popitem(last=False)
        return found
