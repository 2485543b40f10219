"""What a runtime is: a device's memory, and its target for the compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from pullback.compile.program.index_plans import PlanCache
from pullback.compile.program.single import plan_single
from pullback.compile.program.target import Target
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.op import Op, Plan

__all__ = ["Runtime"]


class Runtime(ABC):
    """Buffers are opaque to others; they never change once an operation has returned them."""

    name: str
    target: Target
    dtypes: tuple[DType, ...]  # that arrays here may have

    def plan(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any], out: Aval) -> Plan:
        """Prepare `op` for operands with these avals; `out` is the inferred result, dense.

        The plan's aval has the shape and dtype of `out` and may have other strides.
        """
        return plan_single(self.target, op, avals, static, out)

    @abstractmethod
    def from_numpy(self, array: np.ndarray, copy: bool) -> Any:
        """The buffer of a C-contiguous array; without `copy`, the array's own memory is used."""

    @abstractmethod
    def to_numpy(self, buf: Any, av: Aval) -> np.ndarray:
        """A read-only NumPy array of the contents, without a copy from the host's memory."""

    @abstractmethod
    def memory(self, buf: Any, av: Aval, *, writable: bool) -> np.ndarray:
        """The memory itself as a NumPy array."""

    @abstractmethod
    def origin(self, buf: Any) -> Any:
        """The buffer that a view sees a part of; any other is its own."""

    @abstractmethod
    def has_one_owner(self, buf: Any) -> bool:
        """Whether one handle, which the caller holds, is all that has the memory of a buffer, and
        may write to it.
        """

    @abstractmethod
    def shares(self, buf: Any) -> bool:
        """Whether the memory of a buffer belongs to somebody else, who may write to it."""

    @abstractmethod
    def index_plan(self, buf: Any, av: Aval, size: int, by: object) -> None:
        """Check and arrange dense indices into `size` places, and keep that while `by` lives."""

    @abstractmethod
    def index_plans(self) -> PlanCache:
        """All index plans that are kept."""

    @abstractmethod
    def capabilities(self) -> dict[str, str]:
        """What this runtime has: which library carries which intrinsic."""
