#include "zerograd/runtime/storage/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/random.h"

using namespace zg;
using namespace zg::testing;

namespace {

std::string with_length(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

/// The whole file with this header and so many bytes of data.
std::string safetensors_file(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\1'));
}

std::string error_of(const std::string& bytes, const std::string& path) {
  write_file(path, bytes);
  try {
    const SafetensorsReader reader(path);
    for (const auto& [name, entry] : reader.entries()) reader.read_floats(name);
  } catch (const FileError& error) {
    const std::string text = error.what();
    CHECK(text.find(path) != std::string::npos);
    return text;
  }
  return "nothing was thrown";
}

std::string error_of(const std::string& bytes) {
  const TemporaryFolder folder;
  return error_of(bytes, folder / "f");
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace

TEST_CASE("SafetensorsReader reads back tensors and metadata as they were written") {
  const TemporaryFolder folder;
  const std::vector<float> a = {1.5f, -0.0f, INFINITY, 1e-40f, 0.1f, 3.0f};
  const std::vector<uint16_t> b = {bf16(2.5f).bits, bf16(-1e30f).bits};
  const std::vector<uint16_t> c = {f16(0.333f).bits};
  const std::vector<double> d = {0.1, 1e300};
  const std::vector<int64_t> ids = {7};
  SafetensorsWriter writer(folder / "f",
                           {{"a \"quoted\" é", DType::f32, {2, 3}},
                            {"b", DType::bf16, {2}},
                            {"c", DType::f16, {}},
                            {"none", DType::f32, {0, 5}},
                            {"d", DType::f64, {2, 1}},
                            {"ids", DType::i64, {1}}},
                           {{"made", "by hand"}});
  writer.write_floats(a);
  writer.write(std::as_bytes(std::span(b)));
  writer.write(std::as_bytes(std::span(c)));
  writer.write({});
  writer.write(std::as_bytes(std::span(d)));
  writer.write(std::as_bytes(std::span(ids)));
  CHECK_FALSE(std::filesystem::exists(folder / "f"));
  writer.finish();

  const SafetensorsReader reader(folder / "f");
  CHECK(reader.metadata() == std::map<std::string, std::string>{{"made", "by hand"}});
  CHECK(reader.entries().size() == 6);
  CHECK(reader.entries().at("a \"quoted\" é").shape == Shape{2, 3});
  CHECK(reader.entries().at("c").dtype == DType::f16);
  CHECK(reader.entries().at("a \"quoted\" é").begin % 8 == 0);
  const std::vector<float> back = reader.read_floats("a \"quoted\" é");
  CHECK(std::memcmp(back.data(), a.data(), a.size() * sizeof(float)) == 0);
  CHECK(reader.read_floats("b") == std::vector<float>{2.5f, static_cast<float>(bf16(-1e30f))});
  CHECK(reader.read_floats("c") == std::vector<float>{static_cast<float>(f16(0.333f))});
  CHECK(reader.read_floats("none").empty());
  CHECK(reader.read_floats("d") == std::vector<float>{0.1f, INFINITY});
  CHECK(reader.contains("ids"));
  CHECK_FALSE(reader.contains("e"));
  CHECK_THROWS_WITH_AS(reader.read_floats("e"),
                       ("safetensors: " + (folder / "f") + ": has no tensor 'e'").c_str(),
                       FileError);
  CHECK_THROWS_AS(reader.read_floats("ids"), FileError);
}

TEST_CASE("read_floats widens all elements of a large bf16 tensor") {
  const TemporaryFolder folder;
  const int64_t n = (1 << 21) + 3;
  std::vector<bf16> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bf16(static_cast<float>(i % 251));
  SafetensorsWriter writer(folder / "f", {{"x", DType::bf16, {n}}});
  writer.write(std::as_bytes(std::span(values)));
  writer.finish();
  const std::vector<float> read = SafetensorsReader(folder / "f").read_floats("x");
  REQUIRE(read.size() == values.size());
  for (size_t i : {size_t{0}, size_t{1} << 20, (size_t{1} << 21) - 1, read.size() - 1})
    CHECK(read[i] == static_cast<float>(i % 251));
}

TEST_CASE("an unfinished SafetensorsWriter leaves the old file unchanged and adds no other file") {
  const TemporaryFolder folder;
  write_file(folder / "f", "before");
  {
    SafetensorsWriter writer(folder / "f", {{"a", DType::f32, {1}}, {"b", DType::i32, {1}}});
    CHECK_THROWS_WITH_AS(
        writer.write_floats(std::vector<float>{1, 2}),
        ("safetensors: writing " + (folder / "f") + ": tensor 'a' takes 4 bytes, got 8").c_str(),
        FileError);
    CHECK_THROWS_AS(writer.finish(), FileError);
    writer.write_floats(std::vector<float>{1});
    CHECK_THROWS_AS(writer.write_floats(std::vector<float>{1}), FileError);  // b is i32
  }
  CHECK(read_file(folder / "f") == "before");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "g", {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}),
                  FileError);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "g", {{"__metadata__", DType::f32, {1}}}), FileError);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "g", {{"\xff", DType::f32, {1}}}), FileError);
  CHECK_THROWS_AS(SafetensorsWriter(folder / "no/such/folder", {}), FileError);
}

TEST_CASE("SafetensorsWriter writes through a link to its target and into a pipe, and keeps both") {
  const TemporaryFolder folder;
  const std::string target = folder / "target", link = folder / "link", pipe = folder / "pipe";
  const auto write = [](const std::string& path) {
    SafetensorsWriter writer(path, {{"a", DType::f32, {1}}});
    writer.write_floats(std::vector<float>{1.0f});
    writer.finish();
  };
  write_file(target, "old");
  std::filesystem::create_symlink("target", link);
  write(link);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(SafetensorsReader(target).read_floats("a") == std::vector<float>{1.0f});

  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write(pipe);
  CHECK(std::filesystem::is_fifo(pipe));
  std::string bytes(1000, '\0');
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(reader, bytes.data(), 1000))));
  ::close(reader);
  CHECK(bytes == read_file(target));
}

TEST_CASE("SafetensorsReader refuses absent files, folders and files that are too short") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(SafetensorsReader(folder / "absent"), FileError);
  CHECK_THROWS_AS(SafetensorsReader reader(folder.path()), FileError);
  CHECK(contains(error_of(""), "has 0 bytes; expected at least 8"));
  CHECK(contains(error_of("1234567"), "has 7 bytes"));
  CHECK(contains(error_of(with_length(3, "{}")), "claims 3 bytes of a file of 10"));
  CHECK(contains(error_of(with_length(100'000'001, "{}")), "expected at most 100000000"));
  CHECK(contains(error_of(with_length(UINT64_MAX, "{}")), "claims 18446744073709551615"));
  CHECK(contains(error_of(with_length(0, "")), "not JSON"));
}

TEST_CASE(
    "SafetensorsReader refuses invalid headers with an error that names the file and the cause") {
  const auto of = [](const std::string& header, size_t data = 8) {
    return error_of(safetensors_file(header, data));
  };
  const std::string f32 = R"("F32")";
  // Neither too strict:
  CHECK(of(R"({"a":)" + tensor(f32, "[2]", "[0,8]") + "}   ") == "nothing was thrown");
  CHECK(of("{}", 0) == "nothing was thrown");

  CHECK(contains(of("[]", 0), "header:1:1: expected a JSON object, got []"));
  CHECK(contains(of("{\"a\":", 0), "header:1:6: is not JSON: "));
  CHECK(contains(of("{\"\xff\":1}", 0), "header:1:3: invalid UTF-8"));
  CHECK(contains(of("{} x", 0), "header:1:4: is not JSON: "));
  CHECK(contains(of(std::string("{}\0\0", 4), 0), "header:1:3: has a zero byte"));
  CHECK(contains(of(R"({"a":1})"), "tensor 'a': expected an object"));
  CHECK(contains(of(R"({"a":{"dtype":"F32","shape":[2]}})"), "has no data_offsets"));
  CHECK(contains(of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})"),
                 "has fields besides"));
  CHECK(contains(of(R"({"__metadata__":{"a":1}})"), "expected __metadata__ 'a' to be a string"));
  CHECK(contains(of(R"({"__metadata__":[]})"), "expected __metadata__ to be an object"));

  for (const char* dtype : {R"("F33")", R"("f32")", R"("")", "7", "null", R"(["F32"])"})
    CHECK(contains(of(R"({"a":)" + tensor(dtype, "[2]", "[0,8]") + "}"), "tensor 'a': dtype is"));
  for (const char* shape :
       {"[-1]", "[2.0]", "[\"2\"]", "2", "{}", "[null]", "[18446744073709551615]"})
    CHECK(contains(of(R"({"a":)" + tensor(f32, shape, "[0,8]") + "}"), "tensor 'a': shape is"));
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,4]",
                            "[9223372036854775807,0,2]", "[2305843009213693952]"})
    CHECK(contains(of(R"({"a":)" + tensor(f32, shape, "[0,8]") + "}"), "overflows 64 bits"));
  for (const char* offsets : {"[8]", "[0,8,8]", "[-8,0]", "[0,8.0]", "8", "[0,\"8\"]", "[]"})
    CHECK(contains(of(R"({"a":)" + tensor(f32, "[2]", offsets) + "}"),
                   "expected data_offsets to be two counts"));
  for (const char* offsets : {"[8,0]", "[0,16]", "[4,12]", "[0,9223372036854775807]",
                              "[9223372036854775800,9223372036854775807]"})
    CHECK(contains(of(R"({"a":)" + tensor(f32, "[2]", offsets) + "}"),
                   "are outside the 8 bytes after the header"));
  CHECK(contains(of(R"({"a":)" + tensor(f32, "[3]", "[0,8]") + "}"),
                 "F32 [3] takes 12 bytes, got bytes"));
  CHECK(contains(of(R"({"a":)" + tensor(R"("F6_E2M3")", "[12]", "[0,8]") + "}"),
                 "F6_E2M3 [12] takes 9 bytes, got bytes"));
  CHECK(contains(of(R"({"a":)" + tensor(f32, "[]", "[0,8]") + "}"), "takes 4 bytes"));

  const std::string a = R"("a":)" + tensor(f32, "[2]", "[0,8]");
  CHECK(contains(of("{" + a + R"(,"b":)" + tensor(f32, "[2]", "[4,12]") + "}", 12),
                 "tensor 'b': bytes"));
  CHECK(contains(of("{" + a + R"(,"b":)" + tensor(f32, "[2]", "[4,12]") + "}", 12), "overlap"));
  CHECK(contains(of("{" + a + R"(,"b":)" + tensor(f32, "[1]", "[12,16]") + "}", 16),
                 "leave a hole after"));
  CHECK(contains(of("{" + a + "}", 12), "the tensors end at byte"));
  CHECK(contains(of("{" + a + "," + a + "}"), "has 'a' twice"));
  CHECK(contains(of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
                 "header:1:21: has 'dtype' twice"));

  const std::string deep(1'000'000, '[');
  CHECK(contains(of(deep, 0), "nested deeper"));
  CHECK(contains(of(R"({"a":)" + deep, 0), "nested deeper"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK(contains(of(objects, 0), "nested deeper"));
}

TEST_CASE("tensors of foreign dtypes and ranks are skipped, and an error for one that is needed") {
  const TemporaryFolder folder;
  struct Foreign {
    const char *dtype, *shape;
    int64_t bytes;
  };
  constexpr Foreign all[] = {
      {"I8", "[2]", 2},      {"I16", "[2]", 4},         {"U16", "[2]", 4},
      {"U32", "[2]", 8},     {"U64", "[2]", 16},        {"F8_E4M3", "[2]", 2},
      {"F8_E5M2", "[2]", 2}, {"F8_E4M3FNUZ", "[2]", 2}, {"F8_E5M2FNUZ", "[2]", 2},
      {"F8_E8M0", "[2]", 2}, {"C64", "[2]", 16},        {"F4", "[3,2]", 3},
      {"F6_E2M3", "[4]", 3}, {"F6_E3M2", "[4]", 3},     {"F32", "[1,1,1,1,1,1,2]", 8}};
  for (const Foreign& a : all) {
    CAPTURE(std::string(a.dtype));
    const std::string header = R"({"f":)" +
                               tensor('"' + std::string(a.dtype) + '"', a.shape,
                                      "[4," + std::to_string(4 + a.bytes) + "]") +
                               R"(,"x":)" + tensor(R"("F32")", "[1]", "[0,4]") + "}";
    write_file(folder / "f", safetensors_file(header, static_cast<size_t>(4 + a.bytes)));
    const SafetensorsReader reader(folder / "f");
    CHECK(reader.read_floats("x").size() == 1);
    CHECK(reader.entries().at("x").foreign == "");
    CHECK(reader.entries().at("f").shape == Shape{a.bytes});
    CHECK_ERROR(FileError,
                std::string("tensor 'f' holds ") + a.dtype + " " + a.shape +
                    "; expected f64, f32, bf16 or f16",
                reader.read_floats("f"));
  }
}

TEST_CASE("the index of a folder decides which file has a tensor") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& file, const std::vector<std::string>& names,
                         float value) {
    std::vector<SafetensorsWriter::Entry> entries;
    for (const std::string& name : names) entries.push_back({name, DType::f32, {1}});
    SafetensorsWriter writer(folder / file, entries);
    for (size_t i = 0; i < names.size(); ++i) writer.write_floats(std::vector{value});
    writer.finish();
  };
  write("base", {"a", "b", "extra"}, 1.0f);
  write("overlay", {"b"}, 2.0f);
  const auto open = [&](const std::string& map) {
    write_file(folder / "model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
    return SafetensorsFolder(folder.path());
  };
  const SafetensorsFolder opened = open(R"("a":"base","b":"overlay","c":"overlay")");
  CHECK(opened.names() == std::vector<std::string>{"a", "b"});
  CHECK(opened.read_floats("a") == std::vector{1.0f});
  CHECK(opened.read_floats("b") == std::vector{2.0f});
  CHECK(opened.unlisted() == std::vector<std::string>{"b", "extra"});
  CHECK(opened.absent() == std::map<std::string, std::string>{{"c", "overlay"}});
  CHECK_ERROR(FileError,
              "has no lost; expected it, because model.safetensors.index.json says that it has "
              "'b'",
              open(R"("a":"base","b":"lost")"));
  CHECK_ERROR(FileError, "expected the name of a file beside it", open(R"("a":"../base")"));
}

TEST_CASE("no damage to a header makes the reader crash or read outside the file") {
  const std::string header = R"({"__metadata__":{"k":"v"},"a":)" +
                             tensor(R"("F32")", "[2,1]", "[0,8]") + R"(,"b":)" +
                             tensor(R"("BF16")", "[2]", "[8,12]") + "}";
  const std::string good = safetensors_file(header, 12);
  const TemporaryFolder folder;
  REQUIRE(error_of(good, folder / "f") == "nothing was thrown");
  int refused = 0;
  const int rounds = 1000;
  for (uint32_t round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::string bad = good;
    const Philox::Block words = Philox::block({round, 0, 0, 0}, 77);
    for (uint32_t change = 0; change <= words[0] % 3; ++change) {
      const size_t at = words[1 + change % 3] % (8 + header.size());
      bad[at] = static_cast<char>(words[3] >> (8 * change));
    }
    if (words[2] % 4 == 0) bad.resize(words[1] % bad.size());
    refused += error_of(bad, folder / "f") != "nothing was thrown";
  }
  CHECK(refused > rounds / 2);
  CHECK(refused < rounds);  // some damage, as to a name, leaves a header that is as good
}
