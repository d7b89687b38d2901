#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>

#include "runtime/carrier.h"
#include "runtime/cpu/call.h"
#include "runtime/cpu/mpi_wire.h"
#include "runtime/cpu/pace.h"
#include "runtime/cpu/process_id.h"

namespace zg::cpu {

using namespace std::chrono_literals;

inline constexpr auto watch_every = 20ms;  // for news of peers, when nothing is queued
inline constexpr auto look_every = 50ms;   // whether peers are alive
inline constexpr auto grace =
    700ms;  // for the owner to see a failure; mpirun kills a second after one

inline constexpr auto pause = 500ms;  // between two looks, that no scheduler makes

inline constexpr int hello_tag = 1, notice_tag = 2, data_tag = 3;

/// Who a rank is and what must be equal on all. Sent as it lies in memory.
struct Hello {
  ProcessId process;
  char same[8][40] = {};
  CarrierPlace place;  ///< on an accelerator
};

/// What ranks tell each other besides data. Sent as it lies in memory, up to the text's end.
struct Notice {
  enum class Kind : int64_t { arrived, failed, aborted, left, waits };
  Kind kind{};
  int64_t sequence = 0;  ///< where it arrived, or the last that it finished
  int64_t step = 0, count = 0;
  int root = -1;  ///< of a broadcast
  Collective op{};
  DType dtype{};
  char text[1000] = {};  ///< the tensor's name, or what failed

  void set_text(const std::string& value) { std::snprintf(text, sizeof text, "%s", value.c_str()); }
  int64_t bytes() const {
    return static_cast<int64_t>(offsetof(Notice, text) + std::strlen(text) + 1);
  }
  Call call() const {
    return {.op = op, .dtype = dtype, .count = count, .name = text, .root = root};
  }
};

struct Peer {
  ProcessId process;
  bool visible = false;  ///< on this host, and seen alive at the start
  int misses = 0;        ///< times that it was not seen since
  Notice incoming;
  wire::Message receiving, sending;
  std::deque<Notice> arrivals;  ///< not yet met; a peer is at most one collective ahead
  int64_t step = 0;
  int64_t waits_in = -1;  ///< the last collective that it said to wait in
  bool left = false;
};

inline std::string difference(const std::string& what, int rank, const Hello& other,
                              const Hello& first) {
  return "ranks differ before step 0: the " + what + " of rank " + std::to_string(rank) + " (" +
         other.process.host + ") is not rank 0's (" + first.process.host +
         "); expected the same command, program and files on every host";
}

inline std::string gone(int rank, const Peer& peer) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(peer.process.pid) +
         ") is gone, last heard of in step " + std::to_string(peer.step) +
         ": it was killed or ended without a word";
}

}  // namespace zg::cpu
