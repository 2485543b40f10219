; Walks the table of a program (see `table.py`): launches its kernels, or makes a graph of them.
;
; The words of the table are int64s, places in it are counted in words. Python's lock is not held
; meanwhile. A status is 0, an error of the driver, or one of `launcher.py`.

; The driver's functions, in the order of `driver.ENTRIES`, and 64 kB of page-locked memory.
%Entries = type { [13 x ptr], ptr }

; A call: 0 table, 1 entries, 2 slots, 3 stream, 4 what launches become, 5 graph, 6 thread state,
; 7 launches since signals were looked at
%Call = type { ptr, ptr, ptr, ptr, i64, ptr, ptr, i64 }

; 0 graph, 1 executable graph, 2 nodes, 3 values: of each launch its function and its arguments,
; 4 nodes so far, 5 values so far, 6 room for nodes, 7 room for values, 8 the place of the nodes
; that the next one waits for, 0 for the one before it, 9 room for these nodes, 10 the graph that
; nodes are added to (it, or the body of a loop or a choice), 11 the node before, or null, 12 numbers:
; where a stop is asked for, and handles of conditions, 13 numbers so far, 14 the first number of the
; loop or choice whose conditions are set
%Graph = type { ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, ptr, ptr, ptr, ptr, i64, i64 }

; Of a body: where nodes were added around it, the node before, the node whose body it is
%Body = type { ptr, ptr, ptr }

; CUgraphNodeParams of a condition, 256 bytes: kind of node, 3 words, handle, kind, bodies, the graphs
; of these, context, zeros
%Condition = type { i32, [3 x i32], i64, i32, i32, ptr, ptr, [26 x i64] }

; CUlaunchConfig and CUlaunchAttribute: id, value
%Config = type { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 }
%Attribute = type { i32, i32, i32, [15 x i32] }

; CUDA_KERNEL_NODE_PARAMS_v2
%Node = type { ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr, ptr }

@PyLong_Type = external global i8
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_CheckSignals()
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyUnicode_InternFromString(ptr)
declare ptr @PyCFunction_NewEx(ptr, ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@text.name = internal constant [5 x i8] c"play\00"
@text.address = internal constant [8 x i8] c"address\00"
@name.address = internal global ptr null
@turn = internal global i64 0
; PyMethodDef: name, function, METH_FASTCALL, docstring
@method = internal global { ptr, ptr, i32, ptr } { ptr @text.name, ptr @play, i32 128, ptr null }

define internal i64 @word(ptr %table, i64 %at) alwaysinline {
  %place = getelementptr i64, ptr %table, i64 %at
  %value = load i64, ptr %place
  ret i64 %value
}

define internal ptr @entry(ptr %call, i32 %number) alwaysinline {
  %at = getelementptr %Call, ptr %call, i32 0, i32 1
  %entries = load ptr, ptr %at
  %place = getelementptr ptr, ptr %entries, i32 %number
  %function = load ptr, ptr %place
  ret ptr %function
}

; -- launches --------------------------------------------------------------------------------------

; LAUNCH: function, grid x and y, block, shared bytes, n, values that a graph keeps of it, an attribute
; of cuda.h or 0, then n pairs: (slot, bytes after it), or (-1, an int64), or (-2, the place of a
; struct), or (-3, the place of slot, bytes after it, 15 words: a struct that begins with the address),
; or (-4, the place among the numbers of its loop or choice in a graph, -1: where a stop is asked for).
define internal i64 @launch(ptr %call, i64 %at) noinline {
start:
  %table = load ptr, ptr %call
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  %at.n = add i64 %at, 6
  %n = call i64 @word(ptr %table, i64 %at.n)
  %room = add i64 %n, 1
  %values = alloca i64, i64 %room
  %params = alloca ptr, i64 %room
  %at.function = add i64 %at, 1
  %function = call i64 @word(ptr %table, i64 %at.function)
  store i64 %function, ptr %values
  %at.pairs = add i64 %at, 9
  br label %next

next:
  %k = phi i64 [ 0, %start ], [ %k.next, %filled ]
  %done = icmp eq i64 %k, %n
  br i1 %done, label %ready, label %fill

fill:
  %k.next = add i64 %k, 1
  %value.at = getelementptr i64, ptr %values, i64 %k.next
  %param.at = getelementptr ptr, ptr %params, i64 %k
  %twice = shl i64 %k, 1
  %pair = add i64 %at.pairs, %twice
  %pair.more = add i64 %pair, 1
  %slot = call i64 @word(ptr %table, i64 %pair)
  %more = call i64 @word(ptr %table, i64 %pair.more)
  switch i64 %slot, label %address [ i64 -1, label %number
                                     i64 -2, label %struct
                                     i64 -3, label %map
                                     i64 -4, label %handle ]

address:
  %slot.at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %slot.at
  %sum = add i64 %base, %more
  store i64 %sum, ptr %value.at
  store ptr %value.at, ptr %param.at
  br label %filled

number:
  store i64 %more, ptr %value.at
  store ptr %value.at, ptr %param.at
  br label %filled

struct:
  %struct.at = getelementptr i64, ptr %table, i64 %more
  store i64 0, ptr %value.at
  store ptr %struct.at, ptr %param.at
  br label %filled

map:
  %map.at = getelementptr i64, ptr %table, i64 %more
  %map.slot = load i64, ptr %map.at
  %map.bytes.at = getelementptr i64, ptr %map.at, i64 1
  %map.bytes = load i64, ptr %map.bytes.at
  %map.slot.at = getelementptr i64, ptr %slots, i64 %map.slot
  %map.base = load i64, ptr %map.slot.at
  %map.address = add i64 %map.base, %map.bytes
  %map.struct = alloca [16 x i64], align 64
  %map.rest = getelementptr i64, ptr %map.struct, i64 1
  %map.words = getelementptr i64, ptr %map.at, i64 2
  call void @llvm.memcpy.p0.p0.i64(ptr %map.rest, ptr %map.words, i64 120, i1 false)
  store i64 %map.address, ptr %map.struct
  store i64 %map.address, ptr %value.at
  store ptr %map.struct, ptr %param.at
  br label %filled

handle:
  %h.graph.at = getelementptr %Call, ptr %call, i32 0, i32 5
  %h.graph = load ptr, ptr %h.graph.at
  %h.first.at = getelementptr %Graph, ptr %h.graph, i32 0, i32 14
  %h.first = load i64, ptr %h.first.at
  %h.sum = add i64 %h.first, %more
  %h.stop = icmp slt i64 %more, 0
  %h.number = select i1 %h.stop, i64 0, i64 %h.sum
  %h.numbers.at = getelementptr %Graph, ptr %h.graph, i32 0, i32 12
  %h.numbers = load ptr, ptr %h.numbers.at
  %h.at = getelementptr i64, ptr %h.numbers, i64 %h.number
  %h.value = load i64, ptr %h.at
  store i64 %h.value, ptr %value.at
  store ptr %value.at, ptr %param.at
  br label %filled

filled:
  br label %next

ready:
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %direct = icmp eq i64 %mode, 0
  br i1 %direct, label %enqueue, label %node

enqueue:
  %function.p = inttoptr i64 %function to ptr
  %x = call i32 @number(ptr %table, i64 %at, i64 2)
  %y = call i32 @number(ptr %table, i64 %at, i64 3)
  %block = call i32 @number(ptr %table, i64 %at, i64 4)
  %shared = call i32 @number(ptr %table, i64 %at, i64 5)
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  %stream = load ptr, ptr %at.stream
  %attribute = call i32 @number(ptr %table, i64 %at, i64 8)
  %plain = icmp eq i32 %attribute, 0
  br i1 %plain, label %alone, label %special

special:
  %how = alloca %Attribute
  store %Attribute zeroinitializer, ptr %how
  store i32 %attribute, ptr %how
  %h.on = getelementptr %Attribute, ptr %how, i32 0, i32 2
  store i32 1, ptr %h.on
  %config = alloca %Config
  store i32 %x, ptr %config
  %c.y = getelementptr %Config, ptr %config, i32 0, i32 1
  store i32 %y, ptr %c.y
  %c.z = getelementptr %Config, ptr %config, i32 0, i32 2
  store i32 1, ptr %c.z
  %c.bx = getelementptr %Config, ptr %config, i32 0, i32 3
  store i32 %block, ptr %c.bx
  %c.by = getelementptr %Config, ptr %config, i32 0, i32 4
  store i32 1, ptr %c.by
  %c.bz = getelementptr %Config, ptr %config, i32 0, i32 5
  store i32 1, ptr %c.bz
  %c.shared = getelementptr %Config, ptr %config, i32 0, i32 6
  store i32 %shared, ptr %c.shared
  %c.stream = getelementptr %Config, ptr %config, i32 0, i32 7
  store ptr %stream, ptr %c.stream
  %c.how = getelementptr %Config, ptr %config, i32 0, i32 8
  store ptr %how, ptr %c.how
  %c.count = getelementptr %Config, ptr %config, i32 0, i32 9
  store i32 1, ptr %c.count
  %launch.special = call ptr @entry(ptr %call, i32 8)
  %status.special = call i32 %launch.special(ptr %config, ptr %function.p, ptr %params, ptr null)
  %wide.special = zext i32 %status.special to i64
  ret i64 %wide.special

alone:
  %launch = call ptr @entry(ptr %call, i32 0)
  %status = call i32 %launch(ptr %function.p, i32 %x, i32 %y, i32 1, i32 %block, i32 1, i32 1,
                             i32 %shared, ptr %stream, ptr %params, ptr null)
  %wide = zext i32 %status to i64
  ret i64 %wide

node:
  %found = call i64 @node(ptr %call, i64 %at, ptr %values, ptr %params, i64 %room)
  ret i64 %found
}

define internal i32 @number(ptr %table, i64 %at, i64 %further) alwaysinline {
  %place = add i64 %at, %further
  %value = call i64 @word(ptr %table, i64 %place)
  %narrow = trunc i64 %value to i32
  ret i32 %narrow
}

; A launch as the next node of a graph: it is added (mode 1), or given new arguments (mode 2) if
; they are not those that it has.
define internal i64 @node(ptr %call, i64 %at, ptr %values, ptr %params, i64 %count) {
start:
  %node = alloca %Node
  store %Node zeroinitializer, ptr %node
  %table = load ptr, ptr %call
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.made = getelementptr %Graph, ptr %graph, i32 0, i32 4
  %made = load i64, ptr %at.made
  %at.used = getelementptr %Graph, ptr %graph, i32 0, i32 5
  %used = load i64, ptr %at.used
  %made.next = add i64 %made, 1
  %at.kept.count = add i64 %at, 7
  %kept.count = call i64 @word(ptr %table, i64 %at.kept.count)
  %used.next = add i64 %used, %kept.count
  %at.most.nodes = getelementptr %Graph, ptr %graph, i32 0, i32 6
  %most.nodes = load i64, ptr %at.most.nodes
  %at.most.values = getelementptr %Graph, ptr %graph, i32 0, i32 7
  %most.values = load i64, ptr %at.most.values
  %full.nodes = icmp ugt i64 %made.next, %most.nodes
  %full.values = icmp ugt i64 %used.next, %most.values
  %full = or i1 %full.nodes, %full.values
  br i1 %full, label %no.room, label %fits

no.room:
  ret i64 -3

fits:
  store i64 %made.next, ptr %at.made
  store i64 %used.next, ptr %at.used
  %at.kept = getelementptr %Graph, ptr %graph, i32 0, i32 3
  %kept.all = load ptr, ptr %at.kept
  %kept = getelementptr i64, ptr %kept.all, i64 %used
  %adding = icmp eq i64 %mode, 1
  br i1 %adding, label %changed, label %compare

compare:
  %k = phi i64 [ 0, %fits ], [ %k.next, %same ]
  %old.at = getelementptr i64, ptr %kept, i64 %k
  %new.at = getelementptr i64, ptr %values, i64 %k
  %old = load i64, ptr %old.at
  %new = load i64, ptr %new.at
  %differs = icmp ne i64 %old, %new
  br i1 %differs, label %changed, label %same

same:
  %k.next = add i64 %k, 1
  %all = icmp eq i64 %k.next, %count
  br i1 %all, label %nothing, label %compare

nothing:
  ret i64 0

changed:
  %nbytes = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %kept, ptr %values, i64 %nbytes, i1 false)
  %function.i = load i64, ptr %values
  %function = inttoptr i64 %function.i to ptr
  store ptr %function, ptr %node
  %x = call i32 @number(ptr %table, i64 %at, i64 2)
  %y = call i32 @number(ptr %table, i64 %at, i64 3)
  %block = call i32 @number(ptr %table, i64 %at, i64 4)
  %shared = call i32 @number(ptr %table, i64 %at, i64 5)
  %n.x = getelementptr %Node, ptr %node, i32 0, i32 1
  store i32 %x, ptr %n.x
  %n.y = getelementptr %Node, ptr %node, i32 0, i32 2
  store i32 %y, ptr %n.y
  %n.z = getelementptr %Node, ptr %node, i32 0, i32 3
  store i32 1, ptr %n.z
  %n.bx = getelementptr %Node, ptr %node, i32 0, i32 4
  store i32 %block, ptr %n.bx
  %n.by = getelementptr %Node, ptr %node, i32 0, i32 5
  store i32 1, ptr %n.by
  %n.bz = getelementptr %Node, ptr %node, i32 0, i32 6
  store i32 1, ptr %n.bz
  %n.shared = getelementptr %Node, ptr %node, i32 0, i32 7
  store i32 %shared, ptr %n.shared
  %n.params = getelementptr %Node, ptr %node, i32 0, i32 8
  store ptr %params, ptr %n.params
  %at.nodes = getelementptr %Graph, ptr %graph, i32 0, i32 2
  %nodes = load ptr, ptr %at.nodes
  %own = getelementptr ptr, ptr %nodes, i64 %made
  br i1 %adding, label %add, label %set

add:
  %at.where = getelementptr %Graph, ptr %graph, i32 0, i32 10
  %drawn = load ptr, ptr %at.where
  %at.before = getelementptr %Graph, ptr %graph, i32 0, i32 11
  %last = load ptr, ptr %at.before
  %first = icmp eq ptr %last, null
  %at.waits = getelementptr %Graph, ptr %graph, i32 0, i32 8
  %waits = load i64, ptr %at.waits
  store i64 0, ptr %at.waits
  %in.line = icmp eq i64 %waits, 0
  br i1 %in.line, label %add.next, label %add.after

add.after:  ; the nodes that it waits for, side by side
  %wait.count = call i64 @word(ptr %table, i64 %waits)
  %at.list = getelementptr %Graph, ptr %graph, i32 0, i32 9
  %list = load ptr, ptr %at.list
  br label %wait.next

wait.next:
  %w = phi i64 [ 0, %add.after ], [ %w.next, %wait.one ]
  %w.done = icmp eq i64 %w, %wait.count
  br i1 %w.done, label %wait.add, label %wait.one

wait.one:
  %w.next = add i64 %w, 1
  %w.place = add i64 %waits, %w.next
  %w.number = call i64 @word(ptr %table, i64 %w.place)
  %w.node.at = getelementptr ptr, ptr %nodes, i64 %w.number
  %w.node = load ptr, ptr %w.node.at
  %w.to = getelementptr ptr, ptr %list, i64 %w
  store ptr %w.node, ptr %w.to
  br label %wait.next

wait.add:
  %add.waiting = call ptr @entry(ptr %call, i32 5)
  %put.waiting = call i32 %add.waiting(ptr %own, ptr %drawn, ptr %list, i64 %wait.count, ptr %node)
  %put.waiting.told = call i64 @cooperate(ptr %call, i64 %at, ptr %own, i32 %put.waiting)
  ret i64 %put.waiting.told

add.next:
  %needs = select i1 %first, ptr null, ptr %at.before
  %needed = select i1 %first, i64 0, i64 1
  %add.node = call ptr @entry(ptr %call, i32 5)
  %added = call i32 %add.node(ptr %own, ptr %drawn, ptr %needs, i64 %needed, ptr %node)
  %added.told = call i64 @cooperate(ptr %call, i64 %at, ptr %own, i32 %added)
  ret i64 %added.told

set:
  %at.exec = getelementptr %Graph, ptr %graph, i32 0, i32 1
  %exec = load ptr, ptr %at.exec
  %which = load ptr, ptr %own
  %set.node = call ptr @entry(ptr %call, i32 6)
  %put = call i32 %set.node(ptr %exec, ptr %which, ptr %node)
  %put.wide = zext i32 %put to i64
  ret i64 %put.wide
}

; A new node is the one before the next, and told the attribute of its launch, if there is one; the
; status.
define internal i64 @cooperate(ptr %call, i64 %at, ptr %own, i32 %status) noinline {
  %table = load ptr, ptr %call
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.before = getelementptr %Graph, ptr %graph, i32 0, i32 11
  %made = load ptr, ptr %own
  store ptr %made, ptr %at.before
  %attribute = call i32 @number(ptr %table, i64 %at, i64 8)
  %good = icmp eq i32 %status, 0
  %special = icmp ne i32 %attribute, 0
  %both = and i1 %good, %special
  br i1 %both, label %tell, label %end
tell:
  %value = alloca [16 x i32]
  store [16 x i32] zeroinitializer, ptr %value
  store i32 1, ptr %value
  %node = load ptr, ptr %own
  %set = call ptr @entry(ptr %call, i32 10)
  %answer = call i32 %set(ptr %node, i32 %attribute, ptr %value)
  %answer.wide = zext i32 %answer to i64
  ret i64 %answer.wide
end:
  %wide = zext i32 %status to i64
  ret i64 %wide
}

; -- loops and branches ----------------------------------------------------------------------------

; Lets Python handle an interrupt, now and then; -1 if it raised something.
define internal i64 @signals(ptr %call, i64 %mask) noinline {
  %at.count = getelementptr %Call, ptr %call, i32 0, i32 7
  %count = load i64, ptr %at.count
  %count.next = add i64 %count, 1
  store i64 %count.next, ptr %at.count
  %rest = and i64 %count.next, %mask
  %due = icmp eq i64 %rest, 0
  br i1 %due, label %look, label %no
look:
  %at.state = getelementptr %Call, ptr %call, i32 0, i32 6
  %state = load ptr, ptr %at.state
  call void @PyEval_RestoreThread(ptr %state)
  %raised = call i32 @PyErr_CheckSignals()
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %at.state
  %wide = sext i32 %raised to i64
  ret i64 %wide
no:
  ret i64 0
}

; Waits until all work on a stream is done: 0, an error of the driver, or -1 if a signal came for
; which Python raised something. The longer it takes, the more rarely is the driver asked.
define internal i64 @await(ptr %entries, ptr %stream, ptr %at.state) noinline {
start:
  %idle = alloca i64
  %at.query = getelementptr ptr, ptr %entries, i32 2
  %query = load ptr, ptr %at.query
  br label %ask

ask:
  %n = phi i64 [ 1, %start ], [ %n.next, %rested ]
  %status = call i32 %query(ptr %stream)
  %busy = icmp eq i32 %status, 600  ; CUDA_ERROR_NOT_READY
  br i1 %busy, label %pause, label %over

over:
  %wide = zext i32 %status to i64
  ret i64 %wide

pause:
  %many = icmp ugt i64 %n, 65536
  %turns = select i1 %many, i64 65536, i64 %n
  br label %turn

turn:
  %k = phi i64 [ 0, %pause ], [ %k.next, %turn ]
  store volatile i64 %k, ptr %idle
  %k.next = add i64 %k, 1
  %paused = icmp uge i64 %k.next, %turns
  br i1 %paused, label %listen, label %turn

listen:
  %rest = and i64 %n, 1023
  %due = icmp eq i64 %rest, 0
  br i1 %due, label %look, label %rested

look:
  %state = load ptr, ptr %at.state
  call void @PyEval_RestoreThread(ptr %state)
  %raised = call i32 @PyErr_CheckSignals()
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %at.state
  %silent = icmp eq i32 %raised, 0
  br i1 %silent, label %rested, label %heard

heard:
  ret i64 -1

rested:
  %n.next = add i64 %n, 1
  br label %ask
}

; The byte at a slot, when the device has computed it, or what is above 255: 2^32 + a status.
define internal i64 @flag(ptr %call, i64 %slot) noinline {
  ; one of 1024 places, so that threads do not meet
  %turn = atomicrmw add ptr @turn, i64 64 monotonic
  %where = and i64 %turn, 65535
  %locked = call ptr @entry(ptr %call, i32 13)
  %byte = getelementptr i8, ptr %locked, i64 %where
  store volatile i64 0, ptr %byte
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  %at = getelementptr i64, ptr %slots, i64 %slot
  %address = load i64, ptr %at
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  %stream = load ptr, ptr %at.stream
  %download = call ptr @entry(ptr %call, i32 1)
  %copied = call i32 %download(ptr %byte, i64 %address, i64 1, ptr %stream)
  %copied.wide = zext i32 %copied to i64
  %at.entries = getelementptr %Call, ptr %call, i32 0, i32 1
  %entries = load ptr, ptr %at.entries
  %at.state = getelementptr %Call, ptr %call, i32 0, i32 6
  %waited = call i64 @await(ptr %entries, ptr %stream, ptr %at.state)
  %unsent = icmp ne i32 %copied, 0
  %status = select i1 %unsent, i64 %copied.wide, i64 %waited
  %good = icmp eq i64 %status, 0
  %value = load volatile i64, ptr %byte
  %bad = add i64 %status, 4294967296
  %found = select i1 %good, i64 %value, i64 %bad
  ret i64 %found
}

; LOOP: length of all, rounds, moves, carries, (slot, bytes).., (slot, spare).., body
define internal i64 @loop(ptr %call, i64 %at) noinline {
start:
  %table = load ptr, ptr %call
  %at.rounds = add i64 %at, 2
  %rounds = call i64 @word(ptr %table, i64 %at.rounds)
  %at.moves = add i64 %at, 3
  %moves = call i64 @word(ptr %table, i64 %at.moves)
  %at.carries = add i64 %at, 4
  %carries = call i64 @word(ptr %table, i64 %at.carries)
  %first = add i64 %at, 5
  %moves.words = shl i64 %moves, 1
  %carries.at = add i64 %first, %moves.words
  %carries.words = shl i64 %carries, 1
  %body = add i64 %carries.at, %carries.words
  br label %round

round:
  %r = phi i64 [ 0, %start ], [ %r.next, %swapped ]
  %over = icmp sge i64 %r, %rounds
  br i1 %over, label %back, label %work

work:
  %status = call i64 @walk(ptr %call, i64 %body)
  %good = icmp eq i64 %status, 0
  br i1 %good, label %listen, label %failed

failed:
  ret i64 %status

listen:
  %heard = call i64 @signals(ptr %call, i64 4095)
  %silent = icmp eq i64 %heard, 0
  br i1 %silent, label %move, label %heard.it

heard.it:
  ret i64 %heard

move:
  call void @shift(ptr %call, i64 %first, i64 %moves, i64 1)
  call void @swap(ptr %call, i64 %carries.at, i64 %carries)
  br label %swapped

swapped:
  %r.next = add i64 %r, 1
  br label %round

back:  ; all pointers as before
  %negative = sub i64 0, %rounds
  %idle = icmp slt i64 %rounds, 0
  %turns = select i1 %idle, i64 0, i64 %negative
  call void @shift(ptr %call, i64 %first, i64 %moves, i64 %turns)
  %odd = and i64 %rounds, 1
  %is.odd = icmp eq i64 %odd, 1
  br i1 %is.odd, label %unswap, label %end

unswap:
  call void @swap(ptr %call, i64 %carries.at, i64 %carries)
  br label %end

end:
  ret i64 0
}

; Moves slots by so many times their bytes.
define internal void @shift(ptr %call, i64 %first, i64 %count, i64 %times) {
start:
  %table = load ptr, ptr %call
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %k.next, %one ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %end, label %one
one:
  %twice = shl i64 %k, 1
  %pair = add i64 %first, %twice
  %pair.more = add i64 %pair, 1
  %slot = call i64 @word(ptr %table, i64 %pair)
  %nbytes = call i64 @word(ptr %table, i64 %pair.more)
  %far = mul i64 %nbytes, %times
  %place = getelementptr i64, ptr %slots, i64 %slot
  %old = load i64, ptr %place
  %new = add i64 %old, %far
  store i64 %new, ptr %place
  %k.next = add i64 %k, 1
  br label %next
end:
  ret void
}

; Exchanges the slots of pairs.
define internal void @swap(ptr %call, i64 %first, i64 %count) {
start:
  %table = load ptr, ptr %call
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %k.next, %one ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %end, label %one
one:
  %twice = shl i64 %k, 1
  %pair = add i64 %first, %twice
  %pair.more = add i64 %pair, 1
  %slot = call i64 @word(ptr %table, i64 %pair)
  %spare = call i64 @word(ptr %table, i64 %pair.more)
  %a = getelementptr i64, ptr %slots, i64 %slot
  %b = getelementptr i64, ptr %slots, i64 %spare
  %x = load i64, ptr %a
  %y = load i64, ptr %b
  store i64 %y, ptr %a
  store i64 %x, ptr %b
  %k.next = add i64 %k, 1
  br label %next
end:
  ret void
}

; WHILE: length of all, flag, carries, place of the body, place of what follows an odd number of
; rounds, place of launches that set conditions, (slot, spare).., test
define internal i64 @while(ptr %call, i64 %at) noinline {
start:
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %direct = icmp eq i64 %mode, 0
  br i1 %direct, label %begin, label %draw

draw:
  %drawn = call i64 @while.drawn(ptr %call, i64 %at)
  ret i64 %drawn

begin:
  %table = load ptr, ptr %call
  %at.flag = add i64 %at, 2
  %flag.slot = call i64 @word(ptr %table, i64 %at.flag)
  %at.carries = add i64 %at, 3
  %carries = call i64 @word(ptr %table, i64 %at.carries)
  %at.body = add i64 %at, 4
  %body = call i64 @word(ptr %table, i64 %at.body)
  %at.settle = add i64 %at, 5
  %settle = call i64 @word(ptr %table, i64 %at.settle)
  %carries.at = add i64 %at, 7
  %carries.words = shl i64 %carries, 1
  %test = add i64 %carries.at, %carries.words
  br label %round

round:
  %odd = phi i1 [ false, %begin ], [ %odd.next, %again ]
  %tested = call i64 @walk(ptr %call, i64 %test)
  %test.good = icmp eq i64 %tested, 0
  br i1 %test.good, label %ask, label %test.failed

test.failed:
  ret i64 %tested

ask:
  %byte = call i64 @flag(ptr %call, i64 %flag.slot)
  %failed = icmp ugt i64 %byte, 255
  br i1 %failed, label %read.failed, label %know

read.failed:
  %status = sub i64 %byte, 4294967296
  ret i64 %status

know:
  %on = icmp ne i64 %byte, 0
  br i1 %on, label %work, label %end

work:
  %worked = call i64 @walk(ptr %call, i64 %body)
  %good = icmp eq i64 %worked, 0
  br i1 %good, label %listen, label %work.failed

work.failed:
  ret i64 %worked

listen:
  %heard = call i64 @signals(ptr %call, i64 255)
  %silent = icmp eq i64 %heard, 0
  br i1 %silent, label %again, label %heard.it

heard.it:
  ret i64 %heard

again:
  call void @swap(ptr %call, i64 %carries.at, i64 %carries)
  %odd.next = xor i1 %odd, true
  br label %round

end:
  br i1 %odd, label %unswap, label %over

unswap:
  call void @swap(ptr %call, i64 %carries.at, i64 %carries)
  %settled = call i64 @walk(ptr %call, i64 %settle)
  ret i64 %settled

over:
  ret i64 0
}

; EITHER: length of all, pairs, place of the second launch, (slot, bytes).., launch.., the second:
; the first one if all addresses are multiples of 16
define internal i64 @either(ptr %call, i64 %at) noinline {
start:
  %table = load ptr, ptr %call
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  %at.count = add i64 %at, 2
  %count = call i64 @word(ptr %table, i64 %at.count)
  %at.second = add i64 %at, 3
  %second = call i64 @word(ptr %table, i64 %at.second)
  %pairs = add i64 %at, 4
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %k.next, %one ]
  %all = phi i64 [ 0, %start ], [ %all.next, %one ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %choose, label %one
one:
  %twice = shl i64 %k, 1
  %pair = add i64 %pairs, %twice
  %pair.more = add i64 %pair, 1
  %slot = call i64 @word(ptr %table, i64 %pair)
  %nbytes = call i64 @word(ptr %table, i64 %pair.more)
  %place = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %place
  %address = add i64 %base, %nbytes
  %all.next = or i64 %all, %address
  %k.next = add i64 %k, 1
  br label %next
choose:
  %rest = and i64 %all, 15
  %aligned = icmp eq i64 %rest, 0
  %words = shl i64 %count, 1
  %first = add i64 %pairs, %words
  %chosen = select i1 %aligned, i64 %first, i64 %second
  %status = call i64 @launch(ptr %call, i64 %chosen)
  ret i64 %status
}

; BRANCH: length of all, flag, place of the other list, of a launch that sets conditions, list
define internal i64 @branch(ptr %call, i64 %at) noinline {
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %direct = icmp eq i64 %mode, 0
  br i1 %direct, label %begin, label %draw
draw:
  %drawn = call i64 @branch.drawn(ptr %call, i64 %at)
  ret i64 %drawn
begin:
  %table = load ptr, ptr %call
  %at.flag = add i64 %at, 2
  %slot = call i64 @word(ptr %table, i64 %at.flag)
  %at.other = add i64 %at, 3
  %other = call i64 @word(ptr %table, i64 %at.other)
  %then = add i64 %at, 5
  %byte = call i64 @flag(ptr %call, i64 %slot)
  %failed = icmp ugt i64 %byte, 255
  br i1 %failed, label %bad, label %know
bad:
  %status = sub i64 %byte, 4294967296
  ret i64 %status
know:
  %on = icmp ne i64 %byte, 0
  %list = select i1 %on, i64 %then, i64 %other
  %done = call i64 @walk(ptr %call, i64 %list)
  ret i64 %done
}

; -- loops and choices in a graph -------------------------------------------------------------------

; Numbers for so many conditions of a loop or choice: the place of the first.
define internal i64 @reserve(ptr %call, i64 %count) noinline {
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.used = getelementptr %Graph, ptr %graph, i32 0, i32 13
  %used = load i64, ptr %at.used
  %next = add i64 %used, %count
  store i64 %next, ptr %at.used
  ret i64 %used
}

; A new condition, which is 0 whenever the graph is launched; its handle becomes a number.
define internal i64 @condition(ptr %call, i64 %number) noinline {
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %adding = icmp eq i64 %mode, 1
  br i1 %adding, label %make, label %end
make:
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.where = getelementptr %Graph, ptr %graph, i32 0, i32 10
  %where = load ptr, ptr %at.where
  %at.numbers = getelementptr %Graph, ptr %graph, i32 0, i32 12
  %numbers = load ptr, ptr %at.numbers
  %to = getelementptr i64, ptr %numbers, i64 %number
  %table = load ptr, ptr %call
  %context.i = call i64 @word(ptr %table, i64 6)
  %context = inttoptr i64 %context.i to ptr
  %create = call ptr @entry(ptr %call, i32 11)
  %status = call i32 %create(ptr %to, ptr %where, ptr %context, i32 0, i32 1)
  %wide = zext i32 %status to i64
  ret i64 %wide
end:
  ret i64 0
}

; The launch at a place sets the conditions of the loop or choice whose first number is given.
define internal i64 @decide(ptr %call, i64 %place, i64 %first) noinline {
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.first = getelementptr %Graph, ptr %graph, i32 0, i32 14
  store i64 %first, ptr %at.first
  %status = call i64 @launch(ptr %call, i64 %place)
  ret i64 %status
}

; A node with a body, to which nodes are added from here on until `leave`: it is gone through if the
; condition of a number is not 0 (kind 0), or as long as it is not (kind 1).
define internal i64 @enter(ptr %call, i32 %kind, i64 %number, ptr %body) noinline {
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %adding = icmp eq i64 %mode, 1
  br i1 %adding, label %make, label %end
make:
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.where = getelementptr %Graph, ptr %graph, i32 0, i32 10
  %where = load ptr, ptr %at.where
  %at.before = getelementptr %Graph, ptr %graph, i32 0, i32 11
  %before = load ptr, ptr %at.before
  store ptr %where, ptr %body
  %body.before = getelementptr %Body, ptr %body, i32 0, i32 1
  store ptr %before, ptr %body.before
  %at.numbers = getelementptr %Graph, ptr %graph, i32 0, i32 12
  %numbers = load ptr, ptr %at.numbers
  %at.handle = getelementptr i64, ptr %numbers, i64 %number
  %handle = load i64, ptr %at.handle
  %table = load ptr, ptr %call
  %context = call i64 @word(ptr %table, i64 6)
  %context.p = inttoptr i64 %context to ptr
  %params = alloca %Condition
  store %Condition zeroinitializer, ptr %params
  store i32 13, ptr %params  ; CU_GRAPH_NODE_TYPE_CONDITIONAL
  %p.handle = getelementptr %Condition, ptr %params, i32 0, i32 2
  store i64 %handle, ptr %p.handle
  %p.kind = getelementptr %Condition, ptr %params, i32 0, i32 3
  store i32 %kind, ptr %p.kind
  %p.bodies = getelementptr %Condition, ptr %params, i32 0, i32 4
  store i32 1, ptr %p.bodies
  %p.context = getelementptr %Condition, ptr %params, i32 0, i32 6
  store ptr %context.p, ptr %p.context
  %body.node = getelementptr %Body, ptr %body, i32 0, i32 2
  %add = call ptr @entry(ptr %call, i32 12)
  %status = call i32 %add(ptr %body.node, ptr %where, ptr %at.before, ptr null, i64 1, ptr %params)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %inside, label %failed
failed:
  %wide = zext i32 %status to i64
  ret i64 %wide
inside:
  %p.graphs = getelementptr %Condition, ptr %params, i32 0, i32 5
  %graphs = load ptr, ptr %p.graphs
  %own = load ptr, ptr %graphs
  store ptr %own, ptr %at.where
  store ptr null, ptr %at.before
  br label %end
end:
  ret i64 0
}

; The end of a body: its node is the last of the nodes so far, and the one before the next.
define internal i64 @leave(ptr %call, ptr %body) noinline {
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.made = getelementptr %Graph, ptr %graph, i32 0, i32 4
  %made = load i64, ptr %at.made
  %made.next = add i64 %made, 1
  %at.most = getelementptr %Graph, ptr %graph, i32 0, i32 6
  %most = load i64, ptr %at.most
  %full = icmp ugt i64 %made.next, %most
  br i1 %full, label %no.room, label %fits
no.room:
  ret i64 -3
fits:
  store i64 %made.next, ptr %at.made
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %adding = icmp eq i64 %mode, 1
  br i1 %adding, label %back, label %end
back:
  %where = load ptr, ptr %body
  %at.where = getelementptr %Graph, ptr %graph, i32 0, i32 10
  store ptr %where, ptr %at.where
  %body.node = getelementptr %Body, ptr %body, i32 0, i32 2
  %node = load ptr, ptr %body.node
  %at.before = getelementptr %Graph, ptr %graph, i32 0, i32 11
  store ptr %node, ptr %at.before
  %at.nodes = getelementptr %Graph, ptr %graph, i32 0, i32 2
  %nodes = load ptr, ptr %at.nodes
  %own = getelementptr ptr, ptr %nodes, i64 %made
  store ptr %node, ptr %own
  br label %end
end:
  ret i64 0
}

; A list of nodes that is gone through if the condition of a number is not 0.
define internal i64 @choice(ptr %call, i64 %list, i64 %number) noinline {
  %body = alloca %Body
  %entered = call i64 @enter(ptr %call, i32 0, i64 %number, ptr %body)
  %inside = icmp eq i64 %entered, 0
  br i1 %inside, label %work, label %refused
refused:
  ret i64 %entered
work:
  %walked = call i64 @walk(ptr %call, i64 %list)
  %good = icmp eq i64 %walked, 0
  br i1 %good, label %out, label %failed
failed:
  ret i64 %walked
out:
  %left = call i64 @leave(ptr %call, ptr %body)
  ret i64 %left
}

; A round: the body, carries exchanged, the test, and the launch that sets conditions.
define internal i64 @turn.drawn(ptr %call, i64 %at, i64 %which, i64 %first) noinline {
  %table = load ptr, ptr %call
  %at.carries = add i64 %at, 3
  %carries = call i64 @word(ptr %table, i64 %at.carries)
  %at.body = add i64 %at, 4
  %body = call i64 @word(ptr %table, i64 %at.body)
  %carries.at = add i64 %at, 7
  %carries.words = shl i64 %carries, 1
  %test = add i64 %carries.at, %carries.words
  %worked = call i64 @walk(ptr %call, i64 %body)
  %good = icmp eq i64 %worked, 0
  br i1 %good, label %ask, label %failed
failed:
  ret i64 %worked
ask:
  call void @swap(ptr %call, i64 %carries.at, i64 %carries)
  %tested = call i64 @walk(ptr %call, i64 %test)
  %known = icmp eq i64 %tested, 0
  br i1 %known, label %set, label %test.failed
test.failed:
  ret i64 %tested
set:
  %at.setters = add i64 %at, 6
  %setters = call i64 @word(ptr %table, i64 %at.setters)
  %far = mul i64 %which, 21  ; words of such a launch
  %place = add i64 %setters, %far
  %status = call i64 @decide(ptr %call, i64 %place, i64 %first)
  ret i64 %status
}

; A loop of a graph. Its body has two rounds, the second one if the test holds after the first: so
; carries are where they were, and only after an odd number of rounds is something to be copied.
; Conditions: of the loop, of the second round, of the copies.
define internal i64 @while.drawn(ptr %call, i64 %at) noinline {
start:
  %outer = alloca %Body
  %inner = alloca %Body
  %table = load ptr, ptr %call
  %at.carries = add i64 %at, 3
  %carries = call i64 @word(ptr %table, i64 %at.carries)
  %at.body = add i64 %at, 4
  %body = call i64 @word(ptr %table, i64 %at.body)
  %at.settle = add i64 %at, 5
  %settle = call i64 @word(ptr %table, i64 %at.settle)
  %at.setters = add i64 %at, 6
  %setters = call i64 @word(ptr %table, i64 %at.setters)
  %carries.at = add i64 %at, 7
  %carries.words = shl i64 %carries, 1
  %test = add i64 %carries.at, %carries.words
  %first = call i64 @reserve(ptr %call, i64 3)
  %second = add i64 %first, 1
  %third = add i64 %first, 2
  %body.kind = call i64 @word(ptr %table, i64 %body)
  %alone = icmp eq i64 %body.kind, 0  ; the test is all there is
  %settle.kind = call i64 @word(ptr %table, i64 %settle)
  %settles = icmp ne i64 %settle.kind, 0
  %s0 = call i64 @condition(ptr %call, i64 %first)
  %g0 = icmp eq i64 %s0, 0
  br i1 %g0, label %copies, label %end
copies:
  br i1 %settles, label %copies.condition, label %begin
copies.condition:
  %s1 = call i64 @condition(ptr %call, i64 %third)
  %g1 = icmp eq i64 %s1, 0
  br i1 %g1, label %begin, label %end
begin:
  %s2 = call i64 @walk(ptr %call, i64 %test)
  %g2 = icmp eq i64 %s2, 0
  br i1 %g2, label %decide, label %end
decide:
  %s3 = call i64 @decide(ptr %call, i64 %setters, i64 %first)
  %g3 = icmp eq i64 %s3, 0
  br i1 %g3, label %loop, label %end
loop:
  %s4 = call i64 @enter(ptr %call, i32 1, i64 %first, ptr %outer)
  %g4 = icmp eq i64 %s4, 0
  br i1 %g4, label %inside, label %end
inside:
  br i1 %alone, label %last, label %round
round:
  %s5 = call i64 @condition(ptr %call, i64 %second)
  %g5 = icmp eq i64 %s5, 0
  br i1 %g5, label %odd, label %end
odd:
  %s6 = call i64 @turn.drawn(ptr %call, i64 %at, i64 1, i64 %first)
  %g6 = icmp eq i64 %s6, 0
  br i1 %g6, label %again, label %end
again:
  %s7 = call i64 @enter(ptr %call, i32 0, i64 %second, ptr %inner)
  %g7 = icmp eq i64 %s7, 0
  br i1 %g7, label %last, label %end
last:
  %which = select i1 %alone, i64 1, i64 2
  %s8 = call i64 @turn.drawn(ptr %call, i64 %at, i64 %which, i64 %first)
  %g8 = icmp eq i64 %s8, 0
  br i1 %g8, label %out, label %end
out:
  br i1 %alone, label %over, label %inner.over
inner.over:
  %s9 = call i64 @leave(ptr %call, ptr %inner)
  %g9 = icmp eq i64 %s9, 0
  br i1 %g9, label %over, label %end
over:
  %s10 = call i64 @leave(ptr %call, ptr %outer)
  %g10 = icmp eq i64 %s10, 0
  br i1 %g10, label %settled, label %end
settled:
  br i1 %settles, label %copy, label %end
copy:
  %s11 = call i64 @choice(ptr %call, i64 %settle, i64 %third)
  br label %end
end:
  %status = phi i64 [ %s0, %start ], [ %s1, %copies.condition ], [ %s2, %begin ], [ %s3, %decide ],
                    [ %s4, %loop ], [ %s5, %round ], [ %s6, %odd ], [ %s7, %again ], [ %s8, %last ],
                    [ %s9, %inner.over ], [ %s10, %over ], [ 0, %settled ], [ %s11, %copy ]
  ret i64 %status
}

; A choice of a graph. Conditions: of the one list, of the other.
define internal i64 @branch.drawn(ptr %call, i64 %at) noinline {
start:
  %table = load ptr, ptr %call
  %at.other = add i64 %at, 3
  %other = call i64 @word(ptr %table, i64 %at.other)
  %at.setter = add i64 %at, 4
  %setter = call i64 @word(ptr %table, i64 %at.setter)
  %then = add i64 %at, 5
  %first = call i64 @reserve(ptr %call, i64 2)
  %second = add i64 %first, 1
  %then.kind = call i64 @word(ptr %table, i64 %then)
  %has.then = icmp ne i64 %then.kind, 0
  %other.kind = call i64 @word(ptr %table, i64 %other)
  %has.other = icmp ne i64 %other.kind, 0
  br i1 %has.then, label %one, label %two
one:
  %s0 = call i64 @condition(ptr %call, i64 %first)
  %g0 = icmp eq i64 %s0, 0
  br i1 %g0, label %two, label %end
two:
  br i1 %has.other, label %another, label %decide
another:
  %s1 = call i64 @condition(ptr %call, i64 %second)
  %g1 = icmp eq i64 %s1, 0
  br i1 %g1, label %decide, label %end
decide:
  %s2 = call i64 @decide(ptr %call, i64 %setter, i64 %first)
  %g2 = icmp eq i64 %s2, 0
  br i1 %g2, label %lists, label %end
lists:
  br i1 %has.then, label %first.list, label %next
first.list:
  %s3 = call i64 @choice(ptr %call, i64 %then, i64 %first)
  %g3 = icmp eq i64 %s3, 0
  br i1 %g3, label %next, label %end
next:
  br i1 %has.other, label %second.list, label %end
second.list:
  %s4 = call i64 @choice(ptr %call, i64 %other, i64 %second)
  br label %end
end:
  %status = phi i64 [ %s0, %one ], [ %s1, %another ], [ %s2, %decide ], [ %s3, %first.list ],
                    [ 0, %next ], [ %s4, %second.list ]
  ret i64 %status
}

; HOST: length, callback, number
define internal i64 @host(ptr %call, i64 %at) noinline {
  %table = load ptr, ptr %call
  %at.callback = add i64 %at, 2
  %callback.i = call i64 @word(ptr %table, i64 %at.callback)
  %callback = inttoptr i64 %callback.i to ptr
  %at.number = add i64 %at, 3
  %number = call i64 @word(ptr %table, i64 %at.number)
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  %stream = load ptr, ptr %at.stream
  %stop = call i32 %callback(ptr %slots, ptr %stream, i64 %number)
  %stops = icmp ne i32 %stop, 0
  %status = select i1 %stops, i64 -2, i64 0
  ret i64 %status
}

; CLEAR: length, slot, bytes
define internal i64 @clear(ptr %call, i64 %at) noinline {
  %table = load ptr, ptr %call
  %at.slot = add i64 %at, 2
  %slot = call i64 @word(ptr %table, i64 %at.slot)
  %at.bytes = add i64 %at, 3
  %nbytes = call i64 @word(ptr %table, i64 %at.bytes)
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  %slots = load ptr, ptr %at.slots
  %place = getelementptr i64, ptr %slots, i64 %slot
  %address = load i64, ptr %place
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  %stream = load ptr, ptr %at.stream
  %memset = call ptr @entry(ptr %call, i32 9)
  %status = call i32 %memset(i64 %address, i8 0, i64 %nbytes, ptr %stream)
  %wide = zext i32 %status to i64
  ret i64 %wide
}

; GROUP: length, count, numbers of nodes: what the next node of a graph waits for
define internal i64 @group(ptr %call, i64 %at) noinline {
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %adds = icmp eq i64 %mode, 1
  br i1 %adds, label %note, label %end
note:
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %graph = load ptr, ptr %at.graph
  %at.waits = getelementptr %Graph, ptr %graph, i32 0, i32 8
  %place = add i64 %at, 2
  store i64 %place, ptr %at.waits
  br label %end
end:
  ret i64 0
}

; A list of nodes, which a 0 ends.
define internal i64 @walk(ptr %call, i64 %begin) {
start:
  %table = load ptr, ptr %call
  br label %next

next:
  %at = phi i64 [ %begin, %start ], [ %at.launch, %launched ], [ %at.joint, %joined ]
  %kind = call i64 @word(ptr %table, i64 %at)
  switch i64 %kind, label %end [ i64 1, label %one
                                 i64 2, label %two
                                 i64 3, label %three
                                 i64 4, label %four
                                 i64 5, label %five
                                 i64 6, label %six
                                 i64 7, label %seven
                                 i64 8, label %eight ]
end:
  ret i64 0

one:
  %s1 = call i64 @launch(ptr %call, i64 %at)
  %at.n = add i64 %at, 6
  %n = call i64 @word(ptr %table, i64 %at.n)
  %pairs = shl i64 %n, 1
  %length = add i64 %pairs, 9
  %at.launch = add i64 %at, %length
  %good = icmp eq i64 %s1, 0
  br i1 %good, label %launched, label %failed
launched:
  br label %next
failed:
  ret i64 %s1

two:
  %s2 = call i64 @either(ptr %call, i64 %at)
  br label %joint
three:
  %s3 = call i64 @loop(ptr %call, i64 %at)
  br label %joint
four:
  %s4 = call i64 @while(ptr %call, i64 %at)
  br label %joint
five:
  %s5 = call i64 @branch(ptr %call, i64 %at)
  br label %joint
six:
  %s6 = call i64 @host(ptr %call, i64 %at)
  br label %joint

seven:
  %s7 = call i64 @clear(ptr %call, i64 %at)
  br label %joint

eight:
  %s8 = call i64 @group(ptr %call, i64 %at)
  br label %joint

joint:
  %status = phi i64 [ %s2, %two ], [ %s3, %three ], [ %s4, %four ], [ %s5, %five ], [ %s6, %six ],
                    [ %s7, %seven ], [ %s8, %eight ]
  %at.own = add i64 %at, 1
  %own = call i64 @word(ptr %table, i64 %at.own)
  %at.joint = add i64 %at, %own
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %joined, label %joint.failed
joined:
  br label %next
joint.failed:
  ret i64 %status
}

; -- calls from Python -----------------------------------------------------------------------------

define internal i64 @argument(ptr %args, i64 %number) alwaysinline {
  %at = getelementptr ptr, ptr %args, i64 %number
  %object = load ptr, ptr %at
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  ret i64 %value
}

; The pointers of all slots: 0, or -1 if Python raised an error.
define internal i64 @fill(ptr %table, ptr %slots, ptr %buffers, i64 %scratch) noinline {
start:
  %inputs = call i64 @word(ptr %table, i64 0)
  %areas = call i64 @word(ptr %table, i64 1)
  %pointers = call i64 @word(ptr %table, i64 2)
  %local = call i64 @word(ptr %table, i64 3)
  %name = load ptr, ptr @name.address
  br label %input

input:
  %i = phi i64 [ 0, %start ], [ %i.next, %input.found ], [ %i.next, %input.number ]
  %i.next = add i64 %i, 1
  %input.done = icmp eq i64 %i, %inputs
  br i1 %input.done, label %area, label %input.one

input.one:
  %input.at = getelementptr i64, ptr %slots, i64 %i.next
  %buffer = call ptr @PyTuple_GetItem(ptr %buffers, i64 %i)
  %type.at = getelementptr ptr, ptr %buffer, i64 1
  %type = load ptr, ptr %type.at
  %plain = icmp eq ptr %type, @PyLong_Type
  br i1 %plain, label %input.number, label %input.buffer

input.number:  ; an address
  %given = call i64 @PyLong_AsLongLong(ptr %buffer)
  store i64 %given, ptr %input.at
  br label %input

input.buffer:
  %number = call ptr @PyObject_GetAttr(ptr %buffer, ptr %name)
  %absent = icmp eq ptr %number, null
  br i1 %absent, label %raised, label %input.found

input.found:
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  call void @Py_DecRef(ptr %number)
  store i64 %address, ptr %input.at
  br label %input

raised:
  ret i64 -1

area:
  %first.area = add i64 %inputs, 1
  br label %area.next

area.next:
  %a = phi i64 [ 0, %area ], [ %a.next, %area.one ]
  %area.done = icmp eq i64 %a, %areas
  br i1 %area.done, label %pointer, label %area.one

area.one:
  %a.next = add i64 %a, 1
  %a.word = add i64 %a, 8
  %a.offset = call i64 @word(ptr %table, i64 %a.word)
  %a.address = add i64 %scratch, %a.offset
  %a.slot = add i64 %first.area, %a
  %a.at = getelementptr i64, ptr %slots, i64 %a.slot
  store i64 %a.address, ptr %a.at
  br label %area.next

pointer:
  %first.pointer = add i64 %first.area, %areas
  %pairs = add i64 %areas, 8
  br label %pointer.next

pointer.next:
  %p = phi i64 [ 0, %pointer ], [ %p.next, %pointer.one ]
  %p.at = phi i64 [ %pairs, %pointer ], [ %p.at.next, %pointer.one ]
  %pointer.done = icmp eq i64 %p, %pointers
  br i1 %pointer.done, label %array, label %pointer.one

pointer.one:
  %p.next = add i64 %p, 1
  %p.at.next = add i64 %p.at, 2
  %p.more = add i64 %p.at, 1
  %origin = call i64 @word(ptr %table, i64 %p.at)
  %nbytes = call i64 @word(ptr %table, i64 %p.more)
  %origin.at = getelementptr i64, ptr %slots, i64 %origin
  %base = load i64, ptr %origin.at
  %derived = add i64 %base, %nbytes
  %p.slot = add i64 %first.pointer, %p
  %p.slot.at = getelementptr i64, ptr %slots, i64 %p.slot
  store i64 %derived, ptr %p.slot.at
  br label %pointer.next

array:
  %l = phi i64 [ 0, %pointer.next ], [ %l.next, %array.one ]
  %l.at = phi i64 [ %p.at, %pointer.next ], [ %l.at.next, %array.one ]
  %array.done = icmp eq i64 %l, %local
  br i1 %array.done, label %end, label %array.one

array.one:
  %l.next = add i64 %l, 1
  %l.at.next = add i64 %l.at, 2
  %l.more = add i64 %l.at, 1
  %l.slot = call i64 @word(ptr %table, i64 %l.at)
  %l.offset = call i64 @word(ptr %table, i64 %l.more)
  %l.address = add i64 %scratch, %l.offset
  %l.slot.at = getelementptr i64, ptr %slots, i64 %l.slot
  store i64 %l.address, ptr %l.slot.at
  br label %array

end:
  ret i64 0
}

; The nodes, and a graph's launch, where the GPU of the program is the current one.
define internal i64 @run(ptr %call, i64 %body) noinline {
start:
  %old.at = alloca ptr
  store ptr null, ptr %old.at
  %table = load ptr, ptr %call
  %own.i = call i64 @word(ptr %table, i64 6)
  %own = inttoptr i64 %own.i to ptr
  %get = call ptr @entry(ptr %call, i32 3)
  %set = call ptr @entry(ptr %call, i32 4)
  %got = call i32 %get(ptr %old.at)
  %old = load ptr, ptr %old.at
  %current = icmp eq ptr %old, %own
  br i1 %current, label %work, label %enter

enter:
  %entered = call i32 %set(ptr %own)
  br label %work

work:
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  %mode = load i64, ptr %at.mode
  %direct = icmp eq i64 %mode, 0
  br i1 %direct, label %nodes, label %begin

begin:
  %at.begun = getelementptr %Call, ptr %call, i32 0, i32 5
  %begun = load ptr, ptr %at.begun
  %at.made = getelementptr %Graph, ptr %begun, i32 0, i32 4
  store i64 0, ptr %at.made
  %at.used = getelementptr %Graph, ptr %begun, i32 0, i32 5
  store i64 0, ptr %at.used
  %drawn = load ptr, ptr %begun
  %at.where = getelementptr %Graph, ptr %begun, i32 0, i32 10
  store ptr %drawn, ptr %at.where
  %at.before = getelementptr %Graph, ptr %begun, i32 0, i32 11
  store ptr null, ptr %at.before
  %at.numbers = getelementptr %Graph, ptr %begun, i32 0, i32 13
  store i64 1, ptr %at.numbers  ; the first is where a stop is asked for
  br label %nodes

nodes:
  %walked = call i64 @walk(ptr %call, i64 %body)
  %replay = icmp eq i64 %mode, 2
  %good = icmp eq i64 %walked, 0
  %send = and i1 %replay, %good
  br i1 %send, label %graph, label %done

graph:
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  %made = load ptr, ptr %at.graph
  %at.exec = getelementptr %Graph, ptr %made, i32 0, i32 1
  %exec = load ptr, ptr %at.exec
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  %stream = load ptr, ptr %at.stream
  %launch = call ptr @entry(ptr %call, i32 7)
  %sent = call i32 %launch(ptr %exec, ptr %stream)
  %sent.wide = zext i32 %sent to i64
  br label %done

done:
  %status = phi i64 [ %walked, %nodes ], [ %sent.wide, %graph ]
  br i1 %current, label %end, label %leave

leave:
  %left = call i32 %set(ptr %old)
  br label %end

end:
  ret i64 %status
}

; play(mode, graph, stream, output, scratch, record, buffers): the status; `self` is the address of
; the table, whose head is: inputs, areas, pointers, local arrays, slots, place of the nodes,
; context, entries, then the offsets of areas, (origin, bytes) of pointers, (slot, offset) of arrays
define internal ptr @play(ptr %self, ptr %args, i64 %count) {
start:
  %call = alloca %Call
  %table.i = call i64 @PyLong_AsLongLong(ptr %self)
  %table = inttoptr i64 %table.i to ptr
  %mode = call i64 @argument(ptr %args, i64 0)
  %graph.i = call i64 @argument(ptr %args, i64 1)
  %stream.i = call i64 @argument(ptr %args, i64 2)
  %out = call i64 @argument(ptr %args, i64 3)
  %scratch = call i64 @argument(ptr %args, i64 4)
  %record = call i64 @argument(ptr %args, i64 5)
  %buffers.at = getelementptr ptr, ptr %args, i64 6
  %buffers = load ptr, ptr %buffers.at
  %given = call i64 @PyTuple_Size(ptr %buffers)
  %inputs = call i64 @word(ptr %table, i64 0)
  %enough = icmp eq i64 %given, %inputs
  br i1 %enough, label %fill, label %other

other:
  %wrong = call ptr @PyLong_FromLongLong(i64 -4)
  ret ptr %wrong

fill:
  %all = call i64 @word(ptr %table, i64 4)
  %slots = alloca i64, i64 %all
  store i64 %out, ptr %slots
  %filled = call i64 @fill(ptr %table, ptr %slots, ptr %buffers, i64 %scratch)
  %error = call ptr @PyErr_Occurred()
  %sane = icmp eq ptr %error, null
  br i1 %sane, label %work, label %raised

raised:
  ret ptr null

work:
  %last = sub i64 %all, 1
  %last.at = getelementptr i64, ptr %slots, i64 %last
  store i64 %record, ptr %last.at
  %entries.i = call i64 @word(ptr %table, i64 7)
  %entries = inttoptr i64 %entries.i to ptr
  %stream = inttoptr i64 %stream.i to ptr
  %graph = inttoptr i64 %graph.i to ptr
  store ptr %table, ptr %call
  %at.entries = getelementptr %Call, ptr %call, i32 0, i32 1
  store ptr %entries, ptr %at.entries
  %at.slots = getelementptr %Call, ptr %call, i32 0, i32 2
  store ptr %slots, ptr %at.slots
  %at.stream = getelementptr %Call, ptr %call, i32 0, i32 3
  store ptr %stream, ptr %at.stream
  %at.mode = getelementptr %Call, ptr %call, i32 0, i32 4
  store i64 %mode, ptr %at.mode
  %at.graph = getelementptr %Call, ptr %call, i32 0, i32 5
  store ptr %graph, ptr %at.graph
  %at.count = getelementptr %Call, ptr %call, i32 0, i32 7
  store i64 0, ptr %at.count
  %body = call i64 @word(ptr %table, i64 5)
  %at.state = getelementptr %Call, ptr %call, i32 0, i32 6
  %state = call ptr @PyEval_SaveThread()
  store ptr %state, ptr %at.state
  %status = call i64 @run(ptr %call, i64 %body)
  %state.now = load ptr, ptr %at.state
  call void @PyEval_RestoreThread(ptr %state.now)
  %interrupted = icmp eq i64 %status, -1
  br i1 %interrupted, label %raised, label %told

told:
  %found = call ptr @PyLong_FromLongLong(i64 %status)
  ret ptr %found
}

; Waits until all work on a stream is done; all are Python integers, the status too.
define ptr @wait(ptr %given.entries, ptr %given.stream) {
start:
  %at.state = alloca ptr
  %entries.i = call i64 @PyLong_AsLongLong(ptr %given.entries)
  %entries = inttoptr i64 %entries.i to ptr
  %stream.i = call i64 @PyLong_AsLongLong(ptr %given.stream)
  %stream = inttoptr i64 %stream.i to ptr
  %state = call ptr @PyEval_SaveThread()
  store ptr %state, ptr %at.state
  %status = call i64 @await(ptr %entries, ptr %stream, ptr %at.state)
  %now = load ptr, ptr %at.state
  call void @PyEval_RestoreThread(ptr %now)
  %interrupted = icmp eq i64 %status, -1
  br i1 %interrupted, label %raised, label %told
raised:
  ret ptr null
told:
  %found = call ptr @PyLong_FromLongLong(i64 %status)
  ret ptr %found
}

; The function `play` of a table, whose address is a Python integer.
define ptr @launcher(ptr %table) {
  %known = load ptr, ptr @name.address
  %new = icmp eq ptr %known, null
  br i1 %new, label %intern, label %make
intern:
  %name = call ptr @PyUnicode_InternFromString(ptr @text.address)
  store ptr %name, ptr @name.address
  br label %make
make:
  %function = call ptr @PyCFunction_NewEx(ptr @method, ptr %table, ptr null)
  ret ptr %function
}
