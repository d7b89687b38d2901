#include "tools/run/rank.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "tools/options/flags.h"
#include "tools/run/planner.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

template <class File, class... Arguments>
void open(const char* flag, std::optional<File>& file, const Arguments&... arguments) try {
  file.emplace(arguments...);
} catch (const FileError& error) {
  raise<FileError>("{}: {}", flag, error.what());
}

using models::Split;

constexpr int file_error = 5;  // exit status for file errors

// True every `interval` steps; false if `interval` is 0.
bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/// For the signals that a zero::InterruptScope handles.
std::string name_of_signal(int signal) {
  if (signal == SIGPIPE) return "SIGPIPE (the reader of the output has ended)";
  return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
}

// printf prints the sign of a NaN, which has no meaning.
double shown(double loss) { return std::isnan(loss) ? std::fabs(loss) : loss; }

/// Reasons to end a run; zero::TrainerHooks::stop returns an index into them plus 1.
constexpr int stop_reasons[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, kill_switch};

}  // namespace

void Rank::open_outputs() {
  if (is_first() && engine_->steps() == 0 && std::filesystem::is_regular_file(options_.audit.path))
    if (std::ifstream old(options_.audit.path); old.peek() != EOF)
      print_line(stderr, "--audit: replaces {}, which has {} lines", options_.audit.path,
                 std::count(std::istreambuf_iterator(old), {}, '\n'));
  // Until the next validation, retention uses the loss of the last validation, also after a resume.
  if (options_.eval_interval > 0) trainer_->set_score(trainer_->position().score);
  if (is_first() && !options_.metrics.empty())
    open("--metrics", metrics_, options_.metrics, !run_.resumed.empty(), engine_->steps());
  if (is_first() && !options_.tensorboard.empty())
    open("--tensorboard-dir", tensorboard_, options_.tensorboard);
  console_.emplace(options_.progress, engine_->steps(), options_.steps, !is_first());
  deepspeed_log_.emplace(options_.steps_per_print, engine_->steps(), options_.schedule,
                         options_.engine.update);
  // A short run prints about ten lines: the interval divides 100, so steps 0, 100, ... stay.
  log_interval_ = options_.log_interval;
  if (!options_.is_set("--log-interval"))
    for (const int64_t shorter : {50, 20, 10, 5, 2, 1})
      if (10 * shorter >= options_.steps - engine_->steps()) log_interval_ = shorter;
  if (is_first() && options_.log_interval > 0 && model_->flops_per_token() > 0.0)
    peak_flops_ =
        matmul_peak_or_zero(device_, options_.engine.compute) *
        std::min(ranks_.size(), std::max(1, available_cores() / device_.traits().threads));
}

void Rank::announce() {
  const Device::Traits& traits = device_.traits();
  const std::string hardware = device_.type() == Device::Type::cpu
                                   ? fmt::format("{}, {} thread{}", traits.isa, traits.threads,
                                                 traits.threads == 1 ? "" : "s")
                                   : device_.description();
  print_line(stderr, "rank {}/{} pid {} {}", ranks_.rank(), ranks_.size(),
             static_cast<int>(getpid()), device_.name());
  zero::OffloadOptions offload = options_.engine.offload;
  if (!keeps_optimizer_states(options_.engine)) offload.optimizer = Space::device;
  console_->log("{}{}, {}, ZeRO stage {}{}", hardware, ranks_.size() == 1 ? "" : " per rank",
                options_.precision(), options_.engine.stage, description_of(offload));
  if (device_.type() == Device::Type::cuda && ranks_.size() > 1)
    console_->log("ranks are connected by {}{}", ranks_.transport(),
                  options_.engine.nccl_reduce ? ", which sums gradients inexactly" : "");
  if (run_.algorithms)
    console_->log(
        "{} has the algorithms of {} products, checksum {}; other products use the first "
        "algorithm of cuBLASLt's heuristic",
        options_.matmul_algorithms, run_.algorithms->algorithms.size(), options_.matmul_checksum);
  if (const Axes& axes = options_.axes; axes.is_mesh())
    console_->log("{}; idle by formula {:.1f} %", description_of(axes, options_.data_ranks),
                  100.0 * pipeline_bubble(static_cast<int>(axes.pipeline), options_.accumulation));
  if (const std::string disk = swap_description(device_); !disk.empty())
    console_->log("disk {}: {}; {}", options_.offload.nvme_path, disk, swap_requests(device_));
  console_->log(run_.data_line);
  console_->log("batch {} = {} x {} micro-batch{}{}; steps {} to {}", options_.samples_per_step(),
                options_.micro_batch, options_.accumulation, options_.accumulation == 1 ? "" : "es",
                options_.data_ranks == 1 ? "" : fmt::format(" x {} ranks", options_.data_ranks),
                engine_->steps(), options_.steps);
  if (options_.rampup.start > 0)
    console_->log(description_of(options_.rampup, options_.samples_per_step()) +
                  fmt::format("; {} now", options_.step_samples()));
  if (options_.schedule.kind != zero::ScheduleKind::none)
    console_->log(description_of(options_.schedule));
  if (options_.universal_checkpoint)
    console_->log(
        "--universal-checkpoint has no effect: every checkpoint loads with any number of ranks "
        "and any stage");
  if (options_.lora.rank > 0) console_->log(description_of_adapters());
  if (!run_.resumed.empty())
    console_->log("resumed {}: {} samples seen", run_.resumed, options_.samples);
  for (const std::string& change : run_.changes) console_->log("changed: " + change);
  for (const std::string& warning : warnings_of(options_.characters, options_.data.source))
    console_->log("note: " + warning);
  if (!run_.resumed.empty() && engine_->steps() == options_.steps)
    console_->log("nothing is left to train: the run ends at step {}; --steps N sets a later end",
                  options_.steps);
  if (options_.save.empty()) console_->log("without --save DIR nothing of this run will be saved");
  for (const std::string& note : flags_without_effect(options_, options_.engine))
    console_->log("note: " + note);
  console_->result("number of parameters: {:.2f}M",
                   static_cast<double>(model_->shown_parameters()) / 1e6);
}

zero::ReportOptions Rank::report_options() const {
  const zero::RunPage page = page_of(run_);
  return {.path = options_.report,
          .title = page.title,
          .facts = page.facts,
          .settings = page.settings,
          .tokens = [this](int64_t, int64_t) { return model_->tokens(step_); },
          .metrics = options_.metrics,
          .compared = run_.compared};
}

std::string Rank::description_of_adapters() const {
  const LoraOptions& lora = options_.lora;
  int64_t all = 0, trained = 0;
  for (const auto& parameter : engine_->store().parameters()) {
    all += parameter->shape.numel();
    if (parameter->trainable) trained += parameter->shape.numel();
  }
  return fmt::format(
      "adapters of rank {}, alpha {:.6g}{}, on {}: {} of {} parameters{} are trained; base {}, "
      "hash {}",
      lora.rank, lora.alpha, lora.rank_stabilised ? " / sqrt(rank)" : "", lora.targets, trained,
      all, options_.axes.model_ranks() > 1 ? " of this rank" : "", options_.base.path,
      options_.base.hash);
}

int Rank::train(const zero::InterruptScope& interrupt, zero::CommonStop* stop) {
  load();
  open_outputs();
  announce();
  interrupt_ = &interrupt;
  stop_ = stop;
  try {
    return run_steps();
  } catch (const LeftEarly&) {
    return 0;
  } catch (...) {
    print_memory_table();  // shows the memory behind an OutOfMemory error
    throw;
  }
}

int Rank::run_steps() {
  ranks_.set_step(engine_->steps());
  inject_fault(Phase::init);
  ranks_.wait(ranks_.barrier("start"));
  // All ranks have loaded. Open files would keep the disk space of a checkpoint that is removed
  // later.
  if (is_first() || options_.process)
    for (const Checkpoint& checkpoint : {run_.checkpoint, run_.initial})
      if (checkpoint) checkpoint->close();
  const zero::TrainingEnd end = trainer_->run();
  using Reason = zero::TrainingEnd::Reason;
  if (end.reason == Reason::finished) {
    const int status = finish();
    finished_ = true;
    return !end.saved ? file_error : status;
  }
  if (!end.saved) return file_error;
  if (!options_.save.empty())
    console_->log("go on with: --resume {} --save {}", options_.save, options_.save);
  const int signal = signal_of(end);
  return signal == 0 || signal == kill_switch ? 0 : 128 + signal;
}

void Rank::begin_step() {
  if (is_planned_) return;
  write_trace();  // all ranks have finished the previous step
  ranks_.set_step(engine_->steps());
  inject_fault(Phase::begin);
  if (flip_) flip_->begin_step();
}

void Rank::note_step(const zero::TrainedStep& step) {
  if (!is_planned_) report(step);
  if (!options_.report.empty() && step.step < run_.steps_done + reported_steps)
    for (const MemoryRow& row : rows_.rows())
      if (row.step == step.step) reported_rows_.push_back(row);
  if (is_due(engine_->steps(), options_.eval_interval)) validate();
  if (is_due(engine_->steps(), options_.sample_interval)) print_sample();
}

void Rank::report(const zero::TrainedStep& step) {
  note_divergence(step.step, step.loss);
  if (!step.result.scaler_line.empty()) console_->log(step.result.scaler_line);
  if (step.result.skipped)
    console_->log("step {} skipped: the gradient of {} is not finite", step.step,
                  step.result.bad_tensor);
  seconds_ += step.seconds;
  const int64_t step_peak = rows_.step_peak();
  peak_bytes_ = std::max(peak_bytes_, step_peak);
  interrupt_->save_from_now();  // before the step is reported as done
  const auto speculated = engine_->speculated();
  const zero::StepRecord record = {
      .step = step.step,
      .micro_steps = step.micro_batches,
      .samples = step.samples,
      .loss = step.loss,
      .grad_norm = step.result.gradient_norm,
      .rate = step.rate,
      .loss_scale = step.result.loss_scale,
      .skipped = step.result.skipped,
      .tokens_per_second = static_cast<double>(model_->tokens(step_)) / step.seconds,
      .seconds = step.seconds,
      .peak_bytes = step_peak,
      .host_peak_bytes = rows_.host_step_peak(),
      .reduction_groups = options_.axes.reduction_groups,
      .bits = options_.bits,
      .redone = speculated ? std::optional(speculated->redone) : std::nullopt,
      .resumed = !run_.resumed.empty() && step.step == run_.steps_done};
  write("--metrics", metrics_, record);
  write("--tensorboard-dir", tensorboard_, record, place());
  print_step(record);
  if (launches_ && launches_->counted() && launches_->counted()->step == step.step && is_first())
    write_json("--kernels", options_.kernels, launches_->counted()->json());
}

// Tracks a non-finite loss. The run continues, as it may recover, and prints a warning at its end.
void Rank::note_divergence(int64_t step, double loss) {
  if (std::isfinite(loss)) {
    diverged_at_ = -1;
  } else if (diverged_at_ < 0) {
    diverged_at_ = step;
    console_->log("warning: the loss of step {} is not finite", step);
  }
}

// Logs the growth of the batch by --rampup-batch-size.
void Rank::note_growth(int64_t samples) {
  const int64_t next = trainer_->next_samples();
  if (next != samples && engine_->steps() < options_.steps)
    console_->log("batch {} = {} x {} from step {} on, after {} samples", next,
                  options_.micro_batch * options_.data_ranks, trainer_->next_micro_batches(),
                  engine_->steps(), trainer_->position().samples);
}

// A write error, for example on a full disk, loses the file and not the run.
template <class File, class... What>
void Rank::write(const char* flag, std::optional<File>& file, const What&... what) {
  if (!file) return;
  try {
    file->write(what...);
  } catch (const FileError& error) {
    console_->log("warning: {}: {}; no more of it is written, and training goes on", flag,
                  error.what());
    file.reset();
    results_lost_ = true;
  }
}

void Rank::print_step(const zero::StepRecord& record) {
  if (is_due(record.step, log_interval_)) {
    std::string line = fmt::format("iter_dt {:.2f}ms; iter {}: train loss {:.5f}; {:.0f} tokens/s",
                                   record.seconds * 1e3, record.step, shown(record.loss),
                                   record.tokens_per_second);
    if (peak_flops_ > 0.0)
      line += fmt::format("; {:.1f}% of matmul peak", 100.0 * record.tokens_per_second *
                                                          model_->flops_per_token() / peak_flops_);
    line += fmt::format("; lr {:.4g}; grad norm {:.4g}", record.rate, shown(record.grad_norm));
    console_->result(line);
  }
  for (const std::string& line :
       deepspeed_log_->lines({.steps = engine_->steps(),
       .skipped = engine_->skipped(),
       .micro_steps = trainer_->position().micro_batches / options_.data_ranks,
       .samples = record.samples,
       .next_rate = trainer_->next_rate(),
       .seconds = record.seconds,
       .live_bytes = rows_.rows().back().live,
       .peak_bytes = record.peak_bytes}))
    console_->result(line);
  note_growth(record.samples);
  console_->progress({record.step + 1, record.loss, record.tokens_per_second});
}

// Prints means over all ranks, as minGPT's benchmark does. Time between steps is not part of an
// epoch. A run shorter than one epoch counts as one.
void Rank::report_epochs() {
  const auto samples = static_cast<double>(trainer_->position().samples - options_.samples);
  if (run_.epoch_samples <= 0.0 || samples <= 0.0) return;
  const PurposeScope purpose(device_, Purpose::comm);
  const std::vector<int64_t> own = {std::llround(seconds_ * 1e6), peak_bytes_};
  const Tensor sums = Tensor::from(own, {2}, device_);
  ranks_.wait(ranks_.all_reduce(sums, "epochs"));
  const std::vector<int64_t> of_all = sums.to_host<int64_t>();
  const double ranks = ranks_.size(), epochs = std::max(1.0, samples / run_.epoch_samples);
  for (const std::string& line : epoch_lines({.device = device_.type(),
                                 .seconds = static_cast<double>(of_all[0]) * 1e-6 / ranks / epochs,
                                 .peak_bytes = static_cast<double>(of_all[1]) / ranks,
                                 .memory_bytes = physical_memory_bytes(),
                                 .available_bytes = available_memory_bytes()}))
    console_->result(line);
}

void Rank::write_trace() {
  TracedSteps* traced = run_.traced.get();
  const bool writes = is_first() || options_.process;
  if (!traced || !writes || traced->is_written || engine_->steps() < traced->steps.end) return;
  try {
    if (traced->write())
      console_->log("trace of steps {} to {}: {}", traced->steps.first, traced->steps.end - 1,
                    traced->path);
  } catch (const FileError& error) {
    console_->end_progress();
    print_line(stderr, "warning: --{}; training goes on", error.what());
    results_lost_ = true;
  }
}

zero::MetricsBoard::Progress Rank::place() const {
  return {.steps = engine_->steps(), .samples = trainer_->position().samples};
}

void Rank::validate() {
  if (validated_at_ == engine_->steps()) return;
  validated_at_ = engine_->steps();
  const double loss = validation_loss(options_.eval_batches);
  if (is_planned_) return;
  if (options_.eval_interval > 0) trainer_->set_score(loss);
  write("--tensorboard-dir", tensorboard_, zero::MetricsBoard::Validation{loss}, place());
  if (zero::Report* report = trainer_->report()) report->add_validation(engine_->steps(), loss);
  console_->result("val loss {:.4f}", shown(loss));
}

void Rank::print_sample() {
  const std::vector<int32_t> tokens = sample();
  if (is_planned_) return;
  console_->result(fmt::format("sample after step {}:\n", engine_->steps()) +
                   dataset_.decode(tokens));
}

// Prints the table at once, so that no other line appears between its rows.
void Rank::print_memory_table() {
  console_->end_progress();
  if (options_.dump_memory && !std::exchange(table_printed_, true))
    console_->result(memory_table(rows_.rows()));
}

void Rank::report_save(const std::string& step_n, const zero::CheckpointSave::Result& result) {
  if (is_planned_) return;
  if (result.failed_rank < 0) return console_->result("saved " + step_n);
  // After a failed save at an interval the same step may be saved again at the end of the run:
  // report the failure once.
  if (result.reason.empty() || std::exchange(reported_, step_n) == step_n) return;
  console_->end_progress();
  print_line(stderr,
             "save failed: {}: rank {}: {}; earlier checkpoints stay and the next save tries "
             "again; try to free space on the disk, or to repair it",
             step_n, ranks_.rank(), result.reason);
}

// Only rank 0 checks the file: two hosts may see it at different times.
int Rank::reason_to_end() const {
  if (is_planned_) return 0;
  int reason = interrupt_->signal();
  if (reason == 0 && is_first() && kill_switch_exists(options_.kill_switch)) reason = kill_switch;
  const auto* const found = std::ranges::find(stop_reasons, reason);
  return found == std::end(stop_reasons) ? 0
                                         : static_cast<int>(found - std::begin(stop_reasons)) + 1;
}

// The signal that ended the run, or kill_switch; 0: none.
int Rank::signal_of(const zero::TrainingEnd& end) const {
  if (end.reason == zero::TrainingEnd::Reason::given_up) return interrupt_->signal();
  return end.stop > 0 ? stop_reasons[end.stop - 1] : 0;
}

// Prints the lines that precede the save of the last step.
void Rank::note_end(const zero::TrainingEnd& end) {
  if (is_planned_) {
    memory_ = count_memory();
    return;
  }
  write_trace();
  if (end.reason == zero::TrainingEnd::Reason::finished) {
    interrupt_->save_from_now();
    stop_ = nullptr;
    memory_ = count_memory();  // excludes the memory of scores and the hash
    return print_memory_table();
  }
  print_memory_table();
  const int signal = signal_of(end);
  const std::string why =
      end.reason == zero::TrainingEnd::Reason::interval
          ? fmt::format("--exit-interval {} ends the run", options_.exit_interval)
      : signal == kill_switch ? fmt::format("the kill switch {} ends the run", options_.kill_switch)
                              : "interrupted by " + name_of_signal(signal);
  console_->log("{} after {} steps{}", why, engine_->steps(),
                options_.save.empty() ? "" : "; saving, a second signal ends that too");
  if (options_.save.empty()) console_->log("nothing is saved without --save DIR");
}

// Collective.
void Rank::complete_report(const std::string& hash) {
  zero::Report* const report = trainer_->report();
  if (!report && !options_.report.empty())
    console_->log("--report: {} is not written: the run took no step", options_.report);
  if (!report) return;
  RankMemory now = memory_;
  now.rows = rows_.rows();
  std::string own = fmt::format("{}", now.reserved[0]);
  for (const BytesByPurpose& space : reported(now).stored)
    for (const int64_t bytes : space) own += fmt::format(" {}", bytes);
  const std::vector<std::string> texts = gather_texts(ranks_, own);
  if (!is_first()) return;
  zero::RunPage& page = report->page();
  page.memory = {{"this run", reported_rows_}, {"its plan", run_.planned_rows}};
  page.blocks = reported_blocks_;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    zero::ReportedRank& kept = page.ranks.emplace_back();
    kept.rank = static_cast<int>(rank);
    std::istringstream numbers(texts[rank]);
    numbers >> kept.peak;
    for (BytesByPurpose& space : kept.stored)
      for (int64_t& bytes : space) numbers >> bytes;
  }
  report->set_fact("parameter hash", hash);
  if (const auto warning = report->write()) print_line(stderr, "warning: --{}", *warning);
  results_lost_ = results_lost_ || report->lost();
}

int Rank::finish() {
  report_epochs();
  // From here on a signal ends the process at once: eval can compute the scores again.
  if (is_first() || options_.process) interrupt_->release();
  const auto print = [this](const std::string& line) { console_->result(line); };
  std::optional<Evaluation::Scores> scores;
  if (dataset_.question_length() > 0 && options_.score_samples > 0) {
    console_->log("Evaluating the trained model ...");
    try {
      scores = evaluation().scores(options_.micro_batch, options_.score_samples, print);
      if (options_.data.source == "sort") evaluation().print_example(print);
    } catch (const ConfigError& error) {  // a diverged run still prints its results
      console_->log(std::string("no scores: ") + error.what());
    }
  } else if (dataset_.question_length() == 0 && dataset_.epoch_samples(Split::validation) > 0) {
    validate();
  }
  if (diverged_at_ >= 0)
    console_->log(
        "warning: the loss is not finite since step {}: this model cannot be used; try a lower "
        "--lr, or --clip 1",
        diverged_at_);
  const std::string hash = engine_->parameter_hash();
  console_->result("param_hash " + hash);
  zero::FinalRecord record = {.steps = engine_->steps(),
                              .skipped = engine_->skipped(),
                              .param_hash = hash,
                              .wire = memory_.wire,
                              .reduction_groups = options_.axes.reduction_groups,
                              .bits = options_.bits};
  if (scores) {
    record.train_score = scores->train;
    record.test_score = scores->test;
  }
  write("--metrics", metrics_, record);
  complete_report(hash);
  return results_lost_ || trainer_->audit_is_lost() ? file_error : 0;
}

}  // namespace zg::tools
