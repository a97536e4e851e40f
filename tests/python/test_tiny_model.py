"""The tiny model: its world and examples, its tokenizer, its training, and what the shipped one can do."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymemstore import calls
from pymemstore.errors import InvalidArgument
from pymemstore.train import tiny, tiny_data, tiny_world
from pymemstore.train.tiny_evaluate import parse_query, parse_write

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SEEDS = range(300)
NAME = r"[A-Z][a-z]+(?: [A-Z][a-z]+)?"
SLOT = {"Y": r"\d{4}", "J": "[a-z]+"}


def people_of(text: str) -> set[str]:
    return set(re.findall(r"(?=\b([A-Z][a-z]+ [A-Z][a-z]+)\b)", text))


def facts_by_hand(focus: str, subject: str | None) -> set[tuple[str, str, str]]:
    """The facts of a sentence, read off the templates' texts by regular expressions. subject: a pronoun's."""
    found = set()
    for kind, texts in tiny_world._TEXTS.items():
        for line in texts.strip().splitlines():
            pattern, relations = "", []
            for i, part in enumerate(re.split(r"\{([^}]*)\}", line)):
                if i % 2 == 0:
                    pattern += re.escape(part)
                elif part == "s":
                    pattern += f"(?P<s>{NAME}|He|She|It)"
                else:
                    pattern += f"(?P<r{len(relations)}>{SLOT.get(tiny_world.RELATIONS[part][1], NAME)})"
                    relations.append(part)
            match = re.fullmatch(pattern, focus)
            if match is None:
                continue
            who = match["s"]
            if who in ("He", "She", "It"):
                if subject is None or who not in tiny_world.PRONOUNS[kind]:
                    continue
                who = subject
            found |= {(who, r, match[f"r{i}"]) for i, r in enumerate(relations)}
    return found


# ---- world and examples -----------------------------------------------------------------------------


def test_held_out_people_are_disjoint_and_known_by_their_words():
    w = tiny_world.world()
    training, held_out = map(set, w.people)
    assert not training & held_out
    assert len(training) + len(held_out) == len(w.first) * len(w.last)
    assert {n for p in held_out for n in p.split()} <= {n for p in training for n in p.split()}
    assert "Bakedo Filuma" in held_out


def test_training_never_names_a_held_out_person_and_evaluation_names_no_other():
    training, held_out = map(set, tiny_world.world().people)
    seen = set()
    for seed in SEEDS:
        seen |= people_of(tiny_data.example(random.Random(seed)).text)
    assert not seen & held_out and seen & training
    seen = set()
    for seed in SEEDS:
        rng = random.Random(seed)
        seen |= people_of(tiny_data.example(rng, held_out=True, new_names=False).text)
    assert not seen & training and seen & held_out


@pytest.mark.parametrize("held_out", [False, True])
def test_a_write_example_has_the_facts_of_the_focus_sentence_alone(held_out):
    counts = {}
    for seed in range(1000):
        item, doc = tiny_data.write_example(random.Random(seed), held_out=held_out, new_names=False)
        prompt, call = (part.text for part in item.parts)
        assert [part.learn for part in item.parts] == [False, True]
        match = re.fullmatch(r"(.*)\(\{USER_ST\}\)(.*)\(\{USER_END\}\)", prompt)
        assert match and call.endswith("})</s>")
        pretext, focus = match[1].rstrip(), match[2]
        triples = parse_write(call.removesuffix("</s>"))
        assert triples is not None and tuple(triples) == doc.sentences[-1].triples
        subject = triples[0][0] if triples else None
        if triples and subject not in focus:  # a pronoun: its subject is the last one that was named
            assert focus.split()[0] in ("He", "She", "It") and subject in pretext
        if triples:
            assert set(triples) == facts_by_hand(focus, subject)
        else:
            assert not facts_by_hand(focus, "somebody")
        places = [focus.find(o) for _, _, o in triples]
        assert -1 not in places and places == sorted(places)
        counts[len(triples)] = counts.get(len(triples), 0) + 1
    assert set(counts) == {0, 1, 2, 3} and counts[1] > counts[2] > counts[3]


def test_a_pronoun_stands_for_who_was_named_last():
    """Read off the texts: the last sentence before that names anybody names the subject."""
    checked = 0
    nobody = {" " + line for line in tiny_world.FILLERS[""]} | set(tiny_world.FILLERS[""])
    for seed in range(1500):
        _, doc = tiny_data.write_example(random.Random(seed), new_names=False)
        focus = doc.sentences[-1]
        if not focus.triples or focus.triples[0][0] in focus.text:
            continue
        named = [
            s.text
            for s in doc.sentences[:-1]
            if s.text not in nobody and not s.text.lstrip().startswith(("He ", "She ", "It "))
        ]
        assert focus.triples[0][0] in named[-1]
        checked += 1
    assert checked > 100


def test_a_read_example_asks_for_the_name_that_follows():
    kinds = {"forward": 0, "inverse": 0, "plain": 0}
    several = wrong = 0
    for seed in range(1000):
        item = tiny_data.read_example(random.Random(seed), new_names=False)
        if len(item.parts) == 1:
            assert "({" not in item.text and item.parts[0].learn
            kinds["plain"] += 1
            continue
        pretext, call, results, after = item.parts
        assert pretext.text.endswith("({") and pretext.text.count("({") == 1
        assert call.learn and not results.learn and after.learn
        assert after.text.endswith(("({", "</s>")) and after.text.startswith(" ")
        query = parse_query(call.text)
        assert query is not None
        subject, relation, given = query
        assert (subject or given) in pretext.text  # a read can only ask about what has occurred
        names = results.text.removesuffix("})").split(";")
        assert len(set(names)) == len(names)
        answer = [n for n in names if after.text.startswith((f" {n} ", f" {n}.", f" {n},"))]
        wrong += not answer
        several += len(names) > 1
        kinds["forward" if given is None else "inverse"] += 1
        if answer:
            # The text without its call tells the fact that was asked for.
            told = (pretext.text.removesuffix("({") + after.text).removesuffix("({").removesuffix("</s>")
            assert answer[0] in told and answer[0] not in pretext.text
        if pretext.learn:
            # Only the first read of a document teaches where reads begin: nothing before it could be asked.
            assert relation in tiny_world.RELATIONS
    assert min(kinds.values()) > 20 and several > 200 and 0 < wrong < 60


def test_calls_are_those_of_the_parser(tokenizer):
    """As rendered, and as they read after a pass through the tokenizer, which puts spaces before names."""
    for seed in range(200):
        item, doc = tiny_data.write_example(random.Random(seed))
        call = item.parts[1].text.removesuffix("</s>")
        triples = doc.sentences[-1].triples
        if triples:
            assert call == calls.render_write(triples)
        for text in (call, tokenizer.decode(tokenizer(call, add_special_tokens=False)["input_ids"])):
            (write,) = calls.parse(text)
            assert isinstance(write, calls.Write) and write.facts == triples and not write.errors
            assert parse_write(text) == list(triples)
        item = tiny_data.read_example(random.Random(seed))
        if len(item.parts) == 1:
            continue
        call = "({" + item.parts[1].text
        query, names = parse_query(item.parts[1].text), item.parts[2].text.removesuffix("})").split(";")
        assert call == calls.render_read([query])
        assert item.parts[2].text == calls.render_results(names)
        call += item.parts[2].text
        for text in (call, tokenizer.decode(tokenizer(call, add_special_tokens=False)["input_ids"])):
            read, results = calls.parse(text)
            assert isinstance(read, calls.Read) and read.queries == (query,) and not read.errors
            assert isinstance(results, calls.Results) and results.names == tuple(names)


def test_memory_off_examples_close_the_call_at_every_name_that_a_read_could_find():
    closed = 0
    for seed in range(300):
        item = tiny_data.off_example(random.Random(seed), new_names=False)
        assert "({" not in item.text and all(part.learn for part in item.parts)
        assert all(re.match(r" (\d{4}|[a-z]+|[A-Z][a-z]+)", p.text) for p in item.parts if p.closed)
        closed += sum(part.closed for part in item.parts)
    assert closed > 300


def test_a_copy_example_says_the_same_twice():
    for seed in range(50):
        given, again = tiny_data.copy_example(random.Random(seed)).parts
        assert not given.learn and again.learn
        names = again.text.removesuffix("</s>").split(";")
        assert sorted(given.text.removesuffix(">>").split()) == sorted(" ".join(names).split())
        assert all(name in given.text for name in names)


# ---- tokenizer --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny.path()))


CALL = ("({", "})", "-->", ">>", ";", "MEM_READ(", "MEM_WRITE", "USER_ST", "USER_END")
CALL_RE = "|".join(re.escape(mark) for mark in sorted(CALL, key=len, reverse=True))


def expected_round_trip(text: str) -> str:
    """`build`'s words on what decoding gives back, by string operations."""
    pieces = re.split(f"({CALL_RE})", text)
    out = ""
    for i, piece in enumerate(pieces):
        if i % 2 == 0 and piece:
            piece = piece.replace("▁", " ")
            out += piece if piece.startswith(" ") else " " + piece
        else:
            out += piece
    return out[1:] if out.startswith(" ") else out


def test_the_script_builds_the_shipped_tokenizer():
    from pymemstore.train.tiny_tokenizer import build

    built = json.loads(build().backend_tokenizer.to_str())
    shipped = json.loads((tiny.path() / "tokenizer.json").read_text())
    assert built == shipped


def test_every_word_and_mark_is_one_token(tokenizer):
    for word in (*tiny_world.words(), *CALL):
        assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1, word
    assert len(tokenizer) < 1500


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(CALL) | st.just(" ")).map(
        "".join
    )
)
def test_any_text_can_be_encoded_and_comes_back(tokenizer, text):
    if re.search("<s>|</s>|<pad>", text):
        return
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == expected_round_trip(text)
    again = tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
    if not text.startswith((" ", "▁")) and "▁" not in text:
        assert again == ids


def test_a_name_has_the_same_tokens_wherever_it_stands(tokenizer):
    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    for name in ("Bakedo Filuma", "Zorani", "Ana Lima", "Müller", "1912", "日本"):
        alone = ids(name)
        for before, after in (
            ("was born in ", "."), ("({MEM_READ(", ">>spouse>>)-->"), ("-->", "})"), (";", ";"), (">>", ")"),
            ("})", " x"), ("(x)", "")
        ):  # fmt: skip
            if before == "(x)":
                before = "(x) "
            found = ids(before + name + after)
            assert any(found[i : i + len(alone)] == alone for i in range(len(found))), (before, name)


def test_an_example_is_encoded_as_its_whole_text(tokenizer):
    raw = tokenizer.backend_tokenizer
    for seed in SEEDS:
        item = tiny_data.example(random.Random(seed))
        ids, labels, closed = tiny_data.encode(raw, item)
        assert ids == raw.encode(item.text).ids
        assert len(ids) == len(labels) == len(closed)
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
        assert labels[-1] == ids[-1]


# ---- what is shipped --------------------------------------------------------------------------------


def test_the_shipped_folder_is_small_and_found_without_torch():
    assert sum(f.stat().st_size for f in tiny.path().iterdir()) < 2_000_000
    code = (
        "import sys; from pymemstore.train import tiny; assert tiny.path().is_dir();"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_record_tells_how_it_was_trained():
    record = json.loads((tiny.path() / "training.json").read_text())
    assert record["command"].startswith("python -m pymemstore.train.tiny")
    assert {"config", "steps", "cpu_seconds", "versions", "date", "held_out"} <= set(record)


@pytest.fixture(scope="module")
def measure() -> Any:
    from pymemstore.train.tiny_evaluate import Measure

    torch.set_num_threads(1)
    return Measure(tiny.path(), seed=7)


def test_the_shipped_model_profits_from_memory(measure):
    figures = measure.perplexities(100)
    assert figures["answer"] < 1.5
    assert figures["answer"] < figures["several"] < figures["disabled"] / 5 < figures["wrong"]


def test_the_shipped_model_asks_where_it_should_and_what_it_should(measure):
    figures = measure.queries(100)
    assert figures["opened"] >= 0.95 and figures["opened_a_word_early"] <= 0.1
    assert figures["well_formed"] >= 0.95 and figures["exact"] >= 0.9


def test_the_shipped_model_writes_facts(measure):
    figures = measure.writes(100)
    assert figures["well_formed"] >= 0.97
    assert figures["precision"] >= 0.9 and figures["recall"] >= 0.9
    assert figures["empty_right"] >= 0.95 and figures["pronoun_recall"] >= 0.8


def test_the_shipped_model_continues_the_example(measure):
    """Two reads by hand: the call, its answer spliced in, the text, without the first call the next one."""
    text = "Bakedo Filuma was born in"
    (opened,) = measure.generate([text], ("({",), 1)
    assert opened == "({"
    (call,) = measure.generate([text + "({"], ("-->",))
    assert parse_query(call) == ("Bakedo Filuma", "place of birth", None)
    (after,) = measure.generate([text + "({" + call + "Zorani})"], (".", "({", "</s>"))
    assert after.startswith("Zorani")
    (call,) = measure.generate(["Bakedo Filuma was born in Zorani. He works for({"], ("-->",))
    assert parse_query(call) == ("Bakedo Filuma", "employer", None)


def test_target_losses_against_one_row_at_a_time(measure):
    contexts = ["Bakedo Filuma was born in", "The weather was mild. Zorani is a city in"]
    targets = [" Zorani", " Bakedo Filuma"]
    total, count = measure.target_losses(contexts, targets, True)
    tokenizer, model, by_hand, tokens = measure.tokenizer, measure.model, 0.0, 0
    opening = tokenizer.convert_tokens_to_ids("({")
    for context, target in zip(contexts, targets, strict=True):
        ids = tokenizer(context)["input_ids"]
        for token in tokenizer(target, add_special_tokens=False)["input_ids"]:
            with torch.no_grad():
                p = torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)
            by_hand -= math.log(p[token].item() / (1 - p[opening].item()))
            ids, tokens = [*ids, token], tokens + 1
    assert count == tokens == 3
    assert total == pytest.approx(by_hand, rel=1e-4)


# ---- parsers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("MEM_READ(a b>>t>>)-->", ("a b", "t", None)),
        ("MEM_READ( a>> t u>> )-->", ("a", "t u", None)),
        ("MEM_READ(>>t>>b)-->", (None, "t", "b")),
        ("MEM_READ(a>>t>>b)-->", None),
        ("MEM_READ(>>t>>)-->", None),
        ("MEM_READ(a>>>>)-->", None),
        ("MEM_READ(a>>t)-->", None),
        ("MEM_READ(a>>t>>-->", None),
        ("MEM_READ(a>>t>>)", None),
        ("MEM_WRITE-->a>>t>>b})", None),
    ],
)
def test_parse_query(text, query):
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("text", "triples"),
    [
        ("({MEM_WRITE-->})", []),
        ("({MEM_WRITE--> a>> t>> b; c>>t>>d})", [("a", "t", "b"), ("c", "t", "d")]),
        ("({MEM_WRITE-->a>>t>>b;})", None),
        ("({MEM_WRITE-->a>>t})", None),
        ("({MEM_WRITE-->a>>t>>b", None),
        ("({MEM_WRITE-->a>>t>>b})({MEM_WRITE-->})", None),
        ("a>>t>>b})", None),
    ],
)
def test_parse_write(text, triples):
    assert parse_write(text) == triples


# ---- training ---------------------------------------------------------------------------------------

SMALL = {"batch": 8, "hidden": 32, "layers": 2, "heads": 2, "feed_forward": 32}


def weights(trainer: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_training_lowers_the_loss():
    trainer = tiny.Trainer(tiny.Config(steps=150, **SMALL))
    losses = [trainer.advance() for _ in range(150)]
    assert trainer.done == 1 and trainer.tokens > 0
    assert sum(losses[-20:]) < 0.85 * sum(losses[:20])


def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path):
    config = tiny.Config(steps=14, **SMALL)
    whole = tiny.Trainer(config)
    for _ in range(14):
        whole.advance()
    first = tiny.Trainer(config)
    for _ in range(5):
        first.advance()
    torch.save(first.state(), tmp_path / "state.pt")
    second = tiny.Trainer(config, torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(9):
        second.advance()
    assert second.step == whole.step and second.tokens == whole.tokens
    assert equal(weights(second), weights(whole))
    other = tiny.Trainer(tiny.Config(steps=14, seed=2, **SMALL))
    assert not equal(weights(other), weights(tiny.Trainer(config)))


def test_an_interrupted_run_leaves_a_checkpoint_and_goes_on(tmp_path, monkeypatch):
    config = tiny.Config(steps=12, **SMALL)
    assert tiny.train(config, tmp_path / "whole", command="x", people=0)
    advance = tiny.Trainer.advance

    def interrupted(self: Any) -> float:
        if self.step == 7:
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(tiny.Trainer, "advance", interrupted)
    assert not tiny.train(config, tmp_path / "cut", command="x", people=0)
    assert [f.name for f in (tmp_path / "cut").iterdir()] == [tiny.CHECKPOINT]
    monkeypatch.undo()
    with pytest.raises(InvalidArgument, match="another run"):
        tiny.train(tiny.Config(steps=13, **SMALL), tmp_path / "cut", command="x", people=0)
    assert tiny.train(config, tmp_path / "cut", command="x", people=0)
    names = {f.name for f in (tmp_path / "whole").iterdir()}
    assert names == {f.name for f in (tmp_path / "cut").iterdir()} and tiny.CHECKPOINT not in names
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    with pytest.raises(InvalidArgument, match="trained model"):
        tiny.train(config, tmp_path / "cut", command="x", people=0)


def test_a_saved_model_computes_in_float32_what_was_trained_up_to_float16(tmp_path):
    from transformers import AutoModelForCausalLM

    trainer = tiny.Trainer(tiny.Config(steps=3, **SMALL))
    trainer.advance()
    trainer.save(tmp_path, {})
    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path))
    assert loaded.dtype == torch.float32
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.half().float()), name


def test_the_loss_against_one_row_at_a_time():
    """Padding, the loss mask and the closed positions, against a loop over single rows and tokens."""
    trainer = tiny.Trainer(tiny.Config(steps=3, **SMALL))
    trainer.model.eval()
    loss, tokens = trainer.batch_loss(1)
    ids, labels, closed = trainer.batch(1)
    total, count, closes = 0.0, 0, 0
    for row in range(ids.shape[0]):
        length = int((ids[row] != 0).sum())
        with torch.no_grad():
            logits = trainer.model(ids[row : row + 1, :length]).logits[0].double()
        for i in range(1, length):
            if labels[row, i] == -100:
                continue
            p = torch.softmax(logits[i - 1], -1)
            rest = 1 - p[trainer.tokenizer.convert_tokens_to_ids("({")] if closed[row, i] else 1
            closes += int(closed[row, i])
            total -= math.log(p[ids[row, i]].item() / float(rest))
            count += 1
    assert tokens == int((ids != 0).sum())
    assert loss.item() == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"batch": 0}, {"cpu_seconds": 0.0}, {"rate": -1.0}, {"hidden": 30, "heads": 4}]
)
def test_wrong_options(wrong):
    with pytest.raises(InvalidArgument):
        tiny.Config(**wrong)


def test_the_command(tmp_path, capsys):
    assert tiny.main(["--evaluate", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
    arguments = [
        "--out",
        str(tmp_path / "m"),
        "--steps",
        "2",
        "--batch",
        "2",
        "--hidden",
        "16",
        "--layers",
        "1",
    ]
    assert tiny.main([*arguments, "--people", "2"]) == 0
    record = json.loads(Path(tmp_path / "m" / "training.json").read_text())
    assert record["steps"] == 2 and record["held_out"]["examples"] == 2
    assert (
        record["command"] == f"python -m pymemstore.train.tiny --out DIR {' '.join(arguments[2:])} --people 2"
    )
    capsys.readouterr()
    assert tiny.main(["--evaluate", str(tmp_path / "m"), "--people", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == record["held_out"]
