#pragma once

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

// Shared by tests of collectives and of ranks that stall.
namespace zg::testing {

/// Ends the rank with an error: CHECK is for the main thread.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw ShapeError(what);
}

/// The sum of a reduce_scatter, in f32.
inline void add_floats(const Tensor& piece, const Tensor& shard, bool first, Stream&) {
  for (int64_t i = 0; i < shard.numel(); ++i)
    shard.data<float>()[i] =
        first ? piece.data<float>()[i] : shard.data<float>()[i] + piece.data<float>()[i];
}

/// A rank that never returns ends its whole process, so a test of one runs its binary again, with
/// the case in this variable and this limit. The limit lets a loaded machine start all ranks.
inline constexpr const char* stall_variable = "ZG_TEST_STALL";
inline constexpr double stall_timeout_s = 4.0;

}  // namespace zg::testing
