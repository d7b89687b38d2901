#include <unistd.h>

#include <algorithm>
#include <bit>

#include "tools/run/rank.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

bool FlippedBit::is_due(int64_t step) const {
  return injection_.fault == FaultInjection::Fault::flip &&
         std::ranges::find(injection_.steps, step) != injection_.steps.end();
}

void FlippedBit::report(const std::string& what) {
  is_done_ = true;
  print_line(stderr, "inject: flip on rank {} pid {} in step {}: {}", engine_.world().rank(),
             static_cast<int>(getpid()), step_, what);
}

// The element `at`, counted over the parameters, then over their moments, then over the elements.
void FlippedBit::flip_moment() {
  const auto& parameters = engine_.store().parameters();
  const auto at = static_cast<size_t>(injection_.at), count = parameters.size();
  const auto states = engine_.states(*parameters[at % count]);  // the first is the master
  if (states.size() < 2) return report("the optimizer has no moments of this parameter");
  flip_state(states[1 + at / count % (states.size() - 1)]);
}

// The element `at`, counted over the parameters that have the state on the rank.
void FlippedBit::flip_state(const zero::Engine::State& state) {
  const auto& parameters = engine_.store().parameters();
  const auto index = static_cast<size_t>(injection_.at) % parameters.size();
  const Parameter& parameter = *parameters[index];
  std::vector<float> values = engine_.read(parameter, state);
  const zero::Engine::Held held = engine_.held(parameter, state);
  if (engine_.world().rank() != injection_.rank) return;
  if (held.end <= held.begin) return report("the rank has nothing of " + parameter.name);
  const int64_t element =
      held.begin + injection_.at / std::ssize(parameters) % (held.end - held.begin);
  float& value = values[static_cast<size_t>(element)];
  const float before = value;
  const zero::Engine::Held range{element, element + 1};
  if (injection_.kind == Kind::checkpoint)
    flip_back_ = [this, &parameter, state, range, before] {
      engine_.write_held(parameter, state, range, {&before, 1});
    };
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(before) ^ 1u << injection_.bit % 32);
  engine_.write_held(parameter, state, range, {&value, 1});
  report(fmt::format("{} of {}, element {}: {} -> {}", state.name, parameter.name, element, before,
                     value));
}

void FlippedBit::note(const Trace::Call& call) {
  const Device& device = engine_.device();
  if (is_done_ || !(call.stream.device() == device)) return;
  const bool is_kernel = call.kind == Trace::Kind::kernel;
  if (is_kernel == (injection_.kind == Kind::message)) return;
  const char* const phase = injection_.kind == Kind::activation ? "forward" : "backward";
  if (is_kernel && (std::this_thread::get_id() != thread_ || device.memory().phase() != phase))
    return;
  for (const auto& [name, tensor] : call.outputs) {
    if (tensor.numel() == 0 || seen_++ != injection_.at) continue;
    const int64_t bit = injection_.bit % (8 * tensor.bytes());
    std::byte* const at = tensor.raw() + bit / 8;
    std::byte value{};
    call.stream.copy(&value, at, 1);
    call.stream.synchronize();
    value ^= std::byte{1} << bit % 8;
    call.stream.copy(at, &value, 1);
    call.stream.synchronize();
    return report(fmt::format("{} {}, element {} of {} {}", call.name, name,
                              bit / 8 / size_of(tensor.dtype()), tensor.dtype(), tensor.shape()));
  }
}

void FlippedBit::begin_step() {
  end_save();
  is_done_ = false;
  seen_ = 0;
  end_step();  // of a step that was dropped
  step_ = engine_.steps();
  if (!is_due(engine_.steps())) return;
  if (injection_.kind == Kind::parameter) return flip_state(zero::Engine::State::master);
  if (injection_.kind == Kind::moment) return flip_moment();
  const Device& device = engine_.device();
  if (injection_.kind == Kind::checkpoint || engine_.world().rank() != injection_.rank) return;
  has_own_trace_ = !device.trace();
  if (has_own_trace_) device.set_trace(std::make_shared<Trace>(), engine_.world().rank());
  watch_ = device.trace()->watch([this](const Trace::Call& call) { note(call); });
}

void FlippedBit::end_step() {
  if (watch_ && !is_done_)
    report(fmt::format("none, for the step has {} outputs of this kind", seen_.load()));
  watch_.reset();
  if (std::exchange(has_own_trace_, false)) engine_.device().set_trace(nullptr);
}

void FlippedBit::begin_save() {
  if (injection_.kind != Kind::checkpoint || !is_due(engine_.steps() - 1)) return;
  flip_state(zero::Engine::State::master);
}

void FlippedBit::end_save() {
  if (flip_back_) std::exchange(flip_back_, nullptr)();
}

}  // namespace zg::tools
