"""A case: arrays, a program that is text, and the checks it must pass."""

from __future__ import annotations

import base64
import inspect
import math
import textwrap
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

import pullback as pb
import pullback.nn
from fuzz import checks
from pullback.core.dtypes import as_dtype

__all__ = ["Case", "Given", "Step", "Unwritable", "literal", "namespace", "raised"]

PRINTED = 24  # elements up to which an array is printed as numbers


class Unwritable(Exception):
    """A value that can't be written as text."""


@dataclass
class Given:
    """An array that a program is given, and the layout it comes in."""

    name: str
    array: np.ndarray
    layout: str = "plain"

    @cached_property
    def _base(self) -> tuple[np.ndarray, str]:
        """The array that a tensor is made of, and what then gives it its layout."""
        a = self.array
        if self.layout == "flipped":
            return np.flip(a), "pb.flip({})"
        if self.layout == "transposed":
            return np.ascontiguousarray(a.T), f"pb.permute_dims({{}}, {tuple(range(a.ndim))[::-1]})"
        if self.layout == "strided":
            return np.repeat(a, 3, axis=-1), "{}[..., 1::3]"
        if self.layout == "offset":
            return np.pad(a, [(0, 0)] * (a.ndim - 1) + [(1, 1)]), "{}[..., 1:-1]"
        if self.layout == "broadcast":
            return a[:1], f"pb.broadcast_to({{}}, {a.shape})"
        return a, "{}"

    @cached_property
    def text(self) -> str:
        """An expression of a tensor with these elements and that layout."""
        base, layout = self._base
        return layout.format(_tensor(base))

    def tensor(self) -> Any:
        """What the text says."""
        base, layout = self._base
        return eval(layout.format("pb.tensor(base)"), {"pb": pb, "base": base})

    def allows(self, layout: str) -> bool:
        """Whether these elements can come in a layout."""
        a = self.array
        if layout == "broadcast" and a.ndim and a.shape[0] > 1:
            return all(row.tobytes() == a[0].tobytes() for row in a)
        return layout == "plain" or (a.ndim > 0 and layout != "broadcast")


def _tensor(a: np.ndarray) -> str:
    name = as_dtype(a.dtype).name
    if a.size <= PRINTED and a.size and name != "bfloat16":
        return f"pb.tensor(np.array({literal(a.tolist())}, {name!r}))"
    packed = base64.b85encode(zlib.compress(np.ascontiguousarray(a).tobytes(), 1)).decode()
    lines = [packed[i : i + 90] for i in range(0, len(packed), 90)] or [""]
    wrapped = "\n".join(f"    {line!r}" for line in lines)
    return f"pb.tensor(unpacked(\n{wrapped},\n    {name!r}, {a.shape}))"


def unpacked(text: str, dtype: str, shape: tuple[int, ...]) -> Any:
    raw = zlib.decompress(base64.b85decode(text))
    return np.frombuffer(raw, as_dtype(dtype).numpy).reshape(shape).copy()


class Ref:
    """A value of a program, by name; a leaf of trees, which a dataclass would not be."""

    def __init__(self, name: str):
        self.name = name


def literal(x: Any) -> str:
    """A value as text that gives it back."""
    if isinstance(x, Ref):
        return x.name
    if isinstance(x, slice):
        return f"slice({literal(x.start)}, {literal(x.stop)}, {literal(x.step)})"
    if type(x) is tuple:
        return f"({', '.join(map(literal, x))}{',' if len(x) == 1 else ''})"
    if type(x) is list:
        return f"[{', '.join(map(literal, x))}]"
    if type(x) is dict:
        return "{" + ", ".join(f"{k!r}: {literal(v)}" for k, v in x.items()) + "}"
    if isinstance(x, pb.DType):
        return f"pb.{x.name}"
    if isinstance(x, type) and issubclass(x, np.generic):
        return f"np.{x.__name__}"
    if isinstance(x, np.dtype):
        return f"np.dtype({x.name!r})"
    if isinstance(x, np.generic):
        return f"np.{type(x).__name__}({literal(x.item())})"
    if type(x) is complex:
        return f"complex({literal(x.real)}, {literal(x.imag)})"
    if x is None or x is Ellipsis or type(x) in (bool, int, float, str):
        return repr(x)
    raise Unwritable(type(x).__name__)


def namespace() -> dict[str, Any]:
    """The names that texts of programs may use."""
    given = {"np": np, "pb": pb, "inf": math.inf, "nan": math.nan, "Ellipsis": Ellipsis}
    return {**given, "unpacked": unpacked, **vars(checks)}


@dataclass
class Step:
    """A line (or a few) of a program: what it makes, what it reads."""

    text: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    call: Any = None  # what an oracle needs


@dataclass
class Case:
    """A program of steps with what it is given, what it returns, and how it is checked."""

    kind: str
    seed: int
    given: list[Given]
    steps: list[Step]
    returns: tuple[str, ...]
    checks: tuple[str, ...]
    values: dict[str, np.ndarray] = field(default_factory=dict)  # of all names, once they ran

    def source(self) -> str:
        """The program as text."""
        made = {n for s in self.steps for n in s.makes}
        lines = [f"{n} = own({n})" for n in sorted(made & self.held())]
        lines += [line for s in self.steps for line in s.text.splitlines()]
        lines.append(f"return {''.join(f'{n}, ' for n in self.returns).strip() or '()'}")
        names = ", ".join(g.name for g in self.given)
        return f"def program({names}):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"

    def function(self) -> Callable[..., Any]:
        names = namespace()
        exec(self.source(), names)
        return names["program"]

    def tensors(self) -> list[Any]:
        return [g.tensor() for g in self.given]

    def run_checks(self) -> int:
        """Run all checks, raise what they find; the number of checks."""
        for name in self.checks:
            self.run_check(name)
        return len(self.checks)

    def run_check(self, name: str) -> None:
        try:
            getattr(checks, name)(self.function(), *self.tensors())
        except Exception as error:
            raise Failed(self, name, error) from error

    def without(self, index: int) -> Case | None:
        """The case without a step, whose results are given instead; None if nothing is left."""
        dropped = self.steps[index]
        steps = self.steps[:index] + self.steps[index + 1 :]
        if not steps:
            return None
        read = {n for s in steps for n in s.reads}
        missing = [n for n in dropped.makes if n in read and n not in self.held()]
        if any(n not in self.values for n in missing):
            return None
        made = {n for s in steps for n in s.makes}
        given = [g for g in self.given if g.name in read]
        given += [Given(n, self.values[n]) for n in missing]
        returns = tuple(n for n in self.returns if n in made)
        return replace(self, given=given, steps=steps, returns=returns or steps[-1].makes)

    def held(self) -> set[str]:
        return {g.name for g in self.given}

    def only(self, kept: Sequence[int], check: str) -> Case | None:
        """The case of the steps named, and of one check."""
        case: Case | None = self
        for i in reversed(range(len(self.steps))):
            if i not in kept:
                case = case.without(i) if case is not None else None
        return None if case is None else replace(case, checks=(check,))

    def call(self, check: str) -> str:
        names = ", ".join(["program", *(g.name for g in self.given)])
        return f"{check}({names})"

    def support(self) -> str:
        """The checks as text, for a script that stands alone."""
        return inspect.getsource(checks)

    def script(self, check: str, said: str) -> str:
        """A program of its own that shows what a check found."""
        given = [f"{g.name} = {g.text}" for g in self.given]
        quoted = said.replace("\\", "/").replace('"""', "'''")
        head = [f'"""{self.kind}, seed {self.seed}: {check}.', "", quoted, '"""', ""]
        imports = ["import base64", "import zlib", "from math import inf, nan", ""]
        body = [self.support(), inspect.getsource(unpacked), "\n".join(given)]
        body += ["", self.source(), self.call(check)]
        late = "from pullback.core.dtypes import as_dtype\n\n"
        text = "\n".join([*imports, late, *body]) + "\n"
        lines = text.splitlines()
        future = "from __future__ import annotations"
        return "\n".join([*head, future, *[x for x in lines if x != future]]) + "\n"


class Failed(Exception):
    """A check of a case found something."""

    def __init__(self, case: Case, check: str, error: BaseException):
        super().__init__(f"{check}: {type(error).__name__}: {error}")
        self.case, self.check, self.error = case, check, error

    @property
    def sort(self) -> str:
        """What a smaller case must find again."""
        return f"{self.check}: {raised(self.error)}"

    @property
    def said(self) -> str:
        lines = traceback.format_exception(self.error)
        return "".join(lines[-3:])[-1500:]


def raised(error: BaseException) -> str:
    """The kind of an error, and where it was raised if it is no finding of a check."""
    if isinstance(error, checks.Finding):
        return "Finding"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/pullback/" in f.filename]
    place = f" in {own[-1].filename.rpartition('/')[2]}:{own[-1].name}" if own else ""
    return f"{type(error).__name__}{place}"
