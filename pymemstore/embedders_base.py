"""What an embedder is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


class Thresholds(NamedTuple):
    """Cosines of MemLLM's section 3.1: of entities, of relations, and of their mean. Each in [-1, 1]."""

    tau_e: float
    tau_t: float
    tau_r: float


SMALL_STORE = Thresholds(0.6, 0.5, 0.7)  # surf256 and rel256; larger stores need higher ones
MEMLLM = Thresholds(0.7, 0.7, 0.85)  # MemLLM's for Contriever's vectors (appendix on hyperparameters)


@runtime_checkable
class Embedder(Protocol):
    """Anything with these three. Lengths are free: the store normalises what it keeps.

    Optional: `thresholds: Thresholds`, the defaults of a query; `version: str`, which is stored beside `name`
    and `dim`, so that a store is not opened with vectors of another make.
    """

    @property
    def name(self) -> str:
        """Tells this embedder's vectors from any other's; stored."""

    @property
    def dim(self) -> int:
        """Vector dimension."""

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        """One vector for each text: float32 (n, dim), finite, none of them zero."""
