#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/options/flags.h"
#include "tools/run/run.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/zero/advise.h"

// The search for settings that fit (zero/advise.h), for the runs of the command.
namespace zg::tools {

zero::Setting setting_of(const Run& run);
/// The run with the setting. A growing batch is left out: every step has the full one.
Run with_setting(const Run& run, const zero::Setting& setting);
zero::ModelSizes model_sizes(const Run& run);

/// True if a search may vary the flag: it is not on the command line, and its key is not written in
/// the DeepSpeed config. The default value of a key does not count.
bool may_vary(const TrainOptions& options, const std::string& flag);
/// The choices of a search of this run. `keeps_given`: without the values that flags or the text of
/// a config give.
zero::Choices choices_of(const Run& run, bool keeps_given = false);

/// Flags that turn the run into one with the setting: the values that differ. `whole`: all that
/// differ from the defaults, for a command line without searched_flags().
std::vector<std::string> flags_of(const zero::Setting& setting, const Run& run, bool whole = false);
/// Flags of train that such flags replace, by first name.
const std::vector<std::string>& searched_flags();

/// The memory of a setting: of each pipeline stage, three steps. With `peaks` also the seconds of
/// its step. Without `whole_steps` a step of a pipeline has only so many micro-batches that every
/// stage is full; all of them may take some MiB more. Throws ConfigError or Unsupported if the
/// training refuses the setting.
zero::PlannedSetting plan_setting(const Run& run, const zero::Setting& setting,
                                  const zero::ModelSizes& model, const zero::StepRates& rates,
                                  const Peaks* peaks, bool whole_steps = false);
/// A setting that was found, with the bytes of whole steps unless a step has very many
/// micro-batches. Absent: these exceed the run's limits, or a part of a step leaves less than 5 %.
std::optional<zero::PlannedSetting> exact(const Run& run, const zero::PlannedSetting& found);
/// The first eight settings that take less of some memory than those before them, exact. After
/// `seconds` none is added to a list that is not empty.
std::vector<zero::PlannedSetting> exact_rows(const Run& run,
                                             const std::vector<zero::PlannedSetting>& fitting,
                                             double seconds);

/// Rates of a rank that is a thread: all share the machine's memory and disk. A received byte is
/// read and written, and so is a byte that is copied to "the host".
zero::StepRates rates_of_threads(const Run& run, double operations, double bandwidth);
/// Rates for runs on this type of device; `peaks` replace what they have.
zero::StepRates rates_of(const Run& run, const Peaks* peaks = nullptr);

/// Searches these settings within the limits of `options`.
zero::Search search_list(const Run& run, const std::vector<zero::Setting>& settings,
                         const zero::SearchOptions& options, const Peaks* peaks = nullptr);
/// Searches the settings of the run, with the limits of --device-memory and --host-memory.
zero::Search search_settings(const Run& run, const zero::Choices& choices,
                             zero::SearchOptions options, const Peaks* peaks = nullptr);

/// The reasons why settings were refused, the most frequent first, each after "; "; empty: none
/// was.
std::string refusals_of(const zero::Search& search, size_t most);

/// The smallest change of the run that fits its limits: the first that fits among the ZeRO stages,
/// then those with --activation-checkpoint, --cpu-offload, and both; else the fastest of all
/// settings, or of those of a search that is `known`, which are exact. `none`: why there is none,
/// and what to try.
struct SmallestSetting {
  std::optional<std::string> flags;
  std::string none;
};
SmallestSetting smallest_fitting(const Run& run, const zero::Search* known = nullptr);

/// The flags of plan about the machine.
struct Machine {
  std::string card;         ///< a name for zero::card_named(); empty: none
  int64_t reserve = -1;     ///< device memory that is not for the run; -1: with a card an estimate
  int64_t nodes = 1;        ///< ranks are divided evenly among them
  int64_t node_memory = 0;  ///< host memory of a node; 0: no limit
};
/// Sets device and limits of the options. Returns lines that say what is planned.
std::vector<std::string> apply(const Machine& machine, TrainOptions& options);
/// The file of bench/peaks for a card, beside the program or in its source tree; empty: none.
std::string peaks_file(const zero::Card& card);

/// The table of plan --advise: the rows are search.fitting, of `found` settings that fit. `words`:
/// the given flags of train.
std::string advice_table(const Run& run, const zero::Search& search, size_t found,
                         const GivenFlags& words, int64_t nodes);

}  // namespace zg::tools
