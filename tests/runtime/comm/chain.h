#pragma once

#include <functional>
#include <string>

#include "zerograd/runtime/comm/mesh.h"

namespace zg::testing {

/// Every rank is a stage of one pipeline. In steps 0 to 5 a number is sent from the first to the
/// last stage and back. A stage calls `between(step)` after it has received the number and before
/// it sends it on; false: the stage returns early.
inline void run_chain(Communicator& comm, const Device& device,
                      const std::function<bool(int step)>& between) {
  const Mesh mesh(comm, {.pipeline = comm.size()});
  const Tensor x = Tensor::zeros({3}, DType::f32, device);
  const auto pass = [&](const std::unique_ptr<Communicator>& channel, int from) {
    if (channel) channel->wait(channel->broadcast(x, from, "activations"));
  };
  for (int step = 0; step <= 5; ++step) {
    comm.set_step(step);
    pass(mesh.previous.forward, 0);
    if (!between(step)) return;
    pass(mesh.next.forward, 0);
    pass(mesh.next.backward, 1);
    pass(mesh.previous.backward, 1);
  }
}

/// The place, as in errors, where stage `waiting` of `stages` waits for its neighbour `stalled` in
/// step 5.
inline std::string place_in_chain(int waiting, int stalled) {
  const std::string from = std::to_string(stalled), to = std::to_string(waiting);
  // Stages before the stalled one have sent the number and wait for it to come back.
  return "collective #5, broadcast of 'activations' (f32, 3 elements, from rank " + from +
         ") in group 'stage " + from + " to " + to + "', in step 5";
}

}  // namespace zg::testing
