#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/tensor.h"

// Moves tensors between a device, the host and files: whole tensors, chunks of large tensors while
// other chunks are computed on, and activations that a tape saves for backward.
namespace zg::zero {

/// Elements that are copied or converted at a time.
inline constexpr int64_t chunk_elements = int64_t{1} << 20;

/// Fills a floating-point tensor with floats that `produce` computes on the host, rounded once to
/// its dtype. `produce` gets the index of the first element and the elements to write, a few MiB at
/// a time, so that a large tensor is not in memory twice. On a meta device it is not called.
void write_floats(const Tensor& to,
                  const std::function<void(int64_t begin, std::span<float>)>& produce);

/// Passes the elements of a floating-point tensor to `consume` in order, as f32, a few MiB at a
/// time. On a meta device it is not called.
void read_floats(const Tensor& from, const std::function<void(std::span<const float>)>& consume);

/// False for bytes that the device's kernels cannot access: in a file, and pinned memory of an hpu.
bool kernels_reach(const Tensor& tensor);
/// The tensor itself or, if kernels cannot access it, a copy in the device's memory.
Tensor near_kernels(const Tensor& tensor);
/// True if the bytes are in Space::file, where kernels cannot access them.
bool in_file(const Tensor& tensor);
/// The tensor itself or, if it is in a file, a copy on the host.
Tensor in_memory(const Tensor& tensor);
/// copy() on the device's stream. In a trace it is on the track "copies", under a name of two
/// parts; without a name it is the current NameScope's.
void traced_copy(const Tensor& from, const Tensor& to, std::string_view name = {},
                 std::string_view suffix = {});
/// to = from, rounded to its dtype, wherever the two are; a few MiB at a time.
void convert(const Tensor& from, const Tensor& to);

/// Rounds values to bf16, to nearest even, and keeps them as f32.
void round_to_bf16(std::span<float> values);

/// The two sets of host buffers of a Streaming, by lane. Another Streaming on the same device may
/// take them over, also while the first one's transfers run.
struct StreamingBuffers {
  explicit StreamingBuffers(const Device& device) : device(device) {}
  ~StreamingBuffers();  ///< waits for running transfers; ignores their errors
  StreamingBuffers(const StreamingBuffers&) = delete;

  const Device device;
  std::array<std::vector<Tensor>, 2> sets;
  SwapTicket last = {};  ///< all transfers from or to them
};

/// Iterates over chunks of tensors, some of which are in a file, or in an accelerator's memory
/// while the CPU computes on them. These tensors go through two sets of host buffers: while the
/// caller computes on one set, the results in the other set are written back and the chunk after
/// the next is read into it.
class Streaming {
 public:
  /// One tensor of a computation. An absent tensor keeps its index.
  struct Lane {
    Tensor tensor;
    bool loads = true;     ///< false: it is only written
    bool saves = true;     ///< false: it is only read
    bool ahead = false;    ///< its results are written before other queued transfers
    bool to_host = false;  ///< the CPU computes on it, after the device's queued work
    Tensor to = {};        ///< the file to which results are written; absent: `tensor`
    /// Its name in a trace. Both strings must outlive the streaming.
    std::string_view unit = {}, state = {};

    bool moves() const;  ///< true: the tensor goes through a buffer
  };
  using Part = std::vector<Lane>;  ///< the tensors of one computation; every part has the same
                                   ///< number of lanes

  /// Starts to fill `buffers`; null: its own. Allocates, with the device's current Purpose, those
  /// that are absent or too small.
  Streaming(std::vector<Part> parts, const Device& device,
            std::shared_ptr<StreamingBuffers> buffers = nullptr);
  Streaming(const Streaming&) = delete;

  /// Whether next() returns without a wait for the file.
  bool is_read() const { return is_swapped(device_, ready_[next_ % 2]); }
  /// The next chunk. All of its tensors are in memory.
  const std::vector<Tensor>& next();
  /// Call it when the computation on the chunk from next() is queued or done. It starts the writes
  /// to the file.
  void keep();
  void skip();  ///< replaces next() and keep() for a chunk that stays as it is
  /// Waits until every chunk given to keep() is written back. After it the buffers may be freed.
  void finish();

 private:
  std::vector<Tensor> in_memory(size_t index) const;
  void load(size_t index, bool from_file);
  void queue_copy(const Tensor& from, const Tensor& to, const Lane& lane);
  void await_copies();

  const Device device_;
  const std::vector<Part> parts_;
  size_t next_ = 0;
  std::vector<Tensor> current_;
  const std::shared_ptr<StreamingBuffers> buffers_;
  std::array<SwapTicket, 2> ready_;      // after this ticket the set is filled or can be filled
  std::array<SwapTicket, 2> written_{};  // after this ticket the set's results are on the disk
  SwapTicket last_ = {};                 // all writes of results
  std::unique_ptr<Stream> copies_;       // copies to and from an accelerator, in order; null: none
  /// The copies since the last await_copies(), for a trace.
  struct Queued {
    std::string names;
    int64_t begin_ns = 0, bytes = 0;
  } queued_;
};

/// Stores the tensors that a tape saves for backward in another space than the device. Two ops that
/// save the same bytes share one copy. In backward each op gets its own copy on the device, which
/// is freed after the op.
class OffloadedActivations final : public ActivationStore {
 public:
  explicit OffloadedActivations(Space space) : space_(space) {}

  Tensor keep(const Tensor& tensor, Stream& stream) override;
  Tensor fetch(const Tensor& kept, Stream& stream) override;

 private:
  /// A buffer on the device and its copy. Expired if one of them was freed.
  struct Copy {
    std::weak_ptr<Buffer> from, to;
  };
  using Placement = std::tuple<const Buffer*, int64_t, int64_t>;  // buffer, byte offset, bytes

  const Space space_;
  std::map<Placement, Copy> copies_;
};

}  // namespace zg::zero
