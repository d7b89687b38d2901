#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"

namespace zg {

enum class KernelClass : uint8_t;  // runtime/launches.h
class TraceSpan;

/// Scratch memory of one kernel call; declared by the kernel's workspace_bytes, so that meta
/// devices account for exactly what a real run takes.
struct Workspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  /// The same bytes as a tensor, whose aliases a kernel hands to another kernel that it calls.
  const Tensor* tensor = nullptr;
};

/// A tensor of a kernel call. If the struct of arguments of an op has a function
///
///     std::vector<Operand> operands(const Args&);
///
/// traces show its tensors, and tests check the memory around those that are written. A function
/// std::string sizes(const Args&) adds numbers that the shapes do not show, such as M, N and K of a
/// product.
struct Operand {
  const char* name;
  const Tensor& tensor;  ///< a member of the arguments; may be absent
  bool is_written = false;
  static constexpr bool out = true;  ///< written, or read and written
};

/// The count of a call of an op (runtime/launches.h), from its operands: each tensor once, twice if
/// one operand reads it and another writes it; an operation for each element of the largest. An op
/// that reads or computes something else has a function that corrects it:
///
///     void adjust_count(OpCount&, const Args&);
struct OpCount {
  int64_t bytes = 0, operations = 0;
  DType dtype = DType::f32;
  KernelClass kind{};  ///< memory
};
ZG_API OpCount count_of(const std::vector<Operand>& operands);

/// While it lives, the thread is in a counted call of an op. On the CPU the call itself is one
/// launch, unless it is part of another call. On other backends the launches within it take its
/// dtype and kind if they state none.
class ZG_API CountedCall {
 public:
  CountedCall(const char* op, const OpCount& count, LaunchCounter& counter, Device::Type backend);
  ~CountedCall();
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;
  static const OpCount* current();  ///< of this thread; null: none

 private:
  const OpCount count_;
  const OpCount* const outer_;
};

/// For kernels that are launched without a count of their own: counts one in the current call,
/// whose first launch has its bytes and operations. Nothing if the stream does not count, or no
/// blocks.
ZG_API void count_launch(const Stream& stream, const char* kernel, int64_t blocks);

/// "x f32 [64, 48], y f32 [64, 48]"; at most the first sixteen.
ZG_API std::string text_of(const std::vector<Operand>& operands);

/// Throws DeviceError unless all tensors that are present are on one device.
ZG_API void check_device(const char* op, const std::vector<Operand>& operands);

/// The scratch of a call, for a function of this backend.
ZG_API Tensor scratch_of(const char* op, int64_t bytes, Device::Type backend, const Device& device);

/// The call's span; null without a trace. Trace::watch() sees `operands` at its end.
ZG_API std::shared_ptr<TraceSpan> span_of(const char* op, const std::vector<Operand>& operands,
                                          const std::string& sizes, const Stream& stream);

/// Throws Unsupported. Called for meta, too, which is not a backend and has no slot.
[[noreturn]] ZG_API void throw_no_slot(const char* op, Device::Type backend);

/// One computation with a slot for each backend. Args defines what the kernel computes; this object
/// chooses the function by the device. Each Kernel is declared `extern ZG_API` in the op's header
/// and defined by ZG_KERNEL (kernels/slots.h). A program may put its own function into a slot:
///
///     kernels::gelu_forward[Device::Type::cpu].function = my_gelu;
template <class Args>
struct Kernel {
  using Function = void (*)(const Args&, Workspace, Stream&);
  using WorkspaceBytes = int64_t (*)(const Args&, const Device::Traits&);

  struct Slot {
    Function function = nullptr;               ///< null: the build lacks the backend
    WorkspaceBytes workspace_bytes = nullptr;  ///< null: needs no scratch
  };

  const char* name;
  /// By Device::Type. The first, of the CPU, is the reference that the others are tested against.
  std::array<Slot, static_cast<size_t>(Device::Type::meta)> slots = {};

  /// Throws Unsupported for meta, which has no slot. Use the `backend` of a meta device's traits.
  Slot& operator[](Device::Type backend) {
    if (backend == Device::Type::meta) throw_no_slot(name, backend);
    return slots[static_cast<size_t>(backend)];
  }
  const Slot& operator[](Device::Type backend) const {
    if (backend == Device::Type::meta) throw_no_slot(name, backend);
    return slots[static_cast<size_t>(backend)];
  }

  /// Validates the arguments, checks that all operands are on one device, allocates the declared
  /// scratch, then launches on the stream's device. On meta it does not launch. If launches are
  /// counted for cuda on meta, the backend's function runs on the host, and each launch is counted
  /// instead. Throws Unsupported ("layer_norm_forward: no hpu kernel") when the slot is empty.
  void operator()(const Args& args, Stream& stream) const {
    validate(args);
    const std::vector<Operand> tensors = operands_of(args);
    check_device(name, tensors);
    const Device::Traits& traits = stream.traits();
    const Slot& slot = (*this)[traits.backend];
    LaunchCounter* const counter = stream.launches();
    const bool computes =
        stream.type() != Device::Type::meta || (counter && traits.backend != Device::Type::cpu);
    // The slot may be empty on meta: a plan may be for a machine whose kernels this build lacks.
    if (computes && !slot.function)
      throw Unsupported(std::string(name) + ": no " + name_of(traits.backend) + " kernel");
    Tensor scratch;
    Workspace workspace;
    if (slot.workspace_bytes) workspace.bytes = slot.workspace_bytes(args, traits);
    if (workspace.bytes > 0) {
      scratch = scratch_of(name, workspace.bytes, traits.backend, stream.device());
      workspace.data = scratch.raw();
      workspace.tensor = &scratch;
    }
    std::optional<CountedCall> counted;
    if (counter) counted.emplace(name, count(args, tensors), *counter, traits.backend);
    for (const Operand& operand : tensors)
      if (operand.is_written && operand.tensor) operand.tensor.buffer()->note_write();
    if (!computes) return;
    std::shared_ptr<TraceSpan> span;
    if (stream.trace()) span = span_of(name, tensors, sizes_of(args), stream);
    slot.function(args, workspace, stream);
    if (span) stream.synchronize();  // so that the span ends with the work
  }

  static std::vector<Operand> operands_of(const Args& args) {
    if constexpr (requires { operands(args); }) return operands(args);
    return {};
  }
  static OpCount count(const Args& args, const std::vector<Operand>& tensors) {
    OpCount count = count_of(tensors);
    static_assert(
        !requires { correct(count, args); }, "rename correct() to adjust_count()");
    if constexpr (requires { adjust_count(count, args); }) adjust_count(count, args);
    return count;
  }
  static std::string sizes_of(const Args& args) {
    if constexpr (requires { sizes(args); }) return sizes(args);
    return {};
  }
};

/// Building blocks of validate() functions. Each throws with "op: name ..." and what was expected.
ZG_API void check_present(const char* op, const char* name, const Tensor& tensor);
ZG_API void check_shape(const char* op, const char* name, const Tensor& tensor,
                        const Shape& expected);
ZG_API void check_dtype(const char* op, const char* name, const Tensor& tensor, DType expected);
/// Throws unless the dtype is one of `allowed`.
ZG_API void check_dtype(const char* op, const char* name, const Tensor& tensor,
                        std::initializer_list<DType> allowed);
/// Throws unless all tensors that are present are on one device. Kernel's call checks its operands.
ZG_API void check_device(const char* op, std::initializer_list<const Tensor*> tensors);

}  // namespace zg
