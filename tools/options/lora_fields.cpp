#include "tools/options/field_rows.h"
#include "tools/options/lora_flags.h"
#include "tools/options/model_flags.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {

Fields lora_fields(TrainOptions& options, LoraOptions& was) {
  LoraOptions& now = options.lora;
  return {
      {integer_flag({"--lora"}, now.rank,
                    "train adapters of this rank, and keep the weights of --from-hf\n"
                    "or --init as they are; checkpoints have the adapters alone",
                    {1, "off"}),
       must_equal({133, "run.lora_rank"}, now.rank, was.rank, count).sparse()},
      {number_flag({"--lora-alpha"}, now.alpha, positive, "their output is scaled by this / rank"),
       must_equal({134, "run.lora_alpha"}, now.alpha, was.alpha, positive).sparse()},
      {number_flag({"--lora-dropout"}, now.dropout, below_one, "on their input"),
       kept({135, "run.lora_dropout"}, now.dropout, was.dropout, below_one).sparse()},
      {text_flag({"--lora-targets"}, "NAMES", now.targets,
                 "layers that get one: all-linear, or the ends of names, as\n"
                 "q_proj,v_proj [PEFT's: c_attn, query_key_value, or q_proj,v_proj]"),
       must_equal({136, "run.lora_targets"}, now.targets, was.targets).sparse()},
      {switch_flag({"--rslora"}, now.rank_stabilised, "scale by alpha / sqrt(rank) instead"),
       must_equal({137, "run.rslora"}, now.rank_stabilised, was.rank_stabilised).sparse()},
      {path_flag({"--init-adapter"}, "DIR", options.initial_adapter, PathUse::reads,
                 "begin with the adapters in a folder of Hugging Face's PEFT, which\n"
                 "says what --lora and its flags say")},
      {checkpoint_flag({"--base"}, "PATH", options.moved_base,
                       "with --resume: where the weights are now that the adapters are for")},
  };
}

models::LoraConfig lora_of(const LoraOptions& options) {
  models::LoraConfig lora{.rank = options.rank,
                          .alpha = options.alpha,
                          .dropout = options.dropout,
                          .rank_stabilised = options.rank_stabilised};
  for (size_t begin = 0; begin <= options.targets.size() && !options.targets.empty();) {
    const size_t end = std::min(options.targets.find(',', begin), options.targets.size());
    lora.targets.push_back(options.targets.substr(begin, end - begin));
    begin = end + 1;
  }
  return lora;
}

LoraOptions lora_options(const models::LoraConfig& lora) {
  return {.rank = lora.rank,
          .alpha = lora.alpha,
          .dropout = lora.dropout,
          .rank_stabilised = lora.rank_stabilised,
          .targets = join(lora.targets, ",")};
}

}  // namespace zg::tools
