; Signals: a program that runs for long lets Python handle them, and ends where a handler raises.
;
; Python's own handlers only note that a signal came; what is to be done about it runs on the main
; thread, with the GIL, when somebody asks. So the main thread asks, every `ask_ns` of a program
; that has released the GIL. Every stage and every round counts down to the next look at the clock,
; which costs as much as a small stage: the steps between two looks double while they stay below
; `look_ns`. Other threads see `stopped` at their own looks.

; What kernels get as `error`: code, position, value; then for lists, loops and jobs: steps before
; the next look, whether this thread may ask Python, the run.
%Error = type { i64, i64, i64, i64, i64, ptr }
; A call of a program: whether Python raised an exception, steps between two looks, time of the last
; look, time when Python was last asked, state of the thread.
%Run = type { i64, i64, i64, i64, ptr }

@main_thread = internal global i64 0
@ask_ns = internal constant i64 50000000
@look_ns = internal constant i64 16384
@most_steps = internal constant i64 128
@interruption = internal constant [3 x i64] [i64 -1, i64 -9223372036854775808, i64 0]

declare i64 @pthread_self()
declare i32 @PyErr_CheckSignals()

; Notes that this thread is the one that handles signals.
define internal void @note_main_thread(i64 %thread) nounwind {
  store i64 %thread, ptr @main_thread
  ret void
}

; Fills in error and run for the start of a program; `state` is null if the GIL is not released.
define internal void @begin_run(ptr %error, ptr %run, ptr %state) nounwind {
entry:
  %r0 = insertvalue %Run zeroinitializer, i64 1, 1
  %r1 = insertvalue %Run %r0, ptr %state, 4
  store %Run %r1, ptr %run
  %released = icmp ne ptr %state, null
  %self = call i64 @pthread_self()
  %main = load i64, ptr @main_thread
  %same = icmp eq i64 %self, %main
  %may.ask = and i1 %released, %same
  %asks = zext i1 %may.ask to i64
  %e0 = insertvalue %Error zeroinitializer, i64 8, 3
  %e1 = insertvalue %Error %e0, i64 %asks, 4
  %e2 = insertvalue %Error %e1, ptr %run, 5
  store %Error %e2, ptr %error
  ret void
}

; Keeps the number of steps that are left before the next look.
define internal void @keep_steps(ptr %error, i64 %steps) alwaysinline nounwind {
  %at = getelementptr %Error, ptr %error, i32 0, i32 3
  store i64 %steps, ptr %at
  ret void
}

; One step towards the next look.
define internal void @step(ptr %error) alwaysinline nounwind {
  %at = getelementptr %Error, ptr %error, i32 0, i32 3
  %steps = load i64, ptr %at
  %left = sub i64 %steps, 1
  store i64 %left, ptr %at
  %none = icmp slt i64 %left, 1
  br i1 %none, label %now, label %later
now:
  call void @look(ptr %error)
  ret void
later:
  ret void
}

; Whether Python raised an exception in this run.
define internal i1 @is_stopped(ptr %error) alwaysinline nounwind {
  %run.at = getelementptr %Error, ptr %error, i32 0, i32 5
  %run = load ptr, ptr %run.at
  %stopped = load atomic i64, ptr %run monotonic, align 8
  %yes = icmp ne i64 %stopped, 0
  ret i1 %yes
}

; Looks at the clock, and from time to time asks Python; a run that was stopped has an error. Kernels
; that run for long call it too.
define void @look(ptr %error) noinline cold nounwind {
entry:
  %steps.at = getelementptr %Error, ptr %error, i32 0, i32 3
  %most = load i64, ptr @most_steps
  store i64 %most, ptr %steps.at
  %over = call i1 @is_stopped(ptr %error)
  br i1 %over, label %stop, label %role
role:
  %asks.at = getelementptr %Error, ptr %error, i32 0, i32 4
  %asks = load i64, ptr %asks.at
  %mine = icmp ne i64 %asks, 0
  br i1 %mine, label %clock, label %done
clock:
  %run.at = getelementptr %Error, ptr %error, i32 0, i32 5
  %run = load ptr, ptr %run.at
  %stride.at = getelementptr %Run, ptr %run, i32 0, i32 1
  %looked.at = getelementptr %Run, ptr %run, i32 0, i32 2
  %asked.at = getelementptr %Run, ptr %run, i32 0, i32 3
  %now = call i64 @now_ns()
  %looked = load i64, ptr %looked.at
  store i64 %now, ptr %looked.at
  %stride = load i64, ptr %stride.at
  %twice = shl i64 %stride, 1
  %longer = call i64 @llvm.smin.i64(i64 %twice, i64 %most)
  %passed = sub i64 %now, %looked
  %bound = load i64, ptr @look_ns
  %short = icmp slt i64 %passed, %bound
  %next = select i1 %short, i64 %longer, i64 1
  store i64 %next, ptr %stride.at
  store i64 %next, ptr %steps.at
  %asked = load i64, ptr %asked.at
  %first = icmp eq i64 %asked, 0
  br i1 %first, label %start, label %since
start:
  store i64 %now, ptr %asked.at
  ret void
since:
  %silent = sub i64 %now, %asked
  %pause = load i64, ptr @ask_ns
  %due = icmp sge i64 %silent, %pause
  br i1 %due, label %ask, label %done
ask:
  %state.at = getelementptr %Run, ptr %run, i32 0, i32 4
  %state = load ptr, ptr %state.at
  call void @PyEval_RestoreThread(ptr %state)
  %raised = call i32 @PyErr_CheckSignals()
  %again = call ptr @PyEval_SaveThread()
  %then = call i64 @now_ns()
  store i64 %then, ptr %looked.at
  store i64 %then, ptr %asked.at
  %good = icmp eq i32 %raised, 0
  br i1 %good, label %done, label %set
set:
  store atomic i64 1, ptr %run monotonic, align 8
  br label %stop
stop:
  call void @merge_error(ptr %error, ptr @interruption)
  ret void
done:
  ret void
}
