#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/variant.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/hpu/features.h"

namespace zg::hpu {
namespace {

constexpr int64_t tile = 64;  // rows and columns of c, as in matmul.cl and matmul_tiles.cl

/// The flags of matmul.clh.
int32_t flags_of(const Matmul& m) {
  return (m.accumulate ? 1 : 0) | (m.c.dtype() == DType::f32 ? 2 : 0) |
         (m.activation == Activation::gelu_tanh ? 4 : 0) |
         (m.activation == Activation::gelu_erf ? 8 : 0);
}

int64_t lda_of(const Matmul& m) { return m.lda ? m.lda : m.transpose_a ? m.M : m.K; }
int64_t ldb_of(const Matmul& m) { return m.ldb ? m.ldb : m.transpose_b ? m.K : m.N; }

/// Launches a kernel of a module, with tiles of `rows` and `columns` of c; matmul.clh describes its
/// arguments.
void multiply(const Matmul& m, const Code& code, Stream& stream, const char* kernel = "matmul",
              int64_t rows = tile, int64_t columns = tile) {
  const int64_t lda = lda_of(m), ldb = ldb_of(m);
  const Long8 extents{m.M, m.N, m.K, m.ldc ? m.ldc : m.N, m.stride_c};
  const Long8 operands{m.stride_a, m.transpose_a ? 1 : lda, m.transpose_a ? lda : 1,
                       m.stride_b, m.transpose_b ? ldb : 1, m.transpose_b ? 1 : ldb};
  launch(stream, code, kernel, {groups_for(m.N, columns), groups_for(m.M, rows), m.batch},
         m.a.raw(), m.b.raw(), operands, m.c.raw(), m.pre_activation.raw(), m.bias.raw(), extents,
         flags_of(m));
}

/// Multiplies bf16 by DPAS: large products by matmul_wide_tiles.cl, whose comments give its limits.
void multiply_tiles(const Matmul& m, const char* variant, Stream& stream) {
  const int64_t rows = 128, columns = variant == std::string_view("dpas8") ? 128 : 256;
  if (m.M < rows || m.N < columns || m.K <= 32 || (m.transpose_a && m.transpose_b))
    return multiply(m, module("matmul_tiles", m.a.dtype(), variant), stream);
  // Elements that a work-item reads or stores together begin in the middle of a word if any of
  // these is odd.
  const auto address = [](const Tensor& t) { return reinterpret_cast<intptr_t>(t.raw()) / 2; };
  const int64_t bits = lda_of(m) | ldb_of(m) | m.ldc | m.N | m.stride_a | m.stride_b | m.stride_c |
                       (m.transpose_a ? m.M : m.K) | (m.transpose_b ? m.K : 0) | address(m.a) |
                       address(m.b) | address(m.c);
  const char* const kernels[] = {"along_k_n",     "along_k_k",     "along_m_n",
                                 "odd_along_k_n", "odd_along_k_k", "odd_along_m_n"};
  const int order = m.transpose_a ? 2 : m.transpose_b ? 1 : 0;
  multiply(m, module("matmul_wide_tiles", m.a.dtype(), variant), stream,
           kernels[bits % 2 * 3 + order], rows, columns);
}

/// Whether DPAS works on the device: multiplies small integers, so that the result is exact, with
/// extents that are not multiples of a tile.
bool dpas_works(int index, int lanes) try {
  constexpr int64_t M = 21, N = 37, K = 45;
  const Device device = Device::hpu(index);
  std::vector<bf16> a, b;
  for (int64_t i = 0; i < M * K; ++i) a.emplace_back(static_cast<float>(i * 7 % 17 - 8));
  for (int64_t i = 0; i < K * N; ++i) b.emplace_back(static_cast<float>(i * 5 % 13 - 6));
  const Matmul product{.a = Tensor::from(a, {M, K}, device),
                       .b = Tensor::from(b, {K, N}, device),
                       .c = Tensor::zeros({M, N}, DType::f32, device),
                       .M = M,
                       .N = N,
                       .K = K};
  multiply_tiles(product, lanes == 8 ? "dpas8" : "dpas16", device.compute());
  const std::vector<float> c = product.c.to_host<float>();
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0.0f;
      for (int64_t k = 0; k < K; ++k)
        sum += static_cast<float>(a[static_cast<size_t>(m * K + k)]) *
               static_cast<float>(b[static_cast<size_t>(k * N + n)]);
      if (c[static_cast<size_t>(m * N + n)] != sum) return false;
    }
  return true;
} catch (const DeviceError&) {  // the module does not build, or the kernel does not run
  return false;
}

}  // namespace

int dpas_sub_group_size(int index) {
  static std::mutex mutex;
  static std::map<int, int>& known = *new std::map<int, int>;
  std::lock_guard lock(mutex);
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  // A device that has sub-groups of 8 supports DPAS only with sub-groups of 8.
  const std::vector<int>& sizes = features_of(index).sub_groups;
  const bool has8 = std::find(sizes.begin(), sizes.end(), 8) != sizes.end();
  const bool has16 = std::find(sizes.begin(), sizes.end(), 16) != sizes.end();
  const int lanes = !features_of(index).may_have_dpas || !has16 ? 0 : has8 ? 8 : 16;
  return known[index] = lanes > 0 && dpas_works(index, lanes) ? lanes : 0;
}

void matmul(const Matmul& m, Workspace workspace, Stream& stream) {
  if (m.row_sums) kernels::reduce[Device::Type::hpu].function(reduce_rows(m), workspace, stream);
  const Variant variant = variant_of(stream);
  const DType dtype = m.a.dtype();
  if (variant == Variant::dpas && dtype == DType::bf16)
    multiply_tiles(m, dpas_variant(stream), stream);
  else
    multiply(m, module("matmul", dtype, variant == Variant::portable ? "" : "sg16"), stream);
}

}  // namespace zg::hpu
