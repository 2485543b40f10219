"""Writes src/pullback/ir/mathfun/coefficients.py: polynomial fits and split constants, by mpmath.

Every polynomial is a Chebyshev interpolant of a smooth function at 60 digits, turned into monomials
and rounded to the dtype that evaluates it. Run: `python tools/fit_polynomials.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 60
TARGET = Path(__file__).parents[1] / "src/pullback/ir/mathfun/coefficients.py"
Function = Callable[[mp.mpf], mp.mpf]


def fit(f: Function, low: object, high: object, count: int) -> list[mp.mpf]:
    """`count` coefficients, lowest power first, of a polynomial near `f` on an interval."""
    return mp.chebyfit(f, [mp.mpf(low), mp.mpf(high)], count)[::-1]


def rounded(values: list[mp.mpf], bits: int) -> tuple[float, ...]:
    """The values as floats of 53 or 24 significant bits."""
    floats = [float(v) for v in values]
    return tuple(floats) if bits == 53 else tuple(float(np.float32(v)) for v in floats)


def split(value: mp.mpf, *bits: int) -> tuple[float, ...]:
    """The value as an unevaluated sum of floats with the given numbers of significant bits."""
    parts = []
    for count in bits:
        with mp.workprec(count):
            part = +value
        parts.append(float(part))
        value = value - part
    return tuple(parts)


def smooth(f: Function, at_zero: object) -> Function:
    """`f` with its limit at 0, and with the digits that cancel next to it."""

    def g(x: mp.mpf) -> mp.mpf:
        if abs(x) < mp.mpf(10) ** -40:
            return mp.mpf(at_zero)
        with mp.extradps(120):
            return f(x)

    return g


def odd_tail(f: Function, at_zero: object) -> Function:
    """(f(t) - t) / t^3 as a function of z = t^2."""
    return smooth(lambda z: (f(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3, at_zero)


def exponential() -> dict[str, tuple[float, ...]]:
    edge = mp.log(2) / 2 * mp.mpf("1.001")
    tail = smooth(lambda r: (mp.expm1(r) - r) / r**2, 0.5)
    power = smooth(lambda r: mp.expm1(r * mp.log(2)) / r, mp.log(2))
    s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
    atanh2 = smooth(lambda z: 2 * (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, mp.mpf(2) / 3)
    log_tail = smooth(lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, mp.mpf(1) / 3)
    atanh4 = smooth(lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2, mp.mpf(1) / 5)
    low, high = mp.sqrt(0.5) - 1, mp.sqrt(2) - 1
    return {
        "EXP_64": rounded(fit(tail, -edge, edge, 11), 53),
        "EXP_32": rounded(fit(tail, -edge, edge, 5), 24),
        "EXP2_64": rounded(fit(power, -0.5, 0.5, 13), 53),
        "EXP2_32": rounded(fit(power, -0.5, 0.5, 7), 24),
        "LOG_64": rounded(fit(atanh2, 0, s**2, 8), 53),
        "LOG_32": rounded(fit(log_tail, low, high, 9), 24),
        "LOG_WIDE": rounded(fit(atanh4, 0, s**2, 8), 53),
        "CBRT": rounded(fit(mp.cbrt, 0.35, 2.83, 6), 53),
    }


def trigonometric() -> dict[str, tuple[float, ...]]:
    z = (mp.pi / 4 * mp.mpf("1.001")) ** 2
    sine = odd_tail(mp.sin, -mp.mpf(1) / 6)
    cosine = smooth(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, mp.mpf(1) / 24)
    sinpi = smooth(lambda z: mp.sin(mp.pi * mp.sqrt(z)) / mp.sqrt(z), mp.pi)
    cospi = smooth(lambda z: (mp.cos(mp.pi * mp.sqrt(z)) - 1) / z, -(mp.pi**2) / 2)
    return {
        "SIN_64": rounded(fit(sine, 0, z, 6), 53),
        "SIN_32": rounded(fit(sine, 0, z, 4), 24),
        "COS_64": rounded(fit(cosine, 0, z, 6), 53),
        "COS_32": rounded(fit(cosine, 0, z, 3), 24),
        "SINPI": rounded(fit(sinpi, 0, 0.25, 10), 53),
        "COSPI": rounded(fit(cospi, 0, 0.25, 10), 53),
        "ATAN": rounded(fit(odd_tail(mp.atan, -mp.mpf(1) / 3), 0, mp.tan(mp.pi / 8) ** 2, 12), 53),
        "ASIN": rounded(fit(odd_tail(mp.asin, mp.mpf(1) / 6), 0, 0.25, 14), 53),
        "TANH_32": rounded(fit(odd_tail(mp.tanh, -mp.mpf(1) / 3), 0, 0.4, 6), 24),
    }


def error_function() -> dict[str, tuple[float, ...]]:
    ratio = smooth(lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 2 / mp.sqrt(mp.pi) - 1)

    def scaled(t: mp.mpf) -> mp.mpf:
        """(1 + 2x) exp(x^2) erfc(x) where t = (x - 4) / (x + 4)."""
        if t >= 1:
            return 2 / mp.sqrt(mp.pi)
        x = 4 * (1 + t) / (1 - t)
        with mp.extradps(20):
            return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)

    def centre(w: mp.mpf) -> mp.mpf:
        x = mp.sqrt(-mp.expm1(-w))
        return mp.erfinv(x) / x if x > mp.mpf(10) ** -30 else mp.sqrt(mp.pi) / 2

    def tail(root: mp.mpf) -> mp.mpf:
        """erfinv(x) where 1 - x^2 = exp(-root^2), by Newton's method on erfc."""
        with mp.extradps(40):
            small = mp.exp(-(root**2))
            complement = small / (1 + mp.sqrt(1 - small))
            y = root * mp.mpf("0.95")
            for _ in range(12):
                y += (mp.erfc(y) - complement) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
            return +y

    return {
        "ERF_64": rounded(fit(ratio, 0, 1, 13), 53),
        "ERF_32": rounded(fit(ratio, 0, 1, 7), 24),
        "ERF_TAIL_32": rounded(fit(lambda t: mp.erfc(t + 2.5), -1.5, 1.5, 16), 24),
        "ERFCX": rounded(fit(scaled, mp.mpf(-7) / 9, 0.75, 22), 53),
        "ERFINV_CENTRE": rounded(fit(lambda t: centre(t + 3.125), -3.125, 3.125, 24), 53),
        "ERFINV_MIDDLE": rounded(fit(lambda t: tail(t + 3.25), -0.75, 0.75, 18), 53),
        "ERFINV_FAR": rounded(fit(lambda t: tail(t + 5), -1, mp.mpf("1.01"), 18), 53),
    }


def gamma() -> dict[str, tuple[float, ...]]:
    near_two = smooth(lambda d: mp.loggamma(2 + d) / d, 1 - mp.euler)

    def stirling(u: mp.mpf) -> mp.mpf:
        """x * (loggamma(x) - Stirling's leading terms) at u = 1/x^2."""
        if u < mp.mpf(10) ** -30:
            return mp.mpf(1) / 12
        with mp.workdps(110):
            x = 1 / mp.sqrt(u)
            return x * (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)

    def digamma_tail(u: mp.mpf) -> mp.mpf:
        """x^2 * (log(x) - 1/(2x) - digamma(x)) at u = 1/x^2."""
        if u < mp.mpf(10) ** -30:
            return mp.mpf(1) / 12
        with mp.workdps(110):
            x = 1 / mp.sqrt(u)
            return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) / u

    root = mp.findroot(mp.digamma, mp.mpf("1.46163"))
    around_root = smooth(lambda t: mp.digamma(root + t) / t, mp.polygamma(1, root))
    return {
        "LGAMMA_2": rounded(fit(near_two, -0.5, 0.5, 18), 53),
        "STIRLING": rounded(fit(stirling, 0, mp.mpf(1) / 42, 8), 53),
        "DIGAMMA_ROOT": split(root, 53, 53),
        "DIGAMMA_1": rounded(fit(around_root, 1 - root, mp.mpf("2.2") - root, 26), 53),
        "DIGAMMA_TAIL": rounded(fit(digamma_tail, 0, mp.mpf(1) / 9, 15), 53),
    }


def constants() -> dict[str, tuple[float, ...]]:
    return {
        "LN2_64": split(mp.log(2), 53, 53),
        "LN2_32": split(mp.log(2), 24, 24),
        "LN2_SHORT_64": split(mp.log(2), 42, 53),  # times an exponent it is exact
        "INV_LN2": split(1 / mp.log(2), 53, 53),
        "INV_LN10": split(1 / mp.log(10), 53, 53),
        "LOG10_2": split(mp.log10(2), 42, 53),
        "HALF_PI_64": split(mp.pi / 2, 53, 53, 53),
        "HALF_PI_32": split(mp.pi / 2, 24, 24, 24),
        "THIRD": split(mp.mpf(1) / 3, 53, 53),
    }


def two_over_pi_words() -> tuple[int, ...]:
    """One zero word, then the bits of 2/pi after the binary point in words of 64."""
    with mp.workprec(1600):
        digits = int(mp.floor(2 / mp.pi * mp.mpf(2) ** (64 * 22)))
    words = [(digits >> (64 * (21 - i))) & (2**64 - 1) for i in range(22)]
    return (0, *words)


def main() -> None:
    tables = {**constants(), **exponential(), **trigonometric(), **error_function(), **gamma()}
    lines = ['"""Written by tools/fit_polynomials.py; lowest power first. Do not edit."""', ""]
    for name, values in tables.items():
        lines += [f"{name} = (", *(f"    {v!r}," for v in values), ")"]
    lines += ["TWO_OVER_PI = (", *(f"    0x{w:016X}," for w in two_over_pi_words()), ")", ""]
    TARGET.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
