"""One GPU as wgpu drives it: an adapter, pooled memory, pipelines, and a queue of commands.

wgpu is imported on first use. Commands wait until there are many, or until somebody reads; all go
to one queue, in order, so memory that nobody has any more may be used again at once.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from pullback.core.errors import DeviceError
from pullback.runtime.webgpu.arithmetic import SAFE
from pullback.runtime.webgpu.faults import Faults
from pullback.runtime.webgpu.stages import Dispatch

__all__ = ["Buffer", "Command", "Gpu", "Pipeline", "PooledBuffer", "WgpuMissing", "copy_command"]
__all__ += ["is_present", "wgpu_module"]

T = TypeVar("T")
# A pipeline, a bind group, where its words are, workgroups across and down; or None and a copy.
Command: TypeAlias = tuple[Any, ...]

MOST_BYTES = (1 << 31) - 256  # of a buffer: kernels rely on it
FLUSH_AFTER = 128  # commands that wait at most: encoding them takes about a millisecond
LEAST_BYTES = 256  # of a buffer: sizes of small arrays are not worth telling apart
POOL_BYTES = 1 << 28  # of free memory that is kept for later, if less was ever in use at once
STAGED_BYTES = 1 << 16  # of a read through a buffer that is kept: making one takes 0.1 ms
MOST_GROUPS = 4096  # bind groups that are kept for the next call, by their buffers
MOST_PIPELINES = 512  # that are kept though no program has them any more
RECORD_LINE = 256  # bytes at a multiple of which the words of a kernel start: WebGPU's promise
CHUNK_BYTES = 1 << 18  # of a buffer of records: a thousand kernels of 256 bytes of words
MOST_CHUNKS = 256  # of records, before all are forgotten
FASTER_BYTES = 17 << 10  # of workgroup memory that faster kernels may take; 16 KiB are sure
MOST_ACROSS = 65535  # workgroups along one axis of a grid
# Best first: what wgpu calls the kinds of adapters.
_KINDS = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
DOUBLES = frozenset({"shader-f64", "shader-int64"})  # wgpu's names for what float64 needs
_WANTED = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
)


class WgpuMissing(DeviceError, ImportError):
    """wgpu is not installed."""


@cache
def wgpu_module() -> Any:
    """wgpu, which only this runtime needs."""
    try:
        module = import_module("wgpu")
    except ImportError as error:
        raise WgpuMissing(
            "webgpu: wgpu was not found. Install it with `pip install pullback[webgpu]`."
        ) from error
    if "WGPU_BACKEND" not in os.environ:  # OpenGL lacks what we need, and is slow to ask
        extras = import_module("wgpu.backends.wgpu_native.extras")
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    return module


@cache
def _adapters() -> list[Any]:
    """The adapters there are, best first."""
    found = wgpu_module().gpu.enumerate_adapters_sync()
    kinds = {a: a.info["adapter_type"] for a in found}
    return sorted(found, key=lambda a: _KINDS.index(kinds[a]) if kinds[a] in _KINDS else 3)


def is_present() -> bool:
    """Whether there are wgpu and an adapter."""
    return find_spec("wgpu") is not None and bool(_adapters())


class PooledBuffer:
    """A buffer of the device; it goes back to the pool when nobody has it any more."""

    __slots__ = ("__weakref__", "batch", "buffer", "gpu", "nbytes", "number")

    def __init__(self, gpu: Gpu, buffer: Any, nbytes: int, number: int):
        self.gpu, self.buffer, self.nbytes, self.number = gpu, buffer, nbytes, number

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing):
        if not is_ending():
            self.gpu.release(self.buffer, self.nbytes, self.number)


class Buffer:
    """Bytes of a memory from `offset` on; `owner` is the buffer that a view was made of."""

    __slots__ = ("__weakref__", "memory", "nbytes", "offset", "owner")

    def __init__(self, memory: PooledBuffer, offset: int, nbytes: int, owner: Buffer | None = None):
        self.memory, self.offset, self.nbytes, self.owner = memory, offset, nbytes, owner


class Pipeline:
    """A compiled kernel; `record` are the bytes of its words, `layout` that of its buffers."""

    __slots__ = ("__weakref__", "layout", "pipeline", "record")

    def __init__(self, pipeline: Any, layout: Layout, record: int):
        self.pipeline, self.layout, self.record = pipeline, layout, record


class Layout(NamedTuple):
    """The layout of bind groups: a record, then buffers of which some are written."""

    layout: Any
    number: int


class _Chunk:
    """A buffer of records, and how much of it is taken."""

    __slots__ = ("buffer", "number", "taken")

    def __init__(self, buffer: Any, number: int):
        self.buffer, self.number, self.taken = buffer, number, 0


class _Free(NamedTuple):
    """A buffer of the pool, its number, and the batch of commands that may still use it."""

    buffer: Any
    number: int
    batch: int


class Gpu:
    """The adapter of a number, its device and its queue."""

    def __init__(self, index: int):
        self.index = index
        adapters = _adapters()
        if not adapters:
            raise DeviceError(
                "webgpu: looked for a GPU with a Vulkan, Metal or Direct3D 12 driver, got none."
                " Install the driver of your GPU, or a software one: Debian's"
                " mesa-vulkan-drivers and libvulkan1."
            )
        if index >= len(adapters):
            names = ", ".join(a.info["device"] for a in adapters)
            raise DeviceError(
                f"webgpu: looked for adapter {index}, got {len(adapters)} of them: {names}."
            )
        adapter = adapters[index]
        self.info = dict(adapter.info)
        limits = {name: adapter.limits[name] for name in _WANTED}
        bound = limits["max-storage-buffer-binding-size"]
        self.most_bytes = min(limits["max-buffer-size"], bound, MOST_BYTES)
        self.most_buffers = limits["max-storage-buffers-per-shader-stage"]
        self._workgroup_bytes = limits["max-compute-workgroup-storage-size"]
        self._wgpu = wgpu_module()
        usage = self._wgpu.BufferUsage
        self._usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self._record_usage = usage.UNIFORM | usage.COPY_DST
        self.has_doubles = set(adapter.features) >= DOUBLES
        features = sorted(DOUBLES) if self.has_doubles else []
        ask = adapter.request_device_sync
        self._device = self.asked(ask, required_features=features, required_limits=limits)
        create = self._device.create_buffer
        self._mark = self.asked(create, size=4, usage=self._usage)
        staged = usage.COPY_DST | usage.MAP_READ
        self._staged = self.asked(create, size=STAGED_BYTES, usage=staged)
        self.arithmetic = SAFE  # until the adapter has been asked
        self.most_rounds: int | None = None  # of a thread's loops, if the driver ends them early
        self.flushes = False  # subnormal numbers of float32, to zero
        self.lock = RLock()
        self.faults = Faults(self)
        # All buffers: so none of them is ever part of a garbage cycle, whose members wgpu releases
        # even where the memory that they are goes back to the pool.
        self._buffers: dict[int, Any] = {}
        self._free: dict[int, list[_Free]] = {}
        self._free_bytes = 0
        self._bytes = self._most_used = 0  # of all buffers; of those that were in use at once
        self._returned: deque[tuple[int, _Free]] = deque()  # to the pool, when it is looked at
        self._batch = 0
        self._number = 0
        self._commands: list[Command] = []
        self.dropped = 0  # buffers that went back to the driver
        self._layouts: dict[tuple[bool, ...], Layout] = {}
        self._pipelines: WeakValueDictionary[str, Pipeline] = WeakValueDictionary()
        self._recent: deque[Pipeline] = deque(maxlen=MOST_PIPELINES)
        self._groups: dict[tuple[int, ...], Any] = {}
        self._records: dict[tuple[int, bytes], tuple[_Chunk, int]] = {}
        self._chunks: list[_Chunk] = []

    def chosen(self, step: Dispatch) -> Dispatch:
        """A dispatch, or its other form for adapters like this one."""
        other = step.faster
        if other is None or self._workgroup_bytes < FASTER_BYTES:
            return step
        return other if all(getattr(self.arithmetic, name) for name in other.needs) else step

    def asked(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The result of a function of the device's; a lost device is an error that says so."""
        wgpu = wgpu_module()
        try:
            return function(*args, **kwargs)
        except wgpu.GPUOutOfMemoryError:
            raise
        except (wgpu.GPUError, RuntimeError) as error:
            if "lost" not in str(error).lower():
                raise
            raise DeviceError(
                f"webgpu: the device {self.index} was lost: {' '.join(str(error).split())}"
                " Its arrays are gone; start the program anew."
            ) from error

    # -- memory ------------------------------------------------------------------------------------

    def empty(self, nbytes: int, *, idle: bool = False) -> Buffer:
        """A new buffer; `idle`: no command that waits may use its memory."""
        size = _size_class(nbytes)
        if size > self.most_bytes:
            raise DeviceError(
                f"webgpu: this adapter has arrays of up to {self.most_bytes} bytes, got one of"
                f" {nbytes}. Work on parts of it."
            )
        with self.lock:
            self._take_back()
            free = self._free.get(size)
            if free and not (idle and free[0].batch == self._batch):
                taken = free.pop(0 if idle else -1)
                self._free_bytes -= size
                buffer, number = taken.buffer, taken.number
            else:
                buffer, number = self._created(size), self._next()
                self._buffers[number] = buffer
                self._bytes += size
            self._most_used = max(self._most_used, self._bytes - self._free_bytes)
            return Buffer(PooledBuffer(self, buffer, size, number), 0, nbytes)

    def _created(self, size: int) -> Any:
        create, usage = self._device.create_buffer, self._usage
        wgpu = self._wgpu
        try:
            return self.asked(create, size=size, usage=usage)
        except wgpu.GPUOutOfMemoryError:
            self.flush()
            for taken in self._free.values():
                for free in taken:
                    self._drop(free.number)
            self._free.clear()
            self._bytes -= self._free_bytes
            self._free_bytes = 0
        try:
            return self.asked(create, size=size, usage=usage)
        except wgpu.GPUOutOfMemoryError as error:
            raise DeviceError(f"webgpu: no memory for {size} bytes: {error}") from error

    def _next(self) -> int:
        self._number += 1
        return self._number

    def release(self, buffer: Any, size: int, number: int) -> None:
        """Note memory that nobody has any more.

        Python collects garbage in any thread, in the one too that the holder of the lock waits for
        (wgpu's, which says when a read is done): so this waits for nothing.
        """
        self._returned.append((size, _Free(buffer, number, self._batch)))

    def _take_back(self) -> None:
        """Let the pool have what was released."""
        while self._returned:
            size, free = self._returned.popleft()
            if self._free_bytes + size > max(POOL_BYTES, self._most_used):
                self._drop(free.number)
                self._bytes -= size
            else:
                self._free.setdefault(size, []).append(free)
                self._free_bytes += size

    def _drop(self, number: int) -> None:
        """Let a buffer go, which bind groups that are kept would hold."""
        del self._buffers[number]
        self.dropped += 1
        for key in [k for k in self._groups if number in k[3:]]:
            del self._groups[key]

    def uploaded(self, array: np.ndarray) -> Buffer:
        """A new buffer with the bytes of a C-contiguous array."""
        found = self.empty(array.nbytes, idle=True)
        if array.nbytes:
            self.write(found.memory.buffer, 0, array)
        return found

    def write(self, buffer: Any, offset: int, array: np.ndarray) -> None:
        """Write to memory that no command that waits uses; the array may change afterwards."""
        data = array.reshape(-1).view(np.uint8)
        if data.nbytes % 4:
            data = np.concatenate([data, np.zeros(-data.nbytes % 4, np.uint8)])
        self.asked(self._device.queue.write_buffer, buffer, offset, data)

    def overwrite(self, memory: PooledBuffer, offset: int, array: np.ndarray) -> None:
        """Write bytes to memory after all commands so far."""
        data = array.reshape(-1).view(np.uint8)
        start, stop = offset // 4 * 4, -(-(offset + data.nbytes) // 4) * 4
        with self.lock:
            if stop - start != data.nbytes:  # whole words alone can be written
                words = np.array(self.download(memory, start, stop - start))
                words[offset - start :][: data.nbytes] = data
                data = words
            self.flush()
            self.write(memory.buffer, start, data)

    def download(self, memory: PooledBuffer, offset: int, nbytes: int) -> np.ndarray:
        """Bytes of a memory, when all commands are done."""
        start, stop = offset // 4 * 4, -(-(offset + nbytes) // 4) * 4
        with self.lock:
            if stop - start <= STAGED_BYTES:
                found = self._read(memory.buffer, start, stop - start)
            else:
                self.flush()
                read = self._device.queue.read_buffer
                found = self.asked(read, memory.buffer, start, stop - start)
        return np.frombuffer(found, np.uint8)[offset - start :][:nbytes]

    def _read(self, buffer: Any, start: int, nbytes: int) -> Any:
        """Words of a buffer, in the submission of all commands so far."""
        staged = self._staged
        self._commands.append((None, buffer, start, staged, 0, nbytes))
        self.flush()
        self.asked(staged.map_sync, self._wgpu.MapMode.READ, 0, nbytes)
        try:
            return bytes(staged.read_mapped(0, nbytes))
        finally:
            staged.unmap()

    def wait(self) -> None:
        """Return when all commands are done."""
        self.faults.look()
        with self.lock:
            # wgpu 0.32 can't call back when work is done, but a read waits for it as well
            self._read(self._mark, 0, 4)

    # -- commands ----------------------------------------------------------------------------------

    def queue(self, commands: Sequence[Command]) -> None:
        """Let commands run after all so far."""
        self._commands += commands
        if len(self._commands) >= FLUSH_AFTER:
            self.flush()

    def copy(
        self, source: PooledBuffer, start: int, target: PooledBuffer, to: int, nbytes: int
    ) -> None:
        """Copy whole words from one buffer to another one."""
        self._commands.append(copy_command(source, start, target, to, nbytes))

    def clear(self, memory: PooledBuffer, offset: int, nbytes: int) -> None:
        """Set whole words to 0."""
        self._commands.append((None, memory.buffer, offset, None, 0, nbytes))

    def flush(self) -> None:
        """Give all commands that wait to the device, in one submission."""
        with self.lock:
            self._take_back()
            commands, self._commands = self._commands, []
            if commands:
                self._batch += 1
                self.asked(self._submit, commands)

    def _submit(self, commands: list[Command]) -> None:
        encoder = self._device.create_command_encoder()
        running: Any = None
        current: Any = None
        for first, *rest in commands:
            if first is None:
                if running is not None:
                    running.end()
                    running = current = None
                source, start, target, to, nbytes = rest
                if target is None:
                    encoder.clear_buffer(source, start, nbytes)
                else:
                    encoder.copy_buffer_to_buffer(source, start, target, to, nbytes)
                continue
            if running is None:
                running = encoder.begin_compute_pass()
            if first is not current:
                running.set_pipeline(first)
                current = first
            group, offset, x, y = rest
            running.set_bind_group(0, group, [offset])
            running.dispatch_workgroups(x, y, 1)
        if running is not None:
            running.end()
        self._device.queue.submit([encoder.finish()])

    # -- kernels -----------------------------------------------------------------------------------

    def pipeline(self, text: str, written: tuple[bool, ...], record: int) -> Pipeline:
        """The compiled kernel of a whole WGSL text, whose buffers are written or only read."""
        with self.lock:
            found = self._pipelines.get(text)
            if found is None:
                layout, create = self._layout(written), self._device.create_compute_pipeline
                module = self.asked(self._device.create_shader_module, code=text)
                outer = self._device.create_pipeline_layout(bind_group_layouts=[layout.layout])
                compute = {"module": module, "entry_point": "main"}
                made = self.asked(create, layout=outer, compute=compute)
                record = -(-record // RECORD_LINE) * RECORD_LINE
                found = self._pipelines[text] = Pipeline(made, layout, record)
                self._recent.append(found)
            return found

    def _layout(self, written: tuple[bool, ...]) -> Layout:
        found = self._layouts.get(written)
        if found is None:
            stage = self._wgpu.ShaderStage.COMPUTE
            entries: list[dict[str, Any]] = [
                {
                    "binding": 0,
                    "visibility": stage,
                    "buffer": {"type": "uniform", "has_dynamic_offset": True},
                }
            ]
            for k, writes in enumerate(written, 1):
                kind = "storage" if writes else "read-only-storage"
                entries.append({"binding": k, "visibility": stage, "buffer": {"type": kind}})
            made = self._device.create_bind_group_layout(entries=entries)
            found = self._layouts[written] = Layout(made, self._next())
        return found

    def group(self, pipeline: Pipeline, chunk: _Chunk, memories: tuple[PooledBuffer, ...]) -> Any:
        """The bind group of a record of a chunk, and buffers."""
        layout, record = pipeline.layout, pipeline.record
        key = (layout.number, record, chunk.number, *[m.number for m in memories])
        found = self._groups.get(key)
        if found is None:
            entries = [
                {"binding": 0, "resource": {"buffer": chunk.buffer, "offset": 0, "size": record}}
            ]
            for k, m in enumerate(memories, 1):
                whole = {"buffer": m.buffer, "offset": 0, "size": m.nbytes}
                entries.append({"binding": k, "resource": whole})
            if len(self._groups) >= MOST_GROUPS:
                for old in list(self._groups)[: MOST_GROUPS // 2]:
                    del self._groups[old]
            found = self._device.create_bind_group(layout=layout.layout, entries=entries)
            self._groups[key] = found
        return found

    def record(self, words: np.ndarray, nbytes: int) -> tuple[_Chunk, int]:
        """Where the words of a kernel are, in a record of so many bytes; equal ones are one."""
        key = nbytes, words.tobytes()
        found = self._records.get(key)
        if found is None:
            if not self._chunks or self._chunks[-1].taken + nbytes > CHUNK_BYTES:
                if len(self._chunks) >= MOST_CHUNKS:
                    self._chunks, self._records = [], {}
                size, usage = CHUNK_BYTES, self._record_usage
                made = self.asked(self._device.create_buffer, size=size, usage=usage)
                self._chunks.append(_Chunk(made, self._next()))
            chunk = self._chunks[-1]
            found = self._records[key] = chunk, chunk.taken
            self.write(chunk.buffer, chunk.taken, words)
            chunk.taken += nbytes
        return found


def copy_command(
    source: PooledBuffer, start: int, target: PooledBuffer, to: int, nbytes: int
) -> Command:
    """A copy of whole words from one buffer to another one."""
    return None, source.buffer, start, target.buffer, to, nbytes


def _size_class(nbytes: int) -> int:
    """A size of buffers, at most an eighth above: so that there are few of them to be pooled."""
    if nbytes <= LEAST_BYTES:
        return LEAST_BYTES
    step = max(LEAST_BYTES, 1 << (nbytes - 1).bit_length() >> 4)
    return -(-nbytes // step) * step
