"""The `pullback` command: `pullback demo`, `pullback bench`, `pullback info`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["main"]

COMMANDS = {
    "demo": "fit a small model, check second derivatives and reproducibility, write an HTML report",
    "bench": "measure against NumPy, PyTorch and JAX, as far as they are installed",
    "info": "show version, devices, libraries and memory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(prog="pullback", description="Differentiable arrays.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        import_module(f"pullback.cli.{name}").arguments(sub)
    options = parser.parse_args(argv)
    try:
        return import_module(f"pullback.cli.{options.command}").run(options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
