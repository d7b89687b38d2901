#pragma once

#include <string>
#include <vector>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/trace.h"

namespace zg {

/// Scratch memory of one kernel call; declared by the kernel's workspace_bytes, so that meta
/// devices account for exactly what a real run takes.
struct Workspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  /// The same bytes as a tensor, whose aliases a kernel hands to another kernel that it calls.
  const Tensor* tensor = nullptr;
};

/// A tensor of a kernel call. An op whose struct of arguments has an
///
///     std::vector<Operand> operands(const Args&);
///
/// shows its tensors in traces; tests put guards around those that are written. What shapes do not
/// tell, such as a product's extents, std::string sizes(const Args&) adds.
struct Operand {
  const char* name;
  const Tensor& tensor;  ///< of the arguments; absent where that operand is
  bool is_written = false;
  static constexpr bool out = true;  ///< written, or read and written
};

/// "x f32 [64, 48], y f32 [64, 48]"; of many the first sixteen.
ZG_API std::string text_of(const std::vector<Operand>& operands);

/// One computation, one function per backend. The argument struct is the contract; this object is
/// the whole dispatch mechanism. Each is declared `extern ZG_API` in the op's header and defined
/// once in a .cpp; a researcher may assign one slot from outside.
template <class Args>
struct Kernel {
  using Function = void (*)(const Args&, Workspace, Stream&);
  using WorkspaceBytes = int64_t (*)(const Args&, const Device::Traits&);

  const char* name;
  WorkspaceBytes workspace_bytes = nullptr;  ///< of the cpu's; null: needs none
  Function cpu = nullptr;                    ///< the reference every backend is tested against
  WorkspaceBytes cuda_workspace_bytes = nullptr;
  Function cuda = nullptr;
  WorkspaceBytes hpu_workspace_bytes = nullptr;
  Function hpu = nullptr;

  /// Validates, takes the declared scratch, then launches on the stream's device. On meta it stops
  /// there. Throws Unsupported ("layer_norm_forward: no hpu kernel") when the slot is empty.
  void operator()(const Args& args, Stream& stream) const {
    validate(args);
    const Device::Traits& traits = stream.traits();
    const bool computes = stream.type() != Device::Type::meta;
    // A plan may be for a machine whose kernels this build lacks.
    const Function function = computes ? select(traits.backend) : nullptr;
    Tensor scratch;
    Workspace workspace;
    const WorkspaceBytes declared = traits.backend == Device::Type::cuda  ? cuda_workspace_bytes
                                    : traits.backend == Device::Type::hpu ? hpu_workspace_bytes
                                                                          : workspace_bytes;
    if (declared) workspace.bytes = declared(args, traits);
    if (workspace.bytes > 0) {
      const Device device = stream.device();
      PurposeScope purpose(device, Purpose::workspace);
      NameScope scratch_of(device, name);
      scratch = Tensor::empty({workspace.bytes}, DType::u8, device);
      workspace.data = scratch.raw();
      workspace.tensor = &scratch;
    }
    if (!computes) return;
    TraceSpan span(stream, name, Trace::Kind::kernel);
    if (span) note(args, span);
    function(args, workspace, stream);
    if (span) stream.synchronize();  // so that the span ends with the work
  }

  static void note(const Args& args, TraceSpan& span) {
    if constexpr (requires { operands(args); }) span.add("operands", text_of(operands(args)));
    if constexpr (requires { sizes(args); }) span.add("sizes", sizes(args));
  }

  Function select(Device::Type type) const {
    Function function = type == Device::Type::cuda ? cuda : type == Device::Type::hpu ? hpu : cpu;
    if (!function) {
      const char* backend = type == Device::Type::cuda  ? "cuda"
                            : type == Device::Type::hpu ? "hpu"
                                                        : "cpu";
      throw Unsupported(std::string(name) + ": no " + backend + " kernel");
    }
    return function;
  }
};

}  // namespace zg
