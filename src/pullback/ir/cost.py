"""What operations take: the one model by which the compiler weighs them.

Two units. *Instructions* are those of one element, as printers write them: by these a value is
kept or rather computed again. *Work* is counted in operations of a product of matrices, the
cheapest that there are: by it threads share what runs, and steps are chosen that run again.

Estimates decide how results are found, and never a bit of them. What decides bits is an order, and
stands in `compile.kernel.order`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pullback.core.avals import Aval
from pullback.ir.control import SCAN
from pullback.ir.graph import Equation, Graph
from pullback.ir.lowering import Elementwise, Intrinsic, View, operand, parts
from pullback.ir.scalar import Expr
from pullback.ir.scalar_walks import inline_nodes

__all__ = [
    "AGAIN", "AGAIN_REPEATED", "BYTE", "ELEMENT", "LAUNCH", "WIDE", "convolution_work",
    "element_facts", "equation_work", "instructions", "is_cheap", "matrix_work", "passing_work",
    "product_work",
]  # fmt: skip

# -- instructions of an element --------------------------------------------------------------------

AGAIN = 12  # instructions that take less time than writing a value and reading it back
AGAIN_REPEATED = 6  # the same of a value that is read several times over, along an axis
_SLOW = {"div": 4, "sqrt": 4, "quot": 8, "rem": 8, "table": 2}  # by the throughput of vectors
_FREE = frozenset({"const", "load", "index", "cast", "bitcast", "acc"})


def instructions(roots: Iterable[Expr]) -> int:
    """Instructions that make the values of these expressions; reading operands is not counted."""
    return _instructions(tuple(roots))


@lru_cache(1024)
def _instructions(roots: tuple[Expr, ...]) -> int:
    return sum(0 if e.op in _FREE else _SLOW.get(e.op, 1) for e in inline_nodes(roots))


# By the operation, its static parameters and the names of dtypes: a name is hashed sooner.
_facts: dict[tuple, tuple[int, bool]] = {}
MOST_FACTS = 4096


def element_facts(eq: Equation) -> tuple[int, bool]:
    """Instructions of an operation on elements, and whether it reads the index of an element."""
    static = eq.static
    key = (eq.op, *static.items(), *[v.aval.dtype.name for v in eq.inputs])
    found = _facts.get(key)
    if found is None:
        operands = [operand(k, v.aval.dtype) for k, v in enumerate(eq.inputs)]
        roots = parts(eq.op.lowering.body(*operands, **static))
        found = instructions(roots), any(e.op == "index" for e in inline_nodes(roots))
        if len(_facts) >= MOST_FACTS:
            _facts.clear()
        _facts[key] = found
    return found


def is_cheap(eq: Equation) -> bool:
    """Whether an operation on elements takes less time than keeping its result; views do."""
    low = getattr(eq.op, "lowering", None)
    return isinstance(low, View) or (isinstance(low, Elementwise) and element_facts(eq)[0] <= AGAIN)


# -- work ------------------------------------------------------------------------------------------

# By the steps of two networks on two cores with AVX-512, arrays being large: operations of a
# product in the time of an instruction on one element, and of a byte to or from memory.
ELEMENT = 2
BYTE = 4
WIDE = 8  # the first of these where arrays are short
LAUNCH = 20_000  # operations of a product in the time that a stage takes to begin and end
_UNKNOWN = 8  # instructions for each element of a routine of which no more is known
_PER_ROW = 20  # operations for each element and row of a matrix that is decomposed: of `eigh`


def product_work(avals: Sequence[Aval], out: Aval) -> int:
    """Multiplications and additions of a product of matrices."""
    return 2 * out.size * avals[0].shape[-1]


def convolution_work(avals: Sequence[Aval], out: Aval) -> int:
    """The same of a convolution: each two of image, kernels and result say how the third is
    used.
    """
    return 2 * math.isqrt(math.prod(av.size for av in (*avals, out)))


def matrix_work(avals: Sequence[Aval], out: Aval) -> int:
    """Operations of the decomposition or the solution of matrices."""
    return _PER_ROW * max(av.size for av in (*avals, out)) * avals[0].shape[-1]


def passing_work(avals: Sequence[Aval], out: Aval) -> int:
    """Operations of a routine of which no more is known than what it passes over."""
    return _UNKNOWN * ELEMENT * sum(av.size for av in (*avals, out))


def equation_work(eq: Equation) -> int:
    """Operations of an equation, as far as the sizes of its operands tell."""
    if eq.op is SCAN:
        return eq.static["length"] * _graph_work(eq.static["body"])
    graphs = [g for g in eq.static.values() if isinstance(g, Graph)]
    if graphs:
        return max(map(_graph_work, graphs))
    low = getattr(eq.op, "lowering", None)
    work = low.work if isinstance(low, Intrinsic) else None
    *operands, out = [v.aval for v in (*eq.inputs, *eq.outs)]
    return (work or passing_work)(operands, out)


def _graph_work(graph: Graph) -> int:
    """Operations of one round of a loop."""
    return sum(map(equation_work, graph.equations))
