"""Every call that the Array API standard (2025.12) allows is one that our signatures take.

The table says what the standard fixes: names, kinds and defaults of parameters. A parameter before
`/` is known by its place only. Ours may have more parameters, if these have defaults, and defaults
where the standard has none.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import pullback as pb

ONE = "x, /"
TWO = "x1, x2, /"
KEPT = "x, /, *, axis=None, keepdims=False"
SUMMED = "x, /, *, axis=None, dtype=None, keepdims=False"
SPREAD = "x, /, *, axis=None, correction=0.0, keepdims=False"
RUNNING = "x, /, *, axis=None, dtype=None, include_initial=False"
ORDER = "x, /, *, axis=-1, descending=False, stable=True"
NEW = "*, dtype=None, device=None"
PLACED = "x, /, *, n=None, axis=-1, norm='backward'"
PLACES = "x, /, *, s=None, axes=None, norm='backward'"


def each(names: str, signature: str, pattern: str = "{}") -> dict[str, str]:
    return {pattern.format(n): signature for n in names.split()}


BINARY = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
MAIN = {
    **each("abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1", ONE),
    **each("floor imag isfinite isinf isnan log log1p log2 log10 logical_not", ONE),
    **each("matrix_transpose negative nonzero positive real reciprocal round sign signbit", ONE),
    **each("sin sinh sqrt square tan tanh trunc", ONE),
    **each("unique_all unique_counts unique_inverse unique_values", ONE),
    **each("add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift", TWO),
    **each("bitwise_xor copysign divide equal floor_divide greater greater_equal hypot", TWO),
    **each("less less_equal logaddexp logical_and logical_or logical_xor matmul maximum", TWO),
    **each("minimum multiply nextafter not_equal pow remainder subtract", TWO),
    **each("all any argmax argmin count_nonzero max mean min", KEPT),
    **each("prod sum", SUMMED),
    **each("std var", SPREAD),
    **each("cumulative_prod cumulative_sum", RUNNING),
    **each("argsort sort", ORDER),
    **each("empty ones zeros", f"shape, {NEW}"),
    **each("empty_like ones_like zeros_like", f"x, /, {NEW}"),
    **each("tril triu", "x, /, *, k=0"),
    **each("finfo iinfo", "type, /"),
    **each("stack concat", "arrays, /, *, axis=0"),
    "__array_namespace_info__": "",
    "arange": f"start, /, stop=None, step=1, {NEW}",
    "asarray": f"obj, /, {NEW}, copy=None",
    "astype": "x, dtype, /, *, copy=True, device=None",
    "broadcast_arrays": "*arrays",
    "broadcast_shapes": "*shapes",
    "broadcast_to": "x, /, shape",
    "can_cast": "from_, to, /",
    "clip": "x, /, min=None, max=None",
    "diff": "x, /, *, axis=-1, n=1, prepend=None, append=None",
    "expand_dims": "x, /, axis",
    "eye": f"n_rows, n_cols=None, /, *, k=0, {NEW.removeprefix('*, ')}",
    "flip": "x, /, *, axis=None",
    "from_dlpack": "x, /, *, device=None, copy=None",
    "full": f"shape, fill_value, {NEW}",
    "full_like": f"x, /, fill_value, {NEW}",
    "isdtype": "dtype, kind",
    "isin": "x1, x2, /, *, invert=False",
    "linspace": f"start, stop, /, num, {NEW}, endpoint=True",
    "meshgrid": "*arrays, indexing='xy'",
    "moveaxis": "x, source, destination, /",
    "permute_dims": "x, /, axes",
    "repeat": "x, repeats, /, *, axis=None",
    "reshape": "x, /, shape, *, copy=None",
    "result_type": "*arrays_and_dtypes",
    "roll": "x, /, shift, *, axis=None",
    "searchsorted": "x1, x2, /, *, side='left', sorter=None",
    "squeeze": "x, /, axis",
    "take": "x, indices, /, *, axis=None",
    "take_along_axis": "x, indices, /, *, axis=-1",
    "tensordot": "x1, x2, /, *, axes=2",
    "tile": "x, repetitions, /",
    "unstack": "x, /, *, axis=0",
    "vecdot": "x1, x2, /, *, axis=-1",
    "where": "condition, x1, x2, /",
}
LINALG = {
    **each("det eig eigh eigvals eigvalsh inv matrix_transpose slogdet svdvals", ONE),
    **each("matmul outer solve", TWO),
    **each("matrix_rank pinv", "x, /, *, rtol=None"),
    **each("cross vecdot", "x1, x2, /, *, axis=-1"),
    "cholesky": "x, /, *, upper=False",
    "diagonal": "x, /, *, offset=0",
    "matrix_norm": "x, /, *, keepdims=False, ord='fro'",
    "matrix_power": "x, n, /",
    "qr": "x, /, *, mode='reduced'",
    "svd": "x, /, *, full_matrices=True",
    "tensordot": "x1, x2, /, *, axes=2",
    "trace": "x, /, *, offset=0, dtype=None",
    "vector_norm": "x, /, *, axis=None, keepdims=False, ord=2",
}
FFT = {
    **each("fft ifft rfft irfft hfft ihfft", PLACED),
    **each("fftn ifftn rfftn irfftn", PLACES),
    **each("fftfreq rfftfreq", f"n, /, *, d=1.0, {NEW.removeprefix('*, ')}"),
    **each("fftshift ifftshift", "x, /, *, axes=None"),
}
METHODS = {
    **each("abs bool complex float index int invert neg pos", "", "__{}__"),
    **each("eq ge gt le lt ne", "other, /", "__{}__"),
    **each(BINARY, "other, /", "__{}__"),
    **each(BINARY, "other, /", "__r{}__"),
    **each(BINARY, "other, /", "__i{}__"),
    "__array_namespace__": "*, api_version=None",
    "__dlpack__": "*, stream=None, max_version=None, dl_device=None, copy=None",
    "__dlpack_device__": "",
    "__getitem__": "key, /",
    "__setitem__": "key, value, /",
    "to_device": "device, /, *, stream=None",
}
INSPECTION = {
    "capabilities": "",
    "default_device": "",
    "default_dtypes": "*, device=None",
    "devices": "",
    "dtypes": "*, device=None, kind=None",
}
PROPERTIES = ["T", "device", "dtype", "mT", "ndim", "shape", "size"]
CONSTANTS = ["e", "inf", "nan", "newaxis", "pi"]


def parameters_of(text: str) -> list[inspect.Parameter]:
    scope: dict[str, Any] = {}
    exec(f"def f({text}): pass", scope)
    return list(inspect.signature(scope["f"]).parameters.values())


def problems(ours: list[inspect.Parameter], standard: list[inspect.Parameter]) -> list[str]:
    """What keeps calls of the standard from being calls of ours."""
    found = []
    named = {p.name: p for p in ours}
    for place, p in enumerate(standard):
        if p.kind is p.VAR_POSITIONAL:
            same = place < len(ours) and ours[place].kind is p.VAR_POSITIONAL
            found += [] if same else [f"*{p.name} is missing"]
            continue
        if p.kind is p.KEYWORD_ONLY:
            q = named.get(p.name)
            fits = q is not None and q.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        else:
            q = ours[place] if place < len(ours) else None
            kinds = [p.POSITIONAL_OR_KEYWORD, *[p.kind][: p.kind is p.POSITIONAL_ONLY]]
            fits = q is not None and q.kind in kinds
            fits = fits and (p.kind is p.POSITIONAL_ONLY or q.name == p.name)  # pyright: ignore[reportOptionalMemberAccess]
        if not fits or q is None:
            found.append(f"{p} does not fit {q}")
        elif p.default is not p.empty and q.default != p.default:
            found.append(f"the default of {p.name} is {q.default}, expected {p.default}")
    known = {p.name for p in standard} | {q.name for q in ours[: len(standard)]}
    for q in ours:
        if q.kind not in (q.VAR_POSITIONAL, q.VAR_KEYWORD) and q.default is q.empty:
            found += [] if q.name in known else [f"{q.name} is needed, which the standard has not"]
    return found


def checked(function: Any, text: str, bound: bool = False) -> list[str]:
    ours = list(inspect.signature(function).parameters.values())[bound:]
    return problems(ours, parameters_of(text))


@pytest.mark.parametrize("name", sorted(MAIN))
def test_functions(name: str):
    assert checked(getattr(pb, name), MAIN[name]) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods(name: str):
    assert checked(getattr(pb.Tensor, name), METHODS[name], bound=True) == []


@pytest.mark.parametrize("name", sorted(INSPECTION))
def test_inspection(name: str):
    assert checked(getattr(pb.__array_namespace_info__(), name), INSPECTION[name]) == []


@pytest.mark.parametrize("name", sorted(LINALG))
def test_linear_algebra(name: str):
    assert checked(getattr(pb.linalg, name), LINALG[name]) == []


@pytest.mark.parametrize("name", sorted(FFT))
def test_fourier_transforms(name: str):
    assert checked(getattr(pb.fft, name), FFT[name]) == []


def test_names_that_are_no_functions():
    x = pb.ones((2, 2))
    assert all(getattr(x, name) is not None for name in PROPERTIES)
    assert all(name in vars(pb) for name in CONSTANTS)


def test_the_comparison_sees_differences():
    """Each of these could not be called as the standard says."""
    for ours, standard in (
        ("x", "x, /, *, axis=None"),
        ("x, /, *, axis=-1", "x, /, *, axis=None"),
        ("x, y, /", "x, /"),
        ("x, /, lowest=None", "x, /, min=None"),
        ("x, /, shape", "shape, x"),
        ("x, *, axis", "x, axis, /"),
        ("arrays", "*arrays"),
    ):
        assert problems(parameters_of(ours), parameters_of(standard)), (ours, standard)
    assert problems(parameters_of("x, y, /"), parameters_of(TWO)) == []
    assert problems(parameters_of("x, /, axis=None, *, more=1"), parameters_of("x, /, axis")) == []
