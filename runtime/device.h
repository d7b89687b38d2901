#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

class MemoryTracker;
class Stream;
class Trace;
struct DeviceState;

/// CPU instruction sets that kernels are compiled for, in rising order. `portable` is plain C++.
/// amx_bf16: matrices of bf16 on tile registers, all else as avx512_bf16.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx_bf16 };
inline constexpr Isa every_isa[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                    Isa::amx_bf16};
ZG_API const char* name_of(Isa isa);
ZG_API Isa parse_isa(const std::string& name);  ///< throws ConfigError listing the names

/// The best level of this machine; the environment variable ZG_CPU_ISA lowers it. Throws
/// ConfigError when the variable asks for more than the machine has.
ZG_API Isa best_isa();

/// Cores this process may run on (its affinity mask).
ZG_API int available_cores();

/// Where a device keeps Space::file, and how: DeepSpeed's aio block.
struct SwapOptions {
  std::string directory;         ///< on NVMe or another disk; empty: there is no Space::file
  int64_t block_size = 1 << 20;  ///< bytes of one request
  int queue_depth = 8;           ///< requests under way at once
  bool io_uring = true;          ///< if Linux supports it; else threads call pread and pwrite
};

struct DeviceOptions {
  int threads = 0;              ///< for kernels; 0 takes every available core
  int64_t memory_limit = 0;     ///< bytes of Space::device, 0 for none; beyond it OutOfMemory
  int64_t host_limit = 0;       ///< bytes of Space::pinned and Space::host together, 0 for none
  std::optional<Isa> isa = {};  ///< default best_isa()
  SwapOptions swap = {};
};

/// A logical device: its own arena, accounting, streams and threads. Each call of cpu(), cuda(),
/// hpu(), meta() or parse() makes a new one, so two engines in one process are independent; copies
/// of the handle share it. There is no default device: make one, and pass it to everything that
/// works together.
///
///     const Device device = Device::cpu();
///     zero::Engine engine(store, device);                    // parameters and gradients
///     const Tensor ids = Tensor::from(numbers, {8}, device);  // not from another Device::cpu()
///
/// An operation on tensors of two devices throws DeviceError. A function that run_local runs on
/// several ranks uses the device that it is given. Only one thread at a time may use a device.
class ZG_API Device {
 public:
  enum class Type : uint8_t { cpu, cuda, hpu, meta };

  using Options = DeviceOptions;

  /// Device properties that kernels may use, besides shapes, to choose a variant or a scratch size.
  struct Traits {
    Type backend = Type::cpu;  ///< for meta: the backend that it stands for
    Isa isa = Isa::portable;
    int threads = 1;
    bool operator==(const Traits&) const = default;
  };

  static Device cpu(int index = 0, const Options& options = {});
  /// The index-th GPU that the CUDA runtime shows. Unsupported where there is none, with the
  /// reason.
  static Device cuda(int index = 0, const Options& options = {});
  /// The index-th GPU that the Level Zero driver shows, likewise.
  static Device hpu(int index = 0, const Options& options = {});
  static std::string absence(Type type);  ///< why there is no such device; empty: there is one
  static int count(Type type);            ///< number of accelerators, 0 where there is none
  /// Counts bytes as a device of type `backend` would, and stores nothing.
  static Device meta(int index = 0, const Options& options = {}, Type backend = Type::cpu);
  static Device parse(const std::string& name,
                      const Options& options = {});  ///< "cpu:1", "cuda:0", "hpu:0", "meta"

  Type type() const;
  int index() const;
  std::string name() const;  ///< "cpu:1"
  /// Model and size, "NVIDIA H200, sm_90, 132 multiprocessors, 143156 MiB"; empty on cpu and meta.
  std::string description() const;
  const Traits& traits() const;

  Stream& compute() const;  ///< the queue that kernels of the tape run on
  /// A queue beside it, for another thread; this device must outlive it. Neither waits for the
  /// other: what one queues is seen by the other after synchronize().
  std::unique_ptr<Stream> make_stream(const char* name) const;
  MemoryTracker& memory() const;  ///< accounting of every byte allocated here

  /// Records the device's work in this trace from now on, as that of a rank; null ends it.
  /// Nothing of the device may be under way. Without a rank: the device's index.
  void set_trace(std::shared_ptr<Trace> trace, int rank = -1) const;
  Trace* trace() const;  ///< null when not tracing
  int trace_rank() const;

  bool operator==(const Device&) const = default;  ///< the same logical device

 private:
  friend struct DeviceState;
  friend class Buffer;
  static Device accelerator(Type type, int index, const Options& options);
  explicit Device(std::shared_ptr<DeviceState> state) : state_(std::move(state)) {}
  std::shared_ptr<DeviceState> state_;
};

/// An ordered queue of work. On the CPU it runs each call at once, on the caller's thread.
class ZG_API Stream {
 public:
  virtual ~Stream() = default;
  virtual Device device() const = 0;
  virtual const Device::Traits& traits() const = 0;
  virtual Device::Type type() const = 0;  ///< meta: kernels validate, account and return
  virtual Trace* trace() const = 0;       ///< null when not tracing
  virtual const char* name() const = 0;   ///< "compute": the track in a trace
  /// Blocks the host until what was queued is done; throws what kernels found meanwhile, such as an
  /// index outside (on an accelerator it cannot be thrown at the call).
  virtual void synchronize() = 0;
  /// Queues to[0, bytes) = from[0, bytes), between any two of the device's spaces or the process's
  /// own memory, which may be used again at once (what the device holds pinned may not).
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(void* to, size_t bytes) = 0;  ///< queued, too
};

ZG_API const char* name_of(Device::Type type);  ///< "cpu", "cuda", "hpu", "meta"

/// The name of a driver for tests that computes in the place of the index-th accelerator, so that
/// its times say nothing of one; empty: the accelerator computes, or there is none.
ZG_API std::string stand_in(Device::Type type, int index);

/// For an error: how two devices differ that had to be one, and what to do about it.
ZG_API std::string difference(const Device& one, const Device& other);

}  // namespace zg
