#include "runtime/cpu/call.h"

#include <cstdio>

#include "runtime/error.h"

namespace zg::cpu {

std::string Call::text() const {
  return std::string(name_of(op)) + " of '" + name + "' (" + name_of(dtype) + ", " +
         std::to_string(count) + " elements)";
}

bool Call::agrees(const Call& other) const {
  return op == other.op && dtype == other.dtype && count == other.count && name == other.name;
}

std::string named(const Call& call, int64_t sequence) {
  return "collective #" + std::to_string(sequence) + ", " + call.text();
}

std::string where(const Call& call, int64_t sequence, int64_t step) {
  return named(call, sequence) + ", in step " + std::to_string(step);
}

std::string disagreement(int64_t sequence, int64_t step, int rank, const Call& call, int peer,
                         const Call& other) {
  return "ranks disagree at collective #" + std::to_string(sequence) + " in step " +
         std::to_string(step) + ": rank " + std::to_string(rank) + " calls " + call.text() +
         ", rank " + std::to_string(peer) + " calls " + other.text() +
         "; every rank must make the same calls";
}

std::string early_return(int rank, int64_t step, const std::string& place) {
  return "rank " + std::to_string(rank) + " returned early, in step " + std::to_string(step) +
         "; the others are at " + place + "; every rank must make the same calls";
}

std::string absence(const std::string& ranks, const char* verb, double timeout_s,
                    const std::string& place) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", timeout_s);
  return "rank " + ranks + " did not " + verb + " within " + seconds + " s: " + place +
         "; look at what that rank is doing, or raise --comm-timeout";
}

std::string failure_of(int rank, int64_t step, const std::string& last, const std::string& cause) {
  return "rank " + std::to_string(rank) + " failed in step " + std::to_string(step) +
         (last.empty() ? ", before any collective" : ", after " + last) + ": " + cause;
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

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace zg::cpu
