#pragma once

#include <string>
#include <vector>

#include "zerograd/zero/deepspeed/deepspeed.h"

// The keys of DeepSpeed's config, one row per key. Checks, defaults, hints and the list of keys
// without effect all come from these rows.
namespace zg::zero::deepspeed {

enum class Type { boolean, integer, number, choice, text, numbers, any, section };

enum class Effect {
  honoured,  ///< has the same effect as in DeepSpeed
  only,      ///< only the default is supported; another value is Unsupported, with `why`
  nothing,   ///< accepted without effect, and listed with `why`
  inner      ///< no effect of its own: the section's row or another key decides what happens
};

struct Row {
  const char* section;  ///< "" for the top level; "adam", "lion" and so on for optimizer.params
  const char* key;
  Type type;
  const char* fallback;  ///< the default as JSON; "null": null is accepted too; "": no default
  Effect effect = Effect::honoured;
  const char* why = "";      ///< the reason for `only` and `nothing`
  const char* choices = "";  ///< "none|cpu|nvme" for a choice; the name for a section
  double minimum = 0.0;      ///< the range of an integer or number
  double maximum = 1e18;
  const char* fallback_0_16 = nullptr;  ///< the default of DeepSpeed 0.16 if it differs
  const char* alias = "";               ///< another spelling, accepted everywhere
  bool automatic = false;  ///< "auto" is computed from the run; false: "auto" means the default
};

const std::vector<Row>& rows();

/// The key path of a section in a config: "" -> "", "adam" -> "optimizer.params".
std::string path_of(const std::string& section);
/// The name that errors give a key: "optimizer.params.lr".
std::string path_of(const Row& row);

/// Finds a row by its key or alias; null: the section has no such key.
const Row* find_row(const std::string& section, const std::string& key);
std::vector<std::string> keys_of(const std::string& section);

/// A hint for a key that the section does not have: the most similar key, or the section where it
/// belongs. Never empty.
std::string advice_on(const std::string& section, const std::string& key);

const char* fallback_of(const Row& row, DeepSpeedVersion version);

// Optimizers and schedules with DeepSpeed's names.

/// The section of their `params`; empty: not supported. Names of optimizers may be in upper or
/// lower case.
std::string section_of_optimizer(const std::string& type);
std::string section_of_schedule(const std::string& type);

/// True if DeepSpeed has this optimizer and zerograd does not.
bool is_unsupported_optimizer(const std::string& type);
/// The values of optimizer.type, with a fallback that an error advises (schema_rows.cpp).
extern const std::vector<std::string> optimizer_names, unsupported_optimizer_names;
std::string instead_of_optimizer(const std::string& type);
/// `section`: optimizer or scheduler.
std::string join_names(const std::string& section);  ///< "Adam, AdamW"
/// "; did you mean AdamW?", or what to try.
std::string name_advice(const std::string& section, const std::string& type);

}  // namespace zg::zero::deepspeed
