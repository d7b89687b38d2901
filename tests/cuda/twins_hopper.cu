// Twins (twins.h: small kernels that run on a GPU and in the emulator, to compare the results) of
// the instructions of kernels/cuda/hopper.cuh: TMA, mbarriers, wgmma and setmaxnreg, used as
// attention_hopper.cu uses them.
#include "tests/cuda/twins.h"

#include <cstring>

#include "zerograd/kernels/cuda/hopper.cuh"

namespace zg::twins {
namespace {

using cuda::panel_columns, cuda::panel_row_bytes, cuda::warpgroup_threads;

// --- TMA ---

/// Extents and strides of a tensor of two-byte elements, and a box of it. The axes are in the order
/// x, y, z, w; x is the innermost, with stride 1.
struct BoxCase {
  uint32_t extents[4];
  uint32_t strides[3];  ///< of y, z and w, in elements
  uint32_t box_rows;    ///< the box's extent along y; it is 64 along x
  int32_t origin[4];    ///< indices of the box's first element
};
static_assert(sizeof(BoxCase) == 12 * sizeof(uint32_t));

CUtensorMap map_of(const void* data, const BoxCase& box) {
  cuuint64_t extents[4], strides[3];
  for (int axis = 0; axis < 4; ++axis) extents[axis] = box.extents[axis];
  for (int axis = 0; axis < 3; ++axis) strides[axis] = cuuint64_t{box.strides[axis]} * 2;
  const cuuint32_t extent[4] = {panel_columns, box.box_rows, 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  cuda::check(cuda::encode_tensor_map()(
                  &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(data), extents,
                  strides, extent, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "twins: cuTensorMapEncodeTiled");
  return map;
}

/// Copies a box to shared memory by TMA and writes those bytes, swizzled, to `to`.
__global__ void copy_box(const __grid_constant__ CUtensorMap map, BoxCase box, uint32_t* to) {
#if ZG_HOPPER
  const cuda::SharedAddress to_shared = cuda::dynamic_address();
  const auto bytes = static_cast<int>(box.box_rows) * panel_row_bytes;
  const cuda::SharedAddress barrier = to_shared + bytes;
  if (threadIdx.x == 0) {
    cuda::init_barrier(barrier, 1);
    cuda::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::arrive_expecting(barrier, static_cast<unsigned>(bytes));
    cuda::copy_box(to_shared, map, box.origin[0], box.origin[1], box.origin[2], box.origin[3],
                   barrier);
  }
  cuda::wait_for_phase(barrier, 0);
  const auto* const shared = cuda::dynamic_shared<uint32_t>();
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 4; i += static_cast<int>(blockDim.x))
    to[i] = shared[i];
#endif
}

Inputs draw_box(std::mt19937& random) {
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random()) % limit; };
  constexpr uint32_t rows[] = {8, 16, 64, 128};
  BoxCase box = {.extents = {1 + below(150), 1 + below(150), 1 + below(2), 1 + below(2)},
                 .box_rows = rows[below(4)]};
  // Strides are multiples of 16 bytes and may leave gaps.
  box.strides[0] = (box.extents[0] + 7) / 8 * 8 + 8 * below(3);
  box.strides[1] = box.strides[0] * (box.extents[1] + below(2));
  box.strides[2] = box.strides[1] * box.extents[2];
  // Heads of a fused projection: z is the head, and lies nearer than y, the token.
  if (below(2)) {
    box.strides[1] = box.strides[0];
    box.strides[0] = box.strides[1] * box.extents[2] + 8 * below(3);
    box.strides[2] = box.strides[0] * box.extents[1];
  }
  // A box may begin before the tensor's first element and end after its last one.
  box.origin[0] = static_cast<int32_t>(below(4) * panel_columns) - panel_columns;
  box.origin[1] = static_cast<int32_t>(below(box.extents[1] + box.box_rows)) -
                  static_cast<int32_t>(box.box_rows);
  if (below(2)) box.origin[0] = box.origin[1] = 0;
  box.origin[2] = static_cast<int32_t>(below(box.extents[2] + below(4) / 3));
  box.origin[3] = static_cast<int32_t>(below(box.extents[3] + below(4) / 3));
  Words numbers(sizeof box / sizeof(uint32_t));
  std::memcpy(numbers.data(), &box, sizeof box);
  return {std::move(numbers), random_words(random, box.strides[2] * box.extents[3] / 2)};
}

Words run_box(const Runner& runner, const Inputs& in) {
  BoxCase box;
  std::memcpy(&box, in[0].data(), sizeof box);
  const size_t words = box.box_rows * size_t{panel_row_bytes} / 4;
  const CUtensorMap map = map_of(runner.bring<uint32_t>(in[1]), box);
  auto* const to = runner.room<uint32_t>(words);
  runner.run(copy_box, warpgroup_threads, words * 4 + 8, map, box, to);
  return runner.fetch(to, words);
}

// --- wgmma ---

// A matrix of 128 rows and 128 columns of T, in two panels. One TMA box fills a panel.
constexpr int rows = 128, columns = 128, matrix_words = rows * columns / 2;
constexpr int panel_bytes = rows * panel_row_bytes, matrix_bytes = 2 * panel_bytes;
constexpr int warpgroups = 2;  // each multiplies 64 rows of a
constexpr size_t product_shared = 2 * matrix_bytes + 8;

CUtensorMap map_of_matrix(const void* data) {
  return map_of(data, {.extents = {columns, rows, 1, 1},
                       .strides = {columns, columns * rows, columns * rows},
                       .box_rows = rows});
}

#if ZG_HOPPER

/// Loads a and b, each of 128 rows and columns, to shared memory.
__device__ inline void load_operands(const CUtensorMap& a_map, const CUtensorMap& b_map) {
  const cuda::SharedAddress a = cuda::dynamic_address(), b = a + matrix_bytes;
  const cuda::SharedAddress barrier = b + matrix_bytes;
  if (threadIdx.x == 0) {
    cuda::init_barrier(barrier, 1);
    cuda::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::arrive_expecting(barrier, 2 * matrix_bytes);
    for (int panel = 0; panel < 2; ++panel) {
      cuda::copy_box(a + panel * panel_bytes, a_map, panel * panel_columns, 0, 0, 0, barrier);
      cuda::copy_box(b + panel * panel_bytes, b_map, panel * panel_columns, 0, 0, 0, barrier);
    }
  }
  cuda::wait_for_phase(barrier, 0);
}

/// Starts (asynchronously) d += a b^T, for all rows of b or its first 64. The summed index k runs
/// along the rows of a and of b, over 128 columns.
template <class T, int tiles>
__device__ inline void start_by_rows(float (&d)[tiles][4]) {
  const cuda::SharedAddress a = cuda::dynamic_address(), b = a + matrix_bytes;
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  cuda::begin_products(d);
#pragma unroll
  for (int k = 0; k < columns / 16; ++k) {
    const int column = k / 4 * panel_bytes + k % 4 * 32;  // byte offset of column 16 k
    cuda::multiply_warpgroup<T>(d, cuda::matrix_descriptor(a + (column + group * 64 * 128)),
                                cuda::matrix_descriptor(b + column), /*accumulate=*/true);
  }
  cuda::commit_products();
}

/// The same for the first 64 rows of b, with `a` in registers.
template <class T>
__device__ inline void start_by_rows(float (&d)[8][4], uint32_t (&a)[8][4]) {
  const cuda::SharedAddress b = cuda::dynamic_address() + matrix_bytes;
  cuda::begin_products(d, a);
#pragma unroll
  for (int k = 0; k < columns / 16; ++k)
    cuda::multiply_warpgroup<T>(d, a[k],
                                cuda::matrix_descriptor(b + (k / 4 * panel_bytes + k % 4 * 32)),
                                /*accumulate=*/true);
  cuda::commit_products();
}

/// Starts (asynchronously) d += a b. a is in registers; the summed index k runs over the 128 rows
/// of b.
template <class T, int tiles>
__device__ inline void start_by_registers(float (&d)[tiles][4], uint32_t (&a)[8][4]) {
  const cuda::SharedAddress b = cuda::dynamic_address() + matrix_bytes;
  cuda::begin_products(d, a);
#pragma unroll
  for (int k = 0; k < rows / 16; ++k)
    cuda::multiply_warpgroup<T>(d, a[k],
                                cuda::matrix_descriptor(b + k * 16 * panel_row_bytes, panel_bytes));
  cuda::commit_products();
}

/// Fragments of this warpgroup's 64 rows of a, which is [128, 128].
template <class T>
__device__ inline void load_fragments(uint32_t (&to)[8][4], const uint32_t* a) {
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4;
#pragma unroll
  for (int k = 0; k < 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[k][i] = a[(row + i % 2 * 8) * columns / 2 + k * 8 + pair + i / 2 * 4];
}

/// load_sums() and store_sums() copy a thread's accumulators. Accumulator i of thread t is at
/// i * threads + t.
template <int tiles>
__device__ inline void load_sums(float (&d)[tiles][4], const float* from) {
#pragma unroll
  for (int i = 0; i < tiles * 4; ++i)
    d[i / 4][i % 4] = from[i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
}
template <int tiles>
__device__ inline void store_sums(float* to, const float (&d)[tiles][4]) {
#pragma unroll
  for (int i = 0; i < tiles * 4; ++i)
    to[i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)] = d[i / 4][i % 4];
}

#endif

enum class Form { rows_64, rows, rows_by_registers, registers_64, registers_128, two_commits };
constexpr int columns_of(Form form) {
  return form == Form::rows || form == Form::registers_128 || form == Form::two_commits ? 128 : 64;
}

/// Form::rows: d = c + a b^T; rows_64 uses only b's first 64 rows, and
/// rows_by_registers, too, with `a` in registers. Form::registers_128: d = c + a
/// b; registers_64 uses only b's first 64 columns. Form::two_commits: starts both products before
/// it waits for the first; c + a b is stored in d, c + a b^T after it.
template <class T, Form form>
__global__ void __launch_bounds__(warpgroups* warpgroup_threads)
    product(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
            const uint32_t* a, const float* c, float* d) {
#if ZG_HOPPER
  load_operands(a_map, b_map);
  constexpr bool by_rows = form == Form::rows || form == Form::rows_64;
  constexpr int tiles = columns_of(form) / 8;
  float sums[tiles][4];
  load_sums(sums, c);
  uint32_t fragments[8][4];
  if constexpr (!by_rows) load_fragments<T>(fragments, a);
  if constexpr (by_rows) {
    start_by_rows<T>(sums);
  } else if constexpr (form == Form::rows_by_registers) {
    start_by_rows<T>(sums, fragments);
  } else if constexpr (form == Form::two_commits) {
    float more[16][4];
    load_sums(more, c);
    start_by_rows<T>(sums);
    start_by_registers<T>(more, fragments);
    cuda::wait_for_products<1>();
    cuda::fence_registers(sums);
    store_sums(d + 64 * blockDim.x, sums);
    cuda::wait_for_products<0>();
    cuda::fence_registers(more);
    store_sums(d, more);
    return;
  } else {
    start_by_registers<T>(sums, fragments);
  }
  cuda::wait_for_products<0>();
  cuda::fence_registers(sums);
  store_sums(d, sums);
#endif
}

template <class T, Form form>
Twin product_twin(const char* name) {
  return {.name = name,
          .rounds = 4,
          .needs_sm_90 = true,
          .draw =
              [](std::mt19937& random) {
                Words a = whole_numbers<T>(random, matrix_words);
                Words b = whole_numbers<T>(random, matrix_words);
                return Inputs{std::move(a), std::move(b), whole_floats(random, rows * columns)};
              },
          .run =
              [](const Runner& runner, const Inputs& in) {
                constexpr int threads = warpgroups * warpgroup_threads;
                constexpr size_t words =
                    columns_of(form) / 2 * threads * (form == Form::two_commits ? 2 : 1);
                const auto* const a = runner.bring<const uint32_t>(in[0]);
                const auto* const b = runner.bring<const uint32_t>(in[1]);
                auto* const d = runner.room<float>(words);
                runner.run(product<T, form>, threads, product_shared, map_of_matrix(a),
                           map_of_matrix(b), a, runner.bring<const float>(in[2]), d);
                return runner.fetch(d, words);
              }};
}

// --- mbarriers ---

constexpr int phases = 12;

/// In each phase, every warp writes 32 words, waits until all warps have arrived, and reads the
/// words of the next warp. Even phases use the first barrier and buffer, odd phases the second.
__global__ void exchange(const uint32_t* from, uint32_t* to) {
#if ZG_HOPPER
  constexpr int warps = 4, buffer_words = warps * 32;
  auto* const shared = cuda::dynamic_shared<uint32_t>();
  const cuda::SharedAddress barriers = cuda::dynamic_address() + 2 * buffer_words * 4;
  const int thread = static_cast<int>(threadIdx.x), next = (thread + 32) % buffer_words;
  if (thread == 0)
    for (int i = 0; i < 2; ++i) cuda::init_barrier(barriers + i * 8, warps);
  __syncthreads();
  cuda::wait_for_phase(barriers, 1);  // does not wait: the barrier is new
  uint32_t mine = from[thread];
  for (int i = 0; i < phases; ++i) {
    shared[i % 2 * buffer_words + thread] = mine;
    __syncwarp();
    if (thread % 32 == 0) cuda::arrive(barriers + i % 2 * 8);
    cuda::wait_for_phase(barriers + i % 2 * 8, static_cast<unsigned>(i / 2 % 2));
    mine = mine * 2654435761u + shared[i % 2 * buffer_words + next];
    to[i * buffer_words + thread] = mine;
  }
#endif
}

Twin exchange_twin() {
  constexpr int threads = 128;
  return {.name = "mbarrier.phases",
          .rounds = 8,
          .needs_sm_90 = true,
          .draw = [](std::mt19937& random) { return Inputs{random_words(random, threads)}; },
          .run =
              [](const Runner& runner, const Inputs& in) {
                auto* const to = runner.room<uint32_t>(phases * threads);
                runner.run(exchange, threads, 2 * threads * 4 + 16,
                           runner.bring<const uint32_t>(in[0]), to);
                return runner.fetch(to, phases * threads);
              }};
}

constexpr int pipeline_threads = 3 * warpgroup_threads, stages = 2, steps = 9, step_rows = 16;
constexpr int step_bytes = step_rows * panel_row_bytes;

/// One thread loads boxes to two buffers in turns. Two warpgroups compute a hash of the boxes'
/// words, hash * 31 + word, which depends on the order of the words. The warpgroups change their
/// number of registers as those of attention_hopper.cu do.
__global__ void __launch_bounds__(pipeline_threads, 1)
    pipeline(const __grid_constant__ CUtensorMap map, uint32_t* to) {
#if ZG_HOPPER
  const cuda::SharedAddress buffers = cuda::dynamic_address();
  const cuda::SharedAddress full = buffers + stages * step_bytes, empty = full + stages * 8;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      cuda::init_barrier(full + stage * 8, 1);
      cuda::init_barrier(empty + stage * 8, 2 * warpgroup_threads / 32);
    }
    cuda::fence_barrier_init();
  }
  __syncthreads();
  if (thread < warpgroup_threads) {
    cuda::decrease_registers<24>();
    for (int i = 0; i < steps && thread == 0; ++i) {
      const int stage = i % stages;
      cuda::wait_for_phase(empty + stage * 8, static_cast<unsigned>(i / stages % 2) ^ 1);
      cuda::arrive_expecting(full + stage * 8, step_bytes);
      cuda::copy_box(buffers + stage * step_bytes, map, 0, i * step_rows, 0, 0, full + stage * 8);
    }
    return;
  }
  cuda::increase_registers<240>();
  const int mine = thread - warpgroup_threads;
  const auto* const shared = cuda::dynamic_shared<uint32_t>();
  uint32_t hash = 0;
  for (int i = 0; i < steps; ++i) {
    const int stage = i % stages;
    cuda::wait_for_phase(full + stage * 8, static_cast<unsigned>(i / stages % 2));
    for (int word = mine; word < step_bytes / 4; word += 2 * warpgroup_threads)
      hash = hash * 31 + shared[stage * step_bytes / 4 + word];
    __syncwarp();
    if (thread % 32 == 0) cuda::arrive(empty + stage * 8);
  }
  to[mine] = hash;
#endif
}

Twin pipeline_twin() {
  constexpr uint32_t Y = steps * step_rows - 5;  // the last box ends after the tensor's last row
  return {
      .name = "mbarrier.pipeline",
      .rounds = 8,
      .needs_sm_90 = true,
      .draw = [](std::mt19937& random) { return Inputs{random_words(random, Y * columns / 2)}; },
      .run =
          [](const Runner& runner, const Inputs& in) {
            const BoxCase box = {.extents = {panel_columns, Y, 1, 1},
                                 .strides = {columns, columns * Y, columns * Y},
                                 .box_rows = step_rows};
            auto* const to = runner.room<uint32_t>(2 * warpgroup_threads);
            runner.run(pipeline, pipeline_threads, stages * step_bytes + 2 * stages * 8,
                       map_of(runner.bring<const uint32_t>(in[0]), box), to);
            return runner.fetch(to, 2 * warpgroup_threads);
          }};
}

}  // namespace

std::vector<Twin> hopper_twins() {
  return {{.name = "tma.box", .rounds = 48, .needs_sm_90 = true, .draw = draw_box, .run = run_box},
          exchange_twin(),
          pipeline_twin(),
          product_twin<bf16, Form::rows_64>("wgmma.n64.bf16"),
          product_twin<f16, Form::rows_64>("wgmma.n64.f16"),
          product_twin<bf16, Form::rows>("wgmma.n128.bf16"),
          product_twin<f16, Form::rows>("wgmma.n128.f16"),
          product_twin<bf16, Form::rows_by_registers>("wgmma.n64.bf16.registers.rows"),
          product_twin<f16, Form::rows_by_registers>("wgmma.n64.f16.registers.rows"),
          product_twin<bf16, Form::registers_64>("wgmma.n64.bf16.registers"),
          product_twin<f16, Form::registers_64>("wgmma.n64.f16.registers"),
          product_twin<bf16, Form::registers_128>("wgmma.n128.bf16.registers"),
          product_twin<f16, Form::registers_128>("wgmma.n128.f16.registers"),
          product_twin<bf16, Form::two_commits>("wgmma.two_commits.bf16"),
          product_twin<f16, Form::two_commits>("wgmma.two_commits.f16")};
}

}  // namespace zg::twins
