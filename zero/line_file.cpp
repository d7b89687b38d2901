#include "zerograd/zero/line_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {

LineFile::LineFile(const std::string& path, const std::function<uintmax_t()>& kept)
    : path_(path), file_(std::fopen(path.c_str(), "ae"), std::fclose) {
  if (!file_)
    raise<FileError>(
        "{} cannot be written: {}; expected a file in a folder that exists and is writable; try "
        "another path",
        path, std::strerror(errno));
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  // The lock ends with the process. A file system without locks has another error.
  const auto lock = [&] { return ::flock(fileno(file_.get()), LOCK_EX | LOCK_NB); };
  if (retried(lock) != 0 && errno == EWOULDBLOCK)
    raise<FileError>("{} cannot be written: another run writes it; expected a file for each run",
                     path);
  std::filesystem::resize_file(path, kept(), error);
  if (error) raise<FileError>("{} cannot be shortened: {}", path, error.message());
}

void LineFile::write(const std::string& line) {
  if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0)
    raise<FileError>("writing {} failed: {}{}", path_, std::strerror(errno),
                     errno == ENOSPC ? "; free space there, or try a path on another disk" : "");
}

void LineFile::sync() { ::fsync(fileno(file_.get())); }

}  // namespace zg::zero
