; Stages: lists of kernels, and the kernels that run other kernels (loops, branches, row blocks).
;
; A list is the number of stages, then of each: address, units, grain, offset of its params in bytes
; from the start of the list, then all params. It may lie anywhere, so the params of a loop hold its
; body. These kernels change the pointers in place, and leave them as they were.

; Word `i` of a program, of a list or of params.
define internal i64 @word(ptr %words, i64 %i) alwaysinline nounwind {
  %at = getelementptr i64, ptr %words, i64 %i
  %w = load i64, ptr %at
  ret i64 %w
}

; Runs one stage of a list.
define internal void @run_stage(ptr %stage, ptr %list, ptr %ptrs, ptr %error) alwaysinline nounwind {
  %kernel = load ptr, ptr %stage
  %units = call i64 @word(ptr %stage, i64 1)
  %grain = call i64 @word(ptr %stage, i64 2)
  %offset = call i64 @word(ptr %stage, i64 3)
  %params = getelementptr i8, ptr %list, i64 %offset
  %several = icmp sgt i64 %units, %grain
  br i1 %several, label %split, label %whole
whole:
  %some = icmp sgt i64 %units, 0
  br i1 %some, label %direct, label %finished
direct:
  call void %kernel(ptr %params, ptr %ptrs, i64 0, i64 %units, ptr %error)
  br label %finished
split:
  call void @run_split(ptr %kernel, ptr %params, ptr %ptrs, i64 %units, i64 %grain, ptr %error)
  br label %finished
finished:
  ret void
}

; Runs a stage of several tasks.
define internal void @run_split(
    ptr %kernel, ptr %params, ptr %ptrs, i64 %units, i64 %grain, ptr %error) noinline nounwind {
  %job = alloca %Job
  %others = sub i64 %units, 1
  %full = udiv i64 %others, %grain
  %tasks = add i64 %full, 1
  %j0 = insertvalue %Job poison, ptr %kernel, 0
  %j1 = insertvalue %Job %j0, ptr %params, 1
  %j2 = insertvalue %Job %j1, ptr %ptrs, 2
  %j3 = insertvalue %Job %j2, i64 %units, 3
  %j4 = insertvalue %Job %j3, i64 %grain, 4
  %j5 = insertvalue %Job %j4, i64 %tasks, 5
  %j6 = insertvalue %Job %j5, ptr %error, 6
  store %Job %j6, ptr %job
  call void @run_job(ptr %job)
  ret void
}

; Runs the stages of a list one after the other; stops after a stage that found an error.
define internal void @run_list(ptr %list, ptr %ptrs, ptr %error) nounwind {
entry:
  %count = load i64, ptr %list
  %first = getelementptr i64, ptr %list, i64 1
  %end = getelementptr [4 x i64], ptr %first, i64 %count
  %long = icmp sgt i64 %count, 3
  br i1 %long, label %steps, label %next
steps:
  call void @run_long_list(ptr %list, ptr %ptrs, ptr %error)
  ret void
next:
  %stage = phi ptr [ %first, %entry ], [ %after, %run ]
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  %more = icmp ne ptr %stage, %end
  %go = and i1 %good, %more
  br i1 %go, label %run, label %done
run:
  call void @run_stage(ptr %stage, ptr %list, ptr %ptrs, ptr %error)
  %after = getelementptr [4 x i64], ptr %stage, i64 1
  br label %next
done:
  ret void
}

; The same for a long list, each stage of which is a step; those of short ones are steps of the loop
; around them.
define internal void @run_long_list(ptr %list, ptr %ptrs, ptr %error) noinline nounwind {
entry:
  %count = load i64, ptr %list
  %first = getelementptr i64, ptr %list, i64 1
  %end = getelementptr [4 x i64], ptr %first, i64 %count
  br label %next
next:
  %stage = phi ptr [ %first, %entry ], [ %after, %run ]
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  %more = icmp ne ptr %stage, %end
  %go = and i1 %good, %more
  br i1 %go, label %run, label %done
run:
  call void @step(ptr %error)
  call void @run_stage(ptr %stage, ptr %list, ptr %ptrs, ptr %error)
  %after = getelementptr [4 x i64], ptr %stage, i64 1
  br label %next
done:
  ret void
}

; ------------------------------------------------------------------------------------------ loops

; Moves `count` pointers; an entry is a slot and the bytes of one step.
define internal void @move_pointers(ptr %entries, i64 %count, i64 %steps, ptr %ptrs) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %next, label %done
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %own = getelementptr [2 x i64], ptr %entries, i64 %i
  %slot = call i64 @word(ptr %own, i64 0)
  %step = call i64 @word(ptr %own, i64 1)
  %nbytes = mul i64 %step, %steps
  %at = getelementptr ptr, ptr %ptrs, i64 %slot
  %pointer = load ptr, ptr %at
  %moved = getelementptr i8, ptr %pointer, i64 %nbytes
  store ptr %moved, ptr %at
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Exchanges `count` pairs of pointers; an entry is slot, spare slot and bytes. `back`: for the last
; time, so that the values in the memory of the spare move home.
define internal void @swap_pointers(ptr %entries, i64 %count, i1 %back, ptr %ptrs) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %next, label %done
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %swap ]
  %own = getelementptr [3 x i64], ptr %entries, i64 %i
  %slot = call i64 @word(ptr %own, i64 0)
  %spare = call i64 @word(ptr %own, i64 1)
  %at = getelementptr ptr, ptr %ptrs, i64 %slot
  %spare.at = getelementptr ptr, ptr %ptrs, i64 %spare
  %pointer = load ptr, ptr %at
  %other = load ptr, ptr %spare.at
  br i1 %back, label %copy, label %swap
copy:
  %nbytes = call i64 @word(ptr %own, i64 2)
  call void @llvm.memcpy.p0.p0.i64(ptr %other, ptr %pointer, i64 %nbytes, i1 false)
  br label %swap
swap:
  store ptr %other, ptr %at
  store ptr %pointer, ptr %spare.at
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Whether the byte at `slot` is not zero.
define internal i1 @flag(ptr %ptrs, i64 %slot) alwaysinline nounwind {
  %at = getelementptr ptr, ptr %ptrs, i64 %slot
  %pointer = load ptr, ptr %at
  %byte = load i8, ptr %pointer
  %set = icmp ne i8 %byte, 0
  ret i1 %set
}

; A loop. Params: most rounds; number of moving pointers and of carries; offset in bytes of the list
; that is the body; offset of the list that is the test (0: none); slot of the test's result; then
; the moving pointers and the carries.
define void @run_loop(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %error) nounwind {
entry:
  %rounds = call i64 @word(ptr %params, i64 0)
  %moving = call i64 @word(ptr %params, i64 1)
  %carries = call i64 @word(ptr %params, i64 2)
  %body.at = call i64 @word(ptr %params, i64 3)
  %test.at = call i64 @word(ptr %params, i64 4)
  %slot = call i64 @word(ptr %params, i64 5)
  %body = getelementptr i8, ptr %params, i64 %body.at
  %test = getelementptr i8, ptr %params, i64 %test.at
  %tested = icmp ne i64 %test.at, 0
  %moves = getelementptr i64, ptr %params, i64 6
  %swaps = getelementptr [2 x i64], ptr %moves, i64 %moving
  br label %counted
counted:
  %from = phi i64 [ 0, %entry ], [ %i, %look ]
  %steps.at = getelementptr %Error, ptr %error, i32 0, i32 3
  %steps = load i64, ptr %steps.at
  %far = add i64 %from, %steps
  %near = call i64 @llvm.smin.i64(i64 %rounds, i64 %far)
  br label %next
next:
  %i = phi i64 [ %from, %counted ], [ %i.next, %round ]
  %more = icmp slt i64 %i, %near
  br i1 %more, label %check, label %paused
paused:
  %ended = icmp eq i64 %i, %rounds
  br i1 %ended, label %leave, label %look
look:
  call void @look(ptr %error)
  br label %counted
check:
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  br i1 %good, label %ask, label %leave
ask:
  br i1 %tested, label %run.test, label %round
run.test:
  call void @run_list(ptr %test, ptr %ptrs, ptr %error)
  %on = call i1 @flag(ptr %ptrs, i64 %slot)
  br i1 %on, label %round, label %leave
round:
  call void @run_list(ptr %body, ptr %ptrs, ptr %error)
  call void @move_pointers(ptr %moves, i64 %moving, i64 1, ptr %ptrs)
  call void @swap_pointers(ptr %swaps, i64 %carries, i1 false, ptr %ptrs)
  %i.next = add i64 %i, 1
  br label %next
leave:
  %left = sub i64 %far, %i
  call void @keep_steps(ptr %error, i64 %left)
  %back = sub i64 0, %i
  call void @move_pointers(ptr %moves, i64 %moving, i64 %back, ptr %ptrs)
  %bit = and i64 %i, 1
  %odd = icmp ne i64 %bit, 0
  br i1 %odd, label %home, label %done
home:
  call void @swap_pointers(ptr %swaps, i64 %carries, i1 true, ptr %ptrs)
  br label %done
done:
  ret void
}

; One of two lists. Params: slot of the condition, offsets in bytes of the lists for true and false.
define void @run_branch(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %error) nounwind {
  %slot = call i64 @word(ptr %params, i64 0)
  %yes = call i64 @word(ptr %params, i64 1)
  %no = call i64 @word(ptr %params, i64 2)
  %set = call i1 @flag(ptr %ptrs, i64 %slot)
  %offset = select i1 %set, i64 %yes, i64 %no
  %list = getelementptr i8, ptr %params, i64 %offset
  call void @run_list(ptr %list, ptr %ptrs, ptr %error)
  ret void
}

; Lists that need nothing of each other: unit k is a list, at offset k of the params in bytes.
define void @run_parts(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %error) nounwind {
entry:
  br label %next
next:
  %k = phi i64 [ %lo, %entry ], [ %k.next, %next ]
  %offset = call i64 @word(ptr %params, i64 %k)
  %list = getelementptr i8, ptr %params, i64 %offset
  call void @run_list(ptr %list, ptr %ptrs, ptr %error)
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %hi
  br i1 %more, label %next, label %done
done:
  ret void
}

; ------------------------------------------------------------------------------------- row blocks

; Several kernels on the same rows, a block of rows at a time. Params: rows of a block, members,
; local arrays, their bytes; then of each local array: slot, bytes of a row, offset; then of each
; member: address, units of a row, offset of its params in bytes from `params`, all its units.
;
; A local array holds the rows of one block, on the stack of the thread. Its pointer is moved back
; by the rows before the block, so that kernels see it as an array of all rows.
define void @run_rows(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %error) nounwind {
entry:
  %block = call i64 @word(ptr %params, i64 0)
  %members = call i64 @word(ptr %params, i64 1)
  %locals = call i64 @word(ptr %params, i64 2)
  %local.bytes = call i64 @word(ptr %params, i64 3)
  %arrays = getelementptr i64, ptr %params, i64 4
  %kernels = getelementptr [3 x i64], ptr %arrays, i64 %locals
  %private = icmp sgt i64 %locals, 0
  br i1 %private, label %copy, label %start
copy:
  %memory = alloca i8, i64 %local.bytes, align 64
  %before = getelementptr i64, ptr %ptrs, i64 -1
  %slots = load i64, ptr %before
  %room = add i64 %slots, 1
  %nbytes = mul i64 %room, 8
  %copied = alloca i64, i64 %room
  call void @llvm.memcpy.p0.p0.i64(ptr %copied, ptr %before, i64 %nbytes, i1 false)
  %own = getelementptr i64, ptr %copied, i64 1
  br label %start
start:
  %table = phi ptr [ %ptrs, %entry ], [ %own, %copy ]
  %space = phi ptr [ null, %entry ], [ %memory, %copy ]
  br label %rows
rows:
  %row = phi i64 [ %lo, %start ], [ %end, %rows.next ]
  %left = sub i64 %hi, %row
  %count = call i64 @llvm.smin.i64(i64 %block, i64 %left)
  %end = add i64 %row, %count
  br label %place
place:
  %k = phi i64 [ 0, %rows ], [ %k.next, %set ]
  %more.locals = icmp slt i64 %k, %locals
  br i1 %more.locals, label %set, label %member
set:
  %array = getelementptr [3 x i64], ptr %arrays, i64 %k
  %slot = call i64 @word(ptr %array, i64 0)
  %row.bytes = call i64 @word(ptr %array, i64 1)
  %offset = call i64 @word(ptr %array, i64 2)
  %past = mul i64 %row, %row.bytes
  %shift = sub i64 %offset, %past
  %base = getelementptr i8, ptr %space, i64 %shift
  %slot.at = getelementptr ptr, ptr %table, i64 %slot
  store ptr %base, ptr %slot.at
  %k.next = add i64 %k, 1
  br label %place
member:
  %i = phi i64 [ 0, %place ], [ %i.next, %call ]
  %more = icmp slt i64 %i, %members
  br i1 %more, label %check, label %rows.next
check:
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  br i1 %good, label %call, label %done
call:
  %entry.at = getelementptr [4 x i64], ptr %kernels, i64 %i
  %kernel = load ptr, ptr %entry.at
  %units = call i64 @word(ptr %entry.at, i64 1)
  %params.at = call i64 @word(ptr %entry.at, i64 2)
  %own.params = getelementptr i8, ptr %params, i64 %params.at
  %first = mul i64 %row, %units
  %most = call i64 @word(ptr %entry.at, i64 3)
  %past.last = mul i64 %end, %units
  %last = call i64 @llvm.smin.i64(i64 %past.last, i64 %most)
  call void %kernel(ptr %own.params, ptr %table, i64 %first, i64 %last, ptr %error)
  %i.next = add i64 %i, 1
  br label %member
rows.next:
  %again = icmp slt i64 %end, %hi
  br i1 %again, label %rows, label %done
done:
  ret void
}
