#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

class LaunchCounter;
class MemoryTracker;
class Stream;
class Trace;
struct DeviceState;

/// CPU instruction sets that kernels are compiled for, in rising order. `portable` is plain C++.
/// amx_bf16 multiplies bf16 matrices on tile registers; all other kernels are those of avx512_bf16.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx_bf16 };
inline constexpr Isa every_isa[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                    Isa::amx_bf16};
ZG_API const char* name_of(Isa isa);

/// The bits of CPU kernels. portable: the same on every processor. fast: on processors with AMX,
/// products of bf16 use it and have bits of their own; all else is as portable.
enum class Bits : uint8_t { portable, fast };
inline const char* name_of(Bits bits) { return bits == Bits::fast ? "fast" : "portable"; }

ZG_API Isa parse_isa(const std::string& name);  ///< throws ConfigError listing the names

/// The highest instruction set of this machine; the environment variable ZG_CPU_ISA lowers it.
/// Throws ConfigError when the variable asks for more than the machine has.
ZG_API Isa best_isa();

/// Cores that this process may use, by affinity mask and CPU quota: cores_of() of machine.h.
ZG_API int available_cores();

/// The folder that holds a device's Space::file (runtime/memory.h), and how it is read and written.
/// The fields are those of DeepSpeed's `aio` block.
struct SwapOptions {
  std::string directory;  ///< a folder on an NVMe drive or another disk; empty: no Space::file
  int64_t block_size = 1 << 20;  ///< bytes of one request
  int queue_depth = 8;           ///< requests in progress at the same time
  bool io_uring = true;          ///< if Linux supports it; otherwise threads call pread and pwrite
  bool operator==(const SwapOptions&) const = default;
};

struct DeviceOptions {
  int threads = 0;  ///< for kernels; 0: ZG_NUM_THREADS, OMP_NUM_THREADS or all available cores
  /// Most bytes of Space::device; an allocation beyond them throws OutOfMemory. 0: no limit.
  int64_t memory_limit = 0;
  int64_t host_limit = 0;  ///< the same for Space::pinned and Space::host together
  Bits bits = Bits::portable;
  std::optional<Isa> isa = {};  ///< absent: best_isa(), without AMX if `bits` is portable
  SwapOptions swap = {};
  /// Counts kernel launches (runtime/launches.h) on cpu and cuda, and on meta in a plan for any. A
  /// plan for cuda or hpu needs a build with it. Other devices throw Unsupported.
  bool count_launches = false;
  /// Device::cpu() makes a device for this call alone, with accounting of its own.
  bool separate = false;
  bool operator==(const DeviceOptions&) const = default;
};

/// The instruction set of kernels on a device with these options.
ZG_API Isa isa_of(const DeviceOptions& options);

/// A logical device: its own arena, accounting, streams and threads; copies of the handle share it.
/// cpu() has one device for each index and options: of the process or, on the thread of a rank, of
/// the rank, where cpu() without arguments is the CPU device that the rank was given (in a plan the
/// one without memory). It lives as long as a handle or a tensor of it. cuda(), hpu() and meta()
/// make a new one in each call: pass it to all objects that work together.
///
///     zero::Engine engine(store, Device::cpu());             // parameters and gradients
///     const Tensor ids = Tensor::from(numbers, {8}, Device::cpu());
///
/// An operation on tensors of two devices throws DeviceError. Only one thread at a time may use a
/// device: another thread takes another index, or DeviceOptions::separate. The exception is a queue
/// of make_stream(): a second thread may use it at the same time if that thread allocates no
/// memory.
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
  /// The GPU with this index in the CUDA runtime. Throws Unsupported with the reason if there is
  /// none.
  static Device cuda(int index = 0, const Options& options = {});
  /// The same for Intel GPUs: the index in the Level Zero driver.
  static Device hpu(int index = 0, const Options& options = {});
  /// The reason why this machine has no device of this type; empty: it has one.
  static std::string absence(Type type);
  static int count(Type type);  ///< number of accelerators, 0 where there is none
  /// A device without memory, for plans (runtime/plan.h). It counts bytes as a device of type
  /// `backend` does and stores nothing.
  static Device meta(int index = 0, const Options& options = {}, Type backend = Type::cpu);
  static Device parse(const std::string& name,
                      const Options& options = {});  ///< "cpu:1", "cuda:0", "hpu:0", "meta"

  Type type() const;
  int index() const;
  std::string name() const;  ///< "cpu:1"
  /// "NVIDIA H200, sm_90, 132 multiprocessors, 143156 MiB"; empty on cpu and meta.
  std::string description() const;
  const Traits& traits() const;

  Stream& compute() const;  ///< the queue on which the kernels of a tape run
  /// A second queue, for another thread. The device must outlive it. The two queues do not wait for
  /// each other: call synchronize() on one before the other uses its results.
  std::unique_ptr<Stream> make_stream(const char* name) const;
  MemoryTracker& memory() const;    ///< accounting of every byte allocated here
  LaunchCounter* launches() const;  ///< null without DeviceOptions::count_launches

  /// Records the device's work in this trace from now on, under the number of a rank (-1: the
  /// device's index). Null ends the recording. The device must be idle.
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
  /// The type of device(). On a meta device a kernel checks its arguments, counts its scratch
  /// memory and returns. If launches() are counted for cuda, the kernel's host code also runs, but
  /// launches nothing.
  virtual Device::Type type() const = 0;
  virtual Trace* trace() const = 0;  ///< null when not tracing
  /// The device's counter if this is its compute() queue and launches are counted; else null.
  virtual LaunchCounter* launches() const { return nullptr; }
  virtual const char* name() const = 0;  ///< name of its track in a trace: "compute"
  /// Blocks the host until all queued work is done. On an accelerator it also throws the errors
  /// that kernels found, such as an index out of range. Such an error is not known yet when the
  /// kernel is called.
  virtual void synchronize() = 0;
  /// Queues to[0, bytes) = from[0, bytes). Both may be in any of the device's spaces or in ordinary
  /// memory of the process. The host may change `from` as soon as this returns if it is
  /// ordinary memory, but only after synchronize() if it is the device's pinned memory. The host
  /// may read `to` after synchronize().
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(void* to, size_t bytes) = 0;  ///< also queued
};

ZG_API const char* name_of(Device::Type type);  ///< "cpu", "cuda", "hpu", "meta"

/// The name of the test driver that emulates this accelerator on the CPU. Times measured on it mean
/// nothing. Empty: the accelerator is real, or there is none.
ZG_API std::string emulator_name(Device::Type type, int index);

/// For an error message: how two devices differ that should be the same, and what to try.
ZG_API std::string difference(const Device& one, const Device& other);

}  // namespace zg
