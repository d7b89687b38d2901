#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/op.h"

namespace zg::bench {

/// A kernel of the library at one size, made from an Op (bench/op.h).
struct Case {
  Work work;
  DType dtype = DType::f32;
  OpKernel kernel;
  Extents extents;

  /// Allocates the operands once and returns the function that is timed.
  std::function<void()> make(const Device& device, int64_t offset = 0) const;

  std::string text() const { return work.name + " " + work.shape + " " + name_of(work.dtype); }
};

/// The case as explain() runs it, with `threads` threads.
Conditions conditions_of(const Case& c, int threads, bool cold);
/// Its trials: with operands off 64 bytes, with small pages, with the extents rounded down to
/// multiples of 64 bytes, each if its kernels accept them.
Trials trials_of(const Case& c);

/// Measures a case. If its operands do not fit in an accelerator's memory, the row says so.
Row add(Report& report, const Case& c);

/// N rows of width C.
struct Rows {
  int64_t N, C;
};

/// Sizes of operands that do not fit in the caches of a processor, or in the larger caches of an
/// accelerator, which may have hundreds of MB.
struct Sizes {
  static constexpr int64_t hidden_width = 3072;
  bool on_accelerator;
  int64_t layer_width = 768;  ///< of the layers whose products are timed on a CPU, 1024 tokens
  Rows tokens, logits, scores;
  int64_t hidden;      ///< elements of a feed-forward layer
  int64_t flat;        ///< elements of parameters or gradients that are cast or added
  int64_t parameters;  ///< number of parameters that AdamW updates
  explicit Sizes(Device::Type type);
};

/// The timed cases of every_op(), in the order of the table.
std::vector<Case> kernel_cases(const Sizes& sizes);
std::vector<Case> kernel_cases(Device::Type type);
/// Cases of an op by its name, at extents of the caller's. Those that are left out at the end are
/// of the op's first case. Throws ConfigError for an unknown op and too many extents.
std::vector<Case> cases_of_shape(const std::string& op, const std::vector<int64_t>& extents);

}  // namespace zg::bench
