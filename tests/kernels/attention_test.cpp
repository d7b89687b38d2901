#include "kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr double untouched = 7.0;  // what outputs hold before a kernel writes them

/// fused: q, k, v are parts of one [B, T, 3C], gradients too. cache: k, v [B, H, capacity, D].
enum class Form { fused, cache };

struct Problem {
  int64_t B = 2, H = 2, T = 1, keys = 1, offset = 0, D = 1;
  bool causal = true;
  int bias_rank = 0;  // 0: no bias
  float dropout = 0.0f;
  Form form = Form::fused;

  std::string str() const {
    return "B " + std::to_string(B) + " H " + std::to_string(H) + " T " + std::to_string(T) +
           " keys " + std::to_string(keys) + " offset " + std::to_string(offset) + " D " +
           std::to_string(D) + (causal ? " causal" : " full") + " bias " +
           std::to_string(bias_rank) + " dropout " + std::to_string(dropout) +
           (form == Form::fused ? " fused" : " cache");
  }
};

AttentionShape shape_of(const Problem& p) {
  const int64_t C = p.H * p.D, capacity = p.keys + 3;
  AttentionShape s = {.B = p.B,
                      .H = p.H,
                      .T = p.T,
                      .keys = p.keys,
                      .offset = p.offset,
                      .D = p.D,
                      .causal = p.causal,
                      .dropout = p.dropout,
                      .dropout_key = {.seed = 99, .step = 4, .sample = 6, .site = 12345}};
  s.out = {.offset = 0, .batch = p.T * C, .head = p.D, .token = C};
  if (p.form == Form::fused) {
    auto part = [&](int64_t i) {
      return HeadLayout{.offset = i * C, .batch = p.T * 3 * C, .head = p.D, .token = 3 * C};
    };
    s.q = part(0), s.k = part(1), s.v = part(2);
  } else {
    s.q = s.out;
    s.k = s.v = {.offset = 0, .batch = p.H * capacity * p.D, .head = capacity * p.D, .token = p.D};
  }
  return s;
}

struct Tensors {
  AttentionShape shape;
  Tensor q, k, v, bias, out, log_sum, dout, dq, dk, dv;

  AttentionForward forward() const {
    return {.q = q, .k = k, .v = v, .bias = bias, .out = out, .log_sum = log_sum, .shape = shape};
  }
  AttentionBackward backward() const {
    return {.q = q,
            .k = k,
            .v = v,
            .bias = bias,
            .out = out,
            .log_sum = log_sum,
            .dout = dout,
            .dq = dq,
            .dk = dk,
            .dv = dv,
            .shape = shape};
  }
};

Tensors make(const Problem& p, DType dtype, const Device& device) {
  const int64_t C = p.H * p.D;
  const Shape tokens = {p.B, p.T, C}, fused = {p.B, p.T, 3 * C};
  const Shape cache = {p.B, p.H, p.keys + 3, p.D};
  Tensors t = {.shape = shape_of(p),
               .out = Tensor::full(tokens, untouched, dtype, device),
               .log_sum = Tensor::zeros({p.B, p.H, p.T}, accumulator(dtype), device),
               .dout = random_tensor(tokens, dtype, device, 5)};
  if (p.form == Form::fused) {
    t.q = t.k = t.v = random_tensor(fused, dtype, device, 1);
    t.dq = t.dk = t.dv = Tensor::full(fused, untouched, dtype, device);
  } else {
    t.q = random_tensor(tokens, dtype, device, 1);
    t.k = random_tensor(cache, dtype, device, 2);
    t.v = random_tensor(cache, dtype, device, 3);
    t.dq = Tensor::full(tokens, untouched, dtype, device);
    t.dk = Tensor::full(cache, untouched, dtype, device);
    t.dv = Tensor::full(cache, untouched, dtype, device);
  }
  const Shape bias = p.bias_rank == 2 ? Shape{p.T, p.keys} : Shape{p.H, p.T, p.keys};
  if (p.bias_rank > 0) t.bias = random_tensor(bias, accumulator(dtype), device, 4);
  return t;
}

size_t place(const HeadLayout& layout, int64_t b, int64_t h, int64_t t) {
  return static_cast<size_t>(layout.offset + b * layout.batch + h * layout.head + t * layout.token);
}

double dropout_factor(const AttentionShape& s, int64_t b, int64_t element) {
  const DropoutKey& key = s.dropout_key;
  const Philox::Block words =
      Philox::block({static_cast<uint32_t>(element / 4), key.sample + static_cast<uint32_t>(b),
                     key.step, key.site},
                    key.seed);
  const bool kept = uniform(words[static_cast<size_t>(element % 4)]) >= s.dropout;
  return kept ? 1.0 / (1.0 - double{s.dropout}) : 0.0;
}

/// The definition in double with whole matrices. Gradients are as large as their tensors, and add
/// up there, so that a fused tensor is compared at once.
struct Naive {
  std::vector<double> out, log_sum, dq, dk, dv;
  double largest_score = 0.0;
  double column = 1.0;  // largest sum of one key's weights

  explicit Naive(const Tensors& t)
      : out(static_cast<size_t>(t.out.numel()), untouched),
        log_sum(static_cast<size_t>(t.log_sum.numel())),
        dq(static_cast<size_t>(t.dq.numel()), untouched),
        dk(static_cast<size_t>(t.dk.numel()), untouched),
        dv(static_cast<size_t>(t.dv.numel()), untouched) {
    const std::vector<double> q = t.q.to_doubles(), k = t.k.to_doubles(), v = t.v.to_doubles();
    const std::vector<double> dout = t.dout.to_doubles();
    const std::vector<double> bias = t.bias ? t.bias.to_doubles() : std::vector<double>();
    const bool fused = t.dq.buffer() == t.dk.buffer();
    for (int64_t b = 0; b < t.shape.B; ++b)
      for (int64_t h = 0; h < t.shape.H; ++h) head(t, q, k, v, dout, bias, b, h, fused);
    if (fused) dk = dv = dq;
  }

 private:
  void head(const Tensors& t, const std::vector<double>& q, const std::vector<double>& k,
            const std::vector<double>& v, const std::vector<double>& dout,
            const std::vector<double>& bias, int64_t b, int64_t h, bool fused) {
    const AttentionShape& s = t.shape;
    const size_t D = static_cast<size_t>(s.D);
    const double scale = s.scale != 0.0f ? double{s.scale} : 1.0 / std::sqrt(double(s.D));
    std::vector<double>& dk_in = fused ? dq : dk;
    std::vector<double>& dv_in = fused ? dq : dv;
    std::vector<double> columns(static_cast<size_t>(s.keys));
    for (int64_t j = 0; j < s.keys; ++j)
      for (size_t d = 0; d < D; ++d) {
        dk_in[place(s.k, b, h, j) + d] = 0.0;
        dv_in[place(s.v, b, h, j) + d] = 0.0;
      }
    for (int64_t i = 0; i < s.T; ++i) {
      const int64_t n = s.causal ? std::min(s.keys, i + s.offset + 1) : s.keys;
      const size_t at_q = place(s.q, b, h, i), at_out = place(s.out, b, h, i);
      std::vector<double> weight(static_cast<size_t>(n)), factor(weight), dweight(weight);
      double largest = -INFINITY, sum = 0.0, mean = 0.0;
      for (int64_t j = 0; j < n; ++j) {
        const size_t jj = static_cast<size_t>(j);
        double score = 0.0;
        for (size_t d = 0; d < D; ++d) score += q[at_q + d] * k[place(s.k, b, h, j) + d];
        score *= scale;
        if (!bias.empty()) {
          const int64_t first = t.bias.shape().rank() == 3 ? h * s.T * s.keys : 0;
          score += bias[static_cast<size_t>(first + i * s.keys + j)];
        }
        weight[jj] = score;
        factor[jj] = dropout_factor(s, b, (h * s.T + i) * s.keys + j);
        largest = std::max(largest, score);
        if (std::isfinite(score)) largest_score = std::max(largest_score, std::fabs(score));
      }
      for (double& w : weight) sum += w = std::exp(w - largest);
      for (double& w : weight) w /= sum;
      log_sum[static_cast<size_t>((b * s.H + h) * s.T + i)] = largest + std::log(sum);
      for (size_t d = 0; d < D; ++d) {
        double value = 0.0;
        for (size_t j = 0; j < weight.size(); ++j)
          value += weight[j] * factor[j] * v[place(s.v, b, h, static_cast<int64_t>(j)) + d];
        out[at_out + d] = value;
        dq[at_q + d] = 0.0;
      }
      for (size_t j = 0; j < weight.size(); ++j) {
        const size_t at_v = place(s.v, b, h, static_cast<int64_t>(j));
        for (size_t d = 0; d < D; ++d) {
          dweight[j] += factor[j] * dout[at_out + d] * v[at_v + d];
          dv_in[at_v + d] += weight[j] * factor[j] * dout[at_out + d];
        }
        mean += weight[j] * dweight[j];
        columns[j] += weight[j];
      }
      for (size_t j = 0; j < weight.size(); ++j) {
        const size_t at_k = place(s.k, b, h, static_cast<int64_t>(j));
        const double dscore = weight[j] * (dweight[j] - mean) * scale;
        for (size_t d = 0; d < D; ++d) {
          dq[at_q + d] += dscore * k[at_k + d];
          dk_in[at_k + d] += dscore * q[at_q + d];
        }
      }
    }
    column = std::max(column, *std::max_element(columns.begin(), columns.end()));
  }
};

/// Bounds on errors for inputs in [-1, 1]; roundings of a sum add up like a random walk.
struct Tolerance {
  double out, log_sum, gradient;
  double rounding;  // relative, of the stored value

  Tolerance(const Tensors& t, const Naive& naive, const Device& device) {
    const AttentionShape& s = t.shape;
    const double D = static_cast<double>(s.D), n = static_cast<double>(s.keys);
    const double scale = s.scale != 0.0f ? double{s.scale} : 1.0 / std::sqrt(D);
    const double a = unit_roundoff(accumulator(t.q.dtype()));
    const double kept = 1.0 / (1.0 - double{s.dropout});
    rounding = unit_roundoff(t.q.dtype()) + a;
    // D products, whose partial sums stay below D: sqrt(D) roundings' worth of sqrt(D) a each.
    const double score = a * (scale * D + 2.0 * naive.largest_score);
    // Relative error of a weight: of its score and the largest's, of exp, of the sum over n.
    const double weight = 2.0 * score + a * (8.0 + std::sqrt(n));
    log_sum = weight;
    out = kept * (weight + a * std::sqrt(n));
    // A gradient of a weight is a sum of D products of either sign, so about sqrt(D) * kept, and as
    // uncertain as the weights; D_t inherits the rounding of out in each of its D terms. Weights of
    // a row add up to 1, those of a column to `column`. For dv, sqrt(D) * scale is to spare.
    const double dweight = std::sqrt(D) * kept * (2.0 * weight + 2.0 * a + rounding);
    gradient = naive.column * (scale * dweight + kept * (weight + a * std::sqrt(n)));
    // Tensor cores take weights and gradients of scores rounded to the dtype; f16 has subnormals.
    const bool wide = t.q.dtype() == accumulator(t.q.dtype());
    if (device.type() == Device::Type::cpu || wide) return;
    const double each = unit_roundoff(t.q.dtype()) + (t.q.dtype() == DType::f16 ? n * 0x1p-25 : 0);
    out += kept * each;
    gradient += naive.column * kept * (1.0 + 2.0 * scale * std::sqrt(D)) * each;
  }
};

void check_against_naive(const Problem& problem, DType dtype, const std::vector<Device>& devices) {
  CAPTURE(problem.str());
  CAPTURE(name_of(dtype));
  const Tensors reference = make(problem, dtype, devices.front());
  const Naive naive(reference);
  const Tolerance tolerance(reference, naive, devices.front());
  for (const Device& device : devices) {
    CAPTURE(level_of(device));
    const Tensors t = make(problem, dtype, device);
    kernels::attention_forward(t.forward(), device.compute());
    CHECK(excess(t.out, naive.out, tolerance.out, tolerance.rounding) < 1.0);
    CHECK(excess(t.log_sum, naive.log_sum, tolerance.log_sum) < 1.0);
    kernels::attention_backward(t.backward(), device.compute());
    CHECK(excess(t.dq, naive.dq, tolerance.gradient, tolerance.rounding) < 1.0);
    CHECK(excess(t.dk, naive.dk, tolerance.gradient, tolerance.rounding) < 1.0);
    CHECK(excess(t.dv, naive.dv, tolerance.gradient, tolerance.rounding) < 1.0);
  }
}

const DType floating[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace

TEST_CASE("attention and its gradients follow the definition over sizes, dtypes and levels" *
          doctest::test_suite("every device")) {
  const std::vector<Device> devices = devices_at_every_level();
  int turn = 0;  // walks through masks, biases, dropout and layouts
  for (int64_t T : {1, 3, 11, 33, 130})
    for (int64_t D : {1, 16, 17, 64, 100}) {
      Problem p = {.B = T < 100 ? 2 : 1, .T = T, .keys = T, .D = D};
      p.causal = turn % 4 != 3;
      p.bias_rank = turn % 3 == 0 ? 0 : turn % 3 + 1;
      p.dropout = turn % 2 == 0 ? 0.0f : 0.2f;
      p.form = turn % 5 < 3 ? Form::fused : Form::cache;
      ++turn;
      for (DType dtype : on_device(floating, devices.front()))
        check_against_naive(p, dtype, devices);
    }
}

TEST_CASE("attention over a cache takes queries at an offset and more keys than queries" *
          doctest::test_suite("every device")) {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : on_device(floating, devices.front())) {
    for (int64_t T : {1, 2, 13})
      for (int64_t D : {16, 100})
        check_against_naive({.T = T, .keys = 40 + T, .offset = 40, .D = D, .form = Form::cache},
                            dtype, devices);
    // Some keys lie beyond every query: their gradients are 0. Then no mask at all.
    check_against_naive(
        {.T = 5, .keys = 31, .offset = 7, .D = 17, .dropout = 0.3f, .form = Form::cache}, dtype,
        devices);
    check_against_naive({.T = 1,
                         .keys = 300,
                         .D = 33,
                         .causal = false,
                         .bias_rank = 3,
                         .dropout = 0.3f,
                         .form = Form::cache},
                        dtype, devices);
  }
}

TEST_CASE("attention over several blocks of keys and queries follows the definition" *
          doctest::test_suite("every device")) {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : {DType::f32, DType::bf16}) {
    check_against_naive({.B = 1, .T = 401, .keys = 401, .D = 24, .dropout = 0.1f}, dtype, devices);
    check_against_naive({.B = 1,
                         .H = 1,
                         .T = 201,
                         .keys = 560,
                         .D = 8,
                         .causal = false,
                         .bias_rank = 2,
                         .form = Form::cache},
                        dtype, devices);
    check_against_naive(
        {.B = 1, .H = 1, .T = 270, .keys = 523, .offset = 253, .D = 256, .form = Form::cache},
        dtype, devices);
    check_against_naive({.B = 1, .H = 2, .T = 33, .keys = 33, .D = 512}, dtype, devices);
  }
}

TEST_CASE("attention of head sizes up to 128 follows the definition around whole tiles" *
          doctest::test_suite("every device")) {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : {DType::bf16, DType::f16})
    for (int64_t D : {8, 64, 72, 128})
      for (int64_t T : {64, 131}) {
        check_against_naive({.B = 1, .T = T, .keys = T, .D = D}, dtype, devices);
        check_against_naive({.B = 1,
                             .H = 1,
                             .T = T,
                             .keys = 200,
                             .offset = 69,
                             .D = D,
                             .causal = T != 64,
                             .bias_rank = T == 64 ? 3 : 0,
                             .dropout = D < 72 ? 0.0f : 0.2f,
                             .form = Form::cache},
                            dtype, devices);
      }
}

TEST_CASE("attention takes a scale of the scores" * doctest::test_suite("every device")) {
  const std::vector<Device> devices = devices_at_every_level();
  for (DType dtype : on_device({DType::f64, DType::f32}, devices.front())) {
    Problem p = {.T = 21, .keys = 21, .D = 16};
    for (const Device& device : devices) {
      Tensors t = make(p, dtype, device);
      t.shape.scale = 0.7f;
      const Naive naive(t);
      const Tolerance tolerance(t, naive, device);
      kernels::attention_forward(t.forward(), device.compute());
      kernels::attention_backward(t.backward(), device.compute());
      CHECK(excess(t.out, naive.out, tolerance.out, tolerance.rounding) < 1.0);
      CHECK(excess(t.dq, naive.dq, tolerance.gradient, tolerance.rounding) < 1.0);
    }
  }
}

TEST_CASE("attention has the same bits for one thread and two") {
  for (Isa isa : available_levels())
    for (DType dtype : floating)
      for (int64_t T : {11, 401}) {
        CAPTURE(name_of(isa));
        CAPTURE(name_of(dtype));
        const Problem p = {.B = 1, .T = T, .keys = T, .D = 20, .bias_rank = 2, .dropout = 0.1f};
        std::vector<Tensors> runs;
        for (int threads : {1, 2}) {
          const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
          runs.push_back(make(p, dtype, device));
          kernels::attention_forward(runs.back().forward(), device.compute());
          kernels::attention_backward(runs.back().backward(), device.compute());
        }
        CHECK(same_bits(runs[0].out, runs[1].out));
        CHECK(same_bits(runs[0].log_sum, runs[1].log_sum));
        CHECK(same_bits(runs[0].dq, runs[1].dq));
      }
}

TEST_CASE("attention without log_sum writes the same output" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    const Problem p = {.T = 14, .keys = 14, .D = 16};
    const Tensors with = make(p, DType::f32, device);
    Tensors without = make(p, DType::f32, device);
    without.log_sum = {};
    kernels::attention_forward(with.forward(), device.compute());
    kernels::attention_forward(without.forward(), device.compute());
    CHECK(same_bits(with.out, without.out));
  }
}

TEST_CASE("a bias of minus infinity hides keys, also whole blocks of them before the first seen" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (const auto& [T, dtype] : {std::pair{2, DType::f32}, {9, DType::f32}, {9, DType::bf16}}) {
      const Problem p = {.B = 1,
                         .T = T,
                         .keys = 600,
                         .D = 16,
                         .causal = false,
                         .bias_rank = 2,
                         .form = Form::cache};
      Tensors t = make(p, dtype, device);
      std::vector<float> hidden(static_cast<size_t>(T) * 600, 0.0f);
      for (size_t i = 0; i < hidden.size(); ++i)
        if (i % 600 < 530 + i / 600 || i % 7 == 0) hidden[i] = -INFINITY;
      t.bias = Tensor::from(hidden, {T, 600}, device);
      const Naive naive(t);
      const Tolerance tolerance(t, naive, device);
      kernels::attention_forward(t.forward(), device.compute());
      kernels::attention_backward(t.backward(), device.compute());
      CHECK(excess(t.out, naive.out, tolerance.out, tolerance.rounding) < 1.0);
      CHECK(excess(t.log_sum, naive.log_sum, tolerance.log_sum) < 1.0);
      CHECK(excess(t.dq, naive.dq, tolerance.gradient, tolerance.rounding) < 1.0);
      CHECK(excess(t.dk, naive.dk, tolerance.gradient, tolerance.rounding) < 1.0);
      CHECK(excess(t.dv, naive.dv, tolerance.gradient, tolerance.rounding) < 1.0);
    }
  }
}

TEST_CASE("attention of large scores neither overflows nor loses the winner" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Problem p = {.B = 1, .H = 1, .T = 3, .keys = 3, .D = 16};
    Tensors t = make(p, DType::f32, device);
    t.shape.scale = 1e4f;
    kernels::attention_forward(t.forward(), device.compute());
    const Naive naive(t);
    // Scores in the thousands are uncertain by a few 1e-4 ulps of theirs, but the winner is clear.
    CHECK(excess(t.out, naive.out, 1e-2) < 1.0);
  }
}

TEST_CASE("attention propagates a NaN to the queries that see it and to no other" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Problem p = {.B = 1, .H = 1, .T = 20, .keys = 20, .D = 8};
      Tensors t = make(p, dtype, device);
      std::vector<double> keys = t.k.to_doubles();
      keys[place(t.shape.k, 0, 0, 13)] = NAN;
      if (dtype == DType::f32)
        t.q = t.k = t.v =
            Tensor::from(std::vector<float>(keys.begin(), keys.end()), t.k.shape(), device);
      else
        t.q = t.k = t.v =
            Tensor::from(std::vector<bf16>(keys.begin(), keys.end()), t.k.shape(), device);
      kernels::attention_forward(t.forward(), device.compute());
      const std::vector<double> out = t.out.to_doubles();
      for (int64_t i = 0; i < 20; ++i)
        CHECK(std::isnan(out[place(t.shape.out, 0, 0, i)]) == (i >= 13));
    }
  }
}

TEST_CASE("attention of no samples does nothing" * doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    Problem p = {.B = 0, .T = 4, .keys = 4, .D = 8};
    const Tensors t = make(p, DType::f32, device);
    kernels::attention_forward(t.forward(), device.compute());
    kernels::attention_backward(t.backward(), device.compute());
  }
}

TEST_CASE("attention scratch grows linearly with the tokens") {
  for (Isa isa : available_levels())
    for (DType dtype : floating) {
      const Device device = Device::meta(0, {.threads = 1, .isa = isa});
      const Device::Traits& traits = device.traits();
      auto scratch = [&](int64_t T) {
        const Tensors t = make({.B = 1, .H = 1, .T = T, .keys = T, .D = 16}, dtype, device);
        return std::max(kernels::attention_forward.workspace_bytes(t.forward(), traits),
                        kernels::attention_backward.workspace_bytes(t.backward(), traits));
      };
      CHECK(scratch(1 << 12) <= 2 * scratch(1 << 11));
    }
  const Device meta = Device::meta();
  const Tensors t = make({.B = 3, .H = 2, .T = 77, .keys = 77, .D = 16}, DType::bf16, meta);
  CHECK(kernels::attention_backward.cuda_workspace_bytes(t.backward(), meta.traits()) ==
        3 * 2 * 77 * 4);
}

TEST_CASE("attention refuses what its contract excludes, by name") {
  const Device device = Device::cpu();
  const Problem p = {.T = 4, .keys = 4, .D = 8};
  auto forward = [&](auto change) {
    Tensors t = make(p, DType::f32, device);
    change(t);
    kernels::attention_forward(t.forward(), device.compute());
  };
  auto backward = [&](auto change) {
    Tensors t = make(p, DType::f32, device);
    change(t);
    kernels::attention_backward(t.backward(), device.compute());
  };
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.keys = 0; }),
                       "attention_forward: shape.keys is 0; expected at least 1", ShapeError);
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.D = 1025; }),
                       "attention_forward: shape.D is 1025; expected a head size from 1 to 1024",
                       ShapeError);
  CHECK_THROWS_WITH_AS(forward([](Tensors& t) { t.shape.k.offset += 17; }),
                       "attention_forward: k has 384 elements, shape [2, 4, 48]; expected at least "
                       "the 385 that its layout reaches",
                       ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.v.token = -1; }), ShapeError);
  CHECK_THROWS_WITH_AS(
      forward([](Tensors& t) { t.shape.out.head = 7; }),
      "attention_forward: out has a layout that overlaps itself, with a stride of 7; expected at "
      "least 8",
      ShapeError);
  CHECK_THROWS_AS(backward([](Tensors& t) { t.shape.k.head = 0; }), ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.offset = -1; }), ShapeError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.shape.dropout = 1.0f; }), ConfigError);
  CHECK_THROWS_AS(forward([](Tensors& t) { t.q = {}; }), ShapeError);
  CHECK_THROWS_AS(backward([](Tensors& t) { t.log_sum = {}; }), ShapeError);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.bias = Tensor::zeros({4, 5}, DType::f32, device);
                  }),
                  ShapeError);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.bias = Tensor::zeros({4, 4}, DType::bf16, device);
                  }),
                  DTypeError);
  CHECK_THROWS_WITH_AS(backward([&](Tensors& t) {
                         t.dout = Tensor::zeros({2, 4, 16}, DType::bf16, device);
                       }),
                       "attention_backward: dout holds bf16; expected f32", DTypeError);
  const Device other = Device::cpu(1);
  CHECK_THROWS_AS(forward([&](Tensors& t) {
                    t.out = Tensor::zeros({2, 4, 16}, DType::f32, other);
                  }),
                  DeviceError);
}
