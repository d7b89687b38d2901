#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "zerograd/zero/engine.h"

namespace zg::zero {

/// The parameters of the whole model, whichever ranks have their parts, and their states on the way
/// past every rank, a few MiB at a time. All of it is collective. On a meta device the same memory
/// and exchanges without values, unless it is of a mesh's part: others' names do not get there.
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
    std::vector<Part> parts;  ///< by Slice::begin; they tile the whole
  };
  /// In byte order of names.
  const std::map<std::string, Entry>& entries() const { return entries_; }

  /// The elements of one of them, in the whole's order; on every rank.
  using Visit = std::function<void(std::span<const float>)>;
  void visit(const std::string& name, Engine::State state, const Visit& visit);

 private:
  void describe();
  struct Gathered {
    const struct Storage* storage = nullptr;
    bool is_updated = false;
    Tensor whole;
  };
  void add(const std::string& text, int stage, int tensor_rank);
  void check_tiles() const;
  Tensor gather(const Parameter& parameter, Engine::State state);
  /// Elements [begin, begin + numel) of a part, from whoever has it.
  std::vector<float> elements(const std::string& name, const Part& part, const Tensor& own,
                              int64_t begin, int64_t numel) const;

  struct EngineState& engine_;
  std::map<std::string, Entry> entries_;
  // Names in order stay mostly within a unit and among the small parameters: the array of either is
  // gathered once.
  Gathered gathered_[2];
  Engine::State state_ = Engine::State::master;
};

}  // namespace zg::zero
