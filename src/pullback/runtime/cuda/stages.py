"""What the stages of a program are on a GPU: launches, whose arguments are found through slots.

The slot RECORD is the last one: the address of the struct Record of `indexing`, where errors are
noted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pullback.compile.program.host_calls import HostCall
from pullback.compile.program.stages import At, Stage

__all__ = [
    "RECORD",
    "RECORD_BYTES",
    "VECTOR_BYTES",
    "At",
    "Clear",
    "Either",
    "GraphNumber",
    "HostCall",
    "StageCode",
    "Step",
    "Table",
    "TensorMap",
    "stage",
]

RECORD = -1  # the slot of the record of errors
RECORD_BYTES = 48  # of the struct Record of `indexing`: six words of 64 bits
VECTOR_BYTES = 16  # at a multiple of which arrays start that are read several elements at a time


class TensorMap(NamedTuple):
    """A CUtensorMap of what starts at an address, which its first 8 bytes are; the others."""

    at: At
    rest: bytes


class GraphNumber(NamedTuple):
    """In a graph, the handle of a condition of the loop or choice that a launch is part of, by its
    place; below 0, where a stop of loops is asked for.
    """

    place: int


class Table:
    """Numbers that a kernel looks up: an array of the host, which each GPU gets a copy of."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: np.ndarray):
        self.values = np.ascontiguousarray(values)


class Step(NamedTuple):
    """A launch: a function of a source, thread blocks, threads of each, arguments.

    An argument is an address, a table, a map for the copy engine, an int64, a number of a graph,
    or the bytes of a struct that is passed by value.
    `checked`: it notes errors. `shared`: bytes of shared memory that the launch gives a block.
    `together`: all thread blocks are on the device at the same time. `early`: it may begin before
    the launch that comes before it has ended, and waits for that in the kernel. `anywhere`: the
    positions of arguments whose arrays may start anywhere, in an `Either` too.
    """

    source: str
    function: str
    grid: tuple[int, int]
    block: int
    arguments: tuple[At | Table | TensorMap | GraphNumber | int | bytes, ...]
    checked: bool = False
    shared: int = 0
    together: bool = False
    early: bool = False
    anywhere: tuple[int, ...] = ()


class Either(NamedTuple):
    """`aligned` if all arrays start at multiples of VECTOR_BYTES, else `other`."""

    aligned: Step
    other: Step

    def asked(self) -> list[At]:
        """The arrays that have to start so."""
        own = self.aligned
        return [
            a for k, a in enumerate(own.arguments) if isinstance(a, At) and k not in own.anywhere
        ]


class Clear(NamedTuple):
    """So many bytes from a slot on become 0."""

    slot: int
    nbytes: int


class StageCode(tuple[Step | Either | Clear | HostCall, ...]):
    """The code of a stage."""

    __slots__ = ()

    def __index__(self) -> int:
        return id(self)


def stage(*steps: Step | Either | Clear | HostCall) -> list[Stage]:
    """A stage of launches, none if there are none."""
    return [Stage(StageCode(steps), 1, 1, ())] if steps else []
