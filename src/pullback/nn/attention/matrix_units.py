"""Attention of float16 and bfloat16 on the matrix units of a device, one kernel for each pass.

The forward kernel keeps the logarithms of the rows' sums beside its result, the backward kernels
compute the probabilities again. Products are of floats of 16 bits with sums in float32, in an order
that is the units' own: the same bits every time, but not those of the CPU. Derivatives of the
derivative are those of `blockwise`, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any, NamedTuple

from pullback.autodiff.custom import custom_vjp
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, bfloat16, float16, float32
from pullback.core.precision import HIGHEST, get_matmul_precision
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import Op, bind
from pullback.nn.attention.blockwise import attended
from pullback.ops.movement import repeated, reshape
from pullback.ops.parts import astype
from pullback.ops.reductions import sum as sum_
from pullback.transforms import vjp

__all__ = ["attended_by_units", "has_units"]

Shape = tuple[int, ...]
Arrays = dict[str, Any]
WIDEST = 128  # heads whose sums fit into a thread's registers
NUMBERS = 8  # of 16 bits in 16 bytes, at a multiple of which rows should start
FORWARD, QUERIES, KEYS = (f"attention_{n}" for n in ("forward", "queries", "keys"))


def has_units(query: Any, key: Any, value: Any, factor: Any) -> bool:
    """Whether the matrix units of a device may compute attention without a bias."""
    width, dtype = query.shape[-1], query.dtype
    return (
        dtype in (float16, bfloat16)
        and key.dtype is dtype
        and value.dtype is dtype
        and 0 < width == value.shape[-1] <= WIDEST
        and 0 not in (*query.shape, *key.shape)
        and isinstance(factor, (int, float))
        and 0 < factor < inf
        and get_matmul_precision() != HIGHEST
        and FORWARD in query.device.runtime.target.routines
    )


def attended_by_units(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    words: Any,
    factor: float,
    causal: bool,
    dropout: float,
) -> Any:
    """softmax(query @ key.T * factor) @ value where the mask allows it; see `blockwise`."""
    heads = prod(query.shape[:-2]) if dropout else 1
    rule = _Attention(float(factor), causal, dropout, heads)
    core = custom_vjp(rule.forward)
    core.defvjp(rule.forward_and_residuals, rule.pulled)
    fixed = {"words": words} if dropout else {}
    return core(query, key, value, fixed if mask is None else {**fixed, "mask": mask})


class _Attention(NamedTuple):
    """What is fixed in a problem, and its forward and backward rules."""

    factor: float
    causal: bool
    dropout: float
    heads: int  # that share the key of dropout

    def forward(self, query: Any, key: Any, value: Any, fixed: Arrays) -> Any:
        return _result(self._bound(_forward, (query, key, value), fixed), query)

    def forward_and_residuals(
        self, query: Any, key: Any, value: Any, fixed: Arrays
    ) -> tuple[Any, tuple]:
        packed = self._bound(_forward, (query, key, value), fixed)
        return _result(packed, query), (query, key, value, fixed, packed)

    def _bound(self, op: Op, arrays: tuple, fixed: Arrays) -> Any:
        rest = [fixed[n] for n in ("words", "mask") if n in fixed]
        return bind(op, *arrays, *rest, **self._asdict())

    def pulled(self, residuals: tuple, g: Any) -> tuple:
        """The cotangents of query, key and value, as a function that has a rule of its own."""
        query, key, value, fixed, packed = residuals
        core = custom_vjp(self.gradients)
        core.defvjp(lambda *arrays: (self.gradients(*arrays), arrays), self.pulled_gradients)
        return (*core(query, key, value, g, fixed, packed), None)

    def gradients(
        self, query: Any, key: Any, value: Any, g: Any, fixed: Arrays, packed: Any
    ) -> tuple:
        wide = astype(_result(packed, query), float32) * astype(g, float32)
        arrays = query, key, value, g, packed, sum_(wide, axis=-1)
        both = self._bound(_keys, arrays, fixed)
        lead = (slice(None),) * (key.ndim - 2)
        return self._bound(_queries, arrays, fixed), both[(*lead, 0)], both[(*lead, 1)]

    def pulled_gradients(self, arrays: tuple, cotangents: tuple) -> tuple:
        """The rule of `gradients`, for which the forward pass follows from the other arrays."""
        *given, fixed, _ = arrays

        def plain(query: Any, key: Any, value: Any) -> Any:
            query, key, value = (astype(x, float32) for x in (query, key, value))
            options = {**fixed, "causal": self.causal, "dropout": self.dropout}
            return attended(query * self.factor, key, value, **options)

        def gradients(query: Any, key: Any, value: Any, g: Any) -> tuple:
            return vjp(plain, query, key, value)[1](astype(g, float32))

        return (*vjp(gradients, *given)[1](cotangents), None, None)


def _result(packed: Any, query: Any) -> Any:
    """The result of the forward kernel, without logarithms."""
    rows, width = query.shape[-2:]
    start = _start(rows)
    return reshape(packed[..., start : start + rows * width], query.shape)


# -- kernels ---------------------------------------------------------------------------------------


def _start(rows: int) -> int:
    """Numbers of 16 bits that the logarithms of so many rows take."""
    return -(-2 * rows // NUMBERS) * NUMBERS


def _forward_infer(query: Aval, *rest: Aval, **static: Any) -> tuple[Shape, DType]:
    *lead, rows, width = query.shape
    return (*lead, _start(rows) + -(-rows * width // NUMBERS) * NUMBERS), query.dtype


def _queries_infer(query: Aval, *rest: Aval, **static: Any) -> tuple[Shape, DType]:
    return query.shape, query.dtype


def _keys_infer(query: Aval, key: Aval, *rest: Aval, **static: Any) -> tuple[Shape, DType]:
    return (*key.shape[:-2], 2, *key.shape[-2:]), key.dtype


def _batch(
    op: Op, xs: Sequence[Any], factor: float, causal: bool, dropout: float, heads: int,
    examples: int,
) -> Any:  # fmt: skip
    rows = [repeated(x, examples) for x in xs]
    return bind(op, *rows, factor=factor, causal=causal, dropout=dropout, heads=heads)


def _kernel(name: str, infer: Callable[..., Any], products: int) -> Op:
    """A kernel as an operation: a part of attention, whose samples are the ones to test it with."""

    def run(*arrays: Any, **static: Any) -> Any:
        """A pass of attention on the matrix units of a device.

        >>> pb.nn.scaled_dot_product_attention(*[pb.ones((2, 16), dtype="bfloat16")] * 3).shape
        (2, 16)
        """
        return bind(op, *arrays, **static)

    def work(avals: Sequence[Aval], out: Aval) -> int:
        return 2 * products * avals[0].size * avals[1].shape[-2]

    op = Op(
        name,
        run,
        oracle="nn.scaled_dot_product_attention",
        samples=lambda d: [],
        errors=lambda d: [],
        operands=("*xs",),
        infer=infer,
        lowering=Intrinsic(name, work=work),
        batch=_batch,
        no_gradient="attention has a rule that is made of the kernels",
    )
    return op


_forward = _kernel(FORWARD, _forward_infer, 2)
_queries = _kernel(QUERIES, _queries_infer, 3)
_keys = _kernel(KEYS, _keys_infer, 4)
