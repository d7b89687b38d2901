#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/swap.h"

namespace zg::zero {

/// Parts of tensors that are computed on one after the other, of which some are in a file, or in an
/// accelerator's memory while the CPU computes. Those go through two sets of buffers on the host:
/// while one set is computed on, the other is filled with what comes next, and before that emptied
/// of what was.
class Streaming {
 public:
  /// Tensors that are computed on together; absent ones keep their place.
  struct Lane {
    Tensor tensor;
    bool loads = true;     ///< else it is only written
    bool saves = true;     ///< else it is only read
    bool to_host = false;  ///< the CPU computes on it; it waits for what the device has queued
    /// In a trace it is called both; they outlive the streaming.
    std::string_view unit = {}, state = {};

    bool moves() const;  ///< it goes through a buffer
  };
  using Part = std::vector<Lane>;  ///< as many in every part

  /// Takes the buffers, of the current purpose, and starts to fill them.
  Streaming(std::vector<Part> parts, const Device& device);
  ~Streaming();  ///< waits for what is under way, without its errors: the buffers go
  Streaming(const Streaming&) = delete;

  /// The next part, all of it in memory.
  const std::vector<Tensor>& next();
  /// What next() gave is computed: what of it is in a file is on its way there.
  void keep();
  /// All that was kept is where it belongs, and the buffers may go.
  void finish();

 private:
  using Buffers = std::vector<Tensor>;  // by lane
  std::vector<Tensor> in_memory(size_t index) const;
  void load(size_t index, bool from_file);
  void queue_copy(const Tensor& from, const Tensor& to, const Lane& lane);
  void await_copies();

  const Device device_;
  const std::vector<Part> parts_;
  size_t next_ = 0;
  std::vector<Tensor> current_;
  std::array<Buffers, 2> buffers_;
  std::array<SwapTicket, 2> ready_{};    // after it, the set is filled, or empty to be filled
  std::array<SwapTicket, 2> written_{};  // after it, the drive has what the set was left with
  SwapTicket last_ = 0;
  std::unique_ptr<Stream> copies_;  // to and from an accelerator, in order; null: there are none
  /// The copies since the last await_copies(), for a trace.
  struct Queued {
    std::string names;
    int64_t begin_ns = 0, bytes = 0;
  } queued_;
};

}  // namespace zg::zero
