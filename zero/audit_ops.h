#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <vector>

#include "zerograd/runtime/trace.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// The JSON of all ranks with checksums, as opened() reads them. Collective over the group (null:
/// one rank).
std::vector<std::string> gather_sealed(Communicator* group, const nlohmann::ordered_json& own);
/// Throws CommError if a message has changed the text.
nlohmann::ordered_json opened(const std::string& text, size_t rank);

/// Hashes of the tensors that this rank's kernels and collectives write, from construction to
/// end(). They are seen by a watch on the device's trace. A device without a trace gets one
/// meanwhile.
class AuditedOps {
 public:
  /// `tensor`: the number of the output whose bytes are shown; empty: none.
  AuditedOps(const Engine& engine, std::string tensor);
  ~AuditedOps();
  AuditedOps(const AuditedOps&) = delete;
  AuditedOps& operator=(const AuditedOps&) = delete;

  /// The hashes of all ranks by name, in an order that only the program decides; collective over
  /// the group (null: one rank).
  nlohmann::ordered_json end(Communicator* group);

 private:
  /// An output; or a collective, `call`, whose outputs follow.
  struct Entry {
    int64_t ns = 0;
    std::string name = {}, hash = {}, call = {};
    bool sends = false;  ///< this rank has an input of the collective
  };
  /// Collectives by track whose outputs this rank alone receives, until its program waits for them.
  struct Received {
    int64_t queued_ns;
    size_t entry;
  };
  /// `ns` orders the outputs of this rank. `place`: "forward block.0". `of` names the output.
  /// Returns the index of its entry.
  size_t add(int64_t ns, const std::string& track, const std::string& place, const std::string& of,
             std::span<const std::byte> bytes);
  void note(const Trace::Call& call);
  void note_masters();
  static nlohmann::ordered_json merged(const std::vector<std::vector<Entry>>& ranks);

  const Engine& engine_;
  const std::string tensor_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool has_own_trace_ = false;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::map<std::string, int64_t> counts_, calls_;  // by track
  std::map<std::string, std::vector<Received>> received_;
  std::exception_ptr failure_;
  std::shared_ptr<const Trace::Watch> watch_;
};

}  // namespace zg::zero
