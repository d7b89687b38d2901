#include "zerograd/kernels/attention/attention_mma.cuh"
#include "zerograd/kernels/cuda/hopper.cuh"

// The forward pass for sm_90a; see Shah et al. 2024, arXiv:2407.08608. One thread of group 0 loads
// q, k and v with the tensor memory accelerator. Groups 1 and 2 compute 64 queries each. A group
// computes the weights of step i while the tensor cores multiply the weights of step i - 1 by v.
namespace zg::cuda {
namespace {

constexpr int owners = 2, threads = group_threads * (1 + owners);
constexpr int queries = 64 * owners, keys_of_step = 128, stages = 2;
constexpr int panel = keys_of_step * panel_row_bytes;  // size in bytes, for keys and for queries
static_assert(queries == keys_of_step);
constexpr int box_rows = 128;

/// Layout of shared memory. The phase of a `full` barrier ends when its matrix has been loaded. The
/// phase of an `empty` barrier ends when all owner groups have read the matrix.
template <int width>
struct Places {
  static constexpr int matrix = width / panel_columns * panel;
  static constexpr int barriers = matrix * (1 + 2 * stages), barrier_bytes = 8;
  static constexpr size_t bytes = barriers + barrier_bytes * (1 + 4 * stages);
  SharedAddress start;
  __device__ SharedAddress q() const { return start; }
  __device__ SharedAddress k(int stage) const { return start + matrix * (1 + stage); }
  __device__ SharedAddress v(int stage) const { return start + matrix * (1 + stages + stage); }
  __device__ SharedAddress barrier(int i) const { return start + (barriers + barrier_bytes * i); }
  __device__ SharedAddress q_full() const { return barrier(0); }
  __device__ SharedAddress k_full(int stage) const { return barrier(1 + stage); }
  __device__ SharedAddress v_full(int stage) const { return barrier(1 + stages + stage); }
  __device__ SharedAddress k_empty(int stage) const { return barrier(1 + 2 * stages + stage); }
  __device__ SharedAddress v_empty(int stage) const { return barrier(1 + 3 * stages + stage); }
};

/// The tensor maps of q, k and v. They are one kernel parameter.
struct Maps {
  CUtensorMap q, k, v;
};

#if ZG_HOPPER

template <int width>
__device__ inline void bring(const HeadPart& at, SharedAddress to, const CUtensorMap& map, int row,
                             SharedAddress full) {
  arrive_expecting(full, Places<width>::matrix);
#pragma unroll
  for (int i = 0; i < width / panel_columns; ++i)
    copy_box(to + i * panel, map, i * panel_columns, row, static_cast<int>(at.h),
             static_cast<int>(at.b), full);
}

/// Loads q once, then k and v of each step. Only one thread calls this function.
template <int width>
__device__ inline void bring_all(const Places<width>& places, const HeadPart& at, const Maps& maps,
                                 int steps) {
  bring<width>(at, places.q(), maps.q, static_cast<int>(at.part) * queries, places.q_full());
  for (int i = 0; i < steps; ++i) {
    const int stage = i % stages;
    const unsigned parity = i / stages % 2;
    wait_for_phase(places.k_empty(stage), parity ^ 1);  // does not wait while i < stages
    bring<width>(at, places.k(stage), maps.k, i * keys_of_step, places.k_full(stage));
    wait_for_phase(places.v_empty(stage), parity ^ 1);
    bring<width>(at, places.v(stage), maps.v, i * keys_of_step, places.v_full(stage));
  }
}

/// The computation of one owner group, 128 threads, for its 64 queries.
template <class T, int width, Extras extras>
struct Owner {
  const AttentionCall& a;
  const HeadPart& at;
  Places<width> places;
  int group, steps;
  int64_t t0;   ///< the first query of this warp
  float slope;  ///< ALiBi slope
  Products<1, keys_of_step> scores = {};
  Products<1, width> out = {};
  uint32_t weights[keys_of_step / 16][4];
  OnlineSoftmax<1> softmax;

  /// Starts the product of queries and keys. `scores` is not ready when this function returns.
  __device__ void multiply_keys(int i) {
    wait_for_phase(places.k_full(i % stages), i / stages % 2);
    scores = {};
    open_products();
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      const int column = k / 4 * panel + k % 4 * 32;  // offset in bytes
      multiply_group<T>(scores.of[0],
                        describe(places.q() + (column + group * 64 * panel_row_bytes)),
                        describe(places.k(i % stages) + column));
    }
    commit_products();
  }
  __device__ void add_values(int i) {
    wait_for_phase(places.v_full(i % stages), i / stages % 2);
    open_products();
#pragma unroll
    for (int k = 0; k < keys_of_step / 16; ++k)
      multiply_group<T>(out.of[0], weights[k],
                        describe(places.v(i % stages) + k * 16 * panel_row_bytes, panel));
    commit_products();
  }
  __device__ void release(SharedAddress empty) {
    __syncwarp();
    if (threadIdx.x % lanes == 0) arrive(empty);
  }
  __device__ void soften(int i) {
    if constexpr (extras == Extras::alibi)
      add_alibi(scores, slope, int64_t{i} * keys_of_step - (t0 + a.shape.offset));
    const Mask mask(a.shape, t0, int64_t{i} * keys_of_step);
    if (mask.hides_some(16, keys_of_step))
      scores.for_each([&](int, int n, int e) {
        if (mask.hides(row_of(0, e), column_of(n, e))) scores.of[0][n][e] = -INFINITY;
      });
    softmax.add(scores);
  }
  __device__ void keep_weights() {
#pragma unroll
    for (int k = 0; k < keys_of_step / 16; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&from)[4] = scores.of[0][2 * k + half];
        weights[k][2 * half] = pack<T>(from[0], from[1]);
        weights[k][2 * half + 1] = pack<T>(from[2], from[3]);
      }
  }

  __device__ void run() {
    wait_for_phase(places.q_full(), 0);
    multiply_keys(0);
    wait_for_products<0>();
    settle(scores.of[0]);
    release(places.k_empty(0));
    soften(0);
    keep_weights();
    for (int i = 1; i < steps; ++i) {
      multiply_keys(i);
      add_values(i - 1);
      wait_for_products<1>();
      settle(scores.of[0]);
      release(places.k_empty(i % stages));
      soften(i);
      wait_for_products<0>();
      settle(out.of[0]);
      release(places.v_empty((i - 1) % stages));
      softmax.rescale(out);
      keep_weights();
    }
    add_values(steps - 1);
    wait_for_products<0>();
    settle(out.of[0]);
    softmax.finish(out, a, at, t0);
    write_rows<width>(head_of<T>(a.out, a.shape.out, at), a.shape.out.token, t0, a.shape.T,
                      static_cast<int>(a.shape.D), out);
  }
};

#endif

template <class T, int width, Extras extras>
__global__ void __launch_bounds__(threads, 1)
    forward(AttentionCall a, int64_t parts, const __grid_constant__ Maps maps) {
#if ZG_HOPPER
  const AttentionShape& s = a.shape;
  HeadPart at(s, parts);
  if (s.causal) at.part = parts - 1 - at.part;  // blocks with more keys start first
  const Places<width> places{dynamic_address()};
  const int group = static_cast<int>(threadIdx.x) / group_threads;
  const int64_t t0 = at.part * queries;
  const int64_t end = visible_keys(s, min(t0 + queries, s.T) - 1);
  const int steps = static_cast<int>((end + keys_of_step - 1) / keys_of_step);
  if (threadIdx.x == 0) {
    start_barrier(places.q_full(), 1);
    for (int stage = 0; stage < stages; ++stage) {
      start_barrier(places.k_full(stage), 1);
      start_barrier(places.v_full(stage), 1);
      start_barrier(places.k_empty(stage), owners * group_threads / lanes);
      start_barrier(places.v_empty(stage), owners * group_threads / lanes);
    }
    publish_barriers();
  }
  __syncthreads();
  if (group == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) bring_all(places, at, maps, steps);
    return;
  }
  take_registers<240>();
  const int warp = static_cast<int>(threadIdx.x) % group_threads / lanes;
  Owner<T, width, extras> owner{.a = a,
                                .at = at,
                                .places = places,
                                .group = group - 1,
                                .steps = steps,
                                .t0 = t0 + (group - 1) * 64 + warp * 16,
                                .slope = slope_of_products<extras>(a, at),
                                .softmax = OnlineSoftmax<1>(s.scale * log2_e)};
  owner.run();
#endif
}

/// An axis of extent 1 may have any stride. A tensor map needs a valid one: 16 bytes.
uint64_t stride_bytes(int64_t stride, int64_t extent) {
  return extent == 1 ? 16 : static_cast<uint64_t>(stride) * 2;
}

CUtensorMap map_of(const void* data, const HeadLayout& layout, const AttentionShape& s,
                   int64_t tokens) {
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(s.D), static_cast<cuuint64_t>(tokens),
                                 static_cast<cuuint64_t>(s.H), static_cast<cuuint64_t>(s.B)};
  const cuuint64_t strides[3] = {stride_bytes(layout.token, tokens), stride_bytes(layout.head, s.H),
                                 stride_bytes(layout.batch, s.B)};
  const cuuint32_t box[4] = {panel_columns, box_rows, 1, 1}, steps[4] = {1, 1, 1, 1};
  const auto* start = static_cast<const std::byte*>(data) + layout.offset * 2;
  CUtensorMap map;
  check(encode_tensor_map()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<std::byte*>(start),
                            extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "attention_forward: cuTensorMapEncodeTiled");
  return map;
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  const AttentionShape& s = call.shape;
  if (s.B == 0 || s.H == 0) return;
  const int64_t parts = (s.T + queries - 1) / queries;
  const Maps maps{map_of(call.q, s.q, s, s.T), map_of(call.k, s.k, s, s.keys),
                  map_of(call.v, s.v, s, s.keys)};
  launch("attention_forward", forward<T, width, extras>,
         {blocks_for(s.B * s.H * parts, 1), dim3(threads), Places<width>::bytes}, stream, call,
         parts, maps);
}

bool takes_map(const HeadLayout& layout, const AttentionShape& s, int64_t tokens) {
  const auto fits = [](int64_t stride, int64_t extent) {
    return extent == 1 || (stride > 0 && stride < int64_t{1} << 39);
  };
  return fits(layout.token, tokens) && fits(layout.head, s.H) && fits(layout.batch, s.B);
}

}  // namespace

bool suits_hopper(const AttentionCall& call, const Stream& stream) {
  // For fewer queries the tiles of mma_attention_forward are as good. It needs no tensor maps.
  constexpr int64_t fewest_queries = 65, most_tokens = int64_t{1} << 30;
  const AttentionShape& s = call.shape;
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device().index()),
        "attention_forward: compute capability");
  return major == 9 && s.T >= fewest_queries && s.T < most_tokens && s.keys < most_tokens &&
         extras_of(call) != Extras::all && takes_map(s.q, s, s.T) && takes_map(s.k, s, s.keys) &&
         takes_map(s.v, s, s.keys);
}

void hopper_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  const auto with = [&]<class T>(T) {
    constexpr Extras none = Extras::none, alibi = Extras::alibi;
    if (call.shape.D <= 64)
      call.alibi_slopes ? run<T, 64, alibi>(call, stream) : run<T, 64, none>(call, stream);
    else
      call.alibi_slopes ? run<T, 128, alibi>(call, stream) : run<T, 128, none>(call, stream);
  };
  dtype == DType::bf16 ? with(bf16()) : with(f16());
}

}  // namespace zg::cuda
