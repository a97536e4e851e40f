"""The entry point of `pymemstore`. It imports the rest late, so that it can say what is missing."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that sys.argv names, and exit with its code (docs/cli.md lists them)."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(
            f'pymemstore: the command line needs the package {error.name}: pip install "pymemstore[cli]"',
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not stop a query
    try:
        from pymemstore.cli.app import app

        app(prog_name="pymemstore")
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
