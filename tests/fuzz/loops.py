"""Loops whose bodies update their arguments in place: eager, compiled, and written out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

import pullback as pb
from fuzz import checks, values
from fuzz.case import Case, Failed, Given, Step, namespace

__all__ = ["LoopCase", "draw"]

# Lines of a body with carries c and d and a row r, all of one shape.
LINES = (
    "c += r", "c *= 0.5", "d -= c", "c = c * r + d", "d = pb.sin(c)", "c[0] = d[-1]",
    "c[::2] += 1", "r *= c", "d[1:] = c[:-1]", "c, d = d, c", "c = pb.tanh(c) + r * 0.25",
    "d = pb.cumsum(c, axis=0) * 0.1", "c = pb.where(c > d, c, r)", "d += pb.sum(r) * 0.01",
    "c = pb.flip(c, axis=0)", "r += 1", "d = d / (1 + pb.abs(c))", "c = pb.maximum(c, d)",
    "d[c > 0] = 0.5", "c = pb.roll(c, 1, axis=0) - d", "d = pb.mean(c) + d * 0.5",
    "c = pb.exp(-pb.abs(c)) * r", "d = pb.sort(d, axis=0)", "c[-1] *= 2",
)  # fmt: skip
FORMS = {
    "scan": (
        "def body(carry, r):\n    c, d = carry\n{lines}\n    return (c, d), (c, d + r)\n"
        "(c, d), ys = pb.scan(body, (x0, x1), x2{more})",
        "c, d, ys, zs = own(x0), own(x1), [], []\n"
        "for r in {rows}:\n    r = own(r)\n{lines}\n    ys.append(own(c)); zs.append(d + r)\n"
        "ys = (pb.stack(ys{order}), pb.stack(zs{order}))",
    ),
    "fori_loop": (
        "def body(i, carry):\n    c, d = carry\n    r = x2[i]\n{lines}\n    return c, d\n"
        "c, d = pb.fori_loop(0, x2.shape[0], body, (x0, x1))\nys = ()",
        "c, d = own(x0), own(x1)\n"
        "for i in range(x2.shape[0]):\n    r = own(x2[i])\n{lines}\nys = ()",
    ),
    "while_loop": (
        "def body(carry):\n    i, c, d = carry\n    r = x2[i]\n{lines}\n    return i + 1, c, d\n"
        "_, c, d = pb.while_loop(lambda s: s[0] < x2.shape[0], body, (pb.asarray(0), x0, x1)"
        "{more})\nys = ()",
        "c, d = own(x0), own(x1)\n"
        "for i in range(x2.shape[0]):\n    r = own(x2[i])\n{lines}\nys = ()",
    ),
    "cond": (
        "def body(c, d, r):\n{lines}\n    return c, d\n"
        "def other(c, d, r):\n    c += d\n    d *= r\n    return c, d\n"
        "c, d = pb.cond({test}, body, other, x0, x1, x2[0])\nys = ()",
        "c, d, r = own(x0), own(x1), own(x2[0])\n"
        "if {holds}:\n{lines}\nelse:\n    c += d\n    d *= r\nys = ()",
    ),
}


@dataclass
class LoopCase(Case):
    """One loop; each step is a line of its body, and any of them may be left out."""

    form: str = "scan"
    filling: tuple[tuple[str, str], ...] = ()  # what else the text of the form needs

    def text(self, form: str) -> str:
        indented = "\n".join(f"    {s.text}" for s in self.steps) or "    pass"
        body = form.format(lines=indented, **dict(self.filling))
        return "".join(f"    {line}\n" for line in [*body.splitlines(), "return c, d, ys"])

    def source(self) -> str:
        looped, written_out = FORMS[self.form]
        head = "(x0, x1, x2):\n"
        return (
            f"def program{head}{self.text(looped)}\ndef written_out{head}{self.text(written_out)}"
        )

    def without(self, index: int) -> Case | None:
        steps = self.steps[:index] + self.steps[index + 1 :]
        return replace(self, steps=steps) if steps else None

    def run_check(self, name: str) -> None:
        if name not in ("loop_is_what_is_written_out", "gradient_is_what_is_written_out"):
            return super().run_check(name)
        names = namespace()
        exec(self.source(), names)
        try:
            getattr(checks, name)(names["program"], names["written_out"], *self.tensors())
        except Exception as error:
            raise Failed(self, name, error) from error
        return None

    def call(self, check: str) -> str:
        text = super().call(check)
        return text.replace("program,", "program, written_out,") if "written" in check else text


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng([seed, zlib.crc32(b"loops")])
    kind = pb.float64 if rng.random() < 0.7 else pb.float32
    rows = int(rng.choice((1, 2, 3, 5, 8)))
    n = int(rng.choice([n for n in values.SIZES if 2 <= n <= 257]))
    shape = (n,) if rng.random() < 0.7 else (n, int(rng.choice((1, 2, 7, 17))))
    given = [
        Given(f"x{i}", values.array(rng, kind, s))
        for i, s in enumerate((shape, shape, (rows, *shape)))
    ]
    lines = rng.choice(LINES, int(rng.integers(1, 7)))
    steps = [Step(str(line), (), ()) for line in lines]
    form = str(rng.choice(list(FORMS)))
    backwards = form == "scan" and rng.random() < 0.3
    bounded = form == "while_loop" and rng.random() < 0.7
    filling = {
        "more": ", reverse=True" if backwards else f", max_steps={rows + 1}" if bounded else "",
        "rows": "x2[::-1]" if backwards else "x2",
        "order": "[::-1]" if backwards else "",
        "test": "pb.max(x0) > 2",
        "holds": str(bool(np.max(given[0].array) > 2)),  # what is traced has no value
    }
    known = ["runs", "loop_is_what_is_written_out", "jit_gives_the_bits_of_eager"]
    more = ["jit_is_near_eager", "threads_change_nothing"]
    if form != "while_loop" or bounded:
        known.append("gradient_is_what_is_written_out")
        more += [
            "gradient_in_jit_is_near_eager", "gradient_through_jit_is_near_eager",
            "gradient_threads_change_nothing", "backward_is_near_grad",
        ]  # fmt: skip
        if kind is pb.float64:
            more += ["forward_agrees_with_reverse", "gradient_agrees_with_differences"]
    chosen = tuple(known + [c for c in more if rng.random() < 0.3])
    return LoopCase("loops", seed, given, steps, (), chosen, {}, form, tuple(filling.items()))
