#pragma once

#include <string>

// Optimizers and schedules by DeepSpeed's names.
namespace zg::tools {

/// The section of params; empty: not done here. Names of optimizers are case-folded.
std::string section_of_optimizer(const std::string& type);
std::string section_of_schedule(const std::string& type);

/// Whether DeepSpeed knows the optimizer and this version does not.
bool is_later_optimizer(const std::string& type);
/// `section`: optimizer or scheduler.
std::string join_names(const std::string& section);  ///< "Adam, AdamW"
/// "; did you mean AdamW?", or what to try.
std::string name_advice(const std::string& section, const std::string& type);

}  // namespace zg::tools
