#pragma once

#include <optional>
#include <vector>

#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/models/data/permutation.h"
#include "zerograd/models/data/token_source.h"

namespace zg::models {

/// `count` sequences of a dataset from `first` on, laid end to end, in their order or a shuffled
/// one. Takes 8 bytes for 64 of them.
class DocumentStream final : public TokenSource {
 public:
  DocumentStream(const IndexedDataset& data, int64_t first, int64_t count,
                 std::optional<Permutation> order = {});

  int64_t size() const override { return starts_.back(); }
  void read(int64_t begin, std::span<int32_t> tokens) const override;

 private:
  int64_t sequence(int64_t place) const { return first_ + (order_ ? (*order_)(place) : place); }

  const IndexedDataset* data_;
  int64_t first_, count_;
  std::optional<Permutation> order_;
  std::vector<int64_t> starts_;  // the token that each 64th begins with, and the end
};

}  // namespace zg::models
