#include "tests/fuzz/text.h"
#include "tests/support/placed_message.h"
#include "tools/deepspeed/load.h"
#include "zerograd/runtime/error.h"

// Fuzzes the reading of a config file of Hugging Face's accelerate, from YAML text to TrainOptions.
namespace zg::testing {
namespace {

using zero::deepspeed::CheckedConfig;
using zero::deepspeed::Value;

const std::string file = "a.yaml";

CheckedConfig checked(const Value& root, bool lenient, const std::string& section) {
  const CheckedConfig config =
      zero::deepspeed::check_config(root, file, zero::DeepSpeedVersion::v0_19, lenient, section);
  for (const std::string& line : config.warnings)
    if (!is_one_line(line)) report("a warning is not one line of printable text", line);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  return config;
}

void load(const std::string& text) {
  const bool lenient = text.size() % 8 == 0;  // for one input in eight, by its length
  const Value root = tools::read_yaml(text, file);
  const CheckedConfig yaml = checked(root, lenient, "accelerate");
  CheckedConfig deepspeed = checked(tools::deepspeed_config_of(root), lenient, "");
  tools::fill_defaults(yaml, {}, deepspeed);
  if (deepspeed.unsupported) throw Unsupported(*deepspeed.unsupported);
  tools::TrainOptions options;
  tools::apply_config(deepspeed, options);
  tools::apply_accelerate(yaml, &deepspeed, {}, options);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  return load_text({bytes, bytes + size}, file, load);
}
