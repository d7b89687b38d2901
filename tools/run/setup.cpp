#include "tools/run/inputs.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/consolidate.h"

namespace zg::tools {

std::optional<models::Family> family_of(const SafetensorsReader& reader) {
  for (const models::Family family : models::all_families)
    if (reader.contains(std::string(models::names_of(family).tokens) + ".weight")) return family;
  return std::nullopt;
}

namespace {

class RandomTokens final : public models::Dataset {
 public:
  RandomTokens(int64_t vocabulary, int64_t block_size, bool validates)
      : vocabulary_(vocabulary), block_size_(block_size), validates_(validates) {}

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return block_size_; }
  int64_t epoch_samples(models::Split split) const override {
    return split == models::Split::train || validates_ ? int64_t{1} << 40 : 0;
  }
  void sample(models::Split, int64_t index, int32_t* ids, int32_t* targets) const override {
    for (int64_t t = 0; t < block_size_; ++t) {
      ids[t] = token(index, t);
      targets[t] = token(index, t + 1);
    }
  }

 private:
  int32_t token(int64_t index, int64_t t) const {
    const auto word =
        Philox::block({static_cast<uint32_t>(t), static_cast<uint32_t>(index), 0, 0}, 1)[0];
    return static_cast<int32_t>(word % static_cast<uint64_t>(vocabulary_));
  }

  const int64_t vocabulary_, block_size_;
  const bool validates_;
};

constexpr int64_t text_block_size = 128;
constexpr int64_t alibi_block_size = 2048;  // default; ALiBi works with any length

[[noreturn]] void refuse_block_size(const char* task, const char* form, int64_t block_size) {
  raise<ConfigError>("--block-size: for data {} expected {}, got {}", task, form, block_size);
}

// Reads PATH.bin as a token file of llm.c. The error mentions that PATH.idx is missing, because the
// user may mean a Megatron dataset.
std::unique_ptr<models::Dataset> token_file_dataset(const std::string& path,
                                                    const models::TextOptions& options) {
  try {
    return models::token_dataset(path, options);
  } catch (const FileError& error) {
    const std::string index = path.substr(0, path.size() - 4) + ".idx";
    raise<FileError>("{}; if this is a Megatron dataset, its index {} is missing", error.what(),
                     index);
  }
}

}  // namespace

// The model's sizes from the shapes of a weights file. Shapes do not show the number of heads and,
// without a table of positions, do not show the block size.
models::GPTConfig sizes_from_shapes(const std::string& path) {
  const SafetensorsReader reader(path);
  const models::Family family = family_of(reader).value_or(models::Family::gpt);
  const models::DecoderNames& names = models::names_of(family);
  const auto has = [&](const std::string& name) { return reader.contains(name + ".weight"); };
  const auto shape = [&](const std::string& name) {
    const auto found = reader.entries().find(name + ".weight");
    if (found == reader.entries().end() || found->second.shape.rank() != 2)
      raise<FileError>("{}: expected a matrix named '{}.weight', as in zerograd's models", path,
                       name);
    return found->second.shape;
  };
  models::GPTConfig config = models::GPTConfig::of(family);
  config.vocabulary = shape(names.tokens)[0];
  config.width = shape(names.tokens)[1];
  config.tied = !has(names.head);
  config.layers = 0;
  if (has_rope(models::row_of(family))) {
    // The shapes do not show the number of heads, from which the head sizes follow. --n-head or a
    // preset gives it.
    config.block_size = models::rope_sequence;
    config.hidden = shape(models::block_name(family, 0) + "." + names.mlp.up)[0];
  } else {
    const bool learned = has(names.positions);
    config.position = learned ? models::Position::learned : models::Position::alibi;
    config.block_size = learned ? shape(names.positions)[0] : alibi_block_size;
  }
  config.embedding_norm = names.embedding_norm && has(names.embedding_norm);
  const char* projection = names.attention.qkv ? names.attention.qkv : names.attention.q;
  while (has(models::block_name(family, config.layers) + "." + projection)) ++config.layers;
  return config;
}

namespace {

models::GPTConfig config_from_shapes(const std::string& path, const TrainOptions& options) {
  models::GPTConfig config = sizes_from_shapes(path);
  if (options.is_set("--n-head")) {
    config.heads = options.model.heads;
  } else if (is_family(options.model_type)) {
    throw ConfigError("--model-type: " + options.model_type +
                      " is a family without a fixed number of heads, and the shapes do not show "
                      "the number; try --n-head N");
  } else {
    const models::GPTConfig named = models::GPTConfig::preset(options.model_type);
    if (named.layers != config.layers || named.width != config.width)
      raise<ConfigError>(
          "--model-type: {} has {} blocks of width {}, which is not {}; try --n-head N", path,
          config.layers, config.width, options.model_type);
    config.heads = named.heads;
  }
  return config;
}

/// Throws FileError unless the tensors of the same file or checkpoint have the shapes of the model
/// that its settings describe. Without this check, damaged settings could make the program allocate
/// a huge model.
void check_model(const RunSpec& settings, const std::map<std::string, Shape>& shapes,
                 const std::string& path) {
  const auto refuse = [&](const std::string& said, const std::string& there) {
    throw FileError(path + ": its settings describe a model with " + said +
                    ", but the stored model has " + there +
                    "; expected an unmodified checkpoint of zerograd");
  };
  int64_t layers = settings.model.layers;
  if (!settings.seq2seq.config.empty())
    layers = sizes_of(seq2seq_model(settings.seq2seq).config).layers;
  // A checkpoint of adapters has none of the base's parameters.
  constexpr int64_t most_layers_of_a_base = 1000;
  const bool is_base = settings.lora.rank > 0 && layers <= most_layers_of_a_base;
  if (layers > std::ssize(shapes) && !is_base)
    refuse(fmt::format("{} blocks", layers), fmt::format("only {} tensors", shapes.size()));
  ParameterStore store;
  const WholeModel model(store, settings);
  for (const auto& [name, parameter] : store.by_name()) {
    if (!parameter->saved) continue;
    const auto found = shapes.find(name);
    if (found == shapes.end() || found->second != parameter->whole)
      refuse("'" + name + "' " + parameter->whole.str(),
             found == shapes.end() ? "no such tensor" : "the shape " + found->second.str());
  }
}

}  // namespace

models::GPTConfig sizes_of(const models::Seq2SeqConfig& config) {
  return {.layers = config.encoder_layers + config.decoder_layers,
          .heads = config.encoder_heads,
          .width = config.width,
          .vocabulary = config.vocabulary,
          .block_size = config.positions,
          .tied = true,
          .dropout = config.dropout};
}

WholeModel::WholeModel(ParameterStore& store, const RunSpec& settings) {
  if (settings.seq2seq.config.empty())
    decoder = std::make_unique<models::GPT>(store, settings.model, models::GPTPart(),
                                            lora_of(settings.lora));
  else
    seq2seq = std::make_unique<models::Seq2Seq>(store, seq2seq_model(settings.seq2seq).config);
}

std::optional<RunSpec> settings_in(const std::string& path) {
  if (is_seq2seq_folder(path)) {
    const models::HFSeq2Seq model = models::Seq2SeqFolder(path).model();
    RunSpec settings = unknown_run();
    settings.model = sizes_of(model.config);
    settings.seq2seq = {.config = models::hf_json(model.config),
                        .generation = models::hf_generation_json(model.config, model.generation,
                                                                 model.generation_json)};
    resolve_lengths(model.config, settings.seq2seq);
    if (models::has_tokenizer(path)) settings.data.tokenizer = path;
    const models::Seq2SeqTokens& tokens = model.config.tokens;
    settings.special_tokens = {.bos = tokens.bos, .pad = tokens.pad, .eos = tokens.eos};
    return settings;
  }
  if (is_hf_folder(path)) {
    const models::HuggingFaceFolder folder = open_hf_folder(path);
    RunSpec settings = unknown_run();
    settings.model = folder.model().config;
    if (models::has_tokenizer(path)) settings.data.tokenizer = path;
    settings.special_tokens = folder.model().tokens;
    settings.generation_config = folder.model().generation_json;
    return settings;
  }
  if (is_directory(path)) return settings_of(*zero::open_checkpoint(path));
  const SafetensorsReader reader(path);
  const auto info = zero::info_of(reader);
  if (!info) return std::nullopt;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, entry] : reader.entries()) shapes.emplace(name, entry.shape);
  RunSpec settings = settings_from(*info, path);
  check_model(settings, shapes, path);
  return settings;
}

RunSpec settings_of(const zero::CheckpointReader& checkpoint) {
  RunSpec settings = settings_from(checkpoint.info(), checkpoint.path());
  check_model(settings, checkpoint.manifest().parameters, checkpoint.path());
  return settings;
}

namespace {

SavedModel open_whole_model(const std::string& path, const TrainOptions& options) {
  if (is_hf_folder(path)) return {*settings_in(path), path};
  if (!is_regular_file(path)) {
    const Checkpoint checkpoint = usable_checkpoint(path);
    return {tools::settings_of(*checkpoint), checkpoint->path(), checkpoint};
  }
  RunSpec settings = unknown_run();
  try {
    if (std::optional<RunSpec> own = settings_in(path)) return {*own, path};
    settings.model = config_from_shapes(path, options);
  } catch (const FileError& error) {
    raise<FileError>(
        "{}; expected a checkpoint's DIR, a step_N, a safetensors file or a Hugging Face folder",
        error.what());
  }
  return {.settings = settings, .path = path, .weights_only = true};
}

}  // namespace

SavedModel open_saved_model(const std::string& path, const TrainOptions& options,
                            const AdapterPaths& paths) {
  SavedModel saved_model = open_whole_model(path, options);
  RunSpec& settings = saved_model.settings;
  if (!paths.base.empty()) move_base(settings, paths.base, path);
  const std::string& adapter = paths.adapter;
  if (adapter.empty()) return saved_model;
  if (settings.lora.rank > 0)
    raise<ConfigError>(
        "--adapter: {} has adapters itself; expected a model without; leave the flag out", path);
  if (!settings.seq2seq.config.empty())
    throw Unsupported("--adapter: an encoder-decoder has no adapters here; expected a decoder");
  settings.lora = lora_options(models::open_peft(adapter).lora);
  settings.base.path = saved_model.path;
  saved_model.adapter = adapter;
  return saved_model;
}

void check_data_exists(const std::string& source, const std::string& checkpoint,
                       const std::string& flag) {
  std::error_code ignored;  // other errors are reported when the file is read
  const bool gone =
      std::filesystem::status(source, ignored).type() == std::filesystem::file_type::not_found;
  if (source.empty() || is_task(source) || !gone || !indexed_prefix(source).empty()) return;
  raise<FileError>(
      "{0}: the data {1}, with which {2} was trained, does not exist; give {0} PATH with the new "
      "path of the data",
      flag, source, checkpoint);
}

std::shared_ptr<const models::Dataset> random_tokens(int64_t vocabulary, int64_t block_size,
                                                     bool validates) {
  return std::make_shared<RandomTokens>(vocabulary, block_size, validates);
}

std::unique_ptr<models::Dataset> make_dataset(const DataOptions& options,
                                              const DatasetRequest& request) {
  const int64_t block_size = request.block_size;
  if (options.source == "sort") {
    if (block_size == 0) return models::sort_dataset(request.seed);
    if (block_size % 2 == 0) refuse_block_size("sort", "2 x length - 1, an odd number", block_size);
    return models::sort_dataset(request.seed, (block_size + 1) / 2);
  }
  if (options.source == "adder") {
    if (block_size == 0) return models::adder_dataset(request.seed);
    if (block_size % 3 != 0) refuse_block_size("adder", "3 x digits: 3, 6 or 9", block_size);
    return models::adder_dataset(request.seed, block_size / 3);
  }
  const models::TextOptions text = {.block_size = block_size > 0 ? block_size : text_block_size,
                                    .validation_fraction = options.validation_fraction,
                                    .order = options.order,
                                    .seed = request.seed};
  const DataKind kind = kind_of(options.source);
  if (kind == DataKind::conversations) return conversation_dataset(options, request);
  if (kind == DataKind::documents) {
    const int64_t known = request.tokenizer ? request.tokenizer->vocabulary() : 0;
    return models::indexed_dataset(
        indexed_prefix(options.source),
        {.block_size = text.block_size,
         .split = options.split,
         .order = options.order,
         .seed = request.seed,
         .vocabulary = request.vocabulary > 0 ? request.vocabulary : known});
  }
  if (kind == DataKind::tokens) return token_file_dataset(options.source, text);
  return request.tokenizer ? models::tokenized_dataset(options.source, *request.tokenizer, text)
                           : models::text_dataset(options.source, text);
}

std::string characters_of(const models::Dataset& dataset) {
  const bool digits = dataset.question_length() > 0 && dataset.vocabulary() <= 10;
  // Token files have no characters, and their vocabulary can be so large that `ids` would take all
  // memory.
  if (!dataset.is_text() && !digits) return "";
  std::vector<int32_t> ids(static_cast<size_t>(dataset.vocabulary()));
  std::iota(ids.begin(), ids.end(), 0);
  return digits ? std::string("0123456789").substr(0, ids.size()) : dataset.decode(ids);
}

int64_t block_size_of(const TrainOptions& options) {
  const int64_t given = options.model.block_size;
  const bool is_preset = !options.is_set("--n-layer") && !is_family(options.model_type);
  if (given > 0 || is_task(options.data.source) || !is_preset) return given;
  const int64_t own = models::GPTConfig::preset(options.model_type).block_size;
  return is_conversations(options.data.source) ? std::min(own, conversation_block_size) : own;
}

models::GPTConfig model_config(const TrainOptions& options, const models::Dataset& dataset) {
  models::GPTConfig config;
  const std::optional<models::Family> family = family_named(options.model_type);
  if (family || has_sizes(options)) {
    if (family) config = models::GPTConfig::of(*family);
    check_sizes(options);
  } else {
    config = models::GPTConfig::preset(options.model_type);
  }
  set_given(options, config);
  if (options.model.vocabulary > 0) config.vocabulary = options.model.vocabulary;
  if (config.vocabulary == 0) config.vocabulary = dataset.vocabulary();
  if (config.vocabulary < dataset.vocabulary())
    raise<ConfigError>(
        "--vocab-size: expected at least {}, the vocabulary size of the data, got {}",
        dataset.vocabulary(), config.vocabulary);
  config.block_size = dataset.block_size();
  if (options.max_positions > 0 && options.max_positions != config.block_size)
    raise<ConfigError>(
        "--max-position-embeddings: expected {}, the block size (--block-size), got {}",
        config.block_size, options.max_positions);
  if (options.has("--rotary-base") && config.position != models::Position::rope)
    raise<ConfigError>(
        "--rotary-base: expected a model with rotary positions ({}), got one with {} positions; "
        "leave the flag out",
        models::list_families(&models::FamilyRow::name, models::has_rope),
        name_of(config.position));
  models::validate(config);
  return config;
}

void check_model_flags(const Given& given, const std::string& checkpoint) {
  for (const char* flag : {"--model-type", "--n-head"})
    if (given.count(flag) && settings_in(checkpoint))
      raise<ConfigError>("{}: {} defines the model; leave the flag out", flag, checkpoint);
}

}  // namespace zg::tools
