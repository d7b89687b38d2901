#include "zerograd/zero/parallel/whole_model.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/engine_state.h"
#include "zerograd/zero/parallel/model_parts.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

using nlohmann::json;

constexpr int64_t bucket_elements = int64_t{1} << 20;

/// The parameters of which this rank has the Copy::own (not a replica or mirror), as CBOR: name,
/// whole shape, slice, and whether they are updated.
std::string description_of(const ParameterStore& store) {
  json parameters = json::array();
  for (const auto& [name, parameter] : store.by_name()) {
    if (parameter->copy != Copy::own) continue;
    const Slice& slice = parameter->slice;
    const auto extents = parameter->whole.extents();
    parameters.push_back(
        {{"name", json::binary(std::vector<uint8_t>(name.begin(), name.end()))},
         {"shape", std::vector<int64_t>(extents.begin(), extents.end())},
         {"is_updated", is_updated(*parameter)},
         {"slice", {slice.outer, slice.extent, slice.begin, slice.rows, slice.inner}}});
  }
  const std::vector<uint8_t> bytes = json::to_cbor(parameters);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

WholeModel::WholeModel(const Engine& engine) : engine_(*engine.state_) {
  describe();
  check_tiles();
}

void WholeModel::describe() {
  EngineState& engine = engine_;
  const std::string own = description_of(engine.store);
  const Mesh* mesh = engine.mesh;
  if (!mesh) return add(own, 0, 0);
  // Exchange the length of each part's description, then broadcast each description from data rank
  // 0 of its part.
  const MeshShape& shape = mesh->shape;
  std::vector<int64_t> lengths(static_cast<size_t>(shape.pipeline * shape.tensor));
  const auto index_of = [&](int stage, int tensor_rank) {
    return static_cast<size_t>(stage * shape.tensor + tensor_rank);
  };
  lengths[index_of(mesh->stage, mesh->tensor_rank)] = std::ssize(own);
  lengths = sum_over_parts(lengths, *mesh, engine.device, "lengths of descriptions");
  for (int stage = 0; stage < shape.pipeline; ++stage)
    for (int tensor_rank = 0; tensor_rank < shape.tensor; ++tensor_rank) {
      const int64_t length = lengths[index_of(stage, tensor_rank)];
      std::vector<int64_t> words(static_cast<size_t>((length + 7) / 8));
      // On a meta device all lengths are zero, also this part's own, so nothing is copied.
      if (stage == mesh->stage && tensor_rank == mesh->tensor_rank && length > 0)
        std::memcpy(words.data(), own.data(), own.size());
      const PurposeScope purpose(engine.device, Purpose::comm);
      const Tensor text = Tensor::from(words, {std::ssize(words)}, engine.device);
      engine.world.wait(engine.world.broadcast(text, shape.rank_of(0, stage, tensor_rank),
                                               "description of a part"));
      words = text.to_host<int64_t>();
      std::string bytes(static_cast<size_t>(length), '\0');
      std::memcpy(bytes.data(), words.data(), bytes.size());
      add(bytes, stage, tensor_rank);
    }
}

void WholeModel::add(const std::string& text, int stage, int tensor_rank) {
  for (const json& parameter : json::from_cbor(text)) {
    const json::binary_t& bytes = parameter.at("name").get_binary();
    const std::vector<int64_t> shape = parameter.at("shape"), slice = parameter.at("slice");
    Entry& entry = entries_[std::string(bytes.begin(), bytes.end())];
    entry.shape = Shape(std::span<const int64_t>(shape));
    entry.is_updated = parameter.at("is_updated");
    entry.parts.push_back({stage,
                           tensor_rank,
                           {.outer = slice[0],
                            .extent = slice[1],
                            .begin = slice[2],
                            .rows = slice[3],
                            .inner = slice[4]}});
  }
}

void WholeModel::check_tiles() const {
  for (const auto& [name, entry] : entries_) {
    const Slice& first = entry.parts.front().slice;
    int64_t end = 0;
    bool consistent = true;
    for (const Part& part : entry.parts) {
      const Slice& slice = part.slice;
      consistent = consistent && slice.begin == end && slice.outer == first.outer &&
                   slice.extent == first.extent && slice.inner == first.inner;
      end = slice.begin + slice.rows;
    }
    if (!consistent || end != first.extent)
      raise<ConfigError>(
          "engine: the parts of parameter '{}' on {} ranks do not cover its shape {}; "
          "expected each row on exactly one rank, and the rows in the order of the "
          "tensor ranks; mark replicas and mirrors with Copy",
          name, entry.parts.size(), entry.shape);
  }
}

Tensor WholeModel::gather(const Parameter& parameter, const Engine::State& state) {
  if (state != state_) gathered_[0] = gathered_[1] = {};
  state_ = state;
  Storage& storage = engine_.storage_of(parameter);
  Gathered& cached = gathered_[engine_.is_persistent(parameter)];
  if (cached.storage != &storage || cached.is_updated != is_updated(parameter)) {
    cached = {};  // free the buffers before the next ones are allocated
    cached = {&storage, is_updated(parameter), engine_.whole_state(parameter, state)};
  }
  return cached.whole.flat(engine_.begin_of(parameter), parameter.shape.numel());
}

std::vector<float> WholeModel::elements(const std::string& name, const Part& part,
                                        const Tensor& own, int64_t begin, int64_t numel) const {
  std::vector<float> values;
  if (numel == 0) return values;
  values.reserve(static_cast<size_t>(numel));
  const Mesh* mesh = engine_.mesh;
  const int root = mesh ? mesh->shape.rank_of(0, part.stage, part.tensor_rank) : 0;
  if (engine_.world.rank() == root || !mesh)
    read_floats(own.flat(begin, numel), [&](std::span<const float> chunk) {
      values.insert(values.end(), chunk.begin(), chunk.end());
    });
  if (!mesh) return values;
  values.resize(static_cast<size_t>(numel));
  const PurposeScope purpose(engine_.device, Purpose::comm);
  const Tensor x = Tensor::from(values, {numel}, engine_.device);
  engine_.world.wait(engine_.world.broadcast(x, root, name));
  return x.to_host<float>();
}

void WholeModel::visit(const std::string& name, const Engine::State& state, const Visit& visit) {
  const Entry& entry = entries_.at(name);
  if (entry.shape.numel() == 0) return;
  const Mesh* mesh = engine_.mesh;
  Tensor own;  // this rank's slice
  for (const Part& part : entry.parts)
    if (!mesh || (part.stage == mesh->stage && part.tensor_rank == mesh->tensor_rank))
      own = gather(*engine_.store.find(name), state);
  const Slice& common = entry.parts.front().slice;
  const int64_t block = common.extent * common.inner;
  if (entry.parts.size() == 1 || block > bucket_elements) {
    // Visit at most bucket_elements at a time: the whole parameter if it has one part, otherwise
    // the parts of a block one after the other.
    for (int64_t i = 0; i < common.outer; ++i)
      for (const Part& part : entry.parts) {
        const int64_t run = part.slice.rows * part.slice.inner;
        const int64_t begin = entry.parts.size() == 1 ? 0 : i * run;
        const int64_t end = entry.parts.size() == 1 ? entry.shape.numel() : begin + run;
        for (int64_t at = begin; at < end; at += bucket_elements)
          visit(elements(name, part, own, at, std::min(bucket_elements, end - at)));
        if (entry.parts.size() == 1) return;
      }
    return;
  }
  const int64_t blocks_at_once = bucket_elements / block;
  for (int64_t i = 0; i < common.outer; i += blocks_at_once) {
    const int64_t blocks = std::min(blocks_at_once, common.outer - i);
    std::vector<float> values(static_cast<size_t>(blocks * block));
    for (const Part& part : entry.parts) {
      const int64_t run = part.slice.rows * part.slice.inner;
      const std::vector<float> from = elements(name, part, own, i * run, blocks * run);
      for (int64_t k = 0; k < blocks; ++k)
        std::copy_n(from.begin() + k * run, run,
                    values.begin() + k * block + part.slice.begin * part.slice.inner);
    }
    visit(values);
  }
}

}  // namespace zg::zero
