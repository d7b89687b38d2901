#include "zerograd/autograd/parameter.h"

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

void check_slice(const std::string& name, const Shape& shape, const Shape& whole,
                 const Slice& slice) {
  const bool inside = slice.begin >= 0 && slice.rows >= 0 && slice.outer >= 0 && slice.inner >= 0 &&
                      slice.begin + slice.rows <= slice.extent;
  if (inside && slice.numel() == shape.numel() && slice.whole_numel() == whole.numel()) return;
  raise<ShapeError>(
      "add: parameter '{}' {} does not fit its slice of {}: {} x rows {} to {} of {} x {}; "
      "expected the same number of elements, inside it",
      name, shape, whole, slice.outer, slice.begin, slice.begin + slice.rows, slice.extent,
      slice.inner);
}

}  // namespace

const Unit& ParameterStore::unit(const std::string& name) {
  if (!unit_names_.insert(name).second)
    raise<ConfigError>("unit: the name '{}' is taken; expected a new one", name);
  units_.emplace_back(
      new Unit{.name = name, .index = static_cast<int>(units_.size()), .parameters = {}});
  return *units_.back();
}

const Parameter& ParameterStore::add(const Unit& unit, const std::string& name, const Shape& shape,
                                     Init init, Options options) {
  if (!has(unit))
    raise<ConfigError>("add: unit '{}' of parameter '{}' belongs to another store", unit.name,
                       name);
  if (find(name))
    raise<ConfigError>("add: the parameter name '{}' is taken; expected a new one", name);
  const int64_t numel = shape.numel();
  const Slice slice = options.slice.value_or(Slice{.extent = numel, .rows = numel});
  const Shape& whole = options.slice ? options.whole : shape;
  check_slice(name, shape, whole, slice);
  if (options.trainable && !options.saved)
    raise<ConfigError>(
        "add: parameter '{}' is trainable and not saved; expected one of both: a checkpoint has "
        "every value that changes",
        name);
  if (options.hidden_matrix && shape.rank() != 2)
    raise<ShapeError>("add: parameter '{}' {} is a hidden matrix; expected rank 2", name, shape);
  parameters_.emplace_back(new Parameter{.name = name,
                                         .shape = shape,
                                         .init = init.of(name, whole),
                                         .decay = options.decay,
                                         .trainable = options.trainable,
                                         .saved = options.saved,
                                         .hidden_matrix = options.hidden_matrix,
                                         .unit = &unit,
                                         .index = static_cast<int>(parameters_.size()),
                                         .whole = whole,
                                         .slice = slice,
                                         .copy = options.copy,
                                         .has_mirror = options.has_mirror});
  const Parameter* parameter = parameters_.back().get();
  units_[static_cast<size_t>(unit.index)]->parameters.push_back(parameter);
  by_name_.emplace(name, parameter);
  return *parameter;
}

const Parameter& ParameterStore::add(const Unit& unit, const std::string& name, const Shape& shape,
                                     Init init) {
  return add(unit, name, shape, init, Options());
}

const Parameter* ParameterStore::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

int64_t ParameterStore::numel() const {
  int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter->shape.numel();
  return sum;
}

namespace {

/// Up to three tensor names of the file, for an error message; names of tensors with the wanted
/// shape come first.
std::string suggestions(const std::map<std::string, Shape>& there, const Shape& wanted,
                        const ParameterStore& store) {
  std::string text;
  int count = 0;
  for (bool same_shape : {true, false})
    for (const auto& [name, shape] : there)
      if (count < 3 && !store.find(name) && (shape == wanted) == same_shape)
        text += fmt::format("{}{}' {}", count++ ? ", '" : "'", name, shape);
  return text.empty() ? "nothing else" : text;
}

}  // namespace

void check_shapes(const std::string& path, const std::map<std::string, Shape>& there,
                  const ParameterStore& store, const std::function<bool(const Parameter&)>& only) {
  for (const auto& parameter : store.parameters()) {
    if (only && !only(*parameter)) continue;
    const auto found = there.find(parameter->name);
    if (found == there.end())
      raise<FileError>("load: {}: has no '{}' {}; of {} tensors the model has no use for {}", path,
                       parameter->name, parameter->whole, there.size(),
                       suggestions(there, parameter->whole, store));
    if (found->second != parameter->whole)
      raise<FileError>("load: {}: '{}' has shape {}; expected {}", path, parameter->name,
                       found->second, parameter->whole);
  }
}

}  // namespace zg
