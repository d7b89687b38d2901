#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

// Results of Hugging Face's libraries, in the folders of tests/reference/fixtures.
namespace zg::testing {

/// The ids and results of transformers for a model in a folder.
struct Transformers {
  std::string path;
  SafetensorsReader expected;
  std::vector<int32_t> ids;  ///< [2, 12]
  static constexpr int64_t B = 2, T = 12;

  explicit Transformers(const std::string& name, const std::string& file = "expected.safetensors")
      : path(std::string(ZG_FIXTURES) + name), expected(path + "/" + file) {
    std::vector<int64_t> wide(B * T);
    File::open(path + "/" + file)
        .read_at(expected.entries().at("ids").begin, std::as_writable_bytes(std::span(wide)));
    ids.assign(wide.begin(), wide.end());
  }

  /// The next token of each one; the last has none.
  std::vector<int32_t> targets() const {
    std::vector<int32_t> next(ids.size(), -1);
    for (size_t i = 0; i < ids.size(); ++i)
      if (static_cast<int64_t>(i) % T != T - 1) next[i] = ids[i + 1];
    return next;
  }
};

/// The largest difference, relative to the largest expected value.
inline double relative_error(const std::vector<double>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::fabs(got[i] - double{expected[i]}));
    largest = std::max(largest, std::fabs(double{expected[i]}));
  }
  return worst / largest;
}

}  // namespace zg::testing
