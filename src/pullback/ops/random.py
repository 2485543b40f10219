"""Random numbers from keys. The same key gives the same numbers each time and on every runtime:
split it, or fold a number in, for fresh ones.

Gradients flow through the parameters of a distribution where a sample is a smooth function of them.
"""

from __future__ import annotations

from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import as_array, from_numpy, shape_of
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.cumulative import cumsum
from pullback.ops.exponential import log, log1p
from pullback.ops.families import broadcast_shapes, composite
from pullback.ops.indexing import take
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.philox import (
    FOLD,
    SPLIT,
    bits,
    bits_oracle,
    children,
    counter_words,
    drawn,
    float_dtype,
    float_errors,
    float_samples,
    fraction_bits,
    key_errors,
    key_words,
    normal_oracle,
    numpy_children,
    sample_key,
    uniform_oracle,
    unit_normal,
    unit_uniform,
)
from pullback.ops.selection import clip, where
from pullback.ops.sorting import argsort, searchsorted

__all__ = [
    "bernoulli", "bits", "choice", "exponential", "fold_in", "gumbel", "key", "normal",
    "permutation", "randint", "split", "uniform",
]  # fmt: skip

# -- keys ----------------------------------------------------------------------------------------


@composite(
    oracle=lambda seed: np.asarray([seed % 2**32, seed // 2**32 % 2**32], dtype=np.uint32),
    samples=lambda d: [Sample((0,)), Sample((2**40 + 7,)), Sample((-1,))],
    errors=lambda d: [
        Bad((0.5,), {}, DTypeError, "must be an integer"),
        Bad((2**64,), {}, ShapeError, "must fit 64 bits"),
    ],
    namespace="random",
    differentiable=False,
)
def key(seed: int, /) -> Any:
    """The key for a seed, an integer of up to 64 bits.

    >>> pb.random.key(7)
    tensor([7, 0], uint32, cpu)
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise DTypeError(f"key: the seed must be an integer, got {seed!r}.")
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:  # what is cut off would make keys of two seeds the same
        raise ShapeError(f"key: the seed must fit 64 bits, got {seed}.")
    return from_numpy(np.asarray([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], dtype=np.uint32))


@composite(
    oracle=lambda key, n=2: numpy_children(key, np.arange(n), SPLIT),
    samples=lambda d: [Sample((sample_key(d),)), Sample((sample_key(d), 5))],
    errors=key_errors(),
    namespace="random",
    differentiable=False,
)
def split(key: Any, n: int = 2, /) -> Any:
    """`n` new keys, as the rows of an array; use each once and the old one no more.

    >>> pb.random.split(pb.random.key(0)).shape
    (2, 2)
    """
    k0, k1 = key_words("split", key)
    (count,) = shape_of(n, "split")
    return children(k0, k1, *counter_words(0, k0._aval.device), (count, 2), SPLIT)


@composite(
    oracle=lambda key, data: numpy_children(key, data, FOLD),
    samples=lambda d: [Sample((sample_key(d), 3)), Sample((sample_key(d), 2**40))],
    errors=lambda d: [
        *key_errors(1)(d),
        Bad((sample_key(d), 0.5), {}, DTypeError, "must be an integer"),
    ],
    namespace="random",
    differentiable=False,
)
def fold_in(key: Any, data: Any, /) -> Any:
    """The key for step `data`, an integer or a 0-d integer array, of a sequence that `key` starts.

    >>> pb.random.fold_in(pb.random.key(0), 3).shape
    (2,)
    """
    k0, k1 = key_words("fold_in", key)
    if data.__class__ is int and -(1 << 63) <= data < 1 << 64:
        return children(k0, k1, *counter_words(data, k0._aval.device), (2,), FOLD)
    number = data if isinstance(data, Array) else as_array(data, "fold_in", dev=k0._aval.device)
    if not number._aval.dtype.is_integer or number._aval.ndim:
        raise DTypeError(f"fold_in: data must be an integer, got {data!r}.")
    number = astype(number, dt.uint64)
    low, high = astype(number, dt.uint32), astype(number >> 32, dt.uint32)
    return children(k0, k1, low, high, (2,), FOLD)


# -- continuous distributions --------------------------------------------------------------------


def _given(x: Any, neutral: float) -> bool:
    """Whether a parameter is there, rather than left at the number that changes nothing."""
    return not isinstance(x, (int, float)) or x != neutral


def _parameters(name: str, shape: Any, dtype: Any, *params: Any) -> tuple[tuple[int, ...], DType]:
    """The shape and dtype of a draw: those asked for, else those of the parameters."""
    arrays = [p for p in params if isinstance(p, (Array, np.ndarray))]
    if not arrays and shape is not None:
        return shape_of(shape, name), float_dtype(name, dtype)
    avals = [as_array(p, name)._aval for p in arrays]
    wanted = broadcast_shapes(name, (), *[a.shape for a in avals])
    if shape is None:
        shape = wanted
    shape = shape_of(shape, name)
    if broadcast_shapes(name, shape, wanted) != shape:
        raise ShapeError(
            f"{name}: parameters of shape {wanted} do not fit a draw of shape {shape}."
        )
    wide = None
    for a in avals:
        if a.dtype.is_complex:
            raise DTypeError(f"{name}: parameters are real, got {a.dtype.name}.")
        if a.dtype.is_float:
            wide = a.dtype if wide is None else dt.promote(wide, a.dtype)
    return shape, float_dtype(name, wide if dtype is None else dtype)


def _uniform(name: str, key: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Numbers in [0, 1); `name` is the operation that draws, for the error message."""
    return drawn(unit_uniform, *key_words(name, key), shape, dtype)


def _bits(name: str, key: Any, shape: tuple[int, ...]) -> Any:
    return drawn(bits, *key_words(name, key), shape, dt.uint64)


def _affine_samples(d: Draw) -> list[Sample]:
    return [
        *float_samples(d),
        Sample((sample_key(d), None, d.positive(3), d.positive(2, 3))),
        Sample((sample_key(d), (2, 2), 0.5, 2.0)),
    ]


def _affine_errors(d: Draw) -> list[Bad]:
    return [*float_errors(d), Bad((sample_key(d), (2,), d.real(3)), {}, ShapeError, "broadcast")]


def _affine_oracle(
    standard: Any, scale_of: Any = lambda a, b: b, defaults: Any = (0.0, 1.0)
) -> Any:
    def oracle(key: Any, shape: Any = None, a: Any = None, b: Any = None, *, dtype: Any = None):
        a, b = defaults[0] if a is None else a, defaults[1] if b is None else b
        if shape is None:
            shape = np.broadcast_shapes(np.shape(a), np.shape(b))
        if dtype is None and isinstance(a, np.ndarray):
            dtype = as_dtype(a.dtype)
        z = standard(key, shape, dtype=dtype)
        return (a + z * scale_of(a, b)).astype(z.dtype)

    return oracle


@composite(
    oracle=_affine_oracle(uniform_oracle, lambda a, b: b - a),
    samples=_affine_samples,
    errors=_affine_errors,
    namespace="random",
    creates=True,
)
def uniform(
    key: Any, shape: Any = None, /, low: Any = 0.0, high: Any = 1.0, *, dtype: Any = None
) -> Any:
    """Uniform random numbers in [low, high); the shape defaults to that of the parameters.

    >>> pb.random.uniform(pb.random.key(0), 3)
    tensor([0.39904642, 0.97224116, 0.01944941], float32, cpu)
    """
    shape, dtype = _parameters("uniform", shape, dtype, low, high)
    u = _uniform("uniform", key, shape, dtype)
    if _given(high, 1.0) or _given(low, 0.0):
        u = u * (high - low) + low
    return u


def _scaled(z: Any, loc: Any, scale: Any) -> Any:
    z = z * scale if _given(scale, 1.0) else z
    return z + loc if _given(loc, 0.0) else z


@composite(
    oracle=_affine_oracle(normal_oracle),
    samples=_affine_samples,
    errors=_affine_errors,
    namespace="random",
    creates=True,
)
def normal(
    key: Any, shape: Any = None, /, loc: Any = 0.0, scale: Any = 1.0, *, dtype: Any = None
) -> Any:
    """Normal random numbers with mean `loc` and standard deviation `scale`.

    >>> pb.random.normal(pb.random.key(0), 3)
    tensor([-0.12151815, -0.0818742 ,  1.7764249 ], float32, cpu)
    """
    shape, dtype = _parameters("normal", shape, dtype, loc, scale)
    z = drawn(unit_normal, *key_words("normal", key), shape, dtype)
    return _scaled(z, loc, scale)


def _exponential_oracle(key: Any, shape: Any = None, scale: Any = 1.0, *, dtype: Any = None) -> Any:
    shape = np.shape(scale) if shape is None else shape
    if dtype is None and isinstance(scale, np.ndarray):
        dtype = as_dtype(scale.dtype)
    u = uniform_oracle(key, shape, dtype=dtype)
    return (-np.log1p(-u.astype(np.float64)) * scale).astype(u.dtype)


@composite(
    oracle=_exponential_oracle,
    samples=lambda d: [*float_samples(d), Sample((sample_key(d), None, d.positive(3)))],
    errors=_affine_errors,
    namespace="random",
    creates=True,
)
def exponential(key: Any, shape: Any = None, /, scale: Any = 1.0, *, dtype: Any = None) -> Any:
    """Exponential random numbers with mean `scale`.

    >>> pb.random.exponential(pb.random.key(0), 3)
    tensor([0.5092376 , 3.584201  , 0.01964104], float32, cpu)
    """
    shape, dtype = _parameters("exponential", shape, dtype, scale)
    return _scaled(-log1p(-_uniform("exponential", key, shape, dtype)), 0.0, scale)


def _numpy_gumbel(key: Any, shape: Any, *, dtype: Any = None) -> Any:
    u = uniform_oracle(key, shape, dtype=dtype)
    step = 2.0 ** -(1 + fraction_bits(as_dtype(u.dtype)))
    waiting = -np.log1p(-u.astype(np.float64))
    return (-np.log(np.where(u == 0, step, waiting))).astype(u.dtype)


@composite(
    oracle=_affine_oracle(_numpy_gumbel),
    samples=_affine_samples,
    errors=_affine_errors,
    namespace="random",
    creates=True,
)
def gumbel(
    key: Any, shape: Any = None, /, loc: Any = 0.0, scale: Any = 1.0, *, dtype: Any = None
) -> Any:
    """Gumbel random numbers `loc - scale * log(-log(u))`; logits plus these peak at a softmax draw.

    >>> pb.random.gumbel(pb.random.key(0), 3)
    tensor([ 0.67484057, -1.2765356 ,  3.9301338 ], float32, cpu)
    """
    shape, dtype = _parameters("gumbel", shape, dtype, loc, scale)
    waiting = -log1p(-_uniform("gumbel", key, shape, dtype))
    # 0 stands for the numbers up to the first step: take their middle, and never give infinity
    waiting = where(waiting == 0.0, 2.0 ** -(1 + fraction_bits(dtype)), waiting)
    return _scaled(-log(waiting), loc, scale)


# -- discrete distributions ----------------------------------------------------------------------


@composite(
    oracle=lambda key, p, shape=None: (
        uniform_oracle(key, np.shape(p) if shape is None else shape) < p
    ),
    samples=lambda d: [
        Sample((sample_key(d), 0.3, (3, 4))),
        Sample((sample_key(d), d.rng.random((3, 4)).astype(np.float32))),
        Sample((sample_key(d), 0.0, 3)),
        Sample((sample_key(d), 1.0, 3)),
    ],
    errors=lambda d: [*key_errors(0.5)(d), Bad((sample_key(d), d.real(3), 2), {}, ShapeError, "")],
    namespace="random",
    differentiable=False,
)
def bernoulli(key: Any, p: Any, shape: Any = None, /) -> Any:
    """Booleans that are true with probability `p`; the shape defaults to that of `p`.

    >>> pb.random.bernoulli(pb.random.key(0), 0.5, 3)
    tensor([ True, False,  True], bool, cpu)
    """
    shape, dtype = _parameters("bernoulli", shape, None, p)
    return _uniform("bernoulli", key, shape, dtype) < p


def _numpy_randint(key: Any, shape: Any, low: int, high: int, *, dtype: Any = dt.int64) -> Any:
    drawn = bits_oracle(key, shape, dtype=dt.uint64).astype(object)
    span = high - low
    picked = drawn * span // 2**64 if span <= 2**32 else drawn % span
    return (picked + low).astype(dtype.numpy)


@composite(
    oracle=_numpy_randint,
    samples=lambda d: [
        Sample((sample_key(d), (3, 5), 0, 10)),
        Sample((sample_key(d), 8, -5, 6), {"dtype": dt.int8}),
        Sample((sample_key(d), 8, 0, 2**32)),
        Sample((sample_key(d), 8, -(2**62), 2**62)),
    ],
    errors=lambda d: [
        *key_errors(3, 0, 2)(d),
        Bad((sample_key(d), 3, 2, 2), {}, ShapeError, "low must be below high"),
        Bad((sample_key(d), 3, 0, 300), {"dtype": dt.int8}, DTypeError, "int8"),
        Bad((sample_key(d), 3, 0, 2), {"dtype": dt.float32}, DTypeError, "integer dtype"),
        Bad((sample_key(d), 3, 0.5, 2), {}, DTypeError, "must be integers"),
    ],
    namespace="random",
    differentiable=False,
)
def randint(key: Any, shape: Any, /, low: int, high: int, *, dtype: Any = dt.int64) -> Any:
    """Random integers in [low, high), each with the same probability to within 2**-32 of it.

    >>> pb.random.randint(pb.random.key(0), 4, 0, 10)
    tensor([3, 9, 0, 7], int64, cpu)
    """
    dtype = as_dtype(dtype, "randint")
    if not dtype.is_integer:
        raise DTypeError(f"randint: expected an integer dtype, got {dtype.name}.")
    for n in (low, high):
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise DTypeError(f"randint: low and high must be integers, got {n!r}.")
    low, high = int(low), int(high)
    if low >= high:
        raise ShapeError(f"randint: low must be below high, got {low} and {high}.")
    info = np.iinfo(dtype.numpy)
    if low < info.min or high - 1 > info.max:
        raise DTypeError(f"randint: [{low}, {high}) does not fit {dtype.name}.")
    drawn = _bits("randint", key, shape_of(shape, "randint"))
    return _in_span(drawn, low, high - low, dtype)


def _in_span(drawn: Any, low: int, span: int, dtype: DType) -> Any:
    """64 random bits scaled to [low, low + span)."""
    if span <= 2**32:  # the high word of the 96-bit product drawn * span
        picked = ((drawn >> 32) * span + ((drawn & 0xFFFFFFFF) * span >> 32)) >> 32
    else:
        picked = drawn % span if span < 2**64 else drawn
    return astype(astype(picked, dt.int64) + low if dtype is not dt.uint64 else picked + low, dtype)


def _numpy_permutation(key: Any, x: Any) -> Any:
    n = x if isinstance(x, int) else x.shape[0]
    order = np.argsort(bits_oracle(key, n, dtype=dt.uint64), kind="stable")
    return order if isinstance(x, int) else x[order]


@composite(
    oracle=_numpy_permutation,
    samples=lambda d: [
        Sample((sample_key(d), 7)),
        Sample((sample_key(d), d.real(5, 2))),
        Sample((sample_key(d), 0)),
    ],
    errors=lambda d: [
        *key_errors(3)(d),
        Bad((sample_key(d), d.real()), {}, ShapeError, "at least one dimension"),
    ],
    namespace="random",
)
def permutation(key: Any, x: Any, /) -> Any:
    """The integers below `x` in random order, or the rows of the array `x`.

    >>> pb.random.permutation(pb.random.key(0), 4)
    tensor([2, 0, 3, 1], int64, cpu)
    """
    if isinstance(x, (int, np.integer)):
        return argsort(_bits("permutation", key, shape_of(x, "permutation")))
    x = as_array(x, "permutation")
    if x._aval.ndim == 0:
        raise ShapeError("permutation: an array needs at least one dimension, got a 0-d array.")
    return take(x, argsort(_bits("permutation", key, x._aval.shape[:1])), axis=0)


def _numpy_choice(key: Any, x: Any, shape: Any = (), *, replace: bool = True, p: Any = None) -> Any:
    pool = np.arange(x) if isinstance(x, int) else x
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    n, size = len(pool), int(np.prod(shape))
    if replace and p is None:
        at = _numpy_randint(key, shape, 0, n)
    elif replace:
        ends = np.cumsum(p)
        at = np.searchsorted(
            ends, uniform_oracle(key, shape, dtype=as_dtype(p.dtype)) * ends[-1], "right"
        )
        at = np.minimum(at, n - 1)
    elif p is None:
        at = _numpy_permutation(key, n)[:size].reshape(shape)
    else:
        scores = np.log(p) + _numpy_gumbel(key, n, dtype=as_dtype(p.dtype))
        at = np.argsort(-scores, kind="stable")[:size].reshape(shape)
    return pool[at]


@composite(
    oracle=_numpy_choice,
    samples=lambda d: [
        Sample((sample_key(d), 7, (2, 3))),
        Sample((sample_key(d), d.real(5, 2), 4)),
        Sample((sample_key(d), 7, 5), {"replace": False}),
        Sample((sample_key(d), 4, 9), {"p": np.asarray([0.1, 0.2, 0.0, 0.7])}),
        Sample((sample_key(d), 4, 3), {"p": np.asarray([0.1, 0.2, 0.3, 0.4]), "replace": False}),
    ],
    errors=lambda d: [
        *key_errors(3)(d),
        Bad((sample_key(d), 3, 4), {"replace": False}, ShapeError, "without replacement"),
        Bad((sample_key(d), 3, 4), {"p": d.positive(2)}, ShapeError, "one probability"),
        Bad((sample_key(d), 0, 4), {}, ShapeError, "nothing to choose from"),
    ],
    namespace="random",
)
def choice(key: Any, x: Any, shape: Any = (), /, *, replace: bool = True, p: Any = None) -> Any:
    """Elements of `x` (or integers below it) chosen at random, along axis 0, with weights `p`.

    >>> pb.random.choice(pb.random.key(0), 10, 3)
    tensor([3, 9, 0], int64, cpu)
    """
    pool = None if isinstance(x, (int, np.integer)) else as_array(x, "choice")
    n = int(x) if pool is None else pool._aval.shape[0]
    shape = shape_of(shape, "choice")
    if n == 0:
        raise ShapeError("choice: there is nothing to choose from, got 0 elements.")
    if not replace and size_of(shape) > n:
        raise ShapeError(
            f"choice: without replacement at most {n} elements can be chosen, got shape {shape}."
        )
    if p is not None:
        p = as_array(p, "choice")
        p = p if p._aval.dtype.is_float else astype(p, dt.default_float())
        if p._aval.shape != (n,):
            raise ShapeError(f"choice: p needs one probability for each of {n}, got {p._aval}.")
    at = _chosen(key, n, shape, replace, p)
    return at if pool is None else _take_rows(pool, at)


def _chosen(key: Any, n: int, shape: tuple[int, ...], replace: bool, p: Any) -> Any:
    """Positions below n."""
    if replace and p is None:
        return _in_span(_bits("choice", key, shape), 0, n, dt.int64)
    if replace:
        ends = cumsum(p)
        u = _uniform("choice", key, shape, p._aval.dtype) * ends[n - 1]
        return clip(searchsorted(ends, u, side="right"), 0, n - 1)
    if p is None:
        order = argsort(_bits("choice", key, (n,)))
    else:  # the largest of logits plus Gumbel noise are a draw without replacement
        scores = log(p) + gumbel(key, (n,), dtype=p._aval.dtype)
        order = argsort(scores, descending=True)
    return reshape(order[: size_of(shape)], shape)


def _take_rows(x: Any, at: Any) -> Any:
    """The rows of `x` at positions of any shape."""
    rows = take(x, reshape(at, (at._aval.size,)), axis=0)
    return reshape(rows, (*at._aval.shape, *x._aval.shape[1:]))
