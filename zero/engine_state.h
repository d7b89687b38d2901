#pragma once

#include <memory>
#include <span>
#include <vector>

#include "zerograd/zero/engine.h"
#include "zerograd/zero/optimizer/speculation.h"
#include "zerograd/zero/optimizer/update.h"
#include "zerograd/zero/parallel/model_parts.h"
#include "zerograd/zero/states/reducer.h"
#include "zerograd/zero/states/residency.h"
#include "zerograd/zero/states/storage.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {

/// State shared by engine_state.cpp (steps) and engine_access.cpp (reading and writing parameters).
struct EngineState {
  /// One rank alone, a data axis or a mesh. Exactly one of the three is not null.
  struct Ranks {
    std::unique_ptr<Communicator> alone;
    Communicator* data = nullptr;
    const Mesh* mesh = nullptr;
  };
  EngineState(const ParameterStore& store, Ranks ranks, const Device& device, const Config& config);

  /// The index of a unit or parameter in the store. Throws ConfigError if it belongs to another
  /// store.
  size_t index_of(const Unit& unit) const;
  Storage& storage_of(const Parameter& parameter);
  int64_t begin_of(const Parameter& parameter) const {
    return begins[static_cast<size_t>(parameter.index)];
  }
  /// Throws ConfigError if parameters were added to the store after the engine was made: the engine
  /// has no storage for them.
  void check_store(const char* operation) const;
  bool is_persistent(const Parameter& parameter) const {
    return places[static_cast<size_t>(parameter.index)] == storages.size() - 1 && has_persistent;
  }
  bool on_meta() const { return device.type() == Device::Type::meta; }
  void clear_gradients();
  /// Reduces the gradients of one micro-batch, for parameters of any units.
  void reduce(std::span<const Parameter* const> parameters, std::span<Tensor> gradients);
  void begin_backward();
  void advance_speculation();
  void finish_micro_batch();
  /// The sums of this step's gradients, before an update. Throws ConfigError without micro-batches.
  GradientSums begin_update(const char* operation);
  /// Counts a step by its gradients, adapts the loss scale, and fills the result.
  void note_gradients(const GradientSummary& gradients, const Clipping& clipping,
                      StepResult& result);
  void refresh_mirrors();
  /// Gathers the whole flat array of one state, which has no shape of its own, in the storage of
  /// this parameter: of the updated parameters, or of the others. Collective on the data axis.
  Tensor whole_state(const Parameter& parameter, const Engine::State& state);
  /// The whole state of one parameter, on every data rank; may be the memory of the state itself.
  Tensor whole_of(const Engine& engine, const Parameter& parameter, const Engine::State& state);

  const ParameterStore& store;
  const Device device;
  /// Where ranks add a few numbers that the host has: a CPU device, so that no rank waits for an
  /// accelerator.
  const Device host;
  const Config config;
  const Optimizers optimizers;
  const Ranks ranks;
  Communicator& comm;           // the data axis
  Communicator& world;          // the same, or all ranks of the mesh
  const Mesh* const mesh;       // null where every rank has the whole model
  std::vector<size_t> places;   // by parameter: index of its storage
  std::vector<int64_t> begins;  // by parameter: its first element in the storage's flat array
  std::vector<int> users;       // by unit: acquire() minus release()
  bool has_persistent = false;  // the last storage holds the small parameters of all units
  std::vector<Storage> storages;
  Residency residency;
  Reducer reducer;
  Mirrors mirrors;
  const std::unique_ptr<OffloadedActivations> activations;  // null: they stay on the device
  LossScaler scaler;
  std::unique_ptr<Speculation> speculation;  // null: off
  StateReader* snapshot = nullptr;           // a step waits for its reads; null: none
  StepObserver* observer = nullptr;
  int64_t micro_batches = 0, taken = 0, skipped = 0;
  int64_t expected = 0;      // micro-batches of this step, by expect_step(); 0: not known
  bool in_backward = false;  // Engine::backward, which applies the loss scale
};

}  // namespace zg::zero
