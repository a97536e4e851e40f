"""The client of OpenAI-compatible servers against a server that misbehaves in every way known."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httpx")

from fake_server import (
    Answer,
    FakeServer,
    Handler,
    cut,
    event,
    hangs_up,
    silent,
    status,
    stream_bytes,
    streamed,
    usage_event,
    words,
)

from pymemstore.backends import Generation, Params, Segment
from pymemstore.backends._completion import Completion, EventReader
from pymemstore.backends.openai import OpenAIBackend
from pymemstore.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadResponse,
    InvalidArgument,
)

GOOD = streamed([*words(["Ana", " Lima"]), usage_event(3, 2)])
FACES = ["generate", "stream", "agenerate", "astream"]


def backend(server: FakeServer | str, /, **options: Any) -> OpenAIBackend:
    url = server if isinstance(server, str) else server.url
    return OpenAIBackend(url, "m", **{"timeout": 5.0, "retries": 0, **options})


def complete(
    face: str, server: FakeServer | str, params: Params | None = None, /, **options: Any
) -> Generation:
    """The same request by one of the four faces; of the streams also that the pieces make up the text."""
    params = params or Params()
    made = backend(server, **options)
    if face == "generate":
        return made.generate(["p"], params)[0]
    if face == "stream":
        stream = made.stream("p", params)
        pieces = list(stream)
        assert "".join(pieces) == stream.generation.text
        return stream.generation

    async def run() -> Generation:
        try:
            if face == "agenerate":
                return (await made.agenerate(["p"], params))[0]
            running = made.astream("p", params)
            pieces = [piece async for piece in running]
            assert "".join(pieces) == running.generation.text
            return running.generation
        finally:
            await made.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("face", FACES)
def test_normal_answer(face: str) -> None:
    with FakeServer(GOOD) as server:
        answer = complete(face, server, Params(max_tokens=7, temperature=0.5, seed=3))
    assert (answer.text, answer.finish, answer.stop) == ("Ana Lima", "eos", None)
    assert answer.parts == (Segment("Ana Lima"),)
    assert (answer.usage.prompt, answer.usage.computed, answer.usage.generated) == (3, None, 2)
    sent = server.requests[0]
    assert (sent["model"], sent["prompt"], sent["max_tokens"]) == ("m", "p", 7)
    assert (sent["temperature"], sent["seed"]) == (0.5, 3)


@pytest.mark.parametrize("face", FACES)
def test_one_byte_at_a_time(face: str) -> None:
    text = ["né", "e 🙂\u2028", "\u0085x(", "{MEM"]
    with FakeServer(streamed(words(text), step=1)) as server:
        answer = complete(face, server, Params(stop=("({",)))
    assert (answer.text, answer.finish, answer.stop) == ("née 🙂\u2028\u0085x", "stop", "({")


def test_whole_json_in_place_of_a_stream() -> None:
    body = json.dumps({"choices": [{"text": "Ana", "finish_reason": "length"}]}).encode()
    with FakeServer(status(200, body)) as server:
        assert complete("generate", server).finish == "length"


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
def test_line_ends_and_comments(end: str) -> None:
    stream = b": ping" + end.encode() + stream_bytes(words(["a", "b"]), end=end)
    for step in (1, 2, 3, len(stream)):
        completion = Completion(Params())
        reader = EventReader(completion, events=True)
        text = "".join(reader.feed(stream[at : at + step]) for at in range(0, len(stream), step))
        assert text + reader.end() == "ab"


# ---- errors: every one typed, with the text so far ---------------------------------------------------

SOME = stream_bytes(words(["Ana", " Li"], None), done=False)
BROKEN: list[tuple[str, Answer, type[BackendError], str, int | None, str]] = [
    ("500", status(500, b"Internal Server Error", "text/plain"), BackendError, "", 500, "Internal Server"),
    ("400", status(400, b'{"error":{"message":"bad grammar"}}'), BackendError, "", 400, "bad grammar"),
    ("422", status(422, b'{"detail":"Unexpected fields"}'), BackendError, "", 422, "Unexpected fields"),
    ("401", status(401, b'{"error":"no key"}'), BackendError, "", 401, "no key"),
    ("302", status(302, b"", Location="/elsewhere"), BackendError, "", 302, "302"),
    ("503", status(503, b'{"error":"loading"}'), BackendError, "", 503, "loading"),
    ("no answer", hangs_up, BackendUnavailable, "", None, "1 try"),
    ("silent", silent(), BackendTimeout, "", None, "silent"),
    ("falls silent", silent(SOME), BackendTimeout, "Ana Li", None, "silent"),
    ("cut", cut(SOME), BadResponse, "Ana Li", None, "broke off"),
    ("cut in JSON", cut(SOME + b'data: {"choices": [{"te'), BadResponse, "Ana Li", None, "broke off"),
    ("cut, no length", cut(SOME, chunked=False), BadResponse, "Ana Li", None, "broke off"),
    ("cut in JSON, no length", cut(SOME + b'data: {"ch', chunked=False), BadResponse, "Ana Li", None, "cut"),
    (
        "ends without finish",
        streamed(words(["Ana"], None), done=False),
        BadResponse,
        "Ana",
        None,
        "broke off",
    ),
    ("done without finish", streamed(words(["Ana"], None)), BadResponse, "Ana", None, "broke off"),
    ("no JSON", streamed([event("Ana"), "{oops"]), BadResponse, "Ana", None, "no JSON"),
    ("a list", streamed([event("Ana"), "[]"]), BadResponse, "Ana", None, "no completion"),
    ("no choices", streamed([event("Ana"), "{}"]), BadResponse, "Ana", None, "no choices"),
    ("empty choices", streamed([event("Ana"), '{"choices":[]}']), BadResponse, "Ana", None, "no choices"),
    ("no text", streamed([event("Ana"), '{"choices":[{}]}']), BadResponse, "Ana", None, "no text"),
    ("text a number", streamed(['{"choices":[{"text":1}]}']), BadResponse, "", None, "no text"),
    ("half a character", streamed(['{"choices":[{"text":"\\ud800"}]}']), BadResponse, "", None, "half"),
    ("error event", streamed([event("Ana"), '{"error":"boom"}']), BackendError, "Ana", None, "boom"),
    (
        "coded error event",
        streamed([event("Ana"), '{"error":{"message":"boom","code":500}}']),
        BackendError,
        "Ana",
        500,
        "boom",
    ),
    ("aborted", streamed(words(["Ana"], "abort")), BackendError, "Ana", None, "abort"),
    ("HTML", status(200, b"<html>login</html>", "text/html"), BadResponse, "", None, "login"),
    ("empty JSON", status(200, b"{}"), BadResponse, "", None, "no choices"),
    ("JSON without end", status(200, b'{"choices":[{"text":"Ana"}]}'), BadResponse, "Ana", None, "finish"),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("answer", "kind", "text", "code", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken_answers(
    face: str, answer: Answer, kind: type[BackendError], text: str, code: int | None, says: str
) -> None:
    with FakeServer(answer) as server, pytest.raises(BackendError) as caught:
        complete(face, server, server="generic", timeout=0.3)
    assert type(caught.value) is kind
    assert (caught.value.text, caught.value.status) == (text, code)
    assert says in str(caught.value)


@pytest.mark.parametrize("face", FACES)
def test_refused_connection(face: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        with pytest.raises(BackendUnavailable, match="2 tries"):
            complete(face, f"http://127.0.0.1:{taken.getsockname()[1]}", retries=1)


@pytest.mark.parametrize("face", FACES)
def test_retries(face: str) -> None:
    first: list[Answer] = [status(429, b"{}", Retry_After="0"), hangs_up, status(503, b"", Retry_After="0")]
    with FakeServer([*first, GOOD]) as server:
        assert complete(face, server, retries=3).text == "Ana Lima"
        assert len(server.requests) == 4
    with FakeServer([status(429, b'{"error":"busy"}', Retry_After="0")]) as server:
        with pytest.raises(BackendError, match="busy") as caught:
            complete(face, server, retries=2)
        assert (len(server.requests), caught.value.status) == (3, 429)


@pytest.mark.parametrize(
    "answer", [status(500, b"no"), cut(SOME), silent(SOME)], ids=["500", "cut", "silent"]
)
def test_not_retried(answer: Answer) -> None:
    with FakeServer([answer, GOOD]) as server:
        with pytest.raises(BackendError):
            complete("generate", server, retries=5, timeout=0.3)
        assert len(server.requests) == 1


def test_retry_after_is_obeyed() -> None:
    with FakeServer([status(503, b"", Retry_After="1"), GOOD]) as server:
        began = time.monotonic()
        complete("generate", server, retries=1)
        assert time.monotonic() - began >= 1


def test_what_fails_after_the_end_does_no_harm() -> None:
    ended = stream_bytes(words(["Ana"]), done=False)
    stopped = stream_bytes([event("Ana({")], done=False)
    for data, finish in ((ended, "eos"), (stopped, "stop")):
        for answer in (cut(data), silent(data), cut(data + b'data: {"us', chunked=False)):
            with FakeServer(answer) as server:
                made = complete("generate", server, Params(stop=("({",)), timeout=0.3)
            assert (made.text, made.finish) == ("Ana", finish)


def test_last_event_without_its_blank_line() -> None:
    data = stream_bytes(words(["Ana"]), done=False).rstrip()
    with FakeServer(cut(data, chunked=False)) as server:
        assert complete("generate", server).finish == "eos"


# ---- what servers do with stop strings ---------------------------------------------------------------


def slow_cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The stop string that is complete first, the longest of those, found letter by letter."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("ab({é", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("ab({é", min_size=1, max_size=3), max_size=3).map(tuple),
    st.sampled_from(["keeps", "goes on", "vllm"]),
    st.integers(1, 7),
)
def test_stop_strings_however_the_server_treats_them(
    tokens: list[str], stops: tuple[str, ...], how: str, step: int
) -> None:
    text, stop = slow_cut("".join(tokens), stops)
    sent, reason = tokens, None
    if stop is not None and how != "goes on":
        while stop is not None and slow_cut("".join(sent[:-1]), stops)[1] is not None:
            sent = sent[:-1]  # the server ends with the token that completes the stop string
        reason = stop if how == "vllm" else None
    data = stream_bytes(words(sent, "stop", stop_reason=reason))
    completion = Completion(Params(stop=stops))
    reader = EventReader(completion, events=True)
    pieces = []
    for at in range(0, len(data), step):
        pieces.append(reader.feed(data[at : at + step]))
        if reader.finished:
            break
    pieces.append(reader.end())
    made = completion.generation()
    assert (made.text, made.stop) == (text, stop)
    assert made.finish == ("eos" if stop is None else "stop")
    assert "".join(pieces) == text


@pytest.mark.parametrize("kind", ["generic", "transformers", "vllm"])
def test_what_is_sent(kind: str) -> None:
    with FakeServer(GOOD, kind) as server:
        made = backend(server)
        assert made.connect() == kind
        made.generate(["p"], Params(stop=("({", "})")))
    sent = server.requests[0]
    # A server of unknown kind may cut the stop string off without telling, so it gets none.
    assert sent.get("stop") == (None if kind == "generic" else ["({", "})"])
    assert sent.get("skip_special_tokens", "not sent") == ("not sent" if kind != "vllm" else False)
    assert ("include_stop_str_in_output" in sent) == (kind == "vllm")


def test_a_server_that_goes_on_is_left() -> None:
    def endless(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(stream_bytes([event("Ana({")], done=False))
        while not handler.server.over.is_set():
            handler.send(stream_bytes([event("x")], done=False))
            time.sleep(0.005)

    for face in FACES:
        with FakeServer(endless) as server:
            assert complete(face, server, Params(stop=("({",))).text == "Ana"
            assert server.left.wait(5)


def test_closing_a_stream_leaves_the_server() -> None:
    def endless(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        while not handler.server.over.is_set():
            handler.send(stream_bytes([event("x")], done=False))
            time.sleep(0.005)

    with FakeServer(endless) as server:
        stream = backend(server).stream("p", Params())
        assert next(stream)
        stream.close()
        assert server.left.wait(5)
        assert list(stream) == []
        with pytest.raises(InvalidArgument, match="not ended"):
            _ = stream.generation

    async def run() -> None:
        made = backend(server)
        running = made.astream("p", Params())
        assert await anext(running)
        await running.aclose()
        assert await asyncio.to_thread(server.left.wait, 5)
        with pytest.raises(InvalidArgument, match="not ended"):
            _ = running.generation
        await made.aclose()

    with FakeServer(endless) as server:
        asyncio.run(run())


# ---- batches -----------------------------------------------------------------------------------------


def echo(handler: Handler, body: dict[str, Any]) -> None:
    """Answers with the prompt, later ones sooner."""
    time.sleep(0.02 - 0.0002 * int(body["prompt"][1:]))
    streamed(words(["to ", body["prompt"]]))(handler, body)


@pytest.mark.parametrize("face", ["generate", "agenerate"])
def test_a_hundred_prompts_bounded_and_in_order(face: str) -> None:
    prompts = [f"p{i}" for i in range(100)]
    with FakeServer(echo) as server:
        made = backend(server, concurrency=8)
        if face == "generate":
            answers = made.generate(prompts, Params())
        else:
            answers = asyncio.run(made.agenerate(prompts, Params()))
    assert [answer.text for answer in answers] == [f"to {prompt}" for prompt in prompts]
    assert len(server.requests) == 100
    assert 1 < server.most <= 8


@pytest.mark.parametrize("face", ["generate", "agenerate"])
def test_one_failure_ends_the_batch_and_is_named(face: str) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        (cut(SOME) if body["prompt"] == "p3" else echo)(handler, body)

    prompts = [f"p{i}" for i in range(60)]
    with FakeServer(answer) as server:
        made = backend(server, concurrency=2)
        with pytest.raises(BadResponse, match=r"^prompts\[3\]: .*broke off") as caught:
            if face == "generate":
                made.generate(prompts, Params())
            else:
                asyncio.run(made.agenerate(prompts, Params()))
        assert caught.value.text == "Ana Li"
        assert len(server.requests) < 20


def test_no_prompts_and_several_event_loops() -> None:
    with FakeServer(GOOD) as server:
        made = backend(server)
        assert made.generate([], Params()) == []
        for _ in range(3):
            assert asyncio.run(made.agenerate(["p"], Params()))[0].text == "Ana Lima"
        made.close()


def test_cancelling_leaves_the_server() -> None:
    async def run(server: FakeServer) -> None:
        made = backend(server, timeout=20.0)
        task = asyncio.ensure_future(made.agenerate(["p", "q"], Params()))
        while len(server.requests) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await made.aclose()

    with FakeServer(silent(SOME)) as server:
        asyncio.run(run(server))


# ---- params and arguments ----------------------------------------------------------------------------


def test_what_is_not_honoured_is_refused() -> None:
    asked: dict[str, dict[str, Any]] = {
        "guide": {"guide": lambda: None},
        "chooser": {"chooser": lambda rows: None},
        "grammar": {"grammar": 'root ::= "a"'},
        "logprobs": {"logprobs": True},
        "ban": {"ban": ("({",)},
    }
    can = {"generic": {"logprobs"}, "transformers": set[str](), "vllm": {"grammar", "logprobs"}}
    for kind, honoured in can.items():
        with FakeServer(GOOD, kind) as server:
            made = backend(server)
            assert made.can == honoured
            assert made.tokenizer is None
            for what in asked.keys() - honoured:
                with pytest.raises(InvalidArgument, match=f"^{what}: .*{kind}"):
                    made.generate(["p"], Params(**asked[what]))
            assert server.requests == []


def test_logprobs() -> None:
    given = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1], "top_logprobs": [{"a": -0.5}, {"b": -1.0}]}
    halves = [{key: values[i : i + 1] for key, values in given.items()} for i in (0, 1)]
    events = [event("a", logprobs=halves[0]), event("b", "length", logprobs=halves[1])]
    with FakeServer(streamed(events)) as server:
        made = backend(server).stream("p", Params(logprobs=True))
        assert "".join(made) == "ab"
        assert made.generation.logprobs == (-0.5, -1.0)
        assert made.generation.server_logprobs == given
        assert server.requests[0]["logprobs"] == 1
    for events in (words(["a"]), [event("a", "stop", logprobs={"token_logprobs": [None]})]):
        with FakeServer(streamed(events)) as server, pytest.raises(BadResponse, match="log-prob"):
            complete("generate", server, Params(logprobs=True))


def test_extra() -> None:
    with FakeServer(GOOD, "transformers") as server:
        made = backend(server)
        made.generate(["p"], Params(extra={"top_p": 0.5}))
        assert server.requests[0]["top_p"] == 0.5
        for name in ("stop", "n", "prompt", "stream", "logit_bias"):
            with pytest.raises(InvalidArgument, match=name):
                made.generate(["p"], Params(extra={name: 1}))
        with pytest.raises(InvalidArgument, match="can't be sent"):
            made.generate(["p"], Params(extra={"top_p": float("nan")}))
        with pytest.raises(InvalidArgument, match="can't be sent"):
            made.generate(["\ud800"], Params())
        assert len(server.requests) == 1


def test_too_long_a_prompt() -> None:
    message = b'{"error":{"message":"This model\'s maximum context length is 512 tokens"}}'
    with FakeServer(status(400, message)) as server, pytest.raises(InvalidArgument, match="512"):
        complete("generate", server)


def test_counts_of_the_cache() -> None:
    told = usage_event(9, 1, prompt_tokens_details={"cached_tokens": 6})
    with FakeServer(streamed([*words(["a"]), told])) as server:
        assert complete("generate", server).usage.computed == 3


def test_detection_is_asked_once_and_can_fail() -> None:
    with FakeServer(GOOD, "vllm") as server:
        made = backend(server)
        for _ in range(3):
            made.generate(["p"], Params())
        assert server.gets == ["/v1/models"]
        server.pages["/v1/models"] = status(401, b'{"error":"no key"}')
        with pytest.raises(BackendError, match="no key"):
            backend(server).connect()
        del server.pages["/v1/models"]
        assert backend(server).connect() == "generic"
        server.pages["/v1/models"] = ["strange"]
        assert backend(server).connect() == "generic"


def test_key_is_sent_and_never_shown() -> None:
    with FakeServer(status(401, b"no")) as server:
        made = backend(server, api_key="hidden-key", client={"headers": {"X-Team": "a"}}, server="generic")
        with pytest.raises(BackendError) as caught:
            made.generate(["p"], Params())
        assert server.headers[0]["Authorization"] == "Bearer hidden-key"
        assert server.headers[0]["X-Team"] == "a"
    assert "hidden-key" not in f"{caught.value!r} {made!r}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "127.0.0.1:8000"},
        {"base_url": "ftp://x"},
        {"base_url": 3},
        {"model": ""},
        {"server": "tgi"},
        {"timeout": 0},
        {"retries": -1},
        {"concurrency": 0},
    ],
    ids=str,
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        OpenAIBackend(**{"base_url": "http://x", "model": "m", **wrong})


def test_urls() -> None:
    assert "'http://x:1/v1'" in repr(OpenAIBackend("http://x:1", "m"))
    assert "'http://x:1/v1'" in repr(OpenAIBackend("http://x:1/v1/", "m"))
    assert "'https://x/api/openai'" in repr(OpenAIBackend("https://x/api/openai", "m"))
