#include "tools/options/field_rows.h"

namespace zg::tools {

Fields seq2seq_fields(Seq2SeqOptions& now, Seq2SeqOptions& was) {
  return {
      {no_flag, must_equal({124, "model.seq2seq"}, now.config, was.config)
                    .unless({"--model-type"})
                    .sparse()},
      {no_flag, kept({125, "model.generation"}, now.generation, was.generation)
                    .unless({"--model-type"})
                    .sparse()},
      {text_flag({"--source-prefix"}, "TEXT", now.source_prefix,
                 "before each source, such as \"chatbot: \""),
       kept({126, "data.source_prefix"}, now.source_prefix, was.source_prefix).sparse()},
      {integer_flag({"--max-source-length"}, now.max_source,
                    "tokens; the end of a longer source is dropped",
                    {1, "128, or the model's positions"}),
       kept({127, "data.max_source"}, now.max_source, was.max_source, count).sparse()},
      {integer_flag({"--max-target-length"}, now.max_target,
                    "tokens; the end of a longer target is dropped",
                    {1, "128, or the model's positions"}),
       kept({128, "data.max_target"}, now.max_target, was.max_target, count).sparse()},
      {switch_flag({"--pad-to-max-length"}, now.pad_to_max,
                   "pad every pair to these lengths; else a step's pairs to the longest of them"),
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
