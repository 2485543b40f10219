"""The package as a whole: what importing it costs and drags in, its public names, its pages."""

import doctest
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from pullback.ir.op import REGISTRY

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCED = re.MULTILINE | re.DOTALL
DOCTEST_FLAGS = doctest.NORMALIZE_WHITESPACE
HEAVY = {"cupy", "jax", "llvmlite", "torch", "wgpu"}
TIMED_IMPORT = """
from time import perf_counter
start = perf_counter()
import {name}
print(perf_counter() - start)
"""


@pytest.fixture(scope="module", autouse=True)
def byte_code_is_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Without byte code on disk a measured import would mostly be compilation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("byte_code")))
        yield


def output_of(code: str) -> str:
    """What a fresh interpreter prints that runs `code` and finds this pullback."""
    source = Path(pb.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    )
    return done.stdout


def report_of(text: str, name: str) -> str:
    """What doctest has to say against the examples in `text`."""
    example = doctest.DocTestParser().get_doctest(text, {"pb": pb, "np": np}, name, name, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=DOCTEST_FLAGS).run(example, out=report.append)
    return "".join(report)


def import_time_ratio(rounds: int) -> float:
    """Median seconds of `import pullback` over those of `import numpy`, taken in turns."""
    seconds: dict[str, list[float]] = {"numpy": [], "pullback": []}
    for _ in range(rounds):
        for name, times in seconds.items():
            times.append(float(output_of(TIMED_IMPORT.format(name=name))))
    return statistics.median(seconds["pullback"]) / statistics.median(seconds["numpy"])


def test_import_loads_nothing_heavy() -> None:
    loaded = output_of("import sys, pullback; print(*sys.modules)").split()
    assert "pullback" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


def test_import_takes_at_most_twice_numpys_time() -> None:
    output_of("import pullback")  # leaves the byte code behind
    ratios = []
    # A busy machine disturbs single measurements; a slow import stays slow in all of them.
    while len(ratios) < 4:
        ratios.append(import_time_ratio(rounds=5))
        if ratios[-1] <= 2.0:
            return
    pytest.fail(f"import pullback / import numpy: {ratios}")


def test_public_names_are_sorted_unique_and_there() -> None:
    assert list(pb.__all__) == sorted(set(pb.__all__))
    assert [name for name in pb.__all__ if not hasattr(pb, name)] == []
    assert [name for name in pb.__all__ if name[0] == "_" and not name.endswith("__")] == []


def test_star_import_gives_exactly_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from pullback import *", names)
    assert set(names) - {"__builtins__"} == set(pb.__all__)


def test_public_functions_and_classes_have_a_docstring() -> None:
    public = {name: getattr(pb, name) for name in pb.__all__}
    bare = [name for name, value in public.items() if callable(value) and not value.__doc__]
    assert bare == []


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=FENCED)
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", prose))
    local = [target for target in targets if not target.startswith("https://")]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page: str) -> None:
    # A closing fence would count as expected output.
    blocks = re.findall(r"^```python\n(>>>.*?)^```$", (ROOT / page).read_text("utf-8"), FENCED)
    assert report_of("\n".join(blocks), page) == ""


@pytest.mark.parametrize("name", REGISTRY)
def test_example_of_an_operation_runs(name: str) -> None:
    # Pytest's own search for doctests misses functions that a decorator has replaced.
    assert report_of(REGISTRY[name].doc, name) == ""
