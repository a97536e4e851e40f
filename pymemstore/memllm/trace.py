"""What happened in a turn of the read loop: every call, query, candidate count, result and drop."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Asked", "Call", "Drop", "Finish", "Trace"]

Drop = Literal[
    "no result", "too many results", "new call", "malformed", "incomplete", "unsafe names", "too long"
]
Finish = Literal[
    "eos", "stop", "length", "incomplete call", "repeated read", "no result", "max reads", "first success"
]


@dataclass(frozen=True)
class Asked:
    """One query of a call and its answer.

    Attributes:
        subject, relation, object: as asked; None is the open slot.
        names: the answers' names, each once, best first, with their scores.
        entity_candidates, relation_candidates, search, complete: as of `QueryResult`.
        cached: True: it had been asked in this turn, and the memory was not asked again.
    """

    subject: str | None
    relation: str
    object: str | None
    names: tuple[tuple[str, float], ...] = ()
    entity_candidates: int = 0
    relation_candidates: int = 0
    search: str = ""
    complete: bool = True
    cached: bool = False


@dataclass
class Call:
    """One read call.

    Attributes:
        position: where it stands: characters of the turn's visible text before it.
        text: what the model wrote, from `({` to `-->`.
        guided: whether the model was held to the syntax.
        asked: the queries with their answers.
        errors: what was wrong in the call, a line each.
        results: the names that were spliced in, best first.
        unsafe: names left out since the server would have taken parts of them for control tokens.
        dropped: why the call was taken out of the context; None: it is in it still.
        model_seconds, memory_seconds: wall time of writing the call, and of its queries.
    """

    position: int
    text: str = ""
    guided: bool = False
    asked: list[Asked] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    results: tuple[str, ...] = ()
    unsafe: tuple[str, ...] = ()
    dropped: Drop | None = None
    model_seconds: float = 0.0
    memory_seconds: float = 0.0


@dataclass
class Trace:
    """A turn.

    Attributes:
        calls: in the order in which the model opened them.
        prompt_tokens, computed_tokens, generated_tokens: sums over the turn's generations. Computed ones
            are those prompt tokens that went through the model, the rest were in its cache; None where the
            server doesn't say.
        generations: how often the model was asked to go on.
        model_seconds, memory_seconds: wall time.
        notes: what was done otherwise than asked, a line each.
    """

    calls: list[Call] = field(default_factory=list)
    prompt_tokens: int = 0
    computed_tokens: int | None = 0
    generated_tokens: int = 0
    generations: int = 0
    model_seconds: float = 0.0
    memory_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers: for JSON."""
        return asdict(self)

    def render(self) -> str:
        """The trace for a reader, a line for each call, query and note."""
        lines = []
        for number, call in enumerate(self.calls, 1):
            lines.append(f"call {number} at {call.position}: {call.text}")
            for q in call.asked:
                slots = ">>".join(slot or "" for slot in (q.subject, q.relation, q.object))
                found = "; ".join(f"{name} ({score:.2f})" for name, score in q.names[:5])
                more = f" and {len(q.names) - 5} more" if len(q.names) > 5 else ""
                how = (
                    "asked before"
                    if q.cached
                    else f"{q.entity_candidates} entities, {q.relation_candidates} relations, {q.search}"
                )
                lines.append(f"  {slots}: {found or 'nothing'}{more} [{how}]")
            lines += [f"  error: {error}" for error in call.errors]
            if call.unsafe:
                lines.append(f"  left out as unsafe: {'; '.join(call.unsafe)}")
            end = f"dropped: {call.dropped}" if call.dropped else f"read: {'; '.join(call.results)}"
            lines.append(f"  {end}")
        computed = "?" if self.computed_tokens is None else self.computed_tokens
        lines.append(
            f"{self.generations} generations, {self.generated_tokens} tokens written; {self.prompt_tokens} "
            f"tokens of prompts, {computed} computed; model {self.model_seconds:.3f} s, memory "
            f"{self.memory_seconds * 1e3:.1f} ms"
        )
        return "\n".join(lines + [f"note: {note}" for note in self.notes])
