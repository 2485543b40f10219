"""`pullback bench`: the measurements of a checkout, which are no part of the installed package."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["arguments", "run"]

HINT = """\
bench: there are no workloads here, since they are no part of the installed package. Clone the
repository and call `pullback bench` in its folder."""


def _command() -> Any:
    """The module behind the command; None where there is no checkout.

    That is the checkout that this package comes from, or the current folder.
    """
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "benchmarks" / "command.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return import_module("benchmarks.command")
    return None


def arguments(parser: argparse.ArgumentParser) -> None:
    command = _command()
    if command is None:
        parser.add_argument("suite", nargs="?", help="what to measure, in a checkout")
    else:
        command.arguments(parser)


def run(options: argparse.Namespace) -> int:
    command = _command()
    if command is None:
        print(HINT, file=sys.stderr)
        return 2
    return command.run(options)
