"""The end of a product's kernel: a map of the elements it has made, printed as for a map's kernel.

A thread gives some neighbours of a row, as they would be stored, and writes what the map makes of
them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.program.nest import coalesce
from pullback.compile.program.target import Ending, Strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.runtime.cuda.kernels import map_code, outputs_of, weight
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.stages import VECTOR_BYTES, At

__all__ = ["End", "EndCode", "end_of"]
__tuning__ = ("HEAVY",)

HEAVY = 24  # instructions of a map from which on it is a function apart: its code is there once
SIDE_BY_SIDE, ONE, APART = "u", "z", "s"  # neighbours of a row, as in `map_walks`
VECTOR = "v"  # side by side, the same ones in all rows: they may start anywhere

_TEXT = """
#define ENDS NAMES, ends
template <int R> struct Ends { Nest<R> batch; long long rows[R], columns[R]; };
struct Finished {
  FIELDS
  const Ends<SIZE>& ends;
  const i64 first;  // number of the item's first element
  const int m, n;
  struct Row { const Finished& all; int row; };
  PB_MEMBER Finished(i64 item, int m, int n, GIVEN, const Ends<SIZE>& ends)
      : BEGIN, ends(ends), first(item * m * n), m(m), n(n) {
    i64 at[SIZE] = {};
    pb_locate(ends.batch, item, at);
    MOVED
  }
  template <int COUNT> PB_MEMBER bool wide() const { return IS_WIDE; }
  PB_MEMBER Row row(int i) const { return {*this, i}; }
  template <int COUNT> PB_MEMBER Columns<COUNT> columns(int j) const {
    return pb_columns<COUNT>(j, n);
  }
};
template <bool WIDE, int COUNT>
FUNCTION pb_end(const Finished& f, const int row, const int column, const Pack<Stored, COUNT> x) {
ELEMENTS
}
template <bool WIDE, int COUNT>
PB_DEVICE void pb_set(const Finished::Row& to, const Columns<COUNT>& columns,
                      const Pack<Stored, COUNT>& x) {
  if (columns.count > 0) pb_end<WIDE, COUNT>(to.all, to.row, (int)columns.at[0], x);
}"""


class EndCode(NamedTuple):
    """What is printed: the map, which of its arrays is the product, how the others lie along a row;
    `count` neighbours, all of which are there if they are `wide`.
    """

    kernel: Map | MultiMap
    position: int
    kinds: str
    wide: bool

    def parameters(self) -> str:
        """Those that the product's kernel has besides its own."""
        more = [f"{storage(d)}* __restrict__ out{k}" for k, (d, _) in self._outs()]
        more += [f"const {storage(d)}* __restrict__ in{k}" for k, d in self._ins()]
        return "".join(f", {p}" for p in (*more, f"const Ends<{self._size}> ends"))

    @property
    def _size(self) -> int:
        return max(1, len(self.kinds))

    def _outs(self) -> list[tuple[int, tuple[DType, tuple[Expr, ...]]]]:
        return list(enumerate(outputs_of(self.kernel)))

    def _ins(self) -> list[tuple[int, DType]]:
        others = [d for k, d in enumerate(self.kernel.inputs) if k != self.position]
        return list(enumerate(others))

    def add_to(self, source: Source) -> None:
        """The struct Finished, which stands for the output, and what writes to it."""
        name, outs, ins = map_code(source, self.kernel), self._outs(), self._ins()
        heavy = weight(e for _, (_, body) in outs for e in body) >= HEAVY
        arrays = [f"{storage(d)}* out{k}" for k, (d, _) in outs]
        arrays += [f"const {storage(d)}* in{k}" for k, d in ins]
        names = [f"out{k}" for k, _ in outs] + [f"in{k}" for k, _ in ins]
        moved = [f"out{k} += first;" for k, _ in outs] + [f"in{k} += at[{k}];" for k, _ in ins]
        text = _TEXT.replace("SIZE", str(self._size)).replace("IS_WIDE", str(int(self.wide)))
        for word, found in {
            "GIVEN": ", ".join(arrays),
            "FIELDS": " ".join(f"{x};" for x in arrays),
            "NAMES": ", ".join(names),
            "BEGIN": ", ".join(f"{x}({x})" for x in names),
            "MOVED": " ".join(f"this->{x}" for x in moved),
            "FUNCTION": "static __device__ __noinline__ void" if heavy else "PB_DEVICE void",
            "ELEMENTS": "\n".join(self._element(name)),
        }.items():
            text = text.replace(word, found)
        source.add("pb_ends", text)

    def _element(self, name: str) -> list[str]:
        """COUNT neighbours: loads, the map of each, stores."""
        lines, operands, singles = [], [], []
        for (k, dtype), kind in zip(self._ins(), self.kinds, strict=True):
            kept = storage(dtype)
            row = f"f.in{k} + row * f.ends.rows[{k}]"
            if kind == ONE:
                lines.append(f"  const {kept} z{k} = *({row});")
                operands.append(f"z{k}")
                continue
            step = f" * f.ends.columns[{k}]" if kind == APART else ""
            lines.append(f"  Pack<{kept}, COUNT> p{k};")
            one = f"p{k}.v[v] = ({row})[(column + v){step}];"
            if kind in (SIDE_BY_SIDE, VECTOR):
                whole = "" if kind == SIDE_BY_SIDE else f" && (u64)f.in{k} % {VECTOR_BYTES} == 0"
                lines.append(
                    f"  const bool whole{k} = WIDE && sizeof(p{k}) <= {VECTOR_BYTES}{whole};\n"
                    f"  if (whole{k})"
                    f" p{k} = *reinterpret_cast<const Pack<{kept}, COUNT>*>({row} + column);"
                )
                one = f"if (!whole{k}) {one}"
            singles.append(f"    {one}")
            operands.append(f"p{k}.v[v]")
        operands.insert(self.position, "x.v[v]")
        outs = [f"q{k}.v[v]" for k, _ in self._outs()]
        for k, (dtype, _) in self._outs():
            lines.append(f"  Pack<{storage(dtype)}, COUNT> q{k};")
        lines += [
            "  const i64 at = row * (i64)f.n + column;",
            "#pragma unroll",
            "  for (int v = 0; v < COUNT; ++v) {",
            "    if (!WIDE && column + v >= f.n) continue;",
            *singles,
            f"    {name}({', '.join((*operands, 'f.first + at + v', *outs))});",
            *(f"    if (!WIDE || sizeof(q{k}) > {VECTOR_BYTES}) f.out{k}[at + v] = q{k}.v[v];"
              for k, _ in self._outs()),
            "  }",
        ]  # fmt: skip
        for k, (dtype, _) in self._outs():
            lines.append(
                f"  if constexpr (WIDE && sizeof(q{k}) <= {VECTOR_BYTES})"
                f" *reinterpret_cast<Pack<{storage(dtype)}, COUNT>*>(f.out{k} + at) = q{k};"
            )
        return lines


class End(NamedTuple):
    """A map of a product's elements.

    Its other arrays have strides over the batch, rows and columns.
    """

    kernel: Map | MultiMap
    position: int
    outs: Sequence[At]
    ins: Sequence[At]
    strides: Sequence[Strides]

    def code(self, columns: int, count: int, aligned: bool) -> EndCode:
        """For `count` neighbours, if all arrays start at multiples of VECTOR_BYTES or not."""
        wide = aligned and columns % count == 0
        kinds = ""
        for *apart, last in self.strides:
            together = last == 1 and all(s % count == 0 for s in apart)
            lies = SIDE_BY_SIDE if any(apart) else VECTOR
            kinds += ONE if last == 0 else lies if together and wide else APART
        return EndCode(self.kernel, self.position, kinds, wide)

    def anywhere(self, first: int) -> tuple[int, ...]:
        """Positions of arrays that may start anywhere, if the first argument is at `first`."""
        small = (k for k, (*apart, last) in enumerate(self.strides) if last == 0 or not any(apart))
        return tuple(first + len(self.outs) + k for k in small)

    def arguments(self, batch: Sequence[int]) -> tuple[At | bytes, ...]:
        """What goes to `EndCode.parameters`."""
        strides = self.strides or [(0,) * (len(batch) + 2)]
        nest = packed(coalesce(batch, [s[:-2] for s in strides]), len(strides))
        steps = [s[-2] for s in strides] + [s[-1] for s in strides]
        return (*self.outs, *self.ins, nest + struct.pack(f"<{len(steps)}q", *steps))


def end_of(ending: Ending) -> End | None:
    """The end of a kernel for a map; None if kernels can't print it."""
    dtypes = [*ending.kernel.inputs, *(d for d, _ in outputs_of(ending.kernel))]
    if any(d.is_complex for d in dtypes):
        return None
    others = [k for k in range(len(ending.ins)) if k != ending.position]
    return End(
        ending.kernel,
        ending.position,
        [At(s) for s in ending.outs],
        [At(ending.ins[k]) for k in others],
        [tuple(ending.strides[k]) for k in others],
    )
