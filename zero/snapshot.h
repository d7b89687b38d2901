#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "zerograd/zero/engine.h"
#include "zerograd/zero/storage.h"

namespace zg::zero {

/// What this rank has of masters and moments, in f32, as it is when this is made: a thread of its
/// own reads it while the engine goes on, and whoever is about to overwrite a part waits until that
/// part has been read. What is f32 in memory of the host is read in place; the rest comes through
/// one bucket on the host, which is all the memory that this takes. One of an engine at a time,
/// made and ended on the thread that drives it. On a meta device there is nothing to read: the
/// books alone.
class ZG_API Snapshot {
 public:
  /// ConfigError when the engine has one. OutOfMemory.
  explicit Snapshot(const Engine& engine);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;

  /// All ranks' pieces tile every parameter's states: of replicas and mirrors there are none.
  struct Piece {
    const Parameter* parameter;
    Engine::State state;
    int64_t offset, numel;  ///< elements of this rank's part of it
  };
  /// In the order in which a step overwrites them. An empty parameter lies in no shard: rank 0 has
  /// its pieces, at the end.
  const std::vector<Piece>& pieces() const { return pieces_; }

  /// Its elements in order, a few MiB at a time. Pieces are read in their order, on any one thread.
  /// FileError of a drive; an error ends the reading, and nobody waits any longer.
  using Visit = std::function<void(std::span<const float>)>;
  void read(size_t piece, const Visit& visit);

  /// Returns when elements [0, end) of the storage's trainable array have been read.
  void wait_until_read(const Storage& storage, int64_t end);
  void wait_until_read();  ///< all of it
  void abandon();          ///< nobody waits any longer: what follows is not read

 private:
  struct Source {
    Tensor values;
    const Storage* storage = nullptr;  // of what a step overwrites
    int64_t begin = 0;                 // in its array
    int64_t read_after = 0;            // how many elements have been read when this is
  };
  void add(const Piece& piece, const Source& source);
  void take_bucket(const Engine& engine);
  std::span<const float> floats(const Tensor& chunk) const;
  void wait_for(int64_t elements);

  struct EngineState& engine_;
  const std::unique_ptr<Stream> stream_;  // of the thread that reads
  std::vector<Piece> pieces_;
  std::vector<Source> sources_;  // of each piece
  Tensor bucket_;                // absent: everything is read in place
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t read_ = 0;  // elements
};

}  // namespace zg::zero
