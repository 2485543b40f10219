"""Fused graphs, derivatives included, as CUDA C: compiled by NVRTC, and run on the host."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from cuda_emulator import COMPILER, Emulator
from pullback.compile.graph.passes import optimise
from pullback.compile.kernel.forms import Accumulate, MultiMap
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import FoldGroup, MapGroup, ParallelGroup, SequenceGroup
from pullback.ir.graph import trace
from pullback.runtime.cuda import loops, nvrtc
from pullback.runtime.cuda.folds import fold_code
from pullback.runtime.cuda.launch import Launches, map_plan, reduce_plan
from pullback.runtime.cuda.map_walks import map_walk, usual_walks
from pullback.runtime.cuda.printer import Source


def chain(x):
    return (pb.sin(x) * pb.exp(-x * x) + pb.log1p(x * x)).sum()


def softmax_loss(x):
    e = pb.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return (p * p).sum()


def normalised(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / pb.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
    return (pb.tanh(scaled) * x.mean(axis=0)).sum()


FUNCTIONS = {
    "chain": pb.value_and_grad(chain),
    "softmax": pb.value_and_grad(softmax_loss),
    "normalised": pb.value_and_grad(normalised),
    "third order": pb.grad(lambda x: pb.grad(lambda y: pb.grad(chain)(y).sum())(x).sum()),
}
SHAPE = (37, 130)


def fused(name):
    x = pb.tensor(np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32))
    graph = optimise(trace(FUNCTIONS[name])(x))
    return x, graph, fuse(graph, [x._aval])


def members(grouped):
    """The groups that are kernels of ours, in order."""
    for group in grouped.groups:
        yield from kernels_in(group)


def kernels_in(group):
    if isinstance(group, (SequenceGroup, ParallelGroup)):
        for member in group.members:
            yield from kernels_in(member)
    else:
        assert isinstance(group, (MapGroup, FoldGroup)), group
        yield group


def map_of(group):
    inputs = tuple(a.stored.aval.dtype for a in group.reads)
    outputs = tuple(a.stored.aval.dtype for a in group.writes)
    return MultiMap(inputs, outputs, tuple(map(tuple, group.bodies)))


def source_of(groups):
    source = Source()
    for group in groups:
        if isinstance(group, FoldGroup):
            fold_code(source, group.kernel)
        else:
            for walk in usual_walks(map_of(group)):
                map_walk(source, map_of(group), walk)
    return source.text()


def test_the_slow_sides_of_rare_branches_are_functions_of_their_own():
    _, _, grouped = fused("chain")
    source = source_of(members(grouped))
    assert source.count("__noinline__") == source.count(" = pb_apart_") == 2  # of sine and cosine


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nvrtc_compiles_fused_kernels(name):
    _, _, grouped = fused(name)
    code = nvrtc.compile_source(source_of(members(grouped)), "compute_75", nvrtc.QUICK)
    assert b".entry" in code


def plan_of(group):
    if isinstance(group, FoldGroup):
        assert not isinstance(group.kernel, Accumulate)
        strides = [a.strides for a in group.reads]
        return reduce_plan(group.kernel, group.kept, group.folded, strides), [group.write]
    accesses = [*group.writes, *group.reads]
    aligned = all(a.offset * a.stored.aval.dtype.itemsize % 16 == 0 for a in accesses)
    reads, writes = ([a.strides for a in side] for side in (group.reads, group.writes))
    return map_plan(map_of(group), group.shape, reads, writes, aligned), group.writes


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fused_graph_has_the_bits_of_the_jitted_function(name):
    x, graph, grouped = fused(name)
    memory = {id(s): np.empty(max(1, s.aval.size), s.aval.dtype.numpy) for s in grouped.computed()}
    memory |= {id(s): x.numpy().reshape(-1) for s in grouped.inputs}
    for s in grouped.constants:
        buffer, av, _ = graph.constants[s.position].constant
        memory[id(s)] = np.ascontiguousarray(av.device.runtime.to_numpy(buffer, av)).reshape(-1)
    for group in members(grouped):
        plan, writes = plan_of(group)
        outs, ins = (
            [memory[id(a.stored)][a.offset :] for a in side] for side in (writes, group.reads)
        )
        scratch = [np.empty(n, np.uint8) for n in plan.scratch]
        for one in plan.launches:
            kernel = group.kernel if isinstance(group, FoldGroup) else map_of(group)
            Emulator(loops.source_of(kernel, (one.function,))).run(
                Launches([one]), outs, ins, scratch
            )
    want = pb.jit(FUNCTIONS[name])(x)
    want = want if isinstance(want, tuple) else (want,)
    for region, w in zip(grouped.outputs, want, strict=True):
        flat = memory[id(region.stored)][region.offset :]
        strides = tuple(n * flat.itemsize for n in region.aval.strides or ())
        got = np.lib.stride_tricks.as_strided(flat, region.aval.shape, strides)
        np.testing.assert_array_equal(got, w.numpy())
