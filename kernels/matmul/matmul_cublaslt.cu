#include "zerograd/kernels/matmul/matmul.cuh"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"
#include "zerograd/kernels/matmul/matmul_source.h"
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

MatrixLayout layout_of(bool transpose, int64_t rows, int64_t columns, int64_t distance,
                       int64_t stride) {
  if (transpose) std::swap(rows, columns);
  return {columns, rows, distance, stride};
}

// c^T = b^T a^T: the library's first matrix is b.
MatrixLayout first_layout(const MatmulProblem& p) {
  return layout_of(p.transpose_b, p.K, p.N, p.ldb, p.stride_b);
}
MatrixLayout second_layout(const MatmulProblem& p) {
  return layout_of(p.transpose_a, p.M, p.K, p.lda, p.stride_a);
}
MatrixLayout result_layout(const MatmulProblem& p) {
  return layout_of(false, p.M, p.N, p.ldc, p.stride_c);
}

cublasLtEpilogue_t epilogue_of(MatmulProblem::Vector vector) {
  return vector == MatmulProblem::Vector::bias ? CUBLASLT_EPILOGUE_BIAS
         : vector == MatmulProblem::Vector::row_sums
             ? CUBLASLT_EPILOGUE_BGRADB  // a is the library's second matrix
             : CUBLASLT_EPILOGUE_DEFAULT;
}

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
  Operation(const CublasLt& library, const MatmulProblem& problem)
      : library_(library), operation_{nullptr, library.desc_destroy} {
    check(library.desc_create(&operation_.object, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    const auto way = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, way(problem.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, way(problem.transpose_a));
    if (problem.vector == MatmulProblem::Vector::none) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(problem.vector));
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

/// A struct with a name. The library's struct has none, and nvcc 13.0 fails on a vector of it.
struct Algorithm {
  cublasLtMatmulAlgo_t of_library = {};
};
struct FoundAlgorithm {
  cublasLtMatmulHeuristicResult_t of_library = {};
};
static_assert(sizeof(FoundAlgorithm) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(sizeof(Algorithm) == sizeof(MatmulAlgorithm::words));

/// The library's descriptors of a product.
class LibraryProduct {
 public:
  LibraryProduct(const CublasLt& library, const MatmulProblem& problem)
      : library_(library),
        problem_(problem),
        operation_(library, problem),
        first_(library, first_layout(problem), problem.operands, problem.batch),
        second_(library, second_layout(problem), problem.operands, problem.batch),
        result_(library, result_layout(problem), problem.sums, problem.batch) {}

  /// At most this many algorithms of the heuristic, in its order.
  std::vector<Algorithm> algorithms(cublasLtHandle_t handle, int most) const;
  /// The algorithm of a file. Throws FileError.
  Algorithm restored(cublasLtHandle_t handle, const MatmulAlgorithms& file,
                     const MatmulAlgorithm& algorithm) const;

  struct Operands {
    const void *a, *b;
    void *c, *vector;
    bool accumulate;
  };
  void launch(cublasLtHandle_t handle, const Operands& operands, const Algorithm& algorithm,
              std::byte* workspace, Stream& stream) const {
    if (operands.vector) operation_.set_vector(operands.vector);
    const float alpha = 1.0f, beta = operands.accumulate ? 1.0f : 0.0f;
    check(library_.matmul(handle, operation_, &alpha, operands.b, first_, operands.a, second_,
                          &beta, operands.c, result_, operands.c, result_, &algorithm.of_library,
                          workspace, static_cast<size_t>(problem_.workspace), cuda::handle(stream)),
          "cublasLtMatmul");
  }

 private:
  const CublasLt& library_;
  const MatmulProblem& problem_;
  const Operation operation_;
  const Layout first_, second_, result_;
};

std::vector<Algorithm> LibraryProduct::algorithms(cublasLtHandle_t handle, int most) const {
  Owned<cublasLtMatmulPreference_t> preference{nullptr, library_.preference_destroy};
  check(library_.preference_create(&preference.object), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(library_.preference_set(preference.object, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(problem_.workspace));
  // If K is cut, the partial sums are added in the workspace in a fixed order. Other schemes add to
  // c in any order. The library does not document the order of the partial sums of BGRADB, so K is
  // not cut with it.
  const bool may_cut = problem_.vector != MatmulProblem::Vector::row_sums;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      may_cut ? uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}
              : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  // Always promise 16 bytes: the algorithm must not depend on the address of a tensor.
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, uint32_t{alignment});
  std::vector<FoundAlgorithm> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      library_.heuristic(handle, operation_, first_, second_, result_, result_, preference.object,
                         most, &found.front().of_library, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < count; ++i)
    if (const auto& one = found[static_cast<size_t>(i)].of_library;
        one.state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back({one.algo});
  return algorithms;
}

Algorithm LibraryProduct::restored(cublasLtHandle_t handle, const MatmulAlgorithms& file,
                                   const MatmulAlgorithm& algorithm) const {
  Algorithm restored;
  std::memcpy(&restored.of_library, algorithm.words.data(), sizeof algorithm.words);
  cublasLtMatmulHeuristicResult_t found = {};
  const cublasStatus_t status = library_.algo_check(handle, operation_, first_, second_, result_,
                                                    result_, &restored.of_library, &found);
  const auto workspace = static_cast<int64_t>(found.workspaceSize);
  if (status != CUBLAS_STATUS_SUCCESS || workspace > problem_.workspace)
    refuse_algorithm(file, problem_, static_cast<int>(status), workspace);
  return restored;
}

/// Handles, algorithms of files and chosen algorithms, by device, for the life of the process.
struct Cache {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<int, std::shared_ptr<const MatmulAlgorithms>> files;
  std::map<std::pair<int, MatmulProblem>, std::optional<Algorithm>> choices;
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
  if (m.activation == Activation::none) return true;
  const bool packed = !m.ldc || m.ldc == m.N;
  return packed && m.c.numel() == m.batch * m.M * m.N && (m.batch == 1 || m.stride_c == m.M * m.N);
}

/// Whether cuBLASLt can compute the product. The bias or row_sums, of which a product has one, must
/// have the dtype of c, which can be wider than that of the operands.
bool accepts(const Matmul& m, const MatmulProblem& p) {
  constexpr int64_t most = int64_t{1} << 31;
  const Tensor& vector = m.bias ? m.bias : m.row_sums;
  return m.a.dtype() != DType::f64 && m.K > 0 && m.M < most && m.N < most && m.K < most &&
         !(m.bias && m.row_sums) &&
         (!vector || (vector.dtype() == m.c.dtype() && is_aligned(vector, 0, 0))) &&
         accepts_activation(m) && is_aligned(m.a, p.lda, m.stride_a) &&
         is_aligned(m.b, p.ldb, m.stride_b) && is_aligned(m.c, p.ldc, m.stride_c) &&
         is_aligned(m.pre_activation, p.ldc, m.stride_c);
}

MatmulProblem problem_of(const Matmul& m, int64_t workspace) {
  const auto distance = [](int64_t given, bool transpose, int64_t rows, int64_t columns) {
    return given ? given : transpose ? rows : columns;
  };
  const bool many = m.batch > 1;
  return {.M = m.M,
          .N = m.N,
          .K = m.K,
          .batch = m.batch,
          .operands = m.a.dtype(),
          .sums = m.c.dtype(),
          .transpose_a = m.transpose_a,
          .transpose_b = m.transpose_b,
          .lda = distance(m.lda, m.transpose_a, m.M, m.K),
          .ldb = distance(m.ldb, m.transpose_b, m.K, m.N),
          .ldc = distance(m.ldc, false, m.M, m.N),
          .stride_a = many ? m.stride_a : 0,
          .stride_b = many ? m.stride_b : 0,
          .stride_c = many ? m.stride_c : 0,
          .vector = m.bias       ? MatmulProblem::Vector::bias
                    : m.row_sums ? MatmulProblem::Vector::row_sums
                                 : MatmulProblem::Vector::none,
          .workspace = workspace};
}

/// The algorithm of the device's file, or the heuristic's first. Absent: the library has none, or
/// the file has row_sums apart from the product.
std::optional<Algorithm> choose_algorithm(const LibraryProduct& product, int device,
                                          cublasLtHandle_t handle, const MatmulProblem& problem) {
  if (const auto file = cache().files.find(device); file != cache().files.end())
    if (const auto entry = file->second->algorithms.find(problem);
        entry != file->second->algorithms.end())
      return entry->second.apart
                 ? std::nullopt
                 : std::optional(product.restored(handle, *file->second, entry->second));
  const std::vector<Algorithm> found = product.algorithms(handle, 1);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

/// Computes with the library. Does nothing and returns false if it has no algorithm. Throws
/// CublasLtError.
bool multiply_by_library(const CublasLt* library, const MatmulProblem& problem, const Matmul& m,
                         const Tensor& sums, Workspace workspace, Stream& stream) {
  const int device = stream.device().index();
  const OnDevice on(device);
  const std::pair key(device, problem);
  {
    std::lock_guard lock(cache().mutex);
    const auto entry = cache().choices.find(key);
    if (entry != cache().choices.end() && !entry->second) return false;
  }
  const LibraryProduct product(*library, problem);
  cublasLtHandle_t library_handle;
  std::optional<Algorithm> choice;
  std::optional<QuietProcess> quiet;  // the first product of a kind loads the library's kernels
  {
    std::lock_guard lock(cache().mutex);
    if (!cache().choices.contains(key)) quiet.emplace();
    library_handle = handle_of(*library, device);
    auto entry = cache().choices.find(key);
    if (entry == cache().choices.end())
      entry = cache()
                  .choices.emplace(key, choose_algorithm(product, device, library_handle, problem))
                  .first;
    choice = entry->second;
  }
  if (!choice) return false;
  const Tensor& vector = m.bias ? m.bias : m.row_sums;
  product.launch(library_handle,
                 {.a = m.a.raw(),
                  .b = m.b.raw(),
                  .c = sums.raw(),
                  .vector = vector ? vector.raw() : nullptr,
                  .accumulate = m.accumulate},
                 *choice, workspace.data, stream);
  return true;
}

/// The same, but if the library fails, it prints the status, returns false and does not ask again.
bool try_library(const CublasLt* library, const MatmulProblem& problem, const Matmul& m,
                 const Tensor& sums, Workspace workspace, Stream& stream) {
  try {
    return multiply_by_library(library, problem, m, sums, workspace, stream);
  } catch (const CublasLtError& error) {
    print_refusal(problem, error);
    std::lock_guard lock(cache().mutex);
    cache().choices.insert_or_assign({stream.device().index(), problem}, std::nullopt);
    return false;
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// fastest_algorithm(). Throws CublasLtError.
std::optional<MatmulAlgorithm> measured_algorithm(const MatmulProblem& problem,
                                                  const Device& device,
                                                  const MatmulMeasurement& measurement) {
  const CublasLt& library = *cublaslt();
  const OnDevice on(device.index());
  const QuietProcess quiet;  // every algorithm loads its kernel
  cublasLtHandle_t library_handle;
  {
    std::lock_guard lock(cache().mutex);
    library_handle = handle_of(library, device.index());
  }
  const LibraryProduct product(library, problem);
  const auto candidates = product.algorithms(library_handle, measurement.candidates);
  if (candidates.empty()) return std::nullopt;
  const auto elements = [&](const MatrixLayout& layout) {
    return (layout.columns - 1) * layout.distance + layout.rows +
           (problem.batch - 1) * layout.stride;
  };
  const Tensor a = random_elements(elements(second_layout(problem)), problem.operands, device);
  const Tensor b = random_elements(elements(first_layout(problem)), problem.operands, device);
  const Tensor c = Tensor::empty({elements(result_layout(problem))}, problem.sums, device);
  Tensor vector, scratch;
  if (problem.vector != MatmulProblem::Vector::none)
    vector = random_elements(problem.vector == MatmulProblem::Vector::bias ? problem.N : problem.M,
                             problem.sums, device);
  if (problem.workspace > 0) scratch = Tensor::empty({problem.workspace}, DType::u8, device);
  const LibraryProduct::Operands operands{.a = a.raw(),
                                          .b = b.raw(),
                                          .c = c.raw(),
                                          .vector = vector ? vector.raw() : nullptr,
                                          .accumulate = false};
  constexpr double refused = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> seconds(candidates.size());
  for (int round = 0; round < measurement.rounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i) try {
        seconds[i].push_back(measurement.time(problem, static_cast<int>(i), [&] {
          product.launch(library_handle, operands, candidates[i], scratch.raw(), device.compute());
        }));
      } catch (const CublasLtError&) {
        seconds[i].push_back(refused);
      }
  device.compute().synchronize();
  size_t fastest = 0;
  for (size_t i = 1; i < candidates.size(); ++i)
    if (median(seconds[i]) < median(seconds[fastest])) fastest = i;
  if (median(seconds[fastest]) == refused) return std::nullopt;
  MatmulAlgorithm best{
      .candidate = static_cast<int>(fastest),
      .candidates = static_cast<int>(candidates.size()),
      .seconds = median(seconds[fastest]),
      .first_seconds = median(seconds[median(seconds.front()) == refused ? fastest : size_t{0}])};
  std::memcpy(best.words.data(), &candidates[fastest].of_library, sizeof best.words);
  return best;
}

}  // namespace

MatmulSource matmul_source(const Device& device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device.index()), "cudaGetDeviceProperties");
  return {.gpu = std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
                 std::to_string(properties.minor) + ", " +
                 std::to_string(properties.multiProcessorCount) + " multiprocessors",
          .library = describe_matmul(),
          .is_cublaslt = cublaslt() != nullptr};
}

void set_matmul_algorithms(int index, std::shared_ptr<const MatmulAlgorithms> algorithms) {
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  const auto file = all.files.find(index);
  // Ranks that share the GPU call this one after the other. The first may multiply already, so a
  // second call with its algorithms changes nothing.
  if (algorithms == (file == all.files.end() ? nullptr : file->second)) return;
  std::erase_if(all.choices, [&](const auto& choice) { return choice.first.first == index; });
  if (algorithms)
    all.files[index] = std::move(algorithms);
  else
    all.files.erase(index);
}

std::optional<MatmulAlgorithm> fastest_algorithm(const MatmulProblem& problem, const Device& device,
                                                 const MatmulMeasurement& measurement) {
  try {
    return measured_algorithm(problem, device, measurement);
  } catch (const CublasLtError& error) {
    print_refusal(problem, error);
    return std::nullopt;
  }
}

bool cublaslt_matmul(const Matmul& m, Workspace workspace, Stream& stream) {
  const bool planned = stream.type() == Device::Type::meta;
  if (planned && !plans_cublaslt()) return false;
  const CublasLt* const library = planned ? nullptr : cublaslt();
  if (!planned && !library) return false;
  const MatmulProblem problem = problem_of(m, workspace.bytes);
  if (!accepts(m, problem)) return false;
  if (PlannedProducts* const products = PlannedProducts::current(); planned && products)
    products->add(problem);
  const Tensor& sums = m.pre_activation ? m.pre_activation : m.c;
  if (!planned && !try_library(library, problem, m, sums, workspace, stream)) return false;
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
