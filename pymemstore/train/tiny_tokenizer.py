"""The tiny model's tokenizer: BPE as Llama's, in which each word has its leading space wherever it stands."""

from __future__ import annotations

from typing import Any

from .tiny_world import SYLLABLES, words

__all__ = ["BOS", "CALL_TOKENS", "EOS", "PAD", "build"]

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
# Not special: decoding keeps them, as the loops need.
CALL_TOKENS = ("({", "})", "-->", ">>", ";", "MEM_READ(", "MEM_WRITE", "USER_ST", "USER_END")
_SPACE = "▁"


def _model() -> Any:
    from tokenizers import models

    printable = [chr(i) for i in range(33, 127)]
    letters = [c for c in printable if c.isalpha()]
    tokens = [PAD, BOS, EOS, *CALL_TOKENS, *(f"<0x{i:02X}>" for i in range(256)), _SPACE, *printable]
    merges: list[tuple[str, str]] = []

    def merge(a: str, b: str) -> None:
        merges.append((a, b))
        tokens.append(a + b)

    for c in [*letters, "(", ")"]:
        merge(_SPACE, c)
    for syllable in SYLLABLES:
        merge(_SPACE + syllable[0].upper(), syllable[1])
    for syllable in SYLLABLES:
        merge(*syllable)
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    for word in words():
        vocabulary.setdefault(_SPACE + word, len(vocabulary))
    # Whole words need no chain of merges: a word of the vocabulary is taken as it is.
    return models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, ignore_merges=True)


def build() -> Any:
    """The tokenizer, a `PreTrainedTokenizerFast`. The same in every run.

    Any text can be encoded (byte fallback). `decode(encode(text))` is the text but for: one space at its
    beginning, which is lost; the character U+2581, which comes back as a space; a space that is added after
    a call token (`CALL_TOKENS`) where none follows and text does; `<s>`, `</s>` and `<pad>` in the text,
    which are control tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(_model())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=True),
            pre_tokenizers.Split(Regex(rf"{_SPACE}?\w+|{_SPACE}?[^\w{_SPACE}]|{_SPACE}"), "isolated"),
        ]
    )
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, BOS, EOS)])
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t in CALL_TOKENS])
    raw.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, raw.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
