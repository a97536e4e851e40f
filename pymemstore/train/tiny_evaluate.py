"""Measures a tiny model on people whom training never named; apart from the loops, in plain transformers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from . import tiny_data
from .tiny_data import Document, Piece, Triple

__all__ = ["Measure", "evaluate", "parse_query", "parse_write"]

_BATCH = 50


def parse_query(text: str) -> tuple[str | None, str, str | None] | None:
    """The query of `MEM_READ(e>>t>>)-->`, as `Piece.query`; None: not one well-formed query."""
    text = text.strip()
    if not (text.startswith("MEM_READ(") and text.endswith("-->")):
        return None
    inside = text.removeprefix("MEM_READ(").removesuffix("-->").strip()
    slots = [slot.strip() for slot in inside.removesuffix(")").split(">>")]
    if not inside.endswith(")") or len(slots) != 3 or not slots[1] or bool(slots[0]) == bool(slots[2]):
        return None
    return slots[0] or None, slots[1], slots[2] or None


def parse_write(text: str) -> list[Triple] | None:
    """The triples of `({MEM_WRITE-->e>>t>>e;...})`; None: not well formed."""
    text = text.strip()
    if not (text.startswith("({MEM_WRITE-->") and text.endswith("})")):
        return None
    inside = text.removeprefix("({MEM_WRITE-->").removesuffix("})").strip()
    if any(mark in inside for mark in ("({", "})", "-->")):
        return None
    triples: list[Triple] = []
    for part in inside.split(";") if inside else []:
        slots = [slot.strip() for slot in part.split(">>")]
        if len(slots) != 3 or not all(slots):
            return None
        triples.append((slots[0], slots[1], slots[2]))
    return triples


class Measure:
    """A model in a folder, and held-out examples to measure it with.

    Args:
        folder: what `from_pretrained` takes.
        seed: of the examples.
        new_names: names whose words are not in the vocabulary either.

    Raises:
        InvalidArgument: there is no model in the folder.
    """

    def __init__(self, folder: Path, *, seed: int = 0, new_names: bool = False) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if not (folder / "config.json").is_file():
            raise InvalidArgument(f"no model in {folder}: config.json is missing")
        self._torch = torch
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self.model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
        self.seed, self.new_names = seed, new_names
        self._open = self.tokenizer.convert_tokens_to_ids("({")

    def document(self, rng: random.Random, sentences: int) -> Document:
        return tiny_data.document(rng, sentences, held_out=True, new_names=self.new_names)

    def read_cases(self, count: int) -> list[tuple[str, Piece, Document]]:
        """(text before the target, the target's piece, its document)."""
        rng = random.Random(f"read {self.seed}")
        cases: list[tuple[str, Piece, Document]] = []
        while len(cases) < count:
            doc = self.document(rng, rng.choice((1, 2, 3)))
            pieces = doc.pieces
            reads = [i for i, piece in enumerate(pieces) if piece.query is not None]
            if reads:
                at = rng.choice(reads)
                cases.append(("".join(piece.text for piece in pieces[:at]), pieces[at], doc))
        return cases

    # ---- the model ----------------------------------------------------------------------------------

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def target_losses(
        self, contexts: Sequence[str], targets: Sequence[str], closed: bool
    ) -> tuple[float, int]:
        """(sum of -ln p of the targets' tokens, how many). closed: as if no call could be opened."""
        torch, total, count = self._torch, 0.0, 0
        bos, pad = self.tokenizer.bos_token_id, self.tokenizer.pad_token_id
        for start in range(0, len(targets), _BATCH):
            rows = [
                ([bos, *self._ids(context)], self._ids(target))
                for context, target in zip(
                    contexts[start : start + _BATCH], targets[start : start + _BATCH], strict=True
                )
            ]
            longest = max(len(context) + len(target) for context, target in rows)
            ids = torch.tensor([[*c, *t, *[pad] * (longest - len(c) - len(t))] for c, t in rows])
            with torch.no_grad():
                logits = self.model(input_ids=ids, use_cache=False).logits
            if closed:
                logits[..., self._open] = -math.inf
            log_p = torch.log_softmax(logits, -1)
            for row, (context, target) in enumerate(rows):
                for i, token in enumerate(target):
                    total -= float(log_p[row, len(context) - 1 + i, token])
                    count += 1
        return total, count

    def generate(self, prompts: Sequence[str], stop: Sequence[str], most: int = 64) -> list[str]:
        """Greedy continuations up to a stop token, which is kept."""
        torch, made = self._torch, []
        ends = [self.tokenizer.convert_tokens_to_ids(token) for token in stop]
        pad, bos = self.tokenizer.pad_token_id, self.tokenizer.bos_token_id
        for start in range(0, len(prompts), _BATCH):
            rows = [[bos, *self._ids(prompt)] for prompt in prompts[start : start + _BATCH]]
            longest = max(map(len, rows))
            ids = torch.tensor([[*[pad] * (longest - len(row)), *row] for row in rows])
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
            with torch.no_grad():
                out = self.model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=most,
                    do_sample=False,
                    eos_token_id=ends,
                    pad_token_id=pad,
                )
            for row in out[:, longest:].tolist():
                kept = [token for token in row if token != pad]
                made.append(self.tokenizer.decode(kept, skip_special_tokens=False))
        return made

    # ---- figures ------------------------------------------------------------------------------------

    def perplexities(self, count: int) -> dict[str, float]:
        """Target perplexity a token: with the answer alone, with 1-3 other names beside it, with no memory
        (no call, its opening mark impossible), with the answer to another question."""
        rng = random.Random(f"results {self.seed}")
        cases = self.read_cases(count)
        contexts: dict[str, list[str]] = {"answer": [], "several": [], "disabled": [], "wrong": []}
        for before, piece, doc in cases:
            assert piece.query is not None
            answer, call = piece.text.strip(), f"({{MEM_READ({tiny_data.query_text(piece.query)})-->"
            several = tiny_data.results(rng, answer, piece.kind, doc.name, rng.choice((1, 2, 3)))
            wrong = answer
            while wrong == answer:
                wrong = doc.name(piece.kind)
            contexts["answer"].append(f"{before}{call}{answer}}})")
            contexts["several"].append(f"{before}{call}{';'.join(several)}}})")
            contexts["wrong"].append(f"{before}{call}{wrong}}})")
            contexts["disabled"].append(before)
        targets = [piece.text if piece.text.startswith(" ") else " " + piece.text for _, piece, _ in cases]
        figures = {}
        for name, texts in contexts.items():
            total, tokens = self.target_losses(texts, targets, closed=name == "disabled")
            figures[name] = round(math.exp(total / tokens), 3)
        return figures

    def queries(self, count: int) -> dict[str, float]:
        """Shares of reads: opened by the model itself where they should be, not opened one word earlier;
        once opened, well formed, and exact."""
        cases = self.read_cases(count)
        opened = self.generate([before for before, _, _ in cases], ("({",), 1)
        early = self.generate([before.rsplit(" ", 1)[0] for before, _, _ in cases], ("({",), 1)
        calls = self.generate([before + "({" for before, _, _ in cases], ("-->", "</s>"))
        parsed = [parse_query(call) for call in calls]
        exact = sum(got == piece.query for got, (_, piece, _) in zip(parsed, cases, strict=True))
        return {
            "opened": sum(text.strip() == "({" for text in opened) / count,
            "opened_a_word_early": sum(text.strip() == "({" for text in early) / count,
            "well_formed": sum(query is not None for query in parsed) / count,
            "exact": exact / count,
        }

    def writes(self, count: int) -> dict[str, float]:
        """Shares of writes (greedy): well formed, with all facts and no other; of triples: precision, recall;
        of sentences without facts: empty calls; recall where a pronoun stands for the subject."""
        rng = random.Random(f"write {self.seed}")
        cases = [tiny_data.write_example(rng, held_out=True, new_names=self.new_names) for _ in range(count)]
        calls = self.generate([case.parts[0].text for case, _ in cases], ("</s>",), 96)
        good = exact = hits = found = wanted = empty = empty_right = meant = meant_hits = 0
        for (_, doc), call in zip(cases, calls, strict=True):
            gold = set(doc.sentences[-1].triples)
            triples = parse_write(call.removesuffix("</s>")) if call.endswith("</s>") else None
            got = set(triples or ())
            good, exact = good + (triples is not None), exact + (triples is not None and got == gold)
            hits, found, wanted = hits + len(got & gold), found + len(got), wanted + len(gold)
            if not gold:
                empty, empty_right = empty + 1, empty_right + (triples == [])
            elif not any(subject in doc.sentences[-1].text for subject, _, _ in gold):
                meant, meant_hits = meant + len(gold), meant_hits + len(got & gold)
        return {
            "well_formed": good / count,
            "exact": exact / count,
            "precision": round(hits / max(1, found), 4),
            "recall": round(hits / max(1, wanted), 4),
            "empty_right": round(empty_right / max(1, empty), 4),
            "pronoun_recall": round(meant_hits / max(1, meant), 4),
        }


def evaluate(folder: Path, count: int = 300, *, seed: int = 0) -> dict[str, Any]:
    """All figures, for people held out from training, and for names of words outside the vocabulary.

    count: examples of each kind, >= 1. Raises InvalidArgument.
    """
    if count < 1:
        raise InvalidArgument(f"the number of examples must be at least 1, not {count}")
    figures: dict[str, Any] = {"examples": count}
    for name, new in (("people", False), ("new_words", True)):
        measure = Measure(folder, seed=seed, new_names=new)
        figures[name] = {
            "target_perplexity": measure.perplexities(count),
            "queries": measure.queries(count),
            "writes": measure.writes(count),
        }
    return figures
