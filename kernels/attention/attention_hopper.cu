#include "zerograd/kernels/attention/attention_hopper.cuh"

// The forward pass on sm_90a: Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608, with
// warp specialization. Bound by the tensor cores for long sequences.
//
// One block computes the outputs of 128 queries of one head; attention_hopper.cuh describes its
// threads. One thread loads q, then k and v of 128 keys at a time. K and V have two buffers each.
// A computing warpgroup starts the products q k^T of step i and P v of step i - 1 together, and
// computes the softmax of step i while the tensor cores work on P v.
//
// Calls, from the bottom of the file: hopper_attention_forward, run, forward, load_all and
// Consumer::run.
namespace zg::cuda {
namespace {

constexpr int keys_per_step = 128, stages = 2, box_rows = 128;
static_assert(hopper_block_rows == box_rows && keys_per_step == box_rows);

/// Addresses in shared memory: q, `stages` buffers of k, `stages` buffers of v, then the mbarriers.
/// Each matrix is [128, width] in panels of 64 columns.
template <int width>
struct SharedLayout {
  static constexpr int bytes_of_matrix = matrix_bytes<width>(box_rows);
  static constexpr int barriers = bytes_of_matrix * (1 + 2 * stages), barrier_bytes = 8;
  static constexpr size_t bytes = barriers + barrier_bytes * (1 + 4 * stages);
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
};

/// The tensor maps by which TMA finds q, k and v: tensors [B, H, tokens, D], boxes of [128, 64].
struct TensorMaps {
  CUtensorMap q, k, v;
};

#if ZG_HOPPER

/// Loads q, then k and v of each step, as soon as their buffers are empty. One thread runs this. It
/// returns after all buffers have been read. So it waits, too, if a copy is lost and the consumers
/// wait for ever, and then it reports this.
template <int width>
__device__ inline void load_all(const SharedLayout<width>& shared, const HeadBlock& head,
                                const TensorMaps& maps, int steps, Fault* fault) {
  const auto wait_until_empty = [&](SharedAddress empty, unsigned parity) {
    wait_for_phase(empty, parity,
                   [&] { report(fault, FaultSite::attention_forward_copies, blockIdx.x, 0, 0); });
  };
  const auto load = [&](SharedAddress to, const CUtensorMap& map, int row, SharedAddress full) {
    arrive_expecting(full, SharedLayout<width>::bytes_of_matrix);
    load_matrix<width, box_rows, box_rows>(head, to, map, row, full);
  };
  load(shared.q(), maps.q, static_cast<int>(head.block) * hopper_block_rows, shared.q_full());
  for (int i = 0; i < steps + stages; ++i) {
    const int stage = i % stages;
    const unsigned parity = i / stages % 2;
    wait_until_empty(shared.k_empty(stage), parity ^ 1);  // does not wait while i < stages
    if (i < steps) load(shared.k(stage), maps.k, i * keys_per_step, shared.k_full(stage));
    wait_until_empty(shared.v_empty(stage), parity ^ 1);
    if (i < steps) load(shared.v(stage), maps.v, i * keys_per_step, shared.v_full(stage));
  }
}

/// The computation of one warpgroup, 128 threads, for its 64 queries. Its state is in registers.
template <class T, int width, Extras extras>
struct Consumer {
  static constexpr int panel_bytes = box_rows * panel_row_bytes;
  const AttentionCall& a;
  const HeadBlock& head;
  SharedLayout<width> shared;
  int index;    ///< 0 or 1 among the consumers
  int steps;    ///< of keys_per_step keys each
  int64_t t0;   ///< the first query of this warp
  float slope;  ///< ALiBi slope divided by the scale
  Accumulators<1, keys_per_step> scores = {};
  Accumulators<1, width> out = {};
  uint32_t weights[keys_per_step / 16][4];  ///< weights of a step, rounded to T: operands of P v
  OnlineSoftmax<1> softmax;

  /// Step i: scores are ready first; the output of step i - 1 is added while softmax(i) runs.
  __device__ void run() {
    wait_for_phase(shared.q_full(), 0);
    start_scores(0);
    wait_for_products<0>();
    fence_registers(scores.values[0]);
    release(shared.k_empty(0));
    compute_weights(0);
    pack_operand<T>(weights, scores);
    for (int i = 1; i < steps; ++i) {
      start_scores(i);
      start_output(i - 1);
      wait_for_products<1>();
      fence_registers(scores.values[0]);
      compute_weights(i);
      release_after_weights(shared.k_empty(i % stages));
      wait_for_products<0>();
      fence_registers(out.values[0]);
      release(shared.v_empty((i - 1) % stages));
      softmax.rescale(out);
      pack_operand<T>(weights, scores);
    }
    start_output(steps - 1);
    wait_for_products<0>();
    fence_registers(out.values[0]);
    release(shared.v_empty((steps - 1) % stages));
    softmax.finish(out, a, head, t0);
    write_rows<width>(head_data<T>(a.out, a.shape.out, head), a.shape.out.token, t0, a.shape.T,
                      static_cast<int>(a.shape.D), out);
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

  /// Turns the scores of step i into weights: ALiBi, mask, online softmax.
  __device__ void compute_weights(int i) {
    if constexpr (extras == Extras::alibi)
      add_alibi(scores, slope, int64_t{i} * keys_per_step - (t0 + a.shape.offset));
    const Mask mask(a.shape, t0, int64_t{i} * keys_per_step);
    if (mask.hides_some(16, keys_per_step))
      scores.for_each([&](int, int n, int e) {
        if (mask.hides(accumulator_row(0, e), accumulator_column(n, e)))
          scores.values[0][n][e] = -INFINITY;
      });
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
  const int64_t t0 = head.block * hopper_block_rows;
  const int64_t end = visible_keys(s, min(t0 + hopper_block_rows, s.T) - 1);
  const int steps = static_cast<int>((end + keys_per_step - 1) / keys_per_step);
  if (threadIdx.x == 0) {
    init_barrier(shared.q_full(), 1);
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(shared.k_full(stage), 1);
      init_barrier(shared.v_full(stage), 1);
      init_barrier(shared.k_empty(stage), consumer_warps);
      init_barrier(shared.v_empty(stage), consumer_warps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  // 128 * 24 + 256 * 240 = 64512 registers, the 384 * 168 of the launch: the accumulators need most
  // of them.
  if (warpgroup == 0) {
    decrease_registers<24>();
    if (threadIdx.x == 0) load_all(shared, head, maps, steps, fault);
    return;
  }
  increase_registers<240>();
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / lanes;
  Consumer<T, width, extras> consumer{.a = a,
                                      .head = head,
                                      .shared = shared,
                                      .index = warpgroup - 1,
                                      .steps = steps,
                                      .t0 = t0 + (warpgroup - 1) * rows_per_consumer + warp * 16,
                                      .slope = slope_of_products<extras>(a, head),
                                      .softmax = OnlineSoftmax<1>(s.scale * log2_e)};
  consumer.run();
#endif
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  const AttentionShape& s = call.shape;
  if (s.B == 0 || s.H == 0) return;
  const int64_t blocks_per_head = (s.T + hopper_block_rows - 1) / hopper_block_rows;
  const auto map_of = [&](const void* data, const HeadLayout& layout, int64_t tokens) {
    return tensor_map("attention_forward", data, layout, s, tokens, box_rows, stream);
  };
  const TensorMaps maps{map_of(call.q, s.q, s.T), map_of(call.k, s.k, s.keys),
                        map_of(call.v, s.v, s.keys)};
  launch(forward_work("hopper_forward", dtype_of<T>, call), forward<T, width, extras>,
         {blocks_for(s.B * s.H * blocks_per_head, 1), dim3(hopper_threads),
          SharedLayout<width>::bytes, hopper_registers},
         stream, call, blocks_per_head, maps, fault_place(stream));
}

}  // namespace

bool suits_hopper(const AttentionCall& call, const Stream& stream) {
  // With up to 64 queries one of the two consumers would have no work. mma_attention_forward() is
  // then as fast.
  constexpr int64_t fewest_queries = 65, most_tokens = int64_t{1} << 30;
  const AttentionShape& s = call.shape;
  int major = 9;  // a plan is for an H100
  if (stream.type() != Device::Type::meta)
    check(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device().index()),
        "attention_forward: compute capability");
  return has_hopper_code && major == 9 && s.T >= fewest_queries && s.T < most_tokens &&
         s.keys < most_tokens && extras_of(call) != Extras::all &&
         has_mappable_strides(s.q, s, s.T) && has_mappable_strides(s.k, s, s.keys) &&
         has_mappable_strides(s.v, s, s.keys) && has_mappable_strides(s.out, s, s.T);
}

void hopper_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  with_hopper_instance(dtype, call, [&](auto value, auto width, auto extras) {
    run<decltype(value), decltype(width)::value, decltype(extras)::value>(call, stream);
  });
}

}  // namespace zg::cuda
