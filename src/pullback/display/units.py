"""Numbers with their units, short enough to read."""

from __future__ import annotations

__all__ = ["bytes_text", "seconds_text"]


def bytes_text(nbytes: float) -> str:
    """Bytes in the largest binary unit of which there is at least one.

    >>> from pullback.display.units import bytes_text
    >>> bytes_text(1000), bytes_text(3 << 19)
    ('1000 B', '1.5 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    raise AssertionError("the last unit takes all")


def seconds_text(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least one.

    >>> from pullback.display.units import seconds_text
    >>> seconds_text(0.00025), seconds_text(2.0)
    ('250 us', '2 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
