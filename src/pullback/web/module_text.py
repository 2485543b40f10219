"""The module of an exported function: how it is used, what runs it, and the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

import numpy as np

from pullback.core.errors import DeviceError
from pullback.files.safetensors import NAMES
from pullback.runtime.webgpu.arithmetic import PROBE
from pullback.web.exported import Exported, PageArray
from pullback.web.program import PageKernel, PageLoop, PagePlace, PageStep, Steps, lines
from pullback.web.text import BUFFER_NAMES, Sources, literal, object_text, steps_text, tree_text

__all__ = ["module_text"]

PARTS = ("load", "gpu", "machine", "arrays", "files")  # of the module, as files in the folder
LAST = f"// -- what was compiled {'-' * 77}\n"
MOST_DISPATCHES = 1 << 17  # of a call: at some microseconds each it would take a second


def module_text(exported: Exported) -> str:
    """The whole module."""
    steps = exported.planned.steps if exported.planned else []
    if (count := _dispatches(steps)) > MOST_DISPATCHES:
        raise DeviceError(
            f"export_web: a call of `{exported.name}` is {count} dispatches, more than"
            f" {MOST_DISPATCHES}. Export a step of the loop, and let the page repeat it."
        )
    folder = files("pullback.web") / "module"
    runtime = [(folder / f"{part}.js").read_text("utf-8") for part in PARTS]
    return "\n".join([_head(exported), *runtime, LAST, *_program(exported), ""])


def _dispatches(steps: Steps) -> int:
    """How many there are at least."""
    count = 0
    for step in steps:
        if isinstance(step, PageLoop):
            count += max(step.rounds, 1) * _dispatches(step.steps)
        else:
            count += isinstance(step, PageStep)
    return count


def _head(exported: Exported) -> str:
    name, given = exported.name, ", ".join(exported.inputs.root)
    return "\n".join(
        [
            f"// `{name}`, compiled by Pullback for WebGPU. This file needs no other code:",
            "//",
            f'//   import {{ load }} from "./{name}.js";',
            f"//   const {name} = await load();",
            f"//   const results = await {name}({{ {given} }});",
            "//",
            *_described("It takes", exported.arguments),
            *_described("It gives", exported.results),
            "",
        ]
    )


def _described(what: str, arrays: Sequence[PageArray]) -> list[str]:
    rows = [f"//   {a.name}: {a.dtype}[{', '.join(map(str, a.shape))}]" for a in arrays]
    return [f"// {what}", *(rows or ["//   nothing"])]


def _program(exported: Exported) -> list[str]:
    """The program as JavaScript."""
    planned, sources = exported.planned, Sources()
    kernels = [sources.kernel(k) for k in planned.kernels] if planned else []
    probe = sources.kernel(PageKernel(PROBE, (("u32", "write"), ("u32", "read")), (0, 1), 1))
    rows = [f"  {name}: {text}," for name, text in _fields(exported).items()]
    return [
        "const program = {",
        *rows,
        "};\n",
        f"const kernels = [{', '.join(kernels)}];\n",
        "// What a GPU rounds correctly is measured with this kernel.",
        f"const probe = {probe};\n",
        "// These operations are a GPU's own where it rounds them correctly.",
        f"const exact = {sources.exact()};\n",
        "// What kernels call.",
        f"const functions = {sources.functions()};",
    ]


def _fields(exported: Exported) -> dict[str, str]:
    planned = exported.planned
    ends = [0]
    for r in exported.results:
        ends.append(ends[-1] + lines(r.nbytes))
    sizes = [exported.input_bytes, exported.weight_bytes]
    sizes += [planned.work_bytes, planned.fault_bytes] if planned else [0, 0]
    steps = steps_text(planned.steps) if planned else []
    return {
        "name": literal(exported.name),
        "inputs": tree_text(exported.inputs.root),
        "outputs": tree_text(exported.outputs.root),
        "arguments": _listed(map(_array, exported.arguments)),
        "results": _listed(map(_array, exported.results, ends)),
        "end": literal(ends[-1]),
        "weights": _listed(map(_array, exported.weights)),
        "constants": _listed(map(_constant, exported.constants)),
        "bytes": literal(sizes),
        "waits": literal(bool(planned and planned.waits)),
        "slots": f"[{', '.join(map(_place, planned.slots))}]" if planned else "[]",
        "noted": literal(list(planned.noted) if planned else []),
        "faults": literal(planned.faults if planned else []),
        "steps": "\n".join(["[", *steps, "  ]"]),
    }


def _listed(rows: Iterable[str]) -> str:
    return "\n".join(["[", *(f"    {row}," for row in rows), "  ]"])


def _place(place: PagePlace) -> str:
    return f"[{BUFFER_NAMES[place.buffer]}, {place.byte}]"


def _array(array: PageArray, at: int | None = None) -> str:
    """An array; `at` is where a result goes among all of them, a weight is known by its name."""
    fields = {
        "path" if array.contents is None else "file": literal(array.name),
        "dtype": literal(array.dtype),
        "shape": literal(array.shape),
        "buffer": BUFFER_NAMES[array.place.buffer],
        "byte": literal(array.place.byte),
        "nbytes": literal(array.nbytes),
    }
    if array.contents is not None:
        fields["tensor"] = literal(NAMES.get(array.dtype))
    if at is not None:
        fields["at"] = literal(at)
    return object_text(fields)


def _constant(array: PageArray) -> str:
    """Numbers that a page need not load, as words."""
    assert array.contents is not None
    raw = array.contents.tobytes()
    words = np.frombuffer(raw + b"\0" * (-len(raw) % 4), np.uint32)
    place = {"buffer": BUFFER_NAMES[array.place.buffer], "byte": literal(array.place.byte)}
    return object_text({**place, "words": literal(words.tolist())})
