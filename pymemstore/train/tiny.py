"""The tiny model: a real language model that writes calls and reads their answers, small enough to ship.

`python -m pymemstore.train.tiny --out DIR` trains it from nothing on made-up facts (`tiny_data`), in minutes
on one processor; `--evaluate DIR` measures one on people that training never named. It is for tests and the
demo: it knows this world's sentences only. See docs/tiny-model.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from . import tiny_data

__all__ = ["Config", "Trainer", "main", "path"]

CHECKPOINT = "checkpoint.pt"
_POOL = 8  # batches that are drawn together and sorted by length
_WARM_UP = 100  # steps in which the learning rate grows
_COPY_STEPS = 600  # at first most examples are copies: names are copied letter by letter only after that


def path() -> Path:
    """The folder of the model that comes with pymemstore: `from_pretrained` takes it."""
    return Path(__file__).resolve().parents[1] / "data" / "tiny-memllm"


@dataclass(frozen=True)
class Config:
    """A training run. A run is a function of this, the versions of torch and the machine.

    Attributes:
        steps: optimizer steps; None: as many as `cpu_seconds` allow.
        cpu_seconds: the budget if there are no `steps`: the learning rate falls by the time that is left.
        seed: of the weights and the examples.
        batch: examples a step.
        hidden, layers, heads, feed_forward: sizes of the Llama.
        rate: the highest learning rate; the embeddings' is `embedding_rate` of it.
    """

    steps: int | None = None
    cpu_seconds: float = 600.0
    seed: int = 1
    batch: int = 32
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256
    rate: float = 3e-3
    embedding_rate: float = 0.3

    def __post_init__(self) -> None:
        for name in ("batch", "hidden", "layers", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise InvalidArgument(f"steps must be at least 1, not {self.steps}")
        if not (self.cpu_seconds > 0 and self.rate > 0 and self.embedding_rate > 0):
            raise InvalidArgument("cpu_seconds, rate and embedding_rate must be above 0")
        if self.hidden % (2 * self.heads):
            raise InvalidArgument(f"hidden must be a multiple of 2 * heads, not {self.hidden}")


class Trainer:
    """Trains one model. The state is `step`, the weights, the optimizer's moments and the time used.

    Args:
        config: the run.
        state: of an earlier `Trainer.state()`: goes on from there. With `config.steps` the weights are then,
            bit for bit, those of a run that was not interrupted, on the same machine.
    """

    def __init__(self, config: Config, state: dict[str, Any] | None = None) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from .tiny_tokenizer import build

        self.config, self.tokenizer = config, build()
        self.step, self.tokens, self.cpu, self.loss = 0, 0, 0.0, math.nan
        self._torch = torch
        self._open = self.tokenizer.convert_tokens_to_ids("({")
        torch.manual_seed(config.seed)
        self.model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(self.tokenizer),
                hidden_size=config.hidden,
                intermediate_size=config.feed_forward,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                max_position_embeddings=512,
                bos_token_id=self.tokenizer.bos_token_id,
                eos_token_id=self.tokenizer.eos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
                tie_word_embeddings=True,
                use_cache=True,
            )
        )
        self._initialise()
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in named if "embed" not in n], "scale": 1.0},
            {"params": [p for n, p in named if "embed" in n], "scale": config.embedding_rate},
        ]
        self.optimizer: Any = torch.optim.AdamW(groups, lr=config.rate, betas=(0.9, 0.98), weight_decay=0.01)
        self._pool: tuple[int, list[list[tuple[list[int], list[int], list[bool]]]]] = (-1, [])
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.tokens = state["step"], state["tokens"]
            self.cpu, self.loss = state["cpu"], state["loss"]

    def _initialise(self) -> None:
        # Attention that copies from the first step on: what a value head reads, the output writes back in the
        # same directions, so that a name that is attended to becomes likelier. Else copying is learnt late.
        torch, width = self._torch, self.config.hidden
        with torch.no_grad():
            self.model.model.embed_tokens.weight.normal_(0, 0.1)
            for layer in self.model.model.layers:
                attention = layer.self_attn
                for part in (attention.q_proj, attention.k_proj, attention.v_proj):
                    part.weight.normal_(0, width**-0.5)
                attention.o_proj.weight.copy_(0.5 * attention.v_proj.weight.T)

    # ---- examples -----------------------------------------------------------------------------------

    def batch(self, step: int) -> tuple[Any, Any, Any]:
        """The examples of a step: ids, labels, closed, each (batch, longest). A function of seed and step."""
        number, at = divmod(step, _POOL)
        if self._pool[0] != number:
            rng = random.Random(f"{self.config.seed} {number}")
            raw, size = self.tokenizer.backend_tokenizer, self.config.batch
            copies = 0.8 if number * _POOL < _COPY_STEPS else 0.1
            drawn = [tiny_data.encode(raw, tiny_data.example(rng, copies)) for _ in range(size * _POOL)]
            drawn.sort(key=lambda row: len(row[0]))  # so that rows of a batch need little padding
            batches = [drawn[i : i + size] for i in range(0, len(drawn), size)]
            rng.shuffle(batches)
            self._pool = (number, batches)
        rows, pad = self._pool[1][at], self.tokenizer.pad_token_id
        longest = max(len(ids) for ids, _, _ in rows)

        def tensor(column: int, fill: int | bool) -> Any:
            return self._torch.tensor(
                [[*row[column], *[fill] * (longest - len(row[column]))] for row in rows]
            )

        return tensor(0, pad), tensor(1, -100), tensor(2, False)

    def batch_loss(self, step: int) -> tuple[Any, int]:
        """The mean loss over the labels of a step's batch, and its number of tokens without padding."""
        torch = self._torch
        ids, labels, closed = self.batch(step)
        # Padding is at the right, where no other token sees it.
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        labels, closed = labels[:, 1:], closed[:, 1:]
        keep = labels != -100
        logits = torch.nn.functional.linear(hidden[keep], self.model.lm_head.weight)
        # Memory disabled: the opening mark can't come there, so the model need not believe it won't.
        forbid = torch.zeros_like(logits)
        forbid[closed[keep], self._open] = -math.inf
        loss = torch.nn.functional.cross_entropy(logits + forbid, labels[keep])
        return loss, int((ids != self.tokenizer.pad_token_id).sum())

    # ---- steps --------------------------------------------------------------------------------------

    @property
    def done(self) -> float:
        """The share of the run that is done, up to 1."""
        config = self.config
        share = self.step / config.steps if config.steps else self.cpu / config.cpu_seconds
        return min(1.0, share)

    def advance(self) -> float:
        """One step; its loss."""
        began = time.thread_time() if self._torch.get_num_threads() == 1 else time.process_time()
        done = self.done
        fall = 1.0 if done < 0.5 else max(0.02, (1 - done) / 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate * group["scale"] * min(1.0, (self.step + 1) / _WARM_UP) * fall
        self.model.train()
        loss, tokens = self.batch_loss(self.step)
        self.optimizer.zero_grad()
        loss.backward()
        self._torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.tokens += tokens
        value = float(loss.item())
        self.loss = value if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * value
        now = time.thread_time() if self._torch.get_num_threads() == 1 else time.process_time()
        self.cpu += now - began
        return value

    def state(self) -> dict[str, Any]:
        """All that a later `Trainer` of the same config needs to go on."""
        return {
            "config": asdict(self.config),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "cpu": self.cpu,
            "loss": self.loss,
        }

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Writes model (float16), tokenizer and training.json."""
        import copy

        import tokenizers
        import transformers

        folder.mkdir(parents=True, exist_ok=True)
        half = copy.deepcopy(self.model).to(self._torch.float16)
        half.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private
        # Half the size on disk, but to be computed with in float32: that is faster on processors.
        described = json.loads((folder / "config.json").read_text())
        described.pop("torch_dtype", None)
        described["dtype"] = "float32"
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
        self.tokenizer.save_pretrained(folder)
        # Every version of transformers knows this class by this name.
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        record = {
            "command": "python -m pymemstore.train.tiny",
            "config": asdict(self.config),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": len(self.tokenizer),
            "steps": self.step,
            "tokens": self.tokens,
            "cpu_seconds": round(self.cpu, 1),
            "threads": self._torch.get_num_threads(),
            "loss": round(self.loss, 4),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "versions": {
                "python": platform.python_version(),
                "torch": self._torch.__version__,
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
            },
            **facts,
        }
        (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n")


# ---- the command ------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _checkpoint(trainer: Trainer, folder: Path) -> None:
    import torch

    part = folder / (CHECKPOINT + ".part")
    torch.save(trainer.state(), part)
    os.replace(part, folder / CHECKPOINT)


def _start(config: Config, folder: Path) -> Trainer:
    import torch

    saved = folder / CHECKPOINT
    if not saved.exists():
        if (folder / "training.json").exists():
            raise InvalidArgument(f"{folder} holds a trained model; give another folder, or remove it")
        return Trainer(config)
    state = torch.load(saved, weights_only=True)
    if state["config"] != asdict(config):
        raise InvalidArgument(
            f"{saved} is of another run ({state['config']}); give its options, or remove it"
        )
    _say(f"going on from step {state['step']}, {state['cpu']:.0f} CPU-s")
    return Trainer(config, state)


def train(config: Config, folder: Path, *, command: str, people: int = 300, every: float = 20.0) -> bool:
    """Trains into a folder, from its checkpoint if it has one; False: interrupted, and a checkpoint is left.

    Args:
        command: as it goes into training.json.
        people: held-out examples to evaluate with at the end; 0: none.
        every: CPU-seconds between two lines of progress; a checkpoint is written every third.

    Raises:
        InvalidArgument: the folder holds a trained model, or the checkpoint of another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = _start(config, folder)
    lines, told = 0, trainer.cpu
    try:
        while trainer.done < 1:
            trainer.advance()
            if trainer.cpu - told >= every:
                told, lines = trainer.cpu, lines + 1
                _say(
                    f"{trainer.done:4.0%}  step {trainer.step}  {trainer.tokens / 1e6:.2f} M tokens  "
                    f"{trainer.cpu:.0f} CPU-s  loss {trainer.loss:.4f}"
                )
                if lines % 3 == 0:
                    _checkpoint(trainer, folder)
    except KeyboardInterrupt:
        _checkpoint(trainer, folder)
        _say(f"interrupted at step {trainer.step}; the same command goes on from there")
        return False
    trainer.save(folder, {"command": command})
    if people:
        from .tiny_evaluate import evaluate

        trainer.save(folder, {"command": command, "held_out": evaluate(folder, people)})
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pymemstore.train.tiny", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="train, and write the model here")
    what.add_argument("--evaluate", type=Path, metavar="DIR", help="measure a trained model; prints JSON")
    parser.add_argument("--cpu-seconds", type=float, default=Config.cpu_seconds, metavar="N")
    parser.add_argument("--steps", type=int, metavar="N", help="instead of --cpu-seconds: reproducible")
    parser.add_argument("--seed", type=int, default=Config.seed)
    parser.add_argument("--rate", type=float, default=Config.rate, help="the highest learning rate")
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--hidden", type=int, default=Config.hidden)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--people", type=int, default=300, help="held-out examples of each kind")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(given.threads)
    try:
        if given.evaluate:
            from .tiny_evaluate import evaluate

            print(json.dumps(evaluate(given.evaluate, given.people), indent=2))
            return 0
        config = Config(
            steps=given.steps,
            cpu_seconds=given.cpu_seconds,
            seed=given.seed,
            rate=given.rate,
            layers=given.layers,
            hidden=given.hidden,
            batch=given.batch,
        )
        words = sys.argv[1:] if arguments is None else list(arguments)
        command = " ".join(["python -m pymemstore.train.tiny", *words]).replace(str(given.out), "DIR")
        done = train(config, given.out, command=command, people=given.people)
    except InvalidArgument as error:
        _say(f"error: {error}")
        return 2
    return 0 if done else 130


if __name__ == "__main__":
    sys.exit(main())
