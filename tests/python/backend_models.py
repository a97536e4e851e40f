"""Small tokenizers and models of both usual kinds, and a model that plays a script. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import PreTrainedTokenizerFast as Fast

from pymemstore.backends._tokens import Tokens
from pymemstore.backends.base import Generation, Params, Prompt, Segment
from pymemstore.backends.transformers import TransformersBackend

torch.set_num_threads(1)

CORPUS = [
    "The river Spree flows through Berlin, the capital of Germany, and on to the sea.",
    "Ana Lima was born in Porto in 1963 and lives there now; her brother lives in Lisbon.",
    "What is the capital of France? The capital of France is Paris, and it has a river too.",
] * 3
CALLS = ["({MEM_READ(", "-->", "})"]
KINDS = ("bytes", "metaspace")


@cache
def tokenizer(kind: str) -> Any:
    """Byte-level BPE without BOS, or Llama's kind: Metaspace, byte fallback, BOS, and control tokens that
    merges lead to. Call tokens are added, not special."""
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
        fast = Fast(tokenizer_object=made, eos_token="<|endoftext|>")
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        made.train_from_iterator(
            CORPUS, trainers.BpeTrainer(vocab_size=200, initial_alphabet=list("</s>({})"))
        )
        trained = json.loads(made.to_str())["model"]
        names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
        merges = [tuple(pair) for pair in trained["merges"]] + [("<", "/"), ("s", ">"), ("</", "s>")]
        names += ["</", "s>"]
        vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
        made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
        made.decoder = decoders.Sequence(steps)
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        fast = Fast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in CALLS])
    return fast


@cache
def model(kind: str, window: int | None = None, positions: int = 512) -> Any:
    torch.manual_seed(7)
    shape = {
        "vocab_size": len(tokenizer(kind)),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "initializer_range": 0.25,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    if window is not None:
        return MistralForCausalLM(MistralConfig(sliding_window=window, **shape)).eval()
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


def backend(kind: str = "bytes", window: int | None = None, **options: Any) -> TransformersBackend:
    return TransformersBackend(model(kind, window), tokenizer(kind), **options)


def one(b: TransformersBackend, prompt: Prompt, **params: Any) -> Generation:
    (generation,) = b.generate([prompt], Params(**params))
    return generation


def ids_of(generation: Generation) -> list[int]:
    return [i for part in generation.parts for i in part.ids or ()]


class Scripted(torch.nn.Module):  # type: ignore[misc]
    """A model whose next token is a function of all ids before. It finds them in its cache, where it keeps
    each id as key: a row that is padded, cut or placed wrongly gets another answer."""

    def __init__(
        self, follow: Callable[[tuple[int, ...]], int], vocabulary: int, positions: int | None = 512
    ):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, 1)
        self.config = LlamaConfig(
            vocab_size=vocabulary, num_hidden_layers=1, max_position_embeddings=positions
        )
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.device = torch.device("cpu")
        self.follow = follow
        self.passes = 0
        self.before: Callable[[int], object] = lambda _: None

    def get_input_embeddings(self) -> Any:
        return self.embed

    def seen(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, cache: Any
    ) -> list[tuple[int, ...]]:
        keys, _ = cache.update(input_ids[:, None, :, None].float(), position_ids[:, None, :, None].float(), 0)
        places = cache.layers[0].values[:, 0, :, 0]
        rows = []
        for ids, place, mask in zip(keys[:, 0, :, 0], places, attention_mask.bool(), strict=True):
            assert place[mask].tolist() == list(range(int(mask.sum())))
            assert all(a <= b for a, b in pairwise(mask.tolist()))  # the padding is on the left
            rows.append(tuple(int(i) for i in ids[mask]))
        return rows

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, cache: Any, use_cache: bool
    ) -> Any:
        self.passes += 1
        self.before(self.passes)
        rows = self.seen(input_ids, attention_mask, position_ids, cache)
        return SimpleNamespace(logits=self.scores([self.follow(ids) for ids in rows]), cache=cache)

    def scores(self, following: Sequence[int]) -> Any:
        scores = torch.zeros(len(following), 1, self.embed.num_embeddings)
        for row, token in enumerate(following):
            scores[row, 0, token] = 5.0
        return scores


class Uncached(Scripted):
    """The same without a cache."""

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:  # type: ignore[override]
        self.passes += 1
        self.before(self.passes)
        assert bool(attention_mask.all())
        return SimpleNamespace(logits=self.scores([self.follow(tuple(ids.tolist())) for ids in input_ids]))


def says(kind: str, text: str | Sequence[int], prompt: Prompt = "Q:", **options: Any) -> TransformersBackend:
    """A backend whose model continues the prompt with that text, then with "!" for ever."""
    tok = Tokens(tokenizer(kind))
    start = tuple(tok.encode(prompt))
    whole = tok.encode([Segment("", start), Segment(text)]) if isinstance(text, str) else [*start, *text]
    filler = tok.encode([Segment("", start), Segment("!", data=True)])[-1]
    script = {tuple(whole[:n]): whole[n] for n in range(len(start), len(whole))}
    return TransformersBackend(
        Scripted(lambda ids: script.get(ids, filler), len(tokenizer(kind))), tokenizer(kind), **options
    )
