#include "zerograd/models/data/indexed_dataset.h"

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/token_writer.h"
#include "zerograd/runtime/storage/file_set.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

using Documents = std::vector<std::vector<int32_t>>;

const std::string indexed_fixtures = std::string(ZG_FIXTURES) + "indexed/";

nlohmann::json expected_documents() {
  return nlohmann::json::parse(read_file(indexed_fixtures + "expected.json"));
}

Documents documents_of(const IndexedDataset& data) {
  Documents documents;
  for (int64_t i = 0; i < data.sequences(); ++i) {
    documents.emplace_back(static_cast<size_t>(data.size(i)));
    data.read(i, 0, documents.back());
  }
  return documents;
}

/// A dataset of three documents of 3, 0 and 2 tokens of uint16, some of whose bytes are changed.
class Damaged {
 public:
  Damaged() {
    const auto writer = indexed_dataset_writer(prefix(), 100);
    for (const std::vector<int32_t>& document : Documents{{7, 8, 9}, {}, {10, 11}})
      writer->add_document(document);
    writer->finish();
    index_ = read_file(prefix() + ".idx");
  }

  std::string prefix() const { return folder_ / "data"; }

  template <class T>
  std::string with(size_t place, T value) const {
    std::string bytes = index_;
    std::memcpy(bytes.data() + place, &value, sizeof value);
    return message(bytes);
  }
  std::string message(const std::string& index) const {
    write_file(prefix() + ".idx", index);
    return message_of<FileError>([&] { documents_of(IndexedDataset(indexed_files(prefix()))); });
  }
  const std::string& index() const { return index_; }

 private:
  TemporaryFolder folder_;
  std::string index_;
};

constexpr size_t version_at = 9, dtype = 17, sequences = 18, documents = 26, sizes = 34,
                 pointers = sizes + 3 * 4, entries = pointers + 3 * 8;

}  // namespace

TEST_CASE("every integer dtype of Megatron's datasets is read as numpy wrote it") {
  const nlohmann::json sequences_by_name = expected_documents()["sequences"];
  for (const auto& [name, written] : sequences_by_name.items()) {
    CAPTURE(name);
    const IndexedDataset data(indexed_files(indexed_fixtures + name));
    CHECK(documents_of(data) == written.get<Documents>());
    std::vector<int32_t> part(3);
    int64_t longest = 0;
    for (int64_t i = 0; i < data.sequences(); ++i)
      if (data.size(i) > data.size(longest)) longest = i;
    data.read(longest, 4, part);
    const auto whole = written[static_cast<size_t>(longest)].get<std::vector<int32_t>>();
    CHECK(part == std::vector<int32_t>(whole.begin() + 4, whole.begin() + 7));
  }
}

TEST_CASE("a dataset is written byte for byte as Megatron's builder does") {
  const TemporaryFolder folder;
  const nlohmann::json sequences_by_name = expected_documents()["sequences"];
  const auto write = [&](const char* name, int64_t vocabulary) {
    const auto writer = indexed_dataset_writer(folder / name, vocabulary);
    for (const auto& document : sequences_by_name[name])
      writer->add_document(document.get<std::vector<int32_t>>());
    writer->finish();
  };
  write("uint16", 50257);
  for (const char* end : {".bin", ".idx"})
    CHECK(read_file(folder / std::string("uint16") + end) ==
          read_file(indexed_fixtures + "uint16" + end));
  write("int32", 250880);
  CHECK(read_file(folder / "int32.bin") == read_file(indexed_fixtures + "int32.bin"));
  CHECK(documents_of(IndexedDataset(indexed_files(folder / "int32"))) ==
        sequences_by_name["int32"].get<Documents>());

  // From 65500 on Megatron takes 32 bits, though 16 would do.
  for (const auto& [vocabulary, bytes] : {std::pair{65499, 2}, std::pair{65500, 4}}) {
    const auto writer = indexed_dataset_writer(folder / "one", vocabulary);
    writer->add_document(std::vector<int32_t>{1});
    writer->finish();
    CHECK(read_file(folder / "one.bin").size() == static_cast<size_t>(bytes));
  }
}

TEST_CASE(
    "indexed_dataset_writer gives files their final names only at finish, and refuses invalid "
    "ids") {
  const TemporaryFolder folder;
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  };
  {
    const auto writer = indexed_dataset_writer(folder / "data", 10);
    writer->add_document(std::vector<int32_t>{1, 2, 3});
    CHECK(names() == std::vector<std::string>{".replacing_data"});
    CHECK_THROWS_WITH_AS(writer->add_document(std::vector<int32_t>{3, 10}),
                         (folder / "data.bin: expected ids below 10, got 10").c_str(), FileError);
    CHECK_THROWS_AS(writer->add_document(std::vector<int32_t>{-1}), FileError);
  }
  CHECK(names().empty());
  const auto writer = indexed_dataset_writer(folder / "data", 10);
  writer->finish();
  CHECK(names() == std::vector<std::string>{"data.bin", "data.idx"});
  CHECK(IndexedDataset(indexed_files(folder / "data")).sequences() == 0);
  CHECK_THROWS_AS(indexed_dataset_writer(folder / "no/data", 10), FileError);
}

TEST_CASE("a damaged .idx file is refused with an error that names file, field and entry") {
  const Damaged damaged;
  CHECK(damaged.message(damaged.index()) == "nothing was thrown");
  const std::string index = damaged.prefix() + ".idx: ", data = damaged.prefix() + ".bin";
  CHECK(damaged.with(0, 'N') ==
        index +
            "magic: expected 4d4d49444944580000 (MMIDIDX, of Megatron's mmap datasets), got "
            "4e4d49444944580000");
  CHECK(damaged.with(version_at, uint64_t{2}) == index + "version: expected 1, got 2");
  CHECK(damaged.with(dtype, uint8_t{6}) ==
        index + "dtype: expected integer tokens, got floating ones (6)");
  CHECK(damaged.with(dtype, uint8_t{7}) ==
        index + "dtype: expected integer tokens, got floating ones (7)");
  CHECK(damaged.with(dtype, uint8_t{0}) == index + "dtype: expected 1 to 5 or 8, got 0");
  CHECK(damaged.with(dtype, uint8_t{9}) == index + "dtype: expected 1 to 5 or 8, got 9");
  CHECK(damaged.with(sequences, uint64_t{4}) ==
        index + "documents: expected at most 2 in its bytes, got 4");
  for (const uint64_t count : {uint64_t{6}, UINT64_MAX, UINT64_MAX / 12 + 1})
    CHECK(damaged.with(sequences, count) ==
          index + "sequences: expected at most 5 in its bytes, got " + std::to_string(count));
  for (const uint64_t count : {uint64_t{5}, UINT64_MAX, UINT64_MAX / 8 + 1})
    CHECK(damaged.with(documents, count) ==
          index + "documents: expected at most 4 in its bytes, got " + std::to_string(count));
  CHECK(damaged.with(documents, uint64_t{3}) ==
        index + "bytes: expected 94 by its counts, got 102");
  CHECK(damaged.with(sizes + 4, int32_t{-1}) ==
        index + "size of sequence 1: expected 0 or more tokens, got -1");
  CHECK(damaged.with(sizes, int32_t{6}) ==
        index + "pointer of sequence 0: expected at least 12 bytes in " + data + ", got 10");
  CHECK(damaged.with(sizes, INT32_MAX) == index +
                                              "pointer of sequence 0: expected at least "
                                              "4294967294 bytes in " +
                                              data + ", got 10");
  for (const int64_t pointer : {int64_t{7}, int64_t{-1}, INT64_MAX, INT64_MIN})
    CHECK(damaged.with(pointers + 16, pointer) ==
          index + "pointer of sequence 2: expected 0 to 6, so that its 2 tokens lie in " + data +
              ", got " + std::to_string(pointer));
  CHECK(damaged.with(entries + 8, int64_t{4}) ==
        index + "entry 1 of the documents: expected 0 to 3, got 4");
  CHECK(damaged.with(entries + 24, int64_t{1}) ==
        index + "entry 3 of the documents: expected 2 to 3, got 1");
  CHECK(damaged.with(entries, int64_t{-1}) ==
        index + "entry 0 of the documents: expected 0 to 3, got -1");
  CHECK(damaged.message("") == index + "bytes: expected at least 34, got 0");
  CHECK(damaged.message(damaged.index().substr(0, 33)) ==
        index + "bytes: expected at least 34, got 33");
  CHECK(damaged.message(damaged.index() + "x") ==
        index + "bytes: expected 102 by its counts, got 103");
}

TEST_CASE("a token id below 0 or above 2147483647 is refused with its sequence and position") {
  const TemporaryFolder folder;
  const auto refused = [&](const char* name, const std::string& bytes, const char* got) {
    write_file(folder / "data.idx", read_file(indexed_fixtures + name + ".idx"));
    std::string tokens = read_file(indexed_fixtures + name + ".bin");
    const IndexedDataset whole(indexed_files(indexed_fixtures + name));
    const size_t place = static_cast<size_t>(whole.size(0)) * bytes.size();
    tokens.replace(place, bytes.size(), bytes);
    write_file(folder / "data.bin", tokens);
    const IndexedDataset data(indexed_files(folder / "data"));
    std::vector<int32_t> ids(1);
    CHECK_THROWS_WITH_AS(data.read(1, 0, ids),
                         (folder / "data.bin: token 0 of sequence 1: expected an id from 0 to "
                                   "2147483647, got ")
                             .append(got)
                             .c_str(),
                         FileError);
  };
  refused("int8", "\xff", "-1");
  refused("int16", std::string("\x00\x80", 2), "-32768");
  refused("int32", "\xfe\xff\xff\xff", "-2");
  refused("int64", std::string("\x00\x00\x00\x80\x00\x00\x00\x00", 8), "2147483648");
  refused("int64", "\xff\xff\xff\xff\xff\xff\xff\xff", "-1");
}

TEST_CASE("reading .bin or .idx files that were damaged after opening is a FileError") {
  const TemporaryFolder folder;
  for (const char* end : {".bin", ".idx"})
    write_file(folder / std::string("data") + end, read_file(indexed_fixtures + "uint16" + end));
  const IndexedDataset data(indexed_files(folder / "data"));
  std::vector<int32_t> ids(1);
  CHECK_NOTHROW(data.read(23, 0, ids));
  const std::string index = read_file(indexed_fixtures + "uint16.idx");
  write_file(folder / "data.idx", std::string(index.size(), '\xff'));
  CHECK_ERROR(FileError, "pointer of sequence 0: expected 0 to ", data.read(0, 0, ids));
  write_file(folder / "data.idx", index);
  std::filesystem::resize_file(folder / "data.bin", 10);
  CHECK_THROWS_AS(data.read(23, 0, ids), FileError);
  std::filesystem::resize_file(folder / "data.idx", 40);
  CHECK_THROWS_AS(data.read(0, 0, ids), FileError);
  CHECK_THROWS_AS(IndexedDataset(indexed_files(folder / "none")), FileError);
}

TEST_CASE("a reader opens matching .bin and .idx files while a writer replaces the dataset") {
  const TemporaryFolder folder;
  const std::string prefix = folder / "data";
  // The index of one fits the tokens of the other, so that nothing else would tell them apart.
  const auto write = [&](int32_t token) {
    FileSet files(folder.path(), "data");
    const auto writer = indexed_dataset_writer(files, "data", 1000);
    writer->add_document(std::vector<int32_t>(static_cast<size_t>(token), token));
    writer->finish();
    files.finish();
  };
  write(400);
  std::atomic<bool> stop = false;
  std::atomic<int> written = 0;
  std::thread writer([&] {
    while (!stop) {
      write(written % 2 == 0 ? 300 : 400);
      ++written;
    }
  });
  int opened = 0, mixed = 0;
  std::string error;
  while (written < 60 && error.empty()) try {
      const Documents documents = documents_of(IndexedDataset(indexed_files(prefix)));
      ++opened;
      mixed += documents[0] !=
               std::vector<int32_t>(documents[0].size(), static_cast<int32_t>(documents[0].size()));
    } catch (const Error& failure) {
      error = failure.what();
    }
  stop = true;
  writer.join();
  CHECK(error == "");
  CHECK(opened > 60);
  CHECK(mixed == 0);
}

TEST_CASE("token_file_writer writes llm.c's format and refuses a vocabulary above 65536") {
  const TemporaryFolder folder;
  const auto writer = token_file_writer(folder / "data.bin", 65536);
  writer->add_document(std::vector<int32_t>{1, 65535});
  writer->add_document(std::vector<int32_t>{});
  writer->add_document(std::vector<int32_t>{3});
  CHECK_FALSE(std::filesystem::exists(folder / "data.bin"));
  writer->finish();
  std::string bytes(1024, '\0');
  const int32_t header[] = {20240520, 1, 3};
  std::memcpy(bytes.data(), header, sizeof header);
  CHECK(read_file(folder / "data.bin") == bytes + std::string("\x01\x00\xff\xff\x03\x00", 6));
  CHECK_THROWS_WITH_AS(token_file_writer(folder / "wide.bin", 65537),
                       (folder / "wide.bin: llm.c's files have ids of 16 bits; expected a "
                                 "vocabulary of at most 65536, got 65537; try Megatron's format")
                           .c_str(),
                       ConfigError);
}
