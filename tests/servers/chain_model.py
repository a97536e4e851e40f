"""A model folder whose greedy text is known beforehand, for runs against real servers.

A Llama of one layer that adds nothing, with one-hot embeddings and a table as output matrix: each token
has one next token. Its tokenizer has the 256 bytes, two marks and `<s>`, `</s>`:

    after "a"  "bcdefg" and the end       after "m"  "no", the mark `({` (not special), "pqr" and the end
    after "A"  "BC", the mark `<call>` (special), "DEF" and the end
    after "1"  "234567891..." for ever    after "u"  "évwuévwu..." for ever (two bytes, two tokens for the é)
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

__all__ = ["CALL", "CASES", "MARK", "chain_model"]

CALL = "<call>"  # a special token: servers strip it from text
MARK = "({"  # an added token that is not special
BEGIN, END = "<s>", "</s>"
# A prompt, params and (text, finish, stop), where special tokens stay in the text.
CASES: list[tuple[str, dict[str, Any], tuple[str, str, str | None]]] = [
    ("a", {}, ("bcdefg", "eos", None)),
    ("a", {"stop": (END,)}, ("bcdefg", "stop", END)),
    ("A", {}, ("BC<call>DEF", "eos", None)),
    ("A", {"stop": (CALL,)}, ("BC", "stop", CALL)),
    ("A", {"stop": ("l>D",)}, ("BC<cal", "stop", "l>D")),
    ("m", {"stop": (MARK,)}, ("no", "stop", MARK)),
    ("m", {"stop": (MARK, "o({")}, ("n", "stop", "o({")),
    ("m", {"stop": ("{", "(")}, ("no", "stop", "(")),
    ("u", {"stop": ("é",)}, ("", "stop", "é")),
    ("1", {"max_tokens": 4}, ("2345", "length", None)),
    ("1", {"max_tokens": 4, "stop": ("56",)}, ("2345", "length", None)),
    ("1", {"max_tokens": 4, "stop": ("5",)}, ("234", "stop", "5")),
]
_CHAINS: list[list[str | int]] = [
    [*"abcdefg", END],
    [*"ABC", CALL, *"DEF", END],
    [*"mno", MARK, *"pqr", END],
    [*"1234567891"],
    ["u", 0xC3, 0xA9, "v", "w", "u"],
]


def _bytes_to_chars() -> dict[int, str]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in plain}
    for n, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + n)
    return chars


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {char: i for i, char in enumerate(_bytes_to_chars()[b] for b in range(256))}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in (BEGIN, END, CALL)])
    inner.add_tokens([AddedToken(MARK, special=False, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=BEGIN, eos_token=END, pad_token=END, model_max_length=512
    )


def chain_model(folder: Path) -> Path:
    """Writes the model into `folder`; the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    size = 288
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    following = torch.full((size,), tokenizer.eos_token_id)
    for chain in _CHAINS:
        ids = [t if isinstance(t, int) else tokenizer.convert_tokens_to_ids(t) for t in chain]
        for one, after in itertools.pairwise(ids):
            following[one] = after
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight[following, torch.arange(size)] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    print(json.dumps(str(chain_model(Path(sys.argv[1])))))
