#include "zerograd/kernels/attention/attention_hopper.cuh"

// The forward pass on sm_90a: Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608, with
// warp specialization. Bound by the tensor cores for long sequences.
//
// One block computes the outputs of 128 queries of one head, or of the tiles of documents that
// begin in them (ResidentRows); attention_hopper.cuh describes its threads. For each tile one
// thread loads q, then k and v of 128 keys at a time. K and V have two buffers each. A computing
// warpgroup starts the products q k^T of step i and P v of step i - 1 together, and computes the
// softmax of step i while the tensor cores work on P v.
//
// Calls, from the bottom of the file: hopper_attention_forward, run, forward, load_all and
// Consumer::run.
namespace zg::cuda {
namespace {

constexpr int keys_per_step = 128, stages = 2, box_rows = 128;
static_assert(hopper_block_rows == box_rows && keys_per_step == box_rows);

/// Addresses in shared memory: q, `stages` buffers of k, `stages` buffers of v, the mbarriers,
/// then the plan. Each matrix is [128, width] in panels of 64 columns.
template <int width>
struct SharedLayout {
  static constexpr int bytes_of_matrix = matrix_bytes<width>(box_rows);
  static constexpr int barriers = bytes_of_matrix * (1 + 2 * stages), barrier_bytes = 8;
  static constexpr int plan_begin = barriers + barrier_bytes * (2 + 4 * stages);
  static constexpr size_t bytes = plan_begin + sizeof(Plan);
  SharedAddress start;
  __device__ SharedAddress q() const { return start; }
  __device__ SharedAddress k(int stage) const { return start + bytes_of_matrix * (1 + stage); }
  __device__ SharedAddress v(int stage) const {
    return start + bytes_of_matrix * (1 + stages + stage);
  }
  __device__ SharedAddress barrier(int i) const { return start + (barriers + barrier_bytes * i); }
  __device__ SharedAddress q_full() const { return barrier(0); }
  __device__ SharedAddress k_full(int stage) const { return barrier(1 + stage); }
  __device__ SharedAddress v_full(int stage) const { return barrier(1 + stages + stage); }
  __device__ SharedAddress k_empty(int stage) const { return barrier(1 + 2 * stages + stage); }
  __device__ SharedAddress v_empty(int stage) const { return barrier(1 + 3 * stages + stage); }
  __device__ SharedAddress q_empty() const { return barrier(1 + 4 * stages); }
  __device__ Plan& plan() const {
    return *reinterpret_cast<Plan*>(dynamic_shared<std::byte>() + plan_begin);
  }
};

/// The tensor maps by which TMA finds q, k and v: tensors [B, heads, tokens, D], boxes of [128,
/// 64].
struct TensorMaps {
  CUtensorMap q, k, v;
};

#if ZG_HOPPER

/// The steps of keys that `count` queries of a tile need, from `query` on.
__device__ inline Steps steps_of(const AttentionCall& a, const Plan& plan, const DocumentRows& tile,
                                 int64_t query, int count) {
  return key_steps(VisibleKeys(a, plan.head, tile), query, min(query + count, tile.end),
                   keys_per_step);
}

__device__ inline void make_plan(const AttentionCall& a, const HeadBlock& head, Plan& plan) {
  plan.index = blockIdx.x;
  plan.head = head;
  plan.first_head = head.h / a.shape.group();
  plan.tiles = 0;
  for (ResidentRows rows(a, head, hopper_block_rows, a.shape.T); rows.next(); ++plan.tiles)
    plan.tile[plan.tiles] = {rows, steps_of(a, plan, rows, rows.begin, hopper_block_rows)};
}

/// Loads q of each tile, then k and v of its steps, as soon as their buffers are empty. One thread
/// runs this. It returns after all buffers have been read. So it waits, too, if a copy is lost and
/// the consumers wait for ever, and then it reports this.
template <int width>
__device__ inline void load_all(const SharedLayout<width>& shared, const TensorMaps& maps,
                                Fault* fault) {
  const Plan& plan = shared.plan();
  const auto wait_until_empty = [&](SharedAddress empty, unsigned uses) {
    wait_for_phase(empty, (uses + 1) % 2,  // does not wait before the first use
                   [&] { report(fault, FaultSite::attention_forward_copies, plan.index, 0, 0); });
  };
  const auto load = [&](const HeadBlock& from, SharedAddress to, const CUtensorMap& map,
                        int64_t row, SharedAddress full) {
    arrive_expecting(full, SharedLayout<width>::bytes_of_matrix);
    load_matrix<width, box_rows, box_rows>(from, to, map, static_cast<int>(row), full);
  };
  unsigned tiles = 0, i = 0;
  for (; tiles < static_cast<unsigned>(plan.tiles); ++tiles) {
    const Tile& tile = plan.tile[tiles];
    wait_until_empty(shared.q_empty(), tiles);
    load(plan.head, shared.q(), maps.q, tile.rows.begin, shared.q_full());
    const HeadBlock key_head = plan.head.with_head(plan.first_head);
    int64_t key = tile.steps.begin;
    for (const unsigned end = i + static_cast<unsigned>(tile.steps.count); i < end; ++i) {
      const int stage = static_cast<int>(i % stages);
      wait_until_empty(shared.k_empty(stage), i / stages);
      load(key_head, shared.k(stage), maps.k, key, shared.k_full(stage));
      wait_until_empty(shared.v_empty(stage), i / stages);
      load(key_head, shared.v(stage), maps.v, key, shared.v_full(stage));
      key += keys_per_step;
    }
  }
  wait_until_empty(shared.q_empty(), tiles);
  for (const unsigned end = i + stages; i < end; ++i) {
    wait_until_empty(shared.k_empty(static_cast<int>(i % stages)), i / stages);
    wait_until_empty(shared.v_empty(static_cast<int>(i % stages)), i / stages);
  }
}

/// The computation of one warpgroup, 128 threads, for its 64 queries of a tile. Its state is in
/// registers.
template <class T, int width, Extras extras>
struct Consumer {
  static constexpr int panel_bytes = box_rows * panel_row_bytes;
  const AttentionCall& a;
  SharedLayout<width> shared;
  const DocumentRows& rows;  ///< the tile, in shared memory
  int index;                 ///< 0 or 1 among the consumers
  int64_t t0;                ///< the first query of this warp
  Mask mask;                 ///< of the next step
  float slope;               ///< ALiBi slope divided by the scale
  int64_t distance;          ///< ALiBi: of the next step's first key to query t0
  OnlineSoftmax<1> softmax;
  Accumulators<1, keys_per_step> scores = {};
  Accumulators<1, width> out = {};
  uint32_t weights[keys_per_step / 16][4];  ///< weights of a step, rounded to T: operands of P v

  /// Computes steps [first, last) of the block's [i, end), which are counted over all tiles. In the
  /// other steps all pairs are hidden. Step i: scores are ready first; the output of step i - 1 is
  /// added while softmax(i) runs.
  __device__ void run(int tiles, int i, int first, int last, int end) {
    wait_for_phase(shared.q_full(), tiles % 2);
    for (; i < first; ++i) pass_over(i);
    if (first < last) {
      start_scores(first);
      wait_for_products<0>();
      fence_registers(scores.values[0]);
      release(shared.k_empty(first % stages));
      compute_weights();
      pack_operand<T>(weights, scores);
      for (i = first + 1; i < last; ++i) {
        start_scores(i);
        start_output(i - 1);
        wait_for_products<1>();
        fence_registers(scores.values[0]);
        compute_weights();
        release_after_weights(shared.k_empty(i % stages));
        wait_for_products<0>();
        fence_registers(out.values[0]);
        release(shared.v_empty((i - 1) % stages));
        softmax.rescale(out);
        pack_operand<T>(weights, scores);
      }
      release(shared.q_empty());
      start_output(last - 1);
      wait_for_products<0>();
      fence_registers(out.values[0]);
      release(shared.v_empty((last - 1) % stages));
    } else {
      release(shared.q_empty());
    }
    for (; i < end; ++i) pass_over(i);
    const HeadBlock& head = shared.plan().head;
    softmax.finish(out, a, head, t0, rows.end);
    write_rows<width>(head_data<T>(a.out, a.shape.out, head), a.shape.out.token, t0, rows.end,
                      static_cast<int>(a.shape.D), out);
  }

  /// Waits for the buffers of step i, so that no release can count for an earlier step.
  __device__ void pass_over(int i) {
    const int stage = i % stages;
    wait_for_phase(shared.k_full(stage), i / stages % 2);
    release(shared.k_empty(stage));
    wait_for_phase(shared.v_full(stage), i / stages % 2);
    release(shared.v_empty(stage));
  }

  /// Starts scores = q k^T for the keys of step i; they are ready after wait_for_products().
  __device__ void start_scores(int i) {
    wait_for_phase(shared.k_full(i % stages), i / stages % 2);
    begin_products(scores.values[0]);
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      const int column = k / 4 * panel_bytes + k % 4 * 32;  // byte offset of column 16 k
      multiply_warpgroup<T>(
          scores.values[0],
          matrix_descriptor(shared.q() + (column + index * rows_per_consumer * panel_row_bytes)),
          matrix_descriptor(shared.k(i % stages) + column), /*accumulate=*/k > 0);
    }
    commit_products();
  }

  /// Starts out += P v for the packed weights P of step i.
  __device__ void start_output(int i) {
    wait_for_phase(shared.v_full(i % stages), i / stages % 2);
    begin_products(out.values[0], weights);
#pragma unroll
    for (int k = 0; k < keys_per_step / 16; ++k)
      multiply_warpgroup<T>(
          out.values[0], weights[k],
          matrix_descriptor(shared.v(i % stages) + k * 16 * panel_row_bytes, panel_bytes));
    commit_products();
  }

  /// Releases a buffer of k after the weights of its scores are computed. The arrival depends on
  /// the sums of the weights, and the wait for P v stays behind the arrival. Without this
  /// dependence the compiler moves the wait before the exponentials, because these do not use the
  /// accumulators of P v, and because it does not know that the wait takes time. The condition is
  /// always true: sums of weights are not below 0. tests/long/cuda-static tests the machine code.
  __device__ void release_after_weights(SharedAddress empty) {
    release(empty, /*always=*/!(softmax.sum[0][0] < 0.0f) && !(softmax.sum[0][1] < 0.0f));
  }

  /// Turns the scores of a step into weights: ALiBi, mask, online softmax.
  __device__ void compute_weights() {
    if constexpr (extras == Extras::alibi) add_alibi(scores, slope, distance);
    if (mask.hides_some(16, keys_per_step))
      scores.for_each([&](int, int n, int e) {
        if (mask.hides(accumulator_row(0, e), accumulator_column(n, e)))
          scores.values[0][n][e] = -INFINITY;
      });
    mask.skip_keys(keys_per_step);
    distance += keys_per_step;
    softmax.add(scores);
  }
};

#endif

template <class T, int width, Extras extras>
__global__ void __launch_bounds__(hopper_threads, 1)
    forward(AttentionCall a, int64_t blocks_per_head, const __grid_constant__ TensorMaps maps,
            Fault* fault) {
#if ZG_HOPPER
  const AttentionShape& s = a.shape;
  HeadBlock head(s, blocks_per_head);
  // With a causal mask later queries see more keys: blocks with the most work start first.
  if (s.causal) head.block = blocks_per_head - 1 - head.block;
  const SharedLayout<width> shared{dynamic_address()};
  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  if (threadIdx.x == 0) {
    init_barrier(shared.q_full(), 1);
    init_barrier(shared.q_empty(), consumer_warps);
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(shared.k_full(stage), 1);
      init_barrier(shared.v_full(stage), 1);
      init_barrier(shared.k_empty(stage), consumer_warps);
      init_barrier(shared.v_empty(stage), consumer_warps);
    }
    fence_barrier_init();
    make_plan(a, head, shared.plan());
  }
  __syncthreads();
  // 128 * 24 + 256 * 240 = 64512 registers, the 384 * 168 of the launch: the accumulators need most
  // of them.
  if (warpgroup == 0) {
    decrease_registers<24>();
    if (threadIdx.x == 0) load_all(shared, maps, fault);
    return;
  }
  increase_registers<240>();
  const int index = warpgroup - 1;
  const int warp_row =
      index * rows_per_consumer + static_cast<int>(threadIdx.x) % warpgroup_threads / lanes * 16;
  const Plan& plan = shared.plan();
  int i = 0;
  for (int tiles = 0; tiles < plan.tiles; ++tiles) {
    const Tile& tile = plan.tile[tiles];
    const int64_t t0 = tile.rows.begin + warp_row;
    const Steps own = steps_of(a, plan, tile.rows, tile.rows.begin + index * rows_per_consumer,
                               rows_per_consumer);
    const int first = i + tile.first_step(own, keys_per_step), end = i + tile.steps.count;
    const VisibleKeys keys(a, plan.head, tile.rows);
    Consumer<T, width, extras> consumer{.a = a,
                                        .shared = shared,
                                        .rows = tile.rows,
                                        .index = index,
                                        .t0 = t0,
                                        .mask = Mask(keys, tile.rows.end, t0, own.begin),
                                        .slope = slope_of_products<extras>(a, plan.head),
                                        .distance = own.begin - (t0 + s.offset),
                                        .softmax = OnlineSoftmax<1>(s.scale * log2_e)};
    consumer.run(tiles, i, first, first + own.count, end);
    i = end;
  }
#endif
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  const AttentionShape& s = call.shape;
  if (s.B == 0 || s.H == 0) return;
  const int64_t blocks_per_head = (s.T + hopper_block_rows - 1) / hopper_block_rows;
  const auto map_of = [&](const void* data, const HeadLayout& layout, int64_t heads,
                          int64_t tokens) {
    return tensor_map("attention_forward", data, layout, s, heads, tokens, box_rows, stream);
  };
  const TensorMaps maps{map_of(call.q, s.q, s.H, s.T), map_of(call.k, s.k, s.key_heads(), s.keys),
                        map_of(call.v, s.v, s.key_heads(), s.keys)};
  launch(forward_work("hopper_forward", dtype_of<T>, call), forward<T, width, extras>,
         {blocks_for(s.B * s.H * blocks_per_head, 1), dim3(hopper_threads),
          SharedLayout<width>::bytes, hopper_registers},
         stream, call, blocks_per_head, maps, fault_place(stream));
}

}  // namespace

bool suits_hopper(const AttentionCall& call, const Stream& stream) {
  // With up to 64 queries one of the two consumers would have no work. mma_attention_forward() is
  // then as fast. Documents have the same bits whatever their lengths, so these are not compared.
  constexpr int64_t fewest_queries = 65, most_tokens = int64_t{1} << 29;  // for which Mask has room
  const AttentionShape& s = call.shape;
  int major = 9;  // a plan is for an H100
  if (stream.type() != Device::Type::meta)
    check(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device().index()),
        "attention_forward: compute capability");
  return has_hopper_code && major == 9 && (s.T >= fewest_queries || call.starts) &&
         s.T < most_tokens && s.keys < most_tokens && extras_of(call) != Extras::all &&
         !call.key_lengths && has_mappable_strides(s.q, s, s.H, s.T) &&
         has_mappable_strides(s.k, s, s.key_heads(), s.keys) &&
         has_mappable_strides(s.v, s, s.key_heads(), s.keys) &&
         has_mappable_strides(s.out, s, s.H, s.T);
}

void hopper_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  with_hopper_instance(dtype, call, [&](auto value, auto width, auto extras) {
    run<decltype(value), decltype(width)::value, decltype(extras)::value>(call, stream);
  });
}

}  // namespace zg::cuda
