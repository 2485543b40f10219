"""What running a group takes, estimated in operations of a product.

Estimates decide what is shared by threads and what is rather computed again than kept. They decide
no bit.
"""

from __future__ import annotations

import math

from pullback.compile.schedule.groups import CallGroup, FoldGroup, Group, MapGroup
from pullback.compile.schedule.traffic import least_bytes
from pullback.ir.control import SCAN
from pullback.ir.graph import Equation, Graph
from pullback.ir.lowering import Intrinsic
from pullback.ir.scalar import topological

__all__ = ["is_product", "product_work", "running_work", "work_of"]

WIDE = 8  # operations on elements are so much dearer than those of products, where both are short
# Operations of a product in the time of one on an element, and of a byte to or from memory, where
# arrays are large: by the steps of two networks on two cores with AVX-512.
ELEMENT = 2
BYTE = 4
LAUNCH = 20_000  # operations of a product in the time that a stage takes to begin and end
UNKNOWN = 8  # operations on an element by a routine, or in a loop, of which no more is known
PER_ROW = 20  # operations for each element and row of a matrix that is decomposed

CUBIC = frozenset(
    ["cholesky", "det", "eig", "eigh", "eigvals", "eigvalsh", "expm", "ldl", "logm", "lu"]
)
CUBIC |= {"lu_solve", "qr", "schur", "solve_triangular", "sqrtm", "svd", "svdvals", "sylvester"}


def _routine(eq: Equation) -> str:
    low = getattr(eq.op, "lowering", None)
    return low.name if isinstance(low, Intrinsic) else ""


def is_product(g: Group) -> bool:
    """Whether a group is a product of matrices."""
    return isinstance(g, CallGroup) and _routine(g.equation) == "matmul"


def product_work(g: CallGroup) -> int:
    """Multiplications and additions of a product."""
    return 2 * g.results[0].aval.size * g.operands[0].aval.shape[-1]


def work_of(g: MapGroup | FoldGroup | CallGroup) -> int:
    """Operations of a call, or of a loop nest without what it takes to read and write."""
    return _equation_work(g.equation) if isinstance(g, CallGroup) else WIDE * _operations(g)


def _operations(g: MapGroup | FoldGroup) -> int:
    """Operations on elements of a loop nest."""
    if isinstance(g, MapGroup):
        bodies, size = g.bodies, math.prod(g.shape)
    else:
        bodies, size = [g.kernel.element], math.prod(g.kept) * math.prod(g.folded)
    nodes: dict = {}
    for body in bodies:
        for root in body:
            nodes.update((e, 0) for e in topological(root, nodes))
    return size * len(nodes)


def _equation_work(eq: Equation) -> int:
    """Operations of an equation, as far as the sizes of its operands tell."""
    if eq.op is SCAN:
        return eq.static["length"] * _graph_work(eq.static["body"])
    graphs = [g for g in eq.static.values() if isinstance(g, Graph)]
    if graphs:
        return max(map(_graph_work, graphs))
    name = _routine(eq)
    sizes = [v.aval.size for v in (*eq.inputs, *eq.outs)]
    if name == "matmul":
        return 2 * eq.out.aval.size * eq.inputs[0].aval.shape[-1]
    if name.startswith("conv"):  # each two of image, kernels and result say how the third is used
        return 2 * math.isqrt(math.prod(sizes))
    if name in CUBIC:
        return PER_ROW * max(sizes) * eq.inputs[0].aval.shape[-1]
    return UNKNOWN * ELEMENT * sum(sizes)


def _graph_work(graph: Graph) -> int:
    """Operations of one round of a loop."""
    return sum(map(_equation_work, graph.equations))


def running_work(g: Group) -> int:
    """What a group takes, memory and start included."""
    members = [g] if isinstance(g, (MapGroup, FoldGroup, CallGroup)) else g.members
    work = sum(
        _equation_work(m.equation) if isinstance(m, CallGroup) else ELEMENT * _operations(m)
        for m in members
    )
    return LAUNCH + max(work, BYTE * least_bytes(g))
