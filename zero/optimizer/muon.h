#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zerograd/runtime/tensor.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer.h"
#include "zerograd/zero/optimizer/elementwise.h"

// Muon: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, as torch.optim.Muon of
// PyTorch 2.9. For a matrix p of `rows` x `columns` with gradient g, in each step:
//
//   m = momentum m + (1 - momentum) g
//   d = nesterov ? momentum m + (1 - momentum) g : m
//   p = (1 - rate weight_decay) p - rate factor orthogonal(d)
//
// PyTorch always iterates in bf16, this library in bf16 if the engine computes in bf16, else in
// f32.
//
// Only orthogonal() needs a whole matrix. Each rank computes d of its shard, in chunks where the
// states are streamed, and the shards of a unit are gathered. One rank makes a matrix orthogonal
// and sends it to all. Then each rank updates its shard. No sum is divided among ranks, and a
// product of matrices has the same bits for any number of threads. So the bits do not depend on the
// stage, the ranks or the offload. On an accelerator they are those of its matrix product.
//
// A step gathers and broadcasts every matrix once, in the masters' dtype. On each rank it takes
// memory for the directions of one unit, and on the owner for the workspace of orthogonalise(). A
// fused projection of queries, keys and values is one matrix.
namespace zg::zero {

struct FlatUnit;

/// Adam updates the parameters that are no hidden matrices, and groups with by_adam.
ZG_API std::shared_ptr<const Optimizer> muon(const MuonOptions& options = {},
                                             const AdamOptions& adam = {});

/// The factor by which the rate of a matrix is multiplied.
ZG_API double rate_factor(MuonRate rate, int64_t rows, int64_t columns);

/// matrix = factor * orthogonal(matrix): five steps of the Newton-Schulz iteration
///
///   X = matrix / max(norm, 1e-7);   X = a X + (b A + c A A) X   with A = X X^T
///
/// with a, b, c = 3.4445, -4.775, 2.0315. The iteration is in bf16 if `compute` is bf16, else in
/// f32. The singular values end between 0.7 and 1.2. A matrix with more rows than columns uses
/// A = X^T X, which gives the transposed result of its transpose. `norm` is the matrix's Frobenius
/// norm. On a CPU half of the symmetric A and A A are copies.
/// Workspace: two copies of the matrix, and two squares of its shorter side.
ZG_API void orthogonalise(const Tensor& matrix, double norm, double factor, Stream& stream,
                          DType compute = DType::f32);

/// By matrix of the flat array: the rank that makes it orthogonal. The largest matrix first, each
/// to the rank with the least work so far. Depends on sizes alone.
ZG_API std::vector<int> owners_of_matrices(const FlatUnit& flat);

}  // namespace zg::zero
