"""Small kernels in LLVM IR, and helpers to run them, for the tests of the native core."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

import pullback
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.native import Buffer, wrap

SIGNATURE = "(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %error)"


def loop(name: str, body: str) -> str:
    """A kernel that runs `body` for each unit %i; %p0 ... are pointers and %q0 ... params."""
    loads = []
    for n in range(4):
        if f"%p{n}" in body:
            loads += [
                f"%pp{n} = getelementptr ptr, ptr %ptrs, i64 {n}",
                f"%p{n} = load ptr, ptr %pp{n}",
            ]
        if f"%q{n}" in body:
            loads += [
                f"%qq{n} = getelementptr i64, ptr %params, i64 {n}",
                f"%q{n} = load i64, ptr %qq{n}",
            ]
    return f"""
define void @{name}{SIGNATURE} {{
entry:
  {chr(10).join(loads)}
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %end ]
  {body}
  br label %end
end:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


ADD = loop(
    "add",
    """
  %a.at = getelementptr float, ptr %p1, i64 %i
  %b.at = getelementptr float, ptr %p2, i64 %i
  %o.at = getelementptr float, ptr %p0, i64 %i
  %a = load float, ptr %a.at
  %b = load float, ptr %b.at
  %o = fadd float %a, %b
  store float %o, ptr %o.at""",
)
# scratch[i] = q0 * in[i]
SCALE = loop(
    "scale",
    """
  %a.at = getelementptr i64, ptr %p1, i64 %i
  %s.at = getelementptr i64, ptr %p2, i64 %i
  %a = load i64, ptr %a.at
  %s = mul i64 %a, %q0
  store i64 %s, ptr %s.at""",
)
# out[i] = scratch[q0 - i]
REVERSE = loop(
    "reverse",
    """
  %j = sub i64 %q0, %i
  %s.at = getelementptr i64, ptr %p2, i64 %j
  %o.at = getelementptr i64, ptr %p0, i64 %i
  %s = load i64, ptr %s.at
  store i64 %s, ptr %o.at""",
)
# An error at every unit i >= q0 with i % q1 == 0; the first of a task is the one that counts.
FAIL = loop(
    "fail",
    """
  %late = icmp sge i64 %i, %q0
  %rest = srem i64 %i, %q1
  %hit = icmp eq i64 %rest, 0
  %bad = and i1 %late, %hit
  %code = load i64, ptr %error
  %first = icmp eq i64 %code, 0
  %report = and i1 %bad, %first
  br i1 %report, label %set, label %end
set:
  %position.at = getelementptr i64, ptr %error, i64 1
  store i64 %i, ptr %position.at
  %value.at = getelementptr i64, ptr %error, i64 2
  %value = sub i64 0, %i
  store i64 %value, ptr %value.at
  store i64 7, ptr %error""",
)
# Counts itself in, then waits until q0 tasks are there at once, or about a second.
MEET = f"""
declare i32 @usleep(i32)
define void @meet{SIGNATURE} {{
entry:
  %count = load ptr, ptr %ptrs
  %target = load i64, ptr %params
  %before = atomicrmw add ptr %count, i64 1 seq_cst
  br label %wait
wait:
  %tries = phi i64 [ 0, %entry ], [ %more, %again ]
  %now = load atomic i64, ptr %count seq_cst, align 8
  %all = icmp sge i64 %now, %target
  %late = icmp sgt i64 %tries, 10000
  %stop = or i1 %all, %late
  br i1 %stop, label %done, label %again
again:
  %slept = call i32 @usleep(i32 100)
  %more = add i64 %tries, 1
  br label %wait
done:
  br i1 %all, label %good, label %bad
good:
  ret void
bad:
  store i64 1, ptr %error
  ret void
}}
define void @clear{SIGNATURE} {{
  %count = load ptr, ptr %ptrs
  store atomic i64 0, ptr %count seq_cst, align 8
  ret void
}}"""
SLEEP = f"""
declare i32 @usleep(i32)
define void @sleep{SIGNATURE} {{
  %time = load i32, ptr %params
  %slept = call i32 @usleep(i32 %time)
  ret void
}}"""
KERNELS = {"add": ADD, "scale": SCALE, "reverse": REVERSE, "fail": FAIL, "sleep": SLEEP}


def kernel(name: str) -> int:
    """The address of one of the kernels above."""
    return jit.compile_ir(KERNELS[name], [name])[name]


def of(array: np.ndarray) -> Buffer:
    """A Buffer on the memory of a numpy array."""
    return wrap(array.ctypes.data, array.nbytes, array)


def values(result: object, dtype: type[np.generic] = np.float32) -> np.ndarray:
    """The result of a program, which must not be an error, as a numpy array."""
    assert isinstance(result, Buffer)
    return np.frombuffer(memoryview(result), dtype)


def run_python(code: str, **environment: str) -> str:
    """The output of `code` in a new interpreter, which must succeed within a minute."""
    source = str(Path(pullback.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, *sys.path]), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
