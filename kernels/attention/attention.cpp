#include "zerograd/kernels/attention/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr int64_t max_head_size = 1024;

[[noreturn]] void refuse(const char* op, const std::string& what, const std::string& expected) {
  raise<ShapeError>("{}: {}; expected {}", op, what, expected);
}

void check_at_least(const char* op, const char* name, int64_t value, int64_t minimum) {
  if (value < minimum)
    refuse(op, fmt::format("{} is {}", name, value), fmt::format("at least {}", minimum));
}

void check_extents(const char* op, const AttentionShape& s) {
  check_at_least(op, "shape.B", s.B, 0);
  check_at_least(op, "shape.H", s.H, 0);
  check_at_least(op, "shape.T", s.T, 0);
  check_at_least(op, "shape.keys", s.keys, 1);
  check_at_least(op, "shape.offset", s.offset, 0);
  if (s.D < 1 || s.D > max_head_size)
    refuse(op, fmt::format("shape.D is {}", s.D),
           fmt::format("a head size from 1 to {}", max_head_size));
  check_at_least(op, "shape.kv_heads", s.kv_heads, 0);
  if (s.kv_heads != 0 && s.H % s.kv_heads != 0)
    refuse(op, fmt::format("shape.kv_heads is {}", s.kv_heads),
           fmt::format("0 or a divisor of shape.H, which is {}", s.H));
  check_at_least(op, "shape.window", s.window, 0);
  if (s.window > 0 && !s.causal)
    refuse(op, fmt::format("shape.window is {} and shape.causal is false", s.window),
           "shape.causal true or shape.window 0");
  dropout_slice(op, s.dropout, {1, s.H, s.T, s.keys}, s.dropout_key);
  if (s.dropout_key.axis != 1)
    refuse(op, fmt::format("shape.dropout_key.axis is {}", s.dropout_key.axis),
           "axis 1, because tensor ranks divide heads");
}

enum class Access { read, write };

/// Throws ShapeError unless the tensor contains all elements of the layout. Elements that are
/// written must be distinct, because two threads must not write the same element.
void check_layout(const char* op, const char* name, const Tensor& tensor, const HeadLayout& layout,
                  const AttentionShape& s, int64_t heads, int64_t tokens, Access access) {
  if (layout.offset < 0 || layout.batch < 0 || layout.head < 0 || layout.token < 0)
    refuse(op, std::string(name) + " has a layout with a negative stride or offset",
           "strides and an offset of 0 or more");
  if (s.B == 0 || heads == 0 || tokens == 0) return;
  using Axis = std::pair<int64_t, int64_t>;  // stride, extent
  std::array<Axis, 3> axes = {
      Axis(layout.batch, s.B), {layout.head, heads}, {layout.token, tokens}};
  int64_t end = layout.offset + s.D;
  for (const auto& [stride, extent] : axes) end += stride * (extent - 1);
  if (end > tensor.numel())
    refuse(op, fmt::format("{} has {} elements, shape {}", name, tensor.numel(), tensor.shape()),
           fmt::format("at least {} elements, which its layout needs", end));
  if (access == Access::read) return;
  std::ranges::sort(axes);
  int64_t span = s.D;
  for (const auto& [stride, extent] : axes) {
    if (extent == 1) continue;
    if (stride < span)
      refuse(op,
             fmt::format("{} has a layout in which elements overlap: a stride is {}", name, stride),
             fmt::format("at least {}", span));
    span += stride * (extent - 1);
  }
}

template <class Args>
void check_masks(const char* op, const Args& a) {
  const AttentionShape& s = a.shape;
  if (a.starts) {
    if (!s.causal || s.keys != s.T || s.offset != 0)
      refuse(op,
             fmt::format("starts (of documents) are given for {} attention of {} queries at offset "
                         "{} to {} keys",
                         s.causal ? "causal" : "full", s.T, s.offset, s.keys),
             "causal attention at offset 0 to as many keys as queries");
    check_dtype(op, "starts", a.starts, DType::i32);
    check_shape(op, "starts", a.starts, {s.B, s.T});
  }
  if (a.key_lengths) {
    check_dtype(op, "key_lengths", a.key_lengths, DType::i32);
    check_shape(op, "key_lengths", a.key_lengths, {s.B});
  }
}

struct HeadsOperand {
  const char* name;
  const Tensor* tensor;
  const HeadLayout* layout;
  int64_t heads, tokens;
  Access access = Access::read;
};

/// Checks the operands that forward and backward have (q, k, v and out, which only forward writes),
/// and `others`: the pass's further tensors in a HeadLayout.
template <class Args>
void check_operands(const char* op, const Args& a, Access out,
                    std::initializer_list<HeadsOperand> others) {
  const AttentionShape& s = a.shape;
  check_extents(op, s);
  std::vector<HeadsOperand> operands = {{"q", &a.q, &s.q, s.H, s.T},
                                        {"k", &a.k, &s.k, s.key_heads(), s.keys},
                                        {"v", &a.v, &s.v, s.key_heads(), s.keys},
                                        {"out", &a.out, &s.out, s.H, s.T, out}};
  operands.insert(operands.end(), others);
  for (const HeadsOperand& o : operands) {
    if (o.tensor == &a.q)
      check_dtype(op, o.name, a.q, floating);
    else
      check_dtype(op, o.name, *o.tensor, a.q.dtype());
    check_layout(op, o.name, *o.tensor, *o.layout, s, o.heads, o.tokens, o.access);
  }
  const DType dtype = accumulator(a.q.dtype());
  if (a.bias) {
    check_dtype(op, "bias", a.bias, dtype);
    if (a.bias.shape() != Shape{s.T, s.keys}) check_shape(op, "bias", a.bias, {s.H, s.T, s.keys});
  }
  if (a.alibi_slopes) {
    check_dtype(op, "alibi_slopes", a.alibi_slopes, dtype);
    check_shape(op, "alibi_slopes", a.alibi_slopes, {s.H});
  }
  check_masks(op, a);
}

void check_log_sum(const char* op, const Tensor& log_sum, const Tensor& q,
                   const AttentionShape& s) {
  check_dtype(op, "log_sum", log_sum, accumulator(q.dtype()));
  check_shape(op, "log_sum", log_sum, {s.B, s.H, s.T});
}

std::string sizes_of(const AttentionShape& s) {
  return fmt::format("B {}, H {}, T {}, keys {}, D {}{}{}{}", s.B, s.H, s.T, s.keys, s.D,
                     s.causal ? ", causal" : "",
                     s.kv_heads > 0 ? fmt::format(", kv_heads {}", s.kv_heads) : "",
                     s.window > 0 ? fmt::format(", window {}", s.window) : "");
}

}  // namespace

HeadLayout qkv_layout(const AttentionShape& s, QKVOrder order, int64_t part) {
  const int64_t C = s.H * s.D;
  const bool by_head = order == QKVOrder::by_head;
  return {.offset = part * (by_head ? s.D : C),
          .batch = s.T * 3 * C,
          .head = by_head ? 3 * s.D : s.D,
          .token = 3 * C};
}

std::string sizes(const AttentionForward& a) { return sizes_of(a.shape); }
std::string sizes(const AttentionBackward& a) { return sizes_of(a.shape); }

int64_t visible_pairs(const AttentionShape& s) {
  // The sum of min(x, keys) for x from 1 to `last`.
  const auto sum_to = [&](int64_t last) {
    const int64_t rising = std::clamp<int64_t>(last, 0, s.keys);
    return rising * (rising + 1) / 2 + std::max<int64_t>(last - s.keys, 0) * s.keys;
  };
  // The same for T numbers from `first`; those below 1 add nothing.
  const auto sum_from = [&](int64_t first) { return sum_to(first + s.T - 1) - sum_to(first - 1); };
  // Query t sees the keys before t + offset + 1, or all, except those before t + offset + 1 -
  // window.
  const int64_t first = s.offset + 1;
  return (s.causal ? sum_from(first) : s.T * s.keys) -
         (s.window > 0 ? sum_from(first - s.window) : int64_t{0});
}

namespace {

/// `query_rows` and `key_rows`: arrays of the size of q and of k that are read or written.
OpCount attention_count(const AttentionShape& s, const Tensor& q, const Tensor& bias,
                        const Tensor& log_sum, int64_t query_rows, int64_t key_rows,
                        int64_t products, KernelClass kind) {
  const int64_t elements = s.B * s.D * (query_rows * s.H * s.T + key_rows * s.key_heads() * s.keys);
  return {.bytes = elements * static_cast<int64_t>(size_of(q.dtype())) + (bias ? bias.bytes() : 0) +
                   (log_sum ? log_sum.bytes() : 0),
          .operations = 2 * products * s.D * s.B * s.H * visible_pairs(s),
          .dtype = q.dtype(),
          .kind = kind};
}

}  // namespace

void adjust_count(OpCount& count, const AttentionForward& a) {
  count = attention_count(a.shape, a.q, a.bias, a.log_sum, 2, 2, 2, KernelClass::attention_forward);
}

void adjust_count(OpCount& count, const AttentionBackward& a) {
  count =
      attention_count(a.shape, a.q, a.bias, a.log_sum, 4, 4, 5, KernelClass::attention_backward);
}

void validate(const AttentionForward& a) {
  const char* op = "attention_forward";
  check_operands(op, a, Access::write, {});
  if (a.log_sum) check_log_sum(op, a.log_sum, a.q, a.shape);
}

void validate(const AttentionBackward& a) {
  const char* op = "attention_backward";
  const AttentionShape& s = a.shape;
  check_operands(op, a, Access::read,
                 {{"dout", &a.dout, &s.out, s.H, s.T},
                  {"dq", &a.dq, &s.q, s.H, s.T, Access::write},
                  {"dk", &a.dk, &s.k, s.key_heads(), s.keys, Access::write},
                  {"dv", &a.dv, &s.v, s.key_heads(), s.keys, Access::write}});
  check_log_sum(op, a.log_sum, a.q, s);
}

namespace cpu {
int64_t workspace_bytes(const AttentionForward&, const Device::Traits&);
int64_t workspace_bytes(const AttentionBackward&, const Device::Traits&);
}  // namespace cpu

namespace {

/// row_dots: one float for each query of each head.
int64_t row_dots_bytes(const AttentionBackward& a, const Device::Traits&) {
  return a.shape.B * a.shape.H * a.shape.T * int64_t{sizeof(float)};
}

}  // namespace

ZG_KERNEL(AttentionForward, attention_forward, cpu::workspace_bytes)
ZG_KERNEL(AttentionBackward, attention_backward, cpu::workspace_bytes, row_dots_bytes,
          row_dots_bytes)

std::vector<float> alibi_slopes(int64_t heads) {
  if (heads < 1) raise<ConfigError>("alibi_slopes: heads is {}; expected 1 or more", heads);
  const auto power_of_two = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto power = [](int64_t i, int64_t of_heads) {
    return static_cast<float>(
        portable::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(of_heads)));
  };
  std::vector<float> slopes;
  for (int64_t i = 1; i <= power_of_two; ++i) slopes.push_back(power(i, power_of_two));
  for (int64_t i = 1; i <= heads - power_of_two; ++i)
    slopes.push_back(power(2 * i - 1, 2 * power_of_two));
  return slopes;
}

}  // namespace zg
