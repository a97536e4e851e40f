"""The transformers backend: against `generate`, full forward passes, and a model that plays a script."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymemstore import BackendError, InvalidArgument
from pymemstore.backends.base import Generation, Params, Prompt, Segment

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from backend_models import (  # noqa: E402
    KINDS,
    Scripted,
    Uncached,
    backend,
    ids_of,
    model,
    one,
    says,
    tokenizer,
)

from pymemstore.backends._kv import Decoding  # noqa: E402
from pymemstore.backends.transformers import TransformersBackend  # noqa: E402


def test_bad_prompts() -> None:
    b = backend(cache_sequences=2)
    with pytest.raises(InvalidArgument, match="prompt 1 is empty"):
        b.generate(["a", ""], Params())
    with pytest.raises(InvalidArgument, match="surrogate"):
        one(b, "a\udc80")
    with pytest.raises(InvalidArgument, match=r"prompt 0: token 99999 is not among the model's \d+"):
        one(b, [Segment("x", (99999,))])
    with pytest.raises(InvalidArgument, match="prompt 0 has 600 tokens and the model 512 positions"):
        one(b, [Segment("x", (5,) * 600)])
    with pytest.raises(InvalidArgument, match="512 positions"):
        one(b, [Segment("x", (5,) * 512)])
    got = one(b, [Segment("x", (5,) * 509)], max_tokens=50)
    assert (got.finish, got.usage.generated) == ("length", 3)
    for wrong in ({"grammar": "root ::= [a]"}, {"extra": {"top_k": 5}}):
        with pytest.raises(InvalidArgument):
            one(b, "a", **wrong)
    with pytest.raises(InvalidArgument, match="cache_tokens"):
        backend(cache_tokens=-1)
    assert b.generate([], Params()) == []


# ---- against the model's own generate, and a full forward pass ------------------------------

TEXT = "The capital of France is Paris, and the river Spree flows through Berlin. "


def greedy(kind: str, ids: Sequence[int], n: int, window: int | None = None) -> list[int]:
    given = torch.tensor([list(ids)])
    out = model(kind, window).generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=n,
        do_sample=False,
        eos_token_id=[],
        pad_token_id=0,
    )
    return [int(i) for i in out[0, len(ids) :]]


def scratch(kind: str, prompt: Prompt, n: int, window: int | None = None) -> Generation:
    return one(backend(kind, window, cache_sequences=0), prompt, max_tokens=n, logprobs=True)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_generate(kind: str) -> None:
    b = backend(kind)
    for prompt in ("The", TEXT, TEXT + "({MEM_READ(Paris"):
        want = greedy(kind, b._tokens.encode(prompt), 24)
        if b.eos & set(want):
            want = want[: min(want.index(i) for i in b.eos if i in want)]
        assert len(set(want)) > 5
        got = one(b, prompt, max_tokens=24)
        assert ids_of(got) == want
        assert got == one(b, prompt, max_tokens=24) or got.usage.computed != 1
        assert one(b, prompt, max_tokens=24).usage.computed == 1


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_a_full_pass(kind: str) -> None:
    b = backend(kind)
    one(b, TEXT, max_tokens=3)
    got = one(b, TEXT + "({", max_tokens=12, logprobs=True)
    prompt, new = b._tokens.encode(TEXT + "({"), ids_of(got)
    with torch.inference_mode():
        full = model(kind)(input_ids=torch.tensor([prompt + new])).logits[0].log_softmax(-1)
    want = [float(full[len(prompt) - 1 + i, token]) for i, token in enumerate(new)]
    assert got.logprobs is not None
    assert len(got.logprobs) == got.usage.generated
    np.testing.assert_allclose(got.logprobs[: len(want)], want, atol=1e-4)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_reuse_after_edits(kind: str, window: int | None) -> None:
    """A call is spliced into the middle of what was written, and taken out again."""
    b = backend(kind, window)
    encode = b._tokens.encode
    prompt = Segment(TEXT)
    first = one(b, [prompt], max_tokens=10)
    n = len(encode([prompt]))
    assert (first.usage.prompt, first.usage.computed) == (n, n)
    half = Segment(first.text[:0], ids_of(first)[:5] and tuple(ids_of(first)[:5]))
    rest = Segment("", tuple(ids_of(first)[5:]))
    call = (Segment("({MEM_READ("), Segment("Paris</s>", data=True), Segment("})"))
    edits: list[tuple[list[Segment], int]] = [
        ([prompt, half, *call, rest], n + 5),
        ([prompt, half, rest], n + 9),  # the last token's keys are not computed yet
        ([prompt, half, *call], len(encode([prompt, half, *call])) - 1),
        ([Segment("Other text: "), prompt], len(encode("")) if kind == "metaspace" else 0),
    ]
    for edited, shared in edits:
        ids = encode(edited)
        got = one(b, edited, max_tokens=8, logprobs=True)
        want = scratch(kind, edited, 8, window)
        assert got.usage.computed == len(ids) - min(shared, len(ids) - 1), edited
        assert (got.text, got.parts, got.finish) == (want.text, want.parts, want.finish)
        np.testing.assert_allclose(got.logprobs or (), want.logprobs or (), atol=1e-4)
        made = greedy(kind, ids, len(ids_of(got)), window)
        assert ids_of(got) == made


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_single(kind: str, window: int | None) -> None:
    b = backend(kind, window)
    prompts = [TEXT * n + tail for n, tail in ((1, "Ana"), (3, ""), (0, "What"), (2, "({"), (1, "Where? "))]
    alone = [scratch(kind, prompt, 16, window) for prompt in prompts]
    early = alone[1].text[5:8]
    alone = [
        one(backend(kind, window, cache_sequences=0), p, max_tokens=16, logprobs=True, stop=(early,))
        for p in prompts
    ]
    lengths = {got.usage.generated for got in alone}
    assert len(lengths) > 1  # one row ends before the others
    longest = max(len(b._tokens.encode(p)) for p in prompts)
    for turn in range(3):
        together = b.generate(prompts, Params(max_tokens=16, logprobs=True, stop=(early,)))
        for got, want, prompt in zip(together, alone, prompts, strict=True):
            assert (got.text, got.parts, got.finish, got.stop) == (
                want.text,
                want.parts,
                want.finish,
                want.stop,
            )
            np.testing.assert_allclose(got.logprobs or (), want.logprobs or (), atol=1e-4)
            needs = longest if turn == 0 else 1
            assert got.usage.computed == min(len(b._tokens.encode(prompt)), needs)
    again = one(b, [Segment(prompts[3]), *alone[3].parts], max_tokens=4)
    assert again.usage.computed == 1
    mixed = [prompts[4] + " to the sea", prompts[0], "Lisbon"]
    got_mixed = b.generate(mixed, Params(max_tokens=9))
    for got, prompt in zip(got_mixed, mixed, strict=True):
        assert got.parts == scratch(kind, prompt, 9, window).parts


def test_window_is_not_ignored() -> None:
    wide = scratch("bytes", TEXT, 12, 400)
    assert scratch("bytes", TEXT, 12, 8).parts != wide.parts


@pytest.mark.parametrize("made", [Scripted, Uncached])
def test_case_batch_stop(made: type[Scripted], shared_case: Callable[[str], Path]) -> None:
    case = json.loads(shared_case("loop/batch_stop.json").read_text())
    prompts = [[1, 3], [2, 4], case["prompt_has_stop_token"]["prompt"]]
    assert [len(prompt) for prompt in prompts] == case["prompt_lengths"]
    script = {
        tuple(prompt + row[:n]): row[n]
        for prompt, row in zip(prompts, case["rows"], strict=True)
        for n in range(len(row))
    }
    fake = made(lambda ids: script[ids], 30)
    fake.generation_config.eos_token_id = [case["stop"]]
    b = TransformersBackend(fake, tokenizer("bytes"))
    for _ in range(2):
        together = b.generate([[Segment("", tuple(prompt))] for prompt in prompts], Params(max_tokens=9))
        assert [got.usage.generated for got in together] == case["expect_lengths"]
        assert [ids_of(got) for got in together] == [row[:-1] for row in case["rows"]]
        assert {got.finish for got in together} == {"eos"}


def test_kept_sequences_are_bounded() -> None:
    b = backend(cache_sequences=2, cache_tokens=60)
    b.generate(["The river", "Ana Lima was", "What is"], Params(max_tokens=5))
    assert (len(b._store), b._store.tokens <= 60) == (2, True)
    b.close()
    assert len(b._store) == 0
    assert one(b, "The river", max_tokens=2).usage.computed == len(b._tokens.encode("The river"))


def test_a_view_keeps_no_batch_alive() -> None:
    b = backend()
    b.generate([TEXT * 3, "Ana"], Params(max_tokens=4))
    for ids, held in b._store._kept:
        for pair in held:
            assert all(t.untyped_storage().nbytes() == len(ids) * 2 * 16 * 4 for t in pair)


# ---- bans, guides, choosers, sampling ------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_ban(kind: str) -> None:
    b = backend(kind)
    free = one(b, TEXT, max_tokens=30)
    letter = next(c for c in free.text if c.isalpha())
    for banned in ((letter,), (free.text[4:7], free.text[9:10]), ("({", "👋")):
        got = one(b, TEXT, max_tokens=30, ban=banned)
        assert not any(text in got.text for text in banned)
        tokens, ids = b._tokens, b._tokens.encode(TEXT)
        for place, token in enumerate(ids_of(got)):  # each is the best whose text completes none
            with torch.inference_mode():
                scores = model(kind)(input_ids=torch.tensor([ids + ids_of(got)[:place]])).logits[0, -1]
            for better in scores.argsort(descending=True).tolist():
                decoder = tokens.decoder(ids)
                text = "".join(decoder.push(i) for i in ids_of(got)[:place])
                if better in b.eos or not any(bad in text + decoder.peek(better) for bad in banned):
                    break
            assert better == token
    assert one(b, TEXT, max_tokens=30, ban=("\x00\x01",)).parts == free.parts


class Only:
    """A guide that allows the ids of its steps, in a mask that is shorter than the vocabulary."""

    def __init__(self, steps: Sequence[Sequence[int] | None]) -> None:
        self.steps, self.taken = list(steps), list[int]()

    def mask(self) -> Any:
        allowed = self.steps[len(self.taken)]
        if allowed is None:
            return None
        mask = np.zeros(max(allowed, default=0) + 1, bool)
        mask[list(allowed)] = True
        return mask

    def advance(self, token: int) -> None:
        self.taken.append(token)


def test_guides() -> None:
    b, made = backend(), list[Only]()

    def guide() -> Only:
        made.append(Only([[3 + len(made)], [40, 41], None, [300, 200, 100]]))
        return made[-1]

    got = b.generate([TEXT, "Ana"], Params(max_tokens=4, guide=guide, logprobs=True))
    assert [g.taken for g in made] == [ids_of(row) for row in got]
    for row, first in zip(got, (3, 4), strict=True):
        a, second, _, last = ids_of(row)
        assert (a, second in (40, 41), last in (100, 200, 300)) == (first, True, True)
    prompt = b._tokens.encode(TEXT)
    with torch.inference_mode():
        full = model("bytes")(input_ids=torch.tensor([[*prompt, 3]])).logits[0, -2:].log_softmax(-1)
    assert ids_of(got[0])[1] == (40 if full[1, 40] >= full[1, 41] else 41)
    assert (got[0].logprobs or ())[0] == pytest.approx(float(full[0, 3]), abs=1e-4)  # before the mask
    with pytest.raises(InvalidArgument, match="row 0: its guide allows none"):
        one(b, TEXT, guide=lambda: Only([[]]))
    eos = Only([[min(b.eos)]])
    assert one(b, TEXT, guide=lambda: eos).finish == "eos"
    assert eos.taken == []


class Every:
    """A chooser that takes the second best and ends row r after r + 2 tokens; row 1 keeps one of them."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]

    def choose(self, rows: Sequence[int], logits: Any) -> list[int]:
        chosen = [int(i) for i in logits.topk(2).indices[:, 1]]
        for row, token in zip(rows, chosen, strict=True):
            self.rows[row].append(token)
        return chosen

    def done(self, row: int) -> bool:
        return len(self.rows[row]) >= row + 2

    def kept(self, row: int) -> int | None:
        return 1 if row == 1 else None


def test_choosers() -> None:
    b, made = backend(), list[Every]()

    def chooser(rows: int) -> Every:
        made.append(Every(rows))
        return made[-1]

    prompts = [TEXT, "Ana", "What is the"]
    got = b.generate(prompts, Params(chooser=chooser, max_tokens=9))
    assert [len(row) for row in made[0].rows] == [2, 3, 4]
    assert [ids_of(row) for row in got] == [made[0].rows[0], made[0].rows[1][:1], made[0].rows[2]]
    assert [(row.finish, row.stop, row.usage.generated) for row in got] == [
        ("stop", None, n) for n in (2, 3, 4)
    ]
    short = b.generate(prompts, Params(chooser=chooser, max_tokens=2))
    assert [row.finish for row in short] == ["stop", "length", "length"]
    assert len(ids_of(short[1])) == 1
    stream = b.stream(prompts[0], Params(chooser=chooser))
    assert "".join(stream) == stream.generation.text == got[0].text
    for wrong in ({"ban": ("x",)}, {"temperature": 0.5}):
        with pytest.raises(InvalidArgument, match="chooser"):
            one(b, "a", chooser=chooser, **wrong)


def test_ties_go_to_the_lower_id() -> None:
    fake = Scripted(lambda _: 7, 30)
    fake.scores = lambda following: torch.ones(len(following), 1, 30)  # type: ignore[method-assign]
    b = TransformersBackend(fake, tokenizer("bytes"))
    assert (
        ids_of(one(b, [Segment("", (5,))], max_tokens=2)) == [min(set(range(30)) - b.eos)] * 2 or 0 in b.eos
    )


def test_sampling() -> None:
    b = backend()
    params = {"max_tokens": 12, "temperature": 1.5, "ban": ("e",)}
    runs = [one(b, TEXT, seed=seed, **params) for seed in (1, 1, 2, 3)]
    assert runs[0].parts == runs[1].parts
    assert len({run.parts for run in runs}) == 3
    assert not any("e" in run.text for run in runs)
    batch = b.generate([TEXT, TEXT, TEXT], Params(seed=1, **params))
    assert [row.parts for row in batch] == [runs[0].parts, runs[2].parts, runs[3].parts]
    assert one(b, TEXT, max_tokens=9, temperature=1e-30, seed=4).parts == one(b, TEXT, max_tokens=9).parts
    rows = b.generate([TEXT] * 400, Params(max_tokens=1, temperature=1.5, seed=0))
    counts = np.bincount([ids_of(row)[0] for row in rows if row.parts], minlength=len(tokenizer("bytes")))
    with torch.inference_mode():
        scores = model("bytes")(input_ids=torch.tensor([b._tokens.encode(TEXT)])).logits[0, -1]
    want = (scores / 1.5).softmax(-1).numpy()
    want[list(b.eos)] = 0
    assert (abs(counts / 400 - want) < 4 * np.sqrt(want / 400) + 0.006).all()
    assert want.max() > 0.02


# ---- streams, threads, interrupts ------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_streams(kind: str) -> None:
    b = backend(kind)
    params = Params(max_tokens=30, stop=("zzzz", "({MEM"))
    stream = b.stream(TEXT, params)
    with pytest.raises(InvalidArgument, match="has not ended"):
        stream.generation  # noqa: B018
    pieces = list(stream)
    stream.close()
    assert len(pieces) > 5
    assert all(pieces)
    assert "".join(pieces) == stream.generation.text == one(b, TEXT, max_tokens=30, stop=params.stop).text
    left, right = b.stream(TEXT, params), b.stream("Ana Lima", params)  # side by side
    woven = [next(left), next(right), next(left), next(right)]
    assert woven[0] + woven[2] + "".join(left) == stream.generation.text
    assert woven[1] + woven[3] + "".join(right) == one(b, "Ana Lima", max_tokens=30, stop=params.stop).text


def test_stream_closed_early() -> None:
    b = backend()
    stream = b.stream(TEXT + "x", Params(max_tokens=30))
    piece = next(stream)
    stream.close()
    stream.close()
    assert list(stream) == []
    with pytest.raises(InvalidArgument, match="ended early"):
        stream.generation  # noqa: B018
    again = one(b, TEXT + "x", max_tokens=30)
    assert again.text.startswith(piece)
    assert again.usage.computed == 1  # what was computed before is kept


def test_async() -> None:
    b = backend()
    want = one(b, TEXT, max_tokens=20)

    async def main() -> None:
        texts, (batch, streamed) = (
            [TEXT, "Ana"],
            await asyncio.gather(b.agenerate([TEXT, "Ana"], Params(max_tokens=20)), joined()),
        )
        assert batch[0].parts == want.parts
        assert batch[1].parts == one(b, texts[1], max_tokens=20).parts
        assert streamed == want.text

    async def joined() -> str:
        stream = b.astream(TEXT, Params(max_tokens=20))
        text = "".join([piece async for piece in stream])
        assert stream.generation.parts == want.parts
        await stream.aclose()
        return text

    asyncio.run(main())
    b.close()


def test_async_cancel_ends_between_tokens() -> None:
    b = says("bytes", "x" * 10)
    fake = b._model
    began, go_on = threading.Event(), threading.Event()

    def before(n: int) -> None:
        if n == 3:
            began.set()
            assert go_on.wait(30)

    async def main(stream: bool) -> None:
        fake.passes, fake.before = 0, before
        began.clear()
        go_on.clear()
        params = Params(max_tokens=400, stop=("never" * 99, "x" * 200, "!" * 300))
        if stream:
            running = b.astream("Q:", params)
            task = asyncio.ensure_future(running.__anext__())
        else:
            task = asyncio.ensure_future(b.agenerate(["Q:"], params))
        while not began.is_set():  # the event loop runs while the model computes
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        if stream:
            await running.aclose()
        (after,) = await b.agenerate(["Q:"], Params(max_tokens=3))
        assert after.text == "xxx"[: len(after.text)]

    for stream in (True, False):
        asyncio.run(main(stream))
        assert fake.passes < 10


def test_errors_leave_it_usable() -> None:
    b = backend()
    want = one(b, TEXT, max_tokens=12)
    calls, layer = 0, b._model.model.layers[1]

    def failing(error: type[BaseException]) -> Any:
        def hook(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise error("stopped inside")

        return layer.register_forward_pre_hook(hook)

    for error, expected in ((KeyboardInterrupt, KeyboardInterrupt), (RuntimeError, BackendError)):
        calls = 0
        hook = failing(error)
        try:
            with pytest.raises(expected) as caught:
                one(b, TEXT, max_tokens=12)
        finally:
            hook.remove()
        if expected is BackendError:
            assert want.text.startswith(caught.value.text)
            assert caught.value.text
        assert one(b, TEXT, max_tokens=12).parts == want.parts
        assert b.generate([TEXT, "Ana"], Params(max_tokens=12))[0].parts == want.parts


def test_scores_that_are_no_numbers() -> None:
    fake = Scripted(lambda _: 7, 30)
    fake.scores = lambda following: torch.full((len(following), 1, 30), torch.nan)  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="no numbers"):
        one(TransformersBackend(fake, tokenizer("bytes")), [Segment("", (5,))])


# ---- other models ------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, tmp_path: Path) -> None:
    model("bytes").save_pretrained(tmp_path)
    tokenizer("bytes").save_pretrained(tmp_path)
    b = TransformersBackend.load(tmp_path, dtype=dtype, device="cpu")
    assert b._model.dtype == getattr(torch, dtype)
    assert b.can == {"ban", "guide", "chooser", "logprobs", "data"}
    assert b.name == str(tmp_path)
    first = one(b, TEXT, max_tokens=8)
    assert one(b, TEXT, max_tokens=8).parts == first.parts
    got = b.generate([TEXT, "Ana"], Params(max_tokens=8, logprobs=True))
    assert len(got[0].logprobs or ()) == got[0].usage.generated
    with pytest.raises(InvalidArgument, match="can't load model"):
        TransformersBackend.load(tmp_path / "nothing")


def test_recurrent_model_computes_all() -> None:
    torch.manual_seed(3)
    config = transformers.MambaConfig(
        vocab_size=len(tokenizer("bytes")),
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        eos_token_id=None,
    )
    b = TransformersBackend(transformers.MambaForCausalLM(config).eval(), tokenizer("bytes"))
    assert not b._forward.plain
    prompts = [TEXT, "Ana Lima"]
    for _ in range(2):
        for got, prompt in zip(b.generate(prompts, Params(max_tokens=6)), prompts, strict=True):
            ids = b._tokens.encode(prompt)
            assert got.usage.computed == len(ids)
            for token in ids_of(got):
                with torch.inference_mode():
                    assert int(b._model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
                ids.append(token)
    assert len(b._store) == 0


def test_decoding_cuts_padding_that_no_row_needs() -> None:
    b = backend()
    with torch.inference_mode():
        decoding = Decoding(b._forward, [[5] * 40, [6] * 7], b._store)
        decoding.start()
        decoding.leave([0])
        assert decoding._cache.layers[0].keys.shape == (1, 2, 7, 16)
