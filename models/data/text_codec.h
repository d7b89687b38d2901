#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// Text to tokens and back.
class ZG_API TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
};

}  // namespace zg::models
