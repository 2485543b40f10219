"""Abstract values: what is known of an array without its contents, and where it lives.

An `Aval` is interned: equal avals are one object, so an operation finds its prepared launch by
hashing a few pointers. That is what makes a small eager operation cheap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

from pullback.core.blocks import Restored
from pullback.core.collector import paused_collector
from pullback.core.dtypes import DType
from pullback.core.errors import DeviceError, ShapeError
from pullback.core.interning import Interned, Unhashed
from pullback.core.memory import Memory

__all__ = [
    "MOST_BYTES",
    "Aval",
    "Device",
    "aval",
    "default_device",
    "dense_strides",
    "detached",
    "device",
    "devices",
    "register_runtime",
    "repeated",
    "set_default_device",
    "symbolic",
]


class _Defaults(threading.local):
    """The default device: the innermost `with device:` of this thread, else what the program has
    set.
    """

    base: Device
    stack: tuple[Device, ...] = ()


_defaults = _Defaults()


class Device:
    """A place where arrays live: `kind` is "cpu", "cuda" or "webgpu". One object per device."""

    __slots__ = ("_runtime", "index", "kind")

    def __init__(self, kind: str, index: int):
        self.kind = kind
        self.index = index
        self._runtime: Memory | None = None

    @property
    def runtime(self) -> Memory:
        """The runtime of this device, loaded on first use."""
        if self._runtime is None:
            # The collector would look at all modules, a third of the time.
            with _loading, paused_collector():
                if self._runtime is None:
                    self._runtime = _loaders[self.kind](self.index)
        return self._runtime

    def __enter__(self) -> Device:
        _defaults.stack = (*_defaults.stack, self)
        return self

    __exit__ = Restored(_defaults, "stack")

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __reduce__(self):
        return (device, (str(self),))


def default_device() -> Device:
    """Where new arrays go when nothing else says so."""
    stack = _defaults.stack
    return stack[-1] if stack else _Defaults.base


def set_default_device(spec: str | Device) -> None:
    """Let new arrays go to this device."""
    _Defaults.base = device(spec)


_Defaults.base = Device("cpu", 0)
_devices = {("cpu", 0): _Defaults.base}
_loading = threading.RLock()  # a runtime: threads that ask for it first share it
_loaders: dict[str, Callable[[int], Memory]] = {}
_presence: dict[str, Callable[[], bool]] = {}


def register_runtime(
    kind: str, load: Callable[[int], Memory], is_present: Callable[[], bool] = lambda: True
) -> None:
    """Make devices of `kind` available; `load(index)` imports the runtime and returns it.

    Where there is no such device, `load` says what is missing; `is_present` only looks.
    """
    _loaders[kind], _presence[kind] = load, is_present


def device(spec: str | Device) -> Device:
    """The device named `spec`, such as "cpu" or "cuda:1"."""
    if isinstance(spec, Device):
        return spec
    kind, _, number = str(spec).partition(":")
    if kind not in _loaders or not (number == "" or number.isdigit()):
        known = ", ".join(sorted(_loaders))
        raise DeviceError(f"device: unknown device, got {spec!r}. This installation has: {known}.")
    key = (kind, int(number or 0))
    return _devices.get(key) or _devices.setdefault(key, Device(*key))


def devices() -> tuple[Device, ...]:
    """The first device of every kind that there is."""
    return tuple(device(kind) for kind in _loaders if _presence[kind]())


class Aval:
    """Shape, dtype, device and element strides of an array; strides are None for a traced array.

    `repeats` says whether one element is seen from everywhere; it is None for what is neither that
    nor dense, and for a traced array.
    """

    __slots__ = (
        "__weakref__", "dense", "device", "dtype", "ndim", "repeats", "shape", "size", "strides",
    )  # fmt: skip

    shape: tuple[int, ...]
    dtype: DType
    device: Device
    strides: tuple[int, ...] | None
    ndim: int
    size: int
    dense: bool
    repeats: bool | None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_symbolic(self) -> bool:
        return self.strides is None

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


MOST_BYTES = (1 << 63) - 1  # that an address can tell apart


def check_size(shape: tuple[int, ...], itemsize: int = 1, name: str = "array") -> None:
    """Raise for a shape that no machine can have; whether this one can, memory will tell."""
    nbytes = prod(shape) * itemsize
    if nbytes > MOST_BYTES or (nbytes == 0 and max(shape) > MOST_BYTES):
        raise ShapeError(f"{name}: an array has less than 2**63 bytes, got shape {shape}.")


# by shape, name of the dtype, device, and strides where they are not those of a dense array
_interned: Interned[Aval] = Interned()


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major element strides."""
    try:
        return _dense_strides(tuple(shape))
    except Unhashed:
        return _strides(shape)


@lru_cache(4096)
def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    # a NumPy integer equals a plain one, which is wanted at the next time
    return _strides([int(n) for n in shape])


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    strides.reverse()
    return tuple(strides)


def aval(
    shape: tuple[int, ...], dtype: DType, dev: Device, strides: tuple[int, ...] | None = None
) -> Aval:
    """The interned aval of a concrete array; dense unless strides are given."""
    key: tuple = (shape, dtype.name, dev)  # a name is hashed sooner than a dtype
    if strides is not None:
        dense = dense_strides(shape)
        if 1 in shape or 0 in shape:  # their strides mean nothing: normalise them
            pairs = zip(shape, strides, dense, strict=True)
            strides = tuple([d if n <= 1 else s for n, s, d in pairs])
        if strides != dense:
            key = (shape, dtype.name, dev, strides)
    try:
        found = _interned.get(key)
    except Unhashed:
        return detached(shape, dtype, dev, None if len(key) == 3 else strides)
    if found is None:
        own = dense_strides(shape) if strides is None else strides
        found = _interned.add(key, _new(shape, dtype, dev, own, len(key) == 3))
    return found


_MOST_REPEATED = 1024  # avals; a program with ever new shapes starts over
_repeated: dict[tuple, Aval] = {}


def repeated(shape: tuple[int, ...], dtype: DType, dev: Device) -> Aval:
    """The interned aval of one element seen from everywhere."""
    key = (shape, dtype.name, dev)
    found = _repeated.get(key)
    if found is None:
        if len(_repeated) >= _MOST_REPEATED:
            _repeated.clear()
        found = _repeated[key] = aval(shape, dtype, dev, (0,) * len(shape))
    return found


def symbolic(shape: tuple[int, ...], dtype: DType, dev: Device) -> Aval:
    """The interned aval of an array that is being traced and has no storage."""
    key = (shape, dtype.name, dev, None)
    found = _interned.get(key)
    if found is None:
        found = _interned.add(key, _new(shape, dtype, dev, None, True))
    return found


def detached(
    shape: tuple[int, ...],
    dtype: DType,
    dev: Device,
    strides: tuple[int, ...] | None = None,
    dense: bool | None = None,
    repeats: bool | None = None,
) -> Aval:
    """The aval of a concrete array for one purpose alone, not interned; dense unless strides are
    given. With `dense`, that and `repeats` are known.
    """
    if dense is None:
        own = dense_strides(shape) if strides is None else strides
        return _new(shape, dtype, dev, own, strides is None)
    new = Aval()
    new.shape, new.dtype, new.device, new.strides = shape, dtype, dev, strides
    new.ndim, new.size = len(shape), prod(shape)
    new.dense, new.repeats = dense, repeats
    return new


def _new(
    shape: tuple[int, ...], dtype: DType, dev: Device, strides: tuple[int, ...] | None, dense: bool
) -> Aval:
    new = Aval()
    new.shape, new.dtype, new.device, new.strides = shape, dtype, dev, strides
    new.ndim = len(shape)
    new.size = size = prod(shape)
    if size == 0 or size * dtype.itemsize > MOST_BYTES:
        check_size(shape, dtype.itemsize)
    new.dense = dense = dense or size == 0
    if strides is None:
        new.repeats = None
    elif dense and strides:
        new.repeats = False
    elif 1 in shape:  # where strides mean nothing
        moves = any([s for n, s in zip(shape, strides, strict=True) if n != 1])
        new.repeats = None if moves else True
    else:
        new.repeats = None if any(strides) else True
    return new
