"""LLVM IR: its writers, expressions as IR, and machine code from it."""
