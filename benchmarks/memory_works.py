"""Deep networks for `pullback bench memory`, in the words of three libraries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import pullback as pb

__all__ = ["PLANS", "WORKS", "Ready", "Work", "ready"]

Function = Callable[..., Any]
SHARES = (100, 50, 30, 20)  # % of the peak without a budget
PLANS = {
    "pullback": ["free", *[f"{s}%" for s in SHARES], "checkpoint 6"],
    "torch": ["free", "checkpoint 1", "checkpoint 6"],
    "jax": ["free", "checkpoint 1", "checkpoint 6"],
}


class Words(NamedTuple):
    """What libraries name differently."""

    xp: Any
    array: Function
    permute: Function
    softmax: Function
    gelu: Function
    checkpoint: Function
    step: Callable[[Function, Any, Any], Ready]  # of a loss, parameters and the other arguments


class Ready(NamedTuple):
    """A compiled step: `run` returns when its results are there; the bytes that it plans."""

    run: Callable[[], Any]
    planned: int | None


class Work(NamedTuple):
    """A network: parameters of each layer, the other arguments, and a layer as a function."""

    layers: int
    batch: int
    parameters: Callable[[np.random.Generator], dict[str, np.ndarray]]
    arguments: Callable[[np.random.Generator, int], np.ndarray]
    layer: Callable[[Words, Any, Any], Any]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)


# -- a perceptron ----------------------------------------------------------------------------------

WIDTH = 256


def _dense(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"w": _normal(rng, WIDTH, WIDTH), "b": np.zeros(WIDTH, np.float32)}


def _dense_layer(words: Words, x: Any, p: Any) -> Any:
    return words.xp.tanh(x @ p["w"] + p["b"])


def _rows(rng: np.random.Generator, batch: int) -> np.ndarray:
    return rng.standard_normal((batch, WIDTH)).astype(np.float32)


# -- a transformer ---------------------------------------------------------------------------------

CHANNELS, TOKENS, HEADS = 128, 128, 4


def _block(rng: np.random.Generator) -> dict[str, np.ndarray]:
    d = CHANNELS
    scales = {k: np.ones(d, np.float32) for k in ("g1", "g2")}
    shifts = {k: np.zeros(d, np.float32) for k in ("b1", "b2")}
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    return scales | shifts | {k: _normal(rng, *shape) for k, shape in shapes.items()}


def _normalised(words: Words, x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1)[..., None]
    variance = ((x - mean) ** 2).mean(-1)[..., None]
    return (x - mean) / words.xp.sqrt(variance + 1e-5) * scale + shift


def _block_layer(words: Words, x: Any, p: Any) -> Any:
    n, head = x.shape[0], CHANNELS // HEADS
    h = _normalised(words, x, p["g1"], p["b1"]) @ p["qkv"]
    q, k, v = (
        words.permute(h[..., i * CHANNELS : (i + 1) * CHANNELS].reshape(n, TOKENS, HEADS, head),
                      (0, 2, 1, 3))
        for i in range(3)
    )  # fmt: skip
    weights = words.softmax(q @ words.permute(k, (0, 1, 3, 2)) * head**-0.5)
    mixed = words.permute(weights @ v, (0, 2, 1, 3)).reshape(n, TOKENS, CHANNELS)
    x = x + mixed @ p["out"]
    return x + words.gelu(_normalised(words, x, p["g2"], p["b2"]) @ p["up"]) @ p["down"]


def _sequences(rng: np.random.Generator, batch: int) -> np.ndarray:
    return rng.standard_normal((batch, TOKENS, CHANNELS)).astype(np.float32)


WORKS = {
    "mlp": Work(48, 4096, _dense, _rows, _dense_layer),
    "transformer": Work(24, 8, _block, _sequences, _block_layer),
}


# -- libraries -------------------------------------------------------------------------------------


def _ours(share: int | None) -> Words:
    def step(loss: Function, params: Any, x: Any) -> Ready:
        f = pb.value_and_grad(loss)
        free = pb.jit(f).lower(params, x).peak_bytes
        budget = None if share is None else free * share // 100
        jitted = pb.jit(f, memory=budget)
        planned = jitted.lower(params, x).peak_bytes
        return Ready(partial(jitted, params, x), planned)

    return Words(
        pb, pb.tensor, pb.permute_dims, lambda x: pb.nn.softmax(x, dim=-1), pb.nn.gelu,
        pb.checkpoint, step,
    )  # fmt: skip


def _torch() -> Words:
    torch = import_module("torch")
    checkpoint = import_module("torch.utils.checkpoint")

    def step(loss: Function, params: Any, x: Any) -> Ready:
        leaves = [v.requires_grad_() for p in params for v in p.values()]

        def run() -> Any:
            return torch.autograd.grad(loss(params, x), leaves)

        return Ready(run, None)

    def wrapped(f: Function) -> Function:
        return lambda *xs: checkpoint.checkpoint(f, *xs, use_reentrant=False)

    functional = torch.nn.functional
    return Words(
        torch, torch.tensor, torch.permute, lambda x: functional.softmax(x, -1), functional.gelu,
        wrapped, step,
    )  # fmt: skip


def _jax() -> Words:
    jax = import_module("jax")

    def step(loss: Function, params: Any, x: Any) -> Ready:
        compiled = jax.jit(jax.value_and_grad(loss)).lower(params, x).compile()
        stats = compiled.memory_analysis()
        planned = stats.temp_size_in_bytes + stats.output_size_in_bytes if stats else None
        return Ready(lambda: jax.block_until_ready(compiled(params, x)), planned)

    return Words(
        jax.numpy, jax.numpy.asarray, jax.numpy.permute_dims,
        lambda x: jax.nn.softmax(x, -1), partial(jax.nn.gelu, approximate=False),
        jax.checkpoint, step,
    )  # fmt: skip


def ready(library: str, work: Work, plan: str, batch: int) -> Ready:
    """A step of value and gradients of a network, compiled, that runs by a plan."""
    share = int(plan[:-1]) if plan.endswith("%") else None
    words = _ours(share) if library == "pullback" else _torch() if library == "torch" else _jax()
    rng = np.random.default_rng(0)
    params = [
        {k: words.array(v) for k, v in work.parameters(rng).items()} for _ in range(work.layers)
    ]
    x = words.array(work.arguments(rng, batch))
    size = int(plan.split()[1]) if plan.startswith("checkpoint") else 0

    def several(x: Any, params: Any) -> Any:
        for p in params:
            x = work.layer(words, x, p)
        return x

    def loss(params: Any, x: Any) -> Any:
        if not size:
            return (several(x, params) ** 2).mean()
        for k in range(0, len(params), size):
            x = words.checkpoint(several)(x, params[k : k + size])
        return (x**2).mean()

    return words.step(loss, params, x)
