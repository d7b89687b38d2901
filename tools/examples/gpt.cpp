// Trains a GPT to sort. One rank trains the model and saves a checkpoint. Two ranks resume from the
// checkpoint with ZeRO stage 3. Then the example evaluates the model.
#include <cstdio>
#include <filesystem>
#include <string>

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/score.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/trainer.h"

namespace {

using namespace zg;

// Each rank creates its own Program. The model and the data are the same on all ranks.
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

  /// The functions that a trainer calls. They return the tensors and the loss of a micro-batch.
  zero::TrainerTask task(const Device& device) const {
    return {.batch =
                [this, device](const zero::MicroBatch& batch) {
                  const models::Batch tokens =
                      data->batch(models::Split::train, batch.first_sample, batch.samples, device);
                  return std::vector<Tensor>{tokens.ids, tokens.targets};
                },
            .forward =
                [this](Tape& tape, const zero::MicroBatch& batch) {
                  return model.loss(
                      tape, batch.tensors[0], batch.tensors[1],
                      {.seed = 3407, .step = batch.step, .first_sample = batch.first_sample});
                }};
  }
};

/// Trains until the run has done `steps` steps of 64 samples. Resumes from the checkpoint in
/// `folder`, if there is one. Saves a checkpoint at the end. Returns the loss of the last step.
double train(zero::Engine& engine, const Program& program, const std::string& folder,
             int64_t steps) {
  double loss = 0.0;
  zero::Trainer trainer(engine,
                        {.micro_batch = 64 / engine.ranks().size(),
                         .steps = steps,
                         .schedule = {.rate = 1e-3},
                         .checkpoints = {{.path = folder, .keep = 1}}},
                        program.task(engine.device()),
                        {.after_step = [&](const zero::TrainedStep& step) { loss = step.loss; }});
  trainer.resume(folder);
  trainer.run();
  return loss;
}

}  // namespace

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / "zerograd_example_gpt";
  std::filesystem::remove_all(folder);
  {
    const Program program;
    zero::Engine engine(program.store, Device::cpu(), {.clip_norm = 1.0f});
    const double loss = train(engine, program, folder, 150);
    std::printf("one rank: loss %.4f after 150 steps\n", loss);
  }
  int64_t correct = 0, total = 1;
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const Program program;
    zero::Engine engine(program.store, ranks, device, {.stage = 3, .clip_norm = 1.0f});
    const double loss = train(engine, program, folder, 300);
    const models::Score score = models::score(
        program.model, [&] { return engine.inference_tape(); }, *program.data,
        models::Split::validation, /*samples=*/200);
    if (ranks.rank() > 0) return;
    correct = score.correct;
    total = score.total;
    std::printf("two ranks: loss %.4f after 300 steps, %lld of %lld sorted\n", loss,
                static_cast<long long>(correct), static_cast<long long>(total));
  });
  std::filesystem::remove_all(folder);
  return 2 * correct > total ? 0 : 1;
}
