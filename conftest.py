"""Names that every doctest may use, wherever it stands."""

import numpy as np
import pytest

import pullback as pb


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    """Let doctests write `pb` and `np` without importing them."""
    doctest_namespace["pb"] = pb
    doctest_namespace["np"] = np
