#include "zerograd/kernels/matmul/matmul_cpu.h"

#include <algorithm>

#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

// Measured with an L2 cache of 2 MiB and 48 KiB of L1. A panel of a slice of b (16 KiB) stays in
// the L1 cache while a slice of the block's rows of a (256 KiB) is read from the L2 cache, which
// also holds the block's sums (512 KiB). Each worker packs a panel of b just before it uses it:
// writing all panels to memory and reading them back would take longer.
constexpr int64_t max_rows = 512, max_columns = 256, max_tiles = 8;
constexpr int64_t slab_words = int64_t{4}
                               << 20;  // slab of a: 16 MiB, or one block if that is larger

/// The sizes of blocks and slices. They depend only on the shape, and so do the bits of the result.
struct Plan {
  const Matmul m;
  int threads;
  std::vector<KRange> ranges;    ///< of K; a step is a tile
  int64_t tiles, slice, slices;  ///< along K: all tiles, the tiles of the largest slice, all slices
  int64_t rows, columns, slab;   ///< rows and columns of a block; rows of a slab of a
  int64_t group;                 ///< products of the batch worked on together
  int64_t a_words, sums_words;   ///< per product: its slab of a; per worker: its sums

  Plan(const Matmul& args, const Device::Traits& traits)
      : m(canonical(args)),
        threads(matmul_threads(m, traits)),
        ranges(ranges_of(m, tile_depth, max_tiles)),
        tiles(ranges.back().first_step + ranges.back().steps),
        slice(0),
        slices(0),
        rows(evenly(m.M, max_rows)),
        columns(evenly(m.N, max_columns)) {
    for (const KRange& range : ranges) {
      slice = std::max(slice, range.block_steps);
      slices += range.blocks();
    }
    const int64_t limit = slab_words / std::max<int64_t>(rows * tiles * tile_side, 1);
    slab = std::min(m.M, std::max<int64_t>(limit, 1) * rows);
    a_words = round_up(slab, tile_side) * tiles * tile_side;
    group = std::clamp(slab_words / std::max<int64_t>(a_words, 1), int64_t{1}, m.batch);
    sums_words = spread() ? rows * columns : tile_pair * tile_pair;
  }

  static int64_t evenly(int64_t n, int64_t limit) {
    return round_up(ceil_div(n, ceil_div(n, limit)), tile_pair);
  }
  /// The sums of a whole block are in memory at a time.
  bool spread() const { return slices > 1 || ranges.size() > 1; }
  int64_t worker_words() const { return panel_words() + (levels_of(m) + 1) * sums_words; }
  int64_t panel_words() const { return 2 * slice * tile_words; }
  int64_t items() const { return m.stride_a ? group : 1; }
  int64_t words() const { return items() * a_words + threads * worker_words(); }
};

/// One step of the work: some items of the batch, and a slab of rows of each.
struct Run {
  const Plan& plan;
  const TileTable& table;
  float* workspace;
  int64_t item, items, row, rows;

  void pack(int64_t task) const {
    const Matmul& m = plan.m;
    const int64_t blocks = ceil_div(rows, plan.rows);
    const KBlock slice = block_of(plan.ranges, task % plan.slices, tile_depth);
    const int64_t first = task / plan.slices % blocks * plan.rows;
    const int64_t which = task / plan.slices / blocks;
    const int64_t element =
        m.transpose_a ? slice.k * m.lda + row + first : (row + first) * m.lda + slice.k;
    table.pack(
        {.a = {at(m.a, (item + which) * m.stride_a + element), m.lda, !m.transpose_a},
         .rows = std::min(plan.rows, rows - first),
         .depth = slice.depth,
         .tiles = workspace + which * plan.a_words +
                  (slice.step * ceil_div(rows, tile_side) + first / tile_side * slice.steps) *
                      tile_words});
  }

  void multiply(int64_t task, int worker) const {
    const Matmul& m = plan.m;
    const int64_t blocks = ceil_div(m.N, plan.columns);
    const int64_t j = task % blocks * plan.columns;
    const int64_t i = task / blocks % ceil_div(rows, plan.rows) * plan.rows;
    const int64_t which = task / blocks / ceil_div(rows, plan.rows);
    const int64_t c = (item + which) * m.stride_c + (row + i) * m.ldc + j;
    float* panel = workspace + plan.items() * plan.a_words + worker * plan.worker_words();
    float* levels = panel + plan.panel_words();
    const float* a = workspace + (m.stride_a ? which : 0) * plan.a_words;
    for (const KRange& range : plan.ranges) {
      const int64_t b = (item + which) * m.stride_b + j * (m.transpose_b ? m.ldb : 1) +
                        range.k * (m.transpose_b ? 1 : m.ldb);
      table.multiply({.a = a + range.first_step * ceil_div(rows, tile_side) * tile_words,
                      .a_tiles = ceil_div(rows, tile_side),
                      .a_first = i / tile_side,
                      .b = {at(m.b, b), m.ldb, m.transpose_b},
                      .rows = std::min(plan.rows, rows - i),
                      .columns = std::min(plan.columns, m.N - j),
                      .depth = range.depth,
                      .slice = range.block_steps,
                      .panel = panel,
                      .sums = levels + range.folds * plan.sums_words,
                      .spread = plan.spread(),
                      .resumes = !range.begins_group,
                      .folded = levels,
                      .folds = range.ends_group ? range.folds : 0,
                      .fold_words = plan.sums_words,
                      .finish = &range == &plan.ranges.back(),
                      .add = m.accumulate,
                      .epilogue = {.dtype = m.a.dtype(),
                                   .c_dtype = m.c.dtype(),
                                   .c = at(m.c, c),
                                   .pre_activation = at(m.pre_activation, c),
                                   .c_row_stride = m.ldc,
                                   .bias = at(m.bias, j),
                                   .activation = m.activation}});
    }
  }

  void slab() const {
    const int64_t blocks = ceil_div(rows, plan.rows);
    const int64_t packed = plan.tiles ? std::min(items, plan.items()) * blocks * plan.slices : 0;
    team(plan.threads, packed, [&](int64_t task, int) { pack(task); });
    team(plan.threads, items * blocks * ceil_div(plan.m.N, plan.columns),
         [&](int64_t task, int worker) { multiply(task, worker); });
  }
};

}  // namespace

const TileTable* tile_table([[maybe_unused]] Isa isa) {
#if defined(ZG_AMX)
  if (isa == Isa::amx_bf16) return &amx_bf16::tile_table;
#endif
  return nullptr;
}

int64_t tile_matmul_workspace_bytes(const Matmul& args, const Device::Traits& traits) {
  return Plan(args, traits).words() * static_cast<int64_t>(sizeof(float));
}

void tile_matmul(const TileTable& table, const Matmul& args, Workspace workspace,
                 const Device::Traits& traits) {
  const Plan plan(args, traits);
  const Matmul& m = plan.m;
  float* words = reinterpret_cast<float*>(workspace.data);
  for (int64_t item = 0; item < m.batch; item += plan.group)
    for (int64_t row = 0; row < m.M; row += plan.slab)
      Run{.plan = plan,
          .table = table,
          .workspace = words,
          .item = item,
          .items = std::min(plan.group, m.batch - item),
          .row = row,
          .rows = std::min(plan.slab, m.M - row)}
          .slab();
}

}  // namespace zg::cpu
