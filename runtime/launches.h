#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"

// Counts of a device's kernel launches. A device that was made with DeviceOptions::count_launches
// has a LaunchCounter. In a run it counts the kernels, copies and fills that are given to the
// device. On a meta device that stands for cuda or hpu (PlanOptions::type) kernels run their host
// code, which chooses the kernels and their grids, and launch nothing. So a plan counts what a run
// will launch, on a machine without a GPU. On the CPU each call of an op is one launch, in a run
// and in a plan. Other ops that this op calls belong to the same launch (kernels/kernel.h).
//
//     PlanOptions options{.device = {.count_launches = true}, .type = Device::Type::cuda};
//     plan_ranks(1, [](Communicator& ranks, const Device& device) {
//       ...                                               // forward and backward
//       const LaunchCounts all = device.launches()->counts();
//     }, options);
//
// Only the work of Device::compute() is counted. Work of other streams is not: collectives, and the
// copies of an offload that runs at the same time as the kernels. A call of Stream::copy() counts
// as one launch, also where the driver needs several, and waits within it are not counted.
namespace zg {

/// The kinds of kernels that have different limits (runtime/step_time.h).
enum class KernelClass : uint8_t {
  memory,  ///< reads and writes each element once
  product,
  attention_forward,
  attention_backward,
  optimizer,  ///< updates, sums of squares, sums of gradients: large arrays, once or few times a
              ///< step
  copy        ///< copies and fills of the runtime
};
inline constexpr KernelClass every_kernel_class[] = {KernelClass::memory,
                                                     KernelClass::product,
                                                     KernelClass::attention_forward,
                                                     KernelClass::attention_backward,
                                                     KernelClass::optimizer,
                                                     KernelClass::copy};
ZG_API const char* name_of(KernelClass kind);  ///< "attention_forward"

/// All launches of one kernel with operands of one dtype.
struct LaunchRow {
  std::string op;      ///< "attention_backward"
  std::string kernel;  ///< one of the op's kernels, or a call of a library: "cublasLtMatmul"
  int64_t launches = 0;
  int64_t blocks = 0;  ///< of threads; 0 for calls of libraries, which do not report it
  /// Bytes of device memory that are read and written: every operand once for each launch, twice
  /// if it is read and written. Reads that caches may serve again are not counted again.
  int64_t bytes = 0;
  /// Multiplications and additions of products of matrices and of attention. For other kernels,
  /// whose time memory limits, one for each element of the largest operand.
  int64_t operations = 0;
  /// The dtype of the first floating-point operand. Products multiply in this dtype. Products add,
  /// and other kernels compute, in f32 (in f64 for f64).
  DType dtype = DType::f32;
  KernelClass kind = KernelClass::memory;
  bool operator==(const LaunchRow&) const = default;
};

struct ZG_API LaunchCounts {
  /// Calls that block the host until work that was queued before is done; not waits for the results
  /// of collectives (kernels/cuda/README.md, "When the host waits in a step").
  int64_t host_waits = 0;
  std::vector<LaunchRow> rows;  ///< in the order of op, kernel and dtype

  int64_t launches() const;
  int64_t bytes() const;
  int64_t operations() const;
  bool operator==(const LaunchCounts&) const = default;

  LaunchCounts& operator+=(const LaunchCounts& other);
  /// The counts since `before`, which is an earlier result of the same counter.
  LaunchCounts since(const LaunchCounts& before) const;
};

/// Counts from the construction of the device on. Any thread may call its functions.
class ZG_API LaunchCounter {
 public:
  /// Adds one launch; `work` has its names, blocks, bytes, operations, dtype and kind.
  void add(const LaunchRow& work);
  void add_wait();  ///< counts a wait only if work was launched after the previous wait
  LaunchCounts counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, DType>, LaunchRow> rows_;
  int64_t host_waits_ = 0;
  bool has_work_ = false;
};

/// The launches of one training step. zero::StepLaunchNotes fills it from a zero::Trainer.
struct ZG_API StepLaunches {
  int64_t step = 0;
  LaunchCounts per_micro_batch;  ///< the step's last micro-batch: its data, forward and backward
  LaunchCounts per_step;         ///< once a step: gradient norm, optimizer, the wait at its end
  bool operator==(const StepLaunches&) const = default;
  /// One line: {"schema":"zerograd.launches/1","step":...,"per_micro_batch":{"launches":...,
  /// "bytes":...,"operations":...,"host_waits":...,"kernels":[{"op":...,"kernel":...,"launches":...,
  /// "blocks":...,"bytes":...,"operations":...,"dtype":"bf16","class":"product"},...]},
  /// "per_step":{...}}.
  std::string json() const;
};

}  // namespace zg
