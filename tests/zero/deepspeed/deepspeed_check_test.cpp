#include <random>
#include <regex>

#include "tests/support/temporary_folder.h"
#include "tests/zero/deepspeed/deepspeed_case.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

using zero::deepspeed::Effect;
using zero::deepspeed::Row;

const std::string batch_of_16 = "\"train_batch_size\": 16, ";

std::string check_error(const std::string& text, bool lenient = false) {
  return message_of<ConfigError>([&] { load(text, {.lenient = lenient}); });
}

// A config that uses every kind of value, one setting a line.
const std::vector<std::string> lines = {
    R"({)",
    R"(  "train_batch_size": 16,)",
    R"(  "steps_per_print": 2000,)",
    R"(  "optimizer": {)",
    R"(    "type": "Adam",)",
    R"(    "params": {)",
    R"(      "lr": 0.001,)",
    R"(      "betas": [0.8, 0.999],)",
    R"(      "weight_decay": 3e-7)",
    R"(    })",
    R"(  },)",
    R"(  "scheduler": {)",
    R"(    "type": "WarmupLR",)",
    R"(    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000})",
    R"(  },)",
    R"(  "gradient_clipping": 1.0,)",
    R"(  "fp16": {"enabled": "true", "loss_scale_window": 500, "initial_scale_power": 15},)",
    R"(  "zero_optimization": {)",
    R"(    "stage": 2,)",
    R"(    "allgather_partitions": true,)",
    R"(    "allgather_bucket_size": 2e8,)",
    R"(    "overlap_comm": true,)",
    R"(    "cpu_offload": false)",
    R"(  },)",
    R"(  "activation_checkpointing": {"number_checkpoints": null, "profile": false})",
    R"(})",
};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + "\n";
  return text;
}

/// A text that was damaged is refused with its place and what to do, or says what it said.
bool is_refused_or_harmless(const std::string& text, const nlohmann::json& before) {
  const std::regex where("c\\.json:[0-9]+:[0-9]+: (.|\n)*");
  std::string message;
  try {
    return fields(load(text).settings) == before;
  } catch (const ConfigError& error) {
    message = error.what();
  }
  const bool advises = contains(message, "; try ") || contains(message, "; did you mean ");
  return std::regex_match(message, where) && contains(message, "expected ") && advises;
}

}  // namespace

TEST_CASE(
    "deepspeed: a misplaced, duplicate, misspelled or invalid setting is refused with line and "
    "column") {
  const struct {
    const char *text, *begins, *has;
  } cases[] = {
      {"zero_optimization: {\n\"fp16\": {\"enabled\": true}}",
       "c.json:2:1: zero_optimization.fp16: ", "try it at the top level, where it belongs"},
      {"zero_optimization: {\n\"stage\": 2,\n \"all_reduce_bucket_size\": 5e8 #this\n}",
       "c.json:3:2: zero_optimization.all_reduce_bucket_size: unknown key",
       "did you mean allgather_bucket_size"},
      {"\"stage\": 3", "c.json:1:26: stage: ", "try it in zero_optimization"},
      {"\"optimzer\": {}", "c.json:1:26: optimzer: unknown key", "did you mean optimizer?"},
      {"zero_optimization: {Stage: 1}", "c.json:1:46: zero_optimization.Stage",
       "did you mean stage"},
      {"zero_optimization: {stage: 4}",
       "c.json:1:53: zero_optimization.stage: ", "a whole number from 0 to 3, got 4"},
      {"zero_optimization: {stage: 1.5}", "c.json:1:53: ", "got 1.5"},
      {"zero_optimization: {stage: 1, cpu_offload: true, offload_optimizer: {device: \"cpu\"}}",
       "c.json:1:56: zero_optimization.cpu_offload: ", "expected one of them, got both"},
      {"zero_optimization: {prefetch_bucket_size: 1, stage3_prefetch_bucket_size: 1}",
       "c.json:1:71: ", "another name of a key that stands in line 1"},
      {"zero_optimization: {allgather_bucket_size: 3, stage: 2}",
       "c.json:1:46: ", "an even number, got 3"},
      {"zero_optimization: {\n overlap_comm: maybe,\n}",
       "c.json:2:16: ", "a string without them goes to the end of its line"},
      {"zero_optimization: {offload_optimizer: {device: nvme\n}}", "c.json:1:66: ", "nvme_path"},
      {"zero_optimization: {aio: {}}", "c.json:1:46: zero_optimization.aio: ", "at the top level"},
      {"fp16: {enabled: true}, bf16: {enabled: true}",
       "c.json:1:56: bf16.enabled: ", "bfloat16 and fp16 modes cannot be simultaneously enabled"},
      {"bf16: {enabled: true}, bfloat16: {enabled: true}",
       "c.json:1:49: bf16: ", "another name of a key"},
      {"optimizer: {type: \"Adm\"}", "c.json:1:38: optimizer.type: ", "did you mean Adam?"},
      {"optimizer: {params: {}}", "c.json:1:26: optimizer: ", "a type is missing"},
      {"optimizer: {type: \"Adam\", params: {max_grad_norm: 1}}",
       "c.json:1:61: ", "gradient_clipping"},
      {"optimizer: {type: \"Adam\", params: {betas: [0.9]}}", "c.json:1:68: ", "two numbers"},
      {"scheduler: {type: \"warmuplr\"}", "c.json:1:38: ", "did you mean WarmupLR?"},
      {"scheduler: {type: \"WarmupDecayLR\", params: {}}", "c.json:1:38: ", "total_num_steps"},
      {"scheduler: {type: \"WarmupLR\", params: {total_num_steps: 5}}",
       "c.json:1:65: ", "try a type that has it: WarmupCosineLR, WarmupDecayLR"},
      {"gradient_clipping: \"off\"", "c.json:1:45: gradient_clipping: ", "got 'off'"},
      {"gradient_clipping: -1", "c.json:1:45: gradient_clipping: ", "0 or more"},
      {"steps_per_print: \"auto\"", "c.json:1:43: ", "got 'auto'"},
      {"zero_optimization: 3", "c.json:1:45: ", "an object {...}"},
      {"fp16: [1]", "c.json:1:32: ", "a list of 1"},
  };
  for (const auto& [text, begins, has] : cases) {
    const std::string error = check_error("{" + batch_of_16 + text + "\n}");
    INFO("text ", text, ", error ", error);
    CHECK(error.starts_with(begins));
    CHECK(contains(error, has));
    CHECK((contains(error, "; try ") || contains(error, "; did you mean ")));
    const bool is_unknown = contains(error, ": unknown key; ");
    CHECK(check_error("{" + batch_of_16 + text + "\n}", true) ==
          (is_unknown ? "nothing was thrown" : error));
  }
  CHECK(check_error("[1]").starts_with("c.json:1:1: expected an object"));
}

TEST_CASE("deepspeed: strings, numbers and booleans are converted as pydantic converts them") {
  const auto stage = [](const std::string& zero) {
    return load("{" + batch_of_16 + "zero_optimization: " + zero + "}").settings.engine;
  };
  CHECK(stage("true").stage == 1);
  CHECK(stage("false").stage == 0);
  CHECK(stage("{stage: \"2\"}").stage == 2);
  CHECK(stage("{reduce_bucket_size: 2e8}").reduce_bucket_size == 200'000'000);
  CHECK(stage("{reduce_bucket_size: 50000000.0}").reduce_bucket_size == 50'000'000);
  CHECK(stage("{prefetch_bucket_size: 7}").prefetch_bucket_size == 7);
  CHECK(stage("{stage: \"auto\", overlap_comm: \"auto\"}").stage == 0);
  CHECK(stage("{stage: 3}").overlap_comm);
  CHECK(!stage("{stage: 2}").overlap_comm);
  for (const char* word : {"true", "\"true\"", "\"True\"", "1", "\"1\""})
    CHECK(load("{" + batch_of_16 + "bf16: {enabled: " + word + "}}").settings.engine.compute ==
          DType::bf16);
  CHECK(!load("{" + batch_of_16 + "zero_optimization: {cpu_offload: false}}").config.unsupported);
  for (const char* nothing : {"false", "{}", "{enabled: false}", "{enabled: \"false\"}"})
    CHECK(!load("{" + batch_of_16 + "curriculum_learning: " + nothing + "}").config.unsupported);
  CHECK(load("{" + batch_of_16 + "curriculum_learning: {enabled: true}}").config.unsupported);
}

TEST_CASE("deepspeed: at most 45 keys are accepted without effect, each with a reason") {
  int listed = 0;
  for (const Row& row : zero::deepspeed::rows()) {
    CAPTURE(zero::deepspeed::path_of(row));
    const bool explains = row.effect == Effect::nothing || row.effect == Effect::only;
    CHECK((*row.why != '\0') == explains);
    listed += row.effect == Effect::nothing;
    CHECK(zero::deepspeed::find_row(row.section, row.key) == &row);
  }
  CHECK(listed <= 45);
}

TEST_CASE("deepspeed: a section that is switched off is not checked and has no effect") {
  const Loaded off =
      load("{" + batch_of_16 +
           "fp16: {enabled: false, foo: 1, loss_scale: \"x\", hysteresis: 7}, "
           "flops_profiler: {enabled: \"false\", foo: 1}, wandb: {enabled: 0, a: 1}}");
  CHECK(off.config.without_effect.empty());
  CHECK(!off.config.unsupported);
  CHECK(off.settings.engine.compute == DType::f32);
  CHECK(off.config.find("fp16", "hysteresis")->integer == 7);  // for --precision f16
  CHECK(contains(check_error("{" + batch_of_16 + "fp16: {enabled: true, foo: 1}}"), "fp16.foo"));
  CHECK(contains(check_error("{" + batch_of_16 + "zero_optimization: {enabled: false}}"),
                 "zero_optimization.enabled"));
}

TEST_CASE("deepspeed: keys that DeepSpeed ignores, and offload_param below stage 3, are listed") {
  const Loaded loaded =
      load("{" + batch_of_16 +
           "_comment: \"x\", monitor_config: {enabled: true}, "
           "zero_optimization: {stage: 2, offload_param: {device: \"cpu\"}, sub_group_size: 0}}");
  CHECK(loaded.config.without_effect.size() == 2);
  const std::vector<std::string>& lines = loaded.settings.without_effect;
  REQUIRE(lines.size() == 3);
  CHECK(contains(lines[1], "monitor_config: accepted without effect (DeepSpeed has no such key"));
  CHECK(contains(lines[2], "offload_param.device: accepted without effect (parameters are"));
  CHECK(loaded.settings.engine.offload.parameter == Space::device);
  CHECK(loaded.settings.engine.offload.sub_group_size == zero::OffloadOptions{}.sub_group_size);
}

TEST_CASE(
    "deepspeed: lenient mode turns an unknown key into a warning, and other errors stay errors") {
  const Loaded loaded = load("{" + batch_of_16 + "\"foo\": 1}", {.lenient = true});
  REQUIRE(loaded.config.warnings.size() == 1);
  CHECK(loaded.config.warnings[0].starts_with("c.json:1:26: foo: unknown key, ignored; "));
  CHECK_THROWS_AS(load("{" + batch_of_16 + "\"steps_per_print\": {}}", {.lenient = true}),
                  ConfigError);
}

TEST_CASE(
    "deepspeed: a damaged config text is refused with place and advice, or its settings are "
    "unchanged") {
  std::mt19937_64 random(20);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string whole = joined(lines);
  const nlohmann::json before = fields(load(whole).settings);
  int refused = 0;
  const auto expect = [&](const std::string& text) {
    CAPTURE(text);
    CHECK(is_refused_or_harmless(text, before));
    try {
      load(text);
    } catch (const ConfigError&) {
      ++refused;
    }
  };
  const std::string structure = "{}[]:,\"'";
  std::vector<size_t> places;  // positions of structural characters in `whole`
  for (size_t i = 0; i < whole.size(); ++i)
    if (structure.find(whole[i]) != std::string::npos) places.push_back(i);
  for (size_t i = 0; i < whole.size(); i += 5) expect(whole.substr(0, i));
  for (size_t at : places) expect(whole.substr(0, at) + whole.substr(at + 1));
  for (int i = 0; i < 300; ++i) {
    std::string text = whole;
    text.insert(below(text.size()), 1, structure[below(structure.size())]);
    expect(text);
  }
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    std::vector<std::string> twice = lines;
    twice.insert(twice.begin() + static_cast<long>(i), lines[i]);
    expect(joined(twice));
    std::vector<std::string> swapped = lines;
    const size_t other = 1 + below(lines.size() - 2);
    std::swap(swapped[i], swapped[other]);
    expect(joined(swapped));
  }
  // Letters of keys: lost, doubled, exchanged, and another.
  const std::regex key("\"([a-z_0-9]+)\":");
  for (std::sregex_iterator it(whole.begin(), whole.end(), key), end; it != end; ++it) {
    const size_t first = static_cast<size_t>(it->position(1)), length = it->str(1).size();
    for (int kind = 0; kind < 4; ++kind) {
      std::string text = whole;
      const size_t at = first + below(length > 1 ? length - 1 : 1);
      if (kind == 0) text.erase(at, 1);
      if (kind == 1) text.insert(at, 1, text[at]);
      if (kind == 2 && length > 1) std::swap(text[at], text[at + 1]);
      if (kind == 3) text[at] = static_cast<char>('A' + below(26));
      expect(text);
    }
  }
  // Values of another type.
  const std::regex value(": (\"[a-zA-Z]+\"|[0-9.e-]+|true|false|null)(?=[,}\n])");
  for (std::sregex_iterator it(whole.begin(), whole.end(), value), end; it != end; ++it)
    for (const char* other : {"{}", "[]", "\"x y\"", "-7.5", "1e300"}) {
      std::string text = whole;
      text.replace(static_cast<size_t>(it->position(1)), it->str(1).size(), other);
      expect(text);
    }
  CHECK(refused >= 600);
}

}  // namespace zg::testing
