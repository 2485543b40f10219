"""Kernels as functions of the number of a thread block, so that one kernel can go through many.

What comes before a kernel in its source becomes a namespace, and the kernel a function in it, which
is told which block it is. In the function the names of CUDA are variables of its own, what is the
same in all rounds is a constant, and `__syncthreads` is a barrier of so many threads. Nothing is
computed in another order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["HEAD", "OWN_NAME", "STATIC_BYTES", "LoopKernel", "function", "kernel_of", "namespaces"]

OWN_NAME = "@NAME@"  # of a function, before it has one
STATIC_BYTES = 48 << 10  # of shared memory that a kernel may have beside what a launch gives it

HEAD = r"""
#define PB_DEVICE static __device__ __forceinline__
struct PbDim { unsigned x, y, z; };
struct PbPlace {  // in memory, of any type
  unsigned char* p;
  template <typename T> __device__ __forceinline__ operator T*() const { return (T*)p; }
};
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                          \
  extern __shared__ __align__(16) unsigned char pb_bytes[]; \
  type* name = reinterpret_cast<type*>(pb_bytes)
#endif
#ifndef PB_EMULATED
#define PB_CLUSTERED(n)
#if __CUDA_ARCH__ >= 900
#define PB_CLUSTER(n) __cluster_dims__(n, 1, 1)
#else
#define PB_CLUSTER(n)
#endif
// The first N threads of a block wait for each other.
template <int N> PB_DEVICE void pb_meet() { asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory"); }
template <int N> PB_DEVICE int pb_meet_or(const int says) {
  int found;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, 1, %2, p;\n"
               "selp.s32 %0, 1, 0, q;\n}" : "=r"(found) : "r"(says), "n"(N) : "memory");
  return found;
}
PB_DEVICE void pb_meet_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();  // threads of a warp have come from functions, one by one
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
               ::: "memory");
#endif
}
// All blocks of the grid wait for each other; `count` was 0, and `goal` is what it will be.
PB_DEVICE void pb_meet_grid(unsigned* const count, unsigned& goal) {
  __syncwarp();
  __syncthreads();
  goal += gridDim.x;
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1u);
    while ((int)(*(volatile unsigned*)count - goal) < 0) {}
    __threadfence();
  }
  __syncthreads();
}
#endif
"""

_KERNEL = re.compile(
    r'extern "C" __global__ void (?:PB_CLUSTER\([^()]*\) )?'
    r"(?:__launch_bounds__\([^()]*\)\s)?(\w+)\("
)
_STATIC = re.compile(r"(?<!extern )__shared__ ([\w ]+?) (\w+)((?:\[[^\]]*\])+);")
_PLACED = re.compile(r"\b(?:blockIdx|gridDim|blockDim)\b")
_DEFINED = re.compile(r"#\s*define\s+(\w+)(.*(?:\\\n.*)*)")
_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|endif)\b")
# What asks for other thread blocks to be there at the same time.
_ALL_AT_ONCE = ("SPIN()", "griddepcontrol", "cooperative")


class LoopKernel(NamedTuple):
    """A kernel of a source: its parameters, its body, and the text that comes before it."""

    parameters: tuple[str, ...]
    body: str
    before: str

    @property
    def has_static(self) -> bool:
        """Whether it has shared memory beside what a launch gives it."""
        return _STATIC.search(self.body) is not None


def _closing(text: str, at: int, pair: str) -> int:
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for found in re.compile("[" + re.escape(pair) + "]").finditer(text, at):
        depth += 1 if found[0] == pair[0] else -1
        if depth == 0:
            return found.start()
    raise AssertionError("a source whose brackets do not match")


def _split(parameters: str) -> tuple[str, ...]:
    """The parameters of a function, one by one."""
    found, depth, last = [], 0, 0
    for k, c in enumerate(parameters):
        depth += (c in "<(") - (c in ">)")
        if c == "," and depth == 0:
            found.append(parameters[last:k])
            last = k + 1
    return tuple(" ".join(p.split()) for p in (*found, parameters[last:]) if p.strip())


@lru_cache(1024)
def kernel_of(source: str, name: str) -> LoopKernel | None:
    """A kernel that can be a function of the number of its block; None if it can't."""
    if any(word in source for word in _ALL_AT_ONCE):
        return None
    before, last, own = "", 0, None
    for found in _KERNEL.finditer(source):
        opened = found.end() - 1
        closed = _closing(source, opened, "()")
        body = source.index("{", closed)
        end = _closing(source, body, "{}") + 1
        before += source[last : found.start()]
        last = end
        if found[1] == name:
            own = source[opened + 1 : closed], source[body:end]
    before += source[last:]
    if own is None or _PLACED.search(_DEFINED.sub("", before)):
        return None  # a function that kernels call does not know its block
    return LoopKernel(_split(own[0]), own[1], before)


def namespaces(parts: Sequence[tuple[str, str, int, Sequence[str]]]) -> list[str]:
    """The text of namespaces: the name, what comes before kernels, threads of a block, functions.

    The macros of a namespace hold in it, and nowhere else.
    """
    found = []
    for name, before, threads, functions in parts:
        text = _told(_alone(before), threads)
        ended = [f"#undef {macro}" for macro in _unconditional(before)]
        found.append("\n".join([f"namespace {name} {{", text, *functions, "}", *ended]))
    return found


def function(
    kernel: LoopKernel,
    arguments: Sequence[str | None],
    grid: tuple[int, int],
    threads: int,
    start: int,
) -> str:
    """The function OWN_NAME(block, shared memory, pointers).

    `arguments` are initialisers of what is the same in all rounds, None for a pointer. What a
    launch gives of shared memory ends at `start`.
    """
    constants, pointers, own = [], [], []
    for parameter, value in zip(kernel.parameters, arguments, strict=True):
        kind, name = re.fullmatch(r"(.*?)(\w+)", parameter).groups()  # type: ignore[union-attr]
        if value is None:
            pointers.append(parameter)
        elif value.startswith("{"):
            fixed = kind if kind.startswith("const ") else f"const {kind}"
            constants.append(f"static __device__ {fixed}{OWN_NAME}_{name} = {value};")
            own.append(f"{kind}{'&' if fixed == kind else ''}{name} = {OWN_NAME}_{name};")
        else:
            own.append(f"{kind}{name} = ({kind.replace('__restrict__', '')}){value};")
    across, down = grid
    given = ["const unsigned pb_block", "unsigned char* const pb_memory", *pointers]
    place = "pb_block, 0, 0" if down == 1 else f"pb_block % {across}, pb_block / {across}, 0"
    lines = [
        *constants,
        f"static __device__ __noinline__ void {OWN_NAME}({', '.join(given)}) {{",
        f"  const PbDim blockIdx{{{place}}}, gridDim{{{across}, {down}, 1}};",
        f"  const PbDim blockDim{{{threads}, 1, 1}};",
        f"  unsigned char* const pb_static = pb_memory + {start};",
        *(f"  {line}" for line in own),
        _told(_alone(_in_place(kernel.body)), threads),
        "}",
    ]
    return "\n".join(lines)


def _unconditional(source: str) -> list[str]:
    """The macros that a source defines, whatever they depend on."""
    found: dict[str, None] = {}
    depth = 0
    for line in source.split("\n"):
        condition, defined = _CONDITION.match(line.strip()), _DEFINED.match(line.strip())
        if condition:
            depth += -1 if condition[1] == "endif" else 1
        elif defined and depth == 0:
            found[defined[1]] = None
    return list(found)


def _told(text: str, threads: int) -> str:
    """A text whose barriers are of so many threads."""
    text = text.replace("__syncthreads_or(", f"pb_meet_or<{threads}>(")
    return text.replace("__syncthreads()", f"pb_meet<{threads}>()")


def _alone(text: str) -> str:
    """A text without clusters: the first of their blocks does what all would do."""
    lines = [
        re.sub(r"(?<!#define )\bPB_CLUSTERS\b", "0", line)
        for line in text.split("\n")
        if not line.startswith("PB_CLUSTERED(")
    ]
    return "\n".join(lines)


def _in_place(body: str) -> str:
    """A body whose static shared memory is part of what a launch gives."""
    ends = ["0"]

    def placed(found: re.Match[str]) -> str:
        kind, name, sizes = found.groups()
        at, end = ends[-1], f"pb_end_{name}"
        ends.append(end)
        return (
            f"constexpr int {end} = ({at} + (int)sizeof({kind}{sizes}) + 15) / 16 * 16;"
            f" {kind} (&{name}){sizes} = *reinterpret_cast<{kind} (*){sizes}>(pb_static + {at});"
        )

    return _STATIC.sub(placed, body)
