; Where threads run. Linux may wake a helper on the processor of the caller that woke it, though
; others are idle, and then both take turns there. A helper that finds itself so stays away from
; that processor from then on.

@caller_cpu = internal global i32 -1, align 64

declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

; Notes where the thread that opens a job is.
define internal void @note_caller() nounwind {
  %cpu = call i32 @sched_getcpu()
  store atomic i32 %cpu, ptr @caller_cpu monotonic, align 4
  ret void
}

; Where this thread may run, a bit per processor, in 128 bytes.
define internal void @read_allowed(ptr %allowed) nounwind {
  call void @llvm.memset.p0.i64(ptr %allowed, i8 0, i64 128, i1 false)
  %status = call i32 @sched_getaffinity(i32 0, i64 128, ptr %allowed)
  ret void
}

; If this thread is where the caller is, moves it to another processor of those allowed.
define internal void @avoid_caller(ptr %allowed) nounwind {
entry:
  %others = alloca [128 x i8]
  %cpu = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr @caller_cpu monotonic, align 4
  %same = icmp eq i32 %cpu, %caller
  %known = icmp ult i32 %cpu, 1024
  %stuck = and i1 %same, %known
  br i1 %stuck, label %move, label %done
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %allowed, i64 128, i1 false)
  %number = zext i32 %cpu to i64
  %byte = lshr i64 %number, 3
  %at = getelementptr i8, ptr %others, i64 %byte
  %bits = load i8, ptr %at
  %short = trunc i64 %number to i8
  %bit = and i8 %short, 7
  %one = shl i8 1, %bit
  %mask = xor i8 %one, -1
  %left = and i8 %bits, %mask
  store i8 %left, ptr %at
  %moved = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)  ; fails if there is no other
  br label %done
done:
  ret void
}
