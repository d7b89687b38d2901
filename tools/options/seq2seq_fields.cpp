#include "tools/options/field_rows.h"
#include "tools/options/seq2seq_flags.h"

namespace zg::tools {

Fields seq2seq_fields(Seq2SeqOptions& now, Seq2SeqOptions& was) {
  constexpr const char* own_length = "128, or the model's positions";
  return {
      {no_flag, must_equal({124, "model.seq2seq"}, now.config, was.config)
                    .unless({"--model-type"})
                    .sparse()},
      {no_flag, kept({125, "model.generation"}, now.generation, was.generation)
                    .unless({"--model-type"})
                    .sparse()},
      {source_prefix_flag(now),
       kept({126, "data.source_prefix"}, now.source_prefix, was.source_prefix).sparse()},
      {max_source_flag(now, own_length),
       kept({127, "data.max_source"}, now.max_source, was.max_source, count).sparse()},
      {max_target_flag(now, own_length),
       kept({128, "data.max_target"}, now.max_target, was.max_target, count).sparse()},
      {pad_to_max_flag(now),
       kept({129, "data.pad_to_max"}, now.pad_to_max, was.pad_to_max).sparse()},
      {integer_flag({"--n-train"}, now.train_pairs, "train on the first N training pairs",
                    {1, "all"}),
       kept({130, "data.train_pairs"}, now.train_pairs, was.train_pairs, count).sparse()},
      {integer_flag({"--n-val"}, now.validation_pairs, "validate on the first N validation pairs",
                    {1, "all"}),
       kept({131, "data.validation_pairs"}, now.validation_pairs, was.validation_pairs, count)
           .sparse()},
      {number_flag({"--label-smoothing"}, now.label_smoothing, below_one,
                   "share of each label's weight that all tokens get, in training"),
       kept({132, "run.label_smoothing"}, now.label_smoothing, was.label_smoothing, below_one)
           .sparse()},
  };
}

}  // namespace zg::tools
