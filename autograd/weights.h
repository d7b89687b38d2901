#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"

namespace zg {

/// The values of parameters by name, wherever they are stored. zero::load_weights() takes them into
/// an engine.
struct WeightSource {
  std::string path;  ///< for errors
  std::map<std::string, Shape> shapes;
  /// All values of one that is in `shapes`.
  std::function<std::vector<float>(const std::string& name)> read;
  /// A slice of it. Absent: a slice cannot be read without the whole.
  std::function<std::vector<float>(const std::string& name, const Slice& slice)> read_part = {};
  /// `count` elements from `begin` on; nullopt for one of which a range cannot be read without the
  /// whole. Absent: that is so of all of them.
  std::function<std::optional<std::vector<float>>(const std::string& name, int64_t begin,
                                                  int64_t count)>
      read_range = {};
};

}  // namespace zg
