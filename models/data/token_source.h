#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// A long sequence of tokens that is read by range, so it may be larger than memory. Ranks that are
/// threads share it: read() is called by several at once.
class ZG_API TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;  ///< tokens
  /// Fills `tokens` with those from `begin` on, which lie within size(). FileError where the file
  /// cannot be read.
  virtual void read(int64_t begin, std::span<int32_t> tokens) const = 0;
};

ZG_API std::unique_ptr<const TokenSource> tokens_in_memory(std::vector<int32_t> tokens);

/// The largest token plus 1; reads them all.
ZG_API int64_t vocabulary_of(const TokenSource& tokens);

}  // namespace zg::models
