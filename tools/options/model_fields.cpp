#include <algorithm>

#include "tools/options/field_rows.h"
#include "tools/run/data_file.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/runtime/text/format.h"

// Rows of the table of settings (fields.h): data and model.
namespace zg::tools {
namespace {

// The values of --model-type: presets and families of decoders, then those of encoder-decoders.
const std::vector<std::string>& model_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = models::GPTConfig::preset_names();
    for (const models::Family family : models::all_families)
      if (family != models::Family::gpt) all.emplace_back(name_of(family));
    for (const std::string& name : seq2seq_names()) all.push_back(name);
    return all;
  }();
  return names;
}

std::vector<NamedPath> data_files(const std::string& source) {
  std::vector<std::string> paths;
  const std::string prefix = indexed_prefix(source);
  if (!prefix.empty())
    paths = {prefix + ".bin", prefix + ".idx"};
  else if (source != "sort" && source != "adder")
    paths = {source};
  return used(PathUse::reads, paths);
}

std::array<double, 3> parse_split(const std::string& flag, const std::string& value) {
  constexpr Range weight{0.0, 1e12, false, false, "up to three weights from 0, like 949,50,1"};
  std::array<double, 3> weights{};
  size_t begin = 0;
  for (size_t i = 0; begin <= value.size(); ++i) {
    const size_t end = std::min(value.find_first_of(",/", begin), value.size());
    const std::string number = i < weights.size() ? value.substr(begin, end - begin) : value;
    weights[std::min<size_t>(i, 2)] = parse_number(flag, number, weight);
    begin = end + 1;
  }
  return weights;
}

std::string model_names() {
  std::string names;
  for (const std::string& name : model_types()) {
    const size_t line = names.rfind('\n') == std::string::npos ? 0 : names.rfind('\n');
    names += names.empty() ? "" : names.size() - line > 48 ? ",\n" : ", ";
    names += name;
  }
  return names;
}

void parse_model_type(TrainOptions& options, const std::string& flag, const std::string& value) {
  if (value.find('/') != std::string::npos)
    raise<ConfigError>(
        "{}: expected the name of a model, got the path '{}'; try --from-hf with a Hugging Face "
        "folder, which has the config and the weights",
        flag, printable(value));
  options.model_type = model_types()[parse_choice(flag, value, model_types())];
}

FlagRow data_row() {
  FlagRow row =
      path_row({"--data", "--data-path"}, "D", PathUse::reads,
               "sort, adder, a text PATH.txt, tokens PATH.bin, the PREFIX of Megatron's\n"
               "PREFIX.bin and PREFIX.idx, or PATH.jsonl: conversations {\"prompt\": ...,\n"
               "\"response\": ...} or {\"messages\": [...]}; pairs for an encoder-decoder");
  row.paths = data_files;
  return row;
}

std::string families_with(bool (*feature)(const models::FamilyRow&)) {
  return models::list_families(&models::FamilyRow::name, feature);
}

}  // namespace

Fields data_fields() {
  return {
      {ZG_AT(data.source), data_row(), always(kept("data.source")).as_path()},
      {ZG_AT(data.order), choice_row({"--order"}, {"random", "sequential"}, "order in training"),
       always(kept("data.order"))},
      {ZG_AT(data.validation_fraction),
       number_row({"--val-fraction"}, below_one,
                  "share of a text, token file or conversations, at the end, for validation"),
       always(kept("data.validation_fraction", below_one))},
      {ZG_AT(data.split),
       parsed_row({"--split"}, "A,B,C",
                  "weights by which the documents of a PREFIX are divided into training,\n"
                  "validation and test, as in Megatron; test is not used [969,30,1]",
                  [](TrainOptions& o, const FlagValue& v) {
                    o.data.split = parse_split(v.flag, v.value);
                  }),
       kept("data.split", split_weight)},
      {ZG_AT(data.tokenizer), made_row([](TrainOptions& o) {
         return tokenizer_flag(
             {"--tokenizer", "--tokenizer-name"}, "PATH", o.data.tokenizer,
             "BPE tokenizer that encodes texts and decodes tokens: a tokenizer.json, or a\n"
             "folder with one or with vocab.json and merges.txt");
       }),
       kept("data.tokenizer").as_path()},
      {ZG_AT(data.tokenizer_checksum), may_change("data.tokenizer_checksum")},
      // Not compared here: characters and file are compared when the data is read.
      {ZG_AT(characters), always(unchecked("data.characters"))},
      {ZG_AT(contents.bytes), unchecked("data.bytes", any_count)},
      {ZG_AT(contents.checksum), unchecked("data.checksum")},
      {ZG_AT(validation_contents.bytes), unchecked("data.validation_bytes", any_count)},
      {ZG_AT(validation_contents.checksum), unchecked("data.validation_checksum")},
      {ZG_AT(special_tokens.bos), may_change("data.bos_token", token_id)},
      {ZG_AT(special_tokens.eos), may_change("data.eos_tokens", token_id)},
      {ZG_AT(special_tokens.pad), may_change("data.pad_token", token_id)},
  };
}

Fields model_fields() {
  const auto of_model = [](const char* key, Bounds bounds = {}) {
    return must_equal(key, bounds).unless({"--model-type"});
  };
  return {
      {ZG_AT(model_type),
       parsed_row(
           {"--model-type", "--config-name"}, "NAME",
           "a preset, or a family with --n-layer, --n-head and --n-embd:\n" + model_names(),
           [](TrainOptions& o, const FlagValue& v) { parse_model_type(o, v.flag, v.value); }, 1,
           nullptr)},
      {ZG_AT(model.layers),
       integer_row({"--n-layer", "--num-layers"},
                   "blocks; with --n-head and --n-embd, and without a preset's name", {1, ""}),
       always(of_model("model.layers", extent))},
      {ZG_AT(model.heads),
       integer_row({"--n-head", "--num-attention-heads"}, "attention heads", {1, ""}),
       always(of_model("model.heads", extent))},
      {ZG_AT(model.width), integer_row({"--n-embd", "--hidden-size"}, "width", {1, ""}),
       always(of_model("model.width", extent))},
      // Models without a table of positions accept any length. For them check_resumed() reports a
      // changed block size and does not refuse it.
      {ZG_AT(model.block_size),
       integer_row({"--block-size", "--seq-length"}, "longest sequence",
                   {1, "sort 11, adder 6, text 128, conversations 1024 or fewer, a BLOOM's own"}),
       always(must_equal("model.block_size", extent))},
      {ZG_AT(max_positions), integer_row({"--max-position-embeddings"}, "", {1, ""})},
      {ZG_AT(model.vocabulary),
       integer_row({"--vocab-size"}, "number of tokens in the vocabulary",
                   {1, "a BLOOM's own, else from the data"}),
       always(must_equal("model.vocabulary", extent))},
      {ZG_AT(model.position),
       choice_row({"--position-embedding", "--position-embedding-type"}, {"learned", "alibi"},
                  "positions: a table, or ALiBi in attention [learned; BLOOM alibi, bloom-13b "
                  "learned];\nLlama's family has rotary positions",
                  ""),
       must_equal("model.position")},
      {ZG_AT(model.tied),
       switch_row({"--tied"}, "the head shares the token embedding's weights [BLOOM's default]"),
       always(of_model("model.tied")).unless({"--untied"})},
      {ZG_AT(model.tied),
       parsed_row({"--untied"}, "", "the head has weights of its own [GPT's default]",
                  [](TrainOptions& o, const FlagValue& v) {
                    o.model.tied = !parse_switch(v.flag, v.value);
                  })},
      {ZG_AT(model.family), of_model("model.family")},
      {ZG_AT(model.embedding_norm), of_model("model.embedding_norm")},
      {ZG_AT(model.dropout),
       number_row({"--dropout"}, below_one, "dropout of embeddings, attention and residuals",
                  "0.1; Llama's family 0"),
       kept("run.dropout")},
      {ZG_AT(model.kv_heads),
       integer_row({"--num-query-groups", "--num-key-value-heads"},
                   "key-value heads, only of " + families_with(models::has_gate),
                   {1, "as many as heads"}),
       of_model("model.kv_heads", count)},
      {ZG_AT(model.head_size),
       integer_row({"--kv-channels", "--head-dim"}, "size of a head", {1, "width / heads"}),
       of_model("model.head_size", count)},
      {ZG_AT(model.hidden),
       integer_row({"--ffn-hidden-size", "--intermediate-size"}, "width of the feed-forward layer",
                   {1, "4 x width"}),
       of_model("model.hidden", count)},
      {ZG_AT(model.window),
       integer_row({"--sliding-window"}, "tokens that a token attends to", {1, "all before it"}),
       of_model("model.window", count)},
      {ZG_AT(model.rope.theta),
       number_row({"--rotary-base", "--rope-theta"}, above_zero,
                  "base of the rotary positions, only of " + families_with(models::has_rope),
                  "10000; a named model's own"),
       of_model("model.rope_theta")},
      {ZG_AT(model.norm_epsilon),
       number_row({"--norm-epsilon", "--rms-norm-eps"}, above_zero, "epsilon of the norms",
                  "the family's own, 1e-05 or 1e-06"),
       of_model("model.norm_epsilon", finite)},
      {ZG_AT(model.norm), of_model("model.norm")},
      {ZG_AT(model.mlp), of_model("model.mlp")},
      {ZG_AT(model.bias), of_model("model.bias")},
      {ZG_AT(model.qkv_bias), of_model("model.qkv_bias")},
      {ZG_AT(model.query_key_norm), of_model("model.query_key_norm")},
      {ZG_AT(model.rope.scaling), of_model("model.rope_scaling")},
      {ZG_AT(model.rope.factor), of_model("model.rope_factor", above_zero)},
      {ZG_AT(model.rope.original_positions), of_model("model.rope_original_positions", extent)},
      {ZG_AT(model.rope.low_freq_factor), of_model("model.rope_low_freq_factor", above_zero)},
      {ZG_AT(model.rope.high_freq_factor), of_model("model.rope_high_freq_factor", above_zero)},
      {ZG_AT(model.rope.beta_fast), of_model("model.rope_beta_fast", above_zero)},
      {ZG_AT(model.rope.beta_slow), of_model("model.rope_beta_slow", above_zero)},
      {ZG_AT(model.rope.attention_factor), of_model("model.rope_attention_factor", finite)},
      {ZG_AT(model.rope.truncate), of_model("model.rope_truncate")},
      {ZG_AT(model.rotated_share), of_model("model.rotated_share", share)},
      {ZG_AT(model.positions), of_model("model.positions", count)},
      {ZG_AT(model.parallel_residual), of_model("model.parallel_residual").sparse()},
      {ZG_AT(model.query_scalar), of_model("model.query_scalar", count).sparse()},
      {ZG_AT(model.window_period), of_model("model.window_period", count).sparse()},
      {ZG_AT(model.local_theta), of_model("model.local_theta", finite).sparse()},
      {ZG_AT(model.rope.short_factors), of_model("model.rope_short_factors", above_zero).sparse()},
      {ZG_AT(model.rope.long_factors), of_model("model.rope_long_factors", above_zero).sparse()},
  };
}

Fields conversation_fields() {
  const auto has_conversations = [](const TrainOptions& now, const RunSpec&) {
    return !now.has("--data") || is_conversations(now.data.source);
  };
  return {
      {ZG_AT(data.validation_source),
       path_row({"--val-data"}, "PATH.jsonl", PathUse::reads,
                "conversations to validate on, instead of the end of --data"),
       kept("data.validation_source")
           .unless({"--val-fraction"})
           .when(has_conversations)
           .as_path()
           .sparse()},
      {ZG_AT(data.chat_format_path),
       path_row({"--chat-format"}, "F", PathUse::reads,
                "converts messages to text: a chat template, F.jinja; or F.json, {\"user\":\n"
                "[PREFIX, SUFFIX], \"assistant\": ..., \"first\": TEXT}; the model learns\n"
                "content and suffix of an assistant [chat template of the model's folder]")},
      {ZG_AT(data.chat_format), kept("data.chat_format").unless({"--chat-format"}).sparse()},
      {ZG_AT(data.pack),
       on_off_row({"--pack"},
                  "put several conversations into a sequence; none attends to another. off:\n"
                  "one conversation and padding [on]"),
       kept("data.pack").sparse()},
  };
}

Fields seq2seq_fields() {
  constexpr Count own_length{1, "128, or the model's positions"};
  return {
      {ZG_AT(seq2seq.config), must_equal("model.seq2seq").unless({"--model-type"}).sparse()},
      {ZG_AT(seq2seq.generation), kept("model.generation").unless({"--model-type"}).sparse()},
      {ZG_AT(seq2seq.source_prefix),
       text_row({"--source-prefix"}, "TEXT", "text before each source, such as \"chatbot: \""),
       kept("data.source_prefix").sparse()},
      {ZG_AT(seq2seq.max_source),
       integer_row({"--max-source-length"}, "tokens; the end of a longer source is dropped",
                   own_length),
       kept("data.max_source", count).sparse()},
      {ZG_AT(seq2seq.max_target),
       integer_row({"--max-target-length"}, "tokens; the end of a longer target is dropped",
                   own_length),
       kept("data.max_target", count).sparse()},
      {ZG_AT(seq2seq.pad_to_max),
       switch_row({"--pad-to-max-length"},
                  "pad every pair to these lengths; else a step's pairs to the longest of them"),
       kept("data.pad_to_max").sparse()},
      {ZG_AT(seq2seq.train_pairs),
       integer_row({"--n-train"}, "train on the first N training pairs", {1, "all"}),
       kept("data.train_pairs", count).sparse()},
      {ZG_AT(seq2seq.validation_pairs),
       integer_row({"--n-val"}, "validate on the first N validation pairs", {1, "all"}),
       kept("data.validation_pairs", count).sparse()},
      {ZG_AT(seq2seq.label_smoothing),
       number_row({"--label-smoothing"}, below_one,
                  "share of a target's probability that is divided among all tokens, in training"),
       kept("run.label_smoothing").sparse()},
  };
}

}  // namespace zg::tools
