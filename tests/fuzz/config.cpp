#include "tests/fuzz/text.h"
#include "tests/placed_message.h"
#include "tools/config/hjson.h"
#include "tools/config/load.h"
#include "zerograd/runtime/error.h"

// A DeepSpeed config, from bytes to the options of a run.
namespace zg::testing {
namespace {

const std::string file = "ds.json";

void load(const std::string& text) {
  // Both of each are met without a byte that says which.
  const bool lenient = text.size() % 8 == 0;
  const auto compat = text.size() % 4 < 2 ? tools::Compat::v0_19 : tools::Compat::v0_16;
  const tools::CheckedConfig config =
      tools::check_config(tools::read_hjson(text, file), file, compat, lenient);
  for (const std::string& line : config.warnings)
    if (!is_one_line(line)) report("a warning is no line of text", line);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  tools::TrainOptions options;
  tools::apply_config(config, options);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  return load_text({bytes, bytes + size}, file, load);
}
