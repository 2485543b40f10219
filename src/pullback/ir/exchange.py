"""Values and memory that go to Python and to other libraries, and come from these.

What is given away has no history, and is memory of an array only where nobody else has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import aval, device
from pullback.core.errors import CopyError, DeviceError, ExchangeError, GradientError, ShapeError
from pullback.ir import dlpack
from pullback.ir.array import Array, make, mode
from pullback.ir.convert import from_numpy, is_kept, to_numpy
from pullback.ir.tracing import no_value, note_look

__all__ = [
    "capsule",
    "check_untracked",
    "cuda_interface",
    "element",
    "imported",
    "only_element",
    "own_array",
    "printable",
]


def check_untracked(x: Array, name: str) -> None:
    """An error for an array that is recorded: what is exported has no history."""
    if x._node is not None and mode.recording:
        raise GradientError(
            f"{name}: the tensor requires a gradient, and NumPy would lose it. Call detach() first."
        )


def own_array(x: Array) -> np.ndarray:
    """The values, read-only: the memory itself where nobody else has it, else a copy."""
    if x._aval.is_symbolic or x._aval.device.runtime.has_one_owner(x._buf):
        return to_numpy(x)
    array = np.array(to_numpy(x))
    array.flags.writeable = False
    return array


def only_element(x: Array, name: str, lossy: bool = False) -> Any:
    """The only element as a Python number; `lossy`: not of an array whose gradient that loses."""
    av = x._aval
    if av.size != 1:
        raise ShapeError(f"{name}: expected a tensor with one element, got shape {av.shape}.")
    if av.is_symbolic:
        raise no_value(
            name,
            x,
            "Python can't branch on it or count with it: use where, cond, scan or while_loop, or"
            " pass what decides as a Python value, which jit keeps static.",
        )
    if lossy and x._node is not None and mode.recording:
        raise GradientError(
            f"{name}: the tensor requires a gradient, and a Python number would lose it. Call"
            " item() if that is meant."
        )
    return element(x)


def element(x: Array) -> Any:
    """The element of an array that has one, as a Python number."""
    note_look()
    return x._aval.device.runtime.element(x._buf, x._aval)


def printable(x: Array) -> np.ndarray:
    """The values for a printer of arrays."""
    av = x._aval
    if av.size and not any(av.strides or (1,)):  # a constant, which takes no memory
        one = to_numpy(make(x._buf, aval((), av.dtype, av.device)))
        array = np.broadcast_to(one, av.shape)
    else:
        array = to_numpy(x)
    if av.dtype is dt.bfloat16:  # NumPy's own printer takes it for raw bytes
        array = array.astype(np.float32)
    return array


def capsule(
    x: Array,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[Any, int] | None,
    copy: bool | None,
) -> Any:
    """What `__dlpack__` returns."""
    runtime = x._aval.device.runtime
    if runtime.dlpack_device != dlpack.CPU and (
        dl_device is None or tuple(dl_device) == runtime.dlpack_device
    ):
        check_untracked(x, "__dlpack__")
        if copy is False:
            _check_owner(x)
        return runtime.exported(x._buf, x._aval, stream, max_version, copy is not False)
    if stream is not None:
        raise DeviceError(f"__dlpack__: the CPU has no streams, got stream={stream!r}.")
    if dl_device is not None and tuple(dl_device) != dlpack.CPU:
        raise ExchangeError(
            f"__dlpack__: the memory goes to the CPU, {dlpack.CPU}, got dl_device={dl_device}."
        )
    check_untracked(x, "__dlpack__")
    if copy is not False:
        values = np.array(to_numpy(x), order="C")
        return dlpack.capsule_of(values, max_version, copied=True)
    if is_kept(runtime.origin(x._buf)):
        _take_memory(x)
    _check_owner(x)
    memory = runtime.memory(x._buf, x._aval, writable=True)
    return dlpack.capsule_of(memory, max_version, copied=False)


def _check_owner(x: Array) -> None:
    if x._node is not None or not x._aval.device.runtime.has_one_owner(x._buf):
        raise CopyError(
            "__dlpack__: the memory belongs to others too, and can't be shared with one who may"
            " write. Leave out copy=False."
        )


def _take_memory(x: Array) -> None:
    """Give a constant, which sees one kept number from all places, memory of its own."""
    own = from_numpy(np.array(to_numpy(x), order="C"), x._aval.device)
    x._buf, x._aval = own._buf, own._aval


def cuda_interface(x: Array) -> dict[str, Any]:
    """What `__cuda_array_interface__` is: the memory of a GPU, to be read only."""
    av = x._aval
    kind, _ = av.device.runtime.dlpack_device
    if kind != dlpack.CUDA or av.strides is None:
        raise AttributeError(f"the memory is that of {av.device}, not of a GPU")
    check_untracked(x, "__cuda_array_interface__")
    size = av.dtype.itemsize
    return {
        "version": 3,
        "shape": av.shape,
        "typestr": av.dtype.numpy.str,
        "data": (x._buf.address if av.size else 0, True),
        "strides": tuple(s * size for s in av.strides),
        "stream": 1,
    }


def imported(x: Any, copy: bool | None) -> Any:
    """The array of something that has `__dlpack__`."""
    kind, index = getattr(x, "__dlpack_device__", lambda: dlpack.CPU)()
    if kind != dlpack.CUDA:
        return from_numpy(dlpack.from_capsule(x, copy), copy=bool(copy))
    where = device(f"cuda:{index}")
    buf, dtype, (shape, strides) = where.runtime.imported(x, copy)
    return make(buf, aval(shape, dtype, where, strides))
