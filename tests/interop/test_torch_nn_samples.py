"""The samples of pb.nn's functions, with all their options, against torch.nn.functional: values,
first and second derivatives.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from pullback.core import pytrees
from pullback.core.dtypes import DType
from pullback.ir.op import REGISTRY
from pullback.ir.samples import Draw, Sample

torch = pytest.importorskip("torch")

from interop.torch_agreement import agree  # noqa: E402

F: Any = torch.nn.functional

NAMES = [
    "relu",
    "relu6",
    "leaky_relu",
    "prelu",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "sigmoid",
    "logsigmoid",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardshrink",
    "softshrink",
    "tanhshrink",
    "threshold",
    "tanh",
    "glu",
    "softmax",
    "softmin",
    "log_softmax",
    "normalize",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "cross_entropy",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "cosine_embedding_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "linear",
    "bilinear",
    "one_hot",
    "cosine_similarity",
    "pairwise_distance",
    "cdist",
    "pdist",
    "embedding",
    "embedding_bag",
]
# PyTorch wants floating targets where ours may be integers.
FLOATING_TARGETS = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss",
    "margin_ranking_loss", "soft_margin_loss",
)  # fmt: skip
# PyTorch does not differentiate by the weights of these.
FIXED_WEIGHTS = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "multi_margin_loss", "nll_loss",
)  # fmt: skip
# Where PyTorch does not differentiate again; any other function must reach order 2.
FIRST_ORDER_ONLY = {
    "cdist", "embedding_bag", "hardsigmoid", "multi_margin_loss", "multilabel_margin_loss", "pdist",
}  # fmt: skip
# What ours take and PyTorch does not: broadcasting, a vector as weight, indices from the end.
WIDER = {"soft_margin_loss", "linear", "embedding"}
# PyTorch rounds 1/6 to float32 in the derivative of hardsigmoid.
LOOSELY = {"hardsigmoid": 100.0}


def samples(name: str, dtype: type) -> list[Sample]:
    """Samples that PyTorch takes too: no layouts, no masks drawn from keys, nothing empty."""
    found = []
    for sample in REGISTRY[f"nn.{name}"].samples(Draw(11, dtype)):
        arrays = [a for a in pytrees.leaves((sample.args, sample.kwargs)) if hasattr(a, "size")]
        if not {"layout", "key"} & set(sample.kwargs) and all(a.size for a in arrays):
            found.append(sample)
    return found


CASES = [
    (name, position, dtype)
    for name in NAMES
    for dtype in (np.float64, np.float32)
    for position in range(len(samples(name, dtype)))
]


def theirs(name: str) -> Any:
    return getattr(F, name, None) or getattr(torch, name)


def as_theirs(name: str, value: Any) -> Any:
    if isinstance(value, DType):
        return getattr(torch, value.name)
    if torch.is_tensor(value) and not value.dtype.is_floating_point and name in FLOATING_TARGETS:
        return value.to(torch.get_default_dtype())
    return value


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch warns of broadcasting
@pytest.mark.parametrize(
    ("name", "position", "dtype"), CASES, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_samples_agree_with_torch(name: str, position: int, dtype: type, default_dtype: Any):
    default_dtype(dtype)
    sample = samples(name, dtype)[position]
    leaves, structure = pytrees.flatten((sample.args, sample.kwargs))
    places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def called(function: Any, convert: Any) -> Any:
        def call(*arrays: Any) -> Any:
            full = list(leaves)
            for i, a in zip(places, arrays, strict=True):
                full[i] = a
            args, kwargs = pytrees.unflatten(structure, [convert(v) for v in full])
            return function(*args, **kwargs)

        return call

    ours = called(getattr(pb.nn, name), lambda v: v)
    other = called(theirs(name), lambda v: as_theirs(name, v))
    arrays = [np.asarray(leaves[i]) for i in places]
    try:
        other(*[torch.tensor(a) for a in arrays])
    except (RuntimeError, IndexError):
        assert name in WIDER
        pytest.skip("PyTorch does not take this call")
    bound = inspect.signature(getattr(pb.nn, name)).bind(*sample.args, **sample.kwargs).arguments
    weights = [bound.get(n) for n in ("weight", "pos_weight") if name in FIXED_WEIGHTS]
    fixed = [k for k, i in enumerate(places) if any(leaves[i] is w for w in weights)]
    if bound.get("max_norm"):  # PyTorch shortens the rows of its table in place
        _same_values(ours, other, arrays)
        return
    own_eps = name == "cosine_similarity" and "eps" in bound  # a constant in PyTorch's derivative
    floating = any(a.dtype.kind == "f" for a in arrays)
    order = 0 if sample.order == 0 or own_eps or not floating else 2
    reached = agree(ours, other, arrays, order, fixed, LOOSELY.get(name, 1.0))
    assert reached == order or name in FIRST_ORDER_ONLY


def _same_values(ours: Any, other: Any, arrays: list[np.ndarray]) -> None:
    found = ours(*[pb.tensor(a) for a in arrays]).numpy()
    expected = other(*[torch.tensor(a) for a in arrays]).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.fixture
def default_dtype():
    """A function that sets PyTorch's default dtype until the end of the test."""
    before = torch.get_default_dtype()
    yield lambda dtype: torch.set_default_dtype(torch.from_numpy(np.zeros(0, dtype)).dtype)
    torch.set_default_dtype(before)
