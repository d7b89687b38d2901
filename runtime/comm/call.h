#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/trace.h"

namespace zg::cpu {

/// A rank's arrival at a collective. All fields but `input` must be equal on all ranks. If pieces
/// are exchanged, the counts may differ, and each pair of ranks must agree on its two pieces.
struct Call {
  Collective op{};
  DType dtype{};
  int64_t count = 0;
  std::string name = {};
  int root = -1;      // broadcast and scatter only: the root's rank among all ranks
  Tensor input = {};  // the tensor that peers read
  std::vector<int64_t> sends = {}, receives = {};  // elements for and from each member
  bool exchanges_pieces() const {
    return op == Collective::all_to_all || op == Collective::scatter;
  }
  Tensor sent_to(int member) const;  ///< this piece of `input`
  std::string text() const;          ///< "all_gather of 'block.0' (bf16, 1024 elements)"
  bool agrees(const Call& other) const;
};

/// A queued collective of this rank.
struct Job {
  Call call;
  Tensor output;
  Chunk chunk = {};
  Communicator::Combine combine = nullptr;
  bool fresh = false;       ///< reduce_scatter: the first piece overwrites the output
  bool by_library = false;  ///< reduce_scatter: the library (NCCL) sums, in its own order
  Tensor window;      ///< reduce_scatter on accelerators only: memory that receives peers' slices
  int root = -1;      ///< broadcast only: the root's rank in the group
  int64_t bytes = 0;  ///< bytes that peers send to this rank
  int64_t queued_ns = 0;                    ///< by the trace's clock
  std::shared_ptr<Trace> trace = {};        ///< receives its span; null: no trace
  std::shared_ptr<StreamMark> inputs = {};  ///< the device's work before it; null: it is done
  bool finished = false;
  Tensor received_from(int member) const;  ///< this piece of `output`
};

/// The members of a group, as errors name them.
struct Members {
  std::vector<int> ranks;  ///< ranks[i]: the number of member i among all ranks
  std::string group = {};  ///< empty: all ranks
  int size() const { return static_cast<int>(ranks.size()); }
  int operator[](int member) const { return ranks[static_cast<size_t>(member)]; }
};
Members all_ranks(int size);

// Error messages for ranks that do not arrive at the same collective. All transports (threads, MPI)
// use the same wording, so that users can search for it.

/// "collective #3, all_gather of 'block.0' (bf16, 1024 elements)", followed by " in group 'stages
/// 0, 1'" unless the group has all ranks.
std::string named(const Call& call, int64_t sequence, const std::string& group = {});
/// The same, followed by ", in step 5".
std::string where(const Call& call, int64_t sequence, const std::string& group, int64_t step);
/// The error for members that made different calls. `calls` has the call of every member. If only
/// one member differs from the others, the message names it.
std::string disagreement(int64_t sequence, const Members& members, int64_t step,
                         const std::vector<Call>& calls);
/// The error for a piece that one rank sends and another expects with another size; `receiver`
/// expects `expected` elements at `place`.
std::string unequal_pieces(int sender, int64_t sent, int receiver, int64_t expected,
                           const std::string& place);
/// `place`: where() of the waiting ranks.
std::string early_return(int rank, int64_t step, const std::string& place);
std::string listed(const std::vector<int>& ranks);  ///< "rank 1", "ranks 1, 2"
/// `verb`: "arrive" or "finish".
std::string absence(const std::vector<int>& ranks, const char* verb, double timeout_s,
                    const std::string& place);
/// The same for waiting ranks that the launcher is about to kill.
std::string unfinished(const std::vector<int>& ranks, const char* verb, const std::string& place);
/// `last`: named() of its last collective; empty: it had none. Only the first line of `cause` is
/// used.
std::string failure_of(int rank, int64_t step, const std::string& last, const std::string& cause);

std::string describe(const std::exception_ptr& error);  ///< "ShapeError: matmul: ..."
/// The same error with "rank 2/4: " before its message, if there are several ranks. A CommError is
/// unchanged, because it names the rank. So is an exception of a type that cannot be made again
/// from a message.
std::exception_ptr of_rank(const std::exception_ptr& error, int rank, int ranks);
bool is_comm_error(const std::exception_ptr& error);
/// The exit status of a program that ends with an error of this type, as runtime/error.h says;
/// others: 1.
ZG_API int exit_status_of(std::string_view type);
/// The same for the error of a rank; std::bad_alloc is OutOfMemory.
int exit_status_of(const std::exception_ptr& error);

/// The state of a rank, for ranks that wait for it: it computes (`awaits` is empty) or waits
/// itself.
struct Activity {
  /// Ranks that it waits for, as numbers among all ranks; empty: it runs its own code.
  std::vector<int> awaits = {};
  const char* verb = "arrive";  ///< the action that it expects from them: "arrive", "finish"
  std::string place = {};       ///< the place where it waits for them
  std::chrono::steady_clock::time_point last_progress{};
};

/// The ranks that cause a wait: those at the end of the chain of waits. A rank that waits for
/// others in another group is not a cause.
struct Blame {
  /// The causes: they run their own code, or have not answered, since before `since`.
  std::vector<int> ranks;
  const char* verb = nullptr;
  std::string place;  ///< the place where other ranks wait for them
  /// If `ranks` is empty: the earliest time at which one of the computing ranks was last seen to
  /// make progress. Absent: the ranks wait for each other in a ring.
  std::optional<std::chrono::steady_clock::time_point> last_progress = {};
};
Blame blame(const Activity& waiting, const std::vector<Activity>& ranks,
            std::chrono::steady_clock::time_point since);

/// The error message when ranks wait for each other in a ring, so that no single rank is to blame.
std::string deadlock(const std::vector<Activity>& ranks);

}  // namespace zg::cpu
