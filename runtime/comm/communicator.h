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

enum class Collective : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  barrier,
  all_to_all,
  scatter
};
inline constexpr int collective_count = 7;
ZG_API const char* name_of(Collective collective);

/// Number of calls, and payload bytes that one rank received from other ranks, for one collective.
struct WireCount {
  int64_t calls = 0, bytes = 0;
  bool operator==(const WireCount&) const = default;
};
using WireCounts = std::array<WireCount, collective_count>;
ZG_API WireCounts added(WireCounts a, const WireCounts& b);  ///< those of both

/// Limits a collective to the elements [begin, begin + count) of every rank's shard, so that a
/// large exchange can be done in several small ones. The default is the whole shard.
struct Chunk {
  int64_t begin = 0;
  int64_t count = -1;  ///< -1: up to the end of the shard
};

/// One piece of a tensor for each rank: they lie one after another, in rank order.
struct Pieces {
  Tensor tensor;                ///< in the memory of the ranks' devices
  std::vector<int64_t> counts;  ///< elements by rank; 0: no piece. Their sum is tensor.numel().
};

/// One rank's view of a group of ranks, which are threads (run_local) or processes (run_processes,
/// runtime/comm/processes.h). Collectives are asynchronous: they run in order on a worker thread of
/// this rank. Each has a sequence number, an op, a dtype, a count and a name, which must be equal
/// on every rank, and each pair of ranks must agree on the size of a piece. If they differ, or if a
/// rank throws, returns early or does not arrive within the timeout, every rank gets a CommError
/// with the rank, the collective and the step. A collective that all ranks had completed before the
/// failure still succeeds on all of them. Tensors must stay alive and unchanged until wait().
/// Workers never allocate or free memory.
class ZG_API Communicator {
 public:
  using Ticket = int64_t;  ///< sequence number of a collective

  /// Computes shard = first ? piece : shard + piece without allocating. `piece` has shard.numel()
  /// elements. Calls without elements come first, on the caller's thread: they let an accelerator
  /// load the kernels.
  using Combine = void (*)(const Tensor& piece, const Tensor& shard, bool first, Stream& stream);

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Writes the shards of all ranks to `full` in rank order. `full` has size() * shard.numel()
  /// elements. A shard that is already at its position in `full` is not copied.
  virtual Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                            Chunk chunk = {}) = 0;
  /// Cuts every rank's `full` into size() equal pieces and combines the pieces with this rank's
  /// number into this rank's `shard`, in rising order of the ranks they come from. The order does
  /// not depend on the number of ranks. Afterwards the content of `full` is undefined, because
  /// ranks that are processes receive into it. `fresh`: the first piece overwrites `shard` and is
  /// not added to it.
  virtual Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh,
                                Combine combine, const std::string& name, Chunk chunk = {}) = 0;
  /// Sums i64 elements in place. Integer sums are exact, so their order does not matter. The sum of
  /// floating elements in rank order: all_reduce() of autograd/collective.h.
  virtual Ticket all_reduce(const Tensor& x, const std::string& name) = 0;
  /// Copies x of rank `root` to the x of every other rank.
  virtual Ticket broadcast(const Tensor& x, int root, const std::string& name) = 0;
  virtual Ticket barrier(const std::string& name) = 0;
  /// Sends piece r of `sent` to rank r, and receives the pieces that the ranks send to this one.
  /// Pieces may have any sizes; sent.counts[r] here must be received.counts of this rank there. The
  /// two tensors do not overlap.
  virtual Ticket all_to_all(const Pieces& sent, const Pieces& received,
                            const std::string& name) = 0;
  /// Sends piece r of `full` on rank `root` to the x of rank r. `full` is used on that rank only.
  virtual Ticket scatter(const Pieces& full, const Tensor& x, int root,
                         const std::string& name) = 0;

  /// Makes a group of some of these ranks, in the given order; this rank is one of them. The group
  /// has a worker thread and counts of its own, so its collectives run concurrently with those of
  /// other groups. Its ranks are numbered from 0; errors have their numbers among all ranks, and
  /// `name`. A failure in one group is a CommError in all groups. Every member must make the same
  /// call. No two groups may have the same members and name. The call may wait for the other
  /// members, so groups that share ranks must be made in the same order on each rank. Destroy the
  /// group before this communicator.
  virtual std::unique_ptr<Communicator> group(std::span<const int> members,
                                              const std::string& name) = 0;

  /// Blocks until the collective is done on this rank; then its tensors may be used again. Throws
  /// CommError.
  virtual void wait(Ticket ticket) = 0;
  /// The same for tensors that only the device's compute() queue uses next: work that is queued
  /// there from now on runs after the collective. By NCCL between tensors in device memory this
  /// returns once the collective is queued on the device; then the tensors may be used there, or
  /// freed. A CommError of the collective is then thrown by the next synchronize() of compute(),
  /// before the host can read a value, or by the next wait(). Otherwise, and while a trace is
  /// recorded, it is wait().
  virtual void wait_on_device(Ticket ticket) { wait(ticket); }
  /// Reports that this rank failed: the other ranks get a CommError with the cause. Never throws.
  virtual void abort(const std::string& cause) noexcept = 0;
  /// Sets the step number that errors show.
  virtual void set_step(int64_t step) = 0;

  virtual WireCounts wire() const = 0;
  /// The library that moves the data, "NCCL 2.28.9", or what is used instead and why.
  virtual std::string transport() const { return "nothing"; }
  /// From now on NCCL sums the pieces of a reduce_scatter between accelerators, and the sum is
  /// combined into the shard. NCCL has its own order and rounding, so the bits depend on the number
  /// of ranks. Throws Unsupported if NCCL does not move the ranks' data. No effect on one rank.
  virtual void sum_by_library();
  /// True: wait() would return, or throw, at once. False: it is not known.
  virtual bool is_done(Ticket) { return false; }

 protected:
  /// Check the arguments before anything is queued and return the chunk with its count set. Throw
  /// ShapeError or DTypeError.
  Chunk check_all_gather(const Tensor& shard, const Tensor& full, Chunk chunk) const;
  Chunk check_reduce_scatter(const Tensor& full, const Tensor& shard, Chunk chunk) const;
  void check_root(const char* op, int root) const;
  void check_all_to_all(const char* op, const Pieces& sent, const Pieces& received) const;
  /// The pieces that this rank sends and receives in a scatter, as those of an all_to_all.
  std::array<Pieces, 2> pieces_of_scatter(const Pieces& full, const Tensor& x, int root) const;
  /// Returns this rank's number among the members. Throws ConfigError.
  int check_group(std::span<const int> members, const std::string& name) const;
};

/// Messages from one rank to another; no other rank takes part. Each path is one direction between
/// two ranks, with a group and a worker of its own, so a rank can send and receive at one time. The
/// n-th send on a path meets the n-th receive; both have one name, dtype and number of elements.
class ZG_API Messages {
 public:
  struct Path {
    int from, to;
  };
  struct Message {
    Communicator* path = nullptr;
    Communicator::Ticket ticket = -1;
    void wait() const { path->wait(ticket); }  ///< as Communicator::wait()
  };

  /// Collective: every rank gives the same paths. Errors show `name` and the two ranks. Destroy it
  /// before `ranks`.
  Messages(Communicator& ranks, std::span<const Path> paths, const std::string& name);
  /// `x` must stay alive and unchanged until wait(). Throws ConfigError if there is no such path.
  Message send(const Tensor& x, int to, const std::string& name) const;
  Message receive(const Tensor& x, int from, const std::string& name) const;
  WireCounts wire() const;  ///< of all paths of this rank

 private:
  struct Own {
    Path path;
    std::unique_ptr<Communicator> group;
  };
  Message pass(Path path, const Tensor& x, const std::string& name) const;
  const int rank_;
  std::vector<Own> paths_;
};

/// Returns the text of every rank, in rank order. Collective. Its tensors are on a separate device,
/// so they do not appear in the memory records of the program's device.
ZG_API std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);

/// A communicator for meta devices: rank `rank` of `size`. It counts the bytes that the rank would
/// receive and moves no data.
ZG_API std::unique_ptr<Communicator> counting_communicator(int rank, int size);

/// The device of a rank: cpu:rank, or the accelerator rank % Device::count(type), which several
/// ranks may share. Throws Unsupported if there is no such device.
ZG_API Device device_of_rank(Device::Type type, int rank, const DeviceOptions& options);

struct LocalOptions {
  double timeout_s = 60.0;    ///< limit for one collective, including the wait for other ranks
  DeviceOptions device = {};  ///< threads 0: this rank's share of the cores
  Device::Type type = Device::Type::cpu;  ///< cpu, cuda or hpu
  /// After a failure each rank prints the last 64 collectives of each group on stderr, with calls,
  /// steps and times.
  bool dump_collectives = false;
};

/// A rank's share of the cores of this process, at least one.
ZG_API int threads_per_rank(int ranks);

/// Runs f(communicator, device) on `ranks` threads of this process; each has its own
/// device_of_rank(). Returns when all have returned. If ranks throw, it rethrows the first cause
/// with its type. If there are several ranks, the message begins with "rank 2/4: ", except for a
/// CommError, which names ranks itself. A thread that hangs outside of a collective cannot be
/// ended: after the timeout of the others, the report is printed on stderr and the process exits
/// with the status of the first cause's type (runtime/error.h), which is 4 for a hang.
ZG_API void run_local(int ranks, const std::function<void(Communicator&, const Device&)>& f,
                      const LocalOptions& options = {});

}  // namespace zg
