"""Attention against torch.nn.functional: every option, values and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")
attention = pytest.importorskip("torch.nn.attention")
functional = torch.nn.functional

RTOL = {"float32": 2e-5, "float64": 1e-11}
RNG = np.random.default_rng(3)
MASK = RNG.random((5, 7)) < 0.6
MASK[2] = False
CASES: dict[str, tuple[tuple, dict[str, Any]]] = {
    "plain": (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)), {}),
    "two axes": (((5, 4), (7, 4), (7, 2)), {}),
    "a mask": (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)), {"attn_mask": MASK}),
    "a mask per batch": (
        ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)),
        {"attn_mask": RNG.random((2, 1, 1, 7)) < 0.7},
    ),
    "an additive mask": (
        ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)),
        {"attn_mask": RNG.normal(size=(3, 5, 7))},
    ),
    "causal": (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)), {"is_causal": True}),
    "causal, fewer keys": (((2, 3, 7, 4), (2, 3, 5, 4), (2, 3, 5, 2)), {"is_causal": True}),
    "scale": (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)), {"scale": 1.3}),
    "grouped heads": (((2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)), {"enable_gqa": True}),
    "grouped heads, mask": (
        ((2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)),
        {"enable_gqa": True, "attn_mask": RNG.random((2, 6, 5, 7)) < 0.8},
    ),
    "empty batch": (((0, 3, 5, 4), (0, 3, 7, 4), (0, 3, 7, 2)), {}),
}


def given(name: str, dtype: str) -> tuple[list[np.ndarray], dict[str, Any], dict[str, Any]]:
    shapes, options = CASES[name]
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s).astype(dtype) for s in shapes]
    ours, theirs = dict(options), dict(options)
    mask = options.get("attn_mask")
    if mask is not None:
        mask = mask if mask.dtype == bool else mask.astype(dtype)
        ours["attn_mask"], theirs["attn_mask"] = pb.tensor(mask), torch.tensor(mask)
    return arrays, ours, theirs


def close(x: Any, y: Any, dtype: str) -> None:
    y = y.detach().numpy()
    scale = np.abs(y).max(initial=1.0)
    np.testing.assert_allclose(x.detach().numpy(), y, rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_torch(name: str, dtype: str):
    arrays, ours, theirs = given(name, dtype)
    q, k, v = (pb.tensor(a, requires_grad=True) for a in arrays)
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    x = pb.nn.scaled_dot_product_attention(q, k, v, **ours)
    with attention.sdpa_kernel(attention.SDPBackend.MATH):  # the one with second derivatives
        t = functional.scaled_dot_product_attention(*ts, **theirs)
    close(x, t, dtype)
    values = [x.detach() for x in (q, k, v)]
    g = torch.autograd.grad((t * t).sum(), ts, create_graph=True)
    for a, b in zip(gradients(ours, *values), g, strict=True):
        close(a, b, dtype)
    second = pb.grad(lambda *a: sum((d * d).sum() for d in gradients(ours, *a)), (0, 1, 2))(*values)
    h = torch.autograd.grad(sum((d * d).sum() for d in g), ts)
    for a, b in zip(second, h, strict=True):
        close(a, b, dtype)


def gradients(options: dict[str, Any], *xs: Any) -> Any:
    def loss(*a: Any) -> Any:
        y = pb.nn.scaled_dot_product_attention(*a, **options)
        return (y * y).sum()

    return pb.grad(loss, (0, 1, 2))(*xs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str):
    arrays = [np.random.default_rng(i).normal(size=(2, 6, 4)).astype("float32") for i in range(3)]
    q, k, v = (pb.astype(pb.tensor(a), dtype) for a in arrays)
    ts = [torch.tensor(a).to(getattr(torch, dtype)).double() for a in arrays]
    x = pb.nn.scaled_dot_product_attention(q, k, v)
    t = functional.scaled_dot_product_attention(*ts)
    assert x.dtype.name == dtype
    eps = pb.finfo(x.dtype).eps
    np.testing.assert_allclose(x.numpy().astype("float64"), t.numpy(), rtol=eps, atol=eps)


# -- several heads ---------------------------------------------------------------------------------

HIDDEN = np.zeros((2, 4), bool)
HIDDEN[0, 3] = HIDDEN[1, :2] = True
MODULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cross": ({}, {}),
    "self": ({}, {"same": True}),
    "weights of each head": ({}, {"average_attn_weights": False}),
    "no weights": ({}, {"need_weights": False}),
    "no bias": ({"bias": False}, {}),
    "batch first": ({"batch_first": True}, {}),
    "padding": ({}, {"key_padding_mask": HIDDEN}),
    "padding, no weights": ({}, {"key_padding_mask": HIDDEN, "need_weights": False}),
    "additive padding": ({}, {"key_padding_mask": RNG.normal(size=(2, 4))}),
    "mask": ({}, {"attn_mask": np.arange(12).reshape(3, 4) % 5 == 0}),
    "mask per head": ({}, {"attn_mask": np.arange(48).reshape(4, 3, 4) % 5 == 0}),
    "additive mask": ({}, {"attn_mask": RNG.normal(size=(3, 4)), "need_weights": False}),
    "mask and padding": (
        {},
        {"attn_mask": np.arange(12).reshape(3, 4) % 5 == 0, "key_padding_mask": HIDDEN},
    ),
    "additive bias": ({"add_bias_kv": True}, {"key_padding_mask": HIDDEN}),
    "additive zero": ({"add_zero_attn": True}, {"attn_mask": RNG.normal(size=(3, 4))}),
    "other widths": ({"kdim": 5, "vdim": 2}, {}),
}


def mha_inputs(module: dict[str, Any], call: dict[str, Any], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    q = rng.normal(size=(3, 2, 4)).astype(dtype)
    k = rng.normal(size=(4, 2, module.get("kdim", 4))).astype(dtype)
    v = rng.normal(size=(4, 2, module.get("vdim", 4))).astype(dtype)
    arrays = [q] if call.get("same") else [q, k, v]
    return [a.swapaxes(0, 1).copy() for a in arrays] if module.get("batch_first") else arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODULES)
def test_several_heads_are_those_of_torch(name: str, dtype: str):
    options, call = MODULES[name]
    torch.manual_seed(1)
    module = torch.nn.MultiheadAttention(4, 2, **options).to(getattr(torch, dtype))
    if module.in_proj_bias is not None:
        torch.nn.init.normal_(module.in_proj_bias)
        torch.nn.init.normal_(module.out_proj.bias)
    arrays = mha_inputs(options, call, dtype)
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    masks = {k: v for k, v in call.items() if isinstance(v, np.ndarray)}
    masks = {k: v if v.dtype == bool else v.astype(dtype) for k, v in masks.items()}
    rest = {k: v for k, v in call.items() if k not in masks and k != "same"}
    theirs = module(*(ts * 3)[:3], **{k: torch.tensor(v) for k, v in masks.items()}, **rest)
    params = {n: pb.tensor(p.detach().numpy()) for n, p in module.named_parameters()}

    def f(xs: Any, p: Any) -> Any:
        packed = p.get("in_proj_weight")
        separate = tuple(p.get(f"{n}_proj_weight") for n in "qkv")
        query, key, value = (xs * 3)[:3]
        return pb.nn.multi_head_attention(
            query,
            key,
            value,
            2,
            separate if packed is None else packed,
            p.get("in_proj_bias"),
            p["out_proj.weight"],
            p.get("out_proj.bias"),
            bias_k=p.get("bias_k"),
            bias_v=p.get("bias_v"),
            add_zero_attn=bool(options.get("add_zero_attn")),
            batch_first=bool(options.get("batch_first")),
            **{k: pb.tensor(v) for k, v in masks.items()},
            **rest,
        )

    xs = [pb.tensor(a) for a in arrays]
    ours = f(xs, params)
    assert (ours[1] is None) == (theirs[1] is None)
    for x, t in zip(ours, theirs, strict=True):
        if t is not None:
            close(x, t, dtype)
    dx, dp = pb.grad(lambda xs, p: (f(xs, p)[0] ** 2).sum(), (0, 1))(xs, params)
    named = dict(module.named_parameters())
    g = torch.autograd.grad((theirs[0] ** 2).sum(), [*ts, *named.values()])
    for a, b in zip([*dx, *[dp[n] for n in named]], g, strict=True):
        close(a, b, dtype)


def test_the_functional_form_takes_torchs_arguments():
    torch.manual_seed(1)
    m = torch.nn.MultiheadAttention(4, 2, dropout=0.5).double()
    x = np.random.default_rng(2).normal(size=(3, 2, 4))
    given: Any = (4, 2, m.in_proj_weight, m.in_proj_bias, None, None, False, 0.5)
    last: Any = (m.out_proj.weight, m.out_proj.bias)
    t = torch.tensor(x)
    theirs = functional.multi_head_attention_forward(t, t, t, *given, *last, training=False)
    args: Any = [
        pb.tensor(a.detach().numpy()) if torch.is_tensor(a) else a for a in (*given, *last)
    ]
    y = pb.tensor(x)
    ours = pb.nn.multi_head_attention_forward(y, y, y, *args, training=False)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, "float64")
