"""Settings for all tests, and where they find the shared data: real inputs and fault cases."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# No test fails for being slow; the gate tries the same examples each time, a developer's runs new ones.
IN_CI = os.environ.get("CI") == "true"
settings.register_profile("pymemstore", deadline=None, derandomize=IN_CI, print_blob=True)
settings.load_profile("pymemstore")

REPOSITORY = Path(__file__).resolve().parents[2]


def shared_file(path: str) -> Path:
    """The shared file or folder at ``path``, for example ``"data/docred"``.

    It is looked for in the folder that ``PYMEMSTORE_TEST_DATA`` names, by default ``../shared`` beside the
    repository. Where it is missing the test (or module) that asks is skipped, or fails when ``CI`` is "true".
    """
    root = Path(os.environ.get("PYMEMSTORE_TEST_DATA") or REPOSITORY.parent / "shared")
    found = root / path
    if not found.exists():
        reason = f"no {path} in {root} (set PYMEMSTORE_TEST_DATA to the folder with data/ and cases/)"
        if IN_CI:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)
    return found


@pytest.fixture(scope="session")
def test_data() -> Callable[[str], Path]:
    """``test_data("docred/x.json")`` is the path of that real input, below ``data/``."""
    return lambda path: shared_file(f"data/{path}")


@pytest.fixture(scope="session")
def shared_case() -> Callable[[str], Path]:
    """``shared_case("names/names.jsonl")`` is the path of that fault case, below ``cases/``."""
    return lambda path: shared_file(f"cases/{path}")
