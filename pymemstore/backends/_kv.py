"""Keys and values of a causal transformers model: kept between generations, stacked for batches."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["Decoding", "ForwardPass", "KVStore"]

Layers = list[tuple[Any, Any]]  # keys and values of one sequence, each (1, heads, tokens, head size)


class ForwardPass:
    """A model's forward pass, whatever its release and class call things.

    Attributes:
        plain: whether its cache is a list of keys and values, one per layer and token, that can be cut and
            stacked. Sliding windows are: all their keys are kept, the mask alone forgets.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._names = frozenset(inspect.signature(base.forward).parameters)
        self._cache = next((name for name in ("cache", "past_key_values") if name in self._names), None)
        self.plain = self._cache is not None and _is_plain(base)

    def __call__(self, ids: Any, mask: Any, positions: Any, cache: Any) -> tuple[Any, Any]:
        """ids: (rows, n) int64, the tokens after those in the cache. mask: (rows, cached + n) int64, 0 where
        a row is padded. positions: (rows, n). Scores of the next token, (rows, vocabulary) float32, and the
        cache, None where the model gives none."""
        given = {"attention_mask": mask, "position_ids": positions, "logits_to_keep": 1}
        given = {name: value for name, value in given.items() if name in self._names}
        if self._cache is not None:
            given |= {self._cache: cache, "use_cache": True}
        out = self.model(input_ids=ids, **given)
        if self._cache is not None and cache is None:
            cache = getattr(out, self._cache, None)
        return out.logits[:, -1].float(), cache


def _is_plain(model: Any) -> bool:
    config = model.config.get_text_config(decoder=True)
    if getattr(model, "_is_stateful", False) or getattr(config, "attention_chunk_size", None):
        return False
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    return bool(kinds) and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


class KVStore:
    """Keys and values of the sequences that were computed last.

    At most `sequences` of them with `tokens` tokens in all; the one that was used longest ago goes first. A
    sequence of more tokens is not kept.
    """

    def __init__(self, sequences: int, tokens: int) -> None:
        self._most = sequences, tokens
        self._kept: list[tuple[npt.NDArray[np.int64], Layers]] = []  # least recently used first

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids, _ in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept = []

    def find(self, ids: Sequence[int]) -> tuple[int, Layers]:
        """The longest beginning of `ids` that a kept sequence shares, but the last token, which has to be
        computed for its scores; that sequence's layers, not cut."""
        wanted = np.asarray(ids[:-1], np.int64)
        best, length = -1, 0
        for i, (kept, _) in enumerate(self._kept):
            shared = _shared(kept, wanted)
            if shared > length:
                best, length = i, shared
        if best < 0:
            return 0, []
        self._kept.append(self._kept.pop(best))
        return length, self._kept[-1][1]

    def put(self, ids: Sequence[int], layers: Layers) -> None:
        """Keeps a sequence. It takes the place of those that it continues."""
        new = np.asarray(ids, np.int64)
        kept = []
        for entry in self._kept:
            shared = _shared(entry[0], new)
            if shared == len(new):
                new, layers = entry
            elif shared < len(entry[0]):
                kept.append(entry)
        if len(new) <= self._most[1]:
            kept.append((new, layers))
        while len(kept) > self._most[0] or sum(len(entry[0]) for entry in kept) > self._most[1]:
            del kept[0]
        self._kept = kept


def _shared(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


class Decoding:
    """The rows of a batch that are being continued.

    They are padded on the left, so that all end together. Of each row at least what no kept sequence has is
    computed; in a batch as many last tokens of each row as of the one that needs most, which costs no more
    than padding would and leaves no holes between a row's tokens, by which a sliding window would count.
    Call with `torch.inference_mode`. A model whose cache is not plain takes one row and nothing kept.

    Attributes:
        computed: of each prompt, how many tokens go through the model.
    """

    def __init__(self, forward: ForwardPass, prompts: Sequence[Sequence[int]], store: KVStore) -> None:
        self._forward, self._store = forward, store
        self._device = forward.model.device
        self._ids = [list(ids) for ids in prompts]  # what the cache holds, or will with the next pass
        found = [store.find(ids) if forward.plain else (0, []) for ids in prompts]
        width = max(len(ids) for ids in prompts)
        self._new = max(len(ids) - shared for ids, (shared, _) in zip(prompts, found, strict=True))
        self._pads = [width - len(ids) for ids in prompts]
        self.computed = [min(len(ids), self._new) for ids in prompts]
        self._cache: Any = None
        if forward.plain:
            self._cache = DynamicCache()
            self._fill(found, width - self._new)

    def _fill(self, found: list[tuple[int, Layers]], width: int) -> None:
        """The cache before the first pass: of each row its first tokens, `width` with the padding."""
        if width == 0:
            return
        used = [max(width - pad, 0) for pad in self._pads]
        shapes = next(layers for _, layers in found if layers)
        for number, pair in enumerate(shapes):
            stacked = [
                tensor.new_zeros((len(found), *tensor.shape[1:2], width, tensor.shape[3])) for tensor in pair
            ]
            for row, (n, (_, layers)) in enumerate(zip(used, found, strict=True)):
                for target, tensor in zip(stacked, layers[number] if n else (), strict=False):
                    target[row, :, width - n :] = tensor[0, :, :n]
            self._cache.update(*stacked, number)

    def start(self) -> Any:
        """Computes the prompts; scores of their next tokens, (rows, vocabulary) float32."""
        columns = [([0] * self._new + ids)[-self._new :] for ids in self._ids]
        return self._pass(torch.tensor(columns, device=self._device))

    def step(self, tokens: Sequence[int]) -> Any:
        """Computes one more token of each row; as `start`."""
        for ids, token in zip(self._ids, tokens, strict=True):
            ids.append(token)
        if self._cache is None:  # the model has none: from the beginning
            return self._pass(torch.tensor(self._ids, device=self._device))
        return self._pass(torch.tensor(tokens, device=self._device)[:, None])

    def _pass(self, ids: Any) -> Any:
        width = self._pads[0] + len(self._ids[0])
        place = torch.arange(width, device=self._device)[None, :] - torch.tensor(
            self._pads, device=self._device
        ).unsqueeze(1)
        positions = place[:, width - ids.shape[1] :].clamp(min=0)
        logits, self._cache = self._forward(ids, (place >= 0).long(), positions, self._cache)
        return logits

    def leave(self, rows: Sequence[int]) -> None:
        """Takes rows out of the batch, by their places in it, and keeps what was computed of them."""
        if not self._forward.plain or not rows:
            return
        layers = self._cache.layers
        many = len(self._ids) > 1
        for row in rows:
            pad = self._pads[row]
            kept = [
                (layer.keys[row : row + 1, :, pad:], layer.values[row : row + 1, :, pad:]) for layer in layers
            ]
            if many:  # a view would hold the whole batch
                kept = [(keys.clone(), values.clone()) for keys, values in kept]
            self._store.put(self._ids[row], kept)
        stay = [row for row in range(len(self._ids)) if row not in rows]
        if not stay:
            self._cache = None
            return
        cut = min(self._pads[row] for row in stay)
        for layer in layers:
            layer.keys, layer.values = layer.keys[stay, :, cut:], layer.values[stay, :, cut:]
        self._ids = [self._ids[row] for row in stay]
        self._pads = [self._pads[row] - cut for row in stay]
