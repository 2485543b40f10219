"""Functions of `mathfun` as kernels of the device "webgpu"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pullback as pb
from pullback.compile.kernel.forms import Map
from pullback.compile.program.stages import Program
from pullback.core.avals import aval
from pullback.core.dtypes import float32
from pullback.ir import mathfun
from pullback.ir.scalar import load

__all__ = ["computed"]


def computed(name: str, xs: Sequence[np.ndarray]) -> np.ndarray:
    """A function of `mathfun` at points of float32, which are contiguous."""
    from pullback.runtime.webgpu.maps import map_stages

    runtime: Any = pb.device("webgpu").runtime
    body = getattr(mathfun, name)(*(load(i, float32) for i in range(len(xs))))
    kernel = Map((float32,) * len(xs), float32, (body,))
    shape, dense = xs[0].shape, [(1,)] * len(xs)
    slots = range(1, 1 + len(xs))
    stages = map_stages(kernel, shape, [0], [(1,)], slots, dense)
    run = runtime.target.encode(Program(len(xs), xs[0].nbytes, (), (), stages))
    out = run(*[runtime.from_numpy(np.ascontiguousarray(x), True) for x in xs])
    return np.array(runtime.to_numpy(out, aval(shape, float32, pb.device("webgpu"))))
