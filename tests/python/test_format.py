"""What csrc/FORMAT.md says is what another program finds; and the store of version 1 stays readable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import twin_surface as twin

import pymemstore
from pymemstore import Memory, Triple, _core

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from format_reader import siphash
from make_v1 import LONG, Golden, build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "golden"

FOLDED = 1 << 2


def look(store: Path) -> Any:
    """What the reader finds, in a process of its own."""
    command = [sys.executable, str(HERE / "format_reader.py"), str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def text(value: str) -> str:
    return bytes.fromhex(value).decode()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with pymemstore.open(tmp_path / "m.mem", embedder=Golden()) as m:
        build(m)
        yield m


def agree(found: Any, memory: Memory) -> None:
    """All that the reader found is what the interface says."""
    stats = memory.stats()
    assert found["store_id"] == stats.store_id
    for kind, relation in (("entity", False), ("relation", True)):
        live = [n for n in found[kind] if not n["forgotten"]]
        shown = list(memory.relations() if relation else memory.entities())
        assert [text(n["name"]) for n in live] == shown
        rows = stats.relation_vector_rows if relation else stats.entity_vector_rows
        assert found[f"{kind}.rows"] == rows
        for n in live:
            name = text(n["name"])
            vector = memory.vector(name, relation=relation)
            assert n["vector"] == (None if vector is None else vector.astype("<f4").tobytes().hex())
            assert [text(a) for a in n["aliases"]] == memory.aliases(name, relation=relation)
            assert [text(e) for e in n["external"]] == sorted(memory.external_ids(name, relation=relation))
            rules = twin.CORE & 7 if relation else twin.WIDE
            keys = set(_core.rule_keys(name, rules, False))
            for alias in n["aliases"]:
                keys |= set(_core.rule_keys(text(alias), FOLDED, False))
            if n["sealed"]:
                # 40 bits of the sealed ones, which may be out of date, too.
                assert {k >> 24 for k in keys} <= {k >> 24 for k in n["keys"]} | set(n["base_keys"]), name
            else:
                assert sorted(n["keys"]) == sorted(keys), name
            # The folded form's key, computed here: the hash of "F" and the joined tokens.
            for spelling in (name, *(text(a) for a in n["aliases"])):
                joined = "".join(t.folded for t in twin.parse(spelling).tokens)
                key = twin.hash64("F" + joined)
                assert not joined or key in n["keys"] or key >> 24 in n["base_keys"]
    entities, relations = ({n["id"]: text(n["name"]) for n in found[kind]} for kind in ("entity", "relation"))
    shown_as = {i: Triple(entities[s], relations[r], entities[o], i) for i, s, r, o, _ in found["triples"]}
    assert {shown_as[t[0]] for t in found["triples"] if t[4]} == set(memory.triples())
    for i, *_, live in found["triples"]:
        if live:
            said = {s.source: round(s.time * 1e6) for s in memory.sources(i)}
            assert dict(found["sources"].get(str(i), [])) == pytest.approx(said, abs=1)
    changes = list(memory.changes())
    assert len(changes) == len(found["log"]) == found["counters"][3] == stats.seq
    for c, row in zip(changes, found["log"], strict=True):
        assert c.op == row["op"] and abs(c.time - row["time"] / 1e6) < 1e-5
        if "triple" in row:
            assert c.triple == shown_as[row["triple"]]
            assert [t.id for t in c.removed] == row.get("removed", [])
        elif c.op in ("forget", "rename"):
            assert (c.name, c.other) == (row["text"], row["other"])
        else:
            name = (relations if row["relation"] else entities)[row["name"]]
            assert (c.name, c.other) == (name, row["text"]) and row["other"] == ""


def test_siphash_is_the_published_one() -> None:
    # The example of the paper's appendix A, and the first of the authors' vectors.
    key = bytes(range(16))
    assert siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5
    assert siphash(key, b"") == 0x726FDB47DD0E0E31


def test_the_lmdb_package_finds_what_the_interface_says(memory: Memory, tmp_path: Path) -> None:
    # While the store is open here.
    agree(look(tmp_path / "m.mem"), memory)


def test_the_same_after_compaction_and_in_a_backup(memory: Memory, tmp_path: Path) -> None:
    memory.backup(tmp_path / "copy.mem")
    memory.compact()
    found = look(tmp_path / "m.mem")
    agree(found, memory)
    live = [n for n in found["entity"] if not n["forgotten"]]
    assert found["entity.rows"] == len([n for n in live if n["vector"]]) < len(live)
    with pymemstore.open(tmp_path / "copy.mem", embedder=Golden(), create=False) as copy:
        agree(look(tmp_path / "copy.mem"), copy)


def test_the_tables_are_those_of_format_md(memory: Memory, tmp_path: Path) -> None:
    document = (ROOT / "csrc" / "FORMAT.md").read_text(encoding="utf-8")
    section = document[document.index("| table | flags |") :].split("\n\n")[0]
    said = {}
    for row in section.splitlines()[2:]:
        names, flags = row.split("|")[1:3]
        said.update({n: flags.split() for n in re.findall(r"`(\w+)`", names)})
    found = look(tmp_path / "m.mem")
    assert set(said) == set(found["flags"])
    for name, flags in found["flags"].items():
        assert said[name] == [w for f, w in (("dupsort", "dup"), ("dupfixed", "fixed")) if f in flags], name
    assert f"version {_core.FORMAT_VERSION}" in document.splitlines()[0]


def test_the_default_embedders_and_a_large_transaction(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    words = ["Saint", "Mary", "of", "the", "IX", "1912", "Müller", "Ltd", "US", "日本"]
    names = [" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(300)]
    with pymemstore.open(tmp_path / "m.mem") as memory:
        pairs = rng.choice(names, (400, 2)).tolist()
        memory.add_many([(s, f"relation {i % 9}", o) for i, (s, o) in enumerate(pairs)])
        for i, name in enumerate(list(memory.entities())[::10]):
            memory.alias(names[i], name)
            if i % 3 == 0:
                memory.rename(name, f"{name} II and last")
            if i % 4 == 0:
                memory.unalias(names[i], f"{name} II and last" if i % 3 == 0 else name)
        found = look(tmp_path / "m.mem")
        stamps = [found[f"embedder.{kind}"][:2] for kind in ("entity", "relation")]
        assert stamps == [[256, "surf256"], [256, "rel256"]]
        agree(found, memory)


def test_rows_that_did_not_commit_are_no_part_of_the_store(memory: Memory, tmp_path: Path) -> None:
    file = next((tmp_path / "m.mem" / "vectors").glob("entities-*.vec"))
    memory.close()
    with file.open("ab") as f:
        f.write(b"\xff" * 1000)  # what a crash may leave
    with pymemstore.open(tmp_path / "m.mem", embedder=Golden(), create=False) as again:
        assert again.check().ok
        again.add("after", "the", "crash")
        agree(look(tmp_path / "m.mem"), again)
        assert again.check().ok


# ---- the store of version 1 --------------------------------------------------------------------------

FACTS = {
    ("The Beatles", "has member", "John Lennon", 2),
    ("The Beatles", "has member", "Paul McCartney", 3),
    ("John Lennon", "born in", "Liverpool", 4),
    ("Zürich", "located in", "Switzerland", 5),
    ("東京", "located in", "日本", 6),
    ("nul\0byte", "is a", " spaces kept ", 7),
    (LONG, "is a", "nul\0byte", 8),
    ("John Lennon", "lives in", "New York", 10),
    ("The Beatles", "formed in", "Liverpool", 11),
}
ENTITIES = [
    "The Beatles", "Liverpool", "John Lennon", "Paul McCartney", "Zürich", "Switzerland", "東京", "日本",
    "nul\0byte", " spaces kept ", LONG, "London", "New York", "waits for a vector",
]  # fmt: skip
RELATIONS = ["formed in", "has member", "born in", "located in", "is a", "lives in"]
CHANGES = (
    ["add"] * 8
    + ["alias"] * 4
    + ["unalias"]
    + ["external_id"] * 3
    + ["vector", "replace", "replace", "remove", "add", "rename", "rename", "vector"]
    + ["add", "remove", "forget"]
)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "v1.mem", tmp_path / "v1.mem"))


def test_the_store_of_version_1_is_read(golden: Path) -> None:
    with pymemstore.open(golden, read_only=True) as memory:
        assert memory.stats().format_version == 1 and memory.check().ok
        assert set(memory.triples()) == FACTS
    assert look(golden)["version"] == 1
    with pymemstore.open(golden, embedder=Golden(), create=False) as memory:
        assert memory.stats().format_version == 2  # opened to be written
        assert set(memory.triples()) == FACTS
        assert list(memory.entities()) == ENTITIES
        assert list(memory.relations()) == RELATIONS
        assert memory.aliases("The Beatles") == ["The Fab Four"] and memory.named_by("Tokio") == ["東京"]
        assert memory.aliases("located in", relation=True) == ["lies in"]
        assert memory.external_ids("The Beatles") == ["Q1299"]
        assert memory.by_external_id("Q1203") == "John Lennon"
        assert memory.by_external_id("P19", relation=True) == "born in"
        assert [s.source for s in memory.sources(4)] == ["first.jsonl", "second.jsonl"]
        assert [s.source for s in memory.sources(10)] == ["third.jsonl"] and memory.sources(11) == []
        assert [c.op for c in memory.changes()] == CHANGES
        replaced = next(c for c in memory.changes(17) if c.removed)
        assert replaced.removed == (Triple("John Lennon", "lives in", "London", 9),)
        forgotten = next(memory.changes(len(CHANGES) - 1))
        assert (forgotten.op, forgotten.name) == ("forget", "Atlantis")
        assert memory.vector("waits for a vector") is None
        vector = memory.vector("Zürich")
        assert vector is not None
        assert vector.tolist() == np.array([0, 0, 12 / 13, 5 / 13, 0, 0], np.float32).tolist()
        assert memory.check().ok
        agree(look(golden), memory)
        assert look(golden)["version"] == 2


def test_the_store_of_version_1_answers(golden: Path) -> None:
    with pymemstore.open(golden, embedder=Golden(), create=False) as memory:

        def first(**question: Any) -> tuple[str, str]:
            hit = memory.query(**question).hits[0]
            return hit.name, hit.match

        # Through the name's hash, an alias's hash, and rule keys of a name and of an alias.
        assert first(subject="The Beatles", relation="formed in") == ("Liverpool", "exact")
        assert first(subject="Tokio", relation="lies in") == ("日本", "alias")
        assert first(subject="beatles", relation="Formed In") == ("Liverpool", "article")
        assert first(subject="the fab four", relation="formed in") == ("Liverpool", "folded")
        assert first(subject="J. Lennon", relation="born in") == ("Liverpool", "initials")
        assert first(object="lennon, john", relation="has member") == ("The Beatles", "word_order")
        # By the vector alone.
        asked = memory.query(object="日本", relation="located in", rules="none", tau_e=1, tau_t=1, tau_r=1)
        assert asked.names == ["東京"] and asked.unembedded == 1
        (name, score), *_ = memory.similar_entities([0, 0, 24, 10, 0, 0], 1)
        assert name == "Zürich" and score == pytest.approx(1, abs=1e-7)


def test_the_store_of_version_1_is_written(golden: Path) -> None:
    with pymemstore.open(golden, embedder=Golden(), create=False) as memory:
        assert memory.add("Zürich", "located in", "Switzerland") == pymemstore.Added((5, False))
        assert memory.add("Bern", "located in", "Switzerland").triple_id == 13
        assert memory.embed_missing() == 1
        memory.forget("nul\0byte")
        memory.compact()
    with pymemstore.open(golden, embedder=Golden(), create=False) as memory:
        gone = {t for t in FACTS if "nul\0byte" in t}
        assert set(memory.triples()) == FACTS - gone | {("Bern", "located in", "Switzerland", 13)}
        assert memory.check().ok
        agree(look(golden), memory)


def test_the_store_of_version_1_without_its_embedder(golden: Path) -> None:
    with pymemstore.open(golden, read_only=True) as memory:
        assert memory.embedder is None and set(memory.triples()) == FACTS
        entity, relation = memory.vector("東京"), memory.vector("located in", relation=True)
        assert memory.query(subject_vector=entity, relation_vector=relation).names[0] == "日本"
        with pytest.raises(pymemstore.InvalidArgument, match="golden"):
            memory.query("東京", "located in")


def test_the_script_makes_the_same_content(tmp_path: Path, golden: Path) -> None:
    command = [sys.executable, str(GOLDEN / "make_v1.py"), str(tmp_path / "new.mem")]
    subprocess.run(command, check=True, timeout=60)
    new, old = look(tmp_path / "new.mem"), look(golden)
    assert new["triples"] == old["triples"] and new["counters"] == old["counters"]

    def said(names: Any) -> Any:
        # Where the rule keys are depends on the version; `agree` looks at them.
        return [{k: v for k, v in name.items() if "keys" not in k and k != "sealed"} for name in names]

    assert said(new["entity"]) == said(old["entity"]) and said(new["relation"]) == said(old["relation"])


# ---- the store of version 2 --------------------------------------------------------------------------

FACTS_2 = {
    ("The Beatles", "has member", "John Lennon", 2),
    ("The Beatles", "has member", "Sir Paul", 3),
    ("John Lennon", "born in", "Liverpool", 4),
    ("John Lennon", "lives in", "New York", 10),
    ("The Beatles", "formed in", "Liverpool", 11),
    ("東京", "located in", "日本", 13),
    ("Bern", "located in", "Switzerland", 14),
    ("Basel", "is a", "town", 17),
}


@pytest.fixture
def golden_2(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "v2.mem", tmp_path / "v2.mem"))


def test_the_store_of_version_2_is_read(golden_2: Path) -> None:
    found = look(golden_2)
    assert found["version"] == 2 and {"base_spo", "delta_spo"} <= set(found["flags"])
    with pymemstore.open(golden_2, embedder=Golden(), create=False) as memory:
        assert set(memory.triples()) == FACTS_2
        assert memory.named_by("Bâle") == ["Basel"] and memory.aliases("The Beatles") == ["The Fab Four"]
        assert [s.source for s in memory.sources(14)] == ["delta"]
        stats = memory.stats()
        assert (stats.sealed_entities, stats.unruled_entities) == (18, 2)  # two came without rule keys
        assert memory.vector("Bern") is not None and memory.vector("city") is None
        asked = memory.query("Basel", "is a")
        assert asked.names == ["town"] and not asked.complete
        assert memory.check().ok


def test_the_store_of_version_2_is_written(golden_2: Path) -> None:
    with pymemstore.open(golden_2, embedder=Golden(), create=False) as memory:
        memory.embed_missing()
        memory.build_rules()
        assert memory.add("Zürich", "located in", "Switzerland").triple_id == 18
        assert memory.remove("The Beatles", "formed in", "Liverpool")
        memory.forget("Basel")
        agree(look(golden_2), memory)
        memory.compact()
        agree(look(golden_2), memory)
        assert memory.query("BERN", "located in").hits[0].match == "folded"
        assert memory.check().ok


def test_the_script_of_version_2_makes_the_same_content(tmp_path: Path, golden_2: Path) -> None:
    command = [sys.executable, str(GOLDEN / "make_v2.py"), str(tmp_path / "new.mem")]
    subprocess.run(command, check=True, timeout=60)
    new, old = look(tmp_path / "new.mem"), look(golden_2)
    assert new["triples"] == old["triples"] and new["counters"] == old["counters"]
    assert new["entity"] == old["entity"] and new["relation"] == old["relation"]
