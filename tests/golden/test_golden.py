"""The bits of a few dozen computations are those on file, whatever the instructions and threads.

The file belongs to a version of the orders: other bits need a new version, a line in the changelog
and new hashes (`python tests/golden/test_golden.py` writes them).
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pullback.compile.kernel import order
from pullback.core import dtypes
from pullback.core.errors import DeviceError
from pullback.runtime.cpu.gemm import vector_gemm
from pullback.runtime.cpu.llvm import emission, jit

FOLDER = Path(__file__).parent
FILE = FOLDER / "hashes.json"
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = ("x86-64-v3", "x86-64-v4")


def run(*command: str, level: str, threads: int) -> str:
    environment = {**os.environ, "PULLBACK_CPU": level, "PULLBACK_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, *command], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def computed(level: str, threads: int) -> dict[str, str]:
    return json.loads(run(str(FOLDER / "computations.py"), level=level, threads=threads))


def skip_unless_known(level: str) -> None:
    if level and not X86:
        pytest.skip("levels are those of x86-64")
    if level == "x86-64-v4" and jit.host().vector_bits < 512:
        pytest.skip("this CPU has no AVX-512")


def test_hashes_belong_to_the_version_of_the_orders():
    assert json.loads(FILE.read_text())["orders"] == order.VERSION


@pytest.mark.parametrize("level,threads", [("", 2), ("x86-64-v3", 1), ("x86-64-v4", 4)])
def test_bits_are_those_on_file(level: str, threads: int):
    skip_unless_known(level)
    found, expected = computed(level, threads), json.loads(FILE.read_text())["sha256"]
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if value != expected[name]] == []


@pytest.mark.parametrize("level,bits", [("x86-64-v3", 256), ("x86-64-v4", 512)])
def test_code_is_held_to_a_level(level: str, bits: int):
    skip_unless_known(level)
    code = "from pullback.runtime.cpu.llvm import jit; print(jit.host().vector_bits)"
    assert int(run("-c", code, level=level, threads=1)) == bits


@pytest.mark.parametrize(
    "level,features,match",
    [
        ("x86-64-v2", {}, "one of x86-64-v3, x86-64-v4, got 'x86-64-v2'"),
        ("x86-64-v3", {"avx2": False}, "is x86-64-v3, but this CPU has no 64bit"),
    ],
)
def test_levels_that_there_are_not_are_errors(level: str, features: Any, match: str):
    with pytest.raises(DeviceError, match=match):
        emission.left_out(level, features)


def arm_code(text: str) -> str:
    """What LLVM makes of a module for an ARM CPU of 64 bits."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=3)
    return machine.emit_assembly(llvm.parse_assembly(text))


KERNELS = {
    "rows": lambda: vector_gemm._RowsKernel(dtypes.float32, 1).module,
    "dots": lambda: vector_gemm._Dots(dtypes.float64, 1, 1).module,
}


@pytest.mark.parametrize("name", KERNELS)
def test_arm_fuses_what_is_written_fused(name: str):
    text = KERNELS[name]().text()
    assert "fmuladd" in text
    assert not re.search(r"\bf(add|mul|sub) (fast|reassoc|contract)", text)
    code = arm_code(text)
    assert "fmla" in code and "fmul" not in code


def test_arm_fuses_nothing_else():
    code = arm_code("""define float @f(float %x, float %y, float %z) {
  %a = fmul float %x, %y
  %b = fadd float %a, %z
  ret float %b
}""")
    assert "fmul" in code and "fadd" in code and "fmadd" not in code


def main() -> None:
    record = {"orders": order.VERSION, "sha256": computed("", 2)}
    FILE.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
