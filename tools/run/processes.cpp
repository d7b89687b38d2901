#include "tools/run/processes.h"

#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

// Throws if torchrun, accelerate or deepspeed started several processes: each would train alone.
void refuse_other_launchers() {
  const char* size = std::getenv("WORLD_SIZE");
  const long long processes =
      size ? std::atoll(size) : 1;  // WORLD_SIZE as a number, which is safe to print
  if (processes <= 1) return;
  throw ConfigError(fmt::format(
      "WORLD_SIZE: expected processes that MPI starts, got {} of another launcher, which cannot "
      "communicate; try zerograd launch --num_gpus {} train ..., or unset WORLD_SIZE",
      processes, processes));
}

std::string checksum_of(const std::string& bytes) {
  return checksum(std::as_bytes(std::span(bytes)));
}

std::string offload_of(const zero::OffloadOptions& offload) {
  return fmt::format(" {} {} {} {}", offload.parameter, offload.gradient, offload.optimizer,
                     offload.activation);
}

// The values that the settings of a checkpoint do not contain and that must be equal on all ranks.
std::string path_of(const Run& run) {
  const TrainOptions& options = run.options;
  const zero::Config& engine = run.settings.optimisation.engine;
  return fmt::format(
      "{} {} {} {} {} {:d} {:d} {} {} {} {} {} {} {} {:d} {:d} {}{} {} {}{}",
      engine.reduce_bucket_size, engine.allgather_bucket_size, engine.prefetch_bucket_size,
      engine.prefetch_units, engine.param_persistence_threshold, engine.overlap_comm,
      options.activation_checkpoint, options.eval_interval, options.eval_batches,
      options.sample_interval, options.save_interval, options.exit_interval, options.max_bad_steps,
      options.score_samples, options.save.empty(), options.memory_json.empty(),
      options.dump_gradients_step.value_or(-1), offload_of(engine.offload), options.initial_weights,
      options.from_hf,
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

void adopt_processes(TrainOptions& options) {
  const std::optional<ProcessRank> place = process_rank();
  if (!place) refuse_other_launchers();
  if (!place || place->size == 1) return;
  if (mpi_version().empty())
    throw Unsupported(
        fmt::format("ranks: this build links no MPI, so the {} processes that were started cannot "
                    "communicate; try "
                    "--ranks {} in one process, or install libopenmpi-dev and build again",
                    place->size, place->size));
  if (options.given.count("--ranks") && options.ranks != place->size)
    throw ConfigError(
        fmt::format("--ranks: expected the {} processes that were started, or nothing; got {}",
                    place->size, options.ranks));
  options.ranks = place->size;
  options.process = place;
}

std::vector<std::pair<std::string, std::string>> common_values(const Run& run) {
  std::vector<std::pair<std::string, std::string>> values = {
      {"program", checksum_of(read_text("/proc/self/exe"))},
      {"instruction set", name_of(best_isa())},
      {"data", run.settings.contents.checksum},
      {"base", run.settings.base.hash},
      {"settings", checksum_of(to_json(run.settings))},
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
      throw ConfigError(
          fmt::format("--resume: in {} attempts the ranks found different checkpoints; expected a "
                      "folder that every host sees alike; try one step_N of it",
                      max_attempts));
    run = prepare_run(given, run.dataset, run.lock);
  }
  if (const size_t rank = first_different(
          gather_texts(*group, to_json(run.settings) + path_of(run) + run.settings.base.hash)))
    throw ConfigError(
        fmt::format("ranks differ before step 0: the settings of rank {} are not rank 0's; "
                    "expected the same command, program and files on every host",
                    rank));
  return run;
}

}  // namespace zg::tools
