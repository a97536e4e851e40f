"""The vLLM plugin: its per-request processors on torch rows, and a small engine that calls them as vLLM."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from twin_late_stopping import CLOSING, EOS, INF, Stream, stream_of, twin

from pymemstore.errors import BadResponse, InvalidArgument
from pymemstore.memllm import vllm_plugin as plugin

torch = pytest.importorskip("torch")
VOCABULARY = 7


class Adapter:
    """What the plugin uses of vLLM's AdapterLogitsProcessor: requests by their place in the batch."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Any] = {}

    def enter(self, place: int, params: Any, prompt: list[int], output: list[int]) -> None:
        made = self.new_req_logits_processor(params)  # type: ignore[attr-defined]
        if made:
            wide = len(inspect.signature(made).parameters) == 3
            self.req_info[place] = functools.partial(made, *([prompt, output] if wide else [output]))

    def apply(self, logits: Any) -> Any:
        for place, call in self.req_info.items():
            logits[place] = call(logits[place])
        return logits


def params_of(**xargs: Any) -> Any:
    fields = {"pymemstore_" + key: value for key, value in xargs.items()}
    return SimpleNamespace(extra_args=fields, temperature=0.0, stop_token_ids=[CLOSING])


def engine() -> Any:
    return plugin.plugin_class(Adapter)(SimpleNamespace(model_config=None), None, False)


class Request:
    """One request of a server: its tokens and what the server reports of them."""

    def __init__(self, stream: Stream, params: Any, prompt: int = 2) -> None:
        self.stream, self.params, self.prompt = stream, params, [5] * prompt
        self.output: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[dict[int, float]] = []

    def row(self) -> Any:
        return torch.tensor(self.stream(self.output))

    def take(self, raw: Any, masked: Any, shown: int = 2) -> None:
        token = int(masked.argmax())
        logprobs = torch.log_softmax(raw, -1)
        best = logprobs.topk(min(shown, VOCABULARY))
        self.tops.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        self.tops[-1][token] = float(logprobs[token])
        self.logprobs.append(float(logprobs[token]))
        self.output.append(token)

    @property
    def done(self) -> bool:
        return self.output[-1:] in ([CLOSING], [EOS])

    def answer(self) -> dict[str, Any]:
        """As in a completions answer."""

        def name(token: int) -> str:
            return f"token_id:{token}"

        return {
            "tokens": [name(t) for t in self.output],
            "token_logprobs": self.logprobs,
            "top_logprobs": [{name(t): p for t, p in top.items()} for top in self.tops],
        }


def smooth(seed: int) -> Stream:
    """A stream without equal scores, which the reported log-probabilities could not tell apart."""
    plain = stream_of(seed)

    def scores(prefix: Sequence[int]) -> Any:
        noise = np.random.default_rng([seed, len(prefix), *prefix]).normal(size=VOCABULARY)
        return plain(prefix) + noise.astype(np.float32) * np.float32(0.01)

    return scores


def test_a_request_alone_equals_the_twin() -> None:
    for seed in range(1500):
        limit, patience, prompt = 1 + seed % 33, 1 + seed % 5, seed % 2 and 1 + seed % 4
        options = {"average": "reference"} if prompt else {}
        request = Request(smooth(seed), params_of(late_stop=CLOSING, patience=patience, **options), prompt)
        server = engine()
        server.validate_params(request.params)
        server.enter(0, request.params, request.prompt, request.output)
        while len(request.output) < limit and not request.done:
            raw = request.row()
            request.take(raw, server.apply(raw.clone()[None])[0])
        expected = twin(request.stream, limit, patience, prompt)
        found = plugin.cut_from_logprobs(
            request.answer(), CLOSING, [EOS], patience=patience, prompt_tokens=prompt, **options
        )
        assert found == expected, seed
        processor = server.req_info[0].func
        assert processor.resets == 0 and processor.error is None
        ended = expected.reason in ("patience", "only closing")
        assert (request.output[-1] == CLOSING) == ended  # nothing else ends with it, and never before


def test_equal_scores_are_taken_as_the_twin_takes_them() -> None:
    for seed in range(300):
        stream = stream_of(seed)
        request = Request(stream, params_of(late_stop=CLOSING, patience=2))
        server = engine()
        server.enter(0, request.params, request.prompt, request.output)
        while len(request.output) < 20 and not request.done:
            raw = request.row()
            request.take(raw, server.apply(raw.clone()[None])[0], VOCABULARY)
        expected = twin(stream, 20, 2)
        kept = len(expected.tokens) - (expected.cut is not None)
        assert request.output[:kept] == list(expected.tokens[:kept])
        found = plugin.cut_from_logprobs(request.answer(), CLOSING, [EOS], patience=2)
        assert found == expected, seed


def test_a_batch_with_parts_of_prompts_swaps_and_preemptions() -> None:
    preempted = 0
    for seed in range(60):
        rng = random.Random(seed)
        server = engine()
        requests = [
            Request(smooth(seed * 50 + i), params_of(late_stop=CLOSING, patience=2)) for i in range(6)
        ] + [Request(smooth(seed * 50 + 9), SimpleNamespace(extra_args=None, temperature=0.0))]
        waiting, running = list(requests), dict[int, Request]()
        while waiting or running:
            for place in [p for p in running if running[p].done or len(running[p].output) >= 20]:
                del running[place]
                server.req_info.pop(place, None)
            if running and rng.random() < 0.2:  # preempted: it comes back with a list of its own
                place = rng.choice(list(running))
                preempted += bool(running[place].output and server.req_info.get(place))
                server.req_info.pop(place, None)
                waiting.append(running.pop(place))
                waiting[-1].output = list(waiting[-1].output)
            if waiting and rng.random() < 0.7:
                place = next(i for i in range(9) if i not in running)
                request = waiting.pop(0)
                running[place] = request
                server.enter(place, request.params, request.prompt, request.output)
            if len(running) > 1 and rng.random() < 0.3:
                a, b = rng.sample(list(running), 2)
                running[a], running[b] = running[b], running[a]
                info, moved = (
                    server.req_info,
                    {b: server.req_info.pop(a, None), a: server.req_info.pop(b, None)},
                )
                info.update({place: call for place, call in moved.items() if call is not None})
            if not running:
                continue
            raw = torch.full((9, VOCABULARY), 0.0)
            for place, request in running.items():
                raw[place] = request.row()
            unfinished = [
                p for p in running if rng.random() < 0.2
            ]  # parts of prompts: the result is discarded
            for place in unfinished:
                raw[place] = torch.randn(VOCABULARY)
            masked = server.apply(raw.clone())
            for place, request in running.items():
                if place not in unfinished:
                    request.take(raw[place], masked[place])
        for request in requests[:-1]:
            found = plugin.cut_from_logprobs(request.answer(), CLOSING, [EOS], patience=2)
            assert found == twin(request.stream, 20, 2), seed
        assert len(server._remembered) == 6
        assert not any(known.resets for _, known in server._remembered.values())
        plain = requests[-1]
        assert plain.output == [
            int(np.argmax(plain.stream(plain.output[:i]))) for i in range(len(plain.output))
        ]
    assert preempted > 20


def test_requests_that_share_their_parameters() -> None:
    server, params = engine(), params_of(late_stop=CLOSING, patience=2)
    for seed in range(0, 40, 2):
        pair = [Request(smooth(seed + i), params) for i in range(2)]
        server.req_info.clear()
        for place, request in enumerate(pair):
            server.enter(place, params, request.prompt, request.output)
        while live := [p for p in (0, 1) if len(pair[p].output) < 20 and not pair[p].done]:
            raw = torch.stack([request.row() for request in pair])
            masked = server.apply(raw.clone())
            for place in live:
                pair[place].take(raw[place], masked[place])
        for request in pair:
            found = plugin.cut_from_logprobs(request.answer(), CLOSING, [EOS], patience=2)
            assert found == twin(request.stream, 20, 2), seed
        assert not any(call.func.resets for call in server.req_info.values())


def test_only_so_many_requests_are_remembered() -> None:
    server = engine()
    for _ in range(1000):
        server.enter(0, params_of(late_stop=CLOSING), [5], [])
    assert len(server._remembered) == 256


def test_unknown_tokens_make_it_count_anew(caplog: pytest.LogCaptureFixture) -> None:
    processor = plugin.RequestProcessor(
        plugin._wish({"pymemstore_late_stop": CLOSING, "pymemstore_patience": 1})
    )
    row = torch.tensor([0.0, -INF, 1.0, 3.0, 2.0])
    assert int(processor([4, 4], row).argmax()) == 4 and processor.resets == 1
    assert "anew after 2 tokens" in caplog.text
    assert int(processor([4, 4, 4], row).argmax()) == CLOSING  # sure of } as before: the average is no better
    assert int(processor([4, 4, 4, CLOSING], row).argmax()) == CLOSING  # the server goes on: nothing else
    assert int(processor([4, 4], row).argmax()) == 4 and processor.resets == 1  # back
    assert int(processor([2], row).argmax()) == 4 and processor.resets == 2


class Guide:
    """Token n may be followed by the larger ones, and by 0."""

    def __init__(self, size: int = VOCABULARY) -> None:
        self.allowed = np.ones(size, bool)

    def mask(self) -> Any:
        return self.allowed

    def advance(self, token: int) -> None:
        assert self.allowed[token]
        self.allowed = np.arange(len(self.allowed)) > token
        self.allowed[0] = True


def test_guides_mask_alone_and_before_late_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def guide_from_spec(spec: Any, vocabulary: Any) -> Guide:
        asked.append((spec, vocabulary))
        return Guide(spec["size"])

    fake: Any = types.ModuleType("pymemstore.memllm.automaton")
    fake.guide_from_spec, fake.Vocabulary = (
        guide_from_spec,
        SimpleNamespace(from_tokenizer=lambda t: ("of", t)),
    )
    monkeypatch.setitem(sys.modules, "pymemstore.memllm.automaton", fake)
    tokenizers: Any = types.ModuleType("vllm.tokenizers")
    tokenizers.cached_tokenizer_from_config = lambda config: f"tokenizer of {config}"
    monkeypatch.setitem(sys.modules, "vllm.tokenizers", tokenizers)
    server = engine()
    rng = np.random.default_rng(3)
    rows = torch.tensor(rng.normal(size=(40, VOCABULARY)).astype(np.float32))
    output: list[int] = []
    server.enter(0, params_of(guide='{"size": 5}'), [1], output)
    for row in rows:
        (masked,) = server.apply(row.clone()[None])
        allowed = [t for t in range(5) if not output or t == 0 or t > output[-1]]
        assert torch.equal(masked[allowed], row[allowed])
        assert [t for t in range(VOCABULARY) if masked[t] > -INF] == allowed
        output.append(int(masked.argmax()))
    assert asked == [({"size": 5}, ("of", "tokenizer of None"))]
    output[:] = [4, 0, 2]  # other tokens than it saw: the guide reads them anew
    (masked,) = server.apply(rows[:1].clone())
    assert [t for t in range(VOCABULARY) if masked[t] > -INF] == [0, 3, 4] and len(asked) == 2

    rows[:, CLOSING] += 2.5
    rows[:, EOS] = -INF
    request = Request(
        lambda prefix: rows[len(prefix)].numpy(), params_of(late_stop=CLOSING, guide={"size": 7})
    )
    server.enter(0, request.params, request.prompt, request.output)
    allowed_at = []
    guide = Guide()
    while len(request.output) < 30 and not request.done:
        raw = request.row()
        (masked,) = server.apply(raw.clone()[None])
        allowed_at.append(bool(guide.mask()[CLOSING]))
        left = np.where(guide.mask(), raw.numpy(), -INF)
        order = [int(t) for t in np.argsort(-left) if left[t] > -INF]
        assert int(masked.argmax()) in order[:1] if order[0] != CLOSING else [*order[1:2], CLOSING]
        request.take(raw, masked, VOCABULARY)
        if not request.done:
            guide.advance(request.output[-1])
    assert False in allowed_at and True in allowed_at
    found = plugin.cut_from_logprobs(request.answer(), CLOSING, [], closing_allowed=allowed_at)
    processor = server.req_info[0].func
    assert processor.error is None and found.points == tuple(processor._late.points)
    assert len(found.points) > 2


def test_an_error_of_a_guide_ends_no_server(caplog: pytest.LogCaptureFixture) -> None:
    processor = plugin.RequestProcessor(plugin._wish({"pymemstore_guide": {}}), Guide)
    row = torch.zeros(VOCABULARY)
    processor([], row)
    assert torch.equal(processor([4, 2], row), row)
    assert (
        "token 2 was taken, which the guide forbids" in str(processor.error)
        and "guide forbids" in caplog.text
    )
    assert torch.equal(processor([4], row), row)
    hidden = plugin.RequestProcessor(plugin._wish({"pymemstore_late_stop": CLOSING}))
    hidden([-1], row)
    assert "--logits-processors" in str(hidden.error)


def test_requests_are_refused_in_the_front() -> None:
    check = engine().validate_params
    check(params_of(late_stop=CLOSING, patience=3, average="reference"))
    check(SimpleNamespace(extra_args=None, temperature=1.0))
    check(SimpleNamespace(extra_args={"other": 1}, temperature=1.0))
    wrong: list[dict[str, Any]] = [
        {"late_stop": "3"}, {"late_stop": -1}, {"late_stop": True}, {"late_stop": 3, "patience": 0},
        {"late_stop": 3, "patience": 1.5}, {"late_stop": 3, "average": "mean"}, {"late": 3},
        {"guide": "{"}, {"guide": "[]"}, {"guide": 5}, {"late_stop": 4},
    ]  # fmt: skip
    for xargs in wrong:
        with pytest.raises(InvalidArgument):
            check(params_of(**xargs))
    hot = params_of(late_stop=CLOSING)
    hot.temperature = 0.7
    with pytest.raises(InvalidArgument, match="greedy"):
        check(hot)


def test_request_fields_are_what_the_server_accepts() -> None:
    fields = plugin.request_fields(CLOSING, patience=4, guide={"kind": "write", "names": ["é"]})
    params = SimpleNamespace(
        extra_args=fields["vllm_xargs"],
        temperature=fields["temperature"],
        stop_token_ids=fields["stop_token_ids"],
    )
    engine().validate_params(params)
    assert plugin._wish(params.extra_args).guide == {"kind": "write", "names": ["é"]}  # type: ignore[union-attr]
    for flawed in (
        {}, {"tokens": ["}"], "token_logprobs": [-1.0], "top_logprobs": [{}]},
        {"tokens": ["token_id:5"], "token_logprobs": [None], "top_logprobs": [{}]},
        {"tokens": ["token_id:5"], "token_logprobs": [-1.0], "top_logprobs": None},
    ):  # fmt: skip
        with pytest.raises(BadResponse):
            plugin.cut_from_logprobs(flawed, CLOSING)


def test_without_vllm_the_module_is_there_and_says_so() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidArgument, match="not installed"):
            plugin.MemllmLogitsProcessor(None, None, False)
    else:
        from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

        assert issubclass(plugin.MemllmLogitsProcessor, AdapterLogitsProcessor)
