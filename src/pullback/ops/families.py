"""Constructors of operation records: what the operations of one kind have in common is said here
once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.errors import CAUSED, AxisError, DTypeError, ShapeError, shorten
from pullback.ir.array import Array, make
from pullback.ir.lowering import Elementwise, Lowering
from pullback.ir.op import REGISTRY, Composite, Op, another, bind, register
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.fast_calls import fast_function
from pullback.ops.promotion import is_operand, promoted
from pullback.ops.remembered import remembering, remembering_chain

__all__ = [
    "broadcast_shapes",
    "composite",
    "elementwise",
    "normalise_axes",
    "normalise_axis",
    "primitive",
    "sum_to",
]


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all `shapes` broadcast to."""
    first = shapes[0]
    if len(shapes) == 2:
        second = shapes[1]
        if first == second or not second:
            return first
        if not first:
            return second
    if all(s == first for s in shapes):
        return first
    ndim = max(map(len, shapes))
    result = [1] * ndim
    for shape in shapes:
        for d, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and result[d] not in (1, n):
                listed = " and ".join(map(str, shapes))
                raise ShapeError(
                    f"{name}: shapes do not broadcast, got {listed}."
                    f" Sizes along axis {d - ndim} must be equal or 1."
                )
            if n != 1:
                result[d] = n
    return tuple(result)


def normalise_axis(name: str, axis: Any, ndim: int) -> int:
    """`axis` as a non-negative int."""
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        got = repr(axis) if isinstance(axis, (int, float, str)) else type(axis).__name__
        raise DTypeError(f"{name}: an axis must be an integer, got {got}.")
    if not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis {axis} is out of range for an array with {ndim} dimensions.")
    return int(axis) % ndim


def normalise_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` (None for all, an int, or a sequence) as increasing non-negative ints."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = sorted(normalise_axis(name, a, ndim) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: an axis is named twice, got {axis}.")
    return tuple(axes)


def _subject(function: Callable[..., Any]) -> str:
    """The subject of an operation: its file in ops/, or the first level elsewhere ("nn.losses")."""
    _, home, subject, *_ = [*function.__module__.split("."), ""]
    return subject if home == "ops" else f"{home}.{subject}"


# Arguments that PyTorch and the standard spell otherwise: both spellings are taken.
SPELLINGS = {
    "dim": "axis",
    "keepdim": "keepdims",
    "axis": "dim",
    "keepdims": "keepdim",
    "ddof": "correction",
}
# What Python says of a call that can't be, by a part of it, and what we add.
HINTS = {
    "unexpected keyword argument 'unbiased'": "Use correction=1, or 0.",
    "unexpected keyword argument 'out'": "Operations give new arrays: a = f(x).",
    "unexpected keyword argument 'a_min'": "Use min and max.",
    "unexpected keyword argument 'generator'": "The first argument is a key.",
    "unexpected keyword argument 'inplace'": "Operations give new arrays: x = f(x).",
    "unexpected keyword argument 'return_counts'": "Use unique_counts or unique_all.",
    **{
        f"{name}() takes 1 positional argument but": f"A shape is one argument: {name}((3, 4))."
        for name in ("zeros", "ones", "empty")
    },
}


def _spellings(function: Callable[..., Any]) -> dict[str, str]:
    """The other spellings of the arguments that a function takes."""
    code = function.__code__
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {k: v for k, v in SPELLINGS.items() if v in taken and k not in taken}


def _respelled(given: dict[str, Any], spellings: dict[str, str]) -> dict[str, Any]:
    renamed = {spellings.get(name, name): value for name, value in given.items()}
    if len(renamed) < len(given):
        twice = [f"{k} and {v}" for k, v in spellings.items() if k in given and v in given]
        raise TypeError(f"{' and '.join(twice)} are one argument, got both.")
    return renamed


def hinted(error: Exception) -> Exception:
    """An error of Python's about a call, with a hint where we have one."""
    if type(error) is TypeError:
        for part, hint in HINTS.items():
            if part in str(error):
                return TypeError(f"{error}. {hint}").with_traceback(error.__traceback__)
    return error


def apart(
    function: Callable[..., Any], creates: bool = False, returns_argument: bool = False
) -> Callable[..., Any]:
    """`function` with another handle as its result where that is one of its arguments, unless it
    `returns_argument`.

    In-place operators rebind a handle, so a result that shared one would change its argument. One
    that `creates` arrays takes the keyword `requires_grad`: whether its result is a leaf with a
    gradient.
    """

    spellings = _spellings(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaf = False
        try:
            if kwargs:
                if spellings:
                    kwargs = _respelled(kwargs, spellings)
                if creates:
                    leaf = kwargs.pop("requires_grad", False)
            out = function(*args, **kwargs)
        except CAUSED as error:
            shorten(error)
            raise hinted(error) from error.__cause__
        if leaf:  # one of its own, even if the values were computed from others
            out = make(out._buf, out._aval)
            out.requires_grad = True
        if returns_argument:
            return out
        for a in args:
            if a is out and isinstance(out, Array):
                return another(out)
        for a in kwargs.values():
            if a is out and isinstance(out, Array):
                return another(out)
        return out

    if creates:
        signature = inspect.signature(function)
        flag = inspect.Parameter(
            "requires_grad", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
        )
        parameters = [*signature.parameters.values(), flag]
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def primitive(
    operands: str,
    *,
    infer: Callable[..., tuple[tuple[int, ...], DType]],
    lowering: Lowering,
    oracle: Callable[..., Any] | str,
    samples: Callable[[Draw], list[Sample]],
    errors: Callable[[Draw], list[Bad]],
    vjp: dict[str, Callable[..., Any]] | None = None,
    jvp: dict[str, Callable[..., Any]] | str = "",
    batch: Callable[..., Any] | str = "",
    no_gradient: str = "",
    front: int = 0,
    setting: Callable[[], Any] | None = None,
    returns_argument: bool = False,
    **public: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a primitive; the decorated function checks the user's arguments and calls `bind(op,
    *arrays, **static)`.

    It receives the record as its attribute `op` once declared. `front=n` promises that the function
    only normalises: on n leading arrays, what it binds follows from their avals and its other
    arguments, and from `setting`. Such calls are remembered; `SEQUENCE` promises it for one
    sequence of arrays in front. `returns_argument` says that the result may be an argument itself,
    which is otherwise given another handle.
    """

    def declare(function: Callable[..., Any]) -> Any:
        op = Op(
            name=function.__name__,
            function=function,
            oracle=oracle,
            samples=samples,
            errors=errors,
            operands=tuple(operands.split()),
            infer=infer,
            lowering=lowering,
            vjp=vjp or {},
            jvp=jvp,
            batch=batch,
            no_gradient=no_gradient,
            module=_subject(function),
            **public,
        )
        function.op = op  # type: ignore[attr-defined]
        own = function if returns_argument else apart(function)
        op.function = remembering(op, own, front, setting) if front else own
        if any(name.startswith("__r") for name in op.methods):
            op.function.operator = remembering(op, _stepping_back(op.name, own), front, setting)  # type: ignore[attr-defined]
        register(op)
        return op.function

    return declare


def composite(
    *,
    oracle: Callable[..., Any] | str,
    samples: Callable[[Draw], list[Sample]],
    errors: Callable[[Draw], list[Bad]],
    returns_argument: bool = False,
    creates: bool = False,
    chain: bool = False,
    **public: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a public function that is made of other operations; see `primitive`.

    One that `creates` arrays takes `requires_grad` as well. `chain` promises that what a function
    of a sequence of arrays binds follows from their avals and its other arguments; where that is a
    chain of operations, its calls are remembered.
    """

    def declare(function: Callable[..., Any]) -> Any:
        if creates or not returns_argument:
            function = apart(function, creates, returns_argument)
        function = remembering_chain(function) if chain else function
        register(
            Composite(
                name=function.__name__,
                function=function,
                oracle=oracle,
                samples=samples,
                errors=errors,
                module=_subject(function),
                **public,
            )
        )
        return function

    return declare


# -- elementwise -----------------------------------------------------------------------------------


def elementwise(
    operands: str,
    *,
    body: Callable[..., Any],
    accepts: str = "iufc",
    result: str = "same",
    vjp: dict[str, Callable[..., Any]] | None = None,
    jvp: dict[str, Callable[..., Any]] | str = "elementwise",
    domain: tuple[float, float] | Sequence[tuple[float, float]] = (-2.0, 2.0),
    samples: Callable[[Draw], list[Sample]] | None = None,
    errors: Callable[[Draw], list[Bad]] | None = None,
    no_gradient: str = "",
    unpromoted: tuple[str, ...] = (),
    oracle: Callable[..., Any] | str,
    **public: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare an operation on broadcast elements.

    `accepts`: dtype kinds of the promoted operands; integers and bools become the default float
    where only "f" (and "c") is accepted. `result`: "same", "bool" or "real" (the real dtype of a
    complex operand). `domain`: where samples are drawn, for all operands or for each. `unpromoted`:
    operands that stay out of promotion (the condition of `where`).
    """
    names = tuple(operands.split())

    def declare(function: Callable[..., Any]) -> Any:
        name = function.__name__

        def infer(*avals: Aval) -> tuple[tuple[int, ...], DType]:
            shape = broadcast_shapes(name, *[a.shape for a in avals])
            return shape, _result_dtype(result, avals[-1].dtype)

        op = Op(
            name=name,
            function=function,
            oracle=oracle,
            samples=samples or (lambda d: _elementwise_samples(d, names, domain)),
            errors=errors or (lambda d: _elementwise_errors(d, names, accepts)),
            operands=names,
            infer=infer,
            lowering=Elementwise(body),
            vjp=vjp or {},
            jvp=jvp if vjp else "",
            batch="elementwise",
            no_gradient=no_gradient,
            unbroadcast=sum_to,
            module=_subject(function),
            **public,
        )
        op.accepts = accepts  # type: ignore[attr-defined]

        def prepare(*args: Any) -> list[Any]:
            return promoted(name, accepts, names, unpromoted, args)

        pair = [i for i, n in enumerate(names) if n not in unpromoted]
        fast = fast_function(op, prepare, pair if len(pair) == 2 else [])
        op.function = update_wrapper(fast, function)
        fast.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        fast.op = op  # type: ignore[attr-defined]
        register(op)
        return fast

    return declare


def _stepping_back(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a function of two arrays that is an operator."""

    @wraps(function)
    def operator(x: Any, y: Any, /) -> Any:
        if is_operand(name, x) and is_operand(name, y):
            return function(x, y)
        return NotImplemented

    return operator


def _result_dtype(result: str, dtype: DType) -> DType:
    if result == "bool":
        return dt.bool_
    return dtype.real if result == "real" else dtype


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum `g` over the axes along which an array of the given shape was repeated: the transpose of
    broadcasting.
    """
    lead = g._aval.ndim - len(shape)
    own = g._aval.shape[lead:] if lead >= 0 else ()
    if lead < 0 or any(n not in (m, 1) for n, m in zip(shape, own, strict=True)):
        raise ShapeError(
            f"sum_to: a gradient of shape {g._aval.shape} can't be summed to the operand's shape"
            f" {shape}. A rule must return the shape of the output or of its operand."
        )
    repeated = tuple(d + lead for d, (n, m) in enumerate(zip(shape, own, strict=True)) if n != m)
    total = bind(REGISTRY["sum"], g, axes=tuple(range(lead)) + repeated, keepdims=False)
    return total if total._aval.shape == shape else bind(REGISTRY["reshape"], total, shape=shape)


def _elementwise_samples(d: Draw, names: tuple[str, ...], domain: Any) -> list[Sample]:
    domains = [domain] * len(names) if isinstance(domain[0], (int, float)) else list(domain)

    def args(*shapes: tuple[int, ...]) -> tuple:
        return tuple(
            d.real(*s, low=lo, high=hi) for s, (lo, hi) in zip(shapes, domains, strict=True)
        )

    n = len(names)
    cases = [args(*[(3, 5)] * n), args(*[()] * n), args(*[(0, 2)] * n), args(*[(19,)] * n)]
    if n > 1:
        cases.append(args((4, 1, 3), *[(2, 3)] * (n - 1)))
        cases.append(args(*[(2, 3)] * (n - 1), ()))
    return [Sample(c) for c in cases]


def _elementwise_errors(d: Draw, names: tuple[str, ...], accepts: str) -> list[Bad]:
    n = len(names)
    bad = [Bad((object(),) * n, {}, DTypeError, "expected an array")]
    if n > 1:
        shapes = [(2, 3)] * (n - 1) + [(4,)]
        kind = np.bool_ if accepts == "b" else np.int64 if "f" not in accepts else np.float64
        arrays = tuple(np.ones(s, kind) for s in shapes)
        bad.append(Bad(arrays, {}, ShapeError, "do not broadcast"))
    if "c" not in accepts:
        arrays = (np.ones(3, np.complex64),) * n
        bad.append(Bad(arrays, {}, DTypeError, "got complex64"))
    if "f" not in accepts:
        bad.append(Bad((np.ones(3),) * n, {}, DTypeError, "got float64"))
    return bad
