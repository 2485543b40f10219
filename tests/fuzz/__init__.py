"""Random programs, each run in several ways that must agree: `python -m fuzz`, or `make fuzz`.

Four kinds of case are drawn from a seed: programs of registered operations, indexing and
assignment, handles that are updated in place, and loops. Worker processes run them, so that a crash
or a hang is one more finding. A finding is made smaller by leaving out steps, and written as a
script that needs nothing but pullback.
"""
