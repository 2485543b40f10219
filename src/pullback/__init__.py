"""Pullback: arrays in which every operation can be differentiated, to any order, with the same bits
on every run.

The operations of this namespace come from the registry (`pullback.ops`); `__init__.pyi` lists them
for editors.
"""

from __future__ import annotations

import math as _math
from importlib import import_module as _import_module

from pullback import fft, primitive, random, signal
from pullback import ops as _ops
from pullback.autodiff.check import check_grad
from pullback.autodiff.custom import custom_vjp
from pullback.autodiff.custom_jvp import custom_jvp
from pullback.autodiff.reverse import enable_grad, no_grad
from pullback.callbacks import pure_callback
from pullback.compiled import jit
from pullback.control import cond, fori_loop, scan, while_loop
from pullback.core.avals import (
    Device,
    default_device,
    device,
    register_runtime,
    set_default_device,
)
from pullback.core.collector import paused_collector as _paused_collector
from pullback.core.dtypes import (
    DType,
    bfloat16,
    complex64,
    complex128,
    default_float,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    set_default_float,
    uint8,
    uint16,
    uint32,
    uint64,
)
from pullback.core.dtypes import bool_ as bool
from pullback.core.errors import (
    AxisError,
    CopyError,
    DeviceError,
    DTypeError,
    ExchangeError,
    FileFormatError,
    GradientError,
    LinAlgError,
    MemoryBudgetError,
    NonFiniteError,
    PullbackError,
    RetraceWarning,
    ShapeError,
    TraceError,
)
from pullback.core.precision import (
    get_matmul_precision,
    matmul_precision,
    set_matmul_precision,
)
from pullback.core.pytrees import map_tree, register_pytree
from pullback.curvature import (
    divergence,
    gnvp,
    hutchinson_diagonal,
    hutchinson_trace,
    laplacian,
)
from pullback.files import load, save
from pullback.foreign_names import ALIASES as _ALIASES
from pullback.foreign_names import HINTS as _HINTS
from pullback.implicit import custom_linear_solve, custom_root, fixed_point
from pullback.ir.op import REGISTRY as _REGISTRY
from pullback.jacobians import (
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    linear_transpose,
    linearize,
)
from pullback.mapping import vmap
from pullback.methods import install_methods
from pullback.missing_names import hint_for as _hint_for
from pullback.module import Module
from pullback.ops.index_plans import scatter_plan
from pullback.profiling import profile
from pullback.settings import (
    config,
    get_num_threads,
    get_printoptions,
    printoptions,
    set_num_threads,
    set_printoptions,
)
from pullback.sparse_jacobians import SparseMatrix, jacobian_sparsity, sparse_jacobian
from pullback.standard import (
    __array_namespace_info__,
    broadcast_shapes,
    can_cast,
    isdtype,
    result_type,
)
from pullback.standard import make_finfo as finfo
from pullback.standard import make_iinfo as iinfo
from pullback.tape import Graph, GraphNode, trace
from pullback.taylor import jet
from pullback.tensor import Tensor, from_dlpack, tensor
from pullback.transforms import (
    checkpoint,
    grad,
    hvp,
    jvp,
    stop_gradient,
    value_and_grad,
    vjp,
)

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None

register_runtime("cpu", lambda index: _import_module("pullback.runtime.cpu.target").CpuRuntime())
register_runtime(
    "cuda",
    lambda index: _import_module("pullback.runtime.cuda.target").CudaRuntime(index),
    lambda: _import_module("pullback.runtime.cuda.gpu").is_present(),
)
register_runtime(
    "webgpu",
    lambda index: _import_module("pullback.runtime.webgpu.target").WebgpuRuntime(index),
    lambda: _import_module("pullback.runtime.webgpu.gpu").is_present(),
)
install_methods(Tensor, _REGISTRY)
for _entry in _REGISTRY.values():
    _home = vars(_import_module(f"pullback.{_entry.namespace}")) if _entry.namespace else globals()
    _home[_entry.name] = _entry.function

# Imported when first used: pullback itself stays quick to import.
_LAZY = ("debug", "linalg", "nn", "optim", "train")
_LATE = ("polyfit", "roots")  # functions of this namespace that `linalg` declares
_HOMES = ("nn", "linalg", "fft", "signal", "random")  # where a missing name is looked for


def __getattr__(name: str) -> object:
    if name in _LAZY:
        with _paused_collector():
            return _import_module(f"pullback.{name}")
    if name in _LATE:
        _import_module("pullback.linalg")
        return _REGISTRY[name].function
    if name in _ALIASES:
        return globals()[_ALIASES[name]]
    known = dict.fromkeys(__all__, "pb")
    for home in _HOMES if name not in _HINTS and not name.startswith("_") else ():
        shown = vars(_import_module(f"pullback.{home}"))
        known |= {n: f"pb.{home}" for n in shown if n not in known and not n.startswith("_")}
    hint = _hint_for(name, _HINTS, known)
    if name in known:
        hint = f" Use {known[name]}.{name}."
    raise AttributeError(f"module 'pullback' has no attribute {name!r}.{hint}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


__all__ = sorted(
    {n for n in globals() if not n.startswith("_")}
    - {
        "annotations",
        "autodiff",
        "callbacks",
        "compile",
        "compiled",
        "control",
        "core",
        "curvature",
        "diagram",
        "display",
        "files",
        "implicit",
        "loop_units",
        "foreign_names",
        "install_methods",
        "ir",
        "jacobians",
        "module",
        "mapping",
        "methods",
        "missing_names",
        "numpy_protocol",
        "ops",
        "profiling",
        "register_runtime",
    }
    - {"runtime", "settings", "signatures", "sparse_jacobians", "standard", "tape", "taylor"}
    - {"transforms"}
    | {"__array_api_version__", "__array_namespace_info__", "__version__", *_LAZY, *_LATE}
)
