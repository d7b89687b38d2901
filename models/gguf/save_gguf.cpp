#include "zerograd/models/gguf/gguf.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "zerograd/kernels/attention/rope.h"
#include "zerograd/models/gguf/gguf_file.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr const char* rope_factors_name = "rope_freqs.weight";

/// llama.cpp's name of the architecture.
std::string architecture_of(const GPTConfig& config) {
  const FamilyRow& row = row_of(config.family);
  if (row.gguf) return row.gguf;
  raise<Unsupported>(
      "gguf: the family is {}; expected {}; try a Hugging Face folder and llama.cpp's "
      "convert_hf_to_gguf.py",
      row.title,
      list_families(&FamilyRow::title, [](const FamilyRow& one) { return one.gguf != nullptr; }));
}

/// Throws Unsupported, with the field, for a model of these families that llama.cpp does not
/// compute.
void require_llama_cpp(const GPTConfig& config) {
  hf_json(config);  // throws for a field that the families do not have
  const auto refuse = [&](const std::string& field, const auto& value, const std::string& only) {
    raise<Unsupported>("gguf: {} is {}; expected {}: llama.cpp's {} has no other", field, value,
                       only, architecture_of(config));
  };
  const int64_t head = head_size_of(config);
  if (config.family == Family::qwen2 && head * config.heads != config.width)
    refuse("head_size", head, fmt::format("{}, width / heads", config.width / config.heads));
  const RopeOptions& rope = config.rope;
  if (rope.scaling == RopeScaling::llama3 && architecture_of(config) != "llama")
    refuse("rope.scaling", name_of(rope.scaling), "none, linear or yarn");
  if (rope.scaling != RopeScaling::yarn) return;
  const RopeOptions absent;
  if (rope.beta_fast != absent.beta_fast)
    refuse("rope.beta_fast", rope.beta_fast, fmt::format("{}", absent.beta_fast));
  if (rope.beta_slow != absent.beta_slow)
    refuse("rope.beta_slow", rope.beta_slow, fmt::format("{}", absent.beta_slow));
  if (!rope.truncate) refuse("rope.truncate", rope.truncate, "true");
}

uint32_t extent(int64_t value) { return static_cast<uint32_t>(value); }

void add_rope(const GPTConfig& config, const std::string& key, GGUFMetadata& metadata) {
  const RopeOptions& rope = config.rope;
  metadata.add(key + "rope.dimension_count", extent(head_size_of(config)));
  metadata.add(key + "rope.freq_base", static_cast<float>(rope.theta));
  if (rope.scaling != RopeScaling::linear && rope.scaling != RopeScaling::yarn) return;
  metadata.add(key + "rope.scaling.type", std::string(name_of(rope.scaling)));
  metadata.add(key + "rope.scaling.factor", static_cast<float>(rope.factor));
  if (rope.scaling == RopeScaling::linear) return;
  metadata.add(key + "rope.scaling.original_context_length", extent(rope.original_positions));
  metadata.add(key + "rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
  metadata.add(key + "rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
  // llama.cpp scales cosines and sines by 1 + 0.1 ln(factor), and by this key. It reads
  // yarn_attn_factor only for other architectures.
  if (rope.attention_factor > 0.0)
    metadata.add(
        key + "rope.scaling.attn_factor",
        static_cast<float>(rope.attention_factor /
                           (rope.factor > 1.0 ? 1.0 + 0.1 * portable::log(rope.factor) : 1.0)));
}

GGUFMetadata metadata_of(const GPTConfig& config, const std::string& name, GGUFType type,
                         std::vector<std::string>& notes) {
  constexpr uint32_t file_types[] = {0, 1, 32, 7};  // LLAMA_FTYPE_ALL_F32, MOSTLY_F16, ...
  constexpr uint32_t quantization_version = 2;
  const std::string architecture = architecture_of(config), key = architecture + ".";
  int64_t context = config.positions > 0 ? config.positions : config.block_size;
  if (config.window > 0 && config.window < context) {
    notes.push_back(fmt::format(
        "llama.cpp's {} has no sliding window; context_length is the window {} in place of {}, "
        "within which the model is the same",
        architecture, config.window, context));
    context = config.window;
  }
  GGUFMetadata metadata;
  metadata.add("general.architecture", architecture);
  metadata.add("general.type", std::string("model"));
  metadata.add("general.name", name);
  metadata.add(key + "block_count", extent(config.layers));
  metadata.add(key + "context_length", extent(context));
  metadata.add(key + "embedding_length", extent(config.width));
  metadata.add(key + "feed_forward_length", extent(hidden_of(config)));
  metadata.add(key + "attention.head_count", extent(config.heads));
  metadata.add(key + "attention.head_count_kv", extent(kv_heads_of(config)));
  metadata.add(key + "attention.key_length", extent(head_size_of(config)));
  metadata.add(key + "attention.value_length", extent(head_size_of(config)));
  metadata.add(key + "attention.layer_norm_rms_epsilon", config.norm_epsilon);
  metadata.add(key + "vocab_size", extent(config.vocabulary));
  add_rope(config, key, metadata);
  metadata.add("general.file_type", file_types[static_cast<size_t>(type)]);
  metadata.add("general.quantization_version", quantization_version);
  return metadata;
}

/// A parameter and its tensor in the file.
struct Source {
  std::string parameter;
  GGUFTensor tensor;
  int64_t permuted_heads = 0;  ///< 0: the rows keep their order
};

std::string gguf_name(const std::string& name) {
  static constexpr std::pair<const char*, const char*> whole[] = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"}};
  static constexpr std::pair<const char*, const char*> layers[] = {
      {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
      {"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [theirs, ours] : whole)
    if (name == theirs) return ours;
  constexpr std::string_view blocks = "model.layers.";
  const size_t number_end = name.find('.', blocks.size()), kind = name.rfind('.');
  if (name.starts_with(blocks) && number_end < kind)
    for (const auto& [theirs, ours] : layers)
      if (name.substr(number_end + 1, kind - number_end - 1) == theirs)
        return fmt::format("blk.{}.{}{}", name.substr(blocks.size(), number_end - blocks.size()),
                           ours, name.substr(kind));
  raise<Unsupported>("gguf: '{}' has no name in llama.cpp", name);
}

/// The parameters in byte order of their names, which is also the order of their hash.
std::vector<Source> sources_of(const GPTConfig& config, GGUFType type) {
  std::vector<Source> sources;
  const bool permutes = architecture_of(config) == "llama";
  for (const HFTensor& parameter : hf_tensors(config)) {
    Source source{parameter.name, {gguf_name(parameter.name), parameter.shape, GGUFType::f32}};
    if (parameter.shape.rank() > 1) {
      const bool has_blocks = parameter.shape[-1] % q8_0_block == 0;
      source.tensor.type = type == GGUFType::q8_0 && !has_blocks ? GGUFType::f16 : type;
    }
    if (permutes && parameter.name.find(".q_proj.") != std::string::npos)
      source.permuted_heads = config.heads;
    if (permutes && parameter.name.find(".k_proj.") != std::string::npos)
      source.permuted_heads = kv_heads_of(config);
    sources.push_back(std::move(source));
  }
  return sources;
}

/// Each head's rows in llama.cpp's order: rows i and i + D / 2, the pair of frequency i, become
/// rows 2 i and 2 i + 1.
std::vector<float> permuted(std::span<const float> values, int64_t rows_of_head, int64_t columns) {
  std::vector<float> result(values.size());
  const int64_t half = rows_of_head / 2;
  for (int64_t row = 0; row < std::ssize(values) / columns; ++row) {
    const int64_t head = row / rows_of_head, in_head = row % rows_of_head;
    const int64_t to = head * rows_of_head + in_head % half * 2 + in_head / half;
    std::copy_n(values.begin() + row * columns, columns, result.begin() + to * columns);
  }
  return result;
}

/// The rows of a slice; absent: the source reads only whole parameters.
std::optional<std::vector<float>> read_rows(const WeightSource& weights, const std::string& name,
                                            const Slice& slice) {
  if (weights.read_range) {
    auto values = weights.read_range(name, slice.begin * slice.inner, slice.rows * slice.inner);
    if (values) return values;
  }
  if (weights.read_part) return weights.read_part(name, slice);
  return std::nullopt;
}

/// Writes a parameter a few MiB at a time, in whole heads where their rows are permuted.
void write_parameter(const WeightSource& weights, const Source& source, GGUFWriter& writer,
                     Checksum& hash) {
  constexpr int64_t elements_at_once = 1 << 20;
  const Shape& shape = source.tensor.shape;
  const int64_t columns = shape.rank() > 1 ? shape[-1] : 1, rows = shape.numel() / columns;
  const int64_t unit = source.permuted_heads > 0 ? rows / source.permuted_heads : 1;
  const int64_t step = std::max<int64_t>(1, elements_at_once / (unit * columns)) * unit;
  const auto write = [&](std::span<const float> values) {
    hash.update(std::as_bytes(values));
    if (source.permuted_heads > 0)
      writer.write(permuted(values, unit, columns));
    else
      writer.write(values);
  };
  for (int64_t begin = 0; begin < rows; begin += step) {
    const Slice slice{
        .extent = rows, .begin = begin, .rows = std::min(step, rows - begin), .inner = columns};
    const auto part = read_rows(weights, source.parameter, slice);
    if (!part) return write(weights.read(source.parameter));  // only at `begin` 0
    write(*part);
  }
}

/// The divisors of Llama 3's frequencies, one for each pair of a head's elements.
std::vector<float> rope_factors(const GPTConfig& config) {
  RopeOptions plain = config.rope;
  plain.scaling = RopeScaling::none;
  const std::vector<float> from = rope_frequencies(plain, head_size_of(config)),
                           to = rope_frequencies(config.rope, head_size_of(config));
  std::vector<float> factors;
  for (size_t i = 0; i < from.size(); ++i) factors.push_back(from[i] / to[i]);
  return factors;
}

}  // namespace

GGUFResult save_gguf(const WeightSource& weights, const HFModel& model, const std::string& file,
                     const GGUFOptions& options) {
  const GPTConfig& config = model.config;
  const std::filesystem::path path(file);
  if (path.filename().empty() || is_directory(file))
    raise<FileError>("gguf: '{}' is a folder; expected the path of a file", file);
  architecture_of(config);  // throws before any other check
  require_llama_cpp(config);
  require_weights(weights, hf_tensors(config));
  GGUFResult result;
  GGUFMetadata metadata =
      metadata_of(config, options.name.empty() ? path.stem().string() : options.name, options.type,
                  result.notes);
  add_gguf_tokenizer(options.tokenizer, model, metadata, result.notes);
  const std::vector<Source> sources = sources_of(config, options.type);
  const auto fallbacks = std::ranges::count_if(sources, [&](const Source& source) {
    return source.tensor.shape.rank() > 1 && source.tensor.type != options.type;
  });
  if (fallbacks > 0)
    result.notes.push_back(
        fmt::format("{} matrices are f16: {} does not divide their rows", fallbacks, q8_0_block));
  std::vector<GGUFTensor> tensors;
  std::vector<float> factors;
  if (config.rope.scaling == RopeScaling::llama3) {
    factors = rope_factors(config);
    tensors.push_back({rope_factors_name, Shape{std::ssize(factors)}, GGUFType::f32});
  }
  for (const Source& source : sources) tensors.push_back(source.tensor);

  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  make_directories(folder);
  FileSet files(folder, path.filename().string());
  GGUFWriter writer(files.add(path.filename().string()), metadata, tensors);
  Checksum hash;
  if (!factors.empty()) writer.write(factors);
  for (const Source& source : sources) write_parameter(weights, source, writer, hash);
  writer.finish();
  files.finish();
  result.hash = hash.hex();
  return result;
}

}  // namespace zg::models
