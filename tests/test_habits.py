"""What users of NumPy and PyTorch type works, and shows what they expect."""

from __future__ import annotations

import copy
import io
import pickle
from itertools import pairwise

import numpy as np
import pytest

import pullback as pb
from pullback.core.dtypes import ALL
from pullback.ir.op import REGISTRY


def test_an_axis_may_be_given_by_position():
    x = pb.tensor([[1.0, 5.0], [7.0, 3.0]])
    assert x.sum(1).tolist() == pb.sum(x, 1).tolist() == x.sum(axis=1).tolist() == [6.0, 10.0]
    assert x.max(0).tolist() == [7.0, 5.0] and pb.argmax(x, -1).tolist() == [1, 0]
    assert pb.concat([x, x], 1).shape == (2, 4) and pb.stack([x, x], 2).shape == (2, 2, 2)
    assert pb.jit(lambda x: x.mean((0, 1)))(x).item() == 4.0
    for entry in REGISTRY.values():
        names = list(entry.signature.parameters.values())
        first = next((p for p in names if p.kind is p.KEYWORD_ONLY), None)
        # NumPy and PyTorch have other parameters there: the position would mean something else
        variadic = any(p.kind is p.VAR_POSITIONAL for p in names)
        if first is not None and first.name == "axis" and not variadic:
            assert entry.name in ("diff", "vector_norm", "cross"), entry.name


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_dtype_equals_its_name(dtype):
    assert dtype == dtype.name and dtype.name == dtype
    assert hash(dtype) == hash(dtype.name) and {dtype: 1}[dtype.name] == 1
    assert dtype == dtype.numpy and dtype == dtype.numpy.type and dtype.numpy == dtype
    others = [d for d in ALL if d is not dtype]
    assert all(dtype != d and dtype != d.name and dtype != d.numpy for d in others)
    assert not (dtype != dtype.name)  # noqa: SIM202  (the other operator)
    assert dtype != 3 and dtype is not None and dtype != dtype.name.upper()
    assert f"{dtype}" == dtype.name and repr(dtype) == f"pullback.{dtype.name}"
    assert pickle.loads(pickle.dumps(dtype)) is dtype and copy.deepcopy(dtype) is dtype
    if dtype is not pb.bfloat16:
        assert np.zeros(2, dtype).dtype == dtype.numpy


def test_shapes_of_empty_tensors_are_shown():
    assert repr(pb.zeros((0, 3))) == "tensor([], shape=(0, 3), float32, cpu)"
    assert repr(pb.zeros(0)) == "tensor([], float32, cpu)"


def test_bfloat16_is_printed_and_kept_in_files():
    x = pb.tensor([[0.5, -2.0], [float("inf"), 3.0]], dtype="bfloat16")
    assert "0.5" in repr(x) and "-2" in repr(x) and "inf" in repr(x)
    file = io.BytesIO()
    np.savez(file, x=x, y=x[0])
    file.seek(0)
    loaded = np.load(file)
    for name, y in (("x", x), ("y", x[0])):
        back = pb.tensor(loaded[name])
        assert back.dtype is pb.bfloat16 and back.tolist() == y.tolist()
    assert pb.tensor(loaded["x"], dtype="float32").tolist() == x.tolist()


def test_round_of_a_tensor():
    x = pb.tensor([1.256, 2.5, -3.5], dtype="float64")
    assert round(x).tolist() == [1.0, 2.0, -4.0]
    assert round(x, 2).tolist() == [1.26, 2.5, -3.5]
    assert round(pb.tensor([1234, 5])).tolist() == [1234, 5]


def test_facts_that_numpy_asks_for_need_no_values():
    t = pb.tensor([1.0, 2.0], requires_grad=True)
    assert (np.shape(t), np.ndim(t), np.size(t)) == ((2,), 1, 2)


def test_dir_shows_what_users_use():
    shown = set(dir(pb))
    assert {"nn", "optim", "random", "linalg", "jit", "grad", "Tensor", "float32"} <= shown
    innards = {"ops", "core", "ir", "autodiff", "compile", "runtime", "annotations", "tape"}
    assert not shown & innards
    assert all(hasattr(pb, name) for name in shown)


def test_a_notebook_shows_arrays_under_their_facts():
    x = pb.tensor([[1.0, 2.0]], requires_grad=True)
    page = str(x._repr_html_())  # pyright: ignore[reportAttributeAccessIssue]
    assert "float32[1,2], on cpu, requires_grad" in page and "[[1., 2.]]" in page
    assert "computed by exp" in str(pb.exp(x)._repr_html_())  # pyright: ignore[reportAttributeAccessIssue]
    seen = []
    pb.jit(lambda a: seen.append(a._repr_html_()) or a)(x)  # pyright: ignore[reportAttributeAccessIssue]
    assert set(seen) == {None}


def test_a_notebook_shows_modules_as_an_outline():
    keys = pb.random.split(pb.random.key(0))
    net = pb.nn.Sequential(pb.nn.Linear(4, 8, key=keys[0]), pb.nn.relu, pb.nn.Dropout(0.1))
    vars(net)["note"] = "<script>"
    page = net._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    assert page.count("<details") == 2 and page.count("<details open>") == 1
    assert "layers[0]: <b>Linear</b>" in page and "float32[8, 4]" in page
    assert "40 parameters" in page and "p=0.1" in page and "layers[1]=relu" in page
    assert "<script>" not in page


def test_progress_in_a_notebook_stays_on_one_line_of_standard_output(monkeypatch):
    kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    out = kernel()
    monkeypatch.setattr("sys.stdout", out)
    with pb.train.Progress(300, "fit") as progress:
        for i in range(300):
            progress.advance("loss 0.123456" if i < 150 else "loss 0")
            progress._drawn = 0.0
    text = out.getvalue()
    assert text.count("\n") == 1 and "\x1b" not in text
    lines = text.rstrip("\n").split("\r")[1:]
    assert len(lines) > 200 and "300/300" in lines[-1] and lines[-1].rstrip().endswith("loss 0")
    assert all(len(b) >= len(a.rstrip()) for a, b in pairwise(lines))


def test_solve_toeplitz_takes_the_first_row_as_scipy_does():
    c, r, b = (pb.tensor(x) for x in ([4.0, 1.0, 0.5], [4.0, 2.0, 3.0], [1.0, 2.0, 3.0]))
    expected = pb.linalg.solve(pb.linalg.toeplitz(c, r), b)
    assert pb.linalg.solve_toeplitz((c, r), b).tolist() == expected.tolist()
    assert pb.linalg.solve_toeplitz(([4.0, 1.0, 0.5], r), b).tolist() == expected.tolist()
    assert pb.linalg.solve_toeplitz((2.0, 1.0), pb.tensor([4.0, 5.0])).tolist() == [1.0, 2.0]
