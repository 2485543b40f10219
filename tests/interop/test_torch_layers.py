"""Layers against torch's: parameters load by name, results and gradients agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core import pytrees
from pullback.nn.layers import functions

torch = pytest.importorskip("torch")

KEY = pb.random.key(0)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape)


# Class, arguments and options of both libraries, and inputs.
CASES: dict[str, tuple[str, tuple, dict[str, Any], list[np.ndarray]]] = {
    "linear": ("Linear", (4, 3), {}, [floats(5, 4)]),
    "linear without bias": ("Linear", (4, 3, False), {}, [floats(5, 4)]),
    "bilinear": ("Bilinear", (4, 3, 2), {}, [floats(5, 4), floats(5, 3)]),
    "conv1d": ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1}, [floats(2, 4, 9)]),
    "conv2d": ("Conv2d", (4, 6, (3, 2)), {"groups": 2}, [floats(2, 4, 7, 6)]),
    "conv2d circular": (
        "Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": "circular"}, [floats(2, 4, 7, 6)]
    ),
    "conv3d": ("Conv3d", (2, 3, 2), {"dilation": 2}, [floats(1, 2, 5, 4, 4)]),
    "transposed conv1d": ("ConvTranspose1d", (4, 6, 3), {"stride": 2}, [floats(2, 4, 5)]),
    "transposed conv2d": (
        "ConvTranspose2d", (4, 6, 3), {"groups": 2, "output_padding": 1, "stride": 2},
        [floats(2, 4, 5, 4)],
    ),
    "transposed conv3d": ("ConvTranspose3d", (2, 3, 2), {"bias": False}, [floats(1, 2, 3, 3, 3)]),
    "layer norm": ("LayerNorm", ((3, 4),), {}, [floats(2, 3, 4)]),
    "rms norm": ("RMSNorm", (4,), {"eps": 1e-3}, [floats(2, 3, 4)]),
    "group norm": ("GroupNorm", (2, 6), {}, [floats(2, 6, 4)]),
    "instance norm": ("InstanceNorm1d", (3,), {"affine": True}, [floats(2, 3, 4)]),
    "instance norm 2d": ("InstanceNorm2d", (3,), {}, [floats(2, 3, 4, 2)]),
    "batch norm": ("BatchNorm1d", (3,), {}, [floats(5, 3)]),
    "batch norm 2d": ("BatchNorm2d", (3,), {"momentum": 0.3}, [floats(5, 3, 2, 2)]),
    "batch norm untracked": ("BatchNorm1d", (3,), {"track_running_stats": False}, [floats(5, 3)]),
    "embedding": ("Embedding", (7, 3), {"padding_idx": 2}, [np.array([[1, 2], [6, 1]])]),
    "prelu": ("PReLU", (3,), {}, [floats(2, 3, 4)]),
    "rnn": ("RNN", (3, 4), {"nonlinearity": "relu"}, [floats(5, 2, 3)]),
    "lstm": (
        "LSTM", (3, 4), {"num_layers": 2, "bidirectional": True, "proj_size": 2}, [floats(5, 2, 3)]
    ),
    "gru": ("GRU", (3, 4, 2), {"batch_first": True, "bias": False}, [floats(2, 5, 3)]),
    "attention": ("MultiheadAttention", (8, 2), {}, [floats(5, 2, 8)] * 3),
    "attention of other widths": (
        "MultiheadAttention", (8, 2), {"kdim": 3, "vdim": 5, "batch_first": True},
        [floats(2, 4, 8), floats(2, 6, 3), floats(2, 6, 5)],
    ),
    "encoder": (
        "TransformerEncoderLayer", (8, 2, 16), {"batch_first": True, "dropout": 0.0},
        [floats(2, 5, 8)],
    ),
    "encoder, norm first": (
        "TransformerEncoderLayer", (8, 2, 16),
        {"norm_first": True, "dropout": 0.0, "activation": "gelu"}, [floats(5, 2, 8)],
    ),
    "decoder": (
        "TransformerDecoderLayer", (8, 2, 16), {"batch_first": True, "dropout": 0.0},
        [floats(2, 5, 8), floats(2, 3, 8)],
    ),
    "max pool": ("MaxPool2d", (2,), {"stride": 1}, [floats(1, 2, 5, 5)]),
    "adaptive pool": ("AdaptiveAvgPool2d", ((2, 3),), {}, [floats(1, 2, 5, 5)]),
    "gelu": ("GELU", (), {"approximate": "tanh"}, [floats(5)]),
    "softmax": ("Softmax", (-1,), {}, [floats(2, 5)]),
    "flatten": ("Flatten", (), {}, [floats(2, 3, 4)]),
    "rnn cell": ("RNNCell", (3, 4), {"nonlinearity": "relu"}, [floats(2, 3), floats(2, 4)]),
    "rnn cell, no state": ("RNNCell", (3, 4), {"bias": False}, [floats(3)]),
    "lstm cell": ("LSTMCell", (3, 4), {}, [floats(2, 3)]),
    "gru cell": ("GRUCell", (3, 4), {}, [floats(2, 3), floats(2, 4)]),
    "embedding bag": ("EmbeddingBag", (7, 3), {"mode": "sum"}, [np.array([[1, 2], [6, 1]])]),
    "alpha dropout": ("AlphaDropout", (0.0,), {}, [floats(5)]),
    "dropout of channels": ("Dropout2d", (0.0,), {}, [floats(2, 3, 4, 4)]),
    "channel shuffle": ("ChannelShuffle", (2,), {}, [floats(1, 4, 2, 2)]),
    "response norm": ("LocalResponseNorm", (3,), {"k": 2.0}, [floats(1, 5, 2, 2)]),
    "lp pool": ("LPPool2d", (2, 2), {}, [floats(1, 2, 4, 4) ** 2 + 0.1]),
    "unfold": ("Unfold", (2,), {"stride": 2}, [floats(1, 2, 4, 4)]),
    "fold": ("Fold", ((4, 4), 2), {"stride": 2}, [floats(1, 8, 4)]),
    "unflatten": ("Unflatten", (1, (2, 3)), {}, [floats(2, 6)]),
    "zero pad": ("ZeroPad2d", ((1, 0, 2, 1),), {}, [floats(1, 2, 3, 4)]),
    "constant pad": ("ConstantPad1d", (2, 3.5), {}, [floats(1, 2, 3)]),
    "reflection pad": ("ReflectionPad2d", (1,), {}, [floats(1, 2, 3, 4)]),
    "replication pad": ("ReplicationPad3d", (1,), {}, [floats(1, 2, 3, 4, 2)]),
    "circular pad": ("CircularPad1d", ((1, 2),), {}, [floats(1, 2, 4)]),
    "mse": ("MSELoss", (), {}, [floats(3, 4), floats(3, 4) + 0.5]),
    "smooth l1": ("SmoothL1Loss", (), {"beta": 0.5}, [floats(3, 4), floats(3, 4) + 0.3]),
    "logits": ("BCEWithLogitsLoss", (), {}, [floats(3), np.array([0.0, 1.0, 1.0])]),
    "kl": ("KLDivLoss", (), {"reduction": "sum"}, [-(floats(3) ** 2), floats(3) ** 2]),
    "triplets": ("TripletMarginLoss", (), {}, [floats(3, 4), floats(3, 4) + 0.2, floats(3, 4) * 2]),
    "similarity": ("CosineSimilarity", (), {}, [floats(3, 4), floats(3, 4) ** 2]),
    "cross entropy": (
        "CrossEntropyLoss", (), {"label_smoothing": 0.1}, [floats(3, 4), np.eye(4)[:3]]
    ),
    "upsample": ("Upsample", (), {"scale_factor": 2}, [floats(1, 2, 3)]),
}  # fmt: skip
KEYED = (
    "Linear", "Bilinear", "Conv", "Embedding", "RNN", "LSTM", "GRU", "Multihead", "Transformer",
)  # fmt: skip


def arrays(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [y for x in tree for y in arrays(x)]
    return [] if tree is None else [tree]


def made(case: str) -> tuple[Any, Any]:
    """Our layer with the parameters of torch's, both in float64."""
    name, args, options, _ = CASES[case]
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(*args, **options).to(torch.float64)
    more = {"key": KEY, "dtype": "float64"} if name.startswith(KEYED) else {}
    ours = getattr(pb.nn, name)(*args, **options, **more)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    for key in state:
        assert ours.state_dict()[key].shape == tuple(state[key].shape)
    values = [pb.asarray(t.numpy()) for t in state.values()]
    structure = pytrees.flatten(ours)[1]
    return pytrees.unflatten(structure, values), theirs


def close(ours: Any, theirs: Any) -> None:
    a, b = arrays(ours), arrays(theirs)
    assert len(a) == len(b)
    for x, t in zip(a, b, strict=True):
        np.testing.assert_allclose(x.numpy(), t.detach().numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_results_and_gradients_are_torchs(case: str, training: bool) -> None:
    ours, theirs = made(case)
    theirs.train(training)
    inputs = CASES[case][3]
    given = {}
    if training and "training" in functions._call_arguments(type(ours)):
        given["training"] = True

    def loss(layer: Any) -> Any:
        outputs = layer(*[pb.asarray(x) for x in inputs], **given)
        total = sum(pb.sum(pb.sin(y)) for y in arrays(outputs))
        return total, (outputs, layer.state_dict())

    torch_outputs = theirs(*[torch.from_numpy(x) for x in inputs])
    if not ours.parameters():
        close(loss(ours)[1][0], torch_outputs)
        return
    torch.stack([torch.sin(y).sum() for y in arrays(torch_outputs)]).sum().backward()
    gradient, (outputs, state) = pb.grad(loss, has_aux=True)(ours)
    close(outputs, torch_outputs)
    for name, t in theirs.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), t.numpy(), rtol=1e-9, atol=1e-11)
    slopes = gradient.named_parameters()
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(
            slopes[name].numpy(), p.grad.numpy(), rtol=1e-7, atol=1e-10, err_msg=name
        )
