// A GPT that learns to sort: trained by one rank, saved, resumed by two ranks at ZeRO stage 3, and
// asked for answers.
#include <cstdio>
#include <filesystem>
#include <string>

#include "zerograd/models/data.h"
#include "zerograd/models/score.h"
#include "zerograd/runtime/comm.h"
#include "zerograd/zero/checkpoint_file.h"
#include "zerograd/zero/engine.h"

namespace {

using namespace zg;

constexpr int64_t batch_size = 64, saved_at = 150, steps = 300;

// Made by each rank for itself: the model and its data are the same on all of them.
struct Program {
  std::unique_ptr<models::Dataset> data = models::sort_dataset(/*seed=*/3407);
  ParameterStore store;
  models::GPT model{store, config()};

  models::GPTConfig config() const {
    models::GPTConfig config = models::GPTConfig::preset("gpt-nano");
    config.vocabulary = data->vocabulary();
    config.block_size = data->block_size();
    return config;
  }

  /// One step, of which each rank does its share of the samples. Returns the loss of this rank's.
  double step(zero::Engine& engine, const Communicator* ranks, const Device& device) const {
    const int64_t world = ranks ? ranks->size() : 1, rank = ranks ? ranks->rank() : 0;
    const int64_t samples = batch_size / world;
    const int64_t first = engine.steps() * batch_size + rank * samples;
    const models::Batch batch = data->batch(models::Split::train, first, samples, device);
    Tape tape = engine.tape();
    const Var loss = model.loss(tape, batch.ids, batch.targets,
                                {.seed = 3407, .step = engine.steps(), .first_sample = first});
    engine.backward(tape, loss);
    engine.step(/*rate=*/1e-3f);
    return loss.value().item();
  }
};

}  // namespace

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / "zerograd_example_gpt";
  {
    const Device device = Device::cpu();
    const Program program;
    zero::Engine engine(program.store, device, {.clip_norm = 1.0f});
    double loss = 0.0;
    while (engine.steps() < saved_at) loss = program.step(engine, nullptr, device);
    const std::string saved =
        zero::save_checkpoint(folder, engine, {.steps = engine.steps(), .config_json = "{}"});
    std::printf("one rank: loss %.4f after %lld steps, saved %s\n", loss,
                static_cast<long long>(engine.steps()), saved.c_str());
  }
  int64_t correct = 0, total = 1;
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const Program program;
    zero::Engine engine(program.store, ranks, device, {.stage = 3, .clip_norm = 1.0f});
    zero::load_checkpoint(folder, engine);
    double loss = 0.0;
    while (engine.steps() < steps) loss = program.step(engine, &ranks, device);
    const models::Score score = models::score(
        program.model, [&] { return engine.inference_tape(); }, *program.data,
        models::Split::validation, /*samples=*/200);
    if (ranks.rank() > 0) return;
    correct = score.correct;
    total = score.total;
    std::printf("two ranks: loss %.4f after %lld steps, %lld of %lld sorted\n", loss,
                static_cast<long long>(engine.steps()), static_cast<long long>(correct),
                static_cast<long long>(total));
  });
  std::filesystem::remove_all(folder);
  return 2 * correct > total ? 0 : 1;
}
