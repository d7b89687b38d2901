#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "zerograd/zero/engine.h"

namespace zg::zero {

/// Reads the states of the whole model's parameters, which are distributed over the ranks: every
/// rank gets all elements, a few MiB at a time. All functions are collective. On a meta device they
/// count the same memory and communication without values. Meta devices cannot be used on a mesh,
/// because a meta device does not receive the names of other ranks' parameters.
class WholeModel {
 public:
  explicit WholeModel(const Engine& engine);

  struct Part {
    int stage, tensor_rank;
    Slice slice;
  };
  struct Entry {
    Shape shape;
    bool is_updated;
    std::vector<Part> parts;  ///< sorted by Slice::begin; together they are the whole parameter
  };
  /// In byte order of names.
  const std::map<std::string, Entry>& entries() const { return entries_; }

  /// Visits the elements of a parameter's state in order, on every rank.
  using Visit = std::function<void(std::span<const float>)>;
  void visit(const std::string& name, const Engine::State& state, const Visit& visit);

 private:
  void describe();
  struct Gathered {
    const struct Storage* storage = nullptr;
    bool is_updated = false;
    Tensor whole;
  };
  void add(const std::string& text, int stage, int tensor_rank);
  void check_tiles() const;
  Tensor gather(const Parameter& parameter, const Engine::State& state);
  /// Elements [begin, begin + numel) of a part, received from a rank that has it.
  std::vector<float> elements(const std::string& name, const Part& part, const Tensor& own,
                              int64_t begin, int64_t numel) const;

  struct EngineState& engine_;
  std::map<std::string, Entry> entries_;
  // In the order of names, parameters of one unit and small parameters (which are in another
  // storage) alternate. So the last gathered array of each kind is kept.
  Gathered gathered_[2];
  Engine::State state_ = Engine::State::master;
};

}  // namespace zg::zero
