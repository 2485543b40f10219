"""The intrinsics of the reference target: functions of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Routine
from pullback.core.avals import Aval, dense_strides
from reference_arrays import Array, Slots, look, product, stage


class Routines(dict[str, Routine]):
    """The intrinsics; a test knows by the error which of them are not here."""

    def __missing__(self, name: str) -> Routine:
        raise NotImplementedError(f"reference: {name}")


def _array(slots: Slots, place: tuple[int, Aval]) -> Array:
    slot, av = place
    return look(slots, slot, av.dtype, av.shape, av.strides or dense_strides(av.shape))


def _result(slots: Slots, place: tuple[int, Aval]) -> Array:
    slot, av = place
    return look(slots, slot, av.dtype, av.shape, dense_strides(av.shape))


def _matmul(operands: Any, static: Any, result: Any, area: Any, code: int) -> list[Stage]:
    def run(slots: Slots) -> None:
        _result(slots, result)[...] = product(*[_array(slots, o) for o in operands])

    return stage(run)


def _argsort(operands: Any, static: Any, result: Any, area: Any, code: int) -> list[Stage]:
    def run(slots: Slots) -> None:
        x = _array(slots, operands[0])
        if not static["descending"]:
            _result(slots, result)[...] = np.argsort(x, axis=-1, kind="stable")
            return
        turned = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        nans = np.isnan(x.astype(np.float64)).sum(-1, keepdims=True) if x.dtype.kind in "fV" else 0
        found = x.shape[-1] - 1 - turned
        if np.any(nans):  # which come last in both directions, in their order
            raise NotImplementedError
        _result(slots, result)[...] = found

    return stage(run)


def _searchsorted(operands: Any, static: Any, result: Any, area: Any, code: int) -> list[Stage]:
    def run(slots: Slots) -> None:
        row, x = (_array(slots, o) for o in operands)
        _result(slots, result)[...] = np.searchsorted(row, x, static["side"])

    return stage(run)


_BUILDERS = {"matmul": _matmul, "argsort": _argsort, "searchsorted": _searchsorted}
ROUTINES = Routines({n: Routine(build, lambda avals, out: False) for n, build in _BUILDERS.items()})
