// Trains a GPT to sort for 60 steps. Then trains adapters (LoRA) of it on two ranks, in bf16 with
// ZeRO stage 3. Merges the adapters into the weights and checks that the loss stays the same.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/score.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/trainer.h"

namespace {

using namespace zg;

const models::LoraConfig adapters{.rank = 8, .alpha = 16.0f, .targets = {"all-linear"}};

struct Program {
  std::unique_ptr<models::Dataset> data = models::sort_dataset(/*seed=*/3407);
  ParameterStore store;
  models::GPT model;

  explicit Program(const models::LoraConfig& lora = {}) : model(store, config(), {}, lora) {}
  models::GPTConfig config() const {
    models::GPTConfig config = models::GPTConfig::preset("gpt-nano");
    config.vocabulary = data->vocabulary();
    config.block_size = data->block_size();
    return config;
  }

  void train(zero::Engine& engine, const std::string& folder, int64_t steps,
             const zero::CheckpointInfo::Base& base = {}) const {
    zero::Trainer trainer(
        engine,
        {.micro_batch = 64 / engine.ranks().size(),
         .steps = steps,
         .schedule = {.rate = 1e-3},
         .checkpoints = {{.path = folder, .keep = 1}},
         .base = base},
        {.batch =
             [this, &engine](const zero::MicroBatch& batch) {
               const models::Batch tokens = data->batch(models::Split::train, batch.first_sample,
                                                        batch.samples, engine.device());
               return std::vector<Tensor>{tokens.ids, tokens.targets};
             },
         .forward =
             [this](Tape& tape, const zero::MicroBatch& batch) {
               return model.loss(
                   tape, batch.tensors[0], batch.tensors[1],
                   {.seed = 3407, .step = batch.step, .first_sample = batch.first_sample});
             }});
    trainer.run();
  }
  double loss(zero::Engine& engine) const {
    return models::mean_loss(
        model, [&] { return engine.inference_tape(); }, *data, models::Split::validation,
        engine.device(), /*batch=*/50, /*batches=*/2);
  }
};

}  // namespace

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / "zerograd_example_lora";
  const std::string first = folder + "/base", second = folder + "/adapters";
  std::filesystem::remove_all(folder);
  double before = 0.0, after = 0.0, merged = 0.0;
  {
    const Program program;
    zero::Engine engine(program.store, Device::cpu(), {.clip_norm = 1.0f});
    program.train(engine, first, 60);
    before = program.loss(engine);
  }
  // A checkpoint of adapters does not contain the base. It has the path and hash of the base.
  const WeightSource base = zero::weights_of(first);
  const zero::CheckpointInfo::Base named{first, zero::weights_hash(base)};
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const Program program(adapters);
    zero::Engine engine(
        program.store, ranks, device,
        {.stage = 3, .compute = DType::bf16, .clip_norm = 1.0f, .param_persistence_threshold = 0});
    zero::load_weights(base, engine, [](const Parameter& parameter) { return !parameter.saved; });
    program.train(engine, second, 40, named);
    const double loss = program.loss(engine);
    if (ranks.rank() == 0) after = loss;
  });
  const WeightSource trained = zero::weights_of(second);
  zero::check_base(zero::read_checkpoint_info(second).base, base);
  {
    const Program program;
    zero::Engine engine(program.store, Device::cpu());
    zero::load_weights(models::merged(base, trained, adapters), engine);
    merged = program.loss(engine);
  }
  models::export_peft(trained, Program().config(), {.lora = adapters}, folder + "/peft");
  std::printf("loss %.4f of the base, %.4f with adapters, %.4f merged\n", before, after, merged);
  std::filesystem::remove_all(folder);
  return after < before && std::fabs(merged - after) < 0.02 ? 0 : 1;
}
