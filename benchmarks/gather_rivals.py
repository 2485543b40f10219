"""Who takes part in `pullback bench gather`: ours in four forms, PyTorch in four, and JAX.

On the CPU there is one more, which does no more than read what all of them read. A contender is
prepared once with its own copies of the inputs; what it returns is called and timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.gather_cases import Inputs

__all__ = ["OURS", "PEERS", "READING", "Contender", "contenders"]

Work = Callable[[], Any]

OURS = ("pullback", "pullback, plan", "pullback.torch", "pullback.torch, plan")
PEERS = ("index_put_", "index_add_", "scatter_add_", "x[idx] backward", "jax")
READING = "reading"


class Contender:
    """One way to compute the sums: `prepared` gives the work, `host` its result as NumPy."""

    def __init__(self, name: str, device: str):
        self.name = name
        self.device = device

    def prepared(self, inputs: Inputs) -> Work:
        raise NotImplementedError

    def host(self, result: Any) -> np.ndarray:
        return np.asarray(result)

    def wait(self, result: Any) -> None:
        """Return when the result is there."""

    def kept(self, result: Any) -> Any:
        """The result as it is now, whatever is computed next."""
        return result

    def same_bits(self, kept: Any, result: Any) -> bool:
        """Whether two results have the same bits."""
        one, other = (np.ascontiguousarray(self.host(a)).view(np.uint32) for a in (kept, result))
        return np.array_equal(one, other)


class Eager(Contender):
    """Our own arrays on the CPU; without a plan the indices are new to every call."""

    def prepared(self, inputs: Inputs) -> Work:
        pb = import_module("pullback")
        updates = pb.tensor(inputs.updates)
        shape = (inputs.rows, *inputs.updates.shape[1:])
        zeros = pb.zeros(shape, dtype=updates.dtype)
        if self.name.endswith("plan"):
            plan = pb.scatter_plan(pb.tensor(inputs.indices), inputs.rows)
            return lambda: pb.scatter_add(zeros, plan, updates)
        return lambda: pb.scatter_add(zeros, pb.from_dlpack(inputs.indices), updates)

    def host(self, result: Any) -> np.ndarray:
        return result.numpy()


class Reading(Contender):
    """Our threads read new indices and updates, in sums of all of them."""

    def prepared(self, inputs: Inputs) -> Work:
        pb = import_module("pullback")
        updates = pb.tensor(inputs.updates.view(np.float32))
        return lambda: (pb.sum(pb.from_dlpack(inputs.indices)), pb.sum(updates))


class Cuda(Contender):
    """Our CUDA kernels on CuPy arrays."""

    def prepared(self, inputs: Inputs) -> Work:
        cupy = import_module("cupy")
        scatter = import_module("pullback.runtime.cuda.scatter")
        updates = cupy.asarray(inputs.updates.reshape(len(inputs.updates), -1))
        indices = cupy.asarray(inputs.indices)
        out = cupy.empty((inputs.rows, updates.shape[1]), updates.dtype)
        planned = self.name.endswith("plan")
        plan = scatter.make_plan(indices, inputs.rows) if planned else None

        def work() -> Any:
            out.fill(0)
            scatter.scatter_add(indices, updates, out, plan=plan)
            return out

        return work

    def host(self, result: Any) -> np.ndarray:
        return result.get()

    def wait(self, result: Any) -> None:
        import_module("cupy").cuda.get_current_stream().synchronize()

    def kept(self, result: Any) -> Any:
        return result.copy()

    def same_bits(self, kept: Any, result: Any) -> bool:
        return bool((kept.view("u4") == result.view("u4")).all())


class Torch(Contender):
    """Anything on torch tensors."""

    def tensors(self, inputs: Inputs) -> tuple[Any, Any, Any]:
        torch = import_module("torch")
        indices = torch.from_numpy(inputs.indices).to(self.device)
        updates = torch.from_numpy(inputs.updates).to(self.device)
        shape = (inputs.rows, *updates.shape[1:])
        return indices, updates, lambda: torch.zeros(shape, dtype=updates.dtype, device=self.device)

    def prepared(self, inputs: Inputs) -> Work:
        indices, updates, zeros = self.tensors(inputs)
        if self.name == "index_put_":
            return lambda: zeros().index_put_((indices,), updates, accumulate=True)
        if self.name == "index_add_":
            return lambda: zeros().index_add_(0, indices, updates)
        if self.name == "scatter_add_":
            spread = indices.reshape(-1, *[1] * (updates.ndim - 1)).expand(updates.shape)
            return lambda: zeros().scatter_add_(0, spread, updates)
        return self.backward(zeros(), updates, lambda x: x[indices])

    def backward(self, x: Any, updates: Any, read: Callable[[Any], Any]) -> Work:
        """The backward pass of reading, over a graph that stays."""
        torch = import_module("torch")
        x = x.requires_grad_()
        rows = read(x)
        return lambda: torch.autograd.grad(rows, x, updates, retain_graph=True)[0]

    def host(self, result: Any) -> np.ndarray:
        return result.detach().cpu().numpy()

    def wait(self, result: Any) -> None:
        if self.device == "cuda":
            import_module("torch").cuda.synchronize()

    def same_bits(self, kept: Any, result: Any) -> bool:
        torch = import_module("torch")
        return torch.equal(kept.view(torch.int32), result.view(torch.int32))


class OursInTorch(Torch):
    """`pullback.torch`: the backward pass of `gather_with_index_add`."""

    def prepared(self, inputs: Inputs) -> Work:
        pbt = import_module("pullback.torch")
        indices, updates, zeros = self.tensors(inputs)
        if self.name.endswith("plan"):
            indices = pbt.scatter_plan(indices, inputs.rows)
        return self.backward(zeros(), updates, lambda x: pbt.gather_with_index_add(x, indices))


class Jax(Contender):
    """JAX: a compiled `at[].add`, with the 32-bit indices that it uses by default."""

    def prepared(self, inputs: Inputs) -> Work:
        jax = import_module("jax")
        indices = jax.numpy.asarray(inputs.indices.astype(np.int32))
        updates = jax.numpy.asarray(inputs.updates)
        shape = (inputs.rows, *inputs.updates.shape[1:])
        add = jax.jit(lambda i, u: jax.numpy.zeros(shape, u.dtype).at[i].add(u))
        return lambda: add(indices, updates)

    def wait(self, result: Any) -> None:
        result.block_until_ready()


def contenders(device: str, threads: int) -> list[Contender]:
    """Those that can run here; says who is missing."""
    ours = Eager if device == "cpu" else Cuda
    found: list[Contender] = [ours(name, device) for name in OURS[:2]]
    _set_threads(threads)
    if _there("torch"):
        import_module("torch").set_num_threads(threads)
        found += [OursInTorch(name, device) for name in OURS[2:]]
        found += [Torch(name, device) for name in PEERS[:-1]]
    if _there("jax"):
        if device == "cpu":
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        found.append(Jax("jax", device))
    return [*found, Reading(READING, device)] if device == "cpu" else found


def _set_threads(threads: int) -> None:
    import_module("pullback.runtime.cpu.native").set_threads(threads)


def _there(name: str) -> bool:
    if find_spec(name) is None:
        print(f"{name} is not installed: left out (pip install 'pullback[bench]' brings it)")
        return False
    return True
