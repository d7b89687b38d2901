#include "zerograd/zero/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

namespace zg::zero {
namespace {

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

void check(const char* name, int64_t value, int64_t minimum) {
  if (value < minimum)
    raise<ConfigError>("trainer: {}: expected {} or more, got {}", name, minimum, value);
}

/// RAII: the device records a trace.
class TraceScope {
 public:
  TraceScope(const Device& device, const std::shared_ptr<Trace>& trace, int rank)
      : device_(device), traces_(trace != nullptr) {
    if (traces_) device_.set_trace(trace, rank);
  }
  ~TraceScope() {
    if (traces_) device_.set_trace(nullptr);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const Device& device_;
  const bool traces_;
};

}  // namespace

/// A trainer's state, and this rank's work on one micro-batch (PipelineStage).
struct TrainerState final : PipelineStage {
  TrainerState(Engine& engine, TrainerOptions options, TrainerTask task, TrainerHooks hooks)
      : engine(engine),
        device(engine.device()),
        options(std::move(options)),
        task(std::move(task)),
        hooks(std::move(hooks)),
        schedule(this->options.schedule) {}

  int64_t data_ranks() const { return engine.ranks().size(); }
  int64_t whole_batch() const { return options.micro_batch * options.accumulation * data_ranks(); }
  bool has_loss() const { return !engine.mesh() || engine.mesh()->is_last_stage(); }
  bool has_stages() const { return engine.mesh() && engine.mesh()->shape.pipeline > 1; }
  void observe(TrainerMoment moment, const MicroBatch& batch) const {
    if (hooks.observe) hooks.observe(moment, batch);
  }
  MicroBatch micro_batch(int64_t index) const {
    const int64_t turn = index * data_ranks() + engine.ranks().rank();
    return {.step = engine.steps(),
            .index = index,
            .first_sample = position.samples + turn * options.micro_batch,
            .samples = options.micro_batch,
            .last = index + 1 == micro_batches()};
  }
  int64_t samples() const { return options.rampup.batch_at(position.samples, whole_batch()); }
  int64_t micro_batches() const { return samples() / (options.micro_batch * data_ranks()); }
  int agree_on(int reason) const;
  void warn(const std::string& message) const {
    if (hooks.warn) return hooks.warn(message);
    print_line(stderr, "warning: trainer: {}", message);
  }
  bool goes_on(int64_t) override {
    given_up = given_up || (hooks.give_up && hooks.give_up());
    return !given_up;
  }
  Tape tape() override { return engine.tape(); }
  Var forward(Tape& tape, const Var& input, int64_t index) override;
  void backward(Tape& tape, const Var& output, const Tensor& gradient, int64_t index) override;
  void run_micro_batches(int64_t count);
  /// Runs one step. The position advances together with the engine's step; an exception before that
  /// changes neither.
  std::optional<TrainedStep> attempt();
  double next_rate() const;
  void write_report() {
    if (!report) return;
    if (const auto warning = report->write()) warn(*warning);
  }
  void note_bad(const TrainedStep& done);  // throws at the same step on all ranks
  void set_position(const CheckpointInfo& info, const std::string& path);
  /// The run was resumed from `path`. If that is in the run's directory, this step need not be
  /// saved again.
  void note_saved(const std::string& path) {
    const auto plain = [](const std::string& p) {
      return std::filesystem::path(p + "/").lexically_normal();
    };
    if (!checkpoints) return;
    const std::string& directory = options.checkpoints->path;
    if (plain(path) == plain(directory) || plain(path + "/..") == plain(directory) ||
        lies_in(path, directory))
      saved_at = engine.steps();
  }

  Engine& engine;
  const Device device;
  const TrainerOptions options;
  const TrainerTask task;
  const TrainerHooks hooks;
  const Schedule schedule;
  TrainerPosition position;
  bool scored = false;  // set_score() was called
  std::optional<CheckpointDirectory> checkpoints;
  std::optional<Audit> audit;
  std::optional<Report> report;          // from the first step on, when a resume is done
  int64_t saved_at = -1, bad_steps = 0;  // the step of the last save; bad steps in a row
  std::string first_bad;                 // "the gradient of wte.weight of step 7 is not finite"
  // These belong to the step that runs.
  std::optional<int64_t> targets;   // if its loss is a mean over them
  std::vector<PendingItem> losses;  // by micro-batch, on the last stage
  bool given_up = false;
};

Var TrainerState::forward(Tape& tape, const Var& input, int64_t index) {
  MicroBatch batch = micro_batch(index);
  if (task.batch) batch.tensors = task.batch(batch);
  if (audit) audit->add(batch.tensors, batch.first_sample, batch.samples);
  if (task.batch && batch.tensors.empty())
    raise<ConfigError>("trainer: batch: expected the tensors of samples {} to {}, got none",
                       batch.first_sample, batch.first_sample + batch.samples);
  batch.input = input;
  observe(TrainerMoment::batch_ready, batch);
  Var output;
  {
    const PhaseScope phase(device, "forward");
    const TraceSpan span(device.compute(), "forward");
    output = task.forward(tape, batch);
    if (targets)
      output =
          mul(output, target_weight({.micro_batch = task.targets(batch.first_sample, batch.samples),
                                     .step = *targets,
                                     .micro_batches = micro_batches() * data_ranks()}));
  }
  if (has_loss()) losses.emplace_back(output.value());
  observe(TrainerMoment::forward_done, batch);
  return output;
}

void TrainerState::backward(Tape& tape, const Var& output, const Tensor& gradient, int64_t index) {
  const MicroBatch batch = micro_batch(index);
  observe(TrainerMoment::backward_begins, batch);
  {
    const TraceSpan span(device.compute(), "backward");
    if (gradient)
      engine.backward(tape, {&output, 1}, {&gradient, 1});
    else
      engine.backward(tape, output);
  }
  observe(TrainerMoment::backward_done, batch);
}

void TrainerState::run_micro_batches(int64_t count) {
  if (!has_stages()) {
    for (int64_t i = 0; i < count && goes_on(i); ++i) {
      Tape tape = this->tape();
      const Var loss = forward(tape, {}, i);
      backward(tape, loss, {}, i);
    }
    return;
  }
  try {
    run_pipeline(engine.mesh(), options.pipeline, count, task.stage_output(options.micro_batch),
                 device, *this);
  } catch (const StopTraining&) {
    raise<ConfigError>(
        "trainer: StopTraining was thrown within a micro-batch of step {}, where the "
        "stages of a pipeline are at different points; expected it from a hook between "
        "micro-batches; try TrainerHooks::give_up",
        engine.steps());
  }
}

// Sums one integer over the ranks. It consists of five counters; counter r is the number of ranks
// with reason r + 1. The first four counters have 15 bits each. The fifth has the remaining three
// bits, because only rank 0 can have that reason.
int TrainerState::agree_on(int reason) const {
  constexpr int reasons = 5, digit_bits = 15;
  if (reason < 0 || reason > reasons)
    raise<ConfigError>("trainer: stop: expected 0 to 5, got {}", reason);
  Communicator& ranks = engine.world();
  if (ranks.size() == 1) return reason;
  const bool counts = reason > 0 && (reason < reasons || ranks.rank() == 0);
  const int64_t own = counts ? int64_t{1} << (digit_bits * (reason - 1)) : 0;
  const PurposeScope purpose(device, Purpose::comm);
  const Tensor sum = Tensor::full({1}, static_cast<double>(own), DType::i64, device);
  ranks.wait(ranks.all_reduce(sum, "signal"));
  const auto all = static_cast<int64_t>(sum.item());
  for (int i = 0; i < reasons; ++i)
    if ((all >> (digit_bits * i)) % (int64_t{1} << digit_bits) != 0) return i + 1;
  return 0;
}

void TrainerState::set_position(const CheckpointInfo& info, const std::string& path) {
  position = hooks.position_of ? hooks.position_of(info, path) : position_in(info, path);
  position.micro_batches = info.micro_batches;
  scored = false;
}

Trainer::Trainer(Engine& engine, TrainerOptions options, TrainerTask task, TrainerHooks hooks) {
  check("micro_batch", options.micro_batch, 1);
  check("accumulation", options.accumulation, 1);
  check("steps", options.steps, 0);
  check("save_interval", options.save_interval, 0);
  check("stop_interval", options.stop_interval, 0);
  check("max_bad_steps", options.max_bad_steps, 0);
  if (options.save_interval > 0 && !options.checkpoints)
    throw ConfigError(
        "trainer: save_interval: expected TrainerOptions::checkpoints with it, got none");
  if (!task.forward)
    throw ConfigError("trainer: forward: expected a function that makes the loss, got none");
  if (!hooks.describe != !hooks.position_of)
    throw ConfigError(
        "trainer: hooks: expected both describe and position_of, or neither; a position that is "
        "written has to be read");
  if (engine.mesh() && engine.mesh()->shape.pipeline > 1 && !task.stage_output)
    raise<ConfigError>(
        "trainer: stage_output: expected a function that gives the shape of what passes "
        "between the {} stages, got none",
        engine.mesh()->shape.pipeline);
  validate(options.schedule);
  state_ =
      std::make_unique<TrainerState>(engine, std::move(options), std::move(task), std::move(hooks));
  TrainerState& s = *state_;
  const int64_t micro = s.options.micro_batch * s.data_ranks();
  if (const BatchRampup& rampup = s.options.rampup; rampup.start > 0)
    if (rampup.start > s.whole_batch() || rampup.increment < 1 ||
        (s.whole_batch() - rampup.start) % rampup.increment != 0 ||
        rampup.common(s.whole_batch()) % micro != 0)
      raise<ConfigError>(
          "trainer: rampup: expected steps from {} by {} that end at the batch of {} "
          "samples and that micro_batch x data ranks, {}, divides",
          rampup.start, rampup.increment, s.whole_batch(), micro);
  if (s.options.audit) s.audit.emplace(engine, *s.options.audit);
  if (s.options.checkpoints) {
    CheckpointDirectory::Options directory = *s.options.checkpoints;
    if (!directory.loss_of)
      directory.loss_of = [&s](const CheckpointInfo& info, const std::string& step_n) {
        return s.hooks.position_of ? s.hooks.position_of(info, step_n).score
                                   : position_in(info, step_n).score;
      };
    CheckpointDirectory::Report report = s.hooks.saved;
    if (!report)
      report = [&s](const std::string& step_n, const CheckpointSave::Result& result) {
        if (!result.reason.empty())
          s.warn(
              fmt::format("save failed: {}: rank {}: {}; earlier checkpoints stay and the next "
                          "save tries again",
                          step_n, s.engine.world().rank(), result.reason));
      };
    s.checkpoints.emplace(std::move(directory), report,
                          [&s](const std::string& message) { s.warn(message); });
  }
}

Trainer::~Trainer() = default;

// Rank 0 chooses the checkpoint, because the ranks may read a changing directory at different
// times.
bool Trainer::resume(const std::string& path) {
  Engine& engine = state_->engine;
  const bool planned = state_->device.type() == Device::Type::meta;
  Communicator& ranks = engine.world();
  constexpr int64_t none = -1;
  std::shared_ptr<CheckpointReader> chosen;
  int64_t steps = none;
  if (!planned && ranks.rank() == 0 && has_checkpoint(path, engine)) {
    chosen = choose_checkpoint(path, [&](const StepFolder& folder, const std::string& damage) {
      state_->warn(fmt::format("passed over {}: {}", folder.path, damage));
    });
    steps = chosen->manifest().info.steps;
  }
  {
    const PurposeScope purpose(state_->device, Purpose::comm);
    const Tensor choice = Tensor::full({1}, static_cast<double>(steps), DType::i64, state_->device);
    ranks.wait(ranks.broadcast(choice, 0, "resume"));
    steps = static_cast<int64_t>(choice.item());
  }
  if (planned) {
    if (!has_checkpoint(path, engine)) return false;
    state_->set_position(load_checkpoint(path, engine), path);
    state_->note_saved(path);
    return true;
  }
  if (steps == none) return false;
  if (!chosen) {
    const std::string step_n = fmt::format("{}/step_{}", path, steps);
    chosen = open_checkpoint(path_exists(step_n) ? step_n : path);
    if (const int64_t found = chosen->manifest().info.steps; found != steps)
      raise<FileError>(
          "resume: {}: rank 0 chose the checkpoint of step {}, this rank finds that of "
          "step {}; expected a directory that all ranks see alike; try again, or give "
          "the path of one step_N",
          path, steps, found);
  }
  resume(*chosen);
  return true;
}

void Trainer::resume(const CheckpointReader& checkpoint) {
  load_checkpoint(checkpoint, state_->engine);
  const std::string& path = checkpoint.path();
  state_->set_position(checkpoint.manifest().info, path);
  state_->note_saved(path);
}

void TrainerState::note_bad(const TrainedStep& done) {
  const StepResult& step = done.result;
  const bool bad = (step.skipped && step.scaler_line.empty()) || !std::isfinite(done.loss);
  bad_steps = bad && options.max_bad_steps > 0 ? bad_steps + 1 : 0;
  if (bad_steps == 1)
    first_bad = (step.skipped ? "the gradient of " : "the loss") + step.bad_tensor +
                fmt::format(" of step {} is not finite", done.step);
  if (bad_steps > 0 && bad_steps == options.max_bad_steps)
    raise<Error>("trainer: {} steps in a row taught nothing: {}; try a lower rate, clipping or f32",
                 bad_steps, first_bad);
}

TrainingEnd Trainer::run() {
  TrainerState& s = *state_;
  using Reason = TrainingEnd::Reason;
  TrainingEnd end;
  bool is_save_due = false;
  try {
    while (end.reason == Reason::finished && s.engine.steps() < s.options.steps) {
      if (s.hooks.before_step) s.hooks.before_step(s.engine.steps());
      const std::optional<TrainedStep> done = step();
      if (!done) throw StopTraining{};
      if (s.hooks.after_step) s.hooks.after_step(*done);
      if (s.checkpoints) s.checkpoints->poll();
      const int64_t steps = s.engine.steps();
      s.note_bad(*done);
      is_save_due = is_save_due || is_due(steps, s.options.save_interval);
      if (s.checkpoints && s.bad_steps == 0 && std::exchange(is_save_due, false)) save();
      if (s.hooks.stop) end.stop = s.agree_on(s.hooks.stop());
      if (end.stop > 0)
        end.reason = Reason::stopped;
      else if (is_due(steps, s.options.stop_interval) && steps < s.options.steps)
        end.reason = Reason::interval;
    }
  } catch (const StopTraining&) {
    end.reason = Reason::given_up;
  } catch (...) {
    s.write_report();
    throw;
  }
  if (s.hooks.ended) s.hooks.ended(end);
  s.write_report();
  if (!s.checkpoints) return end;
  save();
  end.saved = s.checkpoints->finish();
  return end;
}

std::optional<TrainedStep> Trainer::step() {
  TrainerState& s = *state_;
  Engine& engine = s.engine;
  const int64_t step = engine.steps();
  if (engine.micro_batches() != 0)
    raise<ConfigError>(
        "trainer: step {}: expected no gradients, got {} micro-batches of a step that "
        "did not end; try Engine::drop_gradients()",
        step, engine.micro_batches());
  const bool traced =
      s.options.trace && step >= s.options.trace_first && step < s.options.trace_end;
  engine.world().set_step(step);
  s.losses.clear();
  s.given_up = false;
  std::optional<TrainedStep> done;
  {
    const TraceScope trace(s.device, traced ? s.options.trace : nullptr, engine.world().rank());
    TraceSpan span(s.device.compute(), "step");
    span.add("step", step);
    try {
      done = s.attempt();
    } catch (const StopTraining&) {
    }
  }
  if (done && traced && s.report && step + 1 == s.options.trace_end)
    s.report->add_timeline(*s.options.trace);
  s.losses.clear();
  if (!done && engine.steps() == step) engine.drop_gradients();
  return done;
}

double TrainerState::next_rate() const {
  return schedule.rate(counts_samples(options.schedule.kind)
                           ? position.samples - position.skipped_samples
                           : engine.steps() - engine.skipped());
}

std::optional<TrainedStep> TrainerState::attempt() {
  const int64_t step = engine.steps();
  const MicroBatch no_batch{.step = step};
  if (audit) audit->begin_step();
  if (options.report && !report) report.emplace(engine, *options.report);
  observe(TrainerMoment::step_begins, no_batch);
  const auto begin = std::chrono::steady_clock::now();
  TrainedStep done{
      .step = step, .micro_batches = micro_batches(), .samples = samples(), .rate = next_rate()};
  const auto betas = schedule.betas(step - engine.skipped());
  if (task.targets && has_loss()) targets = task.targets(position.samples, samples());
  engine.expect_step(done.micro_batches, static_cast<float>(done.rate), betas);
  run_micro_batches(done.micro_batches);
  if (given_up) return std::nullopt;
  observe(TrainerMoment::gradients_ready, no_batch);
  {
    const PhaseScope phase(device, "step");
    const TraceSpan optimizer(device.compute(), "optimizer");
    observe(TrainerMoment::optimizer_begins, no_batch);
    done.result = engine.step(static_cast<float>(done.rate), betas);
    // So that time and errors of the device's work belong to this step.
    device.compute().synchronize();
  }
  std::vector<double> values;  // the device has finished the step
  for (const PendingItem& loss : losses) values.push_back(loss.value());
  done.loss = engine.mean_loss(values, done.micro_batches);
  done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  position.samples += done.samples;
  if (done.result.skipped) position.skipped_samples += done.samples;
  position.micro_batches += done.micro_batches * data_ranks();
  if (!scored) position.score = done.loss;
  observe(TrainerMoment::step_done, no_batch);
  if (report)
    if (const auto warning = report->add(done, position.samples - done.samples)) warn(*warning);
  if (audit)
    if (const auto warning = audit->write(done, engine.steps() == options.steps)) warn(*warning);
  return done;
}

bool Trainer::save() {
  TrainerState& s = *state_;
  if (!s.checkpoints)
    throw ConfigError("trainer: save: expected TrainerOptions::checkpoints, got none");
  const bool lost =
      !s.checkpoints->finish() && s.saved_at >= 0;  // the save in the background failed
  if (lost) s.saved_at = -1;
  if (s.saved_at == s.engine.steps()) return true;
  if (s.audit) s.audit->sync();
  const bool saved = s.checkpoints->save(s.engine, checkpoint_info());
  s.saved_at = saved ? s.engine.steps() : -1;
  return saved && !lost;
}

void Trainer::set_score(double score) {
  state_->position.score = score;
  state_->scored = true;
}

const TrainerPosition& Trainer::position() const { return state_->position; }
int64_t Trainer::next_samples() const { return state_->samples(); }
int64_t Trainer::next_micro_batches() const { return state_->micro_batches(); }
double Trainer::next_rate() const { return state_->next_rate(); }
Report* Trainer::report() { return state_->report ? &*state_->report : nullptr; }
bool Trainer::audit_is_lost() const { return state_->audit && state_->audit->lost(); }

CheckpointInfo Trainer::checkpoint_info() const {
  const TrainerState& s = *state_;
  CheckpointInfo info =
      s.hooks.describe ? s.hooks.describe(s.position) : description_of(s.position);
  info.steps = s.engine.steps();
  info.skipped = s.engine.skipped();
  info.micro_batches = s.position.micro_batches;
  if (info.base.path.empty()) info.base = s.options.base;
  return info;
}

}  // namespace zg::zero
