"""What the compiler asks of a target: kernels for forms, one table of routines, and encoding.

A target prints kernels and runs launches. Shapes, dtypes and strides that it gets are final, slots
are assigned; it chooses tiles, threads and grids, and decides nothing that changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from pullback.compile.kernel.forms import Accumulate, Gather, Map, MultiMap, Reduce, Scatter
from pullback.compile.kernel.scalar_loops import ScalarLoop
from pullback.compile.program.stages import Node, Program, Stage
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowPlan
from pullback.core.avals import Aval
from pullback.core.dtypes import DType

__all__ = [
    "Area",
    "Fault",
    "FlatProgram",
    "IndexArrays",
    "KeptPrograms",
    "Layout",
    "Place",
    "Routine",
    "Shape",
    "Strides",
    "Target",
    "Tuning",
    "WantedPlan",
    "no_flat_programs",
]

Shape: TypeAlias = Sequence[int]
Strides: TypeAlias = Sequence[int]
Area: TypeAlias = Callable[[int], int]  # the slot of scratch memory of so many bytes
Place: TypeAlias = tuple[int, Aval]  # a slot, and what is there
# From the elements of an array, its bytes, and whether it is heavy, to the program that writes it.
FlatProgram: TypeAlias = Callable[[int], Callable[..., Any]]
Layout: TypeAlias = tuple[Shape, int, Strides]  # shape, slot and strides in elements


class IndexArrays(NamedTuple):
    """Index arrays, one for each of the first axes of an array: slots and strides over the places
    that are read or written, size and stride of each axis, the error code of a bad index of the
    first array (the others follow).
    """

    slots: Sequence[int]
    strides: Sequence[Strides]
    axes: Sequence[tuple[int, int]]
    first_code: int = 1


@dataclass(frozen=True)
class Tuning:
    """What a target's memory and threads allow; none of it decides a bit."""

    block_bytes: int  # of all values that a block of rows works on: part of a core's cache
    local_bytes: int  # of the local arrays of a block, at most
    line: int  # bytes of a cache line
    task_elements: int  # that are worth a task
    task_work: int  # operations of products that are worth a task
    least_rows: int  # of a task of products
    rows_together: int  # that a kernel of products makes at a time
    copied_bytes: int  # of a transposed array that is worth a copy before a loop reads it
    light_elements: int  # of one operation, up to which other Python threads can wait
    light_bytes: int  # of what one operation moves, likewise
    light_values: int  # elements of all values of a graph, likewise
    # Whether what is reduced as a whole is one long row of a row kernel, rather than cut in blocks.
    whole_rows: bool = False
    side_by_side: bool = False  # groups that need nothing of each other may run so
    # Whether slots stand among the params of stages, and nowhere else: see `templates`.
    slots_in_params: bool = False


class Fault(Protocol):
    """What an error code of a program stands for."""

    def error(self, name: str, position: int, value: int) -> BaseException:
        """What the operation `name` says of what a kernel found at a position."""
        ...


def no_faults(
    avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> Sequence[tuple[str, Fault]]:
    """Of a routine that finds no errors in its operands."""
    return ()


def never(avals: Sequence[Aval], static: Mapping[str, Any], result: Aval) -> bool:
    """Of no operands."""
    return False


class Ending(NamedTuple):
    """A map of the elements of a result, which it reads as its array `position`.

    Its other arrays are at the slots `ins`, and are walked with `strides` over the axes of the
    result; what it writes is dense.
    """

    kernel: Map | MultiMap
    position: int
    outs: Sequence[int]
    ins: Sequence[int]
    strides: Sequence[Strides]


class Routine(NamedTuple):
    """An intrinsic of a target.

    `stages(operands, static, result, area, first_code)` writes the result, which is dense; its
    error codes count from `first_code`. `heavy(avals, result)` is whether other Python threads
    should run meanwhile. `faults(avals, static, result)` are the operation and the meaning of each
    error code.
    """

    stages: Callable[[Sequence[Place], Mapping[str, Any], Place, Area, int], Sequence[Node]]
    heavy: Callable[[Sequence[Aval], Aval], bool]
    faults: Callable[[Sequence[Aval], Mapping[str, Any], Aval], Sequence[tuple[str, Fault]]] = (
        no_faults
    )
    # Whether the program has large memory of its own, so that not every plan should keep one.
    large: Callable[[Sequence[Aval], Mapping[str, Any], Aval], bool] = never
    calls_python: bool = False  # from a stage: the program must not hold Python's lock
    # In eager mode, the function of buffers, where that needs no program.
    direct: Callable[[Sequence[Aval], dict[str, Any], Aval], Callable[..., Any]] | None = None
    # The stages that write what a map makes of the result, in place of it; None: there are none.
    ended: (
        Callable[[Sequence[Place], Mapping[str, Any], Aval, Ending, Area], Sequence[Node] | None]
        | None
    ) = None


def ending(target: Target) -> frozenset[str]:
    """The intrinsics of a target whose kernels may end with a map of what they have made."""
    return frozenset(name for name, r in target.routines.items() if r.ended is not None)


def no_flat_programs(kernel: Map, repeated: tuple[bool, ...]) -> None:
    """Of a target that has no shorter way to them."""


class WantedPlan(Protocol):
    """A plan of indices that would be of use; equal ones are interchangeable."""

    def sizes(self) -> tuple[int, ...]:
        """The bytes of its arrays."""
        ...

    def __hash__(self) -> int: ...


class Timing(NamedTuple):
    """A step: its name, when it began and what it took, and the bytes it has to move at least."""

    name: str
    began: float
    seconds: float
    nbytes: int


class Clock(Protocol):
    """Stages that read the clock, to be put between the steps of a program."""

    def start(self) -> None:
        """Forget earlier readings."""
        ...

    def between(self, stages: Sequence[Node], steps: Sequence[range]) -> list[Node]:
        """The stages with readings around each step, of which the stages in these ranges are."""
        ...

    def timings(self, kernels: Sequence[tuple[str, int]]) -> list[Timing]:
        """The steps, by name and bytes, after a run of the program."""
        ...


class KeptPrograms(Protocol):
    """The programs of a target on disk."""

    def circumstances(self) -> Sequence[str] | None:
        """What programs depend on besides what they compute; None if none are kept."""
        ...

    def read(self, key: str, /) -> bytes | None:
        """What was written under a key."""
        ...

    def write(self, key: str, data: bytes, /) -> None:
        """Keep data under a key, as long as there is room."""
        ...

    def packed(self, program: Program, /) -> bytes | None:
        """A program as bytes; None if it calls what another process does not have."""
        ...

    def unpacked(self, data: bytes, inputs: int, /) -> Callable[..., Any] | None:
        """The program, of so many inputs; None, or an error, if its code is not on disk any more or
        the data is something else.
        """
        ...

    def packed_plan(self, wanted: Any, /) -> list[Any]:
        """A plan of indices that would be of use, as numbers and texts."""
        ...

    def unpacked_plan(self, values: Sequence[Any], /) -> WantedPlan:
        """The plan again."""
        ...


class Target(Protocol):
    """Strides are in elements; outputs are dense unless their strides are given."""

    tuning: Tuning

    @property
    def kept(self) -> KeptPrograms | None:
        """The programs of earlier processes, where the target keeps them."""
        ...

    @property
    def routines(self) -> Mapping[str, Routine]:
        """The intrinsics that the target has, by name."""
        ...

    def map(
        self,
        kernel: Map | MultiMap,
        shape: Shape,
        out_slots: Sequence[int],
        out_strides: Sequence[Strides],
        in_slots: Sequence[int],
        in_strides: Sequence[Strides],
        /,
        rows: int = 0,
        shared: bool = False,
    ) -> list[Stage]:
        """Stages that write one array per output of the kernel.

        `rows`: one stage with as many units for each of so many rows, for `Blocks`.
        `shared`: code for this shape alone would not be used again.
        """
        ...

    def flat(self, kernel: Map, repeated: tuple[bool, ...], /) -> FlatProgram | None:
        """What makes programs of a kernel whose operands are dense, or one element repeated.

        Of a number of elements it gives the program of `map` with `shared`; None: there is no
        shorter way to it.
        """
        ...

    def box(
        self,
        kernel: Map,
        shape: Shape,
        out_slot: int,
        out_offset: int,
        out_strides: Strides,
        in_slots: Sequence[int],
        in_strides: Sequence[Strides],
        /,
    ) -> Stage:
        """A stage that writes the box `shape` inside an array, from an element on."""
        ...

    def reduce(
        self,
        kernel: Reduce,
        kept: Shape,
        reduced: Shape,
        in_slots: Sequence[int],
        in_strides: Sequence[Strides],
        out_slot: int,
        area: Area,
        /,
        by_rows: bool = False,
        piece: int = 0,
        shared: bool = False,
    ) -> list[Stage]:
        """Stages that reduce; strides are over the kept axes, then over the reduced ones.

        For `Blocks`: with `by_rows` it is one stage whose units are those of the positions along
        the first kept axis. With `piece` a unit is so many elements of an array that is reduced as
        a whole, and the second stage joins the pieces.
        """
        ...

    def accumulate(
        self,
        kernel: Accumulate,
        kept: Shape,
        length: int,
        in_slots: Sequence[int],
        in_strides: Sequence[Strides],
        out_slot: int,
        out_strides: Strides,
        reverse: bool,
        /,
    ) -> list[Stage]:
        """Stages that fold along one axis and keep every step; its strides come last."""
        ...

    def rows(
        self,
        plan: RowPlan,
        rows: int,
        length: int,
        slot: Callable[[Stored, int], int],
        area: Area,
        /,
    ) -> list[Stage]:
        """The stages of a row kernel; `slot` finds element `offset` of a value."""
        ...

    def scalar_loop(
        self,
        kernel: ScalarLoop,
        in_slots: Sequence[int],
        rows: Sequence[tuple[int, int]],
        out_slots: Sequence[int],
        columns: Sequence[tuple[int, int]],
        /,
    ) -> list[Stage] | None:
        """A loop in registers; rows and columns are a slot and the elements from one to the next.

        None: it is run stage by stage.
        """
        ...

    def product_rows(
        self,
        dtype: DType,
        sides: tuple[int, int, int],
        a: tuple[int, Strides],
        b: tuple[int, Strides],
        out_slot: int,
        area: Area,
        /,
    ) -> list[Stage] | None:
        """A product (m, k) @ (k, n) whose last stage has one unit per row, for `Blocks`.

        None: there is none.
        """
        ...

    def gather(
        self,
        kernel: Gather,
        shape: Shape,
        x_slot: int,
        x_strides: Strides,
        indices: IndexArrays,
        out_slot: int,
        plan: Sequence[int] | None,
        /,
    ) -> list[Stage]:
        """Stages that read at indices; `plan` are the slots of the arrays of a plan."""
        ...

    def gather_plan(
        self,
        kernel: Gather,
        shape: Shape,
        x_strides: Strides,
        index_strides: Sequence[Strides],
        size: int,
        /,
    ) -> WantedPlan | None:
        """The plan that is of use to read from `size` rows, if there is one."""
        ...

    def scatter(
        self,
        kernel: Scatter,
        x: Layout,
        updates: Layout,
        out: tuple[int, Strides],
        indices: IndexArrays,
        area: Area,
        plan: Sequence[int] | None,
        /,
    ) -> list[Stage]:
        """Stages that fold updates into a copy of x; see `gather`.

        No copy is made where x is at the slot of the output.
        """
        ...

    def scatter_plan(
        self, kernel: Scatter, x_shape: Shape, shape: Shape, index_strides: Sequence[Strides], /
    ) -> WantedPlan | None:
        """The plan of the one index array that is of use, if there is one."""
        ...

    def plan_arrays(self, indices: Any, dtype: DType, wanted: WantedPlan) -> Sequence[Any] | None:
        """The arrays of the plan of a buffer of indices, if there is one by now."""
        ...

    def together(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """The result of a function; the kernels that it asks for may be compiled side by side."""
        ...

    def encode(
        self, program: Program, faults: Sequence[tuple[str, Fault]] = (), /
    ) -> Callable[..., Any]:
        """The program as a function of buffers.

        It returns the output, or (code, position, value) of the first error that a stage found. A
        device that runs behind the host returns the output before it knows: then the target raises
        the error itself, from the operation and fault of its code in `faults`, at the latest when
        a result is read.
        """
        ...

    def clock(self) -> Clock:
        """A clock whose readings are stages."""
        ...

    def view(self, buffer: Any, nbytes: int, /) -> Any:
        """The buffer from a byte on."""
        ...

    def empty(self, nbytes: int, /) -> Any:
        """A new buffer."""
        ...
