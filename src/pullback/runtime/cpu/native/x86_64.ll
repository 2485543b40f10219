; What the native core needs from an x86-64 CPU.

; The floating point mode that kernels run in: round to nearest, denormals kept, no traps.
@default_float_mode = internal constant i64 8064 ; 0x1f80

declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

; Tells the CPU that this thread spins.
define internal void @relax() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}

; The floating point mode of this thread, without the flags of past exceptions.
define internal i64 @float_mode() alwaysinline nounwind {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %word = load i32, ptr %slot
  %control = and i32 %word, 65472 ; 0xffc0
  %mode = zext i32 %control to i64
  ret i64 %mode
}

define internal void @set_float_mode(i64 %mode) nounwind {
  %slot = alloca i32
  %word = trunc i64 %mode to i32
  store i32 %word, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
