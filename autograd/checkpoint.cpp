#include "zerograd/autograd/tape_state.h"
#include "zerograd/runtime/error.h"

namespace zg {
namespace {

struct Pause {
  explicit Pause(TapeState& tape) : tape(tape) { ++tape.paused; }
  ~Pause() { --tape.paused; }
  TapeState& tape;
};

}  // namespace

Var checkpoint(Tape& tape, std::span<const Var> inputs, Segment segment) {
  TapeState& state = *tape.state_;
  state.require_usable("checkpoint");
  if (!state.recording()) return segment(tape, inputs);
  std::vector<Var> constants;
  for (const Var& input : inputs) {
    if (input.tape_ && input.tape_ != tape.state_)
      throw TapeError("checkpoint: an input belongs to another tape; detach() it");
    constants.push_back(input ? Var(input.value()) : Var());
  }
  Tensor output;
  {
    Pause pause(state);
    output = segment(tape, constants).value();
  }
  TapeState::Entry& entry = state.push(TapeState::Kind::checkpoint, "checkpoint");
  entry.index = state.segments.size();
  for (size_t i = 0; i < inputs.size(); ++i) {
    state.input_slots.push_back(inputs[i].slot_);
    state.saved_tensors.push_back(constants[i] ? state.keep(constants[i].value())
                                               : TapeState::Saved{});
  }
  // The segment may read whatever is open around it.
  for (size_t index : state.open) state.uses[index].reads = true;
  state.segments.push_back(std::move(segment));
  const int slot = state.make_slot(output);
  state.output_slots.push_back(slot);
  return state.make_var(std::move(output), slot);
}

void TapeState::run_segment(const Entry& entry) {
  const Tensor gradient = std::move(output_gradients[0]);
  output_gradients.clear();
  Tape tape(std::make_shared<TapeState>(device, source, TapeMode::record, this));
  TapeState& state = *tape.state_;
  BackwardPass pass;
  pass.tape_ = this;
  pass.entry_ = entries.size() - 1;
  std::vector<Var> inputs;
  for (size_t i = 0; i < input_slots.size() - entry.inputs; ++i) {
    const Tensor value = pass.saved(static_cast<int>(i));
    const bool differentiable = pass.needs(static_cast<int>(i));
    inputs.push_back(!value ? Var() : differentiable ? tape.variable(value) : Var(value));
  }
  const Var output = segments.back()(tape, inputs);
  if (output.slot_ < 0) return;  // constant: nothing flows back
  state.accumulate(output.slot_, gradient, "checkpoint");
  state.walk();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].slot_ < 0) continue;
    Tensor& collected = state.slots[static_cast<size_t>(inputs[i].slot_)].gradient;
    if (collected) pass.accumulate(static_cast<int>(i), std::move(collected));
  }
}

}  // namespace zg
