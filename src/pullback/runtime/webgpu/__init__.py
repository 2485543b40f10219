"""GPUs through WebGPU: kernels as WGSL, arithmetic on 32-bit words alone."""
