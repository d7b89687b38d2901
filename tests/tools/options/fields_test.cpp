#include "tools/options/fields.h"

#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/error_message.h"
#include "tools/options/field_rows.h"

// The table of fields: each row is executed, and no field is left out of it.
namespace zg::testing {
namespace {

using Json = nlohmann::ordered_json;
using tools::all_fields;
using tools::Field;
using tools::Resume;
using tools::RunSpec;
using tools::stored_fields;
using tools::TrainOptions;

/// Settings with which every condition of a row holds.
RunSpec saved_run() {
  RunSpec saved{.model = {.vocabulary = 3, .block_size = 11}, .micro_batch = 4, .steps = 5};
  saved.data.source = "sort";
  saved.data.tokenizer = "/tokenizer";
  saved.data.validation_source = "/held_out.jsonl";
  saved.schedule.kind = zero::ScheduleKind::warmup_decay_lr;
  saved.schedule.total_num_steps = 9;
  saved.engine.stage = 3;
  return saved;
}

/// Gives the field another value that a checkpoint may have.
void change(const Field& field, RunSpec& spec) {
  const Json before = value_of(field, spec);
  const Json values = Json::parse(R"([
      "linear", "cosine", "x", "bf16", "host", "token", "sequential", "bloom", "alibi", "rms",
      "lion", "gelu_erf", "fast", "log", "llama3", 1, 7, 0.25, true, "hf_linear", "*b:rate=2", [7],
      [1, 2, 3], 0, -0.25, "match_rms_adamw", "original", 2, false, 0.5, 1.5, 100000])");
  for (const Json& value : values) {
    try {
      field.location.codec->read(value, field.location.in_spec(spec), field.bounds());
    } catch (const std::exception&) {  // a value of another type
    }
    if (value_of(field, spec) != before) return;
  }
  FAIL(field.stored.key, " has no other value than ", before.dump());
}

template <class T>
std::vector<std::byte> bytes_of(const T& object) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), static_cast<const void*>(&object), sizeof(T));
  return bytes;
}

/// Whether a resumed run with the flag ("": none) takes the changed row from its checkpoint.
bool is_taken(const Field& field, const std::string& flag) {
  TrainOptions options;
  RunSpec saved = saved_run();
  tools::adopt(saved, options);
  if (!flag.empty()) options.given.insert(flag);
  change(field, saved);
  const std::vector<std::byte> before = bytes_of(options);
  tools::adopt(saved, options);
  return bytes_of(options) != before;
}

}  // namespace

TEST_CASE("fields: each stored field is exactly one value of the settings' JSON") {
  const Json before = Json::parse(tools::to_json(saved_run())).flatten();
  std::set<std::string> names;
  for (const Field* field : stored_fields()) {
    const std::string& key = field->stored.key;
    CAPTURE(key);
    CHECK(names.insert(key).second);
    RunSpec settings = saved_run();
    change(*field, settings);
    const Json after = Json::parse(tools::to_json(settings)).flatten();
    std::string pointer = "/" + key;
    pointer[pointer.find('.')] = '/';
    std::set<std::string> changed;
    for (const auto& [name, value] : after.items())
      if (!before.contains(name) || before[name] != value) changed.insert(name);
    REQUIRE(!changed.empty());
    for (const std::string& name : changed) CHECK(name.starts_with(pointer));
  }
}

TEST_CASE("fields: a stored whole number has the bounds of its flag, unless its row has others") {
  const auto read = [](const tools::Stored& stored, const Json& json) {
    const Field field{ZG_AT(save_top_k), tools::integer_row({"--top"}, "", {2, nullptr}, 9),
                      stored};
    RunSpec spec;
    const std::string error = message_of<ConfigError>(
        [&] { field.location.codec->read(json, field.location.in_spec(spec), field.bounds()); });
    return error == "nothing was thrown" ? std::to_string(spec.save_top_k) : error;
  };
  CHECK(read(tools::kept("run.top"), 9) == "9");
  CHECK(read(tools::kept("run.top"), 10) == "expected a whole number from 2 to 9, got 10");
  CHECK(read(tools::kept("run.top", tools::count), 1) == "1");
}

TEST_CASE("fields: the largest float of a range is read back unchanged from the settings' JSON") {
  RunSpec saved = saved_run();
  saved.schedule.warmup_num_steps = 2;
  saved.engine.clip_norm = 3e38f;  // as a double it is above 3e38
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
  std::map<const char*, size_t> members;
  const auto add = [&members](const auto& member) {
    members[reinterpret_cast<const char*>(&member)] = sizeof(member);
  };
  for (const Field* field : stored_fields())
    members[static_cast<const char*>(field->location.in_spec(settings))] =
        field->location.codec->bytes;
  add(settings.tokenizer_json);  // these three are files of their own in the checkpoint
  add(settings.tokenizer_config);
  add(settings.generation_config);
  add(settings.base);                   // in the checkpoint's info, beside the JSON
  add(settings.data.chat_format_path);  // chat_format has the contents
  // A resumed run chooses again how it works: the bits are the same.
  zero::Config& engine = settings.engine;
  add(settings.axes.schedule);
  add(engine.offload.sub_group_size);
  add(engine.offload.optimizer_ratio);
  add(engine.offload.parameters_on_host);
  add(engine.offload.parameter_buffer);
  add(engine.seed);              // of RunSpec::seed
  add(engine.update.optimizer);  // a class of a program's own, as the next one
  add(settings.schedule.function);
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
      "token f fast");
  const std::vector<std::string> values(std::istream_iterator<std::string>(words), {});
  std::set<std::string> names, hidden;
  for (const Field* field : all_fields()) {
    TrainOptions options;
    if (field->flag.names.empty()) {
      CHECK(field->is_stored());
      continue;
    }
    const Flag flag = flag_of(*field, options);
    CAPTURE(flag.names.front());
    CHECK(flag.names == field->flag.names);
    for (const std::string& name : flag.names) CHECK(names.insert(name).second);
    for (const auto& [name, value] : flag.with_value) CHECK(names.insert(name).second);
    if (flag.help.empty()) hidden.insert(flag.names.front());
    const std::vector<std::byte> before = bytes_of(options);
    for (const std::string& value : values) {
      try {
        flag.set(flag.names.front(), value);
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
  for (const Field* field : stored_fields()) {
    CAPTURE(field->stored.key);
    const Resume rule = field->stored.rule;
    const bool kept = rule == Resume::kept || rule == Resume::must_equal;
    CHECK(is_taken(*field, "") == kept);
    if (!kept) continue;
    if (!field->flag.names.empty()) CHECK(!is_taken(*field, field->name()));
    for (const char* flag : field->stored.other_flags) CHECK(!is_taken(*field, flag));
    CHECK(is_taken(*field, "--metrics"));
  }
}

TEST_CASE("fields: a resumed run reports, refuses or ignores a change as the row says") {
  for (const Field* field : stored_fields()) {
    RunSpec now = saved_run();
    const tools::Stored& row = field->stored;
    const std::string& name = row.key;
    CAPTURE(name);
    change(*field, now);
    if (row.rule == Resume::must_equal) {
      CHECK_ERROR(ConfigError, ("--resume: " + name + ": expected "),
                  tools::check_resumed(saved_run(), now));
      continue;
    }
    const std::vector<std::string> changes = tools::check_resumed(saved_run(), now);
    REQUIRE(changes.size() == (row.rule == Resume::unchecked ? 0 : 1));
    if (!changes.empty()) CHECK(changes[0].starts_with(name + ": "));
  }
}

TEST_CASE("fields: each field of DeepSpeed's config is overridden by the flags of one row") {
  std::set<std::string> names;
  std::multiset<int> fields;
  for (const Field* row : all_fields())
    names.insert(row->flag.names.begin(), row->flag.names.end());
  for (const Field* row : all_fields()) {
    if (!row->config) continue;
    fields.insert(static_cast<int>(*row->config));
    CHECK(row->flag.names.size() > 0);
    for (const char* flag : row->config_flags) CHECK(names.count(flag) == 1);
  }
  std::multiset<int> all;
  for (int i = 0; i <= static_cast<int>(zero::DeepSpeedField::memory_breakdown); ++i) all.insert(i);
  CHECK(fields == all);
}

TEST_CASE(
    "each flag that an audit does not record is listed as one that changes no bits by itself") {
  // Those that set other, recorded fields; paths, whose contents or parameters are recorded; and
  // those that only say where and when the same is computed.
  const std::string listed =
      "--activation-checkpoint --base --batch-size --betas --chat-format --comm-timeout --compat "
      "--config --cpu-offload --device --device-memory --dump-collectives --from-hf --grad-accum "
      "--host-memory --init --init-adapter --inject --lenient --limit-train-batches "
      "--lr-scheduler-type --matmul-algorithms --max-bad-steps --max-position-embeddings "
      "--model-type --nvme-path --offload-optimizer-ratio --overlap-comm "
      "--param-persistence-threshold --prefetch-bucket-size --prefetch-units --ranks "
      "--reduce-bucket-size --schedule-pipeline "
      "--strategy --threads --train-batch-size --untied --use-hpu --warmup-ratio";
  std::set<std::string> found;
  bool is_output = false;
  for (const tools::FieldGroup& group : tools::field_groups()) {
    if (!group.title.empty())
      is_output = group.part == tools::AuditPart::none || group.title == "tuning";
    for (const Field& field : group.fields)
      if (!is_output && !field.is_stored()) found.insert(field.name());
  }
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : " ") + name;
  CHECK(names == listed);
}

TEST_CASE(
    "an audit has each stored setting once, as one that may change bits unless it is listed") {
  // These do not change bits, or tensor ranks without --reduction-groups do: layout.
  const std::set<std::string> layout = {"run.accumulation",
                                        "run.ranks",
                                        "run.stage",
                                        "run.tensor_parallel",
                                        "run.pipeline_parallel",
                                        "run.sequence_parallel",
                                        "run.offload_optimizer",
                                        "run.offload_gradient",
                                        "run.offload_parameter",
                                        "run.speculation",
                                        "run.offload_activation"};
  // The length of a run, what it keeps, and its position.
  const std::set<std::string> none = {
      "run.steps",        "run.train_samples",        "run.epochs",   "run.save_top_k",
      "position.samples", "position.skipped_samples", "position.loss"};
  for (const Field* field : stored_fields()) {
    CAPTURE(field->stored.key);
    RunSpec spec = saved_run();
    const zero::AuditOptions before = audit_options(spec);
    change(*field, spec);
    const zero::AuditOptions after = audit_options(spec);
    const bool is_layout = layout.contains(field->stored.key);
    const bool is_setting =
        !is_layout && !none.contains(field->stored.key) && !field->stored.is_path;
    CHECK((after.settings != before.settings) == is_setting);
    CHECK((after.layout != before.layout) == is_layout);
    CHECK(is_setting == Json::parse(after.settings).contains(field->stored.key));
  }
}

}  // namespace zg::testing
