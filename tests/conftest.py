"""Settings shared by all tests: the fixed sample, or the full matrix with PULLBACK_FULL=1."""

import gc
import os
import sys

import pytest
from hypothesis import settings

FULL = os.environ.get("PULLBACK_FULL") == "1"

# The fixed sample is the same on every run and machine; the full run looks for new examples.
settings.register_profile("sample", max_examples=30, derandomize=True, deadline=None, database=None)
settings.register_profile("full", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("full" if FULL else "sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `full` unless the whole matrix was asked for."""
    if FULL:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    """The items stay to the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_kept_programs():
    """Tests compile what they look at, whatever an earlier run has left on disk."""
    from pullback.compile.function import keys

    before, keys.LEAST_EQUATIONS = keys.LEAST_EQUATIONS, sys.maxsize
    yield
    keys.LEAST_EQUATIONS = before


@pytest.fixture
def threads():
    """A function that sets the number of native threads; the test ends with the number it began
    with.
    """
    from pullback.runtime.cpu import native

    before = native.get_threads()
    yield native.set_threads
    native.set_threads(before)


@pytest.fixture
def ours(monkeypatch, threads):
    """Our library as `pullback bench` runs it, without what its measurements switch off."""
    from benchmarks.libraries import Pullback

    monkeypatch.setenv("PULLBACK_CACHE_DIR", os.environ.get("PULLBACK_CACHE_DIR", ""))
    return Pullback(1)
