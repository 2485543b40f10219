// What the kernels of chunks know: contributions in the order of their rows are cut into chunks that
// fit in shared memory, and the contributions of a row into strips, one for a lane.
// Definitions: STRIP (the most contributions of a strip), WORD (items in 16 bytes).
constexpr u32 NOWHERE = ~0u;     // the target of a lane without a strip
constexpr u32 SPLIT = 1u << 31;  // of a strip of a row that has several: its number, else the row

// Its first place in the order, how many strips it has, from `base` on, and entries for a lane.
struct alignas(16) Chunk { u32 begin, base, strips, rows; };

// What a chunk has of a tile: where it begins in the chunk, and how much later in memory, in words.
struct alignas(8) Run { u32 at, shift; };

// Groups are 32 strips of about the same length, the longest first. Those of a chunk say from here on
// where their entries begin: places in the chunk, one for a lane at a time.
DEVICE i64 first_group(const Chunk& chunk, i64 number) { return chunk.base / 32 + 3 * number; }
DEVICE i64 first_entry(const Chunk& chunk, i64 number) {
  return 32 * (chunk.begin / 32 + (STRIP + 2) * number);
}
