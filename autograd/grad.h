#pragma once

#include <functional>
#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"

// Gradients as values of a program, and derivatives of gradients.
namespace zg {

struct GradOptions {
  /// The gradients are computed by recorded ops: they have derivatives, and the tape goes on.
  /// Otherwise backward runs, which ends the tape.
  bool create_graph = false;
  /// One for each output, of its shape; none: 1 for each output, which has one element.
  std::vector<Var> cotangents = {};
};

/// The gradients of the sum of outputs * cotangents for some values of their tape: variables,
/// parameters, results of ops. Zeros for an input on which no output depends. Parameters' gradients
/// are returned as they are on this rank, and do not go to the ParameterSource. As in
/// torch.autograd.grad; a gradient penalty:
///
///     const Var x = tape.variable(mixed);
///     const Var slope = grad(sum(critic(x)), x, {.create_graph = true});
///     const Var norm = sqrt(sum(slope * slope, 1));
///     tape.backward(loss + 10.0 * mean(square(norm - 1.0)));
///
/// Without create_graph the gradients are those of Tape::backward(), constants, in the accumulator
/// dtype for parameters. With it they are computed by other ops than backward's, in the dtype of
/// the input: equal within rounding. A fused op between an input and an output that has no second
/// derivative, as attention(), throws Unsupported, which names ops that have one. TapeError if no
/// output needs a gradient, if an input needs none, or for values of two tapes.
ZG_API std::vector<Var> grad(std::span<const Var> outputs, std::span<const Var> inputs,
                             const GradOptions& options = {});
ZG_API Var grad(const Var& output, const Var& input, const GradOptions& options = {});

using FunctionOfVars = std::function<Var(std::span<const Var>)>;

/// f(inputs), and the products of a cotangent, of its shape, with the Jacobian matrices of the
/// inputs. Inputs that need no gradient become variables on the first input's tape. The products
/// have derivatives.
struct VectorJacobian {
  Var value;
  std::vector<Var> products;
};
ZG_API VectorJacobian vjp(const FunctionOfVars& f, std::span<const Var> inputs,
                          const Var& cotangent);

/// f(inputs) and its derivative along the tangents, one for each input and of its shape: the
/// gradient of a vjp(), which is linear in its cotangent. So the ops of f need second derivatives.
/// The product has derivatives.
struct JacobianVector {
  Var value, product;
};
ZG_API JacobianVector jvp(const FunctionOfVars& f, std::span<const Var> inputs,
                          std::span<const Tensor> tangents);

/// The products of the loss's Hessian matrix with vectors, one for each input and of its shape.
/// Ends the tape.
ZG_API std::vector<Var> hvp(const Var& loss, std::span<const Var> inputs,
                            std::span<const Tensor> vectors);

}  // namespace zg
