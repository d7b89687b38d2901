#include "tools/stepper.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <limits>

#include "autograd/ops.h"
#include "models/generate.h"
#include "runtime/trace.h"
#include "tools/early_end.h"
#include "tools/hugging_face.h"
#include "zero/checkpoint_file.h"

namespace zg::tools {
Stepper::Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep)
    : run_(run),
      ranks_(ranks),
      device_(device),
      settings_(run.settings),
      model_(std::make_unique<models::GPT>(store_, settings_.model)),
      schedule_(settings_.optimisation.schedule),
      memory_(device_, keep) {
  device_.set_trace(run.trace);
  const PhaseScope phase(device_, "initialise");
  engine_ = std::make_unique<zero::Engine>(store_, ranks_, device_, settings_.optimisation.engine);
}

int64_t Stepper::load() {
  if (!run_.resumed.empty()) return zero::load_checkpoint(run_.resumed, *engine_).micro_batches;
  if (!run_.options.initial_weights.empty())
    zero::load_weights(run_.options.initial_weights, *engine_);
  if (!run_.options.from_hf.empty())
    zero::load_weights(hf_weights(run_.options.from_hf, settings_.model), *engine_);
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
  const TraceSpan span(device_.compute(), "step");
  ranks_.set_step(engine_->steps());
  memory_.begin_step(engine_->steps());
  Step done{.micro_batches = settings_.step_accumulation(),
            .samples = settings_.step_samples(),
            .rate = rate()};
  const auto betas = schedule_.betas(engine_->steps() - engine_->skipped());
  std::vector<double> losses;
  for (int64_t j = 0; j < done.micro_batches; ++j)
    losses.push_back(micro_batch(j, done.micro_batches));
  settings_.samples += done.samples;
  done.loss = engine_->mean_loss(losses);
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

// Of the micro-batches of a step, the ranks take turns. A step with several of them has one row per
// cell: the first is the first's, the others are the last's, and no peak between them is lost.
double Stepper::micro_batch(int64_t index, int64_t count) {
  const bool last = index + 1 == count;
  const int64_t first_sample =
      settings_.samples + (index * ranks_.size() + ranks_.rank()) * settings_.micro_batch;
  const models::Batch batch =
      run_.dataset->batch(models::Split::train, first_sample, settings_.micro_batch, device_);
  if (index == 0) memory_.note(Cell::before_forward);
  Tape tape = engine_->tape();
  Var loss;
  {
    const PhaseScope phase(device_, "forward");
    const TraceSpan span(device_.compute(), "forward");
    if (last) pass(Drill::Phase::forward);
    loss = model_->loss(
        tape, batch.ids, batch.targets,
        {.seed = settings_.seed, .step = engine_->steps(), .first_sample = first_sample},
        run_.options.activation_checkpoint);
  }
  const double value = read_back(loss.value());
  const Drill& drill = run_.options.drill;
  if (index == 0 && drill.fault == Drill::Fault::infinity &&
      drill.strikes(ranks_.rank(), engine_->steps(), Drill::Phase::begin))
    loss = mul(loss, std::numeric_limits<double>::infinity());
  if (last) memory_.note(Cell::after_forward);
  if (last) memory_.note(Cell::before_backward);
  {
    const TraceSpan span(device_.compute(), "backward");
    if (last) pass(Drill::Phase::backward);
    engine_->backward(tape, loss);
  }
  if (last) memory_.note(Cell::after_backward);
  return value;
}

Evaluation Stepper::evaluation() {
  return {.model = *model_,
          .make_tape = [this] { return engine_->inference_tape(); },
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
  return models::generate(*model_, [this] { return engine_->inference_tape(); }, {ids},
                          sample_tokens, {.top_k = 10, .seed = settings_.seed})
      .front();
}

int Stepper::agreed(int reason) {
  // Sums of digits: how many ranks have each. Of the last, whose digit has three bits, one has.
  constexpr int reasons[] = {SIGTERM, SIGINT, SIGPIPE, kill_switch};
  constexpr int digit_bits = 20;
  int64_t own = 0;
  for (size_t i = 0; i < std::size(reasons); ++i)
    if (reason == reasons[i]) own = int64_t{1} << (digit_bits * i);
  const PurposeScope purpose(device_, Purpose::comm);
  const Tensor sum = Tensor::full({1}, static_cast<double>(own), DType::i64, device_);
  ranks_.wait(ranks_.all_reduce(sum, "signal"));
  const auto all = static_cast<int64_t>(read_back(sum));
  for (size_t i = 0; i < std::size(reasons); ++i)
    if ((all >> (digit_bits * i)) % (int64_t{1} << digit_bits) != 0) return reasons[i];
  return 0;
}

RankMemory Stepper::rank_memory() const {
  return {.rank = ranks_.rank(),
          .rest = engine_->resting_bytes(),
          .rows = memory_.rows(),
          .wire = ranks_.wire(),
          .io = swapped(device_)};
}

}  // namespace zg::tools
