"""Token guides for calls: against all call texts written out, a pattern, and on real tokenizers."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin_automaton import HARD, MERGES, SMALL, Written, all_calls, span_twin, walk

import pymemstore
from pymemstore import calls
from pymemstore.errors import InvalidArgument
from pymemstore.memllm.automaton import ReadCall, Spans, StoreNames, Vocabulary, WriteCall


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("budget", [None, 30, 9])
@pytest.mark.parametrize(
    ("entities", "relations", "parts"),
    [(["A", "A (band)", "A (band))", "AB"], ["r"], 2), (HARD, ["r", "is (a)"], 1), (["é"], [")", "r"], 2)],
)
def test_masks_are_those_of_all_call_texts(
    write: bool, budget: int | None, entities: list[str], relations: list[str], parts: int
) -> None:
    if write and parts == 2 and len(entities) > 2:
        entities = entities[1:3]
    twin = Written(all_calls(write, entities, relations, parts, True))
    make: Any = WriteCall if write else ReadCall
    call = make(SMALL, entities=entities, relations=relations, max_parts=parts, max_tokens=budget)
    rng = random.Random(5)
    for _ in range(25):
        guide = call()

        def check(text: bytes, count: int, guide: Any = guide) -> None:
            expected = twin.mask(SMALL, text, None if budget is None else max(budget - count, 1))
            assert guide.mask().tolist() == expected, text
            assert guide.to_end == twin.need[text]

        text, count = walk(guide, SMALL, rng, check)
        assert twin.need[text] == 0
        if budget is not None and budget >= twin.need[b""]:
            assert count <= budget


def test_a_prefix_is_what_is_there_already() -> None:
    call = ReadCall(SMALL, entities=["A", "B"], relations=["r"])
    for prefix in ("", "(", "({", "({ MEM_REA", "({MEM_READ(A", "({MEM_READ(A>>r>>)", "({MEM_READ(>>r>>A;"):
        whole, given = call(), call(prefix)
        for byte in prefix.encode():
            whole.advance(1 + byte)
        assert whole.mask().tolist() == given.mask().tolist()
    for wrong in ("x", "({MEM_WRITE", "({MEM_READ(C", "({MEM_READ(A>>r>>)-->B", "({  MEM"):
        with pytest.raises(InvalidArgument, match="no beginning"):
            call(wrong)


def test_the_end_of_a_call() -> None:
    read = ReadCall(SMALL, prefix="({MEM_READ(A>>r>>)--")()
    read.advance(1 + ord(">"))
    assert read.done and read.mask() is None
    read.advance(7)  # anything goes on
    write = WriteCall(SMALL, prefix="({MEM_WRITE-->")()
    write.advance(1 + 256 + MERGES.index(b"})"))
    assert write.done
    assert np.flatnonzero(write.mask()).tolist() == [0]  # EOS
    with pytest.raises(InvalidArgument, match="closed"):
        write.advance(7)
    without = WriteCall(SMALL, prefix="({MEM_WRITE-->", allow_empty=False)()
    assert not without.mask()[1 + ord("}")]
    with pytest.raises(InvalidArgument, match="may not come"):
        without.advance(1 + ord("}"))
    with pytest.raises(InvalidArgument, match="may not come"):
        without.advance(0)


# ---- free text -----------------------------------------------------------------------------------


def free_pattern(write: bool, parts: int) -> Any:
    regex = pytest.importorskip("regex")
    unit = r"(?:[^\\;>{}\x00-\x1f\x7f-\x9f)]|\)(?! *-)|\\[\\;>{) ])"
    last = r"(?:[^\\;>{}\x00-\x1f\x7f-\x9f)]|\)|\\[\\;>{) ])"  # before a delimiter that may begin with `)`
    slot = rf" ?(?!\s){unit}*{last}"
    part = rf"{slot}>>{slot}>>{slot}" if write else rf"(?:{slot}>>{slot}>> ?| ?>>{slot}>>{slot})"
    many = rf"{part}(?:;{part}){{0,{parts - 1}}}"
    if write:
        return regex.compile(rf"\(\{{ ?MEM_WRITE-->(?:{many}| ?)\}}\)")
    return regex.compile(rf"\(\{{ ?MEM_READ\({many}\)-->")


def completions(tail: bytes) -> Iterator[str]:
    """All characters that begin with these bytes."""
    lead = tail[0]
    low = 0x80 if lead < 0xE0 else 0x800 if lead < 0xF0 else 0x10000
    for code in range(low, 0x10000 if lead < 0xF0 else 0x110000):
        if not 0xD800 <= code < 0xE000 and chr(code).encode().startswith(tail):
            yield chr(code)


@functools.cache
def completed(tail: bytes) -> list[str]:
    return list(itertools.islice(completions(tail), 4096))


@pytest.mark.parametrize("write", [False, True])
def test_free_slots_are_those_of_a_pattern(write: bool) -> None:
    pattern = free_pattern(write, 2)

    @functools.cache
    def possible(text: bytes) -> bool:
        for cut in range(4):
            try:
                whole = text[: len(text) - cut].decode()
            except UnicodeDecodeError:
                continue
            if not cut:
                return pattern.fullmatch(whole, partial=True) is not None
            tail = text[len(text) - cut :]
            if tail[0] < 0xC2 or tail[0] > 0xF4:
                return False
            return any(pattern.fullmatch(whole + char, partial=True) for char in completed(tail)[:40])
        return False

    make: Any = WriteCall if write else ReadCall
    call, rng = make(SMALL, max_parts=2, max_tokens=40), random.Random(3)
    tried = 0
    for _ in range(40):
        guide = make(SMALL, max_parts=2, max_name_bytes=100_000)()
        text = b""
        for _ in range(rng.randint(1, 30)):
            mask = guide.mask()
            if rng.random() < 0.2:
                for token in rng.sample(range(1, len(SMALL) - 1), 50):
                    written = SMALL.token(token)
                    assert written
                    tried += 1
                    assert mask[token] == possible(text + written), (text, written)
            # Rather syntax than letters.
            allowed = np.flatnonzero(mask)
            likely = [t for t in allowed if (SMALL.token(t) or b"")[-1:] in b">;)}-( \\"]
            token = int(rng.choice(likely if likely and rng.random() < 0.6 else list(allowed)))
            guide.advance(token)
            text += SMALL.token(token) or b""
            if guide.done:
                break
    assert tried > 2000
    for _ in range(100):
        written, count = walk(call(), SMALL, rng)
        assert pattern.fullmatch(written.decode()) and count <= 40


def test_free_text_has_a_most_length() -> None:
    call, rng = WriteCall(SMALL, max_name_bytes=7, max_parts=1), random.Random(1)
    for _ in range(200):
        text, _ = walk(call(), SMALL, rng)
        body = text[text.index(b">") + 1 : -2]
        for slot in calls._split(body.decode(), ">>") if body.strip() else ():
            assert len(slot[1].encode()) <= 8  # with the space before it


# ---- tokenizers ----------------------------------------------------------------------------------

CORPUS = [
    text
    for name in ("Ana Lima", "Recife", "A (band)", "São Paulo", "Köln", "Bob\\; Co", "日本", "O'Neill & Sons")
    for text in (
        f"She met {name} in Recife. ({{MEM_READ({name}>>born in>>;>>part of>>{name})-->Recife}}) Recife.",
        f"({{MEM_WRITE-->{name}>>born in>>{name};{name}>>part of>>Recife}})",
    )
] * 20


def byte_level(added: bool | None) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # No split at punctuation: merges straddle delimiters.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700,
            initial_alphabet=alphabet,
            show_progress=False,
            special_tokens=["<pad>", "</s>"],
            max_token_length=24,
        ),
    )
    return with_calls(tokenizer, added)


def metaspace(added: bool | None, scheme: str = "always") -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "</s>", "<pad>", *(f"<0x{b:02X}>" for b in range(256))]
    ascii_only = [text for text in CORPUS if text.isascii()]
    tokenizer.train_from_iterator(
        ascii_only,
        trainers.BpeTrainer(
            vocab_size=600, show_progress=False, special_tokens=specials[:3], max_token_length=24
        ),
    )
    layout = json.loads(tokenizer.to_str())
    vocabulary = layout["model"]["vocab"]
    for piece in specials:
        vocabulary.setdefault(piece, len(vocabulary))
    return with_calls(Tokenizer.from_str(json.dumps(layout)), added)


def with_calls(tokenizer: Any, added: bool | None) -> Any:
    """The call tokens as special ones, as plain added ones, or not at all."""
    from tokenizers import AddedToken

    if added is not None:
        marks = [AddedToken(text, special=added, normalized=False) for text in ("({", "})", "-->", ">>")]
        (tokenizer.add_special_tokens if added else tokenizer.add_tokens)(marks)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": lambda: byte_level(None),
    "byte-level, calls special": lambda: byte_level(True),
    "metaspace": lambda: metaspace(None),
    "metaspace, calls added": lambda: metaspace(False),
    "metaspace first, calls special": lambda: metaspace(True, "first"),
}


@functools.cache
def tokenizer_of(kind: str) -> tuple[Any, Vocabulary]:
    pytest.importorskip("tokenizers")
    tokenizer = TOKENIZERS[kind]()
    return tokenizer, Vocabulary.from_tokenizer(tokenizer, eos=(tokenizer.token_to_id("</s>"),), size=1200)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_have_the_bytes_of_the_text(kind: str) -> None:
    tokenizer, vocabulary = tokenizer_of(kind)
    assert vocabulary.complete and len(vocabulary) == 1200
    straddling = 0
    for text in [*CORPUS[:16], "({MEM_WRITE-->\U0001f98a>>born in>>e\u0301\u200d;A>>b>>c})", "a  b\n\tc"]:
        pieces = [vocabulary.token(i) or b"?" for i in tokenizer.encode(text).ids]
        straddling += any(p not in (b">>", b"})") and (b">>" in p or b"})" in p) for p in pieces)
        joined = b"".join(pieces).decode()
        if kind.startswith("metaspace, calls"):  # each stretch between added tokens begins with a space
            for mark in ("({", "})", "-->", ">>"):
                joined = joined.replace(f"{mark} ", mark)
                text = text.replace(f"{mark} ", mark)
        assert joined.removeprefix(" ") == text
    assert straddling or "calls" in kind


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("mode", ["free", "list", "spans", "store"])
def test_random_generations_are_well_formed(kind: str, mode: str, tmp_path: Path) -> None:
    _, vocabulary = tokenizer_of(kind)
    context = "Ana Lima met Bob; Co in Recife (see A (band)) on 3 May, 日本 too.\n\nO'Neill said: \\o/ {x}."
    entities: Any = {"free": None, "list": HARD, "spans": Spans(context), "store": None}[mode]
    relations: Any = None if mode == "free" else ["born in", "part of", "a)-b"]
    with pymemstore.open(tmp_path / "m") as memory:
        memory.add_many([(a, "born in", b) for a, b in itertools.pairwise(HARD)])
        if mode == "store":
            entities, relations = StoreNames(memory), StoreNames(memory, relation=True)
        rng = random.Random(9)
        spans = span_twin(context)
        for make, empty in ((ReadCall, False), (WriteCall, True)):
            call: Any = make(vocabulary, entities=entities, relations=relations, max_tokens=120, max_parts=4)
            for _ in range(100):
                written, count = walk(call("" if rng.random() < 0.5 else "({"), vocabulary, rng)
                text = written.decode()
                text = text if text.startswith("({") else "({" + text
                assert count <= 120
                (event,) = calls.parse(text if empty else text + "})")[:1]
                assert isinstance(event, calls.Write if empty else calls.Read), text
                assert event.errors == ()
                found = event.facts if isinstance(event, calls.Write) else event.queries
                assert (0 if empty else 1) <= len(found) <= 4
                for subject, relation, object in found:
                    for name in (subject, object):
                        if name is None or mode == "free":
                            continue
                        assert name in spans if mode == "spans" else name in HARD
                    assert mode != "list" or relation in relations
                    assert mode != "store" or relation == "born in"


def test_tokenizers_that_can_not_be_followed_are_refused() -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, decoders, models

    for model in (
        models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"),
        models.WordLevel({"a": 0}, unk_token="a"),
    ):
        with pytest.raises(InvalidArgument, match="does not keep the spaces"):
            Vocabulary.from_tokenizer(Tokenizer(model))
    with pytest.raises(InvalidArgument, match="neither byte-level nor"):
        Vocabulary.from_tokenizer(Tokenizer(models.BPE({"a": 0}, [])))
    suffixed = Tokenizer(models.BPE({"a": 0}, [], end_of_word_suffix="</w>"))
    suffixed.decoder = decoders.BPEDecoder()
    with pytest.raises(InvalidArgument, match="suffixes"):
        Vocabulary.from_tokenizer(suffixed)
    with pytest.raises(InvalidArgument, match="not known"):
        Vocabulary.from_tokenizer(object())
    with pytest.raises(InvalidArgument, match="less than"):
        Vocabulary.from_tokenizer(byte_level(None), size=10)


def test_special_tokens_are_never_text() -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import AddedToken

    tokenizer = byte_level(True)
    tokenizer.add_special_tokens(["[INST]"])
    tokenizer.add_tokens([AddedToken("Lima", normalized=False)])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    known = {
        text: vocabulary.token(tokenizer.token_to_id(text))
        for text in ("<pad>", "</s>", "[INST]", "Lima", "({")
    }
    assert known == {"<pad>": None, "</s>": None, "[INST]": None, "Lima": b"Lima", "({": b"({"}


def test_vocabularies_without_all_bytes_leave_out_what_they_can_not_spell() -> None:
    chars = [c.encode() for c in "({MEM_READ)WIT->; \\}abcé"] + [b"ab", "é>>".encode(), "日".encode()[:2]]
    vocabulary = Vocabulary(chars)
    assert not vocabulary.complete
    call, rng = ReadCall(vocabulary, entities=["ab", "é", "ax", "日"], relations=["c"]), random.Random(2)
    seen = set()
    for _ in range(200):
        text, _ = walk(call(), vocabulary, rng)
        (event,) = calls.parse(text.decode() + "})")[:1]
        assert isinstance(event, calls.Read) and not event.errors
        seen |= {name for q in event.queries for name in (q.subject, q.object)}
    assert seen == {"ab", "é", None}
    assert call.unspelled == 2
    with pytest.raises(InvalidArgument, match="can't spell any entity"):
        ReadCall(vocabulary, entities=["x"], relations=["c"])()
    with pytest.raises(InvalidArgument, match="no token for"):
        ReadCall(Vocabulary([b"a"]))
    free = ReadCall(vocabulary)
    for _ in range(50):
        assert walk(free(max_tokens=60), vocabulary, rng)[0].decode()
    context = WriteCall(
        vocabulary, entities=Spans("ab xa é日 ba"), relations=["c"], max_parts=1, allow_empty=False
    )
    named = set()
    for _ in range(200):
        (event,) = calls.parse(walk(context(), vocabulary, rng)[0])
        assert isinstance(event, calls.Write)
        named |= {event.facts[0].subject, event.facts[0].object}
    assert named == {"ab", "é", "ba"}
