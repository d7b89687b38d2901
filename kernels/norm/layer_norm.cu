#include "zerograd/kernels/norm/layer_norm.h"

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/cuda/workspace.h"

// LayerNorm and RMSNorm over rows x [N, C]. Memory bound: forward reads x and writes y once,
// backward reads x and dy and writes dx once.
//
// norm_forward and norm_backward give a row to a team of threads: one warp for short rows (up to
// 1024 columns of bf16), else the eight warps of a block. A thread handles vectors of V elements,
// every `threads` vectors. If a row `fits`, each thread keeps its elements in registers; longer
// rows are read again, mostly from the cache. dgamma and dbeta are sums over rows. Each block adds
// the rows [begin, end) that NormBlocks gives it and writes its sums to scratch [blocks, C];
// add_blocks adds the blocks in order. Rows that do not fit have no registers for these sums:
// norm_columns computes them in a launch of its own.
namespace zg::cuda {
namespace {

constexpr int kept_vectors = 4;  // vectors of a row that a thread keeps in registers
constexpr int wide_warps = 8;    // warps for a row of many columns
constexpr int warps_of_block = 8;
constexpr int column_threads = 64;  // of norm_columns: few, so that all columns make many blocks

/// The columns of a thread: vectors of V columns; vector i begins at column at(i).
template <int V, int threads>
struct Columns {
  int first;  ///< index of the thread within its team
  int C;
  __device__ int count() const { return (C + V * threads - 1) / (V * threads); }
  __device__ int at(int i) const { return (first + i * threads) * V; }
};

/// The elements of a row in a thread's columns: in registers if the row fits, else in memory.
template <class T, int V, int threads, bool fits>
struct ThreadColumns {
  const T* row;
  Columns<V, threads> columns;
  Vec<T, V> values[fits ? kept_vectors : 1];

  __device__ ThreadColumns(const T* start, const Columns<V, threads>& all)
      : row(start), columns(all) {
    if constexpr (fits) {
#pragma unroll
      for (int i = 0; i < kept_vectors; ++i)
        if (columns.at(i) < columns.C) values[i] = load<V>(row + columns.at(i));
    }
  }
  /// Calls f(i, first column, elements) for each vector of the thread.
  template <class F>
  __device__ void each(const F& f) const {
    if constexpr (fits) {
#pragma unroll
      for (int i = 0; i < kept_vectors; ++i)
        if (columns.at(i) < columns.C) f(i, columns.at(i), values[i]);
    } else {
      for (int i = 0; columns.at(i) < columns.C; ++i)
        f(i, columns.at(i), load<V>(row + columns.at(i)));
    }
  }
};

struct Forward {
  const void *x, *residual, *gamma, *beta;
  void *y, *sum;
  float *mean, *rstd;
  int64_t N;
  int C;
  float epsilon;
};

template <class T, int V, int warps, bool fits, bool centred>
__global__ void __launch_bounds__(lanes* warps_of_block) norm_forward(Forward a) {
  constexpr int threads = lanes * warps, rows = warps_of_block / warps;
  const int64_t n = int64_t{blockIdx.x} * rows + threadIdx.x / threads;
  if (n >= a.N) return;  // all threads of the team together
  const Columns<V, threads> columns{static_cast<int>(threadIdx.x) % threads, a.C};
  const T* x = static_cast<const T*>(a.x) + n * a.C;
  if (a.residual) {
    // The norm reads the rounded sum, because backward will read the same values.
    const T* residual = static_cast<const T*>(a.residual) + n * a.C;
    T* sum = static_cast<T*>(a.sum) + n * a.C;
    for (int i = 0; columns.at(i) < a.C; ++i) {
      const auto left = load<V>(x + columns.at(i)), right = load<V>(residual + columns.at(i));
      Vec<T, V> both;
#pragma unroll
      for (int k = 0; k < V; ++k)
        both.v[k] = from_float<T>(to_float(left.v[k]) + to_float(right.v[k]));
      store(sum + columns.at(i), both);
    }
    x = sum;  // each thread reads back what it wrote
  }
  const ThreadColumns<T, V, threads, fits> row(x, columns);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  float mean = 0.0f;
  if constexpr (centred) {
    row.each([&](int, int, const Vec<T, V>& values) {
#pragma unroll
      for (int k = 0; k < V; ++k) mean += to_float(values.v[k]);
    });
    mean = block_sum<warps>(mean) * inverse_C;
  }
  float squares = 0.0f;
  row.each([&](int, int, const Vec<T, V>& values) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float d = to_float(values.v[k]) - mean;
      squares = fmaf(d, d, squares);
    }
  });
  const float rstd = rsqrtf(fmaf(block_sum<warps>(squares), inverse_C, a.epsilon));
  const T *gamma = static_cast<const T*>(a.gamma), *beta = static_cast<const T*>(a.beta);
  T* y = static_cast<T*>(a.y) + n * a.C;
  row.each([&](int, int column, const Vec<T, V>& values) {
    const auto g = load<V>(gamma + column);
    const auto b = beta ? load<V>(beta + column) : Vec<T, V>{};
    Vec<T, V> result;
#pragma unroll
    for (int k = 0; k < V; ++k)
      result.v[k] = from_float<T>(
          fmaf((to_float(values.v[k]) - mean) * rstd, to_float(g.v[k]), to_float(b.v[k])));
    store(y + column, result);
  });
  if (threadIdx.x % threads == 0) {
    if constexpr (centred) a.mean[n] = mean;
    a.rstd[n] = rstd;
  }
}

struct Backward {
  const void *dy, *x, *gamma, *dsum;
  const float *mean, *rstd;
  void* dx;
  float *dgamma, *dbeta;  // [blocks, C] each: sums over a block's rows; may be null
  int64_t N, rows;        // rows of a block
  int C;
};

/// Adds the column sums of the block's teams, in the order of their index, and writes them to
/// `out`. Each team has added its rows in rising order.
template <int V, int threads, bool fits>
__device__ void write_column_sums(float (&sums)[fits ? kept_vectors * V : 1],
                                  const Columns<V, threads>& columns, float* out) {
  if constexpr (fits) {
    constexpr int groups = lanes * warps_of_block / threads;
    __shared__ float exchange[groups > 1 ? lanes * warps_of_block : 1];
    const int group = static_cast<int>(threadIdx.x) / threads;
#pragma unroll
    for (int i = 0; i < kept_vectors; ++i) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        float total = sums[i * V + k];
        if constexpr (groups > 1) {
          __syncthreads();
          exchange[threadIdx.x] = total;
          __syncthreads();
          total = 0.0f;
          if (group == 0)
            for (int g = 0; g < groups; ++g) total += exchange[g * threads + columns.first];
        }
        if (group == 0 && columns.at(i) < columns.C) out[columns.at(i) + k] = total;
      }
    }
  }
}

template <class T, int V, int warps, bool fits, bool centred>
__global__ void __launch_bounds__(lanes* warps_of_block) norm_backward(Backward a) {
  constexpr int threads = lanes * warps, groups = warps_of_block / warps;
  const Columns<V, threads> columns{static_cast<int>(threadIdx.x) % threads, a.C};
  const T* gamma = static_cast<const T*>(a.gamma);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  float gamma_sums[fits ? kept_vectors * V : 1] = {}, beta_sums[fits ? kept_vectors * V : 1] = {};
  const int64_t begin = int64_t{blockIdx.x} * a.rows;
  const int64_t end = begin + a.rows < a.N ? begin + a.rows : a.N;
  for (int64_t n = begin + threadIdx.x / threads; n < end; n += groups) {
    const ThreadColumns<T, V, threads, fits> x(static_cast<const T*>(a.x) + n * a.C, columns);
    const ThreadColumns<T, V, threads, fits> dy(static_cast<const T*>(a.dy) + n * a.C, columns);
    const float mean = centred ? a.mean[n] : 0.0f, rstd = a.rstd[n];
    float sum_g = 0.0f, sum_gs = 0.0f;
    dy.each([&](int i, int column, const Vec<T, V>& d) {
      const auto g = load<V>(gamma + column);
      const auto v = fits ? x.values[fits ? i : 0] : load<V>(x.row + column);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float slope = to_float(d.v[k]);
        const float scaled = (to_float(v.v[k]) - mean) * rstd;
        const float weighted = slope * to_float(g.v[k]);
        sum_g += weighted;
        sum_gs = fmaf(weighted, scaled, sum_gs);
        if constexpr (fits) {
          gamma_sums[i * V + k] = fmaf(slope, scaled, gamma_sums[i * V + k]);
          beta_sums[i * V + k] += slope;
        }
      }
    });
    const float mean_g = centred ? block_sum<warps>(sum_g) * inverse_C : 0.0f;
    const float mean_gs = block_sum<warps>(sum_gs) * inverse_C;
    const T* dsum = a.dsum ? static_cast<const T*>(a.dsum) + n * a.C : nullptr;
    T* dx = static_cast<T*>(a.dx) + n * a.C;
    dy.each([&](int i, int column, const Vec<T, V>& d) {
      const auto g = load<V>(gamma + column);
      const auto v = fits ? x.values[fits ? i : 0] : load<V>(x.row + column);
      const auto direct = dsum ? load<V>(dsum + column) : Vec<T, V>{};
      Vec<T, V> result;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float scaled = (to_float(v.v[k]) - mean) * rstd;
        const float weighted = to_float(d.v[k]) * to_float(g.v[k]);
        result.v[k] =
            from_float<T>(fmaf(weighted - mean_g - scaled * mean_gs, rstd, to_float(direct.v[k])));
      }
      store(dx + column, result);
    });
  }
  float* const dgamma_sums = a.dgamma ? a.dgamma + int64_t{blockIdx.x} * a.C : nullptr;
  if (dgamma_sums) write_column_sums<V, threads, fits>(gamma_sums, columns, dgamma_sums);
  float* const dbeta_sums = a.dbeta ? a.dbeta + int64_t{blockIdx.x} * a.C : nullptr;
  if (dbeta_sums) write_column_sums<V, threads, fits>(beta_sums, columns, dbeta_sums);
}

/// dgamma and dbeta of rows that do not fit registers: one thread for V columns and a block of
/// rows.
template <class T, int V, bool centred>
__global__ void __launch_bounds__(column_threads) norm_columns(Backward a) {
  const int c = static_cast<int>(blockIdx.y * column_threads + threadIdx.x) * V;
  if (c >= a.C) return;
  const int64_t begin = int64_t{blockIdx.x} * a.rows;
  const int64_t end = begin + a.rows < a.N ? begin + a.rows : a.N;
  Vec<float, V> gamma_sums = {}, beta_sums = {};
  for (int64_t n = begin; n < end; ++n) {
    const auto slopes = load<V>(static_cast<const T*>(a.dy) + n * a.C + c);
    const auto values = load<V>(static_cast<const T*>(a.x) + n * a.C + c);
    const float mean = centred ? a.mean[n] : 0.0f, rstd = a.rstd[n];
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float slope = to_float(slopes.v[k]), scaled = (to_float(values.v[k]) - mean) * rstd;
      gamma_sums.v[k] = fmaf(slope, scaled, gamma_sums.v[k]);
      beta_sums.v[k] += slope;
    }
  }
  if (a.dgamma) store(a.dgamma + int64_t{blockIdx.x} * a.C + c, gamma_sums);
  if (a.dbeta) store(a.dbeta + int64_t{blockIdx.x} * a.C + c, beta_sums);
}

/// out[c] = the sum over blocks of parts[block, c], in rising order; and the same of the second
/// parts, which follow the first, by the blocks with blockIdx.y == 1.
__global__ void __launch_bounds__(256)
    add_blocks(const float* parts, float* out, float* second_out, int64_t blocks, int C) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= C) return;
  const float* const own = parts + blockIdx.y * blocks * C;
  float sum = 0.0f;
  for (int64_t b = 0; b < blocks; ++b) sum += own[b * C + c];
  (blockIdx.y == 0 ? out : second_out)[c] = sum;
}

/// Calls f(V, warps, fits), integral constants, for rows of C columns. Without alignment V is 1.
template <class T, class F>
void choose(bool vectors, int C, const F& f) {
  const auto with_width = [&](auto width) {
    constexpr int V = decltype(width)::value;
    using Yes = std::true_type;
    if (C <= V * lanes * kept_vectors)
      f(width, std::integral_constant<int, 1>(), Yes());
    else if (C <= V * lanes * wide_warps * kept_vectors)
      f(width, std::integral_constant<int, wide_warps>(), Yes());
    else
      f(width, std::integral_constant<int, wide_warps>(), std::false_type());
  };
  if (vectors)
    with_width(std::integral_constant<int, vector_width<T>>());
  else
    with_width(std::integral_constant<int, 1>());
}

template <class T>
bool aligned(const Tensor& tensor, int64_t C) {
  return !tensor || takes_vectors(reinterpret_cast<const T*>(tensor.raw()), C);
}

template <bool centred>
void forward(const char* name, const Forward& a, int64_t bytes, DType dtype,
             std::initializer_list<const Tensor*> tensors, Stream& stream) {
  visit_floating(dtype, [&]<class T>(T) {
    bool vectors = true;
    for (const Tensor* tensor : tensors) vectors = vectors && aligned<T>(*tensor, a.C);
    choose<T>(vectors, a.C, [&](auto V, auto warps, auto fits) {
      launch(
          {name, "norm_forward", bytes, a.N * a.C},
          norm_forward<T, decltype(V)::value, decltype(warps)::value, decltype(fits)::value,
                       centred>,
          {blocks_for(a.N, warps_of_block / decltype(warps)::value), dim3(lanes * warps_of_block)},
          stream, a);
    });
  });
}

template <bool centred>
void backward(const char* name, Backward a, int64_t bytes, const Tensor& dgamma,
              const Tensor& dbeta, DType dtype, std::initializer_list<const Tensor*> tensors,
              Workspace workspace, Stream& stream) {
  const NormBlocks cut(a.N);
  a.rows = cut.rows;
  float* scratch = reinterpret_cast<float*>(workspace.data);
  a.dgamma = dgamma ? scratch : nullptr;
  a.dbeta = dbeta ? scratch + (dgamma ? cut.blocks * a.C : 0) : nullptr;
  // Partial sums are written by one kernel and read by another.
  const int64_t bytes_of_sums =
      ((dgamma ? 1 : 0) + (dbeta ? 1 : 0)) * cut.blocks * a.C * int64_t{sizeof(float)};
  visit_floating(dtype, [&]<class T>(T) {
    bool vectors = true;
    for (const Tensor* tensor : tensors) vectors = vectors && aligned<T>(*tensor, a.C);
    choose<T>(vectors, a.C, [&](auto V, auto warps, auto fits) {
      constexpr bool row_fits = decltype(fits)::value;
      const dim3 blocks(static_cast<unsigned>(cut.blocks));
      launch({name, "norm_backward", bytes + (row_fits ? bytes_of_sums : 0), a.N * a.C},
             norm_backward<T, decltype(V)::value, decltype(warps)::value, row_fits, centred>,
             {blocks, dim3(lanes * warps_of_block)}, stream, a);
      if (!row_fits && (dgamma || dbeta))
        launch({name, "norm_columns",
                2 * a.N * (a.C * int64_t{sizeof(T)} + int64_t{sizeof(float)}) + bytes_of_sums,
                a.N * a.C},
               norm_columns<T, decltype(V)::value, centred>,
               {dim3(blocks.x, blocks_for(a.C, column_threads * V).x), dim3(column_threads)},
               stream, a);
    });
  });
  const Tensor &first = dgamma ? dgamma : dbeta, &second = dgamma ? dbeta : dgamma;
  const unsigned outputs = (first ? 1u : 0u) + (second ? 1u : 0u);
  if (outputs == 0) return;
  launch({name, "add_blocks", outputs * (cut.blocks + 1) * a.C * int64_t{sizeof(float)},
          outputs * cut.blocks * a.C},
         add_blocks, {dim3(blocks_for(a.C, 256).x, outputs), dim3(256)}, stream,
         static_cast<const float*>(scratch), first.data<float>(),
         second ? second.data<float>() : nullptr, cut.blocks, a.C);
}

float* floats(const Tensor& tensor) { return tensor ? tensor.data<float>() : nullptr; }

}  // namespace

void layer_norm_forward(const LayerNormForward& a, Workspace, Stream& stream) {
  forward<true>("layer_norm_forward",
                {.x = a.x.raw(),
                 .residual = a.residual.raw(),
                 .gamma = a.gamma.raw(),
                 .beta = a.beta.raw(),
                 .y = a.y.raw(),
                 .sum = a.sum.raw(),
                 .mean = floats(a.mean),
                 .rstd = floats(a.rstd),
                 .N = a.x.extent(0),
                 .C = static_cast<int>(a.x.extent(1)),
                 .epsilon = a.epsilon},
                operand_bytes(a), a.x.dtype(), {&a.x, &a.residual, &a.gamma, &a.beta, &a.y, &a.sum},
                stream);
}

void rms_norm_forward(const RmsNormForward& a, Workspace, Stream& stream) {
  forward<false>("rms_norm_forward",
                 {.x = a.x.raw(),
                  .gamma = a.gamma.raw(),
                  .y = a.y.raw(),
                  .rstd = floats(a.rstd),
                  .N = a.x.extent(0),
                  .C = static_cast<int>(a.x.extent(1)),
                  .epsilon = a.epsilon},
                 operand_bytes(a), a.x.dtype(), {&a.x, &a.gamma, &a.y}, stream);
}

void layer_norm_backward(const LayerNormBackward& a, Workspace workspace, Stream& stream) {
  backward<true>("layer_norm_backward",
                 {.dy = a.dy.raw(),
                  .x = a.x.raw(),
                  .gamma = a.gamma.raw(),
                  .dsum = a.dsum.raw(),
                  .mean = floats(a.mean),
                  .rstd = floats(a.rstd),
                  .dx = a.dx.raw(),
                  .N = a.x.extent(0),
                  .C = static_cast<int>(a.x.extent(1))},
                 bytes_of({&a.dy, &a.x, &a.gamma, &a.mean, &a.rstd, &a.dsum, &a.dx}), a.dgamma,
                 a.dbeta, a.x.dtype(), {&a.x, &a.dy, &a.gamma, &a.dsum, &a.dx}, workspace, stream);
}

void rms_norm_backward(const RmsNormBackward& a, Workspace workspace, Stream& stream) {
  backward<false>("rms_norm_backward",
                  {.dy = a.dy.raw(),
                   .x = a.x.raw(),
                   .gamma = a.gamma.raw(),
                   .rstd = floats(a.rstd),
                   .dx = a.dx.raw(),
                   .N = a.x.extent(0),
                   .C = static_cast<int>(a.x.extent(1))},
                  bytes_of({&a.dy, &a.x, &a.gamma, &a.rstd, &a.dx}), a.dgamma, Tensor(),
                  a.x.dtype(), {&a.x, &a.dy, &a.gamma, &a.dx}, workspace, stream);
}

}  // namespace zg::cuda
