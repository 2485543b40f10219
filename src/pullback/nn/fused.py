"""`fused`: a composite that runs as one compiled unit in eager mode too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.compiled import Jitted
from pullback.ir.tracing import inside_trace

__all__ = ["fused"]


class Fused(Jitted):
    """A composite, compiled for each kind of arguments that it meets.

    Unlike a function that a user jits, it says nothing about how often it is traced, and it is part
    of every trace that it is called in, even on known arrays: what it gives there does not depend
    on what was compiled before.
    """

    exact = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if inside_trace():
            return self._inlined(args, kwargs)
        return super().__call__(*args, **kwargs)

    def _warn(self, described: dict[str, str], updated: bool) -> None:
        """Say nothing: a library function is called on many shapes, and that is fine."""

    def __repr__(self) -> str:
        return f"<fused {self.name}>"


class Reassociated(Fused):
    """A composite in which the compiler may round sums and products in another order."""

    exact = False


def fused(function: Callable[..., Any], exact: bool = True) -> Any:
    """`function`, made of operations, as one compiled unit; its derivatives of any order are too.

    It is traced once for each shape and dtype of the arrays among its arguments and each value of
    the rest, which must be hashable. While something else is traced it is inlined. It gives the
    bits of its operations run one by one, unless `exact` is False: then products may leave loops.

    >>> from pullback.nn.fused import fused
    >>> double_sigmoid = fused(lambda x: 2 / (1 + pb.exp(-x)))
    >>> pb.grad(double_sigmoid)(pb.tensor(0.0))
    tensor(0.5, float32, cpu)
    """
    return Fused(function) if exact else Reassociated(function)
