"""Runs the gate's recorder on a package whose tuning constants were changed at random.

    python tests/runtime/altered.py SEED FOLDER EVERY

A module names its tuning constants in `__tuning__`: ints that a schedule may choose freely. Widths
of instructions, layouts of records and of memory, and limits of formats are none. Seed 0 changes
none.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import random
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import numpy as np

ROOT = Path(__file__).parents[2]


class Changed(ast.NodeTransformer):
    """Multiplies or divides the tuning constants of a module."""

    def __init__(self, draw: random.Random):
        self.draw = draw
        self.wanted: set[str] = set()

    def visit_Module(self, node: ast.Module) -> ast.Module:
        assigned = {
            n.targets[0].id: n
            for n in node.body
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
        }
        if "__tuning__" in assigned:
            self.wanted = set(ast.literal_eval(assigned["__tuning__"].value))
        missing = self.wanted - assigned.keys()
        if missing:
            raise NameError(f"__tuning__ names {missing}, of which the module has no constants")
        node.body = [self._changed(n) if isinstance(n, ast.Assign) else n for n in node.body]
        return ast.fix_missing_locations(node)

    def _changed(self, node: ast.Assign) -> ast.Assign:
        (target, *_) = node.targets
        if not isinstance(target, ast.Name) or target.id not in self.wanted:
            return node
        factor = self.draw.choice((0.25, 0.5, 1, 2, 4))
        value = ast.unparse(node.value)
        changed = ast.parse(f"max(1, int(({value}) * {factor}))", mode="eval").body
        return ast.copy_location(ast.Assign(node.targets, changed), node)


class Loader(SourceFileLoader):
    """Compiles modules anew, changed; nothing is read from or written to the disk's cache."""

    seed = 0

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.path)
        tree = ast.parse(path.read_text("utf-8"))
        if self.seed:
            tree = Changed(random.Random(f"{self.seed} {fullname}")).visit(tree)
        return compile(tree, str(path), "exec", dont_inherit=True)


def large() -> dict[str, str]:
    """Digests of computations that are large enough to be cut in many ways."""
    import pullback as pb
    from pullback.core import pytrees

    rng = np.random.default_rng(0)

    def array(*shape: int) -> pb.Tensor:
        return pb.tensor(rng.standard_normal(shape, np.float32))

    def indices(rows: int, count: int) -> pb.Tensor:
        return pb.tensor(rng.integers(0, rows, count))

    def gradients(f: Callable[..., pb.Tensor], *args: pb.Tensor) -> Callable[..., object]:
        names = tuple(range(len(args)))
        return lambda *xs: pb.grad(lambda *ys: (f(*ys) * f(*ys)).sum(), names)(*xs)

    def norm(x: pb.Tensor) -> pb.Tensor:
        return pb.nn.layer_norm(pb.nn.softmax(x, -1), (x.shape[-1],))

    def net(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        for _ in range(4):
            x = pb.tanh(x @ w)
        return x

    conv, deep = pb.nn.conv2d, lambda x, w: pb.nn.conv2d(x, w, padding=1, groups=x.shape[1])
    table: dict[str, tuple[Callable[..., object], tuple[pb.Tensor, ...]]] = {
        "sum": (pb.sum, (array(300_001),)),
        "sum rows": (lambda x: pb.sum(x, axis=1), (array(40, 9000),)),
        "sum columns": (lambda x: pb.sum(x, axis=0), (array(9000, 40),)),
        "sum many columns": (lambda x: pb.sum(x, axis=0), (array(300, 2000),)),
        "cumulative": (pb.cumulative_sum, (array(30_000),)),
        "product": (pb.matmul, (array(300, 700), array(700, 260))),
        "transposed product": (lambda a, b: a.T @ b.T, (array(2000, 40), array(50, 2000))),
        "row": (pb.matmul, (array(5000), array(5000, 70))),
        "network": (net, (array(256, 64), array(64, 64))),
        "network gradients": (gradients(net, *[array(1)] * 2), (array(256, 64), array(64, 64))),
        "rows": (norm, (array(512, 1024),)),
        "rows gradient": (gradients(norm, array(1)), (array(512, 1024),)),
        "transpose": (lambda x: x.T + 1, (array(300, 500),)),
        "convolution": (conv, (array(4, 40, 30, 30), array(50, 40, 3, 3))),
        "gradients": (
            gradients(conv, *[array(1)] * 2), (array(4, 20, 56, 56), array(24, 20, 3, 3))),
        "depthwise": (
            gradients(deep, *[array(1)] * 2), (array(4, 40, 56, 56), array(40, 1, 3, 3))),
        "sort": (pb.argsort, (array(4, 100_000),)),
        "gather": (lambda x, i: x[i], (array(5000, 3), indices(5000, 100_000))),
    }  # fmt: skip
    for rows in (20, 2000, 100_000):
        for width in (1, 5, 40):
            given = (array(rows, width), indices(rows, 100_000), array(100_000, width))
            table[f"scatter {rows} {width}"] = (pb.index_add, given)
    found = {}
    for name, (f, given) in table.items():
        for how, g in (("eager", f), ("jit", pb.jit(f))):
            results = pytrees.leaves(g(*given))
            data = b"".join(x.numpy().tobytes() for x in results)
            found[f"{name} {how}"] = hashlib.sha256(data).hexdigest()
    return found


def finder(path: str) -> FileFinder:
    """Finds the modules of the package, and nothing else."""
    if not Path(path).is_relative_to(ROOT / "src"):
        raise ImportError
    return FileFinder(path, (Loader, [".py"]))


def change_target(draw: random.Random) -> None:
    """Change what the compiler is told of the CPU's caches and threads."""
    target = import_module("pullback.runtime.cpu.target").CpuTarget
    fixed = {"line", "local_bytes"}  # how memory is laid out, and how much of it there is
    fields = {k: v for k, v in vars(target.tuning).items() if k not in fixed}
    changed = {k: max(1, int(v * draw.choice((0.25, 0.5, 1, 2, 4)))) for k, v in fields.items()}
    target.tuning = dataclasses.replace(target.tuning, **changed)


def main() -> None:
    seed, folder, every = sys.argv[1:]
    Loader.seed = int(seed)
    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()
    sys.path.insert(0, str(ROOT / "tools"))
    gate = import_module("gate")

    if Loader.seed:
        change_target(random.Random(Loader.seed))
    found = large()  # first: the recorder lets large programs be
    gate.write(ROOT / "src", Path(folder), int(every))
    Path(folder, "large.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
