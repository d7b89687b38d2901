#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tools/options/options.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/engine.h"

namespace zg::tools {

/// The injected fault "flip": a bit of one element changes. States are those of this rank; of the
/// other kinds the bit is one of the output of a kernel or a collective in the step.
class FlippedBit {
 public:
  FlippedBit(const FaultInjection& injection, zero::Engine& engine)
      : injection_(injection), engine_(engine) {}
  ~FlippedBit() { end_step(); }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

  void begin_step();  ///< collective
  void end_step();
  void begin_save();  ///< collective
  void end_save();    ///< changes the bit back

 private:
  using Kind = FaultInjection::Kind;
  bool is_due(int64_t step) const;
  void flip_moment();
  void flip_state(const zero::Engine::State& state);
  void note(const Trace::Call& call);
  void report(const std::string& what);

  const FaultInjection& injection_;
  zero::Engine& engine_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int64_t step_ = 0;  // the one that runs, or ran before a save
  bool has_own_trace_ = false;
  std::atomic<bool> is_done_ = false;
  std::atomic<int64_t> seen_ = 0;  // outputs of the kind so far
  std::shared_ptr<const Trace::Watch> watch_;
  std::function<void()> flip_back_;  // after the save of a checkpoint
};

}  // namespace zg::tools
