"""Write the reference pages, docs/reference/*.md, from the registry and from docstrings.

With --check nothing is written, and pages that are not current fail.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
import pullback.debug
import pullback.linalg
import pullback.nn
import pullback.train
from pullback.ir.op import REGISTRY, Op, Public

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTICE = "<!-- Written by tools/reference.py (`make stubs`). -->"
KINDS = {"b": "bool", "iu": "integers", "f": "floats", "c": "complex"}
FORWARD = {
    "elementwise": "the same factor as in reverse mode",
    "linear": "the operation applied to the tangents",
    "multilinear": "the operation applied to one tangent at a time",
    "transpose": "the transpose of the reverse rule",
}
# Pages of what is not an operation: title, first words, modules whose public names they list.
PAGES = {
    "transforms": (
        "Derivatives",
        "Functions that make derivatives of functions, and what steers the recording.",
        ("pullback.transforms", "pullback.autodiff.", "pullback.ir.graph"),
    ),
    "jacobians": (
        "Maps and matrices of derivatives",
        "Many examples at once; Jacobians, Hessians, and what can be said without forming them.",
        (
            "pullback.mapping",
            "pullback.jacobians",
            "pullback.curvature",
            "pullback.taylor",
            "pullback.sparse_jacobians",
        ),
    ),
    "implicit": (
        "Equations and host code",
        "Solutions that can be differentiated however they are found, and functions of NumPy.",
        ("pullback.implicit", "pullback.callbacks"),
    ),
    "modules": (
        "Modules and layers",
        "Models as classes: what `pb.Module` offers, the layers of `pb.nn`, and how they begin.",
        ("pullback.module", "pullback.nn.layers.", "pullback.nn.init"),
    ),
    "train": (
        "Training",
        "What a training loop needs besides the step. `pb.train` is imported when it is used.",
        ("pullback.train.", "pullback.display.progress", "pullback.optim.averaging"),
    ),
    "debug": (
        "Debugging and profiling",
        "What shows what a program does. `pb.debug` is imported when it is used.",
        (
            "pullback.debug.",
            "pullback.profiling",
            "pullback.compiled",
            "pullback.display.memory",
        ),
    ),
    "files": ("Files", "Trees of arrays in files.", ("pullback.files",)),
    "settings": (
        "Settings",
        "Threads, printing, and what is chosen. [All settings](../settings.md).",
        ("pullback.settings", "pullback.core.precision"),
    ),
    "types": (
        "Dtypes, devices, containers",
        "Element types and their promotion, places where arrays live, trees of arrays.",
        (
            "pullback.core.dtypes",
            "pullback.core.avals",
            "pullback.standard",
            "pullback.core.pytrees",
        ),
    ),
    "errors": (
        "Errors",
        "Every error that a call can cause reads `op: fact, got X. Hint.`",
        ("pullback.core.errors",),
    ),
}


# -- text ------------------------------------------------------------------------------------------


def anchor(name: str) -> str:
    """What the docs tool makes of a heading."""
    return re.sub(r"[^\w\s-]", "", name).strip().lower()


def with_fences(doc: str) -> str:
    """A docstring with its examples in fences."""
    lines: list[str] = []
    inside = False
    for line in doc.split("\n"):
        if line.startswith(">>>") and not inside:
            lines.append("```python")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def plain_signature(function: Callable[..., Any]) -> str:
    """The parameters with their defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def title_of(module: str) -> str:
    home, _, name = module.rpartition(".")
    title = name.replace("_", " ").capitalize()
    return f"{home}: {title}" if home else title


def summary_of(doc: str) -> str:
    """The first sentence, on one line."""
    first = " ".join(doc.partition("\n\n")[0].split())
    return first.partition("; ")[0].rstrip(".")


# -- operations ------------------------------------------------------------------------------------


def call_name(entry: Public) -> str:
    return f"{entry.namespace}.{entry.name}".lstrip(".")


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def kept(op: Op, operand: str) -> str:
    """What a recorded node keeps alive to differentiate by an operand."""
    names, output = op.needs[operand]
    parts = [f"`{n}`" for n in op.names if n in names] + (["the result"] if output else [])
    return " and ".join(parts) or "nothing"


def derivative(entry: Public) -> list[str]:
    """What is known of an operation's derivatives."""
    if not isinstance(entry, Op):
        has = getattr(entry, "differentiable", True)
        return [
            "Derivative: that of the operations it is made of, to any order."
            if has
            else "Derivative: none."
        ]
    if not entry.vjp:
        return [f"Derivative: none; {entry.no_gradient}."]
    if entry.zero_gradient:
        return ["Derivative: zero wherever there is one."]
    facts = [f"by `{n}` (keeps {kept(entry, n)})" for n in entry.vjp]
    constant = [n for n in entry.names if n not in entry.vjp]
    lines = [f"Derivative, to any order: {', '.join(facts)}."]
    if constant:
        lines[0] += f" None by {listed(constant)}."
    word = entry.jvp if isinstance(entry.jvp, str) else ""
    lines.append(f"Forward mode: {FORWARD.get(word, 'a rule of its own')}.")
    return lines


def oracle_text(entry: Public) -> str:
    oracle: Any = entry.oracle
    if isinstance(oracle, str):
        return f"`{oracle}`"
    name = getattr(oracle, "__name__", "")
    if isinstance(oracle, np.ufunc):
        return f"`numpy.{name}`"
    module = getattr(oracle, "__module__", None) or "numpy"
    if module.partition(".")[0] in ("numpy", "scipy", "math"):
        return f"`{module.partition('.')[0]}.{name}`"
    return "an expression in NumPy that stands in the operation's block"


def dtypes_text(entry: Public) -> str:
    accepts = getattr(entry, "accepts", None)
    if accepts is None:
        return ""
    names = [n for k, n in KINDS.items() if k[0] in accepts]
    more = (
        "; bool and integers become the default float"
        if "i" not in accepts and "f" in accepts
        else ""
    )
    return f"{', '.join(names)}{more}"


def operation(entry: Public) -> str:
    """The section of one operation."""
    name = call_name(entry)
    facts = []
    if isinstance(entry, Op) and entry.operands:
        facts.append(f"Operands: {listed(entry.operands)}.")
    accepted = dtypes_text(entry)
    if accepted:
        facts.append(f"Dtypes: {accepted}.")
    if entry.methods:
        facts.append(f"Tensor methods: {listed(entry.methods)}.")
    facts += derivative(entry)
    facts.append(f"Tested against: {oracle_text(entry)}.")
    bullets = "\n".join(f"- {f}" for f in facts)
    head = f"## `{name}`\n\n`pb.{name}{plain_signature(entry.function)}`"
    return f"{head}\n\n{with_fences(entry.doc)}\n\n{bullets}\n"


def subject_page(module: str, entries: list[Public]) -> str:
    home = "pullback" if "." in module else "pullback.ops"
    doc = inspect.getdoc(import_module(f"{home}.{module}")) or ""
    sections = [operation(e) for e in sorted(entries, key=call_name)]
    return "\n".join([f"# {title_of(module)}\n\n{NOTICE}\n\n{doc}\n", *sections])


# -- the rest --------------------------------------------------------------------------------------


def public_of(modules: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The public names whose values were made in one of the modules."""
    found = []
    named = {name: getattr(pb, name) for name in pb.__all__}
    named |= {f"nn.{name}": getattr(pb.nn, name) for name in pb.nn.layers.__all__}
    named |= {f"train.{name}": getattr(pb.train, name) for name in pb.train.__all__}
    named |= {f"debug.{name}": getattr(pb.debug, name) for name in pb.debug.__all__}
    named |= {f"nn.init.{name}": getattr(pb.nn.init, name) for name in pb.nn.init.__all__}
    for name, value in named.items():
        home = getattr(value, "__module__", "") or ""
        if (
            (callable(value) or home == "pullback.settings")
            and name not in REGISTRY
            and any(home == m or (m[-1] == "." and home.startswith(m)) for m in modules)
        ):
            found.append((name, value))
    return found


def thing(name: str, value: Any) -> str:
    """The section of a public function, class, or object."""
    doc = with_fences(inspect.getdoc(value) or "")
    if isinstance(value, type) and issubclass(value, Exception):
        bases = ", ".join(f"`{b.__name__}`" for b in value.__bases__)
        return f"## `{name}`\n\n{doc}\n\nA subclass of {bases}.\n"
    call = f"`pb.{name}{plain_signature(value)}`\n\n" if callable(value) else ""
    head = f"## `{name}`\n\n{call}{doc}\n"
    if callable(value):
        if not isinstance(value, type):
            return head
    else:
        value = type(value)
    methods = [method(n, v) for n, v in vars(value).items() if not n.startswith("_")]
    return "\n".join([head, *[m for m in methods if m]])


def method(name: str, value: Any) -> str:
    """A member of a class, if it has something to say."""
    if isinstance(value, property):
        doc = inspect.getdoc(value.fget) or ""
        return f"### `.{name}`\n\n{with_fences(doc)}\n" if doc else ""
    if inspect.isfunction(value) and inspect.getdoc(value):
        signature = plain_signature(value).replace("(self, /, ", "(").replace("(self, ", "(")
        signature = signature.replace("(self)", "()").replace("(/, ", "(")
        doc = with_fences(inspect.getdoc(value) or "")
        return f"### `.{name}`\n\n`.{name}{signature}`\n\n{doc}\n"
    return ""


def other_page(page: str) -> str:
    title, words, modules = PAGES[page]
    sections = [thing(n, v) for n, v in public_of(modules)]
    if page == "types":
        names = [n for n in pb.__all__ if isinstance(getattr(pb, n), pb.DType)]
        sections.insert(0, f"The dtypes are {', '.join(f'`pb.{n}`' for n in names)}.\n")
    return "\n".join([f"# {title}\n\n{NOTICE}\n\n{words}\n", *sections])


def tensor_page() -> str:
    declared = {m: e for e in REGISTRY.values() for m in e.methods}
    own = [
        method(n, v)
        for n, v in vars(pb.Tensor).items()
        if not n.startswith("_") and n not in declared
    ]
    rows = [
        f"| `{m}` | [{call_name(e)}]({e.module}.md#{anchor(call_name(e))}) |"
        for m, e in sorted(declared.items())
    ]
    bare = [n for n, v in vars(pb.Tensor).items() if isinstance(v, property) and not v.__doc__]
    parts = [
        f"# Tensor\n\n{NOTICE}\n\n{inspect.getdoc(pb.Tensor)}\n",
        thing("tensor", pb.tensor),
        thing("from_dlpack", pb.from_dlpack),
        "## Attributes and methods\n",
        f"What it is: {', '.join(f'`.{n}`' for n in bare)}.\n",
        *[m for m in own if m],
        "## Methods and operators that are operations\n",
        "| method | operation |\n|---|---|\n" + "\n".join(rows) + "\n",
        "An operator with a reflected form also has one in place (`x += y`), which gives the name a"
        " new value.\n",
    ]
    return "\n".join(parts)


def index_page(subjects: dict[str, list[Public]]) -> str:
    counts = (len(REGISTRY), sum(isinstance(e, Op) for e in REGISTRY.values()))
    lines = [
        f"# Reference\n\n{NOTICE}\n",
        f"{counts[0]} operations: {counts[1]} primitives, and the rest made of these.",
        "Every page is written from the operations themselves.\n",
        "- [Tensor](tensor.md)",
        *[f"- [{PAGES[p][0]}]({p}.md)" for p in PAGES],
        "- [Which derivatives are checked](../conformance.md)\n",
    ]
    for module, entries in subjects.items():
        lines.append(f"## [{title_of(module)}]({module}.md)\n\n| operation | |\n|---|---|")
        for e in sorted(entries, key=call_name):
            link = f"[{call_name(e)}]({module}.md#{anchor(call_name(e))})"
            lines.append(f"| {link} | {summary_of(e.doc).replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """The text of every page by its file name."""
    subjects: dict[str, list[Public]] = {}
    for entry in sorted(REGISTRY.values(), key=lambda e: (e.module, e.name)):
        subjects.setdefault(entry.module, []).append(entry)
    found = {f"{m}.md": subject_page(m, entries) for m, entries in subjects.items()}
    found |= {f"{p}.md": other_page(p) for p in PAGES}
    found["tensor.md"] = tensor_page()
    found["index.md"] = index_page(subjects)
    return {name: text.rstrip("\n") + "\n" for name, text in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if not current")
    check = parser.parse_args().check
    new = pages()
    FOLDER.mkdir(parents=True, exist_ok=True)
    old = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")}
    stale = sorted(n for n in new.keys() | old.keys() if new.get(n) != old.get(n))
    for name in stale:
        if check:
            before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
            print("\n".join(list(difflib.unified_diff(before, after, name, "current", n=1))[:20]))
            print(f"reference: {name} is not current. Run `make stubs`.")
        elif name in new:
            (FOLDER / name).write_text(new[name], encoding="utf-8")
            print(f"wrote docs/reference/{name}")
        else:
            (FOLDER / name).unlink()
            print(f"removed docs/reference/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
