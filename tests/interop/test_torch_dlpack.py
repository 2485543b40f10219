"""PyTorch tensors and ours look at the same memory through DLPack."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "complex64", "float16", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_to_torch_is_a_copy_unless_told_otherwise(dtype):
    x = pb.astype(pb.tensor(np.arange(6).reshape(2, 3)), dtype)
    before = x.tolist()
    torch.from_dlpack(x).zero_()
    assert x.tolist() == before
    t = torch.from_dlpack(x, copy=False)
    assert t.data_ptr() == x._buf.address
    np.testing.assert_array_equal(t.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_torch_is_zero_copy(dtype):
    t = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    x = pb.from_dlpack(t)
    assert t.data_ptr() == x._buf.address
    np.testing.assert_array_equal(t.numpy(), x.numpy())
    strided = pb.from_dlpack(t[:, ::2])
    np.testing.assert_array_equal(strided.numpy(), t[:, ::2].numpy())


def test_derivatives_agree_with_torch():
    """The conventions at kinks and ties, and for complex numbers, are PyTorch's."""
    cases = [
        (lambda m, x: m.abs(x), [-1.0, 0.0, 2.0]),
        (lambda m, x: m.maximum(x, x * 0 + 1.0), [0.5, 1.0, 2.0]),
        (lambda m, x: m.clip(x, -1.0, 1.0), [-1.0, 0.0, 1.0, 3.0]),
        (lambda m, x: m.sqrt(x), [0.0, 4.0]),
        (lambda m, x: x**2, [0.0, -3.0]),
        (lambda m, x: (x * x * x).sum() * m.sign(x), [1.0, 0.0]),
        (lambda m, x: m.cumprod(x, 0), [2.0, 0.0, 3.0]),
        (lambda m, x: m.cummax(x, 0)[0] if m is torch else m.cummax(x, 0), [1.0, 2.0, 2.0, 0.5]),
        (lambda m, x: m.amax(x) if m is torch else m.max(x), [1.0, 3.0, 3.0]),
        (lambda m, x: m.prod(x), [0.0, 2.0, 0.0]),
    ]
    for f, values in cases:
        ours = pb.tensor(values, dtype="float64", requires_grad=True)
        theirs = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        f(pb, ours).sum().backward()
        f(torch, theirs).sum().backward()
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy())


def test_complex_gradients_agree_with_torch():
    values = [1 + 2j, -0.5 + 0.1j, 3 - 1j]
    for f in (
        lambda m, z: m.abs(z).sum(),
        lambda m, z: m.real(m.exp(z) * z).sum(),
        lambda m, z: m.angle(z).sum(),
        lambda m, z: m.imag(z**3 / (z + 1)).sum(),
        lambda m, z: m.real(m.conj(z) * m.sqrt(z)).sum(),
    ):
        ours = pb.tensor(values, dtype="complex128", requires_grad=True)
        theirs = torch.tensor(values, dtype=torch.complex128, requires_grad=True)
        f(pb, ours).backward()
        f(torch, theirs).backward()
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)
