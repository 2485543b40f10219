"""Names that every doctest may use, and which modules need a package that may be missing."""

from importlib.util import find_spec

import numpy as np
import pytest

import pullback as pb

# Modules that can't be imported without PyTorch.
collect_ignore_glob = (
    []
    if find_spec("torch")
    else ["src/pullback/torch.py", "src/pullback/interop/torch_*.py", "tests/interop/torch_*.py"]
)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    """Let doctests write `pb` and `np` without importing them."""
    doctest_namespace["pb"] = pb
    doctest_namespace["np"] = np
