"""Real facts, questions and vectors for the benchmarks: Re-DocRED dev and the demo's facts."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Fact = tuple[str, str, str]


class Question(NamedTuple):
    """A question. `objects`: `text` is a subject, objects are asked. `kind`: "subject", "object", "alias"."""

    text: str
    relation: str
    objects: bool
    kind: str


@dataclass(frozen=True)
class Inputs:
    """A data set. Vectors are unit float32: (entities, dim), (relations, rdim), a row for each question."""

    name: str
    triples: list[Fact]
    entities: list[str]
    relations: list[str]
    questions: list[Question]
    entity_vectors: F32
    relation_vectors: F32
    question_vectors: F32
    question_relation_vectors: F32

    def batches(self, size: int) -> Iterator[tuple[list[Fact], tuple[F32, F32, F32]]]:
        """Triples in batches, each with one row of vectors for each triple and slot."""
        entity = {name: i for i, name in enumerate(self.entities)}
        relation = {name: i for i, name in enumerate(self.relations)}
        for start in range(0, len(self.triples), size):
            part = self.triples[start : start + size]
            yield (
                part,
                (
                    self.entity_vectors[[entity[s] for s, _, _ in part]],
                    self.relation_vectors[[relation[r] for _, r, _ in part]],
                    self.entity_vectors[[entity[o] for _, _, o in part]],
                ),
            )

    def save(self, path: Path) -> None:
        """Write to an .npz file, for the subprocess of one side."""
        text = json.dumps([self.name, self.triples, self.entities, self.relations, self.questions])
        np.savez(
            path,
            text=np.frombuffer(text.encode(), np.uint8),
            e=self.entity_vectors,
            r=self.relation_vectors,
            q=self.question_vectors,
            p=self.question_relation_vectors,
        )

    @staticmethod
    def load(path: Path) -> Inputs:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            name, triples, entities, relations, questions = json.loads(arrays["text"].tobytes())
            return Inputs(
                name,
                [(s, r, o) for s, r, o in triples],
                entities,
                relations,
                [Question(*question) for question in questions],
                arrays["e"],
                arrays["r"],
                arrays["q"],
                arrays["p"],
            )


def build(
    name: str, facts: Iterable[Fact], aliases: Mapping[str, Iterable[str]], questions: int, seed: int
) -> Inputs:
    """Facts without repeats and a seeded sample of questions, embedded by the default embedders.

    A third each: "subject", a distinct (s, r) of the facts; "object", a distinct (r, o); "alias", either,
    with another surface form of the entity as its text. The relations take turns: none crowds out others.
    """
    from pymemstore.embedders import RelationWords, Surface

    triples = list(dict.fromkeys(facts))
    entities = list(dict.fromkeys(name for s, _, o in triples for name in (s, o)))
    relations = list(dict.fromkeys(r for _, r, _ in triples))
    rng = random.Random(seed)
    forward = [Question(s, r, True, "subject") for s, r in dict.fromkeys((s, r) for s, r, _ in triples)]
    backward = [Question(o, r, False, "object") for r, o in dict.fromkeys((r, o) for _, r, o in triples)]
    variants = [
        Question(alias, q.relation, q.objects, "alias")
        for q in rng.sample(forward + backward, len(forward) + len(backward))
        for alias in list(aliases.get(q.text, ()))[:1]
    ]
    asked = [
        q for group in (forward, backward, variants) for q in _spread(group, max(1, questions // 3), rng)
    ]
    rng.shuffle(asked)
    surface, words = Surface(), RelationWords()
    return Inputs(
        name,
        triples,
        entities,
        relations,
        asked,
        surface.encode(entities),
        words.encode(relations),
        surface.encode([q.text for q in asked]),
        words.encode([q.relation for q in asked]),
    )


def _spread(group: list[Question], count: int, rng: random.Random) -> list[Question]:
    """A sample of `count` in which each relation has its share, as far as it has so many questions."""
    by_relation: dict[str, list[Question]] = {}
    for question in rng.sample(group, len(group)):
        by_relation.setdefault(question.relation, []).append(question)
    turns = [(i, question) for questions in by_relation.values() for i, question in enumerate(questions)]
    return [question for _, question in sorted(turns, key=lambda turn: turn[0])[:count]]


def data_folder() -> Path:
    """The folder that holds data/: PYMEMSTORE_TEST_DATA, or ../shared beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("PYMEMSTORE_TEST_DATA") or default)


def redocred(questions: int, seed: int = 1) -> Inputs:
    """Re-DocRED dev: the first mention names an entity, its other mentions are its aliases."""
    folder = data_folder() / "data"
    if not folder.is_dir():
        raise SystemExit(f"no data at {folder}: set PYMEMSTORE_TEST_DATA (see README.md), or use --only demo")
    labels = json.loads((folder / "wikidata" / "properties_en.json").read_text(encoding="utf-8"))
    facts: list[Fact] = []
    aliases: dict[str, dict[str, None]] = {}
    for document in json.loads((folder / "docred" / "dev_revised.json").read_text(encoding="utf-8")):
        names = []
        for mentions in document["vertexSet"]:
            forms = list(dict.fromkeys(mention["name"] for mention in mentions if mention["name"]))
            names.append(forms[0])
            aliases.setdefault(forms[0], {}).update(dict.fromkeys(forms[1:]))
        facts += [(names[x["h"]], labels.get(x["r"], x["r"]), names[x["t"]]) for x in document["labels"]]
    return build("Re-DocRED dev", facts, aliases, questions, seed)


def demo(questions: int, facts: int | None = None, seed: int = 1) -> Inputs:
    """The facts of `pymemstore demo`, or the first `facts` of them in a seeded order of subjects."""
    from pymemstore.ingest import geonames, readers

    triples: list[Fact] = []
    aliases: dict[str, dict[str, None]] = {}
    for item in geonames.facts(geonames.load_gazetteer()):
        if isinstance(item, readers.Fact):
            triples.append((item.subject, item.relation, item.object))
        elif isinstance(item, readers.Alias) and not item.relation:
            aliases.setdefault(item.name, {})[item.alias] = None
    if facts is not None:
        groups: dict[str, list[Fact]] = {}
        for fact in triples:
            groups.setdefault(fact[0], []).append(fact)
        subjects = list(groups)
        random.Random(seed).shuffle(subjects)
        triples = [fact for subject in subjects for fact in groups[subject]][:facts]
    return build("demo" if facts is None else f"demo, {facts:,} facts", triples, aliases, questions, seed)
