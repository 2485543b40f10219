"""Run every doctest of the package, and with --write bring the printed form of tensors up to date.

Only the form of `tensor(...)` is rewritten: another wording of dtype and device, other digits or
spaces for the same numbers. With --fill also what was left open, as nothing or as `...`, is filled
in, and listed. Anything else that differs is listed, for a person to look at.
"""

from __future__ import annotations

import argparse
import ast
import doctest
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pullback as pb

SOURCE = Path(pb.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
DTYPES = "bool|u?int(?:8|16|32|64)|b?float(?:16|32|64)|complex(?:64|128)"
# What follows the values inside `tensor(...)`.
FACTS = re.compile(
    rf",\s*(?:(?:dtype=)?(?:pullback\.|pb\.)?(?:{DTYPES})|cpu|grad_fn=<\w+>|requires_grad=True)\b>?"
)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)j?")
CLOSE = 2e-3  # numbers rounded to four digits count as the same


class Difference(NamedTuple):
    """An example whose output is not the expected one."""

    path: Path
    line: int  # of the first expected line, from 0
    indent: int
    source: str
    want: str
    got: str

    @property
    def only_in_form(self) -> bool:
        return "tensor(" in self.want and same_but_for_form(self.want, self.got)

    @property
    def left_open(self) -> bool:
        return "tensor(" in self.got and (not self.want.strip() or "..." in self.want)


def same_but_for_form(want: str, got: str) -> bool:
    """Whether two printed results hold the same numbers in the same brackets."""
    texts = []
    numbers = []
    for printed in (want, got):
        bare = FACTS.sub("", printed)
        numbers.append([complex(n) for n in NUMBER.findall(bare)])
        texts.append(re.sub(r"[\s+]", "", NUMBER.sub("#", bare)))
    if texts[0] != texts[1] or len(numbers[0]) != len(numbers[1]):
        return False
    return bool(np.allclose(numbers[0], numbers[1], rtol=CLOSE, atol=CLOSE / 10))


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """The name, first line (from 0) and text of every docstring with examples."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                text = first.value.value
                if isinstance(text, str) and ">>>" in text:
                    yield getattr(node, "name", path.stem), first.lineno - 1, text


class Collector(doctest.DocTestRunner):
    """A runner that keeps what differs instead of printing it."""

    def __init__(self, path: Path) -> None:
        super().__init__(verbose=False, optionflags=FLAGS)
        self.path = path
        self.found: list[Difference] = []

    def _keep(self, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        line = (test.lineno or 0) + example.lineno + example.source.count("\n")
        self.found.append(
            Difference(self.path, line, example.indent, example.source, example.want, got)
        )

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        self._keep(test, example, got)

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        self._keep(test, example, f"{exc_info[0].__name__}: {exc_info[1]}\n")


def names_in(path: Path) -> dict[str, Any]:
    """What the examples of a file may use: its own names, `pb` and `np`."""
    parts = path.resolve().relative_to(SOURCE.parent).with_suffix("").parts
    module = import_module(".".join(p for p in parts if p != "__init__"))
    return {**vars(module), "pb": pb, "np": np}


def differences(path: Path) -> tuple[int, list[Difference]]:
    """How many examples a file has, and those that print something else."""
    collector = Collector(path)
    count = 0
    for name, line, text in docstrings(path):
        test = doctest.DocTestParser().get_doctest(
            text, names_in(path), f"{path.stem}.{name}", str(path), line
        )
        count += len(test.examples)
        collector.run(test, out=lambda _: None)
    return count, collector.found


def rewrite(path: Path, found: list[Difference]) -> None:
    """Put what was printed in place of what was expected."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for d in sorted(found, key=lambda d: -d.line):
        new = [" " * d.indent + row if row else "" for row in d.got.rstrip("\n").split("\n")]
        lines[d.line : d.line + d.want.count("\n")] = new
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="bring the form of tensors up to date")
    parser.add_argument("--fill", action="store_true", help="also fill in what was left open")
    parser.add_argument("files", nargs="*", type=Path, help="default: the whole package")
    options = parser.parse_args()
    total, changed, left = 0, 0, []
    for path in options.files or sorted(SOURCE.rglob("*.py")):
        count, found = differences(path)
        total += count
        chosen = [d for d in found if d.only_in_form] if options.write or options.fill else []
        opened = [d for d in found if d.left_open] if options.fill else []
        for d in opened:
            print(f"{path}:{d.line}: {d.source.strip()} now gives {d.got.strip()}")
        if chosen or opened:
            rewrite(path, chosen + opened)
            changed += len(chosen + opened)
        left += [d for d in found if d not in chosen and d not in opened]
    for d in left:
        print(f"{d.path}:{d.line}: {d.source.strip()}")
        print(f"  expected {d.want.strip()!r}\n  got      {d.got.strip()!r}")
    print(f"{total} examples, {changed} rewritten, {len(left)} differ")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
