"""One of a store's two vector spaces: its embedder, if there is one, and the texts embedded lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from . import _core
from ._input import integer
from .embedders import Embedder, External, Surface, check_embedding
from .errors import InvalidArgument

CACHED_TEXTS = 4096
ENCODE_BATCH = 4096
SURFACE_BATCH = 65536


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


def embed_missing(
    store: _core.Store,
    spaces: Sequence[Space],
    batch: int | None,
    progress: Callable[[int, int], object] | None,
) -> int:
    """`Memory.embed_missing`, whose docstring says what it does."""
    size = ENCODE_BATCH if batch is None else integer(batch, "batch", 1)
    stats = store.stats()
    total = int(stats["unembedded_entities"]) + int(stats["unembedded_relations"])
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, max(done, total))

    if isinstance(spaces[0].embedder, Surface):
        # In the core, without a Python object for each name
        while count := _core.embed_surface(store, SURFACE_BATCH if batch is None else size):
            add(count)
    for relation in (False, True):
        after = 0
        while page := store.unembedded(relation, after, size):
            after = page[-1][0] + 1
            for names, vectors in spaces[relation].encode([name for _, name in page], batch=size):
                entry = _core.Batch()
                entry.add_names(names, relation)
                entry.supply_vectors(names, vectors, relation)
                store.apply(entry)
                add(len(names))
    return done
