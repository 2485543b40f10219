"""Loops and choices inside of a CUDA graph: the kernel that sets their conditions, and how a loop
is ended from outside.

A kernel of the graph leaves a flag in memory; this one makes it the value of conditions, which the
device looks at. Only PTX can call what sets them: the driver links it in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from pullback.core.errors import DeviceError
from pullback.runtime.cuda.stages import At, GraphNumber, Step

__all__ = ["LOOP", "MOST", "PTX", "SETTER", "Stop", "choice_setter", "loop_setters"]

PTX = ".version"  # what such a source begins with; all others are CUDA C
MOST = 64  # loops and choices of a graph: each has graphs of its own, which take time to set up
LOOP, CHOICE = 3, 2  # conditions of each
NANOSECONDS = 10_000_000  # after which a loop looks again whether it is to end: that takes 1 us

# The byte at `flag` becomes the conditions `same` and `also`, its opposite `other`; `off` becomes
# 0. At `stop` are two words of the host's: that loops are to end, and that one did so therefore.
SETTER = f"""{PTX} 7.0
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.global .align 8 .u64 pb_looked;
.visible .entry pb_condition(.param .u64 flag, .param .u64 stop, .param .u64 same,
  .param .u64 also, .param .u64 other, .param .u64 off)
{{
  .reg .pred %on, %skip;
  .reg .b32 %f, %v, %w, %z;
  .reg .b64 %a, %s, %now, %then, %h;
  ld.param.u64 %a, [flag];
  cvta.to.global.u64 %a, %a;
  ld.global.u8 %f, [%a];
  setp.ne.u32 %on, %f, 0;
  ld.param.u64 %s, [stop];
  setp.eq.u64 %skip, %s, 0;
  @%skip bra SET;
  @!%on bra SET;
  mov.u64 %now, %globaltimer;
  ld.global.u64 %then, [pb_looked];
  sub.u64 %then, %now, %then;
  setp.lt.u64 %skip, %then, {NANOSECONDS};
  @%skip bra SET;
  st.global.u64 [pb_looked], %now;
  cvta.to.global.u64 %s, %s;
  ld.volatile.global.u64 %then, [%s];
  setp.eq.u64 %skip, %then, 0;
  @%skip bra SET;
  st.volatile.global.u64 [%s+8], %then;
  setp.eq.u64 %on, %then, 0;
SET:
  selp.u32 %v, 1, 0, %on;
  selp.u32 %w, 0, 1, %on;
  mov.u32 %z, 0;
""" + "".join(
    f"""  ld.param.u64 %h, [{name}];
  setp.eq.u64 %skip, %h, 0;
  @%skip bra NO_{name};
  {{
    .param .b64 to;
    .param .b32 what;
    st.param.b64 [to], %h;
    st.param.b32 [what], {value};
    call.uni cudaGraphSetConditional, (to, what);
  }}
NO_{name}:
"""
    for name, value in (("same", "%v"), ("also", "%v"), ("other", "%w"), ("off", "%z"))
) + "  ret;\n}\n"  # fmt: skip


def _setter(flag: int, stop: bool, *conditions: int | None) -> Step:
    """The launch that sets conditions, by their places: same, also, other, off."""
    given = tuple(0 if k is None else GraphNumber(k) for k in conditions)
    where = GraphNumber(-1) if stop else 0
    return Step(SETTER, "pb_condition", (1, 1), 1, (At(flag), where, *given))


def loop_setters(flag: int) -> list[Step]:
    """Those of a loop: before it, after its rounds 1, 3.., and after 2, 4..; its conditions are
    whether it goes on, whether the second of two rounds comes, whether carries are to be copied.
    """
    return [
        _setter(flag, True, 0, None, None, 2),
        _setter(flag, True, 0, 1, 2, None),
        _setter(flag, True, 0, None, None, None),
    ]


def choice_setter(flag: int) -> Step:
    """That of a choice, whose conditions are those of its lists."""
    return _setter(flag, False, 0, None, 1, None)


class Stop:
    """How loops of a stream are ended; at `words` of the host are two words that they look at."""

    def __init__(self, words: ctypes.Array[ctypes.c_int64]):
        self._words, self._ended = words, 0
        self.address = ctypes.addressof(words)

    def wait(self, join: Callable[[], None]) -> None:
        """`join` waits for the stream; an interrupt meanwhile ends its loops."""
        before = self._ended
        try:
            join()
        except BaseException:
            self._words[0] = 1
            try:
                join()
            finally:
                self._words[0] = 0
                self._ended += self._words[1]
                self._words[1] = 0
            raise
        if self._ended != before:
            raise DeviceError("while_loop: it was interrupted, in another thread of its stream.")
