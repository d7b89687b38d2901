#include <regex>

#include "tests/support/temporary_folder.h"
#include "tests/zero/deepspeed/deepspeed_case.h"
#include "tools/deepspeed/load.h"
#include "zerograd/runtime/text/format.h"

// Configs with the keys and values of published ones, in tests/reference/fixtures. What DeepSpeed
// and accelerate read from them was written by tests/reference/make_config_fixtures.py.
namespace zg::testing {
namespace {

using Ordered = nlohmann::ordered_json;  // keys stay in the order of the file

/// The values that the command takes from accelerate's file.
Ordered launched(const Ordered& yaml) {
  const TemporaryFolder folder;
  tools::TrainOptions options;
  options.config.path = folder / "a.yaml";
  write_file(options.config.path, yaml.dump());  // JSON is YAML
  tools::load_config(options);
  zero::DeepSpeedConfig config{.engine = options.engine,
                               .schedule = options.schedule,
                               .preset = options.preset,
                               .batch = {.micro = options.batch.micro,
                                         .accumulation = options.batch.accumulation,
                                         .train = options.batch.train}};
  Ordered seen = fields(config);
  seen["ranks"] = options.ranks;
  return seen;
}

Ordered read_published(const Ordered& entry) {
  if (entry.contains("yaml")) return launched(entry.at("yaml"));
  const Loaded loaded = load(entry.at("json").dump());
  if (loaded.config.unsupported) throw Unsupported(*loaded.config.unsupported);
  return fields(loaded.settings);
}

/// The key that an error names: "c.json:1:2: fp16.enabled: ..." -> "fp16.enabled".
std::string named_key_of(const std::string& message) {
  std::smatch found;
  const bool has_key = std::regex_search(message, found, std::regex(":[0-9]+:[0-9]+: ([^: ]+): "));
  return has_key ? found[1].str() : "no key in: " + message;
}

}  // namespace

TEST_CASE(
    "config: published configs are read with DeepSpeed's values, or refused for a reason of "
    "DeepSpeed, accelerate or a missing feature") {
  const Ordered entries =
      Ordered::parse(read_file(std::string(ZG_FIXTURES) + "published_configs.json"));
  CHECK(entries.size() >= 80);
  for (const Ordered& entry : entries) {
    CAPTURE(entry.at("from").get<std::string>());
    Ordered seen;
    std::string error;
    bool is_unsupported = false;
    try {
      seen = read_published(entry);
    } catch (const Unsupported& missing) {
      error = missing.what();
      is_unsupported = true;
    } catch (const std::exception& wrong) {
      error = wrong.what();
    }
    CAPTURE(error);
    if (entry.contains("lacks")) {
      CHECK(is_unsupported);
      CHECK(named_key_of(error) == entry.at("lacks").get<std::string>());
    } else if (entry.contains("refused")) {
      const std::string key = named_key_of(error), why = entry.at("refused");
      CHECK_MESSAGE(contains(lower_case(why), key.substr(key.rfind('.') + 1)),
                    key << " is not in: " << why);
    } else {
      REQUIRE(error == "");
      for (const auto& [name, value] : entry.at("reads").items()) {
        CAPTURE(name);
        if (value.is_number())
          CHECK(seen.at(name).get<float>() == value.get<float>());
        else
          CHECK(seen.at(name).dump() == value.dump());
      }
    }
  }
}

}  // namespace zg::testing
