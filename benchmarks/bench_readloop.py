"""What the memory costs a read loop against MemLLM's reference design, and what its model computes.

    python benchmarks/bench_readloop.py [--quick] [--names N] [--context T] [--json FILE]

Memory: the demo's real facts among N names, in exact mode; the same questions to both, by text, one at a
time. Ours is what `Reader` asks a step (rules, numbers, distinct names up to Q_thr); theirs is the top 300 or
25 of the reference: as published, in a server with a call for each pair; the same in this process; and with
one joined query. Thresholds: the embedders' defaults, and the paper's for editing.
Tokens: turns with three reads after T tokens of context, their words forced, on a Llama-config model with
random weights; the naive way sends the whole prefix through the model each time, as the reference does.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import inputs as data
import numpy as np
import search_inputs
from peers.reference_design import ReferenceMemory
from peers.reference_rpc import RemoteReference
from report import Row, machine, table

import pymemstore
from pymemstore.embedders import RelationWords, Surface

Q_THR = 30
BLOCK = 50  # questions that one side answers before the next has its turn
EDITING = (0.85, 0.2, 0.6)  # the paper's second setting
BATCH = 10_000


# The memory's share


def filled(names: int, questions: int) -> data.Inputs:
    """The demo's facts (62,265 names, the questions' part), and facts over made-up names up to `names`."""
    real = data.demo(questions, None if names >= 60_000 else names // 2)
    rng = random.Random(3)
    more = search_inputs.make_names(max(0, names - len(real.entities)))
    made = [(name, rng.choice(real.relations), rng.choice(more)) for name in more]
    surface = Surface()
    known = set(real.entities)
    new = [name for name in more if name not in known]
    return replace(
        real,
        name=f"{len(real.entities) + len(new):,} names",
        triples=real.triples + made,
        entities=real.entities + new,
        entity_vectors=np.concatenate([real.entity_vectors, surface.encode(new)])
        if new
        else real.entity_vectors,
    )


def memory_share(names: int, questions: int, folder: Path) -> tuple[list[tuple[str, Row]], float]:
    """Milliseconds a read step, ours and theirs, at each setting of the thresholds; and ours at the first."""
    built = filled(names, questions)
    memory = pymemstore.open(folder / "bench.mem", threads=1)
    peer = ReferenceMemory(
        built.entity_vectors.shape[1], built.relation_vectors.shape[1], len(built.entities), threads=1
    )
    for triples, vectors in built.batches(BATCH):
        memory.add_many(triples, vectors=vectors)
        peer.add_many(triples, vectors)
    memory.reindex()
    remote = RemoteReference(peer)
    surface, words = Surface(), RelationWords()
    rows, steps = [], []
    for setting, taus in (("defaults", tuple(memory.thresholds)), (".85/.2/.6", EDITING)):
        reader = _reader(memory, taus)

        def ours(q: data.Question, reader: Any = reader) -> object:
            slots = (q.text, q.relation, None) if q.objects else (None, q.relation, q.text)
            return reader._lookup(_lookup(slots))

        def theirs(query: Callable[..., object], taus: Any = taus) -> Callable[[data.Question], object]:
            return lambda q: query(
                surface.encode([q.text])[0], words.encode([q.relation])[0], *taus, objects=q.objects
            )

        sides = {
            "ours": ours,
            "as published, a call a pair": theirs(remote.query),
            "in process, a lookup a pair": theirs(peer.query_per_pair),
            "in process, a joined query": theirs(peer.query),
        }
        spent: dict[str, list[float]] = {side: [] for side in sides}
        for first in range(0, len(built.questions), BLOCK):  # in turns, so that the machine's noise meets all
            for side, ask in sides.items():
                for question in built.questions[first : first + BLOCK]:
                    start = time.perf_counter()
                    ask(question)
                    spent[side].append(time.perf_counter() - start)
        ms = {side: statistics.fmean(times) * 1e3 for side, times in spent.items()}
        steps.append(ms.pop("ours"))
        for side, theirs_ms in ms.items():
            gate = 10 if side.startswith("as published") else None
            row = Row(f"read step {setting}; {side}", "ms", steps[-1], theirs_ms, gate, theirs_ms / steps[-1])
            rows.append((built.name, row))
    memory.close()
    remote.close()
    peer.close()
    return rows, steps[0]


def _lookup(slots: tuple[str | None, str, str | None]) -> Any:
    from pymemstore.memllm.turn import Lookup

    return Lookup((slots,))


def _reader(memory: pymemstore.Memory, taus: Sequence[float]) -> Any:
    from pymemstore.memllm.reader import Reader

    class NoModel:
        name, can, tokenizer = "none", frozenset({"data"}), None

    tau_e, tau_t, tau_r = taus
    model: Any = NoModel()
    return Reader(memory, model, max_results=Q_THR, search="exact", tau_e=tau_e, tau_t=tau_t, tau_r=tau_r)


# Tokens computed


class Forced:
    """Holds the model to a script of token ids, so that turns of a random model make reads."""

    def __init__(self, ids: Sequence[int], vocabulary: int) -> None:
        import numpy as np

        self._ids = list(ids)
        self._mask = np.zeros(vocabulary, dtype=bool)

    def mask(self) -> Any:
        self._mask[:] = False
        self._mask[self._ids[0] if self._ids else 0] = True
        return self._mask

    def advance(self, token: int) -> None:
        if self._ids:
            self._ids.pop(0)


def model_and_tokenizer(hidden: int, layers: int) -> tuple[Any, Any]:
    """A Llama-config model with random weights over the shipped model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from pymemstore.train import tiny

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32, max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


def token_share(context: int, turns: int, hidden: int, layers: int, folder: Path) -> list[tuple[str, Row]]:
    """Tokens through the model and wall seconds a turn with three reads: caches kept, and the naive way."""
    import torch

    from pymemstore.backends.base import Params
    from pymemstore.backends.transformers import TransformersBackend
    from pymemstore.memllm.reader import Reader

    torch.set_num_threads(1)
    model, tokenizer = model_and_tokenizer(hidden, layers)
    words = ["the", "city", "was", "founded", "by", "people", "who", "lived", "there"]
    rng = random.Random(5)
    text = "".join(f" {rng.choice(words)}" for _ in range(4 * context))
    prompt = tokenizer.decode(tokenizer(text)["input_ids"][1:context])
    names = ["Ana Lima", "Bo Dahl", "Chen Wei"]

    class ForcedBackend(TransformersBackend):
        """Each visible generation is a few words and the opening mark; each call is one that has an answer.
        `keep`: whether it may use what its caches hold."""

        keep = True
        reads = 0

        def _forced(self, params: Params, ids: list[int]) -> Params:
            if not self.keep:
                self.clear_cache()
            return Params(params.max_tokens, params.stop, guide=lambda: Forced(ids, len(tokenizer)))

        def stream(self, prompt: Any, params: Params) -> Any:
            words = " and so it went on and on" + ("({" if self.reads < len(names) else " .")
            ids = tokenizer(words, add_special_tokens=False)["input_ids"]
            ids += [] if self.reads < len(names) else [tokenizer.eos_token_id]
            return super().stream(prompt, self._forced(params, ids))

        def generate(self, prompts: Any, params: Params) -> Any:
            call = f"MEM_READ({names[self.reads]}>>place of birth>>)-->"
            self.reads += 1
            ids = tokenizer(call, add_special_tokens=False)["input_ids"]
            return super().generate(prompts, self._forced(params, ids))

    memory = pymemstore.open(folder / "turns.mem")
    memory.add_many([(name, "place of birth", f"{name.split()[0]}ville") for name in names])
    tokens, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    for _ in range(turns):
        for keep in (True, False):
            backend = ForcedBackend(model, tokenizer)
            backend.keep = keep
            reader = Reader(memory, backend, max_tokens=400, constraint=None)
            start = time.perf_counter()
            result = reader.read(prompt)
            seconds[keep] += time.perf_counter() - start
            assert len(result.trace.calls) == 3 and all(c.results for c in result.trace.calls), result.trace
            assert result.trace.computed_tokens is not None
            tokens[keep] += result.trace.computed_tokens + result.trace.generated_tokens
    memory.close()
    what = f"hidden {hidden}, {layers} layers"
    rows = [
        compared("tokens computed a turn", "tokens", tokens, turns, 3),
        compared("wall time a turn", "ms", seconds, turns / 1e3, None),
    ]
    return [(what, row) for row in rows]


def compared(
    what: str, unit: str, spent: dict[bool, int] | dict[bool, float], turns: float, gate: float | None
) -> Row:
    """A row of what was spent with caches kept (True) and the naive way."""
    return Row(what, unit, spent[True] / turns, spent[False] / turns, gate, spent[False] / spent[True])


def forward_pass() -> float:
    """Milliseconds of the shipped model's forward pass for one token, after 100 tokens of context."""
    import torch
    from transformers import AutoModelForCausalLM

    from pymemstore.train import tiny

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tiny.path(), dtype=torch.float32).eval()
    with torch.inference_mode():
        ids = torch.randint(10, 100, (1, 100))
        spent = []
        for _ in range(30):
            cache = model(ids, use_cache=True).past_key_values
            start = time.perf_counter()
            model(ids[:, :1], past_key_values=cache, use_cache=True)
            spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--names", type=int, help="names in the store (100,000)")
    parser.add_argument("--context", type=int, default=512, help="tokens before the first word (512)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    names = args.names or (5_000 if args.quick else 100_000)
    with tempfile.TemporaryDirectory() as folder:
        rows, step = memory_share(names, 60 if args.quick else 600, Path(folder))
        try:
            import torch  # noqa: F401
        except ImportError:
            print("torch is not installed: the model's part was not run")
        else:
            sizes = [(64, 2)] if args.quick else [(128, 3), (512, 8)]
            for hidden, layers in sizes:
                rows += token_share(
                    args.context, 1 if args.quick else 3, hidden, layers, Path(folder) / f"h{hidden}"
                )
            print(
                f"(one token's forward pass of the small model: {forward_pass():.2f} ms; "
                f"our read step: {step:.2f} ms)"
            )
    print(table(rows))
    print(", ".join(f"{key} {value}" for key, value in machine(1).items()))
    if args.json:
        args.json.write_text(json.dumps([{"data": d, **vars(r)} for d, r in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
