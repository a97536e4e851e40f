"""The call syntax as an EBNF grammar, for servers that take one (xgrammar's dialect).

Syntax and relations only: names of entities are free text here, since a grammar is compiled and a store's
names are too many for that. `automaton` holds them to the store's or to the context's.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..calls import escape
from ..errors import InvalidArgument

__all__ = ["ebnf"]

# Free text as `calls.escape` writes it, without `}`: it would make the `})` that servers look for. Behind `)`
# and spaces no `-` is data, since `) -->` ends a read:
# `run` is a `)` with text behind it, `last` one at the end. The first character is no white space.
_FREE = r"""
free ::= " "? (head run* last? | run+ last? | last)
head ::= (char | "-" | escaped) body
body ::= (char | space | " " | "-" | escaped)*
run ::= ")" gap (char | space | escaped) body
last ::= ")" gap
gap ::= (")" | " ")*
escaped ::= "\\" [\\;>{) ]
char ::= [^\\;>{}) \-\x00-\x1f\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]
space ::= [\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]
"""


def ebnf(
    kind: str,
    *,
    relations: Iterable[str] | None = None,
    max_parts: int | None = None,
    allow_empty: bool = True,
    opened: bool = True,
) -> str:
    """The grammar of a call, its start rule `root`.

    Args:
        kind: "read" or "write".
        relations: the only ones allowed; None: any.
        max_parts: most queries (3 where None) or facts (32 where None).
        allow_empty: of a write: no fact at all.
        opened: `({` is written already, and the grammar begins behind it.

    Raises:
        InvalidArgument: another kind; no relations; what can't be a name.
    """
    if kind not in ("read", "write"):
        raise InvalidArgument(f"kind must be 'read' or 'write', not {kind!r:.40}")
    most = (3 if kind == "read" else 32) if max_parts is None else max_parts
    if not isinstance(most, int) or most < 1:
        raise InvalidArgument(f"max_parts must be an integer of at least 1, not {max_parts!r:.40}")
    relation = "free"
    if relations is not None:
        names = sorted({escape(name) for name in relations})
        if not names:
            raise InvalidArgument("relations: there is none to choose from")
        relation = f'" "? ({" | ".join(map(_quoted, names))})'
    parts = f'part (";" part){{0,{most - 1}}}'
    start = "" if opened else '"({" '
    if kind == "read":
        root = f'{start}" "? "MEM_READ(" {parts} ")-->"'
        part = 'free ">>" relation ">>" " "? | " "? ">>" relation ">>" free'
    else:
        inner = f'({parts} | " "?)' if allow_empty else parts
        root = f'{start}" "? "MEM_WRITE-->" {inner} "}})"'
        part = 'free ">>" relation ">>" free'
    return f"root ::= {root}\npart ::= {part}\nrelation ::= {relation}{_FREE}"


def _quoted(text: str) -> str:
    """A literal; what is not plain is written by its number."""
    return '"' + "".join(_literal(char) for char in text) + '"'


def _literal(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return (
        char
        if char.isprintable()
        else f"\\u{ord(char):04x}"
        if ord(char) < 0x10000
        else f"\\U{ord(char):08x}"
    )
