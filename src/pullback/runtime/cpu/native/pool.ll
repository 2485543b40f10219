; The thread pool: one job at a time, in tasks that the caller and its helpers draw from a counter.
;
; Nothing here needs the GIL. A caller that finds the pool busy runs its tasks itself.
;
; `work` is one word, so that one instruction both joins a job and draws a task: above, how many
; helpers have joined, below, the next task. While no job is open the task is `closed`, which is
; beyond all tasks. The caller writes the job's fields before it opens `work`, and closes it before
; it waits until nobody has joined: so who draws a task finds the fields that belong to it.
;
; `call` tells helpers that there is a job: a number that changes with each, and how many of them
; may serve it. Helpers are numbered, and those beyond do nothing, so that a small job does not keep
; many threads busy. A helper that looks at an old call joins whatever there is now, or nothing.
;
; Helpers spin for `spin_ns` and then sleep, each for itself. A sleeper says so before it looks at
; `call` for the last time; the caller writes `call` before it looks for sleepers. One sees the
; other, and a helper can't fall asleep on an open job unnoticed. (If it did, the caller would do
; the work alone: only a helper that has joined is waited for.) Helper k wakes 2k + 1 and 2k + 2.

; kernel, params, ptrs, units, grain, tasks, error
%Job = type { ptr, ptr, ptr, i64, i64, i64, ptr }
; mutex, condition: room for a pthread_mutex_t and a pthread_cond_t
%Bed = type { [8 x i64], [8 x i64] }

@job = internal global %Job zeroinitializer, align 64
@work = internal global [8 x i64] zeroinitializer, align 64        ; each on a cache line of its own
@call = internal global [8 x i64] zeroinitializer, align 64        ; number << 16 | helpers wanted
@sleepers = internal global [8 x i64] zeroinitializer, align 64
@asleep = internal global [1024 x i8] zeroinitializer, align 64    ; whether each helper sleeps
@beds = internal global [1024 x %Bed] zeroinitializer, align 64
@one_joined = internal constant i64 281474976710656                ; 1 << 48: above the tasks
@task_bits = internal constant i64 281474976710655                 ; (1 << 48) - 1
@joined_bits = internal constant i64 -281474976710656
@closed = internal constant i64 140737488355328                    ; 1 << 47
@pool_lock = internal global i64 0, align 64
@error_lock = internal global i64 0, align 64
@helpers = internal global i64 0, align 64                         ; threads made so far
@threads = internal global i64 1                                   ; at most, with the caller
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
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
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

; The task in a value of `work`.
define internal i64 @task_of(i64 %work) alwaysinline nounwind {
  %bits = load i64, ptr @task_bits
  %task = and i64 %work, %bits
  ret i64 %task
}

; Runs tasks until none is left, the first of which has been drawn; `here`: on the thread that the
; job came from, which ends it if the run was stopped.
define internal void @draw_tasks(i64 %first, i1 %here) nounwind {
entry:
  %tasks.at = getelementptr %Job, ptr @job, i32 0, i32 5
  %tasks = load i64, ptr %tasks.at
  %error.at = getelementptr %Job, ptr @job, i32 0, i32 6
  %error = load ptr, ptr %error.at
  br label %drawn
drawn:
  %task = phi i64 [ %first, %entry ], [ %next, %draw ]
  %more = icmp slt i64 %task, %tasks
  br i1 %more, label %run, label %done
run:
  call void @run_task(ptr @job, i64 %task, i1 %here)
  br i1 %here, label %ran, label %peek
ran:
  call void @look(ptr %error)
  %stopped = call i1 @is_stopped(ptr %error)
  br i1 %stopped, label %done, label %peek
peek:
  %seen = load atomic i64, ptr @work monotonic, align 8
  %coming = call i64 @task_of(i64 %seen)
  %left = icmp slt i64 %coming, %tasks
  br i1 %left, label %draw, label %done
draw:
  %was = atomicrmw add ptr @work, i64 1 monotonic
  %next = call i64 @task_of(i64 %was)
  br label %drawn
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

; Whether `call` is one that helper `k`, who last served `last`, has not seen and may serve.
define internal i1 @is_new_call(i64 %call, i64 %last, i64 %k) alwaysinline nounwind {
  %wanted = and i64 %call, 65535
  %mine = icmp slt i64 %k, %wanted
  %unseen = icmp ne i64 %call, %last
  %new = and i1 %mine, %unseen
  ret i1 %new
}

define internal i1 @sleeps(i64 %k) alwaysinline nounwind {
  %at = getelementptr i8, ptr @asleep, i64 %k
  %byte = load atomic i8, ptr %at seq_cst, align 1
  %yes = icmp ne i8 %byte, 0
  ret i1 %yes
}

define internal void @wake(i64 %k) nounwind {
  %mutex = getelementptr %Bed, ptr @beds, i64 %k, i32 0
  %condition = getelementptr %Bed, ptr @beds, i64 %k, i32 1
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %status = call i32 @pthread_cond_signal(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; Wakes a helper that sleeps, if it is wanted.
define internal void @wake_one(i64 %k, i64 %wanted) nounwind {
  %mine = icmp slt i64 %k, %wanted
  br i1 %mine, label %look, label %done
look:
  %lies = call i1 @sleeps(i64 %k)
  br i1 %lies, label %rouse, label %done
rouse:
  call void @wake(i64 %k)
  br label %done
done:
  ret void
}

; Returns the call that helper `k` may serve next: spins for a while, then sleeps.
define internal i64 @await_call(i64 %last, i64 %k, ptr %allowed) nounwind {
entry:
  %mutex = getelementptr %Bed, ptr @beds, i64 %k, i32 0
  %condition = getelementptr %Bed, ptr @beds, i64 %k, i32 1
  %lies = getelementptr i8, ptr @asleep, i64 %k
  br label %restart
restart:
  %start = call i64 @now_ns()
  br label %spin
spin:
  %i = phi i64 [ 0, %restart ], [ %i.next, %again ]
  %call = load atomic i64, ptr @call acquire, align 8
  %new = call i1 @is_new_call(i64 %call, i64 %last, i64 %k)
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
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  store atomic i8 1, ptr %lies seq_cst, align 1
  %more = atomicrmw add ptr @sleepers, i64 1 seq_cst
  %call.last = load atomic i64, ptr @call seq_cst, align 8
  %opened = call i1 @is_new_call(i64 %call.last, i64 %last, i64 %k)
  br i1 %opened, label %rise, label %wait
wait:
  %woken = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %rise
rise:
  store atomic i8 0, ptr %lies seq_cst, align 1
  %less = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %call.now = load atomic i64, ptr @call seq_cst, align 8
  %wanted = and i64 %call.now, 65535
  %twice = shl i64 %k, 1
  %left = add i64 %twice, 1
  call void @wake_one(i64 %left, i64 %wanted)
  %right = add i64 %twice, 2
  call void @wake_one(i64 %right, i64 %wanted)
  call void @avoid_caller(ptr %allowed)
  br label %restart
done:
  ret i64 %call
}

; The life of helper number `self`.
define internal ptr @helper_main(ptr %self) nounwind {
entry:
  %k = ptrtoint ptr %self to i64
  %allowed = alloca [128 x i8]         ; where it may run
  call void @read_allowed(ptr %allowed)
  %default = load i64, ptr @default_float_mode
  call void @set_float_mode(i64 %default)
  %one = load i64, ptr @one_joined
  %join = add i64 %one, 1
  br label %idle
idle:
  %last = phi i64 [ 0, %entry ], [ %call, %idle ]
  %call = call i64 @await_call(i64 %last, i64 %k, ptr %allowed)
  call void @llvm.prefetch.p0(ptr @job, i32 0, i32 3, i32 1)
  %was = atomicrmw add ptr @work, i64 %join seq_cst
  %task = call i64 @task_of(i64 %was)
  call void @draw_tasks(i64 %task, i1 false)
  %out = atomicrmw sub ptr @work, i64 %one seq_cst
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
  %mutex = getelementptr %Bed, ptr @beds, i64 %have, i32 0
  %condition = getelementptr %Bed, ptr @beds, i64 %have, i32 1
  %m = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr %condition, ptr null)
  %number = inttoptr i64 %have to ptr
  %status = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @helper_main, ptr %number)
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

; Wakes those of the first `count` helpers that sleep and that no other sleeper will wake.
define internal void @wake_helpers(i64 %count) nounwind {
entry:
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %some = icmp sgt i64 %asleep, 0
  br i1 %some, label %next, label %done
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %on ]
  %before = sub i64 %k, 1
  %half = ashr i64 %before, 1
  %first = icmp eq i64 %k, 0
  br i1 %first, label %ask, label %parent
parent:
  %later = call i1 @sleeps(i64 %half)
  br i1 %later, label %on, label %ask
ask:
  call void @wake_one(i64 %k, i64 %count)
  br label %on
on:
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Waits until every helper that joined the closed job has left it; one may be in a loop.
define internal void @await_helpers(ptr %error) nounwind {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr @work seq_cst, align 8
  %one = load i64, ptr @one_joined
  %idle = icmp ult i64 %now, %one
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
  %stay = load i64, ptr @joined_bits
  %opened = atomicrmw and ptr @work, i64 %stay seq_cst
  %last = load atomic i64, ptr @call monotonic, align 8
  %number = lshr i64 %last, 16
  %number.next = add i64 %number, 1
  %high = shl i64 %number.next, 16
  %now = or i64 %high, %count
  %called = atomicrmw xchg ptr @call, i64 %now seq_cst
  call void @wake_helpers(i64 %count)
  %was = atomicrmw add ptr @work, i64 1 monotonic
  %task = call i64 @task_of(i64 %was)
  call void @draw_tasks(i64 %task, i1 true)
  %bit = load i64, ptr @closed
  %shut = atomicrmw or ptr @work, i64 %bit seq_cst
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
  %bit = load i64, ptr @closed
  store i64 %bit, ptr @work
  store i64 0, ptr @call
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
