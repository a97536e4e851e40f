"""Dependencies run one way: a file may use layers below its own, never one above or beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Each list from the top down; names in one row are beside each other. A file belongs to the module whose name
# is its own up to an underscore (store_write.cc to store), and may use its own module.
CORE_LAYERS = [
    ["bulk_load"],
    ["store"],
    ["query", "writer", "maintenance", "embed", "bulk_seal"],
    ["merge", "bulk_names"],
    ["generation", "bulk_sink"],
    ["store_impl"],  # an open store's state, which the rows above work on
    ["name_table", "triple_table", "vector_index"],
    ["staging", "ntriples", "external_sort"],
    ["wikidata", "tsv"],
    ["fact_sink"],
    ["lmdb_env", "vector_file", "search_cost"],
    ["graph"],
    ["sealed"],
    ["clusters"],
    ["exact_scan"],  # these see vectors through an interface of their own, never the file
    ["chunk_runner", "derived_file"],
    ["distance"],
    ["simd"],  # distance's kernels, a file for each instruction set
    ["packed"],
    ["format", "file_util"],
    ["types", "token_masks"],
    ["status", "surface", "utf8"],
    ["unicode_tables", "crc32"],
]
PYTHON_LAYERS = [
    ["cli"],
    ["serve", "mcp", "cluster", "adapters"],
    ["train", "evaluate"],
    ["ingest", "memllm", "memprompt"],
    ["backends", "calls"],
    ["__init__"],  # the package's face: pymemstore.open and the names it passes on
    ["aio", "tune"],
    ["memory"],
    ["_upkeep"],  # its methods for a store as a whole
    ["transaction", "_question"],
    ["_space"],
    ["_input"],
    ["embedders", "results"],
    ["errors", "_core"],
]
# Files whose names don't begin with their module's.
PARTS = {"scan": "exact_scan", "__main__": "cli"}
# Third-party headers, and the module that alone may include them.
SOLE_INCLUDERS = {"lmdb.h": "lmdb_env", "hnswlib": "graph", "simdjson.h": "wikidata"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def module_of(stem: str, layers: Sequence[Sequence[str]]) -> str | None:
    names = [*PARTS, *(name for row in layers for name in row)]
    name = max((n for n in names if stem == n or stem.startswith(n + "_")), key=len, default=None)
    return PARTS.get(name, name) if name else None


def level(module: str, layers: Sequence[Sequence[str]]) -> int:
    return next(i for i, row in enumerate(layers) if module in row)


def complaint(where: str, user: str | None, used: str | None, layers: Sequence[Sequence[str]]) -> str | None:
    if user is None:
        return f"{where}: the file belongs to no layer"
    if used is None:
        return f"{where}: the used file belongs to no layer"
    if user != used and level(used, layers) <= level(user, layers):
        return f"{where}: {user} uses {used}, which is not below it"
    return None


def core_complaints(root: Path) -> Iterator[str]:
    """Upward and sideways includes in csrc/, third-party headers where they don't belong."""
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in {".h", ".cc"}:
            continue
        where = str(path.relative_to(root))
        public = path.parent.name == "pymemstore"
        user = module_of(path.stem, CORE_LAYERS)
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            for header, owner in SOLE_INCLUDERS.items():
                if header in included.split("/") and user != owner:
                    yield f"{where}: only {owner} may include {included}"
            places = (root / "csrc" / included, root / "csrc" / "include" / included)
            inside = next((place for place in places if place.exists()), None)
            if inside is None or inside.suffix == ".inc":
                continue  # not ours, or a table of its one includer
            if public and inside.parent.name != "pymemstore":
                yield f"{where}: a public header includes {included}, which is internal"
            found = complaint(where, user, module_of(inside.stem, CORE_LAYERS), CORE_LAYERS)
            if found:
                yield found


def binding_complaints(root: Path) -> Iterator[str]:
    """Includes in bindings/ of anything of ours but the public headers and bindings/ itself."""
    for path in sorted((root / "bindings").rglob("*")):
        if path.suffix not in {".h", ".cc"}:
            continue
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if (path.parent / included).is_file() and ".." not in included:
                continue  # a header of bindings/
            parts = set(included.split("/"))
            if (root / "csrc" / included).is_file() or ".." in parts or parts & set(SOLE_INCLUDERS):
                yield f"{path.relative_to(root)}: bindings may not include {included}"


def imported(tree: ast.AST, path: Path, package: Path) -> set[tuple[int, str]]:
    """(line, module of pymemstore) for each import of ours, wherever in the file it stands."""
    found: set[tuple[int, str]] = set()
    parents = path.relative_to(package.parent).parts[:-1]  # what relative imports start from
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            # `from pymemstore import errors` means the submodule, `from pymemstore import open` the face.
            targets = [module]
            if module == (package.name,):
                names = [alias.name for alias in node.names]
                targets = [(*module, name) if is_submodule(package, name) else module for name in names]
        else:
            continue
        ours = (target for target in targets if target[0] == package.name)
        found.update((node.lineno, target[1] if len(target) > 1 else "__init__") for target in ours)
    return found


def is_submodule(package: Path, name: str) -> bool:
    return (package / name).is_dir() or any(package.glob(f"{name}.py*"))


def python_complaints(root: Path) -> Iterator[str]:
    """Upward and sideways imports in pymemstore/."""
    package = root / "pymemstore"
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        user = module_of(path.relative_to(package).parts[0].split(".")[0], PYTHON_LAYERS)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in sorted(imported(tree, path, package)):
            where = f"{path.relative_to(root)}:{line}"
            found = complaint(where, user, module_of(name, PYTHON_LAYERS), PYTHON_LAYERS)
            if found:
                yield found


CHECKS = {"core": core_complaints, "bindings": binding_complaints, "python": python_complaints}


@pytest.mark.parametrize("part", CHECKS)
def test_dependencies_run_one_way(part: str) -> None:
    assert "\n".join(CHECKS[part](REPOSITORY)) == ""


def test_the_checks_read_the_real_tree() -> None:
    assert {"store.cc", "lmdb_env.cc"} <= {path.name for path in (REPOSITORY / "csrc").glob("*.cc")}
    assert (REPOSITORY / "bindings" / "module.cc").is_file()
    assert (REPOSITORY / "pymemstore" / "memory.py").is_file()


@pytest.mark.parametrize(
    ("part", "path", "text"),
    [
        ("core", "csrc/name_table.cc", '#include "query.h"'),  # upward
        ("core", "csrc/name_table_x.cc", '#include "triple_table.h"'),  # sideways
        ("core", "csrc/format.h", '  #  include "lmdb_env.h"'),
        ("core", "csrc/query.cc", '#include "pymemstore/store.h"'),
        ("core", "csrc/store.cc", "#include <lmdb.h>"),
        ("core", "csrc/exact_scan.cc", '#include "hnswlib/hnswlib.h"'),
        ("core", "csrc/include/pymemstore/store.h", '#include "format.h"'),
        ("core", "csrc/unheard.h", '#include "format.h"'),
        ("bindings", "bindings/module.cc", '#include "query.h"'),
        ("bindings", "bindings/module.cc", '#include "../csrc/query.h"'),
        ("bindings", "bindings/module.cc", "#include <lmdb.h>"),
        ("python", "pymemstore/errors.py", "from pymemstore.memory import Memory"),
        ("python", "pymemstore/memory.py", "def f() -> None:\n    from . import aio"),
        ("python", "pymemstore/embedders.py", "from . import open"),
        ("python", "pymemstore/embedders.py", "import pymemstore"),
        ("python", "pymemstore/ingest/readers.py", "from ..cli import main"),
        ("python", "pymemstore/ingest/readers.py", "from ..memllm.reader import step"),
        ("python", "pymemstore/unheard.py", "from . import errors"),
    ],
)
def test_a_wrong_dependency_is_found(tmp_path: Path, part: str, path: str, text: str) -> None:
    lay_out(tmp_path)
    assert list(CHECKS[part](tmp_path)) == []
    (tmp_path / path).write_text(text)
    assert len(list(CHECKS[part](tmp_path))) == 1


def lay_out(root: Path) -> None:
    """A small tree whose dependencies are all right."""
    files = {
        "csrc/include/pymemstore/status.h": "#include <string>",
        "csrc/include/pymemstore/store.h": '#include "pymemstore/status.h"',
        "csrc/format.h": '#include "pymemstore/status.h"',
        "csrc/lmdb_env.cc": '#include <lmdb.h>\n#include "lmdb_env.h"\n#include "format.h"',
        "csrc/lmdb_env.h": "",
        "csrc/graph.cc": '#include "hnswlib/hnswlib.h"',
        "csrc/exact_scan.cc": "",
        "csrc/name_table.h": '#include "lmdb_env.h"',
        "csrc/name_table.cc": '#include "name_table.h"\n#include "names.inc"',
        "csrc/triple_table.h": "",
        "csrc/query.h": "",
        "csrc/query.cc": '#include "query.h"\n#include "name_table.h"',
        "csrc/store.cc": '#include "pymemstore/store.h"\n#include "store_parts.h"\n#include "query.h"',
        "csrc/store_parts.h": "",
        "bindings/module.cc": '#include <pybind11/pybind11.h>\n#include <vector>\n#include "convert.h"',
        "bindings/convert.h": '#include "pymemstore/store.h"',
        "pymemstore/__init__.py": "from pymemstore.memory import Memory as Memory",
        "pymemstore/_core.pyi": "import numpy",
        "pymemstore/errors.py": "import os",
        "pymemstore/embedders.py": "from pymemstore import _core, errors",
        "pymemstore/memory.py": "from . import embedders\nfrom ._core import Store",
        "pymemstore/aio.py": "",
        "pymemstore/ingest/__init__.py": "",
        "pymemstore/ingest/readers.py": "from pymemstore import open\nfrom .loader import load",
        "pymemstore/ingest/loader.py": "from .. import errors",
        "pymemstore/memllm/reader.py": "",
        "pymemstore/cli/main.py": "import pymemstore.ingest.readers",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
