"""Break a line of handles or of the compiler, one at a time, and show that the tests notice it.

A mutant replaces a piece of text in one module of pullback. The tests that are named beside it run
in a process of their own, in which that module is loaded with the text replaced; nothing on disk
changes. A mutant that they do not notice survives, and makes this program fail.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT = 600  # seconds for the tests of one mutant

HANDLES = "tests/test_handles.py tests/generated/test_handles.py"
BODIES = "tests/test_in_place_bodies.py"
ARITHMETIC = "tests/jit/test_passes.py"
MOVEMENT = "tests/jit/test_passes_movement.py"
CONTROL = "tests/jit/test_passes_control.py"
CHECKS = "tests/jit/test_index_checks.py"
POSITIONS = "tests/generated/test_indices.py"
REFUSALS = "tests/jit/test_jit_errors.py"
COST = "tests/jit/test_compile_cost.py"


class SourceMutant(NamedTuple):
    """`old`, which stands once in a module, as `new`; `tests` should notice."""

    kind: str
    module: str
    old: str
    new: str
    tests: str

    @property
    def path(self) -> Path:
        return ROOT / "src" / "pullback" / self.module

    @property
    def name(self) -> str:
        return "pullback." + self.module.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """The module with the text replaced."""
        text = self.path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.module}: {self.old!r} stands {text.count(self.old)} times")
        return text.replace(self.old, self.new)


M = SourceMutant
MUTANTS = (
    # -- handles -----------------------------------------------------------------------------------
    M("a result is an argument", "ops/families.py",
      "        for a in args:\n            if a is out and isinstance(out, Array):\n"
      "                return another(out)\n", "", HANDLES),
    M("a result is an argument by name", "ops/families.py",
      "        for a in kwargs.values():\n            if a is out and isinstance(out, Array):\n"
      "                return another(out)\n", "", HANDLES),
    M("another handle is the same", "ir/op.py",
      "        return make(array._buf, array._aval, node)\n", "        return array\n", HANDLES),
    M("a kept constant is handed out", "ops/creation.py",
      "if shape else another(x)", "if shape else x", HANDLES),
    M("a copy is the array", "ops/creation.py",
      "return another(x) if copy and x is obj else x", "return x", HANDLES),
    M("a cast gives its argument", "ops/parts.py",
      "return another(x) if copy else x", "return x", HANDLES),
    M("a gradient is the cotangent", "autodiff/reverse.py",
      "another(g) if before is None else before + g", "g if before is None else before + g",
      HANDLES),
    M("cotangents share a handle", "autodiff/recorded.py",
      "filled = [zeros(v._aval) if g is None else another(g) for g, v in pairs]",
      "filled = [zeros(v._aval) if g is None else g for g, v in pairs]", HANDLES),
    M("a function is given the variables themselves", "autodiff/recorded.py",
      "[another(v) for v in self.variables]", "list(self.variables)", BODIES),
    M("a branch is given the operands themselves", "control.py",
      "chosen(*own_handles(operands))", "chosen(*operands)", BODIES),
    M("a loop is given the carry itself", "control.py",
      "pytrees.unflatten(self.structure, [another(a) for a in arrays])",
      "pytrees.unflatten(self.structure, list(arrays))", BODIES),
    M("arguments that stay are the caller's", "transforms.py",
      "None if n in chosen else own_handles(a)", "None if n in chosen else a", BODIES),
    M("a custom rule is given the caller's handles", "autodiff/custom.py",
      "        args = own_handles(args)\n", "", BODIES),
    M("a custom rule is given what is saved", "autodiff/custom.py",
      "residuals = own_handles(pytrees.unflatten(structure, leaves))",
      "residuals = pytrees.unflatten(structure, leaves)", BODIES),
    M("a custom rule is given others' cotangents", "autodiff/custom.py",
      "own_handles(pytrees.unflatten(self.result, filled))",
      "pytrees.unflatten(self.result, filled)", BODIES),
    M("a custom rule is given others' tangents", "autodiff/custom_jvp.py",
      "own_handles(pytrees.unflatten(self.arguments, xs))",
      "pytrees.unflatten(self.arguments, xs)", BODIES),
    M("a solver is given the unknown itself", "implicit.py",
      "f(own_handles(self.tree(xs)))", "f(self.tree(xs))", BODIES),
    M("a product is given the vector itself", "curvature.py",
      "product(own_handles(pytrees.unflatten(structure, signs)))",
      "product(pytrees.unflatten(structure, signs))", BODIES),
    M("exported memory is no copy", "ir/exchange.py",
      'values = np.array(to_numpy(x), order="C")\n        return dlpack',
      "values = runtime.memory(x._buf, x._aval, writable=True)\n        return dlpack", HANDLES),
    M("memory of others is shared on request", "ir/exchange.py",
      "if x._node is not None or not x._aval.device.runtime.has_one_owner(x._buf):",
      "if False:", HANDLES),
    M("an array of NumPy shares memory of others", "ir/exchange.py",
      "if x._aval.is_symbolic or x._aval.device.runtime.has_one_owner(x._buf):", "if True:",
      HANDLES),
    M("an optimiser keeps the user's handle", "optim/lookahead.py",
      'another(as_array(p, "Lookahead"))', 'as_array(p, "Lookahead")', HANDLES),
    # -- passes ------------------------------------------------------------------------------------
    M("zeros have no sign", "compile/graph/passes/algebra.py",
      'return value.dtype.kind in "biu" or copysign(1.0, float(value)) == sign', "return True",
      ARITHMETIC),
    M("a sign is lost", "compile/graph/passes/algebra.py",
      "return rw.emit(negative.op, (unsigned,)) if x is None or y is None else unsigned",
      "return unsigned", ARITHMETIC),
    M("any number has an exact reciprocal", "compile/graph/passes/algebra.py",
      "if abs(mantissa) == 0.5 and abs(exponent)", "if abs(exponent)", ARITHMETIC),
    M("a cast drops digits", "compile/graph/passes/algebra.py",
      "return _DIGITS[a] >= bits", "return _DIGITS[a] + 8 >= bits", ARITHMETIC),
    M("a chosen branch is the other one", "compile/graph/passes/algebra.py",
      "return rw.broadcast(x if value != 0 else y, av.shape)",
      "return rw.broadcast(y if value != 0 else x, av.shape)", ARITHMETIC),
    M("permutations are joined the wrong way", "compile/graph/passes/movement.py",
      "tuple(before[a] for a in axes)", "tuple(axes[a] for a in before)", MOVEMENT),
    M("a sum of repeated elements is counted wrong", "compile/graph/passes/movement.py",
      "rw.number(count, av)", "rw.number(len(repeated), av)", MOVEMENT),
    M("a sum of one element keeps -0.0", "compile/graph/passes/movement.py",
      "return rw.emit(add.op, (x, rw.number(0, x.aval)))", "return x", MOVEMENT),
    M("steps of a slice are forgotten", "compile/graph/passes/boxes.py",
      "starts.append(s + t * s2)", "starts.append(s + s2)", MOVEMENT),
    M("overlapping writes are disjoint", "compile/graph/passes/boxes.py",
      "        if not disjoint(box, written):\n            break\n", "", MOVEMENT),
    M("a slice is of the wrong part", "compile/graph/passes/boxes.py",
      "if at <= low and high < at + size:", "if at <= low and high <= at + size:", MOVEMENT),
    M("what is reached through a view is used once", "compile/graph/passes/boxes.py",
      "rw.uses[v] = max(rw.uses.get(v, 0), 2)", "pass", COST),
    M("operands of all operations commute", "compile/graph/passes/rewriter.py",
      "if op in COMMUTATIVE:", "if len(inputs) == 2:", ARITHMETIC),
    M("0.0 and -0.0 are one parameter", "compile/graph/passes/rewriter.py",
      "return (item[0], repr(item[1])) if type(item[1]) is float else item", "return item",
      ARITHMETIC),
    M("a reduction loses axes that others want", "compile/graph/passes/keepdims.py",
      "if len(shapes) == 1 and (other", "if (other",
      f"{MOVEMENT} tests/jit/test_passes_generated.py"),
    M("a check of indices is dropped", "compile/graph/passes/dead.py",
      "if check is not None and check not in self.done and",
      "if check is not None and check in self.done and", CHECKS),
    M("an index is taken for sure", "compile/graph/passes/dead.py",
      "return not found.size or (-size <= found.min() and found.max() < size)", "return True",
      CHECKS),
    M("a product that others use is taken away", "compile/graph/passes/products.py",
      "made[v].op is op and counts[v] == 1", "made[v].op is op", MOVEMENT),
    M("parts are joined out of order", "compile/graph/passes/chains.py",
      "self.parts.insert(at, part)", "self.parts.append(part)", MOVEMENT),
    M("a carry is always the same", "compile/graph/passes/control.py",
      "if body.outputs[k] is body.inputs[first + k]", "if True", CONTROL),
    M("a term that a step reads leaves the loop", "compile/graph/passes/loops.py",
      "counts[carry] != 1 or counts[out] != 1", "counts[out] != 1", CONTROL),
    M("exchanges of rows are not checked", "linalg/lu.py",
      'rows = bind_named("lu_solve", gather.op, numbers, index)',
      "rows = astype(index, dt.float64)", POSITIONS),
    M("a requirement is not made", "ops/requirements.py",
      "    if x._aval.is_symbolic:\n", "    if x._aval.is_symbolic:\n        return x\n", REFUSALS),
    M("what is required is not looked at", "runtime/cpu/linalg/linalg_stages.py",
      "return [*seen, look, *copy]", "return [*seen, *copy]", REFUSALS),
    M("what is read at two places is read once", "compile/schedule/storage.py",
      "and read <= v.aval.size:", "and True:", COST),
)  # fmt: skip


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with a piece of its text replaced."""

    mutant: SourceMutant

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.mutant.source().encode(), str(self.mutant.path))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: SourceMutant):
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.name:
            return None
        loader = _Loader(fullname, str(self.mutant.path))
        loader.mutant = self.mutant
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=loader)


def run_tests(mutant: SourceMutant) -> int:
    """Run the mutant's tests in this process, with the mutant in place."""
    import pytest

    sys.path.insert(0, str(ROOT / "src"))
    sys.meta_path.insert(0, _Finder(mutant))
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    return int(pytest.main([*options, *[str(ROOT / t) for t in mutant.tests.split()]]))


def noticed(mutant: SourceMutant) -> str | None:
    """The first test that fails with the mutant, None if there is none."""
    described = json.dumps(mutant)
    environment = {**os.environ, "PULLBACK_CACHE_DIR": ""}
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--run", described], cwd=ROOT, env=environment, text=True,
            capture_output=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT} s"
    if done.returncode == 0:
        return None
    failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
    if not failed:  # then it is this tool that is wrong
        raise RuntimeError(f"{mutant.kind}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return failed[0]


def report(chosen: Sequence[SourceMutant]) -> list[SourceMutant]:
    """Print what became of each mutant; returns the survivors."""
    survivors = []
    for n, mutant in enumerate(chosen, 1):
        start = time.perf_counter()
        found = noticed(mutant)
        seconds = time.perf_counter() - start
        head = f"{n:2}/{len(chosen)} {mutant.kind:46} {mutant.module:28} {seconds:6.1f} s "
        print(head + (found or "SURVIVED")[:110], flush=True)
        if found is None:
            survivors.append(mutant)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants of modules that contain a word")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        return run_tests(SourceMutant(*json.loads(given.run)))
    chosen = [m for m in MUTANTS if not given.words or any(w in m.module for w in given.words)]
    survivors = report(chosen)
    print(
        f"{len(chosen)} mutants: {len(chosen) - len(survivors)} killed, {len(survivors)} survived"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
