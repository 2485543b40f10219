"""The page of the documentation that trains a network, in headless Chromium."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from chromium import Page, needs_browser, page_of

pytestmark = needs_browser

ROOT = Path(__file__).parents[2]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "web" / "spirals.py"))
NUMBER = "Number(document.getElementById('{}').textContent.replace(/[,%]/g, ''))"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "docs" / "web" / "index.html", folder)
    (folder / "empty.html").write_text('<link rel="icon" href="data:,">')
    EXAMPLE["export"](folder)
    with page_of(folder) as found:
        yield found


def until(page: Page, condition: str) -> None:
    page.evaluate(f"""(async () => {{
      while (!({condition})) await new Promise((f) => setTimeout(f, 20));
    }})()""")


def number(page: Page, name: str) -> float:
    return page.evaluate(NUMBER.format(name))


def test_steps_of_training_agree_with_python(page: Page) -> None:
    page.open("empty.html")
    found = page.evaluate("""(async () => {
      const { load } = await import("./train.js");
      const train = await load(undefined, { exact: false });
      let { params, state, x, y, lr } = (await train.example()).inputs, losses = [];
      for (let k = 0; k < 3; k++) {
        const [next, moments, loss] = await train({ params, state, x, y, lr });
        [params, state] = [next, moments];
        losses.push(loss[0]);
      }
      return losses;
    })()""")
    params, state, x, y, lr = EXAMPLE["arguments"]()
    step, wanted = pb.jit(EXAMPLE["train"]), []
    for _ in range(3):
        params, state, loss = step(params, state, x, y, lr)
        wanted.append(float(loss))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_page_trains_pauses_and_starts_over(page: Page) -> None:
    page.open("index.html")
    until(page, f"{NUMBER.format('steps')} >= 50")
    first = number(page, "loss_text")
    assert 0 < first < 1
    page.evaluate("document.getElementById('run').click()")
    until(page, "document.getElementById('run').textContent === 'Go on'")
    page.evaluate("new Promise((f) => setTimeout(f, 1000))")
    paused = number(page, "steps")
    page.evaluate("new Promise((f) => setTimeout(f, 500))")
    assert number(page, "steps") == paused
    assert 0 <= number(page, "right") <= 100
    page.evaluate("document.getElementById('again').click()")
    until(page, f"{NUMBER.format('steps')} === 0")
    page.evaluate("document.getElementById('run').click()")
    until(page, f"{NUMBER.format('steps')} >= 10")
    assert not page.errors


def test_the_page_says_plainly_that_there_is_no_webgpu(page: Page) -> None:
    hide = {"source": "Object.defineProperty(Navigator.prototype, 'gpu', { value: undefined });"}
    added = page.call("Page.addScriptToEvaluateOnNewDocument", **hide)["identifier"]
    page.open("index.html")
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    status = "document.getElementById('status')"
    until(page, f"{status}.className === 'bad'")
    assert page.evaluate(f"{status}.textContent").startswith("This browser has no WebGPU.")
    assert page.evaluate("document.getElementById('lab').hidden")
