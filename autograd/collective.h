#pragma once

#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/communicator.h"

// Collectives between the ranks of a Communicator as ops, in conjugate pairs: what one does forward
// the other does backward. Shoeybi et al. 2019, arXiv:1909.08053, section 3, and Korthikanti et al.
// 2022, arXiv:2205.05198, section 4.2. A tensor is either replicated (every rank has the same, and
// the same gradient of it), or a rank's term of a sum, or a rank's part along an axis; the loss is
// replicated.
//
// Every rank calls the same ops on equal shapes in the same order; so does backward, which repeats
// those of a checkpointed segment. The Communicator outlives the tape. Sums are made in rising
// rank, in the accumulator dtype, and rounded once: run to run, and on every rank, they are the
// same bits. With one rank each op is its operand. Errors name the op.
namespace zg {

/// Replicated x to work that differs by rank, such as a column-parallel linear: the gradients of
/// the ranks are summed. The paper's f.
ZG_API Var copy_to_ranks(const Var& x, Communicator& ranks);
/// The same for several at once, with one sum for all. Gradients are collected and summed in the
/// accumulator dtype, as those of parameters are: for parameters that are read by ranks which each
/// have other tokens. Constants stay as they are; one dtype (DTypeError).
ZG_API std::vector<Var> copy_to_ranks(std::span<const Var> parameters, Communicator& ranks);
/// The sum of every rank's x, replicated. The paper's g.
ZG_API Var all_reduce(const Var& x, Communicator& ranks);
/// Every rank's x side by side along an axis, for work that differs by rank: backward is
/// reduce_scatter. Where an op saves the result for backward, x is kept in its stead and gathered
/// again: Korthikanti et al., section 4.2.2.
ZG_API Var all_gather(const Var& x, int axis, Communicator& ranks);
/// This rank's part, along an axis, of the sum of every rank's x: backward is all_gather.
/// ShapeError unless the ranks divide the axis.
ZG_API Var reduce_scatter(const Var& x, int axis, Communicator& ranks);
/// This rank's part of replicated x along an axis: backward gathers the parts. ShapeError unless
/// the ranks divide the axis.
ZG_API Var part_of_rank(const Var& x, int axis, Communicator& ranks);
/// Every rank's x side by side along an axis, replicated: backward takes this rank's part.
ZG_API Var join_parts(const Var& x, int axis, Communicator& ranks);

/// The parts of ranks side by side along an axis, recorded nowhere.
ZG_API Tensor gathered(const char* name, const Tensor& part, int axis, Communicator& ranks);

}  // namespace zg
