"""The protocol that every runtime keeps."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pullback.core.avals import Aval
from pullback.ir.op import Op, Plan

__all__ = ["Runtime"]


class Runtime(Protocol):
    """Buffers are opaque to others; they never change once an operation has returned them."""

    name: str

    def plan(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any], out: Aval) -> Plan:
        """Prepare `op` for operands with these avals; `out` is the inferred result, dense.

        The plan's aval has the shape and dtype of `out` and may have other strides.
        """
        ...

    def from_numpy(self, array: np.ndarray, copy: bool) -> Any:
        """The buffer of a C-contiguous array; without `copy`, the array's own memory is used."""
        ...

    def to_numpy(self, buf: Any, av: Aval) -> np.ndarray:
        """A read-only NumPy array of the contents, without a copy from the host's memory."""
        ...

    def capabilities(self) -> dict[str, str]:
        """What this runtime has: which library carries which intrinsic."""
        ...
