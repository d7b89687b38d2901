#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg::bench {

/// A kernel at one size: one row of the table. `make` allocates the operands, once, and returns
/// what is timed.
struct Case {
  std::string name;   ///< "matmul NT"
  std::string shape;  ///< "1024x768x768"
  DType dtype = DType::f32;
  double flops = 0.0;    ///< of one run; exp, tanh and the like count as one
  double read = 0.0;     ///< bytes of one run that come from memory when no cache has them,
  double written = 0.0;  ///< and that go there: each operand once
  std::function<std::function<void()>(const Device&)> make;

  double bytes() const { return read + written; }
  std::string text() const { return name + " " + shape + " " + name_of(dtype); }
};

/// N rows of width C.
struct Rows {
  int64_t N, C;
  std::string shape() const;
  double numel() const { return static_cast<double>(N * C); }
  double bytes(DType dtype) const { return numel() * static_cast<double>(size_of(dtype)); }
};

/// What the cases are made with: operands that the caches of a processor do not keep, or those of
/// an accelerator, whose last level may have hundreds of MB.
struct Sizes {
  static constexpr int64_t hidden_width = 3072;
  bool on_accelerator;
  Rows tokens, logits, scores;
  int64_t hidden;      ///< elements of a feed-forward layer
  int64_t flat;        ///< elements of parameters or gradients that are cast or added
  int64_t parameters;  ///< that AdamW updates
  explicit Sizes(Device::Type type);
};

std::vector<Case> matmul_cases(const Sizes&);
std::vector<Case> attention_cases(const Sizes&);
std::vector<Case> row_cases(const Sizes&);          ///< layer_norm and others that work on rows
std::vector<Case> element_cases(const Sizes&);      ///< AdamW, gelu and others, element by element
std::vector<Case> kernel_cases(Device::Type type);  ///< all of these

/// What keeps a kernel from being faster: the limit that takes longer. Memory does not bound what
/// stays in a core's cache.
struct Bound {
  const char* name;  ///< "matmul peak", "memory" or "read"
  double seconds;    ///< of one run at that limit; 0: the machine has no such kernel
};
Bound bound_of(const Case& c, const Limits& limits);

struct Effort {
  int warm_up = 10, fewest = 7, samples = 50;
  double seconds = 1.0;          ///< beyond it no more than the fewest samples
  double sample_seconds = 2e-4;  ///< a sample's runs take at least: long against reading a clock
};
/// Seconds of one run, sorted: fewer of them when they take long. `finish` ends each sample of
/// several runs: of what is queued it waits for the end.
std::vector<double> measure(
    const std::function<void()>& run, const Effort& effort = {},
    const std::function<void()>& finish = [] {});
/// The same of a case on an accelerator; none where its operands do not fit the memory.
std::optional<std::vector<double>> measure_on_accelerator(const Case& c, const Device& device);
/// Of sorted values, the nearest.
double quantile(const std::vector<double>& sorted, double q);

}  // namespace zg::bench
