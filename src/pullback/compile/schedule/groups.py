"""What fusion makes of a graph: groups, each of which is one kernel (or one call) on stored values.

Nothing here names a device: a runtime turns groups into launches, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.core.avals import Aval, dense_strides
from pullback.core.dtypes import DType
from pullback.ir.graph import Equation
from pullback.ir.scalar import Expr

__all__ = [
    "Access",
    "CallGroup",
    "FoldGroup",
    "Group",
    "Grouped",
    "MapGroup",
    "ParallelGroup",
    "Region",
    "SequenceGroup",
    "Stored",
    "is_dense",
    "squeezed",
]

Shape = tuple[int, ...]


def squeezed(shape: Shape) -> Shape:
    """The shape without axes of size 1."""
    return tuple(n for n in shape if n != 1)


@lru_cache(4096)
def is_dense(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Whether element i of a walk over the shape is element i in memory."""
    pairs = zip(shape, strides, dense_strides(shape), strict=True)
    return all([n == 1 or s == d for n, s, d in pairs])


@dataclass(eq=False)
class Stored:
    """A value that has memory: an input, a constant, or something computed (then dense)."""

    name: str
    aval: Aval  # with strides
    origin: str = "computed"  # or "input", "constant"
    position: int = 0  # among the inputs or constants
    is_output: bool = False

    @property
    def dtype(self) -> DType:
        return self.aval.dtype

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    def __repr__(self) -> str:
        return f"{self.name}: {self.aval}"


class Region(NamedTuple):
    """Part of a stored value, as an array of its own; `offset` counts elements."""

    stored: Stored
    offset: int
    aval: Aval

    @property
    def is_whole(self) -> bool:
        """Whether these are all elements, in the row-major order in which they are stored."""
        return self.offset == 0 and self.aval.dense and self.aval.size == self.stored.aval.size


class Access(NamedTuple):
    """How a kernel walks a stored value: strides in elements over the kernel's axes."""

    stored: Stored
    offset: int
    strides: tuple[int, ...]


class Values:
    """The values that a group reads and writes, which is asked again and again."""

    _read: list[Stored] | None = None
    _written: list[Stored] | None = None

    def values_read(self) -> list[Stored]:
        """The values that it reads, in order, and some of them several times."""
        found = self._read
        if found is None:
            found = self._read = self._all_read()
        return found

    def values_written(self) -> list[Stored]:
        """The values that it writes, in order."""
        found = self._written
        if found is None:
            found = self._written = self._all_written()
        return found

    def _all_read(self) -> list[Stored]:
        raise NotImplementedError

    def _all_written(self) -> list[Stored]:
        raise NotImplementedError


@dataclass(eq=False)
class MapGroup(Values):
    """`writes[k][i] = bodies[k](reads[...][i])` for every i of `shape`."""

    shape: Shape
    reads: list[Access]
    writes: list[Access]
    bodies: list[tuple[Expr, ...]]
    label: str = ""

    def _all_read(self) -> list[Stored]:
        return [a.stored for a in self.reads]

    def _all_written(self) -> list[Stored]:
        return [a.stored for a in self.writes]


@dataclass(eq=False)
class FoldGroup(Values):
    """A reduction, or a running fold, of elements; the axes are the kept ones, then the folded."""

    kernel: Reduce | Accumulate
    kept: Shape
    folded: Shape
    reads: list[Access]
    write: Access
    reverse: bool = False
    label: str = ""

    def _all_read(self) -> list[Stored]:
        return [a.stored for a in self.reads]

    def _all_written(self) -> list[Stored]:
        return [self.write.stored]


@dataclass(eq=False)
class CallGroup(Values):
    """An operation that is no loop nest of ours: indexing, a library's routine, control flow.

    With `then` it is one kernel with a map of its result, which is not stored: see `endings`.
    """

    equation: Equation
    operands: list[Region]
    results: list[Stored]
    then: MapGroup | None = None

    @property
    def label(self) -> str:
        return self.equation.op.name

    def _all_read(self) -> list[Stored]:
        more = self.then.values_read() if self.then else []
        return [*(r.stored for r in self.operands), *(s for s in more if s not in self.results)]

    def _all_written(self) -> list[Stored]:
        return self.then.values_written() if self.then else self.results


@dataclass(eq=False)
class SequenceGroup(Values):
    """Groups that are run one after the other for a few rows at a time, so that rows stay in cache.

    Every member works on `count` rows, and reads only its own rows of what others wrote. They go
    through `taken` rows at least at once; of arrays that are reduced as a whole these are `piece`
    elements, a subtree of the reduction. With a `length`, which rows along the axes `lead` have,
    they are one kernel: see `row_kernel`. Calls are products of rows: see `product_rows`.
    """

    count: int
    taken: int
    members: Sequence[MapGroup | FoldGroup | CallGroup]
    piece: int
    label: str = "rows"
    lead: Shape = ()
    length: int = 0

    @property
    def has_products(self) -> bool:
        return any(isinstance(m, CallGroup) for m in self.members)

    @property
    def steps(self) -> int:
        """How many times `taken` rows there are; the last time there may be fewer."""
        return -(-self.count // self.taken)

    def step_elements(self, value: Stored) -> int:
        """Elements of a value that belong to one step."""
        return value.aval.size // self.count * self.taken

    def _all_read(self) -> list[Stored]:
        return [s for m in self.members for s in m.values_read()]

    def _all_written(self) -> list[Stored]:
        return [s for m in self.members for s in m.values_written()]


@dataclass(eq=False)
class ParallelGroup(Values):
    """Groups that need nothing of each other, so that threads may share them."""

    members: Sequence[MapGroup | FoldGroup | CallGroup]
    label: str = "parallel"

    def _all_read(self) -> list[Stored]:
        return [s for m in self.members for s in m.values_read()]

    def _all_written(self) -> list[Stored]:
        return [s for m in self.members for s in m.values_written()]


Group = MapGroup | FoldGroup | CallGroup | SequenceGroup | ParallelGroup


@dataclass(eq=False)
class Grouped:
    """A fused graph: what is stored, the groups in order, and where each output is found."""

    inputs: list[Stored]
    constants: list[Stored]
    groups: list[Group]
    outputs: list[Region]

    def computed(self) -> Iterator[Stored]:
        """The values that groups write, each once."""
        seen: set[int] = set()
        for group in self.groups:
            for value in group.values_written():
                if id(value) not in seen:
                    seen.add(id(value))
                    yield value

    def __str__(self) -> str:
        lines = []
        for group in self.groups:
            joint = isinstance(group, (SequenceGroup, ParallelGroup))
            members = group.members if joint else [group]
            if isinstance(group, SequenceGroup):
                lines.append(f"sequence over {group.count} rows, {group.taken} at once")
            elif joint:
                lines.append("side by side")
            for m in members:
                reads = ", ".join(dict.fromkeys(s.name for s in m.values_read()))
                writes = ", ".join(map(repr, m.values_written()))
                kind = type(m).__name__.removesuffix("Group").lower()
                lead = "  " if joint else ""
                then = f"+{m.then.label}" if isinstance(m, CallGroup) and m.then else ""
                lines.append(f"{lead}{kind} {m.label}{then}({reads}) -> {writes}")
        return "\n".join(lines)
