#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/blame.h"
#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"
#include "zerograd/runtime/comm/mpi_wire.h"
#include "zerograd/runtime/comm/pace.h"
#include "zerograd/runtime/comm/process_id.h"
#include "zerograd/runtime/comm/transport.h"

namespace zg::cpu {

using namespace std::chrono_literals;

inline constexpr auto watch_every = 20ms;  // for control messages, when nothing is queued
inline constexpr auto look_every = 50ms;   // whether peers are alive
inline constexpr auto grace =
    700ms;  // for the owner to see a failure; mpirun kills a second after one

inline constexpr auto pause = 500ms;  // longer than any scheduling delay between two checks

inline constexpr auto answered_within = 700ms;  // by a rank that is not stopped

inline constexpr int hello_tag = 1, notice_tag = 2,
                     data_tag = 3;  // the latter and a group's number

/// The identity of a rank, and the values that must be equal on all ranks. Sent as it lies in
/// memory.
struct Hello {
  ProcessId process;
  char same[8][40] = {};
  TransportEndpoint place;  ///< on an accelerator
};

/// A control message between ranks. Sent as it lies in memory, up to the end of the text.
struct Notice {
  enum class Kind : int64_t { founds, arrived, waits, left, ended, failed, aborted, asks, does };
  Kind kind{};
  int64_t group = 0;  ///< its number; for a new group a hash of members and name
  /// Where it arrived, waits or failed, or the last that it finished; the number of a question.
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t count = 0;  ///< elements; of a new group: the number that is free; of an answer: ms
  int root = -1;      ///< broadcast only
  Collective op{};
  DType dtype{};
  char text[1000] = {};  ///< the tensor's or group's name, what failed, or what a rank does

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
  wire::Message receiving;
  int64_t step = 0;
  bool left = false;
  int64_t answered = 0;  ///< the last question that it answered,
  Activity activity;     ///< and how
};

/// A group of processes, as one member sees it. Guarded by the mutex of MpiWorld.
struct MpiGroup {
  struct Member {
    std::deque<Notice> arrivals;  ///< not yet met; a peer is at most one collective ahead
    int64_t waits_in = -1;        ///< the last collective for which it reported a wait
    int64_t ended_after = -1;     ///< once it failed: the last collective that it finished
    bool left = false;
  };
  int64_t number = 0;
  Members members;
  int own = 0;  ///< this rank, in the group
  std::vector<Member> each;
  std::vector<int> others;  ///< every member but this one
  std::shared_ptr<CollectiveLog> log;
  int64_t finished = -1;      ///< the last collective that is done here
  int64_t said_to_wait = -1;  ///< the last one for which this rank reported a wait
  std::chrono::steady_clock::time_point alive{};  ///< when its worker last waited for others
  bool fails = false;                             ///< its owner throws

  MpiGroup(int64_t number, Members all, int rank, int ranks);
  Member& at(int member) { return each[static_cast<size_t>(member)]; }
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
