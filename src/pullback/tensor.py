"""`Tensor`, the array that users hold. Its arithmetic and most methods come from the registry of
operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pullback.autodiff import reverse
from pullback.autodiff.hooks import Hook, registered
from pullback.core import dtypes as dt
from pullback.core.avals import Device
from pullback.core.avals import device as as_device
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import (
    CopyError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
    briefly,
)
from pullback.display.notebook import array_html
from pullback.ir import exchange
from pullback.ir.array import LEAF, Array, Node, handle, is_variable, leaf_node, make, mode
from pullback.ir.convert import Exchanged, as_array, from_numpy, refuse_masked, to_numpy
from pullback.ir.op import REGISTRY, another
from pullback.ir.tracing import no_value
from pullback.missing_names import METHOD_HINTS, MissingMethods
from pullback.numpy_protocol import call_function, call_ufunc
from pullback.ops import subscript
from pullback.ops.plain_keys import view
from pullback.settings import printed

__all__ = ["Tensor", "from_dlpack", "tensor"]

# Versions of the Array API standard whose programs run: each has everything of those before it.
STANDARDS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


def _refused_update(name: str) -> GradientError:
    return GradientError(
        f"{name}: a leaf that requires a gradient can't be updated in place. Do it under no_grad,"
        " or on a result computed from it."
    )


class Tensor(Array, MissingMethods):
    """A differentiable array. Make one with `pb.tensor`; see the documentation of `pb` for the
    operations.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # by identity: == compares elements

    # -- what it is --------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._aval.shape

    @property
    def dtype(self) -> DType:
        return self._aval.dtype

    @property
    def device(self) -> Device:
        return self._aval.device

    @property
    def ndim(self) -> int:
        return self._aval.ndim

    @property
    def size(self) -> int:
        return self._aval.size

    @property
    def itemsize(self) -> int:
        return self._aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._aval.nbytes

    @property
    def T(self) -> Any:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError(f"T: expected 2 dimensions, got {self.ndim}. Use mT or permute_dims.")
        return REGISTRY["permute_dims"].function(self, (1, 0))

    @property
    def mT(self) -> Any:
        """The transpose of the last two axes."""
        return REGISTRY["matrix_transpose"].function(self)

    @property
    def real(self) -> Any:
        """The real part; that of a real tensor is equal to it."""
        return REGISTRY["real"].function(self) if self.dtype.is_complex else another(self)

    @property
    def imag(self) -> Any:
        """The imaginary part of a complex tensor."""
        return REGISTRY["imag"].function(self)

    def __repr__(self) -> str:
        facts = [self.dtype.name, str(self.device)]
        if self._node is not None:
            facts.append("requires_grad=True" if self.is_leaf else f"grad_fn=<{self._node.name}>")
        if self._aval.is_symbolic:
            return f"tensor(traced {self._aval}, {', '.join(facts[1:])})"
        if self.size == 0 and self.shape != (0,):
            facts.insert(0, f"shape={self.shape}")
        return f"tensor({self._values('tensor(')}, {', '.join(facts)})"

    def _values(self, prefix: str) -> str:
        """The elements as text."""
        return printed(exchange.printable(self), prefix)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: dtype, shape and place, and under them the values."""
        if self._aval.is_symbolic:
            return None
        facts = [repr(self._aval), f"on {self.device}"]
        if self._node is not None:
            facts.append("requires_grad" if self.is_leaf else f"computed by {self._node.name}")
        return array_html(", ".join(facts), self._values(""))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else repr(self)

    # -- values ------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """A read-only NumPy array; the tensor must not be tracked (`detach` it first).

        It shares the memory where nothing else has it, and is a copy where a recorded operation or
        another tensor does: there are libraries that write to read-only arrays.
        """
        exchange.check_untracked(self, "numpy")
        return exchange.own_array(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        cast = dtype is not None and array.dtype != dtype
        if copy is False and (cast or (array.flags.owndata and array.size)):
            what = f"a cast to {dtype}" if cast else "memory that others hold too"
            raise CopyError(f"__array__: {what} needs a copy, got copy=False.")
        return array.astype(dtype) if cast else array.copy() if copy else array

    @briefly
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions of elements are ours."""
        return call_ufunc(ufunc, method, inputs, options)

    @briefly
    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """NumPy's other functions are ours where there is one, or are given NumPy arrays."""
        return call_function(function, args, kwargs)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in METHOD_HINTS]

    # -- other names -------------------------------------------------------------------------------

    def to(self, target: Any) -> Any:
        """The tensor with a dtype, or on a device.

        >>> pb.ones(2).to(pb.float64).to("cpu")
        tensor([1., 1.], float64, cpu)
        """
        is_dtype = not isinstance(target, (str, Device)) or target in {d.name for d in dt.ALL}
        return REGISTRY["astype"].function(self, target) if is_dtype else self.to_device(target)

    def cpu(self) -> Any:
        """The tensor on the CPU."""
        return self.to_device("cpu")

    def numel(self) -> int:
        """The number of elements."""
        return self.size

    def copy(self) -> Any:
        """A tensor of its own with the same elements, connected to this one's history."""
        return another(self)

    def transpose(self, *axes: Any) -> Any:
        """The axes in reverse order, or in the order of `axes`, a permutation of all of them.

        >>> pb.ones((2, 3, 4)).transpose().shape
        (4, 3, 2)

        With two axes of a larger tensor PyTorch exchanges these: that is `swapaxes`.
        """
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        if len(order) == 2 and not (self.ndim == 2 and tuple(order) == (1, 0)):
            raise ShapeError(
                "transpose: two axes mean a permutation in NumPy and an exchange in PyTorch, got"
                f" {tuple(order)}. Use permute or swapaxes."
            )
        return REGISTRY["permute_dims"].function(self, order or tuple(range(self.ndim))[::-1])

    @briefly
    def dot(self, other: Any) -> Any:
        """The product of two vectors or matrices, or by a number, as NumPy and PyTorch have it.

        >>> pb.tensor([1.0, 2.0]).dot(pb.tensor([3.0, 4.0]))
        tensor(11., float32, cpu)
        """
        other = as_array(other, "dot")
        if self.ndim == 0 or other.ndim == 0:
            return REGISTRY["multiply"].function(self, other)
        if self.ndim > 2 or other.ndim > 2:
            raise ShapeError(
                f"dot: takes vectors and matrices, got shapes {self.shape} and {other.shape}. Use"
                " matmul for batches, or tensordot."
            )
        return REGISTRY["matmul"].function(self, other)

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self._aval.is_symbolic:
            raise no_value("item", self)
        if self.size != 1:
            raise ShapeError(f"item: expected one element, got shape {self.shape}.")
        return exchange.element(self)

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return to_numpy(self).tolist()

    def __bool__(self) -> bool:
        return bool(exchange.only_element(self, "bool"))

    def __int__(self) -> int:
        return int(exchange.only_element(self, "int"))

    def __float__(self) -> float:
        return float(exchange.only_element(self, "float", lossy=True))

    def __complex__(self) -> complex:
        return complex(exchange.only_element(self, "complex", lossy=True))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DTypeError(f"index: only an integer tensor is an index, got {self.dtype.name}.")
        return int(exchange.only_element(self, "index"))

    def __round__(self, digits: int | None = None) -> Any:
        """The nearest whole numbers, or numbers with so many decimal digits, as a tensor."""
        rounded = REGISTRY["round"].function
        if digits is None or not self.dtype.is_inexact:
            return rounded(self)
        scaled: Any = self
        return rounded(scaled * 10.0**digits) / 10.0**digits

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DTypeError("len: a 0-d tensor has no length.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    # -- indexing ----------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        part = view(self, key if key.__class__ is tuple else (key,))
        return subscript.getitem(self, key) if part is None else part

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._node is not None and self._is_tracked_leaf() and mode.recording:
            raise _refused_update("setitem")
        new = subscript.assigned(self, key, value)
        if new is not self:
            self._rebind("setitem", subscript.setitem(self, key, value) if new is None else new)

    def _is_tracked_leaf(self) -> bool:
        node = self._node
        return node is not None and node.op is LEAF and not is_variable(node)

    def _rebind(self, name: str, new: Any) -> None:
        """Let this handle stand for another array; whoever shared the old one keeps the old one."""
        if self._is_tracked_leaf():
            if mode.recording:
                raise _refused_update(name)
            self._buf, self._aval = new._buf, new._aval
        else:
            self._buf, self._aval, self._node = new._buf, new._aval, new._node

    # -- derivatives -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for derivatives."""
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value == (self._node is not None):
            return
        if not value:
            if not self.is_leaf:
                raise GradientError(
                    "requires_grad: only a leaf can stop requiring gradients. Use detach()."
                )
            self._node = None
            return
        if not self.dtype.is_inexact:
            raise GradientError(
                "requires_grad: only floating and complex tensors have gradients, got"
                f" {self.dtype.name}."
            )
        self._node = leaf_node(self._aval)

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor was made by the user, and not computed from tracked tensors."""
        return self._node is None or self._node.op is LEAF

    @property
    def grad_fn(self) -> Node | None:
        """The recorded operation that computed this tensor: `name`, `inputs`, `input_grad_fns`,
        `saved_tensors`.
        """
        return None if self.is_leaf else self._node

    @property
    def grad(self) -> Any:
        """The accumulated gradient of a leaf, or of an intermediate after `retain_grad`."""
        return (
            None if self._node is None or self._node.extra is None else self._node.extra.get("grad")
        )

    @grad.setter
    def grad(self, value: Any) -> None:
        if self._node is None:
            raise GradientError("grad: the tensor does not require a gradient.")
        if value is not None and value.shape != self.shape:
            raise ShapeError(f"grad: expected shape {self.shape}, got {value.shape}.")
        self._node.extra = {**(self._node.extra or {}), "grad": value}

    @briefly
    def backward(
        self, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the derivatives of this tensor, weighted by `gradient` (1 for a single element), to
        `.grad` of the leaves.

        With `create_graph` the gradients can be differentiated again.
        """
        reverse.backward([self], [gradient], retain_graph=retain_graph, create_graph=create_graph)

    def retain_grad(self) -> None:
        """Keep the gradient of this intermediate in `.grad`, as for a leaf."""
        if self._node is None:
            raise GradientError("retain_grad: the tensor does not require a gradient.")
        if not self.is_leaf:
            self._node.extra = {**(self._node.extra or {}), "retain": True}

    def register_hook(self, hook: Callable[[Any], Any]) -> Hook:
        """Call `hook(gradient)` when this tensor's gradient is known; a returned tensor replaces
        it.
        """
        if self._node is None:
            raise GradientError("register_hook: the tensor does not require a gradient.")
        return registered(self._node, hook)

    def detach(self) -> Any:
        """The same values, cut off from the recorded graph."""
        return make(self._buf, self._aval)

    def clone(self) -> Any:
        """The same values as a new tensor, connected to this one; nothing is copied, since buffers
        never change.
        """
        return REGISTRY["positive"].function(self) if self._node is not None else self.detach()

    # -- other libraries, other devices ------------------------------------------------------------

    def to_device(self, where: str | Device, /, *, stream: Any = None) -> Any:
        """The tensor on another device."""
        if stream is not None:
            raise DeviceError(f"to_device: the CPU has no streams, got stream={stream!r}.")
        target = as_device(where)
        if target is self.device:
            return self
        return from_numpy(self.numpy(), target)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version is not None and api_version not in STANDARDS:
            raise ValueError(
                f"__array_namespace__: unknown version of the standard, got {api_version!r}."
            )
        return sys.modules["pullback"]  # which imports this module

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of a copy: consumers may write, and not all of them heed a read-only flag.

        With `copy=False` the memory is shared, if nothing but this tensor has it: no recorded
        operation, no other tensor. Who writes to it then changes this tensor. A constant, which
        takes no memory, is given some.
        """
        return exchange.capsule(self, stream, max_version, dl_device, copy)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of a GPU, to be read only."""
        return exchange.cuda_interface(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.runtime.dlpack_device

    def __reduce__(self) -> Any:
        return (_rebuilt, (np.array(to_numpy(self)), self.is_leaf and self.requires_grad))

    def __copy__(self) -> Any:
        return make(self._buf, self._aval, self._node)

    def __deepcopy__(self, memo: dict) -> Any:
        if not self.is_leaf:
            raise GradientError("deepcopy: only a leaf can be copied; call detach() first.")
        new = self.detach()
        new.requires_grad = self.requires_grad
        return new


handle.cls = Tensor


def _rebuilt(array: np.ndarray, requires_grad: bool) -> Any:
    return tensor(array, requires_grad=requires_grad)


@briefly
def tensor(
    data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:  # the names are the standard's
    """A tensor with the given contents: a number, nested lists, a NumPy array, or anything with
    `__array__` or DLPack.

    Python floats become float32 (see `pb.set_default_float`), integers int64. The data is copied.
    A tensor, or a list that holds tensors, keeps its link to what it was computed from, unless
    `requires_grad` asks for a new leaf.

    >>> pb.tensor([[1, 2], [3, 4]], dtype="float64")
    tensor([[1., 2.],
            [3., 4.]], float64, cpu)
    """
    where = None if device is None else as_device(device)
    wanted = None if dtype is None else as_dtype(dtype, "tensor")
    if isinstance(data, Array):
        x = make(data._buf, data._aval) if requires_grad else another(data)
        if where is not None:
            x = x.to_device(where)
        x = x if wanted is None else REGISTRY["astype"].function(x, wanted)
    else:
        x = as_array(data, "tensor", dtype=wanted, dev=where)
    if requires_grad:
        x.requires_grad = True
    return x


@briefly
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """A tensor of the data of another library's array, sharing its memory, on the CPU or a GPU.

    `copy=True` takes a copy; `copy=False` raises where the memory can't be shared as it lies.

    What is shared must not be changed while a call uses it: indices are checked, then used.

    >>> pb.from_dlpack(np.asarray([1.0, 2.0]))
    tensor([1., 2.], float64, cpu)
    """
    refuse_masked([x], "from_dlpack")
    if not isinstance(x, Exchanged):
        raise DTypeError(
            f"from_dlpack: expected an array that has __dlpack__, got {type(x).__name__}. Use"
            " tensor."
        )
    shared = exchange.imported(x, copy)
    return shared if device is None else shared.to_device(device)
