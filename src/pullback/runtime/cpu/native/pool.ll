; The thread pool: one job at a time, whose tasks the caller and its helpers share.
;
; Nothing here needs the GIL. A caller that finds the pool busy runs its tasks itself.
;
; Every party to a job begins with tasks of its own, those of the same part of the work in every job,
; so that it finds in its caches what it has written in the job before; then it draws from what the
; others have left. How far a party's own tasks are drawn is a word with the number of the job: a
; word with another number stands for none.
;
; `work` says how many helpers have joined, and whether the job is closed. The caller writes the
; job's fields before it opens `work`; it closes it when no task is left, and waits until nobody has
; joined: so who joins an open job finds the fields that belong to it.
;
; `call` tells helpers that there is a job: a number that changes with each, and how many of them
; may serve it. Helpers are numbered, and those beyond do nothing, so that a small job does not keep
; many threads busy. A helper that looks at an old call joins whatever there is now, or nothing.

; kernel, params, ptrs, units, grain, tasks, error, call
%Job = type { ptr, ptr, ptr, i64, i64, i64, ptr, i64 }

@job = internal global %Job zeroinitializer, align 64
@work = internal global [8 x i64] zeroinitializer, align 64        ; 2 for each helper, 1: closed
@drawn = internal global [1024 x [16 x i64]] zeroinitializer, align 128  ; number << 28 | own tasks
@call = internal global [8 x i64] zeroinitializer, align 64        ; number << 16 | helpers wanted
@most_tasks = internal constant i64 268435456                      ; 1 << 28
@own_bits = internal constant i64 268435455
@number_bits = internal constant i64 68719476735                   ; (1 << 36) - 1
@pool_lock = internal global i64 0, align 64
@error_lock = internal global i64 0, align 64
@threads = internal global i64 1                                   ; at most, with the caller

declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; ------------------------------------------------------------------------------------------ tasks

; Keeps the error with the lowest position, so that what is reported doesn't depend on timing.
define internal void @merge_error(ptr %error, ptr %found) noinline cold nounwind {
entry:
  br label %lock
lock:
  %taken = cmpxchg ptr @error_lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %compare, label %wait
wait:
  call void @relax()
  br label %lock
compare:
  %code = load i64, ptr %error
  %none = icmp eq i64 %code, 0
  %position.at = getelementptr i64, ptr %error, i64 1
  %position = load i64, ptr %position.at
  %found.at = getelementptr i64, ptr %found, i64 1
  %found.position = load i64, ptr %found.at
  %lower = icmp slt i64 %found.position, %position
  %better = or i1 %none, %lower
  br i1 %better, label %copy, label %unlock
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %error, ptr %found, i64 24, i1 false)
  br label %unlock
unlock:
  store atomic i64 0, ptr @error_lock release, align 8
  ret void
}

; Runs task number `task` of a job; `here`: on the thread that the job came from.
define internal void @run_task(ptr %job, i64 %task, i1 %here) nounwind {
  %found = alloca %Error
  %j = load %Job, ptr %job
  %kernel = extractvalue %Job %j, 0
  %params = extractvalue %Job %j, 1
  %ptrs = extractvalue %Job %j, 2
  %units = extractvalue %Job %j, 3
  %grain = extractvalue %Job %j, 4
  %error = extractvalue %Job %j, 6
  %may.at = getelementptr %Error, ptr %error, i32 0, i32 4
  %may = load i64, ptr %may.at
  %asks = select i1 %here, i64 %may, i64 0
  %run.at = getelementptr %Error, ptr %error, i32 0, i32 5
  %run = load ptr, ptr %run.at
  %e0 = insertvalue %Error zeroinitializer, i64 1, 3
  %e1 = insertvalue %Error %e0, i64 %asks, 4
  %e2 = insertvalue %Error %e1, ptr %run, 5
  store %Error %e2, ptr %found
  %lo = mul i64 %task, %grain
  %left = sub i64 %units, %lo
  %count = call i64 @llvm.smin.i64(i64 %grain, i64 %left)
  %hi = add i64 %lo, %count
  call void %kernel(ptr %params, ptr %ptrs, i64 %lo, i64 %hi, ptr %found)
  %code = load i64, ptr %found
  %bad = icmp ne i64 %code, 0
  br i1 %bad, label %report, label %done
report:
  call void @merge_error(ptr %error, ptr %found)
  br label %done
done:
  ret void
}

; Draws a task of those that `party` of so many has; -1 if there is none left.
define internal i64 @draw_of(i64 %party, i64 %parties, i64 %tasks, i64 %number) nounwind {
entry:
  %word = getelementptr [16 x i64], ptr @drawn, i64 %party
  %before = mul i64 %party, %tasks
  %first = udiv i64 %before, %parties
  %with = add i64 %before, %tasks
  %end = udiv i64 %with, %parties
  %bits = load i64, ptr @own_bits
  %high = shl i64 %number, 28
  br label %look
look:
  %now = load atomic i64, ptr %word monotonic, align 8
  %known = lshr i64 %now, 28
  %same = icmp eq i64 %known, %number
  %low = and i64 %now, %bits
  %own = select i1 %same, i64 %low, i64 0
  %task = add i64 %first, %own
  %left = icmp slt i64 %task, %end
  br i1 %left, label %take, label %none
take:
  %more = add i64 %own, 1
  %next = or i64 %high, %more
  %pair = cmpxchg ptr %word, i64 %now, i64 %next monotonic monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %done, label %look
done:
  ret i64 %task
none:
  ret i64 -1
}

; Runs tasks until none is left, first those of party `me`; `here`: on the thread that the job came
; from, which ends it if the run was stopped.
define internal void @draw_tasks(i64 %me, i1 %here) nounwind {
entry:
  %tasks.at = getelementptr %Job, ptr @job, i32 0, i32 5
  %tasks = load i64, ptr %tasks.at
  %error.at = getelementptr %Job, ptr @job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  %call.at = getelementptr %Job, ptr @job, i32 0, i32 7
  %call = load i64, ptr %call.at
  %wanted = and i64 %call, 65535
  %parties = add i64 %wanted, 1
  %bits = load i64, ptr @number_bits
  %whole = lshr i64 %call, 16
  %number = and i64 %whole, %bits
  %start = urem i64 %me, %parties
  br label %visit
visit:
  %party = phi i64 [ %start, %entry ], [ %other, %on ]
  %visited = phi i64 [ 0, %entry ], [ %visited.next, %on ]
  br label %draw
draw:
  %task = call i64 @draw_of(i64 %party, i64 %parties, i64 %tasks, i64 %number)
  %found = icmp sge i64 %task, 0
  br i1 %found, label %run, label %on
run:
  call void @run_task(ptr @job, i64 %task, i1 %here)
  br i1 %here, label %ran, label %served
ran:
  call void @look(ptr %error)
  %stopped = call i1 @is_stopped(ptr %error)
  br i1 %stopped, label %done, label %draw
served:
  %seen = load atomic i64, ptr @work monotonic, align 8
  %bit = and i64 %seen, 1
  %shut = icmp ne i64 %bit, 0
  br i1 %shut, label %done, label %draw
on:
  %visited.next = add i64 %visited, 1
  %after = add i64 %party, 1
  %past = icmp eq i64 %after, %parties
  %other = select i1 %past, i64 0, i64 %after
  %every = icmp eq i64 %visited.next, %parties
  br i1 %every, label %done, label %visit
done:
  ret void
}

; Runs all tasks of a job on this thread.
define internal void @run_alone(ptr %job) nounwind {
entry:
  %tasks.at = getelementptr %Job, ptr %job, i32 0, i32 5
  %tasks = load i64, ptr %tasks.at
  %error.at = getelementptr %Job, ptr %job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  br label %next
next:
  %task = phi i64 [ 0, %entry ], [ %after, %run ]
  %more = icmp slt i64 %task, %tasks
  br i1 %more, label %run, label %done
run:
  call void @run_task(ptr %job, i64 %task, i1 true)
  %after = add i64 %task, 1
  call void @look(ptr %error)
  %stopped = call i1 @is_stopped(ptr %error)
  br i1 %stopped, label %done, label %next
done:
  ret void
}

; ------------------------------------------------------------------------------------------ jobs

; Waits until every helper that joined the closed job has left it; one may be in a loop.
define internal void @await_helpers(ptr %error) nounwind {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr @work seq_cst, align 8
  %idle = icmp ult i64 %now, 2
  br i1 %idle, label %done, label %wait
wait:
  %i.next = add i64 %i, 1
  %long = icmp sgt i64 %i.next, 2000   ; the helper may have lost its core: let it have this one
  br i1 %long, label %yield, label %pause
pause:
  call void @relax()
  br label %look
yield:
  %status = call i32 @sched_yield()
  call void @look(ptr %error)
  br label %look
done:
  ret void
}

; Runs a job of several tasks and returns when all of them are done.
define internal void @run_job(ptr %job) nounwind {
entry:
  %tasks.at = getelementptr %Job, ptr %job, i32 0, i32 5
  %tasks = load i64, ptr %tasks.at
  %threads = load atomic i64, ptr @threads monotonic, align 8
  %useful = call i64 @llvm.smin.i64(i64 %threads, i64 %tasks)
  %count = sub i64 %useful, 1
  %several = icmp sgt i64 %count, 0
  %most = load i64, ptr @most_tasks
  %few = icmp slt i64 %tasks, %most
  %help = and i1 %several, %few
  br i1 %help, label %lock, label %alone
lock:
  %taken = cmpxchg ptr @pool_lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %open, label %alone
alone:
  call void @run_alone(ptr %job)
  ret void
open:
  call void @ensure_helpers(i64 %count)
  call void @note_caller()
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 @job, ptr align 8 %job, i64 56, i1 false)
  %last = load atomic i64, ptr @call monotonic, align 8
  %number = lshr i64 %last, 16
  %number.next = add i64 %number, 1
  %high = shl i64 %number.next, 16
  %now = or i64 %high, %count
  %call.at = getelementptr %Job, ptr @job, i32 0, i32 7
  store i64 %now, ptr %call.at
  %opened = atomicrmw and ptr @work, i64 -2 seq_cst
  %called = atomicrmw xchg ptr @call, i64 %now seq_cst
  call void @wake_helpers(i64 %count)
  call void @draw_tasks(i64 0, i1 true)
  %shut = atomicrmw or ptr @work, i64 1 seq_cst
  %error.at = getelementptr %Job, ptr %job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  call void @await_helpers(ptr %error)
  store atomic i64 0, ptr @pool_lock release, align 8
  ret void
}

; ---------------------------------------------------------------------------- functions for Python

; The pool as it is at the start of a process, or in the child of a fork, where no helper lives. The
; number of the last job stays, since words of parties are known by it.
define internal void @pool_reset() nounwind {
  store i64 0, ptr @helpers
  store i64 1, ptr @work
  store i64 0, ptr @sleepers
  call void @llvm.memset.p0.i64(ptr @asleep, i8 0, i64 1024, i1 false)
  store i64 0, ptr @pool_lock
  store i64 0, ptr @error_lock
  ret void
}

; reset_pool(), for the child of a fork
define internal ptr @py_reset_pool(ptr %module, ptr %none) nounwind {
  call void @pool_reset()
  %self = call i64 @pthread_self()     ; it is the only thread that is left
  call void @note_main_thread(i64 %self)
  %void = call ptr (ptr, ...) @Py_BuildValue(ptr @text.none)
  ret ptr %void
}

; set_threads(n)
define internal ptr @py_set_threads(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.set_threads, i64 %count, i64 1)
  br i1 %right, label %read, label %failed
read:
  %arg = load ptr, ptr %args
  %n = call i64 @read_size(ptr %arg)
  %bad = icmp slt i64 %n, 0
  br i1 %bad, label %failed, label %range
range:
  %low = icmp slt i64 %n, 1
  %high = icmp sgt i64 %n, 1024
  %wrong = or i1 %low, %high
  br i1 %wrong, label %refuse, label %apply
refuse:
  %type = load ptr, ptr @PyExc_ValueError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type, ptr @text.threads, i64 %n)
  br label %failed
apply:
  store atomic i64 %n, ptr @threads monotonic, align 8
  %void = call ptr (ptr, ...) @Py_BuildValue(ptr @text.none)
  ret ptr %void
failed:
  ret ptr null
}

; get_threads()
define internal ptr @py_get_threads(ptr %module, ptr %none) nounwind {
  %n = load atomic i64, ptr @threads monotonic, align 8
  %result = call ptr @PyLong_FromLongLong(i64 %n)
  ret ptr %result
}
