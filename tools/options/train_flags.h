#pragma once

#include <optional>
#include <string>

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"

// Flags of scripts (script_flags.cpp), and what several flags together mean for the optimisation
// (optimisation_flags.cpp).
namespace zg::tools {

/// Hugging Face's names of schedules.
Flag lr_scheduler_flag(zero::ScheduleOptions& schedule);
/// Sets the folder of events that these flags ask for. ConfigError if they lack one.
void resolve_tracking(TrainOptions& options);
/// Other flags of these scripts, each refused with what to write instead.
FlagGroup script_flags();
/// The same for eval and generate, and --deepspeed, which has no effect.
FlagGroup evaluation_script_flags();

/// Each of these flags selects AnnealingLR.
inline constexpr const char* annealing_flags[] = {"--lr-decay-style", "--lr-warmup-samples",
                                                  "--lr-decay-samples"};

/// Sets the engine's dtypes from --precision, then from --grad-accum-dtype, which overrides it.
void resolve_precision(TrainOptions& options);

/// Fills in the default warmup and end of a schedule. Call it after the options of a checkpoint are
/// applied. ConfigError where flags contradict each other or the checkpoint.
void resolve_schedule(TrainOptions& options);

/// A line for each given flag that has no effect in a run with this engine and that changes no
/// value, such as --prefetch-units below stage 3.
std::vector<std::string> flags_without_effect(const TrainOptions& options,
                                              const zero::Config& engine);

}  // namespace zg::tools
