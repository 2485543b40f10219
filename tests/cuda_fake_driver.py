"""As much of NVIDIA's driver as the launcher calls, on the host: it runs emulated kernels.

A graph keeps copies of the arguments of its nodes, as the driver does, and runs them in a random
order that its edges allow.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import cuda_fake

__all__ = ["FakeDriver"]

_Pointer, _Int, _Word = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64
CONTEXT = 1  # that of the first GPU; the others follow
INVALID, NO_CONTEXT, NO_HANDLE = 1, 201, 400  # statuses
TOGETHER = 2  # an attribute of launches


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", _Pointer),
        *((name, _Int) for name in ("x", "y", "z", "block", "block_y", "block_z", "shared")),
        *((name, _Pointer) for name in ("arguments", "extra", "kernel", "context")),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, _Int) for name in ("x", "y", "z", "block", "block_y", "block_z", "shared")),
        *(("stream", _Pointer), ("attributes", _Pointer), ("count", _Int)),
    )


class _Kept:
    """A launch with its arguments."""

    def __init__(self, node: _Node, before: list[int]):
        self.before, self.together = before, False
        self._kernel = node.function or 0
        entry = cuda_fake.Entry.of(self._kernel)
        assert entry is not None
        sizes = entry.sizes()
        places = (_Pointer * len(sizes)).from_address(node.arguments or 0)
        raw = [ctypes.string_at(p or 0, n) for p, n in zip(places, sizes, strict=True)]
        self._held = [ctypes.create_string_buffer(b, len(b) or 1) for b in raw]
        self._places = (_Pointer * len(raw))(*map(ctypes.addressof, self._held))
        self._launch = (node.x, node.y), node.block, node.shared

    def run(self) -> int:
        arguments = ctypes.addressof(self._places)
        return _launched(self._kernel, *self._launch, arguments, self.together)


def _launched(kernel: int | None, *how: Any) -> int:
    """The status of a launch of a kernel."""
    entry = cuda_fake.Entry.of(kernel or 0)
    if entry is None:
        return NO_HANDLE
    entry.launch(*how)
    return 0


class _Conditional:
    """A node with a body, which is run once or as long as a condition holds."""

    def __init__(self, handle: int, again: bool, body: int, before: list[int]):
        self.handle, self.again, self.body, self.before = handle, again, body, before


class _Condition(ctypes.Structure):
    """CUgraphNodeParams of such a node."""

    _fields_ = (
        *(("node", _Int), ("reserved", _Int * 3), ("handle", _Word), ("kind", _Int)),
        *(("bodies", _Int), ("graphs", _Pointer), ("context", _Pointer), ("rest", _Word * 26)),
    )


class FakeDriver:
    """Functions as attributes, as a library has them."""

    def __init__(self):
        # Nodes of a graph by their handles; of an executable one: its graph, and nodes anew.
        self.graphs: dict[int, dict[int, _Kept | _Conditional]] = {}
        self._drawn: dict[int, int] = {}
        self._handles: dict[int, int] = {}  # the graph of a condition
        self._bodies: dict[int, Any] = {}
        self.replays = 0
        self.rounds = 0  # in bodies of loops and choices
        self.updates = 0
        self.forks = 0  # nodes that do not follow the one before them alone
        self._order = random.Random(1)
        self.devices: set[int] = set()  # where kernels were launched
        self.attributes: list[int] = []
        self._next = 1
        cuda_fake.contexts.own = 0  # of the first thread; the others have none yet
        for name, (own, types) in _SIGNATURES.items():
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[_TYPES[t] for t in types])
            setattr(self, name, prototype(getattr(self, own)))

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _launch_kernel(self, f, x, y, z, block, block_y, block_z, shared, stream, arguments, e):
        assert (z, block_y, block_z, stream, e) == (1, 1, 1, None, None)
        self.devices.add(cuda_fake.current())
        return _launched(f, (x, y), block, shared, arguments, False)

    def _launch_kernel_ex(self, config, function, arguments, extra):
        given = _Config.from_address(config)
        assert (given.z, given.block_y, given.block_z, given.count) == (1, 1, 1, 1)
        (attribute, _, on) = (_Int * 3).from_address(given.attributes)
        assert on == 1
        self.attributes.append(attribute)
        sizes = (given.x, given.y), given.block, given.shared
        return _launched(function, *sizes, arguments, attribute == TOGETHER)

    def _memcpy_to_host_async(self, to, source, nbytes, stream):
        ctypes.memmove(to, source, nbytes)
        return 0

    def _memset_async(self, to, value, nbytes, stream):
        ctypes.memset(to, value, nbytes)
        return 0

    def _memcpy_to_device_async(self, to, source, nbytes, stream):
        ctypes.memmove(to, source, nbytes)
        return 0

    def _stream_query(self, stream):
        cuda_fake.synchronized.append((cuda_fake.current(), stream or 0))
        return 0

    def _init(self, flags):
        return 0

    def _device_get(self, to, index):
        _Int.from_address(to).value = index
        return 0

    def _primary_context(self, to, device):
        _Pointer.from_address(to).value = CONTEXT + device
        return 0

    def _ctx_get_current(self, to):
        own = getattr(cuda_fake.contexts, "own", None)
        _Pointer.from_address(to).value = None if own is None else CONTEXT + own
        return 0

    def _ctx_set_current(self, context):
        cuda_fake.contexts.own = context - CONTEXT if context else None
        return 0

    def _ctx_synchronize(self):
        return 0

    def _func_set_attribute(self, function, attribute, value):
        return 0 if cuda_fake.Entry.of(function or 0) else NO_HANDLE

    def _graph_create(self, to, flags):
        graph = _Pointer.from_address(to).value = self._new()
        self.graphs[graph] = {}
        return 0

    def _before(self, graph, needs, count):
        """The nodes that a new one waits for, None if these are not in its graph."""
        nodes = [*self.graphs[graph]]
        before = list((_Pointer * count).from_address(needs)) if count else []
        if not set(before) <= set(nodes) or len(set(before)) != count:
            return None
        self.forks += before != nodes[-1:] or not nodes
        return before

    def _graph_add_kernel_node(self, to, graph, needs, count, node):
        before = self._before(graph, needs, count)
        if before is None:
            return INVALID
        made = _Pointer.from_address(to).value = self._new()
        self._added = self.graphs[graph][made] = _Kept(_Node.from_address(node), before)
        return 0

    def _handle_create(self, to, graph, context, value, flags):
        assert (value, flags) == (0, 1)  # the value whenever the graph is launched
        handle = _Word.from_address(to).value = self._new()
        self._handles[handle] = graph
        return 0

    def _graph_add_node(self, to, graph, needs, edges, count, params):
        before, given = self._before(graph, needs, count), _Condition.from_address(params)
        if before is None or given.node != 13 or self._handles.get(given.handle) != graph:
            return INVALID
        assert given.bodies == 1 and given.context is not None and not any(given.rest)
        assert ctypes.sizeof(given) == 256
        body, made = self._new(), self._new()
        self.graphs[body] = {}
        self._bodies[made] = (_Pointer * 1)(body)
        given.graphs = ctypes.addressof(self._bodies[made])
        self.graphs[graph][made] = _Conditional(given.handle, given.kind == 1, body, before)
        _Pointer.from_address(to).value = made
        return 0

    def _graph_kernel_node_set_attribute(self, node, attribute, value):
        assert attribute == TOGETHER and _Int.from_address(value).value == 1
        self._added.together = True
        return 0

    def _graph_instantiate_with_flags(self, to, graph, flags):
        if getattr(cuda_fake.contexts, "own", None) is None:
            return NO_CONTEXT
        made = _Pointer.from_address(to).value = self._new()
        self.graphs[made], self._drawn[made] = {}, graph
        return 0

    def _graph_exec_kernel_node_set_params(self, executable, node, params):
        self.updates += 1
        (old,) = [nodes[node] for nodes in self.graphs.values() if node in nodes][:1]
        assert isinstance(old, _Kept)
        new = self.graphs[executable][node] = _Kept(_Node.from_address(params), old.before)
        new.together = old.together
        return 0

    def _graph_launch(self, executable, stream):
        self.replays += 1
        for graph in self._tree(self._drawn[executable]):
            for handle, own in self._handles.items():
                if own == graph:
                    cuda_fake.conditions[handle] = 0
        return self._run(self._drawn[executable], self.graphs[executable])

    def _run(self, graph, anew):
        nodes, done = self.graphs[graph], set()
        while len(done) < len(nodes):  # in any order that keeps what each waits for
            ready = [k for k, node in nodes.items() if done.issuperset(node.before)]
            chosen = self._order.choice([k for k in ready if k not in done])
            node = anew.get(chosen, nodes[chosen])
            done.add(chosen)
            status = node.run() if isinstance(node, _Kept) else self._repeat(node, anew)
            if status:
                return status
        return 0

    def _repeat(self, node, anew):
        status = 0
        while cuda_fake.conditions[node.handle] and not status:
            self.rounds += 1
            status = self._run(node.body, anew)
            if not node.again:
                break
        return status

    def _tree(self, graph):
        """A graph and all bodies in it."""
        yield graph
        for node in self.graphs[graph].values():
            if isinstance(node, _Conditional):
                yield from self._tree(node.body)

    def _graph_destroy(self, graph):
        for own in [*self._tree(graph)]:
            del self.graphs[own]
        return 0

    def _graph_exec_destroy(self, executable):
        del self.graphs[executable], self._drawn[executable]
        return 0

    def _get_error_string(self, status, to):
        ctypes.c_char_p.from_address(to).value = b"an emulated error"
        return 0


_TYPES = {"p": _Pointer, "i": _Int, "w": _Word, "u": ctypes.c_uint64, "b": ctypes.c_ubyte}
# Methods and the types of their arguments, by the names of the driver.
_SIGNATURES = {
    "cuLaunchKernel": ("_launch_kernel", "piiiiiiippp"),
    "cuLaunchKernelEx": ("_launch_kernel_ex", "pppp"),
    "cuMemcpyDtoHAsync_v2": ("_memcpy_to_host_async", "pwwp"),
    "cuMemsetD8Async": ("_memset_async", "wbwp"),
    "cuMemcpyHtoDAsync_v2": ("_memcpy_to_device_async", "wpwp"),
    "cuStreamQuery": ("_stream_query", "p"),
    "cuInit": ("_init", "i"),
    "cuDeviceGet": ("_device_get", "pi"),
    "cuDevicePrimaryCtxRetain": ("_primary_context", "pi"),
    "cuCtxSynchronize": ("_ctx_synchronize", ""),
    "cuFuncSetAttribute": ("_func_set_attribute", "pii"),
    "cuCtxGetCurrent": ("_ctx_get_current", "p"),
    "cuCtxSetCurrent": ("_ctx_set_current", "p"),
    "cuGraphCreate": ("_graph_create", "pi"),
    "cuGraphAddKernelNode_v2": ("_graph_add_kernel_node", "pppwp"),
    "cuGraphConditionalHandleCreate": ("_handle_create", "pppii"),
    "cuGraphAddNode_v2": ("_graph_add_node", "ppppwp"),
    "cuGraphKernelNodeSetAttribute": ("_graph_kernel_node_set_attribute", "pip"),
    "cuGraphInstantiateWithFlags": ("_graph_instantiate_with_flags", "ppu"),
    "cuGraphExecKernelNodeSetParams_v2": ("_graph_exec_kernel_node_set_params", "ppp"),
    "cuGraphLaunch": ("_graph_launch", "pp"),
    "cuGraphDestroy": ("_graph_destroy", "p"),
    "cuGraphExecDestroy": ("_graph_exec_destroy", "p"),
    "cuGetErrorString": ("_get_error_string", "ip"),
}
