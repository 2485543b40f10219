"""The Schur form, and equations for matrices that are solved by it; systems of a special form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.errors import DTypeError, GradientError, LinAlgError, ShapeError
from pullback.ir.convert import as_array, is_number
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    regular,
    right_sides,
    square,
    square_errors,
    swapped,
    together,
    zero_rule,
)
from pullback.linalg.general import complex_of
from pullback.linalg.lu import factor, solved
from pullback.ops.families import broadcast_shapes, composite, primitive
from pullback.ops.indexing import take
from pullback.ops.movement import broadcast_to, concat, repeated, reshape
from pullback.ops.parts import astype, cc
from pullback.ops.products import matmul
from pullback.ops.promotion import same_dtype
from pullback.ops.ranges import positions
from pullback.ops.selection import where

__all__ = [
    "hankel",
    "schur",
    "solve_banded",
    "solve_lyapunov",
    "solve_sylvester",
    "solve_toeplitz",
    "toeplitz",
    "vander",
]


class SchurResult(NamedTuple):
    """The triangle (of a real matrix with blocks of two), and the unitary factor."""

    T: Any
    Z: Any


def packed_schur(x: Any) -> Any:
    """T^T, then Z^T, one below the other."""
    return bind(schur.op, detached(x))


def _schur_oracle(x: Any, *, output: str = "real") -> tuple:
    import scipy.linalg

    return scipy.linalg.schur(x, output=output)


def _schur_determined(xp: Any, outs: list) -> list:
    t, z = outs
    return [xp.matmul(xp.matmul(z, t), xp.conj(xp.swapaxes(z, -1, -2))), xp.tril(t, k=-2)]


def _refused(g: Any) -> Any:
    raise GradientError(
        "schur: there is no derivative rule. Differentiate what is made of it: eigvals,"
        " solve_sylvester, sqrtm or logm."
    )


@primitive(
    "x",
    infer=lambda x: ((*x.shape[:-2], 2 * x.shape[-1], x.shape[-1]), x.dtype),
    lowering=Intrinsic("schur", raises=True, work=matrix_work),
    vjp={"x": _refused},
    jvp="transpose",
    batch="rows",
    oracle=_schur_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3),), order=0),
        Sample((regular(d, 3, 3),), {"output": "complex"}, order=0),
    ],
    errors=lambda d: [
        *square_errors(d),
        Bad((d.real(2, 2),), {"output": "both"}, DTypeError, "output is 'real' or 'complex'"),
    ],
    namespace="linalg",
    tolerance=64,
    determined=_schur_determined,
)
def schur(x: Any, /, *, output: str = "real") -> SchurResult:
    """The factors of `x = Z @ T @ Z.mH`: an upper triangle with the eigenvalues on its diagonal,
    and a unitary matrix.

    Of a real matrix T has blocks of two on its diagonal for conjugate pairs, or is complex with
    `output` "complex". It can't be differentiated.

    >>> pb.linalg.schur(pb.tensor([[1.0, 2.0], [0.0, 3.0]])).T
    tensor([[1., 2.],
            [0., 3.]], float32, cpu)
    """
    if output not in ("real", "complex"):
        raise DTypeError(f"schur: output is 'real' or 'complex', got {output!r}.")
    x = square("schur", x)
    if output == "complex":
        x = astype(x, complex_of(x._aval.dtype))
    n = x._aval.shape[-1]
    both = bind(schur.op, x)
    return SchurResult(swapped(both[..., :n, :]), swapped(both[..., n:, :]))


# -- Sylvester and Lyapunov ----------------------------------------------------------------------


def sylvester(
    a: Any, b: Any, q: Any, fa: Any, fb: Any, adjoint: bool = False, caller: str = ""
) -> Any:
    """X with A X + X B = Q, or with the adjoints of A and B, by their packed Schur forms."""
    return bind(solve_sylvester.op, a, b, q, fa, fb, adjoint=adjoint, caller=caller)


def _vjp_a(g: Any, a: Any, b: Any, fa: Any, fb: Any, out: Any, adjoint: bool, caller: str) -> Any:
    gq = sylvester(a, b, g, fa, fb, not adjoint, caller)
    return -(matmul(out, turned(gq)) if adjoint else matmul(gq, turned(out)))


def _vjp_b(g: Any, a: Any, b: Any, fa: Any, fb: Any, out: Any, adjoint: bool, caller: str) -> Any:
    gq = sylvester(a, b, g, fa, fb, not adjoint, caller)
    return -(matmul(turned(gq), out) if adjoint else matmul(turned(out), gq))


def _jvp_a(t: Any, a: Any, b: Any, fa: Any, fb: Any, out: Any, adjoint: bool, caller: str) -> Any:
    moved = matmul(turned(t) if adjoint else t, out)
    return -sylvester(a, b, moved, fa, fb, adjoint, caller)


def _jvp_b(t: Any, a: Any, b: Any, fa: Any, fb: Any, out: Any, adjoint: bool, caller: str) -> Any:
    moved = matmul(out, turned(t) if adjoint else t)
    return -sylvester(a, b, moved, fa, fb, adjoint, caller)


def _sylvester_batch(
    op: Any, a: Any, b: Any, q: Any, fa: Any, fb: Any, adjoint: bool, caller: str, examples: int
) -> Any:
    operands = [repeated(x, examples) for x in (a, b, q, fa, fb)]
    return bind(op, *operands, adjoint=adjoint, caller=caller)


turned = adjoint  # the rules have a parameter of that name


def _sylvester_oracle(a: Any, b: Any, q: Any) -> Any:
    import scipy.linalg

    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], q.shape[:-2])
    a, b, q = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, q))
    found = [scipy.linalg.solve_sylvester(a[i], b[i], q[i]) for i in np.ndindex(batch)]
    return np.reshape(found, q.shape)


def _sylvester_arguments(name: str, a: Any, b: Any, q: Any) -> list[Any]:
    a, b, q = together(name, square(name, a), square(name, b), q)
    sizes = (a._aval.shape[-1], b._aval.shape[-1])
    if q._aval.ndim < 2 or q._aval.shape[-2:] != sizes:
        raise ShapeError(
            f"{name}: the right-hand side is a matrix of shape {sizes}, got {q._aval.shape}."
        )
    batch = broadcast_shapes(name, *[x._aval.shape[:-2] for x in (a, b, q)])
    return [broadcast_to(x, (*batch, *x._aval.shape[-2:])) for x in (a, b, q)]


@primitive(
    "a b q fa fb",
    infer=lambda a, b, q, fa, fb, adjoint, caller: (q.shape, q.dtype),
    lowering=Intrinsic("sylvester", raises=True, work=matrix_work),
    vjp={
        "a": _vjp_a,
        "b": _vjp_b,
        "q": lambda g, a, b, fa, fb, adjoint, caller: sylvester(
            a, b, g, fa, fb, not adjoint, caller
        ),
        "fa": zero_rule,
        "fb": zero_rule,
    },
    jvp={
        "a": _jvp_a,
        "b": _jvp_b,
        "q": lambda t, a, b, fa, fb, adjoint, caller: sylvester(a, b, t, fa, fb, adjoint, caller),
    },
    batch=_sylvester_batch,
    oracle=_sylvester_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3), regular(d, 2, 2), d.real(3, 2))),
        Sample((regular(d, 2, 1, 3, 3), regular(d, 2, 2), d.real(2, 3, 2))),
    ],
    errors=lambda d: [
        *[
            Bad((*bad.args, np.eye(2), d.real(2, 2)), {}, bad.error, bad.match)
            for bad in square_errors(d)
        ],
        Bad((d.real(2, 2), d.real(3, 3), d.real(3, 2)), {}, ShapeError, "of shape (2, 3)"),
        Bad((np.eye(2), -np.eye(2), d.real(2, 2)), {}, LinAlgError, "no solution"),
    ],
    namespace="linalg",
    tolerance=64,
)
def solve_sylvester(a: Any, b: Any, q: Any, /) -> Any:
    """The solution of `a @ x + x @ b = q`.

    >>> a = pb.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> pb.linalg.solve_sylvester(a, a, pb.tensor([[2.0, 3.0], [3.0, 4.0]]))
    tensor([[1., 1.],
            [1., 1.]], float32, cpu)
    """
    a, b, q = _sylvester_arguments("solve_sylvester", a, b, q)
    return sylvester(a, b, q, packed_schur(a), packed_schur(b), caller="solve_sylvester")


@composite(
    oracle=lambda a, q: _sylvester_oracle(a, np.conj(np.swapaxes(a, -1, -2)), q),
    samples=lambda d: [
        Sample((regular(d, 3, 3), d.real(3, 3))),
        Sample((regular(d, 2, 2, 2), d.real(2, 2))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 2), d.real(2, 3)), {}, ShapeError, "of shape (2, 2)"),
        Bad((np.zeros((2, 2)), d.real(2, 2)), {}, LinAlgError, "no solution"),
    ],
    namespace="linalg",
    tolerance=64,
)
def solve_lyapunov(a: Any, q: Any, /) -> Any:
    """The solution of `a @ x + x @ a.mH = q`.

    >>> pb.linalg.solve_lyapunov(pb.tensor([[1.0]]), pb.tensor([[4.0]]))
    tensor([[2.]], float32, cpu)
    """
    b = adjoint(square("solve_lyapunov", a))
    a, b, q = _sylvester_arguments("solve_lyapunov", a, b, q)
    return sylvester(a, b, q, packed_schur(a), packed_schur(b), caller="solve_lyapunov")


# -- matrices of a special form ------------------------------------------------------------------


def _diagonals(values: Any, m: int, n: int, sign: int) -> Any:
    """The m x n matrix whose element (i, j) is number `i + sign j`, from the least on."""
    dev = values._aval.device
    first = 0 if sign > 0 else n - 1
    index = reshape(positions(m, dev), (m, 1)) + positions(n, dev) * sign + first
    flat = take(values, reshape(index, (m * n,)), axis=-1)
    return reshape(flat, (*values._aval.shape[:-1], m, n))


def _vectors(name: str, *xs: Any) -> list[Any]:
    arrays = same_dtype(name, *xs)
    for x in arrays:
        if x._aval.ndim < 1 or x._aval.shape[-1] == 0:
            raise ShapeError(f"{name}: takes vectors with elements, got shape {x._aval.shape}.")
    batch = broadcast_shapes(name, *[x._aval.shape[:-1] for x in arrays])
    return [broadcast_to(x, (*batch, x._aval.shape[-1])) for x in arrays]


def _vector_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(),), {}, ShapeError, "vectors with elements"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


def _special_oracle(name: str) -> Any:
    def call(*args: Any) -> Any:
        import scipy.linalg

        return getattr(scipy.linalg, name)(*args)

    return call


def _special_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3),)),
        Sample((d.real(3), d.real(4))),
        Sample((d.integers(2), d.integers(2))),
    ]


@composite(
    oracle=_special_oracle("toeplitz"),
    samples=_special_samples,
    errors=_vector_errors,
    namespace="linalg",
)
def toeplitz(c: Any, r: Any = None, /) -> Any:
    """The matrices with constant diagonals that have the first column `c` and the first row `r`,
    whose first element is not looked at; `r` is by default the conjugate of `c`.

    >>> pb.linalg.toeplitz(pb.tensor([1, 2]), pb.tensor([1, 3, 4]))
    tensor([[1, 3, 4],
            [2, 1, 3]], int64, cpu)
    """
    c = as_array(c, "toeplitz")
    c, r = _vectors("toeplitz", c, cc(c) if r is None else r)
    m, n = c._aval.shape[-1], r._aval.shape[-1]
    values = concat([r[..., 1:][..., ::-1], c], axis=-1)
    return _diagonals(values, m, n, -1)


@composite(
    oracle=_special_oracle("hankel"),
    samples=_special_samples,
    errors=_vector_errors,
    namespace="linalg",
)
def hankel(c: Any, r: Any = None, /) -> Any:
    """The matrices with constant antidiagonals that have the first column `c` and the last row `r`,
    whose first element is not looked at; `r` is by default zeros.

    >>> pb.linalg.hankel(pb.tensor([1, 2]), pb.tensor([2, 3, 4]))
    tensor([[1, 2, 3],
            [2, 3, 4]], int64, cpu)
    """
    c = as_array(c, "hankel")
    c, r = _vectors("hankel", c, c * 0 if r is None else r)
    m, n = c._aval.shape[-1], r._aval.shape[-1]
    return _diagonals(concat([c, r[..., 1:]], axis=-1), m, n, 1)


@composite(
    oracle=lambda x, n=None, *, increasing=False: np.vander(x, n, increasing=increasing),
    samples=lambda d: [
        Sample((d.real(3),)),
        Sample((d.real(3), 2), {"increasing": True}),
        Sample((d.integers(2), 4)),
        Sample((d.real(2), 0)),
    ],
    errors=lambda d: [
        *_vector_errors(d),
        Bad((d.real(2), -1), {}, ShapeError, "not negative"),
    ],
    namespace="linalg",
    tolerance=4,
)
def vander(x: Any, n: int | None = None, /, *, increasing: bool = False) -> Any:
    """The matrices whose columns are the powers of vectors, the highest first unless `increasing`;
    there are `n` of them, by default as many as elements.

    >>> pb.linalg.vander(pb.tensor([2, 3]), 3)
    tensor([[4, 2, 1],
            [9, 3, 1]], int64, cpu)
    """
    (x,) = _vectors("vander", x)
    count = x._aval.shape[-1] if n is None else int(n)
    if count < 0:
        raise ShapeError(f"vander: the number of columns is not negative, got {n}.")
    column = reshape(x, (*x._aval.shape, 1))
    columns = [column * 0 + 1] if count else [column[..., :0]]
    while len(columns) < count:
        columns.append(columns[-1] * column)
    return concat(columns if increasing else columns[::-1], axis=-1)


@composite(
    oracle=lambda c, b: _special_oracle("solve")(_special_oracle("toeplitz")(c), b),
    samples=lambda d: [
        Sample((np.asarray([4, 1, 0.5], d.dtype), d.real(3))),
        Sample((np.asarray([4, 1, 0.5], d.dtype), d.real(3, 2))),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(3)), {}, ShapeError, "a row for each"),
        Bad((np.ones(2), d.real(2)), {}, LinAlgError, "singular"),
    ],
    namespace="linalg",
    tolerance=8,
)
def solve_toeplitz(c: Any, b: Any, /, *, r: Any = None) -> Any:
    """The solution of `toeplitz(c, r) @ x = b`, by the LU factorisation of the whole matrix.

    `(c, r)` in place of `c` is understood, as in SciPy.

    >>> pb.linalg.solve_toeplitz(pb.tensor([2.0, 1.0]), pb.tensor([4.0, 5.0]))
    tensor([1., 2.], float32, cpu)
    """
    if r is None and isinstance(c, tuple) and len(c) == 2 and not any(map(is_number, c)):
        c, r = c
    return solved_for("solve_toeplitz", toeplitz(c) if r is None else toeplitz(c, r), b)


def _banded_oracle(l_and_u: Any, ab: Any, b: Any) -> Any:
    import scipy.linalg

    return scipy.linalg.solve_banded(l_and_u, ab, b)


def _bands(d: Draw) -> np.ndarray:
    ab = d.real(3, 4)
    ab[1] += 6
    return ab


@composite(
    oracle=_banded_oracle,
    samples=lambda d: [
        Sample(((1, 1), _bands(d), d.real(4))),
        Sample(((2, 0), _bands(d)[[1, 0, 2]], d.real(4, 2))),
    ],
    errors=lambda d: [
        Bad(((1, 1), d.real(2, 4), d.real(4)), {}, ShapeError, "3 diagonals"),
        Bad(((0, 0), np.zeros((1, 2)), d.real(2)), {}, LinAlgError, "singular"),
    ],
    namespace="linalg",
    tolerance=8,
)
def solve_banded(l_and_u: tuple[int, int], ab: Any, b: Any, /) -> Any:
    """The solution of `A @ x = b` for a matrix with `l` diagonals below the main one and `u` above.

    `ab[u + i - j, j]` is element (i, j) of A, as in SciPy. The whole matrix is factored.

    >>> ab = pb.tensor([[0.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    >>> pb.linalg.solve_banded((1, 1), ab, pb.tensor([4.0, 5.0]))
    tensor([1., 2.], float32, cpu)
    """
    lower, upper = l_and_u
    ab = as_array(ab, "solve_banded")
    if ab._aval.ndim < 2 or ab._aval.shape[-2] != lower + upper + 1:
        raise ShapeError(
            f"solve_banded: {lower} and {upper} diagonals beside the main one make"
            f" {lower + upper + 1} diagonals, got shape {ab._aval.shape}."
        )
    n, dev = ab._aval.shape[-1], ab._aval.device
    row, column = reshape(positions(n, dev), (n, 1)), positions(n, dev)
    band = row - column + upper
    inside = (band >= 0) & (band <= lower + upper)
    place = where(inside, band, 0) * n + column
    flat = reshape(ab, (*ab._aval.shape[:-2], (lower + upper + 1) * n))
    full = reshape(take(flat, reshape(place, (n * n,)), axis=-1), (*ab._aval.shape[:-2], n, n))
    return solved_for("solve_banded", where(inside, full, 0), b)


def solved_for(name: str, a: Any, b: Any) -> Any:
    """`solve` in the name of another function."""
    a, b, vector = right_sides(name, a, b)
    out = solved(a, b, factor(detached(a)), caller=name)
    return reshape(out, out._aval.shape[:-1]) if vector else out
