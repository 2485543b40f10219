"""`pullback.torch` computes what PyTorch computes, on torch's own memory, with clear errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pullback.torch as pbt  # noqa: E402
from interop.torch_cases import CASES, NAMES, tensors  # noqa: E402
from pullback.core.errors import DeviceError, DTypeError, ShapeError  # noqa: E402

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
]  # fmt: skip
ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 1e-1}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_agrees_with_torch(case, dtype):
    if case.name == "index_add" and dtype is torch.uint8:
        pytest.skip("alpha is negative")
    args = tensors(case, dtype)
    ours, theirs = case.ours(*args), case.theirs(*args)
    assert ours.dtype is dtype and ours.shape == theirs.shape
    rounding = ROUNDING.get(dtype, 1e-6)
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_any_strides_are_read_in_place(case):
    args = tensors(case)
    wide = [torch.empty(*t.shape, 2, dtype=t.dtype)[..., 1].copy_(t) for t in args]
    turned = [t.mT.contiguous().mT if t.ndim > 1 else t for t in args]
    for other in (wide, turned):
        assert torch.equal(case.ours(*other), case.ours(*args))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_small_indices(dtype):
    x, i = torch.randn(5, 3), torch.tensor([4, 0, 4])
    assert torch.equal(pbt.gather_with_index_add(x, i.to(dtype)), x[i])
    assert torch.equal(pbt.segment_sum(x[:3], i.to(dtype), 5), pbt.segment_sum(x[:3], i, 5))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_no_indices(shape):
    x, i = torch.randn(4, 2), torch.zeros(shape, dtype=torch.int64)
    assert pbt.gather_with_index_add(x, i).shape == (*shape, 2)
    nothing = torch.zeros(*shape, 2)
    assert torch.equal(pbt.segment_sum(nothing, i, 3), torch.zeros(3, 2))
    empty = torch.zeros(4, 0)
    assert pbt.gather_with_index_add(empty, torch.tensor([1, 2])).shape == (2, 0)


def test_src_may_be_larger_than_the_index():
    x, i, src = torch.zeros(4, 5), torch.tensor([[2, 0, 2], [1, 1, 1]]), torch.randn(3, 4)
    for dim in (0, 1):
        ours, theirs = pbt.scatter_add(x, dim, i, src), x.scatter_add(dim, i, src)
        torch.testing.assert_close(ours, theirs)


def test_conjugated_and_negated_views():
    z = torch.randn(4, dtype=torch.complex64)
    i = torch.tensor([3, 3, 0])
    assert torch.equal(pbt.gather_with_index_add(z.conj(), i), z.conj()[i])
    assert torch.equal(pbt.gather_with_index_add(z.conj().imag, i), z.conj().imag[i])


def test_the_result_is_new_memory():
    x, i = torch.zeros(3), torch.tensor([0, 1])
    for out in (pbt.gather_with_index_add(x, i), pbt.index_add(x, 0, i, torch.ones(2))):
        out += 1
    assert torch.equal(x, torch.zeros(3))
    nothing = torch.zeros(0, dtype=torch.int64)
    out = pbt.index_add(x, 0, nothing, torch.zeros(0))
    out += 1
    assert torch.equal(x, torch.zeros(3))


def test_memory_goes_back():
    from pullback.runtime.cpu import native

    i = torch.randint(0, 10, (100_000,))
    gc.collect()
    before = native.memory()["live"]
    out = pbt.gather_with_index_add(torch.randn(10), i)
    assert native.memory()["live"] >= before + out.numel() * 4
    part = out[5:7]
    del out
    assert part.sum().isfinite()
    del part
    gc.collect()
    assert native.memory()["live"] <= before


def test_padding_gets_no_gradient():
    i = torch.tensor([[0, 2, 2, 1]])
    ours, theirs = (torch.arange(6.0).reshape(3, 2).requires_grad_() for _ in range(2))
    pbt.embedding(i, ours, padding_idx=-1).pow(2).sum().backward()
    torch.nn.functional.embedding(i, theirs, padding_idx=-1).pow(2).sum().backward()
    assert torch.equal(ours.grad, theirs.grad) and not ours.grad[2].any()


def test_embedding_module_is_a_drop_in():
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(7, 3, padding_idx=0)
    ours = pbt.Embedding(7, 3, padding_idx=0)
    ours.load_state_dict(theirs.state_dict())
    i = torch.tensor([[0, 3], [6, 3]])
    assert torch.equal(ours(i), theirs(i))
    with pytest.raises(DTypeError, match="max_norm"):
        pbt.Embedding(7, 3, max_norm=1.0)


def test_deterministic_mode_is_happy():
    torch.use_deterministic_algorithms(True)
    try:
        for case in CASES:
            args = tensors(case, grad=True)
            torch.autograd.grad(case.ours(*args).pow(2).sum(), args)
    finally:
        torch.use_deterministic_algorithms(False)


# -- same bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float16], ids=str)
def test_one_bit_pattern_for_any_number_of_threads(threads, dtype):
    generator = torch.Generator().manual_seed(3)
    i = torch.randint(0, 20, (200_000,), generator=generator)
    g = torch.randn(200_000, generator=generator).to(dtype)
    found = set()
    for n in (1, 2, 3, 2, 1):
        threads(n)
        x = torch.zeros(20, dtype=dtype, requires_grad=True)
        pbt.gather_with_index_add(x, i).backward(g)
        found.add(torch.view_as_real(x.grad).numpy().tobytes() if dtype.is_complex
                  else x.grad.numpy().tobytes())  # fmt: skip
    assert len(found) == 1


# -- plans -----------------------------------------------------------------------------------------

PLACES = torch.tensor([[2, 0, 2, -1, 2]])


def planned_calls(index):
    """The family with one set of indices, as a plan or not."""
    x, u = torch.arange(8.0).reshape(4, 2), torch.arange(10.0).reshape(1, 5, 2) / 7
    return [
        pbt.gather_with_index_add(x, index),
        pbt.embedding(index, x),
        pbt.segment_sum(u, index, 4),
        pbt.index_add(x, 0, index, u),
    ]


def test_a_plan_stands_for_its_indices():
    plan = pbt.scatter_plan(PLACES, 4)
    assert plan.size == 4 and plan.count == 5 and plan.nbytes > 0
    assert "into 4" in repr(plan)
    for ours, theirs in zip(planned_calls(plan), planned_calls(PLACES), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    flat = pbt.scatter_plan(PLACES[0], 4)
    x = torch.randn(2, 4, 3)
    assert torch.equal(pbt.index_select(x, 1, flat), x[:, PLACES[0]])
    u = x[0, :1].expand(5, 3)
    assert torch.equal(pbt.segment_sum(u, flat), pbt.segment_sum(u, PLACES[0], 4))


def test_a_plan_keeps_its_own_indices():
    i = torch.tensor([0, 1, 1])
    plan = pbt.scatter_plan(i, 3)
    i.fill_(2)
    ones = torch.ones(3)
    assert pbt.segment_sum(ones, plan).tolist() == [1, 2, 0]


def test_a_plan_lives_as_long_as_a_graph_needs_it():
    plan = pbt.scatter_plan(torch.tensor([0, 1, 1]), 3)
    x = torch.ones(3, requires_grad=True)
    y = pbt.gather_with_index_add(x, plan).pow(2).sum()
    gone = weakref.ref(plan)
    del plan
    gc.collect()
    assert gone() is None
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    assert g.tolist() == [2, 4, 0]
    (h,) = torch.autograd.grad(g.sum(), x)
    assert h.tolist() == [2, 4, 0]


def test_a_plan_for_another_size_is_refused():
    plan = pbt.scatter_plan(torch.tensor([0, 1]), 3)
    with pytest.raises(ShapeError, match="axis of size 3, got one of size 4"):
        pbt.gather_with_index_add(torch.ones(4), plan)
    with pytest.raises(DTypeError, match="does not take a plan"):
        call: Any = pbt.gather
        call(torch.ones(3), 0, plan)


# -- errors ----------------------------------------------------------------------------------------

X, IX, U = torch.ones(4, 3), torch.tensor([0, 1]), torch.ones(2, 3)
BAD = torch.tensor([[0, 1], [9, -7]])
PAIR = IX[None].expand(2, 2)
read, put = pbt.gather_with_index_add, pbt.index_put
anything: Any = [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(X, BAD), "gather_with_index_add: index 9 at position 2 .* size 4"),
        (lambda: pbt.index_select(X, 1, BAD[1, 1:]), "index_select: index -7 at .* size 3"),
        (lambda: pbt.embedding(BAD, X), "embedding: index 9 at position 2"),
        (lambda: pbt.index_add(X, 0, BAD[1], U), "index_add: index 9 at position 0"),
        (lambda: pbt.segment_sum(U, BAD[1], 4), "segment_sum: index 9 at position 0"),
        (lambda: pbt.scatter_add(X, 0, BAD, X), "scatter_add: index 9 at position 2"),
        (lambda: put(X, (IX, BAD[1]), U[:, 0], True), "index_put: index 9 at .* size 3"),
        (lambda: pbt.scatter_plan(BAD, 4), "scatter_plan: index 9"),
    ],
)
def test_an_index_out_of_range_is_named_at_once(call, message):
    with pytest.raises(IndexError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(X, X), "indices must be integers, got torch.float32"),
        (lambda: read(X, IX.bool()), "got torch.bool"),
        (lambda: read(anything, IX), "must be a torch.Tensor, got list"),
        (lambda: read(X, anything), "indices must be a torch.Tensor, got list"),
        (lambda: read(X.to_sparse(), IX), "must be dense"),
        (lambda: read(X.to(torch.float8_e5m2), IX), "unknown dtype, got torch.float8"),
        (lambda: pbt.index_add(X, 0, IX, U.double()), "torch.float32, got torch.float64"),
        (lambda: pbt.segment_sum(U, IX), "num_segments is missing"),
        (lambda: put(X, (IX,), U), "only accumulates"),
        (lambda: put(X, IX, U, True), "tuple of tensors"),
        (lambda: put(X, (IX.to(torch.uint8),), U, True), "stood for a mask"),
    ],
)
def test_a_wrong_kind_of_argument_is_a_type_error(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(X, IX, 2), "within 2 dimensions, got 2"),
        (lambda: pbt.index_select(X, 0, BAD), "one dimension"),
        (lambda: pbt.index_add(X, 0, IX, X), r"source must have shape \(2, 3\)"),
        (lambda: pbt.scatter_add(X, 0, IX, U), "as many dimensions as the data, 2"),
        (lambda: pbt.scatter_add(X, 0, PAIR, U[:1]), "must not reach over src"),
        (lambda: pbt.gather(X, 0, PAIR.repeat(1, 2)), "reaches over the data beside dimension 0"),
        (lambda: pbt.segment_sum(X, IX, 3), "every row needs one segment"),
        (lambda: put(X, (IX,), X, True), r"broadcast to \(2, 3\)"),
        (lambda: pbt.index(X, (IX, IX, IX)), "1 to 2 index tensors"),
        (lambda: pbt.index(X, (IX.bool(),)), r"a mask must have the shape .* \(4,\)"),
        (lambda: pbt.embedding(IX, X[0]), "two dimensions"),
        (lambda: pbt.embedding(IX, X, 4), "padding_idx must be within 4 rows"),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_tensors_on_different_devices():
    with pytest.raises(DeviceError, match="on cpu, got meta"):
        read(X, IX.to("meta"))


def test_importing_pullback_does_not_import_torch():
    code = "import sys, pullback; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
