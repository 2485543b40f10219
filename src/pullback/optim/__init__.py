"""Optimisers as pure functions over trees of arrays, schedules of learning rates, clipping."""

from pullback.missing_names import missing_name
from pullback.optim.adaptive import LAMB, Adadelta, Adagrad, Adam, AdamW, RAdam, RMSprop
from pullback.optim.averaging import EMA
from pullback.optim.base import Optimizer
from pullback.optim.clipping import clip_grad_norm, clip_grad_value, global_norm
from pullback.optim.descent import SGD, Lion
from pullback.optim.lbfgs import LBFGS
from pullback.optim.lookahead import Lookahead
from pullback.optim.schedules import (
    Plateau,
    constant,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    joined,
    linear,
    multistep,
    one_cycle,
    polynomial,
    step,
    warm_up,
)

__all__ = [
    "EMA", "LAMB", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Lookahead",
    "Optimizer", "Plateau", "RAdam", "RMSprop", "clip_grad_norm", "clip_grad_value", "constant",
    "cosine", "cosine_restarts", "cyclic", "exponential", "global_norm", "joined", "linear",
    "multistep", "one_cycle", "polynomial", "step", "warm_up",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


def __getattr__(name: str) -> object:
    raise missing_name("optim", name, __all__)
