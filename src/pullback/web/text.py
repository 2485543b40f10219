"""Plain data as JavaScript that people can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pullback.runtime.webgpu.arithmetic import FUSED, SAFE, Arithmetic, exact_functions, exact_names
from pullback.runtime.webgpu.kernels_text import kernel_head
from pullback.runtime.webgpu.library import needed_functions
from pullback.web.program import PageBranch, PageKernel, PageStep, Steps
from pullback.web.trees import PageLeaf

__all__ = ["Sources", "literal", "object_text", "steps_text", "tree_text", "wgsl"]

_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*\Z", re.ASCII)
OWN = Arithmetic(fma=True, div=True, sqrt=True)  # of a GPU that rounds everything correctly
BUFFER_NAMES = ("INPUTS", "WEIGHTS", "WORK", "FAULTS")


def literal(value: Any) -> str:
    """Numbers, strings, and lists and dicts of them; what JSON lacks as JavaScript has it."""
    if isinstance(value, dict):
        return object_text({k: literal(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return f"{value}n"
    return json.dumps(value)


def _key(name: str) -> str:
    if name == "__proto__":  # a plain key would change what the object is
        return '["__proto__"]'
    return name if _IDENTIFIER.match(name) else json.dumps(name)


def object_text(items: Mapping[str, str]) -> str:
    """An object of values that are JavaScript already."""
    inside = ", ".join(f"{_key(k)}: {v}" for k, v in items.items())
    return f"{{ {inside} }}" if inside else "{}"


def tree_text(tree: Any) -> str:
    """A tree whose leaves are arrays by their number."""
    if isinstance(tree, PageLeaf):
        return f"at({tree.number})"
    if isinstance(tree, dict):
        return object_text({k: tree_text(v) for k, v in tree.items()})
    if isinstance(tree, list):
        return f"[{', '.join(map(tree_text, tree))}]"
    return literal(tree)


def steps_text(steps: Steps, indent: str = "    ") -> list[str]:
    """Steps as lines, with comments that say what they compute."""
    found: list[str] = []
    for step in steps:
        if isinstance(step, PageStep):
            if step.label:
                found.append(f"{indent}// {' '.join(step.label.split())}")
            fields = {name: getattr(step, name) for name in ("kernel", "groups", "arrays", "words")}
            found.append(f"{indent}{literal(fields)},")
        elif isinstance(step, PageBranch):
            sides = {"then": step.then, "otherwise": step.otherwise}
            found += _nested({"flag": step.flag}, sides, indent)
        else:
            head = {"moves": step.moves, "carries": step.carries}
            if step.test is None:
                inside = {"steps": step.steps, "odd": step.odd}
                found += _nested({"rounds": step.rounds, **head}, inside, indent)
            else:
                inside = {"test": step.test, "steps": step.steps, "odd": step.odd}
                found += _nested({"flag": step.flag, **head}, inside, indent)
    return found


def _nested(head: dict[str, Any], lists: dict[str, Steps], indent: str) -> list[str]:
    """An object of values and of lists of steps."""
    found = [f"{indent}{{ {literal(head)[2:-2]},"]
    for name, steps in lists.items():
        if steps:
            found += [f"{indent}  {name}: [", *steps_text(steps, indent + "    "), f"{indent}  ],"]
        else:
            found.append(f"{indent}  {name}: [],")
    return [*found, f"{indent}}},"]


def wgsl(text: str) -> str:
    """WGSL as a template string."""
    text = text.strip("\n").replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${")
    return f"`\n{text}`"


class Sources:
    """Kernels as objects, and the functions that they share."""

    def __init__(self):
        self._functions: dict[str, str] = {}

    def kernel(self, kernel: PageKernel) -> str:
        """A kernel whose text a page puts together."""
        bound = tuple(dict.fromkeys(kernel.bindings))
        numbers = [bound.index(b) for b in kernel.bindings]
        head, written, record = kernel_head(kernel.arrays, numbers, kernel.words)
        exact = exact_names(kernel.source)
        either = [exact_functions(kernel.source, own) for own in (SAFE, FUSED, OWN)]
        uses = needed_functions("\n".join([kernel.source, *either]))
        self._functions |= uses
        units = [min(4, int(item[1:]) // 8) for item, _ in kernel.arrays]
        lines = [
            f"  bindings: [{', '.join(BUFFER_NAMES[b] for b in bound)}], units: {literal(units)},",
            f"  written: {literal(list(written))}, record: {record}, exact: {literal(exact)},",
            f"  uses: {_wrapped(list(uses))},",
            f"  head: {wgsl(head)},",
            f"  body: {wgsl(kernel.source)},",
        ]
        return "\n".join(["{", *lines, "}"])

    def functions(self) -> str:
        """The functions that kernels use, by name."""
        inside = [f"  {name}: {wgsl(text)}," for name, text in sorted(self._functions.items())]
        return "\n".join(["{", *inside, "}"])

    @staticmethod
    def exact() -> str:
        """The functions that a GPU may have of its own, and what else they are."""
        found = {}
        for name in ("fma", "div", "sqrt"):
            call = "f32_fma_exact( f32_fused_exact(" if name == "fma" else f"f32_{name}_exact("
            ways = {"own": OWN, "fused": FUSED, "soft": SAFE}
            texts = {way: exact_functions(call, arithmetic) for way, arithmetic in ways.items()}
            found[name] = object_text({way: wgsl(text) for way, text in texts.items()})
        return object_text(found)


def _wrapped(names: Iterable[str]) -> str:
    """A list of names, a line for every few."""
    found, line = [], ""
    for name in names:
        if len(line) + len(name) > 80:
            found.append(line)
            line = ""
        line += f' "{name}",'
    return f"[{(chr(10) + '   ').join([*found, line]).strip(', ')}]"
