"""Long chains of arithmetic on pairs of words as a loop over a table of instructions.

The compilers of GPUs put each function into the place of its call, and one product of float64 on
words is some hundred instructions: a sine's slow side takes minutes to compile, a loop with every
function once a fraction of a second. Values are pairs of words in registers that are used again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr

__all__ = ["REGISTERS", "Machine", "from_register", "is_long", "to_register"]

HEAVY = frozenset({"add", "sub", "mul", "fma", "div", "sqrt"})
# With more inlined, Mesa's and Chromium's compilers take longer than with the loop: the sine 19 s
# and over 60 s, with the loop 5 s and 0.9 s.
LEAST = 6  # instructions of float64 in a chain from which on they run in a loop
REGISTERS = 1024  # of a machine at most: their numbers are ten bits of a code


def is_long(nodes: Iterable[Expr]) -> bool:
    """Whether so much arithmetic on pairs of words is better off in a loop."""
    return sum(e.dtype is dt.float64 and e.op in HEAVY for e in nodes) >= LEAST


def to_register(text: str, dtype: DType) -> str:
    """A value as a pair of words."""
    if dtype.itemsize == 8:
        return text
    if dtype is dt.bool_:
        return f"vec2<u32>(select(0u, 1u, {text}), 0u)"
    signed = dtype is dt.float32 or dtype.kind == "i"
    return f"vec2<u32>({f'bitcast<u32>({text})' if signed else text}, 0u)"


def from_register(text: str, dtype: DType) -> str:
    """The value of a pair of words."""
    if dtype.itemsize == 8:
        return text
    if dtype is dt.bool_:
        return f"({text}.x != 0u)"
    if dtype is dt.float32:
        return f"bitcast<f32>({text}.x)"
    return f"bitcast<i32>({text}.x)" if dtype.kind == "i" else f"{text}.x"


class _Code(NamedTuple):
    case: int
    target: int
    operands: tuple[int, ...]


class Machine:
    """The instructions of some expressions, in their order.

    `given` are the texts of what they need and do not compute, `kept` what is wanted of them;
    `expression` writes an instruction whose operands have names.
    """

    def __init__(
        self,
        nodes: Sequence[Expr],
        given: Mapping[Expr, str],
        kept: Iterable[Expr],
        expression: Callable[[Expr, list[str]], str],
    ):
        self._free: list[int] = []
        self.count = 0
        self._cases: dict[str, int] = {}
        self._codes: list[_Code] = []
        self.places: dict[Expr, int] = {}
        inside, wanted = set(nodes), set(kept)
        last = {a: k for k, e in enumerate(nodes) for a in e.args}
        self.before = []
        for a in last:
            if a not in inside:
                self.places[a] = self._register()
                self.before.append((self.places[a], to_register(given[a], a.dtype)))
        for k, e in enumerate(nodes):
            operands = tuple([self.places[a] for a in e.args])
            names = [from_register(n, a.dtype) for n, a in zip("abc", e.args, strict=False)]
            text = to_register(expression(e, names), e.dtype)
            for a in dict.fromkeys(e.args):
                if last[a] == k and a not in wanted:
                    self._free.append(self.places[a])
            self.places[e] = self._register()
            case = self._cases.setdefault(text, len(self._cases))
            self._codes.append(_Code(case, self.places[e], operands))

    def _register(self) -> int:
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def table(self) -> tuple[str, str]:
        """The instructions as a constant of WGSL, after its name."""
        words = []
        for code in self._codes:
            a, b, c = (*code.operands, 0, 0, 0)[:3]
            words.append((code.case | code.target << 16, a | b << 10 | c << 20))
        body = ", ".join(f"vec2<u32>({x}u, {y}u)" for x, y in words)
        name = "pb_code_" + hashlib.sha256(body.encode()).hexdigest()[:12]
        return name, f"const {name} = array<vec2<u32>, {len(words)}>({body});"

    def lines(self, name: str, table: str) -> list[str]:
        """Statements after which the registers are in the array `name`."""
        at, count = f"{name}_at", len(self._codes)
        return [
            f"var {name}: array<vec2<u32>, {self.count}>;",
            *(f"{name}[{k}] = {text};" for k, text in self.before),
            # the count is one that no compiler knows: none shall write the loop out
            f"for (var {at} = 0u; {at} < {count}u + pb_zero(); {at}++) {{",
            f"  let code = {table}[{at}];",
            f"  let a = {name}[code.y & 1023u];",
            f"  let b = {name}[(code.y >> 10u) & 1023u];",
            f"  let c = {name}[code.y >> 20u];",
            "  var d = a;",
            "  switch (code.x & 0xffffu) {",
            *(f"    case {k}u: {{ d = {text}; }}" for text, k in self._cases.items()),
            "    default: {}",
            "  }",
            f"  {name}[code.x >> 16u] = d;",
            "}",
        ]
