"""The precision of products: what is chosen, what a product notes of it, and who keeps it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ir.op import REGISTRY

MATMUL = REGISTRY["matmul"]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU as a device that has faster products."""
    monkeypatch.setattr(pb.device("cpu").runtime, "has_fast_products", True)


def matrices(dtype: Any = pb.float32) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, y = (pb.tensor(rng.standard_normal(s).astype("f")) for s in ((9, 8), (8, 10)))
    return x.astype(dtype), y.astype(dtype)


def notes(f: Any, *args: Any) -> list[dict[str, Any]]:
    """What the products in a compiled function note."""
    lines = str(pb.jit(f).lower(*args)).partition("optimised")[2].partition("compiled")[0]
    found = [line.split("matmul")[1] for line in lines.splitlines() if "= matmul" in line]
    return [dict(w.split("=") for w in line.split() if "=" in w) for line in found]


def test_the_innermost_choice_of_a_thread_holds() -> None:
    assert pb.get_matmul_precision() == "default"
    seen = []
    with pb.matmul_precision("tf32"):
        with pytest.raises(ZeroDivisionError), pb.matmul_precision("highest"):
            assert pb.get_matmul_precision() == "highest"
            raise ZeroDivisionError
        other = threading.Thread(target=lambda: seen.append(pb.get_matmul_precision()))
        other.start()
        other.join()
        assert pb.get_matmul_precision() == "tf32"
    assert seen == ["default"]
    pb.set_matmul_precision("bfloat16")
    try:
        assert pb.get_matmul_precision() == "bfloat16"
        assert "bfloat16  [pb.set_matmul_precision(name)]" in repr(pb.config)
        with pb.matmul_precision("default"):
            assert pb.get_matmul_precision() == "default"
    finally:
        pb.set_matmul_precision("default")


@pytest.mark.parametrize(
    ("name", "hint"), [("high", "'tf32'"), ("medium", "'bfloat16'"), ("float32", "'highest'")]
)
def test_names_of_others_are_told_apart(name: str, hint: str) -> None:
    for function in (pb.matmul_precision, pb.set_matmul_precision):
        with pytest.raises(pb.DTypeError, match=f"got '{name}'. Write {hint}"):
            function(name)
    unknown: Any = 3
    with pytest.raises(pb.DTypeError, match=r"'bfloat16', got 3\.$"):
        pb.matmul_precision(unknown)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("dtype", "noted"),
    [
        (pb.float32, {"tf32", "bfloat16"}),
        (pb.bfloat16, {"highest"}),
        (pb.float16, {"highest"}),
        (pb.float64, set()),
        (pb.complex64, set()),
    ],
)
def test_a_product_notes_what_makes_a_difference(dtype: Any, noted: set[str]) -> None:
    x, y = matrices(dtype)
    for name in ("default", "highest", "tf32", "bfloat16"):
        with pb.matmul_precision(name):
            (found,) = notes(lambda a, b: a @ b, x, y)
            (other,) = notes(lambda a, b: pb.einsum("ij,jk->ki", a, b), x, y)
        assert found == other == ({"precision": name} if name in noted else {})


def test_devices_without_such_units_note_nothing() -> None:
    x, y = matrices()
    with pb.matmul_precision("tf32"):
        assert notes(lambda a, b: a @ b, x, y) == [{}]


@pytest.mark.usefixtures("fast")
def test_derivatives_keep_it() -> None:
    x, y = matrices()

    def loss(a: Any, b: Any) -> Any:
        with pb.matmul_precision("tf32"):
            return ((a @ b) ** 3).sum()

    def second(a: Any, b: Any) -> Any:
        return pb.grad(lambda u: (pb.grad(loss)(u, b) ** 2).sum())(a)

    rows = pb.vmap(loss, in_axes=(0, None))
    many = pb.stack([x, x + 1])
    forward = lambda a, b: pb.jvp(loss, (a, b), (a, b))  # noqa: E731
    for f, args in (
        (pb.grad(loss), (x, y)),
        (second, (x, y)),
        (rows, (many, y)),
        (forward, (x, y)),
    ):
        found = notes(f, *args)
        assert found
        assert all(n == {"precision": "tf32"} for n in found)
    held = pb.grad(loss)(x, y)
    np.testing.assert_array_equal(held, pb.grad(lambda a, b: ((a @ b) ** 3).sum())(x, y))


@pytest.mark.usefixtures("fast")
def test_compiled_functions_are_traced_for_each() -> None:
    x, y = matrices()
    compiled = pb.jit(lambda a, b: a @ b)
    for name in ("default", "tf32", "default", "highest", "tf32"):
        with pb.matmul_precision(name):
            compiled(x, y)
    assert compiled.cache_info().misses == 3


@pytest.mark.usefixtures("fast")
def test_calls_are_remembered_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = matrices()
    target, seen = x.device.runtime.target, []
    plain = target.routines["matmul"]

    def stages(operands: Any, static: Any, *given: Any) -> Any:
        seen.append(dict(static))
        return plain.stages(operands, static, *given)

    monkeypatch.setattr(
        target, "routines", {**target.routines, "matmul": plain._replace(stages=stages)}
    )
    z = pb.ones((8, 1234))
    for name in ("default", "tf32", "default", "bfloat16", "tf32"):
        with pb.matmul_precision(name):
            pb.matmul(x, z)
            assert (x @ z).shape == (9, 1234)
    assert seen == [{}, {"precision": "tf32"}, {"precision": "bfloat16"}]


@pytest.mark.usefixtures("fast")
def test_rewriting_keeps_it() -> None:
    x, y = matrices()
    w = pb.ones((9, 9))
    with pb.matmul_precision("tf32"):
        turned = notes(lambda a, b: (a @ b).T, x, y)
        sliced = notes(lambda a, b: (a @ b)[1:3], x, y)
        shared = notes(lambda a, b, c: c @ (a @ b) + c @ pb.exp(a @ b), x, y, w)
        mixed = notes(lambda a, b: a @ b + _highest(a, pb.exp(b)), x, y)
        rows = pb.stack([x[:1], x[1:2], x[2:3]])
        loops = notes(lambda c, r: pb.scan(lambda h, v: (h, v @ c), 0.0, r)[1], y, rows)
    assert turned == sliced == loops == [{"precision": "tf32"}]
    assert shared == [{"precision": "tf32"}] * 2
    assert mixed == [{"precision": "tf32"}, {}]


def _highest(a: Any, b: Any) -> Any:
    with pb.matmul_precision("highest"):
        return a @ b
