"""`scatter_plan`: indices with the order of their positions, worked out once."""

from __future__ import annotations

from typing import Any

from pullback.core import dtypes as dt
from pullback.core.avals import default_device, dense_strides
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ir.tracing import no_value
from pullback.ops.parts import astype

__all__ = ["as_indices", "scatter_plan"]


class scatter_plan:  # noqa: N801  (a function to its users)
    """The positions of `indices` sorted by the place, of `size`, that they point at.

    >>> plan = pb.scatter_plan(pb.tensor([1, 1, 0]), 3)
    >>> pb.segment_sum(pb.tensor([1.0, 2.0, 4.0]), plan)
    tensor([4., 3., 0.], float32, cpu)
    >>> plan.size, plan.count
    (3, 3)

    Functions that take indices along one axis take a plan in their place. Results are the same;
    sums of wide rows, hence derivatives of reading them, start at once. Plans are also made, and
    kept as long as their index array, at the second use of an array: `cached_bytes` counts all of
    them, `set_limit` bounds those that nobody holds.
    """

    def __init__(self, indices: Any, size: int, /):
        array = as_array(indices, "scatter_plan")
        if array._aval.is_symbolic:
            raise no_value("scatter_plan", array)
        if not array._aval.dtype.is_integer:
            raise DTypeError(
                f"scatter_plan: indices must be integers, got {array._aval.dtype.name}."
            )
        if size < 0:
            raise ShapeError(f"scatter_plan: the size must not be negative, got {size}.")
        runtime = array._aval.device.runtime
        if array._aval.strides != dense_strides(array._aval.shape) or runtime.shares(array._buf):
            array = from_numpy(to_numpy(array), array._aval.device)
        self.indices = array
        self.size = int(size)
        runtime.index_plan(array._buf, array._aval, self.size, self)

    @property
    def count(self) -> int:
        """How many indices there are."""
        return self.indices._aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept beside the indices; more when another form of it is needed."""
        return _cache(self.indices._aval.device).bytes_of(self.indices._buf)

    @staticmethod
    def cached_bytes(device: Any = None) -> int:
        """The bytes of all plans on a device, held or made along the way."""
        return _cache(device).nbytes

    @staticmethod
    def limit(device: Any = None) -> int:
        """The bytes up to which plans that nobody holds are kept."""
        return _cache(device).limit

    @staticmethod
    def set_limit(nbytes: int, device: Any = None) -> None:
        """Keep plans that nobody holds up to so many bytes in all; 0 keeps none."""
        if nbytes < 0:
            raise ShapeError(f"scatter_plan: a limit must not be negative, got {nbytes}.")
        _cache(device).set_limit(int(nbytes))

    def __repr__(self) -> str:
        return f"scatter_plan({self.indices._aval.shape} into {self.size}, {self.nbytes} bytes)"


def _cache(device: Any) -> Any:
    dev = default_device() if device is None else device
    return dev.runtime.index_plans()


def as_indices(name: str, indices: Any, dev: Any, size: int | None = None) -> Any:
    """An integer array; a plan is taken in its place for an axis of `size` elements."""
    if isinstance(indices, scatter_plan):
        if size is None:
            raise DTypeError(f"{name}: takes an index for each element here, got {indices!r}.")
        if size != indices.size:
            raise ShapeError(
                f"{name}: the plan is for {indices.size} places, got an axis of size {size}."
            )
        return indices.indices
    array = as_array(indices, name, dev=dev)
    if isinstance(indices, (list, tuple)) and array._aval.size == 0:
        array = astype(array, dt.int64)
    if not array._aval.dtype.is_integer:
        raise DTypeError(f"{name}: indices must be integers, got {array._aval.dtype.name}.")
    return array
