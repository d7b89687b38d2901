#include "tools/options/fields.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <type_traits>

#include "tests/support/error_message.h"
#include "zerograd/runtime/error.h"

// The table of fields: each row is executed, and no field is left out of it.
namespace zg::testing {
namespace {

using Json = nlohmann::json;
using tools::Field;
using tools::FieldGroup;
using tools::Resume;
using tools::RunSpec;
using tools::Stored;
using tools::TrainOptions;

/// Settings with which every condition of a row holds.
RunSpec saved_run() {
  RunSpec saved{.model = {.vocabulary = 3, .block_size = 11}, .micro_batch = 4, .steps = 5};
  saved.data.source = "sort";
  saved.data.tokenizer = "/tokenizer";
  saved.data.validation_source = "/held_out.jsonl";
  saved.optimisation.schedule.kind = zero::ScheduleKind::warmup_decay_lr;
  saved.optimisation.schedule.total_num_steps = 9;
  saved.optimisation.engine.stage = 3;
  return saved;
}

std::vector<Field> all_fields(TrainOptions& options, RunSpec& saved) {
  std::vector<Field> rows;
  for (FieldGroup& group : tools::fields_of(options, saved))
    for (Field& field : group.fields) rows.push_back(std::move(field));
  return rows;
}

std::vector<Stored> stored_rows(TrainOptions& options, RunSpec& saved) {
  std::vector<Stored> rows;
  for (Field& field : all_fields(options, saved))
    if (field.stored.rule != Resume::not_stored) rows.push_back(std::move(field.stored));
  return rows;
}

/// Calls `visit` with a reference to the row's value.
template <class Visit>
void with_value(const Stored& row, const Visit& visit) {
  std::visit(
      [&](auto slot) {
        if constexpr (std::is_pointer_v<decltype(slot)>)
          visit(*slot);
        else
          FAIL(row.key.name, " has no value");
      },
      row.value);
}

/// Gives the row's value another one.
void change(const Stored& row) {
  with_value(row, [](auto& value) {
    using T = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>)
      value = static_cast<T>(static_cast<int>(value) ^ 1);
    else if constexpr (std::is_same_v<T, bool>)
      value = !value;
    else if constexpr (std::is_integral_v<T>)
      value += 1;
    else if constexpr (std::is_floating_point_v<T>)
      value = std::isnan(value) ? 1 : value + T(0.25);
    else if constexpr (std::is_same_v<T, std::string>)
      value += "x";
    else if constexpr (std::is_same_v<T, std::vector<int32_t>>)
      value.push_back(7);
    else if constexpr (std::is_same_v<T, std::optional<int32_t>>)
      value = 7;
    else if constexpr (std::is_same_v<T, std::vector<zero::ParameterGroup>>)
      value.push_back({"*bias", 0.5, {}});
    else
      value[0] += 1;
  });
}

template <class T>
std::vector<std::byte> bytes_of(const T& object) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), static_cast<const void*>(&object), sizeof(T));
  return bytes;
}

/// Whether a resumed run with the flag ("": none) takes the changed row from its checkpoint.
bool is_taken(size_t row, const std::string& flag) {
  TrainOptions options;
  RunSpec saved = saved_run();
  tools::adopt(saved, options);
  if (!flag.empty()) options.given.insert(flag);
  TrainOptions unused;
  change(stored_rows(unused, saved)[row]);
  const std::vector<std::byte> before = bytes_of(options);
  tools::adopt(saved, options);
  return bytes_of(options) != before;
}

}  // namespace

TEST_CASE("fields: each stored field is exactly one value of the settings' JSON") {
  TrainOptions unused;
  const Json before = Json::parse(tools::to_json(saved_run())).flatten();
  RunSpec counted = saved_run();
  const size_t rows = stored_rows(unused, counted).size();
  std::set<std::string> names;
  std::set<int> places;
  for (size_t i = 0; i < rows; ++i) {
    RunSpec settings = saved_run();
    const Stored row = stored_rows(unused, settings)[i];
    CAPTURE(row.key.name);
    CHECK(names.insert(row.key.name).second);
    CHECK(places.insert(row.key.place).second);
    change(row);
    const Json after = Json::parse(tools::to_json(settings)).flatten();
    std::string pointer = "/" + std::string(row.key.name);
    pointer[pointer.find('.')] = '/';
    std::set<std::string> changed;
    for (const auto& [key, value] : after.items())
      if (!before.contains(key) || before[key] != value) changed.insert(key);
    REQUIRE(changed.size() == 1);
    CHECK(changed.begin()->starts_with(pointer));
  }
  CHECK(*places.begin() == 1);
  CHECK(*places.rbegin() == static_cast<int>(rows));  // without gaps
}

TEST_CASE("fields: the largest float of a range is read back unchanged from the settings' JSON") {
  RunSpec saved = saved_run();
  saved.optimisation.schedule.warmup_num_steps = 2;
  saved.optimisation.engine.clip_norm = 3e38f;  // as a double it is above 3e38
  const std::string json = tools::to_json(saved);
  CHECK(tools::to_json(tools::settings_from_json(json, "again")) == json);
}

TEST_CASE("fields: a number too large for a float is refused and not read as infinity") {
  Json json = Json::parse(tools::to_json(saved_run()));
  json["model"]["norm_epsilon"] = 1e300;
  CHECK(message_of<FileError>([&] { tools::settings_from_json(json.dump(), "c"); }) ==
        "c: the checkpoint's settings cannot be read: model.norm_epsilon: expected a finite number "
        "of 0 or more, got 1e+300; expected those that zerograd train wrote");
}

TEST_CASE("fields: every member of RunSpec is stored, or listed in this test as not stored") {
  RunSpec settings = saved_run();
  TrainOptions unused;
  std::map<const char*, size_t> members;
  const auto add = [&members](const auto& member) {
    members[reinterpret_cast<const char*>(&member)] = sizeof(member);
  };
  for (const Stored& row : stored_rows(unused, settings)) with_value(row, add);
  add(settings.tokenizer_json);  // these three are files of their own in the checkpoint
  add(settings.tokenizer_config);
  add(settings.generation_config);
  add(settings.base);                   // in the checkpoint's info, beside the JSON
  add(settings.data.chat_format_path);  // chat_format has the contents
  // A resumed run chooses again how it works: the bits are the same.
  zero::Config& engine = settings.optimisation.engine;
  add(settings.axes.schedule);
  add(engine.offload.sub_group_size);
  add(engine.offload.optimizer_ratio);
  add(engine.offload.parameters_on_host);
  add(engine.offload.parameter_buffer);
  add(engine.seed);  // of RunSpec::seed
  add(engine.overlap_comm);
  add(engine.reduce_bucket_size);
  add(engine.allgather_bucket_size);
  add(engine.prefetch_bucket_size);
  add(engine.prefetch_units);
  add(engine.param_persistence_threshold);
  // Between members there is padding only.
  const char* const begin = reinterpret_cast<const char*>(&settings);
  const char* end = begin;
  members[begin + sizeof settings] = 0;
  for (const auto& [member, size] : members) {
    CAPTURE(end - begin);
    CHECK(member >= end);
    CHECK(member - end < 8);
    end = member + size;
  }
}

TEST_CASE("fields: every flag sets its option, and the list of flags that help omits is exact") {
  std::istringstream words(
      "true 2 0.5 0.5,0.25 host bf16 sequential gpipe 0.16 alibi x gpt2 cosine deepspeed_stage_1 "
      "rank=0,step=1,fault=inf 1:2 1,1,9 run off lion original cuda *.bias:rate=2 -0.5 tensorboard "
      "token f");
  const std::vector<std::string> values(std::istream_iterator<std::string>(words), {});
  std::set<std::string> names, hidden;
  TrainOptions scratch;
  RunSpec saved;
  const size_t rows = all_fields(scratch, saved).size();
  for (size_t i = 0; i < rows; ++i) {
    TrainOptions options;
    const Field row = all_fields(options, saved)[i];
    if (row.flag.names.empty()) {
      CHECK(row.stored.rule != Resume::not_stored);
      continue;
    }
    CAPTURE(row.flag.names.front());
    for (const std::string& name : row.flag.names) CHECK(names.insert(name).second);
    for (const auto& [name, value] : row.flag.with_value) CHECK(names.insert(name).second);
    if (row.flag.help.empty()) hidden.insert(row.flag.names.front());
    const std::vector<std::byte> before = bytes_of(options);
    for (const std::string& value : values) {
      try {
        row.flag.set(row.flag.names.front(), value);
      } catch (const ConfigError&) {
      }
      if (bytes_of(options) != before) break;
    }
    CHECK(bytes_of(options) != before);
  }
  CHECK(hidden == std::set<std::string>{"--adam-beta1", "--adam-beta2", "--limit-train-batches",
                                        "--max-position-embeddings", "--report-name", "--report-to",
                                        "--restarted", "--strategy", "--universal-checkpoint",
                                        "--use-hpu", "--with-tracking"});
}

TEST_CASE(
    "fields: a resumed run takes each kept field from its checkpoint unless a flag for it is "
    "given") {
  TrainOptions unused;
  RunSpec saved = saved_run();
  std::map<std::string, std::string> own_flags;
  for (const Field& field : all_fields(unused, saved))
    if (!field.flag.names.empty()) own_flags[field.stored.key.name] = field.flag.names.front();
  const std::vector<Stored> rows = stored_rows(unused, saved);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Stored& row = rows[i];
    CAPTURE(row.key.name);
    const bool kept = row.rule == Resume::kept || row.rule == Resume::must_equal;
    CHECK(is_taken(i, "") == kept);
    if (!kept) continue;
    if (own_flags.count(row.key.name)) CHECK(!is_taken(i, own_flags[row.key.name]));
    for (const char* flag : row.other_flags) CHECK(!is_taken(i, flag));
    CHECK(is_taken(i, "--metrics"));
  }
}

TEST_CASE("fields: a resumed run reports, refuses or ignores a change as the row says") {
  TrainOptions unused;
  RunSpec counted = saved_run();
  const size_t rows = stored_rows(unused, counted).size();
  for (size_t i = 0; i < rows; ++i) {
    RunSpec now = saved_run();
    const Stored row = stored_rows(unused, now)[i];
    const std::string name = row.key.name;
    CAPTURE(name);
    change(row);
    if (row.rule == Resume::must_equal) {
      CHECK_THROWS_WITH_AS(tools::check_resumed(saved_run(), now),
                           doctest::Contains(("--resume: " + name + ": expected ").c_str()),
                           ConfigError);
      continue;
    }
    const std::vector<std::string> changes = tools::check_resumed(saved_run(), now);
    REQUIRE(changes.size() == (row.rule == Resume::unchecked ? 0 : 1));
    if (!changes.empty()) CHECK(changes[0].starts_with(name + ": "));
  }
}

TEST_CASE("fields: each field of DeepSpeed's config is overridden by the flags of one row") {
  TrainOptions options;
  RunSpec saved;
  std::set<std::string> names;
  std::multiset<int> fields;
  for (const Field& row : all_fields(options, saved))
    names.insert(row.flag.names.begin(), row.flag.names.end());
  for (const Field& row : all_fields(options, saved)) {
    if (!row.config) continue;
    fields.insert(static_cast<int>(*row.config));
    CHECK(row.flag.names.size() > 0);
    for (const char* flag : row.config_flags) CHECK(names.count(flag) == 1);
  }
  std::multiset<int> all;
  for (int i = 0; i <= static_cast<int>(zero::DeepSpeedField::memory_breakdown); ++i) all.insert(i);
  CHECK(fields == all);
}

}  // namespace zg::testing
