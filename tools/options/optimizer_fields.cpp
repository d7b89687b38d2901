#include <iterator>

#include "tools/options/field_rows.h"
#include "tools/options/flags.h"
#include "zerograd/runtime/text/format.h"

// Rows of the table of settings (fields.h): the optimizer.
namespace zg::tools {
namespace {

bool same_rule(const TrainOptions& now, const RunSpec& saved) {
  return now.engine.update.rule == saved.engine.update.rule;
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
      "dtype of values, activations and gradients: f32 or 32; bf16 with f32 masters;\n"
      "f16 or 16 with f32 masters and a loss scale; or the presets deepspeed,\n"
      "fsdp-mixed and fsdp-memory, whose dtypes plan --explain prints [f32]",
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

Fields optimisation_fields() {
  const auto of_rule = [](const char* key, Bounds bounds = {}) {
    return kept(key, bounds).when(same_rule);
  };
  return {
      {ZG_AT(update().rule),
       parsed_row({"--optimizer"}, "adamw|adam|lion|sgd|muon|adafactor",
                  "the rule of the update; adam and sgd add weight decay to the\n"
                  "gradients; muon updates hidden matrices, AdamW the rest; adafactor has\n"
                  "second moments of rows and columns only, whole on every rank. Its --lr\n"
                  "is relative to a parameter's size and at most 1/sqrt(step): try 0.01 [adamw]",
                  parse_optimizer),
       kept("run.rule"), Config::optimizer},
      {ZG_AT(update().decoupled), kept("run.decoupled").unless({"--optimizer"})},
      {ZG_AT(update().momentum),
       number_row({"--momentum", "--sgd-momentum"}, below_one,
                  "momentum of sgd; 0: no momentum, and no memory for it"),
       of_rule("run.momentum"), Config::momentum},
      {ZG_AT(update().dampening), of_rule("run.dampening", share).unless({"--optimizer"})},
      {ZG_AT(update().nesterov), switch_row({"--nesterov"}, "sgd: Nesterov's momentum"),
       of_rule("run.nesterov"), Config::nesterov},
      {ZG_AT(update().muon.momentum),
       number_row({"--muon-momentum"}, below_one, "momentum of muon's matrices"),
       of_rule("run.muon_momentum"), Config::matrix_momentum},
      {ZG_AT(update().muon.nesterov),
       switch_row({"--muon-nesterov"}, "muon: Nesterov's momentum; =off turns it off [on]"),
       of_rule("run.muon_nesterov"), Config::matrix_nesterov},
      {ZG_AT(update().muon.rate),
       choice_row({"--muon-rate"},
                  {name_of(zero::MuonRate::original), name_of(zero::MuonRate::match_rms_adamw)},
                  "how muon adjusts the rate to a matrix, as torch's\nadjust_lr_fn"),
       of_rule("run.muon_rate"), Config::matrix_rate},
      {ZG_AT(update().muon.adam_rate),
       number_row({"--muon-adam-rate"}, not_negative,
                  "rate of muon's AdamW, as a multiple of the learning rate"),
       of_rule("run.muon_adam_rate"), Config::adam_rate},
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
       number_row({"--weight-decay"}, not_negative, "weight decay of the linear layers' matrices"),
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
       kept("run.epsilon", not_negative), Config::epsilon},
      {ZG_AT(engine.clip_norm),
       number_row({"--clip", "--clip-grad"}, not_negative, "largest gradient norm; 0: no clipping"),
       kept("run.clip_norm"), Config::clip_norm},
      {ZG_AT(preset), precision_row(), kept("run.preset"), Config::precision},
      {ZG_AT(engine.compute), kept("run.compute").unless({"--precision"})},
      {ZG_AT(engine.load), kept("run.load").unless({"--precision"})},
      {ZG_AT(engine.optimizer), kept("run.optimizer").unless({"--precision"})},
      // 2^127 is the largest power of 2 that an f32 holds.
      {ZG_AT(engine.loss_scaling.initial_scale_power),
       integer_row({"--initial-scale-power"}, "f16: the loss is scaled by 2^N at first", {}, 127),
       kept("run.initial_scale_power", exponent), Config::initial_scale_power},
      {ZG_AT(activation_checkpoint),
       switch_row({"--activation-checkpoint", "--checkpoint-activations",
                   "--deepspeed-activation-checkpointing"},
                  "keep only each block's input; compute the rest again in backward"),
       not_stored, Config::activation_checkpoint},
      {ZG_AT(initial_weights),
       checkpoint_row({"--init"}, "F", "weights from a safetensors file or a checkpoint")},
      {ZG_AT(from_hf),
       path_row({"--from-hf", "--model-name-or-path"}, "DIR", PathUse::reads,
                "folder of Hugging Face's transformers: config.json describes the model,\n"
                "model.safetensors has its weights, its tokenizer encodes texts;\n"
                "--block-size may be smaller than its positions")},
      {ZG_AT(seed), integer_row({"--seed"}, "seed of initial weights, data and dropout"),
       kept("run.seed", any_seed)},
  };
}

void check_optimizer_flags(const Given& given, const zero::UpdateOptions& update) {
  using enum OptimizerRule;
  const OptimizerRule rule = update.rule;
  const struct {
    bool has;  ///< the optimizer has these numbers
    std::vector<const char*> flags;
    const char* expected;
  } rows[] = {
      {rule == sgd, {"--momentum", "--nesterov"}, "sgd"},
      {rule != sgd && rule != adafactor,
       {"--betas", "--adam-beta1", "--adam-beta2"},
       "adamw, adam, lion or muon, which have betas"},
      {rule == adam || rule == muon, {"--adam-eps"}, "adamw, adam or muon, which have an epsilon"},
      {rule == muon,
       {"--muon-momentum", "--muon-nesterov", "--muon-rate", "--muon-adam-rate"},
       "muon"},
      {rule == adafactor,
       {"--adafactor-beta2-decay", "--adafactor-eps1", "--adafactor-eps2", "--adafactor-clip"},
       "adafactor"}};
  for (const auto& row : rows)
    if (!row.has)
      refuse_flags(given, row.flags,
                   fmt::format("the optimizer is {}; expected {}; leave the flag out",
                               zero::optimizer_name(update), row.expected));
}

}  // namespace zg::tools
