#pragma once

#include "zerograd/autograd/tape.h"

// Checks of an op's operands before any work. Messages name the op and the operand.
namespace zg {

/// The operand's values; ShapeError when it is absent.
Tensor operand(const char* op, const char* name, const Var& x);
/// Also a DTypeError, which suggests a cast, unless they are floating.
Tensor floating_operand(const char* op, const char* name, const Var& x);
/// For what is never differentiated: DTypeError unless i32 or i64.
void check_index(const char* op, const char* name, const Tensor& index);
/// DTypeError, which suggests a cast, unless the dtypes are equal; DeviceError for two devices.
void check_alike(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                 const Tensor& b);
/// ShapeError unless the rank is at least `rank`.
void check_rank(const char* op, const char* name, const Tensor& x, int rank);
/// "op: subject [shape]; expected ..." as a ShapeError.
[[noreturn]] void refuse_shape(const char* op, const char* name, const Shape& got,
                               const std::string& expected);
/// An axis counted from the front; ShapeError naming the op when x has no such axis.
int axis_of(const char* op, const Shape& shape, int axis);

/// Uninitialised, with x's dtype and device and its shape or another.
Tensor empty_like(const Tensor& x);
Tensor empty_like(const Tensor& x, const Shape& shape);
/// A tensor's rows: its last axis, the others flattened.
Shape rows_of(const Shape& shape);

}  // namespace zg
