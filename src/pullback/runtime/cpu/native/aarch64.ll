; What the native core needs from a 64-bit ARM CPU.

; The floating point mode that kernels run in: round to nearest, denormals kept, no traps.
@default_float_mode = internal constant i64 0

declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

; Tells the CPU that this thread spins: by a barrier, since many cores ignore `yield`.
define internal void @relax() alwaysinline nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}

; The floating point mode of this thread.
define internal i64 @float_mode() alwaysinline nounwind {
  %mode = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %mode
}

define internal void @set_float_mode(i64 %mode) nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
