#include "zerograd/runtime/storage/block_io.h"
#include "zerograd/runtime/storage/swap.h"

namespace zg::cpu {

std::unique_ptr<BlockIo> open_uring(const SwapOptions&, int, bool) { return nullptr; }

}  // namespace zg::cpu

namespace zg {

std::string io_uring_absence() {
  return "this build found no liburing; try apt-get install liburing-dev and build again";
}

}  // namespace zg
