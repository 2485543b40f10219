; Where threads run: elsewhere than on Linux the system is left to choose.

define internal void @note_caller() alwaysinline nounwind {
  ret void
}

define internal void @read_allowed(ptr %allowed) alwaysinline nounwind {
  ret void
}

define internal void @avoid_caller(ptr %allowed) alwaysinline nounwind {
  ret void
}
