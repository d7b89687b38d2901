#include "zerograd/zero/optimizer/optimizers.h"

#include <algorithm>
#include <cctype>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

void check_name(const std::string& name, const char* of) {
  const bool fits = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_';
  });
  if (!fits || name == "master" || name == "gradient")
    raise<ConfigError>(
        "optimizer: the name of {} is '{}'; expected letters, digits and '_', and neither 'master' "
        "nor 'gradient'",
        of, name);
}

void check_state(const Optimizer& optimizer, const Optimizer::State& state) {
  check_name(state.name, "a state");
  const DType dtype = state.dtype.value_or(DType::f32);
  const bool is_narrow = dtype == DType::bf16 && !state.shape;
  if (dtype != DType::f32 && !is_narrow)
    raise<ConfigError>("optimizer: the state {} of {} is {}; expected f32{}", state.name,
                       optimizer.name(), dtype, state.shape ? "" : " or bf16");
  if (state.shape && !optimizer.needs_whole())
    raise<ConfigError>(
        "optimizer: the state {} of {} has a shape of its own, and the optimizer takes ranges of "
        "elements; expected one that needs whole parameters",
        state.name, optimizer.name());
}

}  // namespace

Optimizers::Optimizers(const UpdateOptions& options)
    : options_(options), main_(optimizer_of(options)) {
  std::vector<std::shared_ptr<const Optimizer>> all;
  const auto append = [&](std::shared_ptr<const Optimizer> next) {
    while (next && !others_.contains(next.get())) {
      all.push_back(next);
      next = others_[next.get()] = next->others();
    }
  };
  append(main_);
  for (const ParameterGroup& group : options.groups) append(group.optimizer);
  const auto place = [](const std::shared_ptr<const Optimizer>& optimizer) {
    return dynamic_cast<const GatheredOptimizer*>(optimizer.get()) ? 0
           : optimizer->needs_whole()                              ? 1
                                                                   : 2;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  for (const auto& optimizer : all) {
    check_name(optimizer->name(), "an optimizer");
    if (options.stochastic_rounding && !optimizer->is_fused() && place(optimizer) > 0)
      raise<Unsupported>(
          "optimizer: update.stochastic_rounding is on, and {} does not write rounded values "
          "itself; expected it off, or an optimizer that is fused",
          optimizer->name());
    add(optimizer);
  }
  const auto owner = std::find_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.owns_parameters(); });
  if (owner != entries_.end() && entries_.front().gathered)
    raise<Unsupported>(
        "optimizer: {} gathers directions of whole parameters, and {} owns them; expected one of "
        "the two in a run",
        entries_.front().optimizer->name(), owner->optimizer->name());
}

void Optimizers::add(const std::shared_ptr<const Optimizer>& optimizer) {
  Entry entry{.optimizer = optimizer,
              .gathered = dynamic_cast<const GatheredOptimizer*>(optimizer.get()),
              .states = optimizer->states(),
              .arrays = {}};
  for (const std::string& stream : optimizer->streams()) check_name(stream, "a stream");
  for (const Optimizer::State& state : entry.states) {
    check_state(*optimizer, state);
    const bool shaped = state.shape != nullptr, everywhere = shaped && entry.gathered;
    const auto takes_name = [&](const auto& other) {
      return &other != &state && other.name == state.name;
    };
    if (std::any_of(entry.states.begin(), entry.states.end(), takes_name))
      raise<ConfigError>("optimizer: {} declares two states '{}'; expected names that differ",
                         optimizer->name(), state.name);
    for (const Array& array : arrays_)
      if (array.name == state.name && array.shaped != shaped && !everywhere && !array.everywhere)
        raise<ConfigError>(
            "optimizer: the state '{}' of {} and that of another optimizer differ: one has a shape "
            "of its own; expected another name, because checkpoints keep states by name",
            state.name, optimizer->name());
    const auto same = std::find_if(arrays_.begin(), arrays_.end(), [&](const Array& array) {
      return array.name == state.name && array.dtype == state.dtype && array.shaped == shaped &&
             array.everywhere == everywhere;
    });
    entry.arrays.push_back(static_cast<size_t>(same - arrays_.begin()));
    if (same == arrays_.end()) arrays_.push_back({state.name, state.dtype, shaped, everywhere});
  }
  entries_.push_back(std::move(entry));
}

size_t Optimizers::index_of(const Parameter& parameter) const {
  const ParameterGroup* group = group_of(options_, parameter.name);
  const Optimizer* optimizer = group && group->optimizer ? group->optimizer.get()
                               : group && group->by_adam ? others_.at(main_.get()).get()
                                                         : main_.get();
  // Optimizers may name each other.
  for (size_t i = 0; optimizer && !optimizer->updates(parameter); ++i)
    optimizer = i < others_.size() ? others_.at(optimizer).get() : nullptr;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].optimizer.get() == optimizer) return i;
  raise<Unsupported>(
      "optimizer: {} does not update '{}' {}; expected an optimizer for it in Optimizer::others(), "
      "or a parameter group",
      (group && group->optimizer ? *group->optimizer : *main_).name(), parameter.name,
      parameter.shape);
}

std::vector<std::string> Optimizers::element_states() const {
  std::vector<std::string> names;
  for (const Array& array : arrays_)
    if (!array.shaped) names.push_back(array.name);
  return names;
}

bool has_stream(const Optimizer& optimizer, const std::string& stream) {
  const std::vector<std::string> streams = optimizer.streams();
  return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

void check_parameters(const ParameterStore& store, const Optimizers& optimizers) {
  for (const auto& parameter : store.parameters()) {
    if (!is_updated(*parameter)) continue;
    const Optimizer& optimizer = *optimizers.of(*parameter).optimizer;
    if (optimizer.needs_whole() && !parameter->slice.is_whole())
      raise<Unsupported>(
          "engine: the optimizer is {}, and tensor ranks divide the parameter '{}' {}: this one "
          "has {}; expected whole parameters; try one tensor rank, or data and pipeline ranks",
          optimizer.name(), parameter->name, parameter->whole, parameter->shape);
  }
}

void GatheredOptimizer::update(const OptimizerStep&, std::span<const OptimizerRange>,
                               Stream&) const {
  raise<Unsupported>("optimizer: {} updates parameters only as a part of an engine", name());
}

const Tensor& OptimizerRange::operator[](std::string_view state) const {
  for (size_t i = 0; i < declared.size(); ++i)
    if (declared[i].name == state) return states[i];
  raise<ConfigError>("optimizer: no state '{}'; expected a name of Optimizer::states()", state);
}

Tensor OptimizerRange::scratch() const { return scratch(master.shape()); }

Tensor OptimizerRange::scratch(const Shape& shape) const {
  return Tensor::empty(shape, DType::f32, master.device(), master.buffer()->space());
}

}  // namespace zg::zero
