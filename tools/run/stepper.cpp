#include "tools/run/stepper.h"

#include <algorithm>
#include <limits>

#include "tools/options/lora_flags.h"
#include "tools/run/setup.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::tools {
namespace {

MeshShape shape_of(const RunSpec& settings) {
  return {.data = static_cast<int>(settings.data_ranks),
          .pipeline = static_cast<int>(settings.axes.pipeline),
          .tensor = static_cast<int>(settings.axes.tensor)};
}

// Returns the counts of each axis. An axis that spans the whole mesh has none: it uses mesh.world,
// whose collectives the caller counts.
std::vector<AxisWire> axes_of(const Mesh& mesh) {
  const auto of = [&](const Communicator* ranks) {
    return ranks && ranks != &mesh.world ? ranks->wire() : WireCounts{};
  };
  WireCounts stages = of(mesh.pipeline);
  for (const std::unique_ptr<Communicator>* channel :
       {&mesh.previous.forward, &mesh.previous.backward, &mesh.next.forward, &mesh.next.backward,
        &mesh.ends})
    stages = added(stages, of(channel->get()));
  return {{"data", of(mesh.data)}, {"tensor", of(mesh.tensor)}, {"pipeline", stages}};
}

}  // namespace

namespace {

/// Returns x; its gradient is infinite: an injected fault that does not change the loss.
Var with_infinite_gradient(const Var& x) {
  struct None {};
  return record("infinity", {x}, x.value(), {}, None{}, [](const None&, const BackwardPass& pass) {
    const Var gradient = pass.gradient_of_output();
    pass.accumulate(0, mul(gradient, std::numeric_limits<double>::infinity()).value());
  });
}

}  // namespace

Stepper::Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep,
                 const std::optional<zero::CheckpointDirectory::Options>& checkpoints,
                 zero::TrainerHooks hooks)
    : run_(run),
      ranks_(ranks),
      device_(device),
      mesh_(ranks, shape_of(run.settings)),
      model_(make_run_model(run, store_, mesh_, device_)),
      memory_(device_, keep) {
  const RunSpec& settings = run.settings;
  if (run.algorithms && device.type() != Device::Type::meta)
    use_matmul_algorithms(run.algorithms, device);
  if (!run.options.kernels.empty() && run.steps > run.steps_done)
    launches_.emplace(device_, std::min(run.steps_done + 1, run.steps - 1));
  {
    const PhaseScope phase(device_, "initialise");
    engine_ = std::make_unique<zero::Engine>(store_, mesh_, device_, settings.optimisation.engine);
  }
  hooks.give_up = [this] { return reaches_stop(); };
  hooks.observe = [this](zero::TrainerMoment moment, const zero::MicroBatch& batch) {
    observe(moment, batch);
  };
  hooks.describe = [this](const zero::TrainerPosition& position) {
    // The engine has counted the step that is saved.
    inject_fault(FaultInjection::Phase::save, engine_->steps() - 1);
    RunSpec now = run_.settings;
    now.samples = position.samples;
    now.skipped_samples = position.skipped_samples;
    now.loss = position.score;  // the loss, or the value of set_score()
    // A plan does not read the weights of a base, and may have none.
    if (now.lora.rank > 0 && now.base.hash.empty()) now.base = {"planned", "planned"};
    return tools::checkpoint_info(now);
  };
  hooks.position_of = [](const zero::CheckpointInfo& info, const std::string& path) {
    const RunSpec saved = settings_from_json(info.config_json, path);
    return zero::TrainerPosition{
        .samples = saved.samples, .skipped_samples = saved.skipped_samples, .score = saved.loss};
  };
  zero::TrainerOptions options = {.micro_batch = settings.micro_batch,
                                  .accumulation = settings.accumulation,
                                  .rampup = settings.rampup,
                                  .steps = run.steps,
                                  .schedule = settings.optimisation.schedule,
                                  .pipeline = run.options.axes.schedule,
                                  .checkpoints = checkpoints,
                                  .save_interval = checkpoints ? run.options.save_interval : 0,
                                  .stop_interval = run.options.exit_interval,
                                  .max_bad_steps = run.options.max_bad_steps};
  if (const TracedSteps* traced = run.traced.get()) {
    options.trace = traced->trace;
    options.trace_first = traced->steps.first;
    options.trace_end = traced->steps.end;
  }
  trainer_ = std::make_unique<zero::Trainer>(*engine_, options, task(), std::move(hooks));
}

Stepper::~Stepper() = default;

zero::TrainerTask Stepper::task() {
  zero::TrainerTask task = {
      .batch =
          [this](const zero::MicroBatch& batch) {
            step_ = {trainer_->position().samples, trainer_->next_samples()};
            note_counted_step();
            return model_->batch(batch, step_);
          },
      .forward = [this](Tape& tape, const zero::MicroBatch& batch) { return forward(tape, batch); },
      .stage_output = [this](int64_t samples) { return model_->stage_output(samples); }};
  if (run_.settings.loss_mean == LossMean::token)
    task.targets = [this](int64_t first, int64_t samples) {
      return model_->targets({first, samples});
    };
  return task;
}

Var Stepper::forward(Tape& tape, const zero::MicroBatch& batch) {
  if (batch.last) inject_fault(FaultInjection::Phase::forward);
  const Var output = model_->forward(tape, batch);
  const FaultInjection& injection = run_.options.injection;
  // The fault `infinity` has no phase of its own: its injection has the default, `begin`.
  const bool applies = mesh_.is_last_stage() && batch.index == 0 &&
                       injection.fault == FaultInjection::Fault::infinity &&
                       injection.applies(ranks_.rank(), batch.step, FaultInjection::Phase::begin);
  return applies ? with_infinite_gradient(output) : output;
}

void Stepper::observe(zero::TrainerMoment moment, const zero::MicroBatch& batch) {
  using Moment = zero::TrainerMoment;
  if (moment == Moment::gradients_ready && run_.options.dump_gradients_step == engine_->steps())
    zero::dump_gradients(run_.options.dump_gradients, *engine_);
  zero::note_memory(memory_, moment, batch);
  if (launches_) launches_->note(moment, batch);
  if (moment == Moment::backward_begins && batch.last)
    inject_fault(FaultInjection::Phase::backward);
  if (moment == Moment::optimizer_begins) inject_fault(FaultInjection::Phase::step);
}

void Stepper::load_adapters() {
  const RunSpec& settings = run_.settings;
  if (!settings.base.path.empty())
    zero::load_weights(base_weights(settings), *engine_,
                       [](const Parameter& parameter) { return !parameter.saved; });
  if (run_.checkpoint) return trainer_->resume(*run_.checkpoint);
  if (const std::string& folder = run_.options.initial_adapter; !folder.empty())
    zero::load_weights(models::peft_weights(folder, settings.model, lora_of(settings.lora)),
                       *engine_, [](const Parameter& parameter) { return parameter.saved; });
}

void Stepper::load() {
  if (run_.settings.lora.rank > 0) return load_adapters();
  if (run_.checkpoint) return trainer_->resume(*run_.checkpoint);
  if (run_.initial)
    zero::load_weights(zero::weights_of(run_.initial), *engine_);
  else if (!run_.options.initial_weights.empty())
    zero::load_weights(run_.options.initial_weights, *engine_);
  if (!run_.options.from_hf.empty())
    zero::load_weights(hf_weights(run_.options.from_hf, run_.settings), *engine_);
}

void Stepper::inject_fault(FaultInjection::Phase phase, int64_t step) {
  inject(run_.options.injection, phase, step, ranks_, device_);
}

Tape Stepper::inference_tape() {
  if (reaches_stop()) throw zero::StopTraining{};
  return engine_->inference_tape();
}

Evaluation Stepper::evaluation() {
  return {.model = model_->decoder(),
          .make_tape = [this] { return inference_tape(); },
          .dataset = *run_.dataset,
          .device = device_,
          .is_sort_task = run_.settings.data.source == "sort"};
}

double Stepper::validation_loss(int64_t batches) {
  return model_->validation_loss([this] { return inference_tape(); }, batches);
}

std::vector<int32_t> Stepper::sample() {
  constexpr int64_t prompt_tokens = 16, sample_tokens = 200;
  const models::Dataset& dataset = *run_.dataset;
  const models::Split split = dataset.epoch_samples(models::Split::validation) > 0
                                  ? models::Split::validation
                                  : models::Split::train;
  std::vector<int32_t> ids(static_cast<size_t>(dataset.block_size())), targets(ids.size());
  dataset.sample(split, 0, ids.data(), targets.data());
  ids.resize(std::min(ids.size(), static_cast<size_t>(prompt_tokens)));
  return models::generate(model_->decoder(), [this] { return inference_tape(); }, {ids},
                          sample_tokens, {.top_k = 10, .seed = run_.settings.seed})
      .front();
}

void Stepper::note_counted_step() {
  if (!launches_ || launches()) return;
  counted_tokens_ = step_tokens();
  counted_micro_batches_ = trainer_->next_micro_batches();
}

RankMemory Stepper::rank_memory() const {
  RankMemory memory = {
      .rank = ranks_.rank(),
      .resting = engine_->resting_bytes(),
      .rows = memory_.rows(),
      .start = memory_.rows().empty() ? std::optional(memory_.now()) : std::nullopt,
      .wire = ranks_.wire(),
      .axes = {},
      .model_slice = {},
      .io = swapped(device_),
      .launches = launches(),
      .counted_tokens = counted_tokens_,
      .counted_micro_batches = counted_micro_batches_};
  if (run_.settings.axes.model_ranks() == 1) return memory;
  memory.axes = axes_of(mesh_);
  for (const AxisWire& axis : memory.axes) memory.wire = added(memory.wire, axis.wire);
  const LayerRange layers = model_->layers();
  memory.model_slice = {.stage = mesh_.stage,
                        .tensor_rank = mesh_.tensor_rank,
                        .first_layer = layers.first,
                        .end_layer = layers.end,
                        .parameters = store_.numel()};
  return memory;
}

}  // namespace zg::tools
