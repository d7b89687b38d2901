#pragma once

#include "zerograd/kernels/attention/attention_mma.cuh"
#include "zerograd/kernels/cuda/hopper.cuh"

// Shared by the attention kernels for sm_90a, attention_hopper.cu and attention_hopper_backward.cu:
// their warpgroups and the loads of matrices by TMA.
//
// A block has three warpgroups of 128 threads. The first loads matrices to shared memory with TMA;
// the others, the consumers, compute the results of 64 resident rows each. A warp of a consumer has
// 16 of them. Streamed rows have several buffers. A `full` mbarrier tells the consumers that a
// buffer is loaded; an `empty` mbarrier tells the loading thread that all of their warps have read
// it.
namespace zg::cuda {

inline constexpr int hopper_consumers = 2, rows_per_consumer = 64;  // the rows of a wgmma product
inline constexpr int hopper_threads = warpgroup_threads * (1 + hopper_consumers);
inline constexpr int hopper_registers = 168;  // of a thread at its start: 65536 / 384, in eights
inline constexpr int hopper_block_rows = rows_per_consumer * hopper_consumers;
inline constexpr int consumer_warps = hopper_consumers * warpgroup_threads / lanes;

/// Steps of streamed rows: `count` steps from row `begin` on.
struct Steps {
  int64_t begin;
  int count;
  __device__ Steps(int64_t from, int64_t to, int step)
      : begin(from), count(static_cast<int>(max(to - from + step - 1, int64_t{0}) / step)) {}
};

/// The steps of `step` keys that queries [query, end) need.
__device__ inline Steps key_steps(const VisibleKeys& keys, int64_t query, int64_t end, int step) {
  const int64_t first = keys.first_step(query, step);
  return {first, query < end ? keys.end(end - 1) : first, step};
}

/// A block computes up to 128 resident rows of a head, or of one of its documents, at a time.
struct Tile {
  DocumentRows rows;
  Steps steps;  ///< of each head of streamed rows

  /// The first of the `steps` that a consumer needs; `own` are those for its rows.
  __device__ int first_step(const Steps& own, int step) const {
    return own.count > 0 ? static_cast<int>((own.begin - steps.begin) / step) : steps.count;
  }
};

/// The tiles of a block: one, or those of documents that begin in its 128 rows. In shared memory,
/// because the warps have no registers for it. One thread writes it before the warps part.
struct Plan {
  int64_t index;              ///< of the block in the grid, for reports
  HeadBlock head;             ///< of the resident rows
  int64_t first_head, heads;  ///< of the streamed rows; a tile takes one after the other
  int tiles;
  Tile tile[hopper_block_rows];
};

/// Bytes of a matrix in shared memory: panels of 64 columns, one after the other.
template <int width>
inline constexpr int matrix_bytes(int rows) {
  return width / panel_columns * rows * panel_row_bytes;
}

#if ZG_HOPPER

/// Starts to load `rows` rows of the head, from `row` on, into the matrix at `to`, in boxes of
/// `box_rows` rows. The mbarrier `full` must expect their bytes, and counts them when they arrive.
template <int width, int rows, int box_rows>
__device__ inline void load_matrix(const HeadBlock& head, SharedAddress to, const CUtensorMap& map,
                                   int row, SharedAddress full) {
  static_assert(rows % box_rows == 0);
#pragma unroll
  for (int panel = 0; panel < width / panel_columns; ++panel)
#pragma unroll
    for (int first = 0; first < rows; first += box_rows)
      copy_box(to + (panel * rows + first) * panel_row_bytes, map, panel * panel_columns,
               row + first, static_cast<int>(head.h), static_cast<int>(head.b), full);
}

/// Tells the loading thread that this warp has read a buffer. `always` is true, but the compiler
/// does not know that, so the arrival stays behind the computation of `always`.
__device__ inline void release(SharedAddress empty, bool always = true) {
  __syncwarp();
  if (threadIdx.x % lanes == 0 && always) arrive(empty);
}

/// Rounds a tile to T: the operand a of the products that follow.
template <class T, int columns>
__device__ inline void pack_operand(uint32_t (&to)[columns / 16][4],
                                    const Accumulators<1, columns>& values) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&from)[4] = values.values[0][2 * k + half];
      to[k][2 * half] = pack<T>(from[0], from[1]);
      to[k][2 * half + 1] = pack<T>(from[2], from[3]);
    }
}

#endif

/// Calls f with a value of the storage dtype and, as integral constants, the width of the kernel's
/// tiles, which is at least the head size, and the terms that are added to a score.
template <class F>
void with_hopper_instance(DType dtype, const AttentionCall& call, const F& f) {
  const auto with = [&](auto value, auto width) {
    if (call.alibi_slopes)
      f(value, width, std::integral_constant<Extras, Extras::alibi>());
    else
      f(value, width, std::integral_constant<Extras, Extras::none>());
  };
  const auto with_width = [&](auto value) {
    if (call.shape.D <= 64)
      with(value, std::integral_constant<int, 64>());
    else
      with(value, std::integral_constant<int, 128>());
  };
  dtype == DType::bf16 ? with_width(bf16()) : with_width(f16());
}

/// Whether a tensor map can hold the strides of a tensor: positive and below 2^40 bytes.
inline bool has_mappable_strides(const HeadLayout& layout, const AttentionShape& s, int64_t heads,
                                 int64_t tokens) {
  const auto fits = [](int64_t stride, int64_t extent) {
    return extent == 1 || (stride > 0 && stride < int64_t{1} << 39);
  };
  return fits(layout.token, tokens) && fits(layout.head, heads) && fits(layout.batch, s.B);
}

/// The tensor map by which TMA finds a tensor [B, heads, tokens, D], with boxes of [box_rows, 64].
/// On a stream of a meta device it is empty.
inline CUtensorMap tensor_map(const char* op, const void* data, const HeadLayout& layout,
                              const AttentionShape& s, int64_t heads, int64_t tokens,
                              unsigned box_rows, const Stream& stream) {
  CUtensorMap map = {};
  if (stream.type() == Device::Type::meta) return map;
  // An axis of extent 1 may have any stride, but a tensor map accepts only multiples of 16 bytes.
  const auto stride_bytes = [](int64_t stride, int64_t extent) {
    return extent == 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(stride) * 2;
  };
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(s.D), static_cast<cuuint64_t>(tokens),
                                 static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(s.B)};
  const cuuint64_t strides[3] = {stride_bytes(layout.token, tokens),
                                 stride_bytes(layout.head, heads), stride_bytes(layout.batch, s.B)};
  const cuuint32_t box[4] = {panel_columns, box_rows, 1, 1}, steps[4] = {1, 1, 1, 1};
  const auto* start = static_cast<const std::byte*>(data) + layout.offset * 2;
  check(encode_tensor_map()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<std::byte*>(start),
                            extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        (std::string(op) + ": cuTensorMapEncodeTiled").c_str());
  return map;
}

}  // namespace zg::cuda
