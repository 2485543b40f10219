"""What helps to find mistakes: `debug.nan`, `debug.print`, `profile`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pullback as pb
from pullback.ir.plans import active

HERE = __file__


def line_of(f: Callable[..., Any], offset: int) -> str:
    """The line `offset` lines below the `def` of a function."""
    return f"{HERE}:{f.__code__.co_firstlineno + offset}"


def root(x):
    y = pb.sqrt(x)
    return y.sum()


@pytest.fixture(autouse=True)
def nobody_watches_afterwards():
    yield
    assert not active


# -- nan -------------------------------------------------------------------------------------------


def found(f: Callable[..., Any], *args: Any, inf: bool = True) -> pb.NonFiniteError:
    with pb.debug.nan(inf=inf), pytest.raises(pb.NonFiniteError) as caught:
        f(*args)
    error = caught.value
    caught.value.__traceback__ = None  # its frames keep the observer
    return error


def test_nan_forward_names_operation_line_and_operands():
    error = found(lambda x: root(x - 1.0), pb.tensor([2.0, 0.5]))
    assert (error.op, error.line) == ("sqrt", line_of(root, 1))
    assert "a NaN, 1 of 2 elements, first at [1]" in str(error)
    assert "`x` is -0.5 there" in str(error)
    assert isinstance(error, FloatingPointError)


BACKWARD = {
    "backward": lambda x: root(x).backward(),
    "grad": lambda x: pb.grad(root)(x),
    "grad of jit": lambda x: pb.grad(pb.jit(root))(x),
    "jit of grad": lambda x: pb.jit(pb.grad(root))(x),
    "jvp": lambda x: pb.jvp(root, (x,), (pb.ones(2),)),
    "second order": lambda x: pb.grad(lambda v: pb.grad(root)(v).sum())(x),
    "vmap": lambda x: pb.vmap(pb.grad(root))(x.detach()),
    "jit of vmap": lambda x: pb.jit(pb.vmap(pb.grad(root)))(x.detach()),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_nan_of_a_derivative_names_the_line_of_the_forward_operation(name):
    error = found(BACKWARD[name], pb.tensor([1.0, 0.0], requires_grad=True))
    assert (error.op, error.line) == ("divide", line_of(root, 1))
    kind = "tangent" if name == "jvp" else "derivative"
    assert f"in the {kind} of sqrt at {line_of(root, 1)}, which runs at {HERE}:" in str(error)


@pytest.mark.parametrize(("f", "name"), [(root, "sqrt"), (pb.jit(root), "root")])
def test_nan_of_what_was_recorded_before_names_the_operation(f, name):
    y = f(pb.tensor([1.0, 0.0], requires_grad=True))
    error = found(y.backward)
    assert error.op == "divide"
    assert f"in the derivative of {name} (its line is not known), which runs at" in str(error)


def test_lines_of_long_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr("pullback.debug.nonfinite.MOST_KEPT", 32)
    x = pb.tensor([1.0, 0.0], requires_grad=True)

    def late(between):
        y = root(x)
        for _ in range(between):
            pb.exp(x)
        y.backward()

    assert found(late, 2).line == line_of(root, 1)
    assert "(its line is not known)" in str(found(late, 40))


def test_nan_in_jitted_code_with_loops_and_branches():
    def step(c, x):
        return c / x, c

    def f(xs):
        return pb.scan(step, pb.tensor(1.0), xs)[0]

    error = found(pb.jit(f), pb.tensor([1.0, 0.0]))
    assert (error.op, error.line) == ("divide", line_of(step, 1))


def test_infinities_count_where_they_are_made():
    masked = pb.where(pb.tensor([True, False]), pb.tensor([1.0, 2.0]), -pb.inf)
    with pb.debug.nan():
        assert pb.nn.softmax(masked + 0.0, dim=-1).numpy().tolist() == [1.0, 0.0]
        pb.log(pb.ones(3))
    assert found(pb.log, pb.zeros(3)).op == "log"
    with pb.debug.nan(inf=False):
        pb.log(pb.zeros(3))
    assert found(lambda: pb.log(pb.zeros(3)) * 0.0, inf=False).op == "multiply"
    assert found(lambda: pb.tensor([pb.nan]) + 1.0, inf=False).op == "add"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_nan_in_every_kind_of_floats(dtype):
    assert found(lambda: pb.zeros(3, dtype=dtype) / pb.zeros(3, dtype=dtype)).op == "divide"


def test_nan_as_a_decorator_and_in_this_thread_only():
    checked = pb.debug.nan()(root)
    with pytest.raises(pb.NonFiniteError) as caught:
        checked(pb.tensor([-1.0]))
    caught.value.__traceback__ = None
    assert np.isnan(root(pb.tensor([-1.0])).item())
    seen: list[float] = []
    with pb.debug.nan():
        other = threading.Thread(target=lambda: seen.append(root(pb.tensor([-1.0])).item()))
        other.start()
        other.join()
    assert np.isnan(seen[0])


def test_results_in_the_block_are_what_they_are_outside():
    def f(x, k, *, scale):
        x += k
        return pb.tanh(x) * scale, x, "text"

    jitted = pb.jit(f)
    x, y = pb.tensor([1.0, 2.0]), pb.tensor([1.0, 2.0])
    outside = jitted(x, 2, scale=3.0)
    with pb.debug.nan():
        inside = jitted(y, 2, scale=3.0)
    assert [o.numpy().tolist() for o in (*outside[:2], x)] == [
        i.numpy().tolist() for i in (*inside[:2], y)
    ]
    assert inside[1] is not y and inside[2] == "text"


# -- print -----------------------------------------------------------------------------------------


def printing(x):
    pb.debug.print("first {}", x)
    y = pb.sin(x) * 2.0
    pb.debug.print("sum {:.2f} of {pair}", y.sum(), pair=[1, y])
    pb.debug.print("without values")
    return (x * y).sum()


X = [1.0, 2.0]
EXPECTED = """\
first tensor([1., 2.], float32, cpu)
sum 3.50 of [1, tensor([1.6829419, 1.8185948], float32, cpu)]
without values
"""
PRINTERS = {
    "eager": printing,
    "jit": pb.jit(printing),
    "grad of jit": pb.grad(pb.jit(printing)),
    "jit of grad": pb.jit(pb.grad(printing)),
    "jit in nan": pb.debug.nan()(pb.jit(printing)),
    "tracked": lambda x: pb.jit(printing)(pb.tensor(X, requires_grad=True)),
}


@pytest.mark.parametrize("name", PRINTERS)
def test_print_at_each_call_in_order(name, capsys):
    for _ in range(2):
        PRINTERS[name](pb.tensor(X))
        assert capsys.readouterr().out == EXPECTED


def total(row):
    pb.debug.print("row {} with {}", row, "a word")
    return row.sum()


@pytest.mark.parametrize(
    "f",
    [pb.vmap(total), pb.jit(pb.vmap(total)), pb.vmap(pb.jit(total))],
    ids=["vmap", "jit of vmap", "vmap of jit"],
)
def test_print_for_each_example(f, capsys):
    f(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert capsys.readouterr().out.splitlines() == [
        "row tensor([1., 2.], float32, cpu) with a word",
        "row tensor([3., 4.], float32, cpu) with a word",
    ]


def test_print_in_nested_maps(capsys):
    pb.jit(pb.vmap(pb.vmap(lambda a, b: (pb.debug.print("{} {}", a, b), a * b)[1], (0, None))))(
        pb.tensor([[1.0, 2.0], [3.0, 4.0]]), pb.tensor([5.0, 6.0])
    )
    shown = [line.split(", float32, cpu)") for line in capsys.readouterr().out.splitlines()]
    assert [(a[7:], b[8:]) for a, b, _ in shown] == [
        ("1.", "5."), ("2.", "5."), ("3.", "6."), ("4.", "6.")
    ]  # fmt: skip


def scanned(xs):
    def step(c, x):
        pb.debug.print("{:.0f} {:.0f}", c, x)
        return c + x, c * x

    return pb.scan(step, pb.tensor(0.0), xs)[0]


def doubled(x):
    def body(c):
        pb.debug.print("{:.0f}", c)
        return c * 2.0

    return pb.while_loop(lambda c: c < 8.0, body, x.sum())


def branched(x):
    def say(word):
        return lambda v: (pb.debug.print(word + " {:.0f}", v), v)[1]

    return pb.cond(x.sum() > 0, say("plus"), say("minus"), x[0])


@pytest.mark.parametrize(
    ("f", "x", "lines"),
    [
        (scanned, [1.0, 2.0], ["0 1", "1 2"]),
        (pb.grad(scanned), [1.0, 2.0], ["0 1", "1 2"]),
        (doubled, [1.0, 1.0], ["2", "4"]),
        (branched, [2.0, 1.0], ["plus 2"]),
        (branched, [-2.0, 1.0], ["minus -2"]),
    ],
)
def test_print_in_compiled_control_flow(f, x, lines, capsys):
    pb.jit(f)(pb.tensor(x))
    assert capsys.readouterr().out.splitlines() == lines


def test_print_shows_strided_arrays_of_every_dtype(capsys):
    def f(x, *others):
        pb.debug.print("{}", x.T[::-1])
        for y in others:
            pb.debug.print("{}", y)
        return x.sum()

    x = pb.tensor(np.arange(6.0).reshape(2, 3))
    others = [pb.ones(2, dtype=d) for d in ("bfloat16", "complex64", "bool", "int64", "float16")]
    others.append(pb.ones((0, 2)))
    f(x, *others)
    eager = capsys.readouterr().out
    pb.jit(f)(x, *others)
    assert capsys.readouterr().out == eager


def test_print_of_large_arrays_in_a_program_with_threads(capsys):
    def f(x):
        y = pb.exp(x)
        pb.debug.print("{:.0f}", y.sum())
        return y * 2.0

    result = pb.jit(f)(pb.zeros(1 << 20))
    assert capsys.readouterr().out == f"{1 << 20}\n"
    assert result.numpy().min() == 2.0


@pb.custom_vjp
def squared(x):
    return x * x


def rule(x, g):
    pb.debug.print("cotangent {:.0f}", g)
    return (2.0 * x * g,)


squared.defvjp(lambda x: (squared(x), x), rule)
RULE_USERS = {
    "eager": pb.grad(squared),
    "jit of grad": pb.jit(pb.grad(squared)),
    "grad of jit": pb.grad(pb.jit(squared)),
    "grad of grad of jit": pb.grad(pb.grad(pb.jit(lambda x: squared(x) + 0.0))),
}


@pytest.mark.parametrize("name", RULE_USERS)
def test_print_in_a_derivative(name, capsys):
    RULE_USERS[name](pb.tensor(3.0))
    lines = capsys.readouterr().out.splitlines()
    assert lines and set(lines) == {"cotangent 1"}


def test_print_keeps_its_order_where_fusion_moves_kernels(capsys):
    def f(x, w):
        h = x
        for i in range(6):
            pb.debug.print(f"{i} {{:.3f}}", x[i].sum())
            h = pb.nn.softmax(pb.tanh(h @ w), dim=-1)
            pb.debug.print(f"{i} {{:.3f}}", h.sum())
        return h

    x, w = (pb.tensor(np.random.default_rng(0).random((32, 32), np.float32)) for _ in range(2))
    f(x, w)
    eager = capsys.readouterr().out.splitlines()
    pb.jit(f)(x, w)
    jitted = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in jitted] == [line.split()[0] for line in eager]
    assert np.allclose(*([float(s.split()[1]) for s in out] for out in (jitted, eager)), atol=2e-3)


def test_print_does_not_change_results():
    def silent(x):
        y = pb.sin(x) * 2.0
        return (x * y).sum()

    x = pb.tensor(X)
    assert pb.jit(printing)(x).item() == pb.jit(silent)(x).item()


def test_errors_of_print():
    with pytest.raises(pb.DTypeError, match="print: expected a text with a place"):
        pb.debug.print(pb.ones(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(IndexError):
        pb.jit(lambda x: (pb.debug.print("{} {}", x), x)[1])(pb.ones(2))


class Broken:
    def write(self, text: str) -> int:
        raise OSError("no paper")

    def flush(self) -> None: ...


def test_an_error_while_printing_is_raised_by_the_call(monkeypatch, capsys):
    f = pb.jit(printing)
    f(pb.tensor(X))
    with monkeypatch.context() as broken:
        broken.setattr(sys, "stdout", Broken())
        with pytest.raises(OSError, match="no paper"):
            f(pb.tensor(X))
    capsys.readouterr()
    f(pb.tensor(X))
    assert capsys.readouterr().out == EXPECTED


INTERRUPTED = """
import os, signal, sys, threading, time
import pullback as pb
def body(c):
    pb.debug.print("{:.0f}", c)
    return c + 1.0
endless = pb.jit(lambda x: pb.while_loop(lambda c: c > -1.0, body, x))
endless.lower(pb.tensor(0.0)).executable
out, sys.stdout = sys.stdout, open(os.devnull, "w")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its jobs ignore it
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    endless(pb.tensor(0.0))
except KeyboardInterrupt:
    out.write("interrupted")
"""


def test_ctrl_c_ends_a_loop_that_prints():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": str(Path(pb.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "interrupted"


# -- profile ---------------------------------------------------------------------------------------


def layer(x, w):
    return pb.nn.softmax(pb.tanh(x @ w), dim=-1).sum()


def drawn(*shape: int) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(0).random(shape, np.float32))


@pytest.mark.parametrize("jitted", [False, True])
def test_profile_lists_kernels(jitted):
    f = pb.value_and_grad(layer, argnums=1)
    f = pb.jit(f) if jitted else f
    args = drawn(64, 32), drawn(32, 32)
    report = pb.profile(f)(*args)
    expected = f(*args)
    for got, want in zip(report.result, expected, strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes()
    assert any("matmul" in r.name for r in report.rows)
    assert {k.program for k in report.kernels} == ({"layer"} if jitted else {"eager"})
    assert 0 < sum(k.seconds for k in report.kernels) <= report.seconds
    assert report.outside >= 0
    began = [k.began for k in report.kernels]
    assert began == sorted(began) and began[0] >= 0
    assert [r.seconds for r in report.rows] == sorted(r.seconds for r in report.rows)[::-1]
    text = repr(report)
    assert all(r.name in text for r in report.rows)


def test_profile_counts_what_kernels_move():
    x = drawn(1000, 100)
    y = drawn(100)
    moved = 4 * (100_000 + 100 + 100_000)
    (eager,) = pb.profile(lambda x, y: x.T.T * y)(x, y).rows[:1]
    assert (eager.name, eager.nbytes) == ("multiply", moved)
    (kernel,) = pb.profile(pb.jit(lambda x, y: pb.exp(x * y) + 1.0))(x, y).kernels
    assert kernel.nbytes == moved
    rows = pb.tensor(np.arange(10))
    (gathered,) = pb.profile(pb.jit(lambda x, i: x[i]))(x, rows).kernels
    assert gathered.nbytes == 2 * 4 * 1000 + rows.numpy().nbytes
    views = pb.profile(lambda x: x[1:].T)(x)
    assert views.kernels and not any(k.nbytes for k in views.kernels)


def test_profile_of_derivatives_of_jitted_functions_and_of_loops():
    f = pb.jit(layer)
    report = pb.profile(lambda x, w: pb.grad(f)(x, w))(drawn(8, 4), drawn(4, 4))
    assert {k.program for k in report.kernels} >= {"layer", "layer.pullback"}
    loop = pb.jit(lambda x: pb.scan(lambda c, r: (c + r, c), pb.tensor(0.0), x)[0])
    assert [k.name for k in pb.profile(loop)(drawn(5)).kernels] == ["scan"]
    nothing = pb.profile(pb.jit(lambda x: x))(drawn(5))
    assert nothing.kernels == [] and "in all" in repr(nothing) and "<svg" not in nothing.html()


def test_profile_as_a_page(tmp_path):
    report = pb.profile(pb.jit(layer))(drawn(8, 4), drawn(4, 4))
    report.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page == report.html() == report._repr_html_()
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert len(svg.findall("rect")) == len(report.kernels)
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")


def test_errors_of_profile():
    with pytest.raises(pb.DTypeError, match="profile: expected a function, got int"):
        pb.profile(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(pb.DTypeError, match="profile: repeats must be an int from 1 on, got 0"):
        pb.profile(layer, repeats=0)
    with pytest.raises(pb.ShapeError, match="matmul: the inner sizes differ"):
        pb.profile(layer)(drawn(2, 3), drawn(2, 3))
