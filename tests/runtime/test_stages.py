"""Programs of many stages: arenas, several outputs, loops, branches, blocks of rows."""

import numpy as np
import pytest

from pullback.compile.kernel.forms import Gather, Map, MultiMap, Reduce
from pullback.compile.program.target import IndexArrays
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.ir.scalar import acc, cast, const, index, load, select
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import matmul
from pullback.runtime.cpu.indexing import gather_stages
from pullback.runtime.cpu.loops import fold_stages, map_stages
from pullback.runtime.cpu.native import stages
from runtime.kernel_arrays import array, buffer, check_bits, dense, floats, sample, steps
from runtime.programs import arena_program, map_program, reduce_program

X, Y = load(0, dt.float64), load(1, dt.float64)
ADD = Map((dt.float64, dt.float64), dt.float64, (X + Y,))
DOUBLE = Map((dt.float64,), dt.float64, (X + X,))
COPY = Map((dt.float64,), dt.float64, (X,))
BOTH = MultiMap(
    (dt.float64, dt.float64), (dt.float64, dt.float32), ((X + Y,), (cast(X * Y, dt.float32),))
)
TOTAL = Reduce(
    (dt.float64,),
    dt.float64,
    (const(0.0, dt.float64),),
    (X,),
    (acc("a", 0, dt.float64) + acc("b", 0, dt.float64),),
    (acc("a", 0, dt.float64),),
)


def test_arena_and_several_outputs(thread_count):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1000))
    # slots: 0 output, 1-2 inputs, 3 arena, 4 second half of the arena, 5 second output
    pointers = [(3, 8000), (0, 8000)]
    body = [*dense(ADD, 1000, [3], [1, 2]), *dense(DOUBLE, 1000, [4], [3])]
    body += dense(BOTH, 1000, [0, 5], [4, 3])
    program = arena_program(2, 12000, 16000, pointers, body)
    result = program(buffer(x), buffer(y))
    total = x + y
    assert np.array_equal(floats(result, count=1000), 2 * total + total)
    second = floats(result, np.float32, 8000, 1000)
    assert np.array_equal(second, (2 * total * total).astype(np.float32))


def test_pointers_of_pointers():
    x = np.arange(8.0)
    body = dense(COPY, 4, [0], [4])
    program = arena_program(1, 32, 0, [(1, 16), (3, 16)], body)
    assert np.array_equal(floats(program(buffer(x))), x[4:])
    with pytest.raises(ValueError, match="needs a base before its slot 3"):
        arena_program(1, 32, 0, [(3, 0)], body)


def test_empty_program():
    assert floats(arena_program(0, 0, 0, [], [])()).size == 0


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 37), (5, 4, 3), (300, 400)])
@pytest.mark.parametrize("out", [(dt.float32, dt.complex64), (dt.bool_, dt.int8)])
def test_multi_map(shape, out, thread_count):
    rng = np.random.default_rng(1)
    a = rng.standard_normal(shape).astype(np.float32)
    b = np.asarray(rng.standard_normal(shape[-1:])).astype(np.float32)
    x, y = load(0, dt.float32), load(1, dt.float32)
    if out[0] is dt.bool_:
        bodies = ((x < y,), (cast(index(), dt.int8),))
        expected = [a < b, np.arange(a.size).astype(np.int8).reshape(shape)]
    else:
        bodies = ((x + y,), (x * y, x - y))
        expected = [a + b, a * b + 1j * (a - b)]
    kernel = MultiMap((dt.float32, dt.float32), out, bodies)
    row = (0,) * (len(shape) - 1) + (1,)
    own = dense_strides(shape)
    last = (*(s * 2 for s in own[:-1]), own[-1] * 2)  # every second element
    program = arena_program(
        2,
        a.size * (out[0].itemsize + 2 * out[1].itemsize),
        0,
        [(0, a.size * out[0].itemsize)],
        map_stages.map_stages(kernel, shape, [0, 4], [own, last], [1, 2], [steps(a), row]),
    )
    result = program(buffer(a), buffer(b))
    first = floats(result, out[0].numpy, 0, a.size).reshape(shape)
    second = floats(result, out[1].numpy, a.size * out[0].itemsize, 2 * a.size)[::2].reshape(shape)
    assert np.array_equal(first, expected[0])
    assert np.array_equal(second, expected[1].astype(out[1].numpy))


def test_in_place(thread_count):
    x, y = np.random.default_rng(2).standard_normal((2, 100_003))
    body = [*dense(ADD, x.size, [0], [1, 2]), *dense(DOUBLE, x.size, [0], [0])]
    body += dense(BOTH, x.size, [0, 3], [0, 2])
    program = arena_program(2, x.nbytes, x.nbytes, [], body)
    assert np.array_equal(floats(program(buffer(x), buffer(y))), 2 * (x + y) + y)


def running_sum(n: int, rounds: int, reverse: bool) -> list[native.Stage]:
    """carry += x[i]; y[i] = carry. Slots: 0 output, 1 x, 2 initial, 3 arena, then pointers."""
    step = -8 * n if reverse else 8 * n
    body = [*dense(ADD, n, [6], [5, 4]), *dense(COPY, n, [7], [6])]
    loop = stages.loop_stage(body, rounds, [(4, step), (7, step)], [(5, 6, 8 * n)])
    return [*dense(COPY, n, [5], [2]), loop]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rounds", [0, 1, 2, 7])
@pytest.mark.parametrize("n", [1, 5, 100_000])
def test_scan(n, rounds, reverse, thread_count):
    rng = np.random.default_rng(3)
    x, start = rng.standard_normal((rounds, n)), rng.standard_normal(n)
    last = max(0, rounds - 1) * 8 * n if reverse else 0
    # 4 x, 5 carry (at the end of the output), 6 spare, 7 y
    pointers = [(1, last), (0, rounds * 8 * n), (3, 0), (0, last)]
    body = running_sum(n, rounds, reverse)
    program = arena_program(2, (rounds + 1) * 8 * n, 8 * n, pointers, body)
    order = x[::-1] if reverse else x
    expected = [start]
    for row in order:
        expected.append(expected[-1] + row)
    ys = np.array(expected[1:]).reshape(rounds, n)
    ys = ys[::-1] if reverse else ys
    for _ in range(2):
        result = floats(program(buffer(x), buffer(start))).reshape(rounds + 1, n)
        assert np.array_equal(result[:rounds], ys)
        assert np.array_equal(result[rounds], expected[-1])


def test_nested_loops(thread_count):
    """Three times: five rounds of doubling, then one addition."""
    x = np.arange(1.0, 4.0)
    inner = stages.loop_stage(dense(DOUBLE, 3, [3], [0]), 5, (), [(0, 3, 24)])
    outer = stages.loop_stage([inner, *dense(ADD, 3, [2], [0, 1])], 3, (), [(0, 2, 24)])
    program = arena_program(1, 24, 48, [(2, 24)], [*dense(COPY, 3, [0], [1]), outer])
    expected = x
    for _ in range(3):
        expected = expected * 32 + x
    assert np.array_equal(floats(program(buffer(x))), expected)


@pytest.mark.parametrize("limit", [0.5, 1.0, 3.0, 1000.0])
def test_while(limit):
    """Doubles while below the limit."""
    less = Map((dt.float64, dt.float64), dt.bool_, (X < Y,))
    loop = stages.while_stage(
        dense(less, 1, [4], [0, 2]), 4, dense(DOUBLE, 1, [3], [0]), [(0, 3, 8)]
    )
    program = arena_program(2, 8, 16, [(3, 8)], [*dense(COPY, 1, [0], [1]), loop])
    expected = 1.0
    while expected < limit:
        expected *= 2
    assert floats(program(buffer(np.ones(1)), buffer(np.array([limit]))))[0] == expected


@pytest.mark.parametrize("flag", [False, True])
def test_branch(flag):
    x = np.arange(5.0)
    choice = stages.branch_stage(2, dense(DOUBLE, 5, [0], [1]), dense(COPY, 5, [0], [1]))
    program = arena_program(2, 40, 0, [], [choice])
    assert np.array_equal(floats(program(buffer(x), buffer(np.array([flag])))), x * (1 + flag))


def test_parts(thread_count):
    """Lists that need nothing of each other, one of them empty."""
    x, y = np.random.default_rng(3).standard_normal((2, 900))
    first = [*dense(ADD, 900, [4], [1, 2]), *dense(DOUBLE, 900, [0], [4])]
    second = dense(BOTH, 900, [5, 6], [1, 2])
    pointers = [(3, 0), (0, 7200), (0, 14400)]
    parts = stages.parts_stage([first, [], second])
    program = arena_program(2, 7200 * 2 + 3600, 7200, pointers, [parts])
    result = program(buffer(x), buffer(y))
    assert np.array_equal(floats(result, count=900), (x + y) + (x + y))
    assert np.array_equal(floats(result, offset=7200, count=900), x + y)
    product = floats(result, np.float32, 14400, 900)
    assert np.array_equal(product, (x * y).astype(np.float32))


def test_error_in_a_part():
    good = dense(COPY, 2, [0], [1])
    gathered = gather_stages.gather_stages(
        Gather(dt.float64, (dt.int64,)), (5,), 1, (0,), IndexArrays([2], [(1,)], [(3, 1)], 40), 0
    )
    program = arena_program(2, 40, 0, [], [stages.parts_stage([good, gathered])])
    bad = np.array([0, 1, -7, 9, 2])
    assert program(buffer(np.arange(3.0)), buffer(bad)) == (40, 2, -7)


def test_error_in_a_loop():
    """The third round reads out of range; its code names the kernel."""
    gather = Gather(dt.float64, (dt.int64,))
    indices = IndexArrays([4], [(1,)], [(3, 1)], 40)
    body = gather_stages.gather_stages(gather, (1,), 1, (0,), indices, 0)
    loop = stages.loop_stage(body, 5, [(4, 8)])
    program = arena_program(2, 8, 0, [(2, 0)], [loop])
    x, good, bad = np.arange(3.0), np.array([0, 1, 2, 1, 2]), np.array([0, 1, -7, 9, 2])
    assert floats(program(buffer(x), buffer(good)))[0] == 2
    assert program(buffer(x), buffer(bad)) == (40, 0, -7)


@pytest.mark.parametrize("rows,columns", [(1, 1), (7, 5), (64, 1000), (1001, 130)])
@pytest.mark.parametrize("local", [False, True])
def test_blocks_of_rows(rows, columns, local, thread_count):
    """(x + row sums of x) * 2, minus the sums of those; with temporaries in memory or per block."""
    x = np.random.default_rng(4).standard_normal((rows, columns))
    shape, own, column = (rows, columns), (columns, 1), (1, 0)
    take = native.Scratch(100)
    nbytes = 8 * rows * columns
    # 3 sums, 4 shifted, 5 sums of those
    pointers = [(2, 0), (2, 8 * rows), (2, 8 * rows + nbytes)]

    def total(source, target):
        return fold_stages.reduce_stages(
            TOTAL, (rows,), (columns,), [source], [own], target, take, True
        )

    def combine(kernel, target, ins, strides):
        return map_stages.map_stages(kernel, shape, [target], [own], ins, strides, True)

    minus = Map((dt.float64, dt.float64), dt.float64, (X - Y,))
    twice = Map((dt.float64, dt.float64), dt.float64, ((X + Y) * 2.0,))
    members = [*total(1, 3), *combine(twice, 4, [1, 3], [own, column]), *total(4, 5)]
    members += combine(minus, 0, [4, 5], [own, column])
    assert len(members) == 4
    temporaries = [(3, 8), (4, 8 * columns), (5, 8)]
    stage = stages.rows_stage(members, rows, 7, 50, temporaries if local else ())
    arena = 0 if local else 16 * rows + nbytes
    program = arena_program(1, nbytes, arena, pointers, [stage])
    separate = arena_program(1, nbytes, 16 * rows + nbytes, pointers, members)
    result = floats(program(buffer(x))).reshape(rows, columns)
    assert np.array_equal(result, floats(separate(buffer(x))).reshape(rows, columns))
    moved = (x + x.sum(1, keepdims=True)) * 2
    assert np.allclose(result, moved - moved.sum(1, keepdims=True))


def test_rows_refuse():
    (stage,) = dense(COPY, 10, [0], [1], 10)
    with pytest.raises(ValueError, match="as many units for each of 3 rows, got 10"):
        stages.rows_stage([stage], 3, 1, 1)
    with pytest.raises(ValueError, match="local arrays have"):
        stages.rows_stage([stage], 10, 1 << 20, 1, [(1, 8)])


def test_no_rows():
    body = dense(COPY, 0, [0], [1], 1)
    program = arena_program(1, 0, 0, [], [stages.rows_stage(body, 0, 4, 4)])
    assert floats(program(buffer(np.empty(0)))).size == 0


def test_grouped_reduction_with_an_area(thread_count):
    """Partial results of a long sum lie in the arena."""
    x = np.random.default_rng(5).standard_normal(400_000)
    sizes: list[int] = []

    def take(nbytes):
        sizes.append(nbytes)
        return 3

    body = fold_stages.reduce_stages(TOTAL, (), (x.size,), [1], [(1,)], 4, take)
    (nbytes,) = sizes
    program = arena_program(1, 8, 64 + nbytes, [(2, 64), (0, 0)], body)
    alone = reduce_program(TOTAL, (), (x.size,), [(1,)])
    assert floats(program(buffer(x))) == floats(alone(buffer(x)))
    assert np.allclose(floats(program(buffer(x))), x.sum())


def test_product_with_areas(thread_count):
    """Strides that no library reads: packed into areas that the caller gives."""
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((30, 2 * 40))[:, ::2], rng.standard_normal((3 * 40, 20))[::3]
    take = native.Scratch(4)
    body = matmul.matmul_stages(dt.float64, (), 30, 20, 40, 1, steps(a), 2, steps(b), 0, take)
    pointers = [(3, sum(take.sizes[:k])) for k in range(len(take.sizes))]
    program = arena_program(2, 30 * 20 * 8, sum(take.sizes), pointers, body)
    assert np.allclose(floats(program(buffer(a), buffer(b))).reshape(30, 20), a @ b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("m,n,k", [(50, 24, 40), (7, 3, 5), (1, 9, 70)])
def test_product_and_bias_by_rows(m, n, k, layout, thread_count):
    """A product, its sum with a row and a product again, block after block."""
    rng = np.random.default_rng(7)
    a, b, c = rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng.standard_normal((n, n))
    a = np.asfortranarray(a) if layout[0] == "t" else a
    b = np.asfortranarray(b) if layout[1] == "t" else b
    bias = rng.standard_normal(n)
    sizes: list[int] = []
    # slots: 0 output, 1-4 inputs, 5 arena, 6-7 temporaries, then scratch

    def take(nbytes):
        sizes.append(nbytes)
        return 7 + len(sizes)

    first = matmul.matmul_row_stages(dt.float64, (m, n, k), (1, steps(a)), (2, steps(b)), 6, take)
    last = matmul.matmul_row_stages(dt.float64, (m, n, n), (7, (n, 1)), (3, steps(c)), 0, take)
    assert first is not None and last is not None
    own = (n, 1)
    add = map_stages.map_stages(ADD, (m, n), [7], [own], [6, 4], [own, (0, 1)], True)
    rows = stages.rows_stage([first[-1], *add, last[-1]], m, 4, 8, [(6, 8 * n), (7, 8 * n)])
    pointers = [(5, 0), (5, 0), *((5, sum(sizes[:i])) for i in range(len(sizes)))]
    body = [*first[:-1], *last[:-1], rows]
    program = arena_program(4, m * n * 8, sum(sizes), pointers, body)
    result = floats(program(*map(buffer, (a, b, c, bias)))).reshape(m, n)
    assert np.allclose(result, (a @ b + bias) @ c)


def test_no_product_by_rows():
    take = native.Scratch(4)
    rows = matmul.matmul_row_stages
    assert rows(dt.complex64, (3, 3, 3), (1, (3, 1)), (2, (3, 1)), 0, take) is None
    assert rows(dt.float32, (3, 3, 0), (1, (0, 1)), (2, (3, 1)), 0, take) is None
    big = rows(dt.float32, (3, 4096, 4096), (1, (4096, 1)), (2, (4096, 1)), 0, take)
    assert big is None


TINY = [(), (1,), (5,), (16,), (31,), (3, 1), (3, 3, 2), (2, 3, 4), (64,), (4, 4, 6), (9, 13)]


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_tiny_maps_have_the_bits_of_others(shape, dtype):
    """Dense, broadcast, transposed and reversed operands, with shapes compiled in or not."""
    rng = np.random.default_rng(13)
    parts = 2 if dtype.is_complex else 1
    body = tuple(load(0, dtype.real, p) for p in range(parts))
    if dtype.real in (dt.float32, dt.float64):
        body = tuple(x * load(1, dtype.real, p) + 0.5 for p, x in enumerate(body))
    kernel = Map((dtype, dtype), dtype, body)
    flat = sample(rng, dtype.real, 2 * 4 * 128 * parts).view(dtype.numpy)
    x, last = flat[: max(1, np.prod(shape, dtype=int))].reshape(shape), shape[-1:]
    row = np.broadcast_to(flat[500 : 500 + (last[0] if last else 1)].reshape(last), shape)
    turned = x.copy("F")
    back = np.asarray(x[tuple(slice(None, None, -1) for _ in shape)])
    for a in (x, row, turned, back):
        inputs = [buffer(a), buffer(x)]
        strides = [steps(a), steps(x)]
        alone = map_program(kernel, shape, strides)(*inputs)
        body = map_stages.map_stages(kernel, shape, [0], [dense_strides(shape)], [1, 2], strides)
        result = native.program(2, x.nbytes, (), body)(*inputs)
        check_bits(array(result, shape, dtype.numpy), array(alone, shape, dtype.numpy))


@pytest.mark.parametrize(
    "kept,reduced", [((), (20,)), ((3,), (3, 2)), ((3, 2), (3,)), ((31,), (2,))]
)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int16])
def test_tiny_reductions_have_the_bits_of_others(kept, reduced, dtype):
    """The greatest element times its position, along leading and trailing axes."""
    rng = np.random.default_rng(14)
    side = [[acc(s, k, d) for k, d in enumerate((dtype, dt.int64))] for s in "ab"]
    (a, i), (b, j) = side
    later = b > a
    kernel = Reduce(
        (dtype,),
        dt.float64,
        (const(-100, dtype), const(0, dt.int64)),
        (load(0, dtype), index()),
        (select(later, b, a), select(later, j, i)),
        (cast(a, dt.float64) * cast(i, dt.float64),),
    )
    shape = (*kept, *reduced)
    x = (rng.standard_normal(shape) * 50).astype(dtype.numpy)
    for given in (x, x.copy("F")):
        own = [steps(given)]
        alone = reduce_program(kernel, kept, reduced, own)(buffer(given))
        take = native.Scratch(2)
        body = fold_stages.reduce_stages(kernel, kept, reduced, [1], own, 0, take)
        assert body[0].units == 1
        result = native.program(1, 8 * np.prod(kept, dtype=int), (), body)(buffer(given))
        check_bits(array(result, kept, np.dtype("f8")), array(alone, kept, np.dtype("f8")))
