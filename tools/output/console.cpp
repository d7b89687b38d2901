#include "tools/output/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace zg::tools {
namespace {

std::string description_of(const zero::AnnealingOptions& annealing,
                           const zero::ScheduleOptions& schedule) {
  const std::string line = fmt::format("learning rate: {}, {:g} after {} samples of warmup, ",
                                       schedule.kind, schedule.rate, annealing.lr_warmup_samples);
  if (annealing.lr_decay_style == zero::DecayStyle::constant) return line + "then constant";
  return line + fmt::format("then {} to {:g} at {}", annealing.lr_decay_style, schedule.min_rate,
                            annealing.lr_decay_samples);
}

}  // namespace

// The line about the schedule. It shows two properties that matter in short runs: the first two
// steps of DeepSpeed's schedules have rate 0, and their warmup may be longer than the run.
std::string description_of(const zero::ScheduleOptions& schedule) {
  const char* name = zero::name_of(schedule.kind);
  if (schedule.kind == zero::ScheduleKind::annealing)
    return description_of(schedule.annealing, schedule);
  if (schedule.kind == zero::ScheduleKind::lr_range_test)
    return fmt::format("learning rate: {}, from {:g} up by {:g} in {} steps", name, schedule.rate,
                       schedule.rate * schedule.range_test.step_rate,
                       schedule.range_test.step_size);
  if (schedule.kind == zero::ScheduleKind::one_cycle)
    return fmt::format("learning rate: {}, from {:g} to {:g} in {} steps and back in {}", name,
                       schedule.one_cycle.cycle_min_lr, schedule.rate,
                       schedule.one_cycle.cycle_first_step_size,
                       schedule.one_cycle.cycle_second_step_size);
  std::string line = fmt::format("learning rate: {}, {:g} after {} steps of warmup", name,
                                 schedule.rate, schedule.warmup_num_steps);
  if (zero::decays(schedule.kind))
    line += fmt::format(", decaying until step {}", schedule.total_num_steps);
  if (zero::is_deepspeed_warmup(schedule.kind)) {
    const zero::Schedule rates(schedule);
    line += rates.rate(0) == rates.rate(1) ? fmt::format("; {:g} in the first two", rates.rate(0))
                                           : fmt::format("; {:g} in the first, {:g} in the second",
                                                         rates.rate(0), rates.rate(1));
  }
  if (zero::decays(schedule.kind) && schedule.total_num_steps < schedule.warmup_num_steps)
    line += fmt::format("; total_num_steps {} is less than warmup_num_steps {}",
                        schedule.total_num_steps, schedule.warmup_num_steps);
  return line;
}

std::string description_of(const Axes& axes, int64_t data_ranks) {
  return fmt::format(
      "mesh: data {} x pipeline {} x tensor {}{}{}", data_ranks, axes.pipeline, axes.tensor,
      axes.sequence_parallel ? ", which share the tokens too" : "",
      axes.reduction_groups ? fmt::format(", {} reduction groups", axes.reduction_groups) : "");
}

std::string description_of(const zero::OffloadOptions& offload) {
  std::string line;
  for (const auto& [kind, space] :
       {std::pair("parameters", offload.parameter), std::pair("gradients", offload.gradient),
        std::pair("optimizer", offload.optimizer), std::pair("activations", offload.activation)})
    if (space != Space::device)
      line += fmt::format(", {} on the {}", kind, space == Space::host ? "host" : "disk");
  return line;
}

std::string description_of(const BatchRampup& rampup, int64_t whole) {
  return fmt::format("the batch grows from {} by {} to {} over {} samples", rampup.start,
                     rampup.increment, whole, rampup.samples);
}

namespace {

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

std::string bar(double fraction, int width) {
  std::string cells(static_cast<size_t>(width) + 2, ' ');
  cells.front() = '[';
  cells.back() = ']';
  std::fill_n(cells.begin() + 1, static_cast<int>(fraction * width + 0.5), '=');
  return cells;
}

}  // namespace

Console::Console(TrainOptions::Progress progress, int64_t first_step, int64_t steps, bool silent)
    : first_(first_step), steps_(steps), silent_(silent) {
  using Progress = TrainOptions::Progress;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  mode_ = silent || progress == Progress::off ? Mode::none
          : terminal                          ? Mode::redrawn
          : progress == Progress::on          ? Mode::plain
                                              : Mode::none;
}

Console::~Console() { clear(); }

void Console::result(const std::string& line) {
  if (silent_) return;
  clear();
  print_line(stdout, "{}", line);
  std::fflush(stdout);
}

void Console::log(const std::string& line) {
  if (silent_) return;
  clear();
  print_line(stderr, "{}", line);
}

std::string Console::progress_line(const Now& now, int width) const {
  const double fraction =
      static_cast<double>(now.step) / static_cast<double>(std::max<int64_t>(steps_, 1));
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const int64_t done = now.step - first_;
  const double left =
      done > 0 ? seconds / static_cast<double>(done) * static_cast<double>(steps_ - now.step) : 0.0;
  const std::string numbers =
      fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", now.step, steps_, now.loss,
                  now.tokens_per_second, duration(left));
  const int room = std::min(30, width - static_cast<int>(numbers.size()) - 5);
  return room >= 5 ? bar(fraction, room) + "  " + numbers
                   : numbers.substr(0, static_cast<size_t>(std::max(width - 1, 0)));
}

void Console::progress(const Now& now) {
  if (mode_ == Mode::plain) {
    const int64_t tenth = now.step * 10 / std::max<int64_t>(steps_, 1);
    if (std::exchange(last_tenth_, tenth) == tenth) return;
    print_line(stderr, "{}", progress_line(now, 0x1000));
  } else if (mode_ == Mode::redrawn) {
    // Redraw at most ten times a second.
    const Clock::time_point moment = Clock::now();
    if (drawn_ && moment - drawn_at_ < std::chrono::milliseconds(100)) return;
    drawn_at_ = moment;
    std::fprintf(stderr, "\r\033[K%s", progress_line(now, terminal_width()).c_str());
    std::fflush(stderr);
    drawn_ = true;
  }
}

void Console::end_progress() {
  clear();
  mode_ = Mode::none;
}

void Console::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace zg::tools
