#pragma once

#include <cuda_runtime.h>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/cuda/api.h"

namespace zg::cuda {

/// Blocks and threads of a launch, and the bytes of its dynamic shared memory.
struct Grid {
  dim3 blocks, threads;
  size_t shared = 0;
};

/// Queues kernel(args...) on the stream; errors name it `name`. A grid without blocks loads the
/// kernel and launches nothing.
template <class... Parameters, class... Args>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
            Args... args) {
  const OnDevice on(stream.device().index());
  load_kernel(reinterpret_cast<const void*>(kernel), stream.device().index());
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  constexpr size_t granted = 48 << 10;  // from here on the kernel needs an attribute
  if (grid.shared >= granted)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared)),
          name);
#ifdef __CUDACC__
  kernel<<<grid.blocks, grid.threads, grid.shared, handle(stream)>>>(
      static_cast<Parameters>(args)...);
#else
  emulator::launch(name, kernel, grid.blocks, grid.threads, grid.shared, handle(stream),
                   std::tuple<Parameters...>(args...));
#endif
  check(cudaGetLastError(), name);
}

/// The blocks for n elements with `each` elements to a block, at most `most`.
inline dim3 blocks_for(int64_t n, int64_t each, int64_t most = 0x7fffffff) {
  const int64_t blocks = (n + each - 1) / each;
  return dim3(static_cast<unsigned>(blocks < most ? blocks : most));
}

}  // namespace zg::cuda
