"""Derivative rules at work: the values that a rule asks for by its parameter names, taken from a
recorded node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from pullback.ir.array import Array, Node, make, next_order

__all__ = ["Rule", "compile_pull", "compile_record", "pull_variadic", "saved_source"]


class Ruled(Protocol):
    """What rules ask of the operation that they belong to."""

    name: str
    names: tuple[str, ...]  # of operands; the last one covers all further ones if `variadic`
    variadic: bool
    vjp: dict[str, Callable[..., Any]]
    pull_rules: dict[str, Rule]
    needs: dict[str, tuple[frozenset[str], bool]]  # what differentiating by an operand reads
    unbroadcast: Callable[[Any, tuple[int, ...]], Any] | None

    def name_of(self, position: int) -> str:
        """The name of the operand at `position`."""
        ...


class Rule:
    """A derivative rule of one operand, and which saved values it reads."""

    def __init__(self, op: Ruled, operand: str, function: Callable[..., Any], lead: str):
        self.function = function
        self.parameters = tuple(inspect.signature(function).parameters)
        if not self.parameters or self.parameters[0] != lead:
            raise TypeError(f"{op.name}: the first parameter of a rule must be {lead!r}")
        self.reads_output = "out" in self.parameters
        self.reads = tuple(n for n in self.parameters if n in op.names)

    def call(self, op: Ruled, node: Node, value: Any, position: int) -> Any:
        """The rule's result for the operand at `position` of a recorded node."""
        return self.function(
            value, *[_argument(op, node, n, position) for n in self.parameters[1:]]
        )


def _argument(op: Ruled, node: Node, name: str, position: int) -> Any:
    if name == "out":
        return node.saved_operand(len(node.edges))
    if name == "out_aval":
        return node.aval
    if name == "position":
        return position - (len(op.names) - 1)
    if name in op.names:
        k = op.names.index(name)
        if op.variadic and k == len(op.names) - 1:
            return tuple(node.saved_operand(i) for i in range(k, len(node.edges)))
        return node.saved_operand(k)
    if name == "static":
        return node.static
    base = name.removesuffix("_avals")
    if base != name:
        return node.avals[op.names.index(base) :]
    base = name.removesuffix("_aval")
    if base != name:
        return node.avals[op.names.index(base)]
    return node.static[name]


def pull_variadic(op: Ruled, node: Node, g: Any, wanted: Container[Node] | None) -> Sequence[Any]:
    """The cotangents of the operands of an operation with a variable number of them."""
    result: list[Any] = []
    for i, edge in enumerate(node.edges):
        rule = op.pull_rules.get(op.name_of(i))
        if rule is None or edge is None or (wanted is not None and edge not in wanted):
            result.append(None)
        else:
            result.append(rule.call(op, node, g, i))
    return result


def saved_source(op: Ruled) -> str:
    """The source of what a node of a fixed-arity operation saves: operands a0, a1 ... whose nodes
    are n0, n1 ..., then the output; None for what the rules of its tracked operands don't read.
    """
    positions = range(len(op.names))
    needs = {i: op.needs[op.names[i]] for i in positions if op.names[i] in op.vjp}

    def kept(value: str, users: list[int]) -> str:
        test = " or ".join(f"n{i} is not None" for i in users)
        return f"({value} if {test} else None)" if users else "None"

    saved = [
        kept(f"a{k}._buf", [i for i in needs if op.names[k] in needs[i][0]]) for k in positions
    ]
    saved.append(kept("out._buf", [i for i in needs if needs[i][1]]))
    return f"({', '.join(saved)},)"


_RECORD = """
def record(arrays, static, out):
    {arrays} = arrays
    {nodes} = {node_values}
    if {untracked} or out._aval.dtype.kind not in "fc":
        return None
    node = Node()
    node.op = op
    node.edges = ({edges},)
    node.avals = ({avals},)
    node.aval = out._aval
    node.static = static
    node.saved = {saved}
    node.order = next_order()
    node.extra = None
    return node
"""


def compile_record(op: Ruled) -> Callable[[Sequence[Array], dict[str, Any], Array], Node | None]:
    """The function that makes the node of a fixed-arity operation just run; None if untracked."""
    positions = range(len(op.names))
    ruled = [i for i in positions if op.names[i] in op.vjp]
    source = _RECORD.format(
        arrays="".join(f"a{i}, " for i in positions),
        nodes="".join(f"n{i}, " for i in positions),
        node_values="".join(f"a{i}._node, " for i in positions),
        untracked=" and ".join(f"n{i} is None" for i in ruled),
        edges=", ".join(f"n{i}" if i in ruled else "None" for i in positions),
        avals=", ".join(f"a{i}._aval" for i in positions),
        saved=saved_source(op),
    )
    scope = {"Node": Node, "op": op, "next_order": next_order}
    exec(compile(source, f"<record {op.name}>", "exec"), scope)
    return scope["record"]


def compile_pull(op: Ruled) -> Callable[[Node, Any, Container[Node] | None], Sequence[Any]]:
    """A function that does what the rules of a fixed-arity operation ask, without looking anything
    up by name.
    """
    lines = ["def pull(node, g, wanted):", "    edges, avals = node.edges, node.avals"]
    lines.append("    saved = node.saved or node.live_saved()")
    results = []
    scope: dict[str, Any] = {"make": make, "unbroadcast": op.unbroadcast}
    for i, name in enumerate(op.names):
        rule = op.pull_rules.get(name)
        if rule is None:
            results.append("None")
            continue
        scope[f"rule_{i}"] = rule.function
        arguments = ", ".join(["g", *[_expression(op, p) for p in rule.parameters[1:]]])
        lines += [
            f"    r{i}, e = None, edges[{i}]",
            "    if e is not None and (wanted is None or e in wanted):",
            f"        r{i} = rule_{i}({arguments})",
        ]
        if op.unbroadcast is not None:
            lines += [
                f"        if r{i} is not None and r{i}._aval.shape != avals[{i}].shape:",
                f"            r{i} = unbroadcast(r{i}, avals[{i}].shape)",
            ]
        results.append(f"r{i}")
    lines.append(f"    return ({', '.join(results)},)")
    exec(compile("\n".join(lines), f"<pull {op.name}>", "exec"), scope)
    return scope["pull"]


def _expression(op: Ruled, name: str) -> str:
    """The source of a rule's argument; see `_argument`."""
    if name == "out":
        return f"make(saved[{len(op.names)}], node.aval, node)"
    if name == "out_aval":
        return "node.aval"
    if name in op.names:
        k = op.names.index(name)
        return f"make(saved[{k}], avals[{k}], edges[{k}])"
    base = name.removesuffix("_aval")
    if base != name:
        return f"avals[{op.names.index(base)}]"
    return "node.static" if name == "static" else f"node.static[{name!r}]"
