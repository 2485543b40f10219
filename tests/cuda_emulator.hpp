// Enough of CUDA C on a host to run printed kernels: thread blocks one after another, the threads
// of a block as fibers that take turns at __syncthreads and __shfl_down_sync.
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static

struct float2 { float x, y; };
struct double2 { double x, y; };
struct Dim { unsigned x; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

template <typename To, typename From> static To as_bits(From x) {
  To y;
  static_assert(sizeof x == sizeof y, "widths differ");
  memcpy(&y, &x, sizeof x);
  return y;
}
static inline int __float_as_int(float x) { return as_bits<int>(x); }
static inline float __int_as_float(int x) { return as_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return as_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return as_bits<double>(x); }

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool done = false;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static void (*run_thread)(void*);
static void* thread_data;
static char exchange[1024][8];

static void yield() {
  const unsigned own = threadIdx.x;
  swapcontext(&fibers[own].context, &scheduler);
  threadIdx.x = own;
}
static inline void __syncthreads() { yield(); }
template <typename T> static T __shfl_down_sync(unsigned, T value, int by, int width) {
  const unsigned own = threadIdx.x;
  memcpy(exchange[own], &value, sizeof value);
  yield();
  T other = value;
  if ((int)(own % width) + by < width) memcpy(&other, exchange[own + by], sizeof other);
  yield();
  return other;
}
static void fiber_main() {
  const unsigned own = threadIdx.x;
  run_thread(thread_data);
  fibers[own].done = true;
}
static void run_block_of_fibers() {
  fibers.resize(blockDim.x);
  for (unsigned t = 0; t < blockDim.x; ++t) {
    Fiber& f = fibers[t];
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, fiber_main, 0);
  }
  for (bool alive = true; alive;) {
    alive = false;
    for (unsigned t = 0; t < blockDim.x; ++t) {
      if (fibers[t].done) continue;
      alive = true;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
    }
  }
}
template <typename... A, size_t... I>
static void invoke(void (*f)(A...), void** args, std::index_sequence<I...>) {
  f(*reinterpret_cast<std::remove_cv_t<A>*>(args[I])...);
}
template <typename... A>
static void launch(void (*f)(A...), unsigned grid, unsigned block, void** args, bool together) {
  static void (*function)(A...);
  function = f;
  run_thread = [](void* data) {
    invoke(function, static_cast<void**>(data), std::index_sequence_for<A...>());
  };
  thread_data = args;
  gridDim.x = grid;
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    if (together) run_block_of_fibers();
    else
      for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) run_thread(args);
  }
}
