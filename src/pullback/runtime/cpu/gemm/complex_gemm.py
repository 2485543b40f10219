"""Products of complex matrices, which are four real ones: of each part of a with each part of b.

The parts of a are rows of their own, or matrices of their own. Those of b take turns along its rows
where its columns lie side by side, and along its columns else. Here they are joined.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import BatchParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, register

__all__ = ["JOINED", "join_kernel"]

# `count` elements are together: there are so many products with the real part of a, then those with
# the other.
JOINED = Record("parts out", "count")


@functools.cache
def join_kernel(dtype: DType, turns: bool) -> int:
    """A kernel over complex elements; `dtype` is that of the parts.

    Params are `JOINED`. In each half of the products the two of an element are neighbours if they
    take `turns`, else one half comes first.
    """
    module = IRModule()
    f = Function(module, "@kernel")
    p = BatchParams(f, JOINED)
    parts, out = p.pointers
    t, size = register(dtype), dtype.itemsize
    half = f.mul(p["count"], "2")
    with f.loop("%lo", "%hi") as group:
        number, first = f.divmod(group.i, p["count"])
        count = f.minimum(f.sub(p["count"], first), f.sub("%hi", group.i))
        group.step = count
        start = f.element(parts, t, f.mul(number, f.mul(half, "2")))
        target = f.element(out, t, f.mul(group.i, "2"))
        with f.loop("0", count) as e:
            place = f.add(first, e.i)
            at = f.mul(place, "2") if turns else place
            apart = "1" if turns else p["count"]
            places = [f.add(f.mul(half, str(i)), at) for i in (0, 1)]
            values = []
            for own in places:
                for x in (own, f.add(own, apart)):
                    values.append(f(f"load {t}, ptr {f.element(start, t, x)}, align {size}"))
            rr, ri, ir, ii = values
            real = f(f"fsub {t} {rr}, {ii}")
            imaginary = f(f"fadd {t} {ri}, {ir}")
            for i, value in enumerate((real, imaginary)):
                to = f.element(target, t, f.add(f.mul(e.i, "2"), str(i)))
                f.do(f"store {t} {value}, ptr {to}, align {size}")
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"], optimise=True)["kernel"]
