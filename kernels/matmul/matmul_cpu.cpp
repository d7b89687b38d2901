#include "zerograd/kernels/matmul/matmul_cpu.h"

#include <algorithm>
#include <bit>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/matmul/matmul_table.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(MatmulTable, matmul_table)

namespace {

// c is computed in blocks of 120 x 256. The rows of a of a block (120 KB for 256 steps along K)
// stay in the L2 cache and a panel of b (32 KB) in the L1 cache. The sizes are multiples of every
// level's register tile.
constexpr int64_t block_rows = 120, block_columns = 256, max_steps = 256;
constexpr int64_t sums_of_block = block_rows * block_columns;
// A slab of rows of a is packed at a time: up to 16 MiB, at least one block. A b of up to 1 MiB is
// packed once, by all workers together. If b is larger, each worker packs some columns for itself,
// up to 1.5 MiB, which stay in its L2 cache while it multiplies all rows of the slab with them.
constexpr int64_t slab_words = int64_t{4} << 20, shared_words = int64_t{1} << 18,
                  worker_words = int64_t{3} << 17;
constexpr int64_t shared_columns = 64, min_worker_columns = 64;  // packed by one task
// Words that are multiplied by few rows or columns are packed just before, one block of K at a
// time, by the worker that needs them: the rows of a if c is one block wide; the columns of b if c
// has at most this many rows, whose sums then stay in the L2 cache.
constexpr int64_t max_rows_by_blocks = 256;
// If the rows of a run along K, a is read word by word, and packing it gains little. Otherwise
// packing avoids cache misses, but costs as much as multiplying the operand by 16 to 32 columns or
// rows. So an operand that is multiplied by few columns or rows is read in place, too. The limits
// were measured.
constexpr int64_t max_columns_in_place = 256, max_rows_in_place = 256;
// Rows so far apart share few sets of the L1 cache, which then loses them before they are read
// again: packing them pays for fewer columns or rows.
constexpr int64_t crowded_stride = 512, max_crowded_in_place = 32;

/// Whether an operand, stored in rows across K, is read in place for `count` columns or rows of c.
bool is_in_place(int64_t count, int64_t most, int64_t stride) {
  return count <= (stride % crowded_stride == 0 ? max_crowded_in_place : most);
}

/// Whether c has so few rows that each element is computed as a dot product along K, without
/// packing.
bool is_dots(const Matmul& m) { return m.M <= max_rows_of_dots && !m.transpose_a && m.transpose_b; }

/// How one operand is read and packed. `count` is M or N. A slab of its rows (columns) is packed at
/// a time; one task packs `chunk` of them.
struct Operand {
  const Tensor& tensor;
  int64_t row_stride, stride;  ///< between stored rows; between matrices of the batch
  bool along_k;                ///< stored rows run along K
  int64_t count, chunk, panel;
  bool in_place;           ///< read without packing
  bool by_blocks = false;  ///< packed by each worker for itself, one block at a time
  /// Its rows or columns; the same rounded up to whole panels; its packed size.
  int64_t slab = 0, pitch = 0, words = 0;
  int64_t items = 1;  ///< number of slabs (of different products of the batch) in memory at a time

  void size_slab(int64_t steps, int64_t max_words) {
    const int64_t limit = std::max(max_words / std::max<int64_t>(steps, 1) / chunk, int64_t{1});
    const int64_t chunks = ceil_div(count, chunk);
    const bool whole = in_place || by_blocks;
    slab = (whole ? chunks : ceil_div(chunks, ceil_div(chunks, limit))) * chunk;
    pitch = whole ? 0 : round_up(std::min(slab, count), panel);
    words = steps * pitch;
  }
};

/// Divides `count` into equal parts of at most `limit`, multiples of `unit`, and returns the size
/// of a part. Each part is `others` tasks; if possible, the number of all tasks is a multiple of
/// `threads`.
int64_t equal_part(int64_t count, int64_t limit, int64_t unit, int64_t others, int threads) {
  int64_t parts = ceil_div(count, limit);
  for (int more = 1; more < threads && parts * others % threads != 0; ++more) ++parts;
  return round_up(ceil_div(count, parts), unit);
}

int64_t blocks_of(const std::vector<KRange>& ranges) {
  int64_t blocks = 0;
  for (const KRange& range : ranges) blocks += range.blocks();
  return blocks;
}

/// The sizes of a call's blocks, slabs and tasks. They follow from the shape, the instruction set
/// and the number of threads. The order of the additions, and so every bit of the result, depends
/// only on the shape: each sum runs along a whole range of K, some steps at a time.
struct Plan {
  const MatmulTable& table;
  const Matmul m;
  int threads;
  bool dots;
  int64_t per_word;
  std::vector<KRange> ranges;  ///< of K
  int64_t steps, k_blocks;     ///< of all ranges
  int64_t most_steps = 0;      ///< of one block
  int64_t group;               ///< products of the batch worked on together
  Operand a, b;
  int64_t worker_columns =
      0;               ///< columns of b that a worker packs at a time; 0: packed once by all
  int64_t sums_words;  ///< per worker, for the levels of the tree and, unless they are kept in c,
                       ///< the sums of a block

  Plan(const MatmulTable& table, const Matmul& args, const Device::Traits& traits)
      : table(table),
        m(canonical(args)),
        threads(matmul_threads(m, traits)),
        dots(is_dots(m)),
        per_word(!dots && table.pairs && m.a.dtype() == DType::bf16 ? 2 : 1),
        ranges(table_ranges()),
        steps(ranges.back().first_step + ranges.back().steps),
        k_blocks(blocks_of(ranges)),
        a{m.a, m.lda,      m.stride_a, !m.transpose_a,
          m.M, block_rows, table.rows, dots || reads_a_in_place()},
        b{m.b, m.ldb,          m.stride_b,    m.transpose_b,
          m.N, shared_columns, table.columns, dots || reads_b_in_place()},
        sums_words((levels_of(m) + (m.c.dtype() == DType::f32 ? 0 : 1)) * sums_of_block) {
    for (const KRange& range : ranges)
      most_steps = std::max(most_steps, std::min(range.steps, range.block_steps));
    a.by_blocks = !a.in_place && m.N <= block_columns && (m.batch == 1 || m.stride_a);
    a.size_slab(steps, slab_words);
    b.size_slab(steps, slab_words);
    const int64_t largest = std::max({int64_t{1}, a.stride ? a.words : 0, b.stride ? b.words : 0});
    group = std::clamp(slab_words / largest, int64_t{1}, m.batch);
    if (a.stride) a.items = group;
    if (b.stride) b.items = group;
    if (b.words > shared_words && !a.by_blocks) {
      const int64_t limit = std::clamp(worker_words / steps / table.columns * table.columns,
                                       min_worker_columns, block_columns);
      worker_columns = equal_part(m.N, limit, table.columns, group, threads);
      b.by_blocks = m.M <= max_rows_by_blocks && levels_of(m) == 0 && m.c.dtype() == DType::f32;
    }
  }

  /// Blocks of K are those of pairs for bf16. A table without pairs multiplies a pair in two steps.
  std::vector<KRange> table_ranges() const {
    const bool has_pairs = !dots && m.a.dtype() == DType::bf16;
    std::vector<KRange> all = ranges_of(m, has_pairs ? 2 : 1, max_steps);
    if (has_pairs && !table.pairs)
      for (KRange& range : all)
        for (int64_t* steps : {&range.first_step, &range.steps, &range.block_steps}) *steps *= 2;
    return all;
  }

  /// The ranges by blocks, as a run multiplies them: as many as K is long, so plans do without.
  std::vector<KRange> ranges_by_blocks() const {
    if (dots) return ranges;
    std::vector<KRange> blocks;
    for (const KRange& range : ranges)
      for (int64_t step = 0; step == 0 || step < range.steps; step += range.block_steps) {
        KRange& block = blocks.emplace_back(range);
        block.k += step * per_word;
        block.first_step += step;
        block.steps = std::min(range.block_steps, range.steps - step);
        block.depth = std::min(block.steps * per_word, range.depth - step * per_word);
        block.begins_group &= step == 0;
        block.ends_group &= step + block.steps == range.steps;
      }
    return blocks;
  }

  /// An operand can be read in place if it is f32, or bf16 with contiguous pairs along K.
  bool reads_a_in_place() const {
    const bool whole_pairs =
        per_word == 2 && !m.transpose_a &&
        std::ranges::all_of(ranges, [](const KRange& range) { return range.depth % 2 == 0; });
    return (!m.transpose_a || is_in_place(m.N, max_columns_in_place, m.lda)) &&
           (m.a.dtype() == DType::f32 || whole_pairs);
  }

  bool reads_b_in_place() const {
    const bool whole_vectors = m.N % (table.columns / 2) == 0;
    return is_in_place(m.M, max_rows_in_place, m.ldb) && m.a.dtype() == DType::f32 &&
           !m.transpose_b && whole_vectors;
  }

  /// The rows of a and the columns of b that each worker packs for itself.
  int64_t rows_words() const { return block_rows * most_steps; }
  int64_t columns_words() const { return worker_columns * (b.by_blocks ? most_steps : steps); }
  int64_t a_words() const { return a.by_blocks ? threads * rows_words() : a.items * a.words; }
  int64_t b_words() const { return worker_columns ? threads * columns_words() : b.items * b.words; }
  int64_t words() const { return a_words() + b_words() + threads * sums_words; }
};

/// The progress of one call: its current products and rows.
struct Run {
  const Plan& plan;
  const std::vector<KRange> blocks;
  float *a_panels, *b_panels, *sums;
  int64_t item = 0, items = 0, row = 0, rows = 0;

  Run(const Plan& plan, Workspace workspace)
      : plan(plan),
        blocks(plan.ranges_by_blocks()),
        a_panels(reinterpret_cast<float*>(workspace.data)),
        b_panels(a_panels + plan.a_words()),
        sums(b_panels + plan.b_words()) {}

  /// Packs `width` rows or columns of an operand from `first` on, for one block of steps.
  void pack(const Operand& o, int64_t which, int64_t first, int64_t width, const KBlock& block,
            float* panels) const {
    const int64_t k = block.k;
    const int64_t element = o.along_k ? first * o.row_stride + k : k * o.row_stride + first;
    plan.table.pack({.source = at(o.tensor, (item + which) * o.stride + element),
                     .dtype = o.tensor.dtype(),
                     .row_stride = o.row_stride,
                     .along_k = o.along_k,
                     .width = width,
                     .depth = block.depth,
                     .panel = o.panel,
                     .panels = panels});
  }

  int64_t packing_tasks(const Operand& o, int64_t extent) const {
    return o.in_place || o.by_blocks
               ? 0
               : std::min(items, o.items) * ceil_div(extent, o.chunk) * plan.k_blocks;
  }

  void pack(const Operand& o, int64_t first, int64_t extent, float* slabs, int64_t task) const {
    const int64_t chunks = ceil_div(extent, o.chunk);
    const KBlock block = block_of(plan.ranges, task % plan.k_blocks, plan.per_word);
    const int64_t offset = task / plan.k_blocks % chunks * o.chunk;
    const int64_t which = task / plan.k_blocks / chunks;
    pack(o, which, first + offset, std::min(o.chunk, extent - offset), block,
         slabs + which * o.words + block.step * o.pitch + offset * block.steps);
  }

  /// The block at `offset` in an operand's slab that begins at `first`.
  MultiplyBlock::Words words(const Operand& o, int64_t first, int64_t which, int64_t offset,
                             const float* slabs) const {
    if (!o.in_place) {
      const float* slab = slabs + (o.stride ? which : 0) * o.words;
      return {.data = reinterpret_cast<const std::byte*>(slab), .first = offset, .pitch = o.pitch};
    }
    constexpr int64_t word = sizeof(float);
    const int64_t row_stride_bytes = o.row_stride * size_of(o.tensor.dtype());
    const int64_t row = (first + offset) * (o.along_k ? o.row_stride : 1);
    return {.data = at(o.tensor, (item + which) * o.stride + row),
            .in_place = true,
            .row_bytes = o.along_k ? row_stride_bytes : word,
            .step_bytes = o.along_k ? word : row_stride_bytes};
  }

  /// The words of one block of K of an operand's block.
  static MultiplyBlock::Words in_range(const Operand& o, MultiplyBlock::Words words,
                                       const KRange& range) {
    const int64_t per_element = (o.along_k ? 1 : o.row_stride) * size_of(o.tensor.dtype());
    words.data += words.in_place ? range.k * per_element
                                 : range.first_step * words.pitch * int64_t{sizeof(float)};
    return words;
  }

  /// Packs rows or columns of one range, which is one block, for a worker itself.
  MultiplyBlock::Words packed(const Operand& o, int64_t which, int64_t first, int64_t width,
                              const KRange& range, float* panels) const {
    pack(o, which, first, width, {range.first_step, range.steps, range.k, range.depth}, panels);
    return {.data = reinterpret_cast<const std::byte*>(panels)};
  }

  /// The block of c at row i of the slab and at column j: all ranges, or one.
  void multiply(int64_t which, int64_t i, int64_t height, int64_t j, int64_t width,
                const MultiplyBlock::Words& b, int worker) const {
    for (const KRange& range : blocks)
      multiply(which, i, height, j, width, in_range(plan.b, b, range), worker, range);
  }
  void multiply(int64_t which, int64_t i, int64_t height, int64_t j, int64_t width,
                const MultiplyBlock::Words& b, int worker, const KRange& range) const {
    const Matmul& m = plan.m;
    const int64_t first = (item + which) * m.stride_c + (row + i) * m.ldc + j;
    std::byte* c = at(m.c, first);
    const bool in_place = m.c.dtype() == DType::f32;
    float* scratch = sums + worker * plan.sums_words;
    float* levels = in_place ? scratch : scratch + sums_of_block;
    const MultiplyBlock::Words a =
        plan.a.by_blocks
            ? packed(plan.a, which, row + i, height, range, a_panels + worker * plan.rows_words())
            : in_range(plan.a, words(plan.a, row, which, i, a_panels), range);
    const bool only_bias = in_place && !plan.dots && m.bias && m.bias.dtype() == DType::f32 &&
                           !m.pre_activation && m.activation == Activation::none;
    const bool is_last = &range == &blocks.back();
    const bool is_root = range.folds == levels_of(m);
    plan.table.multiply(
        {.a = a,
         .b = b,
         .dots = plan.dots,
         .rows = height,
         .columns = width,
         .steps = range.steps,
         .sums = !is_root   ? levels + range.folds * sums_of_block
                 : in_place ? reinterpret_cast<float*>(c)
                            : scratch,
         .sums_row_stride = is_root && in_place ? m.ldc : block_columns,
         .add = m.accumulate || !range.begins_group,
         .folded = levels,
         .folds = range.ends_group ? range.folds : 0,
         .fold_words = sums_of_block,
         .fold_row_stride = block_columns,
         .bias = is_last && only_bias ? m.bias.data<float>() + j : nullptr,
         .finish = is_last && !only_bias &&
                   (!in_place || m.bias || m.pre_activation || m.activation != Activation::none),
         .epilogue = {.dtype = m.a.dtype(),
                      .c_dtype = m.c.dtype(),
                      .c = c,
                      .pre_activation = at(m.pre_activation, first),
                      .c_row_stride = m.ldc,
                      .bias = at(m.bias, j),
                      .activation = m.activation}});
  }

  /// All rows of the slab with some columns of b, which the worker packs for itself.
  void columns(int64_t task, int worker) const {
    const int64_t parts = ceil_div(plan.m.N, plan.worker_columns);
    const int64_t j = task % parts * plan.worker_columns, which = task / parts;
    const int64_t width = std::min(plan.worker_columns, plan.m.N - j);
    const int64_t pitch = round_up(width, plan.b.panel);
    float* panels = b_panels + worker * plan.columns_words();
    const auto each_block = [&](const auto& f) {
      for (int64_t i = 0; i < rows; i += block_rows) f(i, std::min(block_rows, rows - i));
    };
    if (plan.b.by_blocks) {
      for (const KRange& range : blocks) {
        const MultiplyBlock::Words words = packed(plan.b, which, j, width, range, panels);
        each_block([&](int64_t i, int64_t height) {
          multiply(which, i, height, j, width, words, worker, range);
        });
      }
      return;
    }
    for (const KRange& range : blocks)
      packed(plan.b, which, j, width, range, panels + range.first_step * pitch);
    each_block([&](int64_t i, int64_t height) {
      multiply(which, i, height, j, width,
               {.data = reinterpret_cast<const std::byte*>(panels), .pitch = pitch}, worker);
    });
  }

  /// Packs shared operands once, by all workers together. Then tasks multiply blocks of c, or
  /// columns of b.
  void slab() const {
    const bool pack_b = row == 0 && !plan.worker_columns;
    const int64_t b_tasks = pack_b ? packing_tasks(plan.b, plan.m.N) : 0;
    team(plan.threads, b_tasks + packing_tasks(plan.a, rows), [&](int64_t task, int) {
      task < b_tasks ? pack(plan.b, 0, plan.m.N, b_panels, task)
                     : pack(plan.a, row, rows, a_panels, task - b_tasks);
    });
    if (plan.worker_columns)
      return team(plan.threads, items * ceil_div(plan.m.N, plan.worker_columns),
                  [&](int64_t task, int worker) { columns(task, worker); });
    const int64_t width =
        plan.dots ? equal_part(plan.m.N, block_columns, plan.table.columns, items, plan.threads)
                  : block_columns;
    const int64_t across = ceil_div(plan.m.N, width);
    const int64_t height =
        equal_part(rows, block_rows, plan.table.rows, items * across, plan.threads);
    const int64_t down = ceil_div(rows, height);
    team(plan.threads, items * across * down, [&](int64_t task, int worker) {
      const int64_t i = task % down * height, j = task / down % across * width;
      const int64_t which = task / down / across;
      multiply(which, i, std::min(height, rows - i), j, std::min(width, plan.m.N - j),
               words(plan.b, 0, which, j, b_panels), worker);
    });
  }

  void all() {
    for (item = 0; item < plan.m.batch; item += plan.group) {
      items = std::min(plan.group, plan.m.batch - item);
      for (row = 0; row < plan.m.M; row += plan.a.slab) {
        rows = std::min(plan.a.slab, plan.m.M - row);
        slab();
      }
    }
  }
};

/// Null if tile registers cannot be used for this product.
const TileTable* tiles_for(const Matmul& args, const Device::Traits& traits) {
  const TileTable* tiles = args.a.dtype() == DType::bf16 ? tile_table(traits.isa) : nullptr;
  return tiles && !is_dots(canonical(args)) ? tiles : nullptr;
}

const MatmulTable* table_for(const Matmul& m, const Device::Traits& traits) {
  return m.a.dtype() == DType::f64 ? nullptr : &ZG_AT_PRODUCT_LEVEL(traits.isa, matmul_table);
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

std::vector<KRange> ranges_of(const Matmul& m, int64_t per_step, int64_t max_steps) {
  const ReductionGroups whole{.count = 1, .blocks = {{{m.K, m.K}}}};
  const ReductionGroups& groups = m.groups.count ? m.groups : whole;
  std::vector<KRange> ranges;
  for (int64_t group = 0, step = 0; group < groups.count; ++group) {
    int64_t k = 0;
    const size_t first = ranges.size();
    for (const auto& [size, extent] : groups.blocks) {
      const int64_t begin = std::min(group * extent, size);
      const int64_t depth = std::min(extent, size - begin), steps = ceil_div(depth, per_step);
      if (size > 0 || (k == 0 && ranges.size() == first))
        ranges.push_back({.k = k + begin,
                          .depth = depth,
                          .first_step = step,
                          .steps = steps,
                          .block_steps = steps ? ceil_div(steps, ceil_div(steps, max_steps)) : 1,
                          .begins_group = ranges.size() == first,
                          .ends_group = false,
                          .folds = std::countr_one(static_cast<uint64_t>(group))});
      step += steps;
      k += size;
    }
    ranges.back().ends_group = true;
  }
  return ranges;
}

int64_t levels_of(const Matmul& m) {
  return m.groups.count ? std::countr_zero(static_cast<uint64_t>(m.groups.count)) : 0;
}

KBlock block_of(const std::vector<KRange>& ranges, int64_t index, int64_t per_step) {
  auto range = ranges.begin();
  for (; index >= range->blocks(); ++range) index -= range->blocks();
  const int64_t step = index * range->block_steps, k = step * per_step;
  const int64_t steps = std::min(range->block_steps, range->steps - step);
  return {.step = range->first_step + step,
          .steps = steps,
          .k = range->k + k,
          .depth = std::min(steps * per_step, range->depth - k)};
}

int matmul_threads(const Matmul& m, const Device::Traits& traits) {
  // One core does this many multiply-adds, or reads this many elements from memory, in about 15 us.
  constexpr int64_t multiply_adds = int64_t{1} << 21, elements = int64_t{1} << 16;
  const int64_t read = m.batch * m.K * (m.M + m.N);
  const bool few_rows = m.M <= max_rows_of_dots;
  const bool worth_waking =
      m.batch * m.M * m.N * m.K >= multiply_adds || (few_rows && read >= elements);
  return worth_waking ? traits.threads : 1;
}

int64_t workspace_bytes(const Matmul& args, const Device::Traits& traits) {
  const int64_t sums =
      args.row_sums ? kernels::reduce[Device::Type::cpu].workspace_bytes(reduce_rows(args), traits)
                    : 0;
  if (args.M == 0 || args.N == 0) return sums;
  if (tiles_for(args, traits)) return std::max(sums, tile_matmul_workspace_bytes(args, traits));
  const MatmulTable* table = table_for(args, traits);
  if (!table) return std::max(sums, matmul_reference_workspace_bytes(args, traits));
  return std::max(sums, Plan(*table, args, traits).words() * static_cast<int64_t>(sizeof(float)));
}

void matmul(const Matmul& args, Workspace workspace, Stream& stream) {
  if (args.row_sums)
    kernels::reduce[Device::Type::cpu].function(reduce_rows(args), workspace, stream);
  if (args.M == 0 || args.N == 0) return;
  if (const TileTable* tiles = tiles_for(args, stream.traits()))
    return tile_matmul(*tiles, args, workspace, stream.traits());
  const MatmulTable* table = table_for(args, stream.traits());
  if (!table) return matmul_reference(args, workspace, stream);
  const Plan plan(*table, args, stream.traits());
  Run(plan, workspace).all();
}

}  // namespace zg::cpu
