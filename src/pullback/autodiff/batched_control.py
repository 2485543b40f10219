"""Control flow for many examples at once.

A loop or a choice that is the same for all examples stays what it is, with a body for many. Where
examples go different ways, both branches are computed and each example takes its own; a loop goes
on until the last example has ended, and those that have ended keep what they have. A branch that
may find an index out of range sees the operands only of examples that take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.autodiff.batching import Level
from pullback.autodiff.reverse import zeros
from pullback.core.avals import Aval, symbolic
from pullback.ir import control
from pullback.ir.array import Array
from pullback.ir.control import may_raise
from pullback.ir.graph import Graph
from pullback.ir.op import REGISTRY, bind

__all__: list[str] = []

Flags = list[bool]

COND: Any = control.COND
SCAN: Any = control.SCAN
WHILE: Any = control.WHILE


def _rows(av: Aval, size: int) -> Aval:
    return symbolic((size, *av.shape), av.dtype, av.device)


def _computed(
    graph: Graph, arrays: Sequence[Any], mapped: Flags, size: int, want: Flags | None = None
) -> tuple[list[Any], Flags]:
    """The results of a graph for many examples, and which of them are mapped: at least `want`."""
    level = Level(graph.name, size)
    given = [level.example(a) if m else a for a, m in zip(arrays, mapped, strict=True)]
    outs = level.within(graph.run, *given, bind=bind)
    found = [level.holds(o) for o in outs]
    if want is not None:
        found = [a or b for a, b in zip(found, want, strict=True)]
    return [level.spread(o) if m else o for o, m in zip(outs, found, strict=True)], found


def _flags(graph: Graph, mapped: Flags, size: int) -> Flags:
    """Which results of a graph are mapped if these inputs are."""
    sketch = Graph(graph.name)
    avals = [
        _rows(v.aval, size) if m else v.aval for v, m in zip(graph.inputs, mapped, strict=True)
    ]
    return _computed(graph, [sketch.add_input(a) for a in avals], mapped, size)[1]


def _graph_for_many(graph: Graph, mapped: Flags, size: int, want: Flags) -> Graph:
    """The graph that computes `graph` for many examples."""
    many = Graph(graph.name)
    avals = [
        _rows(v.aval, size) if m else v.aval for v, m in zip(graph.inputs, mapped, strict=True)
    ]
    inputs = [many.add_input(a) for a in avals]
    many.outputs = [many.capture(o) for o in _computed(graph, inputs, mapped, size, want)[0]]
    return many


def _for_each(x: Any, mapped: bool, size: int) -> Any:
    """The value of each example, also of examples that share one."""
    return x if mapped else bind(REGISTRY["broadcast_to"], x, shape=(size, *x._aval.shape))


def _results(outs: Any, mapped: Flags, size: int) -> list[Any]:
    """What control flow gives, for each example."""
    listed = outs if isinstance(outs, list) else [outs]
    return [_for_each(o, m, size) for o, m in zip(listed, mapped, strict=True)]


def _started(init: Sequence[Any], mapped: Flags, varying: Flags, size: int) -> list[Any]:
    """The carries that a loop starts with, of which some become different in a later step."""
    pairs = zip(init, mapped, varying, strict=True)
    return [x if m or not v else _for_each(x, False, size) for x, m, v in pairs]


def _chosen(mask: Any, a: Any, b: Any) -> Any:
    """`a` for the examples in the mask, `b` for the others."""
    shape = (*mask._aval.shape, *(1,) * (a._aval.ndim - 1))
    return bind(REGISTRY["where"], bind(REGISTRY["reshape"], mask, shape=shape), a, b)


# -- cond ------------------------------------------------------------------------------------------


def _cond(
    arrays: Sequence[Array], mapped: Flags, size: int, then: Graph, otherwise: Graph
) -> list[Any]:
    predicate, operands, varying = arrays[0], list(arrays[1:]), list(mapped[1:])
    if mapped[0]:
        first = _side(then, predicate, operands, varying, size)
        other = bind(REGISTRY["logical_not"], predicate)
        second = _side(otherwise, other, operands, varying, size)
        return [_chosen(predicate, a, b) for a, b in zip(first, second, strict=True)]
    sides = [_flags(g, varying, size) for g in (then, otherwise)]
    want = [a or b for a, b in zip(*sides, strict=True)]
    graphs = [_graph_for_many(g, varying, size, want) for g in (then, otherwise)]
    outs = bind(COND, predicate, *operands, then=graphs[0], otherwise=graphs[1])
    return _results(outs, want, size)


def _side(graph: Graph, mask: Any, operands: Sequence[Any], mapped: Flags, size: int) -> list[Any]:
    """The results of a branch that the examples in the mask take; those of others are anything."""
    want = [True] * len(graph.outputs)
    if not any(map(may_raise, graph.equations)):
        return _computed(graph, operands, mapped, size, want)[0]
    body = _graph_for_many(graph, mapped, size, want)
    idle = Graph(graph.name)
    for v in body.inputs:
        idle.add_input(v.aval)
    idle.outputs = [idle.capture(zeros(v.aval)) for v in body.outputs]
    given = _taking(mask, operands, mapped)
    anybody = bind(REGISTRY["any"], mask, axes=(0,), keepdims=False)
    return _results(bind(COND, anybody, *given, then=body, otherwise=idle), want, size)


def _taking(mask: Any, operands: Sequence[Any], mapped: Flags) -> list[Any]:
    """Operands in which examples outside of the mask are replaced by one of those inside."""
    one = bind(REGISTRY["argmax"], mask, axes=(0,), keepdims=True)
    pick = REGISTRY["take"].function
    return [
        _chosen(mask, x, pick(x, one, axis=0)) if m else x
        for x, m in zip(operands, mapped, strict=True)
    ]


# -- scan ------------------------------------------------------------------------------------------


def _scan(
    arrays: Sequence[Array],
    mapped: Flags,
    size: int,
    body: Graph,
    length: int,
    constants: int,
    carries: int,
    reverse: bool,
) -> list[Any]:
    end = constants + carries
    varying = list(mapped[constants:end])
    while True:  # a carry is mapped if it starts so, or becomes so in a step
        flags = [*mapped[:constants], *varying, *mapped[end:]]
        outs = _flags(body, flags, size)
        more = [a or b for a, b in zip(varying, outs[:carries], strict=True)]
        if more == varying:
            break
        varying = more
    want = [*varying, *outs[carries:]]
    many = _graph_for_many(body, flags, size, want)
    init = _started(arrays[constants:end], mapped[constants:end], varying, size)
    xs = [_exchanged(x) if m else x for x, m in zip(arrays[end:], mapped[end:], strict=True)]
    static = {"length": length, "constants": constants, "carries": carries, "reverse": reverse}
    found = bind(SCAN, *arrays[:constants], *init, *xs, body=many, **static)
    results = found if isinstance(found, list) else [found]
    ys = [_exchanged(y) if m else y for y, m in zip(results[carries:], want[carries:], strict=True)]
    return _results([*results[:carries], *ys], want, size)


def _exchanged(x: Any) -> Any:
    """The array with its first two axes exchanged: examples and steps."""
    return bind(REGISTRY["permute_dims"], x, axes=(1, 0, *range(2, x._aval.ndim)))


# -- while -----------------------------------------------------------------------------------------


def _while(
    arrays: Sequence[Array],
    mapped: Flags,
    size: int,
    test: Graph,
    body: Graph,
    constants: int,
    carries: int,
) -> list[Any]:
    fixed, init = arrays[:constants], arrays[constants:]
    varying = list(mapped[constants:])
    while True:
        flags = [*mapped[:constants], *varying]
        more = [a or b for a, b in zip(varying, _flags(body, flags, size), strict=True)]
        if more == varying:
            break
        varying = more
    if any(_flags(test, flags, size)):
        every = [True] * carries
        start = _started(init, mapped[constants:], every, size)
        return _each(fixed, mapped[:constants], start, size, test, body)
    start = _started(init, mapped[constants:], varying, size)
    graphs = {
        "test": _graph_for_many(test, flags, size, [False]),
        "body": _graph_for_many(body, flags, size, varying),
    }
    outs = bind(WHILE, *fixed, *start, **graphs, constants=constants, carries=carries)
    return _results(outs, varying, size)


def _each(
    fixed: Sequence[Any], shared: Flags, init: Sequence[Any], size: int, test: Graph, body: Graph
) -> list[Any]:
    """A loop of which each example does as many steps as it needs; a mask tells who goes on."""
    count = len(init)
    flags = [*shared, *[True] * count]
    (going,), _ = _computed(test, [*fixed, *init], flags, size, [True])

    def anybody(inputs: Sequence[Any]) -> list[Any]:
        return [bind(REGISTRY["any"], inputs[-1], axes=(0,), keepdims=False)]

    def step(inputs: Sequence[Any]) -> list[Any]:
        constants, carry, mask = inputs[: len(fixed)], inputs[len(fixed) : -1], inputs[-1]
        given = carry
        if any(map(may_raise, body.equations)):
            given = _taking(mask, carry, [True] * count)
        new, _ = _computed(body, [*constants, *given], flags, size, [True] * count)
        new = [_chosen(mask, a, b) for a, b in zip(new, carry, strict=True)]
        (again,), _ = _computed(test, [*constants, *new], flags, size, [True])
        return [*new, bind(REGISTRY["logical_and"], mask, again)]

    arrays = [*fixed, *init, going]
    graphs = [_traced(f, arrays, g.name) for f, g in ((anybody, test), (step, body))]
    static = {"constants": len(fixed), "carries": count + 1}
    return bind(WHILE, *arrays, test=graphs[0], body=graphs[1], **static)[:count]


def _traced(f: Any, like: Sequence[Any], name: str) -> Graph:
    """The graph of a function of arrays like the given ones."""
    graph = Graph(name)
    avals = [symbolic(a._aval.shape, a._aval.dtype, a._aval.device) for a in like]
    graph.outputs = [graph.capture(o) for o in f([graph.add_input(a) for a in avals])]
    return graph


COND.batch, SCAN.batch, WHILE.batch = _cond, _scan, _while
