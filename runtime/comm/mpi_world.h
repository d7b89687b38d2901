#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"
#include "zerograd/runtime/comm/pace.h"
#include "zerograd/runtime/comm/process_id.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/comm/transport.h"
#include "zerograd/runtime/text/format.h"

// The functions of MPI that the runtime uses. Sending and receiving do not block. Only one thread
// may call them at a time, and the thread that called start() must call stop(). They throw
// CommError.
namespace zg::cpu::wire {

/// A message that is being sent or received; a default one is complete.
struct Message {
  uint64_t handle = 0;
  bool pending = false;
};

/// `size`: the number of processes that the launcher reports. Throws ConfigError if MPI has another
/// number. Returns true if other threads may call MPI, too.
bool start(int size);
void stop();
/// Sends or receives at most 2^31 - 1 bytes, which must not change until complete(). Messages of
/// one peer and tag arrive in order.
Message send(int peer, int tag, const void* data, int64_t bytes);
Message receive(int peer, int tag, void* data, int64_t capacity);
bool complete(Message& message);
void cancel(Message& message);

}  // namespace zg::cpu::wire

namespace zg::cpu {

using namespace std::chrono_literals;

// How often an idle worker reads control messages, and a waiting one checks that peers are alive.
inline constexpr auto control_poll_interval = 20ms, liveness_check_interval = 50ms;
// Time in which the rank's own thread must see a failure. Also the time from mpirun's SIGTERM until
// this rank reports a failure: mpirun sends SIGKILL after 1 s.
inline constexpr auto failure_grace = 700ms;
// If more than this passes between two checks, this process was stopped, not just delayed by the
// scheduler.
inline constexpr auto stopped_threshold = 500ms;
// A rank that is not stopped answers a question within this time.
inline constexpr auto answer_timeout = 700ms;

inline constexpr int identity_tag = 1, notice_tag = 2,
                     data_tag = 3;  // a group's data has tag data_tag + its number

/// The identity of a rank, and the values that must be equal on all ranks. MPI sends the bytes of
/// this struct.
struct RankIdentity {
  ProcessId process;
  char same[8][40] = {};
  TransportEndpoint endpoint;  ///< for the library that connects accelerators (NCCL)
};

/// A control message between ranks. MPI sends the bytes of this struct up to the end of `text`.
struct Notice {
  enum class Kind : int64_t {
    new_group,  ///< the sender makes a group
    arrived,    ///< it calls a collective
    waits,      ///< it waits in a collective of a transport, and a deadline has passed
    left,       ///< it left a group; the group of all ranks: the run
    ended,      ///< it has failed; sent for each group with the last collective that it finished
    failed,     ///< it reports a failed collective, such as a late peer
    aborted,    ///< its own thread or device failed
    question,   ///< asks for the receiver's Activity
    answer
  };
  Kind kind{};
  int64_t group = 0;  ///< the group's number; new_group: a hash of its members and its name
  /// arrived, waits, failed: the collective; ended: the last finished one; question, answer: the
  /// question
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t count =
      0;          ///< elements of the collective, or of its piece for the receiver; new_group:
                  ///< the sender's next free group number; answer: milliseconds without progress
  int root = -1;  ///< broadcast and scatter only
  Collective op{};
  DType dtype{};
  char text[1000] = {};  ///< name of the tensor or group, cause of a failure, or Activity

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
  bool visible = false;  ///< is on this host and was alive at the start
  int misses = 0;        ///< number of checks that did not find its process
  Notice incoming;
  wire::Message receiving;
  int64_t step = 0;
  bool left = false;
  int64_t answered = 0;  ///< number of the last question that it answered
  Activity activity;     ///< its answer to that question
};

/// The state that one member keeps of a group of processes. The mutex of MpiWorld guards it.
struct MpiGroup {
  struct Member {
    std::deque<Notice> arrivals;  ///< not processed yet; a peer is at most one collective ahead
    int64_t waits_in = -1;        ///< the last collective for which the member sent `waits`
    int64_t ended_after = -1;     ///< set after the member failed: its last finished collective
    bool left = false;
  };
  int64_t number = 0;
  Members members;
  int own_member = 0;  ///< the number of this rank in the group
  std::vector<Member> each;
  std::vector<int> others;  ///< all members except this one
  std::shared_ptr<CollectiveLog> log;
  int64_t finished = -1;                          ///< the last collective that this rank finished
  int64_t wait_announced = -1;                    ///< the last one for which this rank sent `waits`
  std::chrono::steady_clock::time_point alive{};  ///< when the worker's last wait for members ended
  bool fails = false;                             ///< the rank's own thread throws

  MpiGroup(int64_t number, Members all, int rank, int ranks);
  Member& at(int member) { return each[static_cast<size_t>(member)]; }
};

inline std::string difference(const std::string& what, int rank, const RankIdentity& other,
                              const RankIdentity& first) {
  return fmt::format(
      "ranks differ before step 0: the {} of rank {} (host {}) differs from that of rank 0 (host "
      "{}); expected the same command, program and files on every host",
      what, rank, other.process.host, first.process.host);
}

inline std::string gone(int rank, const Peer& peer) {
  return fmt::format(
      "rank {} (pid {}) is gone, last heard of in step {}: it was killed or exited without a "
      "message",
      rank, peer.process.pid, peer.step);
}

/// A wait of a worker for other members of its group.
struct Meeting {
  using Clock = std::chrono::steady_clock;

  MpiGroup* group;
  int64_t sequence = -1;  // -1: no collective; the rank computes, or a run or group begins or ends
  const Call* call = nullptr;
  std::string place = "the end or the beginning of the run";  // used if `call` is null
  bool arriving = false;                                      // false: the call is under way
  bool by_transport = false;  // true: an accelerator library runs it and cannot tell who is missing
  Clock::time_point began = Clock::now(), deadline = Clock::time_point::max();

  // Internal state of await_members().
  std::function<bool(int member)> awaited;
  std::vector<int> missing;  // members that this rank waits for
  std::condition_variable woken;
  struct Question {
    int64_t number = 0;  // 0: not asked
    Clock::time_point asked{};
  };
  Question early_question, final_question;
};

/// The state that all groups of one process share: the MPI connection to all other processes, their
/// control messages, the failure that ends all groups, and the activity of the rank's own thread.
/// Several workers may wait at once. The worker that began to wait last calls MPI for all of them.
/// It sleeps between its calls.
class MpiWorld {
 public:
  using Clock = std::chrono::steady_clock;
  using Out = std::function<std::span<const std::byte>(int member)>;
  using In = std::function<std::span<std::byte>(int member)>;

  MpiWorld(const ProcessRank& place, const ProcessOptions& options);

  // The thread that called connect() must call leave().
  /// Exchanges identities with all ranks and returns them by rank. Throws CommError, ConfigError.
  std::vector<RankIdentity> connect(RankIdentity own);
  bool is_up() const { return is_up_; }  ///< MPI has started
  void leave();  ///< every rank must call it, or peers report that this rank left too early

  const std::shared_ptr<MpiGroup>& all() const { return all_; }
  /// Creates a group. Every member must call it on the rank's own thread.
  std::shared_ptr<MpiGroup> make_group(Members members);
  /// Leaves the group. `fails`: the rank's own thread is throwing an exception, so the worker of
  /// the group must stop waiting.
  void leave(const std::shared_ptr<MpiGroup>& group, bool fails) noexcept;

  /// Announces the call to the other members. Returns when all have arrived with the same call.
  void arrive(Meeting& meeting);
  /// Sends from out(member) to every other member and receives into in(member). Empty: no transfer.
  void exchange(Meeting& meeting, int tag, const Out& out, const In& in);
  /// Returns when meeting.awaited() is false for every member. Throws CommError when that has
  /// become impossible. `yields`: the number of checks that are made without sleeping in between.
  void await_members(Meeting& meeting, int64_t yields);
  void finished(MpiGroup& group, int64_t sequence);
  void watch();  ///< reads control messages while no collective runs

  /// The owner is the rank's own thread. `group`: the group where it waits; null: it does not wait.
  void owner_waits(MpiGroup* group);
  void note_owner_saw_failure() { owner_saw_failure_ = true; }
  bool owner_saw_failure() const { return owner_saw_failure_; }
  /// Called when the rank's own thread failed. The workers report `cause` to the other ranks.
  void abort(const std::string& cause);
  /// Called by a worker that failed. Reports `cause` to the other ranks and throws on this rank.
  [[noreturn]] void throw_own_failure(const std::string& cause);
  void throw_peer_failure(const Meeting& meeting);
  /// The rank's own thread threw `error`. Reports it to the other ranks unless it is a CommError.
  void failed(const std::exception_ptr& error);
  void dump_logs();

  const std::shared_ptr<std::atomic<int64_t>>& step() const { return step_; }
  Clock::time_point deadline() const { return Clock::now() + timeout(); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A notice that is being sent to several ranks.
  struct Outgoing {
    Notice notice;
    std::vector<wire::Message> messages = {};
    bool awaited = false;
  };

  size_t index_of(int rank) const { return static_cast<size_t>(rank); }
  Clock::duration timeout() const { return std::chrono::duration_cast<Clock::duration>(timeout_); }

  Lock enter();

  // Called with the mutex locked. A function with a Lock parameter may unlock it for some time.
  bool is_over(Meeting& meeting);
  void check_for_early_return(Lock& lock, const Meeting& meeting);
  void check_for_dead(Lock& lock, const Meeting& meeting, const std::vector<int>& ranks);
  void check_deadline(Lock& lock, Meeting& meeting, Clock::time_point now);
  void check_deadline_of_transport(Lock& lock, Meeting& meeting, Clock::time_point now);
  bool soon_killed(Clock::time_point now);
  Activity activity();  ///< the activity of this rank

  void receive(Peer& from);
  void process_notices();
  void process(int rank, const Notice& notice);
  bool process_in_group(int rank, const Notice& notice);
  /// Starts to send the notice. Small messages complete at once if the peer still receives.
  Outgoing& post(const Notice& notice, const std::vector<int>& ranks);
  static bool is_sent(Outgoing& outgoing);
  /// Calls post() and waits until the messages are sent, but at most `longest`.
  void post_and_wait(Lock& lock, const Notice& notice, const std::vector<int>& ranks,
                     Clock::duration longest);

  void throw_known_failure(const Meeting& meeting);
  [[noreturn]] void throw_own_failure(Lock& lock, const std::string& cause);
  [[noreturn]] void fail(Lock& lock, const Meeting& meeting, const std::string& text);
  void announce_failure(Lock& lock, Notice::Kind kind, const Meeting* meeting,
                        const std::string& text);

  static std::vector<int> ranks_of(const MpiGroup& group, const std::vector<int>& members);
  std::string place_of(const Meeting& meeting) const;
  std::string activity_now(const Meeting& meeting) const;

  const int rank_, size_;
  const std::chrono::duration<double> timeout_;
  const std::function<bool()> told_to_end_;
  const std::shared_ptr<std::atomic<int64_t>> step_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<bool> is_up_ = false, owner_saw_failure_ = false;
  std::atomic<int> entering_ = 0;  // threads in enter(); the polling thread lets them lock mutex_

  std::mutex owner_mutex_;  // locked after mutex_ when a thread needs both
  MpiGroup* owner_waits_in_ = nullptr;
  Clock::time_point owner_alive_ = Clock::now();

  std::mutex mutex_;
  bool serialized_ = false;  // MPI allows calls from several threads, one at a time
  std::vector<Peer> peers_;
  std::vector<int> others_;  // all ranks except this one
  std::shared_ptr<MpiGroup> all_;
  std::vector<std::shared_ptr<MpiGroup>> groups_;
  int64_t next_number_ = 1;
  std::set<int64_t> ended_groups_;
  std::map<std::pair<int64_t, int>, std::deque<int64_t>> new_groups_;  // by group hash and rank
  std::vector<std::pair<int, Notice>> early_notices_;  // for groups that do not exist yet
  std::list<Meeting*> waiting_;                        // the last one calls MPI
  std::list<Outgoing> outgoing_;
  int64_t questions_ = 0;
  std::string last_;          // names the last collective of this rank
  std::string own_cause_;     // argument of abort()
  bool aborts_ = false;       // abort() was called; a worker reports own_cause_
  std::string cause_of_end_;  // the failure that ends all groups; empty: none
  bool adds_place_ = false;   // the cause names no collective, so each error adds its own
  int64_t failed_group_ = -1, failed_sequence_ = -1;  // the collective of the cause; -1: none
  // When soon_killed() first saw the warning, and when check_for_dead() last looked.
  Clock::time_point warned_at_{}, checked_alive_{};
};

}  // namespace zg::cpu
