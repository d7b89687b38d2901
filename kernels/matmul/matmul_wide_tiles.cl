#include "zerograd/kernels/hpu/dpas.clh"
#include "zerograd/kernels/matmul/matmul.clh"

// Large products in bf16 by DPAS: at least ROWS x COLUMNS of c, more than DEPTH along K, and not
// both operands transposed. kernels/hpu/README.md describes the kernels. Nothing is compared with
// a bound: the last tile along M or N ends at the edge of c and overlaps the tile before it, and
// the last step along K ends at K, with 0 for elements that an earlier step has added.
#define SIDE 4                          // sub-groups, and DPAS tiles of a sub-group, along M and N
#define ROWS (SIDE * SIDE * TILE_ROWS)  // of c, of a work-group
#define COLUMNS (SIDE * SIDE * TILE_COLUMNS)  // of c, of a work-group
#define DEPTH 32                              // elements along K in a step
#define ITEMS (SIDE * SIDE * ZG_DPAS)
#define A_CHUNKS (ROWS * DEPTH / 8 / ITEMS)  // of 8 elements, that a work-item copies in a step
#define B_CHUNKS (COLUMNS * DEPTH / 8 / ITEMS)

// A panel holds tiles of a and b as blocks, in the order of the registers of DPAS. Between blocks
// are 4 words, against bank conflicts.
#define A_BLOCK (TILE_ROWS * TILE_PAIRS + 4)
#define B_BLOCK (TILE_PAIRS * TILE_COLUMNS + 4)
#define A_WORDS (ROWS / TILE_ROWS * (DEPTH / TILE_DEPTH) * A_BLOCK)
#define PANELS (A_WORDS + COLUMNS / TILE_COLUMNS * (DEPTH / TILE_DEPTH) * B_BLOCK)

/// Where the words of a work-item lie: along K, four neighbours copy 32 elements of a row; else
/// each copies 8 rows (or columns) of a pair along K.
#define PART ((int)get_local_id(0) % 4)
#define LINE ((int)get_local_id(0) / 4)
#define PAIR (LINE % (DEPTH / 2))
#define OCTET (LINE / (DEPTH / 2) * 4 + PART)

/// Words of an operand, which need not be aligned as a vector; with `odd`, two sources begin in the
/// middle of a word, or one of them does.
typedef uint4 __attribute__((aligned(4))) chunk;
typedef __global const bf16* source;

/// Reads 8 elements that begin `late` elements after `from`. Nothing beyond them is read, except
/// for the first half of a word.
force_inline uint4 load_chunk(source from, uint late, bool odd) {
  const uint4 words = *(__global const chunk*)from;
  if (!odd) return words;
  const uint shift = late * 16, mask = late ? 0xffff0000 : 0;
  const uint4 next = (uint4)(words.yzw, from[7 + late]);
  return words >> shift | (next << 16 & mask);
}

/// Where a work-item reads: its chunks come in twos, at two sources, `after` elements from the twos
/// before.
typedef struct {
  source from[2];
  uint late[2];
  long after;
} reader;

/// The first source is `at` elements behind `first`, which is the same for all work-items, as
/// `late` is wherever `at` and `next` are even.
force_inline reader reader_of(source first, long at, long next, long after, bool odd) {
  const uint late = odd ? ((uint)((ulong)first >> 1) ^ (uint)at) & 1 : 0;
  const uint late_next = odd ? late ^ ((uint)next & 1) : 0;
  const reader r = {{first + at - late, first + at + next - late_next}, {late, late_next}, after};
  return r;
}

/// Reads the chunks of a step.
force_inline void load(uint4* chunks, int count, const reader* r, bool odd) {
  for (int j = 0; j < count; ++j)
    chunks[j] = load_chunk(r->from[j % 2] + j / 2 * r->after, r->late[j % 2], odd);
}
force_inline void advance(reader* r, long elements) {
  r->from[0] += elements;
  r->from[1] += elements;
}

/// Sets the first `skip` of the step's elements along K to 0.
force_inline void clear(uint4* chunks, int count, bool along_k, int skip) {
  for (int j = 0; j < count; ++j) {
    if (along_k) {
      const int4 left = skip - PART * 8 - (int4)(0, 2, 4, 6);
      chunks[j] &= as_uint4(left > 1 ? 0 : left > 0 ? (int4)0xffff0000 : -1);
    } else if (PAIR * 2 + j % 2 < skip) {
      chunks[j] = 0;
    }
  }
}

/// The pairs along K of two rows of 8 elements: of the elements with even numbers, and of the
/// others.
force_inline uint4 even_pairs(const uint4* rows) { return (rows[0] & 0xffff) | rows[1] << 16; }
force_inline uint4 odd_pairs(const uint4* rows) { return rows[0] >> 16 | (rows[1] & 0xffff0000); }

force_inline void store_a(__local uint* panel, const uint4* chunks, bool along_k) {
  if (along_k) {
    panel += (LINE / TILE_ROWS * 2 + PART / 2) * A_BLOCK + LINE % TILE_ROWS * 8 + PART % 2 * 4;
    for (int j = 0; j < A_CHUNKS; ++j)
      *(__local uint4*)(panel + j * (ITEMS / 4 / TILE_ROWS * 2) * A_BLOCK) = chunks[j];
  } else {
    panel += (OCTET * 2 + PAIR / 8) * A_BLOCK + PAIR % 8;
    for (int j = 0; j < A_CHUNKS; j += 2) {
      const uint4 even = even_pairs(chunks + j), odd = odd_pairs(chunks + j);
      for (int i = 0; i < 4; ++i) {
        panel[j / 2 * (ITEMS / 16 * 2) * A_BLOCK + i * 16] = even[i];
        panel[j / 2 * (ITEMS / 16 * 2) * A_BLOCK + i * 16 + 8] = odd[i];
      }
    }
  }
}

// Two tiles of b have the even and the odd ones of 2 TILE_COLUMNS columns, so that a lane has sums
// of neighbouring columns, which it stores as one word.
#define TWO_TILES (2 * TILE_COLUMNS)
force_inline void store_b(__local uint* panel, const uint4* chunks, bool along_k) {
  if (along_k) {
    panel += ((LINE / TWO_TILES * 2 + LINE % 2) * 2 + PART / 2) * B_BLOCK +
             PART % 2 * 4 * TILE_COLUMNS + LINE % TWO_TILES / 2;
    for (int j = 0; j < B_CHUNKS; ++j)
      for (int i = 0; i < 4; ++i)
        panel[j * (ITEMS / 4 / TILE_COLUMNS * 2) * B_BLOCK + i * TILE_COLUMNS] = chunks[j][i];
  } else {
    panel += (OCTET * 8 / TWO_TILES * 4 + PAIR / 8) * B_BLOCK + PAIR % 8 * TILE_COLUMNS +
             OCTET * 8 % TWO_TILES / 2;
    for (int j = 0; j < B_CHUNKS; j += 2) {
      __local uint* const to = panel + j / 2 * (ITEMS / 2 / TILE_COLUMNS * 2) * B_BLOCK;
      *(__local uint4*)to = even_pairs(chunks + j);
      *(__local uint4*)(to + 2 * B_BLOCK) = odd_pairs(chunks + j);
    }
  }
}

/// Adds the products of a step.
force_inline void multiply(float8 sums[SIDE][SIDE], __local const uint* panel) {
  const int group = get_sub_group_id();
  __local const uint* const a = panel + group / SIDE * (SIDE * 2 * A_BLOCK);
  __local const uint* const b = panel + A_WORDS + group % SIDE * (SIDE * 2 * B_BLOCK);
  for (int step = 0; step < DEPTH / TILE_DEPTH; ++step) {
    left_tile left[SIDE];
    for (int i = 0; i < SIDE; ++i) left[i] = read_left(a + (i * 2 + step) * A_BLOCK);
    for (int j = 0; j < SIDE; ++j) {
      const int8 right = read_right(b + (j * 2 + step) * B_BLOCK);
      for (int i = 0; i < SIDE; ++i) sums[i][j] = multiply_tiles(left[i], right, sums[i][j]);
    }
  }
}

/// The bits of a sum whose upper half is the sum rounded to bf16.
force_inline uint rounded(float sum) {
  const uint bits = as_uint(sum);
  return isnan(sum) ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
}

force_inline uint rounded_pair(float first, float second) {
  return rounded(first) >> 16 | (rounded(second) & 0xffff0000);
}

force_inline void store_word(__global bf16* to, uint word, bool odd) {
  if (odd) {
    to[0] = (bf16)word;
    to[1] = (bf16)(word >> 16);
  } else {
    *(__global uint*)to = word;
  }
}

/// Stores the sums of a row of tiles, plus the bias of the lane's columns, at `at` elements behind
/// c; with `has_gelu` their GELU, and the sums in pre_activation, unless it is null.
force_inline void store_strip(__global bf16* c, __global bf16* pre_activation, long at,
                              long row_stride, const float8* sums, const float* bias, bool has_gelu,
                              bool odd) {
  for (int m = 0; m < TILE_ROWS; ++m, at += row_stride)
    for (int j = 0; j < SIDE; j += 2) {
      uint word = rounded_pair(sums[j][m] + bias[j], sums[j + 1][m] + bias[j + 1]);
      if (has_gelu) {
        if (pre_activation) store_word(pre_activation + at + j * TILE_COLUMNS, word, odd);
        word =
            rounded_pair(gelu_tanh(as_float(word << 16)), gelu_tanh(as_float(word & 0xffff0000)));
      }
      store_word(c + at + j * TILE_COLUMNS, word, odd);
    }
}

force_inline void next_strip(float8 sums[SIDE][SIDE]) {
  for (int i = 1; i < SIDE; ++i)
    for (int j = 0; j < SIDE; ++j) sums[i - 1][j] = sums[i][j];
}

#define COLUMN_OF(j) ((j) / 2 * TWO_TILES + 2 * (int)get_sub_group_local_id() + (j) % 2)
force_inline void product(__local uint* panels, bool a_along_k, bool b_along_k, bool odd,
                          factor_parameters, result_parameters) {
  const long K = extents.s2, own_row = (long)get_group_id(1) * ROWS,
             own_column = (long)get_group_id(0) * COLUMNS;
  const long row = min(own_row, extents.s0 - ROWS), column = min(own_column, extents.s1 - COLUMNS);
  const int group = get_sub_group_id(), lane = get_sub_group_local_id();
  source a_first = a + (long)get_group_id(2) * operands.s0 + row * operands.s1;
  source b_first = b + (long)get_group_id(2) * operands.s3 + column * operands.s4;
  const long a_k = a_along_k ? 1 : operands.s2, b_k = b_along_k ? 1 : operands.s5;
  reader a_from = a_along_k ? reader_of(a_first, LINE * operands.s1 + PART * 8,
                                        ITEMS / 4 * operands.s1, ITEMS / 2 * operands.s1, odd)
                            : reader_of(a_first, PAIR * (2 * a_k) + OCTET * 8, a_k, ITEMS / 2, odd);
  reader b_from = b_along_k ? reader_of(b_first, LINE * operands.s4 + PART * 8,
                                        ITEMS / 4 * operands.s4, ITEMS / 2 * operands.s4, odd)
                            : reader_of(b_first, PAIR * (2 * b_k) + OCTET * 8, b_k, ITEMS / 2, odd);
  const int steps = (int)((K + DEPTH - 1) / DEPTH);
  float8 sums[SIDE][SIDE];
  for (int i = 0; i < SIDE; ++i)
    for (int j = 0; j < SIDE; ++j) sums[i][j] = 0.0f;
  uint4 a_chunks[A_CHUNKS], b_chunks[B_CHUNKS];
#define LOAD()                            \
  load(a_chunks, A_CHUNKS, &a_from, odd); \
  load(b_chunks, B_CHUNKS, &b_from, odd)
#define STORE(panel)                   \
  store_a(panel, a_chunks, a_along_k); \
  store_b((panel) + A_WORDS, b_chunks, b_along_k)
  LOAD();
  STORE(panels);
  int now = 0;  // where the panels of a step begin; those of the next step are stored beside them
#pragma unroll 1
  for (int step = 2; step < steps; ++step) {
    advance(&a_from, DEPTH * a_k);
    advance(&b_from, DEPTH * b_k);
    barrier(CLK_LOCAL_MEM_FENCE);
    LOAD();
    multiply(sums, panels + now);
    now = PANELS - now;
    STORE(panels + now);
  }
  const int skip = (int)(steps * DEPTH - K);
  advance(&a_from, (DEPTH - skip) * a_k);
  advance(&b_from, (DEPTH - skip) * b_k);
  barrier(CLK_LOCAL_MEM_FENCE);
  LOAD();
  multiply(sums, panels + now);
  now = PANELS - now;
  clear(a_chunks, A_CHUNKS, a_along_k, skip);
  clear(b_chunks, B_CHUNKS, b_along_k, skip);
  STORE(panels + now);
  barrier(CLK_LOCAL_MEM_FENCE);
  multiply(sums, panels + now);

  const long first_row = row + group / SIDE * (SIDE * TILE_ROWS),
             first_column = column + group % SIDE * (SIDE * TILE_COLUMNS);
  // Tiles that overlap store the same bits.
  const bool has_gelu = flags == GELU_TANH;
  if (has_gelu || (!flags && !pre_activation)) {
    float lane_bias[SIDE];
    for (int j = 0; j < SIDE; ++j)
      lane_bias[j] = bias ? widened(bias[first_column + COLUMN_OF(j)]) : 0.0f;
    long at =
        (long)get_group_id(2) * extents.s4 + first_row * extents.s3 + first_column + COLUMN_OF(0);
    const long strip = TILE_ROWS * extents.s3;
    if (has_gelu) {
      // Not unrolled: SPIR-V does not keep "unroll 1", and a loop of a constant length is unrolled.
      for (int i = 0; i < max(SIDE, -flags); ++i, at += strip) {
        store_strip(c, pre_activation, at, extents.s3, sums[0], lane_bias, true, odd);
        next_strip(sums);
      }
      return;
    }
    store_strip(c, 0, at, extents.s3, sums[0], lane_bias, false, odd);
    store_strip(c, 0, at + strip, extents.s3, sums[1], lane_bias, false, odd);
    store_strip(c, 0, at + 2 * strip, extents.s3, sums[2], lane_bias, false, odd);
    store_strip(c, 0, at + 3 * strip, extents.s3, sums[3], lane_bias, false, odd);
    return;
  }
  __local float* const strip = (__local float*)panels + group * (SIDE * TILE_ROWS * TILE_COLUMNS);
#pragma unroll 1
  for (int i = 0; i < SIDE; ++i) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < SIDE; ++j)
      for (int m = 0; m < TILE_ROWS; ++m)
        strip[m * SIDE * TILE_COLUMNS + COLUMN_OF(j)] = sums[0][j][m];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 1
    for (int at = lane; at < SIDE * TILE_ROWS * TILE_COLUMNS; at += ZG_DPAS) {
      const long m = first_row + i * TILE_ROWS + at / (SIDE * TILE_COLUMNS),
                 n = first_column + at % (SIDE * TILE_COLUMNS);
      if (m >= own_row && n >= own_column) finish(result_arguments, strip[at], m, n);
    }
    next_strip(sums);
  }
}

#define KERNEL(name, a_along_k, b_along_k, odd)                                   \
  sub_group_kernel(ITEMS) void name(factor_parameters, result_parameters) {       \
    __local uint panels[2 * PANELS] __attribute__((aligned(64)));                 \
    product(panels, a_along_k, b_along_k, odd, a, b, operands, result_arguments); \
  }
KERNEL(along_k_k, true, true, false)
KERNEL(along_k_n, true, false, false)
KERNEL(along_m_n, false, false, false)
KERNEL(odd_along_k_k, true, true, true)
KERNEL(odd_along_k_n, true, false, true)
KERNEL(odd_along_m_n, false, false, true)
