"""Queries against brute force over a plain-Python model, on random stores, for random questions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
import twin_surface as twin
from hashed import Hashed
from oracle import MATCHES, Model, Rational, agree, compare, unit

import pymemstore
from pymemstore import Memory, _core

Names = Sequence[str]
Question = dict[str, Any]

# Spellings that the rules relate, beside some that they must keep apart.
VARIANTS = (
    "The Beatles", "Beatles", "the beatles", "Beatles, The", "THE BEATLES", "A Beatle", "Beatle's",
    "United States", "United States of America", "US", "U.S.", "USA", "us", "The United States", "American",
    "States", "State", "state", "Boxes", "Box", "the box", "Churches", "church", "Bus", "Buses", "Glass",
    "John Smith", "J. Smith", "J Smith", "John Robert Smith", "J. R. Smith", "JR Smith", "Jane Smith",
    "Smith", "Smith, John", "smith john", "Robert Smith", "W. E. B. Du Bois", "WEB Du Bois",
    "William Du Bois",
    "IBM", "I.B.M.", "ibm", "International Business Machines", "International Business Machines Corp",
    "University of London", "London University", "UL", "London", "london ", "Londón", "Lon don",
    "Barack Obama", "Obama", "President Obama", "B. Obama", "obama", "Barack H. Obama",
    "France", "French", "Frenchman", "Germany", "German", "Netherlands", "Dutch", "the netherlands",
    "World War I", "World War II", "World War 2", "World War Two", "1912", "1913", "Route 66", "Route 67",
    "12 May 1912", "May 12, 1912", "1912-05-12", "13 May 1912", "21st Regiment", "21 Regiment",
    "22nd Regiment", "Café Müller", "cafe muller", "CAFÉ MÜLLER", "Straße", "Strasse", "Москва", "москва",
    "東京", "東京都", "!!!", "?", "🎵", "St. Mary's Church",
    "Saint Mary Church", "St Marys Church", "Church of St Mary",
)  # fmt: skip
RELATIONS = (
    "born in", "Born In", "was born in", "born-in", "place of birth", "place of birth ",
    "capital", "the capital",
)  # fmt: skip
PLAIN = tuple(f"e{i}" for i in range(70))
PLAIN_RELATIONS = tuple(f"r{i}" for i in range(9))


class Case(NamedTuple):
    memory: Memory
    model: Model
    names: Names
    relations: Names
    rng: np.random.Generator

    def name(self) -> str:
        return self.names[int(self.rng.integers(len(self.names)))]

    def relation(self) -> str:
        return self.relations[int(self.rng.integers(len(self.relations)))]


def open_case(path: Path, embedder: Any, names: Names, relations: Names, seed: int) -> Case:
    memory = pymemstore.open(path, embedder=embedder, sync="relaxed")
    model = Model(lambda text, relation: unit(embedder.encode([text])[0]))
    return Case(memory, model, names, relations, np.random.default_rng(seed))


def fill(case: Case, facts: int) -> None:
    """Random facts and aliases, some of which are changed again, in every way there is."""
    memory, model, rng = case.memory, case.model, case.rng
    rows = [(case.name(), case.relation(), case.name()) for _ in range(facts)]
    report = memory.add_many(rows)
    got = list(zip(report.triple_ids.tolist(), report.inserted_mask.tolist(), strict=True))
    assert got == [model.add(*row) for row in rows]
    for i in rng.permutation(facts)[: facts // 10]:
        assert memory.remove(*rows[i]) == model.remove(*rows[i])
    for _ in range(facts // 20):
        row = (case.name(), case.relation(), case.name())
        assert memory.replace(*row).triple_id == model.replace(*row)[0]
    with memory.transaction() as t:
        for relation, pick, count in ((False, case.name, len(case.names) // 3), (True, case.relation, 3)):
            for _ in range(count):
                alias = pick()
                entity = str(rng.choice([n.text for n in model.live(relation)]))
                t.alias(alias, entity, relation=relation)
                model.alias(alias, entity, relation)
        for name in model.live(False)[::9]:
            vector = model.embed(f"another {name.text}", False)
            t.set_vector(name.text, vector)
            model.set_vector(name.text, vector, False)
        for name in model.live(False)[4::11]:
            t.forget(name.text)
            model.forget(name.text)
        for name in model.live(False)[2::13]:
            new = f"{name.text} Jr"
            t.rename(name.text, new)
            model.rename(name.text, new, False)
    expected = {n.text: n.vector for n in model.live(False)}
    model.fetch(memory)
    assert all(np.array_equal(expected[n.text], n.vector) for n in model.live(False))  # type: ignore[arg-type]
    assert set(memory.triples()) == model.facts()


def threshold(rng: np.random.Generator, occurring: Sequence[float]) -> float:
    """Anywhere, or where it matters: just at a score, inside the slack of one, or outside of it."""
    if not occurring or rng.random() < 0.3:
        return float(rng.choice([-1.0, 0.0, 0.9, 0.95, 0.99, 1.0, rng.uniform(-1, 1)]))
    score = occurring[int(rng.integers(len(occurring)))] + float(rng.choice([0.0, 0.9e-6, 1.1e-6]))
    return min(1.0, max(-1.0, score))


def question(case: Case, rules: Any, **options: Any) -> Question:
    """A random question whose thresholds often lie on scores of the names it is about."""
    rng, model = case.rng, case.model
    slot = str(rng.choice(["subject", "object"]))
    q: Question = {slot: case.name(), "relation": case.relation(), "rules": rules, **options}
    allowed = oracle.RULE_SETS[rules] if isinstance(rules, str) else rules
    scores = []
    for text, relation in ((q[slot], False), (q["relation"], True)):
        vector = model.embed(text, relation)
        usable = [r for r in allowed if not relation or r in oracle.RELATION_RULES]
        found = model.candidates(text, vector, usable, False, relation)
        scores.append([c.similarity for c in found])
    e, t = scores
    means = [(rng.choice(e) + rng.choice(t)) / 2 for _ in range(20)] if e and t else []
    for name, occurring in (("tau_e", e), ("tau_t", t), ("tau_r", means)):
        q[name] = -1.0 if rng.random() < 0.4 else threshold(rng, occurring)
    return q


def ask_all(case: Case, questions: list[Question]) -> Counter[str]:
    """Compares all, asked one by one or together; how often each match came."""
    seen: Counter[str] = Counter()
    for q, result in zip(questions, case.memory.query_many(questions), strict=True):
        agree(result, case.model, q)
        seen.update(hit.match for hit in result)
    for q in questions[::5]:
        compare(case.memory, case.model, q)
    return seen


@pytest.fixture(scope="module", params=range(4))
def rational(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A store whose cosines are rational, many of them equal; of several dimensions and densities."""
    seed = request.param
    embedder = Rational(dim=(3, 8, 11, 40)[seed], width=(3, 4, 5, 6)[seed])
    path = tmp_path_factory.mktemp("rational") / "m.mem"
    case = open_case(path, embedder, PLAIN, PLAIN_RELATIONS, seed)
    fill(case, 500)
    case.memory.close()
    with pymemstore.open(path, embedder=embedder, create=False) as memory:
        yield case._replace(memory=memory)


@pytest.fixture(scope="module", params=[0, 1])
def variants(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A store of names that the rules relate. Vectors: by chance (0), or the default embedder's (1)."""
    embedder: Any = Hashed(24) if request.param == 0 else pymemstore.embedders.Surface()
    path = tmp_path_factory.mktemp("variants") / "m.mem"
    case = open_case(path, embedder, VARIANTS, RELATIONS, 100 + request.param)
    if request.param == 0:
        fill(case, 400)
    else:
        for i in range(400):
            row = (case.name(), case.relation(), case.name())
            case.model.add(*row)
            if i % 7 == 0:
                case.model.alias(alias := case.name(), row[0], False)
                case.memory.add(*row)
                case.memory.alias(alias, row[0])
            else:
                case.memory.add(*row)
        case.model.fetch(case.memory)
    yield case
    case.memory.close()


def test_the_papers_definition_on_rational_cosines(rational: Case) -> None:
    seen = ask_all(rational, [question(rational, "none") for _ in range(120)])
    assert seen.keys() == {"vector"} and seen["vector"] > 300


def test_thresholds_exactly_on_scores(rational: Case) -> None:
    # Every score that occurs, for one question: at it, within the slack, beyond the slack.
    model = rational.model
    name, relation = rational.name(), rational.relation()
    e = sorted({c.similarity for c in model.candidates(name, model.embed(name, False), (), False, False)})
    by_relation = model.candidates(relation, model.embed(relation, True), (), False, True)
    t = sorted({c.similarity for c in by_relation})
    means = sorted({(a + b) / 2 for a in e for b in t})
    questions = [
        {"object": name, "relation": relation, "tau_e": -1.0, "tau_t": -1.0, "tau_r": -1.0, "rules": "none"}
        | {which: min(1.0, max(-1.0, score + beyond))}
        for which, scores in (("tau_e", e), ("tau_t", t), ("tau_r", means))
        for score in scores[:: max(1, len(scores) // 12)]
        for beyond in (0.0, 0.9e-6, 1.1e-6)
    ]
    assert len(questions) > 30
    ask_all(rational, questions)


def test_ties_come_in_order_of_triple_id(tmp_path: Path) -> None:
    # (3, 4) and (-3, 4) have the same cosine with (0, 1), to the bit: all 40 facts tie.
    order = np.random.default_rng(5).permutation(40)
    subjects = np.array([[3 if i % 2 else -3, 4, 0] for i in order], np.float32)
    with pymemstore.open(tmp_path / "m.mem", embedder=pymemstore.embedders.External(3)) as memory:
        row = np.tile(np.array([1, 0, 0], np.float32), (40, 1))
        report = memory.add_many([(f"s{i}", "r", f"o{i % 3}") for i in order], vectors=(subjects, row, row))
        asked: Question = {"subject_vector": [0, 2, 0], "relation_vector": [1, 0, 0]}
        asked |= {"tau_e": 0.8, "tau_t": 1, "tau_r": 0.9}
        hits = memory.query(**asked).hits
        assert [h.triple_id for h in hits] == sorted(report.triple_ids.tolist())
        assert {h.score for h in hits} == {hits[0].score} and hits[0].score == pytest.approx(0.9, abs=1e-7)
        assert not memory.query(**asked | {"tau_e": 0.8 + 1.1e-6})
        for limit in (1, 7, 39, 40, 41):
            cut = memory.query(**asked, limit=limit)
            assert cut.hits == hits[:limit] and cut.truncated == (limit < 40)
        names = [name for name, _ in memory.similar_entities([0, 1, 0], 0.8)]
        assert names == [f"s{i}" for i in order]  # ids of entities in order of first use


@pytest.mark.parametrize(
    "rules", ["core", "wide", "none", ("exact", "plural"), ("alias", "trailing", "initials")]
)
def test_sets_of_rules(variants: Case, rules: Any) -> None:
    seen = ask_all(variants, [question(variants, rules) for _ in range(60)])
    allowed = oracle.RULE_SETS[rules] if isinstance(rules, str) else rules
    assert seen.keys() <= {*allowed, "vector"} and seen.total() > 100


@pytest.mark.parametrize("rule", MATCHES)
def test_each_rule_alone(variants: Case, rule: str) -> None:
    # Every name is asked for, at and about the similarity that the rule gives.
    value = oracle.VALUES.get(rule, 0.95)
    texts = list(dict.fromkeys([*VARIANTS, *(a for n in variants.model.live(False) for a in n.aliases)]))
    if rule == "exact":
        texts = [n.text for n in variants.model.live(False)]
    questions = []
    for i, text in enumerate(texts):
        slot = ("subject", "object")[i % 2]
        tau = value + (0.0, 0.9e-6, 1.1e-6, -0.01)[i % 4]
        relation = RELATIONS[i % len(RELATIONS)]
        for tau_e, tau_r in ((min(tau, 1.0), -1.0), (-1.0, -1.0), (-1.0, 0.9)):
            taus = {"tau_e": tau_e, "tau_t": -1.0, "tau_r": tau_r}
            questions.append({slot: text, "relation": relation, "rules": (rule,)} | taus)
    seen = ask_all(variants, questions)
    assert seen[rule] > 0 and seen.keys() <= {rule, "vector"}


@pytest.mark.parametrize("rule", ["exact", "alias", "folded", "article", "word_order"])
def test_rules_of_relations(variants: Case, rule: str) -> None:
    # What is found at a high threshold is found by rule.
    subject = next(s.text for (s, _, _) in variants.model.triples)
    for relation in RELATIONS:
        q: Question = {"subject": subject, "relation": relation, "rules": (rule,)} | {
            "tau_e": -1.0,
            "tau_r": -1.0,
        }
        for tau_t in (-1.0, 0.9, 0.99, 0.99 + 1.1e-6, 1.0):
            compare(variants.memory, variants.model, q | {"tau_t": tau_t})


def respelled(rng: np.random.Generator, words: list[str]) -> str:
    """The words in another spelling: one that some rule relates to them, mostly."""
    first = [w[0] for w in words]
    changed = (
        words, [w.upper() for w in words], [w.lower() for w in words], ["The", *words], words[::-1],
        ["".join(first).upper()], [*words[:-1], words[-1] + "s"], [*first[:-1], words[-1]], words[-1:],
        [*words, str(rng.choice(["2", "II", "Ltd", "1912"]))],
    )  # fmt: skip
    return str(rng.choice([" ", " ", "-", ". "])).join(changed[rng.integers(len(changed))])


def test_generated_spellings(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    words = (
        "the", "of", "Saint", "Mary", "Marys", "boxes", "box", "J", "R", "John", "Robert", "IX", "9", "ninth",
        "May", "1912", "States", "US", "NATO", "a", "Ltd", "ÉCOLE", "d'or",
    )  # fmt: skip
    bases = [list(rng.choice(words, rng.integers(1, 5))) for _ in range(22)]
    names = list(dict.fromkeys(respelled(rng, base) for base in bases for _ in range(6)))
    with open_case(tmp_path / "m.mem", Hashed(8), names, ("r", "R", "q"), 12).memory as memory:
        model = Model(lambda text, relation: unit(Hashed(8).one(text)))
        case = Case(memory, model, names, ("r", "R", "q"), rng)
        rows = [(case.name(), case.relation(), case.name()) for _ in range(300)]
        memory.add_many(rows)
        for row in rows:
            model.add(*row)
        seen = ask_all(case, [question(case, "wide") for _ in range(120)])
        assert len(seen) >= 8, seen


def check_limits(case: Case, rules: str) -> None:
    cut = 0
    for _ in range(40):
        q = question(case, rules) | {"tau_e": float(case.rng.choice([-1.0, 0.3])), "tau_r": -1.0}
        limits = [1, 2, int(case.rng.integers(3, 60)), 10_000]
        full = compare(case.memory, case.model, q, limits)
        cut += sum(len(full) > limit for limit in limits)
    assert cut > 50


def test_limits_among_cosines(rational: Case) -> None:
    check_limits(rational, "none")


def test_limits_among_rules(variants: Case) -> None:
    check_limits(variants, "wide")


def test_excluded_triples(rational: Case) -> None:
    left_out = 0
    for _ in range(60):
        q = question(rational, "none")
        ids = [h.triple_id for h in rational.memory.query(**q)]
        some = rational.rng.permutation(ids)[: len(ids) // 2].astype(int).tolist() if ids else []
        left_out += len(some)
        full = compare(rational.memory, rational.model, q | {"exclude": [*some, *some[:1], 10**9]}, [3])
        assert len(full) == len(ids) - len(some)
    assert left_out > 100


@pytest.mark.parametrize("rules", ["none", "core", ("article", "acronym")])
def test_the_number_guard(variants: Case, rules: Any) -> None:
    kept = dropped = 0
    numbered = [v for v in VARIANTS if twin.parse(v).numbers]
    for i in range(120):
        q = question(variants, rules)
        slot = "subject" if "subject" in q else "object"
        if i % 2:
            q[slot] = str(variants.rng.choice(numbered))
        q |= {"tau_e": -1.0, "tau_r": -1.0}
        free = compare(variants.memory, variants.model, q)
        guarded = compare(variants.memory, variants.model, q | {"numbers": "exact"}, [5])
        kept, dropped = kept + len(guarded), dropped + len(free) - len(guarded)
    assert kept > 100 and dropped > 100


def test_vectors_in_place_of_texts(rational: Case) -> None:
    # Of any length; with a text, the text serves the rules and the vector the cosine.
    rng, dim = rational.rng, rational.memory.embedder.dim  # type: ignore[union-attr]
    seen: Counter[str] = Counter()
    for i in range(80):
        q = question(rational, "core")
        slot = "subject" if "subject" in q else "object"
        vector = rational.memory.embedder.encode([rational.name()])[0] * float(rng.choice([1e-3, 1, 7e5]))  # type: ignore[union-attr]
        if i % 3:
            q[f"{slot}_vector"] = vector if i % 2 else vector.astype(float).tolist()
        if i % 4 == 1:
            q["relation_vector"] = rng.normal(size=dim)
        if i % 3 == 1:
            del q[slot]
        if i % 8 == 1:
            del q["relation"]
        seen.update(h.match for h in compare(rational.memory, rational.model, q))
    assert seen["vector"] > 100 and seen["exact"] > 10 and seen["alias"] > 0


def test_similar_names(rational: Case) -> None:
    memory, model, rng = rational.memory, rational.model, rational.rng
    for i in range(60):
        relation = bool(i % 2)
        similar = memory.similar_relations if relation else memory.similar_entities
        ids = {n.text: n.id for n in model.live(relation)}
        asked = memory.embedder.encode([rational.name()])[0] * 3  # type: ignore[union-attr]
        tau = threshold(rng, model.cosines(model.live(relation), unit(asked)))
        got = similar(asked, tau)
        expected = model.similar(asked, tau, relation)
        assert dict(got) == pytest.approx(expected, abs=oracle.DOUBT) and len(got) == len(expected)
        assert got == sorted(got, key=lambda pair: (-pair[1], ids[pair[0]]))
        limit = int(rng.integers(1, 9))
        assert similar(asked, tau, limit=limit) == got[:limit]


def test_names_that_wait_for_a_vector(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "m.mem", embedder=Hashed(8)) as memory:
        model = Model(lambda text, relation: unit(Hashed(8).one(text)))
        rows = [("The Beatles", "r", "x"), ("Beatle", "r", "y"), ("x", "R", "Beatles"), ("y", "q", "x")]
        batch = _core.Batch()
        batch.add(rows)
        memory._store.apply(batch)
        for row in rows:
            model.add(*row)
        memory.set_vector("x", Hashed(8).one("x"))
        memory.set_vector("r", Hashed(8).one("r"), relation=True)
        model.fetch(memory)
        base: Question = {"relation": "r", "tau_t": -1.0, "tau_r": -1.0}
        for tau_e in (-1.0, 0.95, 1.0):
            for rules in ("none", "core"):
                for slot, name in (("subject", "the beatles"), ("subject", "Beatle"), ("object", "x")):
                    asked: Question = base | {slot: name, "tau_e": tau_e, "rules": rules}
                    result = compare(memory, model, asked)
                    assert result.unembedded == 6 and not result.complete
        hit = memory.query("the beatles", "r").hits[0]
        assert hit.match == "folded" and math.isnan(hit.cosine)
        assert memory.embed_missing() == 6
        model.fetch(memory)
        result = compare(memory, model, base | {"subject": "the beatles", "tau_e": -1.0})
        assert result.complete and result.unembedded == 0 and not math.isnan(result.hits[0].cosine)


@pytest.mark.parametrize("dim", [16, 72])
def test_a_store_that_is_scanned_through_codes(tmp_path: Path, dim: int) -> None:
    # Large enough, and asked often enough, for the scan that looks at compressed rows first.
    rng = np.random.default_rng(dim)
    n = 2600
    centres = rng.normal(size=(40, dim))
    vectors = (centres[rng.integers(40, size=n)] + rng.normal(size=(n, dim)) * 0.3).astype(np.float32)
    vectors[5::50] = vectors[5]  # many the same
    relation_vectors = rng.normal(size=(6, dim)).astype(np.float32)
    names = [f"e{i}" for i in range(n)]
    with pymemstore.open(tmp_path / "m.mem", embedder=pymemstore.embedders.External(dim)) as memory:
        model = Model(lambda text, relation: np.zeros(dim, np.float32))
        memory.add_entities(names, vectors=vectors)
        for name in names:
            model.name(name, False)
        objects, relations = rng.integers(n, size=n), rng.integers(6, size=n)
        rows = [(names[i], f"r{relations[i]}", names[objects[i]]) for i in range(n)]
        memory.add_many(rows, vectors=(None, relation_vectors[relations], None))
        for row in rows:
            model.add(*row)
        for i in range(0, n, 37):  # rows of names that have another vector now, or are gone
            memory.set_vector(names[i], vectors[(i * 7) % n])
        memory.forget(names[3])
        model.forget(names[3])
        model.fetch(memory)
        live = model.live(False)
        hits = 0
        for _ in range(2):
            questions: list[Question] = []
            for _ in range(30):
                entity, relation = vectors[rng.integers(n)], relation_vectors[rng.integers(6)]
                scores = model.cosines(live, unit(entity))
                near = sorted(scores)[-int(rng.integers(1, 60)) :]
                questions.append(
                    {"subject_vector": entity, "relation_vector": relation, "tau_e": threshold(rng, near)}
                    | {"tau_t": float(rng.choice([-1.0, 0.99])), "tau_r": -1.0, "rules": "none"}
                )
            for q, result in zip(questions, memory.query_many(questions), strict=True):
                agree(result, model, q)
                hits += len(result)
        assert hits > 600
