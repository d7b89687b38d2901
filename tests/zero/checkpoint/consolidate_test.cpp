#include "zerograd/zero/checkpoint/consolidate.h"

#include <filesystem>
#include <fstream>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/communicator.h"

using namespace zg;
using namespace zg::testing;
using zero::Engine;
using State = zero::Engine::State;
namespace fs = std::filesystem;

namespace {

/// step_1 of the toy on so many ranks; returns the hash of its masters.
std::string save_on_ranks(const std::string& directory, int ranks, int stage, DType compute) {
  std::string hash;
  run_local(ranks, [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device,
                  {.stage = stage, .compute = compute, .loss_scaling = low_scale});
    train_step(engine, 0);
    zero::save_checkpoint(directory, engine, {.steps = 1, .config_json = R"({"lr":0.5})"});
    const std::string own = engine.parameter_hash();
    if (comm.rank() == 0) hash = own;
  });
  return hash;
}

}  // namespace

TEST_CASE(
    "consolidate writes the engine's masters bit for bit, for any ranks, stage and compute dtype") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 1}, {3, 3}, {8, 2}}) {
      const TemporaryFolder folder;
      const std::string file = folder / "weights.safetensors";
      const std::string hash = save_on_ranks(folder / "save", ranks, stage, compute);
      CHECK(zero::consolidate(folder / "save", file, DType::f32) == hash);
      const SafetensorsReader reader(file);
      CHECK(reader.metadata().at(zero::config_metadata) == R"({"lr":0.5})");
      CHECK(reader.metadata().at("format") == "pt");
      const Toy toy;
      CHECK(reader.entries().size() == toy.store.parameters().size());
      Engine engine(toy.store, Device::cpu(), {.seed = 5});
      zero::load_weights(file, engine);
      CHECK(engine.parameter_hash() == hash);

      // In bf16: each value rounded once.
      const std::string half = folder / "half.safetensors";
      const std::string half_hash = zero::consolidate(folder / "save/step_1", half, DType::bf16);
      zero::load_weights(half, engine);
      CHECK(engine.parameter_hash() == half_hash);
      for (const auto& [name, parameter] : toy.store.by_name()) {
        std::vector<float> expected = reader.read_floats(name);
        for (float& value : expected) value = rounded(value, DType::bf16);
        CHECK(SafetensorsReader(half).read_floats(name) == expected);
      }
    }
}

TEST_CASE("extra files of a checkpoint go into the consolidated file, and split writes them back") {
  const TemporaryFolder folder;
  const std::string file = folder / "weights.safetensors";
  const std::map<std::string, std::string> files = {{"tokenizer.json", "{\"a\": \"\\u0120\"}\n"},
                                                    {"notes.txt", "dög\n"}};
  const Toy toy;
  Engine engine(toy.store, Device::cpu(), {.seed = 5});
  zero::save_checkpoint(folder / "save", engine, {.config_json = "{}", .files = files});
  const std::string hash = zero::consolidate(folder / "save", file, DType::f32);
  const auto info = zero::info_of(SafetensorsReader(file));
  REQUIRE(info);
  CHECK(info->config_json == "{}");
  CHECK(info->files == files);
  CHECK(zero::split(file, folder / "split", *info, 2) == hash);
  CHECK(zero::damages_of(folder / "split/step_0").empty());
  CHECK(zero::read_checkpoint_info(folder / "split").files == files);

  // A WeightSource that reads weights on request gives the same file.
  const std::string again = folder / "again.safetensors";
  CHECK(zero::consolidate(zero::weights_of(folder / "save"), *info, again, DType::f32) == hash);
  CHECK(zero::info_of(SafetensorsReader(again))->files == files);
  CHECK(SafetensorsReader(again).header_checksum() == SafetensorsReader(file).header_checksum());

  SafetensorsWriter bare(folder / "bare", {}, {{"format", "pt"}});
  bare.finish();
  CHECK(!zero::info_of(SafetensorsReader(folder / "bare")));
  SafetensorsWriter forged(folder / "forged", {},
                           {{zero::config_metadata, "{}"}, {"zerograd_file:../x", "y"}});
  forged.finish();
  CHECK_ERROR(FileError, "metadata: '../x'; expected the name of a file of a checkpoint",
              zero::info_of(SafetensorsReader(folder / "forged")));
}

TEST_CASE(
    "split writes a checkpoint for any number of ranks that loads as step 0 with zero moments") {
  const TemporaryFolder folder;
  const std::string file = folder / "weights.safetensors";
  const std::string hash = save_on_ranks(folder / "save", 2, 1, DType::f32);
  zero::consolidate(folder / "save", file, DType::f32);
  for (int ranks : {1, 2, 3, 8}) {
    const std::string directory = folder / ("split_" + std::to_string(ranks));
    CHECK(zero::split(file, directory, {.config_json = R"({"lr":0.25})"}, ranks) == hash);
    CHECK(zero::damages_of(directory + "/step_0").empty());
    const Toy toy;
    Engine engine(toy.store, Device::cpu(), {.seed = 5});
    train_step(engine, 3);  // loading must replace these values
    const zero::CheckpointInfo info = zero::load_checkpoint(directory, engine);
    CHECK(info.steps == 0);
    CHECK(info.config_json == R"({"lr":0.25})");
    CHECK(engine.parameter_hash() == hash);
    for (const Parameter* parameter : toy.trainable())
      for (State state : {State::moment1, State::moment2})
        for (float value : engine.read(*parameter, state)) CHECK(value == 0.0f);
    CHECK(zero::consolidate(directory, folder / "again", DType::f32) == hash);
    const auto bytes = [](const std::string& path) {
      std::ifstream stream(path, std::ios::binary);
      return std::string{std::istreambuf_iterator<char>(stream), {}};
    };
    CHECK(bytes(folder / "again").substr(1000) == bytes(file).substr(1000));
  }
  const auto files = [&](int ranks) {
    return std::distance(
        fs::directory_iterator(folder / ("split_" + std::to_string(ranks) + "/step_0")), {});
  };
  CHECK(files(8) == 9);
  CHECK(files(1) == 2);
}

TEST_CASE("split writes a checkpoint without damage when a tensor has no elements") {
  const TemporaryFolder folder;
  const std::string file = folder / "weights.safetensors";
  SafetensorsWriter writer(file, {{"empty", DType::f32, {0, 4}}, {"w", DType::f32, {3}}});
  writer.write_floats({});
  writer.write_floats(std::vector<float>{1, 2, 3});
  writer.finish();
  for (const int ranks : {1, 2, 4}) {
    const std::string directory = folder / std::to_string(ranks);
    zero::split(file, directory, {.config_json = "{}"}, ranks);
    CHECK(zero::damages_of(directory + "/step_0").empty());
    CHECK(zero::weights_of(directory).read("empty").empty());
    CHECK(zero::weights_of(directory).read("w") == std::vector<float>{1, 2, 3});
  }
}

TEST_CASE("consolidate writes no file if a master is damaged, and ignores damaged moments") {
  const TemporaryFolder folder;
  save_on_ranks(folder / "save", 2, 1, DType::f32);
  const std::string shard = folder / "save/step_1/shard_00001.safetensors";
  const SafetensorsReader reader(shard);
  for (const auto& [name, entry] : reader.entries()) {
    std::fstream stream(shard, std::ios::in | std::ios::out | std::ios::binary);
    const auto flip = [&] {
      stream.seekg(entry.begin);
      const int byte = stream.get();
      stream.seekp(entry.begin);
      stream.put(static_cast<char>(byte ^ 4)).flush();
    };
    flip();
    const std::string error = message_of<FileError>(
        [&] { zero::consolidate(folder / "save", folder / "file", DType::f32); });
    const bool master = name.find(":master@") != std::string::npos;
    CHECK(contains(error, "'" + name + "' is damaged") == master);
    CHECK(fs::exists(folder / "file") == !master);
    CHECK(!fs::exists(folder / "file.unfinished"));
    fs::remove(folder / "file");
    flip();
  }
  SafetensorsWriter writer(folder / "ids", {{"ids", DType::i64, {0}}});
  writer.finish();
  CHECK_ERROR(FileError, "has no tensor of f64, f32, bf16 or f16",
              zero::split(folder / "ids", folder / "none", {}, 1));
  CHECK(!fs::exists(folder / "none"));
}
