"""Every differentiable operation, orders 1 to 3, reverse and forward mode, against finite
differences.
"""

from __future__ import annotations

import numpy as np
import pytest
from matrix import (
    Case,
    along_line,
    arrays_of,
    call,
    cases,
    derivative_case,
    derivatives,
    differentiable,
    differentiable_leaves,
    function_of,
    samples,
    weights,
)

import pullback as pb
from pullback.ir.op import REGISTRY, Op

RTOL = {1: 1e-7, 2: 1e-6, 3: 1e-5}


@pytest.mark.parametrize("case", cases((pb.float64, pb.complex128), derivative=True), ids=str)
def test_orders_one_to_three_agree_with_finite_differences(case: Case):
    f, xs = derivative_case(case)
    phi = along_line(f, xs, case.sample.order)
    for k, exact, differences in derivatives(phi, case.sample.order):
        assert np.isfinite(exact), f"order {k} is {exact}"
        scale = max(abs(exact), abs(differences), 1.0)
        assert abs(exact - differences) <= RTOL[k] * scale * 10, (
            f"order {k}: {exact} != {differences}"
        )


@pytest.mark.parametrize("case", cases((pb.float64, pb.complex128), derivative=True), ids=str)
def test_forward_mode_agrees_with_reverse_mode(case: Case):
    f, xs = derivative_case(case)
    phi = along_line(f, xs, case.sample.order)
    zero, one = pb.tensor(0.0, dtype="float64"), pb.tensor(1.0, dtype="float64")
    first = pb.grad(phi)(zero).item()
    forward = pb.jvp(phi, (zero,), (one,))[1].item()
    np.testing.assert_allclose(forward, first, rtol=1e-9, atol=1e-9)
    if case.sample.order >= 2:
        second = pb.grad(pb.grad(phi))(zero).item()
        over_reverse = pb.hvp(phi, (zero,), (one,)).item()
        over_forward = pb.grad(lambda t: pb.jvp(phi, (t,), (one,))[1])(zero).item()
        twice = pb.jvp(lambda t: pb.jvp(phi, (t,), (one,))[1], (zero,), (one,))[1].item()
        np.testing.assert_allclose(
            [over_reverse, over_forward, twice], second, rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize(
    "case",
    cases((pb.float64, pb.float32, pb.float16, pb.bfloat16, pb.complex64), derivative=True),
    ids=str,
)
def test_gradients_have_the_type_of_their_operands(case: Case):
    f, xs = derivative_case(case)
    variables = [pb.tensor(x, requires_grad=True) for x in xs]
    outs = f(*variables)
    for out, w in zip(outs, weights(outs, 3), strict=True):
        if out.requires_grad:
            out.backward(w, retain_graph=True)
    for v in variables:
        if v.grad is not None:
            assert (v.grad.shape, v.grad.dtype) == (v.shape, v.dtype)


@pytest.mark.parametrize(
    "case", cases((pb.float32, pb.float16, pb.bfloat16), derivative=True), ids=str
)
def test_first_order_in_narrow_dtypes_is_that_of_float64(case: Case):
    f, xs = derivative_case(case)
    if case.sample.order < 1:
        pytest.skip("not differentiable here")
    wide = [pb.astype(x, pb.float64) for x in xs]
    outs = f(*xs)
    ws = weights(outs, 5)
    narrow = pb.vjp(f, *xs)[1](ws)
    exact = pb.vjp(f, *wide)[1]([pb.astype(w, o.dtype) for w, o in zip(ws, f(*wide), strict=True)])
    for a, b in zip(outs, f(*wide), strict=True):
        if not np.allclose(
            a.numpy().astype(b.numpy().dtype), b.numpy(), rtol=0.1, atol=0.1, equal_nan=True
        ):
            pytest.skip("the operation draws other numbers in another dtype")
    eps = max(pb.finfo(d).eps for d in (case.dtype, *[o.dtype for o in outs]))
    for a, b in zip(narrow, exact, strict=True):
        scale = float(np.max(np.abs(b.numpy()), initial=0.0))
        np.testing.assert_allclose(
            a.numpy().astype(np.float64), b.numpy(), rtol=64 * eps, atol=64 * eps * max(scale, 1e-3)
        )


@pytest.mark.parametrize("case", cases((pb.float64,)), ids=str)
def test_no_gradient_claims_are_right(case: Case):
    """Without derivative there is no floating output, or one that small steps don't move."""
    if differentiable(case.entry):
        pytest.skip("has derivatives")
    leaves = differentiable_leaves(case.sample)
    outs = [o for o in arrays_of(call(case.entry, case.sample)) if o.dtype.is_inexact]
    if not leaves or not outs:
        return
    f = function_of(case.entry, case.sample)
    for step in (1e-7, -1e-7):
        for x, y in zip(f(*[pb.tensor(a + step) for a in leaves]), outs, strict=True):
            np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.parametrize("key", sorted(REGISTRY))
def test_rules_save_only_what_they_name(key: str):
    """What a node keeps alive is what the rules of its tracked operands ask for by name."""
    entry = REGISTRY[key]
    if not isinstance(entry, Op) or not entry.vjp:
        pytest.skip("no rules")
    for i, sample in enumerate(samples(entry, pb.float64)):
        leaves = differentiable_leaves(sample)
        variables = [pb.tensor(a, requires_grad=True) for a in leaves]
        for out in function_of(entry, sample)(*variables) if leaves else ():
            node = out.grad_fn
            if node is None or node.op is not entry:
                continue
            kept = {entry.name_of(j) for j, b in enumerate(node.saved[:-1]) if b is not None}
            named, output = named_by_rules(entry)
            assert kept <= named, f"sample {i} keeps {kept - named}"
            assert output or node.saved[-1] is None, f"sample {i} keeps its output"


def named_by_rules(entry: Op) -> tuple[set[str], bool]:
    """The operands that some rule reads, and whether one reads the output."""
    rules = [*entry.pull_rules.values(), *entry.push_rules.values()]
    named = {n for r in rules for n in r.reads}
    if entry.jvp == "linear":  # the operation is applied to tangents, beside its other operands
        named |= set(entry.names) - set(entry.vjp)
    elif entry.jvp == "multilinear":
        named |= set(entry.names)
    return named, any(r.reads_output for r in rules)
