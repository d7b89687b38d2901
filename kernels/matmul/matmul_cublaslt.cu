#include "zerograd/kernels/matmul/matmul.cuh"

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/collective_gate.h"
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

/// A matrix as cuBLASLt describes it, in column-major order: our row-major [R, C] is its [C, R].
struct MatrixLayout {
  int64_t rows, columns, distance, stride;
};

/// Key of the cache of algorithms: all that the choice depends on.
using Key = std::array<int64_t, 16>;

struct Problem {
  MatrixLayout first, second, result;  // c^T = b^T a^T: the library's first matrix is b
  DType operands, sums;
  bool transpose_first, transpose_second;
  cublasLtEpilogue_t epilogue;
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
            transpose_first + 2 * transpose_second + 4 * int64_t{epilogue},
            batch};
  }
};

class Layout {
 public:
  Layout(const CublasLt& library, const MatrixLayout& layout_of, DType dtype, int64_t batch)
      : layout_{nullptr, library.layout_destroy} {
    check(library.layout_create(&layout_.object, type_of(dtype),
                                static_cast<uint64_t>(layout_of.rows),
                                static_cast<uint64_t>(layout_of.columns), layout_of.distance),
          "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<int32_t>(batch);
    if (count == 1) return;
    check(library.layout_set(layout_.object, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                             sizeof count),
          "a layout's batch");
    check(library.layout_set(layout_.object, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                             &layout_of.stride, sizeof layout_of.stride),
          "a layout's stride");
  }
  operator cublasLtMatrixLayout_t() const { return layout_.object; }

 private:
  Owned<cublasLtMatrixLayout_t> layout_;
};

class Operation {
 public:
  Operation(const CublasLt& library, const Problem& problem)
      : library_(library), operation_{nullptr, library.desc_destroy} {
    check(library.desc_create(&operation_.object, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    const auto way = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, way(problem.transpose_first));
    set(CUBLASLT_MATMUL_DESC_TRANSB, way(problem.transpose_second));
    if (problem.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, problem.epilogue);
    // A choice of algorithm depends on the alignment of this address, and reads nothing there.
    set_vector(reinterpret_cast<const void*>(alignment));
  }
  /// The address of the bias, or where the sums of the second matrix are stored.
  void set_vector(const void* vector) const { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector); }
  operator cublasLtMatmulDesc_t() const { return operation_.object; }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    check(library_.desc_set(operation_.object, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  const CublasLt& library_;
  Owned<cublasLtMatmulDesc_t> operation_;
};

std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const CublasLt& library,
                                                     cublasLtHandle_t handle,
                                                     const Operation& operation,
                                                     const Layout& first, const Layout& second,
                                                     const Layout& result, uint64_t workspace) {
  Owned<cublasLtMatmulPreference_t> preference{nullptr, library.preference_destroy};
  check(library.preference_create(&preference.object), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(library.preference_set(preference.object, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // If K is cut, the partial sums are added in the workspace in a fixed order. Other schemes add to
  // c in any order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // Always promise 16 bytes: the algorithm must not depend on the address of a tensor.
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

/// Handles by device and chosen algorithms by Key, for the life of the process.
struct Cache {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> choices;
};

Cache& cache() {
  static Cache value;
  return value;
}

cublasLtHandle_t handle_of(const CublasLt& library, int device) {
  cublasLtHandle_t& handle = cache().handles[device];
  if (!handle) check(library.create(&handle), "cublasLtCreate");
  return handle;
}

bool is_aligned(const Tensor& tensor, int64_t distance, int64_t stride) {
  if (!tensor) return true;
  const auto bytes = static_cast<int64_t>(size_of(tensor.dtype()));
  return reinterpret_cast<uintptr_t>(tensor.raw()) % alignment == 0 &&
         distance * bytes % int64_t{alignment} == 0 && stride * bytes % int64_t{alignment} == 0;
}

/// Whether the activation, which is a separate kernel over all of c, can follow: c must be
/// contiguous.
bool accepts_activation(const Matmul& m) {
  if (m.activation == Activation::none) return !m.pre_activation;
  const bool packed = !m.ldc || m.ldc == m.N;
  return packed && m.c.numel() == m.batch * m.M * m.N && (m.batch == 1 || m.stride_c == m.M * m.N);
}

/// Whether cuBLASLt can compute the product. The bias or row_sums, of which a product has one, must
/// have the dtype of c, which can be wider than that of the operands.
bool accepts(const Matmul& m, const Problem& p) {
  constexpr int64_t most = int64_t{1} << 31;
  const Tensor& vector = m.bias ? m.bias : m.row_sums;
  return m.a.dtype() != DType::f64 && m.K > 0 && m.M < most && m.N < most && m.K < most &&
         !(m.bias && m.row_sums) &&
         (!vector || (vector.dtype() == m.c.dtype() && is_aligned(vector, 0, 0))) &&
         accepts_activation(m) && is_aligned(m.a, p.second.distance, m.stride_a) &&
         is_aligned(m.b, p.first.distance, m.stride_b) &&
         is_aligned(m.c, p.result.distance, m.stride_c) &&
         is_aligned(m.pre_activation, p.result.distance, m.stride_c);
}

Problem problem_of(const Matmul& m) {
  const auto layout_of = [](bool transpose, int64_t rows, int64_t columns, int64_t distance,
                            int64_t stride) {
    if (transpose) std::swap(rows, columns);
    return MatrixLayout{columns, rows, distance ? distance : columns, stride};
  };
  return {.first = layout_of(m.transpose_b, m.K, m.N, m.ldb, m.stride_b),
          .second = layout_of(m.transpose_a, m.M, m.K, m.lda, m.stride_a),
          .result = layout_of(false, m.M, m.N, m.ldc, m.stride_c),
          .operands = m.a.dtype(),
          .sums = m.c.dtype(),
          .transpose_first = m.transpose_b,
          .transpose_second = m.transpose_a,
          .epilogue = m.bias       ? CUBLASLT_EPILOGUE_BIAS
                      : m.row_sums ? CUBLASLT_EPILOGUE_BGRADB  // a is the library's second matrix
                                   : CUBLASLT_EPILOGUE_DEFAULT,
          .batch = m.batch};
}

/// Computes with the library; false, having done nothing, if it has no algorithm.
bool multiply_by_library(const CublasLt* library, const Problem& problem, const Matmul& m,
                         const Tensor& sums, Workspace workspace, Stream& stream) {
  const int device = stream.device().index();
  const OnDevice on(device);
  const Operation operation(*library, problem);
  const Layout first(*library, problem.first, problem.operands, m.batch);
  const Layout second(*library, problem.second, problem.operands, m.batch);
  const Layout result(*library, problem.result, problem.sums, m.batch);
  cublasLtHandle_t library_handle;
  std::optional<cublasLtMatmulAlgo_t> choice;
  std::optional<QuietProcess> quiet;  // the first product of a kind loads the library's kernels
  {
    std::lock_guard lock(cache().mutex);
    if (!cache().choices.contains(problem.key(device, workspace.bytes))) quiet.emplace();
    library_handle = handle_of(*library, device);
    const auto [entry, is_new] = cache().choices.try_emplace(problem.key(device, workspace.bytes));
    if (is_new)
      entry->second = choose_algorithm(*library, library_handle, operation, first, second, result,
                                       static_cast<uint64_t>(workspace.bytes));
    choice = entry->second;
  }
  if (!choice) return false;
  if (const Tensor& vector = m.bias ? m.bias : m.row_sums) operation.set_vector(vector.raw());
  const float alpha = 1.0f, beta = m.accumulate ? 1.0f : 0.0f;
  check(library->matmul(library_handle, operation, &alpha, m.b.raw(), first, m.a.raw(), second,
                        &beta, sums.raw(), result, sums.raw(), result, &*choice, workspace.data,
                        static_cast<size_t>(workspace.bytes), handle(stream)),
        "cublasLtMatmul");
  return true;
}

}  // namespace

bool cublaslt_matmul(const Matmul& m, Workspace workspace, Stream& stream) {
  const bool planned = stream.type() == Device::Type::meta;
  if (planned && !plans_cublaslt()) return false;
  const CublasLt* const library = planned ? nullptr : cublaslt();
  if (!planned && !library) return false;
  const Problem problem = problem_of(m);
  if (!accepts(m, problem)) return false;
  const Tensor& sums = m.pre_activation ? m.pre_activation : m.c;
  if (!planned && !multiply_by_library(library, problem, m, sums, workspace, stream)) return false;
  if (LaunchCounter* const counter = stream.launches())
    add(*counter, matmul_work(m, "cublasLtMatmul", true), /*blocks=*/0);
  // The activation must read the rounded sums; the library's epilogues would read them unrounded.
  const int64_t numel = m.batch * m.M * m.N;  // the shapes of c and of the sums may differ
  if (m.activation != Activation::none)
    kernels::gelu_forward(
        {.x = sums.flat(0, numel), .y = m.c.flat(0, numel), .activation = m.activation}, stream);
  return true;
}

}  // namespace zg::cuda
