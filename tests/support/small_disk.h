#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/temporary_folder.h"

namespace zg::testing {

/// RAII: a small file system in memory. Mounting needs privileges: reason() says why there is none,
/// or is "".
class SmallDisk {
 public:
  explicit SmallDisk(int64_t bytes) {
    const std::string size = "size=" + std::to_string(bytes);
    if (::mount("zerograd", path().c_str(), "tmpfs", 0, size.c_str()) == 0) return;
    reason_ = std::string("mount: ") + std::strerror(errno);
    std::printf("SKIPPED: a full disk (%s)\n", reason_.c_str());
  }
  ~SmallDisk() {
    if (reason_.empty()) ::umount2(path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;

  const std::string& reason() const { return reason_; }
  const std::string& path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  /// Another size, more or less.
  void resize(int64_t bytes) const {
    const std::string size = "size=" + std::to_string(bytes);
    if (::mount("zerograd", path().c_str(), "tmpfs", MS_REMOUNT, size.c_str()) != 0)
      throw std::runtime_error("remount: " + path());
  }

 private:
  TemporaryFolder folder_;
  std::string reason_;
};

}  // namespace zg::testing
