#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::testing {

/// Saves and removes checkpoints as a run with --save-top-k does, but faster: each checkpoint has
/// links to the files of one of two originals, alternately. Two checkpoints exist at any time.
/// Every third is replaced by one of the other original with the same name.
class CheckpointChurn {
 public:
  CheckpointChurn(const std::string& even, const std::string& odd, const std::string& directory)
      : even_(even), odd_(odd), directory_(directory) {
    save(next_, odd_);
    save(++next_, even_);
    thread_ = std::thread([this] { run(); });
  }
  ~CheckpointChurn() {
    stop_ = true;
    thread_.join();
  }
  CheckpointChurn(const CheckpointChurn&) = delete;

  int64_t saves() const { return next_; }

 private:
  std::string step(int64_t number) const { return directory_ + "/step_" + std::to_string(number); }

  void save(int64_t number, const std::string& original) const {
    namespace fs = std::filesystem;
    const std::string unfinished = directory_ + "/.unfinished_step_" + std::to_string(number);
    fs::create_directories(unfinished);
    for (const auto& file : fs::directory_iterator(original))
      fs::create_hard_link(file.path(), unfinished / file.path().filename());
    rename_over(unfinished, step(number));
    fs::remove_all(unfinished);  // the old contents of the step folder
  }

  void run() {
    while (!stop_) {
      ++next_;
      save(next_, next_ % 2 == 0 ? even_ : odd_);
      if (next_ % 3 == 0) save(next_, next_ % 2 == 0 ? odd_ : even_);
      std::filesystem::rename(step(next_ - 2), directory_ + "/.unfinished_removed");
      std::filesystem::remove_all(directory_ + "/.unfinished_removed");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const std::string even_, odd_, directory_;
  std::atomic<int64_t> next_ = 1;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace zg::testing
