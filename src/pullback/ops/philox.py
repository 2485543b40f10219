"""Random bits from a key and a counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011), and the uniform and normal numbers that are made of them.

Element i of a draw is a function of the key and of i alone, so it is the same on every runtime and
for any number of threads. Counter words: (i low, i high, 0, purpose); the purpose keeps draws,
splits and folds apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from math import prod as size_of
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval, Device
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import convert, mathfun, scalar
from pullback.ir.convert import as_array, shape_of
from pullback.ir.lowering import Elementwise
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Expr, cast, const
from pullback.ops.families import primitive
from pullback.ops.movement import reshape
from pullback.ops.plain_keys import elements

__all__ = ["bits", "child_keys", "philox", "unit_normal", "unit_uniform"]

# Philox4x32: the multipliers of a round, and the Weyl increments of the key (table 2 of the paper)
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10  # as the paper has it for safety: its tests pass from 7 rounds on
DRAW, SPLIT, FOLD, ATTENTION = range(4)  # purposes: the last word of a counter


# -- the generator -------------------------------------------------------------------------------


def philox_block(counter: Sequence[Expr], words: Sequence[Expr]) -> tuple[Expr, Expr, Expr, Expr]:
    """The four uint32 words that belong to four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = words
    for step in range(ROUNDS):
        if step:
            k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
        p0 = cast(c0, dt.uint64) * MULTIPLIERS[0]
        p1 = cast(c2, dt.uint64) * MULTIPLIERS[1]
        high0, low0 = cast(p0 >> 32, dt.uint32), cast(p0, dt.uint32)
        high1, low1 = cast(p1 >> 32, dt.uint32), cast(p1, dt.uint32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def numpy_philox(counter: Sequence[Any], words: Sequence[Any]) -> list[np.ndarray]:
    """The same in NumPy, from the paper's description, with Python's wide integers."""
    shape = np.broadcast_shapes(*[np.shape(c) for c in (*counter, *words)])
    wide = [np.broadcast_to(np.asarray(c), shape).astype(object) for c in (*counter, *words)]
    left0, right0, left1, right1, key0, key1 = wide
    for _ in range(10):
        product0, product1 = left0 * 0xD2511F53, left1 * 0xCD9E8D57
        left0, right0, left1, right1 = (
            (product1 // 2**32) ^ right0 ^ key0,
            product1 % 2**32,
            (product0 // 2**32) ^ right1 ^ key1,
            product0 % 2**32,
        )
        key0, key1 = (key0 + 0x9E3779B9) % 2**32, (key1 + 0xBB67AE85) % 2**32
    return [np.asarray(w).astype(np.uint32) for w in (left0, right0, left1, right1)]


def _word_samples(d: Draw) -> list[Sample]:
    def words(*numbers: int) -> tuple:
        return tuple(np.asarray(n, dtype=np.uint32) for n in numbers)

    full = 0xFFFFFFFF
    known = [
        words(0, 0, 0, 0, 0, 0),
        words(full, full, full, full, full, full),
        words(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0),
    ]
    grid = tuple(d.integers(5, high=2**32, dtype=np.uint32) for _ in range(6))
    return [*[Sample((*k, word)) for k in known for word in range(4)], Sample((*grid, 2))]


@primitive(
    "c0 c1 c2 c3 k0 k1",
    infer=lambda *avals, word: (np.broadcast_shapes(*[a.shape for a in avals]), dt.uint32),
    lowering=Elementwise(
        lambda c0, c1, c2, c3, k0, k1, word: philox_block((c0, c1, c2, c3), (k0, k1))[word]
    ),
    batch="elementwise",
    no_gradient="random bits are integers",
    oracle=lambda c0, c1, c2, c3, k0, k1, word: numpy_philox((c0, c1, c2, c3), (k0, k1))[word],
    samples=_word_samples,
    errors=lambda d: [
        Bad((*[np.zeros(2, np.uint32)] * 6, 4), {}, ShapeError, "word is 0, 1, 2 or 3"),
        Bad((*[np.zeros(2)] * 6, 0), {}, DTypeError, "uint32"),
    ],
    namespace="primitive",
)
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, /, word: int) -> Any:
    """One of the four words of Philox4x32-10 for a counter and a key, elementwise.

    >>> pb.primitive.philox(*[pb.tensor(0, dtype=pb.uint32)] * 6, 0)
    tensor(1713891541, uint32, cpu)
    """
    operands = [as_array(x, "philox") for x in (c0, c1, c2, c3, k0, k1)]
    for x in operands:
        if x._aval.dtype is not dt.uint32:
            raise DTypeError(f"philox: counters and keys are uint32, got {x._aval.dtype.name}.")
    if word not in (0, 1, 2, 3):
        raise ShapeError(f"philox: word is 0, 1, 2 or 3, got {word!r}.")
    return bind(philox.op, *operands, word=int(word))


def _draw(k0: Expr, k1: Expr, shape: tuple[int, ...], rows: bool) -> tuple[Expr, ...]:
    """The words of the element being computed; with `rows` there are many draws, each counts from
    0.
    """
    i, zero = scalar.index(), const(0, dt.uint32)
    i = scalar.rem(i, size_of(shape)) if rows else i
    low, high = cast(i, dt.uint32), cast(i >> 32, dt.uint32)
    return philox_block((low, high, zero, const(DRAW, dt.uint32)), (k0, k1))


def _numpy_draw(key: Any, shape: Any) -> list[np.ndarray]:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    i = np.arange(size_of(shape), dtype=np.uint64).reshape(shape)
    return numpy_philox((i % 2**32, i // 2**32, 0, 0), (key[0], key[1]))


# -- draws ---------------------------------------------------------------------------------------


def key_words(name: str, key: Any) -> tuple[Any, Any]:
    """The two words of a key as 0-d arrays."""
    key = as_array(key, name)
    if key._aval.dtype is not dt.uint32 or key._aval.shape != (2,):
        raise DTypeError(
            f"{name}: a key is a uint32 array of shape (2,), got {key._aval}."
            " Make one with key(seed)."
        )
    first, second = elements(key)
    return first, second


def sample_key(d: Draw) -> np.ndarray:
    return d.integers(2, high=2**32, dtype=np.uint32)


def key_errors(*args: Any, **kwargs: Any) -> Any:
    return lambda d: [Bad((np.zeros(3, np.uint32), *args), kwargs, DTypeError, "a key is")]


def _bits_body(k0: Expr, k1: Expr, shape: tuple[int, ...], dtype: DType, rows: bool) -> Expr:
    w0, w1, _, _ = _draw(k0, k1, shape, rows)
    return w0 if dtype is dt.uint32 else _joined(w0, w1)


def drawn(function: Any, k0: Any, k1: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """One draw: `function` is that of its kind."""
    return bind(function.op, k0, k1, shape=shape, dtype=dtype, rows=False)


def _joined(high: Expr, low: Expr) -> Expr:
    return cast(low, dt.uint64) | (cast(high, dt.uint64) << 32)


def _shape_with_rows(words: Sequence[Aval], shape: tuple[int, ...], rows: bool) -> tuple[int, ...]:
    lead = np.broadcast_shapes(*[w.shape for w in words])
    return (*lead[: len(lead) - len(shape)], *shape) if rows else shape


def _words_of_rows(words: Sequence[Any], shape: tuple[int, ...], rows: bool) -> list[Any]:
    """The words of many keys, which end in an axis of size 1 for each of a draw."""
    axes = () if rows else (1,) * len(shape)
    return [bind(reshape.op, w, shape=w._aval.shape + axes) for w in words]


def _drawn_infer(k0: Aval, k1: Aval, shape: tuple[int, ...], dtype: DType, rows: bool) -> tuple:
    return _shape_with_rows((k0, k1), shape, rows), dtype


def _drawn_batch(
    op: Any, k0: Any, k1: Any, shape: tuple[int, ...], dtype: DType, rows: bool
) -> Any:
    """One draw for each of many keys."""
    words = _words_of_rows((k0, k1), shape, rows)
    return bind(op, *words, shape=shape, dtype=dtype, rows=True)


def _child_infer(
    k0: Aval, k1: Aval, low: Aval, high: Aval, shape: tuple[int, ...], purpose: int, rows: bool
) -> tuple:
    return _shape_with_rows((k0, k1, low, high), shape, rows), dt.uint32


def _child_body(
    k0: Expr, k1: Expr, low: Expr, high: Expr, shape: tuple[int, ...], purpose: int, rows: bool
) -> Expr:
    """The words of a key lie side by side, and counters go on from one key to the next."""
    i, zero = scalar.index(), const(0, dt.uint32)
    i = scalar.rem(i, size_of(shape)) if rows else i
    low = low + cast(i >> 1, dt.uint32)
    w0, w1, _, _ = philox_block((low, high, zero, const(purpose, dt.uint32)), (k0, k1))
    return scalar.select((i & 1) == 0, w0, w1)


def _child_batch(
    k0: Any,
    k1: Any,
    low: Any,
    high: Any,
    shape: tuple[int, ...],
    purpose: int,
    rows: bool,
    op: Any,
) -> Any:
    words = _words_of_rows((k0, k1, low, high), shape, rows)
    return bind(op, *words, shape=shape, purpose=purpose, rows=True)


def numpy_children(key: Any, i: Any, purpose: int) -> np.ndarray:
    i = np.asarray(i).astype(object)
    return np.stack(numpy_philox((i % 2**32, i // 2**32 % 2**32, 0, purpose), key)[:2], axis=-1)


@primitive(
    "k0 k1 low high",
    infer=_child_infer,
    lowering=Elementwise(_child_body),
    batch=_child_batch,
    no_gradient="random bits are integers",
    oracle=lambda key, start, shape, purpose: numpy_children(
        key, start + np.arange(size_of(shape[:-1])), purpose
    ).reshape(shape),
    samples=lambda d: [
        Sample((sample_key(d), 0, (3, 2), SPLIT)),
        Sample((sample_key(d), 2**40 + 5, (2,), FOLD)),
        Sample((sample_key(d), 7, (0, 2), FOLD)),
    ],
    errors=lambda d: [
        *key_errors(0, (2,), FOLD)(d),
        Bad((sample_key(d), 0, (3,), FOLD), {}, ShapeError, "two words"),
    ],
    namespace="primitive",
)
def child_keys(key: Any, start: Any, shape: Any, purpose: int, /) -> Any:
    """The keys of so many counters from `start` on; the last axis of `shape` has their two words.

    >>> pb.primitive.child_keys(pb.random.key(0), 0, (3, 2), 1).shape
    (3, 2)
    """
    k0, k1 = key_words("child_keys", key)
    shape = shape_of(shape, "child_keys")
    if shape[-1:] != (2,):
        raise ShapeError(f"child_keys: keys have two words, in the last axis, got shape {shape}.")
    return children(k0, k1, *counter_words(start, k0._aval.device), shape, purpose)


def children(k0: Any, k1: Any, low: Any, high: Any, shape: tuple[int, ...], purpose: int) -> Any:
    """See `child_keys`."""
    return bind(child_keys.op, k0, k1, low, high, shape=shape, purpose=purpose, rows=False)


def counter_words(number: int, dev: Device) -> tuple[Any, Any]:
    """The low and the high word of a counter, which wraps at 64 bits."""
    low, high = number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF
    # What is new each time is not worth keeping.
    make = convert.fresh_scalar if low and low.__class__ is int else convert.scalar
    return make(low, dt.uint32, dev), convert.scalar(high, dt.uint32, dev)


def _numpy_joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return high.astype(np.uint64) * np.uint64(2**32) + low


def bits_oracle(key: Any, shape: Any = (), *, dtype: Any = dt.uint32) -> np.ndarray:
    w0, w1, _, _ = _numpy_draw(key, shape)
    return w0 if dtype is dt.uint32 else _numpy_joined(w0, w1)


@primitive(
    "k0 k1",
    infer=_drawn_infer,
    lowering=Elementwise(_bits_body),
    batch=_drawn_batch,
    no_gradient="random bits are integers",
    oracle=bits_oracle,
    samples=lambda d: [
        Sample((sample_key(d), (3, 5))),
        Sample((sample_key(d), 4), {"dtype": dt.uint64}),
        Sample((sample_key(d),)),
        Sample((sample_key(d), (0, 2))),
    ],
    errors=lambda d: [
        *key_errors(3)(d),
        Bad((sample_key(d), 3), {"dtype": dt.int8}, DTypeError, "uint32 or uint64"),
    ],
    namespace="random",
)
def bits(key: Any, shape: Any = (), /, *, dtype: Any = dt.uint32) -> Any:
    """Random bits, as uint32 or uint64.

    >>> pb.random.bits(pb.random.key(0), 2)
    tensor([1713891541, 4175744164], uint32, cpu)
    """
    k0, k1 = key_words("bits", key)
    dtype = as_dtype(dtype, "bits")
    if dtype not in (dt.uint32, dt.uint64):
        raise DTypeError(f"bits: the dtype is uint32 or uint64, got {dtype.name}.")
    return drawn(bits, k0, k1, shape_of(shape, "bits"), dtype)


def fraction_bits(dtype: DType) -> int:
    """How many random bits a number in [0, 1) has: as its significand, so 1 is not reached."""
    return {"float16": 11, "bfloat16": 8, "float32": 24}.get(dtype.name, 53)


def _unit_body(k0: Expr, k1: Expr, shape: tuple[int, ...], dtype: DType, rows: bool) -> Expr:
    w0, w1, _, _ = _draw(k0, k1, shape, rows)
    return _fraction(w0, w1, dtype)


def _fraction(high: Expr, low: Expr, dtype: DType) -> Expr:
    """A multiple of 2**-n in [0, 1): the leading bits are the same in every dtype."""
    n = fraction_bits(dtype)
    if dtype is dt.float64:
        return cast(_joined(high, low) >> (64 - n), dt.float64) * 2.0**-n
    return cast(high >> (32 - n), dt.float32) * 2.0**-n


def _numpy_fraction(high: Any, low: Any, dtype: DType) -> np.ndarray:
    if dtype is dt.float64:
        return (_numpy_joined(high, low) >> np.uint64(11)) / 2.0**53
    n = fraction_bits(dtype)
    return (high // np.uint32(2 ** (32 - n))).astype(np.float32) / np.float32(2**n)


def uniform_oracle(key: Any, shape: Any = (), *, dtype: Any = None) -> np.ndarray:
    dtype = dtype or default_float()
    w0, w1, _, _ = _numpy_draw(key, shape)
    return _numpy_fraction(w0, w1, dtype).astype(dtype.numpy)


def float_samples(d: Draw) -> list[Sample]:
    dtypes = (dt.float16, dt.bfloat16, dt.float32, dt.float64)
    return [Sample((sample_key(d), (3, 5)), {"dtype": t}) for t in dtypes] + [
        Sample((sample_key(d),)),
        Sample((sample_key(d), 0)),
    ]


def float_errors(d: Draw) -> list[Bad]:
    return [
        *key_errors(3)(d),
        Bad((sample_key(d), 3), {"dtype": dt.int8}, DTypeError, "floating"),
        Bad((sample_key(d), -3), {}, ShapeError, "negative"),
    ]


def float_dtype(name: str, dtype: Any) -> DType:
    dtype = default_float() if dtype is None else as_dtype(dtype, name)
    if not dtype.is_float:
        raise DTypeError(f"{name}: expected a floating dtype, got {dtype.name}.")
    return dtype


@primitive(
    "k0 k1",
    infer=_drawn_infer,
    lowering=Elementwise(_unit_body),
    batch=_drawn_batch,
    no_gradient="the key is made of integers",
    oracle=uniform_oracle,
    samples=float_samples,
    errors=float_errors,
    namespace="primitive",
)
def unit_uniform(key: Any, shape: Any = (), /, *, dtype: Any = None) -> Any:
    """Uniform random numbers in [0, 1).

    >>> pb.primitive.unit_uniform(pb.random.key(0), 2).shape
    (2,)
    """
    k0, k1 = key_words("unit_uniform", key)
    dtype = float_dtype("unit_uniform", dtype)
    return drawn(unit_uniform, k0, k1, shape_of(shape, "unit_uniform"), dtype)


def _normal_body(k0: Expr, k1: Expr, shape: tuple[int, ...], dtype: DType, rows: bool) -> Expr:
    """Box and Muller's transform; the radius has more bits than the angle, to reach the tails."""
    w0, w1, w2, w3 = _draw(k0, k1, shape, rows)
    if dtype is dt.float64:
        radial = (cast(_joined(w0, w1) >> 11, dt.float64) + 1.0) * 2.0**-53
        angle = _fraction(w2, w3, dt.float64)
    else:
        radial = cast(w0, dt.float32) * 2.0**-32 + 2.0**-33
        angle = _fraction(w2, w3, dt.float32)
    radius = scalar.sqrt(mathfun.log(radial) * -2.0)
    return radius * mathfun.cos(angle * (2.0 * pi))


def normal_oracle(key: Any, shape: Any = (), *, dtype: Any = None) -> np.ndarray:
    dtype = dtype or default_float()
    w0, w1, w2, w3 = _numpy_draw(key, shape)
    if dtype is dt.float64:
        whole = _numpy_joined(w0, w1) >> np.uint64(11)
        radial, angle = (whole + 1.0) / 2.0**53, _numpy_fraction(w2, w3, dtype)
    else:
        radial = w0.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        angle = _numpy_fraction(w2, w3, dt.float32) * np.float32(2.0 * pi)
        return (np.sqrt(-2 * np.log(radial.astype(float))) * np.cos(angle.astype(float))).astype(
            dtype.numpy
        )
    return np.sqrt(-2 * np.log(radial)) * np.cos(2 * pi * angle)


@primitive(
    "k0 k1",
    infer=_drawn_infer,
    lowering=Elementwise(_normal_body),
    batch=_drawn_batch,
    no_gradient="the key is made of integers",
    oracle=normal_oracle,
    samples=float_samples,
    errors=float_errors,
    namespace="primitive",
)
def unit_normal(key: Any, shape: Any = (), /, *, dtype: Any = None) -> Any:
    """Normal random numbers with mean 0 and standard deviation 1.

    >>> pb.primitive.unit_normal(pb.random.key(0), 2).shape
    (2,)
    """
    k0, k1 = key_words("unit_normal", key)
    dtype = float_dtype("unit_normal", dtype)
    return drawn(unit_normal, k0, k1, shape_of(shape, "unit_normal"), dtype)
