"""What `vllm_run.py` checks: each function raises, or gives a detail for the report. Its docstring is the
report's title."""

from __future__ import annotations

import asyncio
import functools
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from chain_model import CALL, CASES, MARK

from pymemstore.backends import Params, Segment
from pymemstore.backends.openai import OpenAIBackend
from pymemstore.errors import BackendError, InvalidArgument

__all__ = ["CHAIN", "TRAINED", "NotRun", "Target"]


class NotRun(Exception):
    """What the check needs is not there."""


@dataclass
class Target:
    url: str
    model: Path

    def __hash__(self) -> int:
        return hash(self.url)

    @functools.cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    def client(self, *, ids: bool = True, **options: Any) -> OpenAIBackend:
        return OpenAIBackend(
            self.url, self.model.name, tokenizer=self.tokenizer if ids else None, retries=0, **options
        )

    def raw(self, **body: Any) -> dict[str, Any]:
        sent = {"model": self.model.name, "temperature": 0, "max_tokens": 20, **body}
        answer = httpx.post(f"{self.url}/v1/completions", json=sent, timeout=60)
        answer.raise_for_status()
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice


def same(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{found!r} in place of {expected!r}")


def refused(kind: type[Exception], made: OpenAIBackend, prompt: Any, params: Params) -> str:
    try:
        made.generate([prompt], params)
    except kind as error:
        return str(error)
    raise AssertionError("not refused")


# ---- the chain model: all text is known --------------------------------------------------------------


def found(target: Target) -> str:
    """The client finds out that it is vLLM, and what it can"""
    same(target.client().connect(), "vllm")
    same(target.client(ids=False).can, {"grammar", "logprobs"})
    same(target.client().can, {"grammar", "logprobs", "ban", "data"})
    return "grammar, logprobs; with a tokenizer ban, data"


def other_tokenizer(target: Target) -> str:
    """A tokenizer that is not the served model's is refused"""
    tokenizer = type(target.tokenizer).from_pretrained(target.model)
    tokenizer.add_tokens(["Ana"])
    made = OpenAIBackend(target.url, target.model.name, tokenizer=tokenizer)
    return refused(InvalidArgument, made, "a", Params())[:80]


def raw_special(target: Target) -> str:
    """Raw server: a stop string never fires on a special token, but with skip_special_tokens false or
    stop_token_ids"""
    same(target.raw(prompt="A", stop=[CALL])["text"], "BCDEF")
    kept = target.raw(prompt="A", stop=[CALL], skip_special_tokens=False)
    same((kept["text"], kept["stop_reason"]), ("BC", CALL))
    token = target.tokenizer.convert_tokens_to_ids(CALL)
    by_id = target.raw(prompt="A", stop_token_ids=[token])
    same((by_id["text"], by_id["stop_reason"]), ("BC", token))
    return ""


def raw_order(target: Target) -> str:
    """Of several stop strings that one token completes the client cuts at the one that ends first, whatever
    the server does"""
    raw = target.raw(prompt="m", stop=["{", "("])["text"]
    same(raw in ("no", "no("), True)
    (whole,) = target.client().generate(["m"], Params(stop=("{", "(")))
    same((whole.text, whole.stop), ("no", "("))
    return f"the server: {raw!r}"


def stops(target: Target) -> str:
    """Stop strings, special token or not, with and without ids; finish is stop, eos or length"""
    for ids in (True, False):
        made = target.client(ids=ids)
        for prompt, params, expected in CASES:
            (whole,) = made.generate([prompt], Params(**{"max_tokens": 20, **params}))
            same((whole.text, whole.finish, whole.stop), expected)
    return f"{2 * len(CASES)} cases"


def parts(target: Target) -> str:
    """Prompts as token ids: what was generated is given back as ids, data makes no control token"""
    made = target.client()
    (one,) = made.generate(["m"], Params(stop=(MARK,)))
    same(one.parts, (Segment("no", (110, 111)),))
    (two,) = made.generate([[Segment("m"), *one.parts, Segment(MARK)]], Params())
    same((two.text, two.usage.prompt), ("pqr", 4))
    for data, length in ((True, 1 + len(CALL)), (False, 2)):
        (whole,) = made.generate([[Segment("a"), Segment(CALL, data=data)]], Params(max_tokens=1))
        same(whole.usage.prompt, length)
    return f"{CALL} is 1 token as text and {len(CALL)} as data"


def batches(target: Target) -> str:
    """100 prompts at once, in their order, by threads and by asyncio"""
    prompts = ["a", "A", "m", "1"] * 25
    expected = ["bcdefg", "BC<call>DEF", "no({pqr", "23456789"] * 25
    made = target.client()
    same([one.text for one in made.generate(prompts, Params(max_tokens=8))], expected)
    same([one.text for one in asyncio.run(made.agenerate(prompts, Params(max_tokens=8)))], expected)
    return ""


def streams(target: Target) -> str:
    """Streaming: pieces as they come, the beginning of a stop string held back; closing early"""
    made = target.client()
    same(list(made.stream("u", Params(max_tokens=7))), ["é", "v", "w", "u", "é"])
    same("".join(made.stream("m", Params(stop=(MARK,)))), "no")
    stream = made.stream("1", Params(max_tokens=500))
    next(stream)
    stream.close()
    same(list(stream), [])
    return ""


def grammars(target: Target) -> str:
    """structured_outputs with an EBNF grammar; a bad one is refused by the server"""
    made = target.client()
    (whole,) = made.generate(["a"], Params(grammar='root ::= "x" ("é" | "q")+ "({"'))
    if not (whole.text.startswith("x") and set(whole.text[1:-2]) <= {"é", "q"} and whole.text.endswith("({")):
        same(whole.finish, "length")
    return refused(BackendError, made, "a", Params(grammar='roo ::= "x'))[-80:]


def bans(target: Target) -> str:
    """A banned token does not come; a string of several tokens neither, or it is an error"""
    made = target.client()
    (whole,) = made.generate(["m"], Params(ban=(MARK,)))
    same(MARK in whole.text, False)
    (whole,) = made.generate(["a"], Params(ban=("cd",)))
    same("cd" in whole.text, False)
    return repr(whole.text)


def logprobs(target: Target) -> str:
    """Log-probabilities: one for each generated token, the model's own"""
    (whole,) = target.client().generate(["a"], Params(logprobs=True))
    assert whole.logprobs is not None
    same(len(whole.logprobs), 7)
    same(all(-1e-4 < value <= 0 for value in whole.logprobs), True)
    return ""


def errors(target: Target) -> str:
    """Errors: too long a prompt, an unknown model, a token beyond the vocabulary, a plugin's own refusal"""
    made = target.client()
    said = [refused(InvalidArgument, made, "a" * 600, Params())[:40]]
    said.append(refused(InvalidArgument, made, "a", Params(max_tokens=5000))[:40])
    said.append(refused(BackendError, OpenAIBackend(target.url, "other"), "a", Params())[-60:])
    said.append(refused(BackendError, made, [Segment("a", (99999,))], Params())[-60:])
    wrong = {"vllm_xargs": {"pymemstore_late_stop": "x"}}
    said.append(refused(BackendError, made, "a", Params(extra=wrong))[-60:])
    same([one.text for one in made.generate(["a"], Params())], ["bcdefg"])  # the server is still there
    return "; ".join(said)


# ---- a trained model: the same as in this process ----------------------------------------------------


@functools.cache
def _local(target: Target) -> Any:
    from pymemstore.backends.transformers import TransformersBackend

    return TransformersBackend.load(target.model, dtype="float32")


@functools.cache
def _documents() -> list[Any]:
    try:
        from pymemstore.train import tiny_data
    except ImportError as error:
        raise NotRun(str(error)) from None
    rng = random.Random(7)
    return [tiny_data.document(rng, 3, held_out=True, new_names=False) for _ in range(20)]


def _write_prompts() -> list[str]:
    from pymemstore.train import tiny_data

    return [
        tiny_data.write_prompt("".join(s.text for s in d.sentences[:-1]), d.sentences[-1].text.lstrip())
        for d in _documents()
    ]


def greedy(target: Target) -> str:
    """Greedy text, finish and ids are those of the transformers backend in this process"""
    params = Params(max_tokens=40, stop=("})",), logprobs=True)
    prompts = _write_prompts()
    here, there = _local(target).generate(prompts, params), target.client().generate(prompts, params)
    for one, two in zip(here, there, strict=True):
        same((two.text, two.finish, two.stop, two.parts), (one.text, one.finish, one.stop, one.parts))
    pairs = [(one.logprobs, two.logprobs) for one, two in zip(here, there, strict=True)]
    off = max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    same(off < 1e-3, True)
    return f"{len(prompts)} prompts; log-probabilities differ by at most {off:.1e}"


def late_stopping(target: Target) -> str:
    """Late stopping by the server's plugin (vllm_xargs): the cut is that of this process"""
    from pymemstore.memllm.late_stopping import LateStoppingChooser
    from pymemstore.memllm.vllm_plugin import cut_from_logprobs, request_fields

    closing, eos = target.tokenizer.convert_tokens_to_ids("})"), target.tokenizer.eos_token_id
    prompts = [prompt + "({MEM_WRITE-->" for prompt in _write_prompts()]
    choosers: list[Any] = []

    def chooser(rows: int) -> Any:
        choosers.append(LateStoppingChooser(rows, closing, (eos,)))
        return choosers[-1]

    here = _local(target).generate(prompts, Params(max_tokens=60, chooser=chooser))
    extra = request_fields(closing)
    there = target.client().generate(prompts, Params(max_tokens=60, extra=extra))
    points = 0
    for row, (one, two) in enumerate(zip(here, there, strict=True)):
        cut = cut_from_logprobs(two.server_logprobs, closing, (eos,))  # type: ignore[attr-defined]
        same(cut.cut, choosers[0].kept(row))
        kept = cut.tokens[: cut.cut] if cut.cut is not None else cut.tokens
        same(kept, tuple(i for part in one.parts for i in part.ids or ())[: len(kept)])
        points += len(cut.points)
    return f"{len(prompts)} prompts, {points} closing points"


def guides(target: Target) -> str:
    """A guide of the call syntax by the server's plugin: names out of the context, relations of a list"""
    import json

    from pymemstore import calls

    relations = ["place of birth", "employer; or so"]
    facts = 0
    for prompt in _write_prompts():
        spec = {
            "kind": "write", "entities": "context", "context": prompt, "relations": relations,
            "prefix": "({MEM_WRITE-->", "max_tokens": 80, "max_parts": 4, "allow_empty": False,
        }  # fmt: skip
        extra = {"temperature": 1.0, "seed": 3, "vllm_xargs": {"pymemstore_guide": json.dumps(spec)}}
        params = Params(max_tokens=80, stop=("})",), extra=extra)
        (made,) = target.client().generate([prompt + "({MEM_WRITE-->"], params)
        (write,) = calls.parse("({MEM_WRITE-->" + made.text + "})")
        assert isinstance(write, calls.Write), write
        same((made.stop, write.errors), ("})", ()))
        for fact in write.facts:
            same((fact.subject in prompt, fact.object in prompt, fact.relation in relations), (True,) * 3)
        facts += len(write.facts)
    return f"{len(_write_prompts())} sampled calls, {facts} facts, all well formed"


def read_loop(target: Target) -> str:
    """The read loop over the server gives the text and the calls of the loop in this process"""
    try:
        from pymemstore.memllm.reader import Reader
    except ImportError as error:
        raise NotRun(str(error)) from None
    import pymemstore

    with tempfile.TemporaryDirectory() as folder, pymemstore.open(Path(folder) / "facts.mem") as memory:
        prompts = []
        for document in _documents():
            memory.add_many([triple for sentence in document.sentences for triple in sentence.triples])
            first = document.pieces[0]
            if first.query is None:
                prompts.append(document.sentences[0].text.strip().rsplit(" ", 3)[0])
        calls = answered = 0
        for constraint in (None, "auto"):
            options: dict[str, Any] = {"max_tokens": 60, "constraint": constraint}
            try:
                here = Reader(memory, _local(target), **options).read_many(prompts)
                there = Reader(memory, target.client(), **options).read_many(prompts)
            except NotImplementedError:
                if constraint is None:
                    raise
                return f"{calls} calls, {answered} answered; constrained: not there yet"
            for one, two in zip(here, there, strict=True):
                if constraint is None:  # guided here by scores, there by a grammar
                    same((two.text, two.trace.calls and [c.text for c in two.trace.calls]),
                         (one.text, one.trace.calls and [c.text for c in one.trace.calls]))  # fmt: skip
                calls += len(two.trace.calls)
                answered += sum(bool(call.results) for call in two.trace.calls)
    if not calls:
        raise AssertionError("the model made no call")
    return f"{len(prompts)} prompts; {calls} calls, {answered} answered"


CHAIN = [
    found,
    other_tokenizer,
    raw_special,
    raw_order,
    stops,
    parts,
    batches,
    streams,
    grammars,
    bans,
    logprobs,
    errors,
]
TRAINED = [greedy, late_stopping, guides, read_loop]
