"""A real `transformers serve`: what it does by itself, so that a change is noticed, and what the client makes
of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

httpx = pytest.importorskip("httpx")
for module in ("torch", "transformers", "fastapi", "uvicorn", "openai"):  # transformers[serving]
    pytest.importorskip(module)
PROGRAM = shutil.which("transformers", path=sysconfig.get_path("scripts")) or shutil.which("transformers")
if PROGRAM is None:
    pytest.skip("no transformers program", allow_module_level=True)

sys.path.append(str(REPOSITORY / "tests" / "servers"))
from chain_model import CALL, MARK, chain_model  # noqa: E402

from pymemstore.backends import Params  # noqa: E402
from pymemstore.backends.openai import OpenAIBackend  # noqa: E402
from pymemstore.errors import BackendError, InvalidArgument  # noqa: E402

pytestmark = pytest.mark.slow
TRAINED = REPOSITORY / "pymemstore" / "data" / "tiny-memllm"
READY_S = 180


@dataclass
class Served:
    url: str
    chain: str

    def post(self, **body: Any) -> Any:
        """The raw server's answer."""
        sent = {"model": self.chain, "temperature": 0, "max_tokens": 20, **body}
        return httpx.post(f"{self.url}/v1/completions", json=sent, timeout=60)

    def choice(self, **body: Any) -> tuple[str, str]:
        answer = self.post(**body)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        return choice["text"], choice["finish_reason"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server; it loads the model that a request names."""
    folder = tmp_path_factory.mktemp("serve")
    chain = chain_model(folder / "chain")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    assert PROGRAM is not None
    command = [PROGRAM, "serve", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "log"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=offline) as process:
        try:
            until = time.monotonic() + READY_S
            while True:
                try:
                    httpx.get(f"{url}/health", timeout=5).raise_for_status()
                    break
                except httpx.HTTPError as error:
                    if process.poll() is not None or time.monotonic() > until:
                        pytest.fail(f"transformers serve is not ready: {error}\n{log.read_text()[-4000:]}")
                time.sleep(0.2)
            yield Served(url, str(chain))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            print(log.read_text()[-4000:])  # shown with a failure


def client(served: Served, **options: Any) -> OpenAIBackend:
    return OpenAIBackend(served.url, options.pop("model", served.chain), **{"retries": 0, **options})


def tokenizer(folder: str | Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


# ---- the raw server ----------------------------------------------------------------------------------


def test_raw_greedy_and_the_limit(served: Served) -> None:
    assert served.choice(prompt="a") == ("bcdefg", "stop")
    assert served.choice(prompt="1", max_tokens=4) == ("2345", "length")
    # The end token right at the limit is told as "length": nobody can tell.
    assert served.choice(prompt="a", max_tokens=7) == ("bcdefg", "length")


def test_raw_keeps_the_stop_string(served: Served) -> None:
    assert served.choice(prompt="m", stop=[MARK]) == ("no({", "stop")
    # ... and says "length" if it comes with the last token.
    assert served.choice(prompt="1", stop=["5"], max_tokens=4) == ("2345", "length")


def test_raw_strips_special_tokens(served: Served) -> None:
    assert served.choice(prompt="A") == ("BCDEF", "stop")
    # It stops at one, and nothing in the answer says so.
    assert served.choice(prompt="A", stop=[CALL]) == ("BC", "stop")
    answer = served.post(prompt="A", skip_special_tokens=False)
    assert (answer.status_code, "skip_special_tokens" in answer.text) == (422, True)


def test_raw_takes_strings_only(served: Served) -> None:
    for prompt in ([97], ["a", "m"]):
        assert served.post(prompt=prompt).status_code == 400


def test_raw_ignores_and_rejects(served: Served) -> None:
    for field in ({"logprobs": 1}, {"echo": True}, {"logit_bias": {"99": -100}}, {"n": 2}):
        answer = served.post(prompt="a", **field).json()
        assert [choice["text"] for choice in answer["choices"]] == ["bcdefg"], field
        assert "logprobs" not in answer["choices"][0]
    assert served.post(prompt="a", structured_outputs={"grammar": 'root ::= "x"'}).status_code == 422


def test_raw_stream(served: Served) -> None:
    events = [line for line in served.post(prompt="u", max_tokens=4, stream=True).text.split("\n") if line]
    assert all(line.startswith("data: {") for line in events)  # no [DONE]
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in events]
    assert [choice["text"] for choice in choices] == ["é", "v", "w", ""]
    assert [choice.get("finish_reason") for choice in choices] == [None, None, None, "length"]


# ---- the client --------------------------------------------------------------------------------------


def test_what_the_client_finds(served: Served) -> None:
    made = client(served, tokenizer=tokenizer(served.chain))
    assert made.connect() == "transformers"
    assert made.can == frozenset()
    assert made.tokenizer is None


@pytest.mark.parametrize(
    ("prompt", "params", "expected"),
    [
        ("a", {}, ("bcdefg", "eos", None)),
        ("m", {"stop": (MARK,)}, ("no", "stop", MARK)),
        ("m", {"stop": ("o({", MARK)}, ("n", "stop", "o({")),
        ("1", {"max_tokens": 4}, ("2345", "length", None)),
        ("1", {"max_tokens": 4, "stop": ("5",)}, ("234", "stop", "5")),
        ("1", {"max_tokens": 4, "stop": ("56",)}, ("2345", "length", None)),
        ("u", {"stop": ("v",)}, ("é", "stop", "v")),
        ("u", {"stop": ("é",)}, ("", "stop", "é")),
        ("A", {}, ("BCDEF", "eos", None)),
    ],
)
def test_normalised(
    served: Served, prompt: str, params: dict[str, Any], expected: tuple[str, str, str | None]
) -> None:
    made = client(served)
    asked = Params(**{"max_tokens": 20, **params})
    (whole,) = made.generate([prompt], asked)
    assert (whole.text, whole.finish, whole.stop) == expected
    assert whole.usage.prompt == 1

    async def run() -> None:
        stream = made.astream(prompt, asked)
        assert "".join([piece async for piece in stream]) == expected[0]
        assert stream.generation == whole
        await made.aclose()

    asyncio.run(run())


def test_a_stripped_stop_is_refused(served: Served) -> None:
    made = client(served, tokenizer=tokenizer(served.chain))
    for stop in (CALL, f"x{CALL}", "</s>"):
        with pytest.raises(InvalidArgument, match="strips from text"):
            made.generate(["A"], Params(stop=(stop,)))
    assert made.generate(["m"], Params(stop=(MARK,)))[0].stop == MARK


def test_batch(served: Served) -> None:
    expected = ["bcdefg", "BCDEF", "no({pqr", "23456789"] * 3
    made = client(served, concurrency=4)
    assert [g.text for g in made.generate(["a", "A", "m", "1"] * 3, Params(max_tokens=8))] == expected


def test_errors(served: Served) -> None:
    with pytest.raises(BackendError, match="server failed"):  # status 200, and an event with the error
        client(served).generate([""], Params())
    with pytest.raises(BackendError):
        client(served, model="/no/such/model").generate(["a"], Params())
    with pytest.raises(BackendError, match="422") as caught:
        client(served).generate(["a"], Params(extra={"unheard_of": 1}))
    assert "unheard_of" in str(caught.value)


def test_same_text_as_the_model_itself(served: Served) -> None:
    """The trained model, where there is one: against its own greedy decoding, cut by hand."""
    if not TRAINED.exists():
        pytest.skip(f"no {TRAINED}")
    import torch
    from transformers import AutoModelForCausalLM

    words = tokenizer(TRAINED)
    model = AutoModelForCausalLM.from_pretrained(TRAINED)
    made = client(served, model=str(TRAINED), tokenizer=words)
    stopped = 0
    for prompt in ("Ana", "Tell me where she was born.", "The capital of France is", "(", f"{MARK}MEM_READ("):
        ids = words(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        text = words.decode(out, skip_special_tokens=True)
        (whole,) = made.generate([prompt], Params(max_tokens=24, stop=(MARK, ")-->")))
        marks = [(text.find(mark) + len(mark), mark) for mark in (MARK, ")-->") if mark in text]
        if marks:
            end, mark = min(marks)
            stopped += 1
            assert (whole.text, whole.stop) == (text[: end - len(mark)], mark)
        else:
            assert (whole.text, whole.stop) == (text, None)
    print(f"{stopped} of 5 prompts ended at a mark")


def test_the_loops_over_the_server(served: Served, tmp_path: Path) -> None:
    """The read loop and the writer, with the trained model behind the server."""
    pytest.importorskip("sentencex")
    import pymemstore
    from pymemstore.memllm.reader import Reader
    from pymemstore.memllm.writer import Writer

    made = client(served, model=str(TRAINED))
    with pymemstore.open(tmp_path / "m.mem") as memory:
        report = Writer(memory, made).write(
            "Bakedo Filuma was born in Zorani. He works for Mafasu Bank.", "d"
        )
        assert (report.new, report.errors, report.late_stopping, report.constrained) == (2, 0, False, False)
        reader = Reader(memory, made, max_tokens=60)
        result = reader.read("Bakedo Filuma was born in")
        # Without its space: the server decodes each answer by itself.
        assert result.text.startswith("Zorani") and result.trace.calls[0].results == ("Zorani",)
        assert result.trace.notes and not result.trace.calls[0].guided

        async def run() -> list[str]:
            prompts = ["Bakedo Filuma was born in", "Bakedo Filuma works for"]
            return [r.text for r in await asyncio.gather(*map(reader.aread, prompts))]

        born, works = asyncio.run(run())
        assert born == result.text and works.startswith("Mafasu Bank")
        # What looks like a control token is kept from a server that takes text only.
        memory.replace("Bakedo Filuma", "place of birth", "</s>")
        assert reader.read("Bakedo Filuma was born in").trace.calls[0].dropped == "unsafe names"
