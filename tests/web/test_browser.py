"""Exported functions in headless Chromium: the numbers are Python's."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from chromium import Page, needs_browser, page_of
from cuda_registry import same_bits
from pullback.core import pytrees
from pullback.core.dtypes import as_dtype
from web_functions import CASES, draw

pytestmark = needs_browser

# What a page gives back: the arrays of a tree as text, in order.
READ = """
globalThis.leaves = (tree) => ArrayBuffer.isView(tree) ? [tree]
  : tree && typeof tree === "object" ? Object.values(tree).flatMap(leaves) : [];
globalThis.text = (array) => {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  const raw = bytes.reduce((s, b) => s + String.fromCharCode(b), "");
  return { shape: array.shape, bytes: btoa(raw) };
};
globalThis.texts = (tree) => leaves(tree).map(text);
"""


class Web:
    """A folder of exported functions, and a page beside them."""

    def __init__(self, folder: Path, page: Page):
        self.folder, self.page = folder, page

    def export(self, name: str, function: Any, *args: Any) -> None:
        pb.jit(function, name=name).export_web(self.folder, *args)

    def run(self, name: str, text: str, options: str = "{}") -> Any:
        """What statements return that may use `f`, the loaded function, and its `example`."""
        return self.page.evaluate(f"""(async () => {{
          const module = await import("./{name}.js");
          const f = await module.load("./", {options}), example = await f.example();
          {text}
        }})()""")

    def error(self, name: str, text: str) -> str:
        """The message of what statements throw."""
        return self.run(name, f"""try {{ {text} }} catch (error) {{
          return error.constructor.name + ": " + error.message;
        }}""")  # fmt: skip


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("web")
    (folder / "empty.html").write_text('<link rel="icon" href="data:,">')
    with page_of(folder) as page:
        page.open("empty.html")
        page.evaluate(READ)
        yield Web(folder, page)


def arrays_of(found: list[dict[str, Any]], like: list[Any]) -> list[np.ndarray]:
    arrays = []
    for text, x in zip(found, like, strict=True):
        dtype = as_dtype(x.dtype).numpy
        arrays.append(np.frombuffer(base64.b64decode(text["bytes"]), dtype).reshape(text["shape"]))
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_bits_of_the_cpu(web: Web, name: str) -> None:
    function, args, exact = CASES[name]
    web.export(name, function, *args)
    options = f"{{ exact: {str(exact).lower()} }}"
    found = web.run(name, "return texts(await f(example.inputs));", options)
    wanted = [x for x in pytrees.leaves(pb.jit(function)(*args)) if isinstance(x, pb.Tensor)]
    for a, b in zip(arrays_of(found, wanted), wanted, strict=True):
        assert a.shape == b.shape
        if exact:
            assert same_bits(a, np.asarray(b)), name
        else:
            largest = float(np.abs(b.numpy()).max())
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-5 * largest)
    assert not web.page.errors


def test_results_stay_on_the_gpu_as_inputs_of_the_next_call(web: Web) -> None:
    function, args, _ = CASES["train"]
    web.export("training", function, *args)
    found = web.run(
        "training",
        """
        let { params, state, x, y } = example.inputs, losses = [];
        for (let k = 0; k < 5; k++) {
          const [next, moments, loss] = f.run({ params, state, x, y });
          if (k) module.release([params, state]);
          [params, state] = [next, moments];
          losses.push((await loss.read())[0]);
          loss.release();
        }
        return losses;
        """,
    )
    params, state, x, y = args
    step = pb.jit(function)
    wanted = []
    for _ in range(5):
        params, state, value = step(params, state, x, y)
        wanted.append(float(value))
    assert found == wanted
    assert wanted[-1] < wanted[0]


def test_two_calls_at_once_do_not_meet(web: Web) -> None:
    web.export("doubled", lambda x: x * 2, draw(3))
    found = web.run(
        "doubled",
        """
        const of = (v) => f({ x: Float32Array.of(v, v, v) });
        return (await Promise.all([of(1), of(2), of(3)])).map((a) => a[2]);
        """,
    )
    assert found == [2, 4, 6]


def test_calls_that_wait_for_flags_take_turns(web: Web) -> None:
    function, args, _ = CASES["root"]
    web.export("root", function, *args)
    found = web.run(
        "root",
        """
        const of = (v) => f({ x: Float32Array.of(v, v, v) });
        const all = await Promise.all([of(4), of(1e6), of(25)]);
        const [y, rounds] = await f.run({ x: Float32Array.of(9, 9, 9) });
        const last = [(await y.read())[0], Number((await rounds.read())[0])];
        return [...all.map(([y, rounds]) => [y[0], Number(rounds[0])]), last];
        """,
    )
    wanted = [function(pb.full((3,), v)) for v in (4.0, 1e6, 25.0, 9.0)]
    assert found == [[float(y[0]), int(rounds)] for y, rounds in wanted]


def test_numbers_are_scalars(web: Web) -> None:
    web.export(
        "scaled", lambda x, k, on: pb.where(on, x * k, x), draw(2), pb.tensor(3), pb.tensor(True)
    )
    found = web.run(
        "scaled", "return Array.from(await f({ x: Float32Array.of(1, 2), k: 5, on: true }));"
    )
    assert found == [5, 10]


def test_other_weights_of_the_same_shapes(web: Web) -> None:
    table = pb.tensor([1.0, 2.0])
    web.export("biased", lambda x: x + table, draw(2))
    pb.save(web.folder / "others.safetensors", {"table": pb.tensor([10.0, 20.0])})
    text = """
        const other = await module.load("others.safetensors");
        return Array.from(await other({ x: Float32Array.of(1, 1) }));
    """
    assert web.run("biased", text) == [11, 21]
    pb.save(web.folder / "wrong.safetensors", {"table": pb.tensor([1.0, 2.0, 3.0])})
    message = web.error("biased", 'await module.load("wrong.safetensors");')
    assert message == 'Error: biased: the file lacks "table" as F32 of shape [2].'
    message = web.error("biased", 'await module.load("nowhere/");')
    assert "biased: could not load" in message
    assert "404" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", '"x" must be a Float32Array of 6 (float32 of shape [2, 3]), got nothing.'),
        ("{ x: new Float32Array(5) }", '"x" must be a Float32Array of 6 (float32 of shape [2, 3]),'
         " got Float32Array of 5."),
        ("{ x: new Float64Array(6) }", "got Float64Array of 6."),
        ("{ x: 1 }", "got Number."),
        ("null", "its argument must be an object with x, got null."),
        ("{ x: new Float32Array(6), z: 1 }", 'it has no input "z". There is x.'),
        ("{ x: Object.assign(new Float32Array(6), { shape: [3, 2] }) }",
         "got Float32Array of 6 with shape [3, 2]."),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(web: Web, given: str, message: str) -> None:
    if not (web.folder / "picky.js").exists():
        web.export("picky", lambda x: x + 1, draw(2, 3))
    found = web.error("picky", f"await f({given});")
    assert found.startswith("TypeError: picky: ")
    assert message in found


def test_an_index_out_of_range_is_an_error_as_in_python(web: Web) -> None:
    function, args, _ = CASES["lookup"]
    web.export("lookup", function, *args)
    with pytest.raises(IndexError) as raised:
        pb.jit(function)(pb.tensor([3, 0, 9, 8]))
    message = web.error("lookup", "await f({ i: BigInt64Array.of(3n, 0n, 9n, 8n) });")
    assert message == f"RangeError: {raised.value}"
    read = "const y = f.run({ i: BigInt64Array.of(3n, 0n, -10n, 8n) }); await y.read();"
    assert "index -10 is out of range" in web.error("lookup", read)


def test_a_result_is_gone_after_its_release(web: Web) -> None:
    web.export("gone", lambda x: x + 1, draw(3))
    text = "const y = f.run(example.inputs); y.release(); await y.read();"
    assert web.error("gone", text) == "Error: gone: a result is used after its release."
    text = "f.release(); await f(example.inputs);"
    assert web.error("gone", text) == "Error: gone: it was released."


def test_a_lost_gpu_is_an_error_and_the_next_load_opens_another_one(web: Web) -> None:
    web.export("lost", lambda x: x + 1, draw(3))
    text = "f.device.destroy(); await f.device.lost; await f(example.inputs);"
    assert web.error("lost", text).startswith("Error: lost: the GPU was lost: ")
    text = "return (await f({ x: Float32Array.of(1, 2, 3) }))[2];"
    assert web.run("lost", text) == 4


def test_the_page_shows_that_the_bits_are_the_same(web: Web) -> None:
    function, args, _ = CASES["weights"]
    web.export("shown", function, *args)
    web.page.open("shown.html")
    shown = web.page.evaluate(
        """(async () => {
          const status = () => document.getElementById("status").textContent;
          while (/Compiling|http only/.test(status())) await new Promise((f) => setTimeout(f, 50));
          return [status(), document.getElementById("outputs").textContent];
        })()"""
    )
    web.page.open("empty.html")
    web.page.evaluate(READ)
    assert "ms a call: 1 dispatch in one submission." in shown[0]
    assert "the same bits" in shown[1]


def test_without_webgpu_a_plain_message(web: Web) -> None:
    web.export("plain", lambda x: x + 1, draw(3))
    hide = {"source": "Object.defineProperty(Navigator.prototype, 'gpu', { value: undefined });"}
    number = web.page.call("Page.addScriptToEvaluateOnNewDocument", **hide)["identifier"]
    web.page.open("plain.html")
    shown = web.page.evaluate(
        """(async () => {
          const status = () => document.getElementById("status").textContent;
          while (/Compiling|http only/.test(status())) await new Promise((f) => setTimeout(f, 50));
          return status();
        })()"""
    )
    web.page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=number)
    web.page.open("empty.html")
    web.page.evaluate(READ)
    assert shown == "This browser has no WebGPU. Use a current Chrome, Edge, Firefox or Safari."
    assert json.dumps(web.page.errors) == "[]"
