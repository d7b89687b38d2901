#include "zerograd/zero/checkpoint/checkpoint_file.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/safetensors.h"

using namespace zg;
using namespace zg::testing;
using zero::CheckpointInfo;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;
namespace fs = std::filesystem;

namespace {

CheckpointInfo toy_info(const Engine& engine) {
  return {.steps = engine.steps(),
          .skipped = engine.skipped(),
          .micro_batches = 2 * engine.steps(),
          .config_json = R"({"lr":0.001,"name":"toy"})"};
}

void change_byte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  at < 0 ? file.seekg(at, std::ios::end) : file.seekg(at);
  const int byte = file.get();
  at < 0 ? file.seekp(at, std::ios::end) : file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

/// Runs a step that is skipped (NaN gradient), so that the numbers of attempted and taken steps
/// differ.
void skip_a_step(Engine& engine, const Toy& toy) {
  Gradients gradients = random_gradients(toy.trainable(), 1);
  gradients.begin()->second[0] = NAN;
  run_micro_batch(engine, gradients);
  REQUIRE(engine.step(1e-2f).skipped);
}

}  // namespace

TEST_CASE("a run that is saved and resumed at any step is the uninterrupted run, to the bit") {
  constexpr int last = 6;
  // In f16 the scale halves at the skipped step and doubles after two good ones.
  const zero::LossScaleOptions scaling{
      .initial_scale_power = 6, .window = 2, .hysteresis = 1, .min_loss_scale = 1.0};
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const Toy toy;
    const Config config{.compute = compute, .loss_scaling = scaling};
    std::vector<double> losses;
    Engine whole(toy.store, Device::cpu(), config);
    for (int step = 0; step < last; ++step) {
      if (step == 2) skip_a_step(whole, toy);
      losses.push_back(train_step(whole, step));
    }
    for (int cut = 0; cut <= last; ++cut) {
      CAPTURE(cut);
      const TemporaryFolder folder;
      std::string path;
      {
        Engine engine(toy.store, Device::cpu(), config);
        for (int step = 0; step < cut; ++step) {
          if (step == 2) skip_a_step(engine, toy);
          CHECK(train_step(engine, step) == losses[static_cast<size_t>(step)]);
        }
        path = zero::save_checkpoint(folder.path(), engine, toy_info(engine));
        CHECK(path == folder / ("step_" + std::to_string(cut + (cut > 2))));
      }
      Engine resumed(toy.store, Device::cpu(),
                     {.compute = compute, .loss_scaling = scaling, .seed = 99});
      train_step(resumed, 77);  // loading must replace these values
      const CheckpointInfo info = zero::load_checkpoint(folder.path(), resumed);
      CHECK(info.steps == resumed.steps());
      CHECK(info.skipped == (cut > 2 ? 1 : 0));
      CHECK(info.micro_batches == 2 * info.steps);
      CHECK(nlohmann::json::parse(info.config_json)["lr"] == 0.001);
      for (int step = cut; step < last; ++step) {
        if (step == 2) skip_a_step(resumed, toy);
        CHECK(train_step(resumed, step) == losses[static_cast<size_t>(step)]);
      }
      CHECK(resumed.parameter_hash() == whole.parameter_hash());
      CHECK(resumed.steps() == whole.steps());
      CHECK(resumed.loss_scaler().state() == whole.loss_scaler().state());
      for (const Parameter* parameter : toy.trainable())
        for (State state : {State::moment1, State::moment2})
          CHECK(resumed.read(*parameter, state) == whole.read(*parameter, state));
    }
  }
}

TEST_CASE_FIXTURE(ToyEngine, "find_checkpoint returns the step_N folder with the highest number") {
  const std::string directory = folder / "a/b";
  CHECK_ERROR(FileError, "expected a step_N folder", zero::find_checkpoint(folder.path()));
  CHECK_ERROR(FileError, "absent", zero::find_checkpoint(folder / "absent"));
  for (int64_t step : {2, 10, 9}) {
    engine.set_steps(step, 0);
    zero::save_checkpoint(directory, engine, {.steps = step});
  }
  fs::create_directories(directory + "/step_99");  // without a manifest: not a checkpoint
  fs::create_directories(directory + "/step_12.old");
  CHECK(zero::find_checkpoint(directory) == directory + "/step_10");
  CHECK(zero::find_checkpoint(directory + "/step_9") == directory + "/step_9");
  CHECK(zero::read_checkpoint_info(directory).steps == 10);
  CHECK(zero::read_checkpoint_info(directory).config_json == "{}");
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "saving again replaces the checkpoint and removes the unfinished folder of a killed run") {
  fs::create_directories(folder / ".unfinished_step_7");
  std::ofstream(folder / ".unfinished_step_7/shard_00000.safetensors") << "half";
  const std::string path = zero::save_checkpoint(folder.path(), engine, toy_info(engine));
  const std::string before = engine.parameter_hash();
  engine.write(toy.gain, State::master, std::vector<float>(129, 5.0f));
  CHECK(zero::save_checkpoint(folder.path(), engine, toy_info(engine)) == path);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);  // step_N and latest
  CHECK("step_" + std::to_string(engine.steps()) == read_file(folder / "latest"));
  CHECK(std::distance(fs::directory_iterator(path), {}) == 2);  // a shard and the manifest
  Engine loaded(toy.store, Device::cpu(), {.seed = 8});
  zero::load_checkpoint(path, loaded);
  CHECK(loaded.parameter_hash() == engine.parameter_hash());
  CHECK(loaded.parameter_hash() != before);
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "save_checkpoint refuses a wrong step count, a bad config and pending micro-batches") {
  CHECK_THROWS_AS(zero::save_checkpoint(folder.path(), engine, {.steps = 3}), ConfigError);
  CHECK_THROWS_AS(zero::save_checkpoint(folder.path(), engine, {.config_json = "[1]"}),
                  ConfigError);
  CHECK_THROWS_AS(zero::save_checkpoint(folder.path(), engine, {.config_json = "{"}), ConfigError);
  run_micro_batch(engine, random_gradients(toy.trainable(), 1));
  CHECK_THROWS_WITH_AS(zero::save_checkpoint(folder.path(), engine, toy_info(engine)),
                       "save_checkpoint: 1 micro-batches wait for a step and would be lost; call "
                       "step first",
                       ConfigError);
  CHECK(fs::is_empty(folder.path()));
  const Engine planned(toy.store, Device::meta());
  zero::save_checkpoint(folder.path(), planned, {});  // records the files and writes nothing
  CHECK(fs::is_empty(folder.path()));
  CHECK(planned.parameter_hash() == "planned");
}

TEST_CASE_FIXTURE(
    ToyEngine, "damage to a checkpoint is reported with the name of the damaged tensor or file") {
  train_step(engine, 0);
  const std::string path = zero::save_checkpoint(folder.path(), engine, toy_info(engine));
  const std::string shard = path + "/shard_00000.safetensors", manifest = path + "/manifest.json";
  CHECK_NOTHROW(zero::verify_checkpoint(folder.path()));

  change_byte(shard, -1);  // the last byte of the last tensor
  const std::string damaged = message_of<FileError>([&] { zero::verify_checkpoint(path); });
  CHECK(contains(damaged, "tensor 'gain:moment2@0' is damaged"));
  CHECK(contains(damaged, shard));
  CHECK_ERROR(FileError, "gain:moment2@0", zero::load_checkpoint(path, engine));
  change_byte(shard, -1);
  CHECK_NOTHROW(zero::verify_checkpoint(path));

  change_byte(manifest, static_cast<int64_t>(fs::file_size(manifest)) / 2);
  CHECK_ERROR(FileError, manifest, zero::verify_checkpoint(path));
  change_byte(manifest, static_cast<int64_t>(fs::file_size(manifest)) / 2);
  CHECK_NOTHROW(zero::verify_checkpoint(path));

  const auto whole = fs::file_size(manifest);
  fs::copy_file(manifest, folder / "kept");
  fs::resize_file(manifest, whole / 2);
  const std::string cut = message_of<FileError>([&] { zero::verify_checkpoint(path); });
  CHECK(contains(cut, manifest + ":"));
  CHECK(contains(cut, ": is not JSON: "));
  CHECK(contains(cut, ": it was cut short or overwritten"));
  std::ofstream(manifest) << "{\"format\": \"zerograd checkpoint\"}";
  CHECK_ERROR(FileError, manifest + ": key 'version' not found; expected a manifest",
              zero::verify_checkpoint(path));
  fs::copy_file(folder / "kept", manifest, fs::copy_options::overwrite_existing);
  CHECK_NOTHROW(zero::verify_checkpoint(path));

  fs::resize_file(shard, fs::file_size(shard) - 1);
  CHECK_ERROR(FileError, shard, zero::verify_checkpoint(path));
  fs::remove(shard);
  CHECK_ERROR(FileError, shard, zero::load_checkpoint(path, engine));
}

TEST_CASE_FIXTURE(ToyEngine,
                  "a checkpoint stores extra files of the run and verifies their checksums") {
  const std::string any_bytes("\0\xff\n{", 4);
  CheckpointInfo info = toy_info(engine);
  info.files = {{"tokenizer.json", R"({"model": "BPE"})"}, {"Notes-2_b", any_bytes}, {"e", ""}};
  const std::string path = zero::save_checkpoint(folder.path(), engine, info);
  CHECK(read_file(path + "/Notes-2_b") == any_bytes);
  CHECK(zero::read_checkpoint_info(path).files == info.files);
  Engine loaded(toy.store, Device::cpu(), {.seed = 8});
  CHECK(zero::load_checkpoint(path, loaded).files == info.files);
  CHECK(zero::damages_of(path).empty());

  const std::string file = path + "/tokenizer.json";
  change_byte(file, 3);
  const std::string damage =
      "checkpoint: " + file + ": is damaged: its checksum differs from the manifest's";
  CHECK(zero::damages_of(path) == std::vector{damage});
  CHECK(message_of<FileError>([&] { zero::read_checkpoint_info(path); }) == damage);
  CHECK(message_of<FileError>([&] { zero::load_checkpoint(path, loaded); }) == damage);
  fs::remove(file);
  CHECK(contains(zero::damages_of(path).front(), file + ": No such file"));

  info.files = {{"tokenizer.json", "another"}};
  // Saving again replaces step_N with all its files.
  CHECK(zero::save_checkpoint(folder.path(), engine, info) == path);
  CHECK(zero::read_checkpoint_info(path).files == info.files);
  CHECK(!fs::exists(path + "/e"));
  info.files.clear();
  zero::save_checkpoint(folder.path(), engine, info);
  CHECK(!contains(read_file(path + "/manifest.json"), "files"));
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "an extra file with an unsafe or reserved name is refused when a checkpoint is saved or read") {
  for (const std::string& name : std::vector<std::string>{
           "", ".", "..", "../out", "a/b", "/etc/a", ".hidden", "a\nb", "\x1b[", "\xff",
           "shard_00000.safetensors", "shard_1", "manifest.json", std::string("a\0b", 3)}) {
    CAPTURE(name);
    CHECK_THROWS_AS(zero::save_checkpoint(folder.path(), engine, {.files = {{name, "x"}}}),
                    ConfigError);
  }
  CHECK(fs::is_empty(folder.path()));
  // A manifest with unsafe file names and a correct checksum, as an attacker could write it.
  const std::string path = zero::save_checkpoint(folder.path(), engine, {.files = {{"a", "x"}}});
  write_file(folder / "out", "x");
  const nlohmann::json whole = nlohmann::json::parse(read_file(path + "/manifest.json"));
  for (const nlohmann::json& files :
       {nlohmann::json{{"../out", whole["files"]["a"]}},
        nlohmann::json{{"shard_00000.safetensors", ""}}, nlohmann::json{{"a", 1}},
        nlohmann::json{"a"}, nlohmann::json("a")}) {
    CAPTURE(files.dump());
    nlohmann::json manifest = whole;
    manifest["files"] = files;
    manifest.erase("checksum");
    const std::string text = manifest.dump();
    manifest["checksum"] = checksum(std::as_bytes(std::span(text)));
    write_file(path + "/manifest.json", manifest.dump(1) + "\n");
    const std::string error = message_of<FileError>([&] { zero::read_checkpoint_info(path); });
    CHECK(contains(error, "checkpoint: " + path + "/manifest.json: "));
    CHECK(contains(error, "; expected "));
  }
}

TEST_CASE_FIXTURE(ToyEngine, "several pieces of a parameter are put together by offset") {
  train_step(engine, 0);
  const std::string path = zero::save_checkpoint(folder.path(), engine, toy_info(engine));

  // The same checkpoint with gain's master cut at element 64. Both pieces are in a second shard
  // file, in the wrong order.
  const std::vector<float> gain = engine.read(toy.gain, State::master);
  const std::vector<float> head(gain.begin(), gain.begin() + 64),
      tail(gain.begin() + 64, gain.end());
  SafetensorsWriter writer(
      path + "/shard_00001.safetensors",
      {{"gain:master@64", DType::f32, {65}}, {"gain:master@0", DType::f32, {64}}});
  writer.write_floats(tail);
  writer.write_floats(head);
  writer.finish();
  using nlohmann::json;
  const auto rewrite = [&](const std::vector<json>& parts) {
    json manifest = json::parse(std::ifstream(path + "/manifest.json"));
    json tensors = parts;
    for (const json& tensor : manifest["tensors"])
      if (!tensor["name"].get<std::string>().starts_with("gain:master")) tensors.push_back(tensor);
    manifest["tensors"] = tensors;
    manifest.erase("checksum");
    const std::string text = manifest.dump();
    manifest["checksum"] = checksum(std::as_bytes(std::span(text)));
    std::ofstream(path + "/manifest.json") << manifest.dump(1) << "\n";
  };
  const auto part = [&](const char* name, const std::vector<float>& values) {
    return json{{"name", name},
                {"dtype", "F32"},
                {"shape", {values.size()}},
                {"file", "shard_00001.safetensors"},
                {"xxh3_128", checksum(std::as_bytes(std::span(values)))}};
  };
  rewrite({part("gain:master@64", tail), part("gain:master@0", head)});
  CHECK_NOTHROW(zero::verify_checkpoint(path));
  Engine loaded(toy.store, Device::cpu(), {.seed = 5});
  zero::load_checkpoint(path, loaded);
  CHECK(loaded.parameter_hash() == engine.parameter_hash());

  const std::string before = loaded.parameter_hash();
  rewrite({part("gain:master@64", tail)});
  CHECK_ERROR(FileError, "'gain:master@64' begins at element 64; expected 0",
              zero::load_checkpoint(path, loaded));
  rewrite({part("gain:master@0", head)});
  CHECK_ERROR(FileError, "the master of 'gain' has 64 elements; expected 129",
              zero::load_checkpoint(path, loaded));
  rewrite({});
  CHECK_ERROR(FileError, "has no master of 'gain'", zero::load_checkpoint(path, loaded));
  CHECK(loaded.parameter_hash() == before);
}

TEST_CASE_FIXTURE(
    ToyEngine, "load_checkpoint refuses a checkpoint of another model and changes no parameter") {
  zero::save_checkpoint(folder.path(), engine, {});

  ParameterStore store;
  const Unit& unit = store.unit("unit");
  store.add(unit, "gain", {129}, Init::ones());
  Engine smaller(store, Device::cpu());
  const std::string before = smaller.parameter_hash();
  CHECK_ERROR(FileError, "has 'a.weight' [5, 31], which the model does not have",
              zero::load_checkpoint(folder.path(), smaller));
  CHECK(smaller.parameter_hash() == before);
  zero::load_weights(folder.path(), smaller);  // ignores all other parameters
  CHECK(smaller.read(*store.find("gain"), State::master) == engine.read(toy.gain, State::master));

  ParameterStore wrong;
  wrong.add(wrong.unit("unit"), "gain", {43, 3}, Init::ones());
  Engine reshaped(wrong, Device::cpu());
  CHECK_ERROR(FileError, "'gain' has shape [129]; expected [43, 3]",
              zero::load_weights(folder.path(), reshaped));
}

TEST_CASE(
    "load_weights reads a plain file by name, converts to f32, and its error shows a name the file "
    "has") {
  const Toy toy;
  const TemporaryFolder folder;
  const auto write = [&](const std::string& renamed, DType dtype) {
    std::vector<SafetensorsWriter::Entry> entries = {{"ids", DType::i64, {1}}};
    for (const auto& [name, parameter] : toy.store.by_name())
      if (name != renamed) entries.push_back({name, dtype, parameter->shape});
    if (!renamed.empty())
      entries.push_back({"h." + renamed, dtype, toy.store.find(renamed)->shape});
    SafetensorsWriter writer(folder / "w", entries);
    writer.write(std::vector<std::byte>(8));
    for (size_t i = 1; i < entries.size(); ++i) {
      const Tensor values = random_tensor(entries[i].shape, dtype, Device::cpu(), i);
      writer.write(std::span(values.raw(), static_cast<size_t>(values.bytes())));
    }
    writer.finish();
  };
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Engine engine(toy.store, Device::cpu());
    write("", dtype);
    zero::load_weights(folder / "w", engine);
    uint64_t seed = 1;
    for (const auto& [name, parameter] : toy.store.by_name()) {
      const auto expected =
          random_tensor(parameter->shape, dtype, Device::cpu(), seed++).to_doubles();
      const std::vector<float> masters = engine.read(*parameter, State::master);
      for (size_t i = 0; i < masters.size(); ++i)
        CHECK(masters[i] == static_cast<float>(expected[i]));
    }
    const std::string before = engine.parameter_hash();
    write("gain", dtype);
    const std::string error =
        message_of<FileError>([&] { zero::load_weights(folder / "w", engine); });
    CHECK(contains(error, folder / "w"));
    for (const char* part : {"has no 'gain' [129]", "'h.gain' [129]"}) CHECK(contains(error, part));
    CHECK(engine.parameter_hash() == before);
  }
}

TEST_CASE_FIXTURE(
    ToyEngine, "dump_gradients writes the mean gradient over the micro-batches by parameter name") {
  CHECK_THROWS_AS(zero::dump_gradients(folder / "g", engine), ConfigError);
  for (uint64_t m = 1; m <= 3; ++m) {
    Gradients gradients = random_gradients(toy.trainable(), m);
    gradients.erase(&toy.bias);
    run_micro_batch(engine, gradients);
  }
  zero::dump_gradients(folder / "g", engine);
  const SafetensorsReader reader(folder / "g");
  CHECK(reader.entries().size() == 4);
  CHECK(reader.entries().at("a.weight").shape == Shape{5, 31});
  CHECK(reader.read_floats("z.bias") == std::vector<float>(7, 0.0f));
  const std::vector<float> sums = engine.read(toy.gain, State::gradient);
  const std::vector<float> means = reader.read_floats("gain");
  for (size_t i = 0; i < sums.size(); ++i)
    CHECK(means[i] == static_cast<float>(static_cast<double>(sums[i]) / 3.0));
}

TEST_CASE(
    "a parameter longer than one read chunk loads whole from a checkpoint and from a weights "
    "file") {
  const TemporaryFolder folder;
  const Device device = Device::cpu(0, {.threads = 2});
  ParameterStore store;
  // Read in two ranges, of 2^23 elements and of 1003, which is not a multiple of a block or an
  // alignment.
  const Parameter& parameter =
      store.add(store.unit("unit"), "long.weight", {(int64_t{1} << 23) + 1003}, Init::normal(0.5f),
                {.decay = true});
  Engine saved(store, device, {.seed = 7});
  std::vector<float> moments(static_cast<size_t>(parameter.shape.numel()));
  for (size_t i = 0; i < moments.size(); ++i) moments[i] = static_cast<float>(i % 1000003) + 0.5f;
  saved.write(parameter, State::moment2, moments);
  const std::string step = zero::save_checkpoint(folder.path(), saved, toy_info(saved));
  const std::string hash = saved.parameter_hash(), file = folder / "weights.safetensors";
  {
    SafetensorsWriter writer(file, {{parameter.name, DType::f32, parameter.shape}});
    writer.write_floats(saved.read(parameter, State::master));
    writer.finish();
  }
  Engine engine(store, device, {.stage = 3, .seed = 8, .param_persistence_threshold = 0});
  zero::load_checkpoint(step, engine);
  CHECK(engine.parameter_hash() == hash);
  CHECK((engine.read(parameter, State::moment2) == moments));
  for (const std::string& source : {file, step}) {
    CAPTURE(source);
    engine.write(parameter, State::master, moments);
    zero::load_weights(source, engine);
    CHECK(engine.parameter_hash() == hash);
  }
}
