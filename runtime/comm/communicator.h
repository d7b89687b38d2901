#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

namespace zg {

enum class Collective : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier };
inline constexpr int collective_count = 5;
ZG_API const char* name_of(Collective collective);

/// Calls and payload bytes that one rank received from its peers, by collective.
struct WireCount {
  int64_t calls = 0, bytes = 0;
  bool operator==(const WireCount&) const = default;
};
using WireCounts = std::array<WireCount, collective_count>;

/// A part of a collective: elements [begin, begin + count) of every rank's shard. How buckets
/// smaller than a unit are cut; the default is the whole shard.
struct Chunk {
  int64_t begin = 0;
  int64_t count = -1;  ///< -1: to the shard's end
};

/// The ranks of one group, seen from one of them. Collectives are asynchronous: they run in order
/// on this rank's communication worker, and each carries a sequence number, op, dtype, count and a
/// name that must be equal on every rank, whether ranks are threads (run_local) or processes
/// (run_processes, runtime/comm/processes.h). A mismatch, a rank that throws, returns early or
/// stays away longer than the timeout becomes a CommError on every rank that says who, where and in
/// which step; what all ranks have done by then succeeds on all. Tensors must stay alive and
/// unchanged until wait(); workers never allocate or free.
class ZG_API Communicator {
 public:
  using Ticket = int64_t;  ///< sequence number of a collective

  /// shard = first ? piece : shard + piece, without allocating; piece: shard.numel() elements.
  using Combine = void (*)(const Tensor& piece, const Tensor& shard, bool first, Stream& stream);

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// full = the shards of all ranks in rank order; full: size() * shard.numel() elements. A shard
  /// that already lies at its place in full is not copied.
  virtual Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                            Chunk chunk = {}) = 0;
  /// Combines piece rank() of every rank's `full` into this rank's shard, in rising rank: the one
  /// order that every world size can keep. What `full` holds afterwards is undefined: processes
  /// receive into it. `fresh`: the first piece is written, not added.
  virtual Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh,
                                Combine combine, const std::string& name, Chunk chunk = {}) = 0;
  /// Integer sums (i64), in place: exact, so no order matters.
  virtual Ticket all_reduce(const Tensor& x, const std::string& name) = 0;
  /// x of rank `root` lands in every other's x. Between two ranks: root sends, the other receives.
  virtual Ticket broadcast(const Tensor& x, int root, const std::string& name) = 0;
  virtual Ticket barrier(const std::string& name) = 0;

  /// Some of these ranks, in this order and this one among them, as a group of their own: its
  /// collectives run beside those of other groups, on a worker of their own, and are counted by
  /// themselves. Its ranks are numbered from 0; errors name those of the whole group, and `name`. A
  /// failure in one group is a CommError in all. Every member calls it alike; members and name
  /// together are new. Members may meet here, so groups that share ranks are made in one order. It
  /// ends before these do.
  virtual std::unique_ptr<Communicator> group(std::span<const int> members,
                                              const std::string& name) = 0;

  /// Blocks until the collective is done here and its tensors may be reused. Throws CommError.
  virtual void wait(Ticket ticket) = 0;
  /// This rank failed: its peers get CommError with the cause. Never throws.
  virtual void abort(const std::string& cause) noexcept = 0;
  /// Named in errors.
  virtual void set_step(int64_t step) = 0;

  virtual WireCounts wire() const = 0;
  /// The library that moves the data, "NCCL 2.28.9", or what is used instead and why.
  virtual std::string transport() const { return "nothing"; }
  /// Inexact: from now on a reduce_scatter of ranks on accelerators sums the pieces in an order and
  /// a rounding that NCCL chooses, and combines the sum. Throws Unsupported where NCCL does not
  /// carry the ranks' data; one rank has nothing to sum.
  virtual void sum_by_library();

 protected:
  /// The chunk with its count filled in. Throws ShapeError or DTypeError before anything is queued.
  Chunk check_all_gather(const Tensor& shard, const Tensor& full, Chunk chunk) const;
  Chunk check_reduce_scatter(const Tensor& full, const Tensor& shard, Chunk chunk) const;
  void check_root(int root) const;
  /// This rank's number among the members. Throws ConfigError.
  int check_group(std::span<const int> members, const std::string& name) const;
};

/// Every rank's text, in rank order. Collective. Its tensors lie on a device of their own, so that
/// a device's record of memory does not count them.
ZG_API std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);

/// Rank `rank` of `size` that counts what it would receive and moves nothing: for meta devices.
ZG_API std::unique_ptr<Communicator> counting_communicator(int rank, int size);

/// cpu:rank, or the accelerator rank % Device::count(type), which ranks may share. Unsupported
/// where there is no such device.
ZG_API Device device_of_rank(Device::Type type, int rank, const DeviceOptions& options);

struct LocalOptions {
  double timeout_s = 60.0;    ///< limit for one collective, including the wait for peers
  DeviceOptions device = {};  ///< threads 0: this rank's share of the cores
  Device::Type type = Device::Type::cpu;  ///< cpu, cuda or hpu
  /// After a failure each rank writes the last 64 collectives of each group on stderr: calls, steps
  /// and times.
  bool dump_collectives = false;
};

/// A rank's share of this process's cores, at least one.
ZG_API int threads_per_rank(int ranks);

/// Runs f(communicator, device) on `ranks` threads of this process, with a device_of_rank() each.
/// Returns when all have; rethrows the first cause, of the same type: where there are several ranks
/// its message begins with "rank 2/4: ", unless it is a CommError, which names ranks itself. A rank
/// that stalls in its own code cannot be ended: when its peers have given up on it, the report goes
/// to stderr and the process ends with status 4.
ZG_API void run_local(int ranks, const std::function<void(Communicator&, const Device&)>& f,
                      const LocalOptions& options = {});

}  // namespace zg
