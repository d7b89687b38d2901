#include "tools/training.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tools/described.h"
#include "tools/early_end.h"
#include "tools/machine.h"
#include "tools/speed.h"
#include "tools/text.h"
#include "zerograd/kernels/peak.h"
#include "zerograd/models/generate.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/swap.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;
using models::Split;

constexpr int file_error = 5;  // its exit status

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// printf writes a NaN with its sign, which means nothing.
double shown(double loss) { return std::isnan(loss) ? std::fabs(loss) : loss; }

}  // namespace

Training::Training(const Run& run, Communicator& ranks, const Device& device)
    : run_(run),
      options_(run.options),
      dataset_(*run.dataset),
      ranks_(ranks),
      device_(device),
      stepper_(run, ranks, device,
               options_.dump_memory || !options_.memory_json.empty() ? MemoryRows::Keep::all_steps
                                                                     : MemoryRows::Keep::one_step),
      settings_(stepper_.settings()),
      engine_(stepper_.engine()) {
  prepare_engine();
}

void Training::prepare_engine() {
  if (!options_.save.empty())
    checkpoints_.emplace(
        zero::CheckpointDirectory::Options{
            .path = options_.save,
            .keep = options_.save_top_k,
            .behind = options_.async_save,
            .loss_of =
                [](const zero::CheckpointInfo& info, const std::string& step_n) {
                  return settings_from_json(info.config_json, step_n).loss;
                }},
        [this](const std::string& step_n, const zero::CheckpointSave::Result& result) {
          report_save(step_n, result);
        },
        [](const std::string& message) {
          std::fprintf(stderr, "warning: --save-top-k: %s\n", harmless(message).c_str());
        });
  micro_batches_ = stepper_.load();
  if (!run_.resumed.empty()) {
    if (lies_in(run_.resumed, options_.save)) saved_at_ = engine_.steps();
  }
  if (is_first() && !options_.metrics.empty())
    metrics_.emplace(options_.metrics, !run_.resumed.empty(), engine_.steps());
  if (is_first() && !options_.tensorboard.empty()) tensorboard_.emplace(options_.tensorboard);
  console_.emplace(options_.progress, engine_.steps(), run_.steps, !is_first());
  deepspeed_log_.emplace(options_.steps_per_print, engine_.steps(), settings_.optimisation.schedule,
                         settings_.optimisation.engine.adam);
  announce();
  if (is_first() && options_.log_interval > 0)
    peak_flops_ =
        matmul_peak_or_zero(device_, settings_.optimisation.engine.compute) *
        std::min(ranks_.size(), std::max(1, available_cores() / device_.traits().threads));
}

void Training::announce() {
  const Device::Traits& traits = device_.traits();
  const std::string hardware = device_.type() == Device::Type::cpu
                                   ? text("%s, %d thread%s", name_of(traits.isa), traits.threads,
                                          traits.threads == 1 ? "" : "s")
                                   : device_.description();
  std::fprintf(stderr, "rank %d/%d pid %d %s\n", ranks_.rank(), ranks_.size(),
               static_cast<int>(getpid()), device_.name().c_str());
  console_->log(
      text("%s%s, %s, ZeRO stage %d%s", hardware.c_str(), ranks_.size() == 1 ? "" : " per rank",
           settings_.optimisation.precision().c_str(), settings_.optimisation.engine.stage,
           described(settings_.optimisation.engine.offload).c_str()));
  if (device_.type() == Device::Type::cuda && ranks_.size() > 1)
    console_->log(
        "ranks are connected by " + ranks_.transport() +
        (settings_.optimisation.engine.nccl_reduce ? ", which sums gradients: inexact" : ""));
  if (const Axes& axes = settings_.axes; axes.model_ranks() > 1)
    console_->log(text(
        "mesh: data %lld x pipeline %lld x tensor %lld%s; idle by formula %.1f %%",
        (long long)settings_.ranks, (long long)axes.pipeline, (long long)axes.tensor,
        axes.sequence_parallel ? ", which share the tokens too" : "",
        100.0 * models::pipeline_bubble(static_cast<int>(axes.pipeline), settings_.accumulation)));
  if (const std::string drive = swap_description(device_); !drive.empty())
    console_->log(text("drive %s: %s; %s", options_.offload.nvme_path.c_str(), drive.c_str(),
                       swap_requests(device_).c_str()));
  console_->log(run_.data_line);
  console_->log(
      text("batch %lld = %lld x %lld micro-batch%s%s; steps %lld to %lld",
           (long long)settings_.samples_per_step(), (long long)settings_.micro_batch,
           (long long)settings_.accumulation, settings_.accumulation == 1 ? "" : "es",
           settings_.ranks == 1 ? "" : text(" x %lld ranks", (long long)settings_.ranks).c_str(),
           (long long)engine_.steps(), (long long)run_.steps));
  if (settings_.rampup.start > 0)
    console_->log(described(settings_.rampup, settings_.samples_per_step()) +
                  text("; %lld now", (long long)settings_.step_samples()));
  if (settings_.optimisation.schedule.kind != zero::ScheduleKind::none)
    console_->log(described(settings_.optimisation.schedule));
  if (options_.universal_checkpoint)
    console_->log(
        "--universal-checkpoint is without effect: every checkpoint loads with any number of ranks "
        "and any stage");
  if (!run_.resumed.empty())
    console_->log(
        text("resumed %s: %lld samples seen", run_.resumed.c_str(), (long long)settings_.samples));
  for (const std::string& change : run_.changes) console_->log("changed: " + change);
  for (const std::string& oddity : oddities_of(settings_.characters, settings_.data.source))
    console_->log("note: " + oddity);
  if (!run_.resumed.empty() && engine_.steps() == run_.steps)
    console_->log(text("nothing is left to train: the run ends at step %lld; --steps N goes beyond",
                       (long long)run_.steps));
  if (!run_.resumed.empty() && options_.save.empty())
    console_->log("without --save DIR nothing of this run will be saved");
  console_->result(text("number of parameters: %.2fM",
                        static_cast<double>(stepper_.model().transformer_parameters()) / 1e6));
}

int Training::run(const InterruptScope& interrupt, CommonStop* stop) {
  stepper_.stop_with(stop);
  try {
    return run_steps(interrupt);
  } catch (const LeftEarly&) {
    return 0;
  } catch (...) {
    print_memory_table();  // what led to an OutOfMemory, say
    throw;
  }
}

int Training::run_steps(const InterruptScope& interrupt) {
  ranks_.set_step(engine_.steps());
  stepper_.pass(Drill::Phase::init);
  ranks_.wait(ranks_.barrier("start"));
  // Every rank has loaded. Open files would keep the space of a checkpoint that is removed later.
  if (is_first() || options_.process)
    for (const Checkpoint& checkpoint : {run_.checkpoint, run_.initial})
      if (checkpoint) checkpoint->close();
  while (engine_.steps() < run_.steps) try {
      if (const std::optional<int> status = take_step(interrupt)) return *status;
    } catch (const Stopped&) {
      return end_early("interrupted by " + name_of_signal(interrupt.signal()),
                       128 + interrupt.signal());
    }
  interrupt.save_from_now();
  stepper_.stop_with(nullptr);
  memory_ = stepper_.rank_memory();  // without what scores and the hash take
  const int status = finish(interrupt);
  finished_ = true;
  return status;
}

// A step and what follows it. The exit status where the run ends here, before its last step.
std::optional<int> Training::take_step(const InterruptScope& interrupt) {
  ranks_.set_step(engine_.steps());
  stepper_.pass(Drill::Phase::begin);
  const StepRecord record = train_step(engine_.steps());
  interrupt.save_from_now();  // before anybody reads that the step is done
  report(record);
  if (checkpoints_) checkpoints_->look();
  report_periodic(engine_.steps());
  const int reason = stepper_.agreed(reason_to_end(interrupt));
  write_trace();  // every rank has taken the step
  if (reason)
    return reason == kill_switch
               ? end_early("the kill switch " + options_.kill_switch + " ends the run", 0)
               : end_early("interrupted by " + name_of_signal(reason), 128 + reason);
  if (is_due(engine_.steps(), options_.exit_interval) && engine_.steps() < run_.steps)
    return end_early(text("--exit-interval %lld ends the run", (long long)options_.exit_interval),
                     0);
  return std::nullopt;
}

StepRecord Training::train_step(int64_t step) {
  const Clock::time_point start = Clock::now();
  const auto [micro_batches, samples, loss, rate, result] = stepper_.step();
  micro_batches_ += micro_batches * settings_.ranks;
  note_divergence(step, loss);
  if (options_.eval_interval == 0) settings_.loss = loss;
  if (!result.scaler_line.empty()) console_->log(result.scaler_line);
  if (result.skipped)
    console_->log(text("step %lld skipped: the gradient of %s is not finite", (long long)step,
                       result.bad_tensor.c_str()));

  const double seconds = seconds_since(start);
  seconds_ += seconds;
  peak_bytes_ = std::max(peak_bytes_, stepper_.memory().step_peak());
  return {.step = step,
          .micro_steps = micro_batches,
          .samples = samples,
          .loss = loss,
          .grad_norm = result.gradient_norm,
          .rate = rate,
          .loss_scale = result.loss_scale,
          .skipped = result.skipped,
          .tokens_per_second = static_cast<double>(samples * dataset_.block_size()) / seconds,
          .seconds = seconds,
          .peak_bytes = stepper_.memory().step_peak(),
          .host_peak_bytes = stepper_.memory().host_step_peak()};
}

// A run that diverged goes on, as it may come back, and its end has no error: it says so instead.
void Training::note_divergence(int64_t step, double loss) {
  if (std::isfinite(loss)) {
    diverged_at_ = -1;
  } else if (diverged_at_ < 0) {
    diverged_at_ = step;
    console_->log(text("warning: the loss of step %lld is not finite", (long long)step));
  }
}

// Of a batch that --rampup-batch-size lets grow.
void Training::note_growth(int64_t samples) {
  const int64_t next = settings_.step_samples();
  if (next != samples && engine_.steps() < run_.steps)
    console_->log(text("batch %lld = %lld x %lld from step %lld on, after %lld samples",
                       (long long)next, (long long)settings_.micro_batch * settings_.ranks,
                       (long long)settings_.step_accumulation(), (long long)engine_.steps(),
                       (long long)settings_.samples));
}

// A disk that is full costs what it was to keep, and not the run.
template <class File, class... What>
void Training::write(std::optional<File>& file, const What&... what) {
  if (!file) return;
  try {
    file->write(what...);
  } catch (const FileError& error) {
    console_->log(std::string("error: FileError: ") + error.what() +
                  "; no more of it is written, and training goes on");
    file.reset();
    results_lost_ = true;
  }
}

void Training::report(const StepRecord& record) {
  write(metrics_, record);
  write(tensorboard_, record, place());
  if (is_due(record.step, options_.log_interval)) {
    std::string line =
        text("iter_dt %.2fms; iter %lld: train loss %.5f; %.0f tokens/s", record.seconds * 1e3,
             (long long)record.step, shown(record.loss), record.tokens_per_second);
    if (peak_flops_ > 0.0)
      line += text(
          "; %.1f%% of matmul peak",
          100.0 * record.tokens_per_second * matmul_flops_per_token(settings_.model) / peak_flops_);
    console_->result(line);
  }
  report_as_deepspeed(record);
  note_growth(record.samples);
  console_->progress({record.step + 1, record.loss, record.tokens_per_second});
}

void Training::report_as_deepspeed(const StepRecord& record) {
  const int64_t steps = engine_.steps();
  for (const std::string& line : deepspeed_log_->lines({.steps = steps,
                                 .skipped = engine_.skipped(),
                                 .micro_steps = micro_batches_ / settings_.ranks,
                                 .samples = record.samples,
                                 .next_rate = stepper_.rate(),
                                 .seconds = record.seconds,
                                 .live_bytes = stepper_.memory().rows().back().live,
                                 .peak_bytes = record.peak_bytes}))
    console_->result(line);
}

void Training::report_periodic(int64_t step) {
  if (is_due(step, options_.eval_interval)) validate();
  if (is_due(step, options_.sample_interval)) print_sample();
  if (is_due(step, options_.save_interval)) save();
}

// Means of all ranks, as minGPT's benchmark has them. What comes between steps is no part of an
// epoch, and a run of less than one is one that was cut short.
void Training::report_epochs() {
  const auto samples = static_cast<double>(settings_.samples - run_.settings.samples);
  if (run_.epoch_samples <= 0.0 || samples <= 0.0) return;
  const PurposeScope purpose(device_, Purpose::comm);
  const std::vector<int64_t> own = {std::llround(seconds_ * 1e6), peak_bytes_};
  const Tensor sums = Tensor::from(own, {2}, device_);
  ranks_.wait(ranks_.all_reduce(sums, "epochs"));
  const std::vector<int64_t> of_all = sums.to_host<int64_t>();
  const double ranks = ranks_.size(), epochs = std::max(1.0, samples / run_.epoch_samples);
  for (const std::string& line :
       epoch_lines({.seconds = static_cast<double>(of_all[0]) * 1e-6 / ranks / epochs,
       .peak_bytes = static_cast<double>(of_all[1]) / ranks,
       .memory_bytes = physical_memory_bytes(),
       .available_bytes = available_memory_bytes()}))
    console_->result(line);
}

void Training::write_trace() {
  TracedSteps* traced = run_.traced.get();
  const bool writes = is_first() || options_.process;
  if (!traced || !writes || traced->is_written || engine_.steps() < traced->steps.end) return;
  try {
    if (traced->write())
      console_->log(text("trace of steps %lld to %lld: %s", (long long)traced->steps.first,
                         (long long)(traced->steps.end - 1), traced->path.c_str()));
  } catch (const FileError& error) {
    console_->end_progress();
    std::fprintf(stderr, "error: FileError: %s; training goes on\n", error.what());
    results_lost_ = true;
  }
}

TensorBoardFile::Place Training::place() const {
  return {.steps = engine_.steps(), .samples = settings_.samples};
}

void Training::validate() {
  if (validated_at_ == engine_.steps()) return;
  validated_at_ = engine_.steps();
  const double loss = stepper_.validation_loss();
  if (options_.eval_interval > 0) settings_.loss = loss;
  write(tensorboard_, TensorBoardFile::Validation{loss}, place());
  console_->result(text("val loss %.4f", shown(loss)));
}

void Training::print_sample() {
  console_->result(text("sample after step %lld:\n", (long long)engine_.steps()) +
                   dataset_.decode(stepper_.sample()));
}

// Once and in one piece: lines between its rows would break the table.
void Training::print_memory_table() {
  console_->end_progress();
  if (options_.dump_memory && !std::exchange(table_printed_, true))
    console_->result(memory_table(stepper_.memory().rows()));
}

void Training::save() {
  if (saved_at_ == engine_.steps()) return;
  stepper_.pass(Drill::Phase::save, engine_.steps() - 1);
  saved_at_ =
      checkpoints_->save(engine_, stepper_.checkpoint_info(micro_batches_)) ? engine_.steps() : -1;
}

/// With what the run has come to on the disk; false: it is not there.
bool Training::save_last() {
  if (!checkpoints_) return true;
  if (!checkpoints_->finish()) saved_at_ = -1;
  save();
  return checkpoints_->finish();
}

void Training::report_save(const std::string& step_n, const zero::CheckpointSave::Result& result) {
  if (result.failed_rank < 0) return console_->result("saved " + step_n);
  // The end of a run tries the last step again that an interval could not save.
  if (result.reason.empty() || std::exchange(reported_, step_n) == step_n) return;
  console_->end_progress();
  std::fprintf(stderr,
               "save failed: %s: rank %d: %s; earlier checkpoints stay and the next save tries "
               "again; try to make room or, where that is not it, to repair the place\n",
               step_n.c_str(), ranks_.rank(), harmless(result.reason).c_str());
}

// One rank looks for the file: on two hosts it may come at different times.
int Training::reason_to_end(const InterruptScope& interrupt) const {
  const int signal = interrupt.signal();
  return signal == 0 && is_first() && has_come(options_.kill_switch) ? kill_switch : signal;
}

int Training::end_early(const std::string& why, int status) {
  print_memory_table();
  console_->log(text("%s after %lld steps%s", why.c_str(), (long long)engine_.steps(),
                     options_.save.empty() ? "" : "; saving, a second signal ends that too"));
  if (options_.save.empty()) console_->log("nothing is saved without --save DIR");
  if (!save_last()) return file_error;
  if (checkpoints_)
    console_->log(
        text("go on with: --resume %s --save %s", options_.save.c_str(), options_.save.c_str()));
  return status;
}

int Training::finish(const InterruptScope& interrupt) {
  print_memory_table();
  const int status = save_last() ? 0 : file_error;  // before anything else can fail
  report_epochs();
  if (is_first() || options_.process) interrupt.release();  // scores can be had again with eval
  const auto print = [this](const std::string& line) { console_->result(line); };
  std::optional<Evaluation::Scores> scores;
  if (dataset_.question_length() > 0 && options_.score_samples > 0) {
    console_->log("Evaluating the trained model ...");
    try {
      scores = stepper_.evaluation().scores(settings_.micro_batch, options_.score_samples, print);
      if (settings_.data.source == "sort") stepper_.evaluation().print_example(print);
    } catch (const ConfigError& error) {  // a run that diverged still reports
      console_->log(std::string("no scores: ") + error.what());
    }
  } else if (dataset_.question_length() == 0 && dataset_.epoch_samples(Split::validation) > 0) {
    validate();
  }
  if (diverged_at_ >= 0)
    console_->log(
        text("warning: the loss is not finite since step %lld: this model is of no use; "
             "try a lower --lr, or --clip 1",
             (long long)diverged_at_));
  const std::string hash = engine_.parameter_hash();
  console_->result("param_hash " + hash);
  FinalRecord record = {.steps = engine_.steps(),
                        .skipped = engine_.skipped(),
                        .param_hash = hash,
                        .wire = memory_.wire};
  if (scores) {
    record.train_score = scores->train;
    record.test_score = scores->test;
  }
  write(metrics_, record);
  return status == 0 && results_lost_ ? file_error : status;
}

}  // namespace zg::tools
