#include "zerograd/runtime/command_line/device_flag.h"

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/device_names.h"
#include "zerograd/runtime/error.h"

namespace zg {

Flag device_flag(Device::Type& type) {
  return {
      {"--device"},
      "cpu|cuda|hpu",
      "where ranks compute; of accelerators rank R takes the R-th, in turns [cpu]",
      [&type](const std::string& name, const std::string& value) {
        // cpu:0 and the like are the first rank's.
        constexpr Device::Type types[] = {Device::Type::cpu, Device::Type::cuda, Device::Type::hpu};
        type = types[parse_choice(name, value, {"cpu", "cuda", "hpu", "cpu:0", "cuda:0", "hpu:0"}) %
                     std::size(types)];
      }};
}

Flag use_hpu_flag(Device::Type& type) {
  return {{"--use-hpu"}, "", "", [&type](const std::string& name, const std::string& value) {
            if (parse_switch(name, value)) type = Device::Type::hpu;
          }};
}

void check_device(const Given& given) {
  if (given.count("--device") && given.count("--use-hpu"))
    throw ConfigError("--use-hpu: expected one of --device and --use-hpu, got both");
}

void require_dtype(Device::Type type, DType dtype, const std::string& what) {
  if (type == Device::Type::hpu && dtype == DType::f16)
    throw Unsupported(what + ": hpu devices do not compute in f16; expected f32 or bf16; try " +
                      "train with --precision bf16 (of a checkpoint with --resume or --init), or "
                      "--device cpu");
}

void require_device(Device::Type type) {
  if (const std::string why = Device::absence(type); !why.empty())
    throw Unsupported(std::string("--device ") + name_of(type) + ": " + why + "; try --device cpu");
}

void require_figures(Device::Type type) {
  require_device(type);
  for (int index = 0; index < Device::count(type); ++index)
    if (const std::string what = stand_in(type, index); !what.empty())
      throw Unsupported(std::string("--device ") + name_of(type) + ": " + name_of(type) + ":" +
                        std::to_string(index) + " is the " + what +
                        ": its times say nothing of one; expected an accelerator to measure; try "
                        "--device cpu");
}

}  // namespace zg
