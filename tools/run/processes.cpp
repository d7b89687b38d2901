#include "tools/run/run.h"

#include <cstdlib>
#include <numeric>
#include <span>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

std::string checksum_of(const std::string& bytes) {
  return checksum(std::as_bytes(std::span(bytes)));
}

// The options that no checkpoint keeps and that must be equal on all ranks, as one text.
std::string path_of(const Run& run) {
  const TrainOptions& options = run.options;
  const zero::Config& engine = run.options.engine;
  return fmt::format(
      "{} {} {} {} {} {:d} {:d} {} {} {} {} {} {} {} {:d} {:d} {} {} {} {} {} {} {}{}",
      engine.reduce_bucket_size, engine.allgather_bucket_size, engine.prefetch_bucket_size,
      engine.prefetch_units, engine.param_persistence_threshold, engine.overlap_comm,
      options.activation_checkpoint, options.eval_interval, options.eval_batches,
      options.sample_interval, options.save_interval, options.exit_interval, options.max_bad_steps,
      options.score_samples, options.save.empty(), options.memory_json.empty(),
      options.dump_gradients_step.value_or(-1), engine.offload.parameter, engine.offload.gradient,
      engine.offload.optimizer, engine.offload.activation, options.initial_weights, options.from_hf,
      run.checkpoint && zero::lies_in(run.resumed, options.save) ? " goes on in its folder" : "");
}

bool reads_checkpoint(const Run& run) { return run.checkpoint || run.initial; }

std::string checkpoints_of(const Run& run) {
  std::string names;
  for (const Checkpoint& checkpoint : {run.checkpoint, run.initial})
    names += " " + (checkpoint ? checkpoint->manifest().checksum : "none");
  return names;
}

/// The first rank whose text differs from rank 0's; 0: none.
size_t first_different(const std::vector<std::string>& texts) {
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) return rank;
  return 0;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> common_values(const Run& run) {
  std::vector<std::pair<std::string, std::string>> values = {
      {"program", checksum_of(read_text("/proc/self/exe"))},
      {"instruction set", name_of(best_isa())},
      {"data", run.options.contents.checksum},
      {"base", run.options.base.hash},
      {"settings", checksum_of(to_json(run.options))},
      {"course", checksum_of(path_of(run))}};
  if (reads_checkpoint(run)) values[4].second = values[5].second = "of a checkpoint";
  return values;
}

Run agree_on_checkpoint(Run run, const TrainOptions& given, Communicator& ranks) {
  if (!reads_checkpoint(run)) return run;
  std::vector<int> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::unique_ptr<Communicator> group = ranks.group(all, "checkpoint");
  constexpr int max_attempts = 20;
  for (int attempt = 1; first_different(gather_texts(*group, checkpoints_of(run))) > 0; ++attempt) {
    if (attempt == max_attempts)
      raise<ConfigError>(
          "--resume: in {} attempts the ranks found different checkpoints; expected a folder that "
          "every host sees alike; try one step_N of it",
          max_attempts);
    run = prepare_run(given, run.dataset, run.lock);
  }
  if (const size_t rank = first_different(
          gather_texts(*group, to_json(run.options) + path_of(run) + run.options.base.hash)))
    raise<ConfigError>(
        "ranks differ before step 0: the settings of rank {} are not rank 0's; expected the same "
        "command, program and files on every host",
        rank);
  return run;
}

}  // namespace zg::tools
