"""Whether a function of ours and one of PyTorch's give the same values and derivatives.

Imported by the interop tests only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

import pullback as pb

RTOL = {"float64": 1e-9, "float32": 3e-5}


def agree(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    order: int = 2,
    fixed: Sequence[int] = (),
    loosely: float = 1.0,
) -> int:
    """Compare values and derivatives up to `order`, along random weights, by all arrays that
    PyTorch differentiates by, but for the positions `fixed`.

    Returns the order reached: PyTorch may not have the next one. `loosely` widens the tolerance.
    """
    floating = [i for i, a in enumerate(arrays) if a.dtype.kind == "f" and i not in fixed]
    mine = [pb.tensor(a) for a in arrays]
    other = [torch.tensor(a, requires_grad=i in floating) for i, a in enumerate(arrays)]
    expected, found = theirs(*other), ours(*mine)
    _same(found, expected, "the value", loosely)
    differentiable = torch.is_tensor(expected) and expected.requires_grad
    if not floating or order == 0 or not differentiable:
        return 0
    rng = np.random.default_rng(7)

    def weights(shape: Any, dtype: Any) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape).astype(dtype)

    w = weights(expected.shape, found.numpy().dtype)
    product = (expected * torch.tensor(w)).sum()
    floating, firsts = _torch_gradients(product, other, floating)
    us = [weights(arrays[i].shape, arrays[i].dtype) for i in floating]

    def pulled(*xs: Any) -> list[Any]:
        def f(*ys: Any) -> Any:
            full = list(mine)
            for i, y in zip(floating, ys, strict=True):
                full[i] = y
            return ours(*full)

        return list(pb.vjp(f, *xs)[1](pb.tensor(w)))

    xs = [mine[i] for i in floating]
    for i, a, b in zip(floating, pulled(*xs), firsts, strict=True):
        _same(a, b, f"the derivative by argument {i}", loosely)
    if order == 1:
        return 1

    def along(*xs: Any) -> Any:
        return sum((g * pb.tensor(u)).sum() for g, u in zip(pulled(*xs), us, strict=True))

    total: Any = sum((g * torch.tensor(u)).sum() for g, u in zip(firsts, us, strict=True))
    if not total.requires_grad:
        chosen, seconds = floating, [torch.zeros_like(other[i]) for i in floating]
    else:
        try:
            chosen, seconds = _torch_gradients(total, other, floating)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented" not in str(error) and "derivative for" not in str(error):
                raise
            return 1
    mixed = dict(zip(floating, pb.vjp(along, *xs)[1](pb.ones_like(along(*xs))), strict=True))
    for i, b in zip(chosen, seconds, strict=True):
        _same(mixed[i], b, f"the second derivative by argument {i}", loosely)
    return 2


def _torch_gradients(y: Any, xs: list[Any], places: list[int]) -> tuple[list[int], list[Any]]:
    """The places where there is a derivative, and the derivatives, to be differentiated again."""
    found = torch.autograd.grad(y, [xs[i] for i in places], create_graph=True, allow_unused=True)
    known = [(i, g) for i, g in zip(places, found, strict=True) if g is not None]
    return [i for i, _ in known], [g for _, g in known]


def _same(ours: Any, theirs: Any, what: str, loosely: float) -> None:
    a, b = ours.numpy(), theirs.numpy(force=True)  # by force: zeros may not be stored
    assert a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}"
    assert a.dtype == b.dtype, f"{what}: dtypes {a.dtype} and {b.dtype}"
    scale = float(np.max(np.abs(b), initial=1.0, where=np.isfinite(b)))
    rtol = RTOL.get(a.dtype.name, 0.0) * loosely
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=what)
