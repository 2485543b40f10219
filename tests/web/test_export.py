"""What `export_web` writes, looked at without a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.web.trees import PageLeaf, arguments_tree
from web_functions import CASES, SCALES, Case, draw
from webgpu_device import needs_adapter

NODE = shutil.which("node")


def exported(folder: Path, name: str, case: Case) -> str:
    """The text of a module."""
    return pb.jit(case.function, name=name).export_web(folder, *case.args).read_text("utf-8")


def kernels_of(text: str) -> list[str]:
    """The kernels of a module as a page puts them together, without a GPU's own operations."""
    functions = dict(re.findall(r"^  (\w+): `\n(.*?)`,$", text.partition("const functions")[2],
                                re.MULTILINE | re.DOTALL))  # fmt: skip
    soft = dict(re.findall(r"(\w+): \{ own: `.*?`, soft: `\n(.*?)` \}", text, re.DOTALL))
    found = []
    inside = text.partition("const kernels = [")[2].partition("const probe")[0]
    for part in inside.split("bindings: ")[1:]:
        exact, uses = (json.loads(re.search(rf"{key}: (\[[^]]*\])", part)[1])  # type: ignore[index]
                       for key in ("exact", "uses"))  # fmt: skip
        head, body = re.findall(r"(?:head|body): `\n(.*?)`", part, re.DOTALL)
        found.append("\n".join([head, *(functions[n] for n in uses), body,
                                *(soft[n] for n in exact)]))  # fmt: skip
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_javascript(tmp_path: Path, name: str) -> None:
    text = exported(tmp_path, name, CASES[name])
    assert text.startswith(f"// `{name}`, compiled by Pullback for WebGPU.")
    if NODE:
        subprocess.run([NODE, "--check", tmp_path / f"{name}.js"], check=True)


@needs_adapter
@pytest.mark.parametrize("name", CASES)
def test_kernels_compile(tmp_path: Path, name: str) -> None:
    from pullback.runtime.webgpu.gpu import wgpu_module

    adapter = wgpu_module().gpu.request_adapter_sync()
    device = adapter.request_device_sync()
    for text in kernels_of(exported(tmp_path, name, CASES[name])):
        device.create_shader_module(code=text)


def test_no_gpu_and_no_wgpu_are_needed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['wgpu'] = None\n"
        "import pullback as pb\n"
        f"print(pb.jit(pb.sin).export_web({str(tmp_path)!r}, pb.ones(3)))"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(pb.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "sin.js")


def test_captured_arrays_are_weights_with_their_names(tmp_path: Path) -> None:
    exported(tmp_path, "weights", CASES["weights"])
    found = pb.load(tmp_path / "weights.safetensors")
    assert {k: v.tolist() for k, v in found.items()} == {
        "SCALES.rows": SCALES["rows"].tolist(),
        "SCALES.columns": SCALES["columns"].tolist(),
    }


def test_what_a_function_inside_captures_has_its_name(tmp_path: Path) -> None:
    def outer(x: Any) -> Any:
        return pb.vmap(lambda row: row * SCALES["columns"])(x)

    exported(tmp_path, "outer", Case(outer, (draw(2, 7),)))
    assert set(pb.load(tmp_path / "outer.safetensors")) == {"SCALES.columns"}


def test_parameters_of_a_module_are_called_as_in_its_state(tmp_path: Path) -> None:
    class Line(pb.Module):
        def __init__(self) -> None:
            self.parts = [draw(3), draw(3) + 1]

        def __call__(self, x: Any) -> Any:
            return x * self.parts[0] + self.parts[1]

    line = Line()
    pb.jit(line, name="line").export_web(tmp_path, draw(3))
    assert set(pb.load(tmp_path / "line.safetensors")) == set(line.state_dict())
    pb.jit(lambda x: line(x), name="called").export_web(tmp_path, draw(3))
    assert set(pb.load(tmp_path / "called.safetensors")) == {"line.parts.0", "line.parts.1"}


def test_a_tensor_with_a_gradient_is_a_weight_too(tmp_path: Path) -> None:
    w = draw(3)
    w.requires_grad = True
    pb.jit(lambda x: x * w, name="tracked").export_web(tmp_path, draw(3))
    assert pb.load(tmp_path / "tracked.safetensors")["w"].tolist() == w.tolist()


def test_a_captured_view_is_stored_as_it_lies_in_memory(tmp_path: Path) -> None:
    w = pb.flip(draw(4, 5).T, axis=0)
    text = exported(tmp_path, "view", Case(lambda x: x * w, (draw(5, 4),)))
    (stored,) = pb.load(tmp_path / "view.safetensors").values()
    assert stored.size == w.size
    assert len(kernels_of(text)) == 1


def test_the_example_is_a_call_with_its_results(tmp_path: Path) -> None:
    function, args, _ = CASES["bools"]
    exported(tmp_path, "bools", CASES["bools"])
    found = pb.load(tmp_path / "bools.example.safetensors")
    assert list(found) == ["inputs.x", "outputs.any", "outputs.positive"]
    for name, x in function(*args).items():
        np.testing.assert_array_equal(np.asarray(found[f"outputs.{name}"]), np.asarray(x))


def test_numbers_have_no_axes_in_the_files(tmp_path: Path) -> None:
    half = pb.tensor(0.5)
    exported(tmp_path, "half", Case(lambda x, y: (x * half).sum() + y, (draw(3), pb.tensor(2.0))))
    found = pb.load(tmp_path / "half.example.safetensors")
    shapes = {"inputs.x": (3,), "inputs.y": (), "outputs.result": ()}
    assert {k: v.shape for k, v in found.items()} == shapes


def test_lowered_functions_are_exported_under_any_name(tmp_path: Path) -> None:
    lowered = pb.jit(lambda x: x + 1).lower(draw(3))
    assert lowered.export_web(tmp_path / "new" / "folder").name == "lambda.js"
    assert lowered.export_web(tmp_path, name="2 steps").name == "_2_steps.js"


def test_inputs_have_the_names_of_parameters() -> None:
    def function(a: Any, b: Any = None, *rest: Any, c: Any) -> None: ...

    tree = arguments_tree(function, (1, {"u": draw(1), "v": [2, draw(2)]}, draw(3)), {"c": draw(4)})
    paths = [leaf.path for leaf in tree.leaves]
    assert paths == ["b.u", "b.v.1", "rest.0", "c"]
    assert tree.root == {
        "b": {"u": PageLeaf(0, "b.u"), "v": [None, PageLeaf(1, "b.v.1")]},
        "rest": [PageLeaf(2, "rest.0")],
        "c": PageLeaf(3, "c"),
    }


def test_loops_of_known_length_stay_loops(tmp_path: Path) -> None:
    text = exported(tmp_path, "rounds", CASES["rounds"])
    assert "{ rounds: 7, moves: [" in text
    assert "{ rounds: 3, moves: [" in text
    assert "waits: false," in text
    assert not (tmp_path / "rounds.safetensors").exists()  # its few numbers are in the module
    assert "waits: true," in exported(tmp_path, "root", CASES["root"])


def raises(error: type[Exception], text: str, function: Any, *args: Any) -> None:
    with pytest.raises(error, match=re.escape(text)):
        pb.jit(function, name="f").export_web("/nowhere", *args)


def update(x: Any) -> None:
    x += 1


def test_tables_of_long_transforms_are_stored_beside_the_weights(tmp_path: Path) -> None:
    """Few numbers are written into the module, as other constants are."""
    window = draw(5000)
    exported(tmp_path, "long", Case(lambda x: pb.fft.rfft(x * window), (draw(5000),)))
    names = set(pb.load(tmp_path / "long.safetensors"))
    assert names >= {"window", "table"}


def test_what_can_not_be_exported() -> None:
    x = draw(3)
    raises(pb.DTypeError, "export_web: `x` is float64, which WebGPU lacks. Use float32",
           lambda x: x + 1, np.zeros(3))  # fmt: skip
    raises(pb.DTypeError, "export_web: `result` is complex128, which WebGPU lacks. Use complex64",
           lambda x: x.astype("complex128"), x)  # fmt: skip
    raises(pb.TraceError, "export_web: `f` updates an argument in place", update, x)
    raises(pb.DeviceError, "export_web: `f` calls Python while it runs, and a web page has none.",
           lambda x: pb.pure_callback(np.sin, x, x), x)  # fmt: skip
    raises(pb.DeviceError, "export_web: a call of `f` is 600001 dispatches, more than 131072.",
           lambda x: pb.fori_loop(0, 300_000, lambda k, v: v.sum() + v, x), x)  # fmt: skip
    raises(pb.DTypeError, "export_web: keys of dicts are names of a page's objects, got 3.",
           lambda x: {3: x + 1}, x)  # fmt: skip
