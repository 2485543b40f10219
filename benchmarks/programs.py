"""The workloads as functions, for every library that has functional derivatives.

A method named after a workload returns a function of that workload's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Programs"]

Function = Callable[..., Any]
STEP = 0.002  # of time, in the 3-body problem
SOFTENING = 0.01


class Programs:
    """The workloads in terms of an array namespace `xp` and of what a library compiles."""

    xp: Any

    # What a library brings: see the subclasses.

    def jit(self, f: Function) -> Function:
        raise NotImplementedError

    def value_and_grad(self, f: Function, loop: bool = False) -> Function:
        """The value of `f` and its gradient by the first argument, compiled; a `loop` scans."""
        raise NotImplementedError

    def with_pullback(self, f: Function) -> Function:
        """The function (cotangent, *args) -> (result, *cotangents of the args), compiled."""
        raise NotImplementedError

    def hessian_product(self, f: Function) -> Function:
        """The function (x, direction, *rest) -> Hessian by `x` times direction, compiled."""
        raise NotImplementedError

    def second_derivative(self, f: Function, x: Any, direction: Any) -> Any:
        """The second derivative of `f` at `x` along a direction."""
        raise NotImplementedError

    def scan(self, step: Function, constants: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        """The last carry and the stacked ys of `carry, y = step(constants, carry, x)`."""
        raise NotImplementedError

    # Functions that a library may have under its own name.

    def softmax_of(self, x: Any) -> Any:
        e = self.xp.exp(x - self.xp.max(x, axis=-1, keepdims=True))
        return e / self.xp.sum(e, axis=-1, keepdims=True)

    def layer_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        centred = x - self.xp.mean(x, axis=-1, keepdims=True)
        variance = self.xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / self.xp.sqrt(variance + 1e-5) * weight + bias

    def gelu_of(self, x: Any) -> Any:
        return 0.5 * x * (1 + self.xp.erf(x * 0.5**0.5))

    def logsumexp_of(self, x: Any, axis: int) -> Any:
        return self.xp.logsumexp(x, axis=axis)

    def sigmoid_of(self, x: Any) -> Any:
        return self.xp.sigmoid(x)

    def least(self, x: Any, axis: int) -> Any:
        return self.xp.min(x, axis=axis)

    # The workloads.

    def chain(self) -> Function:
        xp = self.xp
        return self.value_and_grad(lambda x: xp.sum(xp.sin(x) * xp.exp(-x * x) + xp.log1p(x * x)))

    def softmax(self) -> Function:
        return self.with_pullback(self.softmax_of)

    def layer_norm(self) -> Function:
        return self.with_pullback(self.layer_norm_of)

    def gelu(self) -> Function:
        return self.with_pullback(self.gelu_of)

    def logsumexp(self) -> Function:
        return self.with_pullback(lambda x: self.logsumexp_of(x, -1))

    def network(self, layers: Any, x: Any) -> Any:
        for w, b in layers[:-1]:
            x = self.xp.tanh(x @ w + b)
        w, b = layers[-1]
        return x @ w + b

    def mlp_loss(self, layers: Any, x: Any, y: Any) -> Any:
        error = self.network(layers, x) - y
        return self.xp.mean(error * error)

    def small_mlp(self) -> Function:
        return self.value_and_grad(self.mlp_loss)

    wide_mlp = small_mlp

    def hvp(self) -> Function:
        return self.hessian_product(self.mlp_loss)

    def pinn(self) -> Function:
        return self.value_and_grad(self.pinn_loss)

    def pinn_loss(self, layers: Any, x: Any, source: Any) -> Any:
        error = self.laplacian(lambda x: self.network(layers, x)[:, 0], x) - source
        return self.xp.mean(error * error)

    def laplacian(self, u: Function, x: Any) -> Any:
        zero, one = self.xp.zeros_like(x[:, 0]), self.xp.ones_like(x[:, 0])
        east, north = self.xp.stack([one, zero], axis=1), self.xp.stack([zero, one], axis=1)
        return self.second_derivative(u, x, east) + self.second_derivative(u, x, north)

    def lstm(self) -> Function:
        return self.value_and_grad(self.lstm_loss, loop=True)

    def lstm_loss(self, weights: Any, xs: Any, start: Any) -> Any:
        _, outputs = self.scan(self.lstm_step, weights, (start, start), xs)
        return self.xp.mean(outputs * outputs)

    def lstm_step(self, weights: Any, carry: Any, x: Any) -> Any:
        """Coupled gates, 1 - f for the input gate: no library has this cell ready-made."""
        hidden, cell = carry
        n = hidden.shape[0]
        gates = self.concat(x, hidden) @ weights["w"] + weights["b"]
        forget, out = self.sigmoid_of(gates[:n]), self.sigmoid_of(gates[n : 2 * n])
        cell = forget * cell + (1 - forget) * self.xp.tanh(gates[2 * n :])
        hidden = out * self.xp.tanh(cell)
        return (hidden, cell), hidden

    def concat(self, x: Any, y: Any) -> Any:
        return self.xp.concat([x, y])

    def three_body(self) -> Function:
        return self.value_and_grad(self.three_body_loss, loop=True)

    def three_body_loss(self, state: Any, masses: Any, steps: Any) -> Any:
        start = state["p"], state["v"]
        (p, v), _ = self.scan(self.three_body_step, masses, start, steps)
        return self.xp.sum(p * p) + self.xp.sum(v * v)

    def three_body_step(self, masses: Any, carry: Any, _: Any) -> Any:
        """One step of the classical Runge-Kutta method."""
        p, v = carry
        a1 = self.acceleration(masses, p)
        v2 = v + STEP / 2 * a1
        a2 = self.acceleration(masses, p + STEP / 2 * v)
        v3 = v + STEP / 2 * a2
        a3 = self.acceleration(masses, p + STEP / 2 * v2)
        v4 = v + STEP * a3
        a4 = self.acceleration(masses, p + STEP * v3)
        p = p + STEP / 6 * (v + 2 * v2 + 2 * v3 + v4)
        v = v + STEP / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        return (p, v), p[0, 0]

    def acceleration(self, masses: Any, p: Any) -> Any:
        away = p[None, :, :] - p[:, None, :]
        squares = self.xp.sum(away * away, axis=-1) + SOFTENING
        pull = masses[None, :] / (squares * self.xp.sqrt(squares))
        return self.xp.sum(pull[:, :, None] * away, axis=1)

    def gmm(self) -> Function:
        return self.value_and_grad(self.gmm_loss)

    def gmm_loss(self, parameters: Any, x: Any, below: Any, diagonal: Any) -> Any:
        """The negative mean log-likelihood, without its constant, of full covariances."""
        xp, alphas, scales = self.xp, parameters["alphas"], parameters["scales"]
        roots = parameters["lower"] * below + xp.exp(scales)[:, :, None] * diagonal
        centred = x[None, :, :] - parameters["means"][:, None, :]
        z = centred @ xp.swapaxes(roots, 1, 2)
        weights = alphas - self.logsumexp_of(alphas, 0) + xp.sum(scales, axis=1)
        terms = weights[:, None] - 0.5 * xp.sum(z * z, axis=2)
        return -xp.mean(self.logsumexp_of(terms, 0))

    def kmeans(self) -> Function:
        return self.hessian_product(self.kmeans_cost)

    def kmeans_cost(self, centres: Any, x: Any) -> Any:
        """The Hessian of this is diagonal, so its product with ones is that diagonal."""
        xp = self.xp
        squares = xp.sum(x * x, axis=1)[:, None] + xp.sum(centres * centres, axis=1)
        return xp.sum(self.least(squares - 2 * (x @ xp.swapaxes(centres, 0, 1)), 1))
