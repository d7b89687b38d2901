#include "cublasLt.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/fakes/cuda/devices.h"
#include "tests/fakes/cuda/launch.h"
#include "zerograd/runtime/dtype.h"

// A test double of cuBLASLt: computes the product by its definition and checks the caller's
// promises. An algorithm stores the problem it was chosen for and aborts for any other. There are
// three, which add in different orders: along K, back along K, and each half of K, which takes a
// workspace and a reduction scheme. The halves of the sums of BGRADB are added in an order that
// changes from call to call, because the library does not document one.
// ZG_EMULATOR_CUBLASLT_FIRST=N puts algorithm N at the front of the heuristic's order.
// plant_failure() plants a status of cublasLtCreate, cublasLtMatmulAlgoGetHeuristic or
// cublasLtMatmul.
struct EmulatedLt {};
struct EmulatedLtLayout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t distance;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct EmulatedLtOperation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* vector = nullptr;  ///< the bias, which is read, or its gradient, which is written
  bool sums_b() const { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
};
struct EmulatedLtPreference {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignments[4] = {256, 256, 256, 256};
};

namespace {

using namespace zg;
using zg::emulator::die;

void expect(bool holds, const char* what) {
  if (!holds) die(std::string("cublasLt: ") + what);
}

template <class Value>
void take(Value& place, const void* value, size_t bytes, const char* what) {
  expect(bytes == sizeof place, what);
  std::memcpy(&place, value, bytes);
}

enum Order : uint64_t { along, back, halves, order_count };

/// Encodes the problem that an algorithm is chosen for. The last word is for order and alignment.
cublasLtMatmulAlgo_t algorithm(const EmulatedLtOperation& operation, const EmulatedLtLayout& a,
                               const EmulatedLtLayout& b, const EmulatedLtLayout& d) {
  cublasLtMatmulAlgo_t algo = {};
  const auto layout = [](const EmulatedLtLayout& l) {
    return ((l.rows * 1000003 + l.columns) * 1000003 + static_cast<uint64_t>(l.distance)) * 64 +
           static_cast<uint64_t>(l.batch) * 16 + static_cast<uint64_t>(l.type);
  };
  algo.data[0] = layout(a);
  algo.data[1] = layout(b);
  algo.data[2] = layout(d);
  algo.data[3] = static_cast<uint64_t>(operation.a + 2 * operation.b + 4 * operation.epilogue);
  algo.data[4] = static_cast<uint64_t>(a.stride);
  algo.data[5] = static_cast<uint64_t>(b.stride);
  algo.data[6] = static_cast<uint64_t>(d.stride);
  return algo;
}

constexpr int order_bits = 32;  // of the last word, above the alignment
Order order_of(const cublasLtMatmulAlgo_t& algo) {
  return static_cast<Order>(algo.data[7] >> order_bits);
}
uint64_t alignment_of(const cublasLtMatmulAlgo_t& algo) {
  return algo.data[7] & ((uint64_t{1} << order_bits) - 1);
}

uint64_t workspace_of(Order order, const EmulatedLtLayout& d) {
  return order == halves ? d.rows * d.columns * static_cast<uint64_t>(d.batch) * sizeof(float) : 0;
}

std::atomic<int64_t> products{0};

struct Extents {
  uint64_t m, n, k;
};

Extents extents(const EmulatedLtOperation& operation, const EmulatedLtLayout& a,
                const EmulatedLtLayout& b, const EmulatedLtLayout& d) {
  const bool across_a = operation.a == CUBLAS_OP_T, across_b = operation.b == CUBLAS_OP_T;
  const Extents e{.m = d.rows, .n = d.columns, .k = across_a ? a.rows : a.columns};
  expect((across_a ? a.columns : a.rows) == e.m && (across_b ? b.rows : b.columns) == e.n &&
             (across_b ? b.columns : b.rows) == e.k,
         "the extents of a, b and d do not meet");
  expect(a.batch == b.batch && b.batch == d.batch, "the layouts differ in their batch");
  for (const EmulatedLtLayout* layout : {&a, &b, &d})
    expect(layout->distance >= static_cast<int64_t>(layout->rows), "a column overlaps the next");
  return e;
}

float load(cudaDataType_t type, const void* data, int64_t at) {
  if (type == CUDA_R_16BF) return static_cast<float>(static_cast<const bf16*>(data)[at]);
  if (type == CUDA_R_16F) return static_cast<float>(static_cast<const f16*>(data)[at]);
  return static_cast<const float*>(data)[at];
}
void store(cudaDataType_t type, void* data, int64_t at, float value) {
  if (type == CUDA_R_16BF)
    static_cast<bf16*>(data)[at] = bf16(value);
  else if (type == CUDA_R_16F)
    static_cast<f16*>(data)[at] = f16(value);
  else
    static_cast<float*>(data)[at] = value;
}

/// [rows, columns] of op(matrix), row-major.
std::vector<float> rows_of(const EmulatedLtLayout& layout, const void* data, bool transposed,
                           int64_t item, uint64_t rows, uint64_t columns) {
  std::vector<float> dense(rows * columns);
  for (uint64_t i = 0; i < rows; ++i)
    for (uint64_t j = 0; j < columns; ++j) {
      const auto down = static_cast<int64_t>(transposed ? j : i);
      const auto right = static_cast<int64_t>(transposed ? i : j);
      dense[i * columns + j] =
          load(layout.type, data, item * layout.stride + right * layout.distance + down);
    }
  return dense;
}

struct Product {
  EmulatedLtOperation operation;
  EmulatedLtLayout a_layout, b_layout, d_layout;
  const void *a, *b;
  void* d;
  float beta;
  Order order;
};

/// sums[i] += the terms of [begin, end) of K, in order or from the last on.
void add_terms(std::vector<float>& sums, const std::vector<float>& a, const float* b,
               uint64_t begin, uint64_t end, bool from_last) {
  for (uint64_t step = begin; step < end; ++step) {
    const uint64_t l = from_last ? end - 1 - (step - begin) : step;
    for (uint64_t i = 0; i < sums.size(); ++i) sums[i] += a[l * sums.size() + i] * b[l];
  }
}

/// The sum of k terms. The block that is done first adds its half first.
float sum_of(const float* terms, uint64_t k, Order order, bool second_first) {
  if (order != halves) return std::accumulate(terms, terms + k, 0.0f);
  const float *const middle = terms + k / 2, *const end = terms + k;
  return second_first ? std::accumulate(terms, middle, std::accumulate(middle, end, 0.0f))
                      : std::accumulate(middle, end, std::accumulate(terms, middle, 0.0f));
}

void multiply(const Product& p) {
  static std::atomic<uint64_t> calls{0};
  const bool second_first = calls++ % 2 == 1;
  const auto [m, n, k] = extents(p.operation, p.a_layout, p.b_layout, p.d_layout);
  for (int64_t item = 0; item < p.d_layout.batch; ++item) {
    // op(a)^T and op(b)^T by rows, so that the inner loop runs along m.
    const std::vector<float> a = rows_of(p.a_layout, p.a, p.operation.a == CUBLAS_OP_N, item, k, m);
    const std::vector<float> b = rows_of(p.b_layout, p.b, p.operation.b == CUBLAS_OP_N, item, n, k);
    if (p.operation.sums_b())
      for (uint64_t j = 0; j < n; ++j)
        store(p.d_layout.type, p.operation.vector, static_cast<int64_t>(j),
              sum_of(b.data() + j * k, k, p.order, second_first));
    std::vector<float> sums(m);
    for (uint64_t j = 0; j < n; ++j) {
      const float* row = b.data() + j * k;
      const uint64_t middle = p.order == halves ? k / 2 : k;
      std::fill(sums.begin(), sums.end(), 0.0f);
      add_terms(sums, a, row, 0, middle, p.order == back);
      if (middle < k) {
        std::vector<float> others(m);
        add_terms(others, a, row, middle, k, false);
        for (uint64_t i = 0; i < m; ++i) sums[i] += others[i];
      }
      for (uint64_t i = 0; i < m; ++i) {
        const int64_t at = item * p.d_layout.stride +
                           static_cast<int64_t>(j) * p.d_layout.distance + static_cast<int64_t>(i);
        float sum = sums[i];
        if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS)
          sum += load(p.d_layout.type, p.operation.vector, static_cast<int64_t>(i));
        if (p.beta != 0.0f) sum += p.beta * load(p.d_layout.type, p.d, at);
        store(p.d_layout.type, p.d, at, sum);
      }
    }
  }
}

}  // namespace

int64_t zg::emulator::cublaslt_products() { return products; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static EmulatedLt only;  // never destroyed
  if (const int status = zg::emulator::planted_failure("cublasLtCreate"))
    return static_cast<cublasStatus_t>(status);
  *handle = &only;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t sums,
                                        cudaDataType_t scale) {
  expect(sums == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "sums that are not f32");
  *operation = new EmulatedLtOperation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const char* what = "an attribute of an operation has another size";
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) take(operation->a, value, bytes, what);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) take(operation->b, value, bytes, what);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) take(operation->epilogue, value, bytes, what);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) take(operation->vector, value, bytes, what);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t distance) {
  *layout = new EmulatedLtLayout{type, rows, columns, distance};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  const char* what = "an attribute of a layout has another size";
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    take(layout->batch, value, bytes, what);
  else
    take(layout->stride, value, bytes, what);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedLtPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  const char* what = "an attribute of a preference has another size";
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    take(preference->workspace, value, bytes, what);
  else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    take(preference->reductions, value, bytes, what);
  else
    take(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
         bytes, what);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  expect(wanted >= 1, "no algorithm is asked for");
  if (const int status = zg::emulator::planted_failure("cublasLtMatmulAlgoGetHeuristic"))
    return static_cast<cublasStatus_t>(status);
  expect((preference->reductions & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0,
         "a reduction whose order is open");
  const Extents e = extents(*operation, *a, *b, *d);
  *count = 0;
  expect((operation->epilogue == CUBLASLT_EPILOGUE_DEFAULT) == !operation->vector,
         "a vector without its epilogue, or an epilogue without its vector");
  expect(!operation->vector || reinterpret_cast<uintptr_t>(operation->vector) % 32 == 16,
         "a choice that depends on where a vector is");
  // As cuBLASLt may for any problem.
  if (e.n < 4 || (operation->sums_b() && (d->batch > 1 || e.m < 16)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const char* const text = std::getenv("ZG_EMULATOR_CUBLASLT_FIRST");
  const uint64_t first = text ? std::strtoull(text, nullptr, 10) : 0;
  for (uint64_t i = 0; i < order_count && *count < wanted; ++i) {
    const auto order = static_cast<Order>((first + i) % order_count);
    if (workspace_of(order, *d) > preference->workspace) continue;
    if (order == halves && preference->reductions == CUBLASLT_REDUCTION_SCHEME_NONE) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {.algo = algorithm(*operation, *a, *b, *d),
              .workspaceSize = workspace_of(order, *d),
              .state = CUBLAS_STATUS_SUCCESS};
    result.algo.data[7] =
        order << order_bits | *std::max_element(preference->alignments, preference->alignments + 4);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const cublasLtMatmulAlgo_t own = algorithm(*operation, *a, *b, *d);
  if (!std::equal(own.data, own.data + 7, algo->data) || order_of(*algo) >= order_count)
    return CUBLAS_STATUS_INVALID_VALUE;
  *result = {.workspaceSize = workspace_of(order_of(*algo), *d), .state = CUBLAS_STATUS_SUCCESS};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void*, size_t workspace,
                              cudaStream_t stream) {
  expect(*static_cast<const float*>(alpha) == 1.0f && c == d,
         "only d = ab or d += ab is asked for");
  if (const int status = zg::emulator::planted_failure("cublasLtMatmul"))
    return static_cast<cublasStatus_t>(status);
  const cublasLtMatmulAlgo_t own = algorithm(*operation, *a_layout, *b_layout, *d_layout);
  expect(std::equal(own.data, own.data + 7, algo->data), "an algorithm of another problem");
  expect(workspace_of(order_of(*algo), *d_layout) <= workspace, "a workspace that is too small");
  for (const void* place :
       {a, b, static_cast<const void*>(d), static_cast<const void*>(operation->vector)})
    expect(reinterpret_cast<uintptr_t>(place) % alignment_of(*algo) == 0,
           "an address off the alignment that was promised");
  const Product product{.operation = *operation,
                        .a_layout = *a_layout,
                        .b_layout = *b_layout,
                        .d_layout = *d_layout,
                        .a = a,
                        .b = b,
                        .d = d,
                        .beta = *static_cast<const float*>(beta),
                        .order = order_of(*algo)};
  ++products;
  zg::emulator::enqueue(stream, [product] { multiply(product); });
  return CUBLAS_STATUS_SUCCESS;
}
