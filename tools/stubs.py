"""Write the .pyi files that show editors and type checkers what the registry adds at run time.

With --check nothing is written, and files that are not current fail.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

import pullback as pb
import pullback.linalg
import pullback.nn
from pullback.core import dtypes
from pullback.ir.op import REGISTRY, Public
from stub_types import BUILTINS, parameter_type, quoted, return_type

SOURCE = Path(pb.__file__).parent
# Where the names come from that annotations use.
HOMES = {
    "Any": "typing",
    "Callable": "collections.abc",
    "Device": "pullback.core.avals",
    "DType": "pullback.core.dtypes",
    "Hook": "pullback.autodiff.hooks",
    "Iterator": "collections.abc",
    "NamedTuple": "typing",
    "Node": "pullback.ir.array",
    "Array": "pullback.ir.array",
    "array": "array",
    "Public": "pullback.ir.op",
    "Sequence": "collections.abc",
    "Tensor": "pullback.tensor",
    "_ArrayLike": "pullback.tensor",
    "_DTypeLike": "pullback.tensor",
    "_DeviceLike": "pullback.tensor",
    "scatter_plan": "pullback.ops.index_plans",
}
ALIASES = """
class _HasArray(Protocol):
    def __array__(self) -> np.ndarray: ...

class _HasDLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_HasMemory: TypeAlias = _HasDLPack | bytes | bytearray | memoryview | array[Any]
_Operand: TypeAlias = Tensor | bool | int | float | complex | np.ndarray | np.generic
_ArrayLike: TypeAlias = _Operand | _HasArray | _HasMemory | list[Any] | tuple[Any, ...] | range
_DTypeLike: TypeAlias = DType | str | type | np.dtype
_DeviceLike: TypeAlias = Device | str
"""
# Members of Tensor, and functions beside it, that are annotated Any for want of the class. "Any" in
# a union stands for a None that nobody should have to rule out before each use.
RETURNS = {
    "T": "Tensor",
    "__copy__": "Tensor",
    "__deepcopy__": "Tensor",
    "__getitem__": "Tensor",
    "__init__": "None",
    "__iter__": "Iterator[Tensor]",
    "clone": "Tensor",
    "detach": "Tensor",
    "from_dlpack": "Tensor",
    "grad": "Tensor | Any",
    "grad_fn": "Node | Any",
    "imag": "Tensor",
    "mT": "Tensor",
    "real": "Tensor",
    "tensor": "Tensor",
    "to_device": "Tensor",
}
Signature = inspect.Signature
Parameter = inspect.Parameter


# -- text ------------------------------------------------------------------------------------------


def default_text(value: Any) -> str:
    plain = value is None or type(value) in (bool, int, str) or value == ()
    if type(value) is float and np.isfinite(value):
        plain = True
    return repr(value) if plain else "..."


def parameters_text(parameters: list[tuple[Parameter, str]]) -> str:
    """A parameter list with the markers `/` and `*` where they belong."""
    parts: list[str] = []
    previous = None
    for p, kind in parameters:
        if previous is Parameter.POSITIONAL_ONLY and p.kind is not previous:
            parts.append("/")
        if p.kind is Parameter.KEYWORD_ONLY and previous not in (
            Parameter.KEYWORD_ONLY,
            Parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = f"{stars}{p.name}" + (f": {kind}" if kind else "")
        if p.default is not Parameter.empty:
            text += f" = {default_text(p.default)}"
        parts.append(text)
        previous = p.kind
    if previous is Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def function_text(
    name: str, parameters: list[tuple[Parameter, str]], result: str, doc: str, indent: str = ""
) -> str:
    head = f"{indent}def {name}({parameters_text(parameters)}) -> {result}:"
    body = quoted(doc, indent + "    ")
    if name in ("__eq__", "__ne__"):  # elementwise, unlike those of object
        return f"{head} ...  # pyright: ignore[reportIncompatibleMethodOverride]"
    return "\n".join([head, *body]) if body else f"{head} ..."


def operation_text(entry: Public, records: dict[str, str]) -> str:
    parameters = [(p, parameter_type(entry, p)) for p in entry.signature.parameters.values()]
    return function_text(entry.name, parameters, return_type(entry, records), entry.doc)


def plain_text(name: str, function: FunctionType, indent: str = "") -> str:
    """A function or method that is not an operation."""
    signature = inspect.signature(function)
    given = signature.return_annotation
    result = RETURNS.get(name, "Any") if given in ("Any", Signature.empty) else str(given)
    result = RETURNS.get(name, result)
    parameters = [
        (p, "" if p.name == "self" else parameter_type(None, p))
        for p in signature.parameters.values()
    ]
    return function_text(name, parameters, result, inspect.cleandoc(function.__doc__ or ""), indent)


# -- Tensor ----------------------------------------------------------------------------------------


def method_text(name: str, entry: Public, records: dict[str, str]) -> str:
    """A method that an operation declares."""
    parameters = list(entry.signature.parameters.values())
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    result = return_type(entry, records)
    if name.startswith("__"):
        other = Parameter("other", Parameter.POSITIONAL_ONLY)
        listed = [(own, "")] + [(other, "_Operand")] * (len(parameters) - 1)
        return function_text(name, listed, result, "", "    ")
    rest = [(p, parameter_type(entry, p)) for p in parameters[1:]]
    own = own.replace(
        kind=Parameter.POSITIONAL_ONLY if _leading(rest) else Parameter.POSITIONAL_OR_KEYWORD
    )
    return function_text(name, [(own, ""), *rest], result, entry.doc, "    ")


def _leading(rest: list[tuple[Parameter, str]]) -> bool:
    return bool(rest) and rest[0][0].kind is Parameter.POSITIONAL_ONLY


def installed_methods(records: dict[str, str]) -> dict[str, str]:
    """The methods that `install_methods` gives to Tensor, with reflected and in-place operators."""
    found = {}
    for entry in REGISTRY.values():
        for name in entry.methods:
            found[name] = method_text(name, entry, records)
            in_place = f"__i{name[2:]}"
            if name.startswith("__") and in_place in vars(pb.Tensor):
                found[in_place] = method_text(in_place, entry, records)
    return found


def member_text(name: str, value: Any) -> Iterator[str]:
    """A member of a class that stands in its source."""
    if isinstance(value, property):
        assert value.fget is not None
        yield "    @property"
        yield plain_text(name, value.fget, "    ")  # type: ignore[arg-type]
        if value.fset is not None:
            parameter = list(inspect.signature(value.fset).parameters.values())[1]
            kind = RETURNS.get(name, str(parameter.annotation)).replace("Any", "None")
            yield f"    @{name}.setter"
            yield f"    def {name}(self, value: {kind}) -> None: ..."
    elif isinstance(value, FunctionType):
        yield plain_text(name, value, "    ")
    elif name == "__hash__":
        yield "    def __hash__(self) -> int: ..."


def class_text(cls: type, installed: dict[str, str]) -> str:
    base = "" if cls.__base__ is object else f"({cls.__base__.__name__})"  # type: ignore[union-attr]
    lines = [f"class {cls.__name__}{base}:", *quoted(inspect.getdoc(cls) or "", "    ")]
    for name, value in vars(cls).items():
        visible = not name.startswith("_") or name.endswith("__")
        if visible and name not in installed:
            lines += member_text(name, value)
    lines += [installed[name] for name in sorted(installed)]
    return "\n".join(lines)


# -- modules ---------------------------------------------------------------------------------------


def imports_text(body: str, module: str) -> str:
    """The imports that the names in a stub need."""
    tree = ast.parse(body)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    exported = {a.asname for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    lines = [
        f"from {HOMES[n]} import {n}"
        for n in sorted((used & set(HOMES)) - defined - exported)
        if HOMES[n] != module
    ]
    if "np" in used:
        lines.append("import numpy as np")
    if "builtins" in used:
        lines.append("import builtins")
    known = used & (set(HOMES) | BUILTINS | {"np", "builtins", "Protocol", "TypeAlias", "property"})
    assigned = {t.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign)
                if isinstance(t := n.target, ast.Name)}  # fmt: skip
    unknown = used - known - defined - assigned - exported - set(vars(import_module(module)))
    if unknown:
        raise SystemExit(f"stubs: say in HOMES where these names come from: {sorted(unknown)}")
    return "\n".join(lines)


def without_shadowed(body: str, public: set[str]) -> str:
    """The text with built-in types spelled in full where a public name hides them."""
    hidden = BUILTINS & public
    if not hidden:
        return body

    class Spell(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            if node.id in hidden and isinstance(node.ctx, ast.Load):
                return ast.Attribute(ast.Name("builtins", ast.Load()), node.id, ast.Load())
            return node

    lines = body.split("\n")
    for statement in ast.walk(ast.parse(body)):
        if isinstance(statement, ast.FunctionDef):
            spelt = Spell().visit(ast.parse(ast.unparse(statement)).body[0])
            head = ast.unparse(spelt).partition("\n")[0]
            first = statement.lineno - 1
            tail = " ..." if lines[first].rstrip().endswith("...") else ""
            lines[first] = head.removesuffix(" ...") + tail
    return "\n".join(lines)


def formatted(text: str, name: str) -> str:
    """The text as ruff wants it."""
    ruff = [sys.executable, "-m", "ruff"]
    sort = [*ruff, "check", "--select", "I,RUF022", "--fix", "--exit-zero", "--quiet"]
    for command in (sort, [*ruff, "format"]):
        full = [*command, "--stdin-filename", str(SOURCE / name), "-"]
        done = subprocess.run(full, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"stubs: ruff refuses {name}\n{done.stderr}")
        text = done.stdout
    return text


def module_text(module: str, body: str) -> str:
    first = (import_module(module).__doc__ or "").partition("\n")[0]
    doc = "\n".join(textwrap.wrap(first, 94))
    name = "__init__.pyi" if module == "pullback" else f"{module.rpartition('.')[2]}.pyi"
    head = f'"""{doc}"""\n\n# Written by tools/stubs.py (`make stubs`).\n'
    return formatted(f"{head}\n{imports_text(body, module)}\n{body}\n", name)


def operations_text(namespace: str) -> str:
    records: dict[str, str] = {}
    entries = [e for e in REGISTRY.values() if e.namespace == namespace]
    functions = [operation_text(e, records) for e in sorted(entries, key=lambda e: e.name)]
    return "\n\n".join([*records.values(), *functions])


def namespace_text(namespace: str) -> str:
    """The operations of a namespace, and what else it shows."""
    module = import_module(f"pullback.{namespace}")
    own = {e.name for e in REGISTRY.values() if e.namespace == namespace}
    lines = []
    for name in getattr(module, "__all__", ()):
        if name not in own and name in REGISTRY:
            lines.append(f"from pullback import {name} as {name}")
        elif name not in own:
            lines.append(other_name(name, getattr(module, name)))
    return "\n".join([*lines, operations_text(namespace)])


def other_name(name: str, value: Any) -> str:
    """The line that gives the package a public name that is not an operation."""
    if isinstance(value, ModuleType):
        return f"from {value.__name__.rpartition('.')[0]} import {name} as {name}"
    home = (
        "pullback.core.dtypes"
        if isinstance(value, dtypes.DType)
        else getattr(value, "__module__", None)
    )
    if home is None or not str(home).startswith("pullback"):
        return f"{name}: {'None' if value is None else type(value).__name__}"
    original = next(n for n, v in vars(import_module(home)).items() if v is value)
    return f"from {home} import {original} as {name}"


def package_text() -> str:
    operations = {e.name for e in REGISTRY.values() if not e.namespace}
    others = [n for n in pb.__all__ if n not in operations]
    lines = sorted(
        [other_name(n, getattr(pb, n)) for n in others],
        key=lambda line: not line.startswith("from"),
    )
    exported = f"__all__ = [{', '.join(repr(n) for n in pb.__all__)}]"
    body = "\n".join([*lines, exported, operations_text("")])
    return without_shadowed(body, set(pb.__all__))


def tensor_text() -> str:
    module = import_module("pullback.tensor")
    records: dict[str, str] = {}
    installed = installed_methods(records)
    own = [
        (n, v) for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
    ]
    parts = ["from typing import Protocol, TypeAlias"]
    for name, value in own:
        if name.startswith("_"):
            continue
        if isinstance(value, type):
            parts.append(class_text(value, installed if value is pb.Tensor else {}))
        elif isinstance(value, FunctionType):
            parts.append(plain_text(name, value))
    return "\n\n".join([*parts, *records.values(), ALIASES])


def stubs() -> dict[str, str]:
    """The text of every stub by its file name."""
    namespaces = sorted({e.namespace for e in REGISTRY.values()} - {""})
    found = {
        "__init__.pyi": module_text("pullback", package_text()),
        "tensor.pyi": module_text("pullback.tensor", tensor_text()),
    }
    for n in namespaces:
        name = f"{n}/__init__.pyi" if (SOURCE / n).is_dir() else f"{n}.pyi"
        found[name] = module_text(f"pullback.{n}", namespace_text(n))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if not current")
    check = parser.parse_args().check
    stale = 0
    for name, text in stubs().items():
        path = SOURCE / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == old:
            continue
        stale += 1
        if check:
            changes = difflib.unified_diff(
                old.splitlines(), text.splitlines(), name, "current", n=1
            )
            print("\n".join([line.rstrip("\n") for line in changes][:20]))
            print(f"stubs: {name} is not current. Run `make stubs`.")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
