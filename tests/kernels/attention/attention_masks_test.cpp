#include "tests/kernels/attention/attention_case.h"
#include "tests/support/cover.h"
#include "zerograd/runtime/error.h"

// Grouped queries, sliding windows, documents and key lengths.
using namespace zg;
using namespace zg::testing;

namespace {

Tensor full_like(const Tensor& x) {
  return Tensor::full(x.shape(), untouched, x.dtype(), x.device());
}

void check_same_results(const Tensors& a, const Tensors& b) {
  CHECK(same_bits(a.out, b.out));
  CHECK(same_bits(a.log_sum, b.log_sum));
  CHECK(same_bits(a.dq, b.dq));
  CHECK(same_bits(a.dk, b.dk));
  CHECK(same_bits(a.dv, b.dv));
}

bool is_all(const Tensor& x, double value) {
  for (double element : x.to_doubles())
    if (element != value) return false;
  return true;
}

bool is_finite(const Tensor& x) {
  for (double element : x.to_doubles())
    if (!std::isfinite(element)) return false;
  return true;
}

/// The tensors of each document alone: the same memory, and log_sum of its own.
struct Documents {
  Tensors whole;  ///< outputs that the calls of the documents write
  std::vector<float> log_sum;

  /// On sm_90a calls of up to 64 queries take another kernel, with other bits, unless they have
  /// starts.
  Documents(const Problem& p, const Tensors& t, const Device& device)
      : whole(t), log_sum(static_cast<size_t>(t.log_sum.numel())) {
    const AttentionShape& s = t.shape;
    for (Tensor* output : {&whole.out, &whole.dq, &whole.dk, &whole.dv})
      *output = full_like(*output);
    for (int64_t b = 0; b < s.B; ++b) {
      int64_t first = 0;
      for (int64_t length : documents_of(p, b)) {
        Tensors part = whole;
        AttentionShape& shape = part.shape;
        shape.B = 1, shape.T = shape.keys = length;
        for (HeadLayout* layout : {&shape.q, &shape.k, &shape.v, &shape.out})
          layout->offset += b * layout->batch + first * layout->token;
        part.log_sum = Tensor::zeros({1, s.H, length}, t.log_sum.dtype(), device);
        const bool masked = device.type() == Device::Type::cuda && length <= 64;
        part.starts = masked ? Tensor::zeros({1, length}, DType::i32, device) : Tensor();
        run(part, device);
        const std::vector<double> sums = part.log_sum.to_doubles();
        for (int64_t h = 0; h < s.H; ++h)
          for (int64_t i = 0; i < length; ++i)
            log_sum[static_cast<size_t>((b * s.H + h) * s.T + first + i)] =
                static_cast<float>(sums[static_cast<size_t>(h * length + i)]);
        first += length;
      }
    }
  }
};

void check_documents_alone(Problem p, DType dtype, const Device& device) {
  p.T = 0;
  for (int64_t length : p.documents) p.T += length;
  p.keys = p.T;
  INFO(p.str(), ", ", name_of(dtype), ", ", level_of(device));
  const Tensors together = make(p, dtype, device);
  run(together, device);
  const Documents alone(p, together, device);
  CHECK(same_bits(together.out, alone.whole.out));
  CHECK(same_bits(together.dq, alone.whole.dq));
  CHECK(same_bits(together.dk, alone.whole.dk));
  CHECK(same_bits(together.dv, alone.whole.dv));
  const std::vector<double> log_sum = together.log_sum.to_doubles();
  for (size_t i = 0; i < log_sum.size(); ++i)
    REQUIRE(static_cast<float>(log_sum[i]) == alone.log_sum[i]);
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("grouped queries give the bits of single query heads that read the same head of keys") {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : on_device(floating_dtypes, device)) {
      INFO(level_of(device), ", ", name_of(dtype));
      const Problem p = {.H = 6, .T = 70, .keys = 70, .D = 24, .form = Form::cache, .kv_heads = 2};
      const Tensors grouped = make(p, dtype, device);
      Tensors copied = grouped;
      for (Tensor* output : {&copied.out, &copied.dq}) *output = full_like(*output);
      // Each query head alone, with the head of keys that it reads.
      for (int64_t h = 0; h < p.H; ++h) {
        Tensors head = copied;
        AttentionShape& shape = head.shape;
        shape.H = 1, shape.kv_heads = 0;
        shape.q.offset = shape.out.offset = h * shape.q.head;
        shape.k.offset = shape.v.offset = h / 3 * shape.k.head;
        head.log_sum = Tensor::zeros({p.B, 1, p.T}, grouped.log_sum.dtype(), device);
        head.dk = full_like(head.dk), head.dv = full_like(head.dv);
        run(head, device);
      }
      run(grouped, device);
      CHECK(same_bits(grouped.out, copied.out));
      CHECK(same_bits(grouped.dq, copied.dq));
    }
}

TEST_CASE(
    "attention with dropout over some of the heads has the bits of these heads of the whole") {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : on_device(floating_dtypes, device))
      for (const Problem& p : {Problem{.H = 5, .T = 7, .keys = 7, .D = 24, .dropout = 0.3f},
                               Problem{.H = 6,
                               .T = 70,
                               .keys = 75,
                               .offset = 5,
                               .D = 16,
                               .dropout = 0.3f,
                               .form = Form::separate,
                               .kv_heads = 3},
                               Problem{.H = 4,
                               .T = 90,
                               .keys = 90,
                               .D = 8,
                               .dropout = 0.3f,
                               .form = Form::by_head,
                               .documents = {11, 70, 9}}}) {
        INFO(level_of(device), ", ", name_of(dtype), ", ", p.str());
        const Tensors whole = make(p, dtype, device);
        Tensors parts = whole;
        parts.out = full_like(parts.out);
        parts.dq = full_like(parts.dq);
        const bool fused = p.form != Form::separate;
        parts.dk = fused ? parts.dq : full_like(parts.dk);
        parts.dv = fused ? parts.dq : full_like(parts.dv);
        const int64_t group = whole.shape.group();
        for (int64_t begin = 0, count = 0; begin < p.H; begin += count) {
          count = std::min<int64_t>(begin == 0 ? group : 2 * group, p.H - begin);
          Tensors heads = parts;
          AttentionShape& shape = heads.shape;
          shape.H = count;
          shape.kv_heads = p.kv_heads > 0 ? count / group : 0;
          shape.dropout_key.begin = begin;
          shape.dropout_key.whole = p.H;
          for (HeadLayout* layout : {&shape.q, &shape.out}) layout->offset += begin * layout->head;
          for (HeadLayout* layout : {&shape.k, &shape.v})
            layout->offset += begin / group * layout->head;
          heads.log_sum = Tensor::zeros({p.B, count, p.T}, whole.log_sum.dtype(), device);
          run(heads, device);
        }
        run(whole, device);
        CHECK(same_bits(whole.out, parts.out));
        CHECK(same_bits(whole.dq, parts.dq));
        CHECK(same_bits(whole.dk, parts.dk));
        CHECK(same_bits(whole.dv, parts.dv));
      }
}

TEST_CASE("the gradient of grouped values adds the query heads in rising order") {
  // One query a head: dv is a sum of dout with weight 1. In any other order 1 is lost.
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Problem p = {
        .B = 1, .H = 3, .T = 1, .keys = 1, .D = 16, .form = Form::separate, .kv_heads = 1};
    Tensors t = make(p, DType::f32, device);
    std::vector<float> dout(3 * 16, 1.0f);
    std::fill(dout.begin(), dout.begin() + 16, 0x1p24f);
    std::fill(dout.begin() + 16, dout.begin() + 32, -0x1p24f);
    t.dout = Tensor::from(dout, t.dout.shape(), device);
    run(t, device);
    CHECK(is_all(t.dv, 1.0));
  }
}

TEST_CASE("a sliding window of all keys gives the bits of a call without a window") {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : on_device(floating_dtypes, device)) {
      INFO(level_of(device), ", ", name_of(dtype));
      Problem p = {.B = 1, .T = 140, .keys = 140, .D = 24, .form = Form::separate};
      const Tensors without = make(p, dtype, device);
      p.window = p.T;
      const Tensors with = make(p, dtype, device);
      run(without, device);
      run(with, device);
      check_same_results(with, without);
    }
}

TEST_CASE("a document mask has the bits of a call for each document") {
  const std::vector<Problem> problems = {
      {.H = 2, .form = Form::separate, .documents = {1, 31, 33, 2, 64, 5, 1, 1, 70}},
      {.H = 4,
       .form = Form::separate,
       .alibi = true,
       .kv_heads = 2,
       .window = 20,
       .documents = {1, 31, 33, 2, 64, 5, 1, 1, 70}},
      {.B = 1,
       .H = 4,
       .form = Form::separate,
       .alibi = true,
       .kv_heads = 2,
       .documents = {7, 130, 3}}};
  const std::vector<Device> devices = devices_of_every_generation();
  const int64_t widths[] = {17, 64, 128};
  for_cover(
      [](const Device& device, DType dtype, Problem p, int64_t D) {
        p.D = D;
        check_documents_alone(p, dtype, device);
      },
      devices, on_device(floating_dtypes, devices.front()), problems, widths);
}

TEST_SUITE_END();

TEST_CASE(
    "a mask of long documents gives the bits of a call for each document, with a window too") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16}) {
      Problem p = {.B = 1, .H = 2, .D = 16, .form = Form::separate, .kv_heads = 1};
      p.documents = {383, 385, 1, 800, 7};
      check_documents_alone(p, dtype, device);
      p.window = 300;
      check_documents_alone(p, dtype, device);
    }
}

TEST_SUITE_BEGIN("every device");

TEST_CASE("keys hidden by key lengths are not read") {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : on_device({DType::f32, DType::bf16}, device)) {
      CAPTURE(level_of(device));
      Problem p = {.H = 2, .T = 40, .keys = 90, .D = 64, .causal = false, .form = Form::separate};
      p.key_lengths = {33, 0};
      Tensors t = make(p, dtype, device);
      std::vector<double> keys = t.k.to_doubles();
      for (int64_t b = 0; b < p.B; ++b)
        for (int64_t j = p.key_lengths[static_cast<size_t>(b)]; j < p.keys; ++j)
          for (int64_t h = 0; h < p.H; ++h) keys[place(t.shape.k, b, h, j)] = NAN;
      if (dtype == DType::f32)
        t.k = t.v = Tensor::from(std::vector<float>(keys.begin(), keys.end()), t.k.shape(), device);
      else
        t.k = t.v = Tensor::from(std::vector<bf16>(keys.begin(), keys.end()), t.k.shape(), device);
      run(t, device);
      for (const Tensor& x : {t.out, t.dq, t.dk, t.dv}) CHECK(is_finite(x));
    }
}

TEST_CASE("queries that see nothing give zeros and zero gradients") {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : on_device(floating_dtypes, device))
      for (int64_t T : {1, 40})
        for (bool by_bias : {false, true}) {
          INFO(level_of(device), ", ", name_of(dtype), ", by bias ", by_bias);
          Problem p = {.B = 1, .H = 2, .T = T, .keys = T, .D = 64, .form = Form::separate};
          if (by_bias)
            p.bias_rank = 2;
          else
            p.key_lengths = {0};
          Tensors t = make(p, dtype, device);
          if (by_bias) {
            const std::vector<double> hidden(static_cast<size_t>(T * T), -INFINITY);
            const Shape plane{T, T};
            t.bias =
                dtype == DType::f64
                    ? Tensor::from(hidden, plane, device)
                    : Tensor::from(std::vector<float>(hidden.begin(), hidden.end()), plane, device);
          }
          run(t, device);
          CHECK(is_all(t.log_sum, -INFINITY));
          for (const Tensor& x : {t.out, t.dq, t.dk, t.dv}) CHECK(is_all(x, 0.0));
        }
}

TEST_SUITE_END();

TEST_CASE(
    "grouped queries with windows and documents give the same bits for any number of threads") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      INFO(name_of(isa), ", ", name_of(dtype));
      Problem p = {.B = 1, .H = 6, .T = 500, .keys = 500, .D = 20, .form = Form::separate};
      p.kv_heads = 2, p.window = 130, p.documents = {3, 420, 77};
      p.bias_rank = 2, p.dropout = 0.1f, p.alibi = true;
      std::vector<Tensors> runs;
      for (int threads : {1, 2, 3}) {
        const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
        runs.push_back(make(p, dtype, device));
        run(runs.back(), device);
        check_same_results(runs.front(), runs.back());
      }
    }
}

TEST_CASE("scratch of attention depends on shapes alone, and is linear in the tokens") {
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      const Device device = Device::meta(0, {.threads = 2, .isa = isa});
      const auto scratch = [&](const std::vector<int64_t>& documents, int64_t window, int64_t T) {
        Problem p = {.B = 1, .H = 6, .T = T, .keys = T, .D = 16, .form = Form::separate};
        p.kv_heads = 2, p.window = window, p.documents = documents;
        const Tensors t = make(p, dtype, device);
        std::vector<int64_t> bytes;
        for (Device::Type type : {Device::Type::cpu, Device::Type::cuda, Device::Type::hpu}) {
          const auto& backward = kernels::attention_backward[type];
          bytes.push_back(backward.workspace_bytes(t.backward(), device.traits()));
        }
        const auto& forward = kernels::attention_forward[Device::Type::cpu];
        bytes.push_back(forward.workspace_bytes(t.forward(), device.traits()));
        return bytes;
      };
      const std::vector<int64_t> plain = scratch({}, 0, 1024), twice = scratch({}, 0, 2048);
      CHECK(plain == scratch({1024}, 0, 1024));
      CHECK(plain == scratch({1, 95, 928}, 7, 1024));
      for (size_t i = 0; i < plain.size(); ++i) CHECK(twice[i] <= 2 * plain[i]);
    }
}

TEST_CASE("attention refuses groups and masks that do not fit, by name") {
  const Device device = Device::cpu();
  const auto forward = [&](const Problem& p, auto change) {
    Tensors t = make(p, DType::f32, device);
    change(t);
    kernels::attention_forward(t.forward(), device.compute());
  };
  const auto i32 = [&](const std::vector<int32_t>& values, const Shape& shape) {
    return Tensor::from(values, shape, device);
  };
  const Problem p = {.H = 6, .T = 4, .keys = 4, .D = 8, .form = Form::separate};
  CHECK_THROWS_WITH_AS(
      forward(p, [](Tensors& t) { t.shape.kv_heads = 4; }),
      "attention_forward: shape.kv_heads is 4; expected 0 or a divisor of shape.H, which is 6",
      ShapeError);
  CHECK_THROWS_WITH_AS(forward(p, [](Tensors& t) { t.shape.kv_heads = -1; }),
                       "attention_forward: shape.kv_heads is -1; expected at least 0", ShapeError);
  CHECK_THROWS_WITH_AS(forward(p, [](Tensors& t) { t.shape.window = -1; }),
                       "attention_forward: shape.window is -1; expected at least 0", ShapeError);
  CHECK_THROWS_WITH_AS(forward(p, [](Tensors& t) { t.shape.window = 2, t.shape.causal = false; }),
                       "attention_forward: shape.window is 2 and shape.causal is false; expected "
                       "shape.causal true or shape.window 0",
                       ShapeError);
  CHECK_THROWS_WITH_AS(forward(p,
                               [&](Tensors& t) {
                                 t.starts = i32({0, 0, 0, 0}, {4});
                               }),
                       "attention_forward: starts has shape [4]; expected [2, 4]", ShapeError);
  CHECK_THROWS_WITH_AS(forward(p,
                               [&](Tensors& t) {
                                 t.starts = Tensor::zeros({2, 4}, DType::i64, device);
                               }),
                       "attention_forward: starts holds i64; expected i32", DTypeError);
  const auto zeros = i32({0, 0, 0, 0, 0, 0, 0, 0}, {2, 4});
  CHECK_THROWS_WITH_AS(
      forward(p, [&](Tensors& t) { t.starts = zeros, t.shape.causal = false; }),
      "attention_forward: starts (of documents) are given for full attention of 4 "
      "queries at offset 0 to 4 keys; expected causal attention at offset 0 to as many keys "
      "as queries",
      ShapeError);
  CHECK_THROWS_AS(forward(p, [&](Tensors& t) { t.starts = zeros, t.shape.offset = 1; }),
                  ShapeError);
  CHECK_THROWS_WITH_AS(
      forward(p,
              [&](Tensors& t) {
                t.starts = i32({0, 0, 2, 2, 0, 0, 1, 1}, {2, 4});
              }),
      "attention_forward: starts holds 1 at sample 1, token 2; expected 2 for the first token of a "
      "document, or 0 as at the token before",
      ShapeError);
  CHECK_THROWS_WITH_AS(forward(p,
                               [&](Tensors& t) {
                                 t.starts = i32({0, 0, 0, 0, 1, 1, 1, 1}, {2, 4});
                               }),
                       "attention_forward: starts holds 1 at sample 1, token 0; expected 0",
                       ShapeError);
  CHECK_THROWS_WITH_AS(forward(p, [&](Tensors& t) { t.key_lengths = i32({4}, {1}); }),
                       "attention_forward: key_lengths has shape [1]; expected [2]", ShapeError);
  CHECK_THROWS_WITH_AS(forward(p,
                               [&](Tensors& t) {
                                 t.key_lengths = i32({4, 5}, {2});
                               }),
                       "attention_forward: key_lengths holds 5 at element 1; expected 0 to 4",
                       ShapeError);
}
