"""The text of row kernels, around what `row_code` writes."""

__all__ = ["COLUMNS", "KERNEL", "LAST", "MANY", "PASS", "WALK"]

KERNEL = """
extern "C" __global__ void __launch_bounds__({bounds}) {name}_passes({pointers},
    const Rows<{m}, {s}> r) {{
  DYNAMIC_SHARED(unsigned char, memory);
  const int t = (int)threadIdx.x, together = (int)r.together, own = (int)blockDim.x / together;
  const int here = t / own, first = t % own, lane = t % {lanes}, place = first % {span};
  const int team = first / {span}, teams = own / {span};
  const int length = (int)r.length, blocks = (length + {block} - 1) / {block};
  const long long row = blockIdx.x * (long long)together + here;
  const bool valid = row < r.rows;
  unsigned char* const room = memory + here * (int)r.room;
{starts}
{fetches}
{passes}
  if (!valid || first) return;
{kept}
}}"""

# A thread block has the rows of a lane of a block of the tree from row to row, each team every so
# many of them. What lies near is there for all rows.
WALK = """
extern "C" __global__ void __launch_bounds__({bounds}) {name}_passes({pointers},
    {chain}* const chains, const Rows<{m}, {s}> r) {{
  DYNAMIC_SHARED(unsigned char, memory);
  const int t = (int)threadIdx.x, together = (int)r.together, own = (int)blockDim.x / together;
  const int here = t / own, first = t % own, lane = t % {lanes}, place = first % {span};
  const int team = first / {span}, teams = own / {span};
  const int length = (int)r.length, blocks = (length + {block} - 1) / {block};
  constexpr bool valid = true;
  unsigned char* const room = memory + here * (int)r.room;
{near}
  pb_begun();
{sums}
  volatile int* const turn = (int*)(memory + r.place[{turn}]);
  const int pieces = own / 32 * ((length + 2 * own - 1) / (2 * own));
  for (int i = t; i < pieces; i += (int)blockDim.x) turn[i] = 0;
  pb_arrived<0>();
  __syncthreads();
  const long long begin = blockIdx.x / {lanes} * (long long){block} + blockIdx.x % {lanes};
  const long long left = r.rows - begin;
  const int most = left < {block} ? (int)left : {block}, count = (most + {lanes} - 1) / {lanes};
  for (int number = here; number < count; number += together) {{
  const long long row = begin + number * {lanes};
{starts}
{fetches}
{passes}
  if (!first) {{
{kept}
  }}
  pb_meet_team(here, own);
  }}
  __syncthreads();
  for (int i = t; i < length; i += (int)blockDim.x)
    chains[blockIdx.x * (long long)length + i] = {chain}{{{parts}}};
}}"""

# In pieces, so that the next row can follow as soon as one is done: of two packs of each thread
# where a warp or two have a row, of eight where more have it and the turns would take longer.
COLUMNS = """
  {{
{waits}
    const int whole = length / {width} * {width}, hop = own * {width}, warps = own / 32;
    const int packs = own < 128 ? 2 : 8;
    int piece = first / 32;
    for (int begin = 0; begin < length; begin += packs * hop, piece += warps) {{
      while (turn[piece] != number) SPIN();
      __syncwarp();
      pb_seen();
      if (begin + packs * hop <= whole) {{
#pragma unroll 2
        for (int p = 0; p < packs; ++p) {{
        const int i = begin + p * hop + first * {width};
{many}
        }}
      }} else {{
        for (int i = begin + first * {width}; i < whole; i += hop) {{
{many}
        }}
        for (int i = whole + first; i < length; i += own) {{
{one}
        }}
      }}
      pb_seen();
      __syncwarp();
      if (first % 32 == 0) turn[piece] = number + 1;
    }}
  }}"""

MANY = """
      for (; round + {step} <= n; round += {step}) {{
        const int i = round + place;
{elements}
      }}"""

PASS = """
  {{
{divisors}
{accumulators}
    for (int begin = 0; begin < blocks; begin += teams) {{
      const int q = begin + team, base = q * {block};
      const int n = !valid || q >= blocks ? 0 : length - base < {block} ? length - base : {block};
      int round = 0;
{inits}
{many}
      for (; round < n; round += {span}) {{
        const int i = round + place;
{one}
      }}
{lanes_joined}
    }}
{blocks_joined}
{finished}
  }}"""


LAST = """
  {{
{divisors}
{waits}
    const int n = valid ? length : 0;
    int i = first;
    if ({aligned}) {{
      const int step = own * {width};
      i *= {width};
      for (; i + step * {more} < n; i += step * {packs}) {{
{many}
      }}
      for (; i < n; i += step) {{
{one}
      }}
    }} else {{
      const int step = own;
      for (; i < n; i += step) {{
{single}
      }}
    }}
  }}"""
