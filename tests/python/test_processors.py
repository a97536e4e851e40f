"""Late stopping and guides through transformers' `generate`, against the slow twin."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin_late_stopping import CLOSING, EOS, INF, Stream, stream_of, twin

from pymemstore.errors import InvalidArgument

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def processors() -> Any:
    pytest.importorskip("transformers")
    from pymemstore.memllm import processors

    return processors


@pytest.fixture(scope="module")
def model() -> Any:
    """A small Llama with random weights whose best token is often CLOSING, sometimes EOS."""
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=0, bos_token_id=2,
        eos_token_id=EOS,
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.lm_head.weight.mul_(40)
        made.lm_head.weight[CLOSING].mul_(2.5)
        made.lm_head.weight[0].zero_()
    return made


def stream_from(model: Any, prompt: Sequence[int]) -> Stream:
    """The model on prompt and prefix, each time anew, alone and without cache."""

    def scores(prefix: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([[*prompt, *prefix]])).logits[0, -1].float().numpy()

    return scores


def generate(model: Any, prompts: Sequence[Sequence[int]], *processors: Any, **options: Any) -> Any:
    """`model.generate` on a batch, padded on the left."""
    from transformers import LogitsProcessorList

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": EOS, "pad_token_id": 0} | options
    return model.generate(
        ids, attention_mask=attention, logits_processor=LogitsProcessorList(processors), **options
    )


def prompts_of(seed: int, count: int, width: tuple[int, int]) -> list[list[int]]:
    """Some hold the closing token."""
    rng = random.Random(seed)
    return [[rng.choice([CLOSING, *range(4, 64)]) for _ in range(rng.randint(*width))] for _ in range(count)]


@pytest.mark.parametrize("width", [(4, 4), (1, 9)], ids=["no padding", "left padding"])
def test_generate_in_batches_equals_the_twin(processors: Any, model: Any, width: tuple[int, int]) -> None:
    reasons = set()
    processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS], patience=2)  # one for all
    for seed in range(6):
        prompts = prompts_of(seed, 8, width)
        kept = processor.cut(generate(model, prompts, processor))
        together = processor.results
        for row, prompt in enumerate(prompts):
            expected = twin(stream_from(model, prompt), 24, 2)
            assert processor.cut(generate(model, [prompt], processor)) == [kept[row]]
            for result in (together[row], processor.results[0]):
                assert (result.tokens, result.cut, result.reason) == (
                    expected.tokens,
                    expected.cut,
                    expected.reason,
                )
                assert [p.position for p in result.points] == [p.position for p in expected.points]
                assert np.allclose(
                    [p.score for p in result.points], [p.score for p in expected.points], atol=1e-4
                )
            assert kept[row] == list(expected.tokens)
            reasons.add((expected.reason, expected.cut is None))
    assert len(reasons) >= 4, reasons


def test_published_average_in_batches(processors: Any, model: Any) -> None:
    prompts = prompts_of(9, 8, (2, 9))
    processor = processors.LateStoppingLogitsProcessor(
        CLOSING, [EOS], patience=3, average="reference", prompt_tokens=[len(p) for p in prompts]
    )
    kept = processor.cut(generate(model, prompts, processor))
    expected = [twin(stream_from(model, p), 24, 3, len(p)) for p in prompts]
    assert kept == [list(result.tokens) for result in expected]
    assert kept != [list(twin(stream_from(model, p), 24, 3).tokens) for p in prompts]
    with pytest.raises(InvalidArgument, match="8 numbers for 2 rows"):
        generate(model, prompts[:2], processor)


def test_processor_step_by_step_equals_the_twin(processors: Any) -> None:
    """Random streams through a loop as `generate` runs it, one object for all; `end` is the closing token."""
    processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS], patience=3, end=CLOSING)
    for seed in range(150):
        streams = [stream_of(seed * 100 + row) for row in range(1 + seed % 6)]
        prompts = torch.tensor(prompts_of(seed, 1, (2, 5)) * len(streams))
        ids, width, live = prompts, prompts.shape[1], torch.ones(len(streams), dtype=torch.bool)
        while live.any() and ids.shape[1] < width + 30:
            logits = np.stack([s(t) for s, t in zip(streams, ids[:, width:].tolist(), strict=True)])
            chosen = processor(ids, torch.tensor(logits)).argmax(-1)
            chosen = torch.where(live, chosen, 0)
            live &= (chosen != EOS) & (chosen != CLOSING)
            ids = torch.cat([ids, chosen[:, None]], 1)
        kept = processor.cut(ids)
        expected = [twin(s, 30, 3) for s in streams]
        assert processor.results == expected
        assert kept == [list(result.tokens) for result in expected]


def test_rows_that_end_get_the_end_token(processors: Any, model: Any) -> None:
    prompts = prompts_of(1, 8, (3, 3))
    processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS], patience=1)
    rows = generate(model, prompts, processor)[:, 3:].tolist()
    processor.cut(torch.tensor([[*p, *row] for p, row in zip(prompts, rows, strict=True)]))
    ended = 0
    for row, result in zip(rows, processor.results, strict=True):
        if result.reason == "patience":
            place = result.points[-1].position
            assert row[place] == EOS and not any(row[place + 1 :])
            ended += place + 1 < len(row)
    assert ended


def test_beams_sampling_and_others_behind_are_refused(processors: Any, model: Any) -> None:
    prompts = prompts_of(2, 4, (3, 6))
    for options in (
        {"num_beams": 3},
        {"do_sample": True, "temperature": 5.0},
        {"num_beams": 2, "do_sample": True},
    ):
        processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS])
        torch.manual_seed(0)
        with pytest.raises(InvalidArgument, match=r"greedy|beams"):
            generate(model, prompts, processor, **options)
    processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS])
    torch.manual_seed(1)
    sampled = generate(model, prompts, processor, do_sample=True, temperature=50.0, max_new_tokens=1)
    with pytest.raises(InvalidArgument, match="greedy"):
        processor.cut(sampled)  # the last token is seen only here
    guide = processors.GuideLogitsProcessor(lambda row: Script([EOS] if row else [5, 6, 7]), [EOS])
    with pytest.raises(InvalidArgument, match="know all EOS ids"):
        generate(model, prompts, guide, processors.LateStoppingLogitsProcessor(CLOSING))
    guide = processors.GuideLogitsProcessor(lambda row: Script([5, 6, 7]), [EOS])
    with pytest.raises(InvalidArgument, match="beams"):
        generate(model, prompts, guide, num_beams=3)


def test_state_does_not_leak(processors: Any, model: Any) -> None:
    first, other = prompts_of(3, 3, (4, 4)), prompts_of(4, 3, (4, 4))
    processor = processors.LateStoppingLogitsProcessor(CLOSING, [EOS], patience=2)

    def fresh(prompts: Any) -> Any:
        new = processors.LateStoppingLogitsProcessor(CLOSING, [EOS], patience=2)
        new.cut(generate(model, prompts, new))
        return new.results

    for prompts in (first, other, other, first[:1]):  # without cut between: a prompt of its own begins anew
        generate(model, prompts, processor)
        assert processor.results == fresh(prompts)
    sequences = generate(model, first, processor, max_new_tokens=3)
    for wrong in (sequences[:2], sequences[:, :-1], sequences + 1, sequences[0]):
        with pytest.raises(InvalidArgument, match="not what the last generate"):
            processor.cut(wrong)
    processor.cut(sequences)
    with pytest.raises(InvalidArgument, match="nothing was generated"):
        processor.cut(sequences)
    generate(model, sequences.tolist(), processor)  # the answer as the next prompt
    assert processor.results == fresh(sequences.tolist())
    longer = [[*p, 7, 8] for p in first]
    generate(model, first, processor, max_new_tokens=5)
    with pytest.raises(InvalidArgument, match=r"reset\(\)"):
        generate(model, longer, processor)
    processor.reset()
    generate(model, longer, processor)
    assert processor.results == fresh(longer)


class Script:
    """A guide that allows one token at each place, then anything."""

    def __init__(self, tokens: Sequence[int], size: int = 64) -> None:
        self.tokens, self.size = list(tokens), size
        self.came: list[int] = []

    def mask(self) -> Any:
        if len(self.came) >= len(self.tokens):
            return None
        mask = np.zeros(self.size, bool)
        mask[self.tokens[len(self.came)]] = True
        return mask

    def advance(self, token: int) -> None:
        self.came.append(token)


def test_a_stop_in_one_row_stops_no_other(
    processors: Any, model: Any, shared_case: Callable[[str], Path]
) -> None:
    case = json.loads((shared_case("loop/batch_stop.json")).read_text())
    held = case["prompt_has_stop_token"]
    prompts = [[5 + i for i in range(n)] for n in case["prompt_lengths"]]
    prompts[held["row"]] = held["prompt"]
    stop, pad, made = case["stop"], case["pad"], []

    def guide(row: int) -> Script:
        made.append(Script(case["rows"][row], 50))  # shorter than the model's vocabulary
        return made[-1]

    guides = processors.GuideLogitsProcessor(guide, [stop])
    late = processors.LateStoppingLogitsProcessor(stop, [EOS], end=stop)
    options = {"eos_token_id": stop, "pad_token_id": pad, "max_new_tokens": 12}
    for with_late in ([], [late]):
        for _ in range(2):
            made.clear()
            out = generate(model, prompts, guides, *with_late, **options)
            rows = [row[3:] for row in out.tolist()]
            lengths = [row.index(stop) + 1 for row in rows]
            assert lengths == case["expect_lengths"]
            for row, length, expected, used in zip(rows, lengths, case["rows"], made, strict=True):
                assert row[:length] == expected and set(row[length:]) <= {pad}
                assert used.came == expected[:-1]  # the guide is not asked about padding
    assert late.cut(out) == case["rows"]
    assert {result.reason for result in late.results} == {"only closing"}


def test_guides_of_other_lengths_than_the_scores(processors: Any) -> None:
    class Fixed(Script):
        def mask(self) -> Any:
            return np.ones(self.size, bool) if self.size else None

    scores = torch.randn(3, 10)
    sizes = [6, 12, 0]
    processor = processors.GuideLogitsProcessor(lambda row: Fixed([], sizes[row]))
    masked = processor(torch.tensor([[1], [1], [1]]), scores)
    assert (masked[0, 6:] == -INF).all() and torch.equal(masked[0, :6], scores[0, :6])
    assert torch.equal(masked[1:], scores[1:])
    with pytest.raises(InvalidArgument, match="row 0: token 8 was taken"):
        processor(torch.tensor([[1, 8], [1, 8], [1, 8]]), scores)
    with pytest.raises(InvalidArgument, match="row 0: its guide allows none"):
        processors.GuideLogitsProcessor(lambda row: Script([40]))(torch.tensor([[1]]), scores[:1])
