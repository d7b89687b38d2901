#include "zerograd/runtime/storage/file_io.h"

#include <filesystem>
#include <functional>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

using namespace zg;
using namespace zg::testing;
namespace fs = std::filesystem;

TEST_CASE("of two writers of one path the second is refused, and the file is the first one's") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", unfinished = path + ".unfinished";
  write_file(path, "old");
  {
    UnfinishedFile first(path);
    first.file().write(std::as_bytes(std::span("half")));
    CHECK_ERROR(FileError, unfinished + " is in use: another process writes the same file",
                replace_text(path, "second"));
    CHECK(read_file(path) == "old");
    first.finish();
  }
  CHECK(read_file(path) == std::string("half", 5));
  replace_text(path, "third");
  CHECK(read_file(path) == "third");
  { UnfinishedFile given_up(path); }
  CHECK(read_file(path) == "third");
  write_file(unfinished, "of a killed process");
  replace_text(path, "fourth");
  CHECK(read_file(path) == "fourth");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
  fs::create_symlink("file", folder / "link");  // a link stays one
  replace_text(folder / "link", "fifth");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(path) == "fifth");
  replace_text("/dev/null", "nothing");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a temporary name that is a link or another name of a file is not written through") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", unfinished = path + ".unfinished";
  fs::create_directories(folder / "home/inner");
  write_file(folder / "home/own", "own");
  const std::pair<const char*, std::function<void()>> plants[] = {
      {"file", [&] { fs::create_symlink(folder / "home/own", unfinished); }},
      {"folder", [&] { fs::create_symlink(folder / "home", unfinished); }},
      {"dangling", [&] { fs::create_symlink(folder / "home/new", unfinished); }},
      {"hard link", [&] { fs::create_hard_link(folder / "home/own", unfinished); }}};
  for (const auto& [what, plant] : plants) {
    CAPTURE(what);
    plant();
    replace_text(path, what);
    CHECK(read_file(path) == what);
    CHECK(read_file(folder / "home/own") == "own");
    CHECK(std::distance(fs::directory_iterator(folder / "home"), {}) == 2);
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
  }
  fs::create_directory(unfinished);
  CHECK_ERROR(FileError, unfinished, replace_text(path, "x"));
}
