"""The plain truth for a thresholded query: numpy in double precision and a dict, nothing clever."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from inputs import Fact, Inputs

SLACK = 1e-6


class Truth:
    """Answers of one question: the score of each matching triple, and the similarity of every name."""

    __slots__ = ("entity", "hits", "relation")

    def __init__(
        self, hits: dict[Fact, float], entity: npt.NDArray[np.float64], relation: npt.NDArray[np.float64]
    ) -> None:
        self.hits = hits
        self.entity = entity
        self.relation = relation


class BruteForce:
    """Every question against every name."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.entity = {name: i for i, name in enumerate(inputs.entities)}
        self.relation = {name: i for i, name in enumerate(inputs.relations)}
        self._vectors = inputs.entity_vectors.astype(np.float64)
        self._relation_vectors = inputs.relation_vectors.astype(np.float64)
        self._by_subject: dict[int, list[tuple[int, Fact]]] = {}
        self._by_object: dict[int, list[tuple[int, Fact]]] = {}
        for fact in inputs.triples:
            relation = self.relation[fact[1]]
            self._by_subject.setdefault(self.entity[fact[0]], []).append((relation, fact))
            self._by_object.setdefault(self.entity[fact[2]], []).append((relation, fact))

    def answers(self, taus: tuple[float, float, float], block: int = 128) -> Iterator[Truth]:
        """The truth for each question of the inputs, in order."""
        tau_e, tau_t, tau_r = (tau - SLACK for tau in taus)
        for start in range(0, len(self.inputs.questions), block):
            asked = self.inputs.questions[start : start + block]
            q = self.inputs.question_vectors[start : start + block].astype(np.float64)
            p = self.inputs.question_relation_vectors[start : start + block].astype(np.float64)
            for question, e, t in zip(asked, q @ self._vectors.T, p @ self._relation_vectors.T, strict=True):
                table = self._by_subject if question.objects else self._by_object
                hits = {}
                for entity in np.flatnonzero(e >= tau_e).tolist():
                    for relation, fact in table.get(entity, ()):
                        score = (e[entity] + t[relation]) / 2
                        if t[relation] >= tau_t and score >= tau_r:
                            hits[fact] = float(score)
                yield Truth(hits, e.copy(), t.copy())

    def margin(self, fact: Fact, question: int, taus: tuple[float, float, float], truth: Truth) -> float:
        """How near a similarity of the fact lies to its threshold: tells rounding from a wrong answer."""
        known = fact[0] if self.inputs.questions[question].objects else fact[2]
        e, t = truth.entity[self.entity[known]], truth.relation[self.relation[fact[1]]]
        values = (e, t, (e + t) / 2)
        return float(min(abs(value - (tau - SLACK)) for value, tau in zip(values, taus, strict=True)))
