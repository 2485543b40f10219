"""Names that people type: other libraries' spellings, NumPy's functions on tensors, hints."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import foreign_names, missing_names, numpy_protocol
from pullback.ir.op import REGISTRY

RNG = np.random.default_rng(0)
A, B = RNG.uniform(0.2, 0.9, (3, 4)), RNG.uniform(0.2, 0.9, (3, 4))
S = RNG.normal(size=(3, 3)) + 4 * np.eye(3)
P = S @ S.T
PLACES = np.array([2, 0, 1])

# A call of each function of NumPy's that there is a counterpart of; t(x) is an array or a tensor.
CALLS: dict[str, Any] = {
    "all": lambda t: np.all(t(A) > 0.3, axis=1),
    "allclose": lambda t: np.allclose(t(A), t(A), 1e-5),
    "angle": lambda t: np.angle(t(A + 1j)),
    "any": lambda t: np.any(t(A) > 0.8, axis=0, keepdims=True),
    "argmax": lambda t: np.argmax(t(A), 1),
    "argmin": lambda t: np.argmin(t(A)),
    "argsort": lambda t: np.argsort(t(A), axis=0),
    "bincount": lambda t: np.bincount(t(PLACES), minlength=5),
    "broadcast_arrays": lambda t: np.broadcast_arrays(t(A), t(A[:1]))[1],
    "broadcast_to": lambda t: np.broadcast_to(t(A[0]), (3, 4)),
    "clip": lambda t: np.clip(t(A), 0.3, 0.7),
    "clip, by name": lambda t: np.clip(t(A), a_min=0.3, a_max=None),
    "concatenate": lambda t: np.concatenate([t(A), t(B)], axis=1),
    "count_nonzero": lambda t: np.count_nonzero(t(A) > 0.5, axis=0),
    "cumprod": lambda t: np.cumprod(t(A), axis=1),
    "cumsum": lambda t: np.cumsum(t(A)),
    "cumsum, axis": lambda t: np.cumsum(t(A), 1),
    "cumulative_prod": lambda t: np.cumulative_prod(t(A), axis=1),
    "cumulative_sum": lambda t: np.cumulative_sum(t(A), axis=0, include_initial=True),
    "diag": lambda t: np.diag(t(S), 1),
    "diagonal": lambda t: np.diagonal(t(A), offset=1),
    "diff": lambda t: np.diff(t(A), axis=0),
    "dot": lambda t: np.dot(t(A), t(B.T)),
    "dot, vectors": lambda t: np.dot(t(A[0]), t(B[0])),
    "dot, cube": lambda t: np.dot(t(A), t(RNG.normal(size=(2, 4, 3)) * 0 + 1.5)),
    "einsum": lambda t: np.einsum("ij,kj->ik", t(A), t(B)),
    "empty_like": lambda t: np.shape(np.empty_like(t(A))),
    "expand_dims": lambda t: np.expand_dims(t(A), 1),
    "flip": lambda t: np.flip(t(A), axis=1),
    "full_like": lambda t: np.full_like(t(A), 3.0),
    "imag": lambda t: np.imag(t(A * 1j)),
    "inner": lambda t: np.inner(t(A), t(B)),
    "isclose": lambda t: np.isclose(t(A), t(B), atol=0.1),
    "isin": lambda t: np.isin(t(PLACES), t(PLACES[:2])),
    "linspace": lambda t: np.linspace(t(np.array(0.0)), 1.0, 5),
    "matrix_transpose": lambda t: np.matrix_transpose(t(A)),
    "max": lambda t: np.max(t(A), axis=0),
    "amax": lambda t: np.amax(t(A)),
    "mean": lambda t: np.mean(t(A), 1, keepdims=True),
    "median": lambda t: np.median(t(A), axis=1),
    "meshgrid": lambda t: np.meshgrid(t(A[0]), t(B[1]), indexing="ij")[1],
    "min": lambda t: np.min(t(A), axis=(0, 1)),
    "moveaxis": lambda t: np.moveaxis(t(A), 0, 1),
    "nonzero": lambda t: np.nonzero(t(A) > 0.5)[0],
    "ones_like": lambda t: np.ones_like(t(A)),
    "outer": lambda t: np.outer(t(A[0]), t(B[0])),
    "pad": lambda t: np.pad(t(A), ((1, 0), (0, 2))),
    "permute_dims": lambda t: np.permute_dims(t(A), (1, 0)),
    "prod": lambda t: np.prod(t(A), axis=1),
    "quantile": lambda t: np.quantile(t(A), 0.3, axis=1),
    "ravel": lambda t: np.ravel(t(A)),
    "real": lambda t: np.real(t(A + 1j)),
    "repeat": lambda t: np.repeat(t(A), 2, axis=1),
    "reshape": lambda t: np.reshape(t(A), (2, 6)),
    "roll": lambda t: np.roll(t(A), 1, axis=1),
    "round": lambda t: np.round(t(A), 1),
    "searchsorted": lambda t: np.searchsorted(t(np.sort(A[0])), t(B[0]), side="right"),
    "sort": lambda t: np.sort(t(A), axis=0),
    "squeeze": lambda t: np.squeeze(t(A[:1])),
    "stack": lambda t: np.stack([t(A), t(B)], axis=1),
    "std": lambda t: np.std(t(A), axis=0, ddof=1),
    "sum": lambda t: np.sum(t(A), axis=1, keepdims=True),
    "sum, all": lambda t: np.sum(t(A)),
    "swapaxes": lambda t: np.swapaxes(t(A), 0, 1),
    "take": lambda t: np.take(t(A), t(PLACES), axis=0),
    "take, flat": lambda t: np.take(t(A), t(PLACES)),
    "take_along_axis": lambda t: np.take_along_axis(t(A), t(np.argsort(A, axis=0)), axis=0),
    "tensordot": lambda t: np.tensordot(t(A), t(B.T), axes=1),
    "tile": lambda t: np.tile(t(A), (2, 1)),
    "trace": lambda t: np.trace(t(S)),
    "transpose": lambda t: np.transpose(t(A)),
    "tril": lambda t: np.tril(t(S), -1),
    "triu": lambda t: np.triu(t(S)),
    "unstack": lambda t: np.unstack(t(A), axis=1)[2],
    "var": lambda t: np.var(t(A), axis=1),
    "vdot": lambda t: np.vdot(t(A + 1j), t(B * 1j)),
    "where": lambda t: np.where(t(A) > 0.5, t(A), 0.0),
    "zeros_like": lambda t: np.zeros_like(t(A)),
    "append": lambda t: np.append(t(A), t(B), axis=0),
    "append, flat": lambda t: np.append(t(A), t(B)),
    "array_split": lambda t: np.array_split(t(A), 3, axis=1)[2],
    "array_split, places": lambda t: np.array_split(t(A), [1, 3], axis=1)[1],
    "atleast_1d": lambda t: np.atleast_1d(t(np.array(1.5))),
    "atleast_2d": lambda t: np.atleast_2d(t(A[0])),
    "atleast_3d": lambda t: np.atleast_3d(t(A[0])),
    "atleast_3d, matrix": lambda t: np.atleast_3d(t(A)),
    "average": lambda t: np.average(t(A), axis=1, weights=t(B)),
    "block": lambda t: np.block([[t(A), t(B)], [t(B), t(A)]]),
    "column_stack": lambda t: np.column_stack([t(A[0]), t(B[0])]),
    "convolve": lambda t: np.convolve(t(A[0]), t(B[0]), "same"),
    "copy": lambda t: np.copy(t(A)),
    "corrcoef": lambda t: np.corrcoef(t(A)),
    "correlate": lambda t: np.correlate(t(A[0]), t(B[0]), "full"),
    "cov": lambda t: np.cov(t(A)),
    "cross": lambda t: np.cross(t(A[:, :3]), t(B[:, :3])),
    "delete": lambda t: np.delete(t(A), [0, 2], axis=1),
    "delete, flat": lambda t: np.delete(t(A), 3),
    "digitize": lambda t: np.digitize(t(A[0]), t(np.array([0.3, 0.6]))),
    "dsplit": lambda t: np.dsplit(t(A[None]), 2)[1],
    "dstack": lambda t: np.dstack([t(A), t(B)]),
    "fliplr": lambda t: np.fliplr(t(A)),
    "flipud": lambda t: np.flipud(t(A)),
    "gradient": lambda t: np.gradient(t(A[0]), 0.5),
    "histogram": lambda t: np.histogram(t(A), 5)[0],
    "hsplit": lambda t: np.hsplit(t(A), 2)[1],
    "hsplit, vector": lambda t: np.hsplit(t(A[0]), 2)[1],
    "hstack": lambda t: np.hstack([t(A), t(B)]),
    "imag, real": lambda t: np.imag(t(A)),
    "interp": lambda t: np.interp(t(A[0]), t(np.sort(B[0])), t(B[1])),
    "kron": lambda t: np.kron(t(A), t(B)),
    "nan_to_num": lambda t: np.nan_to_num(t(np.where(A > 0.5, np.nan, A)), nan=2.0),
    "nanargmax": lambda t: np.nanargmax(t(A), axis=1),
    "nanargmin": lambda t: np.nanargmin(t(A)),
    "nancumprod": lambda t: np.nancumprod(t(A), axis=1),
    "nancumsum": lambda t: np.nancumsum(t(A)),
    "nanmax": lambda t: np.nanmax(t(A), axis=1),
    "nanmean": lambda t: np.nanmean(t(np.where(A > 0.5, np.nan, A))),
    "nanmedian": lambda t: np.nanmedian(t(A), axis=1),
    "nanmin": lambda t: np.nanmin(t(A)),
    "nanpercentile": lambda t: np.nanpercentile(t(A), 30.0, axis=1),
    "nanprod": lambda t: np.nanprod(t(A), axis=1),
    "nanquantile": lambda t: np.nanquantile(t(A), 0.3),
    "nanstd": lambda t: np.nanstd(t(A), axis=0, ddof=1),
    "nansum": lambda t: np.nansum(t(A), axis=0),
    "nanvar": lambda t: np.nanvar(t(A)),
    "percentile": lambda t: np.percentile(t(A), 30.0, axis=1),
    "polyadd": lambda t: np.polyadd(t(A[0]), t(B[0])),
    "polyder": lambda t: np.polyder(t(A[0])),
    "polyint": lambda t: np.polyint(t(A[0])),
    "polymul": lambda t: np.polymul(t(A[0]), t(B[0])),
    "polysub": lambda t: np.polysub(t(A[0]), t(B[0])),
    "polyval": lambda t: np.polyval(t(A[0]), t(B)),
    "ptp": lambda t: np.ptp(t(A), axis=1),
    "real, real": lambda t: np.real(t(A)),
    "rot90": lambda t: np.rot90(t(A), 3),
    "sinc": lambda t: np.sinc(t(A)),
    "split": lambda t: np.split(t(A), 2, axis=1)[1],
    "split, places": lambda t: np.split(t(A), [1, 2])[1],
    "trapezoid": lambda t: np.trapezoid(t(A), dx=0.5, axis=0),
    "unwrap": lambda t: np.unwrap(t(A[0] * 9)),
    "vsplit": lambda t: np.vsplit(t(A), 3)[1],
    "vstack": lambda t: np.vstack([t(A), t(B)]),
    "linalg.multi_dot": lambda t: np.linalg.multi_dot([t(A), t(B.T), t(S)]),
    "linalg.cholesky": lambda t: np.linalg.cholesky(t(P)),
    "linalg.cross": lambda t: np.linalg.cross(t(A[:, :3]), t(B[:, :3])),
    "linalg.det": lambda t: np.linalg.det(t(S)),
    "linalg.diagonal": lambda t: np.linalg.diagonal(t(S)),
    "linalg.eigvalsh": lambda t: np.linalg.eigvalsh(t(P)),
    "linalg.inv": lambda t: np.linalg.inv(t(S)),
    "linalg.matmul": lambda t: np.linalg.matmul(t(A), t(B.T)),
    "linalg.matrix_norm": lambda t: np.linalg.matrix_norm(t(S), ord=1),
    "linalg.matrix_power": lambda t: np.linalg.matrix_power(t(S), 3),
    "linalg.matrix_rank": lambda t: np.linalg.matrix_rank(t(S)),
    "linalg.matrix_transpose": lambda t: np.linalg.matrix_transpose(t(A)),
    "linalg.norm": lambda t: np.linalg.norm(t(A)),
    "linalg.norm, rows": lambda t: np.linalg.norm(t(A), axis=1),
    "linalg.norm, nuclear": lambda t: np.linalg.norm(t(S), "nuc"),
    "linalg.norm, axes": lambda t: np.linalg.norm(t(A[None]), axis=(1, 2), keepdims=True),
    "linalg.outer": lambda t: np.linalg.outer(t(A[0]), t(B[0])),
    "linalg.pinv": lambda t: np.linalg.pinv(t(A)),
    "linalg.slogdet": lambda t: np.linalg.slogdet(t(S)).logabsdet,
    "linalg.solve": lambda t: np.linalg.solve(t(S), t(S[:, :2])),
    "linalg.svdvals": lambda t: np.linalg.svdvals(t(A)),
    "linalg.tensordot": lambda t: np.linalg.tensordot(t(A), t(B.T), axes=1),
    "linalg.trace": lambda t: np.linalg.trace(t(S)),
    "linalg.vecdot": lambda t: np.linalg.vecdot(t(A), t(B)),
    "linalg.vector_norm": lambda t: np.linalg.vector_norm(t(A), axis=0),
    "linalg.eigh": lambda t: np.linalg.eigh(t(P)).eigenvalues,
    "linalg.qr": lambda t: abs(np.linalg.qr(t(S)).R),
    "linalg.svd": lambda t: np.linalg.svd(t(S)).S,
    "linalg.eig": lambda t: np.sum(np.linalg.eig(t(S)).eigenvalues),
    "linalg.eigvals": lambda t: np.sum(np.linalg.eigvals(t(S))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_numpys_is_ours(name: str) -> None:
    expected = CALLS[name](np.asarray)
    found = CALLS[name](pb.asarray)
    if isinstance(expected, (bool, tuple)):
        assert bool(found == expected)
        return
    assert isinstance(found, pb.Tensor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_each_counterpart_is_called() -> None:
    named = {f"{m}.{n}" for m, text in numpy_protocol.SAME.items() for n in text.split()}
    named |= set(numpy_protocol.SPECIAL)
    called = {f"numpy.{name.partition(',')[0]}" for name in CALLS}
    assert {n for n in named - called if not n.startswith("numpy.fft")} == set()


def test_derivatives_go_through_numpys_functions() -> None:
    def f(x: Any) -> Any:
        y = np.concatenate([np.sin(x), np.exp(x)]) @ np.linalg.inv(np.eye(4) * 2)
        return np.sum(np.multiply.reduce(y, axis=0)) + np.mean(np.maximum(x, 0.5))

    def ours(x: Any) -> Any:
        y = pb.concat([pb.sin(x), pb.exp(x)]) / 2
        return pb.sum(pb.prod(y, axis=0)) + pb.mean(pb.maximum(x, 0.5))

    x = pb.asarray(A)
    expected = pb.grad(ours)(x)
    assert bool(pb.all(pb.abs(pb.grad(f)(x) - expected) < 1e-12))
    assert bool(pb.all(pb.abs(pb.jit(pb.grad(f))(x) - expected) < 1e-12))


UFUNCS = [
    u
    for u in vars(np).values()
    if isinstance(u, np.ufunc) and numpy_protocol.UFUNCS.get(u.__name__, u.__name__) in REGISTRY
]


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda u: u.__name__)
def test_a_universal_function_is_ours(ufunc: Any) -> None:
    kinds = [t.partition("->")[0] for t in ufunc.types]
    floating = any(set(k) <= {"d"} for k in kinds)
    data = [A, B] if floating else [PLACES, PLACES[::-1] % 2]
    if ufunc.__name__ in ("arccosh",):
        data = [A + 1.5]
    if ufunc.signature:
        data = [A, B.T if "n?" in ufunc.signature else B]
    args = data[: ufunc.nin]
    found = ufunc(*[pb.asarray(np.ascontiguousarray(a)) for a in args])
    assert isinstance(found, pb.Tensor)
    np.testing.assert_allclose(found.numpy(), ufunc(*args), rtol=1e-12)


def test_universal_functions_of_two_results_and_outer_products() -> None:
    x = np.array([-2.5, -0.0, 0.75, np.inf, 3.0])
    for found, expected in (
        (np.divmod(pb.asarray(A), pb.asarray(B)), np.divmod(A, B)),
        (np.modf(pb.asarray(x)), np.modf(x)),
        ([np.multiply.outer(pb.asarray(A), pb.asarray(x[:3]))], [np.multiply.outer(A, x[:3])]),
        ([np.subtract.outer(pb.asarray(x[2:3]), B)], [np.subtract.outer(x[2:3], B)]),
    ):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert isinstance(a, pb.Tensor)
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-12)
            assert bool(np.all(np.signbit(a.numpy()) == np.signbit(b)))
    slope = pb.grad(lambda x: np.sum(np.modf(x)[0] + np.multiply.outer(x, x).sum(0)))
    y = pb.asarray(np.array([0.25, 1.5]))
    assert slope(y).tolist() == [1 + 2 * 1.75, 1 + 2 * 1.75]


def test_arrays_and_tensors_mix_and_numpys_scalars_are_weak() -> None:
    x = pb.ones(2, requires_grad=True)
    for y in (
        np.ones(2, np.float32) + x,
        x + np.ones(2, np.float32),
        np.float64(2) * x,
        x / np.float64(2),
    ):
        assert isinstance(y, pb.Tensor) and y.requires_grad and y.dtype == pb.float32
    assert (np.complex128(1j) * x).dtype == pb.complex64
    assert (np.arange(2.0) @ pb.asarray(np.eye(2))).dtype == pb.float64
    assert pb.asarray(np.float64(1)).dtype == pb.float64


def test_what_numpys_functions_refuse() -> None:
    x = pb.ones(3, requires_grad=True)
    a = np.ones(3)
    cases: list[tuple[Any, Any, str]] = [
        (lambda: np.add(a, x, out=a), pb.DTypeError, "can't be written into a NumPy array"),
        (lambda: np.sum(x, out=a), pb.DTypeError, "np.sum: out is not supported"),
        (lambda: np.add(x, x, where=a > 0), pb.DTypeError, "where is not supported"),
        (lambda: np.sum(x, where=a > 0), pb.DTypeError, "where is not supported"),
        (lambda: np.unique(x), pb.GradientError, "NumPy would lose it"),
        (lambda: np.add.at(x, [0], 1.0), pb.GradientError, "NumPy would lose it"),
        (lambda: np.reshape(x, (3, 1), order="F"), pb.DTypeError, "order is not supported"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()
    assert isinstance(np.unique(x.detach()), np.ndarray)

    def in_place() -> None:
        b = np.ones(3)
        b += x

    with pytest.raises(pb.DTypeError, match=r"a = a \+ x"):
        in_place()


def test_aliases_are_our_functions() -> None:
    assert not set(foreign_names.ALIASES) & set(foreign_names.HINTS)
    for name, ours in foreign_names.ALIASES.items():
        assert getattr(pb, name) is getattr(pb, ours)
        assert name not in dir(pb)


def test_hints_name_things_that_there_are() -> None:
    for name, hint in foreign_names.HINTS.items():
        with pytest.raises(AttributeError, match="Use ") as caught:
            getattr(pb, name)
        assert hint in str(caught.value)
    x = pb.ones(2)
    for name, hint in missing_names.METHOD_HINTS.items():
        assert name not in dir(x)
        with pytest.raises(AttributeError, match="Use ") as caught:
            getattr(x, name)
        assert hint in str(caught.value)
    every = " ".join([*foreign_names.HINTS.values(), *missing_names.METHOD_HINTS.values()])
    for word in every.translate(str.maketrans("(),:", "    ")).split():
        if word.startswith("pb."):
            found: Any = pb
            for part in word.rstrip(".;").split(".")[1:]:
                found = getattr(found, part)
    for name, home in {
        "softmax": "nn",
        "solve": "linalg",
        "normal": "random",
        "Linear": "nn",
    }.items():
        with pytest.raises(AttributeError, match=rf"Use pb\.{home}\.{name}\."):
            getattr(pb, name)
    with pytest.raises(AttributeError, match=r"no attribute 'foo'\.$"):
        pb.foo  # type: ignore[attr-defined]  # noqa: B018


def test_pytorchs_spellings_of_axes() -> None:
    any_pb: Any = pb  # type checkers know our spellings only
    x: Any = pb.asarray(A)
    assert bool(pb.all(any_pb.sum(x, dim=1, keepdim=True) == pb.sum(x, axis=1, keepdims=True)))
    assert x.mean(dim=0).shape == x.mean(axis=0).shape
    assert any_pb.concat([x, x], dim=1).shape == (3, 8)
    assert any_pb.argsort(x, dim=0).shape == x.shape
    assert bool(pb.all(any_pb.nn.softmax(x, axis=1) == pb.nn.softmax(x, dim=1)))
    with pytest.raises(TypeError, match="dim and axis are one argument"):
        any_pb.sum(x, dim=0, axis=0)


def test_methods_of_other_libraries() -> None:
    x = pb.ones((2, 3, 4), requires_grad=True)
    assert x.view(6, -1).shape == (6, 4)
    assert x.unsqueeze(0).shape == (1, 2, 3, 4)
    assert x.numel() == 24
    assert x.to(pb.float64).dtype == pb.float64 and x.to("float16").dtype == pb.float16
    assert x.to("cpu").device == x.cpu().device == x.device
    assert x.transpose().shape == x.transpose(2, 1, 0).shape == x.transpose((2, 1, 0)).shape
    assert x[0].transpose(1, 0).shape == (4, 3)
    with pytest.raises(pb.ShapeError, match="permute or swapaxes"):
        x.transpose(0, 1)
    y = x.copy()
    y += 1
    assert bool(pb.all(x == 1)) and y.requires_grad


def test_operations_are_methods_under_the_names_that_other_libraries_have() -> None:
    x: Any = pb.asarray(A)
    for operation, names in foreign_names.METHODS.items():
        ours = getattr(pb, operation)
        for name in names.split():
            assert getattr(pb.Tensor, name) is ours
            assert name not in missing_names.METHOD_HINTS
    assert bool(pb.all(x.clamp(0.3, 0.7) == pb.clip(x, 0.3, 0.7)))
    assert x.logsumexp(dim=1, keepdim=True).shape == (3, 1)
    assert bool(pb.all(x.sub(1.0) == x - 1.0)) and x.unbind(1)[3].shape == (3,)


def test_dot_is_that_of_vectors_and_matrices() -> None:
    x, v = pb.asarray(A), pb.asarray(A[0])
    for a, b in ((A[0], B[0]), (A, B.T), (A, B[0]), (A[0], A.T), (A, np.array(2.0))):
        found = pb.asarray(a).dot(pb.asarray(b))
        np.testing.assert_allclose(found.numpy(), a.dot(b), rtol=1e-12)
    assert v.dot([1, 0, 0, 0]).item() == A[0, 0]
    assert bool(pb.all(pb.grad(lambda v: v.dot(v))(v) == 2 * v))
    with pytest.raises(pb.ShapeError, match="dot: takes vectors and matrices"):
        pb.ones((2, 3, 4)).dot(x.T)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: pb.asarray([1.0, 2.0], **k),
        lambda **k: pb.asarray(pb.ones(2), **k),
        lambda **k: pb.logspace(0, 1, 2, **k),
        lambda **k: pb.geomspace(1, 2, 2, **k),
        lambda **k: pb.random.gumbel(pb.random.key(0), (2,), **k),
        lambda **k: pb.random.exponential(pb.random.key(0), (2,), **k),
        lambda **k: pb.zeros(2, **k),
        lambda **k: pb.ones(2, **k),
        lambda **k: pb.empty(2, **k),
        lambda **k: pb.full(2, 1.5, **k),
        lambda **k: pb.zeros_like(pb.ones(2), **k),
        lambda **k: pb.ones_like(pb.ones(2), **k),
        lambda **k: pb.full_like(pb.ones(2), 2, **k),
        lambda **k: pb.empty_like(pb.ones(2), **k),
        lambda **k: pb.arange(2.0, **k),
        lambda **k: pb.linspace(0, 1, 2, **k),
        lambda **k: pb.eye(2, **k),
        lambda **k: pb.random.normal(pb.random.key(0), (2,), **k),
        lambda **k: pb.random.uniform(pb.random.key(0), (2,), **k),
    ],
)
def test_creation_functions_make_leaves(make: Any) -> None:
    x, y = make(requires_grad=True), make()
    assert x.requires_grad and x.is_leaf and not y.requires_grad
    pb.sum(x * x).backward()
    assert bool(pb.all(x.grad == 2 * x.detach()))


def test_a_leaf_that_was_asked_for_is_not_the_argument() -> None:
    x = pb.ones(2)
    y = pb.asarray(x, requires_grad=True)
    assert y.requires_grad and not x.requires_grad
    fill = pb.tensor(2.0, requires_grad=True)
    z = pb.full(3, fill, requires_grad=True)
    assert z.is_leaf
    pb.sum(z).backward()
    assert z.grad.tolist() == [1.0, 1.0, 1.0] and fill.grad is None


@pytest.mark.parametrize(
    "space",
    [pb, pb.nn, pb.nn.init, pb.optim, pb.train, pb.linalg, pb.debug],
    ids=lambda s: s.__name__,
)
def test_a_namespace_shows_what_users_use(space: Any):
    shown = {n for n in dir(space) if not n.startswith("_")}
    assert shown == {n for n in space.__all__ if not n.startswith("_")}
    inner = {n for n in shown if isinstance(getattr(space, n), ModuleType)}
    known = {
        "debug",
        "fft",
        "init",
        "linalg",
        "nn",
        "optim",
        "primitive",
        "random",
        "signal",
        "train",
    }
    assert inner <= known
