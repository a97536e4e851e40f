"""The command line: every command, --json, every exit code, Ctrl-C, and docs/cli.md."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pymemstore

typer = pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("rich", reason="the command line needs rich")
from pymemstore.cli.app import app  # noqa: E402
from pymemstore.cli.common import ExitCode, shown  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs" / "cli.md"


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.count("\n") == 1, self.out  # one document, nothing else
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Run:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([str(argument) for argument in arguments], prog_name="pymemstore")
        output = capsys.readouterr()
        return Run(int(ended.value.code or 0), output.out, output.err)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "facts.mem"
    with pymemstore.open(path) as memory:
        memory.add_many(
            [
                ("Ana Lima", "born in", "Recife"),
                ("Recife", "country", "Brazil"),
                ("Olinda", "country", "Brazil"),
            ],
            source="test",
        )
    return path


def process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """The command in its own process, with a terminal's SIGINT even where the test run ignores it."""
    return subprocess.Popen(
        [sys.executable, "-m", "pymemstore.cli", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


# ---- the commands --------------------------------------------------------------------------------


def test_init_makes_a_store_once(cli: Callable[..., Run], tmp_path: Path) -> None:
    made = cli("init", tmp_path / "new.mem", "--json")
    assert made.code == 0 and Path(made.json["path"]).samefile(tmp_path / "new.mem")
    with pymemstore.open(tmp_path / "new.mem", create=False) as memory:
        assert len(memory) == 0
        assert made.json["entity_embedder"] == memory.stats().entity_embedder == "surf256"
        assert made.json["relation_embedder"] == memory.stats().relation_embedder == "rel256"
    again = cli("init", tmp_path / "new.mem")
    assert again.code == 1 and "already" in again.err
    assert "already" in cli("init", tmp_path / "new.mem", "--json").json["error"]["message"]


def test_init_with_an_embedder(cli: Callable[..., Run], tmp_path: Path) -> None:
    made = cli("init", tmp_path / "m", "--embedder", "surf256", "--json").json
    assert (made["entity_embedder"], made["relation_embedder"]) == ("surf256", "surf256")
    made = cli(
        "init", tmp_path / "n", "--embedder", "surf256", "--relation-embedder", "rel256", "--json"
    ).json
    assert (made["entity_embedder"], made["relation_embedder"]) == ("surf256", "rel256")


def test_add(cli: Callable[..., Run], store: Path) -> None:
    first = cli("add", store, "Rui", "born in", "Porto", "--source", "me", "--json").json
    again = cli("add", store, "Rui", "born in", "Porto", "--json").json
    assert first == {"triple_id": first["triple_id"], "inserted": True, "removed": []}
    assert again == first | {"inserted": False}
    replaced = cli("add", store, "Rui", "born in", "Lisbon", "--replace", "--json").json
    assert replaced["inserted"]
    assert replaced["removed"] == [
        {"subject": "Rui", "relation": "born in", "object": "Porto", "id": first["triple_id"]}
    ]
    with pymemstore.open(store) as memory:
        assert memory.contains("Rui", "born in", "Lisbon") and not memory.contains("Rui", "born in", "Porto")
    assert "was there already" in cli("add", store, "Rui", "born in", "Lisbon").out


def test_add_and_import_make_a_store_only_when_asked(cli: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("a\tr\tb\n")
    for command in (
        ["add", tmp_path / "x.mem", "a", "r", "b"],
        ["import", "facts", tmp_path / "in.tsv", "--into", tmp_path / "x.mem"],
    ):
        assert cli(*command).code == 1 and not (tmp_path / "x.mem").exists()
    assert cli("add", tmp_path / "x.mem", "a", "r", "b", "--create").code == 0
    assert cli("import", "facts", tmp_path / "in.tsv", "--into", tmp_path / "y.mem", "--create").code == 0
    for name in ("x.mem", "y.mem"):
        with pymemstore.open(tmp_path / name, create=False) as memory:
            assert memory.contains("a", "r", "b")


def test_query_says_what_the_library_says(cli: Callable[..., Run], store: Path) -> None:
    with pymemstore.open(store) as memory:
        expected = memory.query("ana lima", "born in")
        found = cli("query", store, "-s", "ana lima", "-r", "born in", "--json").json
        assert found["names"] == expected.names == ["Recife"]
        hit, want = found["hits"][0], expected.hits[0]
        assert hit["triple"] == {
            "subject": "Ana Lima",
            "relation": "born in",
            "object": "Recife",
            "id": want.triple_id,
        }
        keys = ("name", "score", "entity_similarity", "relation_similarity", "cosine", "match")
        assert [hit[key] for key in keys] == [getattr(want, key) for key in keys]
        keys = ("truncated", "complete", "unembedded", "search", "entity_candidates", "rows_scanned")
        assert [found[key] for key in keys] == [getattr(expected, key) for key in keys]
    shown_hits = cli("query", store, "-s", "ana lima", "-r", "born in").out
    assert "Recife" in shown_hits and "folded" in shown_hits and f"{want.score:.3f}" in shown_hits


def test_query_options_reach_the_library(cli: Callable[..., Run], store: Path) -> None:
    both = cli("query", store, "-o", "Brazil", "-r", "country", "--json").json
    assert sorted(both["names"]) == ["Olinda", "Recife"] and not both["truncated"]
    one = cli("query", store, "-o", "Brazil", "-r", "country", "--limit", 1, "--json").json
    assert one["names"] == both["names"][:1] and one["truncated"]
    assert "there are more" in cli("query", store, "-o", "Brazil", "-r", "country", "--limit", 1).err
    folded = ("query", store, "--object", "BRAZIL", "--relation", "country", "--tau-e", 0.985, "--json")
    assert len(cli(*folded).json["hits"]) == 2
    with pymemstore.open(store) as memory:
        plain = memory.query(None, "country", "BRAZIL", tau_e=0.985, rules="none")
    assert cli(*folded, "--rules", "none").json["names"] == plain.names
    assert cli(*folded, "--tau-t", 1, "--tau-r", 1).code == 4
    assert cli(*folded, "--search", "exact", "--numbers", "exact").json["search"] == "exact"


def test_import_reports_and_shows_the_first_errors(
    cli: Callable[..., Run], store: Path, tmp_path: Path
) -> None:
    lines = [f'["s{n}", "r", "o"]' if n % 2 else f"bad {n}" for n in range(1, 61)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    ran = cli(
        "import",
        "facts",
        tmp_path / "in.jsonl",
        "--into",
        store,
        "--format",
        "jsonl",
        "--batch",
        7,
        "--source",
        "here",
    )
    assert ran.code == 3 and "30 new triples" in ran.out and "30 skipped" in ran.out
    assert re.findall(r"line (\d+):", ran.err) == [str(n) for n in range(2, 41, 2)]
    assert "10 more" in ran.err
    report = cli("import", "facts", tmp_path / "in.jsonl", "--into", store, "--format", "jsonl", "--json")
    assert report.code == 3 and report.json["status"] == "complete" and report.json["error"] is None
    assert [error["line"] for error in report.json["errors"]] == list(range(2, 61, 2))
    assert (report.json["read"], report.json["inserted"], report.json["existed"]) == (60, 0, 30)
    with pymemstore.open(store) as memory:
        fact = next(memory.triples("s1"))
        assert [source.source for source in memory.sources(fact.id)] == ["here"]


def test_import_of_docred(cli: Callable[..., Run], store: Path, tmp_path: Path) -> None:
    vertices = [[{"name": "Ana Lima"}, {"name": "Lima"}], [{"name": "Brazil"}]]
    document = {"title": "t", "vertexSet": vertices, "labels": [{"h": 0, "t": 1, "r": "P27"}]}
    (tmp_path / "in.json").write_text(json.dumps([document]))
    (tmp_path / "labels.json").write_text('{"P27": "citizenship"}')
    plain = cli("import", "facts", tmp_path / "in.json", "--into", store, "--no-aliases", "--json").json
    assert (plain["format"], plain["inserted"], plain["aliases"]) == ("docred", 1, 0)
    labels = tmp_path / "labels.json"
    named = cli(
        "import", "facts", tmp_path / "in.json", "--into", store, "--relations", labels, "--aliases", "--json"
    ).json
    assert (named["inserted"], named["aliases"]) == (1, 1)
    with pymemstore.open(store) as memory:
        assert {t.relation for t in memory.triples("Ana Lima")} == {"born in", "P27", "citizenship"}


def test_import_of_a_truncated_file(cli: Callable[..., Run], store: Path, tmp_path: Path) -> None:
    import gzip

    whole = gzip.compress("".join(f"s{n}\tr\t{os.urandom(9).hex()}\n" for n in range(5_000)).encode())
    (tmp_path / "in").write_bytes(whole[: len(whole) // 2])
    ran = cli("import", "facts", tmp_path / "in", "--into", store, "--json")
    assert ran.code == 1 and ran.json["status"] == "failed" and "truncated" in ran.json["error"]["message"]
    assert ran.json["inserted"] > 0
    with pymemstore.open(store) as memory:
        assert len(memory) == 3 + ran.json["inserted"]
    assert "truncated" in cli("import", "facts", tmp_path / "in", "--into", store).err


def test_export(
    cli: Callable[..., Run], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = cli("export", store).out
    assert out.count("\n") == 3 and all(json.loads(line)["source"] == "test" for line in out.splitlines())
    assert cli("export", store, tmp_path / "x.jsonl", "--json").json["lines"] == 3
    assert (tmp_path / "x.jsonl").read_text() == out
    assert cli("export", store, tmp_path / "n.jsonl", "--names", "--json").json["lines"] == 3 + 4 + 2
    assert (tmp_path / "n.jsonl").read_text().startswith(out)
    assert (
        "Wrote 3 lines" in cli("export", store, tmp_path / "x.nt", "--format", "ntriples", "--base", "x:").out
    )
    assert (
        "<x:entity:Ana%20Lima> <x:relation:born%20in> <x:entity:Recife> ." in (tmp_path / "x.nt").read_text()
    )
    assert cli("export", store, "--json").code == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    assert cli("import", "facts", "-", "--into", store, "--json").json["existed"] == 3


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:replace", "utf-16"])
def test_export_is_utf8_whatever_the_terminal_is(store: Path, encoding: str) -> None:
    with pymemstore.open(store) as memory:
        memory.add("São Tomé", "é漢😀", "\x85\u2028")
    running = process("export", store, env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and err == b""
    lines = [json.loads(line) for line in out.decode().rstrip("\n").split("\n")]
    assert len(lines) == 4
    assert {"subject": "São Tomé", "relation": "é漢😀", "object": "\x85\u2028"} in lines


def test_stats_check_backup(cli: Callable[..., Run], store: Path, tmp_path: Path) -> None:
    with pymemstore.open(store) as memory:
        expected, checked = asdict(memory.stats()), memory.check()
    found = cli("stats", store, "--json").json
    assert {k: found[k] for k in ("entities", "relations", "triples", "store_id")} == {
        k: expected[k] for k in ("entities", "relations", "triples", "store_id")
    }
    assert found.keys() == expected.keys() and found["triples"] == 3
    assert re.search(r"^triples +3$", cli("stats", store).out, re.M)
    assert cli("check", store, "--json").json == {"ok": True, "problems": [], "counts": checked.counts}
    assert "Sound" in cli("check", store).out
    assert cli("backup", store, tmp_path / "copy.mem", "--json").json["triples"] == 3
    with pymemstore.open(tmp_path / "copy.mem", create=False) as copy:
        assert len(copy) == 3
    assert cli("backup", store, tmp_path / "copy.mem").code == 1


def test_check_that_finds_problems_exits_with_1(
    cli: Callable[..., Run], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = pymemstore.CheckReport(False, ("triple 7 has no object",), {"triples": 3})
    monkeypatch.setattr(pymemstore.Memory, "check", lambda self: report)
    ran = cli("check", store)
    assert ran.code == 1 and "triple 7 has no object" in ran.out
    assert cli("check", store, "--json").json["problems"] == ["triple 7 has no object"]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["query", "export", "stats", "check", "backup", "add", "import"])
def test_a_store_that_is_not_there_is_an_error_and_stays_absent(
    cli: Callable[..., Run], tmp_path: Path, command: str
) -> None:
    (tmp_path / "in").write_text("a\tr\tb\n")
    arguments = {
        "query": ["-s", "a", "-r", "b"],
        "backup": [tmp_path / "y"],
        "add": ["a", "r", "b"],
        "export": [tmp_path / "out"],
    }.get(command, [])
    store = [tmp_path / "none.mem", *arguments]
    ran = cli(
        command, *(["facts", tmp_path / "in", "--into", *store] if command == "import" else store), "--json"
    )
    assert ran.code == 1 and ran.json["error"]["type"] == "NotFound"
    assert ran.err.startswith("Error: ") and not (tmp_path / "none.mem").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["init"],
        ["add", "STORE", "a", "r"],
        ["query", "STORE", "-s", "a"],
        ["query", "STORE", "-r", "b"],
        ["query", "STORE", "-s", "a", "-o", "b", "-r", "c"],
        ["query", "STORE", "-s", "a", "-r", "c", "--tau-e", "1.5"],
        ["query", "STORE", "-s", "a", "-r", "c", "--limit", "0"],
        ["query", "STORE", "-s", "a", "-r", "c", "--search", "magic"],
        ["import", "facts", "x", "--into", "STORE", "--format", "xml"],
        ["import", "facts", "x", "--into", "STORE", "--batch", "0"],
        ["export", "STORE", "--format", "csv"],
        ["stats", "STORE", "--what"],
    ],
)
def test_wrong_usage(cli: Callable[..., Run], store: Path, arguments: list[str]) -> None:
    assert cli(*[store if argument == "STORE" else argument for argument in arguments]).code == 2


def test_odd_names_are_escaped_on_the_terminal_and_exact_in_json(
    cli: Callable[..., Run], store: Path
) -> None:
    name = "[bold]x\x1b[31m\u202e\u200b"
    assert cli("add", store, name, "r", "o").code == 0
    found = cli("query", store, "-o", "o", "-r", "r", "--limit", "1")
    assert "[bold]x\\x1b[31m\\u202e\\u200b" in found.out and "\x1b[31m" not in found.out
    assert name in cli("query", store, "-o", "o", "-r", "r", "--json").json["names"]
    assert shown("São Tomé 北京") == "São Tomé 北京"


def test_without_typer_one_line_says_what_to_install() -> None:
    for missing in ("typer", "rich"):
        code = f"import sys; sys.modules[{missing!r}] = None; from pymemstore.cli.main import main; main()"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stdout == ""
        assert ran.stderr.count("\n") == 1 and 'pip install "pymemstore[cli]"' in ran.stderr


def test_the_core_does_not_import_the_command_line() -> None:
    code = (
        "import sys, pymemstore; sys.exit(any(m in sys.modules for m in ('typer', 'rich', 'pymemstore.cli')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_reader_that_leaves_early_gets_no_traceback(store: Path) -> None:
    with pymemstore.open(store) as memory:
        memory.add_many((f"subject number {n}", "r", "o") for n in range(5_000))
    running = process("export", store)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr.read() == b"" and running.wait(60) == 1
    assert running.stdin is not None
    running.stdin.close()
    running.stderr.close()


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_in_an_import(
    cli: Callable[..., Run], store: Path, tmp_path: Path, options: list[str]
) -> None:
    lines = "".join(f"s{n}\tr\to\n" for n in range(25)).encode()
    running = process("import", "facts", "-", "--into", store, "--batch", "10", *options)
    assert running.stdin is not None
    running.stdin.write(lines)
    running.stdin.flush()  # and left open: the import waits for more
    deadline = time.monotonic() + 60
    with pymemstore.open(store, read_only=True) as memory:
        while len(memory) < 3 + 20 and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.05)
        assert len(memory) == 3 + 20
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, (out, err)
    assert b"Traceback" not in err and b"2 whole batches" in err and b"run the same command again" in err
    if options:
        report = json.loads(out)
        assert (report["status"], report["inserted"], report["read"]) == ("interrupted", 20, 20)
    with pymemstore.open(store) as memory:
        assert len(memory) == 3 + 20 and memory.check().ok
    (tmp_path / "in.tsv").write_bytes(lines)
    again = cli("import", "facts", tmp_path / "in.tsv", "--into", store, "--json").json
    assert (again["inserted"], again["existed"]) == (5, 20)


def test_ctrl_c_elsewhere(cli: Callable[..., Run], store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pymemstore.Memory, "query", interrupted)
    ran = cli("query", store, "-s", "a", "-r", "b")
    assert ran.code == 130 and ran.err == "Interrupted.\n" and ran.out == ""


# ---- the documentation ---------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """Each command's section of docs/cli.md."""
    parts = re.split(r"^### `pymemstore ((?:import )?[\w-]+)", DOCUMENT.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", None)
        found.update({name: command} if parts is None else {f"{name} {n}": c for n, c in parts.items()})
    return found


def test_every_command_and_option_is_documented_and_no_other() -> None:
    sections, everywhere = documented(), {"--json", "--help"}
    assert sorted(sections) == sorted(commands())
    for name, command in commands().items():
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
        # an option is told in a list item of its own, or in the sentences about it
        told = set(
            re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"^- .*?:", sections[name], re.M)))
        )
        assert told == options - everywhere, name
        assert "--json" in options, name
        heading = sections[name].split("`", 1)[0]
        arguments = [p.metavar for p in command.params if p.param_type_name == "argument"]
        assert heading.split() == arguments, name


def test_the_exit_codes_of_the_document_are_those_of_the_program(
    cli: Callable[..., Run], store: Path, tmp_path: Path
) -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT.read_text(), re.M)}
    assert told == {int(code) for code in ExitCode}
    (tmp_path / "bad").write_text("a\tr\tb\nbad\n")
    assert cli("stats", store).code == ExitCode.OK
    assert cli("stats", tmp_path / "none").code == ExitCode.ERROR
    assert cli("stats").code == ExitCode.USAGE
    assert cli("import", "facts", tmp_path / "bad", "--into", store).code == ExitCode.SKIPPED
    assert cli("query", store, "-s", "zzzzz qqqq", "-r", "country").code == ExitCode.NOTHING_FOUND
    # 130: test_ctrl_c_in_an_import


def test_version(cli: Callable[..., Run]) -> None:
    assert cli("--version").out == f"pymemstore {pymemstore.__version__}\n"
