"""Late stopping of many rows in one batch against the same rows one by one, as MemLLM's published code runs
them.

    python benchmarks/bench_late_stopping.py [--quick] [--rows N] [--tokens T] [--json FILE]

Llama-config models with random weights, `generate` of transformers with `LateStoppingLogitsProcessor`, and so
much patience that every row makes all its tokens: both sides make the same ones. "cost of late stopping" is
plain greedy `generate` of the batch against the same with late stopping.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from report import Row, machine, table
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList

from pymemstore.memllm.processors import LateStoppingLogitsProcessor

CLOSING = 3
GATE = 4.0
SIZES: dict[str, dict[str, int]] = {
    "hidden 128, 3 layers, 3,000 tokens": {
        "vocab_size": 3000, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 3, "num_attention_heads": 4,
    },
    "hidden 512, 8 layers, 32,000 tokens": {
        "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408,
        "num_hidden_layers": 8, "num_attention_heads": 8,
    },
}  # fmt: skip


def model_of(size: dict[str, int]) -> Any:
    """A model whose best token is often the closing one."""
    torch.manual_seed(1)
    config = LlamaConfig(
        **size,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[CLOSING].mul_(4)
    return model


def run(model: Any, prompts: Any, tokens: int, late: bool) -> tuple[float, list[list[int]], int]:
    """Seconds, what is kept of each row, and the closing points."""
    processor = LateStoppingLogitsProcessor(CLOSING, patience=tokens + 1)
    start = time.perf_counter()
    out = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        logits_processor=LogitsProcessorList([processor] if late else []),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - start
    assert out.shape == (len(prompts), prompts.shape[1] + tokens)
    if not late:
        return seconds, [], 0
    kept = processor.cut(out)
    return seconds, kept, sum(len(result.points) for result in processor.results)


def measure(name: str, size: dict[str, int], rows: int, tokens: int, rounds: int) -> list[tuple[str, Row]]:
    model = model_of(size)
    prompts = torch.randint(4, size["vocab_size"], (rows, 48), generator=torch.Generator().manual_seed(2))
    run(model, prompts[:2], 4, True)
    best = {"batch": float("inf"), "single": float("inf"), "plain": float("inf")}
    for _ in range(rounds):
        seconds, kept, points = run(model, prompts, tokens, True)
        best["batch"] = min(best["batch"], seconds)
        alone = [run(model, prompts[i : i + 1], tokens, True) for i in range(rows)]
        best["single"] = min(best["single"], sum(each[0] for each in alone))
        best["plain"] = min(best["plain"], run(model, prompts, tokens, False)[0])
    same = sum(each[1][0] == row for each, row in zip(alone, kept, strict=True))
    print(f"{name}: {points} closing points in {rows} rows of {tokens} tokens; {same} cut as they are alone")
    rate = {what: rows * tokens / seconds for what, seconds in best.items()}
    return [
        (name, Row(f"{rows} rows, batch : one by one", "tokens/s", rate["batch"], rate["single"], GATE,
                   rate["batch"] / rate["single"])),
        (name, Row("batch, late stopping : plain greedy", "tokens/s", rate["batch"], rate["plain"], None,
                   rate["batch"] / rate["plain"])),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small model only, fewer tokens; seconds")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=0, help="a row; 0: 64, and 32 with --quick")
    parser.add_argument("--json", type=Path, help="gets the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = options.tokens or (32 if options.quick else 64)
    sizes = dict(list(SIZES.items())[:1]) if options.quick else SIZES
    rows: list[tuple[str, Row]] = []
    for name, size in sizes.items():
        rows += measure(name, size, options.rows, tokens, 2)
    about = machine(1) | {"torch": torch.__version__, "transformers": transformers.__version__}
    print(", ".join(f"{key} {value}" for key, value in about.items()), "\n\n" + table(rows))
    if options.json:
        figures = [{"data": name, **vars(row), "verdict": row.verdict} for name, row in rows]
        options.json.write_text(json.dumps({"machine": about, "rows": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
