#pragma once

#include "tools/options.h"
#include "zerograd/models/data.h"

// No flag is accepted and ignored: ConfigError for one that was given and would do nothing.
namespace zg::tools {

/// Of flags about data that this data has no use for.
void check_data_flags(const TrainOptions& options, const models::Dataset& dataset);
void check_data_flags(const EvalOptions& options, const std::string& source,
                      const models::Dataset& dataset);

/// Of steps that a run from step `first` (0: a fresh start, else that of `resumed`) to step `end`
/// never comes to.
void check_step_flags(const TrainOptions& options, const std::string& resumed, int64_t first,
                      int64_t end);

/// Of --n-head and --model-type beside a checkpoint or file that knows its model.
void check_model_flags(const Given& given, const std::string& checkpoint);

/// Why a run ends before its last step, where that is no signal: the file of --kill-switch-path.
inline constexpr int kill_switch = 1 << 8;

bool has_come(const std::string& kill_switch_path);  ///< "": never
/// ConfigError when it is there already: it would end every run that begins, and Megatron starts
/// none.
void refuse_kill_switch(const std::string& kill_switch_path);

std::string name_of_signal(int signal);  ///< of those that an zero::InterruptScope notes

}  // namespace zg::tools
