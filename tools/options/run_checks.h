#pragma once

#include "tools/options/options.h"
#include "zerograd/models/data/data.h"

// Checks that no flag is accepted and ignored: ConfigError for a flag that would have no effect.
namespace zg::tools {

/// Checks the flags about data that only some kinds of data use.
void check_data_flags(const TrainOptions& options, const models::Dataset& dataset);
void check_data_flags(const EvalOptions& options, const std::string& source,
                      const models::Dataset& dataset);

/// Checks the flags that name a step: a run from step `first` (0: a fresh start, else the step of
/// `resumed`) to step `end` must reach it.
void check_step_flags(const TrainOptions& options, const std::string& resumed, int64_t first,
                      int64_t end);

/// Checks the flags of an optimizer's numbers: sgd and adafactor have no betas, lion, sgd and
/// adafactor no epsilon of adam, and muon and adafactor have numbers of their own. `update`: of the
/// run, which may be that of a checkpoint or a config.
void check_optimizer_flags(const Given& given, const zero::UpdateOptions& update);

/// The reason for an early end other than a signal: the file of --kill-switch-path exists.
inline constexpr int kill_switch = 1 << 8;

bool kill_switch_exists(const std::string& kill_switch_path);  ///< false for an empty path
/// Throws ConfigError if the file exists at the start: every run would end at once. Megatron does
/// not start such a run either.
void refuse_kill_switch(const std::string& kill_switch_path);

std::string name_of_signal(int signal);  ///< for the signals that a zero::InterruptScope handles

}  // namespace zg::tools
