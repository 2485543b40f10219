"""`python -m pullback.cli` is the `pullback` command."""

import sys

from pullback.cli import main

sys.exit(main())
