#include "tools/stepper.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <limits>

#include "tools/early_end.h"
#include "tools/hugging_face.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/models/generate.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/checkpoint_file.h"

namespace zg::tools {
namespace {

MeshShape shape_of(const Settings& settings) {
  return {.data = static_cast<int>(settings.ranks),
          .pipeline = static_cast<int>(settings.axes.pipeline),
          .tensor = static_cast<int>(settings.axes.tensor)};
}

WireCounts sum(WireCounts a, const WireCounts& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i].calls += b[i].calls;
    a[i].bytes += b[i].bytes;
  }
  return a;
}

// An axis that is the whole mesh counts with what concerns all ranks.
std::vector<AxisWire> axes_of(const Mesh& mesh) {
  const auto of = [&](const Communicator* ranks) {
    return ranks && ranks != &mesh.world ? ranks->wire() : WireCounts{};
  };
  WireCounts stages = of(mesh.pipeline);
  for (const std::unique_ptr<Communicator>* channel :
       {&mesh.previous.forward, &mesh.previous.backward, &mesh.next.forward, &mesh.next.backward,
        &mesh.ends})
    stages = sum(stages, of(channel->get()));
  return {{"data", of(mesh.data)}, {"tensor", of(mesh.tensor)}, {"pipeline", stages}};
}

}  // namespace

/// What this rank does with the micro-batches of a step, of which the data ranks take turns. A step
/// with several of them has one row per cell: the first is the first's, the others are the last's,
/// and no peak between them is lost.
class TrainingStage final : public models::PipelineStage {
 public:
  TrainingStage(Stepper& stepper, int64_t micro_batches) : s_(stepper), last_(micro_batches - 1) {}

  bool goes_on(int64_t) override {
    stopped = stopped || s_.reaches_stop();
    return !stopped;
  }

  Tape tape() override { return s_.engine_->tape(); }

  Var forward(Tape& tape, const Var& input, int64_t index) override {
    const Settings& settings = s_.settings_;
    const bool last = index == last_;
    const int64_t turn = index * s_.mesh_.shape.data + s_.mesh_.data_rank;
    const int64_t first_sample = settings.samples + turn * settings.micro_batch;
    const models::Batch batch = s_.run_.dataset->batch(models::Split::train, first_sample,
                                                       settings.micro_batch, s_.device_);
    if (index == 0) s_.memory_.note(Cell::before_forward);
    Var output;
    {
      const PhaseScope phase(s_.device_, "forward");
      const TraceSpan span(s_.device_.compute(), "forward");
      if (last) s_.pass(Drill::Phase::forward);
      output = s_.model_->stage(
          tape, input, batch.ids, batch.targets,
          {.seed = settings.seed, .step = s_.engine_->steps(), .first_sample = first_sample},
          s_.run_.options.activation_checkpoint);
    }
    if (s_.mesh_.is_last_stage()) {
      losses.push_back(output.value().item());
      const Drill& drill = s_.run_.options.drill;
      if (index == 0 && drill.fault == Drill::Fault::infinity &&
          drill.strikes(s_.ranks_.rank(), s_.engine_->steps(), Drill::Phase::begin))
        output = mul(output, std::numeric_limits<double>::infinity());
    }
    if (last) s_.memory_.note(Cell::after_forward);
    return output;
  }

  void backward(Tape& tape, const Var& output, const Tensor& gradient, int64_t index) override {
    const bool last = index == last_;
    if (last) s_.memory_.note(Cell::before_backward);
    {
      const TraceSpan span(s_.device_.compute(), "backward");
      if (last) s_.pass(Drill::Phase::backward);
      if (gradient)
        s_.engine_->backward(tape, {&output, 1}, {&gradient, 1});
      else
        s_.engine_->backward(tape, output);
    }
    if (last) s_.memory_.note(Cell::after_backward);
  }

  std::vector<double> losses;  ///< on the last stage, by micro-batch
  bool stopped = false;        ///< within the step

 private:
  Stepper& s_;
  const int64_t last_;
};

Stepper::Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep)
    : run_(run),
      ranks_(ranks),
      device_(device),
      mesh_(ranks, shape_of(run.settings)),
      settings_(run.settings),
      model_(std::make_unique<models::GPT>(
          store_, settings_.model,
          models::part_of(mesh_, settings_.model, settings_.optimisation.engine.compute,
                          settings_.axes.sequence_parallel))),
      schedule_(settings_.optimisation.schedule),
      memory_(device_, keep) {
  const PhaseScope phase(device_, "initialise");
  engine_ = std::make_unique<zero::Engine>(store_, mesh_, device_, settings_.optimisation.engine);
}

Stepper::~Stepper() = default;

int64_t Stepper::load() {
  if (run_.checkpoint) {
    zero::load_checkpoint(*run_.checkpoint, *engine_);
    return run_.checkpoint->manifest().info.micro_batches;
  }
  if (run_.initial)
    zero::load_weights(zero::weights_of(run_.initial), *engine_);
  else if (!run_.options.initial_weights.empty())
    zero::load_weights(run_.options.initial_weights, *engine_);
  if (!run_.options.from_hf.empty())
    zero::load_weights(HuggingFaceFolder(run_.options.from_hf).weights(settings_.model), *engine_);
  return 0;
}

double Stepper::rate() const {
  return schedule_.rate(zero::counts_samples(settings_.optimisation.schedule.kind)
                            ? settings_.samples - settings_.skipped_samples
                            : engine_->steps() - engine_->skipped());
}

void Stepper::pass(Drill::Phase phase, int64_t step) {
  strike(run_.options.drill, phase, step, ranks_, device_);
}

Stepper::Step Stepper::step() {
  const TracedSteps* traced = run_.traced.get();
  if (!traced || !traced->steps.contains(engine_->steps())) return take_step();
  struct Traced {
    ~Traced() { device.set_trace(nullptr); }
    const Device& device;
  } const scope{device_};  // a step that is stopped throws
  device_.set_trace(traced->trace, ranks_.rank());
  return take_step();
}

Stepper::Step Stepper::take_step() {
  TraceSpan span(device_.compute(), "step");
  span.add("step", engine_->steps());
  ranks_.set_step(engine_->steps());
  memory_.begin_step(engine_->steps());
  Step done{.micro_batches = settings_.step_accumulation(),
            .samples = settings_.step_samples(),
            .rate = rate()};
  const auto betas = schedule_.betas(engine_->steps() - engine_->skipped());
  TrainingStage stage(*this, done.micro_batches);
  models::run_pipeline(mesh_, run_.options.axes.schedule, done.micro_batches,
                       model_->between(settings_.micro_batch), device_, stage);
  if (stage.stopped) {
    engine_->drop_gradients();
    memory_.drop_step();
    throw Stopped{};
  }
  settings_.samples += done.samples;
  done.loss = engine_->mean_loss(stage.losses, done.micro_batches);
  if (run_.options.dump_gradients_step == engine_->steps())
    zero::dump_gradients(run_.options.dump_gradients, *engine_);
  memory_.note(Cell::before_step);
  {
    const PhaseScope phase(device_, "step");
    const TraceSpan optimizer(device_.compute(), "optimizer");
    pass(Drill::Phase::step);
    done.result = engine_->step(static_cast<float>(done.rate), betas);
    device_.compute().synchronize();  // the step's time and its faults are its own
  }
  if (done.result.skipped) settings_.skipped_samples += done.samples;
  memory_.note(Cell::after_step);
  return done;
}

zero::CheckpointInfo Stepper::checkpoint_info(int64_t micro_batches) const {
  zero::CheckpointInfo info = tools::checkpoint_info(settings_);
  info.steps = engine_->steps();
  info.skipped = engine_->skipped();
  info.micro_batches = micro_batches;
  return info;
}

Tape Stepper::inference_tape() {
  if (reaches_stop()) throw Stopped{};
  return engine_->inference_tape();
}

Evaluation Stepper::evaluation() {
  return {.model = *model_,
          .make_tape = [this] { return inference_tape(); },
          .dataset = *run_.dataset,
          .device = device_,
          .sorts = settings_.data.source == "sort"};
}

double Stepper::validation_loss() {
  return evaluation().loss(settings_.micro_batch, run_.options.eval_batches);
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
  return models::generate(*model_, [this] { return inference_tape(); }, {ids}, sample_tokens,
                          {.top_k = 10, .seed = settings_.seed})
      .front();
}

int Stepper::agreed(int reason) {
  // The sum has a digit for each reason: how many ranks have it. Only rank 0 has the kill switch,
  // so that the three bits that are left hold its digit.
  constexpr int reasons[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, kill_switch};
  constexpr int digit_bits = 15;
  int64_t own = 0;
  for (size_t i = 0; i < std::size(reasons); ++i)
    if (reason == reasons[i]) own = int64_t{1} << (digit_bits * i);
  const PurposeScope purpose(device_, Purpose::comm);
  const Tensor sum = Tensor::full({1}, static_cast<double>(own), DType::i64, device_);
  ranks_.wait(ranks_.all_reduce(sum, "signal"));
  const auto all = static_cast<int64_t>(sum.item());
  for (size_t i = 0; i < std::size(reasons); ++i)
    if ((all >> (digit_bits * i)) % (int64_t{1} << digit_bits) != 0) return reasons[i];
  return 0;
}

RankMemory Stepper::rank_memory() const {
  RankMemory memory = {
      .rank = ranks_.rank(),
      .rest = engine_->resting_bytes(),
      .rows = memory_.rows(),
      .start = memory_.rows().empty() ? std::optional(memory_.now()) : std::nullopt,
      .wire = ranks_.wire(),
      .axes = {},
      .place = {},
      .io = swapped(device_)};
  if (settings_.axes.model_ranks() == 1) return memory;
  memory.axes = axes_of(mesh_);
  for (const AxisWire& axis : memory.axes) memory.wire = sum(memory.wire, axis.wire);
  memory.place = {.stage = mesh_.stage,
                  .tensor_rank = mesh_.tensor_rank,
                  .first_layer = model_->part().first_layer,
                  .end_layer = model_->part().end_layer,
                  .parameters = store_.numel()};
  return memory;
}

}  // namespace zg::tools
