"""Finding out what a program does: the first NaN, values on their way through compiled code.

It is imported when it is used.
"""

from pullback.debug.nonfinite import nan
from pullback.debug.printing import print

__all__ = ["nan", "print"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})
