#include "zerograd/autograd/values.h"

#include <algorithm>
#include <cmath>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/tape_state.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

void check_value_dtype(const char* field, DType dtype) {
  if (is_floating(dtype)) return;
  raise<ConfigError>("values: {}: expected f64, f32, bf16 or f16, got {}", field, dtype);
}

[[noreturn]] void refuse_slice(const Parameter& parameter) {
  raise<Unsupported>("values: '{}' is a slice of {}; expected the whole parameter", parameter.name,
                     parameter.whole);
}

}  // namespace

Values::Values(const ParameterStore& store, const WeightSource& weights, const Device& device,
               const ValuesOptions& options)
    : store_(store),
      device_(device),
      compute_(options.compute),
      stored_(store.parameters().size()),
      gradients_(stored_.size()),
      trains_(stored_.size()),
      converted_(stored_.size()),
      uses_(store.units().size()) {
  check_value_dtype("compute", compute_);
  if (options.stored) check_value_dtype("stored", *options.stored);
  check_shapes(weights.path, weights.shapes, store);
  const PurposeScope purpose(device_, Purpose::parameter);
  for (const auto& parameter : store.parameters()) {
    if (!parameter->slice.is_whole() && !weights.read_part) refuse_slice(*parameter);
    const auto own = weights.dtypes.find(parameter->name);
    const DType there = own == weights.dtypes.end() ? compute_ : own->second;
    const DType dtype = options.stored.value_or(there);
    const bool narrow = parameter->shape.rank() > 1 && size_of(dtype) < size_of(compute_);
    trains_[static_cast<size_t>(parameter->index)] = parameter->trainable;
    const NameScope name(device_, parameter->name);
    stored_[static_cast<size_t>(parameter->index)] =
        Tensor::empty(parameter->shape, narrow ? dtype : compute_, device_);
  }
  for (const auto& parameter : store.parameters()) read(weights, *parameter);
}

void Values::read(const WeightSource& weights, const Parameter& parameter) {
  constexpr int64_t most = int64_t{1} << 21;  // 8 MiB, two blocks of a checkpoint
  const PurposeScope purpose(device_, Purpose::workspace);
  const bool planned = device_.type() == Device::Type::meta;
  const Tensor to = stored(parameter);
  const int64_t numel = to.numel();
  std::vector<float> whole;
  for (int64_t begin = 0; begin < numel; begin += most) {
    const int64_t count = std::min(most, numel - begin);
    std::optional<std::vector<float>> part;
    if (!planned && whole.empty() && !parameter.slice.is_whole())
      whole = weights.read_part(parameter.name, parameter.slice);
    if (!planned && whole.empty() && weights.read_range)
      part = weights.read_range(parameter.name, begin, count);
    if (!planned && !part && whole.empty()) whole = weights.read(parameter.name);
    std::span<const float> values;
    if (part)
      values = *part;
    else if (!planned)
      values = std::span(whole).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const Tensor wide = planned ? Tensor::empty({count}, DType::f32, device_)
                                : Tensor::from(values, {count}, device_);
    kernels::cast({wide, to.flat(begin, count)}, device_.compute());
  }
}

int64_t Values::bytes() const {
  int64_t sum = 0;
  for (const Tensor& tensor : stored_) sum += tensor.bytes();
  return sum;
}

size_t Values::index_of(const Parameter& parameter) const {
  const auto index = static_cast<size_t>(parameter.index);
  if (index < stored_.size() && has(*parameter.unit)) return index;
  raise<ConfigError>("values: '{}' is not a parameter of the store that the values were made with",
                     parameter.name);
}

bool Values::needs_open_unit(const Unit& unit) const {
  return std::ranges::any_of(unit.parameters, [&](const Parameter* parameter) {
    return stored(*parameter).dtype() != compute_;
  });
}

void Values::acquire(const Unit& unit, Stream&) { ++uses_.at(static_cast<size_t>(unit.index)); }

void Values::release(const Unit& unit, Stream&) noexcept {
  if (--uses_[static_cast<size_t>(unit.index)] > 0) return;
  for (const Parameter* parameter : unit.parameters)
    converted_[static_cast<size_t>(parameter->index)] = {};
}

Tensor Values::stored(const Parameter& parameter) const { return stored_[index_of(parameter)]; }

Tensor Values::value(const Parameter& parameter) const {
  const size_t index = index_of(parameter);
  const Tensor& own = stored_[index];
  if (own.dtype() == compute_) return own;
  if (uses_[static_cast<size_t>(parameter.unit->index)] == 0)
    raise<NotResident>(
        "values: '{}' is used outside its unit; expected unit '{}' to be open; try Tape::Use",
        parameter.name, parameter.unit->name);
  Tensor& converted = converted_[index];
  if (!converted) {
    const PurposeScope purpose(device_, Purpose::parameter);
    converted = Tensor::empty(own.shape(), compute_, device_);
    kernels::cast({own, converted}, device_.compute());
  }
  return converted;
}

void Values::set(const Parameter& parameter, const Tensor& values) {
  const size_t index = index_of(parameter);
  const Tensor& to = stored_[index];
  if (values.shape() != to.shape())
    raise<ShapeError>("values: '{}': expected values of {}, got {}", parameter.name, to.shape(),
                      values.shape());
  kernels::cast({values, to}, device_.compute());
  converted_[index] = {};
}

void Values::set_trainable(const Parameter& parameter, bool trainable) {
  trains_[index_of(parameter)] = trainable;
}

bool Values::trains(const Parameter& parameter) const { return trains_[index_of(parameter)]; }

void Values::clip_gradients(double limit) {
  if (!(limit > 0.0))
    raise<ConfigError>("values: clip_gradients: expected a limit above 0, got {}", limit);
  for (const Tensor& gradient : gradients_)
    if (gradient)
      for (const auto& [op, bound] :
           {std::pair(BinaryOp::minimum, limit), std::pair(BinaryOp::maximum, -limit)})
        kernels::binary({.op = op,
                         .a = gradient,
                         .b = Tensor::full({}, bound, gradient.dtype(), device_),
                         .y = gradient},
                        device_.compute());
}

Tensor Values::clip_gradient_norm(double limit) {
  if (!(limit > 0.0))
    raise<ConfigError>("values: clip_gradient_norm: expected a limit above 0, got {}", limit);
  const PurposeScope purpose(device_, Purpose::workspace);
  Var squares = Tensor::zeros({}, accumulator(compute_), device_);
  for (const Tensor& gradient : gradients_)
    if (gradient) squares = squares + sum(Var(gradient) * gradient);
  const Var norm = sqrt(squares);
  const Tensor factor = (limit / clamp(norm, limit, INFINITY)).value();
  for (const Tensor& gradient : gradients_)
    if (gradient)
      kernels::binary({BinaryOp::multiply, gradient, factor, gradient}, device_.compute());
  return norm.value();
}

Values Values::copy() const {
  Values copy = *this;
  const PurposeScope purpose(device_, Purpose::parameter);
  for (Tensor& tensor : copy.stored_) tensor = TapeState::own_copy(tensor, device_.compute());
  copy.clear_gradients();
  std::ranges::fill(copy.converted_, Tensor());
  std::ranges::fill(copy.uses_, 0);
  return copy;
}

void Values::average(const Values& other, double decay) {
  if (&other.store_ != &store_)
    throw ConfigError("values: average: expected values of the same store; try copy()");
  if (!(decay >= 0.0 && decay <= 1.0))
    raise<ConfigError>("values: average: expected a decay from 0 to 1, got {}", decay);
  for (size_t i = 0; i < stored_.size(); ++i)
    kernels::axpby({.x = other.stored_[i], .y = stored_[i], .a = 1.0 - decay, .b = decay},
                   device_.compute());
  std::ranges::fill(converted_, Tensor());
}

std::map<std::string, Tensor> Values::tensors() const {
  std::map<std::string, Tensor> named;
  for (const auto& parameter : store_.parameters())
    named.emplace(parameter->name, stored(*parameter));
  return named;
}

void Values::save(const std::string& path) const {
  for (const auto& parameter : store_.parameters())
    if (!parameter->slice.is_whole()) refuse_slice(*parameter);
  save_safetensors(path, tensors());
}

void Values::load(const std::string& path) {
  const NamedTensors tensors = load_safetensors(path, device_);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : tensors) shapes.emplace(name, tensor.shape());
  check_shapes(path, shapes, store_);
  for (const auto& parameter : store_.parameters()) set(*parameter, tensors.at(parameter->name));
}

Tensor Values::gradient(const Parameter& parameter) const {
  return gradients_[index_of(parameter)];
}

std::map<std::string, Tensor> Values::gradients() const {
  std::map<std::string, Tensor> named;
  for (const auto& parameter : store_.parameters())
    if (const Tensor& gradient = gradients_[static_cast<size_t>(parameter->index)])
      named.emplace(parameter->name, gradient);
  return named;
}

void Values::clear_gradients() { std::ranges::fill(gradients_, Tensor()); }

void Values::reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) {
  const PurposeScope purpose(device_, Purpose::gradient);
  for (size_t i = 0; i < gradients.size(); ++i) {
    Tensor gradient = std::exchange(gradients[i], Tensor());
    if (!gradient) continue;
    Tensor& sum = gradients_[index_of(*unit.parameters[i])];
    if (sum)
      TapeState::add_to(sum, gradient, stream);
    else
      sum = TapeState::own_copy(std::move(gradient), stream);
  }
}

WeightSource initial_weights(const ParameterStore& store, uint64_t seed) {
  WeightSource weights{.path = "initial values"};
  for (const auto& parameter : store.parameters())
    weights.shapes.emplace(parameter->name, parameter->whole);
  using Range = std::optional<std::vector<float>>;
  weights.read_range = [&store, seed](const std::string& name, int64_t begin, int64_t count) {
    const Init& init = store.find(name)->init;
    if (init.is_computed_whole()) return Range();
    std::vector<float> values(static_cast<size_t>(count));
    initialise(init, seed, name, begin, values);
    return Range(std::move(values));
  };
  weights.read_part = [&store, seed](const std::string& name, const Slice& slice) {
    std::vector<float> values(static_cast<size_t>(slice.numel()));
    initialise(store.find(name)->init, seed, name, slice, 0, values);
    return values;
  };
  weights.read = [&store, seed](const std::string& name) {
    std::vector<float> values(static_cast<size_t>(store.find(name)->whole.numel()));
    initialise(store.find(name)->init, seed, name, 0, values);
    return values;
  };
  return weights;
}

}  // namespace zg
