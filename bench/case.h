#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerograd/bench.h"

namespace zg::bench {

/// A kernel of the library at one size.
struct Case {
  Work work;
  /// Allocates the operands, once, and returns what is timed.
  std::function<std::function<void()>(const Device&)> make;

  std::string text() const { return work.name + " " + work.shape + " " + name_of(work.dtype); }
};

/// Measures a case. If its operands do not fit in an accelerator's memory, the row says so.
Row add(Report& report, const Case& c);

/// N rows of width C.
struct Rows {
  int64_t N, C;
  std::string shape() const;
  double numel() const { return static_cast<double>(N * C); }
  double bytes(DType dtype) const { return numel() * static_cast<double>(size_of(dtype)); }
};

/// Sizes of operands that do not fit in the caches of a processor, or in the larger caches of an
/// accelerator, which may have hundreds of MB.
struct Sizes {
  static constexpr int64_t hidden_width = 3072;
  bool on_accelerator;
  Rows tokens, logits, scores;
  int64_t hidden;      ///< elements of a feed-forward layer
  int64_t flat;        ///< elements of parameters or gradients that are cast or added
  int64_t parameters;  ///< number of parameters that AdamW updates
  explicit Sizes(Device::Type type);
};

std::vector<Case> matmul_cases(const Sizes&);
std::vector<Case> attention_cases(const Sizes&);
std::vector<Case> row_cases(const Sizes&);          ///< layer_norm and others that work on rows
std::vector<Case> element_cases(const Sizes&);      ///< AdamW, gelu and others, element by element
std::vector<Case> kernel_cases(Device::Type type);  ///< all of these

}  // namespace zg::bench
