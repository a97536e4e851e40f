"""The made-up world of the tiny model: names, relations, and the sentences that tell facts."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["FILLERS", "PRONOUNS", "RELATIONS", "TEMPLATES", "Template", "World", "new_word", "words", "world"]

# Fixed, so that the vocabulary is the same whatever the training's seed is.
_WORLD_SEED = 20261201
_HELD_OUT = 0.1

SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
OCCUPATIONS = [
    "painter", "teacher", "doctor", "lawyer", "farmer", "writer", "pilot", "singer", "baker", "judge",
    "nurse", "poet", "dancer", "chemist", "soldier", "sailor", "tailor", "banker", "driver", "gardener",
    "musician", "professor", "librarian", "mechanic",
]  # fmt: skip
COMPANY_SUFFIXES = ("", "", "", " Bank", " Works", " Press")
YEARS = [str(year) for year in range(1880, 1990)]

# Kinds: P person, C city, O company, U college, N country, Y year, J occupation.
RELATIONS: dict[str, tuple[str, str]] = {
    "place of birth": ("P", "C"),
    "date of birth": ("P", "Y"),
    "residence": ("P", "C"),
    "employer": ("P", "O"),
    "spouse": ("P", "P"),
    "educated at": ("P", "U"),
    "occupation": ("P", "J"),
    "headquarters": ("O", "C"),
    "inception": ("O", "Y"),
    "country": ("C", "N"),
}

# {s} is the subject, {relation} that relation's object.
_TEXTS: dict[str, str] = {
    "P": """
{s} was born in {place of birth}.
{s} comes from {place of birth}.
The birthplace of {s} is {place of birth}.
{place of birth} is the birthplace of {s}.
{s} was born in the year {date of birth}.
The birth year of {s} is {date of birth}.
{s} lives in {residence}.
{s} moved to {residence}.
The home of {s} is in {residence}.
{residence} is home to {s}.
{s} works for {employer}.
{s} joined {employer}.
{s} has a job at {employer}.
{employer} hired {s}.
{s} married {spouse}.
{s} is married to {spouse}.
{s} and {spouse} are married.
{s} studied at {educated at}.
{s} went to {educated at}.
{educated at} taught {s}.
{s} is a {occupation}.
{s} became a {occupation}.
{s} was born in {place of birth} in {date of birth}.
{s} was born in {place of birth} and lives in {residence}.
{s} studied at {educated at} and works for {employer}.
{s} lives in {residence} and works for {employer}.
{s} married {spouse} and moved to {residence}.
{s}, a {occupation}, was born in {place of birth}.
{s}, a {occupation}, works for {employer}.
{s}, who lives in {residence}, is married to {spouse}.
{s} is a {occupation} and lives in {residence}.
{s}, a {occupation} from {place of birth}, works for {employer}.
{s} was born in {place of birth}, studied at {educated at} and lives in {residence}.
""",
    "O": """
{s} is based in {headquarters}.
{s} has its seat in {headquarters}.
The seat of {s} is in {headquarters}.
{headquarters} is the seat of {s}.
{s} was founded in {inception}.
{s} was set up in {inception}.
{s}, founded in {inception}, is based in {headquarters}.
{s} was founded in {inception} and has its seat in {headquarters}.
""",
    "C": """
{s} is a city in {country}.
{s} lies in {country}.
{s} is in the south of {country}.
""",
}
# Sentences without a fact: with the subject, or with nobody.
FILLERS: dict[str, tuple[str, ...]] = {
    "P": (
        "{s} liked long walks.",
        "{s} was fond of old books.",
        "{s} died after a short illness.",
        "Many people wrote about {s}.",
        "{s} spoke about the early days.",
        "{s} never talked about money.",
        "There is a painting of {s}.",
    ),
    "O": (
        "{s} had a good year.",
        "{s} sold all its ships.",
        "Not much is known about {s}.",
    ),
    "C": (
        "{s} has a large market.",
        "{s} is known for its bread.",
        "The streets of {s} are narrow.",
    ),
    "": (
        "The weather was mild.",
        "It was a cold winter.",
        "Nothing else is known.",
        "The story was in all papers.",
        "There was no other news.",
        "The river was high in spring.",
    ),
}
PRONOUNS = {"P": ("He", "She"), "O": ("It",), "C": ("It",)}


@dataclass(frozen=True)
class Template:
    """A sentence with slots.

    Attributes:
        kind: the subject's.
        parts: texts and slots in turn; a slot is "s" or a relation, in `slots` by its index.
        relations: those it tells, in the order of the text.
        pronoun: whether the subject may be a pronoun.
        inverse: whether an object comes before the subject.
    """

    kind: str
    parts: tuple[str, ...]
    slots: frozenset[int] = field(repr=False)
    relations: tuple[str, ...]
    pronoun: bool
    inverse: bool


def _template(kind: str, text: str) -> Template:
    parts = re.split(r"\{([^}]*)\}", text)
    slots = frozenset(range(1, len(parts), 2))
    told = tuple(parts[i] for i in sorted(slots) if parts[i] != "s")
    pronoun = text.startswith("{s} ") and not text.startswith("{s} and")
    return Template(kind, tuple(parts), slots, told, pronoun, len(parts) > 1 and parts[1] != "s")


TEMPLATES: dict[str, tuple[Template, ...]] = {
    kind: tuple(_template(kind, line) for line in texts.strip().splitlines())
    for kind, texts in _TEXTS.items()
}
FILLER_TEMPLATES = {kind: tuple(_template(kind, line) for line in lines) for kind, lines in FILLERS.items()}


@dataclass(frozen=True)
class World:
    """Names by kind. `people` are (training, held out): pairs of first and last names, disjoint."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    people: tuple[tuple[str, ...], tuple[str, ...]]
    names: dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def world() -> World:
    """The one world there is."""
    rng = random.Random(_WORLD_SEED)
    made = dict.fromkeys(("Bakedo", "Filuma", "Zorani"))  # those of the examples
    while len(made) < 420:
        made.setdefault("".join(rng.choice(SYLLABLES) for _ in range(3)).capitalize())
    for name in ("Bakedo", "Filuma", "Zorani"):
        del made[name]
    every = iter(made)

    def take(count: int) -> list[str]:
        return [next(every) for _ in range(count)]

    first, last = ["Bakedo", *take(109)], ["Filuma", *take(129)]
    cities, companies = ["Zorani", *take(89)], take(50)
    colleges, countries = take(20), take(20)
    people = [f"{a} {b}" for a in first for b in last][1:]
    rng.shuffle(people)
    people.append("Bakedo Filuma")  # held out
    cut = int(len(people) * (1 - _HELD_OUT))
    names = {
        "C": tuple(cities),
        "O": tuple(name + rng.choice(COMPANY_SUFFIXES) for name in companies),
        "U": tuple(f"{name} College" for name in colleges),
        "N": tuple(countries),
        "Y": tuple(YEARS),
        "J": tuple(OCCUPATIONS),
    }
    return World(tuple(first), tuple(last), (tuple(people[:cut]), tuple(people[cut:])), names)


def new_word(rng: random.Random) -> str:
    """A name that is (almost surely) not in the vocabulary: syllables, or at times any letters."""
    if rng.random() < 0.7:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3, 3)))).capitalize()
    letters = [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 6))]
    if rng.random() < 0.2:
        letters[rng.randrange(len(letters))] = rng.choice("áàâãäåæçéèêëíîïñóôõöøúüýčğłśšž")
    return "".join(letters).capitalize()


def words() -> list[str]:
    """The words of all sentences and names, sorted: each is one token."""
    w = world()
    found = {*w.first, *w.last, *(p for kind in PRONOUNS.values() for p in kind)}
    for names in w.names.values():
        found.update(part for name in names for part in name.split())
    found.update(part for relation in RELATIONS for part in relation.split())
    for templates in (*TEMPLATES.values(), *FILLER_TEMPLATES.values()):
        for template in templates:
            for i, part in enumerate(template.parts):
                if i not in template.slots:
                    found.update(re.findall(r"\w+", part))
    return sorted(found)
