#include "bench/case.h"

#include "bench/operands.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/error.h"

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
  // Layers of GPT-2 small: forward pass, gradient of x, gradient of the weight, output head. Then
  // a product of square matrices, layers of a nano GPT, and GPT-2 small for one generated token.
  std::vector<Extents> extents = {
      {1024, 768, 768, false, true, "NT"},    {1024, 3072, 768, false, true, "NT"},
      {1024, 768, 3072, false, true, "NT"},   {1024, 768, 3072, false, false, "NN"},
      {768, 3072, 1024, true, false, "TN"},   {512, 50257, 768, false, true, "NT"},
      {2048, 2048, 2048, false, false, "NN"}, {64, 48, 48, false, true, "NT"},
      {704, 48, 48, false, true, "NT"},       {704, 192, 48, false, true, "NT"},
      {48, 192, 704, true, false, "TN"},      {1, 3072, 768, false, true, "NT"},
      {1, 50257, 768, false, true, "NT"}};
  if (sizes.on_accelerator)  // 16 sequences of 1024 tokens; the square exceeds all caches
    extents = {{16384, 2304, 768, false, true, "NT"},  {16384, 3072, 768, false, true, "NT"},
               {16384, 768, 3072, false, true, "NT"},  {16384, 768, 3072, false, false, "NN"},
               {768, 3072, 16384, true, false, "TN"},  {16384, 50304, 768, false, true, "NT"},
               {8192, 8192, 8192, false, false, "NN"}, {704, 192, 48, false, true, "NT"}};
  std::vector<Case> cases;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Extents& e : extents) cases.push_back(matmul_case(e, dtype));
  return cases;
}

namespace {

struct Size {
  int64_t B, H, T, D;
  int64_t C() const { return H * D; }
  int64_t numel() const { return B * T * C(); }
  int64_t rows() const { return B * H * T; }
  std::string shape() const {
    return "B" + std::to_string(B) + " H" + std::to_string(H) + " T" + std::to_string(T) + " d" +
           std::to_string(D);
  }
  /// FLOP of one T x D by D x T product, summed over heads. Query t uses only keys 0 to t.
  double causal_flops() const {
    return static_cast<double>(B * H * D) * static_cast<double>(T) * static_cast<double>(T + 1);
  }
};

/// The layout of the models: one tensor [B, T, 3C] holds q, k and v.
AttentionShape fused(const Size& s) {
  const auto part = [&](int64_t i) {
    return HeadLayout{
        .offset = i * s.C(), .batch = s.T * 3 * s.C(), .head = s.D, .token = 3 * s.C()};
  };
  return {.B = s.B,
          .H = s.H,
          .T = s.T,
          .keys = s.T,
          .D = s.D,
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .out = {.batch = s.T * s.C(), .head = s.D, .token = s.C()}};
}

AttentionForward forward_call(const Size& s, DType dtype, const Device& device) {
  const Tensor qkv = operand({s.B, s.T, 3 * s.C()}, dtype, device, 1);
  return {.q = qkv,
          .k = qkv,
          .v = qkv,
          .out = Tensor::zeros({s.B, s.T, s.C()}, dtype, device),
          .log_sum = Tensor::zeros({s.B, s.H, s.T}, DType::f32, device),
          .shape = fused(s)};
}

Case forward_case(const Size& s, DType dtype) {
  return {.work = {.name = "attention forward",
                   .shape = s.shape(),
                   .dtype = dtype,
                   .flops = 2.0 * s.causal_flops(),
                   .read = bytes_of(3 * s.numel(), dtype),
                   .written = bytes_of(s.numel(), dtype) + bytes_of(s.rows(), DType::f32)},
          .make = [s, dtype](const Device& device) -> std::function<void()> {
            const AttentionForward call = forward_call(s, dtype, device);
            return [call, device] { kernels::attention_forward(call, device.compute()); };
          }};
}

/// Five matrix products: scores, dv, gradient of the weights, dq, dk. The forward pass has two.
Case backward_case(const Size& s, DType dtype) {
  const auto make = [s, dtype](const Device& device) -> std::function<void()> {
    const AttentionForward forward = forward_call(s, dtype, device);
    kernels::attention_forward(forward, device.compute());
    const Tensor dqkv = Tensor::zeros({s.B, s.T, 3 * s.C()}, dtype, device);
    const AttentionBackward call{.q = forward.q,
                                 .k = forward.k,
                                 .v = forward.v,
                                 .out = forward.out,
                                 .log_sum = forward.log_sum,
                                 .dout = operand({s.B, s.T, s.C()}, dtype, device, 2),
                                 .dq = dqkv,
                                 .dk = dqkv,
                                 .dv = dqkv,
                                 .shape = forward.shape};
    return [call, device] { kernels::attention_backward(call, device.compute()); };
  };
  return {.work = {.name = "attention backward",
                   .shape = s.shape(),
                   .dtype = dtype,
                   .flops = 5.0 * s.causal_flops(),
                   .read = bytes_of(5 * s.numel(), dtype) + bytes_of(s.rows(), DType::f32),
                   .written = bytes_of(3 * s.numel(), dtype)},
          .make = make};
}

/// One query per head attends to T positions of the key and value cache.
Case decode_case(const Size& s, DType dtype) {
  const auto make = [s, dtype](const Device& device) -> std::function<void()> {
    const HeadLayout one{.batch = s.C(), .head = s.D, .token = s.C()};
    const HeadLayout cache{.batch = s.T * s.C(), .head = s.D, .token = s.C()};
    const AttentionForward call{.q = operand({s.B, 1, s.C()}, dtype, device, 1),
                                .k = operand({s.B, s.T, s.C()}, dtype, device, 2),
                                .v = operand({s.B, s.T, s.C()}, dtype, device, 3),
                                .out = Tensor::zeros({s.B, 1, s.C()}, dtype, device),
                                .shape = {.B = s.B,
                                          .H = s.H,
                                          .T = 1,
                                          .keys = s.T,
                                          .offset = s.T - 1,
                                          .D = s.D,
                                          .q = one,
                                          .k = cache,
                                          .v = cache,
                                          .out = one}};
    return [call, device] { kernels::attention_forward(call, device.compute()); };
  };
  return {.work = {.name = "attention decode",
                   .shape = s.shape(),
                   .dtype = dtype,
                   .flops = 4.0 * static_cast<double>(s.numel()),
                   .read = bytes_of(2 * s.numel() + s.B * s.C(), dtype),
                   .written = 0.0},  // neglected: one row is written for T rows that are read
          .make = make};
}

}  // namespace

std::vector<Case> attention_cases(const Sizes& sizes) {
  std::vector<Size> training{{1, 12, 1024, 64}, {4, 12, 256, 64}, {8, 3, 128, 16}};
  if (sizes.on_accelerator) training = {{4, 16, 4096, 128}, {16, 16, 1024, 64}, {4, 16, 1024, 96}};
  std::vector<Case> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const Size& s : training)
      for (const auto& make : {forward_case, backward_case}) cases.push_back(make(s, dtype));
    for (const Size& s : {Size{1, 12, 1024, 64}, Size{8, 12, 1024, 64}, Size{1, 12, 16384, 64}})
      cases.push_back(decode_case(s, dtype));
  }
  return cases;
}

Row add(Report& report, const Case& c) {
  try {
    return report.add(c.work, c.make(report.device()));
  } catch (const OutOfMemory&) {
    if (report.device().type() == Device::Type::cpu) throw;
    return report.add_unmeasured(c.work, "does not fit its memory");
  }
}

std::string Rows::shape() const { return by({N, C}); }

Sizes::Sizes(Device::Type type)
    : on_accelerator(type != Device::Type::cpu),
      tokens{on_accelerator ? 65536 : 8192, on_accelerator ? 1024 : 768},
      logits{on_accelerator ? 8192 : 1024, 50257},
      scores{on_accelerator ? 98304 : 12288, 1024},
      hidden((on_accelerator ? 32768 : 4096) * hidden_width),
      flat(int64_t{on_accelerator ? 256 : 32} << 20),
      parameters(on_accelerator ? 800'000'000 : 100'000'000) {}

std::vector<Case> kernel_cases(Device::Type type) {
  const Sizes sizes(type);
  std::vector<Case> all;
  for (const auto& cases :
       {matmul_cases(sizes), attention_cases(sizes), row_cases(sizes), element_cases(sizes)})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

}  // namespace zg::bench
