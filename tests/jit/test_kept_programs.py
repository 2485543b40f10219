"""Compiled functions on disk: what a later process finds there, and what it does not take for one.

The processes of these tests are this one, which forgets what it compiled in between, but for one
that is a new one.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.function import compiled, keys
from pullback.compile.program import kept
from pullback.compile.program.executable import Version
from pullback.compiled import Jitted
from pullback.core import fingerprint
from pullback.core.pytrees import leaves
from pullback.runtime.cpu import native
from runtime.native_kernels import run_python

X = pb.tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(keys, "LEAST_EQUATIONS", 1)
    return tmp_path / f"cpu-programs-{os.geteuid()}"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are lowered, and not found."""
    found: list[Any] = []
    real = Version.__init__

    def noted(self: Version, graph: Any, *rest: Any) -> None:
        found.append(graph)
        real(self, graph, *rest)

    monkeypatch.setattr(Version, "__init__", noted)
    return found


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def same(a: Any, b: Any) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert x.numpy().tobytes() == y.numpy().tobytes()


W = pb.tensor(np.linspace(0, 1, 36, dtype=np.float32).reshape(6, 6))
ROWS = pb.tensor(np.array([3, 1, 1, 0]))


def network(x: Any) -> Any:
    return pb.value_and_grad(lambda x: (pb.tanh(x @ W) ** 2).sum())(x)


def looped(x: Any) -> Any:
    def step(c: Any, row: Any) -> tuple[Any, Any]:
        c = pb.tanh(W @ c + row)
        return c, c.sum()

    return pb.scan(step, x[0], x)


def factored(x: Any) -> Any:
    a = x @ x.T + pb.eye(4)
    return pb.linalg.solve(a, x), pb.linalg.cholesky(a), pb.linalg.eigvalsh(a)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gradient": network,
    "loop": looped,
    "branch": lambda x: pb.cond(x.sum() > 0, lambda x: x + 1, lambda x: pb.sin(x), x),
    "while": lambda x: pb.while_loop(lambda c: c.sum() < 9, lambda c: pb.exp(c) + c * c, x),
    "reductions": lambda x: (x.mean(0), x.max(), pb.nn.softmax(x, 1), x.argmax(1)),
    "gather": lambda x: pb.grad(lambda x: (x[ROWS] ** 2).sum())(x),
    "factorisations": factored,
    "transform": lambda x: pb.fft.fft(x, axis=1).real + pb.fft.rfft(x, axis=0).imag[:1, :].sum(),
    "convolution": lambda x: pb.nn.conv1d(x[None, :, :], pb.ones((2, 4, 3))),
    "sort": lambda x: (pb.sort(x, axis=1), pb.argsort(x, axis=0)),
    "parts of inputs": lambda x: (x, x[1:], x.T, x * 2),
    "constants": lambda x: (W, pb.arange(6), x + pb.arange(6.0)),
    "large constant": lambda x: x.sum() + pb.arange(90_000.0).reshape(300, 300)[7],
    "slow sides": lambda x: pb.sin(x * 1e6),
    "nothing": lambda x: x,
    "several products": lambda x: x @ W @ W @ W,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_was_kept_gives_the_same_bits(name, folder, lowered):
    f = FUNCTIONS[name]
    first = pb.jit(f)(X)
    lowered.clear()
    again = pb.jit(f)(X)
    same(first, again)
    assert not lowered
    assert name == "nothing" or entries(folder)


def test_derivatives_of_a_jitted_function_are_kept(folder, lowered):
    def gradient() -> Any:
        w = pb.tensor(W.numpy(), requires_grad=True)
        out = pb.jit(lambda w, x: (pb.tanh(x @ w) ** 2).sum())(w, X)
        out.backward()
        return out.detach(), w.grad

    first = gradient()
    assert lowered
    lowered.clear()
    same(first, gradient())
    assert not lowered
    assert len(entries(folder)) == 2  # forward, and backward


# Kernels that call others, of LAPACK and of the library, and tables of numbers.
PROGRAM = """
import numpy as np
import pullback as pb
from pullback.compile.function import keys
from pullback.compile.program.executable import Version

keys.LEAST_EQUATIONS = 1
x = pb.tensor(np.linspace(-1, 1, 36).reshape(6, 6))
lowered = []
real = Version.__init__
Version.__init__ = lambda self, *rest: lowered.append(1) or real(self, *rest)
f = pb.jit(lambda x: (pb.sin(x * 1e6), pb.linalg.eigvalsh(x @ x.T), abs(pb.fft.fft(x)), x.T @ x))
bits = [v.numpy().tobytes().hex() for v in f(x)]
print(len(lowered), *bits)
"""


def test_another_process_finds_it(tmp_path):
    first, second = (run_python(PROGRAM, PULLBACK_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.startswith("1 ") and second == f"0 {first[2:]}"


@pytest.mark.parametrize("how", ["shape", "dtype", "static", "constant", "number", "structure"])
def test_what_differs_is_not_found(how, folder, lowered):
    def function(axis: int = 0, c: Any = W, factor: float = 0.0) -> Any:
        return pb.jit(lambda x: (x * c.sum() + factor).sum(axis))

    function()(X)
    lowered.clear()
    f, x = function(), X
    if how == "shape":
        x = X[:3]
    elif how == "dtype":
        x = X.astype("float64")
    elif how == "static":
        f = function(axis=1)
    elif how == "constant":
        f = function(c=W + 1e-3)
    elif how == "number":
        f = function(factor=-0.0)
    else:
        f = pb.jit(lambda x: (W.sum() * x + 0.0).sum(0))
    f(x)
    assert lowered


@pytest.mark.parametrize(
    "what", ["threads", "version", "tuning", "exact", "budget", "default", "products"]
)
def test_settings_are_part_of_the_key(what, folder, lowered, monkeypatch, threads):
    pb.jit(network)(X)
    lowered.clear()
    f = pb.jit(network)
    if what == "threads":
        threads(native.get_threads() + 1)
    elif what == "version":
        monkeypatch.setattr(keys, "fingerprint", lambda: "another")
    elif what == "tuning":
        from pullback.runtime.cpu.gemm import matmul

        name = matmul.__tuning__[0]
        monkeypatch.setattr(matmul, name, getattr(matmul, name) * 2)
    elif what == "exact":
        f = type("Exact", (Jitted,), {"exact": True})(network)
    elif what == "products":
        monkeypatch.setattr(keys, "get_matmul_precision", lambda: "another")
    elif what == "budget":
        f = pb.jit(network, memory="1 GiB")
    else:
        monkeypatch.setattr(keys, "default_float", lambda: pb.float64)
    f(X)
    assert lowered


def test_functions_of_the_host_are_not_kept(folder, lowered):
    def f(x: Any) -> Any:
        pb.debug.print("{}", x.sum())
        return x * 2

    pb.jit(f)(X)
    assert lowered and not entries(folder)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "cut": lambda good: good[:-10],
    "flipped": lambda good: good[:200] + bytes([good[200] ^ 1]) + good[201:],
    "longer": lambda good: good + b"x",
    "other": lambda good: b"x" * len(good),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_ignored_and_written_again(damage, folder, lowered):
    first = pb.jit(network)(X)
    (entry,) = entries(folder)
    good = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](good))
    lowered.clear()
    same(pb.jit(network)(X), first)
    assert len(lowered) == 1
    assert entry.read_bytes() == good
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def contents(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What is written for the network, without the protection of a digest."""
    written: list[bytes] = []
    programs = pb.device("cpu").runtime.target.kept
    monkeypatch.setattr(programs, "write", lambda key, data: written.append(data))
    monkeypatch.setattr(programs, "read", lambda key: None)
    pb.jit(network)(X)
    return kept.zlib.decompress(written[0])


def test_no_contents_do_harm(folder, lowered, monkeypatch):
    """A file that was written on purpose, with a digest that fits, is parsed to the end or not at
    all: cut anywhere, or with any byte of its head changed, it is no file, or the same one.
    """
    good = contents(monkeypatch)
    programs = pb.device("cpu").runtime.target.kept
    head = 16 + int.from_bytes(good[:8], "little")
    rng = np.random.default_rng(0)
    bad = [good[:n] for n in rng.integers(0, len(good), 40)]
    for at in [*range(16), *rng.integers(16, head, 200)]:
        bad.append(good[:at] + bytes([int(rng.integers(256))]) + good[at + 1 :])
    bad += [b"\xff" * 16, b"\0" * 16, good[:16] + b"[" * 100_000]
    key = kept.Key("0" * 64, pb.device("cpu"), [W._buf] * 3)
    for data in bad:
        packed = kept.zlib.compress(data, 1)
        monkeypatch.setattr(programs, "read", lambda key, packed=packed: packed)
        kept.read(key, pb.device("cpu").runtime.target)  # nothing is raised


def test_what_asks_for_more_memory_than_a_file_may_take_is_no_file(folder, monkeypatch):
    programs = pb.device("cpu").runtime.target.kept
    bomb = kept.zlib.compress(bytes(kept.MOST_BYTES + 1), 9)
    monkeypatch.setattr(programs, "read", lambda key: bomb)
    key = kept.Key("0" * 64, pb.device("cpu"), [])
    assert kept.read(key, pb.device("cpu").runtime.target) is None


def test_missing_machine_code_is_compiled_again(folder, lowered, monkeypatch):
    from pullback.runtime.cpu.llvm import jit

    first = pb.jit(network)(X)
    monkeypatch.setattr(jit, "linked", lambda origin: None)
    lowered.clear()
    same(pb.jit(network)(X), first)
    assert lowered


def test_errors_name_the_operation(folder, lowered):
    def f(x: Any, i: Any) -> Any:
        return x[i]

    pb.jit(f)(X, pb.tensor([1, 2]))
    lowered.clear()
    g = pb.jit(f)
    same(g(X, pb.tensor([1, 2])), X[1:3])
    assert not lowered
    with pytest.raises(IndexError, match="index 7"):
        g(X, pb.tensor([1, 7]))


def test_other_layouts_are_kept_too(folder, lowered):
    across = pb.tensor(X.numpy().T.copy()).T
    first = pb.jit(network)(across)
    assert len(lowered) == 2  # for dense inputs too
    lowered.clear()
    same(pb.jit(network)(across), first)
    assert not lowered


def test_what_only_the_graph_tells_is_lowered_when_asked_for(folder, lowered):
    pb.jit(network)(X)
    lowered.clear()
    f = pb.jit(network)
    f(X)
    assert not lowered
    assert f.lower(X).peak_bytes > 0 and "compiled:" in f.lower(X).text()
    assert len(lowered) == 1


def test_plans_of_indices_are_used(folder, lowered):
    rng = np.random.default_rng(0)
    places = rng.integers(0, 100, 50_000)
    x, u = (
        pb.tensor(np.zeros((100, 4), np.float32)),
        pb.tensor(rng.standard_normal((50_000, 4)).astype(np.float32)),
    )

    def f(x: Any, u: Any, i: Any) -> Any:
        return pb.primitive.scatter_add(x, u, i[:, None])

    first = pb.jit(f)(x, u, pb.tensor(places))
    lowered.clear()
    again = pb.jit(f)
    for _ in range(3):
        same(again(x, u, pb.tensor(places)), first)
    assert not lowered
    index = pb.tensor(places)
    for _ in range(4):
        same(again(x, u, index), first)
    assert lowered  # with a plan it is another program


def test_small_functions_do_not_look_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(keys, "LEAST_EQUATIONS", 128)
    monkeypatch.setattr(keys, "fingerprint", lambda: pytest.fail("looked"))
    monkeypatch.setattr(compiled, "read", lambda *a: pytest.fail("looked"))
    pb.jit(network)(X)


def test_the_fingerprint_knows_edited_files(tmp_path, monkeypatch):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("x = 1")
    (tmp_path / "notes.txt").write_text("x")
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path)
    seen = {fingerprint.fingerprint.__wrapped__()}
    (tmp_path / "notes.txt").write_text("y")
    assert fingerprint.fingerprint.__wrapped__() in seen
    (tmp_path / "part" / "a.py").write_text("x = 12")
    seen.add(fingerprint.fingerprint.__wrapped__())
    (tmp_path / "part" / "b.ll").write_text("")
    seen.add(fingerprint.fingerprint.__wrapped__())
    assert len(seen) == 3
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path / "nowhere")
    assert fingerprint.fingerprint.__wrapped__() is None
