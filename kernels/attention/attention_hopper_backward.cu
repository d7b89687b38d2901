#include "zerograd/kernels/attention/attention_hopper.cuh"

// The backward pass on sm_90a. Two kernels, as in attention_mma_backward.cu, whose formulas these
// compute: backward_queries computes dq and D for 128 queries, then backward_keys computes dk and
// dv for 128 keys, from the query heads that read them, in rising heads. Every gradient is the sum
// of one warpgroup in a fixed order, so it has the same bits in every run.
//
// In both, a warpgroup has 64 resident rows R1 and R2 in shared memory, which it reads to registers
// once if they have 64 columns, and the streamed rows X1 and X2 pass in steps:
//                       R1  R2    X1  X2    sums
//   backward_queries    q   dout  k   v     dq += dS k
//   backward_keys       k   v     q   dout  dk += dS^T q, dv += P^T dout
// The products R1 X1^T (scores) and R2 X2^T of a step have their accumulators where the sums need
// an operand, so P and dS stay in registers. The exponentials run while R2 X2^T is computed. The
// sums of a step run at the same time as the scores of the next step or of the other warpgroup.
//
// The two kernels compute seven products. One kernel for all gradients (Shah et al. 2024,
// arXiv:2407.08608) would compute five: it iterates over keys and adds to dq in device memory. It
// has these disadvantages. To add in a fixed order, its blocks wait for one another. dq in f32
// needs scratch of twice its size, which is read and written once for each block of keys (450 MB
// for GPT-2's 16 x 12 heads of 1024 x 64, compared with 125 MB here), filled with zeros before, and
// rounded by a third kernel. dS passes through shared memory, which then limits the speed for heads
// of 64. The two additional products cost 2/7 of the time if everything else is hidden; published
// speeds of deterministic kernels with five products are lower by more than that.
namespace zg::cuda {
namespace {

constexpr int stages = 3, box_rows = 64;

enum class Pass { queries, keys };

/// Where the steps of a streamed head lie for the rows of a warp. In shared memory, because the
/// sums of 128 columns leave no registers for it.
struct HeadTerms {
  Mask mask;         ///< of step `first`
  int first;         ///< counted over heads and tiles
  float slope;       ///< ALiBi slope divided by the scale
  int64_t distance;  ///< ALiBi: of the first pair of step `first`
};

/// Addresses in shared memory: resident R1 and R2 of each consumer, `stages` buffers of X1 and X2,
/// then of numbers for each streamed row, the mbarriers, the
/// plan, then the terms of each consuming warp.
template <int width, int step>
struct SharedLayout {
  static constexpr int resident_bytes = matrix_bytes<width>(rows_per_consumer),
                       streamed_bytes = matrix_bytes<width>(step),
                       statistics_bytes = 2 * step * static_cast<int>(sizeof(float)),
                       barrier_bytes = 8;
  static constexpr int streamed = 2 * hopper_consumers * resident_bytes;
  static constexpr int statistics = streamed + stages * 2 * streamed_bytes;
  static constexpr int barriers = statistics + stages * statistics_bytes;
  static constexpr int plan_begin = barriers + barrier_bytes * (2 + 2 * stages);
  static constexpr size_t terms_begin = plan_begin + sizeof(Plan);
  static constexpr size_t bytes = terms_begin + consumer_warps * sizeof(HeadTerms);
  SharedAddress start;
  __device__ SharedAddress resident(int which, int consumer) const {
    return start + (which * hopper_consumers + consumer) * resident_bytes;
  }
  __device__ SharedAddress row_block(int which, int stage) const {
    return start + streamed + (stage * 2 + which) * streamed_bytes;
  }
  /// log_sums of the streamed rows, then their D.
  __device__ float* row_numbers(int stage) const {
    return dynamic_shared<float>() + (statistics + stage * statistics_bytes) / sizeof(float);
  }
  __device__ SharedAddress barrier(int i) const { return start + (barriers + barrier_bytes * i); }
  __device__ SharedAddress resident_full() const { return barrier(0); }
  __device__ SharedAddress full(int stage) const { return barrier(1 + stage); }
  __device__ SharedAddress empty(int stage) const { return barrier(1 + stages + stage); }
  __device__ SharedAddress resident_empty() const { return barrier(1 + 2 * stages); }
  __device__ Plan& plan() const {
    return *reinterpret_cast<Plan*>(dynamic_shared<std::byte>() + plan_begin);
  }
  __device__ HeadTerms& terms() const {
    const int warp = (static_cast<int>(threadIdx.x) - warpgroup_threads) / lanes;
    return reinterpret_cast<HeadTerms*>(dynamic_shared<std::byte>() + terms_begin)[warp];
  }
};

struct TensorMaps {
  CUtensorMap r1, r2, x1, x2;
};

#if ZG_HOPPER

/// The end of the streamed rows of a tile: of its document, or of all.
template <Pass pass>
__device__ inline int64_t streamed_end(const AttentionCall& a, const DocumentRows& tile) {
  return a.starts ? tile.end : pass == Pass::queries ? a.shape.keys : a.shape.T;
}

/// The steps of streamed rows that `count` resident rows of a tile need, from `row` on.
template <Pass pass>
__device__ inline Steps steps_of(const AttentionCall& a, const Plan& plan, const DocumentRows& tile,
                                 int64_t row, int count, int step) {
  const VisibleKeys keys(a, plan.head, tile);
  const int64_t end = min(row + count, tile.end);
  if constexpr (pass == Pass::queries) return key_steps(keys, row, end, step);
  const int64_t first = keys.first_query_step(row, step);
  return {first, row < end ? keys.query_end(row, end, streamed_end<pass>(a, tile)) : first, step};
}

template <Pass pass>
__device__ inline void make_plan(const AttentionCall& a, const HeadBlock& head, int step,
                                 Plan& plan) {
  constexpr bool queries = pass == Pass::queries;
  const AttentionShape& s = a.shape;
  plan.index = blockIdx.x;
  plan.head = head;
  plan.first_head = queries ? head.h / s.group() : head.h * s.group();
  plan.heads = queries ? 1 : s.group();
  plan.tiles = 0;
  for (ResidentRows rows(a, head, hopper_block_rows, queries ? s.T : s.keys); rows.next();)
    plan.tile[plan.tiles++] = {rows,
                               steps_of<pass>(a, plan, rows, rows.begin, hopper_block_rows, step)};
}

/// Loads the resident rows of each tile, then the streamed rows of each step as soon as a buffer is
/// empty. One warp runs this. It returns after all buffers have been read. So it waits, too, if a
/// copy is lost and the consumers wait for ever, and then it reports this.
template <Pass pass, int width, int step>
__device__ inline void load_all(const AttentionCall& a, const SharedLayout<width, step>& shared,
                                const TensorMaps& maps, Fault* fault) {
  using Layout = SharedLayout<width, step>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const Plan& plan = shared.plan();
  const auto wait = [&](SharedAddress barrier, int phase) {
    wait_for_phase(barrier, static_cast<unsigned>(phase % 2),
                   [&] { report(fault, FaultSite::attention_backward_copies, plan.index, 0, 0); });
  };
  // Steps are counted over all tiles. At step `at` the consumers release the buffer of the step
  // before it.
  const auto wait_for_release = [&](int at) {
    if (lane == 0 && at >= 0) wait(shared.empty((at + stages - 1) % stages), at / stages);
  };
  int i = 0;
  for (int tiles = 0; tiles < plan.tiles; ++tiles) {
    const Tile& tile = plan.tile[tiles];
    if (lane == 0) wait(shared.resident_empty(), tiles + 1);  // does not wait before the first tile
    if (lane == 0) {
      arrive_expecting(shared.resident_full(), 2 * hopper_consumers * Layout::resident_bytes);
      for (int consumer = 0; consumer < hopper_consumers; ++consumer) {
        const int first = static_cast<int>(tile.rows.begin) + consumer * rows_per_consumer;
        load_matrix<width, rows_per_consumer, box_rows>(plan.head, shared.resident(0, consumer),
                                                        maps.r1, first, shared.resident_full());
        load_matrix<width, rows_per_consumer, box_rows>(plan.head, shared.resident(1, consumer),
                                                        maps.r2, first, shared.resident_full());
      }
    }
    for (int h = 0; h < static_cast<int>(plan.heads); ++h) {
      const HeadBlock streamed = plan.head.with_head(plan.first_head + h);
      int row = static_cast<int>(tile.steps.begin);
      for (; row < tile.steps.begin + tile.steps.count * step; row += step, ++i) {
        const int stage = i % stages;
        wait_for_release(i - (stages - 1));
        const SharedAddress full = shared.full(stage);
        if (lane == 0) {
          arrive_expecting(full, 2 * Layout::streamed_bytes);
          load_matrix<width, step, box_rows>(streamed, shared.row_block(0, stage), maps.x1, row,
                                             full);
          load_matrix<width, step, box_rows>(streamed, shared.row_block(1, stage), maps.x2, row,
                                             full);
        }
        if constexpr (pass == Pass::keys) {
          __syncwarp();  // lane 0 has waited
          const int64_t limit = streamed_end<pass>(a, tile.rows);
          float* const to = shared.row_numbers(stage);
          for (int n = lane; n < step; n += lanes) {
            to[n] = log_sum_of(a, streamed, row + n, limit);
            to[step + n] = row + n < limit ? a.row_dots[row_index(a, streamed, row + n)] : 0.0f;
          }
          __syncwarp();
          if (lane == 0) arrive(full);
        }
      }
    }
  }
  for (int at = i - (stages - 1); at <= i; ++at) wait_for_release(at);
}

/// The computation of one warpgroup, 128 threads, for its 64 resident rows of a tile.
template <Pass pass, class T, int width, int step, Extras extras>
struct Consumer {
  static constexpr bool by_keys = pass == Pass::keys;
  const AttentionCall& a;
  SharedLayout<width, step> shared;
  const Tile& tile;                    ///< in shared memory
  int index;                           ///< 0 or 1 among the consumers
  int warp_row;                        ///< the first resident row of this warp within the tile
  float log_sum[2] = {}, dot[2] = {};  ///< Pass::queries: of this lane's two rows
  Accumulators<1, width> sums = {}, value_sums = {};  ///< dq; or dk and dv
  Accumulators<1, step> products = {}, dproducts = {};
  /// dk and dv of 128 columns leave too few registers to compute the next scores at the same time.
  /// While this consumer waits for its sums, the products of the other consumer run.
  static constexpr bool waits_for_sums = by_keys && width > 64;
  uint32_t weights[step / 16][4], dscores[step / 16][4];  ///< P and dS, rounded to T
  /// Operands R1 and R2 of 64 columns fit in registers; then a product reads half as many bytes of
  /// shared memory.
  static constexpr bool keeps_resident = width == 64;
  uint32_t resident[2][keeps_resident ? width / 16 : 1][4];

  /// Loads this warp's 16 of the resident rows.
  __device__ void load_resident() {
    if constexpr (keeps_resident)
#pragma unroll
      for (int which = 0; which < 2; ++which)
#pragma unroll
        for (int k = 0; k < width / 16; ++k)
          load_a<width>(resident[which][k], shared.resident(which, index),
                        warp_row % rows_per_consumer, k);
  }

  /// Adds the rows of streamed head h, in steps from i on, which are counted over heads and tiles.
  /// In the steps that it passes over, all pairs are hidden. Returns the step after them.
  __device__ int add(int i, int64_t h) {
    const Plan& plan = shared.plan();
    const VisibleKeys keys(a, plan.head, tile.rows);
    const int64_t row = tile.rows.begin + warp_row;
    const Steps own = steps_of<pass>(
        a, plan, tile.rows, tile.rows.begin + index * rows_per_consumer, rows_per_consumer, step);
    const int first = i + tile.first_step(own, step), last = first + own.count;
    __syncwarp();
    if (threadIdx.x % lanes == 0)
      shared.terms() = {by_keys ? Mask(keys, streamed_end<pass>(a, tile.rows), own.begin, row)
                                : Mask(keys, tile.rows.end, row, own.begin),
                        first,
                        slope_of_products<extras>(a, by_keys ? plan.head.with_head(h) : plan.head),
                        own.begin - row + (by_keys ? a.shape.offset : -a.shape.offset)};
    __syncwarp();
    int passed = i;
    for (; passed < first; ++passed) pass_over(passed);
    for (; passed < last; ++passed) compute(passed);
    finish_sums();
    const int end = i + tile.steps.count;
    for (; passed < end; ++passed) pass_over(passed);
    return end;
  }

  __device__ void write() {
    sums.scale(a.shape.scale);
    if constexpr (by_keys) {
      write(a.dk, a.shape.k, sums);
      write(a.dv, a.shape.v, value_sums);
    } else {
      write(a.dq, a.shape.q, sums);
    }
  }

  __device__ void finish_sums() {
    wait_for_products<0>();
    fence_registers(sums.values[0]);
    if constexpr (by_keys) fence_registers(value_sums.values[0]);
  }

  __device__ void write(void* to, const HeadLayout& layout, const Accumulators<1, width>& values) {
    write_rows<width>(head_data<T>(to, layout, shared.plan().head), layout.token,
                      tile.rows.begin + warp_row, tile.rows.end, static_cast<int>(a.shape.D),
                      values);
  }

  /// The `empty` mbarrier of the buffer of step i - 1. Before step 0 that is a buffer that has not
  /// been used; the loading warp waits for this release before it uses the buffer first.
  __device__ SharedAddress before(int i) const { return shared.empty((i + stages - 1) % stages); }
  __device__ void wait_for_step(int i) { wait_for_phase(shared.full(i % stages), i / stages % 2); }
  __device__ void pass_over(int i) {
    wait_for_step(i);
    release(before(i));
  }

  __device__ void compute(int i) {
    const int stage = i % stages;
    wait_for_step(i);
    start_products(products, 0, stage);
    start_products(dproducts, 1, stage);
    wait_for_products<1>();  // the products and, before them, the sums of the last step
    fence_registers(products.values[0]);
    compute_weights(i);
    pack_operand<T>(weights, products);
    release_after_weights(before(i));
    wait_for_products<0>();
    fence_registers(dproducts.values[0]);
    if constexpr (by_keys) start_sums(value_sums, weights, shared.row_block(1, stage));
    differentiate(stage);
    pack_operand<T>(dscores, dproducts);
    start_sums(sums, dscores, shared.row_block(0, stage));
    if constexpr (waits_for_sums) finish_sums();
  }

  /// Starts `to` = R X^T, with R1 and X1 (which = 0) or R2 and X2 (1).
  __device__ void start_products(Accumulators<1, step>& to, int which, int stage) {
    if constexpr (keeps_resident)
      begin_products(to.values[0], resident[which]);
    else
      begin_products(to.values[0]);
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      const int panel = k / 4, column = k % 4 * 32;  // byte offset of column 16 k in its panel
      const uint64_t b = matrix_descriptor(shared.row_block(which, stage) +
                                           (panel * step * panel_row_bytes + column));
      if constexpr (keeps_resident)
        multiply_warpgroup<T>(to.values[0], resident[which][k], b, /*accumulate=*/k > 0);
      else
        multiply_warpgroup<T>(
            to.values[0],
            matrix_descriptor(shared.resident(which, index) +
                              (panel * rows_per_consumer * panel_row_bytes + column)),
            b, /*accumulate=*/k > 0);
    }
    commit_products();
  }

  /// Starts `to` += F X for the factors F.
  __device__ void start_sums(Accumulators<1, width>& to, uint32_t (&factors)[step / 16][4],
                             SharedAddress streamed) {
    begin_products(to.values[0], factors);
#pragma unroll
    for (int k = 0; k < step / 16; ++k)
      multiply_warpgroup<T>(
          to.values[0], factors[k],
          matrix_descriptor(streamed + k * 16 * panel_row_bytes, step * panel_row_bytes));
    commit_products();
  }

  /// Turns the products of step i into weights P.
  __device__ void compute_weights(int i) {
    const HeadTerms& terms = shared.terms();
    const int rows = (i - terms.first) * step;
    Mask mask = terms.mask;
    by_keys ? mask.skip_queries(rows) : mask.skip_keys(rows);
    if constexpr (extras == Extras::alibi)  // by_keys: rows are keys and columns are queries
      add_alibi(products, by_keys ? -terms.slope : terms.slope, terms.distance + rows);
    if (by_keys ? mask.hides_some(step, 16) : mask.hides_some(16, step))
      products.for_each([&](int, int n, int e) {
        const int resident = accumulator_row(0, e), other = accumulator_column(n, e);
        if (by_keys ? mask.hides(other, resident) : mask.hides(resident, other))
          products.values[0][n][e] = -INFINITY;
      });
    const float factor = a.shape.scale * log2_e;
#pragma unroll
    for (int n = 0; n < step / 8; ++n) {
      float numbers[2] = {log_sum[0], log_sum[1]};
      if constexpr (by_keys) load_pair(numbers, i % stages, n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = products.values[0][n][e];
        x = exp2_fast(__fmaf_rn(x, factor, -numbers[by_keys ? e % 2 : e / 2]));
      }
    }
  }

  /// Replaces dproducts by dS = P (dproducts - D).
  __device__ void differentiate(int stage) {
#pragma unroll
    for (int n = 0; n < step / 8; ++n) {
      float numbers[2] = {dot[0], dot[1]};
      if constexpr (by_keys) load_pair(numbers, stage, n + step / 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = dproducts.values[0][n][e];
        x = products.values[0][n][e] * (x - numbers[by_keys ? e % 2 : e / 2]);
      }
    }
  }

  /// The numbers of the two streamed rows whose column n this lane has.
  __device__ void load_pair(float (&to)[2], int stage, int n) {
    const auto pair = *reinterpret_cast<const Vec<float, 2>*>(shared.row_numbers(stage) +
                                                              accumulator_column(n, 0));
    to[0] = pair.v[0];
    to[1] = pair.v[1];
  }

  /// Releases a buffer after the weights are computed. The arrival depends on all of them, and the
  /// wait for products stays behind the arrival. Without this dependence the compiler moves the
  /// wait before the exponentials, because it does not know that the wait takes time. The condition
  /// is always true: weights are not below 0, so no sign bit is set. tests/long/cuda-static tests
  /// the machine code.
  __device__ void release_after_weights(SharedAddress empty) {
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < step / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) bits |= weights[k][i];
    release(empty, /*always=*/bits != 0x80000000);
  }
};

template <Pass pass, class T, int width, int step, Extras extras>
__device__ inline void backward(const AttentionCall& a, int64_t blocks_per_head,
                                const TensorMaps& maps, Fault* fault) {
  const AttentionShape& s = a.shape;
  HeadBlock head(pass == Pass::queries ? s.H : s.key_heads(), blocks_per_head);
  // With a causal mask later queries see more keys: blocks with the most work start first.
  if (pass == Pass::queries && s.causal) head.block = blocks_per_head - 1 - head.block;
  const SharedLayout<width, step> shared{dynamic_address()};
  if (threadIdx.x == 0) {
    init_barrier(shared.resident_full(), 1);
    init_barrier(shared.resident_empty(), consumer_warps);
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(shared.full(stage), pass == Pass::keys ? 2 : 1);
      init_barrier(shared.empty(stage), consumer_warps);
    }
    fence_barrier_init();
    make_plan<pass>(a, head, step, shared.plan());
  }
  __syncthreads();
  // 128 * 24 + 256 * 240 = 128 * 40 + 256 * 232 = 64512 registers, the 384 * 168 of the launch. The
  // sums of 128 columns need the 240.
  constexpr bool wide = width > 64;
  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  if (warpgroup == 0) {
    decrease_registers<wide ? 24 : 40>();
    if (threadIdx.x < lanes) load_all<pass>(a, shared, maps, fault);
    return;
  }
  increase_registers<wide ? 240 : 232>();
  const int index = warpgroup - 1;
  const int warp_row =
      index * rows_per_consumer + static_cast<int>(threadIdx.x) % warpgroup_threads / lanes * 16;
  const Plan& plan = shared.plan();
  int i = 0;
  for (int tiles = 0; tiles < plan.tiles; ++tiles) {
    const Tile& tile = plan.tile[tiles];
    Consumer<pass, T, width, step, extras> consumer{
        .a = a, .shared = shared, .tile = tile, .index = index, .warp_row = warp_row};
    if constexpr (pass == Pass::queries)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t t = tile.rows.begin + warp_row + accumulator_row(0, 2 * half);
        consumer.dot[half] = dot_row<T>(a, plan.head, t, tile.rows.end);
        consumer.log_sum[half] = log_sum_of(a, plan.head, t, tile.rows.end);
      }
    wait_for_phase(shared.resident_full(), tiles % 2);
    consumer.load_resident();
    for (int h = 0; h < static_cast<int>(plan.heads); ++h) i = consumer.add(i, plan.first_head + h);
    release(shared.resident_empty());
    consumer.write();
  }
  release(shared.empty((i + stages - 1) % stages));
}

#endif

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(hopper_threads, 1)
    backward_queries(AttentionCall a, int64_t blocks_per_head,
                     const __grid_constant__ TensorMaps maps, Fault* fault) {
#if ZG_HOPPER
  backward<Pass::queries, T, width, step, extras>(a, blocks_per_head, maps, fault);
#endif
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(hopper_threads, 1)
    backward_keys(AttentionCall a, int64_t blocks_per_head, const __grid_constant__ TensorMaps maps,
                  Fault* fault) {
#if ZG_HOPPER
  backward<Pass::keys, T, width, step, extras>(a, blocks_per_head, maps, fault);
#endif
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  constexpr int keys = 64, queries = 64;  // of a step
  const AttentionShape& s = call.shape;
  const auto map_of = [&](const void* data, const HeadLayout& layout, int64_t heads,
                          int64_t tokens) {
    return tensor_map("attention_backward", data, layout, s, heads, tokens, box_rows, stream);
  };
  const CUtensorMap q = map_of(call.q, s.q, s.H, s.T), dout = map_of(call.dout, s.out, s.H, s.T),
                    k = map_of(call.k, s.k, s.key_heads(), s.keys),
                    v = map_of(call.v, s.v, s.key_heads(), s.keys);
  const auto start = [&](const Work& work, auto kernel, int64_t heads, int64_t tokens,
                         size_t shared, const TensorMaps& maps) {
    const int64_t blocks_per_head = (tokens + hopper_block_rows - 1) / hopper_block_rows;
    launch(work, kernel,
           {blocks_for(s.B * heads * blocks_per_head, 1), dim3(hopper_threads), shared,
            hopper_registers},
           stream, call, blocks_per_head, maps, fault_place(stream));
  };
  start(backward_queries_work("hopper_backward_queries", dtype_of<T>, call),
        backward_queries<T, width, keys, extras>, s.H, s.T, SharedLayout<width, keys>::bytes,
        {q, dout, k, v});
  start(backward_keys_work("hopper_backward_keys", dtype_of<T>, call),
        backward_keys<T, width, queries, extras>, s.key_heads(), s.keys,
        SharedLayout<width, queries>::bytes, {k, v, q, dout});
}

}  // namespace

void hopper_attention_backward(DType dtype, const AttentionCall& call, Stream& stream) {
  if (call.shape.B == 0 || call.shape.H == 0) return;
  with_hopper_instance(dtype, call, [&](auto value, auto width, auto extras) {
    run<decltype(value), decltype(width)::value, decltype(extras)::value>(call, stream);
  });
}

}  // namespace zg::cuda
