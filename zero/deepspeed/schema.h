#pragma once

#include <string>
#include <vector>

#include "zerograd/zero/deepspeed/deepspeed.h"

// The keys of DeepSpeed's config: a row for each. Checks, defaults, hints and the list of keys
// without effect all come from these rows.
namespace zg::zero::deepspeed {

enum class Type { boolean, integer, number, choice, text, numbers, any, section };

enum class Effect {
  honoured,  ///< changes the run as it does there
  only,      ///< its default is what always happens; another value is Unsupported, with `why`
  nothing,   ///< accepted without effect, and listed with `why`
  inner      ///< its section's own row or another key says what happens
};

struct Row {
  const char* section;  ///< "" for the top level, "adam" for optimizer.params
  const char* key;
  Type type;
  const char* fallback;  ///< the default as JSON; "null" may also be written, "" has none
  Effect effect = Effect::honoured;
  const char* why = "";      ///< the reason for `only` and `nothing`
  const char* choices = "";  ///< "none|cpu|nvme" for a choice; the name for a section
  double least = 0.0;        ///< the range of an integer or number
  double most = 1e18;
  const char* fallback_0_16 = nullptr;  ///< the default of 0.16 where it differs
  const char* alias = "";               ///< another spelling, accepted everywhere
  bool automatic = false;  ///< "auto" is filled from the run, not only dropped for the default
};

const std::vector<Row>& rows();

/// How a config writes a section: "" -> "", "adam" -> "optimizer.params".
std::string path_of(const std::string& section);
/// The name that errors give a key: "optimizer.params.lr".
std::string path_of(const Row& row);

/// By its key or alias; null: the section has no such key.
const Row* find_row(const std::string& section, const std::string& key);
std::vector<std::string> keys_of(const std::string& section);

/// Advice on a key that the section does not have: the nearest that it has, or where the key
/// belongs. Never empty.
std::string advice_on(const std::string& section, const std::string& key);

const char* fallback_of(const Row& row, DeepSpeedVersion version);

// Optimizers and schedules by DeepSpeed's names.

/// The section of params; empty: not supported. Optimizers are found in any case of letters.
std::string section_of_optimizer(const std::string& type);
std::string section_of_schedule(const std::string& type);

/// Whether DeepSpeed knows the optimizer and this version does not.
bool is_later_optimizer(const std::string& type);
/// `section`: optimizer or scheduler.
std::string join_names(const std::string& section);  ///< "Adam, AdamW"
/// "; did you mean AdamW?", or what to try.
std::string name_advice(const std::string& section, const std::string& type);

}  // namespace zg::zero::deepspeed
