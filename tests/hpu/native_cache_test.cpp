#include "zerograd/runtime/hpu/features.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

using namespace zg::testing;
using zg::hpu::NativeCache;

namespace {

const std::vector<uint8_t> binary = {1, 2, 3, 4, 5};

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("the native cache finds a binary by its key, unchanged") {
  const TemporaryFolder folder;
  const ScopedVariable wish("ZG_HPU_CACHE", (folder / "made/at/first").c_str());
  const NativeCache cache;
  CHECK(cache.find("key").empty());
  cache.keep("key", binary);
  CHECK(NativeCache().find("key") == binary);
  CHECK(cache.find("other").empty());
  cache.keep("key", {9});
  CHECK(cache.find("key") == std::vector<uint8_t>{9});
  using Entries = std::filesystem::directory_iterator;
  CHECK(std::distance(Entries(folder / "made/at/first"), Entries()) == 1);
}

TEST_CASE("a native binary that is damaged, truncated or too long is not used") {
  const TemporaryFolder folder;
  const ScopedVariable wish("ZG_HPU_CACHE", folder.path().c_str());
  const NativeCache cache;
  cache.keep("key", binary);
  const std::string whole = read_file(folder / "key");
  for (size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(i);
    std::string damaged = whole;
    damaged[i] ^= 1;
    write_file(folder / "key", damaged);
    CHECK(cache.find("key").empty());
    write_file(folder / "key", whole.substr(0, i));
    CHECK(cache.find("key").empty());
  }
  write_file(folder / "key", whole + "x");
  CHECK(cache.find("key").empty());
  write_file(folder / "key", whole);
  CHECK(cache.find("key") == binary);
}

TEST_CASE("a native cache without a usable folder stores and finds nothing") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  for (const std::string& place : {std::string(), folder / "file", std::string("/proc/nowhere")}) {
    CAPTURE(place);
    const ScopedVariable wish("ZG_HPU_CACHE", place.c_str());
    const NativeCache cache;
    cache.keep("key", binary);
    CHECK(cache.find("key").empty());
  }
}

TEST_SUITE_END();
