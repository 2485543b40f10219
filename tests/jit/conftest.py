"""Puts the folder of the generated tests on the path, so that those of jit share `matrix`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "generated"))
