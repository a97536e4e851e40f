"""Training examples for the tiny model: documents of made-up facts, with the calls that MemLLM trains on.

Everything is drawn from a `random.Random`, so that an example is a function of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tiny_world import FILLER_TEMPLATES, PRONOUNS, RELATIONS, TEMPLATES, Template, new_word, world

__all__ = [
    "Document",
    "Example",
    "Part",
    "Piece",
    "Sentence",
    "copy_example",
    "document",
    "encode",
    "example",
    "off_example",
    "query_text",
    "read_example",
    "results",
    "write_example",
    "write_prompt",
    "write_text",
]

Triple = tuple[str, str, str]
_NEW_NAMES = 0.5  # documents in which people, cities, companies and countries are, or may be, new words
_NO_LABEL = -100


@dataclass(frozen=True)
class Piece:
    """A stretch of a sentence: text with its leading space.

    Attributes:
        text: the text.
        query: the read that finds it, (subject, relation, object) with None for what is asked; None: no read.
        kind: of what is asked.
    """

    text: str
    query: tuple[str | None, str, str | None] | None = None
    kind: str = ""


@dataclass(frozen=True)
class Sentence:
    """A sentence and its facts, in the order of the text."""

    pieces: tuple[Piece, ...]
    triples: tuple[Triple, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Document:
    """Sentences; the pieces that a read can find have a query."""

    sentences: tuple[Sentence, ...]
    name: Callable[[str], str] = field(repr=False, compare=False)  # draws a name of a kind

    @property
    def pieces(self) -> list[Piece]:
        return [piece for sentence in self.sentences for piece in sentence.pieces]

    @property
    def text(self) -> str:
        return "".join(sentence.text for sentence in self.sentences)


class _Names:
    """Draws names of a kind, for one document."""

    def __init__(self, rng: random.Random, held_out: bool, new: bool | None) -> None:
        self.rng, self.held_out = rng, held_out
        if new is None:
            new = rng.random() < _NEW_NAMES
            self.new = rng.choice((0.5, 1.0, 1.0)) if new else 0.0
        else:
            self.new = float(new)

    def __call__(self, kind: str) -> str:
        rng, w = self.rng, world()
        if kind in "PCON" and rng.random() < self.new:
            return f"{new_word(rng)} {new_word(rng)}" if kind == "P" else new_word(rng)
        return rng.choice(w.people[self.held_out] if kind == "P" else w.names[kind])


class _Writer:
    """Writes the sentences of one document."""

    def __init__(self, rng: random.Random, names: _Names, inverse: float) -> None:
        self.rng, self.names, self.inverse = rng, names, inverse
        self.objects: dict[tuple[str, str], str] = {}
        self.told: set[tuple[str, str]] = set()
        self.seen: set[str] = set()
        self.last: str | None = None  # the subject of the sentence before
        self.pronoun = {kind: rng.choice(choices) for kind, choices in PRONOUNS.items()}

    def choose(self, kind: str, subject: str) -> Template:
        rng = self.rng
        new = subject not in self.seen
        fit = [
            t
            for t in TEMPLATES[kind]
            if not any((subject, r) in self.told for r in t.relations) and (new or not t.inverse)
        ]
        if not fit or rng.random() < 0.15:
            return rng.choice(FILLER_TEMPLATES[kind] if rng.random() < 0.6 else FILLER_TEMPLATES[""])
        backward = [t for t in fit if t.inverse]
        if backward and rng.random() < self.inverse:
            return rng.choice(backward)
        return rng.choice([t for t in fit if not t.inverse] or fit)

    def object(self, subject: str, relation: str) -> str:
        key = (subject, relation)
        while key not in self.objects:
            name = self.names(RELATIONS[relation][1])
            if name != subject and name not in self.objects.values():
                self.objects[key] = name
        return self.objects[key]

    def sentence(self, kind: str, subject: str) -> Sentence:
        template = self.choose(kind, subject)
        pieces: list[Piece] = []
        triples: list[Triple] = []
        space = " " if self.last is not None else ""
        text = ""
        before: list[str] = []
        pronoun = template.pronoun and subject == self.last and self.rng.random() < 0.5
        for i, part in enumerate(template.parts):
            if i not in template.slots:
                text += part
                continue
            if part == "s" and pronoun:
                text += self.pronoun[kind]
                continue
            name = subject if part == "s" else self.object(subject, part)
            query: tuple[str | None, str, str | None] | None = None
            asked = ""
            if part == "s":
                if subject not in self.seen and before:
                    query, asked = (None, before[0], self.object(subject, before[0])), kind
            else:
                before.append(part)
                triples.append((subject, part, name))
                if subject in self.seen and name not in self.seen:
                    query, asked = (subject, part, None), RELATIONS[part][1]
            if text.endswith(" ") or not text:
                head, gap = text[:-1], (" " if text else space)
            else:
                head, gap = text, ""
            if head:
                pieces.append(Piece((space if not pieces else "") + head))
            pieces.append(Piece(gap + name, query, asked))
            text = ""
            self.seen.add(name)
        pieces.append(Piece((space if not pieces else "") + text))
        self.told.update((subject, r) for r in template.relations)
        # After a sentence about nobody a pronoun still means the subject before.
        self.last = subject if "s" in (template.parts[i] for i in template.slots) else (self.last or "")
        return Sentence(tuple(pieces), tuple(triples))


def document(
    rng: random.Random,
    sentences: int,
    *,
    held_out: bool = False,
    new_names: bool | None = None,
    inverse: float = 0.3,
) -> Document:
    """A document about a person, a company or a city, and what it has to do with.

    Args:
        rng: draws everything.
        sentences: how many, >= 1.
        held_out: people who never occur in training.
        new_names: names whose words are not in the vocabulary; None: all, half or none, by the document.
        inverse: share of sentences with the object first, where there is a choice.
    """
    names = _Names(rng, held_out, new_names)
    writer = _Writer(rng, names, inverse)
    kind = rng.choices("POC", (0.76, 0.16, 0.08))[0]
    subject, made = names(kind), []
    for _ in range(sentences):
        made.append(writer.sentence(kind, subject))
        triples = made[-1].triples
        if triples and rng.random() < 0.2:
            nearby = [
                (RELATIONS[r][1], o) for s, r, o in triples if s == subject and RELATIONS[r][1] in "POC"
            ]
            if nearby:
                kind, subject = rng.choice(nearby)
    return Document(tuple(made), names)


# ---- texts of calls ---------------------------------------------------------------------------------


def query_text(query: tuple[str | None, str, str | None]) -> str:
    """`e>>t>>` or `>>t>>e`. No name of this world needs an escape."""
    return f"{query[0] or ''}>>{query[1]}>>{query[2] or ''}"


def write_prompt(pretext: str, focus: str) -> str:
    """What the model is given to extract the facts of `focus` (section 3.2)."""
    return f"{pretext}({{USER_ST}}){focus}({{USER_END}})"


def write_text(triples: Sequence[Triple]) -> str:
    """The write call, which the model's end token follows."""
    return "({MEM_WRITE-->" + ";".join(">>".join(triple) for triple in triples) + "})"


def results(rng: random.Random, answer: str, kind: str, name: Callable[[str], str], others: int) -> list[str]:
    """The answer and `others` of its kind; it is first in 8 of 10, as answers come best first."""
    found = [answer]
    for _ in range(100 * others):
        other = name(kind)
        if other not in found:
            found.append(other)
        if len(found) == others + 1:
            break
    if rng.random() < 0.2:
        rng.shuffle(found)
    return found


# ---- examples ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A stretch of an example.

    Attributes:
        text: its text; begins with a space or a call token, or is the first.
        learn: whether the loss is applied.
        closed: its first token is predicted as if no call could be opened there: memory disabled.
    """

    text: str
    learn: bool = True
    closed: bool = False


@dataclass(frozen=True)
class Example:
    """Stretches of text. kind: "write", "read", "off" (memory disabled) or "copy"."""

    kind: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


def _length(rng: random.Random) -> int:
    return rng.choices((1, 2, 3, 4, 6, 8), (30, 35, 20, 10, 4, 2))[0]


def write_example(rng: random.Random, **options: Any) -> tuple[Example, Document]:
    """0-3 sentences of pretext, at times 5 or 7, and a focus sentence; the call has its facts alone.

    The loss is on the call and the end token.
    """
    doc = document(rng, _length(rng), **options)
    pretext = "".join(s.text for s in doc.sentences[:-1])
    focus = doc.sentences[-1]
    gap = " " if pretext and rng.random() < 0.5 else ""
    prompt = write_prompt(pretext + gap, focus.text.lstrip())
    return Example("write", (Part(prompt, False), Part(write_text(focus.triples) + "</s>"))), doc


def read_example(rng: random.Random, **options: Any) -> Example:
    """A document as the context of one of its reads, picked at random (section 3.3).

    Pretext without calls; the call, its results; the text on to the next call or to the end. The loss is on
    the call and on what follows the results, and on the pretext if the call is the document's first.
    """
    doc = document(rng, _length(rng), **options)
    pieces = doc.pieces
    reads = [i for i, piece in enumerate(pieces) if piece.query is not None]

    def joined(start: int, end: int) -> str:
        return "".join(piece.text for piece in pieces[start:end])

    if not reads:
        return Example("read", (Part(joined(0, len(pieces)) + "</s>"),))
    k = rng.choices(range(len(reads)), [1.5] + [1.0] * (len(reads) - 1))[0]
    at = reads[k]
    piece = pieces[at]
    assert piece.query is not None
    answer = piece.text.lstrip()
    others = rng.choices((0, 1, 2, 3, 5, 8), (60, 15, 10, 8, 4, 3))[0]
    names = results(rng, answer, piece.kind, doc.name, others)
    if rng.random() < 0.02:
        names = [doc.name(piece.kind)]
    end = reads[k + 1] if k + 1 < len(reads) else len(pieces)
    after = joined(at, end)
    after = (after if after.startswith(" ") else " " + after) + ("({" if end < len(pieces) else "</s>")
    return Example(
        "read",
        (
            Part(joined(0, at) + "({", k == 0),
            Part("MEM_READ(" + query_text(piece.query) + ")-->"),
            Part(";".join(names) + "})", False),
            Part(after),
        ),
    )


def off_example(rng: random.Random, **options: Any) -> Example:
    """A document without calls, as a model writes it that can't or may not read."""
    doc = document(rng, rng.choices((1, 2, 3), (3, 2, 1))[0], **options)
    parts: list[Part] = []
    for piece in doc.pieces:
        if piece.query is not None or not parts:
            parts.append(Part(piece.text, True, piece.query is not None))
        else:
            parts[-1] = Part(parts[-1].text + piece.text, True, parts[-1].closed)
    parts[-1] = Part(parts[-1].text + "</s>", True, parts[-1].closed)
    return Example("off", tuple(parts))


def copy_example(rng: random.Random) -> Example:
    """New names, and the same again in another order: what copying a name needs, without the rest.

    The loss is on the second time. Only what stands there says where to go on reading: this is what teaches a
    model this small to copy names letter by letter.
    """
    names = [" ".join(new_word(rng) for _ in range(rng.choice((1, 1, 2)))) for _ in range(rng.randint(2, 5))]
    again = rng.sample(names, len(names))
    return Example("copy", (Part(" ".join(names) + ">>", False), Part(";".join(again) + "</s>")))


def example(rng: random.Random, copies: float = 0.1, **options: Any) -> Example:
    """A training example. copies: share of copy examples; options: of `document`."""
    if rng.random() < copies:
        return copy_example(rng)
    kind = rng.choices("WRO", (45, 45, 10))[0]
    if kind == "W":
        return write_example(rng, **options)[0]
    return read_example(rng, **options) if kind == "R" else off_example(rng, **options)


def encode(tokenizer: Any, item: Example) -> tuple[list[int], list[int], list[bool]]:
    """Token ids with the beginning token, labels (-100: no loss), and where no call may be opened: one each.

    tokenizer: a `tokenizers.Tokenizer`.
    """
    ids, labels, closed = [tokenizer.token_to_id("<s>")], [_NO_LABEL], [False]
    for part in item.parts:
        new = tokenizer.encode(part.text, add_special_tokens=False).ids
        ids += new
        labels += new if part.learn else [_NO_LABEL] * len(new)
        closed += [part.closed] + [False] * (len(new) - 1)
    return ids, labels, closed
