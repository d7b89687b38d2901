#include <algorithm>
#include <numeric>

#include "tools/options/field_rows.h"
#include "zerograd/runtime/text/format.h"

// The rows of the length and the learning rate.
namespace zg::tools {
namespace {

// Older checkpoints do not store the step at which their run ends.
bool has_length(const TrainOptions&, const RunSpec& saved) { return saved.steps > 0; }

bool same_schedule(const TrainOptions& now, const RunSpec& saved) {
  return now.schedule.kind == saved.schedule.kind;
}

// If the end of the schedule differs from the end of the run, a config has set it.
bool has_own_end(const TrainOptions& now, const RunSpec& saved) {
  return same_schedule(now, saved) && zero::decays(now.schedule.kind) && saved.steps > 0 &&
         saved.schedule.total_num_steps != saved.steps;
}

// If the decay ended with the run, it ends with the resumed run, too.
bool has_own_decay(const TrainOptions& now, const RunSpec& saved) {
  return now.train_samples == 0 || saved.schedule.annealing.lr_decay_samples != saved.train_samples;
}

// Lightning's flag: 120 batches, or 0.25 for a quarter of them.
void parse_epoch_limit(TrainOptions& options, const FlagValue& v) {
  options.epoch_limit = {};
  if (v.value.find('.') == std::string::npos)
    options.epoch_limit.batches = parse_integer(v.flag, v.value, 1, largest_count);
  else
    options.epoch_limit.share =
        parse_number(v.flag, v.value, {0.0, 1.0, true, false, "a share above 0 and at most 1.0"});
}

void parse_warmup_steps(TrainOptions& options, const FlagValue& v) {
  if (v.value.find('.') != std::string::npos && v.value.front() == '0')
    options.warmup_ratio =
        parse_number(v.flag, v.value, {0.0, 1.0, false, false, "a share below 1, or steps"});
  else
    options.schedule.warmup_num_steps = parse_integer(v.flag, v.value, 0, largest_count);
}

}  // namespace

BatchRampup parse_rampup(const std::string& flag, const std::string& value) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= value.size() && numbers.size() < 4;) {
    const size_t end = std::min(value.find(',', begin), value.size());
    numbers.push_back(parse_integer(flag, value.substr(begin, end - begin), 1, largest_count));
    begin = end + 1;
  }
  if (numbers.size() != 3)
    raise<ConfigError>("{}: expected START INCREMENT SAMPLES, as 16 16 5000000, got '{}'", flag,
                       printable(value));
  return {.start = numbers[0], .increment = numbers[1], .samples = numbers[2]};
}

void check_rampup(const BatchRampup& rampup, const zero::BatchSize& size) {
  if (rampup.start == 0) return;
  if (rampup.start > size.train)
    raise<ConfigError>(
        "--rampup-batch-size: expected a START of at most the batch that it grows to, {}, got {}; "
        "try a larger --train-batch-size",
        size.train, rampup.start);
  const int64_t growth = size.train - rampup.start;
  if (growth % rampup.increment != 0)
    raise<ConfigError>(
        "--rampup-batch-size: expected an INCREMENT that divides the growth from {} to {}, {}, got "
        "{}",
        rampup.start, size.train, growth, rampup.increment);
  // A limit, because the computation of the run's length visits every batch size.
  constexpr int64_t max_increments = int64_t{1} << 24;
  if (growth / rampup.increment > max_increments)
    raise<ConfigError>(
        "--rampup-batch-size: expected at most {} steps of INCREMENT from {} to {}, got {}",
        max_increments, rampup.start, size.train, growth / rampup.increment);
  // Samples of one micro-batch, over all ranks.
  const int64_t share = size.train / size.accumulation;
  const int64_t ranks = share / size.micro, common = rampup.common(size.train);
  if (common % share != 0)
    raise<ConfigError>(
        "--rampup-batch-size: expected START and INCREMENT that --batch-size x ranks, {} x {} = "
        "{}, divides, got {} and {}; try {}",
        size.micro, ranks, share, rampup.start, rampup.increment,
        common % ranks == 0 ? fmt::format("--batch-size {}", std::gcd(common / ranks, size.micro))
                            : fmt::format("numbers that {} ranks can share", ranks));
}

Fields length_fields() {
  return {
      // adopt() divides the batch again, for the number of ranks.
      {ZG_AT(batch.micro),
       integer_row({"--batch-size", "--per-device-train-batch-size", "--micro-batch-size", "-b"},
                   "samples in a micro-batch", {1, "64, conversations 8"}),
       not_stored, Config::micro_batch},
      {ZG_AT(micro_batch), may_change("run.micro_batch", extent)},
      {ZG_AT(batch.accumulation),
       integer_row({"--grad-accum", "--gradient-accumulation-steps"}, "micro-batches in a step",
                   {1, "1"}),
       not_stored, Config::accumulation},
      {ZG_AT(accumulation), may_change("run.accumulation", extent).in_audit(AuditPart::layout)},
      {ZG_AT(rampup.start),
       parsed_row(
           {"--rampup-batch-size"}, "START INCREMENT SAMPLES",
           "a step's samples grow from START by INCREMENT to --train-batch-size over\n"
           "the first SAMPLES",
           [](TrainOptions& o, const FlagValue& v) { o.rampup = parse_rampup(v.flag, v.value); },
           /*max_words=*/3),
       kept("run.rampup_start", count), by_tune},
      {ZG_AT(rampup.increment),
       kept("run.rampup_increment", count).unless({"--rampup-batch-size"})},
      {ZG_AT(rampup.samples), kept("run.rampup_samples", count).unless({"--rampup-batch-size"})},
      // 0 is accepted here; the batch solver's error explains it together with the other two flags.
      {ZG_AT(batch.train),
       integer_row({"--train-batch-size", "--global-batch-size"},
                   "samples in a step = batch-size x grad-accum x ranks", {0, ""}),
       not_stored, Config::train_batch},
      {ZG_AT(steps),
       integer_row({"--steps", "--train-iters"},
                   "optimizer steps, counted from step 0 also when resuming"),
       kept("run.steps", any_count)
           .unless({"--epochs", "--train-samples"})
           .when(has_length)
           .in_audit(AuditPart::none),
       by_tune},
      {ZG_AT(train_samples),
       integer_row({"--train-samples"},
                   "length in samples, instead of --steps; no step goes beyond it", {1, ""}),
       kept("run.train_samples", any_count)
           .unless({"--steps", "--epochs"})
           .when(has_length)
           .in_audit(AuditPart::none),
       by_tune},
      {ZG_AT(epochs),
       number_row({"--epochs", "--num-train-epochs"}, some_epochs,
                  "passes over the training data, instead of --steps; prints their average time "
                  "and peak memory at the end",
                  ""),
       kept("run.epochs", epoch_count)
           .unless({"--steps", "--train-samples"})
           .when(has_length)
           .in_audit(AuditPart::none),
       by_tune},
      {ZG_AT(epoch_limit), parsed_row({"--limit-train-batches"}, "N", "", parse_epoch_limit),
       by_tune},
      {ZG_AT(loss_mean),
       choice_row({"--loss-mean"}, {"micro_batch", "token"},
                  "loss and gradient of a step: the mean over micro-batches of the mean over\n"
                  "the targets of each, or the mean over all targets of the step",
                  "conversations: token"),
       kept("run.loss_mean").sparse()},
      {ZG_AT(max_bad_steps),
       integer_row({"--max-bad-steps"},
                   "end the run after N skipped steps or infinite losses in a row; 0: never")},
  };
}

Fields schedule_fields() {
  return {
      {ZG_AT(schedule.rate),
       number_row({"--lr", "--learning-rate"}, positive,
                  "learning rate; with a schedule, the highest rate"),
       kept("run.rate", not_negative), Config::rate},
      {ZG_AT(schedule.kind),
       choice_row({"--schedule"}, {"none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "cosine"},
                  "the learning rate over the steps taken: none, DeepSpeed's\n"
                  "WarmupLR, WarmupDecayLR or WarmupCosineLR, or nanoGPT's cosine",
                  "none", "S"),
       kept("run.schedule").unless({"--lr-scheduler-type"}),
       Config::schedule,
       {"--schedule", "--lr-scheduler-type", annealing_flags[0], annealing_flags[1],
        annealing_flags[2]}},
      {ZG_AT(schedule.kind),
       made_row([](TrainOptions& o) { return lr_scheduler_flag(o.schedule); })},
      {ZG_AT(schedule.lr_scheduler_kwargs),
       text_row({"--lr-scheduler-kwargs"}, "JSON",
                "numbers of --lr-scheduler-type, such as {\"num_decay_steps\": 100}"),
       kept("run.lr_scheduler_kwargs").sparse()},
      {ZG_AT(schedule.warmup_num_steps),
       parsed_row({"--warmup-steps", "--num-warmup-steps"}, "N",
                  "steps until the highest rate; below 1: as --warmup-ratio [DeepSpeed's 1000, "
                  "others 0]",
                  parse_warmup_steps),
       kept("run.warmup_steps", any_count).unless({"--warmup-ratio"}).when(same_schedule),
       Config::warmup_steps,
       {"--warmup-steps", "--warmup-ratio"}},
      {ZG_AT(warmup_ratio),
       number_row({"--warmup-ratio"}, share, "warm-up, as a share of the run's steps", "")},
      {ZG_AT(schedule.annealing.lr_decay_style),
       choice_row({"--lr-decay-style"}, {"linear", "cosine", "constant"},
                  "schedule by samples, as in Megatron: the rate rises linearly from 0 in\n"
                  "--lr-warmup-samples, then falls to --min-lr at --lr-decay-samples"),
       kept("run.decay_style"), by_tune},
      {ZG_AT(schedule.annealing.lr_warmup_samples),
       integer_row({"--lr-warmup-samples"}, "samples until the highest rate"),
       kept("run.warmup_samples", any_count), by_tune},
      {ZG_AT(schedule.annealing.lr_decay_samples),
       integer_row({"--lr-decay-samples"}, "samples until the lowest rate, from the first sample",
                   {1, "--train-samples"}),
       kept("run.decay_samples", any_count).when(has_own_decay), by_tune},
      {ZG_AT(schedule.min_rate),
       number_row({"--min-lr"}, not_negative,
                  "lowest rate of --lr-decay-style and of --schedule cosine"),
       kept("run.min_rate"), by_tune},
  };
}

// Only a config sets these fields. A resumed run takes them from its checkpoint, unless its config
// has the block to which they belong: `scheduler`, or `fp16` and `bf16`.
Fields config_only_fields() {
  const auto with_schedule = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).unless_config_sets("--schedule").when(same_schedule);
  };
  const auto with_precision = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).unless_config_sets("--precision");
  };
  return {
      {ZG_AT(schedule.total_num_steps),
       with_schedule("run.schedule_steps", any_count).when(has_own_end)},
      {ZG_AT(update().stochastic_rounding), with_precision("run.stochastic_rounding")},
      {ZG_AT(engine.loss_scaling.loss_scale), with_precision("run.loss_scale", not_negative)},
      {ZG_AT(engine.loss_scaling.window), with_precision("run.loss_scale_window", any_size)},
      {ZG_AT(engine.loss_scaling.hysteresis), with_precision("run.hysteresis", any_size)},
      {ZG_AT(engine.loss_scaling.consecutive_hysteresis),
       with_precision("run.consecutive_hysteresis")},
      {ZG_AT(engine.loss_scaling.min_loss_scale), with_precision("run.min_loss_scale", positive)},
      {ZG_AT(schedule.warmup_type), with_schedule("run.warmup_type")},
      {ZG_AT(schedule.warmup_min_lr), with_schedule("run.warmup_min_rate", not_negative)},
      {ZG_AT(schedule.warmup_min_ratio), with_schedule("run.warmup_min_ratio", share)},
      {ZG_AT(schedule.cos_min_ratio), with_schedule("run.cosine_min_ratio", share)},
      {ZG_AT(schedule.range_test.step_size), with_schedule("run.range_test_step_size", any_size)},
      {ZG_AT(schedule.range_test.step_rate), with_schedule("run.range_test_step_rate", finite)},
      {ZG_AT(schedule.range_test.staircase), with_schedule("run.range_test_staircase")},
      {ZG_AT(schedule.one_cycle.cycle_min_lr), with_schedule("run.cycle_min_rate", finite)},
      {ZG_AT(schedule.one_cycle.decay_lr_rate), with_schedule("run.cycle_decay_rate", finite)},
      {ZG_AT(schedule.one_cycle.cycle_first_step_size),
       with_schedule("run.cycle_first_steps", any_count)},
      {ZG_AT(schedule.one_cycle.cycle_second_step_size),
       with_schedule("run.cycle_second_steps", any_count)},
      {ZG_AT(schedule.one_cycle.decay_step_size),
       with_schedule("run.cycle_decay_steps", any_count)},
      {ZG_AT(schedule.one_cycle.cycle_momentum), with_schedule("run.cycle_momentum")},
      {ZG_AT(schedule.one_cycle.cycle_min_mom), with_schedule("run.cycle_min_momentum", finite)},
      {ZG_AT(schedule.one_cycle.cycle_max_mom), with_schedule("run.cycle_max_momentum", finite)},
      {ZG_AT(schedule.one_cycle.decay_mom_rate), with_schedule("run.cycle_momentum_decay", finite)},
  };
}

Fields lora_fields() {
  return {
      {ZG_AT(lora.rank),
       integer_row({"--lora"},
                   "train adapters of this rank, and keep the weights of --from-hf\n"
                   "or --init unchanged; checkpoints have the adapters only",
                   {1, "off"}),
       must_equal("run.lora_rank", count).sparse()},
      {ZG_AT(lora.alpha),
       number_row({"--lora-alpha"}, positive, "the output of adapters is scaled by alpha / rank"),
       must_equal("run.lora_alpha").sparse()},
      {ZG_AT(lora.dropout), number_row({"--lora-dropout"}, below_one, "dropout of adapters' input"),
       kept("run.lora_dropout").sparse()},
      {ZG_AT(lora.targets),
       text_row({"--lora-targets"}, "NAMES",
                "layers that get adapters: all-linear, or the ends of names, as\n"
                "q_proj,v_proj [PEFT's: c_attn, query_key_value, or q_proj,v_proj]"),
       must_equal("run.lora_targets").sparse()},
      {ZG_AT(lora.rank_stabilised), switch_row({"--rslora"}, "scale by alpha / sqrt(rank) instead"),
       must_equal("run.rslora").sparse()},
      {ZG_AT(initial_adapter),
       path_row({"--init-adapter"}, "DIR", PathUse::reads,
                "begin with the adapters in a folder of Hugging Face's PEFT, which\n"
                "replaces --lora and its flags")},
      {ZG_AT(moved_base),
       checkpoint_row({"--base"}, "PATH",
                      "with --resume: new path of the base weights of the adapters")},
  };
}

}  // namespace zg::tools
