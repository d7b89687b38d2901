#pragma once

#include <limits>

#include "tools/options/fields.h"

// Bounds and rules that the rows of the table share, for the files that have rows.
namespace zg::tools {

using Config = zero::DeepSpeedField;
using Fields = std::vector<Field>;

inline constexpr bool always = true;  // for Key::always
/// The largest integer in a checkpoint: other JSON readers round larger ones, and the sum of two
/// does not overflow.
inline constexpr int64_t exact = int64_t{1} << 53;
inline constexpr Between extent{1, largest_count}, count{0, largest_count}, any_size{1, exact},
    any_count{0, exact}, zero_stage{0, 3}, exponent{-126, 127}, top_k{-1, largest_count},
    token_id{0, largest_count}, any_seed{0, std::numeric_limits<int64_t>::max()};
inline constexpr Range finite{0.0, 1.7e308, false, false, "a finite number of 0 or more"};
inline constexpr Range share{0.0, 1.0, false, false, "a number from 0 to 1"};
inline constexpr Range not_positive{-3e38, 0.0, false, false, "a number of 0 or less"};
inline constexpr Range from_one{1.0, 3e38, false, false, "a number of 1 or more"};
inline constexpr Range split_weight{0.0, 1e12, false, false, "three weights from 0"};
inline constexpr Range epoch_count{0.0, 1e6, false, false, "a number from 0 to 1e6"};
inline constexpr Range timeout{0.0, 1e6, true, false, "seconds above 0 and at most 1e6"};
inline constexpr Range some_epochs{0.0, 1e6, true, false, "a number above 0 and at most 1e6"};

inline const Flag no_flag;
inline const Stored not_stored;

// Functions for the rows of stored fields, one for each rule of Resume.

template <class Option, class Value>
Stored kept(Key key, Option& option, Value& saved, Bounds bounds = {}) {
  return {.rule = Resume::kept,
          .key = key,
          .value = &saved,
          .bounds = bounds,
          .take = [&option, &saved] { option = saved; }};
}
template <class Option, class Value>
Stored must_equal(Key key, Option& option, Value& saved, Bounds bounds = {}) {
  Stored stored = kept(key, option, saved, bounds);
  stored.rule = Resume::must_equal;
  return stored;
}
inline Stored may_change(Key key, Slot saved, Bounds bounds = {}) {
  return {.rule = Resume::may_change, .key = key, .value = saved, .bounds = bounds};
}
inline Stored unchecked(Key key, Slot saved, Bounds bounds = {}) {
  return {.rule = Resume::unchecked, .key = key, .value = saved, .bounds = bounds};
}

/// The rows of the model, in model_fields.cpp.
Fields model_fields(ModelOptions& now, models::GPTConfig& was);
/// The rows of adapters, in lora_fields.cpp.
Fields lora_fields(TrainOptions& options, LoraOptions& was);
/// The rows of encoder-decoder models and their pairs, in seq2seq_fields.cpp.
Fields seq2seq_fields(Seq2SeqOptions& now, Seq2SeqOptions& was);
/// The rows of conversations, in conversation_fields.cpp.
Fields conversation_fields(DataOptions& now, DataOptions& was);
Field loss_mean_field(std::optional<LossMean>& now, LossMean& was);

}  // namespace zg::tools
