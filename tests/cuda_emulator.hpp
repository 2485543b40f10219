// Enough of CUDA C on a host to run printed kernels: the threads of a block as fibers that take
// turns where they wait for each other; thread blocks one after another, or all at a time. With
// PULLBACK_EMULATED_BACKWARDS in the environment the last thread comes first: what reads before
// another thread has written, without a barrier between, then finds other values.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(fibers[current].shared)
#define SPIN() yield()

// What kernels of products have for copies beside the arithmetic, and for clusters of blocks.
#define PB_EMULATED
#define PB_SHARED(type, name) DYNAMIC_SHARED(type, name)
#define PB_CLUSTERS 1
#define PB_CLUSTER(n)
#define PB_CLUSTERED(n) static const int cluster_set = set_cluster(n);
static unsigned cluster = 1;  // blocks that wait for each other, side by side
static int set_cluster(unsigned n) { return (int)(cluster = n); }
typedef char* SharedAddress;
static inline SharedAddress pb_shared(const void* p) { return (SharedAddress)p; }
template <int BYTES> static void pb_copy(SharedAddress to, const void* from, int given = BYTES) {
  struct alignas(BYTES) Word { char bytes[BYTES]; };
  Word word = {};
  if (given == BYTES) word = *static_cast<const Word*>(from);  // traps if it is not aligned
  else memcpy(&word, from, given);
  *reinterpret_cast<Word*>(to) = word;
}
template <int BYTES> static void pb_copy_all(SharedAddress to, const void* from) { pb_copy<BYTES>(to, from); }
static inline void pb_commit() {}
template <int N> static void pb_wait() {}

struct float2 { float x, y; };
struct double2 { double x, y; };
struct Dim { unsigned x, y = 0; };
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
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) {
  return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline void __threadfence() {}

template <typename T> static T atomicAdd(T* at, T by) { T old = *at; *at = old + by; return old; }
template <typename T> static T atomicMax(T* at, T x) { T old = *at; *at = x > old ? x : old; return old; }
template <typename T> static T atomicOr(T* at, T x) { T old = *at; *at = old | x; return old; }

// Threads that wait until all of them have come.
struct Meeting {
  unsigned members = 0, waiting = 0;
  unsigned long long number = 0;
  bool some = false, result = false;  // whether one of them says so, now and at the last meeting
  void check() {
    if (waiting && waiting == members) {
      waiting = 0;
      ++number;
      result = some;
      some = false;
    }
  }
};
struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  bool done = false;
  Dim thread, block;
  Meeting *warp, *all;
  char* shared = nullptr;
  char exchange[32];
};
constexpr size_t STACK = 1 << 16;
static std::deque<Fiber> fibers;
static unsigned current;
static ucontext_t scheduler;
static void (*run_thread)(void*);
static void* thread_data;

static void yield() { swapcontext(&fibers[current].context, &scheduler); }
static void meet(Meeting* m) {
  const unsigned long long number = m->number;
  ++m->waiting;
  m->check();
  while (m->number == number) yield();
}
static inline void __syncthreads() { meet(fibers[current].all); }
static int meet_or(Meeting* all, int says) {
  all->some |= says != 0;
  meet(all);
  return all->result;
}
static inline int __syncthreads_or(int says) { return meet_or(fibers[current].all, says); }
// The first N threads of a block, in kernels of loops.
static std::map<std::pair<Meeting*, int>, Meeting> first_threads;
template <int N> static Meeting* first() {
  Meeting* found = &first_threads[{fibers[current].all, N}];
  found->members = N;
  return found;
}
template <int N> static void pb_meet() { meet(first<N>()); }
template <int N> static int pb_meet_or(int says) { return meet_or(first<N>(), says); }
// The threads of a team of a block.
static void pb_meet_team(int team, int own) {
  Meeting* found = &first_threads[{fibers[current].all, -1 - team}];
  found->members = own;
  meet(found);
}
static void pb_seen() {}
static void pb_meet_grid(unsigned* count, unsigned& goal) {
  __syncthreads();
  goal += gridDim.x;
  if (threadIdx.x == 0) {
    atomicAdd(count, 1u);
    while ((int)(*(volatile unsigned*)count - goal) < 0) yield();
  }
  __syncthreads();
}
static Meeting cluster_meeting;
static void pb_cluster_barrier() { meet(&cluster_meeting); }
static void pb_meet_cluster() { meet(&cluster_meeting); }
template <typename V> static V pb_of_block(const V* own, int rank) {
  const Fiber& here = fibers[current];
  const unsigned first = current / (cluster * blockDim.x) * (cluster * blockDim.x);
  return *(const V*)(fibers[first + rank * blockDim.x].shared + ((const char*)own - here.shared));
}
static inline void __syncwarp() { meet(fibers[current].warp); }

// Every lane shows a value, then looks at those of others.
template <typename T, typename F> static auto show(T value, F look) {
  const unsigned own = current, first = own - threadIdx.x % 32;
  memcpy(fibers[own].exchange, &value, sizeof value);
  __syncwarp();
  const auto at = [first](unsigned lane) {
    T other;
    memcpy(&other, fibers[first + lane].exchange, sizeof other);
    return other;
  };
  const auto found = look(at, threadIdx.x % 32);
  __syncwarp();
  return found;
}
template <typename T> static T __shfl_down_sync(unsigned, T value, int by, int width) {
  return show(value, [=](auto at, int lane) {
    return at(lane % width + by < width ? lane + by : lane);
  });
}
template <typename T> static T __shfl_up_sync(unsigned, T value, int by, int width) {
  return show(value, [=](auto at, int lane) { return at(lane % width >= by ? lane - by : lane); });
}
template <typename T> static T __shfl_sync(unsigned, T value, int from, int width) {
  return show(value, [=](auto at, int lane) { return at(lane / width * width + from % width); });
}
static inline unsigned warp_size() { return fibers[current].warp->members; }
static unsigned __ballot_sync(unsigned, bool value) {
  return show(value, [](auto at, int) {
    unsigned mask = 0;
    for (unsigned k = 0; k < warp_size(); ++k) mask |= (unsigned)at(k) << k;
    return mask;
  });
}
static bool __all_sync(unsigned mask, bool value) {
  return __popc(__ballot_sync(mask, value)) == (int)warp_size();
}
static unsigned __match_any_sync(unsigned, unsigned value) {
  return show(value, [=](auto at, int) {
    unsigned mask = 0;
    for (unsigned k = 0; k < warp_size(); ++k) mask |= (unsigned)(at(k) == value) << k;
    return mask;
  });
}

// Tensor cores: see `gemm/kernels/fragments.cu`.
static void emulated_matrices(unsigned (&m)[4], SharedAddress row, bool transposed) {
  struct Four { unsigned m[4]; };
  const Four found = show(row, [=](auto at, int lane) {
    Four own;
    for (int k = 0; k < 4; ++k) {
      unsigned short two[2];
      for (int e = 0; e < 2; ++e) {
        const int line = transposed ? lane % 4 * 2 + e : lane / 4;
        const int column = transposed ? lane / 4 : lane % 4 * 2 + e;
        memcpy(&two[e], at(k * 8 + line) + column * 2, 2);
      }
      own.m[k] = two[0] | (unsigned)two[1] << 16;
    }
    return own;
  });
  memcpy(m, found.m, sizeof m);
}
template <typename U, typename F>  // words of one or two numbers
static void emulated_multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, F wide) {
  constexpr int PER_WORD = 4 / sizeof(U);
  struct Operands { U a[4][PER_WORD], b[2][PER_WORD]; } given;
  const unsigned right[2] = {b0, b1};
  memcpy(given.a, a, sizeof given.a);
  memcpy(given.b, right, sizeof given.b);
  struct Sums { float c[4]; };
  const Sums sums = show(given, [&](auto at, int lane) {
    Sums own = {{c[0], c[1], c[2], c[3]}};
    for (int t = 0; t < 4; ++t) {
      const Operands left = at(lane / 4 * 4 + t);
      const Operands right[2] = {at(lane % 4 * 8 + t), at(lane % 4 * 8 + 4 + t)};
      for (int e = 0; e < 4; ++e)
        for (int word = 0; word < 2; ++word)
          for (int k = 0; k < PER_WORD; ++k)
            own.c[e] += wide(left.a[e / 2 + word * 2][k]) * wide(right[e % 2].b[word][k]);
    }
    return own;
  });
  memcpy(c, sums.c, sizeof c);
}

static void fiber_main() {
  run_thread(thread_data);
  Fiber& f = fibers[current];
  f.done = true;
  --f.warp->members;
  f.warp->check();
  --f.all->members;
  f.all->check();
}
// Fibers for the blocks from `first` on, until all of them have ended.
static void run_blocks(unsigned first, unsigned count, unsigned shared) {
  const unsigned threads = blockDim.x, warps = (threads + 31) / 32;
  std::vector<Meeting> meetings(count * (warps + 1));
  first_threads.clear();
  std::vector<std::vector<char>> memory(count, std::vector<char>(shared + 16, (char)0x5a));
  while (fibers.size() < count * threads) {
    fibers.emplace_back();
    fibers.back().stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  for (unsigned k = 0; k < count * threads; ++k) {
    Fiber& f = fibers[k];
    const unsigned block = k / threads, thread = k % threads;
    f.done = false;
    f.thread.x = thread;
    f.block = {(first + block) % gridDim.x, (first + block) / gridDim.x};
    f.all = &meetings[block * (warps + 1)];
    f.warp = f.all + 1 + thread / 32;
    ++f.all->members;
    ++f.warp->members;
    f.shared = (char*)(((uintptr_t)memory[block].data() + 15) & ~(uintptr_t)15);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, fiber_main, 0);
  }
  const bool backwards = getenv("PULLBACK_EMULATED_BACKWARDS") != nullptr;
  for (bool alive = true; alive;) {
    alive = false;
    for (unsigned turn = 0; turn < count * threads; ++turn) {
      const unsigned k = backwards ? count * threads - 1 - turn : turn;
      if (fibers[k].done) continue;
      alive = true;
      current = k;
      threadIdx = fibers[k].thread;
      blockIdx = fibers[k].block;
      swapcontext(&scheduler, &fibers[k].context);
    }
  }
}
template <typename... A, size_t... I>
static void invoke(void (*f)(A...), void** args, std::index_sequence<I...>) {
  f(*reinterpret_cast<std::remove_cv_t<A>*>(args[I])...);
}
template <typename... A> static int sizes(void (*)(A...), int* to) {
  const int all[] = {(int)sizeof(A)..., 0};
  for (unsigned k = 0; k < sizeof...(A); ++k) to[k] = all[k];
  return sizeof...(A);
}
enum Mode { ALONE, BLOCKS, TOGETHER };  // no thread waits; threads of a block do; all threads do
template <typename... A>
static void launch(void (*f)(A...), unsigned grid, unsigned grid_y, unsigned block, unsigned shared,
                   void** args, int mode) {
  static void (*function)(A...);
  function = f;
  run_thread = [](void* data) {
    invoke(function, static_cast<void**>(data), std::index_sequence_for<A...>());
  };
  thread_data = args;
  gridDim = {grid, grid_y};
  blockDim = {block, 1};
  const unsigned blocks = grid * grid_y;
  if (mode == TOGETHER) return run_blocks(0, blocks, shared);
  for (unsigned b = 0; b < blocks; b += mode == BLOCKS ? cluster : 1) {
    if (mode == BLOCKS) {
      cluster_meeting = Meeting();
      cluster_meeting.members = cluster * block;
      run_blocks(b, cluster, shared);
      continue;
    }
    blockIdx = {b % grid, b / grid};
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) run_thread(args);
  }
}
