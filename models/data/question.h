#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace zg::models {

/// A task's tokens, question then answer, as ids and targets of one sample: each position predicts
/// the next token, and those before the question's last are ignored.
inline void write_question(std::span<const int32_t> tokens, int64_t question_length, int32_t* ids,
                           int32_t* targets) {
  std::copy(tokens.begin(), tokens.end() - 1, ids);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  std::fill_n(targets, question_length - 1, -1);
}

}  // namespace zg::models
