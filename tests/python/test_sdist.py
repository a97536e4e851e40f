"""Our sdist holds all that it is built from: it installs, and works, with no network and an empty cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD_SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# What the installed package must do: the extension, the embedders' tables and the store are all there.
USE = """
import sys, pymemstore
assert sys.prefix in pymemstore.__file__, pymemstore.__file__
with pymemstore.open(sys.argv[1]) as memory:
    memory.add("Recife", "capital of", "Pernambuco")
    print(*memory.query("Recife", "capital of").names)
"""

pytestmark = pytest.mark.slow


def offline() -> list[str]:
    """Prefix of a command that gives it a network without any interface, where the system allows that."""
    prefix = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        return []
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return found[0]


def link_distribution(name: str, site: Path) -> None:
    """Makes an installed distribution, and what it requires, importable from the folder ``site``."""
    distribution = metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
        link = site / top
        if not link.exists():
            link.symlink_to(str(distribution.locate_file(top)))
    for requirement in distribution.requires or []:
        if "extra ==" not in requirement and "python_version" not in requirement:
            link_distribution(requirement_name(requirement), site)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # A copy without build outputs: two builds in one tree would meet in its egg-info.
    tree = folder / "tree"
    outputs = (".git", ".venv", "build", "*.egg-info", "*.so", "__pycache__", ".*_cache")
    shutil.copytree(REPOSITORY, tree, ignore=shutil.ignore_patterns(*outputs))
    built = subprocess.run(
        [sys.executable, "-c", BUILD_SDIST, str(folder)], cwd=tree, check=True, capture_output=True, text=True
    )
    return folder / built.stdout.split()[-1]


def test_it_holds_the_sources_and_no_build_output(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = [path for folder in ("csrc", "bindings") for path in (REPOSITORY / folder).rglob("*")]
    needed += [*(REPOSITORY / "pymemstore").rglob("*.py"), *(REPOSITORY / "pymemstore" / "data").rglob("*")]
    wanted = {str(p.relative_to(REPOSITORY)) for p in needed if p.is_file() and p.suffix != ".pyc"}
    wanted |= {"CMakeLists.txt", "LICENSE", "NOTICE", "README.md"}
    wanted |= {"pymemstore/py.typed", "pymemstore/_core.pyi"}
    wanted |= {
        "third_party/lmdb-3.0.0.tar.gz",
        "third_party/hnswlib-0.8.0.tar.gz",
        "third_party/pysimdjson-7.0.2.tar.gz",
    }
    assert wanted - names == set()
    assert [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")] == []


def test_it_installs_and_works_offline(sdist: Path, tmp_path: Path) -> None:
    prefix = offline()
    ours = ("PIP_", "PYMEMSTORE_", "PYTHON")  # what would change what is built, or imported
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    # Whether it builds is the question, not how fast the result is.
    environment["PYMEMSTORE_CMAKE_ARGS"] = "-DCMAKE_CXX_FLAGS_RELEASE=-O1"
    # Without a network namespace of its own, every way out leads to a closed port.
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [*prefix, *map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(python, "-m", "pip", "uninstall", "--yes", "setuptools")
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"(?ms)^requires = \[(.*?)\]", text)
    assert listed
    for requirement in [*re.findall(r'"([^"]+)"', listed[1]), "numpy"]:
        if requirement_name(requirement) != "pip":
            link_distribution(requirement_name(requirement), site)
    run(python, "-m", "pip", "install", "--no-build-isolation", sdist)

    # Whatever was built was built from the sdist: nothing was downloaded into the cache.
    assert not list((tmp_path / "cache").glob("pymemstore/**/*.tar.gz"))
    assert run(python, "-c", USE, tmp_path / "facts.mem").split() == ["Pernambuco"]
