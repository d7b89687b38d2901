
#include "tools/options/flags.h"
#include "zerograd/runtime/text/format.h"

// Flags of the scripts that the tutorials of DeepSpeed, accelerate and Hugging Face run. Help does
// not list them.
namespace zg::tools {
namespace {

/// A flag without a counterpart: the error says what to write instead.
struct RefusedFlag {
  const char* name;
  const char* value;  ///< empty: a switch
  const char* instead;
  bool is_unsupported = false;  ///< the error is Unsupported; false: ConfigError
};

FlagGroup refused(const std::vector<RefusedFlag>& rows) {
  FlagGroup group;
  for (const RefusedFlag& row : rows)
    group.flags.push_back({{row.name}, row.value, "", [row](const std::string& flag, const auto&) {
                             const std::string why = fmt::format("{}: {}", flag, row.instead);
                             if (row.is_unsupported) throw Unsupported(why);
                             throw ConfigError(why);
                           }});
  return group;
}

/// A switch of scripts that has no effect here.
Flag accepted_flag(const char* name) {
  return {{name}, "", "", [](const std::string& flag, const std::string& value) {
            parse_switch(flag, value);
          }};
}

}  // namespace

void resolve_tracking(TrainOptions& options) {
  const Tracking& tracking = options.tracking;
  if (!tracking.enabled)
    return refuse_flags(options.given, {"--report-to", "--report-name"},
                        "expected --with-tracking with it, got none; try --tensorboard-dir DIR");
  if (tracking.service == "none") return;
  if (!options.tensorboard.empty()) {
    if (options.has("--report-name"))
      throw ConfigError(
          "--report-name: expected one of --report-name and --tensorboard-dir, which both name the "
          "folder, got both");
    return;
  }
  if (options.save.empty())
    throw ConfigError(
        "--with-tracking: expected --output-dir DIR, whose folder gets the events, or "
        "--tensorboard-dir DIR, got neither");
  options.tensorboard = options.save + "/" + tracking.name;
}

FlagGroup script_flags() {
  constexpr const char* no_hub =
      "there is no hub here; save the texts in one file and give it as --data PATH.txt";
  constexpr const char* no_generation =
      "a validation takes the loss and generates nothing; generate has --num-beams, --min-length "
      "and --max-length; leave the flag out";
  FlagGroup group =
      refused({{"--dataset-name", "X", no_hub},
               {"--dataset-config-name", "X", no_hub},
               {"--per-device-eval-batch-size", "X",
                "a validation takes micro-batches of --batch-size; leave the flag out"},
               {"--do-eval", "",
                "train validates with --eval-interval N, and zerograd eval validates a checkpoint; "
                "use one of them"},
               {"--do-predict", "", "zerograd generate reads a checkpoint; leave the flag out"},
               {"--overwrite-output-dir", "",
                "a run never overwrites the checkpoints of another run; give --output-dir a new "
                "folder, or continue with --resume DIR"},
               {"--val-max-target-length", "X", no_generation, true},
               {"--val-min-target-length", "X", no_generation, true},
               {"--num-beams", "X", no_generation, true},
               {"--n-val-batch-generations", "X", no_generation, true}});
  group.flags.push_back(accepted_flag("--do-train"));   // this command always trains
  group.flags.push_back(accepted_flag("--deepspeed"));  // ZeRO is always enabled
  return group;
}

FlagGroup evaluation_script_flags() {
  constexpr const char* own = "the checkpoint has this setting; leave the flag out";
  constexpr const char* one_rank =
      "this command runs on one rank, also if the training used a stage; leave the flag out";
  FlagGroup group = refused({{"--precision", "X", own},
                             {"--config", "X", own},
                             {"--deepspeed-config", "X", own},
                             {"--strategy", "X", one_rank},
                             {"--zero-stage", "X", one_rank}});
  group.flags.push_back(accepted_flag("--deepspeed"));
  return group;
}

}  // namespace zg::tools
