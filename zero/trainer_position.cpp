#include "zerograd/zero/trainer_position.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* schema = "zerograd.trainer/1";

}  // namespace

CheckpointInfo description_of(const TrainerPosition& position) {
  const Json json = {{"schema", schema},
                     {"samples", position.samples},
                     {"skipped_samples", position.skipped_samples},
                     {"score", std::isfinite(position.score) ? Json(position.score) : Json()}};
  CheckpointInfo info;
  info.config_json = json.dump();
  return info;
}

TrainerPosition position_in(const CheckpointInfo& info, const std::string& path) {
  const Json json = Json::parse(info.config_json, nullptr, false);
  const auto count = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 0)
      raise<FileError>(
          "resume: {}: its config has no count '{}' as a trainer writes it; expected a "
          "checkpoint of zero::Trainer; try TrainerHooks::position_of",
          path, key);
    return found->get<int64_t>();
  };
  if (!json.is_object() || json.value("schema", Json()) != schema)
    raise<FileError>(
        "resume: {}: its config is not of schema {}; expected a checkpoint of "
        "zero::Trainer; try TrainerHooks::position_of",
        path, schema);
  TrainerPosition position{.samples = count("samples"),
                           .skipped_samples = count("skipped_samples")};
  if (const auto score = json.find("score"); score != json.end() && score->is_number())
    position.score = score->get<double>();
  return position;
}

}  // namespace zg::zero
