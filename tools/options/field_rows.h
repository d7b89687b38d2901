#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tools/options/fields.h"
#include "tools/options/flags.h"

// Bounds, rules and kinds of flags, from which the rows of the table (fields.h) are made.
namespace zg::tools {

using Config = zero::DeepSpeedField;
using Fields = std::vector<Field>;

/// The largest integer in a checkpoint: other JSON readers round larger ones, and the sum of two
/// does not overflow.
inline constexpr int64_t exact = int64_t{1} << 53;
inline constexpr Between extent{1, largest_count}, count{0, largest_count}, any_size{1, exact},
    any_count{0, exact}, zero_stage{0, 3}, exponent{-126, 127}, top_k{-1, largest_count},
    token_id{0, largest_count}, any_seed{0, std::numeric_limits<int64_t>::max()};
inline constexpr Range finite{0.0, 1.7e308, false, false, "a finite number of 0 or more"};
inline constexpr Range above_zero{0.0, 1.7e308, true, false, "a finite number above 0"};
inline constexpr Range share{0.0, 1.0, false, false, "a number from 0 to 1"};
inline constexpr Range not_positive{-3e38, 0.0, false, false, "a number of 0 or less"};
inline constexpr Range from_one{1.0, 3e38, false, false, "a number of 1 or more"};
inline constexpr Range split_weight{0.0, 1e12, false, false, "three weights from 0"};
inline constexpr Range epoch_count{0.0, 1e6, false, false, "a number from 0 to 1e6"};
inline constexpr Range timeout{0.0, 1e6, true, false, "seconds above 0 and at most 1e6"};
inline constexpr Range some_epochs{0.0, 1e6, true, false, "a number above 0 and at most 1e6"};

// Rules of stored fields. Without bounds a number has those of its flag.

inline Stored kept(const char* key, Bounds bounds = {}) { return {Resume::kept, key, bounds}; }
inline Stored must_equal(const char* key, Bounds bounds = {}) {
  return {Resume::must_equal, key, bounds};
}
inline Stored may_change(const char* key, Bounds bounds = {}) {
  return {Resume::may_change, key, bounds};
}
inline Stored unchecked(const char* key, Bounds bounds = {}) {
  return {Resume::unchecked, key, bounds};
}
/// Every version stored the field.
inline Stored always(const Stored& stored) { return stored.with(&Stored::always, true); }
inline const Stored not_stored;

// Kinds of flags.

inline FlagRow integer_row(Names names, const std::string& help, Count count = {},
                           int64_t maximum = largest_count) {
  return {std::move(names), "", help, count.shown, count.minimum, maximum};
}
/// Bytes. Help shows no default.
inline FlagRow size_row(Names names, const char* help) { return {std::move(names), "SIZE", help}; }
inline FlagRow number_row(Names names, const Range& range, const std::string& help,
                          const char* shown = nullptr) {
  return {std::move(names), "", help, shown, 0, 0, range};
}
inline FlagRow switch_row(Names names, const char* help) { return {std::move(names), "", help}; }
/// A switch whose default is on.
inline FlagRow on_off_row(Names names, const char* help) {
  return {std::move(names), "on|off", help};
}
inline FlagRow text_row(Names names, const char* value, const char* help) {
  return {std::move(names), value, help};
}
inline FlagRow path_row(Names names, const char* value, PathUse use, const char* help) {
  return {std::move(names), value, help, nullptr, 0, 0, {}, {}, use};
}
/// `value`: how help shows it; empty: the choices.
inline FlagRow choice_row(Names names, std::vector<std::string> choices, const char* help,
                          const char* shown = nullptr, const char* value = "") {
  return {std::move(names), value, help, shown, 0, 0, {}, std::move(choices)};
}
/// A value with a syntax of its own. `shown`: the default in help; null: the field's value, a text.
inline FlagRow parsed_row(Names names, const char* value, std::string help,
                          void (*parse)(TrainOptions&, const FlagValue&), int max_words = 1,
                          const char* shown = "") {
  FlagRow row{std::move(names), value, std::move(help), shown};
  row.max_words = max_words;
  row.parse = parse;
  return row;
}
/// A checkpoint, a folder of them, a model's folder or a file of weights.
inline FlagRow checkpoint_row(Names names, const char* value, const char* help) {
  FlagRow row = path_row(std::move(names), value, PathUse::resumes, help);
  row.paths = checkpoints_in;
  return row;
}
FlagRow made_row(Flag (*make)(TrainOptions&));

// Parts of the table.

Fields data_fields(), model_fields(), conversation_fields(), seq2seq_fields(), length_fields(),
    schedule_fields(), config_only_fields(), optimisation_fields(), lora_fields();

}  // namespace zg::tools
