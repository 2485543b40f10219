"""What the generated tests have in common: cases drawn from the registry, and the checks applied to
each.

Nothing here, and nothing in the tests that use it, names an operation.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
import pullback.linalg
import pullback.nn
from pullback.core import pytrees
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError
from pullback.ir.op import REGISTRY, Composite, Public
from pullback.ir.samples import Draw, Sample

FULL = os.environ.get("PULLBACK_FULL") == "1"
FLOATS = (pb.float64, pb.float32, pb.float16, pb.bfloat16)
COMPLEX = (pb.complex128, pb.complex64)


class Case(NamedTuple):
    """One operation on one sample drawn in one dtype."""

    key: str
    position: int
    dtype: DType

    @property
    def entry(self) -> Public:
        return REGISTRY[self.key]

    @property
    def sample(self) -> Sample:
        return samples(self.entry, self.dtype)[self.position]

    def __str__(self) -> str:
        return f"{self.key}-{self.position}-{self.dtype.name}"


def samples(entry: Public, dtype: DType) -> list[Sample]:
    """The samples of an operation, the same ones every time."""
    with np.errstate(all="ignore"):  # samples may hold infinities and NaN
        return entry.samples(Draw(zlib.crc32(entry.name.encode()), dtype.numpy))


def differentiable(entry: Public) -> bool:
    return bool(getattr(entry, "differentiable", True))


def accepts(entry: Public, dtype: DType) -> bool:
    """Whether an operation takes this dtype: by its record, or by trying its samples."""
    declared = getattr(entry, "accepts", None)
    if declared is not None:
        return dtype.kind in declared
    for sample in samples(entry, dtype):
        try:
            call(entry, sample)
        except (DTypeError, pb.GradientError):
            return False
    return True


def cases(
    dtypes: tuple[DType, ...], *, derivative: bool = False, compiled: bool = False
) -> list[Case]:
    """Every operation x sample x dtype; a fixed part of them unless FULL.

    Where each case is `compiled` anew, that part has one sample of an operation made of others.
    """
    found = []
    for key, entry in sorted(REGISTRY.items()):
        if derivative and not differentiable(entry):
            continue
        for dtype in dtypes:
            count = len(samples(entry, dtype))
            whole = dtype is dtypes[0] and not (compiled and isinstance(entry, Composite))
            chosen = range(count) if FULL or whole else range(min(count, 1))
            found += [Case(key, i, dtype) for i in chosen]
    return found


def tensors(tree: Any) -> Any:
    """The tree with NumPy arrays as tensors."""
    return pytrees.map_tree(lambda a: pb.tensor(a) if isinstance(a, np.ndarray) else a, tree)


def call(entry: Public, sample: Sample) -> Any:
    return entry.function(*tensors(sample.args), **tensors(sample.kwargs))


def called(case: Case, tracked: bool) -> tuple[list[Any], list[Any]]:
    """The arrays among the arguments of a sample, and the arrays of its result."""
    args, kwargs = tensors((case.sample.args, case.sample.kwargs))
    given = arrays_of((args, kwargs))
    for x in given:
        if tracked and x.dtype.is_inexact:
            x.requires_grad = True
    return given, arrays_of(case.entry.function(*args, **kwargs))


def contents(arrays: list[Any]) -> list[bytes]:
    return [np.array(x.detach().numpy()).tobytes() for x in arrays]


def arrays_of(tree: Any) -> list[Any]:
    """The tensors of a result: a tensor, a tuple or a list of them."""
    return [x for x in pytrees.leaves(tree) if isinstance(x, pb.Tensor)]


def read(tree: Any) -> None:
    """Read all arrays of a result: a device that runs behind raises its errors then."""
    for x in arrays_of(tree):
        x.numpy()


def oracle(entry: Public) -> Callable[..., Any]:
    if isinstance(entry.oracle, str):
        module, _, name = entry.oracle.rpartition(".")
        return getattr(importlib.import_module(module), name)
    return entry.oracle


def widened(tree: Any) -> Any:
    """Arrays of narrow floats as float64 (or complex128): the oracle then is exact beside the
    result.
    """

    def wide(a: Any) -> Any:
        if isinstance(a, np.ndarray) and a.dtype.kind not in "biu":
            return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
        return a

    return pytrees.map_tree(wide, tree)


def differentiable_leaves(sample: Sample) -> list[np.ndarray]:
    """The floating arrays among the arguments, in order."""
    leaves = pytrees.leaves((sample.args, sample.kwargs))
    return [a for a in leaves if (isinstance(a, np.ndarray) and a.dtype.kind in "fc") or is_bf16(a)]


def is_bf16(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.name == "bfloat16"


def function_of(entry: Public, sample: Sample) -> Callable[..., list[Any]]:
    """The operation as a function of its floating arrays alone, returning its floating outputs."""
    leaves, structure = pytrees.flatten((sample.args, sample.kwargs))

    def f(*xs: Any) -> list[Any]:
        rest = iter(xs)
        floating = [
            isinstance(a, np.ndarray) and (a.dtype.kind in "fc" or is_bf16(a)) for a in leaves
        ]
        full = [next(rest) if own else tensors(a) for a, own in zip(leaves, floating, strict=True)]
        args, kwargs = pytrees.unflatten(structure, full)
        outputs = determined(entry, pb, arrays_of(entry.function(*args, **kwargs)))
        return [o for o in outputs if o.dtype.is_inexact]

    return f


def function_of_arrays(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Callable[..., list[Any]], list[np.ndarray]]:
    """A call as a function of all its arrays, which returns the arrays of its result; and these."""
    leaves, structure = pytrees.flatten((args, kwargs))
    places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def f(*arrays: Any) -> list[Any]:
        full = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            full[i] = a
        own, named = pytrees.unflatten(structure, full)
        return arrays_of(function(*own, **named))

    return f, [leaves[i] for i in places]


def jitted(case: Case) -> list[Any]:
    """The result of an operation under `jit`."""
    f, arrays = function_of_arrays(case.entry.function, case.sample.args, case.sample.kwargs)
    return pb.jit(f)(*map(pb.tensor, arrays))


def directional(case: Case, order: int, compiled: bool, wide: DType = pb.float64) -> list[Any]:
    """Derivatives along a line, by a number of dtype `wide`; nothing where a sample has none."""
    if not differentiable(case.entry) or not case.sample.order:
        return []
    f = function_of(case.entry, case.sample)
    xs = [pb.tensor(a) for a in differentiable_leaves(case.sample)]
    if not xs or not f(*xs):
        return []
    phi = along_line(f, xs, wide=wide)
    for _ in range(min(order, case.sample.order)):
        phi = pb.grad(phi)
    return [(pb.jit(phi) if compiled else phi)(pb.tensor(0.0, dtype=wide))]


def derivative_case(case: Case) -> tuple[Callable[..., list[Any]], list[Any]]:
    """The operation as a function of its floating operands, and these; a test is skipped where
    there is nothing to differentiate.
    """
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    leaves = differentiable_leaves(case.sample)
    if not leaves or case.sample.order == 0:
        pytest.skip("no floating operand in this sample")
    f = function_of(case.entry, case.sample)
    xs = [pb.tensor(a) for a in leaves]
    if not f(*xs):
        pytest.skip("no floating output in this sample")
    return f, xs


def determined(entry: Public, namespace: Any, outputs: list[Any]) -> list[Any]:
    """The results, or what is determined of them."""
    return outputs if entry.determined is None else entry.determined(namespace, outputs)


def weights(outputs: list[Any], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    result = []
    for o in outputs:
        w = rng.uniform(0.5, 1.5, o.shape) * rng.choice((-1.0, 1.0), o.shape)
        if o.dtype.is_complex:
            w = w + 1j * rng.uniform(0.5, 1.5, o.shape)
        result.append(pb.tensor(w, dtype=o.dtype))
    return result


def along_line(
    f: Callable[..., list[Any]],
    xs: list[Any],
    order: int = 3,
    seed: int = 0,
    wide: DType = pb.float64,
) -> Callable[[Any], Any]:
    """`phi(t) = Re <w, y + y*y/4>` of `y = f(x + t v)` for fixed random v and w.

    The square makes the cotangent of `f` depend on t, so that a rule which detaches it is found. It
    is left out where only the first derivative is asked for: there may be a kink, across which
    central differences are exact for piecewise linear functions only.
    """
    vs = weights(xs, seed)
    ws = weights(f(*xs), seed + 1)

    def phi(t: Any) -> Any:
        moved = [x + pb.astype(t, x.dtype) * v for x, v in zip(xs, vs, strict=True)]
        total = pb.zeros((), dtype=wide)
        for w, out in zip(ws, f(*moved), strict=True):
            product = w * (out + out * out * 0.25) if order > 1 else w * out
            product = pb.real(product) if product.dtype.is_complex else product
            total = total + pb.astype(product.sum(), wide)
        return total

    return phi


def slope(f: Callable[[Any], Any], h: float) -> float:
    """The derivative of a scalar function at 0, by central differences of sixth order."""
    coefficients = {1: 45.0, 2: -9.0, 3: 1.0}
    total = 0.0
    for n, c in coefficients.items():
        up = f(pb.tensor(n * h, dtype="float64")).item()
        down = f(pb.tensor(-n * h, dtype="float64")).item()
        total += c * (up - down)
    return total / (60.0 * h)


def derivatives(phi: Callable[[Any], Any], order: int) -> Iterator[tuple[int, float, float]]:
    """For k = 1 .. order: the k-th derivative at 0, and finite differences of the one before it."""
    before = phi
    zero = pb.tensor(0.0, dtype="float64")
    for k in range(1, order + 1):
        after = pb.grad(before)
        yield k, after(zero).item(), slope(before, 2e-3)
        before = after
