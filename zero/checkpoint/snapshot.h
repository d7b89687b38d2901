#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "zerograd/zero/engine.h"
#include "zerograd/zero/optimizer/update.h"
#include "zerograd/zero/states/storage.h"

namespace zg::zero {

/// A consistent f32 view of this rank's master weights and states, as they are at construction. A
/// separate thread reads it while the engine continues; a step that is about to overwrite a range
/// waits until that range has been read. f32 data in host memory is read in place. Other data is
/// copied through one host bucket, the only memory that a snapshot allocates. An engine has at most
/// one snapshot. It is constructed and destroyed on the engine's thread. On a meta device only the
/// list of pieces exists.
class ZG_API Snapshot final : public StateReader {
 public:
  /// Throws ConfigError when the engine already has a snapshot, OutOfMemory.
  explicit Snapshot(const Engine& engine);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;

  /// A range of one state of one parameter. The pieces of all ranks together cover every state of
  /// every parameter exactly once. Replicas and mirrors (zero/README.md, "Words") have no pieces.
  struct Piece {
    const Parameter* parameter;
    Engine::State state;
    int64_t offset, numel;            ///< elements, within this rank's slice of the parameter
    std::optional<Shape> shape = {};  ///< of a state with a shape of its own, which is one piece
  };
  /// In the order in which a step overwrites them. An empty parameter lies in no shard: rank 0
  /// lists its pieces last.
  const std::vector<Piece>& pieces() const { return pieces_; }

  /// Calls `visit` with the piece's elements in order, a few MiB at a time. Pieces are read in
  /// order, on one thread. Throws FileError if a disk cannot be read. After an error no step waits
  /// for the snapshot any longer.
  using Visit = std::function<void(std::span<const float>)>;
  void read(size_t piece, const Visit& visit);

  void wait_until_read(const Storage& storage, int64_t end) override;
  void wait_until_read() override;
  void wait_until_read(const Tensor& tensor) override;
  void abandon();  ///< ends the reading: steps no longer wait

 private:
  struct Source {
    Tensor values;
    const Storage* storage = nullptr;  // which a step overwrites; null: none does
    int64_t begin = 0;                 // in the storage's array
    int64_t read_after = 0;            // value of read_ once this source has been read
  };
  void add(const Piece& piece, const Source& source);
  void take_bucket(const Engine& engine);
  std::span<const float> floats(const Tensor& chunk) const;
  void wait_for(int64_t elements);

  struct EngineState& engine_;
  const std::unique_ptr<Stream> stream_;  // for the thread that reads
  std::vector<Piece> pieces_;
  std::vector<Source> sources_;  // by piece
  Tensor bucket_;                // absent if everything is read in place
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t read_ = 0;  // elements
};

}  // namespace zg::zero
