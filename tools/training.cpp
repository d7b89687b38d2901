#include "tools/training.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "kernels/peak.h"
#include "models/generate.h"
#include "runtime/error.h"
#include "tools/checkpoints.h"
#include "tools/text.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;
using models::Split;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// printf writes a NaN with its sign, which means nothing.
double shown(double loss) { return std::isnan(loss) ? std::fabs(loss) : loss; }

bool due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

double measured_peak(const Device& device, DType dtype) {
  try {
    return measure_matmul_peak(device, dtype);
  } catch (const Unsupported&) {
    return 0.0;  // the portable level has no kernel to compare with
  }
}

}  // namespace

Training::Training(const Run& run, Communicator& ranks, const Device& device)
    : run_(run),
      options_(run.options),
      dataset_(*run.dataset),
      ranks_(ranks),
      device_(device),
      settings_(run.settings),
      model_(std::make_unique<models::GPT>(store_, settings_.model)),
      memory_(device_) {
  device_.set_trace(run.trace);
  prepare_engine();
}

void Training::prepare_engine() {
  engine_ = std::make_unique<zero::Engine>(store_, ranks_, device_, settings_.optimisation.engine);
  if (!run_.resumed.empty()) {
    micro_batches_ = zero::load_checkpoint(run_.resumed, *engine_).micro_batches;
    std::error_code ignored;  // two paths that cannot be compared are not one
    if (std::filesystem::equivalent(std::filesystem::path(run_.resumed).parent_path(),
                                    options_.save, ignored))
      saved_at_ = engine_->steps();
  } else if (!options_.initial_weights.empty()) {
    zero::load_weights(options_.initial_weights, *engine_);
  }
  if (is_first() && !options_.metrics.empty()) metrics_.emplace(options_.metrics);
  console_.emplace(options_.progress, engine_->steps(), run_.steps, !is_first());
  announce();
  if (is_first() && options_.log_interval > 0)
    peak_flops_ = measured_peak(device_, settings_.optimisation.engine.compute) *
                  std::min(ranks_.size(), available_cores() / device_.traits().threads);
  ranks_.wait(ranks_.barrier("start"));
}

void Training::announce() {
  const Device::Traits& traits = device_.traits();
  std::fprintf(stderr, "rank %d/%d pid %d %s\n", ranks_.rank(), ranks_.size(),
               static_cast<int>(getpid()), device_.name().c_str());
  console_->log(text("%s, %d thread%s%s, %s, ZeRO stage %d", name_of(traits.isa), traits.threads,
                     traits.threads == 1 ? "" : "s", ranks_.size() == 1 ? "" : " per rank",
                     name_of(settings_.optimisation.engine.compute),
                     settings_.optimisation.engine.stage));
  console_->log(text("data %s: %lld training and %lld validation samples of %lld tokens",
                     settings_.data.source.c_str(), (long long)dataset_.epoch_samples(Split::train),
                     (long long)dataset_.epoch_samples(Split::validation),
                     (long long)dataset_.block_size()));
  console_->log(text("batch %lld = %lld x %lld micro-batch%s%s; steps %lld to %lld",
                     (long long)settings_.samples_per_step(), (long long)settings_.micro_batch,
                     (long long)settings_.accumulation, settings_.accumulation == 1 ? "" : "es",
                     ranks_.size() == 1 ? "" : text(" x %d ranks", ranks_.size()).c_str(),
                     (long long)engine_->steps(), (long long)run_.steps));
  if (!run_.resumed.empty())
    console_->log(
        text("resumed %s: %lld samples seen", run_.resumed.c_str(), (long long)settings_.samples));
  for (const std::string& change : run_.changes) console_->log("changed: " + change);
  console_->result(text("number of parameters: %.2fM",
                        static_cast<double>(model_->transformer_parameters()) / 1e6));
}

int Training::run(const std::function<int()>& signal) {
  try {
    return run_steps(signal);
  } catch (...) {
    print_memory_table();  // what led to an OutOfMemory, say
    throw;
  }
}

int Training::run_steps(const std::function<int()>& signal) {
  while (engine_->steps() < run_.steps) {
    report(train_step(engine_->steps()));
    report_periodic(engine_->steps());
    if (const int number = agreed(signal())) return interrupted(number);
  }
  finish();
  return 0;
}

// A signal finds the ranks at different places: all stop after the step in which rank 0 saw it.
int Training::agreed(int signal) {
  const PurposeScope purpose(device_, Purpose::comm);
  const Tensor sum = Tensor::full({1}, is_first() ? signal : 0, DType::i64, device_);
  ranks_.wait(ranks_.all_reduce(sum, "signal"));
  return device_.type() == Device::Type::meta ? 0 : static_cast<int>(sum.item());
}

StepRecord Training::train_step(int64_t step) {
  const Clock::time_point start = Clock::now();
  const TraceSpan span(device_.compute(), "step");
  ranks_.set_step(step);
  memory_.begin_step(step);
  std::vector<double> losses;
  for (int64_t j = 0; j < settings_.accumulation; ++j) losses.push_back(micro_batch(step, j));
  settings_.samples += settings_.samples_per_step();
  micro_batches_ += settings_.accumulation * ranks_.size();
  const double loss = engine_->mean_loss(losses);
  if (!options_.dump_gradients.empty() && step == options_.dump_gradients_step)
    zero::dump_gradients(options_.dump_gradients, *engine_);
  memory_.cell();  // before step
  zero::StepResult result;
  {
    const PhaseScope phase(device_, "step");
    const TraceSpan optimizer(device_.compute(), "optimizer");
    result = engine_->step(static_cast<float>(settings_.optimisation.rate));
  }
  memory_.cell();  // after step
  if (options_.eval_interval == 0) settings_.loss = loss;
  if (result.skipped)
    console_->log(text("step %lld skipped: the gradient of %s is not finite", (long long)step,
                       result.bad_tensor.c_str()));

  const int64_t samples = settings_.samples_per_step();
  const double seconds = seconds_since(start);
  return {.step = step,
          .micro_steps = settings_.accumulation,
          .samples = samples,
          .loss = loss,
          .grad_norm = result.gradient_norm,
          .rate = settings_.optimisation.rate,
          .loss_scale = settings_.optimisation.engine.compute == DType::f32 ? 1.0 : 0.0,
          .skipped = result.skipped,
          .tokens_per_second = static_cast<double>(samples * dataset_.block_size()) / seconds,
          .seconds = seconds,
          .peak_bytes = memory_.step_peak(),
          .host_peak_bytes = memory_.host_step_peak()};
}

// Of the micro-batches of a step, the ranks take turns. A step with several of them has one row of
// memory: its first cell is the first's, the others are the last's, and no peak between them is
// lost.
double Training::micro_batch(int64_t step, int64_t index) {
  const bool last = index + 1 == settings_.accumulation;
  const int64_t first_sample =
      settings_.samples + (index * ranks_.size() + ranks_.rank()) * settings_.micro_batch;
  const models::Batch batch =
      dataset_.batch(Split::train, first_sample, settings_.micro_batch, device_);
  if (index == 0) memory_.cell();  // before forward
  Tape tape = engine_->tape();
  Var loss;
  {
    const PhaseScope phase(device_, "forward");
    const TraceSpan span(device_.compute(), "forward");
    loss = model_->loss(tape, batch.ids, batch.targets,
                        {.seed = settings_.seed, .step = step, .first_sample = first_sample},
                        options_.activation_checkpoint);
  }
  const double value = loss.value().item();
  if (last) memory_.cell();  // after forward
  if (last) memory_.cell();  // before backward
  {
    const PhaseScope phase(device_, "backward");
    const TraceSpan span(device_.compute(), "backward");
    engine_->backward(tape, loss);
  }
  if (last) memory_.cell();  // after backward
  return value;
}

void Training::report(const StepRecord& record) {
  if (metrics_) metrics_->write(record);
  memory_.end_step();
  if (due(record.step, options_.log_interval)) {
    std::string line =
        text("iter_dt %.2fms; iter %lld: train loss %.5f; %.0f tokens/s", record.seconds * 1e3,
             (long long)record.step, shown(record.loss), record.tokens_per_second);
    if (peak_flops_ > 0.0)
      line += text("; %.1f%% of matmul peak",
                   100.0 * record.tokens_per_second * matmul_flops_per_token() / peak_flops_);
    console_->result(line);
  }
  console_->progress({record.step + 1, record.loss, record.tokens_per_second});
}

void Training::report_periodic(int64_t step) {
  if (due(step, options_.eval_interval)) validate();
  if (due(step, options_.sample_interval)) print_sample();
  if (due(step, options_.save_interval)) save();
}

// Forward and backward: three products per weight, two operations per multiply-add. A token attends
// to half a block on average, once for the scores and once for the values.
double Training::matmul_flops_per_token() const {
  const models::GPTConfig& model = settings_.model;
  const double C = static_cast<double>(model.width), T = static_cast<double>(model.block_size);
  const double per_layer = 12.0 * C * C + T * C;
  return 6.0 * (static_cast<double>(model.layers) * per_layer +
                static_cast<double>(model.vocabulary) * C);
}

Evaluation Training::evaluation() {
  return {.model = *model_,
          .make_tape = [this] { return engine_->inference_tape(); },
          .dataset = dataset_,
          .device = device_,
          .sorts = settings_.data.source == "sort"};
}

void Training::validate() {
  if (validated_at_ == engine_->steps()) return;
  validated_at_ = engine_->steps();
  const double loss = evaluation().loss(settings_.micro_batch, options_.eval_batches);
  if (options_.eval_interval > 0) settings_.loss = loss;
  console_->result(text("val loss %.4f", shown(loss)));
}

void Training::print_sample() {
  constexpr int64_t prompt_tokens = 16, sample_tokens = 200;
  const Split split =
      dataset_.epoch_samples(Split::validation) > 0 ? Split::validation : Split::train;
  std::vector<int32_t> ids(static_cast<size_t>(dataset_.block_size())), targets(ids.size());
  dataset_.sample(split, 0, ids.data(), targets.data());
  ids.resize(std::min(ids.size(), static_cast<size_t>(prompt_tokens)));
  const auto rows = models::generate(*model_, [this] { return engine_->inference_tape(); }, {ids},
                                     sample_tokens, {.top_k = 10, .seed = settings_.seed});
  console_->result(text("sample after step %lld:\n", (long long)engine_->steps()) +
                   dataset_.decode(rows.front()));
}

// Once and in one piece: lines between its rows would break the table.
void Training::print_memory_table() {
  console_->end_progress();
  if (options_.dump_memory && !std::exchange(table_printed_, true))
    console_->result(memory_.markdown());
}

void Training::save() {
  if (saved_at_ == engine_->steps()) return;
  const CheckpointDirectory directory(options_.save, options_.save_top_k);
  const std::string path = directory.save(*engine_, settings_, micro_batches_);
  saved_at_ = engine_->steps();
  console_->result("saved " + path);
}

int Training::interrupted(int signal) {
  print_memory_table();
  console_->log(text("interrupted by %s after %lld steps", signal == SIGINT ? "SIGINT" : "SIGTERM",
                     (long long)engine_->steps()));
  if (!options_.save.empty()) {
    save();
    console_->log("go on with: --resume " + options_.save);
  }
  return 128 + signal;
}

void Training::finish() {
  const WireCounts wire = ranks_.wire();  // without what scores and the hash take
  print_memory_table();
  const auto print = [this](const std::string& line) { console_->result(line); };
  std::optional<Evaluation::Scores> scores;
  if (dataset_.question_length() > 0 && options_.score_samples > 0) {
    console_->log("Evaluating the trained model ...");
    try {
      scores = evaluation().scores(options_.score_samples, print);
      if (settings_.data.source == "sort") evaluation().print_example(print);
    } catch (const ConfigError& error) {  // a run that diverged still saves and reports
      console_->log(std::string("no scores: ") + error.what());
    }
  } else if (dataset_.question_length() == 0 && dataset_.epoch_samples(Split::validation) > 0) {
    validate();
  }
  if (!options_.save.empty()) save();
  const std::string hash = engine_->parameter_hash();
  console_->result("param_hash " + hash);
  if (!metrics_) return;
  FinalRecord record = {
      .steps = engine_->steps(), .skipped = engine_->skipped(), .param_hash = hash, .wire = wire};
  if (scores) {
    record.train_score = scores->train;
    record.test_score = scores->test;
  }
  metrics_->write(record);
}

}  // namespace zg::tools
