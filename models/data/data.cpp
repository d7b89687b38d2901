#include "zerograd/models/data/data.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

class WindowDataset final : public Dataset {
 public:
  WindowDataset(TokenSequence sequence, const TextOptions& options)
      : sequence_(std::move(sequence)), options_(options) {
    const double fraction = options.validation_fraction;
    if (options.block_size < 1 || !(fraction >= 0.0 && fraction <= 1.0))
      raise<ConfigError>(
          "{}: expected a block size from 1 and a validation fraction in [0, 1], got {} and {:f}",
          sequence_.path, options.block_size, fraction);
    const int64_t tokens = sequence_.tokens->size();
    const int64_t held_out = static_cast<int64_t>(static_cast<double>(tokens) * fraction);
    train_ = {0, tokens - held_out};
    validation_ = {tokens - held_out, held_out};
    if ((fraction < 1.0 && blocks(train_) < 1) || (fraction > 0.0 && blocks(validation_) < 1))
      raise<ConfigError>(
          "{}: {} tokens are {} to train and {} to validate; a block size of {} needs "
          "{} of each; try a smaller block size or another validation fraction",
          sequence_.path, tokens, train_.tokens, held_out, options.block_size,
          options.block_size + 1);
  }

  int64_t vocabulary() const override { return sequence_.vocabulary; }
  int64_t block_size() const override { return options_.block_size; }
  int64_t epoch_samples(Split split) const override { return blocks(part(split)); }

  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override {
    std::vector<int32_t> window(static_cast<size_t>(block_size() + 1));
    sequence_.tokens->read(part(split).begin + start(split, index), window);
    std::copy_n(window.begin(), block_size(), ids);
    std::copy_n(window.begin() + 1, block_size(), targets);
  }
  int64_t targets(Split, int64_t) const override { return block_size(); }

  bool is_text() const override { return sequence_.codec != nullptr; }
  std::vector<int32_t> encode(const std::string& text) const override {
    return is_text() ? sequence_.codec->encode(text) : Dataset::encode(text);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    return is_text() ? sequence_.codec->decode(ids) : Dataset::decode(ids);
  }

 private:
  struct Part {
    int64_t begin = 0, tokens = 0;
  };

  const Part& part(Split split) const { return split == Split::train ? train_ : validation_; }
  // A block needs one more token, its last target.
  int64_t blocks(const Part& part) const {
    return part.tokens > 0 ? (part.tokens - 1) / options_.block_size : 0;
  }
  int64_t start(Split split, int64_t index) const {
    if (split == Split::validation || options_.order == Order::sequential)
      return index % blocks(part(split)) * options_.block_size;
    return RandomStream(options_.seed, "text", static_cast<uint64_t>(index))
        .below(train_.tokens - options_.block_size);
  }

  TokenSequence sequence_;
  TextOptions options_;
  Part train_, validation_;
};

std::string read_stream(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> chunk(1 << 20);
  while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), file.gcount() > 0)
    text.append(chunk.data(), static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad())
    raise<FileError>("{}: cannot be read: {}", path, std::generic_category().message(errno));
  return text;
}

std::string hexadecimal(char32_t code) {
  return fmt::format("U+{:04X}", static_cast<unsigned>(code));
}

/// Encodes a text by character: the id of a code point is its index in `characters`, which are in
/// ascending order.
class CharacterCodec final : public TextCodec {
 public:
  CharacterCodec(std::vector<char32_t> characters, std::string path)
      : characters_(std::move(characters)), path_(std::move(path)) {}

  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids;
    for (size_t position = 0; position < text.size();) {
      const char32_t code = next_code_point(text, position, "encode");
      const auto found = std::ranges::lower_bound(characters_, code);
      if (found == characters_.end() || *found != code)
        raise<ConfigError>("encode: '{}' ({}) is not among the {} characters of {}", utf8(code),
                           hexadecimal(code), characters_.size(), path_);
      ids.push_back(static_cast<int32_t>(found - characters_.begin()));
    }
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= characters_.size())
        raise<ConfigError>("decode: expected ids below {}, got {}", characters_.size(), id);
      text += utf8(characters_[static_cast<size_t>(id)]);
    }
    return text;
  }

 private:
  std::vector<char32_t> characters_;
  std::string path_;  // for errors
};

}  // namespace

std::vector<int32_t> Dataset::encode(const std::string&) const {
  throw ConfigError("encode: this dataset has no text; use text_dataset or tokenized_dataset");
}

std::string Dataset::decode(const std::vector<int32_t>&) const {
  throw ConfigError("decode: this dataset has no text; use text_dataset or tokenized_dataset");
}

int64_t Dataset::targets(Split split, int64_t index) const {
  std::vector<int32_t> ids(static_cast<size_t>(block_size())), targets(ids.size());
  sample(split, index, ids.data(), targets.data());
  return std::ranges::count_if(targets, [](int32_t id) { return id >= 0; });
}

int64_t Dataset::count_targets(Split split, int64_t first, int64_t count) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += targets(split, first + i);
  return sum;
}

void Dataset::document_starts(Split, int64_t, int32_t* starts) const {
  std::fill_n(starts, block_size(), 0);
}

Batch Dataset::batch(Split split, int64_t first_sample, int64_t samples,
                     const Device& device) const {
  if (first_sample < 0 || samples < 1)
    raise<ConfigError>("batch: expected 1 or more samples, from 0 on; got {} from {}", samples,
                       first_sample);
  if (epoch_samples(split) == 0)
    throw ConfigError("batch: the data has no validation split; try a validation fraction above 0");
  const int64_t T = block_size();
  const Shape shape{samples, T};
  if (device.type() == Device::Type::meta) {
    // Copies as a run does, so that the copies are counted; nothing is read.
    const auto tensor = [&] {
      const Tensor ids = Tensor::empty(shape, DType::i32, device);
      if (ids.raw()) device.compute().copy(ids.raw(), nullptr, static_cast<size_t>(ids.bytes()));
      return ids;
    };
    Batch batch = {.ids = tensor(), .targets = tensor()};
    if (!has_documents()) return batch;
    batch.starts = tensor();
    batch.positions = tensor();
    return batch;
  }
  std::vector<int32_t> ids(static_cast<size_t>(samples * T)), targets(ids.size());
  for (int64_t i = 0; i < samples; ++i)
    sample(split, first_sample + i, ids.data() + i * T, targets.data() + i * T);
  Batch batch = {.ids = Tensor::from(ids, shape, device),
                 .targets = Tensor::from(targets, shape, device)};
  if (!has_documents()) return batch;
  std::vector<int32_t> starts(ids.size()), positions(ids.size());
  for (int64_t i = 0; i < samples; ++i)
    document_starts(split, first_sample + i, starts.data() + i * T);
  for (size_t t = 0; t < starts.size(); ++t)
    positions[t] = static_cast<int32_t>(static_cast<int64_t>(t) % T) - starts[t];
  batch.starts = Tensor::from(starts, shape, device);
  batch.positions = Tensor::from(positions, shape, device);
  return batch;
}

std::unique_ptr<Dataset> window_dataset(TokenSequence sequence, const TextOptions& options) {
  return std::make_unique<WindowDataset>(std::move(sequence), options);
}

std::unique_ptr<Dataset> text_dataset(const std::string& path, const TextOptions& options) {
  const std::string text = read_stream(path);
  if (text.empty()) throw ConfigError(path + ": the file is empty; expected text");
  constexpr char32_t code_points = 0x110000;
  std::vector<int32_t> id_of(code_points, -1);
  for (size_t position = 0; position < text.size();)
    id_of[next_code_point(text, position, path)] = 0;

  std::vector<char32_t> characters;
  for (char32_t code = 0; code < code_points; ++code) {
    if (id_of[code] < 0) continue;
    id_of[code] = static_cast<int32_t>(characters.size());
    characters.push_back(code);
  }
  std::vector<int32_t> tokens;
  for (size_t position = 0; position < text.size();)
    tokens.push_back(id_of[next_code_point(text, position, path)]);
  const auto vocabulary = std::ssize(characters);
  return window_dataset({.path = path,
                         .tokens = tokens_in_memory(std::move(tokens)),
                         .vocabulary = vocabulary,
                         .codec = std::make_unique<CharacterCodec>(std::move(characters), path)},
                        options);
}

std::unique_ptr<Dataset> token_dataset(const std::string& path, const TextOptions& options) {
  TokenSequence sequence{.path = path, .tokens = open_token_file(path)};
  sequence.vocabulary = vocabulary_of(*sequence.tokens);
  return window_dataset(std::move(sequence), options);
}

}  // namespace zg::models
