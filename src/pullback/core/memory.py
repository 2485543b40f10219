"""What everybody may ask of a device's runtime: its memory, and to run an operation.

`av` is an `avals.Aval` everywhere; buffers are opaque to others, and never change once an operation
has returned them, but for those of one handle (`may_change`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core.dtypes import DType

__all__ = ["Memory"]


class Memory(ABC):
    """The memory of a device, and the way to its compiler: see `runtime.base.Runtime`."""

    name: str
    dlpack_device: tuple[int, int]  # as DLPack numbers it
    dtypes: tuple[DType, ...]  # that arrays here may have
    target: Any  # for the compiler
    has_fast_products = False  # whether products of matrices may be faster if they are less precise
    # Of an array that one step of a loop over tiles should make, where that decides no bit; 0 if it
    # does not matter.
    tile_elements: int = 0
    # Whether losses look at class numbers before they read with them: an error that is found when
    # a result is read knows an index of `gather`, and no class.
    names_classes: bool = False

    @abstractmethod
    def plan(self, op: Any, avals: tuple[Any, ...], static: dict[str, Any], out: Any) -> Any:
        """Prepare `op` for operands with these avals; `out` is the inferred result, dense.

        The plan's aval has the shape and dtype of `out` and may have other strides.
        """

    def resized(
        self, op: Any, avals: tuple[Any, ...], static: dict[str, Any]
    ) -> tuple[Any, bool] | None:
        """The plan of `op` made from those of other sizes, and whether it was asked for before.

        None: there is no such way, and `plan` is asked.
        """
        return None

    @abstractmethod
    def writer(self, to: Any, value: Any) -> Any:
        """A function of two buffers that writes an array to a view whose shape it broadcasts to."""

    @abstractmethod
    def copier(self, av: Any) -> Any:
        """A function of a buffer that gives the buffer of a dense copy."""

    def may_change(self, buf: Any) -> bool:
        """Whether one handle, which the caller holds, is all that has the memory of a buffer: then
        nobody else sees it change. What was known of its contents is forgotten.
        """
        return False

    def put(self, buf: Any, at: int, value: Any, dtype: DType) -> bool:
        """Write a Python number to a byte of memory that may be changed; False: it is not done."""
        return False

    @abstractmethod
    def from_numpy(self, array: np.ndarray, copy: bool) -> Any:
        """The buffer of a C-contiguous array; without `copy`, the array's own memory is used."""

    def vector(self, values: Sequence[float], dtype: DType) -> Any:
        """The buffer of some Python floats, rounded to a real dtype."""
        return self.from_numpy(np.array(values, dtype.numpy), True)

    def scalar(self, value: Any, dtype: DType) -> Any:
        """The buffer of one element, a Python number that fits the dtype."""
        return self.from_numpy(np.asarray(value).astype(dtype.numpy), True)

    @abstractmethod
    def to_numpy(self, buf: Any, av: Any) -> np.ndarray:
        """A read-only NumPy array of the contents, without a copy from the host's memory."""

    def element(self, buf: Any, av: Any) -> Any:
        """The only element as a Python number."""
        return self.to_numpy(buf, av).reshape(()).item()

    @abstractmethod
    def memory(self, buf: Any, av: Any, *, writable: bool) -> np.ndarray:
        """The memory itself as a NumPy array."""

    def exported(
        self, buf: Any, av: Any, stream: Any, max_version: tuple[int, int] | None, copy: bool
    ) -> Any:
        """A DLPack capsule of memory that NumPy can't see, or of a dense copy of it."""
        raise NotImplementedError(f"{self.name}: NumPy sees this memory")

    def imported(self, producer: Any, copy: bool | None) -> tuple[Any, Any, Any]:
        """The buffer, the dtype and shape with strides of what a producer of DLPack offers here."""
        raise NotImplementedError(f"{self.name}: NumPy sees this memory")

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
    def index_plan(self, buf: Any, av: Any, size: int, by: object) -> None:
        """Check and arrange dense indices into `size` places, and keep that while `by` lives."""

    @abstractmethod
    def index_plans(self) -> Any:
        """All index plans that are kept."""

    @abstractmethod
    def capabilities(self) -> dict[str, str]:
        """What this runtime has: which library carries which intrinsic."""
