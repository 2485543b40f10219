"""The libraries of `pullback bench jit`; each is loaded when it is made."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import Any

import numpy as np

from benchmarks.linalg_workloads import VALUES
from benchmarks.programs import Function, Programs
from benchmarks.workloads import leaves
from pullback.core import pytrees

__all__ = ["LIBRARIES", "Library", "Pullback"]

WARM = 320  # rows of a matrix that is large enough for a library of matrix products


class Library(Programs):
    """A library: how arrays get in and out, how to wait for a result, and what to warm up."""

    needs = "numpy"
    compiles = True

    def version(self) -> str:
        return import_module(self.needs).__version__

    @classmethod
    def runs(cls, workload: str) -> bool:
        """Whether the workload applies to this library."""
        return True

    @classmethod
    def lacks(cls) -> str:
        """What is not here that the library needs, as a sentence; empty if all is."""
        if find_spec(cls.needs) is None:
            return f"{cls.needs} is not installed (pip install 'pullback[bench]' brings it)"
        return ""

    def array(self, x: np.ndarray) -> Any:
        return x

    def host(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def prepared(self, name: str, inputs: tuple) -> tuple:
        """The inputs as the workload's function takes them."""
        return pytrees.map_tree(self.array, inputs)

    def wait(self, result: Any) -> None:
        """Return when the result has been computed."""

    def warm_up(self) -> None:
        """Load what the first compilation of a process loads, so that it is not measured."""
        x = self.array(np.ones((WARM, WARM), np.float32))
        self.wait(self.value_and_grad(lambda x: self.xp.sum(self.xp.tanh(x @ x)))(x))

    def fourier(self, name: str) -> Function:
        """A Fourier transform by its name."""
        return getattr(self.xp.fft, name)

    def release(self) -> None:
        """Give memory that is kept for later calls back to the system."""

    def extra(self) -> dict[str, Any]:
        """Facts that only this library has."""
        return {}


class Pullback(Library):
    """Ours."""

    needs = "pullback"

    def __init__(self, threads: int):
        self.xp = self.pb = import_module("pullback")
        self.native = import_module("pullback.runtime.cpu.native")
        self.native.set_threads(threads)

    def array(self, x: np.ndarray) -> Any:
        return self.pb.tensor(x)

    def jit(self, f: Function) -> Function:
        return self.pb.jit(f)

    def warm_up(self) -> None:
        os.environ["PULLBACK_CACHE_DIR"] = ""  # from here on nothing is read from the disk
        super().warm_up()
        self.native.reset_peak()

    def value_and_grad(self, f: Function, loop: bool = False) -> Function:
        return self.pb.jit(self.pb.value_and_grad(f))

    def with_pullback(self, f: Function) -> Function:
        def both(cotangent: Any, *args: Any) -> Any:
            result, pull = self.pb.vjp(f, *args)
            return (result, *pull(cotangent))

        return self.pb.jit(both)

    def hessian_product(self, f: Function) -> Function:
        return self.pb.jit(
            lambda x, direction, *rest: self.pb.hvp(lambda x: f(x, *rest), (x,), (direction,))
        )

    def second_derivative(self, f: Function, x: Any, direction: Any) -> Any:
        jvp = self.pb.jvp
        return jvp(lambda x: jvp(f, (x,), (direction,))[1], (x,), (direction,))[1]

    def scan(self, step: Function, constants: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        return self.pb.scan(lambda carry, x: step(constants, carry, x), init, xs)

    def release(self) -> None:
        self.native.release_cached()

    def extra(self) -> dict[str, Any]:
        return {"native": self.native.memory()}


class Jax(Library):
    """JAX, compiled by XLA."""

    needs = "jax"

    def __init__(self, threads: int):
        self.jax = import_module("jax")
        self.xp = import_module("jax.numpy")

    def prepared(self, name: str, inputs: tuple) -> tuple:
        """Double precision is there if it is asked for."""
        doubles = ("float64", "complex128")
        if any(x.dtype.name in doubles for x in leaves(inputs)):
            self.jax.config.update("jax_enable_x64", True)
        return super().prepared(name, inputs)

    def array(self, x: np.ndarray) -> Any:
        return self.xp.asarray(x)

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def jit(self, f: Function) -> Function:
        return self.jax.jit(f)

    def value_and_grad(self, f: Function, loop: bool = False) -> Function:
        return self.jax.jit(self.jax.value_and_grad(f))

    def with_pullback(self, f: Function) -> Function:
        def both(cotangent: Any, *args: Any) -> Any:
            result, pull = self.jax.vjp(f, *args)
            return (result, *pull(cotangent))

        return self.jax.jit(both)

    def hessian_product(self, f: Function) -> Function:
        def product(x: Any, direction: Any, *rest: Any) -> Any:
            return self.jax.jvp(self.jax.grad(lambda x: f(x, *rest)), (x,), (direction,))[1]

        return self.jax.jit(product)

    def second_derivative(self, f: Function, x: Any, direction: Any) -> Any:
        jvp = self.jax.jvp
        return jvp(lambda x: jvp(f, (x,), (direction,))[1], (x,), (direction,))[1]

    def scan(self, step: Function, constants: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        return self.jax.lax.scan(lambda carry, x: step(constants, carry, x), init, xs)

    def softmax_of(self, x: Any) -> Any:
        return self.jax.nn.softmax(x)

    def gelu_of(self, x: Any) -> Any:
        return self.jax.nn.gelu(x, approximate=False)

    def logsumexp_of(self, x: Any, axis: int) -> Any:
        return self.jax.nn.logsumexp(x, axis=axis)

    def sigmoid_of(self, x: Any) -> Any:
        return self.jax.nn.sigmoid(x)


class Torch(Library):
    """PyTorch, one operation at a time."""

    needs = "torch"
    compiles = False

    def __init__(self, threads: int):
        self.xp = self.torch = import_module("torch")
        self.torch.set_num_threads(threads)

    def array(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(x.copy())

    def host(self, x: Any) -> np.ndarray:
        return x.detach().numpy()

    def warm_up(self) -> None:
        x = self.torch.ones(WARM, WARM, requires_grad=True)
        self.value_and_grad(lambda x: (x @ x).tanh().sum())(x)

    def prepared(self, name: str, inputs: tuple) -> tuple:
        """Parameters ask for gradients once, as in a training loop."""
        if name.startswith("fft."):
            return super().prepared(name, inputs)
        cotangent_first = name in ("softmax", "layer_norm", "gelu", "logsumexp")
        args = super().prepared(name, inputs)
        for x in leaves(args[1:] if cotangent_first else args[0]):
            x.requires_grad_()
        return args

    def jit(self, f: Function) -> Function:
        return f

    def value_and_grad(self, f: Function, loop: bool = False) -> Function:
        f = f if loop else self.jit(f)

        def both(first: Any, *rest: Any) -> Any:
            value = f(first, *rest)
            found = self.torch.autograd.grad(value, leaves(first), materialize_grads=True)
            return value, found

        return both

    def with_pullback(self, f: Function) -> Function:
        f = self.jit(f)

        def both(cotangent: Any, *args: Any) -> Any:
            result = f(*args)
            return result, self.torch.autograd.grad(result, args, cotangent)

        return both

    def hessian_product(self, f: Function) -> Function:
        def product(x: Any, direction: Any, *rest: Any) -> Any:
            inputs = leaves(x)
            grad = self.torch.autograd.grad
            slopes = grad(f(x, *rest), inputs, create_graph=True)
            return grad(slopes, inputs, leaves(direction))

        return product

    def laplacian(self, u: Function, x: Any) -> Any:
        grad = self.torch.autograd.grad
        x = x.detach().requires_grad_()
        slope = grad(u(x).sum(), x, create_graph=True)[0]
        return sum(grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2))

    def scan(self, step: Function, constants: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        carry, ys = init, []
        for x in xs:
            carry, y = step(constants, carry, x)
            ys.append(y)
        return carry, self.torch.stack(ys)

    def softmax_of(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def layer_norm_of(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def gelu_of(self, x: Any) -> Any:
        return self.torch.nn.functional.gelu(x)

    def logsumexp_of(self, x: Any, axis: int) -> Any:
        return self.torch.logsumexp(x, axis)

    def least(self, x: Any, axis: int) -> Any:
        return self.torch.amin(x, axis)


class TorchCompile(Torch):
    """PyTorch through torch.compile; of a loop it is the step, since a loop would be unrolled."""

    compiles = True

    def __init__(self, threads: int):
        super().__init__(threads)
        self._steps: dict[Function, Function] = {}

    @classmethod
    def lacks(cls) -> str:
        compilers = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
        found = any(name and which(name) for name in compilers)
        return super().lacks() or ("" if found else "torch.compile needs a C++ compiler")

    def jit(self, f: Function) -> Function:
        return self.torch.compile(f, dynamic=False)

    def hessian_product(self, f: Function) -> Function:
        """Forward over reverse: torch.compile refuses to differentiate its own backward pass."""
        func = self.torch.func

        def product(x: Any, direction: Any, *rest: Any) -> Any:
            return func.jvp(func.grad(lambda x: f(x, *rest)), (x,), (direction,))[1]

        return self.jit(product)

    def pinn(self) -> Function:
        both = self.jit(self.torch.func.grad_and_value(self.pinn_loss))

        def swapped(*args: Any) -> Any:
            gradient, value = both(*args)
            return value, gradient

        return swapped

    def laplacian(self, u: Function, x: Any) -> Any:
        return Programs.laplacian(self, u, x)

    def second_derivative(self, f: Function, x: Any, direction: Any) -> Any:
        jvp = self.torch.func.jvp
        return jvp(lambda x: jvp(f, (x,), (direction,))[1], (x,), (direction,))[1]

    def prepared(self, name: str, inputs: tuple) -> tuple:
        """torch.func marks what it differentiates by itself."""
        if name in ("hvp", "kmeans", "pinn"):
            return pytrees.map_tree(self.array, inputs)
        return super().prepared(name, inputs)

    def scan(self, step: Function, constants: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        if step not in self._steps:
            self._steps[step] = self.jit(step)
        return super().scan(self._steps[step], constants, init, xs)


class NumPy(Library):
    """NumPy with derivatives by hand, for the workloads where one would write them."""

    compiles = False

    def __init__(self, threads: int):
        self.xp = np

    @classmethod
    def runs(cls, workload: str) -> bool:
        return workload in vars(cls) or workload in VALUES or workload.startswith("fft.")

    def jit(self, f: Function) -> Function:
        return f

    def warm_up(self) -> None:
        """There is nothing to load."""

    def chain(self) -> Function:
        def both(x: Any) -> Any:
            square = x * x
            e, s = np.exp(-square), np.sin(x)
            value = np.sum(s * e + np.log1p(square))
            return value, (np.cos(x) - 2 * x * s) * e + 2 * x / (1 + square)

        return both

    def softmax(self) -> Function:
        def both(g: Any, x: Any) -> Any:
            y = self.softmax_of(x)
            return y, y * (g - np.sum(g * y, axis=-1, keepdims=True))

        return both

    def layer_norm(self) -> Function:
        def both(g: Any, x: Any, weight: Any, bias: Any) -> Any:
            centred = x - x.mean(-1, keepdims=True)
            scale = 1 / np.sqrt(
                np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(1e-5)
            )
            normal, h = centred * scale, g * weight
            slope = h - h.mean(-1, keepdims=True) - normal * np.mean(h * normal, -1, keepdims=True)
            return normal * weight + bias, slope * scale, (g * normal).sum(0), g.sum(0)

        return both

    def logsumexp(self) -> Function:
        def both(g: Any, x: Any) -> Any:
            top = x.max(-1, keepdims=True)
            e = np.exp(x - top)
            total = e.sum(-1, keepdims=True)
            return (np.log(total) + top)[:, 0], e * (g[:, None] / total)

        return both

    def small_mlp(self) -> Function:
        def both(layers: Any, x: Any, y: Any) -> Any:
            kept = [x]
            for w, b in layers[:-1]:
                kept.append(np.tanh(kept[-1] @ w + b))
            error = kept[-1] @ layers[-1][0] + layers[-1][1] - y
            g = error * np.float32(2 / error.size)
            gradients = []
            for h, (w, _) in zip(reversed(kept), reversed(layers), strict=True):
                gradients.append((h.T @ g, g.sum(0)))
                if h is not x:
                    g = g @ w.T * (1 - h * h)
            return np.mean(error * error), gradients[::-1]

        return both

    wide_mlp = small_mlp


class SciPy(NumPy):
    """SciPy's Fourier transforms, with as many threads as the others have."""

    needs = "scipy"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.threads = threads
        self.transforms = import_module("scipy.fft")

    @classmethod
    def runs(cls, workload: str) -> bool:
        return workload.startswith("fft.")

    def fourier(self, name: str) -> Function:
        function = getattr(self.transforms, name)
        return lambda x: function(x, workers=self.threads)


LIBRARIES: dict[str, type[Pullback | Jax | Torch | NumPy]] = {
    "pullback": Pullback,
    "torch": Torch,
    "torch.compile": TorchCompile,
    "jax": Jax,
    "numpy": NumPy,
    "scipy": SciPy,
}
