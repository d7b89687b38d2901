#pragma once

#include <memory>
#include <vector>

#include "zero/activations.h"
#include "zero/engine.h"
#include "zero/reducer.h"
#include "zero/residency.h"
#include "zero/storage.h"

namespace zg::zero {

/// What engine.cpp (steps) and engine_access.cpp (reading and writing parameters) share.
struct EngineState {
  EngineState(const ParameterStore& store, std::unique_ptr<Communicator> alone, Communicator* ranks,
              const Device& device, const Config& config);

  /// Throws ConfigError for a unit or parameter of another store.
  size_t index_of(const Unit& unit) const;
  Storage& storage_of(const Parameter& parameter);
  int64_t begin_of(const Parameter& parameter) const {
    return begins[static_cast<size_t>(parameter.index)];
  }
  /// ConfigError when the store grew after the engine was made: what was added has no place here.
  void check_store(const char* operation) const;
  bool is_persistent(const Parameter& parameter) const {
    return places[static_cast<size_t>(parameter.index)] == storages.size() - 1 && has_persistent;
  }
  bool on_meta() const { return device.type() == Device::Type::meta; }
  void clear_gradients();

  const ParameterStore& store;
  const Device device;
  const Config config;
  const std::unique_ptr<Communicator> alone;  // of an engine that was given no ranks
  Communicator& comm;
  std::vector<size_t> places;   // of each parameter: its storage
  std::vector<int64_t> begins;  // and its first element in the storage's flat array
  std::vector<int> users;       // of each unit: acquire minus release
  bool has_persistent = false;  // the last storage holds the small parameters of all units
  std::vector<Storage> storages;
  Residency residency;
  Reducer reducer;
  const std::unique_ptr<OffloadedActivations> activations;  // null: they stay on the device
  LossScaler scaler;
  class Snapshot* snapshot = nullptr;  // what reads the states, which wait to be overwritten
  int64_t micro_batches = 0, taken = 0, skipped = 0;
};

}  // namespace zg::zero
