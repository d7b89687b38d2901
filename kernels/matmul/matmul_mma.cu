#include "zerograd/kernels/cuda/mma.cuh"
#include "zerograd/kernels/matmul/matmul.cuh"

// c [M, N] = a [M, K] b [K, N] of bf16 or f16 on the tensor cores, for any shape, stride and
// transpose. Bound by the tensor cores if M, N and K are large, by memory if one of them is small.
//
// A block of 4 warps computes one square tile of c, 128 or 64 on a side; each warp computes a
// quarter of it in registers. The block iterates along K in steps of 64. Shared memory has 3
// buffers for steps of a and b: while one is multiplied, the copies of the next two are in flight.
// Each element of c is summed along K in the same order for every tile size, so the bits do not
// depend on it.
namespace zg::cuda {
namespace {

constexpr int warps = 4, threads = lanes * warps;
constexpr int depth = 64;     // elements along K in a step
constexpr int stages = 3;     // steps in shared memory
constexpr int c_padding = 8;  // floats after each row of the tile of c, against bank conflicts

/// Loads an operand step by step. A step is `tile_side` rows of a, or columns of b, by `depth`
/// elements along K. Shared memory keeps the order of global memory: [tile_side, depth], or for a
/// `k_strided` operand, whose rows run across K, [depth, tile_side]. Elements beyond its edges are
/// 0.
template <class T, int tile_side, bool k_strided>
struct Loader {
  static constexpr int rows = k_strided ? depth : tile_side, width = k_strided ? tile_side : depth;
  static constexpr int bytes = bytes_of_rows<width>(rows);
  static constexpr int row_vectors = width / vector_elements, rows_per_pass = threads / row_vectors;
  static_assert(rows_per_pass % 8 == 0);  // all rows of a thread have the same swizzle

  const T* data;  // the thread's first vector of the next step
  int64_t row_stride;
  int row, column;
  int64_t rows_left, columns_left;  // from `data` to the end of the operand
  bool aligned;

  __device__ Loader(const Operand& from, int64_t item, int64_t first, int64_t extent, int64_t K)
      : row_stride(from.row_stride),
        row(static_cast<int>(threadIdx.x) / row_vectors),
        column(static_cast<int>(threadIdx.x) % row_vectors),
        rows_left((k_strided ? K : extent - first) - row),
        columns_left((k_strided ? extent - first : K) - column * vector_elements) {
    const T* const start = static_cast<const T*>(from.data) + item * from.item_stride;
    aligned = reinterpret_cast<uintptr_t>(start) % 16 == 0 && row_stride % vector_elements == 0;
    data = start + first * from.along_rows() + row * row_stride + column * vector_elements;
  }

  /// Starts to copy the next step to shared memory. If rows do not begin at multiples of 16 bytes,
  /// gathers the elements and stores them at once.
  __device__ void load_step(SharedAddress matrix) {
    const SharedAddress to = vector_address<width>(matrix, row, column);
    const int count =
        static_cast<int>(min(max(columns_left, int64_t{0}), int64_t{vector_elements}));
    const T* from = data;
#pragma unroll
    for (int i = 0; i < rows; i += rows_per_pass, from += rows_per_pass * row_stride) {
      const int valid = i < rows_left ? count : 0;
      const SharedAddress destination = to + bytes_of_rows<width>(i);
      if (aligned)
        copy_async(destination, from, valid * 2);
      else
        store_shared(destination, gather(from, valid));
    }
    data += k_strided ? depth * row_stride : depth;
    (k_strided ? rows_left : columns_left) -= depth;
  }

 private:
  __device__ static Vec<uint32_t, 4> gather(const T* from, int valid) {
    Vec<uint32_t, 4> all;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 2 * i < valid ? from[2 * i].bits : 0;
      const uint32_t high = 2 * i + 1 < valid ? from[2 * i + 1].bits : 0;
      all.v[i] = low | high << 16;
    }
    return all;
  }
};

/// Sizes for warps with `tiles` * 16 rows and as many columns of c. The tile of c uses the buffers'
/// memory after the last step.
template <class T, int tiles, bool a_k_strided, bool b_k_strided>
struct Tiling {
  static constexpr int tile_side = 2 * 16 * tiles;
  using A = Loader<T, tile_side, a_k_strided>;
  using B = Loader<T, tile_side, b_k_strided>;
  static constexpr int stage = A::bytes + B::bytes, c_width = tile_side + c_padding;
  static constexpr size_t shared = std::max<size_t>(stages * stage, tile_side* c_width * 4);
};

template <class T, int tiles, bool a_k_strided, bool b_k_strided>
__device__ inline void multiply_step(float (&sums)[tiles][2 * tiles][4], SharedAddress a_step,
                                     SharedAddress b_step, int row, int column) {
  using P = Tiling<T, tiles, a_k_strided, b_k_strided>;
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
      if constexpr (a_k_strided)
        load_a_by_columns<P::A::width>(a[i], a_step, row + 16 * i, k);
      else
        load_a<P::A::width>(a[i], a_step, row + 16 * i, k);
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      uint32_t b[4];
      if constexpr (b_k_strided)
        load_b_by_rows<P::B::width>(b, b_step, k, column / 16 + n);
      else
        load_b_by_columns<P::B::width>(b, b_step, column + 16 * n, k);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(sums[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(sums[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

template <class T, int tiles, bool a_k_strided, bool b_k_strided>
__global__ void __launch_bounds__(threads, 2) multiply(Product p) {
  using P = Tiling<T, tiles, a_k_strided, b_k_strided>;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  // The first row and column of the warp's quarter of the tile.
  const int row = warp / 2 * 16 * tiles, column = warp % 2 * 16 * tiles;
  const int64_t m0 = int64_t{blockIdx.y} * P::tile_side, n0 = int64_t{blockIdx.x} * P::tile_side;
  const SharedAddress buffers = dynamic_address();
  float* const c_tile = dynamic_shared<float>();
  for (int64_t item = blockIdx.z; item < p.batch; item += gridDim.z) {
    typename P::A a(p.a, item, m0, p.M, p.K);
    typename P::B b(p.b, item, n0, p.N, p.K);
    const auto load_step = [&](int stage) {
      a.load_step(buffers + stage * P::stage);
      b.load_step(buffers + stage * P::stage + P::A::bytes);
    };
    float sums[tiles][2 * tiles][4] = {};
    int stage = 0;
    for (int i = 0; i < stages - 1; ++i) {
      if (i * depth < p.K) load_step(i);
      commit_copies();
    }
    for (int64_t k = 0; k < p.K; k += depth) {
      wait_for_copies<stages - 2>();
      __syncthreads();  // step k has arrived for all, and the buffer that is loaded next is free
      if (k + (stages - 1) * depth < p.K) load_step(stage == 0 ? stages - 1 : stage - 1);
      commit_copies();
      const SharedAddress buffer = buffers + stage * P::stage;
      multiply_step<T, tiles, a_k_strided, b_k_strided>(sums, buffer, buffer + P::A::bytes, row,
                                                        column);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    __syncthreads();
    // The tile passes through shared memory, so that a warp writes consecutive elements of c.
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int n = 0; n < 2 * tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          c_tile[(row + i * 16 + e / 2 * 8 + lane / 4) * P::c_width + column + n * 8 +
                 lane % 4 * 2 + e % 2] = sums[i][n][e];
    __syncthreads();
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < P::tile_side * P::tile_side; at += threads) {
      const int64_t m = m0 + at / P::tile_side, n = n0 + at % P::tile_side;
      if (m < p.M && n < p.N)
        finish<T>(p, c_tile[at / P::tile_side * P::c_width + at % P::tile_side], item, m, n);
    }
    __syncthreads();
  }
}

template <class T, int tiles>
void run(const Product& p, const Work& work, Stream& stream) {
  const auto with = [&]<bool a_k_strided, bool b_k_strided>() {
    using P = Tiling<T, tiles, a_k_strided, b_k_strided>;
    launch(work, multiply<T, tiles, a_k_strided, b_k_strided>,
           {blocks_of(p, P::tile_side), dim3(threads), P::shared}, stream, p);
  };
  if (p.a.k_strided)
    p.b.k_strided ? with.template operator()<true, true>()
                  : with.template operator()<true, false>();
  else
    p.b.k_strided ? with.template operator()<false, true>()
                  : with.template operator()<false, false>();
}

}  // namespace

void mma_matmul(DType dtype, const Product& p, const Work& work, Stream& stream) {
  // Tiles of 128 if there are enough for all multiprocessors of an H100 or H200, else tiles of 64.
  constexpr int64_t multiprocessors = 132;
  const dim3 large = blocks_of(p, 128);
  const bool many = int64_t{large.x} * large.y * large.z >= multiprocessors;
  const auto with = [&]<class T>(T) {
    many ? run<T, 4>(p, work, stream) : run<T, 2>(p, work, stream);
  };
  dtype == DType::bf16 ? with(bf16()) : with(f16());
}

}  // namespace zg::cuda
