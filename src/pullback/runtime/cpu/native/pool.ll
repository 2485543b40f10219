; The thread pool: one job at a time, in tasks that the caller and its helpers draw from a counter.
;
; Nothing here needs the GIL. A caller that finds the pool busy runs its tasks itself.
;
; `generation` is odd while a job is open. A helper that sees an odd generation it has not served
; adds itself to `active`, and only then reads the generation again: if it is odd, the job's fields
; are valid and stay so until the helper leaves. The caller closes the job (even generation), and
; then waits for `active` to be zero. Both sides write first and read second, in the one order of
; seq_cst operations, so either the helper sees that the job is closed or the caller sees it.
;
; Helpers spin for `spin_ns` and then sleep. A sleeper adds itself to `sleepers` before it looks at
; the generation for the last time, under the mutex; the caller opens the job before it looks at
; `sleepers`. So again one sees the other, and a helper can't fall asleep on an open job unnoticed.
; (If it did, the caller would do the work alone: only a helper that has joined is waited for.)

; kernel, params, ptrs, units, grain, tasks, error
%Job = type { ptr, ptr, ptr, i64, i64, i64, ptr }

@job = internal global %Job zeroinitializer, align 64
@next_task = internal global [8 x i64] zeroinitializer, align 64   ; each on a cache line of its own
@generation = internal global [8 x i64] zeroinitializer, align 64
@active = internal global [8 x i64] zeroinitializer, align 64
@sleepers = internal global [8 x i64] zeroinitializer, align 64
@joined = internal global [8 x i64] zeroinitializer, align 64      ; helpers that came for this job
@wanted = internal global i64 0, align 64                          ; helpers that may serve this job
@pool_lock = internal global i64 0, align 64
@error_lock = internal global i64 0, align 64
@helpers = internal global i64 0, align 64                         ; threads made so far
@threads = internal global i64 1                                   ; at most, with the caller
@mutex = internal global [16 x i64] zeroinitializer, align 64      ; room for pthread_mutex_t
@wake = internal global [16 x i64] zeroinitializer, align 64       ; room for pthread_cond_t
@clock_id = internal global i32 0                                  ; CLOCK_MONOTONIC
@mask_how = internal global i32 0                                  ; SIG_SETMASK
@spin_ns = internal constant i64 200000
@stack_bytes = internal constant i64 8388608                       ; some systems give far less

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
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

; Runs tasks of the open job until none is left; `here`: on the thread that it came from, which ends
; the job if the run was stopped.
define internal void @draw_tasks(i1 %here) nounwind {
entry:
  %tasks.at = getelementptr %Job, ptr @job, i32 0, i32 5
  %tasks = load i64, ptr %tasks.at
  %error.at = getelementptr %Job, ptr @job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  br label %draw
draw:
  %task = atomicrmw add ptr @next_task, i64 1 monotonic
  %more = icmp slt i64 %task, %tasks
  br i1 %more, label %run, label %done
run:
  call void @run_task(ptr @job, i64 %task, i1 %here)
  br i1 %here, label %ran, label %draw
ran:
  call void @look(ptr %error)
  %stopped = call i1 @is_stopped(ptr %error)
  br i1 %stopped, label %end, label %draw
end:
  store atomic i64 %tasks, ptr @next_task monotonic, align 8
  br label %done
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

; ------------------------------------------------------------------------------------------ helpers

define internal i64 @now_ns() nounwind {
  %time = alloca { i64, i64 }
  %clock = load i32, ptr @clock_id
  %status = call i32 @clock_gettime(i32 %clock, ptr %time)
  %s = load i64, ptr %time
  %ns.at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %ns = load i64, ptr %ns.at
  %whole = mul i64 %s, 1000000000
  %sum = add i64 %whole, %ns
  ret i64 %sum
}

; Whether generation `g` is an open job that a helper which last served `last` has not seen.
define internal i1 @is_new_job(i64 %g, i64 %last) alwaysinline nounwind {
  %bit = and i64 %g, 1
  %open = icmp ne i64 %bit, 0
  %unseen = icmp ne i64 %g, %last
  %new = and i1 %open, %unseen
  ret i1 %new
}

; Returns when a job that is not `last` may be open: spins for a while, then sleeps.
define internal void @await_job(i64 %last, ptr %allowed) nounwind {
entry:
  br label %restart
restart:
  %start = call i64 @now_ns()
  br label %spin
spin:
  %i = phi i64 [ 0, %restart ], [ %i.next, %again ]
  %g = load atomic i64, ptr @generation acquire, align 8
  %new = call i1 @is_new_job(i64 %g, i64 %last)
  br i1 %new, label %done, label %pause
pause:
  call void @relax()
  %i.next = add i64 %i, 1
  %bits = and i64 %i.next, 63
  %check = icmp eq i64 %bits, 0
  br i1 %check, label %clock, label %again
clock:
  %now = call i64 @now_ns()
  %spent = sub i64 %now, %start
  %limit = load i64, ptr @spin_ns
  %tired = icmp sgt i64 %spent, %limit
  br i1 %tired, label %sleep, label %again
again:
  br label %spin
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %more = atomicrmw add ptr @sleepers, i64 1 seq_cst
  %g.last = load atomic i64, ptr @generation seq_cst, align 8
  %opened = call i1 @is_new_job(i64 %g.last, i64 %last)
  br i1 %opened, label %rise, label %wait
wait:
  %woken = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %rise
rise:
  %less = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  call void @avoid_caller(ptr %allowed)
  br label %restart
done:
  ret void
}

; The life of a helper thread.
define internal ptr @helper_main(ptr %unused) nounwind {
entry:
  %allowed = alloca [128 x i8]         ; where it may run
  call void @read_allowed(ptr %allowed)
  %default = load i64, ptr @default_float_mode
  call void @set_float_mode(i64 %default)
  br label %idle
idle:
  %last = phi i64 [ 0, %entry ], [ %served, %leave ]
  call void @await_job(i64 %last, ptr %allowed)
  %in = atomicrmw add ptr @active, i64 1 seq_cst
  %g = load atomic i64, ptr @generation seq_cst, align 8
  %open = call i1 @is_new_job(i64 %g, i64 %last)
  br i1 %open, label %ticket, label %leave
ticket:
  %place = atomicrmw add ptr @joined, i64 1 monotonic
  %wanted = load i64, ptr @wanted
  %welcome = icmp slt i64 %place, %wanted
  br i1 %welcome, label %work, label %leave
work:
  call void @draw_tasks(i1 false)
  br label %leave
leave:
  %served = phi i64 [ %last, %idle ], [ %g, %ticket ], [ %g, %work ]
  %out = atomicrmw sub ptr @active, i64 1 seq_cst
  br label %idle
}

; Makes sure that there are `count` helpers; there may be fewer if the system refuses.
define internal void @ensure_helpers(i64 %count) nounwind {
entry:
  %thread = alloca i64
  %attributes = alloca [16 x i64]      ; room for pthread_attr_t
  %all = alloca [16 x i64]             ; room for sigset_t
  %before = alloca [16 x i64]
  %first = load i64, ptr @helpers
  %enough = icmp sge i64 %first, %count
  br i1 %enough, label %done, label %mask
mask:
  ; Signals are for Python's threads: a helper is born with all of them blocked.
  %filled = call i32 @sigfillset(ptr %all)
  %how = load i32, ptr @mask_how
  %masked = call i32 @pthread_sigmask(i32 %how, ptr %all, ptr %before)
  %begun = call i32 @pthread_attr_init(ptr %attributes)
  %stack = load i64, ptr @stack_bytes
  %sized = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 %stack)
  br label %next
next:
  %have = phi i64 [ %first, %mask ], [ %more, %made ]
  %missing = icmp slt i64 %have, %count
  br i1 %missing, label %make, label %restore
make:
  %status = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @helper_main, ptr null)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %made, label %restore
made:
  %id = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %id)
  %more = add i64 %have, 1
  store i64 %more, ptr @helpers
  br label %next
restore:
  %ended = call i32 @pthread_attr_destroy(ptr %attributes)
  %unmasked = call i32 @pthread_sigmask(i32 %how, ptr %before, ptr null)
  br label %done
done:
  ret void
}

; Wakes up to `count` sleeping helpers.
define internal void @wake_helpers(i64 %count) nounwind {
entry:
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %some = icmp sgt i64 %asleep, 0
  br i1 %some, label %lock, label %done
lock:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %signals = call i64 @llvm.smin.i64(i64 %asleep, i64 %count)
  br label %signal
signal:
  %i = phi i64 [ 0, %lock ], [ %i.next, %signal ]
  %status = call i32 @pthread_cond_signal(ptr @wake)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %signals
  br i1 %more, label %signal, label %unlock
unlock:
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %done
done:
  ret void
}

; Waits until every helper that joined the closed job has left it; one may be in a loop.
define internal void @await_helpers(ptr %error) nounwind {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ 0, %yield ]
  %busy = load atomic i64, ptr @active seq_cst, align 8
  %idle = icmp eq i64 %busy, 0
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
  %help = icmp sgt i64 %count, 0
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
  store i64 %count, ptr @wanted
  store atomic i64 0, ptr @next_task monotonic, align 8
  store atomic i64 0, ptr @joined monotonic, align 8
  %opened = atomicrmw add ptr @generation, i64 1 seq_cst
  call void @wake_helpers(i64 %count)
  call void @draw_tasks(i1 true)
  %closed = atomicrmw add ptr @generation, i64 1 seq_cst
  %error.at = getelementptr %Job, ptr %job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  call void @await_helpers(ptr %error)
  store atomic i64 0, ptr @pool_lock release, align 8
  ret void
}

; ---------------------------------------------------------------------------- functions for Python

; The pool as it is at the start of a process, or in the child of a fork, where no helper lives.
define internal void @pool_reset() nounwind {
  store i64 0, ptr @helpers
  store i64 0, ptr @generation
  store i64 0, ptr @active
  store i64 0, ptr @sleepers
  store i64 0, ptr @pool_lock
  store i64 0, ptr @error_lock
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @wake, ptr null)
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
