#pragma once

#include <cuda_runtime.h>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/launches.h"

namespace zg::cuda {

/// Blocks and threads of a launch, and the bytes of its dynamic shared memory.
struct Grid {
  dim3 blocks, threads;
  size_t shared = 0;
  int registers = 0;  ///< of a thread, in a kernel with setmaxnreg; see load_kernel()
};

/// The count of a launch: the fields of LaunchRow. Errors name the op.
struct Work {
  Work(const char* its_op) : Work(its_op, its_op, 0, 0) {}
  /// Takes dtype and kind from the op that is called, but replaces the kind product by memory. For
  /// a launch that is a product use the constructor with an OpCount.
  Work(const char* its_op, const char* its_kernel, int64_t its_bytes, int64_t its_operations)
      : Work(its_op, its_kernel, of_call(its_bytes, its_operations)) {}
  Work(const char* its_op, const char* its_kernel, const OpCount& its_count)
      : op(its_op), kernel(its_kernel), count(its_count) {}
  const char *op, *kernel;
  OpCount count;

 private:
  static OpCount of_call(int64_t bytes, int64_t operations) {
    OpCount count;
    if (const OpCount* const call = CountedCall::current()) count = *call;
    count.bytes = bytes;
    count.operations = operations;
    if (count.kind == KernelClass::product) count.kind = KernelClass::memory;
    return count;
  }
};

/// Adds a launch to the counter.
inline void add(LaunchCounter& counter, const Work& work, int64_t blocks) {
  counter.add({.op = work.op,
               .kernel = work.kernel,
               .launches = 1,
               .blocks = blocks,
               .bytes = work.count.bytes,
               .operations = work.count.operations,
               .dtype = work.count.dtype,
               .kind = work.count.kind});
}

/// The bytes of the tensors that are present.
inline int64_t bytes_of(std::initializer_list<const Tensor*> tensors) {
  int64_t bytes = 0;
  for (const Tensor* tensor : tensors)
    if (*tensor) bytes += tensor->bytes();
  return bytes;
}

/// The bytes of all operands of a call, each once, whether read or written.
template <class Args>
int64_t operand_bytes(const Args& args) {
  int64_t bytes = 0;
  for (const auto& operand : operands(args))
    if (operand.tensor) bytes += operand.tensor.bytes();
  return bytes;
}

/// Queues kernel(args...) on the stream, and counts it if the stream counts launches. A stream of a
/// meta device only counts. A grid without blocks loads the kernel and launches nothing.
template <class... Parameters, class... Args>
void launch(const Work& work, void (*kernel)(Parameters...), const Grid& grid, Stream& stream,
            Args... args) {
  const int64_t blocks = int64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  if (LaunchCounter* const counter = stream.launches(); counter && blocks > 0)
    add(*counter, work, blocks);
  if (stream.type() == Device::Type::meta) return;
  const OnDevice on(stream.device().index());
  const size_t own_arrays = load_kernel(reinterpret_cast<const void*>(kernel),
                                        stream.device().index(), work.op, grid.registers);
  if (blocks == 0) return;
  constexpr size_t granted = 48 << 10;  // from here on the kernel needs an attribute
  if (grid.shared + own_arrays >= granted)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared)),
          work.op);
#ifdef __CUDACC__
  kernel<<<grid.blocks, grid.threads, grid.shared, handle(stream)>>>(
      static_cast<Parameters>(args)...);
#else
  emulator::launch(work.op, kernel, grid.blocks, grid.threads, grid.shared, handle(stream),
                   std::tuple<Parameters...>(args...));
#endif
  check(cudaGetLastError(), work.op);
}

/// The blocks for n elements with `each` elements to a block, at most `most`.
inline dim3 blocks_for(int64_t n, int64_t each, int64_t most = 0x7fffffff) {
  const int64_t blocks = (n + each - 1) / each;
  return dim3(static_cast<unsigned>(blocks < most ? blocks : most));
}

}  // namespace zg::cuda
