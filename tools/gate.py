"""`make gate`: whether two revisions compile the same code and run the same programs.

    python tools/gate.py --against main            # this tree and that revision, on a sample
    python tools/gate.py --against main --every 1  # all operations instead of one of four
    python tools/gate.py --record build/gate/x     # write a record, to compare with later

A record holds, for every operation's samples (eager, compiled, first and second derivative) and for
every workload of the benchmarks, a hash of each IR text that was compiled, the words of each
program with addresses replaced by these hashes, and the bits of the results. Equal records mean
equal bits, speed and memory, and no benchmark has to be argued about. Large workloads are compiled
and not run. Each record is made by a process of its own, on a fixed number of threads.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
THREADS = "2"
SHOWN = 20  # differences that are printed
# What can be the address of a table that a parameter points at, and is hardly anything else.
POINTERS = range(1 << 44, 1 << 47)
# Bytes of output and scratch memory below which the programs of a workload are run. Constants are
# folded by such programs, and code depends on the values of constants.
SMALL = 1 << 22

# Where revisions have the functions that are watched, the newest first.
COMPILERS = ("pullback.runtime.cpu.llvm.jit", "pullback.runtime.cpu.jit")
CORES = ("pullback.runtime.cpu.native.core", "pullback.runtime.cpu.native")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", metavar="REVISION", help="compare this tree with a revision")
    parser.add_argument("--with", dest="older", type=Path, help="compare with a written record")
    parser.add_argument("--record", type=Path, help="only write the record, into this folder")
    parser.add_argument("--every", type=int, default=4, help="of so many operations, take one")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        write(options.source, options.record, options.every)
        return
    kind = f"every-{options.every}"
    build = ROOT / "build" / "gate"
    older = options.older or build / f"{options.against}-{kind}"
    if options.against:
        with checked_out(options.against) as tree:
            started(tree / "src", older, options.every)
    started(ROOT / "src", build / f"tree-{kind}", options.every)
    sys.exit(compare(older, build / f"tree-{kind}"))


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A temporary worktree of a revision."""
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        tree = Path(folder, "tree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def started(source: Path, folder: Path, every: int) -> None:
    """Write the record of the package under `source`, in a process of its own."""
    command = [sys.executable, __file__, "--record", str(folder), "--source", str(source)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONHASHSEED": "0",
        "PULLBACK_NUM_THREADS": THREADS,
    }
    subprocess.run([*command, "--every", str(every)], check=True, env=environment)


# -- recording -------------------------------------------------------------------------------------


def digest(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def found_module(names: Sequence[str], attribute: str) -> Any:
    """The first of these modules that there is and that has the attribute."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(name)
            if attribute in vars(module):
                return module
    raise SystemExit(f"gate: none of {', '.join(names)} has {attribute}.")


class Recorder:
    """Watches what is compiled and which programs are made."""

    def __init__(self):
        self.texts: dict[str, str] = {}  # by hash
        self.programs: dict[str, list[int | str]] = {}
        self.made: list[str] = []  # programs since `case` began
        self.running = True
        self._new: list[tuple[str, dict[str, Any]]] = []
        self._names: dict[int, str] = {}
        compiler = found_module(COMPILERS, "compile_ir")
        self._watch(compiler)
        core = found_module(CORES, "_make")
        self._empty = core.empty
        self._make, core._make = core._make, self.make

    def _watch(self, compiler: Any) -> None:
        real = compiler.compile_ir

        def compile_ir(text: str, symbols: Sequence[str], **options: Any) -> dict[str, Any]:
            found = real(text, symbols, **options)
            code = re.sub(r"^\s*;.*\n", "", text, flags=re.MULTILINE)  # without comments
            name = digest(code + repr(sorted(options.items())))
            self.texts[name] = text
            self._new.append((name, found))
            return found

        compiler.compile_ir = compile_ir

    def make(self, words: Any) -> Callable[..., Any]:
        """In the place of the native function that makes a program of words."""
        for name, found in self._new:
            self._names.update({int(address): f"{name}.{k}" for k, address in found.items()})
        self._new.clear()
        numbers = np.frombuffer(memoryview(words), np.int64).tolist()
        named = [self._names.get(n, "memory" if n in POINTERS else n) for n in numbers]
        key = digest(repr(named))
        self.programs[key] = named
        self.made.append(key)
        output, areas = numbers[1:3]  # the bytes of the output, and how many scratch areas
        if self.running or output + sum(numbers[6 : 6 + areas]) < SMALL:
            return self._make(words)
        return lambda *_: self._empty(output)

    @contextlib.contextmanager
    def case(self, cases: dict[str, Any], name: str) -> Iterator[list[bytes]]:
        """Records the programs made inside, and the bits put into the list it gives."""
        self.made, bits = [], []
        try:
            yield bits
        except Exception as error:  # a case that can't be compiled has to fail the same way
            bits.append(f"{type(error).__name__}: {error}".encode())
        cases[name] = {"programs": self.made, "bits": digest(b"".join(bits))}


def write(source: Path, folder: Path, every: int) -> None:
    """Write the record of the package under `source` into a folder."""
    sys.path[:0] = [str(source), str(ROOT), str(ROOT / "tests" / "generated")]
    recorder = Recorder()
    import pullback

    if not Path(pullback.__file__).is_relative_to(source):
        raise SystemExit(f"gate: found another package, {pullback.__file__}.")
    with contextlib.suppress(ModuleNotFoundError):  # an older revision keeps no programs
        keys = importlib.import_module("pullback.compile.function.keys")
        setattr(keys, "LEAST_EQUATIONS", sys.maxsize)  # noqa: B010
    cases: dict[str, Any] = {}
    registry(recorder, cases, every)
    workloads(recorder, cases, max(1, every // 4))
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"cases": cases, "programs": recorder.programs, "texts": recorder.texts}
    for name, part in parts.items():
        with gzip.open(folder / f"{name}.json.gz", "wt", compresslevel=1) as stream:
            json.dump(part, stream, sort_keys=True)
    print(
        f"gate: {len(cases)} cases, {len(recorder.programs)} programs,"
        f" {len(recorder.texts)} texts in {folder}"
    )


def registry(recorder: Recorder, cases: dict[str, Any], every: int) -> None:
    """The samples of all operations: eager and compiled, with two derivatives."""
    import matrix

    import pullback as pb

    matrix.FULL = full = every == 1
    chosen = set(sorted(matrix.REGISTRY)[::every])
    zero = pb.tensor(0.0, dtype="float64")
    dtypes = (pb.float64, pb.float32, pb.complex128, pb.bfloat16)
    for case in matrix.cases(dtypes[: None if full else 3], compiled=not full):
        entry = case.entry
        if case.key not in chosen:
            continue
        with recorder.case(cases, f"{case} accepted") as bits:  # this may run the operation
            accepted = matrix.accepts(entry, case.dtype)
            bits += [repr(accepted).encode()]
        if not accepted:
            continue
        sample = case.sample
        compiled_too = case.position < 2 or full
        f, given = matrix.function_of_arrays(entry.function, sample.args, sample.kwargs)
        arrays = [pb.tensor(a) for a in given]
        with recorder.case(cases, f"{case} eager") as bits:
            bits += contents(f(*arrays))
        if compiled_too:
            with recorder.case(cases, f"{case} jit") as bits:
                bits += contents(pb.jit(f)(*arrays))
        leaves = matrix.differentiable_leaves(sample)
        differentiable = leaves and sample.order and matrix.differentiable(entry)
        if not differentiable or not compiled_too or case.dtype not in dtypes[:3:2]:
            continue
        along = matrix.function_of(entry, sample)
        xs = [pb.tensor(a) for a in leaves]
        if not along(*xs):
            continue
        phi = matrix.along_line(along, xs)
        for k in range(1, min(sample.order, 2) + 1):
            phi = pb.grad(phi)
            with recorder.case(cases, f"{case} derivative {k} eager") as bits:
                bits += contents([phi(zero)])
            with recorder.case(cases, f"{case} derivative {k} jit") as bits:
                bits += contents([pb.jit(phi)(zero)])


def contents(arrays: Sequence[Any]) -> list[bytes]:
    found = []
    for x in arrays:
        found += [f"{x.shape} {x.dtype.name} ".encode(), np.ascontiguousarray(x.numpy()).tobytes()]
    return found


def workloads(recorder: Recorder, cases: dict[str, Any], every: int) -> None:
    """The workloads of the benchmarks at both sizes; their kernels are not run."""
    import pullback as pb
    from benchmarks.gather_cases import CASES
    from benchmarks.libraries import LIBRARIES
    from benchmarks.suites import ALL_WORKLOADS, function_of
    from pullback.core import pytrees

    library = LIBRARIES["pullback"](int(THREADS))
    recorder.running = False
    for name, workload in list(ALL_WORKLOADS.items())[::every]:
        for quick in (False, True):
            with recorder.case(cases, f"{name} {'quick' if quick else 'full'}") as bits:
                function = function_of(library, name)
                found = function(*library.prepared(name, workload.arrays(quick)))
                bits += contents(pytrees.leaves(found)) if quick else []
    for name, case in list(CASES.items())[::every]:
        inputs = case.inputs(quick=True)
        indices, updates = pb.tensor(inputs.indices), pb.tensor(inputs.updates)
        for how, wrap in (("eager", lambda f: f), ("jit", pb.jit)):
            with recorder.case(cases, f"gather {name} {how}") as bits:
                x = pb.zeros((inputs.rows, *updates.shape[1:]), dtype=updates.dtype)
                found = wrap(lambda x, i, u: pb.vjp(lambda x: x[i], x)[1](u))(x, indices, updates)
                bits += contents(found)


# -- comparing -------------------------------------------------------------------------------------


def read(folder: Path, part: str) -> dict[str, Any]:
    with gzip.open(folder / f"{part}.json.gz", "rt") as stream:
        return json.load(stream)


def compare(older: Path, newer: Path) -> int:
    """Print how two records differ; 1 if they do."""
    before, after = read(older, "cases"), read(newer, "cases")
    texts = {name: set(read(folder, "texts")) for name, folder in (("-", older), ("+", newer))}
    lines = [f"- case {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"+ case {name}" for name in sorted(after.keys() - before.keys())]
    for name in sorted(before.keys() & after.keys()):
        lines += [
            f"{part} of {name}"
            for part in ("programs", "bits")
            if before[name][part] != after[name][part]
        ]
    lines += [f"- text {t}" for t in sorted(texts["-"] - texts["+"])]
    lines += [f"+ text {t}" for t in sorted(texts["+"] - texts["-"])]
    for line in lines[:SHOWN]:
        print(line)
    print(f"gate: {len(lines)} differences between {older.name} and {newer.name}")
    return bool(lines)


if __name__ == "__main__":
    main()
