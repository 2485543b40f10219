"""Derivatives of `pullback.torch`: any order, both modes, batched, and through torch.compile."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # pyright: ignore[reportMissingImports]  # noqa: E402

import pullback.torch as pbt  # noqa: E402
from interop.torch_cases import CASES, I5, NAMES, tensors  # noqa: E402
from pullback.interop import torch_operators  # noqa: E402

# PyTorch warns of its own use of what it no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

MASKED = "index by mask"  # its shape depends on values
NAMED = dict(zip(NAMES, CASES, strict=True))


def smooth(case):
    """A scalar of the case's result that has derivatives of every order."""
    return lambda *args: case.ours(*args).sin().sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_first_and_second_order_in_both_modes(case, dtype):
    args = tensors(case, dtype, grad=True)
    assert torch.autograd.gradcheck(case.ours, args, check_forward_ad=True, fast_mode=True)
    square = lambda *args: case.ours(*args) ** 2  # noqa: E731
    assert torch.autograd.gradgradcheck(square, args, check_fwd_over_rev=True, fast_mode=True)


def test_the_slow_checks_agree():
    for name in ("rows", "index_add", "index_put"):
        args = tensors(NAMED[name], torch.complex128, grad=True)
        assert torch.autograd.gradcheck(NAMED[name].ours, args, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda *a: NAMED[name].ours(*a) ** 2, args)  # noqa: B023


def nth_gradient(f, args, order):
    result = f(*args)
    for _ in range(order):
        grads = torch.autograd.grad(result, args, create_graph=True)
        result = sum((g * g).sum() for g in grads)
    return result


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_third_order_is_that_of_torch(case):
    found = []
    for f in (case.ours, case.theirs):
        args = tensors(case, grad=True)
        found.append(nth_gradient(lambda *a, f=f: f(*a).sin().sum(), args, 3))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rows", "embedding", "inner axis"])
def test_padding_and_sparse_use_of_gradients(name):
    """Only what is asked for is computed: other arguments may be integers or not tracked."""
    (x,) = tensors(NAMED[name], grad=True)
    assert NAMED[name].ours(x.detach()).requires_grad is False
    (g,) = torch.autograd.grad(NAMED[name].ours(x).sum(), x)
    assert g.shape == x.shape


def test_padding_through_two_orders():
    i = torch.tensor([0, 2, 2, 1])
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    found = []
    for f in (pbt.embedding, torch.nn.functional.embedding):
        found.append(nth_gradient(lambda w, f=f: f(i, w, padding_idx=2).sin().sum(), [w], 2))
    torch.testing.assert_close(*found)


# -- torch.func ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if c.name != MASKED], ids=lambda c: c.name)
def test_vmap_of_values_is_a_loop(case):
    batches = [torch.stack([t, 2 * t, t.sin()], 1) for t in tensors(case)]
    loop = torch.stack([case.ours(*[b[:, k] for b in batches]) for k in range(3)])
    assert torch.equal(torch.func.vmap(case.ours, in_dims=1)(*batches), loop)
    if len(batches) == 2:  # only one of two is batched
        x, u = batches
        loop = torch.stack([case.ours(x[:, 0], u[:, k]) for k in range(3)])
        assert torch.equal(torch.func.vmap(case.ours, in_dims=(None, 1))(x[:, 0], u), loop)
        loop = torch.stack([case.ours(x[:, k], u[:, 0]) for k in range(3)])
        assert torch.equal(torch.func.vmap(case.ours, in_dims=(1, None))(x, u[:, 0]), loop)


INDEXED = {
    "gather": (lambda x, i: pbt.gather_with_index_add(x, i), (4, 2)),
    "padded": (lambda x, i: pbt.embedding(i, x, padding_idx=1), (4, 2)),
    "inner": (lambda x, i: pbt.gather_with_index_add(x, i, 1), (2, 4)),
    "segments": (lambda x, i: pbt.segment_sum(x, i, 6), (3, 2)),
    "index_add": (lambda x, i: pbt.index_add(x, 0, i, x[:3] ** 2), (4, 2)),
    "several": (lambda x, i: pbt.index(x, (i, i // 2)), (4, 2)),
    "put": (lambda x, i: pbt.index_put(x, (i, i // 2), x[:3, 0], True), (4, 2)),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (1, 0)])
def test_vmap_of_indices_is_a_loop_with_its_gradients(name, in_dims):
    f, shape = INDEXED[name]
    i = torch.tensor([[0, 3, 3], [1, 1, 1], [2, 0, 1]])
    xs = torch.randn(3, *shape, dtype=torch.float64)
    x = xs[0] if in_dims[0] is None else xs.movedim(0, in_dims[0])
    slope = torch.func.grad(lambda x, i: f(x, i).sin().sum())
    for g in (f, slope):
        loop = torch.stack([g(xs[0 if in_dims[0] is None else k], i[k]) for k in range(3)])
        assert torch.equal(torch.func.vmap(g, in_dims=in_dims)(x, i), loop)


@pytest.mark.parametrize("name", ["buffer", "inner axis", "index_add", "scatter_add", "index_put"])
def test_functional_transforms(name):
    f, args = smooth(NAMED[name]), tensors(NAMED[name])
    g = smooth(NAMED[name]._replace(ours=NAMED[name].theirs))
    tangents = tuple(t.cos() for t in args)
    for transform in (
        lambda f: torch.func.grad(f)(*args),
        lambda f: torch.func.jvp(f, tuple(args), tangents),
        lambda f: torch.func.hessian(f)(*args),
        lambda f: torch.func.jacrev(torch.func.jacrev(f))(*args),
        lambda f: torch.func.jvp(torch.func.grad(f), tuple(args), tangents),
    ):
        torch.testing.assert_close(transform(f), transform(g), rtol=1e-10, atol=1e-10)


def test_forward_mode_with_one_tangent():
    x, u = tensors(NAMED["index_add"])
    for which in (0, 1):
        found = []
        for f in (NAMED["index_add"].ours, NAMED["index_add"].theirs):
            part = (lambda v, f=f: f(v, u)) if which == 0 else (lambda v, f=f: f(x, v))
            at = x if which == 0 else u
            found.append(torch.func.jvp(part, (at,), (at.cos(),)))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_forward_mode_where_nothing_is_recorded(case):
    args = tensors(case)
    found = []
    for f in (case.ours, case.theirs):
        with torch.no_grad(), forward_ad.dual_level():
            result = f(*(forward_ad.make_dual(t, t.cos()) for t in args))
            found.append(forward_ad.unpack_dual(result).tangent)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_nothing_is_recorded_where_nobody_asks(case, monkeypatch):
    args = tensors(case, grad=True)
    result = case.ours(*args)
    for name in ("_Gather", "_ScatterSum", "_ScatterAdd"):
        monkeypatch.setattr(getattr(torch_operators, name), "apply", None)
    with torch.no_grad():
        assert torch.equal(case.ours(*args), result)
    assert torch.equal(case.ours(*(t.detach() for t in args)), result)
    torch.autograd.grad(result, args, result)  # the first order alone
    with pytest.raises(TypeError):
        case.ours(*args)


# -- torch.compile ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def together(f):
    """The result and the gradients, and the gradient of their squares."""

    def both(*args):
        value = f(*args)
        grads = torch.autograd.grad(value.sin().sum(), args)
        return value, *grads

    return both


@pytest.mark.parametrize("case", [c for c in CASES if c.name != MASKED], ids=lambda c: c.name)
def test_compiled_as_one_graph(case):
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager")
    found = [together(f)(*tensors(case, grad=True)) for f in (compiled, case.ours)]
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def model(x, w, i):
    """A chain with every kind of use in it."""
    rows = pbt.gather_with_index_add(w, i).tanh() * x
    sums = pbt.segment_sum(rows, i, w.shape[0])
    more = pbt.index_add(sums * 2, 0, i, rows)
    return pbt.index_put(more, (i, i % w.shape[1]), x[:, 0], accumulate=True).sin().sum()


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic):
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for n in (5, 6) if dynamic else (5,):
        x = torch.randn(n, 3, requires_grad=True)
        w = torch.randn(n + 2, 3, requires_grad=True)
        i = torch.arange(n) // 2
        ours = torch.autograd.grad(compiled(x, w, i), (x, w))
        theirs = torch.autograd.grad(model(x, w, i), (x, w))
        torch.testing.assert_close(ours, theirs)


def test_transforms_inside_a_compiled_function():
    (x,) = tensors(NAMED["rows"])
    f = smooth(NAMED["rows"])
    batch = torch.stack([x, x + 1])
    for transform, at in (
        (torch.func.grad(f), x),
        (lambda x: torch.func.jvp(f, (x,), (x,))[1], x),
        (torch.func.vmap(NAMED["rows"].ours), batch),
    ):
        compiled = torch.compile(transform, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(at), transform(at))


def test_a_plan_goes_through_the_compiler():
    plan = pbt.scatter_plan(I5, 5)
    f = torch.compile(
        lambda x, plan: pbt.gather_with_index_add(x, plan), fullgraph=True, backend="aot_eager"
    )
    x = torch.randn(5, 2, requires_grad=True)
    y = f(x, plan)
    assert torch.equal(y, x[I5])
    (g,) = torch.autograd.grad(y.sin().sum(), x)
    (h,) = torch.autograd.grad(pbt.gather_with_index_add(x, plan).sin().sum(), x)
    assert torch.equal(g, h)


def test_the_operators_are_well_formed():
    x = torch.randn(4, 3, requires_grad=False)
    i = torch.tensor([[0], [3], [3]])
    calls = {
        torch.ops.pullback.gather.default: (x, [i], None, "gather"),
        torch.ops.pullback.scatter_sum.default: (x[:3], [i], [4, 3], None, "sum"),
        torch.ops.pullback.scatter_add.default: (x, x[:3], [i], None, "add"),
    }
    for operator, args in calls.items():
        torch.library.opcheck(operator, args)


def test_an_index_out_of_range_is_found_in_compiled_code():
    f = torch.compile(lambda x, i: pbt.index_select(x, 0, i), fullgraph=True, backend="aot_eager")
    with pytest.raises(IndexError, match=r"index_select: index 7 at position 1 .* size 4"):
        f(torch.ones(4, 2), torch.tensor([0, 7]))
