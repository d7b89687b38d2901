#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/consolidate.h"

// Damage to checkpoint files by disks, networks and people. Every case is found and reported with
// file, tensor and location.
using namespace zg;
using namespace zg::testing;
using zero::Engine;
namespace fs = std::filesystem;

namespace {

/// step_1 of `ranks` ranks in its own folder.
struct Saved {
  explicit Saved(int ranks, int64_t extra = 1) {
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      Toy toy;
      toy.store.add(toy.store.unit("third"), "large", {extra}, Init::normal(1.0f));
      Engine engine(toy.store, comm, device, {.stage = 1});
      train_step(engine, 0);
      zero::save_checkpoint(folder.path(), engine, {.steps = 1, .config_json = R"({"a":[1.5]})"});
    });
  }
  std::string shard(int rank) const {
    return step + "/shard_0000" + std::to_string(rank) + ".safetensors";
  }
  std::vector<std::string> damages() const { return zero::damages_of(step); }

  const TemporaryFolder folder;
  const std::string step = folder / "step_1", manifest = step + "/manifest.json";
};

/// Checks that a flipped bit, or a character that JSON may parse alike, is found in every byte and
/// reported with the file's name.
void check_each_byte(const Saved& saved, const std::string& path, size_t end) {
  const std::string whole = read_file(path);
  for (size_t at = 0; at < end; ++at) {
    const char byte = whole[at];
    const char alike[] = {static_cast<char>(byte ^ 0x20), '\n', '0'};
    for (const char other : {static_cast<char>(byte ^ 1), alike[at % 3]}) {
      if (other == byte) continue;
      std::string bytes = whole;
      bytes[at] = other;
      write_file(path, bytes);
      const std::vector<std::string> damages = saved.damages();
      if (!damages.empty() && contains(damages.front(), path)) continue;
      INFO("at ", at, ", ", int{byte}, ", ", int{other});
      FAIL_CHECK("not found, or not named: " << (damages.empty() ? "" : damages.front()));
    }
  }
  write_file(path, whole);
}

size_t header_bytes(const std::string& shard) {
  uint64_t length = 0;
  std::ifstream(shard, std::ios::binary).read(reinterpret_cast<char*>(&length), sizeof length);
  return sizeof length + length;
}

/// The tensor (PARAMETER:STATE@OFFSET) that contains this byte of the shard.
std::string tensor_at(const SafetensorsReader& reader, int64_t byte) {
  for (const auto& [name, entry] : reader.entries())
    if (entry.begin <= byte && byte < entry.end) return name;
  return "none";
}

}  // namespace

TEST_CASE("any change of a byte of a manifest or of a shard's header is found") {
  const Saved saved(1);
  CHECK(saved.damages().empty());
  check_each_byte(saved, saved.manifest, fs::file_size(saved.manifest));
  check_each_byte(saved, saved.shard(0), header_bytes(saved.shard(0)));
  CHECK(saved.damages().empty());
}

TEST_CASE("a flipped bit in any 4 KiB of data is reported with its tensor and byte range") {
  const Saved saved(2, 50000);
  for (int rank : {0, 1}) {
    const std::string shard = saved.shard(rank), whole = read_file(shard);
    const SafetensorsReader reader(shard);
    for (size_t at = header_bytes(shard), bit = 0; at < whole.size(); at += 4096, ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit % 8));
      write_file(shard, bytes);
      const std::vector<std::string> damages = saved.damages();
      REQUIRE(damages.size() == 1);
      const std::string name = tensor_at(reader, static_cast<int64_t>(at));
      const auto& entry = reader.entries().at(name);
      CHECK(damages[0] == "checkpoint: " + shard + ": tensor '" + name + "' is damaged, bytes " +
                              std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                              " of the file: its checksum differs from the manifest's");
    }
    write_file(shard, whole);
  }
  CHECK(saved.damages().empty());
}

TEST_CASE("a manifest or shard that is truncated or extended is reported as damaged") {
  const Saved saved(2, 5000);
  for (const std::string& path : {saved.shard(0), saved.shard(1), saved.manifest}) {
    const std::string whole = read_file(path);
    std::vector<size_t> sizes = {0, 1, 7, 8, 9, whole.size() - 1};
    for (size_t size = 4096; size < whole.size(); size += 4096)
      sizes.insert(sizes.end(), {size - 1, size});
    for (size_t size : sizes) {
      write_file(path, whole.substr(0, size));
      CAPTURE(size);
      REQUIRE(!saved.damages().empty());
      CHECK(contains(saved.damages().front(), path));
    }
    write_file(path, whole + '\0');
    REQUIRE(saved.damages().size() == 1);
    CHECK(contains(saved.damages().front(), path));
    write_file(path, whole);
  }
  fs::resize_file(saved.shard(1), fs::file_size(saved.shard(1)) - 1);
  CHECK(contains(saved.damages().front(), "tensor '"));
  CHECK(contains(saved.damages().front(), "data_offsets"));
}

TEST_CASE("damages_of reports each shard that is missing, swapped or copied over another") {
  const Saved saved(3);
  std::vector<std::string> whole;
  for (int rank = 0; rank < 3; ++rank) whole.push_back(read_file(saved.shard(rank)));
  const auto restore = [&] {
    for (int rank = 0; rank < 3; ++rank)
      write_file(saved.shard(rank), whole[static_cast<size_t>(rank)]);
    CHECK(saved.damages().empty());
  };
  for (int i = 0; i < 3; ++i) {
    fs::remove(saved.shard(i));
    REQUIRE(saved.damages().size() == 1);
    CHECK(contains(saved.damages()[0], saved.shard(i) + ": No such file"));
    restore();
    for (int j = 0; j < 3; ++j) {
      if (i == j) continue;
      write_file(saved.shard(i), whole[static_cast<size_t>(j)]);
      REQUIRE(saved.damages().size() == 1);
      CHECK(contains(saved.damages()[0],
                     saved.shard(i) + ": its header, from byte 0 on, is damaged or another"));
      write_file(saved.shard(j), whole[static_cast<size_t>(i)]);
      CHECK(saved.damages().size() == 2);
      restore();
    }
  }
  // The shard comes from another save of the same run: equal header, other values.
  const Saved other(3, 2);
  std::string bytes = whole[1];
  bytes.back() ^= 1;
  bytes[header_bytes(saved.shard(1))] ^= 1;
  write_file(saved.shard(1), bytes);
  fs::remove(saved.shard(2));
  CHECK(saved.damages().size() == 3);
  fs::copy_file(other.shard(0), saved.shard(0), fs::copy_options::overwrite_existing);
  CHECK(saved.damages().size() == 4);
  CHECK_ERROR(FileError, "; and 3 more", zero::verify_checkpoint(saved.step));
  fs::remove(saved.manifest);
  CHECK(saved.damages() ==
        std::vector<std::string>{"open: " + saved.manifest + ": No such file or directory"});
}

TEST_CASE("a shard that is a directory or a FIFO is reported as damage without blocking") {
  const Saved saved(1);
  fs::remove(saved.shard(0));
  fs::create_directory(saved.shard(0));
  CHECK(contains(saved.damages().front(), saved.shard(0) + ": expected a regular file"));
  fs::remove(saved.shard(0));
  REQUIRE(mkfifo(saved.shard(0).c_str(), 0600) == 0);
  CHECK(contains(saved.damages().front(), saved.shard(0) + ": expected a regular file"));
}

TEST_CASE("manifest fields are validated even when the manifest's checksum is correct") {
  using nlohmann::json;
  const Saved saved(1);
  const std::string whole = read_file(saved.manifest);
  const auto damage_with = [&](const auto& change) {
    json manifest = json::parse(whole);
    change(manifest);
    manifest.erase("checksum");
    const std::string text = manifest.dump();
    manifest["checksum"] = checksum(std::as_bytes(std::span(text)));
    write_file(saved.manifest, manifest.dump(1) + "\n");
    const std::vector<std::string> damages = saved.damages();
    return damages.empty() ? "none" : damages.front();
  };
  CHECK(damage_with([](json&) {}) == "none");
  CHECK(damage_with([](json& m) { m.erase("headers"); }) == "none");  // as in older checkpoints
  CHECK(contains(damage_with([](json& m) { m["steps"] = 1e300; }),
                 "expected a count up to 2^53, got 1e+300"));
  CHECK(contains(damage_with([](json& m) { m["config"] = 5; }), "config: expected an object"));
  CHECK(contains(damage_with([](json& m) { m["steps"] = -1; }),
                 "expected a count up to 2^53, got -1"));
  CHECK(contains(damage_with([](json& m) { m["skipped"] = UINT64_MAX; }), "expected a count"));
  const auto tensor = [&](const char* key, const json& value) {
    return damage_with([&](json& m) { m["tensors"][0][key] = value; });
  };
  CHECK(contains(tensor("file", "../manifest.json"), "expected a file beside it"));
  CHECK(contains(tensor("file", "/etc/passwd"), "expected a file beside it"));
  CHECK(contains(tensor("file", ".."), "expected a file beside it"));
  CHECK(contains(tensor("file", ""), "expected a file beside it"));
  CHECK(contains(tensor("file", std::string("a\0b", 3)), "' is in 'a"));
  CHECK(contains(tensor("name", "a.weight:master@0x"), "expected PARAMETER:STATE@OFFSET"));
  CHECK(contains(tensor("name", "a.weight:master@-1"), "expected PARAMETER:STATE@OFFSET"));
  CHECK(contains(tensor("name", "absent:master@0"), "is of none of its parameters"));
  CHECK(contains(tensor("name", "a.weight:master@99999999999999999999"), "PARAMETER:STATE@OFFSET"));
  CHECK(contains(tensor("shape", json::array({INT64_C(1) << 53, INT64_C(1) << 53})),
                 "overflows 64 bits"));
  CHECK(contains(tensor("shape", json::array({0.5})), "expected a count up to 2^53, got 0.5"));
  CHECK(contains(tensor("shape", "x"), "expected a shape, got \"x\""));
  CHECK(contains(tensor("shape", json::array({1, 1, 1, 1, 1, 1, 1})), saved.manifest));
  CHECK(contains(tensor("shape", json::array({INT64_MAX / 1024})),
                 "is not a part of its parameter [5, 31]"));
  CHECK(contains(damage_with([](json& m) {
                   for (size_t i = m["tensors"].size(); i-- > 0;)
                     if (contains(m["tensors"][i]["name"], "moment2")) m["tensors"].erase(i);
                 }),
                 "has no moment2 of"));
  const auto optimizer = [&](const json& value) {
    return damage_with([&](json& m) { m["optimizer"] = value; });
  };
  CHECK(contains(optimizer({{"rule", "sgd"}, {"moments", 3}}), "expected 0 to 2 moments, got"));
  CHECK(contains(optimizer({{"rule", "sgd"}, {"moments", "a"}}), "expected a count"));
  CHECK(optimizer(1) != "none");
  // Nested deeper than a recursive parser can handle.
  std::string deep = whole;
  deep.replace(deep.find("1.5"), 3, std::string(200000, '[') + std::string(200000, ']'));
  write_file(saved.manifest, deep);
  CHECK(contains(saved.damages().front(), "is nested deeper than 64 levels"));
}

TEST_CASE("an empty slice that claims a huge number of blocks is read without delay") {
  using nlohmann::json;
  const Saved saved(1);
  json manifest = json::parse(read_file(saved.manifest));
  manifest.erase("checksum");
  manifest["version"] = 2;
  manifest["parameters"]["none"] = {0};
  for (const std::string state : {"master", "moment1", "moment2"}) {
    const std::string name = "none:" + state + "@0/576460752303423488x1x0/0+1";
    SafetensorsWriter writer(saved.step + "/" + state, {{name, DType::f32, {0}}});
    writer.finish();
    manifest["tensors"].push_back(
        {{"name", name}, {"shape", {0}}, {"file", state}, {"xxh3_128", checksum({})}});
  }
  manifest.erase("headers");
  const std::string text = manifest.dump();
  manifest["checksum"] = checksum(std::as_bytes(std::span(text)));
  write_file(saved.manifest, manifest.dump(1) + "\n");
  CHECK(zero::consolidate(*zero::open_checkpoint(saved.step), saved.folder / "file", DType::f32)
            .size() == 32);
}
