"""Borders around signals, images and volumes, as layers."""

from __future__ import annotations

from typing import Any, ClassVar

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn.rearranging import pad

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
    "ReplicationPad2d", "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class Padding(Module):
    """What the layers have in common: one width for all sides, or (before, after) for each axis
    from the last on.
    """

    ndim: ClassVar[int]
    mode: ClassVar[str]

    def __init__(self, padding: Any, value: float = 0.0):
        widths = (padding,) * (2 * self.ndim) if isinstance(padding, int) else tuple(padding)
        if len(widths) != 2 * self.ndim:
            raise ShapeError(
                f"{type(self).__name__}: padding must be an integer or {2 * self.ndim} of them, got"
                f" {padding}."
            )
        self.padding, self.value = widths, value

    def __call__(self, input: Any) -> Any:
        more = (self.value,) if self.mode == "constant" else ()
        return pad(input, self.padding, self.mode, *more)


def _layer(kind: str, ndim: int, mode: str) -> type[Padding]:
    members = {
        "ndim": ndim, "mode": mode, "__module__": __name__,
        "__doc__": f"`pb.nn.pad` with mode {mode!r} on the last {ndim} axes.",
    }  # fmt: skip
    if kind not in ("Constant", "Zero"):  # they take no value
        members["__init__"] = lambda self, padding: Padding.__init__(self, padding)
    elif kind == "Zero":
        members["__init__"] = lambda self, padding: Padding.__init__(self, padding, 0.0)
    return type(f"{kind}Pad{ndim}d", (Padding,), members)


CircularPad1d = _layer("Circular", 1, "circular")
CircularPad2d = _layer("Circular", 2, "circular")
CircularPad3d = _layer("Circular", 3, "circular")
ConstantPad1d = _layer("Constant", 1, "constant")
ConstantPad2d = _layer("Constant", 2, "constant")
ConstantPad3d = _layer("Constant", 3, "constant")
ReflectionPad1d = _layer("Reflection", 1, "reflect")
ReflectionPad2d = _layer("Reflection", 2, "reflect")
ReflectionPad3d = _layer("Reflection", 3, "reflect")
ReplicationPad1d = _layer("Replication", 1, "replicate")
ReplicationPad2d = _layer("Replication", 2, "replicate")
ReplicationPad3d = _layer("Replication", 3, "replicate")
ZeroPad1d = _layer("Zero", 1, "constant")
ZeroPad2d = _layer("Zero", 2, "constant")
ZeroPad3d = _layer("Zero", 3, "constant")
