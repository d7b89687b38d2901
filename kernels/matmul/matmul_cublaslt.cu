#include "zerograd/kernels/matmul/matmul_cublaslt.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/cublaslt.h"

namespace zg::cuda {
namespace {

constexpr uintptr_t alignment = 16;  // bytes; required by the instructions that load a whole tile

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

/// RAII over a create and destroy of the library.
template <class Object>
struct Owned {
  Object object = nullptr;
  cublasStatus_t (*destroy)(Object) = nullptr;
  ~Owned() {
    if (object) destroy(object);
  }
};

/// A matrix as the library sees it, by columns: the rows here are its columns.
struct Stored {
  int64_t rows, columns, distance, stride;
};

/// Everything that the choice of an algorithm depends on.
using Key = std::array<int64_t, 16>;

struct Problem {
  Stored first, second, result;  // c^T = b^T a^T: the library's first matrix is b
  DType operands, sums;
  bool transpose_first, transpose_second, has_bias;
  int64_t batch;
  Key key(int device, int64_t workspace) const {
    return {device,
            workspace,
            first.rows,
            first.columns,
            first.distance,
            first.stride,
            second.rows,
            second.columns,
            second.distance,
            second.stride,
            result.distance,
            result.stride,
            static_cast<int64_t>(operands),
            static_cast<int64_t>(sums),
            transpose_first + 2 * transpose_second + 4 * has_bias,
            batch};
  }
};

class Layout {
 public:
  Layout(const CublasLt& library, const Stored& stored, DType dtype, int64_t batch)
      : layout_{nullptr, library.layout_destroy} {
    check(library.layout_create(&layout_.object, type_of(dtype), static_cast<uint64_t>(stored.rows),
                                static_cast<uint64_t>(stored.columns), stored.distance),
          "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<int32_t>(batch);
    if (count == 1) return;
    check(library.layout_set(layout_.object, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                             sizeof count),
          "a layout's batch");
    check(library.layout_set(layout_.object, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                             &stored.stride, sizeof stored.stride),
          "a layout's stride");
  }
  operator cublasLtMatrixLayout_t() const { return layout_.object; }

 private:
  Owned<cublasLtMatrixLayout_t> layout_;
};

class Operation {
 public:
  Operation(const CublasLt& library, const Problem& problem, const void* bias)
      : library_(library), operation_{nullptr, library.desc_destroy} {
    check(library.desc_create(&operation_.object, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    const auto way = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, way(problem.transpose_first));
    set(CUBLASLT_MATMUL_DESC_TRANSB, way(problem.transpose_second));
    if (!bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  operator cublasLtMatmulDesc_t() const { return operation_.object; }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(library_.desc_set(operation_.object, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  const CublasLt& library_;
  Owned<cublasLtMatmulDesc_t> operation_;
};

std::optional<cublasLtMatmulAlgo_t> ask(const CublasLt& library, cublasLtHandle_t handle,
                                        const Operation& operation, const Layout& first,
                                        const Layout& second, const Layout& result,
                                        uint64_t workspace) {
  Owned<cublasLtMatmulPreference_t> preference{nullptr, library.preference_destroy};
  check(library.preference_create(&preference.object), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(library.preference_set(preference.object, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // Parts of a sum meet in the workspace in one order; adding them where they lie has none.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // The same promise for every address, so that where a tensor lies chooses no algorithm.
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, uint32_t{alignment});
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = library.heuristic(handle, operation, first, second, result, result,
                                                  preference.object, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  return found.algo;
}

/// Handles by device and choices by shape, for the life of the process.
struct Kept {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> choices;
};

Kept& kept() {
  static Kept value;
  return value;
}

cublasLtHandle_t handle_of(const CublasLt& library, int device) {
  cublasLtHandle_t& handle = kept().handles[device];
  if (!handle) check(library.create(&handle), "cublasLtCreate");
  return handle;
}

bool on_alignment(const Tensor& tensor, int64_t distance, int64_t stride) {
  if (!tensor) return true;
  const auto bytes = static_cast<int64_t>(size_of(tensor.dtype()));
  return reinterpret_cast<uintptr_t>(tensor.raw()) % alignment == 0 &&
         distance * bytes % int64_t{alignment} == 0 && stride * bytes % int64_t{alignment} == 0;
}

/// The library writes the sums alone. An activation is a kernel of its own, over all of c.
bool can_finish(const Matmul& m) {
  if (m.activation == Activation::none) return !m.pre_activation;
  const bool packed = !m.ldc || m.ldc == m.N;
  return packed && m.c.numel() == m.batch * m.M * m.N && (m.batch == 1 || m.stride_c == m.M * m.N);
}

/// c's dtype may be wider than the operands'; the bias has theirs, and the library wants c's.
bool takes(const Matmul& m, const Problem& p) {
  constexpr int64_t most = int64_t{1} << 31;
  return m.a.dtype() != DType::f64 && m.K > 0 && m.M < most && m.N < most && m.K < most &&
         (!m.bias || (m.bias.dtype() == m.c.dtype() && on_alignment(m.bias, 0, 0))) &&
         can_finish(m) && on_alignment(m.a, p.second.distance, m.stride_a) &&
         on_alignment(m.b, p.first.distance, m.stride_b) &&
         on_alignment(m.c, p.result.distance, m.stride_c) &&
         on_alignment(m.pre_activation, p.result.distance, m.stride_c);
}

Problem problem_of(const Matmul& m) {
  const auto stored = [](bool transpose, int64_t rows, int64_t columns, int64_t distance,
                         int64_t stride) {
    if (transpose) std::swap(rows, columns);
    return Stored{columns, rows, distance ? distance : columns, stride};
  };
  return {.first = stored(m.transpose_b, m.K, m.N, m.ldb, m.stride_b),
          .second = stored(m.transpose_a, m.M, m.K, m.lda, m.stride_a),
          .result = stored(false, m.M, m.N, m.ldc, m.stride_c),
          .operands = m.a.dtype(),
          .sums = m.c.dtype(),
          .transpose_first = m.transpose_b,
          .transpose_second = m.transpose_a,
          .has_bias = static_cast<bool>(m.bias),
          .batch = m.batch};
}

}  // namespace

bool cublaslt_matmul(const Matmul& m, Workspace workspace, Stream& stream) {
  const CublasLt* const library = cublaslt();
  if (!library) return false;
  const Problem problem = problem_of(m);
  if (!takes(m, problem)) return false;
  const int device = stream.device().index();
  const OnDevice on(device);
  const Operation operation(*library, problem, m.bias.raw());
  const Layout first(*library, problem.first, problem.operands, m.batch);
  const Layout second(*library, problem.second, problem.operands, m.batch);
  const Layout result(*library, problem.result, problem.sums, m.batch);
  cublasLtHandle_t own;
  std::optional<cublasLtMatmulAlgo_t> choice;
  {
    std::lock_guard lock(kept().mutex);
    own = handle_of(*library, device);
    const auto [place, is_new] = kept().choices.try_emplace(problem.key(device, workspace.bytes));
    if (is_new)
      place->second = ask(*library, own, operation, first, second, result,
                          static_cast<uint64_t>(workspace.bytes));
    choice = place->second;
  }
  if (!choice) return false;
  const Tensor& sums = m.pre_activation ? m.pre_activation : m.c;
  const float alpha = 1.0f, beta = m.accumulate ? 1.0f : 0.0f;
  check(library->matmul(own, operation, &alpha, m.b.raw(), first, m.a.raw(), second, &beta,
                        sums.raw(), result, sums.raw(), result, &*choice, workspace.data,
                        static_cast<size_t>(workspace.bytes), handle(stream)),
        "cublasLtMatmul");
  // It reads the sums as they are kept, so none of the library's epilogues does it.
  const int64_t numel = m.batch * m.M * m.N;  // the shapes of c and of the sums may differ
  if (m.activation != Activation::none)
    kernels::gelu_forward(
        {.x = sums.flat(0, numel), .y = m.c.flat(0, numel), .activation = m.activation}, stream);
  return true;
}

}  // namespace zg::cuda
