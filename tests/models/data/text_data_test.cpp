#include <filesystem>
#include <numeric>
#include <set>
#include <string>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/data.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// A file that ends with the scope.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) { write_file(path_, bytes); }
  const std::string& path() const { return path_; }

 private:
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "data";
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<int32_t> header(int32_t tokens) {
  std::vector<int32_t> values(256, 0);
  values[0] = 20240520;
  values[1] = 1;
  values[2] = tokens;
  return values;
}

/// Tokens 0, 1, 2, ...: each tells its own place.
std::string counting_tokens(int32_t tokens) {
  std::vector<uint16_t> values(static_cast<size_t>(tokens));
  std::iota(values.begin(), values.end(), uint16_t{0});
  return bytes_of(header(tokens)) + bytes_of(values);
}

std::vector<int32_t> ids_of(const Dataset& data, Split split, int64_t index) {
  std::vector<int32_t> ids(static_cast<size_t>(data.block_size())), targets(ids.size());
  data.sample(split, index, ids.data(), targets.data());
  for (size_t i = 0; i + 1 < ids.size(); ++i) CHECK(targets[i] == ids[i + 1]);
  return ids;
}

std::string data_error(const std::string& path, const TextOptions& options) {
  return message_of<Error>([&] { text_dataset(path, options); });
}

}  // namespace

TEST_CASE("text_dataset's characters are code points, with ids in code point order") {
  const std::string text = "zä €😀a\n";
  const TemporaryFile file(text + text + text);
  const auto data = text_dataset(file.path(), {.block_size = 2, .validation_fraction = 0.2});
  CHECK(data->is_text());
  CHECK(data->vocabulary() == 7);
  CHECK(data->encode("\n az") == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(data->encode("ä€😀") == std::vector<int32_t>{4, 5, 6});
  CHECK(data->decode(data->encode(text)) == text);
  CHECK_THROWS_WITH_AS(
      data->encode("a😁"),
      ("encode: '😁' (U+1F601) is not among the 7 characters of " + file.path()).c_str(),
      ConfigError);
  CHECK_THROWS_AS(data->encode("a\xc3"), ConfigError);
  CHECK_THROWS_WITH_AS(data->decode({7}), "decode: expected ids below 7, got 7", ConfigError);
  CHECK_THROWS_AS(data->decode({-1}), ConfigError);
}

TEST_CASE("invalid UTF-8 is refused with its byte offset") {
  for (const char* invalid : {"\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                              "\xe2\x82", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff"}) {
    const TemporaryFile file(std::string("aé") + invalid);
    CHECK(data_error(file.path(), {.block_size = 1}) ==
          file.path() + ": invalid UTF-8 at byte 3; convert the text to UTF-8 first");
  }
  for (const char* valid :
       {"\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"}) {
    const TemporaryFile file(std::string(valid) + "abc");
    CHECK(text_dataset(file.path(), {.block_size = 1, .validation_fraction = 0})->decode({3}) ==
          valid);
  }
}

TEST_CASE(
    "sequential samples are adjacent blocks that wrap around, and validation is the end of the "
    "text") {
  const TemporaryFile file(counting_tokens(50));
  for (Order order : {Order::sequential, Order::random}) {
    const auto data =
        token_dataset(file.path(), {.block_size = 4, .validation_fraction = 0.2, .order = order});
    CHECK(data->vocabulary() == 50);
    CHECK(data->epoch_samples(Split::train) == 9);       // 40 tokens: 9 blocks and 4 left over
    CHECK(data->epoch_samples(Split::validation) == 2);  // 10 tokens: 2 blocks and 2 left over
    for (int64_t index = 0; index < 30; ++index) {
      const int32_t validation = static_cast<int32_t>(40 + index % 2 * 4);
      CHECK(ids_of(*data, Split::validation, index)[0] == validation);
      const int32_t train = static_cast<int32_t>(index % 9 * 4);
      if (order == Order::sequential) CHECK(ids_of(*data, Split::train, index)[0] == train);
    }
  }
}

TEST_CASE("random samples begin anywhere in the training part") {
  const TemporaryFile file(counting_tokens(50));
  const TextOptions options{.block_size = 4, .validation_fraction = 0.2, .seed = 9};
  const auto data = token_dataset(file.path(), options);
  std::set<int32_t> starts;
  for (int64_t index = 0; index < 1000; ++index)
    starts.insert(ids_of(*data, Split::train, index)[0]);
  CHECK(starts.size() == 36);  // 0 to 35: the window 35 .. 38 has its last target at 39
  CHECK(*starts.rbegin() == 35);

  const Device device = Device::cpu();
  const Batch whole = data->batch(Split::train, 7, 4, device);
  const Batch part = data->batch(Split::train, 9, 2, device);
  CHECK(whole.ids.slice(2, 4).to_host<int32_t>() == part.ids.to_host<int32_t>());
  CHECK(whole.targets.slice(2, 4).to_host<int32_t>() == part.targets.to_host<int32_t>());
}

TEST_CASE(
    "the error for a too short text states its token counts, and invalid options are refused") {
  const TemporaryFile file("0123456789");
  CHECK(data_error(file.path(), {.block_size = 4, .validation_fraction = 0.3}) ==
        file.path() +
            ": 10 tokens are 7 to train and 3 to validate; a block size of 4 needs 5 of each; "
            "try a smaller block size or another validation fraction");
  CHECK_NOTHROW(text_dataset(file.path(), {.block_size = 4, .validation_fraction = 0.5}));
  CHECK_THROWS_AS(text_dataset(file.path(), {.block_size = 5, .validation_fraction = 0.5}),
                  ConfigError);
  CHECK_THROWS_AS(text_dataset(file.path(), {.block_size = 0}), ConfigError);
  CHECK_THROWS_AS(text_dataset(file.path(), {.block_size = 1, .validation_fraction = 1.1}),
                  ConfigError);
  const auto held_out = text_dataset(file.path(), {.block_size = 3, .validation_fraction = 1.0});
  CHECK(held_out->epoch_samples(Split::train) == 0);
  CHECK(held_out->epoch_samples(Split::validation) == 3);
  CHECK_THROWS_AS(held_out->batch(Split::train, 0, 1, Device::cpu()), ConfigError);
  const auto whole = text_dataset(file.path(), {.block_size = 9, .validation_fraction = 0.0});
  CHECK(whole->epoch_samples(Split::train) == 1);
  CHECK(whole->epoch_samples(Split::validation) == 0);
  CHECK_THROWS_AS(whole->batch(Split::validation, 0, 1, Device::cpu()), ConfigError);
  const TemporaryFile empty("");
  CHECK(data_error(empty.path(), {.block_size = 1}) ==
        empty.path() + ": the file is empty; expected text");
}

TEST_CASE("a missing file or a folder given as data is a FileError") {
  const std::string folder = std::filesystem::temp_directory_path().string();
  const std::string missing = folder + "/zerograd_no_such_file";
  CHECK(data_error(missing, {}) == missing + ": cannot be read: No such file or directory");
  CHECK(data_error(folder, {}) == folder + ": cannot be read: Is a directory");
  CHECK_THROWS_AS(token_dataset(missing, {}), FileError);
  CHECK_THROWS_AS(token_dataset(folder, {}), FileError);
}

TEST_CASE("token_dataset refuses an llm.c file whose header or size is wrong") {
  const std::vector<uint16_t> tokens{1, 65535, 3, 4};
  const TemporaryFile good(bytes_of(header(4)) + bytes_of(tokens));
  const auto data = token_dataset(good.path(), {.block_size = 1, .validation_fraction = 0});
  CHECK(data->vocabulary() == 65536);
  CHECK_FALSE(data->is_text());
  CHECK_THROWS_AS(data->encode("a"), ConfigError);

  // As llm.c writes for Llama 3.
  std::vector<int32_t> wide_header = header(4);
  wide_header[0] = 20240801;
  wide_header[1] = 7;
  const std::vector<uint32_t> wide_tokens{128000, 65536, 3, 4};
  const TemporaryFile wide(bytes_of(wide_header) + bytes_of(wide_tokens));
  const auto llama = token_dataset(wide.path(), {.block_size = 3, .validation_fraction = 0});
  CHECK(llama->vocabulary() == 128001);
  CHECK(ids_of(*llama, Split::train, 0) == std::vector<int32_t>{128000, 65536, 3});

  auto refused = [&](const char* message, const std::string& bytes) {
    const TemporaryFile file(bytes);
    const std::string expected = file.path() + ": not a token file of llm.c: expected " + message;
    CHECK_THROWS_WITH_AS(token_dataset(file.path(), {.block_size = 1}), expected.c_str(),
                         FileError);
  };
  auto changed = [&](size_t place, int32_t value) {
    std::vector<int32_t> values = header(4);
    values[place] = value;
    return bytes_of(values) + bytes_of(tokens);
  };
  refused("magic number 20240520, got 20240521", changed(0, 20240521));
  refused("version 1, got 2", changed(1, 2));
  wide_header[1] = 1;
  refused("version 7, got 1", bytes_of(wide_header) + bytes_of(wide_tokens));
  wide_header[1] = 7;
  refused("bytes 1040, got 1032", bytes_of(wide_header) + bytes_of(tokens));
  refused("bytes 1034, got 1032", changed(2, 5));
  refused("bytes 1022, got 1032", changed(2, -1));
  refused("header padding 0, got 7", changed(255, 7));
  refused("bytes 1032, got 1031", changed(2, 4).substr(0, 1031));
  refused("at least 1024 bytes, got 1000", changed(2, 4).substr(0, 1000));
}
