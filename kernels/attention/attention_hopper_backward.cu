#include "zerograd/kernels/attention/attention_hopper.cuh"

// The backward pass on sm_90a. Two kernels, as in attention_mma_backward.cu, whose formulas these
// compute: backward_queries computes dq and D for 128 queries, then backward_keys computes dk and
// dv for 128 keys. Every gradient is the sum of one warpgroup in a fixed order, so it has the same
// bits in every run.
//
// In both, a warpgroup has 64 resident rows R1 and R2 in shared memory, and the streamed rows X1
// and X2 pass in steps:
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

/// Addresses in shared memory: resident R1 and R2 of each consumer, `stages` buffers of X1 and X2,
/// then of numbers for each streamed row, then the mbarriers.
template <int width, int step>
struct SharedLayout {
  static constexpr int resident_bytes = matrix_bytes<width>(rows_per_consumer),
                       streamed_bytes = matrix_bytes<width>(step),
                       statistics_bytes = 2 * step * static_cast<int>(sizeof(float)),
                       barrier_bytes = 8;
  static constexpr int streamed = 2 * hopper_consumers * resident_bytes;
  static constexpr int statistics = streamed + stages * 2 * streamed_bytes;
  static constexpr int barriers = statistics + stages * statistics_bytes;
  static constexpr size_t bytes = barriers + barrier_bytes * (1 + 2 * stages);
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
};

struct TensorMaps {
  CUtensorMap r1, r2, x1, x2;
};

/// The steps of a block: `count` steps of streamed rows from `begin` on.
struct Steps {
  int64_t begin;
  int count;
};

#if ZG_HOPPER

/// Loads the resident rows, then the streamed rows of each step as soon as a buffer is empty. One
/// warp runs this. It returns after all buffers have been read. So it waits, too, if a copy is lost
/// and the consumers wait for ever, and then it reports this.
template <Pass pass, int width, int step>
__device__ inline void load_all(const AttentionCall& a, const SharedLayout<width, step>& shared,
                                const HeadBlock& head, const TensorMaps& maps, const Steps& steps,
                                Fault* fault) {
  using Layout = SharedLayout<width, step>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  if (lane == 0) {
    const int row = static_cast<int>(head.block) * hopper_block_rows;
    arrive_expecting(shared.resident_full(), 2 * hopper_consumers * Layout::resident_bytes);
    for (int i = 0; i < hopper_consumers; ++i) {
      const int first = row + i * rows_per_consumer;
      load_matrix<width, rows_per_consumer, box_rows>(head, shared.resident(0, i), maps.r1, first,
                                                      shared.resident_full());
      load_matrix<width, rows_per_consumer, box_rows>(head, shared.resident(1, i), maps.r2, first,
                                                      shared.resident_full());
    }
  }
  // At step i the consumers release the buffer of step i - 1.
  for (int i = 0; i < steps.count + stages; ++i) {
    const int stage = i % stages, releasing = i - (stages - 1);
    if (lane == 0 && releasing >= 0)
      wait_for_phase(shared.empty(stage), releasing / stages % 2, [&] {
        report(fault, FaultSite::attention_backward_copies, blockIdx.x, 0, 0);
      });
    if (i >= steps.count) continue;
    const int64_t row = steps.begin + int64_t{i} * step;
    if (lane == 0) {
      const SharedAddress full = shared.full(stage);
      arrive_expecting(full, 2 * Layout::streamed_bytes);
      load_matrix<width, step, box_rows>(head, shared.row_block(0, stage), maps.x1,
                                         static_cast<int>(row), full);
      load_matrix<width, step, box_rows>(head, shared.row_block(1, stage), maps.x2,
                                         static_cast<int>(row), full);
    }
    if constexpr (pass == Pass::keys) {
      __syncwarp();  // lane 0 has waited
      float* const to = shared.row_numbers(stage);
      for (int n = lane; n < step; n += lanes) {
        const int64_t t = row + n;
        to[n] = log_sum_of(a, head, t, a.shape.T);
        to[step + n] = t < a.shape.T ? a.row_dots[row_index(a, head, t)] : 0.0f;
      }
      __syncwarp();
      if (lane == 0) arrive(shared.full(stage));
    }
  }
}

/// The computation of one warpgroup, 128 threads, for its 64 resident rows.
template <Pass pass, class T, int width, int step, Extras extras>
struct Consumer {
  const AttentionCall& a;
  const HeadBlock& head;
  SharedLayout<width, step> shared;
  Steps steps;
  int index;  ///< 0 or 1 among the consumers
  /// It computes steps [first, last) of the block. In the other steps all of its pairs are hidden.
  int first, last;
  int64_t row;               ///< the first resident row of this warp
  float slope;               ///< ALiBi slope divided by the scale
  float log_sum[2], dot[2];  ///< Pass::queries: of this lane's two rows
  Accumulators<1, step> products, dproducts;
  Accumulators<1, width> sums = {}, value_sums = {};  ///< dq; or dk and dv
  /// dk and dv of 128 columns leave too few registers to compute the next scores at the same time.
  /// While this consumer waits for its sums, the products of the other consumer run.
  static constexpr bool waits_for_sums = pass == Pass::keys && width > 64;
  uint32_t weights[step / 16][4], dscores[step / 16][4];  ///< P and dS, rounded to T

  __device__ void run() {
    wait_for_phase(shared.resident_full(), 0);
    int i = 0;
    for (; i < first; ++i) pass_over(i);
    for (; i < last; ++i) compute(i);
    finish_sums();
    for (; i < steps.count; ++i) pass_over(i);
    release(before(i));
    sums.scale(a.shape.scale);
    if constexpr (pass == Pass::queries) {
      write(a.dq, a.shape.q, a.shape.T, sums);
    } else {
      write(a.dk, a.shape.k, a.shape.keys, sums);
      write(a.dv, a.shape.v, a.shape.keys, value_sums);
    }
  }

  __device__ void finish_sums() {
    wait_for_products<0>();
    fence_registers(sums.values[0]);
    if constexpr (pass == Pass::keys) fence_registers(value_sums.values[0]);
  }

  __device__ void write(void* to, const HeadLayout& layout, int64_t tokens,
                        const Accumulators<1, width>& values) {
    write_rows<width>(head_data<T>(to, layout, head), layout.token, row, tokens,
                      static_cast<int>(a.shape.D), values);
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
    if constexpr (pass == Pass::keys) start_sums(value_sums, weights, shared.row_block(1, stage));
    differentiate(stage);
    pack_operand<T>(dscores, dproducts);
    start_sums(sums, dscores, shared.row_block(0, stage));
    if constexpr (waits_for_sums) finish_sums();
  }

  /// Starts `to` = R X^T, with R1 and X1 (which = 0) or R2 and X2 (1).
  __device__ void start_products(Accumulators<1, step>& to, int which, int stage) {
    begin_products(to.values[0]);
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      const int panel = k / 4, column = k % 4 * 32;  // byte offset of column 16 k in its panel
      multiply_warpgroup<T>(
          to.values[0],
          matrix_descriptor(shared.resident(which, index) +
                            (panel * rows_per_consumer * panel_row_bytes + column)),
          matrix_descriptor(shared.row_block(which, stage) +
                            (panel * step * panel_row_bytes + column)),
          /*accumulate=*/k > 0);
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
    const int64_t streamed = steps.begin + int64_t{i} * step;
    constexpr bool by_keys = pass == Pass::keys;
    if constexpr (extras == Extras::alibi)  // by_keys: rows are keys and columns are queries
      add_alibi(products, by_keys ? -slope : slope,
                by_keys ? streamed + a.shape.offset - row : streamed - (row + a.shape.offset));
    const Mask mask = by_keys ? Mask(a.shape, streamed, row) : Mask(a.shape, row, streamed);
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
    constexpr bool by_keys = pass == Pass::keys;
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

/// Finds the steps of the block, [first, last), that the 64 rows of a consumer need.
template <Pass pass>
__device__ inline void consumer_steps(const AttentionShape& s, const Steps& steps, int step,
                                      int64_t row, int& first, int& last) {
  first = 0;
  last = steps.count;
  if constexpr (pass == Pass::queries) {
    const int64_t end = row < s.T ? visible_keys(s, min(row + rows_per_consumer, s.T) - 1) : 0;
    last = static_cast<int>((end + step - 1) / step);
  } else {
    const int64_t query = s.causal ? max(row - s.offset, int64_t{0}) : 0;
    first =
        row < s.keys ? static_cast<int>(min((query - steps.begin) / step, int64_t{last})) : last;
  }
}

template <Pass pass, class T, int width, int step, Extras extras>
__device__ inline void backward(const AttentionCall& a, int64_t blocks_per_head,
                                const TensorMaps& maps, Fault* fault) {
  const AttentionShape& s = a.shape;
  HeadBlock head(s, blocks_per_head);
  // With a causal mask later queries see more keys: blocks with the most work start first.
  if (pass == Pass::queries && s.causal) head.block = blocks_per_head - 1 - head.block;
  const SharedLayout<width, step> shared{dynamic_address()};
  const int64_t row = head.block * hopper_block_rows;
  Steps steps = {0, 0};
  int64_t end;
  if constexpr (pass == Pass::queries) {
    end = visible_keys(s, min(row + hopper_block_rows, s.T) - 1);
  } else {
    if (s.causal) steps.begin = max(row - s.offset, int64_t{0}) / step * step;
    end = s.T;
  }
  steps.count = static_cast<int>(max(end - steps.begin + step - 1, int64_t{0}) / step);
  if (threadIdx.x == 0) {
    init_barrier(shared.resident_full(), 1);
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(shared.full(stage), pass == Pass::keys ? 2 : 1);
      init_barrier(shared.empty(stage), consumer_warps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  // 128 * 24 + 256 * 240 = 64512 registers, the 384 * 168 of the launch.
  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  if (warpgroup == 0) {
    decrease_registers<24>();
    if (threadIdx.x < lanes) load_all<pass>(a, shared, head, maps, steps, fault);
    return;
  }
  increase_registers<240>();
  const int index = warpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / lanes;
  Consumer<pass, T, width, step, extras> consumer{
      .a = a,
      .head = head,
      .shared = shared,
      .steps = steps,
      .index = index,
      .row = row + index * rows_per_consumer + warp * 16,
      .slope = slope_of_products<extras>(a, head)};
  consumer_steps<pass>(s, steps, step, row + index * rows_per_consumer, consumer.first,
                       consumer.last);
  if constexpr (pass == Pass::queries)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t t = consumer.row + accumulator_row(0, 2 * half);
      consumer.dot[half] = dot_row<T>(a, head, t, s.T);
      consumer.log_sum[half] = log_sum_of(a, head, t, s.T);
    }
  consumer.run();
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
  const auto map_of = [&](const void* data, const HeadLayout& layout, int64_t tokens) {
    return tensor_map("attention_backward", data, layout, s, tokens, box_rows, stream);
  };
  const CUtensorMap q = map_of(call.q, s.q, s.T), dout = map_of(call.dout, s.out, s.T),
                    k = map_of(call.k, s.k, s.keys), v = map_of(call.v, s.v, s.keys);
  const auto start = [&](const Work& work, auto kernel, int64_t tokens, size_t shared,
                         const TensorMaps& maps) {
    const int64_t blocks_per_head = (tokens + hopper_block_rows - 1) / hopper_block_rows;
    launch(work, kernel,
           {blocks_for(s.B * s.H * blocks_per_head, 1), dim3(hopper_threads), shared,
            hopper_registers},
           stream, call, blocks_per_head, maps, fault_place(stream));
  };
  start(backward_queries_work("hopper_backward_queries", dtype_of<T>, call),
        backward_queries<T, width, keys, extras>, s.T, SharedLayout<width, keys>::bytes,
        {q, dout, k, v});
  start(backward_keys_work("hopper_backward_keys", dtype_of<T>, call),
        backward_keys<T, width, queries, extras>, s.keys, SharedLayout<width, queries>::bytes,
        {k, v, q, dout});
}

}  // namespace

void hopper_attention_backward(DType dtype, const AttentionCall& call, Stream& stream) {
  if (call.shape.B == 0 || call.shape.H == 0) return;
  with_hopper_instance(dtype, call, [&](auto value, auto width, auto extras) {
    run<decltype(value), decltype(width)::value, decltype(extras)::value>(call, stream);
  });
}

}  // namespace zg::cuda
