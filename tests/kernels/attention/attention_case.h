#pragma once

#include <algorithm>

#include "tests/support/op_case.h"
#include "zerograd/kernels/attention/attention.h"

// Attention by its definition, in double and with whole matrices, and what kernels may differ by.
namespace zg::testing {

inline constexpr double untouched = 7.0;  // value of outputs before a kernel writes them

/// fused, by_head: q, k, v are parts of one [B, T, 3C], gradients too; of each head in by_head.
/// cache: k, v [B, kv_heads, capacity, D]. separate: k, v [B, keys, kv_heads * D].
enum class Form { fused, by_head, cache, separate };

struct Problem {
  int64_t B = 2, H = 2, T = 1, keys = 1, offset = 0, D = 1;
  bool causal = true;
  int bias_rank = 0;  // 0: no bias
  float dropout = 0.0f;
  Form form = Form::fused;
  bool alibi = false;
  int64_t kv_heads = 0, window = 0;
  std::vector<int64_t> documents = {};  // lengths in sample 0; each next sample rotates them by one
  std::vector<int32_t> key_lengths = {};  // of each sample

  std::string str() const {
    return "B " + std::to_string(B) + " H " + std::to_string(H) + " T " + std::to_string(T) +
           " keys " + std::to_string(keys) + " offset " + std::to_string(offset) + " D " +
           std::to_string(D) + (causal ? " causal" : " full") + " bias " +
           std::to_string(bias_rank) + " dropout " + std::to_string(dropout) +
           (form == Form::cache      ? " cache"
            : form == Form::fused    ? " fused"
            : form == Form::separate ? " separate"
                                     : " by head") +
           (alibi ? " alibi" : "") + " kv_heads " + std::to_string(kv_heads) + " window " +
           std::to_string(window) + " documents" + text(documents) + " key lengths" +
           text(key_lengths);
  }

 private:
  template <class T>
  static std::string text(const std::vector<T>& values) {
    std::string all;
    for (T value : values) all += " " + std::to_string(value);
    return all;
  }
};

inline AttentionShape shape_of(const Problem& p) {
  const int64_t C = p.H * p.D, capacity = p.keys + 3;
  AttentionShape s = {.B = p.B,
                      .H = p.H,
                      .T = p.T,
                      .keys = p.keys,
                      .offset = p.offset,
                      .D = p.D,
                      .causal = p.causal,
                      .dropout = p.dropout,
                      .dropout_key = {.seed = 99, .step = 4, .sample = 6, .site = 12345},
                      .kv_heads = p.kv_heads,
                      .window = p.window};
  const int64_t key_heads = s.key_heads();
  s.out = {.offset = 0, .batch = p.T * C, .head = p.D, .token = C};
  if (p.form == Form::separate) {
    s.q = s.out;
    s.k = s.v = {
        .offset = 0, .batch = p.keys * key_heads * p.D, .head = p.D, .token = key_heads * p.D};
  } else if (p.form != Form::cache) {
    const int64_t part = p.form == Form::fused ? C : p.D,
                  head = p.form == Form::fused ? p.D : 3 * p.D;
    s.q = s.k = s.v = {.offset = 0, .batch = p.T * 3 * C, .head = head, .token = 3 * C};
    s.k.offset = part, s.v.offset = 2 * part;
  } else {
    s.q = s.out;
    s.k = s.v = {
        .offset = 0, .batch = key_heads * capacity * p.D, .head = capacity * p.D, .token = p.D};
  }
  return s;
}

struct Tensors {
  AttentionShape shape;
  Tensor q, k, v, bias, alibi_slopes, starts, key_lengths, out, log_sum, dout, dq, dk, dv;

  AttentionForward forward() const {
    return {.q = q,
            .k = k,
            .v = v,
            .bias = bias,
            .alibi_slopes = alibi_slopes,
            .starts = starts,
            .key_lengths = key_lengths,
            .out = out,
            .log_sum = log_sum,
            .shape = shape};
  }
  AttentionBackward backward() const {
    return {.q = q,
            .k = k,
            .v = v,
            .bias = bias,
            .alibi_slopes = alibi_slopes,
            .starts = starts,
            .key_lengths = key_lengths,
            .out = out,
            .log_sum = log_sum,
            .dout = dout,
            .dq = dq,
            .dk = dk,
            .dv = dv,
            .shape = shape};
  }
};

inline Tensor slopes_of(int64_t heads, DType dtype, const Device& device) {
  const std::vector<float> slopes = alibi_slopes(heads);
  if (dtype != DType::f64) return Tensor::from(slopes, {heads}, device);
  return Tensor::from(std::vector<double>(slopes.begin(), slopes.end()), {heads}, device);
}

/// The document lengths of sample b.
inline std::vector<int64_t> documents_of(const Problem& p, int64_t b) {
  std::vector<int64_t> lengths = p.documents;
  std::rotate(lengths.begin(), lengths.begin() + b % static_cast<int64_t>(lengths.size()),
              lengths.end());
  return lengths;
}

inline Tensor starts_of(const Problem& p, const Device& device) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < p.B; ++b) {
    int64_t first = 0;
    for (int64_t length : documents_of(p, b)) {
      starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(first));
      first += length;
    }
  }
  return Tensor::from(starts, {p.B, p.T}, device);
}

inline Tensors make(const Problem& p, DType dtype, const Device& device) {
  const int64_t C = p.H * p.D, key_heads = shape_of(p).key_heads();
  const Shape tokens = {p.B, p.T, C}, fused = {p.B, p.T, 3 * C};
  const Shape cache = p.form == Form::cache ? Shape{p.B, key_heads, p.keys + 3, p.D}
                                            : Shape{p.B, p.keys, key_heads * p.D};
  Tensors t = {.shape = shape_of(p),
               .out = Tensor::full(tokens, untouched, dtype, device),
               .log_sum = Tensor::zeros({p.B, p.H, p.T}, accumulator(dtype), device),
               .dout = random_tensor(tokens, dtype, device, 5)};
  if (p.form == Form::fused || p.form == Form::by_head) {
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
  if (p.alibi) t.alibi_slopes = slopes_of(p.H, dtype, device);
  if (!p.documents.empty()) t.starts = starts_of(p, device);
  if (!p.key_lengths.empty()) t.key_lengths = Tensor::from(p.key_lengths, {p.B}, device);
  return t;
}

inline size_t place(const HeadLayout& layout, int64_t b, int64_t h, int64_t t) {
  return static_cast<size_t>(layout.offset + b * layout.batch + h * layout.head + t * layout.token);
}

inline double dropout_factor(const AttentionShape& s, int64_t b, int64_t element) {
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
    const std::vector<double> slopes =
        t.alibi_slopes ? t.alibi_slopes.to_doubles() : std::vector<double>();
    if (t.starts) starts = t.starts.to_host<int32_t>();
    if (t.key_lengths) key_lengths = t.key_lengths.to_host<int32_t>();
    const bool fused = t.dq.buffer() == t.dk.buffer();
    for (int64_t b = 0; b < t.shape.B; ++b)
      for (int64_t h = 0; h < t.shape.H; ++h) head(t, q, k, v, dout, bias, slopes, b, h, fused);
    if (fused) dk = dv = dq;
  }

 private:
  std::vector<int32_t> starts, key_lengths;  // empty: none
  std::vector<double> columns;               // each key's weights, summed over a group's heads

  /// The key at position j is visible to the query at position p if p - window < j <= p, as in
  /// transformers' sliding_window_overlay() and causal_mask_function().
  bool sees(const AttentionShape& s, int64_t b, int64_t i, int64_t j) const {
    const int64_t p = i + s.offset;
    if (s.causal && j > p) return false;
    if (s.window > 0 && j <= p - s.window) return false;
    if (!key_lengths.empty() && j >= key_lengths[static_cast<size_t>(b)]) return false;
    return starts.empty() ||
           starts[static_cast<size_t>(b * s.T + i)] == starts[static_cast<size_t>(b * s.T + j)];
  }

  void head(const Tensors& t, const std::vector<double>& q, const std::vector<double>& k,
            const std::vector<double>& v, const std::vector<double>& dout,
            const std::vector<double>& bias, const std::vector<double>& slopes, int64_t b,
            int64_t h, bool fused) {
    const AttentionShape& s = t.shape;
    const size_t D = static_cast<size_t>(s.D);
    const double scale = s.scale != 0.0f ? double{s.scale} : 1.0 / std::sqrt(double(s.D));
    std::vector<double>& dk_in = fused ? dq : dk;
    std::vector<double>& dv_in = fused ? dq : dv;
    const int64_t group = s.kv_heads == 0 ? 1 : s.H / s.kv_heads, key_head = h / group;
    if (h % group == 0) {
      columns.assign(static_cast<size_t>(s.keys), 0.0);
      for (int64_t j = 0; j < s.keys; ++j)
        for (size_t d = 0; d < D; ++d) {
          dk_in[place(s.k, b, key_head, j) + d] = 0.0;
          dv_in[place(s.v, b, key_head, j) + d] = 0.0;
        }
    }
    for (int64_t i = 0; i < s.T; ++i) {
      const size_t at_q = place(s.q, b, h, i), at_out = place(s.out, b, h, i);
      std::vector<double> weight(static_cast<size_t>(s.keys)), factor(weight), dweight(weight);
      double largest = -INFINITY, sum = 0.0, mean = 0.0;
      for (int64_t j = 0; j < s.keys; ++j) {
        const size_t jj = static_cast<size_t>(j);
        weight[jj] = -INFINITY;
        if (!sees(s, b, i, j)) continue;
        double score = 0.0;
        for (size_t d = 0; d < D; ++d) score += q[at_q + d] * k[place(s.k, b, key_head, j) + d];
        score *= scale;
        if (!slopes.empty())
          score += slopes[static_cast<size_t>(h)] * static_cast<double>(j - (i + s.offset));
        if (!bias.empty()) {
          const int64_t first = t.bias.shape().rank() == 3 ? h * s.T * s.keys : 0;
          score += bias[static_cast<size_t>(first + i * s.keys + j)];
        }
        weight[jj] = score;
        factor[jj] = dropout_factor(s, b, (h * s.T + i) * s.keys + j);
        largest = std::max(largest, score);
        if (std::isfinite(score)) largest_score = std::max(largest_score, std::fabs(score));
      }
      for (double& w : weight) sum += w = largest == -INFINITY ? 0.0 : std::exp(w - largest);
      for (double& w : weight) w = sum == 0.0 ? 0.0 : w / sum;
      log_sum[static_cast<size_t>((b * s.H + h) * s.T + i)] = largest + std::log(sum);
      for (size_t d = 0; d < D; ++d) out[at_out + d] = dq[at_q + d] = 0.0;
      for (size_t j = 0; j < weight.size(); ++j) {
        if (weight[j] == 0.0) continue;
        const size_t at_v = place(s.v, b, key_head, static_cast<int64_t>(j));
        for (size_t d = 0; d < D; ++d) {
          out[at_out + d] += weight[j] * factor[j] * v[at_v + d];
          dweight[j] += factor[j] * dout[at_out + d] * v[at_v + d];
          dv_in[at_v + d] += weight[j] * factor[j] * dout[at_out + d];
        }
        mean += weight[j] * dweight[j];
        columns[j] += weight[j];
      }
      for (size_t j = 0; j < weight.size(); ++j) {
        if (weight[j] == 0.0) continue;
        const size_t at_k = place(s.k, b, key_head, static_cast<int64_t>(j));
        const double dscore = weight[j] * (dweight[j] - mean) * scale;
        for (size_t d = 0; d < D; ++d) {
          dq[at_q + d] += dscore * k[at_k + d];
          dk_in[at_k + d] += dscore * q[at_q + d];
        }
      }
    }
    column = std::max(column, *std::ranges::max_element(columns));
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

inline void run(const Tensors& t, const Device& device) {
  kernels::attention_forward(t.forward(), device.compute());
  kernels::attention_backward(t.backward(), device.compute());
}

inline void check_against_naive(const Problem& problem, DType dtype,
                                const std::vector<Device>& devices) {
  INFO(problem.str(), ", ", name_of(dtype));
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

/// In each of `dtypes` that a device has; on an accelerator, which is emulated, in one of them, the
/// next one for each problem and generation.
inline void check_against_naive(const Problem& problem, const std::vector<Device>& devices,
                                std::span<const DType> dtypes = floating_dtypes) {
  static size_t problems = 0;
  const size_t number = problems++;
  const std::vector<DType> those = on_device(dtypes, devices.front());
  if (devices.front().type() == Device::Type::cpu) {
    for (const DType dtype : those) check_against_naive(problem, dtype, devices);
    return;
  }
  // Two dtypes do not go with odd and even numbers, as other choices of a test do.
  const size_t first = those.size() % 2 == 0 ? number + number / 2 : number;
  for (size_t i = 0; i < devices.size(); ++i)
    check_against_naive(problem, those[(first + i) % those.size()], {devices[i]});
}

}  // namespace zg::testing
