#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/consolidate.h"

// Checkpoints with changed settings and correct checksums, as an attacker could write them.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using Change = std::function<void(nlohmann::json&)>;

const std::string settings_run =
    "train --data sort --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 "
    "--n-head 1 --n-embd 16 --steps 1 ";
const std::string unreadable = ": the checkpoint's settings cannot be read: ";

/// A checkpoint with a manifest that can be changed.
class Forged {
 public:
  Forged() {
    checked(zerograd(settings_run + "--save " + path()));
    manifest_ = nlohmann::json::parse(read_file(file()));
    manifest_.erase("checksum");
  }
  std::string path() const { return folder_ / "save"; }
  std::string step() const { return path() + "/step_1"; }
  const nlohmann::json& manifest() const { return manifest_; }

  void write(const Change& change) const {
    nlohmann::json changed = manifest_;
    change(changed);
    const std::string text = changed.dump();
    changed["checksum"] = checksum(std::as_bytes(std::span(text)));
    write_file(file(), changed.dump(1) + "\n");
  }
  /// The command's output about it.
  Outcome told(const std::string& line, const Change& change) const {
    write(change);
    return called(line);
  }

 private:
  std::string file() const { return step() + "/manifest.json"; }

  const TemporaryFolder folder_;
  nlohmann::json manifest_;
};

bool has_controls(const std::string& text) {
  for (const char c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f) return true;
  return contains(text, "\xc2\x9b");  // a terminal's other begin of a command
}

void check_unreadable(const Outcome& outcome, const std::string& why) {
  INFO("out ", outcome.out, ", error ", outcome.error);
  CHECK(outcome.status == 5);
  CHECK(contains(outcome.error, "error: FileError: "));
  CHECK(contains(outcome.error, why));
  CHECK(contains(outcome.error, "expected "));
  CHECK(!has_controls(outcome.out + outcome.error));
}

}  // namespace

TEST_CASE("settings in a weights file that are nested too deeply are refused by every command") {
  const TemporaryFolder folder;
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const std::string file = folder / "deep.safetensors";
  SafetensorsWriter writer(
      file, {{"transformer.wte.weight", DType::f32, {1, 2}}},
      {{zero::config_metadata, R"({"model":{},"data":{},"run":{},"x":)" + deep + "}"}});
  writer.write_floats(std::vector<float>(2, 1.0f));
  writer.finish();
  for (const std::string& line :
       {"eval " + file + " --data sort", "generate " + file + " --prompt 0",
        "export " + file + " --hf " + (folder / "hf"),
        "consolidate --split " + file + " " + (folder / "split"),
        settings_run + "--init " + file}) {
    CAPTURE(line);
    check_unreadable(zerograd(line), "is nested deeper than 64 levels");
  }
  CHECK(!fs::exists(folder / "split"));
}

TEST_CASE(
    "settings: each field of a checkpoint is checked like its flag, and the error names the "
    "field") {
  const Forged forged;
  const std::string generate = "generate " + forged.path() + " --prompt 0 --length 1";
  REQUIRE(forged.told(generate, [](nlohmann::json&) {}).status == 0);
  int fields = 0;
  for (const auto& [group, values] : forged.manifest()["config"].items())
    for (const auto& [name, value] : values.items()) {
      const std::string field = group + "." + name;
      CAPTURE(field);
      const nlohmann::json other = value.is_string() && name != "loss"
                                       ? nlohmann::json(1e300)
                                       : nlohmann::json("\x1b[2J\xc2\x9b");
      check_unreadable(
          forged.told(generate, [&, g = group,
                                 n = name](nlohmann::json& all) { all["config"][g][n] = other; }),
          forged.step() + unreadable + field + ": ");
      ++fields;
    }
  CHECK(fields > 80);
}

TEST_CASE("settings: zero, negative, too large and inconsistent numbers are refused") {
  const Forged forged;
  const std::string resume =
      "train --score-samples 0 --threads 1 --steps 2 --resume " + forged.path();
  const nlohmann::json refused = nlohmann::json::parse(R"({
    "run": {"micro_batch": [0, -1, 9223372036854775807, 9223372036854775808, 2.5],
            "accumulation": [0, 9223372036854775807], "ranks": [0, 9223372036854775807],
            "tensor_parallel": [0], "rampup_start": [-1, 9223372036854775807],
            "steps": [9223372036854775807, 4503599627370496], "epochs": [-1, 1e300],
            "train_samples": [9223372036854775807], "save_top_k": [0, -2], "seed": [-1],
            "stage": [4, 4294967296], "preset": ["other"], "initial_scale_power": [128],
            "loss_scale_window": [0], "warmup_steps": [-1], "rate": [-1.0], "beta2": [1.0]},
    "position": {"samples": [-1, 9223372036854775807]},
    "model": {"layers": [0], "heads": [0, 3], "vocabulary": [9223372036854775807]},
    "data": {"split": [[1, 2]], "source": ["sort\u0000"]}})");
  for (const auto& [group, names] : refused.items())
    for (const auto& [name, values] : names.items())
      for (const nlohmann::json& value : values) {
        INFO((group + "." + name), ", ", value.dump());
        const auto change = [&, g = group, n = name](nlohmann::json& all) {
          all["config"][g][n] = value;
        };
        check_unreadable(forged.told(resume, change), forged.step() + unreadable);
      }
  const auto together = [&](const nlohmann::json& values, const std::string& why) {
    CAPTURE(values.dump());
    check_unreadable(
        forged.told(resume, [&](nlohmann::json& all) { all["config"]["run"].update(values); }),
        why);
  };
  together({{"micro_batch", 1 << 30}, {"accumulation", 1 << 30}}, "expected a product of at most");
  together({{"ranks", 1 << 30}, {"tensor_parallel", 2}}, "expected a product of at most");
  together({{"rampup_start", 1}, {"rampup_increment", 0}}, "rampup_increment, rampup_samples");
  together({{"rampup_start", 1}, {"rampup_increment", 3}, {"rampup_samples", 9}},
           "expected an INCREMENT");
  check_unreadable(
      forged.told(resume, [](nlohmann::json& all) { all["config"]["run"].erase("micro_batch"); }),
      "run.micro_batch: expected");
  check_unreadable(forged.told(resume, [](nlohmann::json& all) { all["config"].erase("model"); }),
                   "key 'model' not found");
  // As large as a model of flags, and not the one whose tensors are there.
  for (const auto& [name, value] :
       {std::pair{"layers", 65536}, std::pair{"vocabulary", 1 << 30}, std::pair{"width", 512}})
    check_unreadable(
        forged.told(resume, [&, n = name,
                             v = value](nlohmann::json& all) { all["config"]["model"][n] = v; }),
        forged.step() + ": its settings describe a model with ");
}

TEST_CASE("settings: control characters in a checkpoint's settings never reach the terminal") {
  const Forged forged;
  const std::string bad =
      "\x1b[2J\xc2\x9b"
      "1m.txt";
  const auto told = [&](const std::string& line, const char* group, const char* name) {
    const Outcome outcome =
        forged.told(line, [&](nlohmann::json& all) { all["config"][group][name] = bad; });
    INFO("line ", line, ", error ", outcome.error);
    CHECK(!has_controls(outcome.out + outcome.error));
    return outcome;
  };
  const std::string& S = forged.path();
  const std::string resumed = "--score-samples 0 --threads 1 --steps 2 --resume ",
                    eval = "eval --score-samples 0 --eval-batches 1 ";
  for (const std::string& line :
       {"train " + resumed, "plan " + resumed, eval, "train --data sort " + resumed})
    for (const char* name : {"source", "tokenizer", "tokenizer_checksum", "checksum"})
      told(line + S, "data", name);
  CHECK(contains(told(eval + S, "data", "source").error, "\\x1b[2J\\xc2\\x9b1m.txt"));
}

TEST_CASE("settings: the settings in a weights file are checked in the same way") {
  const Forged forged;
  const TemporaryFolder folder;
  const std::string file = folder / "weights";
  checked(zerograd("consolidate " + forged.path() + " " + file));
  const std::string bytes = read_file(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto told = [&](const std::string& line, const char* group, const char* name,
                        const nlohmann::json& value) {
    nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
    std::string& written = header["__metadata__"]["zerograd_config"].get_ref<std::string&>();
    nlohmann::json config = nlohmann::json::parse(written);
    config[group][name] = value;
    written = config.dump();
    const std::string text = header.dump();
    const uint64_t size = text.size();
    write_file(file, std::string(reinterpret_cast<const char*>(&size), 8) + text +
                         bytes.substr(8 + length));
    return called(line);
  };
  for (const std::string& line :
       {"generate " + file + " --prompt 0 --length 1", "eval " + file,
        "export " + file + " --hf " + (folder / "hf"), settings_run + "--init " + file,
        "consolidate --split " + file + " " + (folder / "split")}) {
    CAPTURE(line);
    check_unreadable(told(line, "run", "micro_batch", 0), file + unreadable + "run.micro_batch: ");
    check_unreadable(told(line, "run", "micro_batch", INT64_MAX), "run.micro_batch: ");
    check_unreadable(told(line, "data", "order", "\x1b[2J"), "data.order: ");
    check_unreadable(told(line, "model", "layers", 60000), "its settings describe a model with ");
  }
  CHECK(!fs::exists(folder / "split"));
  CHECK(!fs::exists(folder / "hf"));
}

TEST_CASE(
    "verify refuses manifests without tensors, with a tensor twice or with impossible counts") {
  const Forged forged;
  const std::string verify = "verify " + forged.step();
  const auto damage = [&](const Change& change, const std::string& why) {
    const Outcome outcome = forged.told(verify, change);
    CAPTURE(outcome.out);
    CHECK(outcome.status == 5);
    CHECK(contains(outcome.out, forged.step() + ": 1 damaged item\n  checkpoint: "));
    CHECK(contains(outcome.out, why));
    CHECK(!has_controls(outcome.out + outcome.error));
  };
  damage([](nlohmann::json& all) { all["tensors"] = nlohmann::json::array(); }, "has no tensors");
  damage(
      [](nlohmann::json& all) {
        const nlohmann::json one = all["tensors"][0];
        for (int i = 0; i < 80000; ++i) all["tensors"].push_back(one);
      },
      "is there twice");
  damage([](nlohmann::json& all) { all["steps"] = INT64_MAX; }, "expected a count up to 2^53");
  damage([](nlohmann::json& all) { all["skipped"] = 2; },
         "skipped: expected at most the 1 steps, got 2");
  damage([](nlohmann::json& all) { all["micro_batches"] = -1; }, "expected a count");
  damage([](nlohmann::json& all) { all["tensors"][0]["name"] = "\x1b[2J:master@0"; },
         "is of none of its");
  damage(
      [](nlohmann::json& all) {
        std::string name = all["tensors"][0]["name"];
        name.replace(name.find('@'), std::string::npos, "@9000000000000000000");
        all["tensors"][0]["name"] = name;
      },
      "is not a part of its parameter");
}

}  // namespace zg::testing
