#include <charconv>
#include <filesystem>

#include "tools/options/flags.h"
#include "tools/run/data_file.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

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
            raise<Unsupported>("{} {}: {}; try {} {}", name, value, why, name, join(shown, " or "));
          }};
}

}  // namespace

Flag tokenizer_flag(Names names, const std::string& value, std::string& target,
                    const std::string& help) {
  Flag flag = path_flag(std::move(names), value, target, PathUse::reads, help);
  flag.paths = [&target] {
    std::vector<std::string> paths = {target};
    std::error_code ignored;  // a file that cannot be read is not an input
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

std::vector<NamedPath> checkpoints_in(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // a path that cannot be read is not an input
  // An absent path is an error later, when it is opened.
  if (path == "auto" || !fs::exists(path, ignored)) return {};
  if (fs::exists(fs::path(path) / "manifest.json", ignored)) return used(PathUse::resumes, {path});
  if (!fs::is_directory(path, ignored)) return used(PathUse::reads, {path});
  std::vector<std::string> steps;
  for (fs::directory_iterator it(path, ignored), end; !ignored && it != end; it.increment(ignored))
    if (it->path().filename().string().starts_with("step_")) steps.push_back(it->path().string());
  if (steps.empty() && fs::exists(fs::path(path) / "config.json", ignored))
    return used(PathUse::reads, {path});
  return used(PathUse::resumes, steps);
}

Flag checkpoint_flag(Names names, const std::string& value, std::string& target,
                     const std::string& help) {
  Flag flag = path_flag(std::move(names), value, target, PathUse::resumes, help);
  flag.paths = [&target] { return checkpoints_in(target); };
  return flag;
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
  raise<ConfigError>("{}: expected --n-layer, --n-head and --n-embd together, got none of {}{}",
                     family ? "--model-type " + type : "--n-layer", missing,
                     family ? "; or try a name, " + preset_of(type) : "");
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

void check_model(const TrainOptions& options) {
  const Given& given = options.given;
  const bool any = given.count("--n-layer") || given.count("--n-head") || given.count("--n-embd");
  const std::string& type = options.model_type;
  if (any && given.count("--model-type") && !is_family(type) && !seq2seq_family(type))
    throw ConfigError(
        "--model-type: a model is a name or --n-layer, --n-head and --n-embd; expected one of "
        "them, got both");
}

DType parse_dtype(const std::string& name, const std::string& value) {
  constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  return dtypes[parse_choice(name, value, {"f32", "bf16", "f16"})];
}

FlagGroup unsupported_flags(bool one_rank) {
  FlagGroup group{.flags = {unsupported_flag({"--local-rank"}, {0, -1},
                                             "a process learns its rank from mpirun")}};
  if (one_rank)
    group.flags.push_back(
        unsupported_flag({"--ranks", "--gpus", "--num-gpus"}, {1}, "this runs on one rank"));
  return group;
}

namespace {

constexpr const char* lora_flags[] = {"--lora", "--lora-alpha", "--lora-targets", "--rslora"};

// Takes the adapters of the folder. A flag may repeat a value of the folder; only --lora-dropout
// may differ.
void adopt_adapter(TrainOptions& options, LoraOptions theirs) {
  const std::string& folder = options.initial_adapter;
  if (!options.resume.empty())
    throw ConfigError("--init-adapter: expected one of --init-adapter and --resume, got both");
  const LoraOptions& now = options.lora;
  const bool same[] = {now.rank == theirs.rank, now.alpha == theirs.alpha,
                       now.targets == theirs.targets,
                       now.rank_stabilised == theirs.rank_stabilised};
  for (size_t i = 0; i < std::size(lora_flags); ++i)
    if (options.has(lora_flags[i]) && !same[i])
      raise<ConfigError>(
          "{}: {} says another value; expected rank {}, alpha {:.6g}, targets {} and rslora {}; "
          "leave the flag out",
          lora_flags[i], folder, theirs.rank, theirs.alpha, theirs.targets,
          theirs.rank_stabilised ? "on" : "off");
  if (options.has("--lora-dropout")) theirs.dropout = now.dropout;
  options.lora = theirs;
}

}  // namespace

void resolve_lora(TrainOptions& options, const std::optional<LoraOptions>& adapter) {
  if (!options.moved_base.empty() && options.resume.empty())
    throw ConfigError(
        "--base: expected --resume with it, got none; a new run names its base with --from-hf or "
        "--init");
  if (!options.initial_adapter.empty()) adopt_adapter(options, adapter.value_or(LoraOptions()));
  if (options.lora.rank == 0)
    return refuse_flags(options.given,
                        {"--lora-alpha", "--lora-dropout", "--lora-targets", "--rslora"},
                        "expected --lora RANK with it, got none");
  if (is_seq2seq(options))
    throw Unsupported("--lora: an encoder-decoder has no adapters here; expected a decoder");
  if (options.lora.targets.empty() && options.has("--lora-targets"))
    throw ConfigError("--lora-targets: expected names of layers, or all-linear, got nothing");
  const bool has_base = !options.from_hf.empty() || !options.initial_weights.empty();
  if (!has_base && options.resume.empty() && !options.only_planned)
    throw ConfigError(
        "--lora: adapters are trained for a model that has weights; expected --from-hf DIR or "
        "--init F with it, got neither");
}

Flag adapter_flag(AdapterPaths& paths) {
  return path_flag({"--adapter"}, "DIR", paths.adapter, PathUse::reads,
                   "adapters of the model, in a folder of Hugging Face's PEFT");
}

Flag base_flag(AdapterPaths& paths) {
  return checkpoint_flag({"--base"}, "PATH", paths.base,
                         "new path of the base weights of the checkpoint's adapters");
}

}  // namespace zg::tools
