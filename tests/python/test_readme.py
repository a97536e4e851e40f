"""Every claim that can run, runs: the code of README.md and docs/, and the two commands' targets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        texts = [text for lang, text in FENCE.findall(page.read_text(encoding="utf-8")) if lang == language]
        found += [pytest.param(page, text, id=f"{page.stem}-{i}") for i, text in enumerate(texts)]
    return found


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_blocks_run(page: Path, text: str, tmp_path: Path) -> None:
    # Blocks of docs/ that need what is not here (a model, a server) say so on their first line.
    if text.startswith("# not run:"):
        compile(text, str(page), "exec")
        return
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{page.name}:\n{text}\n{done.stderr}"


def test_readme_begins_with_the_two_commands() -> None:
    first = FENCE.search((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert first is not None
    commands = [line.split("#")[0].strip() for line in first[2].strip().splitlines()]
    assert commands == ["make demo", "make test"]
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for command in commands:
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_shell_session_runs(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    sessions = [
        block for lang, block in FENCE.findall(text) if lang == "sh" and block.startswith("pymemstore ")
    ]
    assert sessions
    for line in "".join(sessions).strip().splitlines():
        arguments = shlex.split(line)
        assert arguments[0] == "pymemstore"
        done = subprocess.run(
            [sys.executable, "-m", "pymemstore.cli", *arguments[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "NO_COLOR": "1"},
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert "Warsaw" in done.stdout


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://")) and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
