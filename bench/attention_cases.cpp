#include "bench/case.h"
#include "bench/operands.h"
#include "zerograd/kernels/attention/attention.h"

namespace zg::bench {
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
  /// FLOP of one product of T x D and D x T where query t needs only keys 0 to t.
  double causal_flops() const {
    return static_cast<double>(B * H * D) * static_cast<double>(T) * static_cast<double>(T + 1);
  }
};

/// q, k and v fused in [B, T, 3C], the layout of a model.
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

/// Five products, where forward has two: the scores again, dv, the weights' gradient, dq and dk.
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

/// One query for each head against a cache of T positions.
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
                   .written = 0.0},  // one row in T
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

}  // namespace zg::bench
