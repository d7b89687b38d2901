#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "kernels/cpu/level.h"
#include "kernels/cpu/matmul_table.h"
#include "runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(MatmulTable, matmul_table)

namespace {

// A block of c is one task. Its panels of a (120 KB) stay in the L2 cache and a panel of b (32 KB)
// in the L1 cache. Multiples of the register tile of every level.
constexpr int64_t block_rows = 120, block_columns = 256, most_steps = 256;
// Packed panels of each operand take up to 16 MiB, or one block's if K is so long.
constexpr int64_t slab_words = int64_t{4} << 20;
// Panels are read without misses, but packing an operand costs as much as multiplying it with some
// 16 to 32 columns or rows, so for few of them (measured) it is read where it is.
constexpr int64_t most_columns_in_place = 256, most_rows_in_place = 256, most_rows_of_dots = 8;

/// How one operand is read and packed. `count` is M or N; a slab of it is packed at a time.
struct Operand {
  const Tensor& tensor;
  int64_t distance, stride;  ///< of stored rows and of the batch
  bool along_k;              ///< stored rows run along K
  int64_t count, block, panel;
  bool in_place;                           ///< its words are read where they are
  int64_t slab = 0, pitch = 0, words = 0;  ///< extent, the same in whole panels, packed size
  int64_t items = 1;                       ///< slabs held at a time, of different products

  void size_slab(int64_t steps) {
    const int64_t most = std::max(slab_words / std::max<int64_t>(steps, 1) / block, int64_t{1});
    const int64_t blocks = ceil_div(count, block);
    slab = (in_place ? blocks : ceil_div(blocks, ceil_div(blocks, most))) * block;
    pitch = in_place ? 0 : round_up(std::min(slab, count), panel);
    words = steps * pitch;
  }
  int64_t extent(int64_t first) const { return std::min(slab, count - first); }
};

/// Everything about a call that follows from its shape and the instruction set, never from the
/// number of threads: what is summed in which order, and so every bit of the result.
struct Plan {
  const MatmulTable& table;
  const Matmul m;
  int threads;
  bool dots;  ///< few rows: both operands are read along K, where they are
  int64_t per_word, steps, block_steps, k_blocks;
  int64_t group;  ///< products of the batch worked on together
  Operand a, b;
  int64_t sums_words;  ///< of one worker: a block's sums, unless they can be kept in c

  Plan(const MatmulTable& table, const Matmul& args, const Device::Traits& traits)
      : table(table),
        m(canonical(args)),
        threads(matmul_threads(m, traits)),
        dots(m.M <= most_rows_of_dots && !m.transpose_a && m.transpose_b),
        per_word(!dots && table.pairs && m.a.dtype() == DType::bf16 ? 2 : 1),
        steps(ceil_div(m.K, per_word)),
        block_steps(steps ? ceil_div(steps, ceil_div(steps, most_steps)) : 1),
        k_blocks(ceil_div(steps, block_steps)),
        a{m.a, m.lda,      m.stride_a, !m.transpose_a,
          m.M, block_rows, table.rows, dots || reads_a_in_place()},
        b{m.b, m.ldb,         m.stride_b,    m.transpose_b,
          m.N, block_columns, table.columns, dots || reads_b_in_place()},
        sums_words(m.c.dtype() == DType::f32 ? 0 : block_rows * block_columns) {
    a.size_slab(steps);
    b.size_slab(steps);
    const int64_t largest = std::max({int64_t{1}, a.stride ? a.words : 0, b.stride ? b.words : 0});
    group = std::clamp(slab_words / largest, int64_t{1}, m.batch);
    if (a.stride) a.items = group;
    if (b.stride) b.items = group;
  }

  /// Halves need their pairs as they are, or f32.
  bool reads_a_in_place() const {
    const bool whole_pairs = per_word == 2 && !m.transpose_a && m.K % 2 == 0;
    return m.N <= most_columns_in_place && (m.a.dtype() == DType::f32 || whole_pairs);
  }

  bool reads_b_in_place() const {
    const bool whole_vectors = m.N % (table.columns / 2) == 0;
    return m.M <= most_rows_in_place && m.a.dtype() == DType::f32 && !m.transpose_b &&
           whole_vectors;
  }

  int64_t words() const { return a.items * a.words + b.items * b.words + threads * sums_words; }
};

std::byte* at(const Tensor& tensor, int64_t element) {
  return tensor ? tensor.raw() + element * size_of(tensor.dtype()) : nullptr;
}

/// A run of one call: which products, rows and columns it is at.
struct Run {
  const Plan& plan;
  float *a_panels, *b_panels, *sums;
  int64_t item = 0, items = 0, row = 0, column = 0;

  Run(const Plan& plan, Workspace workspace)
      : plan(plan),
        a_panels(reinterpret_cast<float*>(workspace.data)),
        b_panels(a_panels + plan.a.items * plan.a.words),
        sums(b_panels + plan.b.items * plan.b.words) {}

  int64_t packing_tasks(const Operand& o, int64_t first) const {
    return o.in_place
               ? 0
               : std::min(items, o.items) * ceil_div(o.extent(first), o.block) * plan.k_blocks;
  }

  void pack(const Operand& o, int64_t first, float* panels, int64_t task) const {
    const int64_t blocks = ceil_div(o.extent(first), o.block);
    const int64_t step = task % plan.k_blocks * plan.block_steps;
    const int64_t offset = task / plan.k_blocks % blocks * o.block;
    const int64_t which = task / plan.k_blocks / blocks;
    const int64_t steps = std::min(plan.block_steps, plan.steps - step);
    const int64_t k = step * plan.per_word;
    const int64_t element =
        o.along_k ? (first + offset) * o.distance + k : k * o.distance + first + offset;
    plan.table.pack({.source = at(o.tensor, (item + which) * o.stride + element),
                     .dtype = o.tensor.dtype(),
                     .distance = o.distance,
                     .along_k = o.along_k,
                     .width = std::min(o.block, o.extent(first) - offset),
                     .depth = std::min(steps * plan.per_word, plan.m.K - k),
                     .panel = o.panel,
                     .panels = panels + which * o.words + step * o.pitch + offset * steps});
  }

  int64_t multiply_tasks() const {
    return items * ceil_div(plan.a.extent(row), block_rows) *
           ceil_div(plan.b.extent(column), block_columns);
  }

  /// Of an operand's slab that begins at `first`: the block at `offset` in it.
  MultiplyBlock::Words words(const Operand& o, int64_t first, int64_t which, int64_t offset,
                             const float* slabs) const {
    if (!o.in_place) {
      const float* slab = slabs + (o.stride ? which : 0) * o.words;
      return {.data = reinterpret_cast<const std::byte*>(slab), .first = offset, .pitch = o.pitch};
    }
    constexpr int64_t word = sizeof(float);
    const int64_t distance_bytes = o.distance * size_of(o.tensor.dtype());
    const int64_t row = (first + offset) * (o.along_k ? o.distance : 1);
    return {.data = at(o.tensor, (item + which) * o.stride + row),
            .in_place = true,
            .row_bytes = o.along_k ? distance_bytes : word,
            .step_bytes = o.along_k ? word : distance_bytes};
  }

  void multiply(int64_t task, int worker) const {
    const Matmul& m = plan.m;
    const int64_t row_blocks = ceil_div(plan.a.extent(row), block_rows);
    const int64_t column_blocks = ceil_div(plan.b.extent(column), block_columns);
    const int64_t i = task % row_blocks * block_rows;
    const int64_t j = task / row_blocks % column_blocks * block_columns;
    const int64_t which = task / row_blocks / column_blocks;
    const int64_t first = (item + which) * m.stride_c + (row + i) * m.ldc + column + j;
    std::byte* c = at(m.c, first);
    const bool in_place = m.c.dtype() == DType::f32;
    plan.table.multiply(
        {.a = words(plan.a, row, which, i, a_panels),
         .b = words(plan.b, column, which, j, b_panels),
         .dots = plan.dots,
         .rows = std::min(block_rows, plan.a.extent(row) - i),
         .columns = std::min(block_columns, plan.b.extent(column) - j),
         .steps = plan.steps,
         .block_steps = plan.block_steps,
         .sums = in_place ? reinterpret_cast<float*>(c) : sums + worker * plan.sums_words,
         .sums_distance = in_place ? m.ldc : block_columns,
         .add = m.accumulate,
         .finish = !in_place || m.bias || m.pre_activation || m.activation != Activation::none,
         .epilogue = {.dtype = m.a.dtype(),
                      .c_dtype = m.c.dtype(),
                      .c = c,
                      .pre_activation = at(m.pre_activation, first),
                      .c_distance = m.ldc,
                      .bias = at(m.bias, column + j),
                      .activation = m.activation}});
  }

  /// Panels are packed once, by everybody, then every block of c is a task of its own.
  void slab() const {
    const bool pack_a = plan.a.slab < plan.m.M || column == 0, pack_b = row == 0;
    const int64_t a_tasks = pack_a ? packing_tasks(plan.a, row) : 0;
    const int64_t b_tasks = pack_b ? packing_tasks(plan.b, column) : 0;
    team(plan.threads, a_tasks + b_tasks, [&](int64_t task, int) {
      task < b_tasks ? pack(plan.b, column, b_panels, task)
                     : pack(plan.a, row, a_panels, task - b_tasks);
    });
    team(plan.threads, multiply_tasks(), [&](int64_t task, int worker) { multiply(task, worker); });
  }

  void all() {
    for (item = 0; item < plan.m.batch; item += plan.group) {
      items = std::min(plan.group, plan.m.batch - item);
      for (column = 0; column < plan.m.N; column += plan.b.slab)
        for (row = 0; row < plan.m.M; row += plan.a.slab) slab();
    }
  }
};

const MatmulTable* table_for(const Matmul& m, const Device::Traits& traits) {
  return m.a.dtype() == DType::f64 ? nullptr : ZG_AT_LEVEL(traits.isa, matmul_table);
}

}  // namespace

Matmul canonical(const Matmul& args) {
  Matmul m = args;
  if (!m.lda) m.lda = m.transpose_a ? m.M : m.K;
  if (!m.ldb) m.ldb = m.transpose_b ? m.K : m.N;
  if (!m.ldc) m.ldc = m.N;
  const bool stacked =
      m.stride_b == 0 && !m.transpose_a && m.stride_a == m.M * m.lda && m.stride_c == m.M * m.ldc;
  if (m.batch > 1 && stacked) {
    m.M *= m.batch;
    m.batch = 1;
  }
  return m;
}

int matmul_threads(const Matmul& m, const Device::Traits& traits) {
  constexpr int64_t worth_waking = int64_t{1} << 21;  // multiply-adds; some 15 us of one core
  return m.batch * m.M * m.N * m.K < worth_waking ? 1 : traits.threads;
}

int64_t matmul_workspace_bytes(const Matmul& args, const Device::Traits& traits) {
  if (args.M == 0 || args.N == 0) return 0;
  const MatmulTable* table = table_for(args, traits);
  if (!table) return matmul_reference_workspace_bytes(args, traits);
  return Plan(*table, args, traits).words() * static_cast<int64_t>(sizeof(float));
}

void matmul(const Matmul& args, Workspace workspace, Stream& stream) {
  if (args.M == 0 || args.N == 0) return;
  const MatmulTable* table = table_for(args, stream.traits());
  if (!table) return matmul_reference(args, workspace, stream);
  const Plan plan(*table, args, stream.traits());
  Run(plan, workspace).all();
}

}  // namespace zg::cpu
