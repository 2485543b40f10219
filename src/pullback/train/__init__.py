"""What a training loop needs besides the step: batches, progress, logs, checkpoints, a clean stop.

Each piece stands alone; a loop is an ordinary `for`.
"""

from pullback.display.progress import Progress
from pullback.missing_names import missing_name
from pullback.train.batches import batches
from pullback.train.checkpoints import Checkpoints
from pullback.train.log import Log
from pullback.train.precision import LossScale, cast, computed_in
from pullback.train.stopping import EarlyStopping, Interrupt

__all__ = [
    "Checkpoints", "EarlyStopping", "Interrupt", "Log", "LossScale", "Progress", "batches", "cast",
    "computed_in",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


def __getattr__(name: str) -> object:
    raise missing_name("train", name, __all__)
