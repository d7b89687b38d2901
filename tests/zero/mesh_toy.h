#pragma once

#include <string>
#include <vector>

#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/mesh.h"

// A model of eight units that a mesh partitions in every way, and micro-batches whose gradients
// equal those of one rank, element by element.
namespace zg::testing {

/// Unit i of the eight has a matrix cut by rows, a matrix cut by columns, three blocks of heads, a
/// gain that every tensor rank has, and a frozen table that is split over the tensor ranks. The
/// first and the last stage share a matrix that is cut by rows. Sums have four reduction groups.
struct MeshToy {
  static constexpr int units = 8;
  ParameterStore store;

  explicit MeshToy(const MeshShape& shape = {}, int stage = 0, int tensor_rank = 0) {
    const bool first = stage == 0, last = stage + 1 == shape.pipeline;
    if (first) add_tied(shape, tensor_rank, Copy::own);
    for (int i = units * stage / shape.pipeline; i < units * (stage + 1) / shape.pipeline; ++i)
      add_unit("unit." + std::to_string(i), shape.tensor, tensor_rank);
    if (last && !first) add_tied(shape, tensor_rank, Copy::mirror);
  }
  explicit MeshToy(const Mesh& mesh) : MeshToy(mesh.shape, mesh.stage, mesh.tensor_rank) {}

 private:
  void add_tied(const MeshShape& shape, int rank, Copy copy) {
    const int64_t rows = 4 / shape.tensor;
    store.add(
        store.unit("shared"), "tied", {rows, 33}, Init::normal(0.5f),
        {.decay = true,
         .whole = {4, 33},
         .slice = Slice{.extent = 4, .begin = rank * rows, .rows = rows, .inner = 33, .groups = 4},
         .copy = copy,
         .has_mirror = copy == Copy::own && shape.pipeline > 1});
  }
  void add_unit(const std::string& name, int ranks, int rank) {
    const Unit& unit = store.unit(name);
    const auto rows = [&](int64_t extent) { return extent / ranks; };
    const auto part = [&](int64_t outer, int64_t extent, int64_t inner) {
      return Slice{.outer = outer,
                   .extent = extent,
                   .begin = rank * rows(extent),
                   .rows = rows(extent),
                   .inner = inner,
                   .groups = 4};
    };
    store.add(unit, name + ".rows", {rows(8), 19}, Init::normal(0.5f),
              {.decay = true, .whole = {8, 19}, .slice = part(1, 8, 19)});
    store.add(unit, name + ".gain", {37}, Init::ones(),
              {.copy = rank == 0 ? Copy::own : Copy::replica});
    store.add(unit, name + ".columns", {5, rows(12)}, Init::normal(0.5f),
              {.decay = true, .whole = {5, 12}, .slice = part(5, 12, 1)});
    store.add(unit, name + ".heads", {3 * rows(4) * 7}, Init::normal(0.1f),
              {.whole = {3 * 4 * 7}, .slice = part(3, 4, 7)});
    store.add(unit, name + ".table", {rows(4), 3}, Init::normal(0.1f),
              {.trainable = false, .whole = {4, 3}, .slice = part(1, 4, 3)});
  }
};

/// This rank's slice of the whole parameter's floats.
inline std::vector<float> part_of(const std::vector<float>& whole, const Slice& slice) {
  std::vector<float> part;
  for (int64_t i = 0; i < slice.numel(); ++i)
    part.push_back(whole[static_cast<size_t>(slice.whole_index(i))]);
  return part;
}

/// A loss term whose gradient is the difference between a parameter's slice and this sample's
/// target.
inline Var mesh_distance(Tape& tape, const Var& loss, const Parameter& parameter, uint64_t sample) {
  const std::vector<double> value = tape.parameter(parameter).value().to_doubles();
  std::vector<float> difference =
      part_of(random_floats(parameter.whole.numel(),
                            sample * 1000 + hash_name(parameter.name.c_str()) % 1000),
              parameter.slice);
  for (size_t i = 0; i < value.size(); ++i)
    difference[i] = static_cast<float>(value[i] - difference[i]);
  return with_gradient(tape, loss, parameter, difference);
}

/// Runs one micro-batch on a rank of a mesh, or on one rank. The loss is equal on every rank.
inline double mesh_micro_batch(zero::Engine& engine, uint64_t sample) {
  Tape tape = engine.tape();
  Var loss;
  const auto use = [&](const Unit& unit, uint64_t target) {
    const Tape::Use open(tape, unit);
    for (const Parameter* parameter : unit.parameters)
      if (parameter->trainable) loss = mesh_distance(tape, loss, *parameter, target);
  };
  for (const auto& unit : engine.store().units())
    use(*unit, unit->parameters.front()->copy == Copy::mirror ? sample + 5000 : sample);
  // The last stage's use of the parameter that it shares with the first.
  const Parameter* tied = engine.store().find("tied");
  if (tied && tied->copy == Copy::own && !tied->has_mirror) use(*tied->unit, sample + 5000);
  engine.backward(tape, loss);
  return static_cast<double>(random_floats(1, sample)[0]);
}

}  // namespace zg::testing
