#pragma once

#include <cstdint>
#include <string>

// The few functions of MPI that are used here: messages that never block. One thread calls at a
// time; the one that called start() calls stop(). Errors are CommError.
namespace zg::cpu::wire {

/// A message that is being sent or received; a default one is complete.
struct Message {
  uint64_t handle = 0;
  bool pending = false;
};

/// `size`: the number of processes that the launcher reports; ConfigError when MPI sees another
/// number of processes. Whether other threads may call, too.
bool start(int size);
void stop();
/// Sends or receives at most 2^31 - 1 bytes, which must not change until complete(). Messages of
/// one peer and tag arrive in order.
Message send(int peer, int tag, const void* data, int64_t bytes);
Message receive(int peer, int tag, void* data, int64_t capacity);
bool complete(Message& message);
void cancel(Message& message);

}  // namespace zg::cpu::wire
