"""Functions of the host: code that computes with NumPy arrays, as an operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError, GradientError, ShapeError, expect_function
from pullback.ir.convert import as_array, shape_of
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import primitive
from pullback.ops.movement import repeated

__all__ = ["HostFunction", "call_host"]

Shape = tuple[int, ...]


class Result(NamedTuple):
    """Shape and dtype of an array that a host function returns."""

    shape: Shape
    dtype: DType


class HostFunction:
    """A function of NumPy arrays that returns arrays of known types.

    Its last call is remembered, since each of its results is asked for by itself.
    """

    def __init__(
        self,
        caller: str,
        name: str,
        function: Callable[..., Sequence[Any]],
        results: Sequence[Result],
        vectorized: bool = False,
    ):
        self.caller, self.name = caller, name
        self.results = list(results)
        self._function = function
        self._vectorized = vectorized
        self._lock = threading.Lock()
        self._last: tuple[Any, list[np.ndarray]] | None = None

    def result(self, position: int, arrays: Sequence[np.ndarray], lead: int) -> np.ndarray:
        """A result for operands with `lead` axes of examples in front."""
        if len(self.results) == 1:
            return self._all(arrays, lead)[0]
        key = [(a.shape, a.dtype, a.tobytes()) for a in arrays]
        with self._lock:
            if self._last is None or self._last[0] != key:
                self._last = key, self._all(arrays, lead)
            return self._last[1][position]

    def _all(self, arrays: Sequence[np.ndarray], lead: int) -> list[np.ndarray]:
        examples = arrays[0].shape[:lead] if lead else ()
        if self._vectorized or not lead:
            return self._checked(self._function(*arrays), examples)
        found = [np.empty((*examples, *r.shape), r.dtype.numpy) for r in self.results]
        for at in np.ndindex(examples):
            outs = self._checked(self._function(*[a[at] for a in arrays]), ())
            for whole, one in zip(found, outs, strict=True):
                whole[at] = one
        return found

    def _checked(self, outs: Sequence[Any], examples: Shape) -> list[np.ndarray]:
        return [
            self._array(out, (*examples, *r.shape), r.dtype)
            for out, r in zip(outs, self.results, strict=True)
        ]

    def _array(self, out: Any, shape: Shape, dtype: DType) -> np.ndarray:
        array = np.asarray(out)
        if array.shape != shape:
            raise ShapeError(
                f"{self.caller}: `{self.name}` must return an array of shape {shape}, got"
                f" {array.shape}."
            )
        if not np.can_cast(array.dtype, dtype.numpy, "same_kind"):
            raise DTypeError(
                f"{self.caller}: `{self.name}` must return {dtype.name}, got {array.dtype}."
            )
        return np.ascontiguousarray(array.astype(dtype.numpy, copy=False)).reshape(shape)


def name_of(f: Any) -> str:
    """What to call a function."""
    return getattr(f, "__name__", type(f).__name__)


def _infer(*xs: Aval, host: HostFunction, position: int, lead: int, device: Any) -> tuple:
    own = host.results[position]
    return (*(xs[0].shape[:lead] if lead else ()), *own.shape), own.dtype


def _no_rule(host: HostFunction) -> NoReturn:
    raise GradientError(
        f"{host.caller}: `{host.name}` is host code, which has no derivative. Give it one with"
        " custom_jvp or custom_vjp, or use stop_gradient."
    )


def _batch(
    op: Any, xs: Sequence[Any], host: HostFunction, position: int, lead: int, device: Any,
    examples: int,
) -> Any:  # fmt: skip
    rows = [repeated(x, examples) for x in xs]
    return bind(op, *rows, host=host, position=position, lead=lead + 1, device=device)


def _outer_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.add.outer(x, y)


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((_outer_sum, (2, 3), "int64", d.integers(2), d.integers(3))),
        Sample((_outer_sum, (0, 3), "int64", d.integers(0), d.integers(3))),
        Sample((np.add, (3, 4), "int64", d.integers(4, 3).T, d.integers(4))),
    ]


@primitive(
    "*xs",
    infer=_infer,
    lowering=Intrinsic("host", raises=True),
    vjp={"xs": lambda g, host: _no_rule(host)},
    jvp={"xs": lambda t, host: _no_rule(host)},
    batch=_batch,
    oracle=lambda f, shape, dtype, *xs: f(*xs),
    samples=_samples,
    errors=lambda d: [
        Bad((3, (2,), "int64"), {}, DTypeError, "expected a function"),
        Bad((np.add, (2,), "int64", d.integers(3), d.integers(3)), {}, ShapeError, "must return"),
        Bad((np.add, (2,), "int8", np.ones(2), np.ones(2)), {}, DTypeError, "must return int8"),
        Bad((np.add, (-2,), "int64"), {}, ShapeError, "negative"),
    ],
    namespace="primitive",
)
def call_host(f: Any, shape: Any, dtype: Any, /, *xs: Any) -> Any:
    """`f(*xs)` by a function of NumPy arrays that returns one of the given shape and dtype.

    >>> pb.primitive.call_host(np.cumsum, (3,), "int64", pb.tensor([1, 2, 3]))
    tensor([1, 3, 6], int64, cpu)
    """
    expect_function("call_host", f)
    result = Result(shape_of(shape, "call_host"), as_dtype(dtype, "call_host"))
    host = HostFunction("call_host", name_of(f), lambda *arrays: [f(*arrays)], [result])
    return called(host, [as_array(x, "call_host") for x in xs])[0]


def called(host: HostFunction, xs: Sequence[Any], device: Any = None) -> list[Any]:
    """All results of a host function, of arrays that share a device."""
    where = xs[0]._aval.device if xs else device
    return [
        bind(call_host.op, *xs, host=host, position=i, lead=0, device=where)
        for i in range(len(host.results))
    ]
