#include "zerograd/zero/checkpoint/consolidate.h"

#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

/// Options to turn a checkpoint into one file or, with --split, a file into a checkpoint.
struct ConsolidateOptions {
  std::string from, to;
  bool split = false;
  DType dtype = DType::f32;
  int64_t ranks = 1;
  TrainOptions train;  ///< flags of train: the model
};

bool parse(const std::vector<std::string>& arguments, ConsolidateOptions& options) {
  const CommandLine line = {
      .usage =
          "zerograd consolidate CHECKPOINT F [--dtype f32|bf16]\n"
          "       zerograd consolidate --split F DIR [--ranks N]",
      .summary =
          "Writes a checkpoint's master parameters as one safetensors file, or such a file as a\n"
          "checkpoint, a few MiB at a time.",
      .positionals = {checkpoint_flag({}, "FROM", options.from,
                                      "a checkpoint's DIR or one step_N; to split: a file"),
                      positional("TO", "the file to write; to split: a DIR without checkpoints",
                                 options.to, PathUse::writes)},
      .groups = {{"to a file",
                  {{{"--dtype"},
                    "f32|bf16",
                    "dtype of the file: the masters in f32, or rounded to bf16 [f32]",
                    [&options](const std::string& name, const std::string& value) {
                      const size_t choice = parse_choice(name, value, {"f32", "bf16"});
                      options.dtype = choice == 0 ? DType::f32 : DType::bf16;
                    }}}},
                 {"to a checkpoint",
                  {switch_flag({"--split"}, options.split, "write DIR/step_0 from a file"),
                   integer_flag({"--ranks"}, options.ranks, "number of shards", {1, nullptr}),
                   flag_named("--model-type", options.train),
                   flag_named("--n-head", options.train)}}},
      .notes =
          "A file holds each parameter once, by name, and the settings of its run, so that eval,\n"
          "generate and --split need no flags for it. step_0 has these parameters, and AdamW's\n"
          "moments are zero. --resume trains it from step 0 with adamw or adam, --init with any\n"
          "optimizer; eval and generate read it.\n"
          "A file of another program does not store the number of heads: give --n-head or "
          "--model-type.\n\n"
          "  zerograd consolidate checkpoints weights.safetensors --dtype bf16\n"
          "  zerograd consolidate --split weights.safetensors eight --ranks 8"};
  if (!parse(line, arguments, options.train.given)) return false;
  check_model(options.train);
  for (const char* flag : {"--ranks", "--n-head", "--model-type"})
    if (!options.split && options.train.has(flag))
      raise<ConfigError>("{}: expected --split with it, got none", flag);
  if (options.split && options.train.has("--dtype"))
    throw ConfigError("--dtype: a checkpoint's masters are f32; leave the flag out of --split");
  return true;
}

void check_without_checkpoints(const std::string& directory) {
  const std::vector<zero::StepFolder> folders = zero::step_folders(directory);
  if (!folders.empty())
    raise<ConfigError>(
        "consolidate: {} holds checkpoints, up to step_{}; expected a directory without any; try "
        "another one",
        directory, folders.front().steps);
}

std::string split(const ConsolidateOptions& options) {
  check_without_checkpoints(options.to);
  check_model_flags(options.train.given, options.from);
  RunSpec settings = open_saved_model(options.from, options.train).settings;
  // A run that starts from this file begins at step 0.
  settings.samples = settings.skipped_samples = 0;
  settings.loss = std::numeric_limits<double>::quiet_NaN();
  const bool is_new = !path_exists(options.to);
  make_directories(options.to);
  const auto lock = lock_directory(options.to);  // another run may be about to save there
  std::string hash;
  try {
    check_without_checkpoints(options.to);  // a run that has just ended may have saved there
    hash = zero::split(options.from, options.to, checkpoint_info(settings),
                       static_cast<int>(options.ranks));
  } catch (...) {
    std::error_code ignored;  // removes the folder only if it is empty
    if (is_new) std::filesystem::remove(options.to, ignored);
    throw;
  }
  print_line(stdout, "saved {}/step_0", options.to);
  return hash;
}

// Writes the weights of a Hugging Face folder to one file, with its tokenizer if this version can
// read that.
std::string consolidate_hf_folder(const ConsolidateOptions& options) {
  const SavedModel saved_model = open_saved_model(options.from, options.train);
  RunSpec settings = saved_model.settings;
  std::vector<std::string> notes;
  if (const auto tokenizer = folder_tokenizer(settings.data, saved_model, notes))
    keep_tokenizer(*tokenizer, settings);
  for (const std::string& note : notes) print_line(stderr, "note: {}", note);
  return zero::consolidate(weights_of(saved_model), checkpoint_info(settings), options.to,
                           options.dtype);
}

}  // namespace

int consolidate(const std::vector<std::string>& arguments) {
  ConsolidateOptions options;
  if (!parse(arguments, options)) return 0;
  std::string hash;
  if (options.split) {
    hash = split(options);
  } else {
    check_not_in_checkpoint(options.to, "consolidate");
    std::string from = options.from;
    if (is_hf_folder(from)) {
      hash = consolidate_hf_folder(options);
    } else {
      const Checkpoint checkpoint = usable_checkpoint(from);
      if (const auto& base = checkpoint->manifest().info.base; !base.path.empty())
        raise<ConfigError>(
            "consolidate: {0} has adapters alone, of {1}; expected a whole model; try zerograd "
            "export {0} --peft DIR, or --merge --hf DIR",
            checkpoint->path(), base.path);
      from = checkpoint->path();
      hash = zero::consolidate(*checkpoint, options.to, options.dtype);
    }
    print_line(stdout, "saved {} of {}", options.to, from);
  }
  print_line(stdout, "param_hash {}", hash);
  return 0;
}

namespace {

enum class CheckResult { intact, damaged, removed };

/// Checks a step_N folder and prints its damaged items. A folder that another process removed or
/// replaced during the check counts as removed, not as damaged.
CheckResult check_folder(const std::string& step_folder) {
  std::vector<std::string> damages;
  try {
    const Checkpoint checkpoint = zero::CheckpointReader::open(step_folder);
    if (!checkpoint) {
      print_line(stdout, "{}: was removed during the check", step_folder);
      return CheckResult::removed;
    }
    damages = checkpoint->damages();
  } catch (const FileError& error) {
    damages = {error.what()};
  }
  print_line(stdout, "{}: {}", step_folder,
             damages.empty() ? "verifies"
                             : fmt::format("{} damaged item{}", damages.size(),
                                           damages.size() == 1 ? "" : "s"));
  for (const std::string& damage : damages) print_line(stdout, "  {}", damage);
  std::fflush(stdout);  // checking one folder may take minutes
  return damages.empty() ? CheckResult::intact : CheckResult::damaged;
}

/// The results for all checkpoints of a directory.
struct Summary {
  std::string newest;  // path of the newest checkpoint that verifies
  size_t damaged = 0, all = 0;
};

/// Checks every step_N once. Lists the directory again when a step_N was removed during the check,
/// because a new one may have replaced it.
Summary check_all(const std::string& directory) {
  constexpr int max_rounds = 100;
  std::map<int64_t, CheckResult> seen;
  Summary summary;
  int64_t newest = -1;
  bool changed = true;
  for (int round = 0; changed && round < max_rounds; ++round) {
    changed = false;
    for (const zero::StepFolder& folder : zero::step_folders(directory)) {
      const auto before = seen.find(folder.steps);
      if (before != seen.end() && before->second != CheckResult::removed) continue;
      const CheckResult found = seen[folder.steps] = check_folder(folder.path);
      changed = changed || found == CheckResult::removed;
      if (found == CheckResult::removed) continue;
      ++summary.all;
      if (found == CheckResult::damaged) ++summary.damaged;
      if (found == CheckResult::damaged || folder.steps < newest) continue;
      newest = folder.steps;
      summary.newest = folder.path;
    }
  }
  return summary;
}

}  // namespace

int verify(const std::vector<std::string>& arguments) {
  std::string path;
  const CommandLine line = {
      .usage = "zerograd verify DIR",
      .summary =
          "Reads every byte of every checkpoint in DIR, or of one step_N, and names each damage "
          "by\n"
          "file, tensor and place. Exit status 5 when there is any.",
      .positionals = {positional("DIR", "a checkpoints' DIR or one step_N", path, PathUse::reads)},
      .notes =
          "For a DIR the last line says which step --resume, eval and generate would take: the\n"
          "newest without damage.\n\n"
          "  zerograd verify checkpoints\n"
          "  zerograd verify checkpoints/step_300"};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  if (zero::step_folders(path).empty()) {
    const CheckResult found = check_folder(zero::find_checkpoint(path));
    if (found == CheckResult::damaged)
      raise<FileError>("verify: {} is damaged; stdout lists the damage", path);
    if (found == CheckResult::intact) return 0;
  }
  const Summary found = check_all(path);
  if (found.all == 0)
    raise<FileError>("verify: {}: every checkpoint was removed during the check", path);
  const std::string resumable = found.newest.empty() ? "nothing" : found.newest;
  print_line(stdout, "--resume {} takes {}", path, resumable);
  if (found.damaged > 0)
    raise<FileError>("verify: {} of the {} checkpoints in {} {} damaged; stdout lists the damage",
                     found.damaged, found.all, path, found.damaged == 1 ? "is" : "are");
  return 0;
}

}  // namespace zg::tools
