#include "zerograd/runtime/comm/call.h"

#include <algorithm>
#include <deque>
#include <new>
#include <numeric>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::cpu {

Members all_ranks(int size) {
  Members all{.ranks = std::vector<int>(static_cast<size_t>(size))};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

std::string listed(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + list;
}

std::string Call::text() const {
  return fmt::format("{} of '{}' ({}{}{})", op, name, dtype,
                     exchanges_pieces() ? "" : fmt::format(", {} elements", count),
                     root >= 0 ? fmt::format(", from rank {}", root) : "");
}

bool Call::agrees(const Call& other) const {
  return op == other.op && dtype == other.dtype && name == other.name && root == other.root &&
         (count == other.count || exchanges_pieces());
}

namespace {

Tensor piece(const Tensor& all, const std::vector<int64_t>& counts, int member) {
  const auto end = counts.begin() + member;
  return all.flat(std::accumulate(counts.begin(), end, int64_t{0}), *end);
}

}  // namespace

Tensor Call::sent_to(int member) const { return piece(input, sends, member); }
Tensor Job::received_from(int member) const { return piece(output, call.receives, member); }

std::string named(const Call& call, int64_t sequence, const std::string& group) {
  return fmt::format("collective #{}, {}{}", sequence, call.text(),
                     group.empty() ? "" : fmt::format(" in group '{}'", group));
}

std::string where(const Call& call, int64_t sequence, const std::string& group, int64_t step) {
  return fmt::format("{}, in step {}", named(call, sequence, group), step);
}

std::string disagreement(int64_t sequence, const Members& members, int64_t step,
                         const std::vector<Call>& calls) {
  const int size = static_cast<int>(calls.size());
  const auto call = [&](int rank) -> const Call& { return calls[static_cast<size_t>(rank)]; };
  const auto says = [&](int rank) {
    return fmt::format("rank {} calls {}", members[rank], call(rank).text());
  };
  const auto differs_from = [&](int rank) {
    return static_cast<int>(
        std::ranges::count_if(calls, [&](const Call& other) { return !other.agrees(call(rank)); }));
  };
  std::string who;
  for (int rank = 0; rank < size && size > 2 && who.empty(); ++rank)
    if (const int next = (rank + 1) % size;
        differs_from(rank) == size - 1 && differs_from(next) == 1)
      who = fmt::format("{}, each of the others calls {}", says(rank), call(next).text());
  for (int rank = 1; rank < size && who.empty(); ++rank)
    if (!call(rank).agrees(call(0))) who = says(0) + ", " + says(rank);
  return fmt::format(
      "ranks disagree at collective #{}{} in step {}: {}; every rank must make the same calls",
      sequence, members.group.empty() ? "" : fmt::format(" of group '{}'", members.group), step,
      who);
}

std::string unequal_pieces(int sender, int64_t sent, int receiver, int64_t expected,
                           const std::string& place) {
  return fmt::format(
      "rank {} sends {} elements to rank {}, which expects {}: {}; each pair of ranks must agree "
      "on the size of a piece",
      sender, sent, receiver, expected, place);
}

std::string early_return(int rank, int64_t step, const std::string& place) {
  return fmt::format(
      "rank {} returned early, in step {}; the others are at {}; every rank must make the same "
      "calls",
      rank, step, place);
}

std::string absence(const std::vector<int>& ranks, const char* verb, double timeout_s,
                    const std::string& place) {
  return fmt::format(
      "{} did not {} within {:.3g} s: {}; look at what that rank is doing, or raise --comm-timeout",
      listed(ranks), verb, timeout_s, place);
}

std::string unfinished(const std::vector<int>& ranks, const char* verb, const std::string& place) {
  return fmt::format("{} did not {} before the launcher ended the run: {}; nothing was saved since",
                     listed(ranks), verb, place);
}

std::string failure_of(int rank, int64_t step, const std::string& last, const std::string& cause) {
  return fmt::format("rank {} failed in step {}{}: {}", rank, step,
                     last.empty() ? ", before any collective" : ", after " + last,
                     cause.substr(0, cause.find('\n')));
}

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return std::string(typed.type()) + ": " + typed.what();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an unknown exception";
  }
}

int exit_status_of(std::string_view type) {
  constexpr std::pair<std::string_view, int> statuses[] = {{"ConfigError", 2},
                                                           {"OutOfMemory", 3},
                                                           {"CommError", 4},
                                                           {"FileError", 5},
                                                           {"Unsupported", 6}};
  for (const auto& [name, status] : statuses)
    if (type == name) return status;
  return 1;
}

int exit_status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return exit_status_of(typed.type());
  } catch (const std::bad_alloc&) {
    return exit_status_of("OutOfMemory");
  } catch (...) {
    return 1;
  }
}

namespace {

/// Returns an exception of the same type with another message. Null if its type is not in `Types`.
template <class... Types>
std::exception_ptr same_of(const std::exception& error, const std::string& message) {
  std::exception_ptr same;
  const auto is = [&]<class T>(T*) {
    if (typeid(error) == typeid(T)) same = std::make_exception_ptr(T(message));
  };
  (is(static_cast<Types*>(nullptr)), ...);
  return same;
}

}  // namespace

std::exception_ptr of_rank(const std::exception_ptr& error, int rank, int ranks) {
  if (ranks == 1 || is_comm_error(error)) return error;
  const std::string who = fmt::format("rank {}/{}: ", rank, ranks);
  std::exception_ptr named;
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    named = typed.with_message(who + typed.what());
  } catch (const std::exception& other) {
    named = same_of<std::runtime_error, std::range_error, std::overflow_error, std::underflow_error,
                    std::logic_error, std::invalid_argument, std::domain_error, std::length_error,
                    std::out_of_range>(other, who + other.what());
  } catch (...) {
  }
  return named ? named : error;
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// --- blame ---

Blame blame(const Activity& waiting, const std::vector<Activity>& ranks,
            std::chrono::steady_clock::time_point since) {
  Blame blame;
  std::vector<bool> seen(ranks.size());
  // Breadth first, so that the message names the late ranks that are nearest in the chain of waits.
  for (std::deque<const Activity*> chain{&waiting}; !chain.empty(); chain.pop_front()) {
    const Activity& waits = *chain.front();
    const bool named = !blame.ranks.empty();
    for (const int rank : waits.awaits) {
      const auto at = static_cast<size_t>(rank);
      if (seen[at]) continue;
      seen[at] = true;
      const Activity& late = ranks[at];
      if (!late.awaits.empty()) {
        chain.push_back(&late);
      } else if (late.last_progress > since) {
        blame.last_progress =
            std::min(blame.last_progress.value_or(late.last_progress), late.last_progress);
      } else if (!named) {
        blame.ranks.push_back(rank);
        blame.verb = waits.verb;
        blame.place = waits.place;
      }
    }
  }
  return blame;
}

std::string deadlock(const std::vector<Activity>& ranks) {
  std::string who, places;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].awaits.empty()) continue;
    const std::string number = std::to_string(rank);
    who += (who.empty() ? "" : ", ") + number;
    places +=
        fmt::format("{}{} in {}", places.empty() ? "rank " : "; rank ", number, ranks[rank].place);
  }
  return fmt::format(
      "ranks {} wait for each other: {}; every rank must make the same calls in one order", who,
      places);
}

}  // namespace zg::cpu
