"""The read loop against scripted models: every rule of MemLLM's section 3.2, and the bounds of a turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_file
from scripted import Script, Scripted

import pymemstore
from pymemstore import BackendError, BadResponse, Closed, InvalidArgument, Memory, aio, calls
from pymemstore.backends.base import Params, Segment
from pymemstore.memllm.reader import Reader, ReadResult

BORN = "({MEM_READ(Ana Lima>>born in>>)-->"
CASES = {
    case["id"]: case
    for case in json.loads(shared_file("cases/loop/scripted_model.json").read_text("utf-8"))["scripts"]
}
LIMITS = {"max_reads": 8, "max_tokens": 400}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem") as opened:
        opened.add("Ana Lima", "born in", "Recife")
        opened.add("Bo", "born in", "Oslo")
        yield opened


class emits:  # a script, made as a function is
    """A model that writes `text`, calls and all, from where it stopped. What it may not write ends it."""

    def __init__(self, text: str) -> None:
        self.left = text

    def __call__(self, prompt: str, params: Params) -> str:
        wrote = self.left[: params.max_tokens]
        cuts = [(at, len(s)) for s in params.stop if (at := wrote.find(s)) >= 0]
        cuts += [(at, 0) for s in params.ban if (at := wrote.find(s)) >= 0]
        at, length = min(cuts, default=(len(wrote), 0))
        # As a real model, it is cut by the backend: at a stop string, or at max_tokens.
        shown, self.left = self.left[: at + max(length, 1)], self.left[at + length :]
        return shown if length or not cuts else shown[:at]


def forever(*calls_: str) -> Script:
    """A model that opens a call wherever it may: the first of them, then the second, ..., then the last."""
    opened = iter(range(10**9))

    def script(prompt: str, params: Params) -> str:
        if not prompt.endswith("({"):
            return "x" * (params.max_tokens + 1) if params.ban else "({"
        return calls_[min(next(opened), len(calls_) - 1)].removeprefix("({")

    return script


def read(
    memory: Memory, script: Script, can: tuple[str, ...] = ("data", "ban"), **options: Any
) -> ReadResult:
    return Reader(memory, Scripted(script, can=frozenset(can)), **{**LIMITS, **options}).read("Hello")


def asked(result: ReadResult) -> list[tuple[str | None, str, str | None]]:
    return [
        (q.subject, q.relation, q.object) for call in result.trace.calls for q in call.asked if not q.cached
    ]


def text_of(parts: tuple[Segment, ...]) -> str:
    return "".join(part.text for part in parts)


# ---- the cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("can", [("data",), ("data", "ban")], ids=["text only", "ban"])
@pytest.mark.parametrize(("case", "why"), [("same_query", "repeated read"), ("no_result", "no result")])
def test_the_same_call_for_ever_ends(memory: Memory, case: str, why: str, can: tuple[str, ...]) -> None:
    result = read(memory, forever(CASES[case]["emit_forever"]), can)
    assert result.reads_ended == why
    assert result.finish == ("length" if "ban" in can else why)
    assert len(asked(result)) == 1 and len(result.trace.calls) <= 3 and set(result.text) <= {"x"}


def test_ever_new_calls_end_at_max_reads(memory: Memory) -> None:
    pattern = CASES["growing"]["emit_pattern"]
    script = forever(*(pattern.replace("{i}", str(i)) for i in range(100)))
    result = read(memory, script)
    assert len(asked(result)) == len(result.trace.calls) == 8
    assert result.reads_ended == "max reads" and result.trace.generated_tokens <= 400
    assert [call.dropped for call in result.trace.calls] == ["no result"] * 8


def test_a_cut_call_is_not_asked(memory: Memory) -> None:
    result = read(memory, emits(CASES["no_end"]["emit"][0]))
    assert result.finish == "incomplete call" and asked(result) == [] and result.text == ""
    assert result.trace.calls[0].dropped == "incomplete"


def test_two_sessions_have_their_own_answers(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "1.mem") as first, pymemstore.open(tmp_path / "2.mem") as second:
        first.add("Ana Lima", "born in", "Recife")
        second.add("Ana Lima", "born in", "Olinda")
        again = forever(BORN)
        readers = [Reader(m, Scripted(again, can=frozenset({"data"})), max_reads=1) for m in (first, second)]
        results = [r.read("Hello").trace.calls[0].results for r in readers]
        first.add("Ana Lima", "born in", "Natal")
        results.append(readers[0].read("Hello").trace.calls[0].results)
    assert results == [("Recife",), ("Olinda",), ("Recife", "Natal")]


def test_words_for_ever_end_at_the_budget(memory: Memory) -> None:
    result = read(memory, lambda prompt, params: "".join(CASES["budget"]["emit"]))
    assert result.finish == "length" and result.trace.generated_tokens <= 400
    assert result.text.startswith("word word ")


# ---- the rules ----------------------------------------------------------------------------------------


def test_results_are_spliced_in_and_the_text_goes_on(memory: Memory) -> None:
    backend = Scripted(emits(f" was born in{BORN} Recife."), can=frozenset({"data"}))
    result = Reader(memory, backend).read("Hello")
    assert result.text == " was born in Recife." and result.finish == "eos"
    assert backend.prompts == [
        "Hello",
        "Hello was born in({",
        f"Hello was born in{BORN}Recife}})",
    ]
    assert text_of(result.context) == f"Hello was born in{BORN}Recife}}) Recife."
    assert text_of(result.parts) == result.text
    (call,) = result.trace.calls
    assert (call.position, call.text, call.results, call.dropped) == (12, BORN, ("Recife",), None)


def test_no_result_takes_the_call_out(memory: Memory) -> None:
    backend = Scripted(emits(" x({MEM_READ(Nobody>>born in>>)--> y"), can=frozenset({"data", "ban"}))
    result = Reader(memory, backend).read("Hello")
    assert result.text == " x y" and result.trace.calls[0].dropped == "no result"
    assert backend.prompts[2] == "Hello x" and text_of(result.context) == "Hello x y"


@pytest.mark.parametrize("count", [29, 30, 31, 200])
def test_more_than_q_thr_distinct_names_are_dropped_not_cut(memory: Memory, count: int) -> None:
    memory.add_many(
        [("Ana Lima", "likes", f"Thing {chr(65 + i // 26)}{chr(97 + i % 26)}") for i in range(count)]
    )
    result = read(memory, emits("({MEM_READ(Ana Lima>>likes>>)--> ok"), rules="none", numbers="any")
    (call,) = result.trace.calls
    assert (len(call.results), call.dropped) == ((count, None) if count <= 30 else (0, "too many results"))


def test_distinct_names_are_counted_across_queries_and_hits(memory: Memory) -> None:
    # 200 facts, but three distinct subjects: the first answer is cut and does not tell.
    names = [f"relation {chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(70)]
    memory.add_many([(who, name, "Hub") for name in names for who in ("One", "Two", "Three")])
    result = read(
        memory, emits("({MEM_READ(>>relation>>Hub)--> ok"), tau_e=0.9, tau_t=-1.0, tau_r=-1.0, rules="none"
    )
    assert sorted(result.trace.calls[0].results) == ["One", "Three", "Two"]


@pytest.mark.parametrize("way", ["read", "read_many"])
def test_answers_that_the_model_can_not_take_are_dropped(memory: Memory, way: str) -> None:
    memory.replace("Ana Lima", "born in", "x" * 500)

    def script(prompt: str, params: Params) -> str:
        if len(prompt) > 300:
            raise InvalidArgument("the prompt is too long")
        return born(prompt, params)

    born = emits(f" a{BORN} b")
    reader = Reader(memory, Scripted(script, can=frozenset({"data", "ban"})))
    prompts = ["Hello", "y" * 400] if way == "read_many" else ["Hello"]
    if way == "read_many":  # one prompt too long by itself is that row's error
        with pytest.raises(InvalidArgument) as caught:
            reader.read_many(prompts)
        assert caught.value.partial.text == "" and caught.value.partial.finish is None
        return
    result = reader.read("Hello")
    assert result.text == " a b" and [c.dropped for c in result.trace.calls] == ["too long"]
    assert result.trace.calls[0].results == ("x" * 500,)
    assert reader.read_many([]) == []


def test_a_new_call_takes_the_last_one_out(memory: Memory) -> None:
    second = "({MEM_READ(Bo>>born in>>)-->"
    backend = Scripted(emits(f" a{BORN} b{second} c"), can=frozenset({"data"}))
    result = Reader(memory, backend).read("Hello")
    assert [call.dropped for call in result.trace.calls] == ["new call", None]
    assert backend.prompts[3] == "Hello a b({"  # the first is gone when the second is written
    assert text_of(result.context) == f"Hello a b{second}Oslo}}) c"
    assert result.text == " a b c"


def test_a_query_is_asked_once_a_turn(memory: Memory) -> None:
    other = "({MEM_READ(Bo>>born in>>;Ana Lima>>born in>>)-->"
    result = read(memory, emits(f" a{BORN} b{other} c{BORN} d"))
    assert asked(result) == [("Ana Lima", "born in", None), ("Bo", "born in", None)]
    assert [call.results for call in result.trace.calls] == [("Recife",), ("Oslo", "Recife"), ("Recife",)]
    assert result.text == " a b c d" and result.reads_ended is None


def test_answers_are_merged_best_first_without_repeats(memory: Memory) -> None:
    memory.add("Bo", "lives in", "Recife")
    result = read(memory, emits("({MEM_READ(Bo>>lives in>>;Ana Lima>>born in>>;Bo>>born in>>)-->"))
    (call,) = result.trace.calls
    scores = {name: score for q in call.asked for name, score in reversed(q.names)}
    assert len(set(call.results)) == len(call.results) and set(call.results) == {"Recife", "Oslo"}
    assert [scores[n] for n in call.results] == sorted(scores.values(), reverse=True)


def test_stop_after_success(memory: Memory) -> None:
    text = f"({{MEM_READ(Nobody>>born in>>)-->a{BORN}b({{MEM_READ(Bo>>born in>>)-->c"
    result = read(memory, emits(text), ("data",), stop_after_success=True)
    assert [call.results for call in result.trace.calls] == [(), ("Recife",)]
    assert (result.finish, result.text) == ("first success", "ab")


def test_one_bad_part_does_not_lose_the_good_one(memory: Memory) -> None:
    result = read(memory, emits("({MEM_READ(Ana Lima>>born in>>;Bo>>born in)-->x"))
    (call,) = result.trace.calls
    assert (
        call.results == ("Recife",)
        and len(call.errors) == 1
        and asked(result) == [("Ana Lima", "born in", None)]
    )


@pytest.mark.parametrize(
    "bad",
    [
        "({MEM_READ(A>>r>>B)-->",
        "({MEM_READ()-->",
        "({MEM_WRITE-->",
        "({MEM_DELETE-->",
        "({MEM_READ(>>r>>)-->",
    ],
)
def test_a_malformed_call_is_dropped_and_told(memory: Memory, bad: str) -> None:
    result = read(memory, emits(f" a{bad} b"))
    (call,) = result.trace.calls
    assert call.dropped == "malformed" and call.errors and asked(result) == []
    assert result.text == " a b"


@pytest.mark.parametrize("text", [" a ({ b }) c", " a ({ b --> c", "({", " x({mem_read(a>>b>>)--> y"])
def test_an_opening_mark_in_plain_text_is_text(memory: Memory, text: str) -> None:
    result = read(memory, emits(text))
    assert result.text == text and result.trace.calls == [] and result.finish == "eos"


def test_a_call_without_end_is_dropped_at_its_limit(memory: Memory) -> None:
    script = forever("({MEM_READ(" + "x" * 1000)
    result = read(memory, script, ("data",), call_tokens=20, max_tokens=200)
    assert result.text == "" and {call.dropped for call in result.trace.calls} == {"incomplete"}
    assert len(result.trace.calls) == 2  # at the same place: the second is the last


def test_stop_strings_end_the_turn(memory: Memory) -> None:
    result = read(memory, emits(f" a{BORN} b\nQ: more"), stop=["\nQ:"])
    assert (result.text, result.finish, result.stop) == (" a b", "stop", "\nQ:")


def test_no_reads_at_all(memory: Memory) -> None:
    result = read(memory, emits(f" a{BORN} b"), ("data",), max_reads=0)
    assert (result.text, result.finish, result.trace.calls) == (" a", "max reads", [])


# ---- names are data -------------------------------------------------------------------------------------


NASTY = ["smile :})", "a ({MEM_READ(x>>y>>)-->", "Rock; Pop", "B >> C", "</s>", "back\\slash", "x)-->"]


def test_results_can_not_end_the_call_or_open_one(memory: Memory) -> None:
    for name in NASTY:
        memory.add("Eve", "says", name)
    backend = Scripted(emits("({MEM_READ(Eve>>says>>)--> ok"), can=frozenset({"data"}))
    result = Reader(memory, backend).read("Hello")
    assert sorted(result.trace.calls[0].results) == sorted(NASTY)
    spliced = text_of(result.context).removeprefix("Hello").removesuffix(" ok")
    read_call, answered = calls.parse(spliced)
    assert isinstance(read_call, calls.Read) and isinstance(answered, calls.Results)
    assert sorted(answered.names) == sorted(NASTY)
    data = [part.text for part in result.context if part.data]
    assert sorted(calls.unescape(text) for text in data) == sorted(NASTY)


def test_where_names_can_not_be_marked_as_data_hostile_ones_stay_out(memory: Memory) -> None:
    for name in ["</s>", "<|im_end|>", "[INST]", "R&D <3", "a < b > c"]:
        memory.add("Eve", "says", name)
    result = read(memory, emits("({MEM_READ(Eve>>says>>)--> ok"), ("ban",))
    (call,) = result.trace.calls
    assert sorted(call.unsafe) == ["</s>", "<|im_end|>", "[INST]"]
    assert sorted(call.results) == ["R&D <3", "a < b > c"]


@pytest.mark.parametrize("separator", [";", ","])
def test_the_separator(memory: Memory, separator: str) -> None:
    memory.add("Eve", "likes", "Rio, Brazil")
    memory.add("Eve", "likes", "Jazz")
    result = read(memory, emits("({MEM_READ(Eve>>likes>>)--> ok"), separator=separator)
    inside = text_of(result.context).partition("-->")[2].partition("})")[0]
    assert sorted(calls.parse_results(inside, separator)) == ["Jazz", "Rio, Brazil"]


def test_numbers_are_exact_by_default(memory: Memory) -> None:
    memory.add("Treaty of 1912", "signed in", "Lausanne")
    script = "({MEM_READ(Treaty of 1913>>signed in>>)--> ok"
    every = {"tau_e": -1.0, "tau_t": -1.0, "tau_r": -1.0}
    assert read(memory, emits(script), **every).trace.calls[0].results == ()
    assert "Lausanne" in read(memory, emits(script), **every, numbers="any").trace.calls[0].results


# ---- streams, batches, asyncio --------------------------------------------------------------------------


MIXED = [
    f" was born in{BORN} Recife, and ({{ is a mark.",
    " x({MEM_READ(Nobody>>born in>>)--> y",
    " plain text",
    "({MEM_READ(Bo>>born in>>)-->Oslo({MEM_READ(>>born in>>Recife)--> Ana",
    "",
]


@pytest.mark.parametrize("text", MIXED)
def test_streams_show_the_text_alone(memory: Memory, text: str) -> None:
    reader = Reader(memory, Scripted(emits(text), can=frozenset({"data", "ban"}), piece=1))
    alone = Reader(memory, Scripted(emits(text), can=frozenset({"data", "ban"})))
    stream = reader.stream("Hello")
    with pytest.raises(InvalidArgument, match="not ended"):
        _ = stream.result
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text == alone.read("Hello").text
    assert "MEM_READ" not in "".join(pieces)


ROWS = [f"{i}{turn}" for turn in "ab" for i in range(len(MIXED))]


def of_rows() -> Script:
    """Rows begin with their name, "0a", "1a", ...: each writes its own text."""
    rows = {row: emits(MIXED[int(row[0])]) for row in ROWS}
    return lambda prompt, params: rows[prompt[:2]](prompt, params)


def test_many_are_as_one_by_one(memory: Memory) -> None:
    def reader() -> Reader:
        return Reader(memory, Scripted(of_rows(), can=frozenset({"data", "ban"})))

    one_by_one = reader()
    assert [plain(r) for r in reader().read_many(ROWS)] == [plain(one_by_one.read(row)) for row in ROWS]
    assert reader().read_many([]) == []


def plain(result: ReadResult) -> tuple[Any, ...]:
    made = [(c.text, c.results, c.dropped, c.position) for c in result.trace.calls]
    return result.text, result.finish, result.reads_ended, made, text_of(result.context)


@pytest.mark.parametrize("asynchronous_memory", [False, True])
def test_asyncio(tmp_path: Path, asynchronous_memory: bool) -> None:
    path = tmp_path / "m.mem"
    with pymemstore.open(path) as opened:
        opened.add("Ana Lima", "born in", "Recife")
        opened.add("Bo", "born in", "Oslo")
        alone = [Reader(opened, backend()).read(row) for row in ROWS]

        async def run() -> list[ReadResult]:
            store = (await aio.open(path)) if asynchronous_memory else opened
            reader = Reader(store, backend())
            rows = await asyncio.gather(*(reader.aread(row) for row in ROWS))
            stream = Reader(store, backend()).astream("0a")
            assert "".join([piece async for piece in stream]) == stream.result.text == rows[0].text
            if isinstance(store, aio.AsyncMemory):
                await store.close()
            return rows

        assert [plain(r) for r in asyncio.run(run())] == [plain(r) for r in alone]


def backend() -> Scripted:
    return Scripted(of_rows(), can=frozenset({"data", "ban"}), piece=2)


# ---- errors ---------------------------------------------------------------------------------------------


def test_an_error_of_the_memory_comes_with_the_text_so_far(tmp_path: Path) -> None:
    memory = pymemstore.open(tmp_path / "m.mem")
    memory.close()
    for run in (lambda r: r.read("Hello"), lambda r: r.read_many(["Hello"])):
        reader = Reader(memory, Scripted(emits(f" a b{BORN} c"), can=frozenset({"data"})))
        with pytest.raises(Closed) as caught:
            run(reader)
        assert caught.value.partial.text == " a b" and caught.value.partial.finish is None


def failing(text: str, at: int, left: str) -> Script:
    """As emits, but the generation number `at` fails with `left` written."""
    count, whole = iter(range(10**9)), emits(text)

    def script(prompt: str, params: Params) -> str:
        if next(count) == at:
            raise BadResponse("cut", text=left)
        return whole(prompt, params)

    return script


@pytest.mark.parametrize(("at", "left", "text"), [(0, " a", " a"), (1, "MEM_RE", " a"), (2, " b", " a b")])
@pytest.mark.parametrize("way", ["read", "read_many", "aread"])
def test_an_error_of_the_model_comes_with_the_text_so_far(
    memory: Memory, at: int, left: str, text: str, way: str
) -> None:
    reader = Reader(memory, Scripted(failing(f" a{BORN} b c", at, left), can=frozenset({"data"})))
    with pytest.raises(BackendError) as caught:
        if way == "read":
            reader.read("Hello")
        elif way == "read_many":
            reader.read_many(["Hello"])
        else:
            asyncio.run(reader.aread("Hello"))
    assert caught.value.partial.text == text and caught.value.partial.finish is None


@pytest.mark.parametrize(
    "options",
    [
        {"separator": "|"},
        {"max_reads": -1},
        {"max_tokens": 0},
        {"call_tokens": 0},
        {"stop": [""]},
        {"temperature": -1.0},
        {"tau_e": 2.0},
        {"constraint": "yes"},
        {"constraint": lambda text: None},
    ],
)
def test_wrong_options_are_refused(memory: Memory, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Reader(memory, Scripted(emits(""), can=frozenset({"data"})), **options)


def test_the_trace_tells_all(memory: Memory) -> None:
    result = read(memory, emits(f" a{BORN} b({{MEM_READ(Nobody>>born in>>;A>>b)--> c"))
    shown = result.trace.render()
    for part in (BORN, "Recife (1.00)", "dropped: new call", "dropped: no result", "error:", "Nobody"):
        assert part in shown
    assert json.loads(json.dumps(result.trace.as_dict()))["calls"][0]["results"] == ["Recife"]
    assert result.trace.generations == 5


def test_usage_adds_up(memory: Memory) -> None:
    scripted = Scripted(emits(f" a{BORN} b"), can=frozenset({"data"}))
    trace = Reader(memory, scripted).read("Hello").trace
    assert trace.generations == len(scripted.prompts) == 3
    assert trace.generated_tokens > 0 and trace.prompt_tokens > 0
