#include "zerograd/kernels/cuda/mma.cuh"
#include "zerograd/kernels/matmul/matmul.cuh"

// Products of bf16 and f16 by the tensor cores, of any shape and stride. A block makes one tile of
// c, a warp a quarter of it; parts of a and b come to shared memory two steps along K before they
// are multiplied. An element of c is the same sum whatever tile it falls in.
namespace zg::cuda {
namespace {

constexpr int warps = 4, threads = lanes * warps;
constexpr int depth = 64, stages = 3;  // along K: of a step, and steps in shared memory
constexpr int panel_gap = 8;           // floats between rows of c, so that they use every bank

/// A step's part of an operand: `side` rows of c (of a) or columns (of b) by `depth`, as they lie
/// in memory, zeros beyond the edges.
template <class T, int side, bool across>
struct Part {
  static constexpr int rows = across ? depth : side, width = across ? side : depth;
  static constexpr int bytes = bytes_of_rows<width>(rows);
  static constexpr int pieces = width / piece, rows_of_step = threads / pieces;
  static_assert(rows_of_step % 8 == 0);  // a step keeps the crossing of pieces

  const T* data;  // where the thread's first piece begins in the step after the last
  int64_t distance;
  int row, column;
  int64_t rows_left, columns_left;  // from the thread's first element to the operand's end
  bool aligned;

  __device__ Part(const Operand& from, int64_t item, int64_t first, int64_t extent, int64_t K)
      : distance(from.distance),
        row(static_cast<int>(threadIdx.x) / pieces),
        column(static_cast<int>(threadIdx.x) % pieces),
        rows_left((across ? K : extent - first) - row),
        columns_left((across ? extent - first : K) - column * piece) {
    const T* const start = static_cast<const T*>(from.data) + item * from.stride;
    aligned = reinterpret_cast<uintptr_t>(start) % 16 == 0 && distance % piece == 0;
    data = start + first * from.along_rows() + row * distance + column * piece;
  }

  /// The next step's, on its way or, where pieces begin anywhere, there at once.
  __device__ void bring(SharedAddress matrix) {
    const SharedAddress to = piece_at<width>(matrix, row, column);
    const int count = static_cast<int>(min(max(columns_left, int64_t{0}), int64_t{piece}));
    const T* from = data;
#pragma unroll
    for (int i = 0; i < rows; i += rows_of_step, from += rows_of_step * distance) {
      const int valid = i < rows_left ? count : 0;
      const SharedAddress place = to + bytes_of_rows<width>(i);
      if (aligned)
        copy_async(place, from, valid * 2);
      else
        store_shared(place, gather(from, valid));
    }
    data += across ? depth * distance : depth;
    (across ? rows_left : columns_left) -= depth;
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

/// `tiles` times 16 rows and columns of c a warp.
template <class T, int tiles, bool a_across, bool b_across>
struct Plan {
  static constexpr int side = 2 * 16 * tiles;
  using A = Part<T, side, a_across>;
  using B = Part<T, side, b_across>;
  static constexpr int stage = A::bytes + B::bytes, panel_width = side + panel_gap;
  static constexpr size_t shared = std::max<size_t>(stages * stage, side* panel_width * 4);
};

template <class T, int tiles, bool a_across, bool b_across>
__device__ inline void multiply_step(float (&sums)[tiles][2 * tiles][4], SharedAddress a_part,
                                     SharedAddress b_part, int row, int column) {
  using P = Plan<T, tiles, a_across, b_across>;
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
      if constexpr (a_across)
        load_a_by_columns<P::A::width>(a[i], a_part, row + 16 * i, k);
      else
        load_a<P::A::width>(a[i], a_part, row + 16 * i, k);
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      uint32_t b[4];
      if constexpr (b_across)
        load_b_by_rows<P::B::width>(b, b_part, k, column / 16 + n);
      else
        load_b_by_columns<P::B::width>(b, b_part, column + 16 * n, k);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(sums[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(sums[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

template <class T, int tiles, bool a_across, bool b_across>
__global__ void __launch_bounds__(threads, 2) multiply(Product p) {
  using P = Plan<T, tiles, a_across, b_across>;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int row = warp / 2 * 16 * tiles, column = warp % 2 * 16 * tiles;  // the warp's, of the tile
  const int64_t m0 = int64_t{blockIdx.y} * P::side, n0 = int64_t{blockIdx.x} * P::side;
  const SharedAddress parts = dynamic_address();
  float* const panel = dynamic_shared<float>();
  for (int64_t item = blockIdx.z; item < p.batch; item += gridDim.z) {
    typename P::A a(p.a, item, m0, p.M, p.K);
    typename P::B b(p.b, item, n0, p.N, p.K);
    const auto bring = [&](int stage) {
      a.bring(parts + stage * P::stage);
      b.bring(parts + stage * P::stage + P::A::bytes);
    };
    float sums[tiles][2 * tiles][4] = {};
    int stage = 0;
    for (int i = 0; i < stages - 1; ++i) {
      if (i * depth < p.K) bring(i);
      commit_copies();
    }
    for (int64_t k = 0; k < p.K; k += depth) {
      wait_for_copies<stages - 2>();
      __syncthreads();  // the step is there, and the one before has been read
      if (k + (stages - 1) * depth < p.K) bring(stage == 0 ? stages - 1 : stage - 1);
      commit_copies();
      const SharedAddress part = parts + stage * P::stage;
      multiply_step<T, tiles, a_across, b_across>(sums, part, part + P::A::bytes, row, column);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    __syncthreads();
    // By way of shared memory, so that a warp writes a row of c.
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int n = 0; n < 2 * tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          panel[(row + i * 16 + e / 2 * 8 + lane / 4) * P::panel_width + column + n * 8 +
                lane % 4 * 2 + e % 2] = sums[i][n][e];
    __syncthreads();
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < P::side * P::side; at += threads) {
      const int64_t m = m0 + at / P::side, n = n0 + at % P::side;
      if (m < p.M && n < p.N)
        finish<T>(p, panel[at / P::side * P::panel_width + at % P::side], item, m, n);
    }
    __syncthreads();
  }
}

template <class T, int tiles>
void run(const Product& p, Stream& stream) {
  const auto with = [&]<bool a_across, bool b_across>() {
    using P = Plan<T, tiles, a_across, b_across>;
    launch("matmul", multiply<T, tiles, a_across, b_across>,
           {blocks_of(p, P::side), dim3(threads), P::shared}, stream, p);
  };
  if (p.a.across)
    p.b.across ? with.template operator()<true, true>() : with.template operator()<true, false>();
  else
    p.b.across ? with.template operator()<false, true>() : with.template operator()<false, false>();
}

}  // namespace

void mma_matmul(DType dtype, const Product& p, Stream& stream) {
  // Tiles of 128 where they give every multiprocessor of an H100 or H200 one, else of 64.
  constexpr int64_t multiprocessors = 132;
  const dim3 large = blocks_of(p, 128);
  const bool many = int64_t{large.x} * large.y * large.z >= multiprocessors;
  const auto with = [&]<class T>(T) { many ? run<T, 4>(p, stream) : run<T, 2>(p, stream); };
  dtype == DType::bf16 ? with(bf16()) : with(f16());
}

}  // namespace zg::cuda
