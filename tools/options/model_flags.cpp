#include "tools/options/model_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tools/options/seq2seq_flags.h"
#include "tools/run/data_file.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

namespace {

// The names of all presets, followed by the names of model families.
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

// Parses Megatron's --split. It has up to three weights; missing weights are 0.
void read_split(const std::string& name, const std::string& value, std::array<double, 3>& split) {
  constexpr Range weight{0.0, 1e12, false, false, "up to three weights from 0, like 949,50,1"};
  std::array<double, 3> weights{};
  size_t begin = 0;
  for (size_t i = 0; begin <= value.size(); ++i) {
    const size_t end = std::min(value.find_first_of(",/", begin), value.size());
    const std::string number = i < weights.size() ? value.substr(begin, end - begin) : value;
    weights[std::min<size_t>(i, 2)] = parse_number(name, number, weight);
    begin = end + 1;
  }
  split = weights;
}

// A flag without effect. It accepts only the values in `accepted`; others throw Unsupported.
Flag unsupported_flag(Names names, const std::vector<double>& accepted, const std::string& why) {
  return {std::move(names), "N", "",
          [accepted, why](const std::string& name, const std::string& value) {
            double number = 0.0;
            const char* last = value.data() + value.size();
            const auto [end, error] = std::from_chars(value.data(), last, number);
            const bool read = error == std::errc() && end == last;
            std::vector<std::string> shown;
            for (const double one : accepted) {
              if (read && number == one) return;
              shown.push_back(fmt::format("{:.6g}", one));
            }
            throw Unsupported(name + " " + value + ": " + why + "; try " + name + " " +
                              join(shown, " or "));
          }};
}

}  // namespace

Flag source_flag(DataOptions& data) {
  Flag flag =
      path_flag({"--data", "--data-path"}, "D", data.source, PathUse::reads,
                "sort, adder, a text PATH.txt, tokens PATH.bin, the PREFIX of Megatron's\n"
                "PREFIX.bin and PREFIX.idx, or PATH.jsonl: conversations {\"prompt\": ...,\n"
                "\"response\": ...} or {\"messages\": [...]}, of an encoder-decoder pairs");
  flag.paths = [&source = data.source] {
    std::vector<std::string> paths;
    const std::string prefix = indexed_prefix(source);
    if (!prefix.empty())
      paths = {prefix + ".bin", prefix + ".idx"};
    else if (source != "sort" && source != "adder")
      paths = {source};
    return used(PathUse::reads, paths);
  };
  return flag;
}

Flag validation_fraction_flag(DataOptions& data) {
  return number_flag({"--val-fraction"}, data.validation_fraction, below_one,
                     "the end of a text, token file or conversations that is held out");
}

bool is_conversations(const std::string& source) { return source.ends_with(".jsonl"); }

Flag validation_source_flag(DataOptions& data) {
  return path_flag({"--val-data"}, "PATH.jsonl", data.validation_source, PathUse::reads,
                   "conversations to validate on, instead of the end of --data");
}

Flag chat_format_flag(DataOptions& data) {
  return path_flag({"--chat-format"}, "F", data.chat_format_path, PathUse::reads,
                   "how messages become text: a chat template, F.jinja; or F.json, {\"user\":\n"
                   "[PREFIX, SUFFIX], \"assistant\": ..., \"first\": TEXT}, with an assistant's\n"
                   "content and suffix learned [the chat template of the model's folder]");
}

Flag chat_flag(bool& chat) {
  return switch_flag({"--chat"}, chat,
                     "each line of stdin is a turn of the user and is answered, in the model's\n"
                     "own chat template; --prompt: the first turn, --length: most tokens of\n"
                     "an answer");
}

Flag pack_flag(DataOptions& data) {
  Flag flag = switch_flag({"--pack"}, data.pack,
                          "several conversations in a sequence, each by itself; else one and\n"
                          "padding [on]");
  flag.value = "on|off";
  return flag;
}

Flag split_flag(DataOptions& data) {
  return {{"--split"},
          "A,B,C",
          "weights of training, validation and test in the documents of a PREFIX,\n"
          "as Megatron cuts them; the third part is in neither [969,30,1]",
          [&data](const std::string& name, const std::string& value) {
            read_split(name, value, data.split);
          }};
}

Flag tokenizer_flag(Names names, const std::string& value, std::string& target,
                    const std::string& help) {
  Flag flag = path_flag(std::move(names), value, target, PathUse::reads, help);
  flag.paths = [&target] {
    std::vector<std::string> paths = {target};
    std::error_code ignored;  // what cannot be read is no input
    const std::filesystem::path folder = std::filesystem::path(target).parent_path();
    if (std::filesystem::is_regular_file(target, ignored))
      for (const char* beside :
           {"vocab.json", "merges.txt", "tokenizer.json", "config.json", "tokenizer_config.json",
            "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"})
        if (std::filesystem::is_regular_file(folder / beside, ignored))
          paths.push_back((folder / beside).string());
    return used(PathUse::reads, paths);
  };
  return flag;
}

Flag tokenizer_flag(DataOptions& data) {
  return tokenizer_flag(
      {"--tokenizer", "--tokenizer-name"}, "PATH", data.tokenizer,
      "BPE for text, and for what tokens mean: a tokenizer.json, or a folder with\n"
      "one or with vocab.json and merges.txt");
}

namespace {

/// The checkpoints that a path names, or the model's folder or file.
std::vector<NamedPath> checkpoints_in(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // what cannot be read is no input
  if (path == "auto") return {};
  if (fs::exists(fs::path(path) / "manifest.json", ignored)) return used(PathUse::resumes, {path});
  if (!fs::is_directory(path, ignored)) return used(PathUse::reads, {path});
  std::vector<std::string> steps;
  for (fs::directory_iterator it(path, ignored), end; !ignored && it != end; it.increment(ignored))
    if (it->path().filename().string().starts_with("step_")) steps.push_back(it->path().string());
  if (steps.empty() && fs::exists(fs::path(path) / "config.json", ignored))
    return used(PathUse::reads, {path});
  return used(PathUse::resumes, steps);
}

}  // namespace

Flag checkpoint_flag(Names names, const std::string& value, std::string& target,
                     const std::string& help) {
  Flag flag = path_flag(std::move(names), value, target, PathUse::resumes, help);
  flag.paths = [&target] { return checkpoints_in(target); };
  return flag;
}

Flag model_type_flag(std::string& model_type) {
  std::string names;
  for (const std::string& name : model_types()) {
    const size_t line = names.rfind('\n') == std::string::npos ? 0 : names.rfind('\n');
    names += names.empty() ? "" : names.size() - line > 48 ? ",\n" : ", ";
    names += name;
  }
  return {{"--model-type", "--config-name"},
          "NAME",
          names + " (with --n-layer, --n-head and --n-embd) [" + model_type + "]",
          [&model_type](const std::string& name, const std::string& value) {
            if (value.find('/') != std::string::npos)
              throw ConfigError(fmt::format(
                  "{}: expected the name of a model, got the path '{}'; try --from-hf with a "
                  "Hugging Face folder, which has the config and the weights",
                  name, printable(value)));
            model_type = model_types()[parse_choice(name, value, model_types())];
          }};
}

Flag heads_flag(int64_t& heads) {
  return integer_flag({"--n-head", "--num-attention-heads"}, heads, "attention heads", {1, ""});
}

Flag tied_flag(bool& tied) {
  return {{"--tied"},
          "",
          "the head shares the token embedding's weights [BLOOM's default]",
          [&tied](const std::string& name, const std::string& value) {
            tied = parse_switch(name, value);
          }};
}

Flag position_flag(models::Position& position) {
  return {
      {"--position-embedding", "--position-embedding-type"},
      "learned|alibi",
      "positions: a table, or ALiBi in attention [learned; BLOOM alibi, bloom-13b learned];\n"
      "Llama's family has rotary ones",
      [&position](const std::string& name, const std::string& value) {
        position = static_cast<models::Position>(parse_choice(name, value, {"learned", "alibi"}));
      }};
}

std::optional<models::Family> family_named(const std::string& model_type) {
  for (const models::Family family : models::all_families)
    if (family != models::Family::gpt && model_type == name_of(family)) return family;
  return std::nullopt;
}

bool is_family(const std::string& model_type) { return family_named(model_type).has_value(); }

namespace {

/// The first preset of a family, as an example.
std::string preset_of(const std::string& family) {
  for (const std::string& name : models::GPTConfig::preset_names())
    if (name.starts_with(family + "-")) return name;
  return "gpt2";
}

}  // namespace

void check_sizes(const TrainOptions& options) {
  constexpr const char* sizes[] = {"--n-layer", "--n-head", "--n-embd"};
  std::string missing;
  for (const char* flag : sizes)
    if (!options.is_set(flag)) missing += (missing.empty() ? "" : " and ") + std::string(flag);
  const std::string& type = options.model_type;
  const bool family = is_family(type);
  if (missing.empty() || (!family && !has_sizes(options))) return;
  throw ConfigError((family ? "--model-type " + type : "--n-layer") +
                    ": expected --n-layer, --n-head and --n-embd together, got none of " + missing +
                    (family ? "; or try a name, " + preset_of(type) : ""));
}

bool has_sizes(const TrainOptions& options) {
  return options.is_set("--n-layer") || options.is_set("--n-head") || options.is_set("--n-embd");
}

Flag checkpoint_positional(std::string& target) {
  Flag flag = checkpoint_flag(
      {}, "CHECKPOINT", target,
      "a checkpoint's DIR, one step_N, a safetensors file or a Hugging Face folder");
  flag.set = [&target](const std::string&, const std::string& value) { target = value; };
  return flag;
}

int64_t own_vocabulary(const TrainOptions& options) {
  const std::string& type = options.model_type;
  const bool named = !options.is_set("--n-layer") && !is_family(type) && !is_seq2seq_name(type);
  return named ? models::GPTConfig::preset(type).vocabulary : 0;
}

void check_model(const std::string& model_type, const Given& given) {
  const bool any = given.count("--n-layer") || given.count("--n-head") || given.count("--n-embd");
  if (any && given.count("--model-type") && !is_family(model_type) && !seq2seq_family(model_type))
    throw ConfigError(
        "--model-type: a model is a name or --n-layer, --n-head and --n-embd; expected "
        "one of them, got both");
}

DType parse_dtype(const std::string& name, const std::string& value) {
  constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  return dtypes[parse_choice(name, value, {"f32", "bf16", "f16"})];
}

Flag dtype_flag(std::optional<DType>& dtype, const std::string& help) {
  return {{"--dtype"},
          "f32|bf16|f16",
          help,
          [&dtype](const std::string& name, const std::string& value) {
            dtype = parse_dtype(name, value);
          }};
}

std::vector<Flag> place_flags(DeviceFlags& device_flags) {
  return {
      device_flag(device_flags.type),
      use_hpu_flag(device_flags.type),
      {{"--threads"},
       "N",
       "threads for kernels, of each rank; 0: its share of the cores [0]",
       [&device_flags](const std::string& name, const std::string& value) {
         device_flags.device.threads = static_cast<int>(parse_integer(name, value, 0, 4096));
       }},
      size_flag({"--device-memory"}, device_flags.device.memory_limit,
                "cap on each device's bytes; beyond it OutOfMemory (exit 3)"),
      size_flag({"--host-memory"}, device_flags.device.host_limit,
                "cap on each rank's pinned and host bytes together"),
  };
}

FlagGroup unsupported_flags(bool one_rank) {
  FlagGroup group{.flags = {unsupported_flag({"--local-rank"}, {0, -1},
                                             "a process learns its rank from mpirun")}};
  if (one_rank)
    group.flags.push_back(
        unsupported_flag({"--ranks", "--gpus", "--num-gpus"}, {1}, "this runs on one rank"));
  return group;
}

}  // namespace zg::tools
