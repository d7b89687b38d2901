#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/error_message.h"
#include "tools/config/hjson.h"
#include "tools/config/load.h"

// Configs from text to the options of a run, in one call.
namespace zg::testing {

struct Loaded {
  tools::CheckedConfig config;
  tools::TrainOptions options;
  std::vector<std::string> overridden;
};

/// `given`: flags of the command line, which keep their values in `options`.
inline Loaded load(const std::string& text, tools::Compat compat = tools::Compat::v0_19,
                   bool lenient = false, const tools::Given& given = {}) {
  Loaded loaded{
      .config = tools::check_config(tools::read_hjson(text, "c.json"), "c.json", compat, lenient)};
  loaded.options.given = given;
  if (!loaded.config.unsupported)
    loaded.overridden = tools::apply_config(loaded.config, loaded.options);
  return loaded;
}

/// Everything that a config can set, by name; -1: a count that was not given.
nlohmann::json fields(const tools::TrainOptions& options);
/// The same as text.
std::string fingerprint(const tools::TrainOptions& options);

/// The least that a key of this section needs around it to matter.
nlohmann::json surroundings(const std::string& section);
/// Where in a config the keys of a section stand.
nlohmann::json& section_in(nlohmann::json& config, const std::string& section);
/// Another value than the default's, of the right type.
nlohmann::json another(const tools::Row& row);

}  // namespace zg::testing
