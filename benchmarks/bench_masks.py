"""Token masks over a store's names: milliseconds to build, microseconds a token.

    python benchmarks/bench_masks.py [--quick] [--names N] [--json FILE]

Names as Wikidata's labels look (search_inputs.py) in a store, a byte-level BPE of 32,000 tokens trained on
them, and reads that ask for random names, token by token as the tokenizer writes them. The alternative, where
it is installed, gets the first of these names as a grammar, which it compiles, and again at each change.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import machine
from search_inputs import make_names

import pymemstore
from pymemstore import calls
from pymemstore.memllm.automaton import ReadCall, StoreNames, Vocabulary

GATE_US = 50.0
RELATIONS = [f"relation {i}" for i in range(100)]


def tokenizer_of(names: list[str], size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = (calls.render_read([(a, RELATIONS[len(a) % 100], None)]) for a in names)
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def percentiles(seconds: list[float]) -> dict[str, float]:
    us = np.array(seconds) * 1e6
    return {
        "p50": float(np.percentile(us, 50)),
        "p99": float(np.percentile(us, 99)),
        "max": float(us.max()),
    }


def asked(names: list[str], rng: random.Random, count: int) -> list[str]:
    return [calls.render_read([(rng.choice(names), rng.choice(RELATIONS), None)]) for _ in range(count)]


def masks(call: Any, tokenizer: Any, texts: list[str]) -> list[float]:
    """Seconds of each mask."""
    seconds = []
    for text in texts:
        guide = call()
        for token in tokenizer.encode(text).ids:
            begin = time.perf_counter()
            mask = guide.mask()
            seconds.append(time.perf_counter() - begin)
            assert mask[token], text
            guide.advance(token)
        assert guide.done
    return seconds


def llguidance_rows(tokenizer: Any, names: list[str], texts: list[str]) -> dict[str, Any] | None:
    try:
        import llguidance
        import llguidance.hf
        import llguidance.numpy as kernel
    except ImportError:
        return None
    import transformers

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    core = llguidance.hf.from_tokenizer(fast)

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    grammar = "\n".join(
        [
            'start: "({MEM_READ(" NAME ">>" RELATION ">>)-->"',
            "NAME: " + " | ".join(quoted(calls.escape(name)) for name in names),
            "RELATION: " + " | ".join(map(quoted, RELATIONS)),
        ]
    )
    begin = time.perf_counter()
    matcher = llguidance.LLMatcher(core, llguidance.LLMatcher.grammar_from_lark(grammar))
    built = time.perf_counter() - begin
    if matcher.is_error():
        return {"build_s": built, "error": matcher.get_error()[:80]}
    bitmask = kernel.allocate_token_bitmask(1, core.vocab_size)
    seconds = []
    for text in texts:
        matcher.reset()
        for token in tokenizer.encode(text).ids:
            begin = time.perf_counter()
            kernel.fill_next_token_bitmask(matcher, bitmask, 0)
            seconds.append(time.perf_counter() - begin)
            if not matcher.consume_token(token):
                return {"build_s": built, "error": "a name was refused"}
    return {"build_s": built, **percentiles(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 names and 4,000 tokens")
    parser.add_argument("--names", type=int, default=None)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    count = args.names or (100_000 if args.quick else 1_000_000)
    rng = random.Random(1)
    names = make_names(count)
    tokenizer = tokenizer_of(rng.sample(names, min(count, 100_000)), 4000 if args.quick else 32000)
    found: dict[str, Any] = {"names": count, "tokens": tokenizer.get_vocab_size()}

    with tempfile.TemporaryDirectory() as folder, pymemstore.open(Path(folder) / "facts.mem") as memory:
        zero = np.zeros((1, memory._store.stamps()[0][1]), np.float32)
        zero[0, 0] = 1
        for at in range(0, count, 50_000):
            page = names[at : at + 50_000]
            memory.add_entities(page, vectors=np.broadcast_to(zero, (len(page), zero.shape[1])).copy())
        memory.add_relations(RELATIONS)
        begin = time.perf_counter()
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        found["vocabulary_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        entities = StoreNames(memory)
        found["names_s"] = time.perf_counter() - begin
        found["names_mb"] = entities.set.memory / 1e6
        relations = StoreNames(memory, relation=True)
        call = ReadCall(vocabulary, entities=entities, relations=relations)
        found["first mask_us"] = max(masks(call, tokenizer, asked(names, rng, 1))) * 1e6
        found["masks"] = percentiles(masks(call, tokenizer, asked(names, rng, 3000)))
        adds, firsts = [], []
        for i in range(20):
            memory.add_entities([f"a new name {i}"])
            begin = time.perf_counter()
            assert entities.refresh()
            adds.append(time.perf_counter() - begin)
            firsts.append(max(masks(call, tokenizer, asked(names, rng, 1))))
        found["refresh_us"] = percentiles(adds)
        found["worst mask after a change_us"] = percentiles(firsts)
        found["masks with a delta"] = percentiles(masks(call, tokenizer, asked(names, rng, 3000)))

    found["machine"] = machine(1)
    print(json.dumps(found, indent=1))
    for few in (1000, 10_000) if args.quick else (1000, 10_000, 50_000):
        other = llguidance_rows(tokenizer, names[:few], asked(names[:few], rng, 200))
        found[f"llguidance, {few} names"] = other or "not installed"
        print(f"llguidance, {few} names: {other or 'not installed'}")
    passed = found["masks"]["p50"] <= GATE_US
    print(f"p50 {found['masks']['p50']:.1f} us of {GATE_US:.0f} us: {'PASS' if passed else 'FAIL'}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
