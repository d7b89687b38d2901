#include "tools/options/run_spec.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/fuzz/bounded.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/batch_size.h"
#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/optimizer/schedule.h"

// The settings of a checkpoint: those that a run writes, with a few values changed. They are read
// from a manifest with a correct checksum and used as a resumed run uses them.
namespace zg::testing {
namespace {

using Json = nlohmann::ordered_json;
using tools::RunSpec;

const Json& written() {
  static const Json settings = [] {
    RunSpec own{.model = {.vocabulary = 3, .block_size = 11}, .micro_batch = 4};
    own.data.source = "sort";
    own.steps = 20;
    return Json::parse(tools::to_json(own));
  }();
  return settings;
}

/// Numbers at the limits of types and of flags, and values that are not numbers.
const std::vector<Json>& values() {
  static const std::vector<Json> all = Json::parse(R"([
      0, -1, 1, 2, 3, 127, 128, 65536, 1048576, 2147483647, 2147483648, 4294967296,
      9007199254740992, 9007199254740993, 9223372036854775807, -9223372036854775808,
      18446744073709551615, 0.5, -0.5, 1.0, 1e-300, 1e300, -1e300, 3e38, 4e38,
      "nan", "inf", "-inf", "\u001b[2J", "", "bf16", "f16", "host", "WarmupLR", "OneCycle",
      "AnnealingLR", "cosine", "bloom", "alibi", true, false, null, [], [1, 2, 3], {}])");
  return all;
}

/// Two bytes are one change: the field and its new value. With more than four changes nearly every
/// input is refused.
Json changed(const std::string& bytes) {
  Json settings = written();
  std::vector<Json*> fields;
  for (auto& [group, entries] : settings.items())
    for (auto& [name, value] : entries.items()) fields.push_back(&value);
  for (size_t i = 0; i + 1 < std::min<size_t>(bytes.size(), 8); i += 2) {
    Json& field = *fields[static_cast<unsigned char>(bytes[i]) % fields.size()];
    const auto value = static_cast<unsigned char>(bytes[i + 1]);
    field = value < values().size() ? values()[value] : Json(value - int64_t{128});
  }
  return settings;
}

/// Computes from them as load and --resume do.
void use(const RunSpec& settings) {
  const int64_t whole = settings.samples_per_step();
  if (whole < 1 || settings.step_samples() < 1 || settings.step_samples() > whole ||
      settings.accumulation_after(settings.samples) < 1)
    report("a step without samples", tools::to_json(settings));
  const int64_t common = settings.rampup.common(whole);
  for (const int64_t ranks : {1, 2, 3, 8}) {
    const int64_t micro =
        zero::largest_divisor(std::max<int64_t>(common / ranks, 1), settings.micro_batch);
    if (micro < 1 || micro > settings.micro_batch) report("no micro-batch", std::to_string(micro));
  }
  const tools::Progress end = zero::advanced(
      settings.rampup, whole, {.steps = 0, .samples = settings.samples},
      {.steps = std::numeric_limits<int64_t>::max(), .samples = settings.train_samples});
  if (end.steps < 0 || end.samples < 0) report("before its beginning", std::to_string(end.steps));
  zero::Schedule schedule(settings.schedule);
  for (const int64_t k :
       {int64_t{0}, int64_t{1}, settings.samples - settings.skipped_samples, settings.steps})
    schedule.rate(k);
  zero::validate(settings.engine);
}

void read(const std::string& config) {
  const Shape shape({1});
  zero::Manifest manifest{.info = {.config_json = config}, .parameters = {{"w", shape}}};
  manifest.pieces = {{.parameter = "w", .state = "master", .shape = shape, .file = "f"}};
  const std::string json =
      zero::manifest_from(zero::manifest_text(manifest), "manifest.json").info.config_json;
  RunSpec settings;
  try {
    settings = tools::settings_from_json(json, "c");
  } catch (const FileError& error) {
    const std::string what = error.what();
    if (!what.starts_with("c: the checkpoint's settings cannot be read: ") ||
        what.find("; expected ") == std::string::npos)
      report("an error without its place and advice", what);
    return;
  }
  use(settings);
  // Writing the settings again must give the same values.
  const std::string again = tools::to_json(settings);
  if (tools::to_json(tools::settings_from_json(again, "again")) != again)
    report("not what is written of it", again);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  bounded([&] { read(changed({bytes, bytes + size}).dump()); });
  return 0;
}
