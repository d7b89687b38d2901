#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/models/gguf/gguf_reader.h"
#include "tests/support/error_message.h"
#include "zerograd/models/gguf/gguf_file.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

// tests/long/gguf compares the same files with llama.cpp's own converter and runs them.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

/// Values that are a function of name and index; each is a small multiple of 1/64.
float stored_value(const std::string& name, int64_t i) {
  const int64_t seed = static_cast<int64_t>(std::hash<std::string>{}(name) % 97);
  return static_cast<float>((i * 31 + seed) % 251 - 125) / 64.0f;
}

std::vector<float> stored_values(const std::string& name, int64_t begin, int64_t count) {
  std::vector<float> values;
  for (int64_t i = begin; i < begin + count; ++i) values.push_back(stored_value(name, i));
  return values;
}

WeightSource gguf_weights(const GPTConfig& config) {
  WeightSource weights{.path = "weights"};
  for (const HFTensor& tensor : hf_tensors(config))
    weights.shapes.emplace(tensor.name, tensor.shape);
  weights.read = [shapes = weights.shapes](const std::string& name) {
    return stored_values(name, 0, shapes.at(name).numel());
  };
  return weights;
}

GPTConfig small_config(Family family) {
  GPTConfig config = GPTConfig::of(family);
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.width = 32;
  config.hidden = 40;
  config.vocabulary = 50;
  config.block_size = config.positions = 64;
  config.rope.theta = 5000.0;
  config.norm_epsilon = 2e-5f;
  return config;
}

GGUFContents written(const GPTConfig& config, GGUFType type = GGUFType::f32,
                     std::vector<std::string>* notes = nullptr) {
  const TemporaryFolder folder;
  const GGUFResult result = save_gguf(gguf_weights(config), {.config = config, .tokens = {}},
                                      folder / "small.gguf", {.type = type});
  if (notes) *notes = result.notes;
  return GGUFContents(folder / "small.gguf");
}

std::string refusal(const GPTConfig& config) {
  return message_of<Unsupported>([&] { written(config); });
}

/// A row of a tensor in llama.cpp's order of a head's rows: row p of D is row p / 2 of the first
/// half for an even p, and of the second half for an odd one.
int64_t row_before_permutation(int64_t row, int64_t D) {
  const int64_t p = row % D;
  return row - p + p / 2 + (p % 2) * (D / 2);
}

const std::pair<const char*, const char*> gguf_layer_names[] = {
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"}};

/// The parameter of a tensor in a GGUF file.
std::string parameter_of(const std::string& name) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  const size_t dot = name.find('.', 4);
  for (const auto& [theirs, ours] : gguf_layer_names)
    if (name.substr(dot + 1) == theirs) return "model.layers." + name.substr(4, dot - 3) + ours;
  return "no parameter of " + name;
}

void check_layout(const GGUFContents& file) {
  uint64_t next = 0;
  for (const std::string& name : file.names) {
    CAPTURE(name);
    const GGUFContents::Tensor& tensor = file.tensors.at(name);
    CHECK(tensor.offset == next);
    next = (tensor.offset + tensor.bytes.size() + 31) / 32 * 32;
  }
  CHECK(file.data_end == file.data_begin + next);
  CHECK(file.size() == file.data_end);
}

}  // namespace

TEST_CASE("a GGUF file has each parameter once, by llama.cpp's names and order of rows") {
  struct Case {
    Family family;
    bool tied = false, bias = false;
    int64_t head_size = 0;
    size_t tensors = 0;
  };
  for (const Case& c :
       {Case{Family::llama, false, false, 0, 21}, Case{Family::llama, true, true, 6, 28},
        Case{Family::mistral, false, false, 6, 21}, Case{Family::qwen2, true, false, 0, 26},
        Case{Family::qwen3, false, false, 12, 25}}) {
    CAPTURE(std::string(name_of(c.family)));
    GPTConfig config = small_config(c.family);
    config.tied = c.tied;
    config.head_size = c.head_size;
    if (c.bias) config.bias = config.qkv_bias = true;
    const WeightSource weights = gguf_weights(config);
    const TemporaryFolder folder;
    const GGUFResult result =
        save_gguf(weights, {.config = config, .tokens = {}}, folder / "a" + "/my.model.gguf");
    const GGUFContents file(folder / "a" + "/my.model.gguf");
    CHECK(file.version == 3);
    check_layout(file);
    CHECK(file.tensors.size() == c.tensors);
    CHECK(file.tensors.size() == weights.shapes.size());
    Checksum hash;
    for (const auto& [name, shape] : weights.shapes) {
      const std::vector<float> values = weights.read(name);
      hash.update(std::as_bytes(std::span(values)));
    }
    CHECK(result.hash == hash.hex());
    const bool permutes = c.family == Family::llama || c.family == Family::mistral;
    for (const auto& [name, tensor] : file.tensors) {
      CAPTURE(name);
      const std::string parameter = parameter_of(name);
      REQUIRE(weights.shapes.contains(parameter));
      const Shape& shape = weights.shapes.at(parameter);
      REQUIRE(static_cast<int>(tensor.extents.size()) == shape.rank());
      for (int axis = 0; axis < shape.rank(); ++axis)
        CHECK(static_cast<int64_t>(tensor.extents[static_cast<size_t>(axis)]) == shape[-1 - axis]);
      const int64_t columns = shape.rank() == 2 ? shape[1] : 1;
      const bool is_permuted = permutes && (name.find("attn_q.") != std::string::npos ||
                                            name.find("attn_k.") != std::string::npos);
      const std::vector<float> values = tensor.values(), source = weights.read(parameter);
      REQUIRE(values.size() == source.size());
      int64_t wrong = 0;
      for (int64_t i = 0; i < shape.numel(); ++i) {
        const int64_t row = i / columns;
        const int64_t from = is_permuted ? row_before_permutation(row, head_size_of(config)) : row;
        wrong += values[static_cast<size_t>(i)] !=
                 source[static_cast<size_t>(from * columns + i % columns)];
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the metadata of a GGUF file describe the model in llama.cpp's keys") {
  for (const Family family : {Family::llama, Family::mistral, Family::qwen2, Family::qwen3}) {
    CAPTURE(std::string(name_of(family)));
    GPTConfig config = small_config(family);
    if (family == Family::qwen3) config.head_size = 12;
    const GGUFContents file = written(config, GGUFType::q8_0);
    const std::string name = family == Family::mistral ? "llama" : name_of(family);
    CHECK(file.keys[0] == "general.architecture");
    CHECK(file.text_of("general.architecture") == name);
    CHECK(file.text_of("general.type") == "model");
    CHECK(file.text_of("general.name") == "small");
    CHECK(file.count_of("general.file_type") == 7);
    CHECK(file.count_of("general.quantization_version") == 2);
    CHECK(file.text_of("tokenizer.ggml.model") == "none");
    const uint32_t head = family == Family::qwen3 ? 12 : 8;
    const std::pair<const char*, uint32_t> counts[] = {{"context_length", 64},
                                                       {"embedding_length", 32},
                                                       {"block_count", 2},
                                                       {"feed_forward_length", 40},
                                                       {"attention.head_count", 4},
                                                       {"attention.head_count_kv", 2},
                                                       {"attention.key_length", head},
                                                       {"attention.value_length", head},
                                                       {"rope.dimension_count", head},
                                                       {"vocab_size", 50}};
    for (const auto& [key, value] : counts) {
      CAPTURE(std::string(key));
      CHECK(file.count_of(name + "." + key) == value);
    }
    CHECK(file.at<float>(name + ".rope.freq_base") == 5000.0f);
    CHECK(file.at<float>(name + ".attention.layer_norm_rms_epsilon") == 2e-5f);
    CHECK(file.metadata.size() == 18);
    const std::pair<GGUFType, uint32_t> types[] = {
        {GGUFType::f32, 0}, {GGUFType::f16, 1}, {GGUFType::bf16, 32}};
    for (const auto& [type, number] : types)
      CHECK(written(config, type).count_of("general.file_type") == number);
  }
}

TEST_CASE("matrices of a GGUF file are rounded once to its type, and vectors are f32") {
  const GPTConfig config = small_config(Family::qwen2);
  const GGUFContents exact = written(config);
  for (const GGUFType type : all_gguf_types) {
    CAPTURE(std::string(name_of(type)));
    std::vector<std::string> notes;
    const GGUFContents file = written(config, type, &notes);
    check_layout(file);
    for (const auto& [name, tensor] : file.tensors) {
      CAPTURE(name);
      const bool is_vector = tensor.extents.size() == 1;
      // The rows of ffn_down have 40 elements: no whole blocks.
      const bool falls_back = type == GGUFType::q8_0 && name.find("ffn_down") != std::string::npos;
      constexpr uint32_t numbers[] = {0, 1, 30, 8};
      CHECK(tensor.type == (is_vector ? 0 : falls_back ? 1 : numbers[static_cast<size_t>(type)]));
      const std::vector<float> got = tensor.values(), expected = exact.tensors.at(name).values();
      REQUIRE(got.size() == expected.size());
      double worst = 0.0;
      for (size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::fabs(double{got[i]} - double{expected[i]}));
      // The values are multiples of 1/64 below 2, which f16 has; bf16 has 8 bits.
      CHECK(worst <= (tensor.type == 8 ? 0.5 * 125 / 64 / 127 + 1e-3 : 0.0));
      if (tensor.type == 8) CHECK(worst > 0.0);
    }
    const bool has_note = type == GGUFType::q8_0;
    CHECK(notes.size() == (has_note ? 2 : 1));
    if (has_note) CHECK(notes[1] == "2 matrices are f16: 32 does not divide their rows");
  }
}

TEST_CASE("q8_0 has the scale and the rounding of ggml") {
  std::vector<float> values(64);
  // The first block has the scale 1: halves are rounded away from zero.
  const float first[] = {127.0f, -127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 0.49f, -126.5f, 126.4f};
  const int8_t first_q[] = {127, -127, 1, -1, 2, -2, 3, 0, -127, 126};
  std::ranges::copy(first, values.begin());
  // The second one has the scale 1/127, in f16 0x2008; the quotients have that of f32.
  const float second[] = {-1.0f, 0.5f, 0.25f, -0.3f, 0.003f, 0.00394f};
  const int8_t second_q[] = {-127, 64, 32, -38, 0, 1};
  std::ranges::copy(second, values.begin() + 32);
  const std::vector<std::byte> bytes = gguf_values(GGUFType::q8_0, values, "x");
  REQUIRE(bytes.size() == 68);
  const auto scale = [&](size_t at) {
    return static_cast<int>(bytes[at]) | static_cast<int>(bytes[at + 1]) << 8;
  };
  CHECK(scale(0) == 0x3C00);
  CHECK(scale(34) == 0x2008);
  for (size_t i = 0; i < 32; ++i) {
    CAPTURE(i);
    CHECK(static_cast<int8_t>(bytes[2 + i]) == (i < std::size(first_q) ? first_q[i] : 0));
    CHECK(static_cast<int8_t>(bytes[36 + i]) == (i < std::size(second_q) ? second_q[i] : 0));
  }
  // Zeros, and a scale whose inverse is infinite, give zeros.
  std::vector<float> small(32);
  for (const float value : {0.0f, 1e-40f}) {
    small[3] = value;
    for (const std::byte b : gguf_values(GGUFType::q8_0, small, "x")) CHECK(b == std::byte{0});
  }
}

TEST_CASE("a value that a GGUF type cannot hold is an error with the tensor and the value") {
  std::vector<float> values(32, 1.0f);
  const auto refused = [&](GGUFType type, float value) {
    values[5] = value;
    return message_of<FileError>([&] { gguf_values(type, values, "'w'"); });
  };
  CHECK(refused(GGUFType::f16, 7e4f) ==
        "'w' has the value 70000, which f16 cannot hold; try bf16 or f32");
  CHECK(contains(refused(GGUFType::q8_0, 1e9f),
                 "'w' has the value 1000000000, which f16 cannot hold"));
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(refused(GGUFType::q8_0, infinity) ==
        "'w' has the value inf; expected finite values for q8_0");
  CHECK(contains(refused(GGUFType::q8_0, std::nanf("")), "expected finite values"));
  for (const GGUFType type : {GGUFType::f32, GGUFType::bf16, GGUFType::f16})
    CHECK(refused(type, infinity) == "nothing was thrown");
  CHECK(refused(GGUFType::bf16, 7e4f) == "nothing was thrown");
}

TEST_CASE("Llama 3's frequencies are divisors in rope_freqs, and yarn and linear have keys") {
  GPTConfig config = small_config(Family::llama);
  config.head_size = 64;
  config.rope = {.theta = 500000.0,
                 .scaling = RopeScaling::llama3,
                 .factor = 32.0,
                 .original_positions = 8192};
  const GGUFContents llama3 = written(config);
  CHECK_FALSE(llama3.metadata.contains("llama.rope.scaling.type"));
  const GGUFContents::Tensor& factors = llama3.tensors.at("rope_freqs.weight");
  CHECK(factors.type == 0);
  REQUIRE(factors.extents == std::vector<uint64_t>{32});
  const std::vector<float> got = factors.values();
  int between = 0;
  for (int i = 0; i < 32; ++i) {  // as convert_hf_to_gguf.py
    CAPTURE(i);
    const double frequency = 1.0 / std::pow(500000.0, 2.0 * i / 64), length = 2 * M_PI / frequency;
    double expected = 1.0;
    if (length > 8192.0)
      expected = 32.0;
    else if (length >= 8192.0 / 4) {
      const double smooth = (8192.0 / length - 1.0) / (4.0 - 1.0);
      expected = 1.0 / ((1.0 - smooth) / 32.0 + smooth);
      ++between;
    }
    CHECK(std::fabs(double{got[static_cast<size_t>(i)]} / expected - 1.0) < 1e-5);
  }
  CHECK(got[0] == 1.0f);
  CHECK(got[31] == 32.0f);
  CHECK(between > 2);

  config.rope = {.scaling = RopeScaling::linear, .factor = 2.5};
  const GGUFContents linear = written(config);
  CHECK(linear.text_of("llama.rope.scaling.type") == "linear");
  CHECK(linear.at<float>("llama.rope.scaling.factor") == 2.5f);
  CHECK_FALSE(linear.tensors.contains("rope_freqs.weight"));

  config = small_config(Family::qwen2);
  config.rope = {.scaling = RopeScaling::yarn, .factor = 4.0, .original_positions = 16};
  const GGUFContents yarn = written(config);
  CHECK(yarn.text_of("qwen2.rope.scaling.type") == "yarn");
  CHECK(yarn.at<float>("qwen2.rope.scaling.factor") == 4.0f);
  CHECK(yarn.count_of("qwen2.rope.scaling.original_context_length") == 16);
  CHECK(yarn.at<float>("qwen2.rope.scaling.yarn_beta_fast") == 32.0f);
  CHECK(yarn.at<float>("qwen2.rope.scaling.yarn_beta_slow") == 1.0f);
  CHECK_FALSE(yarn.metadata.contains("qwen2.rope.scaling.attn_factor"));
  // llama.cpp multiplies it by 1 + 0.1 ln(4).
  config.rope.attention_factor = 1.5;
  CHECK(std::fabs(written(config).at<float>("qwen2.rope.scaling.attn_factor") *
                      (1.0 + 0.1 * std::log(4.0)) -
                  1.5) < 1e-6);
}

TEST_CASE("save_gguf refuses, by the field, a model that llama.cpp does not compute") {
  for (const Family family : {Family::gpt, Family::bloom}) {
    GPTConfig config = GPTConfig::of(family);
    config.vocabulary = 50;
    config.block_size = 8;
    const std::string message = refusal(config);
    CHECK(contains(message,
                   fmt::format("gguf: the family is {}; expected Llama, Mistral, Qwen2 or Qwen3",
                               hf_title(family))));
    CHECK(contains(message, "convert_hf_to_gguf.py"));
  }
  GPTConfig config = small_config(Family::qwen2);
  config.head_size = 6;
  CHECK(refusal(config) ==
        "gguf: head_size is 6; expected 8, width / heads: llama.cpp's qwen2 has no other");
  config = small_config(Family::qwen3);
  config.rope = {.scaling = RopeScaling::llama3, .factor = 8.0, .original_positions = 16};
  CHECK(contains(refusal(config), "gguf: rope.scaling is llama3; expected none, linear or yarn"));
  config.rope = {
      .scaling = RopeScaling::yarn, .factor = 8.0, .original_positions = 16, .beta_fast = 16.0};
  CHECK(contains(refusal(config), "gguf: rope.beta_fast is 16; expected 32: llama.cpp's qwen3"));
  config.rope.beta_fast = 32.0;
  config.rope.beta_slow = 2.0;
  CHECK(contains(refusal(config), "gguf: rope.beta_slow is 2; expected 1"));
  config.rope.beta_slow = 1.0;
  config.rope.truncate = false;
  CHECK(contains(refusal(config), "gguf: rope.truncate is false; expected true"));
  config.rope.truncate = true;
  CHECK(refusal(config) == "nothing was thrown");
  config = small_config(Family::llama);
  config.window = 8;
  CHECK(contains(refusal(config), "window is 8"));
}

TEST_CASE("a GGUF file's context is at most the sliding window, and a note says so") {
  for (const auto& [window, expected] : {std::pair<int64_t, uint32_t>{0, 64}, {24, 24}, {64, 64}}) {
    GPTConfig config = small_config(Family::mistral);
    config.window = window;
    std::vector<std::string> notes;
    CHECK(written(config, GGUFType::f32, &notes).count_of("llama.context_length") == expected);
    CHECK(notes.size() == (window == 24 ? 2 : 1));
    if (window == 24) CHECK(contains(notes[0], "context_length is the window 24 in place of 64"));
  }
}

TEST_CASE(
    "a GGUF file is written in pieces of whole heads, the same from ranges, slices and tensors") {
  GPTConfig config = small_config(Family::llama);
  config.layers = 1;
  config.width = 96;
  config.heads = 96;
  config.kv_heads = 32;
  config.head_size = 128;  // queries: 12288 rows
  const TemporaryFolder folder;
  const HFModel model{.config = config, .tokens = {}};
  const WeightSource whole = gguf_weights(config);
  WeightSource ranges = whole, slices = whole;
  int64_t largest = 0, calls = 0;
  const auto no_tensor = [](const std::string&) -> std::vector<float> {
    throw std::runtime_error("a whole tensor was read");
  };
  ranges.read = slices.read = no_tensor;
  ranges.read_range = [&](const std::string& name, int64_t begin,
                          int64_t count) -> std::optional<std::vector<float>> {
    largest = std::max(largest, count);
    ++calls;
    return stored_values(name, begin, count);
  };
  slices.read_part = [&](const std::string& name, const Slice& slice) {
    return stored_values(name, slice.whole_index(0), slice.numel());
  };
  const std::string hash = save_gguf(whole, model, folder / "whole").hash;
  CHECK(save_gguf(ranges, model, folder / "ranges", {.name = "whole"}).hash == hash);
  CHECK(save_gguf(slices, model, folder / "slices", {.name = "whole"}).hash == hash);
  const std::string bytes = read_file(folder / "whole");
  CHECK((read_file(folder / "ranges") == bytes));
  CHECK((read_file(folder / "slices") == bytes));
  CHECK(largest <= 1 << 20);
  CHECK(calls == 12 + 2);  // two matrices of 1.18 million elements in two pieces
}

TEST_CASE("an older GGUF file stays until the new one is complete") {
  const TemporaryFolder folder;
  const GPTConfig config = small_config(Family::llama);
  const HFModel model{.config = config, .tokens = {}};
  const std::string path = folder / "model.gguf";
  write_file(path, "older");
  WeightSource broken = gguf_weights(config);
  broken.read = [&](const std::string& name) -> std::vector<float> {
    if (name == "model.norm.weight") throw FileError("the disk is gone");
    return stored_values(name, 0, broken.shapes.at(name).numel());
  };
  CHECK(message_of<FileError>([&] { save_gguf(broken, model, path); }) == "the disk is gone");
  CHECK(read_file(path) == "older");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  save_gguf(gguf_weights(config), model, path);
  CHECK(read_file(path).starts_with("GGUF"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);

  const auto refused = [&](const std::string& file) {
    return message_of<FileError>([&] { save_gguf(gguf_weights(config), model, file); });
  };
  CHECK(contains(refused(folder.path()), "is a folder; expected the path of a file"));
  CHECK(contains(refused(path + "/below.gguf"), "model.gguf"));
  WeightSource other = gguf_weights(config);
  other.shapes.at("model.norm.weight") = Shape{31};
  CHECK_ERROR(FileError, "expected 'model.norm.weight' [32]", save_gguf(other, model, path));
}
