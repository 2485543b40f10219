; The threads that help: how they are made, how they wait for jobs, and who wakes them.
;
; Helpers spin for `spin_ns` and then sleep, each for itself. A sleeper says so before it looks at
; `call` for the last time; the caller writes `call` before it looks for sleepers. One sees the
; other, and a helper can't fall asleep on an open job unnoticed. (If it did, the caller would do
; the work alone: only a helper that has joined is waited for.) Helper k wakes 2k + 1 and 2k + 2.

; mutex, condition: room for a pthread_mutex_t and a pthread_cond_t
%Bed = type { [8 x i64], [8 x i64] }

@sleepers = internal global [8 x i64] zeroinitializer, align 64
@asleep = internal global [1024 x i8] zeroinitializer, align 64    ; whether each helper sleeps
@beds = internal global [1024 x %Bed] zeroinitializer, align 64
@helpers = internal global i64 0, align 64                         ; threads made so far
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
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

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
  %me = add i64 %k, 1
  br label %idle
idle:
  %last = phi i64 [ 0, %entry ], [ %call, %leave ]
  %call = call i64 @await_call(i64 %last, i64 %k, ptr %allowed)
  call void @llvm.prefetch.p0(ptr @job, i32 0, i32 3, i32 1)
  %was = atomicrmw add ptr @work, i64 2 seq_cst
  %bit = and i64 %was, 1
  %open = icmp eq i64 %bit, 0
  br i1 %open, label %join, label %leave
join:
  call void @draw_tasks(i64 %me, i1 false)
  br label %leave
leave:
  %out = atomicrmw sub ptr @work, i64 2 seq_cst
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
