"""The loops and commands with the shipped model: it really reads and writes, on people it has not seen."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pymemstore
from pymemstore import Memory
from pymemstore.backends.base import Generation, Params, Segment

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sentencex")

from pymemstore.backends.transformers import TransformersBackend  # noqa: E402
from pymemstore.memllm.reader import Reader  # noqa: E402
from pymemstore.memllm.writer import Writer  # noqa: E402
from pymemstore.train import tiny  # noqa: E402
from pymemstore.train.tiny_world import world  # noqa: E402


@pytest.fixture(scope="module")
def backend() -> TransformersBackend:
    torch.set_num_threads(1)
    return TransformersBackend.load(tiny.path())


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem") as opened:
        yield opened


def births(count: int, seed: int) -> list[tuple[str, str]]:
    """(person, city): people that were held out of the training."""
    rng = random.Random(seed)
    return [(person, rng.choice(world().names["C"])) for person in rng.sample(world().people[1], count)]


CONSTRAINTS = pytest.mark.parametrize("constraint", [None, "auto"])


@CONSTRAINTS
@pytest.mark.parametrize("late_stop", [False, True])
def test_what_it_reads_in_texts_is_stored(
    memory: Memory, backend: TransformersBackend, constraint: str | None, late_stop: bool
) -> None:
    told = births(20, 1)
    documents = [
        (f"{person} was born in {city}. The weather was mild. He works for Mafasu Bank.", f"d{i}")
        for i, (person, city) in enumerate(told)
    ]
    writer = Writer(memory, backend, constraint=constraint, late_stop=late_stop)
    reports = list(writer.write_many(documents))
    assert {r.constrained for r in reports} == {constraint is not None}
    assert {r.late_stopping for r in reports} == {late_stop}
    assert sum(r.errors + r.unterminated for r in reports) == 0
    truth = {(p, "place of birth", c) for p, c in told} | {(p, "employer", "Mafasu Bank") for p, _ in told}
    stored = {(t.subject, t.relation, t.object) for t in memory.triples()}
    assert len(stored & truth) >= 36 and len(stored - truth) <= 6


@CONSTRAINTS
def test_what_is_stored_is_what_it_writes(
    memory: Memory, backend: TransformersBackend, constraint: str | None
) -> None:
    told = births(30, 2)
    memory.add_many([(person, "place of birth", city) for person, city in told])
    reader = Reader(memory, backend, constraint=constraint, max_tokens=60)
    results = reader.read_many([f"{person} was born in" for person, _ in told])
    right = [result.text.startswith(f" {city}") for result, (_, city) in zip(results, told, strict=True)]
    assert sum(right) >= 28
    alone = reader.read(f"{told[0][0]} was born in")
    assert alone.text == results[0].text and alone.trace.calls[0].guided == (constraint is not None)
    assert "".join(reader.stream(f"{told[0][0]} was born in")) == alone.text
    # An edit is seen in the next turn.
    memory.replace(told[0][0], "place of birth", "Zorani")
    assert reader.read(f"{told[0][0]} was born in").text.startswith(" Zorani")


@pytest.mark.parametrize("prompt", ["", "  ", "\x07", "\x00\n", "—", "🦊"])
def test_prompts_without_a_word(memory: Memory, backend: TransformersBackend, prompt: str) -> None:
    memory.add("a", "r", "b")
    eager = Eager(backend._model, backend.tokenizer)
    (result,) = Reader(memory, eager, max_tokens=400, max_reads=2).read_many([prompt])
    assert [call.errors for call in result.trace.calls] == [[], []]


class Forced:
    """A guide that leaves no choice."""

    def __init__(self, ids: list[int], vocabulary: int) -> None:
        self.ids, self.vocabulary = ids, vocabulary

    def mask(self) -> Any:
        mask = np.zeros(self.vocabulary, dtype=bool)
        mask[self.ids[0]] = True
        return mask

    def advance(self, token: int) -> None:
        assert token == self.ids.pop(0)


def test_a_name_that_makes_an_arrow_does_not_end_the_call(
    memory: Memory, backend: TransformersBackend
) -> None:
    memory.add("x--", "r", "Zorani")
    tokens = ["MEM_READ(", "▁x", "-", "-", ">>", "▁r", ">>", "▁)", "-->"]  # `--` and the separator
    ids = backend.tokenizer.convert_tokens_to_ids(tokens)
    eager = Eager(backend._model, backend.tokenizer)
    reader = Reader(
        memory, eager, max_reads=1, constraint=lambda text: lambda: Forced(list(ids), len(eager.tokenizer))
    )
    (result,) = reader.read_many(["x-- lives in"])
    (call,) = result.trace.calls
    assert [(q.subject, q.relation, q.object) for q in call.asked] == [("x--", "r", None)]
    assert call.results == ("Zorani",) and call.errors == []


def surprise(backend: TransformersBackend, context: tuple[Segment, ...], target: str) -> list[float]:
    """-log p of the target's tokens after a context, by a pass of the model alone."""
    before = backend._tokens.encode(context)
    whole = backend._tokens.encode((*context, Segment(f" {target}")))
    assert whole[: len(before)] == before
    with torch.inference_mode():
        scores = torch.log_softmax(backend._model(torch.tensor([whole])).logits[0].float(), -1)
    return [-scores[i - 1, whole[i]].item() for i in range(len(before), len(whole))]


def test_the_targets_perplexity_with_a_memory_without_and_with_a_wrong_one(
    tmp_path: Path, backend: TransformersBackend
) -> None:
    told = births(60, 3)
    cities = [city for _, city in told]
    perplexity = {}
    for kind, objects in (("right", cities), ("none", []), ("wrong", cities[7:] + cities[:7])):
        spent: list[float] = []
        with pymemstore.open(tmp_path / f"{kind}.mem") as memory:
            memory.add_many([(p, "place of birth", o) for (p, _), o in zip(told, objects, strict=False)])
            reader = Reader(memory, backend, stop_after_success=True, max_tokens=40)
            for person, city in told:
                prompt = (Segment(f"{person} was born in"),)
                result = reader.read(prompt)
                call = result.context[1 : len(result.context) - len(result.parts)]
                assert bool(call) == (kind != "none")
                spent += surprise(backend, (*prompt, *call), city)
        perplexity[kind] = math.exp(sum(spent) / len(spent))
    assert perplexity["right"] < 3 and perplexity["none"] > 10 * perplexity["right"]
    assert perplexity["wrong"] > perplexity["none"]


def test_caches_are_kept_over_a_turn(memory: Memory, backend: TransformersBackend) -> None:
    memory.add("Bakedo Filuma", "place of birth", "Zorani")
    backend.clear_cache()
    pretext = "The weather was mild. It was a cold winter. " * 8
    trace = Reader(memory, backend).read(pretext + "Bakedo Filuma was born in").trace
    assert trace.computed_tokens is not None and trace.generations >= 3
    assert trace.computed_tokens < trace.prompt_tokens / 2


class Eager(TransformersBackend):
    """Opens a call wherever it may, else writes a dot; its calls are its model's."""

    def generate(self, prompts: Any, params: Params) -> list[Generation]:
        if "({" in params.stop:
            return [Generation("", (), "stop", "({") for _ in prompts]
        if params.ban:
            finish: Any = "length" if params.max_tokens < 10 else "eos"
            return [Generation(".", (Segment("."),), finish) for _ in prompts]
        return super().generate(prompts, params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_untrained_model_writes_well_formed_calls_and_ends(memory: Memory, temperature: float) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    memory.add_many([("Ana Lima", "born in", "Rio"), ("Bo", "knows; likes", "Ana Lima"), ("c", ">>", "})")])
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny.path()))
    random_backend = Eager(model, AutoTokenizer.from_pretrained(tiny.path()))
    reader = Reader(
        memory, random_backend, temperature=temperature, seed=5, max_reads=4, max_tokens=600, call_tokens=120
    )
    text = "Ana Lima was born in Rio; Bo (the painter) knows her. {x} costs > 3 \\ 4 :}) "
    prompts = [text + str(i) for i in range(20)]
    calls_made = 0
    for result in reader.read_many(prompts):
        assert len(result.trace.calls) <= 4 and result.trace.generated_tokens <= 600
        assert result.finish in ("length", "eos")
        seen = "".join(part.text for part in result.context)
        for call in result.trace.calls:
            calls_made += 1
            assert call.guided and call.errors == [] and call.dropped not in ("malformed", "incomplete")
            assert all(q.relation in ("born in", "knows; likes", ">>") for q in call.asked)
            # Only what has occurred is asked for.
            assert all((q.subject or q.object or "") in seen for q in call.asked)
    assert calls_made >= 20 * 2
    report = Writer(memory, random_backend, temperature=temperature, max_tokens=160).write(text * 6)
    assert report.errors == report.unterminated == 0 and report.constrained


# ---- the commands ---------------------------------------------------------------------------------------


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    from pymemstore.cli.main import main

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["pymemstore", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as error:
            code = error.code
        return int(code or 0), capsys.readouterr().out

    return run


def test_the_demo(run: Callable[..., tuple[int, str]]) -> None:
    code, shown = run("demo-llm", "--json")
    told = json.loads(shown.splitlines()[-1])
    assert code == 0
    assert ["Bakedo Filuma", "place of birth", "Zorani"] in told["facts"] and len(told["facts"]) >= 8
    first, *_, last = told["turns"]
    assert first["text"].startswith(" Zorani") and last["text"].startswith(" Vanafo")
    assert all(turn["trace"]["calls"][0]["results"] for turn in told["turns"])
    code, shown = run("demo-llm")
    assert code == 0 and "({MEM_WRITE-->" in shown and "({MEM_READ(" in shown


def test_write_and_read(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    texts, store = tmp_path / "texts", tmp_path / "m.mem"
    texts.mkdir()
    for i, (person, city) in enumerate(births(4, 5)):
        (texts / f"{i}.txt").write_text(f"{person} was born in {city}. He works for Mafasu Bank.")
    (texts / "bad.txt").write_bytes(b"\xff")
    model = str(tiny.path())
    code, shown = run("write", texts, "--into", store, "--model", model)
    assert code == 3 and "4 of 5 texts read" in shown and "rejected: bad.txt" in shown
    code, shown = run("write", texts, "--into", store, "--model", model, "--json")
    assert code == 3 and json.loads(shown)["done_before"] == 4
    person, city = births(4, 5)[0]
    code, shown = run("read", store, f"{person} was born in", "--model", model, "--trace")
    assert code == 0 and city in shown.splitlines()[0] and "place of birth" in shown
    code, shown = run("read", store, f"{person} was born in", "--model", model, "--json")
    assert json.loads(shown)["text"].startswith(f" {city}")
    assert run("read", store, "x", "--model", tmp_path / "none")[0] == 1
    assert run("read", store, "x", "--model", "http://127.0.0.1:9")[0] == 1
