#pragma once

#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/communicator.h"

// Collectives between the ranks of a Communicator as ops. They form conjugate pairs: the backward
// pass of one op does what the forward pass of the other does. Shoeybi et al. 2019,
// arXiv:1909.08053, section 3, and Korthikanti et al. 2022, arXiv:2205.05198, section 4.2. Each
// rank's tensor is one of three kinds: replicated (value and gradient are equal on every rank), a
// term of a sum over the ranks, or a slice along an axis. The loss is replicated. Every rank must
// call the same ops on equal shapes in the same order. Backward then runs their collectives in the
// same order on every rank; the ops of a checkpointed segment run again in backward. The
// Communicator must outlive the tape. Sums are computed in rising rank, in the accumulator dtype,
// and rounded once, so they have the same bits on every rank and in every run. With one rank each
// op returns its operand. Errors name the op.
namespace zg {

/// Returns x. Use it where a replicated tensor enters work that differs by rank, such as a
/// column-parallel linear: backward sums the gradients of the ranks. The operator f of the first
/// paper.
ZG_API Var copy_to_ranks(const Var& x, Communicator& ranks);
/// The same for several tensors with one collective. Gradients are collected and summed in the
/// accumulator dtype, like those of parameters. Use it for parameters that every rank has and uses
/// for different tokens. Constants are returned unchanged. Throws DTypeError unless all have one
/// dtype. `by_tree`: the ranks meet in the tree of tree_sum().
ZG_API std::vector<Var> copy_to_ranks(std::span<const Var> parameters, Communicator& ranks,
                                      bool by_tree = false);
/// The sum of every rank's x; the result is replicated, and backward passes the gradient on
/// unchanged. The operator g of the first paper. Give it a tensor for a sum without a tape.
ZG_API Var all_reduce(const Var& x, Communicator& ranks);
/// Concatenates every rank's x along an axis. Use it if the ranks then do different work with the
/// result: backward is reduce_scatter. If an op saves the result for backward, the tape keeps this
/// rank's x instead and gathers again: Korthikanti et al., section 4.2.2.
ZG_API Var all_gather(const Var& x, int axis, Communicator& ranks);
/// This rank's slice, along an axis, of the sum of every rank's x. Backward is all_gather. Throws
/// ShapeError unless the ranks divide the axis.
ZG_API Var reduce_scatter(const Var& x, int axis, Communicator& ranks);
/// This rank's slice of a replicated x along an axis. Backward gathers the slices. Throws
/// ShapeError unless the ranks divide the axis.
ZG_API Var part_of_rank(const Var& x, int axis, Communicator& ranks);
/// Concatenates every rank's x along an axis; the result is replicated. Backward takes this rank's
/// slice.
ZG_API Var join_parts(const Var& x, int axis, Communicator& ranks);
/// Sends rows of x along axis 0 to the ranks and returns those that the ranks send to this one, in
/// rank order: the first sent_rows[0] rows go to rank 0, and so on. received_rows[r] here must be
/// sent_rows of this rank on rank r. Without the two, each rank gets an equal part. Backward sends
/// the gradients back. Any dtype; gradients are for floating ones. Lepikhin et al. 2020,
/// arXiv:2006.16668, section 3.2: tokens to the ranks of their experts. Row counts that depend on
/// values must be known on the host, and no plan can know them: give experts a fixed capacity.
ZG_API Var all_to_all(const Var& x, Communicator& ranks, std::vector<int64_t> sent_rows = {},
                      std::vector<int64_t> received_rows = {});

/// How tree_sum() finishes a sum.
struct TreeSum {
  const char* name;  ///< of the collectives
  Communicator* ranks;
  Tensor bias = {};  ///< added to each row of the sum, or absent
  DType dtype;       ///< to which the sum is rounded, once
  int axis = -1;     ///< the result is this rank's slice of the sum along this axis; -1: the sum
};
/// The sum of every rank's x, in x's dtype, the accumulator dtype, without a tape: the ranks, a
/// power of two, are the leaves of a balanced binary tree. It goes on with the tree of a product's
/// ReductionGroups. Without an axis the result is replicated. May overwrite x.
ZG_API Tensor tree_sum(const Tensor& x, const TreeSum& to);
/// copy_to_ranks(), or with an axis all_gather(), whose backward collects the gradient in the
/// accumulator dtype, sums it by tree_sum() and rounds the sum.
ZG_API Var copy_to_ranks_by_tree(const Var& x, Communicator& ranks, int axis = -1);

/// Concatenates the parts of all ranks along an axis, without a tape.
ZG_API Tensor gathered(const char* name, const Tensor& slice, int axis, Communicator& ranks);

}  // namespace zg
