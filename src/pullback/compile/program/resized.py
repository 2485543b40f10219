"""Programs for ever new sizes: made from that of others, as long as nothing is decided otherwise.

Operations that differ in their sizes alone are of one kind. Some of a kind are planned with sizes
that note what becomes of them (`sizes`), and what this gave is written as a Python function of
sizes: it asks whether all decisions come out as they did then, and copies the words of the program
with other numbers written in. That is what planning anew would give, for it would decide likewise.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from math import ceil, floor
from typing import Any, NamedTuple

from pullback.compile.program.single import plan_single
from pullback.compile.program.sizes import Event, Size, Tape, Unsized, named_in
from pullback.compile.program.stages import Program
from pullback.compile.program.target import Routine, Target
from pullback.core.avals import Aval, aval, dense_strides, detached
from pullback.ir.op import Op
from pullback.ir.plans import MAX_PLANS, Plan, plan_caches, same_memory

__all__ = ["Resizing"]
__tuning__ = ("LINES", "MOST_WAYS", "WORTH")

WORTH = 16  # calls of new sizes, after which a kind is worth a way: most programs have few shapes
# A way costs some 20 us for each of its lines, and saves 40 to 60 at a time: that much is spent on
# further ways, until all are known.
LINES = 2  # of ways that are written for a call
MOST_WAYS = 256  # of a kind: where a short axis is folded, there is one for each length

SIZES = frozenset({"shape", "starts", "steps", "to"})  # static parameters that are sizes

Sizes = list[int]


class Encoding(NamedTuple):
    """How a target makes programs of words."""

    words: Callable[[Program], tuple[list[Any], int]]  # and where owners of memory may begin
    run: Callable[[array[int], Any], Callable[..., Any]]
    circumstances: Callable[[], Any]  # what planning depends on besides


class Resizing:
    """The kinds of operations of a target that were met so far."""

    def __init__(self, target: Target, encoding: Encoding):
        self._target: Any = _Noting(target, encoding)
        self._encoding = encoding
        self._kinds: dict[tuple, _Ways] = {}
        self._met: set[int] = set()  # hashes of what was asked for once
        plan_caches.append(self._kinds)

    def plan(
        self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any]
    ) -> tuple[Plan, bool] | None:
        """The plan of an operation, and whether it was asked for before; None: it is left to
        `plan_single`.
        """
        if not avals:
            return None
        found = _kind_of(op, avals, static, self._encoding.circumstances())
        if found is None:
            return None
        name, sizes = found
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= MAX_PLANS:
                self._kinds.clear()
            kind = self._kinds[name] = _Ways()
        plan = kind.plan(sizes)
        if plan is None:
            if kind.asked < kind.due or kind.ways >= MOST_WAYS:
                return None
            plan = kind.learn(sizes, lambda: self._way(op, avals, static))
            if plan is None:
                return None
        met = hash((id(kind), *sizes))
        if met in self._met:
            return plan, True
        if len(self._met) >= MAX_PLANS:
            self._met.clear()
        self._met.add(met)
        return plan, False

    def _way(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any]) -> _Way:
        """The function of sizes that gives the plan of the operation."""
        tape = Tape()
        own = [_noting(a, tape) for a in avals]
        given = {
            name: _noted(value, tape) if _are_sizes(name, value) else value
            for name, value in static.items()
        }
        shape, dtype = op.infer(*own, **given)
        out = detached(shape, dtype, avals[0].device)
        plan = plan_single(self._target, op, tuple(own), given, out)
        ran = plan.run(*[_Buffer(k) for k in range(len(avals))])
        way = _WayWriter(tape, self._encoding.run).way(ran, plan.aval, len(avals))
        tape.end()
        return way


def _are_sizes(name: str, value: Any) -> bool:
    return name in SIZES and value.__class__ is tuple


def _kind_of(
    op: Op, avals: Sequence[Aval], static: dict[str, Any], circumstances: Any
) -> tuple[tuple, Sizes] | None:
    """What operations that differ in their sizes alone have in common, and their sizes."""
    key: list[Any] = [op, circumstances]
    sizes: Sizes = []
    for a in avals:
        if a.size == 0:
            return None
        key += (a.ndim, a.dtype.name, a.dense, a.repeats)
        sizes += a.shape
        if not a.dense:
            sizes += a.strides  # type: ignore[arg-type]
    for name, value in static.items():
        if name in SIZES and value.__class__ is tuple:
            key += (name, "sizes", len(value))
            sizes += value
        else:
            key += (name, value)
    return tuple(key), sizes


def _noting(a: Aval, tape: Tape) -> Any:
    """The abstract value of an operand with sizes that note what becomes of them."""
    shape = _noted(a.shape, tape, 1)
    strides = dense_strides(shape) if a.dense else _noted(a.strides or (), tape)
    return detached(shape, a.dtype, a.device, strides, a.dense, a.repeats)


def _noted(values: Sequence[int], tape: Tape, low: int | None = None) -> tuple[Any, ...]:
    if any([value.__class__ is not int for value in values]):
        raise Unsized("a size is an integer")
    return tuple([tape.given(value, low) for value in values])


class _Buffer(NamedTuple):
    """The place of operand `position`, or so many bytes after it."""

    position: int
    nbytes: Any = 0


class _Ran(NamedTuple):
    """What a program gives for some buffers; `first`: where owners of memory may begin."""

    words: list[Any]
    first: int
    bufs: tuple[_Buffer, ...]


class _Routines(dict[str, Routine]):
    """The intrinsics that are programs."""

    def __getitem__(self, name: str) -> Routine:
        found = super().__getitem__(name)
        if found.direct is not None:
            raise Unsized("it is no program")
        return found


class _Noting:
    """The target, but that its programs are words."""

    def __init__(self, target: Target, encoding: Encoding):
        self._target, self._words = target, encoding.words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @property
    def routines(self) -> _Routines:
        return _Routines(self._target.routines)

    def flat(self, *_: Any) -> None:
        """The shorter way to a program is not taken."""

    def view(self, buf: _Buffer, nbytes: Any) -> _Buffer:
        return _Buffer(buf.position, buf.nbytes + nbytes)

    def plan_arrays(self, *_: Any) -> None:
        raise Unsized("what a program gets depends on the contents of indices")

    def encode(self, program: Program, faults: Sequence[Any] = ()) -> Callable[..., _Ran]:
        if faults:
            raise Unsized("messages of errors tell sizes")
        words, first = self._words(program)
        return lambda *bufs: _Ran(words, first, bufs)


class _Way(NamedTuple):
    """A function of sizes that gives a plan, and what it was written from."""

    call: Callable[..., Plan | None]
    lines: int
    tape: Tape

    @property
    def events(self) -> list[Event]:
        return self.tape.events


class _Fork:
    """Ways that agree on all events before one, by what that comes out as."""

    def __init__(self, at: int, one: _Way, other: _Way):
        self.at, self.sample = at, one
        self.outcome = _outcome_of(one, at)
        self.onward: dict[Any, _Fork | _Way] = {way.events[at].outcome: way for way in (one, other)}


class _Ways:
    """The ways in which operations of one kind are planned: a tree, as planning asks its questions
    in one and the same order.
    """

    def __init__(self) -> None:
        self.asked = self.ways = 0
        self.due = WORTH  # calls from which on the next way is written
        self._start: _Fork | _Way | None = None

    def plan(self, sizes: Sizes) -> Plan | None:
        """The plan for some sizes, if there is a way to it."""
        self.asked += 1
        node = self._start
        try:
            while node.__class__ is _Fork:
                node = node.onward.get(node.outcome(*sizes))  # type: ignore[union-attr]
            plan = None if node is None else node.call(*sizes)  # type: ignore[union-attr]
        except (ArithmeticError, ValueError):  # it makes no sense where a way parts before it
            plan = None
        return plan

    def learn(self, sizes: Sizes, make: Callable[[], _Way]) -> Plan | None:
        """Write the way to the plan for some sizes; None if it can't be written."""
        try:
            new = make()
        except Exception:  # whatever is wrong, planning anew says it
            self.due = 4 * self.asked
            return None
        self.due += new.lines // LINES
        self.ways += 1
        self._start = _joined(self._start, new)
        return new.call(*sizes)


def _joined(node: _Fork | _Way | None, new: _Way) -> _Fork | _Way:
    """The tree with one more way."""
    if node is None:
        return new
    sample = node.sample if isinstance(node, _Fork) else node
    at = _parting(sample, new)
    if at is None:  # the same in all that it asks
        return node
    if isinstance(node, _Fork) and at >= node.at:
        outcome = new.events[node.at].outcome
        node.onward[outcome] = _joined(node.onward.get(outcome), new)
        return node
    fork = _Fork(at, sample, new)
    fork.onward[sample.events[at].outcome] = node
    return fork


def _parting(one: _Way, other: _Way) -> int | None:
    """Where the first event is that came out in two ways."""
    for at, (a, b) in enumerate(zip(one.events, other.events, strict=False)):
        if a.outcome != b.outcome:
            return at
    return None


def _compiled(names: Sequence[str], lines: Sequence[str], scope: dict[str, Any]) -> Any:
    """The function of sizes with these lines."""
    body = "".join(f"\n {line}" for line in lines)
    scope = {"ceil": ceil, "floor": floor, **scope}
    exec(compile(f"def call({', '.join(names)}):{body}", "<program of other sizes>", "exec"), scope)
    return scope["call"]


def _outcome_of(way: _Way, at: int) -> Callable[..., Any]:
    """A function of sizes that gives what an event comes out as."""
    event, lines = way.events[at], []
    _define(way.tape, event.names, set(), lines)
    return _compiled(way.tape.inputs, [*lines, f"return {event.text}"], way.tape.scope)


def _define(tape: Tape, names: Sequence[str], known: set[str], lines: list[str]) -> None:
    """Write what names stand for, and what that needs, once."""
    for name in names:
        if name in tape.definitions and name not in known:
            text, inner = tape.definitions[name]
            _define(tape, inner, known, lines)
            known.add(name)
            lines.append(f"{name} = {text}")


class _WayWriter:
    """Writes what a tape has noted as a Python function of sizes."""

    def __init__(self, tape: Tape, run: Callable[..., Any]):
        self.tape, self.run = tape, run
        self.known: set[str] = set()
        self.lines: list[str] = []

    def way(self, ran: Any, out: Aval, inputs: int) -> _Way:
        """The function of sizes that gives the plan of what ran, with a result `out`."""
        scope: dict[str, Any] = {
            **self.tape.scope, "aval": aval, "Plan": Plan, "make": self.run,
            "dtype": out.dtype, "device": out.device,
        }  # fmt: skip
        for event in self.tape.events:
            self._define(event.names)
            sure = event.text if event.outcome is True else f"not ({event.text})"
            if not isinstance(event.outcome, bool):
                sure = f"({event.text}) == {event.outcome!r}"
            self.lines.append(f"if not ({sure}): return None")
        run = self._run(ran, inputs, scope)
        shape = self._tuple(out.shape)
        strides = self._tuple(out.strides or ())
        rest = "" if strides == self._tuple(dense_strides(out.shape)) else f", {strides}"
        self.lines.append(f"return Plan({run}, aval({shape}, dtype, device{rest}))")
        call = _compiled(self.tape.inputs, self.lines, scope)
        return _Way(call, len(self.lines), self.tape)

    def _run(self, ran: Any, inputs: int, scope: dict[str, Any]) -> str:
        """The text of the run; what it needs is written before."""
        if isinstance(ran, _Buffer) and inputs == 1:
            if not isinstance(ran.nbytes, Size) and ran.nbytes == 0:
                scope["run"] = same_memory
                return "run"
            scope["view"] = scope["device"].runtime.target.view
            self.lines.append(f"at = {self._text(ran.nbytes)}")
            return "lambda buf: view(buf, at)"
        if not isinstance(ran, _Ran) or ran.bufs != tuple(_Buffer(k) for k in range(inputs)):
            raise Unsized("more than one program")
        words = [w.value if isinstance(w, Size) else w for w in ran.words]
        scope["owners"] = [w for w in words[ran.first :] if type(w) is not int]
        scope["words"] = array("q", [int(w) for w in words])
        self.lines.append("own = words[:]")
        for k, word in enumerate(ran.words):
            if isinstance(word, Size):
                self.lines.append(f"own[{k}] = {self._text(word)}")
        return "make(own, owners)"

    def _define(self, names: Sequence[str]) -> None:
        _define(self.tape, names, self.known, self.lines)

    def _text(self, value: Any) -> str:
        self._define(named_in((value,)))
        return value.text if isinstance(value, Size) else repr(value)

    def _tuple(self, values: Sequence[Any]) -> str:
        return f"({''.join(f'{self._text(v)}, ' for v in values)})"
