// Rows times matrices, of which every element is read once: a thread adds up one chain of a column.
// Elements are read as Stored and added up as Value; pb_wide stands before this text.
struct Line { i64 n, k, chains, a_k, b_k, b_line; };  // lines are columns of b

// What a thread makes: element `line` of item, one of the chains; and the parts of its operands.
struct Chain {
  i64 item, chain, line;
  const Stored *a, *b;
  int count;
  PB_MEMBER Chain(i64 i, const Stored* a, const Stored* b, const Nest<2>& batch, const Line& s) {
    line = i % s.n;
    chain = i / s.n % s.chains;
    item = i / s.n / s.chains;
    i64 at[2] = {};
    pb_locate(batch, item, at);
    const i64 first = chain * CHAIN, left = s.k - first;
    count = (int)(left < CHAIN ? left : CHAIN);
    this->a = a + at[0] + first * s.a_k;
    this->b = b + at[1] + first * s.b_k + line * s.b_line;
  }
  PB_MEMBER void put(Stored* out, Value* partials, const i64 items, const Line& s, Value x) const {
    if (s.chains == 1) out[item * s.n + line] = pb_narrow(x);
    else partials[(chain * items + item) * s.n + line] = x;
  }
};
