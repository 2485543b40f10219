// Copies from global to shared memory that run beside the arithmetic, and clusters of thread blocks.
// An emulator defines PB_EMULATED and brings its own of what stands in the first branch.
#define PB_MEMBER __device__ __forceinline__
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
#ifndef PB_EMULATED
#define PB_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char in_shared[]; \
  type* name = reinterpret_cast<type*>(in_shared)
#define PB_CLUSTERED(n)  // an emulator has to know
#if __CUDA_ARCH__ >= 900
#define PB_CLUSTERS 1
#define PB_CLUSTER(n) __cluster_dims__(n, 1, 1)
#else
#define PB_CLUSTERS 0
#define PB_CLUSTER(n)
#endif
typedef unsigned int SharedAddress;  // an address in shared memory
PB_DEVICE SharedAddress pb_shared(const void* p) { return (SharedAddress)__cvta_generic_to_shared(p); }
#if __CUDA_ARCH__ >= 800
// BYTES to `to`; of them `given` are read, the others are 0.
template <int BYTES> PB_DEVICE void pb_copy(SharedAddress to, const void* from, int given = BYTES) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(given));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(given));
}
template <int BYTES> PB_DEVICE void pb_copy_all(SharedAddress to, const void* from) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES));
}
PB_DEVICE void pb_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> PB_DEVICE void pb_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
template <int BYTES> PB_DEVICE void pb_copy(SharedAddress to, const void* from, int given = BYTES) {
#pragma unroll
  for (int i = 0; i < BYTES / 4; ++i) {
    const int word = 4 * i < given ? static_cast<const int*>(from)[i] : 0;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 4 * i), "r"(word) : "memory");
  }
}
template <int BYTES> PB_DEVICE void pb_copy_all(SharedAddress to, const void* from) {
  pb_copy<BYTES>(to, from);
}
PB_DEVICE void pb_commit() {}
template <int N> PB_DEVICE void pb_wait() {}
#endif
PB_DEVICE void pb_cluster_barrier() {
#if PB_CLUSTERS
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// 16 bytes of the shared memory of another block of the cluster, at the place that `own` has here.
template <typename V> PB_DEVICE V pb_of_block(const V* own, int rank) {
  static_assert(sizeof(V) == 16, "one load");
  union { V value; int words[4]; } found;
#if PB_CLUSTERS
  SharedAddress at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(pb_shared(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(found.words[0]), "=r"(found.words[1]), "=r"(found.words[2]),
                 "=r"(found.words[3])
               : "r"(at));
#else
  found.value = *own;
#endif
  return found.value;
}
#endif

PB_DEVICE float pb_fma(float a, float b, float c) { return fmaf(a, b, c); }
PB_DEVICE double pb_fma(double a, double b, double c) { return fma(a, b, c); }
#ifndef PB_EMULATED
PB_DEVICE double pb_add(double a, double b) { return __dadd_rn(a, b); }  // which is never folded
#else
PB_DEVICE double pb_add(double a, double b) { return a + b; }
#endif
// `Value` is what is added up, `Stored` what is written; these, pb_narrow and the constants in capitals
// stand before this text.
struct alignas(16) Four { Value v[4]; };
struct alignas(16) Piece { Value v[16 / sizeof(Value)]; };
