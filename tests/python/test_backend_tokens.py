"""Prompts to ids, ids to text, stop strings, kept sequences: what the transformers backend is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymemstore import InvalidArgument
from pymemstore.backends._stops import StopMatcher
from pymemstore.backends.base import Params, Segment

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from backend_models import CALLS, KINDS, ids_of, one, says, tokenizer  # noqa: E402
from tokenizers import (  # noqa: E402
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast as Fast  # noqa: E402

from pymemstore.backends._kv import KVStore  # noqa: E402
from pymemstore.backends._tokens import Tokens  # noqa: E402

# ---- stop strings ------------------------------


def slow_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(st.lists(st.text("ab({", max_size=4)), st.lists(st.text("ab({", min_size=1, max_size=4), max_size=4))
def test_stop_matcher(pieces: list[str], stops: list[str]) -> None:
    matcher, out, fed = StopMatcher(stops), "", ""
    for piece in pieces:
        out += matcher.feed(piece)
        fed += piece
        if matcher.stop is None:
            assert out + matcher.held == fed
            assert not any(
                out.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)) if not matcher.held
            )
            if matcher.held:
                assert any(stop.startswith(matcher.held) for stop in stops)
    out += matcher.finish()
    assert (out, matcher.stop) == slow_stop("".join(pieces), stops)


STOPS = [
    ("a", "Berl", "Berlau"),
    (".", "now", "now. Then"),
    ("👋", "Hi ", "Hi 👋 there"),
    ("👋🏽", "Hi ", "Hi 👋🏽 there"),
    ("🏽", "Hi 👋", "Hi 👋🏽 there"),
    ("é", "caf", "café noir"),
    ("東京", "in ", "in 東京 now"),
    ("京", "in 東", "in 東京 now"),
    ("\n", "one", "one\ntwo"),
    ("\n\n", "one\ntwo", "one\ntwo\n\nthree"),
    (" capital of France", "The", "The capital of France is"),
    ("pital of Fr", "The ca", "The capital of France is"),
    ("({MEM_READ(", "ask ", "ask ({MEM_READ(x"),
    ("({", "ask ", "ask ({MEM_READ(x"),
    ("MEM", "ask ({", "ask ({MEM_READ(x"),
    ("})", "done", "done}) on"),
    (")-->", "q(x", "q(x)-->y"),
    ("-->", "q(x)", "q(x)-->y"),
    ("EOS", "the ", "the EOS EOS"),
    ("x EOS", "the ", "the x EOS"),
    ("\ufffd", "odd ", "odd \ufffd sign"),
    ("Ω≈ç", "a", "aΩ≈ç√"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stop", "left", "text"), STOPS)
def test_stops(kind: str, stop: str, left: str, text: str) -> None:
    eos = tokenizer(kind).eos_token
    stop, text = stop.replace("EOS", eos), text.replace("EOS", eos)
    b = says(kind, text + " and more")
    stream = b.stream("Q:", Params(stop=(stop, "never"), max_tokens=80))
    pieces = list(stream)
    got = stream.generation
    assert (got.text, got.finish, got.stop) == (left, "stop", stop)
    assert "".join(pieces) == left
    assert all(pieces)
    assert "".join(part.text for part in got.parts) == left
    decoder = b._tokens.decoder(b._tokens.encode("Q:"))  # the parts' ids are the model's, up to the stop
    known = [part for part in got.parts if part.ids]
    assert len(got.parts) - len(known) <= 1
    for part in known:
        assert "".join(decoder.push(i) for i in part.ids or ()) == part.text
    whole = b._tokens.encode([Segment("Q:"), Segment(text)])
    begin = len(b._tokens.encode("Q:"))
    assert whole[begin : begin + len(ids_of(got))] == ids_of(got)
    further = next(filter(None, (decoder.push(i) for i in whole[begin + len(ids_of(got)) :])))
    assert len("".join(part.text for part in known) + further) > len(left)  # no further token stands whole


@pytest.mark.parametrize("kind", KINDS)
def test_no_stop_ends_at_eos_or_length(kind: str) -> None:
    eos = tokenizer(kind).eos_token
    b = says(kind, f"Hi 👋 ({{MEM{eos}")
    got = one(b, "Q:", stop=("({MEM_WRITE",), max_tokens=80)
    assert (got.text, got.finish, got.stop) == ("Hi 👋 ({MEM", "eos", None)
    assert got.usage.generated == len(ids_of(got)) + 1
    assert tokenizer(kind).eos_token_id not in ids_of(got)
    cut = one(b, "Q:", max_tokens=got.usage.generated - 2, stop=("({MEM_WRITE",))
    assert cut.finish == "length"
    assert got.text.startswith(cut.text)
    assert ids_of(cut) == ids_of(got)[: len(ids_of(cut))]


def test_length_inside_a_character() -> None:
    emoji = tokenizer("bytes")("👋", add_special_tokens=False)["input_ids"]
    assert len(emoji) > 2
    got = one(says("bytes", [*emoji, 5]), "Q:", max_tokens=len(emoji) - 1)
    assert (got.text, ids_of(got), got.finish) == ("\ufffd", emoji[:-1], "length")


# ---- tokens ------------------------------

NAMES = [
    "</s>",
    "<s>",
    "({MEM_READ(",
    "<|endoftext|>",
    "})",
    "x})-->y",
    "a</s>b",
    "<unk>",
    "Ana Lima",
    "東 京",
    "👋",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", "Who: ", "({MEM_READ("])
def test_data_is_never_control(kind: str, name: str, before: str) -> None:
    tok = Tokens(tokenizer(kind))
    head = tok.encode(before)
    ids = tok.encode([Segment(before), Segment(name, data=True), Segment("})")])
    close = tokenizer(kind).convert_tokens_to_ids("})")
    assert ids[: len(head)] == head
    assert ids[-1] == close
    assert not set(ids[len(head) : -1]) & set(tokenizer(kind).added_tokens_decoder)
    decoder = tok.decoder(head)
    assert "".join(decoder.push(i) for i in ids[len(head) :]) == name + "})"


def test_the_trap_is_one() -> None:
    fast = tokenizer("metaspace")
    split = fast("a})b</s>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert fast.convert_tokens_to_ids("})") in split  # added tokens that aren't special stay
    assert fast.eos_token_id in [token.id for token in fast.backend_tokenizer.model.tokenize("</s>")]


@pytest.mark.parametrize("kind", KINDS)
def test_text_continues(kind: str) -> None:
    """No space appears or vanishes between segments, whatever their kinds; BOS comes once."""
    tok = Tokens(tokenizer(kind))
    pieces = ["The capital", " of", "", " France", " ", "is", "\n", "\n", "Pa", "ris"]
    for data in (0, 1):
        for known in (0, 1):
            prompt = [
                Segment(
                    text,
                    tuple(tok._after(tok._text, text)) if known and i % 3 == 1 else None,
                    bool(data and i % 2),
                )
                for i, text in enumerate(pieces)
            ]
            ids = tok.encode(prompt)
            assert tok.decode(ids[len(tok.start) :]) == "".join(pieces)
            assert ids.count(1) == len(tok.start) or kind == "bytes"
    assert tok.encode([Segment(text) for text in pieces]) == tok.encode("".join(pieces))
    assert tok.encode("".join(pieces)) == list(tokenizer(kind)("".join(pieces))["input_ids"])
    if kind == "metaspace":
        assert tok.start == (1,)
        assert tok.encode("<s>Hi").count(1) == 1
        assert tok.encode([Segment("<s>Hi", tuple(tok.encode("Hi")))]) == tok.encode("Hi")
        assert tok.encode("") == [1]


def other_tokenizer(kind: str) -> Any:
    """Old Llama: a normaliser puts the space before every text; EOS at the end. Unigram with control tokens
    as likely as letters. Words taken whole from the vocabulary, which has the control tokens too."""
    if kind == "prepend":
        old = json.loads(tokenizer("metaspace").backend_tokenizer.to_str())["model"]
        merges = [tuple(pair) for pair in old["merges"]]
        made = Tokenizer(
            models.BPE(old["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = tokenizer("metaspace").backend_tokenizer.decoder
        ends = [("<s>", 1), ("</s>", 2)]
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    elif kind == "unigram":
        pieces = ["▁", "▁of", "Paris", *"abcdefghijklmnoprstuvwTFPMERAD_<>/(){}|-"]
        scores = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **dict.fromkeys(pieces, -3.0)}
        made = Tokenizer(models.Unigram(list(scores.items()), unk_id=0))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        settings = json.loads(tokenizer("bytes").backend_tokenizer.to_str())
        settings["model"]["ignore_merges"] = True
        vocab = settings["model"]["vocab"]
        vocab |= {name: len(vocab) + i for i, name in enumerate(["</s>", "<unk>", "<s>", *CALLS])}
        made = Tokenizer.from_str(json.dumps(settings | {"added_tokens": []}))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast = Fast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in CALLS])
    return fast


@pytest.mark.parametrize("kind", ["prepend", "unigram", "whole words"])
def test_other_tokenizers(kind: str) -> None:
    tok = Tokens(other_tokenizer(kind))
    assert tok.start == ((1,) if kind == "prepend" else ())
    head = tok.encode("The capital ({MEM_READ(")
    control = set(tok._tokenizer.added_tokens_decoder) - {tok._tokenizer.unk_token_id}
    for name in ("</s>", "({MEM_READ(", "-->", "})", "a</s>b", "Paris", " of"):
        ids = tok.encode([Segment("The capital ({MEM_READ("), Segment(name, data=True), Segment("})")])
        assert ids[: len(head)] == head
        assert not control & set(ids[len(head) : -1])
        decoder = tok.decoder(head)
        shown = "".join(decoder.push(i) for i in ids[len(head) :])
        # Behind an added token the first two put a space before a text.
        assert shown == name + "})" or (kind != "whole words" and shown == f" {name}}})")
    # A harmless name has the tokens that it has in a text.
    whole = tok.encode("The capital ({MEM_READ(Paris})")
    assert (
        tok.encode([Segment("The capital ({MEM_READ("), Segment("Paris", data=True), Segment("})")]) == whole
    )


def test_data_that_only_a_control_token_writes() -> None:
    made = Tokenizer(models.BPE({"a": 0, "{": 1, "<unk>": 2}, [], unk_token="<unk>"))
    fast = Fast(tokenizer_object=made, unk_token="<unk>")
    fast.add_tokens([AddedToken("{", special=False)])
    tok = Tokens(fast)
    assert tok.encode("a{a") == [0, 1, 0]
    with pytest.raises(InvalidArgument, match="as a control token only"):
        tok.encode([Segment("a"), Segment("{", data=True)])


# ---- the kept sequences ------------------------------


def layers(n: int) -> Any:
    return [(torch.zeros(1, 1, n, 1), torch.zeros(1, 1, n, 1))]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), max_size=12),
    st.lists(st.integers(0, 2), min_size=1),
)
def test_store_finds_the_longest_beginning(kept: list[list[int]], ids: list[int]) -> None:
    store = KVStore(100, 1000)
    for entry in kept:
        store.put(entry, layers(len(entry)))
    want = max(
        (sum(1 for n in range(1, len(ids)) if entry[:n] == ids[:n] and n <= len(entry)) for entry in kept),
        default=0,
    )
    length, found = store.find(ids)
    assert length == want
    assert not found or found[0][0].shape[2] >= length
    assert not any(a != b and a == b[: len(a)] for a, _ in lists(store) for b, _ in lists(store))


def lists(store: KVStore) -> list[tuple[list[int], Any]]:
    return [(entry.tolist(), held) for entry, held in store._kept]


def test_store_is_bounded() -> None:
    store = KVStore(3, 20)
    for first in range(5):
        store.put([first, 1, 2, 3], layers(4))
    assert [entry[0] for entry, _ in lists(store)] == [2, 3, 4]
    assert store.find([2, 1, 9])[0] == 2  # used: the next to go is 3
    store.put([7] * 8, layers(8))
    assert [entry[0] for entry, _ in lists(store)] == [4, 2, 7]
    store.put([8] * 18, layers(18))
    assert (len(store), store.tokens) == (1, 18)
    store.put([9] * 21, layers(21))
    assert store.find([9, 9, 9])[0] == 0
