"""Counter-based random numbers: every function takes a key, and the same key gives the same numbers
everywhere.

The functions are declared in `pullback.ops.random`.
"""

from pullback.missing_names import missing_name as _missing_name


def __getattr__(name: str) -> object:
    raise _missing_name("random", name, [n for n in globals() if not n.startswith("_")])
