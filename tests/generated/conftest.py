"""Puts this folder on the path, so that the generated tests share `matrix`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
