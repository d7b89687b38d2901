#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace zg::testing {

/// A fresh folder that goes with the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    // mkdtemp wants six X at the end, and puts letters in their place.
    std::string name =
        (std::filesystem::temp_directory_path() / "zerograd_").string() + std::string(6, 'X');
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp: " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace zg::testing
