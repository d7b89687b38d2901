#include "zerograd/kernels/norm/layer_norm.h"

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/norm/norm_blocks.h"

// LayerNorm and RMSNorm over rows x [N, C]. Memory bound: forward reads x and writes y once,
// backward reads x and dy and writes dx once.
//
// norm_forward and norm_backward give a row to a team of 1, 2, 4 or 8 of a block's 8 warps. A
// thread has up to `kept` vectors of V elements, every `threads` vectors, and keeps them in
// registers. Rows that are too long for that (more than 8192 columns of bf16; `kept` is 0) are read
// again, mostly from the cache. dgamma and dbeta are sums over rows. Each block adds the rows
// [begin, end) that NormBlocks gives it, in registers of its threads, and writes its sums to
// scratch [blocks, C]; add_blocks adds the blocks in order. For rows that do not fit, no registers
// are left for these sums; norm_columns computes them in a separate launch.
namespace zg::cuda {
namespace {

constexpr int block_warps = 8, block_threads = block_warps * lanes;
constexpr int column_threads = 64;  // of norm_columns: few, so that all columns make many blocks

/// The columns of a thread: vectors of V columns; vector i begins at column at(i).
template <int V, int threads>
struct Columns {
  int first;  ///< index of the thread within its team
  int C;      ///< 0 for a team without a row
  __device__ int at(int i) const { return (first + i * threads) * V; }
};

template <class T, int V>
__device__ inline Vec<T, V> rounded_sum(const Vec<T, V>& a, const Vec<T, V>& b) {
  Vec<T, V> sum;
#pragma unroll
  for (int k = 0; k < V; ++k) sum.v[k] = from_float<T>(to_float(a.v[k]) + to_float(b.v[k]));
  return sum;
}

/// The elements of a row in a thread's columns: in registers if the row fits, else in memory.
template <class T, int V, int threads, int kept>
struct ThreadColumns {
  const T* row;
  Columns<V, threads> columns;
  Vec<T, V> values[kept > 0 ? kept : 1];

  __device__ ThreadColumns(const T* start, const Columns<V, threads>& all)
      : row(start), columns(all) {
    if constexpr (kept > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i)
        if (columns.at(i) < columns.C) values[i] = load<V>(row + columns.at(i));
    }
  }
  /// Adds the row `other` and writes the rounded sum to `sum`.
  __device__ void add(const T* other, T* sum) {
    if constexpr (kept > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i)
        if (columns.at(i) < columns.C) {
          values[i] = rounded_sum(values[i], load<V>(other + columns.at(i)));
          store(sum + columns.at(i), values[i]);
        }
    } else {
      for (int i = 0; columns.at(i) < columns.C; ++i)
        store(sum + columns.at(i),
              rounded_sum(load<V>(row + columns.at(i)), load<V>(other + columns.at(i))));
      row = sum;  // each thread reads back what it wrote
    }
  }
  /// Forces the compiler to keep only the elements, without values computed from them so far. Their
  /// f32 would take twice the registers of 16-bit elements.
  __device__ void pack() {
#ifdef __CUDACC__
    if constexpr (kept > 0 && V > 1 && sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        auto& words = reinterpret_cast<unsigned(&)[V / 2]>(values[i]);
#pragma unroll
        for (unsigned& word : words) asm volatile("" : "+r"(word));
      }
    }
#endif
  }
  /// Calls f(i, first column, elements) for each vector of the thread.
  template <class F>
  __device__ void each(const F& f) const {
    if constexpr (kept > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i)
        if (columns.at(i) < columns.C) f(i, columns.at(i), values[i]);
    } else {
      for (int i = 0; columns.at(i) < columns.C; ++i)
        f(i, columns.at(i), load<V>(row + columns.at(i)));
    }
  }
};

struct Pair {
  float a, b;
};

/// The sums of x.a and of x.b over the thread's team. All threads of the block call it, alternately
/// with `turn` 0 and 1, so that one barrier in each call is enough.
template <int warps>
__device__ inline Pair team_sums(Pair x, int turn) {
  x = {warp_sum(x.a), warp_sum(x.b)};
  if constexpr (warps > 1) {
    __shared__ Pair parts[2][block_warps];
    const int warp = static_cast<int>(threadIdx.x) / lanes;
    if (threadIdx.x % lanes == 0) parts[turn][warp] = x;
    __syncthreads();
    const Pair* const team = parts[turn] + warp / warps * warps;
    x = team[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) x = {x.a + team[w].a, x.b + team[w].b};
  }
  return x;
}

struct Forward {
  const void *x, *residual, *gamma, *beta;
  void *y, *sum;
  float *mean, *rstd;
  int64_t N;
  int C;
  float epsilon;
};

template <class T, int V, int warps, int kept, bool centred>
__global__ void __launch_bounds__(block_threads, kept* V < 32 ? 4 : 3) norm_forward(Forward a) {
  constexpr int threads = lanes * warps, rows = block_warps / warps;
  const int64_t n = int64_t{blockIdx.x} * rows + threadIdx.x / threads;
  const bool has_row = n < a.N;
  const Columns<V, threads> columns{static_cast<int>(threadIdx.x) % threads, has_row ? a.C : 0};
  ThreadColumns<T, V, threads, kept> row(static_cast<const T*>(a.x) + n * a.C, columns);
  // The norm reads the rounded sum, because backward will read the same values.
  if (a.residual)
    row.add(static_cast<const T*>(a.residual) + n * a.C, static_cast<T*>(a.sum) + n * a.C);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  float mean = 0.0f;
  if constexpr (centred) {
    row.each([&](int, int, const Vec<T, V>& values) {
#pragma unroll
      for (int k = 0; k < V; ++k) mean += to_float(values.v[k]);
    });
    mean = team_sums<warps>({mean, 0.0f}, 0).a * inverse_C;
  }
  float squares = 0.0f;
  row.each([&](int, int, const Vec<T, V>& values) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float d = to_float(values.v[k]) - mean;
      squares = fmaf(d, d, squares);
    }
  });
  const float variance = team_sums<warps>({squares, 0.0f}, 1).a;
  const float rstd = rsqrtf(fmaf(variance, inverse_C, a.epsilon));
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
  if (has_row && columns.first == 0) {
    if constexpr (centred) a.mean[n] = mean;
    a.rstd[n] = rstd;
  }
}

struct Backward {
  const void *dy, *x, *gamma, *dsum;
  const float *mean, *rstd;
  void* dx;               // may be dsum
  float *dgamma, *dbeta;  // [blocks, C] each: sums over a block's rows; may be null
  int64_t N, rows;        // rows of a block
  int C;
  bool rounds_twice;
};

/// Adds the column sums of the block's teams, in the order of their index, and writes them to
/// `out`. Each team has added its rows in rising order.
template <int V, int threads, int kept>
__device__ void write_column_sums(const float (&sums)[kept * V], const Columns<V, threads>& columns,
                                  float* out) {
  constexpr int teams = block_threads / threads;
  __shared__ Vec<float, V> exchange[teams > 1 ? block_threads : 1];
  const float* const all = exchange[0].v;  // [teams, threads * V]
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const int begin = i * threads * V;
    if (begin >= columns.C) return;  // the whole block
    Vec<float, V> mine;
#pragma unroll
    for (int k = 0; k < V; ++k) mine.v[k] = sums[i * V + k];
    if constexpr (teams == 1) {
      if (columns.at(i) < columns.C) store(out + columns.at(i), mine);
    } else {
      __syncthreads();
      exchange[threadIdx.x] = mine;
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x); c < threads * V && begin + c < columns.C;
           c += block_threads) {
        float total = all[c];
        for (int team = 1; team < teams; ++team) total += all[team * threads * V + c];
        out[begin + c] = total;
      }
    }
  }
}

/// If registers allow, two blocks share a multiprocessor: while one waits for its rows, the other
/// computes.
template <class T, int V, int warps, int kept, bool centred>
__global__ void __launch_bounds__(block_threads, kept* V < 32 ? 2 : 1) norm_backward(Backward a) {
  constexpr int threads = lanes * warps, teams = block_warps / warps;
  const Columns<V, threads> all{static_cast<int>(threadIdx.x) % threads, a.C};
  const T* gamma = static_cast<const T*>(a.gamma);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  float gamma_sums[kept > 0 ? kept * V : 1] = {}, beta_sums[kept > 0 ? kept * V : 1] = {};
  const int64_t begin = int64_t{blockIdx.x} * a.rows;
  const int rows = static_cast<int>(begin + a.rows < a.N ? a.rows : a.N - begin);
  for (int first = 0; first < rows; first += teams) {
    const int row = first + static_cast<int>(threadIdx.x) / threads;
    const bool has_row = row < rows;
    const int64_t n = begin + row;
    const Columns<V, threads> columns{all.first, has_row ? a.C : 0};
    ThreadColumns<T, V, threads, kept> x(static_cast<const T*>(a.x) + n * a.C, columns);
    ThreadColumns<T, V, threads, kept> dy(static_cast<const T*>(a.dy) + n * a.C, columns);
    const float mean = centred && has_row ? a.mean[n] : 0.0f, rstd = has_row ? a.rstd[n] : 0.0f;
    Pair sums = {0.0f, 0.0f};  // of dy * gamma, and of that times the normalised x
    dy.each([&](int i, int column, const Vec<T, V>& d) {
      const auto g = load<V>(gamma + column);
      const auto v = kept > 0 ? x.values[kept > 0 ? i : 0] : load<V>(x.row + column);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float slope = to_float(d.v[k]);
        const float scaled = (to_float(v.v[k]) - mean) * rstd;
        const float weighted = slope * to_float(g.v[k]);
        sums.a += weighted;
        sums.b = fmaf(weighted, scaled, sums.b);
        if constexpr (kept > 0) {
          gamma_sums[i * V + k] = fmaf(slope, scaled, gamma_sums[i * V + k]);
          beta_sums[i * V + k] += slope;
        }
      }
    });
    x.pack();
    dy.pack();
    sums = team_sums<warps>(sums, first / teams % 2);
    const float mean_g = centred ? sums.a * inverse_C : 0.0f, mean_gs = sums.b * inverse_C;
    const T* dsum = a.dsum ? static_cast<const T*>(a.dsum) + n * a.C : nullptr;
    T* dx = static_cast<T*>(a.dx) + n * a.C;
    dy.each([&](int i, int column, const Vec<T, V>& d) {
      const auto g = load<V>(gamma + column);
      const auto v = kept > 0 ? x.values[kept > 0 ? i : 0] : load<V>(x.row + column);
      const auto direct = dsum ? load<V>(dsum + column) : Vec<T, V>{};
      Vec<T, V> result;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float scaled = (to_float(v.v[k]) - mean) * rstd;
        const float weighted = to_float(d.v[k]) * to_float(g.v[k]);
        const float slope = weighted - mean_g - scaled * mean_gs, other = to_float(direct.v[k]);
        result.v[k] = from_float<T>(fmaf(slope, rstd, a.rounds_twice ? 0.0f : other));
        if (a.rounds_twice) result.v[k] = from_float<T>(to_float(result.v[k]) + other);
      }
      store(dx + column, result);
    });
  }
  if constexpr (kept > 0) {
    if (a.dgamma) write_column_sums<V, threads, kept>(gamma_sums, all, a.dgamma + blockIdx.x * a.C);
    if (a.dbeta) write_column_sums<V, threads, kept>(beta_sums, all, a.dbeta + blockIdx.x * a.C);
  }
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

/// out[c] = the sum over blocks of parts[block, c]. The blocks with blockIdx.y == 1 compute
/// second_out from a second array, which follows `parts`. A lane has a column. Warp w adds the
/// parts w, w + 8, ..., then the warps' sums are added in order.
__global__ void __launch_bounds__(block_threads)
    add_blocks(const float* parts, float* out, float* second_out, int blocks, int C) {
  __shared__ float sums[block_warps][lanes];
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  const int c = static_cast<int>(blockIdx.x) * lanes + lane;
  const float* const own = parts + int64_t{blockIdx.y} * blocks * C + c;
  float sum = 0.0f;
  if (c < C) {
#pragma unroll 8
    for (int b = warp; b < blocks; b += block_warps) sum += own[int64_t{b} * C];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || c >= C) return;
  for (int w = 1; w < block_warps; ++w) sum += sums[w][lane];
  (blockIdx.y == 0 ? out : second_out)[c] = sum;
}

template <int its_warps, int its_kept>
struct Team {
  static constexpr int warps = its_warps, kept = its_kept;
};

/// Calls f(V, team), an integral constant and a Team, for rows of C columns. Without alignment V is
/// 1.
template <class T, class F>
void choose(bool vectors, int C, const F& f) {
  const auto first_that_fits = [&](auto V, auto... teams) {
    const auto try_team = [&](auto team) {
      if (C > V * lanes * team.warps * team.kept) return false;
      f(V, team);
      return true;
    };
    if (!(try_team(teams) || ...)) f(V, Team<block_warps, 0>());
  };
  constexpr int width = vector_width<T>;
  constexpr std::integral_constant<int, width> V;
  if (!vectors)
    first_that_fits(std::integral_constant<int, 1>(), Team<1, 4>(), Team<8, 4>());
  else if constexpr (width == 8)  // 3 vectors and their sums leave registers for a second block
    first_that_fits(V, Team<1, 3>(), Team<2, 3>(), Team<4, 3>(), Team<8, 3>(), Team<8, 4>());
  else
    first_that_fits(V, Team<1, 4>(), Team<2, 4>(), Team<4, 4>(), Team<8, 4>());
}

template <class T>
bool aligned(const Tensor& tensor, int64_t C) {
  return !tensor || takes_vectors(reinterpret_cast<const T*>(tensor.raw()), C);
}

float* floats(const Tensor& tensor) { return tensor ? tensor.data<float>() : nullptr; }

template <bool centred>
void forward(const char* name, const LayerNormForward& args, Stream& stream) {
  const Forward a{.x = args.x.raw(),
                  .residual = args.residual.raw(),
                  .gamma = args.gamma.raw(),
                  .beta = args.beta.raw(),
                  .y = args.y.raw(),
                  .sum = args.sum.raw(),
                  .mean = floats(args.mean),
                  .rstd = floats(args.rstd),
                  .N = args.x.extent(0),
                  .C = static_cast<int>(args.x.extent(1)),
                  .epsilon = args.epsilon};
  const int64_t bytes = operand_bytes(args);
  visit_floating(args.x.dtype(), [&]<class T>(T) {
    bool vectors = true;
    for (const Tensor* tensor :
         {&args.x, &args.residual, &args.gamma, &args.beta, &args.y, &args.sum})
      vectors = vectors && aligned<T>(*tensor, a.C);
    choose<T>(vectors, a.C, [&](auto V, auto team) {
      launch({name, "norm_forward", bytes, a.N * a.C},
             norm_forward<T, V, team.warps, team.kept, centred>,
             {blocks_for(a.N, block_warps / team.warps), dim3(block_threads)}, stream, a);
    });
  });
}

template <bool centred>
void backward(const char* name, const LayerNormBackward& args, Workspace workspace,
              Stream& stream) {
  const Tensor &dgamma = args.dgamma, &dbeta = args.dbeta;
  Backward a{.dy = args.dy.raw(),
             .x = args.x.raw(),
             .gamma = args.gamma.raw(),
             .dsum = args.dsum.raw(),
             .mean = floats(args.mean),
             .rstd = floats(args.rstd),
             .dx = args.dx.raw(),
             .N = args.x.extent(0),
             .C = static_cast<int>(args.x.extent(1)),
             .rounds_twice = args.rounds_twice};
  const int64_t bytes =
      bytes_of({&args.dy, &args.x, &args.gamma, &args.mean, &args.rstd, &args.dsum, &args.dx});
  const NormBlocks cut = NormBlocks::on_cuda(a.N);
  a.rows = cut.rows;
  float* scratch = reinterpret_cast<float*>(workspace.data);
  a.dgamma = dgamma ? scratch : nullptr;
  a.dbeta = dbeta ? scratch + (dgamma ? cut.blocks * a.C : 0) : nullptr;
  // Partial sums are written by one kernel and read by another.
  const int64_t bytes_of_sums =
      ((dgamma ? 1 : 0) + (dbeta ? 1 : 0)) * cut.blocks * a.C * int64_t{sizeof(float)};
  visit_floating(args.x.dtype(), [&]<class T>(T) {
    bool vectors = true;
    for (const Tensor* tensor : {&args.x, &args.dy, &args.gamma, &args.dsum, &args.dx})
      vectors = vectors && aligned<T>(*tensor, a.C);
    choose<T>(vectors, a.C, [&](auto V, auto team) {
      constexpr bool row_fits = team.kept > 0;
      const dim3 blocks(static_cast<unsigned>(cut.blocks));
      launch({name, "norm_backward", bytes + (row_fits ? bytes_of_sums : 0), a.N * a.C},
             norm_backward<T, V, team.warps, team.kept, centred>, {blocks, dim3(block_threads)},
             stream, a);
      if (!row_fits && (dgamma || dbeta))
        launch({name, "norm_columns",
                2 * a.N * (a.C * int64_t{sizeof(T)} + int64_t{sizeof(float)}) + bytes_of_sums,
                a.N * a.C},
               norm_columns<T, V, centred>,
               {dim3(blocks.x, blocks_for(a.C, column_threads * V).x), dim3(column_threads)},
               stream, a);
    });
  });
  const Tensor &first = dgamma ? dgamma : dbeta, &second = dgamma ? dbeta : dgamma;
  const unsigned outputs = (first ? 1u : 0u) + (second ? 1u : 0u);
  if (outputs == 0) return;
  launch({name, "add_blocks", outputs * (cut.blocks + 1) * a.C * int64_t{sizeof(float)},
          outputs * cut.blocks * a.C},
         add_blocks, {dim3(blocks_for(a.C, lanes).x, outputs), dim3(block_threads)}, stream,
         static_cast<const float*>(scratch), first.data<float>(),
         second ? second.data<float>() : nullptr, static_cast<int>(cut.blocks), a.C);
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, Workspace, Stream& stream) {
  forward<true>("layer_norm_forward", a, stream);
}

void rms_norm_forward(const RmsNormForward& a, Workspace, Stream& stream) {
  forward<false>("rms_norm_forward", as_layer_norm(a), stream);
}

void layer_norm_backward(const LayerNormBackward& a, Workspace workspace, Stream& stream) {
  backward<true>("layer_norm_backward", a, workspace, stream);
}

void rms_norm_backward(const RmsNormBackward& a, Workspace workspace, Stream& stream) {
  backward<false>("rms_norm_backward", as_layer_norm(a), workspace, stream);
}

}  // namespace zg::cuda
