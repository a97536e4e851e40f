"""Runs `VLLMBackend` on the folder of `chain_model.py`; called by `vllm_run.py` in vLLM's environment."""

from __future__ import annotations

import asyncio
import sys

from chain_model import CALL, CASES, MARK

from pymemstore.backends import Params, Segment
from pymemstore.backends.vllm import VLLMBackend
from pymemstore.errors import InvalidArgument

PLUGIN = "pymemstore.memllm.vllm_plugin:MemllmLogitsProcessor"


def refused(backend: VLLMBackend, prompt: str, params: Params) -> None:
    try:
        backend.generate([prompt], params)
    except InvalidArgument:
        return
    raise AssertionError(f"not refused: {params}")


def main(model: str) -> None:
    backend = VLLMBackend.load(
        model, dtype="float32", enforce_eager=True, max_model_len=512, logits_processors=[PLUGIN]
    )
    assert backend.can == {"ban", "data", "grammar", "logprobs"}
    for prompt, fields, expected in CASES:
        params = Params(**{"max_tokens": 20, **fields})
        (whole,) = backend.generate([prompt], params)
        assert (whole.text, whole.finish, whole.stop) == expected, (prompt, fields, whole)
        stream = backend.stream(prompt, params)
        assert "".join(stream) == expected[0] and stream.generation.text == expected[0]
    (whole,) = backend.generate(["m"], Params(stop=(MARK,), logprobs=True))
    assert whole.parts == (Segment("no", (110, 111)),) and len(whole.logprobs or ()) == 3
    (whole,) = backend.generate([[Segment("a"), Segment(CALL, data=True)]], Params(max_tokens=1))
    assert whole.usage.prompt == 1 + len(CALL)
    (whole,) = backend.generate(["a"], Params(grammar='root ::= "xyz"'))
    assert whole.text == "xyz"
    (whole,) = backend.generate(["m"], Params(ban=(MARK,)))
    assert MARK not in whole.text
    for params in (
        Params(grammar='roo ::= "x'),
        Params(extra={"no_such_field": 1}),
        Params(extra={"vllm_xargs": {"pymemstore_late_stop": "x"}}),
        Params(chooser=lambda rows: None),  # type: ignore[arg-type, return-value]
    ):
        refused(backend, "a", params)
    refused(backend, "a" * 600, Params())
    prompts, expected_texts = ["a", "A", "m", "1"] * 5, ["bcdefg", "BC<call>DEF", "no({pqr", "23456789"] * 5
    assert [g.text for g in backend.generate(prompts, Params(max_tokens=8))] == expected_texts
    one, two = (backend.stream(prompt, Params(max_tokens=8)) for prompt in "u1")
    mixed = [next(one), next(two), next(one), next(two)]
    assert (mixed, list(one), list(two)) == (["é", "2", "v", "3"], list("wuév"), list("456789"))
    stream = backend.stream("1", Params(max_tokens=400))
    next(stream)
    stream.close()
    assert list(stream) == []

    async def run() -> None:
        running = backend.astream("u", Params(max_tokens=5))
        assert [piece async for piece in running] == ["é", "v", "w", "u"]
        assert running.generation.finish == "length"
        texts = [g.text for g in await backend.agenerate(prompts, Params(max_tokens=8))]
        assert texts == expected_texts

    asyncio.run(run())
    backend.close()
    print(f"CHECKED {len(CASES)} cases of stop strings, ids, data, grammar, ban, refusals, batch, streams")


if __name__ == "__main__":  # vLLM starts processes that import this file
    main(sys.argv[1])
