#include "tools/run/rank.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <limits>

#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/text/format.h"
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

/// Returns x; its gradient is infinite: an injected fault that does not change the loss.
Var with_infinite_gradient(const Var& x) {
  struct None {};
  return record("infinity", {x}, x.value(), {}, None{}, [](const None&, const BackwardPass& pass) {
    const Var gradient = pass.gradient_of_output();
    pass.accumulate(0, mul(gradient, std::numeric_limits<double>::infinity()).value());
  });
}

// Hangs. After the timeout the other ranks report this rank and the process is ended.
[[noreturn]] void stall() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Called when a rank enters a phase. If the injection requests a fault there, prints a line on
// stderr and injects the fault. (Fault::infinity is implemented in the forward pass instead.) Does
// nothing on a device without memory.
void inject(const FaultInjection& injection, FaultInjection::Phase phase, int64_t step,
            Communicator& ranks, const Device& device) {
  if (!injection.applies(ranks.rank(), step, phase) ||
      injection.fault == FaultInjection::Fault::infinity || device.type() == Device::Type::meta)
    return;
  const bool alone = ranks.size() == 1;
  const std::string where = fmt::format("in step {}", step) +
                            (phase == FaultInjection::Phase::begin
                                 ? ""
                                 : ", phase " + phase_words[static_cast<size_t>(phase) - 1]);
  print_line(stderr, "inject: {} on rank {}/{} pid {} in step {}",
             fault_words[static_cast<size_t>(injection.fault) - 1], ranks.rank(), ranks.size(),
             static_cast<int>(getpid()), step);
  using Fault = FaultInjection::Fault;
  switch (injection.fault) {
    case Fault::none:
    case Fault::infinity:
    case Fault::flip:
      return;
    case Fault::error:
      raise<ShapeError>("inject: a fault {}", where);
    case Fault::leave:  // with a single rank no peer would notice
      if (alone) raise<CommError>("inject: a fault ended the rank {}", where);
      throw LeftEarly{};
    case Fault::stall:
      if (alone) raise<CommError>("inject: a fault stalled the rank {}", where);
      stall();
    case Fault::kill:
      std::raise(SIGKILL);
      return;
    case Fault::stop:
      std::raise(SIGSTOP);
      return;
    case Fault::memory:
      Tensor::empty({int64_t{1} << 50}, DType::u8, device);
      return;
    case Fault::mismatch:
      ranks.wait(ranks.barrier("inject: a fault"));
      return;
  }
}

}  // namespace

Rank::Rank(const Run& run, Communicator& ranks, const Device& device)
    : run_(run),
      options_(run.options),
      dataset_(*run.dataset),
      ranks_(ranks),
      device_(device),
      is_planned_(device.type() == Device::Type::meta),
      mesh_(ranks, shape_of(options_)),
      model_(make_run_model(run, store_, mesh_, device_)),
      rows_(device_, is_planned_ || options_.dump_memory || !options_.memory_json.empty()
                         ? MemoryRows::Keep::all_steps
                         : MemoryRows::Keep::one_step) {
  if (run.algorithms && !is_planned_) use_matmul_algorithms(run.algorithms, device);
  if (!options_.kernels.empty() && run.options.steps > run.steps_done)
    launches_.emplace(device_, std::min(run.steps_done + 1, run.options.steps - 1));
  if (!options_.report.empty() && is_first()) blocks_.emplace(device_);
  {
    const PhaseScope phase(device_, "initialise");
    engine_ = std::make_unique<zero::Engine>(store_, mesh_, device_, options_.engine);
  }
  if (options_.injection.fault == FaultInjection::Fault::flip && !is_planned_)
    flip_.emplace(options_.injection, *engine_);
  trainer_ = std::make_unique<zero::Trainer>(*engine_, trainer_options(), task(), hooks());
}

Rank::~Rank() = default;

zero::TrainerOptions Rank::trainer_options() const {
  zero::TrainerOptions options = {.micro_batch = options_.micro_batch,
                                  .accumulation = options_.accumulation,
                                  .rampup = options_.rampup,
                                  .steps = options_.steps,
                                  .schedule = options_.schedule,
                                  .pipeline = options_.axes.schedule,
                                  .stop_interval = options_.exit_interval,
                                  .max_bad_steps = options_.max_bad_steps};
  if (!options_.audit.path.empty()) {
    options.audit = audit_options(options_, options_.audit);
    options.audit->command = options_.command;
    if (options_.process)  // a replay has no mpirun
      options.audit->command.insert(options.audit->command.end(),
                                    {"--ranks", std::to_string(options_.ranks)});
  }
  if (!options_.report.empty() && !is_planned_) options.report = report_options();
  // A plan includes a save also without a path of --save, and keeps every checkpoint.
  const bool plans_save =
      is_planned_ && (options_.steps > run_.steps_done || options_.has("--save"));
  if (!options_.save.empty() || plans_save) {
    options.checkpoints = {.path = options_.save,
                           .keep = is_planned_ ? -1 : options_.save_top_k,
                           .in_background = options_.async_save};
    options.save_interval = options_.save_interval;
  }
  if (const TracedSteps* traced = run_.traced.get()) {
    options.trace = traced->trace;
    options.trace_first = traced->steps.first;
    options.trace_end = traced->steps.end;
  }
  return options;
}

zero::TrainerTask Rank::task() {
  zero::TrainerTask task = {
      .batch =
          [this](const zero::MicroBatch& batch) {
            step_ = {trainer_->position().samples, trainer_->next_samples()};
            note_counted_step();
            return model_->batch(batch, step_);
          },
      .forward = [this](Tape& tape, const zero::MicroBatch& batch) { return forward(tape, batch); },
      .stage_output = [this](int64_t samples) { return model_->stage_output(samples); }};
  if (options_.loss_mean == LossMean::token)
    task.targets = [this](int64_t first, int64_t samples) {
      return model_->targets({first, samples});
    };
  return task;
}

zero::TrainerHooks Rank::hooks() {
  return {.before_step = [this](int64_t) { begin_step(); },
          .after_step = [this](const zero::TrainedStep& step) { note_step(step); },
          .stop = [this] { return reason_to_end(); },
          .give_up = [this] { return reaches_stop(); },
          .ended = [this](const zero::TrainingEnd& end) { note_end(end); },
          .observe = [this](zero::TrainerMoment moment,
                            const zero::MicroBatch& batch) { observe(moment, batch); },
          .saved =
              [this](const std::string& step_n, const zero::CheckpointSave::Result& result) {
                if (flip_) flip_->end_save();
                report_save(step_n, result);
              },
          .warn =
              [](const std::string& message) {
                const bool is_named =
                    message.starts_with("audit: ") || message.starts_with("report: ");
                print_line(stderr, "warning: --{}{}", is_named ? "" : "save-top-k: ", message);
              },
          .describe =
              [this](const zero::TrainerPosition& position) {
                if (flip_) flip_->begin_save();
                inject_fault(Phase::save, 1);  // the engine has counted the step that is saved
                RunSpec now = options_;
                now.samples = position.samples;
                now.skipped_samples = position.skipped_samples;
                now.loss = position.score;  // the loss, or the value of set_score()
                // A plan does not read the weights of a base, and may have none.
                if (now.lora.rank > 0 && now.base.hash.empty()) now.base = {"planned", "planned"};
                return tools::checkpoint_info(now);
              },
          .position_of =
              [](const zero::CheckpointInfo& info, const std::string& path) {
                const RunSpec saved = settings_from_json(info.config_json, path);
                return zero::TrainerPosition{.samples = saved.samples,
                                             .skipped_samples = saved.skipped_samples,
                                             .score = saved.loss};
              }};
}

Var Rank::forward(Tape& tape, const zero::MicroBatch& batch) {
  if (batch.last) inject_fault(Phase::forward);
  const Var output = model_->forward(tape, batch);
  const FaultInjection& injection = options_.injection;
  // The fault `infinity` has no phase of its own: its injection has the default, `begin`.
  const bool applies = mesh_.is_last_stage() && batch.index == 0 &&
                       injection.fault == FaultInjection::Fault::infinity &&
                       injection.applies(ranks_.rank(), batch.step, Phase::begin);
  return applies ? with_infinite_gradient(output) : output;
}

void Rank::observe(zero::TrainerMoment moment, const zero::MicroBatch& batch) {
  using Moment = zero::TrainerMoment;
  if (moment == Moment::gradients_ready && options_.dump_gradients_step == engine_->steps())
    zero::dump_gradients(options_.dump_gradients, *engine_);
  zero::note_memory(rows_, moment, batch);
  if (launches_) launches_->note(moment, batch);
  if (blocks_ && moment == Moment::step_begins) blocks_->restart();
  if (blocks_ && moment == Moment::step_done &&
      engine_->steps() == std::min(run_.steps_done + reported_steps, options_.steps)) {
    reported_blocks_ = blocks_->recorded();
    blocks_.reset();
  }
  if (flip_ && moment == Moment::step_done) flip_->end_step();
  if (moment == Moment::backward_begins && batch.last) inject_fault(Phase::backward);
  if (moment == Moment::optimizer_begins) inject_fault(Phase::step);
}

void Rank::load_adapters() {
  if (reads_weights(options_.base.path, is_planned_))
    zero::load_weights(base_weights(options_), *engine_,
                       [](const Parameter& parameter) { return !parameter.saved; });
  if (run_.checkpoint) return trainer_->resume(*run_.checkpoint);
  if (const std::string& folder = options_.initial_adapter; !folder.empty())
    zero::load_weights(models::peft_weights(folder, options_.model, lora_of(options_.lora)),
                       *engine_, [](const Parameter& parameter) { return parameter.saved; });
}

void Rank::load() {
  if (options_.lora.rank > 0) return load_adapters();
  if (run_.checkpoint) return trainer_->resume(*run_.checkpoint);
  if (run_.initial)
    zero::load_weights(zero::weights_of(run_.initial), *engine_);
  else if (!options_.initial_weights.empty())
    zero::load_weights(options_.initial_weights, *engine_);
  if (reads_weights(options_.from_hf, is_planned_))
    zero::load_weights(hf_weights(options_.from_hf, options_), *engine_);
}

void Rank::inject_fault(Phase phase, int64_t steps_ago) {
  inject(options_.injection, phase, engine_->steps() - steps_ago, ranks_, device_);
}

Tape Rank::inference_tape() {
  if (reaches_stop()) throw zero::StopTraining{};
  return engine_->inference_tape();
}

Evaluation Rank::evaluation() {
  return {.model = model_->decoder(),
          .make_tape = [this] { return inference_tape(); },
          .dataset = dataset_,
          .device = device_,
          .is_sort_task = options_.data.source == "sort",
          .ranks = mesh_.data};
}

double Rank::validation_loss(int64_t batches) {
  return model_->validation_loss([this] { return inference_tape(); }, batches);
}

std::vector<int32_t> Rank::sample() {
  constexpr int64_t prompt_tokens = 16, sample_tokens = 200;
  const models::Split split = dataset_.epoch_samples(models::Split::validation) > 0
                                  ? models::Split::validation
                                  : models::Split::train;
  std::vector<int32_t> ids(static_cast<size_t>(dataset_.block_size())), targets(ids.size());
  dataset_.sample(split, 0, ids.data(), targets.data());
  ids.resize(std::min(ids.size(), static_cast<size_t>(prompt_tokens)));
  return models::generate(model_->decoder(), [this] { return inference_tape(); }, {ids},
                          sample_tokens, {.top_k = 10, .seed = options_.seed})
      .front();
}

void Rank::note_counted_step() {
  if (!launches_ || launches_->counted()) return;
  counted_tokens_ = model_->tokens(step_);
  counted_micro_batches_ = trainer_->next_micro_batches();
}

// Does the work after the last step in a plan, to count its memory: the first batch of scores or of
// validation, and the parameter hash.
void Rank::plan_end() {
  const bool asks = dataset_.question_length() > 0;
  if (asks && options_.score_samples > 0)
    evaluation().plan_scores(options_.micro_batch, options_.score_samples);
  if (!asks && dataset_.epoch_samples(models::Split::validation) > 0)
    validation_loss(/*batches=*/1);
  for (const auto& [name, parameter] : store_.by_name())
    engine_->read(*parameter, zero::Engine::State::master);
}

RankMemory Rank::plan() {
  load();
  trainer_->run();
  if (memory_.rows.empty()) {
    plan_end();
    memory_.reserved = Recorder(ranks_.rank(), nullptr).report(device_).reserved;
  }
  return memory_;
}

RankMemory Rank::count_memory() const {
  RankMemory memory{Recorder(ranks_.rank(), nullptr).report(device_)};
  memory.wire = ranks_.wire();
  memory.resting = engine_->resting_bytes();
  if (const auto speculated = engine_->speculated()) memory.redo_io = speculated->redo_io;
  memory.rows = rows_.rows();
  if (memory.rows.empty()) memory.start = rows_.now();
  if (launches_) memory.launches = launches_->counted();
  memory.blocks = reported_blocks_;
  memory.counted_tokens = counted_tokens_;
  memory.counted_micro_batches = counted_micro_batches_;
  if (options_.axes.model_ranks() == 1) return memory;
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
