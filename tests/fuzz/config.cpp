#include "tests/fuzz/text.h"
#include "tests/support/placed_message.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/deepspeed/check.h"
#include "zerograd/zero/deepspeed/hjson.h"

// A DeepSpeed config, from bytes to what it sets.
namespace zg::testing {
namespace {

const std::string file = "ds.json";

void load(const std::string& text) {
  using namespace zero::deepspeed;
  // Both variants are tested with every input, so no byte must choose one.
  const bool lenient = text.size() % 8 == 0;
  const auto version =
      text.size() % 4 < 2 ? zero::DeepSpeedVersion::v0_19 : zero::DeepSpeedVersion::v0_16;
  const CheckedConfig config = check_config(read_hjson(text, file), file, version, lenient);
  for (const std::string& line : config.warnings)
    if (!is_one_line(line)) report("a warning is not one line of printable text", line);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  config.state();
  apply_config(config, {});
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  return load_text({bytes, bytes + size}, file, load);
}
