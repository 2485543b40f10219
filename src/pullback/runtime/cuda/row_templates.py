"""The text of row kernels, around what `row_code` writes."""

__all__ = ["KERNEL", "LAST", "MANY", "PASS"]

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
