#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace zg::testing {

/// Scripts that stand before the real programs of their names for as long as this lives.
class FakePrograms {
 public:
  FakePrograms(const std::vector<std::string>& names, const std::string& script)
      : path_(std::getenv("PATH")) {
    for (const std::string& name : names) {
      write_file(folder_ / name, "#!/bin/sh\n" + script);
      std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    }
    setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1);
  }
  ~FakePrograms() { setenv("PATH", path_.c_str(), 1); }

  /// Writes a hostfile, as a path.
  std::string hosts(const std::string& text) const {
    write_file(files_ / "hosts", text);
    return files_ / "hosts";
  }

 private:
  TemporaryFolder folder_, files_;
  std::string path_;
};

}  // namespace zg::testing
