"""A small embedder for tests of the face: each text has a fixed random direction; its calls are on record."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Hashed:
    """Unit vectors from the text's checksum: nothing is near anything by meaning."""

    def __init__(self, dim: int = 16, name: str = "hashed-test") -> None:
        self.name = name
        self.dim = dim
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.calls.append(list(texts))
        return np.stack([self.one(text) for text in texts])

    def one(self, text: str) -> npt.NDArray[np.float32]:
        v = np.random.default_rng(zlib.crc32(text.encode())).normal(size=self.dim)
        return np.asarray(v / np.linalg.norm(v), np.float32)

    @property
    def texts(self) -> list[str]:
        return [text for call in self.calls for text in call]
