"""Row kernels as CUDA C: the text of what `row_code` describes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from pullback.compile.kernel.order import BLOCK, LANES
from pullback.compile.schedule.row_kernel import Pass
from pullback.core import dtypes as dt
from pullback.ir.scalar import Expr, text, topological
from pullback.ir.scalar_walks import inline_nodes
from pullback.runtime.cuda.fold_kernels import Fold
from pullback.runtime.cuda.folds import accumulator_bytes, fold_functions
from pullback.runtime.cuda.kernels import NEST, name_of, parts, stored, weight
from pullback.runtime.cuda.printer import Source, emit, storage
from pullback.runtime.cuda.row_code import RowCode, loads_of, roots_of
from pullback.runtime.cuda.row_functions import HEAD, PAD, WALK_HEAD
from pullback.runtime.cuda.row_joins import blocks_joined, lanes_joined
from pullback.runtime.cuda.row_templates import KERNEL, LAST, MANY, PASS, WALK
from pullback.runtime.cuda.row_walks import chain_of, columns_text, walk_words

__all__ = ["row_source"]

FLIGHTS = ((24, 16), (160, 8))  # elements that a thread has at a time, by instructions of each


def _text(rows: RowCode) -> str:
    """What tells a kernel from others."""
    words = [
        f"{s.dtype.name} {s.kind} {fixed}"
        for s, fixed in zip(rows.kernel.streams, rows.fixed, strict=True)
    ]
    for p in rows.kernel.passes:
        words.append("pass")
        words += [f"{k} = {text(*body)}" for k, body in (*p.scalars, *p.stores)]
        words += [f"{k} = {r.text}" for k, r in p.folds]
        words += [r.text for r in p.wholes]
    if rows.walks:
        words += ["walks", str(rows.near), *(r.text for r in rows.kernel.columns)]
    return "\n".join([*words, str(rows.kernel.kept), str(rows.turns), str(rows.bounds)])


@lru_cache(1024)
def row_source(rows: RowCode) -> tuple[str, str]:
    """The name of a kernel, without its end, and its source."""
    name = "rows_" + hashlib.sha256(_text(rows).encode()).hexdigest()[:12]
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_rows", HEAD)
    folds: list[Fold] = [*rows.folds]
    if rows.walks:
        source.add("pb_walk", WALK_HEAD)
        folds += [*rows.kernel.columns, chain_of(rows.kernel.columns)]
    for r in folds:
        source.add(name_of(r), "\n".join(fold_functions(source, r, name_of(r))))
    source.add(name, _Printer(source, rows, name).text())
    return name, source.text()


class _Printer:
    """Writes the kernel."""

    def __init__(self, source: Source, rows: RowCode, name: str):
        self.source, self.rows, self.name = source, rows, name
        self.streams = rows.kernel.streams
        self.numbers: Iterator[int] = iter(range(len(rows.folds)))
        self.divisors: dict[Expr, int] = {}

    def text(self) -> str:
        rows, kernel = self.rows, self.rows.kernel
        pointers = [f"{storage(self.streams[k].dtype)}* const p{k}" for k in rows.memory]
        wholes = [r for p in kernel.passes for r in p.wholes]
        pointers += [f"{name_of(r)}_acc* const partials{m}" for m, r in enumerate(wholes)]
        self.whole = 0
        passes = "".join(self._arrivals(n) + self._pass(p) for n, p in enumerate(kernel.passes))
        words = {
            "name": self.name, "bounds": ", ".join(map(str, rows.bounds)),
            "pointers": ", ".join(pointers), "m": len(rows.memory), "s": rows.places,
            "lanes": LANES, "block": BLOCK, "span": LANES * rows.turns,
            "starts": self._starts(), "fetches": self._fetches(), "passes": passes,
            "kept": "\n".join(f"  x{target}[0] = x{scalar};" for scalar, target in kernel.kept),
        }  # fmt: skip
        if not rows.walks:
            return KERNEL.format(**words)
        words["passes"] += self._arrivals(len(kernel.passes)) + columns_text(
            self.source, rows, self._leaf
        )
        words |= walk_words(rows)
        for part in ("fetches", "passes"):
            words[part] = words[part].replace("__syncthreads()", "pb_meet_team(here, own)")
        return WALK.format(**words)

    def _starts(self) -> str:
        """Where the rows are, what is one element of a row, and room for accumulators."""
        lines, rows = [], self.rows
        targets = {target for _, target in rows.kernel.kept}
        for n, k in enumerate(rows.memory):
            c, at = storage(self.streams[k].dtype), f"p{k} + (valid ? row : 0) * r.step[{n}]"
            if self.streams[k].kind == "unit" or k in targets:
                lines.append(f"  {c}* const x{k} = {at};")
            else:
                lines.append(f"  const {c} x{k} = *({at});")
        for k, area in rows.areas[0].items():
            c = storage(self.streams[k].dtype)
            lines.append(f"  {c}* const s{k} = ({c}*)(room + r.place[{area}]);")
        before = ""
        for m, r in enumerate(rows.folds):
            acc = f"{name_of(r)}_acc"
            lines.append(f"  {acc}* const slots{m} = ({acc}*)(memory + r.slots{before})")
            lines[-1] += " + here * blocks;"
            before += f" + {accumulator_bytes(r)} * together * blocks"
        for k, s in enumerate(self.streams):
            if s.kind == "scalar":
                lines.append(f"  {storage(s.dtype)} x{k} = {{}};")
        return "\n".join(lines)

    def _fetches(self) -> str:
        return "\n".join(
            f"  if (valid) pb_fetch(s{k}, x{k}, length, first, own);\n  pb_begun();"
            for k in self.rows.fetched
        )

    def _arrivals(self, number: int) -> str:
        """Waits for what a pass is the first to read."""
        first = [self.rows.read[k][0] for k in self.rows.fetched]
        if number not in first:
            return ""
        later = sum(p > number for p in first)
        return f"\n  pb_arrived<{later}>();\n  __syncthreads();"

    def _leaf(self, e: Expr) -> str:
        if e.op == "index":
            return "j"
        k, part = e.value  # type: ignore[misc]
        dtype, kind = self.streams[k].dtype, self.streams[k].kind
        name = f"e{k}[u]" if kind in ("unit", "buffer") else f"x{k}"
        if dtype is dt.bool_:
            return f"({name} != 0)"
        return f"{name}.{'xy'[part]}" if dtype.is_complex else name

    def _pass(self, p: Pass) -> str:
        scalars = self._scalars(p)
        folds = [*(r for _, r in p.folds), *p.wholes]
        if not p.stores and not folds:
            return scalars
        if not folds and p is self.rows.kernel.passes[-1]:
            outs = [k for k, _ in p.stores]
            if all(self.streams[k].kind == "unit" and k not in self.rows.areas[0] for k in outs):
                return scalars + self._last(p)
        own = [next(self.numbers) for _ in folds]
        names = [name_of(r) for r in folds]
        numbered = list(zip(own, names, strict=True))
        finished = [
            f"    {name_of(r)}_finish(f{m}, x{k});" for m, (k, r) in zip(own, p.folds, strict=False)
        ]
        for m in own[len(p.folds) :]:
            finished.append(f"    if (valid && !first) partials{self.whole}[row] = f{m};")
            self.whole += 1
        joined = blocks_joined(folds, numbered) if folds else ""
        divisors = self._divisors(p)
        span, flight = LANES * self.rows.turns, _flight(roots_of(p))
        many = [
            MANY.format(step=span * count, elements=self._elements(p, numbered, count))
            for count in (flight, flight // 4)  # fewer for what is left of a block
            if count > 1
        ]
        return scalars + PASS.format(
            block=BLOCK, span=span, many="".join(many),
            divisors=divisors,
            accumulators="\n".join(f"    {f}_acc f{m} = {f}_init();" for m, f in numbered),
            inits="\n".join(f"      {f}_acc g{m} = {f}_init();" for m, f in numbered),
            one=self._elements(p, numbered, 0),
            lanes_joined=lanes_joined(numbered, self.rows.turns),
            blocks_joined=joined, finished="\n".join(finished),
        )  # fmt: skip

    def _last(self, p: Pass) -> str:
        """A pass that folds nothing and after which nobody reads: any thread has any elements."""
        rows, roots = self.rows, roots_of(p)
        read = [k for k in loads_of(roots) if self.streams[k].kind in ("unit", "buffer")]
        touched = [*read, *(k for k, _ in p.stores)]
        width = max(1, 16 // max(self.streams[k].dtype.itemsize for k in touched))
        packs = max(1, _flight(roots) // width)
        outside = [k for k in touched if k not in rows.areas[0] and k not in rows.near]
        starts = " | ".join(f"(unsigned long long)x{k}" for k in outside)
        waits = any(k in rows.written for k in read)
        return LAST.format(
            divisors=self._divisors(p), waits="    __syncthreads();" if waits else "",
            aligned=f"length % {width} == 0 && (({starts}) & 15) == 0",
            width=width, packs=packs, more=packs - 1, many=self._packed(p, read, packs, width),
            one=self._packed(p, read, 1, width), single=self._packed(p, read, 1, 1),
        )  # fmt: skip

    def _packed(self, p: Pass, read: Sequence[int], packs: int, width: int) -> str:
        """Elements of `packs` packs, of `width` each."""
        count, lines = packs * width, []
        loop = f"#pragma unroll\n        for (int u = 0; u < {packs}; ++u) {{"
        for k in (*read, *(k for k, _ in p.stores)):
            name = "e" if k in read else "o"
            lines.append(f"        {storage(self.streams[k].dtype)} {name}{k}[{count}];")
        lines += [loop, "          const unsigned at = (unsigned)(i + step * u);"]
        for k in read:
            c = storage(self.streams[k].dtype)
            place = f"x{k} + at"
            if k in self.rows.areas[0]:
                place = f"s{k} + at + at / {BLOCK} * ({PAD} / (int)sizeof({c}))"
            lines.append(f"          pb_unpack<{width}>(e{k} + {width} * u, {place});")
        at = f"i + step * (u / {width}) + u % {width}"
        lines += ["        }", *self._made(p, (), count, at), loop]
        for k, _ in p.stores:
            made = f"o{k} + {width} * u"
            lines.append(f"          pb_repack<{width}>(x{k} + (unsigned)(i + step * u), {made});")
        return "\n".join([*lines, "        }"])

    def _scalars(self, p: Pass) -> str:
        lines = []
        for k, body in p.scalars:
            dtype = self.streams[k].dtype
            made, names = emit(self.source, parts(body, dtype), self._leaf)
            lines += ["  {", *made, stored(f"x{k}", dtype, names), "  }"]
        return "".join("\n" + line for line in lines)

    def _elements(self, p: Pass, folds: Sequence[tuple[int, str]], flight: int) -> str:
        """Loads of `flight` elements, what is computed from each, then stores and folds; or, if
        that is 0, of one element if it is there.
        """
        rows, declared, loads, stores = self.rows, [], [], []
        count, at = max(1, flight), f"base + i + {LANES * self.rows.turns} * u"
        gap = f"q * ({PAD} / (int)sizeof"
        for k in loads_of(roots_of(p)):
            s = self.streams[k]
            if s.kind in ("unit", "buffer"):
                c = storage(s.dtype)
                declared.append(f"        {c} e{k}[{count}];")
                is_near = k in rows.areas[0] or k in rows.near
                shared = f"s{k}[{at} + {gap}({c}))]" if is_near else f"x{k}[{at}]"
                loads.append(f"          e{k}[u] = {shared};")
        for k, _ in p.stores:
            c = storage(self.streams[k].dtype)
            declared.append(f"        {c} o{k}[{count}];")
            if self.streams[k].kind == "unit":
                stores.append(f"          x{k}[{at}] = o{k}[u];")
            if k in rows.areas[0]:
                stores.append(f"          s{k}[{at} + {gap}({c}))] = o{k}[u];")
        declared += [f"        {f}_acc a{m}[{count}];" for m, f in folds]
        loop = f"#pragma unroll\n        for (int u = 0; u < {count}; ++u) {{"
        lines = [loop, *loads, "        }"]
        lines += self._made(p, folds, count, at)
        lines += [loop, *stores, "        }"]
        if not flight:
            declared += [f"        a{m}[0] = {f}_init();" for m, f in folds]
            lines = ["        if (i < n) {", *lines, "        }"]
        return "\n".join([*declared, *lines, loop, *self._folded(folds, not flight), "        }"])

    def _folded(self, folds: Sequence[tuple[int, str]], tail: bool) -> list[str]:
        """What follows each other in a lane is combined by the first thread that has the lane.

        The others send it what they made, and go through the same motions with what is no use.
        """
        lines = []
        for turn in range(self.rows.turns):
            there = f"if (round + {LANES * turn} + lane < n) " if tail else ""
            for m, f in folds:
                value = f"a{m}[u]"
                if turn:
                    lines.append(f"          const {f}_acc b{m} = {f}_down({value}, {LANES}, 32);")
                    value = f"b{m}"
                lines.append(f"          {there}g{m} = {f}_combine(g{m}, {value});")
        return lines

    def _made(self, p: Pass, folds: Sequence[tuple[int, str]], count: int, at: str) -> list[str]:
        """What is made of `count` elements that were read, with quotients that are right."""
        loop = f"#pragma unroll\n        for (int u = 0; u < {count}; ++u) {{"
        if not self.divisors:
            return [loop, *self._computed(p, folds, at, False), "        }"]
        return [
            "        unsigned low = 0xffffffffu;", "        float high = 0;",
            loop, *self._computed(p, folds, at, True), "        }",
            f"        if (!({self._fair(p)})) {{",
            loop, *self._computed(p, folds, at, False), "        }", "        }",
        ]  # fmt: skip

    def _computed(
        self, p: Pass, folds: Sequence[tuple[int, str]], at: str, fast: bool
    ) -> list[str]:
        """What is made of an element; `fast`: with quotients that may not be right."""
        roots: list[Expr] = []
        for k, body in p.stores:
            roots += parts(body, self.streams[k].dtype)
        elements = [r.element for r in (*(r for _, r in p.folds), *p.wholes)]
        roots += [e for element in elements for e in element]
        divided = self._divided if fast else self._divided_slowly
        made, names = emit(self.source, roots, self._leaf, divided)
        rest, results = iter(names), []
        for k, body in p.stores:
            own = [next(rest) for _ in body]
            results.append(stored(f"o{k}[u]", self.streams[k].dtype, own))
        for (m, f), element in zip(folds, elements, strict=True):
            values = ", ".join(next(rest) for _ in element)
            results.append(f"  a{m}[u] = {f}_acc{{{values}}};")
        return ["        " + line for line in (f"  const long long j = {at};", *made, *results)]

    def _divided(self, e: Expr, operands: Sequence[str]) -> str:
        """A division by what is the same for the whole row; a quotient is known to be fair."""
        if not self._is_quotient(e):
            return ""
        n = self.divisors[e.args[1]]
        found = f"pb_quotient({operands[0]}, d{n})"
        return (
            found
            if self._is_quotient(e.args[0])
            else f"(pb_note({operands[0]}, low, high), {found})"
        )

    def _divided_slowly(self, e: Expr, operands: Sequence[str]) -> str:
        """The same where quotients are not fair: a call, which costs no registers."""
        return f"pb_divide({', '.join(operands)})" if self._is_quotient(e) else ""

    def _is_quotient(self, e: Expr) -> bool:
        return e.op == "div" and e.dtype is dt.float32 and e.args[1] in self.divisors

    def _fair(self, p: Pass) -> str:
        """Whether all quotients are right: what is divided again has less room."""
        depth: dict[Expr, int] = {}
        for e in (e for root in roots_of(p) for e in topological(root, {})):
            depth[e] = 1 + depth.get(e.args[0], 0) if self._is_quotient(e) else 0
        room = 100 - 24 * (max(depth.values()) - 1)
        if room <= 0:
            return "false"
        bounds = [f"low >= ({127 - room}u << 24) - 1", f"high < 0x1p+{room}f"]
        return " && ".join([*(f"pb_is_fair(d{n})" for n in self.divisors.values()), *bounds])

    def _divisors(self, p: Pass) -> str:
        """What elements are divided by that is the same for the whole row, with its reciprocal."""
        found: dict[Expr, None] = {}
        roots = roots_of(p)
        always = set(inline_nodes(roots))
        for e in (e for root in roots for e in topological(root, {}) if e in always):
            if e.op != "div" or e.dtype is not dt.float32 or e.args[1].op == "const":
                continue
            if self._is_uniform(e.args[1]) and not self._is_uniform(e.args[0]):
                found[e.args[1]] = None
        self.divisors = {e: n for n, e in enumerate(found)}
        lines, names = emit(self.source, list(found), self._leaf)
        for n, name in enumerate(names):
            lines.append(f"  const Divisor d{n} = pb_divisor({name});")
        return "\n".join("  " + line for line in lines)

    def _is_uniform(self, root: Expr) -> bool:
        """Whether an expression is the same for all elements of a row."""
        leaves = (e for e in topological(root, {}) if e.op in ("load", "index"))
        return not any(
            e.op == "index" or self.streams[e.value[0]].kind in ("unit", "buffer")  # type: ignore[index]
            for e in leaves
        )


def _flight(roots: Sequence[Expr]) -> int:
    cost = weight(roots)
    return next((n for most, n in FLIGHTS if cost < most), 1)
