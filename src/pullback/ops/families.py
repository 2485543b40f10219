"""Constructors of operation records: what the operations of one kind have in common is said here
once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, update_wrapper, wraps
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType, default_float, promote
from pullback.core.errors import CAUSED, AxisError, DTypeError, ShapeError, shorten
from pullback.ir import op as ir_op
from pullback.ir.array import Array, Node, handle, make, mode, next_order
from pullback.ir.convert import (
    SCALARS,
    Exchanged,
    as_array,
    default_device,
    fresh_scalar,
    in_range,
    is_number,
    scalar,
)
from pullback.ir.lowering import Elementwise, Lowering
from pullback.ir.op import REGISTRY, Composite, Op, another, bind, first_bind, register
from pullback.ir.rules import saved_source
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.remembered import remembering

__all__ = [
    "broadcast_shapes",
    "composite",
    "elementwise",
    "normalise_axes",
    "normalise_axis",
    "primitive",
    "promoted",
    "sum_to",
]

# What an operation accepts, by dtype kind, and what it says when it does not.
KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "floating", "c": "complex"}


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all `shapes` broadcast to."""
    first = shapes[0]
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


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with another handle as its result where that is one of its arguments.

    In-place operators rebind a handle, so a result that shared one would change its argument.
    """

    spellings = _spellings(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs and spellings:
                kwargs = _respelled(kwargs, spellings)
            out = function(*args, **kwargs)
        except CAUSED as error:
            shorten(error)
            raise hinted(error) from error.__cause__
        for a in args:
            if a is out and isinstance(out, Array):
                return another(out)
        for a in kwargs.values():
            if a is out and isinstance(out, Array):
                return another(out)
        return out

    return call


def leaves_made_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the keyword `requires_grad`: whether its result is a leaf with a gradient."""
    signature = inspect.signature(function)
    flag = inspect.Parameter(
        "requires_grad", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
    )

    @wraps(function)
    def call(*args: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if requires_grad:  # a leaf of its own, even if the values were computed from others
            out = make(out._buf, out._aval)
            out.requires_grad = True
        return out

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
    returns_argument: bool = False,
    **public: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a primitive; the decorated function checks the user's arguments and calls `bind(op,
    *arrays, **static)`.

    It receives the record as its attribute `op` once declared. `front=n` promises that the function
    only normalises: on n leading arrays, what it binds follows from their avals and its other
    arguments. Such calls are remembered; `SEQUENCE` promises it for one sequence of arrays in
    front. `returns_argument` says that the result may be an argument itself, which is otherwise
    given another handle.
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
        op.function = remembering(op, own, front) if front else own
        if any(name.startswith("__r") for name in op.methods):
            op.function.operator = remembering(op, _stepping_back(op.name, own), front)  # type: ignore[attr-defined]
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
    **public: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a public function that is made of other operations; see `primitive`.

    One that `creates` arrays takes `requires_grad` as well.
    """

    def declare(function: Callable[..., Any]) -> Any:
        function = function if returns_argument else apart(function)
        function = leaves_made_by(function) if creates else function
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

_TEMPLATE = """
def call({params}, /):
    try:{constant}
        plan = plans[{avals}]
    except (KeyError, AttributeError):
        return slow({params})
    out = new(handle.cls)
    out._buf = plan.run({bufs})
    out._aval = plan.aval
    if {untracked} or not mode.recording:
        out._node = None
    else:
        {names} = {nodes}
        node = new(Node)
        node.op = op
        node.edges = {edges}
        node.avals = {aval_tuple}
        node.aval = plan.aval
        node.static = nothing
        node.saved = {saved}
        node.order = next_order()
        node.extra = None
        out._node = node
    return out
"""


# A zero is looked up by its text: 0.0 and -0.0 would share a key.
_CONSTANT = """
        if type({b}) in numbers:
            key = {b} or repr({b}), type({b}), {a}._aval.dtype.name, {a}._aval.device
            try:
                {b} = constants[key]
            except KeyError:
                {b} = constant(constants, key, {b}, {a}._aval.dtype)
        elif type({a}) in numbers:
            key = {a} or repr({a}), type({a}), {b}._aval.dtype.name, {b}._aval.device
            try:
                {a} = constants[key]
            except KeyError:
                {a} = constant(constants, key, {a}, {b}._aval.dtype)"""


MOST_CONSTANTS = 256  # of one operation; a loop over ever new numbers starts over


def _constant(constants: dict[tuple, Any], key: tuple, number: Any, dtype: DType) -> Any:
    """A Python number that has the dtype of the array beside it, as an array, which is kept.

    A KeyError leaves it to the general rules of promotion.
    """
    if dtype.kind not in "fc" and (dtype.kind not in "iu" or number.__class__ is float):
        raise KeyError(number)
    if dtype.kind in "iu" and not in_range(number, dtype):
        raise KeyError(number)
    if len(constants) >= MOST_CONSTANTS:
        constants.clear()
    found = constants[key] = fresh_scalar(number, dtype, key[-1])
    return found


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
        fast = _fast_function(op, prepare, pair if len(pair) == 2 else [])
        op.function = update_wrapper(fast, function)
        fast.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        fast.op = op  # type: ignore[attr-defined]
        register(op)
        return fast

    return declare


def _fast_function(
    op: Op, prepare: Callable[..., list[Any]], pair: Sequence[int]
) -> Callable[..., Any]:
    """The public function of an elementwise operation: one dictionary look-up, one native call, one
    node.

    `pair` is where two operands stand that are promoted together: of these one may be a number.
    """
    constants: dict[tuple, Any] = {}  # Python numbers met beside an array, as arrays

    def slow(*args: Any) -> Any:
        try:
            return first(*args)
        except CAUSED as error:
            shorten(error)
            raise error

    def stepping_back(*args: Any) -> Any:
        try:
            for a in args:
                if a.__class__ is not handle.cls and not is_operand(op.name, a):
                    return NotImplemented
            return first(*args)
        except CAUSED as error:
            shorten(error)
            raise error

    promotes_all = len(op.names) == max(1, len(pair))
    accepted = op.accepts  # type: ignore[attr-defined]

    def is_ready(args: tuple) -> bool:
        """Whether there is nothing to prepare: arrays of one dtype, which the operation takes."""
        dtype = args[0]._aval.dtype if args[0].__class__ is handle.cls else None
        if not promotes_all or dtype is None or dtype.kind not in accepted:
            return False
        return all([a.__class__ is handle.cls and a._aval.dtype is dtype for a in args])

    def first(*args: Any) -> Any:
        arrays = args if is_ready(args) else prepare(*args)
        avals = tuple(a._aval for a in arrays)
        key = avals[0] if len(avals) == 1 else avals
        if key in op.plans:
            return fast(*arrays)
        out = first_bind(op, arrays, {}, key)
        if key in op.plans:
            return fast(*arrays) if any(a._node is not None for a in arrays) else out
        if mode.recording and op.vjp:  # traced
            out._node = ir_op.record(op, arrays, {}, out)
        return out

    source = _fast_source(op, pair)
    scope = {
        "numbers": frozenset((int, float)), "constants": constants, "constant": _constant,
        "plans": op.plans, "slow": slow,
        "new": object.__new__, "handle": handle, "mode": mode, "Node": Node, "op": op,
        "nothing": {}, "next_order": next_order, "__name__": __name__,
    }  # fmt: skip
    code = _compiled(source)
    exec(code, scope)
    fast: Any = scope["call"]
    # The operator form steps back for operands of foreign types, so that their own methods get a
    # chance.
    exec(code, scope := {**scope, "slow": stepping_back})
    fast.operator = scope["call"]
    return fast


@lru_cache
def _compiled(source: str) -> Any:
    """The code of a fast function; operations of one shape share it, which is most of the import
    time saved.
    """
    return compile(source, "<elementwise operation>", "exec")


def _fast_source(op: Op, pair: Sequence[int]) -> str:
    """The template filled in for the arity of `op` and for what its rules save; operands are named
    a0, a1 ...
    """
    positions = range(len(op.names))

    def joined(pattern: str) -> str:
        return ", ".join(pattern.format(i) for i in positions)

    ruled = [i for i in positions if op.names[i] in op.vjp]
    untracked = " and ".join(f"a{i}._node is None" for i in ruled)
    source = _TEMPLATE.format(
        params=joined("a{}"),
        constant=_CONSTANT.format(a=f"a{pair[0]}", b=f"a{pair[1]}") if pair else "",
        avals=joined("a{}._aval"),
        bufs=joined("a{}._buf"),
        untracked=f"({untracked})" if ruled else "True",
        names=joined("n{}"),
        nodes=joined("a{}._node"),
        edges="(" + "".join(f"n{i}, " if i in ruled else "None, " for i in positions) + ")",
        aval_tuple=f"({joined('a{}._aval')},)",
        saved=saved_source(op),
    )
    # a call that lacks an operand is told its name
    return re.sub(r"\ba(\d+)\b", lambda found: op.names[int(found[1])], source)


def _stepping_back(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a function of two arrays that is an operator."""

    @wraps(function)
    def operator(x: Any, y: Any, /) -> Any:
        if is_operand(name, x) and is_operand(name, y):
            return function(x, y)
        return NotImplemented

    return operator


def is_operand(name: str, x: Any) -> bool:
    """Whether an operator takes `x`: arrays and numbers, but no lists.

    An array of another library is refused here: its own operator would say less.
    """
    if isinstance(x, (Array, np.ndarray, np.generic, *SCALARS)):
        return True
    if isinstance(x, Exchanged):
        kind = f"{type(x).__module__}.{type(x).__name__}"
        raise DTypeError(
            f"{name}: expected a tensor or a number, got {kind}. Convert it with from_dlpack."
        )
    return False


def _result_dtype(result: str, dtype: DType) -> DType:
    if result == "bool":
        return dt.bool_
    return dtype.real if result == "real" else dtype


def promoted(
    name: str, accepts: str, names: tuple[str, ...], unpromoted: tuple[str, ...], args: tuple
) -> list[Any]:
    """The operands as arrays of one dtype that the operation accepts; Python numbers stay as weak
    as possible.
    """
    given = [a if isinstance(a, Array) or is_number(a) else as_array(a, name) for a in args]
    first = next((a for a in given if isinstance(a, Array)), None)
    dev = default_device() if first is None else first._aval.device
    inside = [a for n, a in zip(names, given, strict=True) if n not in unpromoted]
    dtype = _accepted(name, accepts, _common_dtype(inside))
    result = []
    for n, a in zip(names, given, strict=True):
        if n in unpromoted:
            a = as_array(a, name, dev=dev)
        elif not isinstance(a, Array):
            a = scalar(a, dtype, dev, name)
        elif a._aval.dtype is not dtype:
            a = _cast(a, dtype)
        result.append(a)
    return result


def _common_dtype(given: Sequence[Any]) -> DType:
    """The promoted dtype of arrays and Python numbers."""
    dtype = None
    for a in given:
        if isinstance(a, Array):
            dtype = a._aval.dtype if dtype is None else promote(dtype, a._aval.dtype)
    for a in given:
        if not isinstance(a, Array):
            own = dt.bool_ if isinstance(a, bool) else dt.as_dtype(a.__class__)
            dtype = own if dtype is None else dt.of_scalar(a, dtype)
    assert dtype is not None
    return dtype


def _accepted(name: str, accepts: str, dtype: DType) -> DType:
    """The dtype that an operation computes in, given its operands' promoted dtype."""
    if dtype.kind in accepts:
        return dtype
    if dtype.kind in "biu" and "f" in accepts and "i" not in accepts:
        return default_float()
    wanted = " or ".join(dict.fromkeys(KINDS[k] for k in accepts))
    article = "an" if wanted[0] in "aeiou" else "a"
    raise DTypeError(
        f"{name}: expected {article} {wanted} dtype, got {dtype.name}. Cast with astype."
    )


def _cast(x: Any, dtype: DType) -> Any:
    return bind(REGISTRY["astype"], x, dtype=dtype)


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
