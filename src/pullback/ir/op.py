"""The operation record, the registry, and `bind`, the only door through which operations run.

An `Op` says everything about one primitive: how its result is shaped (`infer`), how it is computed
(`lowering`), and how it is differentiated (`vjp`, `jvp`). A derivative rule is a plain function
whose *parameter names* say what it needs, and so what a recorded node keeps alive:

    g           the cotangent of the output (in a JVP rule: t, the tangent of the operand)
    out         the output
    x           the operand named x              x_aval      only its shape and dtype
    axis        the static parameter named axis  out_aval    shape and dtype of the output
    static      all static parameters, by name
    xs          all operands of a variadic tail `*xs`, as a tuple (xs_avals: their avals)
    position    which one of them the rule is for

Rules are written with operations of the library, so their results can be differentiated again; a
rule returns None for a derivative that is zero everywhere.

A `batch` rule computes the operation for many examples at once. Its parameters are operands, with
the axis of examples in front (of size 1 where all examples share the operand), static parameters
(or `static`, all of them), `examples`, their number, and `op`, the operation itself; the axis of
examples is the first one of its result. "elementwise" stands for broadcasting, "rows" for an
operation that acts on trailing axes, as it is. Folds, gathers and scatters need no rule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.core import pytrees
from pullback.core.avals import Aval, aval, symbolic
from pullback.core.errors import DeviceError
from pullback.ir.array import LEAF, Array, Node, is_variable, make, mode, next_order
from pullback.ir.lowering import Fold, GatherRows, Intrinsic, Lowering, ScatterRows
from pullback.ir.plans import MAX_PLANS, Plan, active, observed, plan_caches
from pullback.ir.rules import Rule, compile_pull, compile_record, pull_variadic

__all__ = ["REGISTRY", "Composite", "Op", "another", "bind", "own_handles", "record", "register"]


@dataclass(eq=False)
class Public:
    """What the world sees of an operation, primitive or composite."""

    name: str
    function: Callable[..., Any]  # the public function
    oracle: (
        Callable[..., Any] | str
    )  # independent reference, on NumPy arrays; "module.name" is imported by tests
    samples: Callable[[Any], list]  # draws good inputs
    errors: Callable[[Any], list]  # bad inputs with the promised error
    methods: tuple[str, ...] = ()  # names under which it is a Tensor method
    namespace: str = ""  # "" is the main namespace, else e.g. "random"
    tolerance: float = (
        1.0  # multiple of the usual forward tolerance, where the oracle itself is weak
    )
    module: str = ""  # the subject it is documented under
    # Of results that are free up to a sign or a phase, what is determined: a function of the
    # array namespace and the list of results, for tests to compare and differentiate.
    determined: Callable[[Any, list], list] | None = None

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""


@dataclass(eq=False)
class Composite(Public):
    """An operation made of others; it needs no rules of its own."""

    differentiable: bool = True


@dataclass(eq=False)
class Op(Public):
    """A primitive operation."""

    operands: tuple[str, ...] = ()  # the last one may be variadic: "*xs"
    infer: Callable[..., tuple[tuple[int, ...], Any]] = None  # type: ignore[assignment]
    lowering: Lowering = None  # type: ignore[assignment]
    vjp: dict[str, Callable[..., Any]] = field(default_factory=dict)
    jvp: dict[str, Callable[..., Any]] | str = (
        ""  # rules, or "elementwise", "linear", "multilinear", "transpose"
    )
    # The Taylor coefficient n of the result, where no rule above gives it in O(n) operations:
    # `series(n, out, x, **static)`, from the coefficients 0, 1, ... of the result and of each
    # operand; None is zero, or a value that no rule reads.
    series: Callable[..., Any] | None = None
    batch: Callable[..., Any] | str = ""  # the rule for many examples, where it can't be derived
    no_gradient: str = ""  # why there is no derivative, where there is none
    unbroadcast: Callable[[Any, tuple[int, ...]], Any] | None = None  # set where operands broadcast
    zero_gradient: bool = False  # piecewise constant: the derivative exists and is zero

    def __post_init__(self) -> None:
        self.plans: dict[tuple, Plan] = {}
        plan_caches.append(self.plans)
        self.types: dict[tuple, list[tuple[tuple[int, ...], Any]]] = {}  # what was inferred
        plan_caches.append(self.types)
        self.traced: dict[tuple, Aval] = {}
        plan_caches.append(self.traced)
        self.raises = _may_raise(self.lowering)  # for what it finds in its operands
        self.variadic = bool(self.operands) and self.operands[-1].startswith("*")
        self.names = tuple(n.lstrip("*") for n in self.operands)
        _check_complete(self)
        self.pull_rules = {n: Rule(self, n, f, "g") for n, f in self.vjp.items()}
        rules = self.jvp if isinstance(self.jvp, dict) else {}
        self.push_rules = {n: Rule(self, n, f, "t") for n, f in rules.items()}
        self.needs = {n: _needs(self, n) for n in self.vjp}
        self.recorder: Callable[..., Node | None] | None = None  # made when first needed

    @property
    def differentiable(self) -> bool:
        return bool(self.vjp)

    def inferred(
        self, avals: tuple[Aval, ...], static: dict[str, Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        """`infer(*avals, **static)` in a list, remembered: graphs repeat themselves."""
        key = (avals, *static.items()) if static else avals
        try:
            return self.types[key]
        except KeyError:
            found = [self.infer(*avals, **static)]
        except TypeError:  # a static parameter without a hash
            return [self.infer(*avals, **static)]
        if len(self.types) >= MAX_PLANS:
            self.types.clear()
        self.types[key] = found
        return found

    def traced_aval(self, avals: tuple[Aval, ...], static: dict[str, Any]) -> Aval:
        """The result for operands of which some are traced, remembered as `inferred` is."""
        key = (avals, *static.items()) if static else avals
        try:
            return self.traced[key]
        except KeyError:
            is_known = True
        except TypeError:
            is_known = False
        dev = common_device(self.name, avals)
        ((shape, dtype),) = self.inferred(avals, static)
        out = symbolic(shape, dtype, dev)
        if is_known:
            if len(self.traced) >= MAX_PLANS:
                self.traced.clear()
            self.traced[key] = out
        return out

    def name_of(self, position: int) -> str:
        """The name of the operand at `position`; a variadic name covers the tail."""
        return self.names[min(position, len(self.names) - 1)]

    def pull(self, node: Node, g: Any, wanted: Container[Node] | None) -> Sequence[Any]:
        """The cotangents of a recorded node's operands; None where none is wanted or it is zero."""
        if self.variadic:
            return pull_variadic(self, node, g, wanted)
        self.pull = compile_pull(self)  # type: ignore[method-assign]  (from now on this node kind pulls at full speed)
        return self.pull(node, g, wanted)

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join(self.operands)})>"


def _may_raise(lowering: Lowering) -> bool:
    """Whether running an operation may find an error in its operands."""
    if isinstance(lowering, Intrinsic):
        return lowering.raises
    return isinstance(lowering, (GatherRows, ScatterRows))


def _check_complete(op: Op) -> None:
    """Refuse an incomplete record when it is declared, not when somebody first needs what is
    missing.
    """
    problems = []
    if not op.doc or ">>>" not in op.doc:
        problems.append("a docstring with a doctest")
    for part in ("infer", "lowering", "oracle", "samples", "errors"):
        if getattr(op, part) is None:
            problems.append(part)
    if not op.vjp and not op.no_gradient:
        problems.append("vjp rules, or no_gradient with the reason")
    if op.vjp and not op.jvp:
        problems.append('jvp rules, or "elementwise", "linear", "multilinear" or "transpose"')
    if not op.batch and not isinstance(op.lowering, (Fold, GatherRows, ScatterRows)):
        problems.append('a batch rule, or "elementwise" or "rows"')
    unknown = set(op.vjp) - set(op.names)
    if unknown:
        problems.append(f"vjp rules for operands only, not {sorted(unknown)}")
    if problems:
        raise TypeError(f"operation {op.name!r} is incomplete: it lacks {'; '.join(problems)}")


def _needs(op: Op, operand: str) -> tuple[frozenset[str], bool]:
    """Names of the operands, and whether the output, that differentiating by `operand` reads."""
    rules = [op.pull_rules[operand]] + [r for n, r in op.push_rules.items() if n == operand]
    names = {n for r in rules for n in r.reads}
    if op.jvp == "linear":  # the operation itself is applied to tangents, beside its other operands
        names |= set(op.names) - set(op.vjp)
    elif op.jvp == "multilinear":
        names |= set(op.names) - {operand}
    return frozenset(names), any(r.reads_output for r in rules)


REGISTRY: dict[str, Any] = {}  # of Op and Composite records


def register(entry: Public) -> None:
    """Add an operation; a name is declared once."""
    key = f"{entry.namespace}.{entry.name}".lstrip(".")
    if key in REGISTRY:
        raise TypeError(f"operation {key!r} is declared twice")
    REGISTRY[key] = entry


def bind(op: Op, *arrays: Any, **static: Any) -> Any:
    """Run `op` on arrays (concrete: now; traced: as an equation of their graph) and record it for
    derivatives.
    """
    key = (*[a._aval for a in arrays], *static.values())
    plan = op.plans.get(key)
    if plan is None:
        out = first_bind(op, arrays, static, key)
        plan = op.plans.get(key)
    else:
        out = make(plan.run(*[a._buf for a in arrays]), plan.aval)
    if mode.binds is not None:
        mode.binds.append((op, arrays, static, plan, out))
    if mode.recording and op.vjp:
        for a in arrays:
            if a._node is not None:
                out._node = record(op, arrays, static, out)
                break
    return out


def another(array: Array) -> Any:
    """Another handle of the same value: what is done to it in place leaves `array` as it is."""
    node = array._node
    if node is None or node.op is not LEAF or is_variable(node):
        return make(array._buf, array._aval, node)
    return bind(REGISTRY["reshape"], array, shape=array._aval.shape)


def own_handles(tree: Any) -> Any:
    """The tree with another handle for each array, for a function that may update its arguments."""
    if isinstance(tree, Array):
        return another(tree)
    return pytrees.map_tree(lambda x: another(x) if isinstance(x, Array) else x, tree)


def first_bind(op: Op, arrays: Sequence[Array], static: dict[str, Any], key: Any) -> Any:
    """Run `op` for avals that it has no plan for; traced arrays and control flow never have one."""
    if not isinstance(op, Op):
        return op.run(arrays, static)
    avals = tuple([a._aval for a in arrays])
    for av in avals:
        if av.strides is None:  # traced
            out = op.traced_aval(avals, static)
            return newest_graph(arrays).add(op, arrays, static, (out,))[0]
    dev = common_device(op.name, avals) if avals else static["device"]
    resized = None if active else dev.runtime.resized(op, avals, static)
    if resized is not None:
        plan, is_back = resized
        if is_back:
            keep_plan(op, key, plan)
        return make(plan.run(*[a._buf for a in arrays]), plan.aval)
    shape, dtype = op.infer(*avals, **static)
    plan = dev.runtime.plan(op, avals, static, aval(shape, dtype, dev))
    if active:
        plan = observed(op, plan, avals)
    keep_plan(op, key, plan)
    return make(plan.run(*[a._buf for a in arrays]), plan.aval)


def keep_plan(op: Op, key: Any, plan: Plan) -> None:
    """Let calls with these avals find a plan."""
    if len(op.plans) >= MAX_PLANS:
        op.plans.clear()
    op.plans[key] = plan


def newest_graph(arrays: Sequence[Array]) -> Any:
    """The innermost graph among traced arrays: values of the others are constants in it."""
    found = mode.scope
    for a in arrays:
        if a._aval.strides is None and a._buf.graph is not found:
            graph = a._buf.graph
            found = graph if found is None else max(found, graph, key=lambda g: g.depth)
    return found


def common_device(name: str, avals: Sequence[Aval]) -> Any:
    """The device that all operands share."""
    dev = avals[0].device
    for a in avals:
        if a.device is not dev:
            raise DeviceError(
                f"{name}: operands are on different devices, got {dev} and {a.device}."
                " Move one with to_device."
            )
    return dev


def record(op: Op, arrays: Sequence[Array], static: dict[str, Any], out: Array) -> Node | None:
    """The node of an operation just run, keeping what the rules of its tracked operands need; None
    if no operand with a rule is tracked.
    """
    if op.variadic:
        return record_variadic(op, arrays, static, out)
    if op.recorder is None:
        op.recorder = compile_record(op)
    return op.recorder(arrays, static, out)


def record_variadic(
    op: Op, arrays: Sequence[Array], static: dict[str, Any], out: Array
) -> Node | None:
    """`record` for an operation with a variable number of operands."""
    edges = tuple(a._node if op.name_of(i) in op.vjp else None for i, a in enumerate(arrays))
    tracked = {op.name_of(i) for i, edge in enumerate(edges) if edge is not None}
    if not tracked or not out._aval.dtype.is_inexact:
        return None
    wanted = {name for n in tracked for name in op.needs[n][0]}
    node = Node()
    node.op, node.edges, node.static, node.extra = op, edges, static, None
    node.avals, node.aval = tuple(a._aval for a in arrays), out._aval
    saved = [a._buf if op.name_of(i) in wanted else None for i, a in enumerate(arrays)]
    node.saved = (*saved, out._buf if any(op.needs[n][1] for n in tracked) else None)
    node.order = next_order()
    return node
