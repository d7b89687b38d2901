#include <utility>

#include "tools/options/train_flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

// Flags of the scripts that the tutorials of DeepSpeed, accelerate and Hugging Face run. Help does
// not list them.
namespace zg::tools {
namespace {

constexpr const char* no_hub =
    "there is no hub here; save the texts in one file and give it as --data PATH.txt";
constexpr const char* no_generation =
    "a validation takes the loss and generates nothing; generate has --num-beams, --min-length and "
    "--max-length; leave the flag out";

/// A flag without a counterpart: the error says what to write instead.
template <class Refusal>
Flag refused_flag(std::string name, bool is_switch, const char* instead) {
  return {{std::move(name)},
          is_switch ? "" : "X",
          "",
          [instead](const std::string& flag, const std::string&) {
            throw Refusal(fmt::format("{}: {}", flag, instead));
          }};
}

}  // namespace

std::vector<Flag> tracking_flags(Tracking& tracking) {
  return {switch_flag({"--with-tracking"}, tracking.enabled, ""),
          {{"--report-to"},
           "tensorboard|all|none",
           "",
           [&tracking](const std::string& name, const std::string& value) {
             for (const char* service : {"wandb", "comet_ml", "clearml", "mlflow", "aim"})
               if (value == service)
                 throw Unsupported(fmt::format(
                     "{} {}: this version reports to files alone; try {} tensorboard, or --metrics "
                     "F for a JSON line per step",
                     name, value, name));
             parse_choice(name, value, {"tensorboard", "all", "none"});
             tracking.service = value;
           }},
          {{"--report-name"},
           "NAME",
           "",
           [&tracking](const std::string& name, const std::string& value) {
             if (value.empty() || value.find('/') != std::string::npos || value.starts_with("."))
               throw ConfigError(fmt::format(
                   "{}: expected the name of a folder in --output-dir, without '/', got '{}'", name,
                   printable(value)));
             tracking.name = value;
           }}};
}

void resolve_tracking(TrainOptions& options) {
  const Tracking& tracking = options.tracking;
  if (!tracking.enabled)
    return refuse_flags(options.given, {"--report-to", "--report-name"},
                        "expected --with-tracking with it, got none; try --tensorboard-dir DIR");
  if (tracking.service == "none") return;
  if (!options.tensorboard.empty()) {
    if (options.given.count("--report-name"))
      throw ConfigError(
          "--report-name: expected one of it and --tensorboard-dir, which names the folder, got "
          "both");
    return;
  }
  if (options.save.empty())
    throw ConfigError(
        "--with-tracking: expected --output-dir DIR, whose folder gets the events, or "
        "--tensorboard-dir DIR, got neither");
  options.tensorboard = options.save + "/" + tracking.name;
}

FlagGroup script_flags() {
  constexpr bool has_value = false;
  FlagGroup group;
  for (const char* name : {"--dataset-name", "--dataset-config-name"})
    group.flags.push_back(refused_flag<ConfigError>(name, has_value, no_hub));
  group.flags.push_back(refused_flag<ConfigError>(
      "--per-device-eval-batch-size", has_value,
      "a validation takes micro-batches of --batch-size; leave the flag out"));
  group.flags.push_back(
      {{"--do-train"}, "", "", [](const std::string& name, const std::string& value) {
         parse_switch(name, value);  // this command always trains
       }});
  constexpr bool is_switch = true;
  group.flags.push_back(refused_flag<ConfigError>(
      "--do-eval", is_switch,
      "train validates every --eval-interval N steps, and zerograd eval a checkpoint; write one of "
      "them"));
  group.flags.push_back(refused_flag<ConfigError>(
      "--do-predict", is_switch, "zerograd generate reads a checkpoint; leave the flag out"));
  group.flags.push_back(refused_flag<ConfigError>(
      "--overwrite-output-dir", is_switch,
      "a run never overwrites a checkpoint of another; give --output-dir a new folder, or go on "
      "with --resume DIR"));
  for (const char* name : {"--val-max-target-length", "--val-min-target-length", "--num-beams",
                           "--n-val-batch-generations"})
    group.flags.push_back(refused_flag<Unsupported>(name, has_value, no_generation));
  return group;
}

FlagGroup evaluation_script_flags() {
  constexpr const char* own = "the checkpoint says it; leave the flag out";
  constexpr const char* one_rank =
      "this runs on one rank, whatever the stage that trained the checkpoint; leave the flag out";
  FlagGroup group;
  for (const char* name : {"--precision", "--config", "--deepspeed-config"})
    group.flags.push_back(refused_flag<ConfigError>(name, /*is_switch=*/false, own));
  for (const char* name : {"--strategy", "--zero-stage"})
    group.flags.push_back(refused_flag<ConfigError>(name, /*is_switch=*/false, one_rank));
  group.flags.push_back(
      {{"--deepspeed"}, "", "", [](const std::string& name, const std::string& value) {
         parse_switch(name, value);
       }});
  return group;
}

}  // namespace zg::tools
