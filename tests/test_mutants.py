"""The tool that breaks rules on purpose: its mutants are noticed, and leave nothing behind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pullback as pb

TOOLS = Path(__file__).parents[1] / "tools"
QUICK = (
    ("a sign is wrong", "cos"),
    ("a saved operand is a constant", "sin"),
    ("a conjugate is forgotten", "reciprocal"),
    ("a permutation is not inverted", "permute_dims"),
    ("duplicates overwrite each other", "primitive.gather"),
    ("forward mode: a sign is wrong", "abs"),
)


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return loaded("mutants")


@pytest.mark.parametrize(("kind", "key"), QUICK)
def test_a_broken_rule_is_noticed(mutants: ModuleType, kind: str, key: str) -> None:
    (mutant,) = [m for m in mutants.MUTANTS if (m.kind, m.key) == (kind, key)]
    assert mutants.killer(mutant) is not None


def test_a_rule_that_is_not_broken_is_not_noticed(mutants: ModuleType) -> None:
    unchanged = mutants.Mutant("nothing is wrong", "cos", "x", lambda op, operand: None)
    assert mutants.killer(unchanged) is None


def test_a_mutant_leaves_nothing_behind(mutants: ModuleType) -> None:
    mutant = next(m for m in mutants.MUTANTS if m.key == "cos")
    x = pb.tensor(0.5, dtype="float64")
    before = pb.grad(pb.cos)(x).item()
    with mutants.applied(mutant):
        assert pb.grad(pb.cos)(x).item() == -before
    assert pb.grad(pb.cos)(x).item() == before


def test_twenty_rules_are_broken_in_twenty_ways(mutants: ModuleType) -> None:
    assert len({m.key for m in mutants.MUTANTS}) >= 20
    assert len({m.kind for m in mutants.MUTANTS}) >= 20


@pytest.fixture(scope="module")
def source_mutants() -> ModuleType:
    return loaded("source_mutants")


def test_what_source_mutants_replace_is_there(source_mutants: ModuleType) -> None:
    for mutant in source_mutants.MUTANTS:
        compile(mutant.source(), mutant.module, "exec")
        assert all(
            (source_mutants.ROOT / t.partition("::")[0]).exists() for t in mutant.tests.split()
        )


def test_a_source_mutant_is_noticed_and_an_unchanged_source_is_not(
    source_mutants: ModuleType,
) -> None:
    mutant = next(m for m in source_mutants.MUTANTS if m.module == "ops/creation.py")
    quick = mutant._replace(tests="tests/test_handles.py::test_kept_scalars_are_not_given_away")
    assert source_mutants.noticed(quick._replace(new=quick.old)) is None
    assert "test_kept_scalars" in (source_mutants.noticed(quick) or "")
