#include "zerograd/zero/parallel/model_parts.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

constexpr size_t name_bytes = 256;
// Number of 64-bit words that describe a part: 1 + the index of its first parameter with a gradient
// that is not finite (0: none), then the name of that parameter.
constexpr size_t summary_words = 1 + name_bytes / sizeof(int64_t);

std::string settings_text(const Config& config) {
  const UpdateOptions& update = config.update;
  const std::string groups = text_of(update.groups);
  return fmt::format(
      "settings: seed {}, stage {}, {} compute, {} states, {} loaded, {} accumulated, {}, betas {} "
      "{}, momentum {}, decay {}, clip {}{}{}",
      config.seed, config.stage, config.compute, config.optimizer, config.load, config.grad_accum,
      optimizer_name(update), update.beta1, update.beta2, update.momentum, update.weight_decay,
      config.clip_norm, groups.empty() ? "" : ", groups ", groups);
}

std::string parameters_text(const ParameterStore& store) {
  Checksum names;
  for (const auto& parameter : store.parameters()) {
    const std::string text = fmt::format("{} {} {} {} {}\n", parameter->unit->name, parameter->name,
                                         parameter->shape, parameter->trainable, parameter->decay);
    names.update(std::as_bytes(std::span(text)));
  }
  return fmt::format("parameters: {} with {} elements, checksum {} of names and shapes",
                     store.parameters().size(), store.numel(), names.hex().substr(0, 8));
}

}  // namespace

void check_ranks_agree(const ParameterStore& store, const Config& config, Communicator& data,
                       Communicator& world) {
  if (world.size() > 1) world.wait(world.barrier("the engine's " + settings_text(config)));
  if (data.size() > 1) data.wait(data.barrier("the engine's " + parameters_text(store)));
}

std::vector<int64_t> sum_over_parts(std::span<const int64_t> own, const Mesh& mesh,
                                    const Device& device, const std::string& name) {
  std::vector<int64_t> values(own.begin(), own.end());
  const PurposeScope purpose(device, Purpose::comm);
  const Tensor sum = Tensor::from(values, {std::ssize(values)}, device);
  if (mesh.shape.tensor > 1) mesh.tensor->wait(mesh.tensor->all_reduce(sum, name));
  if (mesh.shape.pipeline > 1) mesh.pipeline->wait(mesh.pipeline->all_reduce(sum, name));
  return sum.to_host<int64_t>();
}

MeshSums sum_over_parts(const PartSums& own, const Mesh& mesh, const Device& device) {
  const size_t parts = static_cast<size_t>(mesh.shape.pipeline * mesh.shape.tensor);
  const size_t limbs = own.limbs.size();  // words of the fixed-point sum of squares
  std::vector<int64_t> values = own.limbs;
  values.resize(limbs + parts * summary_words);
  if (own.index >= 0) {
    const int part = mesh.stage * mesh.shape.tensor + mesh.tensor_rank;
    int64_t* to = values.data() + limbs + static_cast<size_t>(part) * summary_words;
    to[0] = own.index + 1;
    std::memcpy(to + 1, own.name.data(), std::min(own.name.size(), name_bytes));
  }
  values = sum_over_parts(values, mesh, device, "gradient norm over stages and tensor ranks");
  MeshSums sums{.limbs = {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(limbs)}};
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t part = 0; part < parts; ++part) {
    const int64_t* from = values.data() + limbs + part * summary_words;
    const size_t tensor = static_cast<size_t>(mesh.shape.tensor);
    if (part % tensor == 0 && sums.non_finite)
      break;  // a lower stage has already reported a parameter
    if (from[0] == 0 || from[0] >= first) continue;
    first = from[0];
    char name[name_bytes + 1] = {};
    std::memcpy(name, from + 1, name_bytes);
    sums.non_finite = name;
  }
  return sums;
}

Mirrors::Mirrors(const ParameterStore& store, const Mesh* mesh, const Device& device)
    : device_(device) {
  const bool has_ends = mesh && mesh->ends;
  if (has_ends) {
    ends_ = mesh->ends.get();
    owner_ = mesh->is_first_stage();
  }
  for (const auto& [name, parameter] : store.by_name()) {
    const bool is_tied =
        parameter->trainable && (parameter->copy == Copy::mirror || parameter->has_mirror);
    if (!is_tied) continue;
    if (!has_ends || parameter->has_mirror != owner_)
      raise<ConfigError>(
          "engine: parameter '{}' {} (a copy for tied embeddings); expected at least two "
          "pipeline stages, with the parameter on the first and its mirror on the last",
          name, parameter->has_mirror ? "has a mirror" : "is a mirror");
    parameters_.emplace(name, parameter);
  }
  if (!has_ends) return;
  most_on_their_way_ = static_cast<size_t>(mesh->shape.pipeline - 1) * parameters_.size();
  check_ends(device);
}

// Without this check, stages that share different parameters would make different broadcasts in the
// first step, and wait for each other or fail.
void Mirrors::check_ends(const Device& device) const {
  std::vector<int64_t> hashes(2);
  int64_t& own = hashes[owner_ ? 0 : 1];
  std::string names;
  for (const auto& [name, parameter] : parameters_) {
    own = own * 31 + static_cast<int64_t>(hash_name(name.c_str()) % (1u << 30)) +
          parameter->shape.numel();
    own %= int64_t{1} << 50;
    names += fmt::format("{}{}' {}", names.empty() ? "'" : ", '", name, parameter->shape);
  }
  const PurposeScope purpose(device, Purpose::comm);
  const Tensor sum = Tensor::from(hashes, {2}, device);
  ends_->wait(ends_->all_reduce(sum, "names of mirrors"));
  if (device.type() == Device::Type::meta) return;
  hashes = sum.to_host<int64_t>();
  if (hashes[0] != hashes[1])
    throw ConfigError(
        "engine: the first and the last stage have different lists of tied parameters; expected "
        "the same on both; this stage has " +
        (names.empty() ? "none" : names));
}

Communicator::Ticket Mirrors::broadcast(const Tensor& x, bool from_owner,
                                        const Parameter& parameter, const char* what) const {
  return ends_->broadcast(x, from_owner ? 0 : 1, parameter.name + what);
}

void Mirrors::keep(const Parameter& parameter, Tensor gradient) {
  gradients_[&parameter] = std::move(gradient);
}

std::vector<Mirrors::Gradient> Mirrors::exchange() {
  std::vector<Gradient> sums;
  for (const auto& [name, parameter] : parameters_) {
    Tensor own = std::exchange(gradients_[parameter], Tensor());
    const PurposeScope purpose(device_, Purpose::comm);
    const NameScope name_of_gradient(device_, name + " (gradient of the mirror)");
    if (owner_) {
      const Tensor sum = Tensor::empty(parameter->shape, DType::f32, device_);
      ends_->wait(broadcast(sum, /*from_owner=*/false, *parameter, " (gradient of the mirror)"));
      if (own) kernels::axpby({.x = own, .y = sum, .a = 1.0, .b = 1.0}, device_.compute());
      sums.push_back({parameter, sum});
      continue;
    }
    while (sent_.size() >= most_on_their_way_) {
      ends_->wait(sent_.front().ticket);
      sent_.pop_front();
    }
    if (!own) own = Tensor::zeros(parameter->shape, DType::f32, device_);
    const auto ticket =
        broadcast(own, /*from_owner=*/false, *parameter, " (gradient of the mirror)");
    sent_.push_back({std::move(own), ticket});
  }
  return sums;
}

void Mirrors::finish() {
  for (; !sent_.empty(); sent_.pop_front()) ends_->wait(sent_.front().ticket);
}

void Mirrors::copy_value(const Parameter& parameter, const Tensor& whole) const {
  ends_->wait(broadcast(whole, /*from_owner=*/true, parameter, " (value of the mirror)"));
}

}  // namespace zg::zero
