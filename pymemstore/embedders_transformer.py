"""Any Hugging Face encoder as an embedder: Contriever, sentence-transformers models, one code path."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .embedders_base import MEMLLM, Thresholds
from .errors import InvalidArgument

POOLINGS = ("mean", "cls", "max", "last")
POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
LONGEST = 512  # tokens, where neither the caller nor the model says


class _Layout(NamedTuple):
    """What a sentence-transformers folder says of itself."""

    pooling: str = "mean"
    normalize: bool = False
    subfolder: str = ""
    max_length: int | None = None
    lower: bool = False


class Transformer:
    """Vectors of an encoder's last hidden states, pooled over the tokens. Loaded at the first use.

    Needs the packages torch and transformers. `thresholds` are MemLLM's for Contriever (appendix
    "Hyperparameters"); other models spread their cosines otherwise, so tune them.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        pooling: str = "mean",
        max_length: int | None = None,
        batch_size: int = 64,
        device: str | None = None,
        name: str | None = None,
        dtype: str | None = None,
        thresholds: Thresholds = MEMLLM,
    ) -> None:
        """Loads nothing yet.

        Args:
            model: a folder, or a hub id, which transformers fetches or finds in its cache.
            pooling: "mean" over the attention mask, as Contriever does, "cls", "max" or "last"; "auto" reads
                modules.json and the pooling's config.json, as sentence-transformers does, else "mean".
            max_length: tokens beyond this are cut; None: the model's own limit, 512 where it has none.
            batch_size: texts in one call of the model.
            device: such as "cuda:0"; None: "cuda" where there is one, else "cpu".
            name: what the store calls these vectors; None: the hub id or the folder's last part.
            dtype: of the weights, such as "bfloat16"; None: float32. Vectors are float32 always.
            thresholds: tau_e, tau_t and tau_r of a query that gives none.

        Raises:
            InvalidArgument: an unknown pooling, or a size that is not positive.
        """
        if pooling not in (*POOLINGS, "auto"):
            raise InvalidArgument(f"pooling must be one of {(*POOLINGS, 'auto')}, not {pooling!r}")
        for what, size in (("max_length", max_length), ("batch_size", batch_size)):
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise InvalidArgument(f"{what} must be a positive int, not {size!r}")
        self.model = os.fspath(model)
        self.name = name if name is not None else _default_name(self.model)
        self.thresholds = thresholds
        self.batch_size = batch_size
        self.device = device
        self.dtype = dtype
        self._pooling = pooling
        self._max_length = max_length
        self._lock = threading.RLock()  # fast tokenizers and lazy loading are not thread-safe
        self._layout: _Layout | None = None
        self._loaded: tuple[Any, Any, Any] | None = None
        self._dim: int | None = None

    @property
    def version(self) -> str:
        """The pooling, which makes other vectors of the same model.

        Raises:
            InvalidArgument: the model's own files, which "auto" reads, can't be read.
        """
        with self._lock:
            return self._read_layout().pooling

    @property
    def dim(self) -> int:
        """The model's hidden size. Reads its configuration at the first use.

        Raises:
            InvalidArgument: the model or a needed package isn't there.
        """
        with self._lock:
            if self._dim is None:
                config = self._from_pretrained("AutoConfig")
                self._dim = int(config.hidden_size)
            return self._dim

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        """One vector for each text: float32 (n, dim); of unit length only where modules.json says so.

        Raises:
            InvalidArgument: the model or a needed package isn't there.
        """
        out = np.empty((len(texts), self.dim), np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # less padding
        with self._lock:
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                out[batch] = self._encode([texts[i] for i in batch])
        return out

    def _encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        torch, tokenizer, model = self._load()
        layout = self._read_layout()
        if layout.lower:
            texts = [text.lower() for text in texts]
        limit = self._limit(tokenizer, model)
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        inputs = inputs.to(model.device)
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state.float()
            pooled = _pool(torch, hidden, inputs["attention_mask"], layout.pooling)
            if layout.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=1)
        vectors: npt.NDArray[np.float32] = pooled.cpu().numpy()
        return vectors

    def _limit(self, tokenizer: Any, model: Any) -> int:
        if self._max_length is not None:
            return self._max_length
        limit = self._read_layout().max_length or LONGEST
        positions = getattr(model.config, "max_position_embeddings", None) or limit
        return int(min(limit, tokenizer.model_max_length, positions))

    def _load(self) -> tuple[Any, Any, Any]:
        if self._loaded is None:
            torch, _ = _packages()
            tokenizer = self._from_pretrained("AutoTokenizer")
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            dtype = torch.float32 if self.dtype is None else getattr(torch, self.dtype, None)
            if dtype is None:
                raise InvalidArgument(f"torch has no dtype {self.dtype!r}")
            model = self._from_pretrained("AutoModel")
            if model.config.is_encoder_decoder:
                model = model.get_encoder()
            device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            self._loaded = torch, tokenizer, model.to(device=device, dtype=dtype).eval()
        return self._loaded

    def _from_pretrained(self, kind: str) -> Any:
        _, transformers = _packages()
        options = {"subfolder": self._read_layout().subfolder} if self._read_layout().subfolder else {}
        try:
            return getattr(transformers, kind).from_pretrained(self.model, **options)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"can't load model {self.model!r}: {str(error).strip()[:300]}") from error

    def _read_layout(self) -> _Layout:
        if self._layout is None:
            self._layout = _Layout(self._pooling) if self._pooling != "auto" else _sentence_layout(self.model)
        return self._layout


def _default_name(model: str) -> str:
    return Path(model).resolve().name if Path(model).is_dir() else model


def _packages() -> tuple[Any, Any]:
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise InvalidArgument(f"this embedder needs the packages torch and transformers: {error}") from error


def _pool(torch: Any, hidden: Any, mask: Any, pooling: str) -> Any:
    """(n, tokens, dim) and a mask (n, tokens) to (n, dim)."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        positions = torch.arange(mask.shape[1], device=mask.device)
        return hidden[torch.arange(len(hidden), device=mask.device), (mask * positions).argmax(dim=1)]
    seen = mask[:, :, None].bool()
    if pooling == "max":
        return hidden.masked_fill(~seen, float("-inf")).amax(dim=1)
    return hidden.masked_fill(~seen, 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _read_json(model: str, name: str) -> Any:
    """A JSON file of the model's folder or hub repository; None where it has no such file."""
    if Path(model).is_dir():
        path: str | None = str(Path(model) / name)
        if not Path(model, name).is_file():
            return None
    else:
        _, transformers = _packages()
        quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        path = transformers.utils.cached_file(model, name, **quiet)
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(f"{name} of model {model!r} is no JSON: {error}") from error


def _sentence_layout(model: str) -> _Layout:
    """What modules.json and the files it names tell; mean pooling where there is none.

    Raises:
        InvalidArgument: a module or pooling that this code path doesn't have.
    """
    try:
        modules = _read_json(model, "modules.json")
        if modules is None:
            return _Layout()
        pooling, normalize, subfolder = "mean", False, ""
        for module in modules:
            kind = str(module["type"]).rpartition(".")[2]
            if kind == "Transformer":
                subfolder = str(module["path"])
            elif kind == "Pooling":
                pooling = _pooling_of(model, _read_json(model, f"{module['path']}/config.json") or {})
            elif kind == "Normalize":
                normalize = True
            else:
                raise InvalidArgument(f"model {model!r} has a module {kind!r}, which is not supported")
        prefix = f"{subfolder}/" if subfolder else ""
        settings = _read_json(model, f"{prefix}sentence_bert_config.json") or {}
        length = settings.get("max_seq_length")
        return _Layout(pooling, normalize, subfolder, length, bool(settings.get("do_lower_case", False)))
    except (KeyError, TypeError, AttributeError, OSError) as error:
        raise InvalidArgument(f"can't read the modules of model {model!r}: {str(error)[:300]}") from error


def _pooling_of(model: str, config: dict[str, Any]) -> str:
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if not chosen and isinstance(config.get("pooling_mode"), str):
        chosen = [config["pooling_mode"]]
    if len(chosen) != 1 or POOLING_KEYS.get(chosen[0], chosen[0]) not in POOLINGS:
        raise InvalidArgument(f"model {model!r} pools by {chosen or 'nothing'}, which is not supported")
    return POOLING_KEYS.get(chosen[0], chosen[0])
