#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/storage/swap.h"

namespace zg::zero {

/// Iterates over chunks of tensors, some of which rest in a file, or in an accelerator's memory
/// while the CPU computes. Those chunks go through two sets of host buffers. While the caller
/// computes on one set, the results in the other are written back and the next chunk is read into
/// it.
class Streaming {
 public:
  /// Tensors that are computed on together; absent ones keep their place.
  struct Lane {
    Tensor tensor;
    bool loads = true;     ///< else it is only written
    bool saves = true;     ///< else it is only read
    bool to_host = false;  ///< computed on by the CPU, after the work queued on the device
    /// Its name in a trace. Both strings must outlive the streaming.
    std::string_view unit = {}, state = {};

    bool moves() const;  ///< it goes through a buffer
  };
  using Part = std::vector<Lane>;  ///< as many in every part

  /// Takes the buffers, of the current purpose, and starts to fill them.
  Streaming(std::vector<Part> parts, const Device& device);
  ~Streaming();  ///< waits for what is under way, without its errors: the buffers go
  Streaming(const Streaming&) = delete;

  /// The next chunk. All of its tensors are in memory.
  const std::vector<Tensor>& next();
  /// Call it when the computation on the chunk from next() is queued or done. It starts the writes
  /// to the file.
  void keep();
  /// Waits until every chunk given to keep() is written back. After it the buffers may be freed.
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
  std::array<SwapTicket, 2> ready_{};    // after it the set is filled, or free to be filled
  std::array<SwapTicket, 2> written_{};  // after it the set's results are on the disk
  SwapTicket last_ = 0;
  std::unique_ptr<Stream> copies_;  // to and from an accelerator, in order; null: there are none
  /// The copies since the last await_copies(), for a trace.
  struct Queued {
    std::string names;
    int64_t begin_ns = 0, bytes = 0;
  } queued_;
};

}  // namespace zg::zero
