#include "tools/offload_flags.h"

#include "tools/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"

namespace zg::tools {
namespace {

Flag place_flag(const std::string& name, Space& space, const std::string& help) {
  return {
      {name}, "none|host|nvme", help, [&space](const std::string& flag, const std::string& value) {
        // DeepSpeed calls the host cpu.
        const size_t choice =
            value == "cpu" ? 1 : parse_choice(flag, value, {"none", "host", "nvme"});
        constexpr Space spaces[] = {Space::device, Space::host, Space::file};
        space = spaces[choice];
      }};
}

}  // namespace

std::vector<Flag> offload_flags(OffloadFlags& offload, zero::OffloadOptions& engine) {
  return {
      place_flag("--offload-optimizer", engine.optimizer,
                 "where AdamW's moments and masters are, and are updated [none]"),
      place_flag("--offload-gradients", engine.gradient, "where sums of gradients are [none]"),
      place_flag("--offload-param", engine.parameter,
                 "stage 3: where values are between their uses [none]"),
      place_flag("--offload-activations", engine.activation,
                 "where what backward needs is until then [none]"),
      text_flag({"--nvme-path"}, "DIR", offload.nvme_path,
                "where nvme is: a file without a name, gone when the run ends"),
      switch_flag({"--cpu-offload"}, offload.cpu_offload,
                  "optimizer and gradients, at stage 3 parameters too, to the host"),
  };
}

void settle_offload(TrainOptions& options) {
  zero::Config& engine = options.optimisation.engine;
  zero::OffloadOptions& places = engine.offload;
  const auto move = [&](const char* flag, Space& space) {
    if (!options.given.count(flag)) space = Space::host;
  };
  if (options.offload.cpu_offload) {
    move("--offload-optimizer", places.optimizer);
    move("--offload-gradients", places.gradient);
    if (engine.stage == 3) move("--offload-param", places.parameter);
  }
  if (options.offload.cpu_checkpointing && options.activation_checkpoint)
    move("--offload-activations", places.activation);
  const bool on_drive = places.parameter == Space::file || places.gradient == Space::file ||
                        places.optimizer == Space::file || places.activation == Space::file;
  if (on_drive && options.offload.nvme_path.empty())
    throw ConfigError(
        "--nvme-path: expected a directory on a drive, for what goes to nvme, also in a "
        "run that goes on from one where it did; got none; try --nvme-path DIR, or none or host "
        "for "
        "--offload-param, -optimizer, -gradients and -activations");
  if (on_drive && !is_directory(options.offload.nvme_path))
    throw FileError("--nvme-path: " + options.offload.nvme_path +
                    " is no directory; expected one on a drive, for what goes to nvme");
  options.place.device.swap.directory = options.offload.nvme_path;
  if (places.parameter != Space::device && engine.stage != 3)
    throw ConfigError("--offload-param: expected --zero-stage 3 with it, got stage " +
                      std::to_string(engine.stage) +
                      ", where every rank needs whole values all the time");
}

}  // namespace zg::tools
