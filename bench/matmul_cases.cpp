#include "bench/case.h"
#include "bench/operands.h"
#include "zerograd/kernels/matmul/matmul.h"

namespace zg::bench {
namespace {

struct Extents {
  int64_t M, N, K;
  bool transpose_a, transpose_b;
  const char* form;
};

Case matmul_case(const Extents& s, DType dtype) {
  const auto make = [s, dtype](const Device& device) -> std::function<void()> {
    const Matmul call{.a = operand({s.M, s.K}, dtype, device, 1),
                      .b = operand({s.K, s.N}, dtype, device, 2),
                      .c = Tensor::zeros({s.M, s.N}, dtype, device),
                      .M = s.M,
                      .N = s.N,
                      .K = s.K,
                      .transpose_a = s.transpose_a,
                      .transpose_b = s.transpose_b};
    return [call, device] { kernels::matmul(call, device.compute()); };
  };
  return {.work = {.name = std::string("matmul ") + s.form,
                   .shape = by({s.M, s.N, s.K}),
                   .dtype = dtype,
                   .flops = 2.0 * static_cast<double>(s.M * s.N * s.K),
                   .read = bytes_of(s.M * s.K + s.K * s.N, dtype),
                   .written = bytes_of(s.M * s.N, dtype)},
          .make = make};
}

}  // namespace

std::vector<Case> matmul_cases(const Sizes& sizes) {
  // GPT-2 small: forward, gradients of x and of the weight; its head; a square; a nano GPT; and
  // one token of generation.
  std::vector<Extents> extents = {
      {1024, 768, 768, false, true, "NT"},    {1024, 3072, 768, false, true, "NT"},
      {1024, 768, 3072, false, true, "NT"},   {1024, 768, 3072, false, false, "NN"},
      {768, 3072, 1024, true, false, "TN"},   {512, 50257, 768, false, true, "NT"},
      {2048, 2048, 2048, false, false, "NN"}, {64, 48, 48, false, true, "NT"},
      {704, 48, 48, false, true, "NT"},       {704, 192, 48, false, true, "NT"},
      {48, 192, 704, true, false, "TN"},      {1, 3072, 768, false, true, "NT"},
      {1, 50257, 768, false, true, "NT"}};
  if (sizes.on_accelerator)  // the same of 16 sequences of 1024, and a square beyond all caches
    extents = {{16384, 2304, 768, false, true, "NT"},  {16384, 3072, 768, false, true, "NT"},
               {16384, 768, 3072, false, true, "NT"},  {16384, 768, 3072, false, false, "NN"},
               {768, 3072, 16384, true, false, "TN"},  {16384, 50304, 768, false, true, "NT"},
               {8192, 8192, 8192, false, false, "NN"}, {704, 192, 48, false, true, "NT"}};
  std::vector<Case> cases;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Extents& e : extents) cases.push_back(matmul_case(e, dtype));
  return cases;
}

}  // namespace zg::bench
