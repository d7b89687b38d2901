#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zerograd/zero/states/storage.h"

namespace zg::zero {

/// The whole gradients of a storage in one micro-batch, end to end in its compute dtype, as they
/// travel to the owners of their shards.
class GradientLeaf {
 public:
  GradientLeaf(const Storage& storage, const Device& device);

  /// The parameter's part, for its gradient to be made in when that is of the leaf's dtype: lent as
  /// long as a copy of the tensor lives. Absent while it is lent and once it is filled.
  Tensor lend(const Parameter& parameter);
  bool is_lent() const;
  /// A gradient has arrived, or absent: there is none. Rounded to the leaf's dtype, or where it
  /// should be already.
  void fill(const Parameter& parameter, const Tensor& gradient);
  bool is_empty() const { return missing_ == filled_.size(); }
  bool is_full() const { return missing_ == 0; }
  /// To be sent: what was not filled is zero, and nobody else has this memory.
  const Tensor& complete();

 private:
  size_t index_of(const Parameter& parameter) const;
  Tensor part(size_t index) const;
  /// To other memory, away from whom this is lent to.
  void move();

  Device device_;
  std::string name_;
  const FlatUnit* flat_unit_;
  Tensor flat_;
  std::vector<bool> filled_;                 // by piece
  std::vector<std::weak_ptr<Buffer>> lent_;  // by piece
  size_t missing_;
};

}  // namespace zg::zero
