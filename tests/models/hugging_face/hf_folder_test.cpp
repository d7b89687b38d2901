// Hugging Face folders through the library: weights that are written come back, into an engine too.

#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/score.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

models::GPTConfig two_small_layers() {
  models::GPTConfig config;
  config.layers = 2;
  config.heads = 2;
  config.width = 8;
  config.vocabulary = 11;
  config.block_size = 6;
  config.tied = true;
  return config;
}

/// A model's parameters as an engine holds them.
struct Trained {
  ParameterStore store;
  models::GPT model;
  zero::Engine engine;

  explicit Trained(const models::GPTConfig& config, uint64_t seed)
      : model(store, config), engine(store, Device::cpu(), {.seed = seed}) {}

  WeightSource weights() const {
    WeightSource source{.path = "engine"};
    for (const auto& parameter : store.parameters())
      source.shapes.emplace(parameter->name, parameter->shape);
    source.read = [this](const std::string& name) {
      return engine.read(*store.find(name), zero::Engine::State::master);
    };
    return source;
  }
};

}  // namespace

TEST_CASE("weights exported to a Hugging Face folder are imported unchanged") {
  const TemporaryFolder folder;
  const Trained first(two_small_layers(), 1);
  const std::string hash =
      models::export_hugging_face(first.weights(), {.config = two_small_layers()}, folder / "hf");
  CHECK(hash == first.engine.parameter_hash());

  // GPT-2's Conv1D keeps [in, out], the transpose of ours.
  const SafetensorsReader file(folder / "hf/model.safetensors");
  const std::string matrix = "transformer.h.0.attn.c_attn.weight";
  CHECK((file.entries().at(matrix).shape == Shape{8, 24}));
  const auto ours = first.weights().read(matrix), theirs = file.read_floats(matrix);
  for (size_t out : {0, 7, 23})
    for (size_t in : {0, 5}) CHECK(theirs[in * 24 + out] == ours[out * 8 + in]);

  const models::HuggingFaceFolder there(folder / "hf");
  CHECK(there.model().config.layers == 2);
  CHECK(there.model().config.tied);
  Trained second(there.model().config, 2);
  CHECK(second.engine.parameter_hash() != hash);
  std::string note;
  zero::load_weights(there.weights(second.model.config(), &note), second.engine);
  CHECK(second.engine.parameter_hash() == hash);
  CHECK(note == "");
}

TEST_CASE("a Hugging Face folder in bf16 or f16 has rounded weights and says so") {
  const TemporaryFolder folder;
  const Trained first(two_small_layers(), 1);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(std::string(name_of(dtype)));
    const std::string path = folder / name_of(dtype);
    const std::string hash = models::export_hugging_face(
        first.weights(), {.config = two_small_layers()}, path, {}, dtype);
    const SafetensorsReader file(path + "/model.safetensors");
    for (const auto& [name, entry] : file.entries()) CHECK(entry.dtype == dtype);
    const std::string config = read_file(path + "/config.json");
    for (const char* key : {"dtype", "torch_dtype"})
      CHECK(contains(config, '"' + std::string(key) + "\": \"" +
                                 (dtype == DType::bf16 ? "bfloat16" : "float16") + '"'));
    Trained second(two_small_layers(), 2);
    const WeightSource weights = models::HuggingFaceFolder(path).weights(two_small_layers());
    for (const auto& [name, shape] : weights.shapes) {
      std::vector<float> expected = first.weights().read(name);
      for (float& value : expected)
        value =
            dtype == DType::bf16 ? static_cast<float>(bf16(value)) : static_cast<float>(f16(value));
      CHECK(weights.read(name) == expected);
    }
    zero::load_weights(weights, second.engine);
    CHECK(second.engine.parameter_hash() == hash);
    CHECK(hash != first.engine.parameter_hash());
  }
  WeightSource large = first.weights();
  large.read = [&](const std::string& name) {
    return std::vector<float>(static_cast<size_t>(large.shapes.at(name).numel()), 1e5f);
  };
  CHECK_ERROR(FileError,
              "tensor 'transformer.h.0.attn.c_attn.bias' has the value 100000, which f16 cannot "
              "hold; try bf16 or f32",
              models::export_hugging_face(large, {.config = two_small_layers()}, folder / "large",
                                          {}, DType::f16));
}

TEST_CASE("a model with a smaller block size reads the first positions of a Hugging Face folder") {
  const TemporaryFolder folder;
  const Trained first(two_small_layers(), 1);
  models::export_hugging_face(first.weights(), {.config = two_small_layers()}, folder.path());
  models::GPTConfig shorter = two_small_layers();
  shorter.block_size = 4;
  const WeightSource weights = models::HuggingFaceFolder(folder.path()).weights(shorter);
  const auto whole = first.weights().read("transformer.wpe.weight");
  const auto cut = weights.read("transformer.wpe.weight");
  REQUIRE(cut.size() == 32);
  CHECK(std::equal(cut.begin(), cut.end(), whole.begin()));
}

TEST_CASE(
    "a missing Hugging Face folder, one without config.json and an export of other shapes are "
    "refused") {
  const TemporaryFolder folder;
  const auto opened = [](const std::string& path) {
    return message_of<FileError>([&] { models::HuggingFaceFolder{path}; });
  };
  CHECK(contains(opened(folder / "nowhere"), "nowhere: there is no such folder"));
  CHECK(contains(opened(folder.path()), " has no config.json"));
  write_file(folder / "file", "text");
  CHECK(contains(opened(folder / "file"), " is not a folder"));

  const Trained first(two_small_layers(), 1);
  models::GPTConfig wider = two_small_layers();
  wider.width = 16;
  CHECK_ERROR(FileError, "export: engine: expected '",
              models::export_hugging_face(first.weights(), {.config = wider}, folder / "hf"));
  CHECK_FALSE(std::filesystem::exists(folder / "hf"));
}

TEST_CASE("mean_loss is the mean over the samples of a split, whatever the batch size") {
  const auto data = models::sort_dataset(3407);
  models::GPTConfig config = two_small_layers();
  config.vocabulary = data->vocabulary();
  config.block_size = data->block_size();
  Trained trained(config, 1);
  const auto loss = [&](int64_t batch, int64_t batches) {
    return models::mean_loss(
        trained.model, [&] { return trained.engine.inference_tape(); }, *data,
        models::Split::validation, trained.engine.device(), batch, batches);
  };
  CHECK(loss(4, 6) == doctest::Approx(loss(24, 1)).epsilon(1e-6));
  CHECK(loss(4, 1) != loss(4, 6));
  const int64_t whole = data->epoch_samples(models::Split::validation);
  const int64_t uneven = whole - 1;  // the last batch has one sample
  CHECK(loss(uneven, 0) == doctest::Approx(loss(whole, 1)).epsilon(1e-6));
  CHECK_ERROR(ConfigError, "a batch of 1 sample or more, got", loss(0, 1));
}
