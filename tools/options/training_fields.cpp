#include <algorithm>
#include <iterator>
#include <numeric>

#include "tools/options/field_rows.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

// The rows of the length, the learning rate and the update.
namespace zg::tools {
namespace {

// Older checkpoints do not store the step at which their run ends.
bool has_length(const TrainOptions&, const RunSpec& saved) { return saved.steps > 0; }

bool same_schedule(const TrainOptions& now, const RunSpec& saved) {
  return now.schedule.kind == saved.schedule.kind;
}

bool same_rule(const TrainOptions& now, const RunSpec& saved) {
  return now.engine.update.rule == saved.engine.update.rule;
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

void parse_optimizer(TrainOptions& options, const FlagValue& v) {
  using enum OptimizerRule;
  constexpr OptimizerRule rules[] = {adam, adam, lion, sgd, muon, adafactor};
  options.update().rule =
      rules[parse_choice(v.flag, v.value, {"adamw", "adam", "lion", "sgd", "muon", "adafactor"})];
  options.update().decoupled = v.value != "adam" && v.value != "sgd";
}

void parse_betas(TrainOptions& options, const FlagValue& v) {
  const size_t comma = v.value.find(',');
  if (comma == std::string::npos)
    raise<ConfigError>("{}: expected two numbers like 0.9,0.95, got '{}'", v.flag, v.value);
  const auto beta = [&](const std::string& word) {
    return static_cast<float>(parse_number(v.flag, word, below_one));
  };
  options.update().beta1 = beta(v.value.substr(0, comma));
  options.update().beta2 = beta(v.value.substr(comma + 1));
}

FlagRow precision_row() {
  FlagRow row = parsed_row(
      {"--precision"}, "P",
      "data type for computing, of values, activations and gradients: f32 or 32;\n"
      "bf16, or f16 or 16 with a loss scale, beside f32 masters; deepspeed,\n"
      "fsdp-mixed or fsdp-memory, whose dtypes plan --explain prints [f32]",
      [](TrainOptions& options, const FlagValue& v) {
        constexpr DType computes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f16};
        const size_t choice = parse_choice(
            v.flag, v.value,
            {"f32", "32", "bf16", "f16", "16", "deepspeed", "fsdp-mixed", "fsdp-memory"});
        const bool preset = choice >= std::size(computes);
        options.preset = preset ? v.value : "";
        if (!preset) options.engine.compute = computes[choice];
      });
  row.with_value = {{"--bf16", "bf16"}, {"--fp16", "f16"}};
  return row;
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
      {ZG_AT(accumulation), may_change("run.accumulation", extent)},
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
       kept("run.steps", any_count).unless({"--epochs", "--train-samples"}).when(has_length),
       by_tune},
      {ZG_AT(train_samples),
       integer_row({"--train-samples"},
                   "samples, instead of --steps: the last step is the last that does not go beyond",
                   {1, ""}),
       kept("run.train_samples", any_count).unless({"--steps", "--epochs"}).when(has_length),
       by_tune},
      {ZG_AT(epochs),
       number_row({"--epochs", "--num-train-epochs"}, some_epochs,
                  "passes over the training data, instead of --steps; at the end their average "
                  "time and peak",
                  ""),
       kept("run.epochs", epoch_count).unless({"--steps", "--train-samples"}).when(has_length),
       by_tune},
      {ZG_AT(epoch_limit), parsed_row({"--limit-train-batches"}, "N", "", parse_epoch_limit),
       by_tune},
      {ZG_AT(loss_mean),
       choice_row({"--loss-mean"}, {"micro_batch", "token"},
                  "a step's loss and gradient: the mean over micro-batches of the means over\n"
                  "their targets, or over all targets of the step",
                  "conversations: token"),
       kept("run.loss_mean").sparse()},
      {ZG_AT(max_bad_steps),
       integer_row({"--max-bad-steps"},
                   "skipped steps or infinite losses in a row that end the run; 0: never")},
  };
}

Fields schedule_fields() {
  return {
      {ZG_AT(schedule.rate),
       number_row({"--lr", "--learning-rate"}, positive,
                  "learning rate, the highest where a schedule moves it"),
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
                "its numbers, such as {\"num_decay_steps\": 100}"),
       kept("run.lr_scheduler_kwargs").sparse()},
      {ZG_AT(schedule.warmup_num_steps),
       parsed_row({"--warmup-steps", "--num-warmup-steps"}, "N",
                  "until the highest rate; below 1: a share, as --warmup-ratio [DeepSpeed's 1000, "
                  "others 0]",
                  parse_warmup_steps),
       kept("run.warmup_steps", any_count).unless({"--warmup-ratio"}).when(same_schedule),
       Config::warmup_steps,
       {"--warmup-steps", "--warmup-ratio"}},
      {ZG_AT(warmup_ratio),
       number_row({"--warmup-ratio"}, share, "the same, as a share of the run's steps", "")},
      {ZG_AT(schedule.annealing.lr_decay_style),
       choice_row({"--lr-decay-style"}, {"linear", "cosine", "constant"},
                  "the rate by samples, as Megatron: linearly up from 0 in\n"
                  "--lr-warmup-samples, then down to --min-lr at --lr-decay-samples"),
       kept("run.decay_style"), by_tune},
      {ZG_AT(schedule.annealing.lr_warmup_samples),
       integer_row({"--lr-warmup-samples"}, "until the highest rate"),
       kept("run.warmup_samples", any_count), by_tune},
      {ZG_AT(schedule.annealing.lr_decay_samples),
       integer_row({"--lr-decay-samples"}, "until the lowest, counted from the first",
                   {1, "--train-samples"}),
       kept("run.decay_samples", any_count).when(has_own_decay), by_tune},
      {ZG_AT(schedule.min_rate),
       number_row({"--min-lr"}, not_negative,
                  "the lowest rate, of --lr-decay-style and of --schedule cosine"),
       kept("run.min_rate"), by_tune},
  };
}

// Only a config sets these fields. A config sets all of them, so a run with a config takes none of
// them from its checkpoint.
Fields config_only_fields() {
  const auto with_schedule = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).unless({"--config"}).when(same_schedule);
  };
  const auto by_config = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).unless({"--config"});
  };
  return {
      {ZG_AT(schedule.total_num_steps),
       by_config("run.schedule_steps", any_count).when(has_own_end)},
      {ZG_AT(update().stochastic_rounding), by_config("run.stochastic_rounding")},
      {ZG_AT(engine.loss_scaling.loss_scale), by_config("run.loss_scale", not_negative)},
      {ZG_AT(engine.loss_scaling.window), by_config("run.loss_scale_window", any_size)},
      {ZG_AT(engine.loss_scaling.hysteresis), by_config("run.hysteresis", any_size)},
      {ZG_AT(engine.loss_scaling.consecutive_hysteresis), by_config("run.consecutive_hysteresis")},
      {ZG_AT(engine.loss_scaling.min_loss_scale), by_config("run.min_loss_scale", positive)},
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

Fields optimisation_fields() {
  const auto of_rule = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).when(same_rule);
  };
  return {
      {ZG_AT(update().rule),
       parsed_row({"--optimizer"}, "adamw|adam|lion|sgd|muon|adafactor",
                  "the rule of the update; adam and sgd add weight decay to the\n"
                  "gradients; muon: AdamW, but for hidden matrices; adafactor: second\n"
                  "moments of rows and columns alone, whole on every rank. Its --lr is\n"
                  "relative to a parameter's size and at most 1/sqrt(step): try 0.01 [adamw]",
                  parse_optimizer),
       kept("run.rule"), Config::optimizer},
      {ZG_AT(update().decoupled), kept("run.decoupled").unless({"--optimizer"})},
      {ZG_AT(update().momentum),
       number_row({"--momentum", "--sgd-momentum"}, below_one,
                  "of sgd; 0: no momentum, and no memory for it"),
       of_rule("run.momentum"), Config::momentum},
      {ZG_AT(update().dampening), of_rule("run.dampening", share).unless({"--optimizer"})},
      {ZG_AT(update().nesterov), switch_row({"--nesterov"}, "sgd: Nesterov's momentum"),
       of_rule("run.nesterov"), Config::nesterov},
      {ZG_AT(update().muon.momentum),
       number_row({"--muon-momentum"}, below_one, "of muon's matrices"),
       of_rule("run.muon_momentum"), Config::muon_momentum},
      {ZG_AT(update().muon.nesterov),
       switch_row({"--muon-nesterov"}, "muon: Nesterov's momentum; =off turns it off [on]"),
       of_rule("run.muon_nesterov"), Config::muon_nesterov},
      {ZG_AT(update().muon.rate),
       choice_row({"--muon-rate"},
                  {name_of(zero::MuonRate::original), name_of(zero::MuonRate::match_rms_adamw)},
                  "how muon adjusts the rate to a matrix, as torch's\nadjust_lr_fn"),
       of_rule("run.muon_rate"), Config::muon_rate},
      {ZG_AT(update().muon.adam_rate),
       number_row({"--muon-adam-rate"}, not_negative,
                  "of muon's AdamW, as a multiple of the learning rate"),
       of_rule("run.muon_adam_rate"), Config::muon_adam_rate},
      {ZG_AT(update().adafactor.beta2_decay),
       number_row({"--adafactor-beta2-decay"}, not_positive,
                  "adafactor: step^X is the weight of a new gradient"),
       of_rule("run.adafactor_beta2_decay")},
      {ZG_AT(update().adafactor.epsilon1),
       number_row({"--adafactor-eps1"}, positive, "adafactor: the least root of a second moment"),
       of_rule("run.adafactor_epsilon1")},
      {ZG_AT(update().adafactor.epsilon2),
       number_row({"--adafactor-eps2"}, not_negative,
                  "adafactor: the least root mean square of a parameter"),
       of_rule("run.adafactor_epsilon2")},
      {ZG_AT(update().adafactor.clip),
       number_row({"--adafactor-clip"}, from_one,
                  "adafactor: the largest root mean square of an update"),
       of_rule("run.adafactor_clip")},
      {ZG_AT(update().weight_decay),
       number_row({"--weight-decay"}, not_negative, "on matrices of linear layers"),
       kept("run.weight_decay"), Config::weight_decay},
      {ZG_AT(update().groups),
       text_row({"--parameter-groups"}, "PATTERN:rate=R,decay=D;...",
                "parameters whose names match have R times --lr and D for\n"
                "--weight-decay; the first match decides: '*.bias:rate=2;*wte*:decay=0'.\n"
                "optimizer=adamw: muon leaves their matrices to adamw"),
       kept("run.parameter_groups")},
      {ZG_AT(update().beta1),
       parsed_row({"--betas"}, "B1,B2",
                  "decay rates of AdamW, Adam, Lion and muon's AdamW [0.9,0.95]", parse_betas)},
      {ZG_AT(update().beta1),
       number_row({"--adam-beta1"}, below_one, "", ""),
       kept("run.beta1").unless({"--betas"}),
       Config::beta1,
       {"--betas", "--adam-beta1"}},
      {ZG_AT(update().beta2),
       number_row({"--adam-beta2"}, below_one, "", ""),
       kept("run.beta2").unless({"--betas"}),
       Config::beta2,
       {"--betas", "--adam-beta2"}},
      {ZG_AT(update().epsilon),
       number_row({"--adam-eps"}, positive,
                  "adamw, adam, muon: added to the root of the second moment"),
       kept("run.epsilon", not_negative).unless({"--config"}), Config::epsilon},
      {ZG_AT(engine.clip_norm),
       number_row({"--clip", "--clip-grad"}, not_negative, "largest gradient norm; 0: no clipping"),
       kept("run.clip_norm"), Config::clip_norm},
      {ZG_AT(preset), precision_row(), kept("run.preset"), Config::precision},
      {ZG_AT(engine.compute), kept("run.compute").unless({"--precision"})},
      {ZG_AT(engine.load), kept("run.load").unless({"--precision"})},
      {ZG_AT(engine.optimizer), kept("run.optimizer").unless({"--precision"})},
      {ZG_AT(engine.loss_scaling.initial_scale_power),
       integer_row({"--initial-scale-power"}, "f16: the loss is scaled by 2^N at first", {},
                   127)  // 2^127 is the largest power that an f32 holds
       ,
       kept("run.initial_scale_power", exponent), Config::initial_scale_power},
      {ZG_AT(activation_checkpoint),
       switch_row({"--activation-checkpoint", "--checkpoint-activations",
                   "--deepspeed-activation-checkpointing"},
                  "keep each block's input only and compute the rest again"),
       not_stored, Config::activation_checkpoint},
      {ZG_AT(initial_weights),
       checkpoint_row({"--init"}, "F", "weights from a safetensors file or a checkpoint")},
      {ZG_AT(from_hf),
       path_row({"--from-hf", "--model-name-or-path"}, "DIR", PathUse::reads,
                "a model of Hugging Face's transformers: config.json says which,\n"
                "model.safetensors has its weights; --block-size may take fewer positions,\n"
                "a text is read by its tokenizer")},
      {ZG_AT(seed), integer_row({"--seed"}, "of initial weights, data and dropout"),
       kept("run.seed", any_seed)},
  };
}

Fields lora_fields() {
  return {
      {ZG_AT(lora.rank),
       integer_row({"--lora"},
                   "train adapters of this rank, and keep the weights of --from-hf\n"
                   "or --init as they are; checkpoints have the adapters alone",
                   {1, "off"}),
       must_equal("run.lora_rank", count).sparse()},
      {ZG_AT(lora.alpha),
       number_row({"--lora-alpha"}, positive, "their output is scaled by this / rank"),
       must_equal("run.lora_alpha").sparse()},
      {ZG_AT(lora.dropout), number_row({"--lora-dropout"}, below_one, "on their input"),
       kept("run.lora_dropout").sparse()},
      {ZG_AT(lora.targets),
       text_row({"--lora-targets"}, "NAMES",
                "layers that get one: all-linear, or the ends of names, as\n"
                "q_proj,v_proj [PEFT's: c_attn, query_key_value, or q_proj,v_proj]"),
       must_equal("run.lora_targets").sparse()},
      {ZG_AT(lora.rank_stabilised), switch_row({"--rslora"}, "scale by alpha / sqrt(rank) instead"),
       must_equal("run.rslora").sparse()},
      {ZG_AT(initial_adapter),
       path_row({"--init-adapter"}, "DIR", PathUse::reads,
                "begin with the adapters in a folder of Hugging Face's PEFT, which\n"
                "says what --lora and its flags say")},
      {ZG_AT(moved_base),
       checkpoint_row({"--base"}, "PATH",
                      "with --resume: where the weights are now that the adapters are for")},
  };
}

}  // namespace zg::tools
