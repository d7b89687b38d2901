#include "tools/optimisation_flags.h"

#include "runtime/error.h"
#include "tools/flags.h"

namespace zg::tools {
namespace {

Flag betas_flag(zero::AdamOptions& adam) {
  return {{"--betas"},
          "B1,B2",
          "AdamW's decay rates [0.9,0.95]",
          [&adam](const std::string& name, const std::string& value) {
            const size_t comma = value.find(',');
            if (comma == std::string::npos)
              throw ConfigError(name + ": expected two numbers like 0.9,0.95, got '" + value + "'");
            adam.beta1 = static_cast<float>(parse_number(name, value.substr(0, comma), below_one));
            adam.beta2 = static_cast<float>(parse_number(name, value.substr(comma + 1), below_one));
          }};
}

Flag precision_flag(zero::Config& engine) {
  return {{"--precision"},
          "f32|bf16",
          "of values, activations and gradients; masters stay f32 [f32]",
          [&engine](const std::string& name, const std::string& value) {
            static const std::vector<std::string> known = {
                "f32", "32", "bf16", "f16", "16", "deepspeed", "fsdp-mixed", "fsdp-memory"};
            const size_t choice = parse_choice(name, value, known);
            if (choice > 2)
              throw Unsupported(name + " " + value +
                                ": this version computes in f32 or bf16; try --precision bf16");
            engine.compute = choice == 2 ? DType::bf16 : DType::f32;
          }};
}

}  // namespace

std::vector<Flag> optimisation_flags(TrainOptions& options) {
  zero::Config& engine = options.optimisation.engine;
  return {
      number_flag({"--lr", "--learning-rate"}, options.optimisation.rate, positive,
                  "learning rate, constant"),
      number_flag({"--weight-decay"}, engine.adam.weight_decay, not_negative,
                  "AdamW's, on matrices of linear layers"),
      betas_flag(engine.adam),
      number_flag({"--clip"}, engine.clip_norm, not_negative,
                  "largest gradient norm; 0: no clipping"),
      precision_flag(engine),
      switch_flag({"--activation-checkpoint"}, options.activation_checkpoint,
                  "keep each block's input only and compute the rest again"),
      text_flag({"--init"}, "F", options.initial_weights,
                "weights from a safetensors file or a checkpoint"),
      seed_flag(options.seed, "of initial weights, data and dropout"),
  };
}

}  // namespace zg::tools
