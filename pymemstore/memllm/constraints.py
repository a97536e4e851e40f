"""How the reader and the writer hold a model to the call syntax, and what they keep from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backends.base import Backend, Guide
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from .automaton import Vocabulary

__all__ = ["CONTROL", "Constraint", "Guides", "constrained"]

# From a text to what makes a guide of one row.
Guides = Callable[[str], Callable[[], Guide]]
Constraint = str | Guides | None

# What servers that take text only may read as control tokens, beside the tokenizer's own where it is known.
CONTROL = re.compile(r"</?[a-zA-Z_][\w ]*/?>|<\|.*?\|>|<[｜|].*?[｜|]>|\[/?[A-Z_]+\]|<0x[0-9A-Fa-f]{2}>|▁")


def constrained(
    constraint: Constraint,
    backend: Backend,
    kind: str,
    guides: Callable[[Vocabulary], Guides],
    notes: list[str],
) -> tuple[Guides | None, str | None]:
    """What makes the guides from a text, or a grammar, or neither (then `notes` says why).

    Args:
        constraint: "auto", None (free), or what makes the guides.
        kind: of the grammar, "read" or "write".
        guides: makes "auto"'s from the vocabulary.

    Raises:
        InvalidArgument: another constraint; one that the backend can't honour.
    """
    can = backend.can
    if constraint is None:
        return None, None
    if callable(constraint):
        if "guide" not in can:
            raise InvalidArgument(f"{backend.name} takes no guides: constraint must be 'auto' or None")
        return constraint, None
    if constraint != "auto":
        raise InvalidArgument(f"constraint must be 'auto', None or a function, not {constraint!r:.40}")
    if "guide" in can:
        from .automaton import Vocabulary

        try:
            eos = getattr(backend, "eos", None)
            return guides(Vocabulary.from_tokenizer(backend.tokenizer, eos=eos)), None
        except InvalidArgument as error:
            notes.append(f"not constrained: {error}")
            return None, None
    if "grammar" in can:
        from .grammar import ebnf

        return None, ebnf(kind)
    notes.append("not constrained: the backend takes neither guides nor grammars")
    return None, None
