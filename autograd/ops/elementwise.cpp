#include <cmath>
#include <numbers>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

struct Operands {
  StridedOperand a, b;

  DType dtype() const { return a.source.dtype(); }
};

/// Returns the two operands after checking them.
Operands operands(const char* op, const Var& a, const Var& b) {
  Operands ab{rows_operand(op, "a", a), rows_operand(op, "b", b)};
  check_dtype(op, "a", ab.a.source,
              {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64});
  check_alike(op, "a", ab.a.source, "b", ab.b.source);
  return ab;
}

Tensor computed(const char* name, BinaryOp op, const Operands& ab) {
  const Shape shape = broadcast(ab.a.layout.shape, ab.b.layout.shape, name);
  const DType dtype = is_comparison(op) ? DType::boolean : ab.dtype();
  const Tensor y = Tensor::empty(shape, dtype, ab.a.source.device());
  kernels::binary({op, ab.a.source, ab.b.source, y, ab.a.strides_in(shape), ab.b.strides_in(shape)},
                  y.device().compute());
  return y;
}

struct BinaryNumbers {
  BinaryOp op;
  Layout a, b;
};

/// The gradients of a sum or difference: dy, summed to each operand's shape; negated for the right
/// side of a difference.
void backward_of_sum(const BinaryNumbers& n, const BackwardPass& pass) {
  const Tensor& dy = pass.gradient_of_output();
  accumulate_reduced(pass, 0, dy, n.a.shape);
  if (!pass.needs(1)) return;
  accumulate_reduced(pass, 1, n.op == BinaryOp::add ? dy : scaled(dy, -1.0, pass.stream()),
                     n.b.shape);
}

void backward_of_binary(const BinaryNumbers& n, const BackwardPass& pass) {
  const Tensor& dy = pass.gradient_of_output();
  const Tensor da = pass.needs(0) ? empty_like(dy) : Tensor();
  const Tensor db = pass.needs(1) ? empty_like(dy) : Tensor();
  const StridedOperand a{pass.saved(0), n.a}, b{pass.saved(1), n.b};
  kernels::binary_backward(
      {n.op, a.source, b.source, dy, da, db, a.strides_in(dy.shape()), b.strides_in(dy.shape())},
      pass.stream());
  accumulate_reduced(pass, 0, da, n.a.shape);
  accumulate_reduced(pass, 1, db, n.b.shape);
}

// The composed backward of ops with one operand has the gradients of formulas.inc, with operands
// that are Vars. A slope that is 0 everywhere gives an absent Var. The compiler chooses the order
// in which the ops of a formula are recorded.

Var gradient_of(const Var& slope) { return slope; }
Var gradient_of(float) { return {}; }

[[maybe_unused]] Var silu_gradient(const Var& v, const Var& dy) {
  const Var s = sigmoid(v);
  return dy * s * (1.0 + v * (1.0 - s));
}
Var hyperbolic_sine(const Var& x) { return sinh(x); }
Var hyperbolic_cosine(const Var& x) { return cosh(x); }

#define ZG_SELECT where
#define ZG_NUMBER(x) x
struct UnaryNumbers {
  UnaryOp op;
  double p = 0.0, q = 0.0;
};
/// `v`: the result if reads_result(op), else the operand.
Var composed_unary(const UnaryNumbers& n, const Var& v, const Var& dy) {
  const auto [op, p, q] = n;
  if (op == UnaryOp::softplus) return dy * sigmoid(v);  // without an infinite exp(-v)
  if (op == UnaryOp::elu) {                             // and without an infinite exp(v)
    const Var straight = greater(v, 0.0);
    return dy * where(straight, 1.0, p * exp(where(straight, 0.0, v)));
  }
  switch (op) {
#define ZG_UNARY(name, y, dx) \
  case UnaryOp::name:         \
    return gradient_of(dx);
#include "zerograd/kernels/elementwise/formulas.inc"
  }
  return {};
}

#undef ZG_SELECT
#undef ZG_NUMBER

/// floor(a / b) of the exact quotient, as a constant; a / b if b is 0.
Var whole_quotient(const Var& a, const Var& b) {
  const Var x = detach(a), y = detach(b), rest = remainder(x, y);
  const Var whole = where(equal(rest, y), -1.0, round((x - rest) / y));
  return where(equal(y, 0.0), x / y, whole);
}

void composed_binary(const BinaryNumbers& n, const ComposedPass& pass) {
  const Var a = with_layout("permute", pass.input(0, 0), n.a);
  const Var b = with_layout("permute", pass.input(1, 1), n.b), dy = pass.gradient_of_output();
  const auto accumulate = [&](const auto& da, const auto& db) {
    if (pass.needs(0)) pass.accumulate(0, da());
    if (pass.needs(1)) pass.accumulate(1, db());
  };
  // For maximum and minimum; half of it to each operand at a tie.
  const auto chosen = [&](const Var& is_other) {
    return where(is_other, 0.0, where(equal(a, b), dy * 0.5, dy));
  };
  switch (n.op) {
    case BinaryOp::multiply:
      return accumulate([&] { return dy * b; }, [&] { return dy * a; });
    case BinaryOp::divide:
      return accumulate([&] { return dy / b; }, [&] { return -dy * (a / b) / b; });
    case BinaryOp::power:
      // The exponent that is not chosen is 1: its derivatives at 0 are finite.
      return accumulate(
          [&] {
            const Var none = equal(b, 0.0);
            return where(none, 0.0, dy * b * pow(a, where(none, 1.0, b - 1.0)));
          },
          [&] {
            const Var none = logical_and(equal(a, 0.0), greater_equal(b, 0.0));
            return where(none, 0.0, dy * pow(a, b) * log(a));
          });
    case BinaryOp::maximum:
      return accumulate([&] { return chosen(less(a, b)); }, [&] { return chosen(greater(a, b)); });
    case BinaryOp::minimum:
      return accumulate([&] { return chosen(greater(a, b)); }, [&] { return chosen(less(a, b)); });
    case BinaryOp::logaddexp:
      return accumulate([&] { return dy * sigmoid(a - b); }, [&] { return dy * sigmoid(b - a); });
    case BinaryOp::remainder:
      return accumulate([&] { return dy; }, [&] { return -dy * whole_quotient(a, b); });
    default:
      return;
  }
}
constexpr auto composed_binary_pass = [](const BinaryNumbers& n, const ComposedPass& pass) {
  composed_binary(n, pass);
};

Var composed_gelu(const Var& narrow, Activation form) {
  const Var x = cast(narrow, accumulator(narrow.dtype()));
  if (form == Activation::gelu_erf) return 0.5 * x * (1.0 + erf(x * std::numbers::sqrt2 * 0.5));
  const double factor = 2.0 * std::sqrt(2.0 / std::numbers::pi);
  return x * sigmoid(factor * (x + 0.044715 * x * square(x)));
}

/// Each operand is read only for the gradient of the other one. So if one factor is a constant, the
/// other one is not saved.
Var product_of(const char* name, const Var& a, const Var& b) {
  const Operands ab = operands(name, a, b);
  return record(
      name, {a, b}, computed(name, BinaryOp::multiply, ab),
      {b.needs_gradient() ? ab.a.source : Tensor(), a.needs_gradient() ? ab.b.source : Tensor()},
      BinaryNumbers{BinaryOp::multiply, ab.a.layout, ab.b.layout},
      [](const BinaryNumbers& n, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        for (int side : {0, 1}) {
          if (!pass.needs(side)) continue;
          const Tensor gradient = empty_like(dy);
          const StridedOperand other{pass.saved(1 - side), side == 0 ? n.b : n.a};
          kernels::binary(
              {n.op, dy, other.source, gradient, std::nullopt, other.strides_in(dy.shape())},
              pass.stream());
          accumulate_reduced(pass, side, gradient, side == 0 ? n.a.shape : n.b.shape);
        }
      },
      composed_binary_pass);
}

Var sum_of(const char* name, BinaryOp op, const Var& a, const Var& b) {
  const Operands ab = operands(name, a, b);
  return record(
      name, {a, b}, computed(name, op, ab), {}, BinaryNumbers{op, ab.a.layout, ab.b.layout},
      [](const BinaryNumbers& n, const BackwardPass& pass) { backward_of_sum(n, pass); },
      [](const BinaryNumbers& n, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        if (pass.needs(1)) pass.accumulate(1, n.op == BinaryOp::add ? dy : neg(dy));
      });
}

Var recorded_binary(const char* name, BinaryOp op, const Var& a, const Var& b) {
  const Operands ab = operands(name, a, b);
  return record(
      name, {a, b}, computed(name, op, ab), {ab.a.source, ab.b.source},
      BinaryNumbers{op, ab.a.layout, ab.b.layout},
      [](const BinaryNumbers& n, const BackwardPass& pass) { backward_of_binary(n, pass); },
      composed_binary_pass);
}

// The factor stays a double. Rounded to a's dtype, for example 1 / sqrt(D) to bf16, it would have a
// relative error of up to 0.4%.
Var multiplied(const char* op, const char* operand_name, const Var& a, double b) {
  const Tensor values = operand(op, operand_name, a);
  if (!is_floating(values.dtype())) return product_of(op, a, number_like(op, b, values));
  return record(
      op, {a}, scaled(values, b, values.device().compute()), {}, b,
      [](double factor, const BackwardPass& pass) {
        pass.accumulate(0, scaled(pass.gradient_of_output(), factor, pass.stream()));
      },
      [](double factor, const Var& dy) { return mul(dy, factor); });
}

Var comparison(const char* name, BinaryOp op, const Var& a, const Var& b) {
  if (a && b && a.dtype() == DType::boolean && b.dtype() == DType::boolean) {
    const Var left = cast(a, DType::i32);
    return comparison(name, op, left, cast(b, DType::i32));
  }
  return without_gradient(name, {a, b}, computed(name, op, operands(name, a, b)));
}
Var number_beside(const char* op, const Var& a, double b) {
  return number_like(op, b, strided_operand(op, "a", a).source);
}

Var comparison(const char* name, BinaryOp op, const Var& a, double b) {
  return comparison(name, op, a, number_beside(name, a, b));
}

/// Saves the one tensor that the derivative is computed from: the result or the operand.
Var recorded_unary(const char* name, const UnaryNumbers& n, const Var& x) {
  const Tensor values = floating_operand(name, "x", x);
  const Tensor y = empty_like(values);
  kernels::unary({n.op, values, y, n.p, n.q}, y.device().compute());
  return record(
      name, {x}, y, {reads_result(n.op) ? y : values}, n,
      [](const UnaryNumbers& n, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const Tensor saved = pass.saved(0);
        const InputGradient dx(pass, 0, dy.dtype());
        const bool result = reads_result(n.op);
        kernels::unary_backward({.op = n.op,
                                 .x = result ? Tensor() : saved,
                                 .y = result ? saved : Tensor(),
                                 .dy = dy,
                                 .dx = dx.tensor(),
                                 .p = n.p,
                                 .q = n.q},
                                pass.stream());
        dx.accumulate();
      },
      [](const UnaryNumbers& n, const ComposedPass& pass) {
        const Var v = reads_result(n.op) ? pass.output(0, 0) : pass.input(0, 0);
        pass.accumulate(0, composed_unary(n, v, pass.gradient_of_output()));
      });
}

}  // namespace

Var add(const Var& a, const Var& b) { return sum_of("add", BinaryOp::add, a, b); }
Var sub(const Var& a, const Var& b) { return sum_of("sub", BinaryOp::subtract, a, b); }
Var mul(const Var& a, const Var& b) { return product_of("mul", a, b); }
Var div(const Var& a, const Var& b) { return recorded_binary("div", BinaryOp::divide, a, b); }
Var maximum(const Var& a, const Var& b) {
  return recorded_binary("maximum", BinaryOp::maximum, a, b);
}
Var minimum(const Var& a, const Var& b) {
  return recorded_binary("minimum", BinaryOp::minimum, a, b);
}

Var pow(const Var& a, const Var& b) {
  floating_operand("pow", "a", a);
  return recorded_binary("pow", BinaryOp::power, a, b);
}
Var logaddexp(const Var& a, const Var& b) {
  floating_operand("logaddexp", "a", a);
  return recorded_binary("logaddexp", BinaryOp::logaddexp, a, b);
}
Var remainder(const Var& a, const Var& b) {
  return recorded_binary("remainder", BinaryOp::remainder, a, b);
}

Var add(const Var& a, double b) { return add(a, number_beside("add", a, b)); }
Var pow(const Var& a, double b) { return pow(a, number_beside("pow", a, b)); }
Var maximum(const Var& a, double b) { return maximum(a, number_beside("maximum", a, b)); }
Var minimum(const Var& a, double b) { return minimum(a, number_beside("minimum", a, b)); }
Var logaddexp(const Var& a, double b) { return logaddexp(a, number_beside("logaddexp", a, b)); }
Var remainder(const Var& a, double b) { return remainder(a, number_beside("remainder", a, b)); }

Var sub(const Var& a, double b) {
  check_number("sub", b, number_operand("sub", "a", a));
  return named("sub", [&] { return add(a, -b); });
}
Var sub(double a, const Var& b) {
  check_number("sub", a, number_operand("sub", "b", b));
  return add(neg(b), a);
}

Var div(double a, const Var& b) {
  return div(number_like("div", a, strided_operand("div", "b", b).source), b);
}
Var div(const Var& a, double b) {
  const Tensor values = operand("div", "a", a);
  if (!is_floating(values.dtype())) return div(a, number_like("div", b, values));
  return multiplied("div", "a", a, 1.0 / b);
}

Var mul(const Var& a, double b) { return multiplied("mul", "a", a, b); }
Var neg(const Var& x) { return multiplied("neg", "x", x, -1.0); }

Var equal(const Var& a, const Var& b) { return comparison("equal", BinaryOp::equal, a, b); }
Var not_equal(const Var& a, const Var& b) {
  return comparison("not_equal", BinaryOp::not_equal, a, b);
}
Var less(const Var& a, const Var& b) { return comparison("less", BinaryOp::less, a, b); }
Var less_equal(const Var& a, const Var& b) {
  return comparison("less_equal", BinaryOp::less_equal, a, b);
}
Var greater(const Var& a, const Var& b) { return comparison("greater", BinaryOp::greater, a, b); }
Var greater_equal(const Var& a, const Var& b) {
  return comparison("greater_equal", BinaryOp::greater_equal, a, b);
}

Var equal(const Var& a, double b) { return comparison("equal", BinaryOp::equal, a, b); }
Var not_equal(const Var& a, double b) { return comparison("not_equal", BinaryOp::not_equal, a, b); }
Var less(const Var& a, double b) { return comparison("less", BinaryOp::less, a, b); }
Var less_equal(const Var& a, double b) {
  return comparison("less_equal", BinaryOp::less_equal, a, b);
}
Var greater(const Var& a, double b) { return comparison("greater", BinaryOp::greater, a, b); }
Var greater_equal(const Var& a, double b) {
  return comparison("greater_equal", BinaryOp::greater_equal, a, b);
}

Var where(const Var& condition, const Var& a, const Var& b) {
  const Tensor chosen = operand("where", "condition", condition);
  check_dtype("where", "condition", chosen, DType::boolean);
  const Operands ab{rows_operand("where", "a", a), rows_operand("where", "b", b)};
  check_alike("where", "a", ab.a.source, "b", ab.b.source);
  check_device("where", {&chosen, &ab.a.source});
  const Shape values = broadcast(ab.a.layout.shape, ab.b.layout.shape, "where");
  const Tensor y = empty_like(ab.a.source, broadcast(chosen.shape(), values, "where"));
  kernels::where(
      {chosen, ab.a.source, ab.b.source, y, ab.a.strides_in(y.shape()), ab.b.strides_in(y.shape())},
      y.device().compute());

  struct Shapes {
    Shape a, b;
  };
  return record(
      "where", {a, b, detach(condition)}, y, {chosen}, Shapes{ab.a.layout.shape, ab.b.layout.shape},
      [](const Shapes& shapes, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const Tensor zero = Tensor::full({}, 0.0, dy.dtype(), dy.device());
        for (int side : {0, 1}) {
          if (!pass.needs(side)) continue;
          const Tensor masked = empty_like(dy);
          kernels::where({pass.saved(0), side == 0 ? dy : zero, side == 0 ? zero : dy, masked},
                         pass.stream());
          accumulate_reduced(pass, side, masked, side == 0 ? shapes.a : shapes.b);
        }
      },
      [](const Shapes&, const ComposedPass& pass) {
        const Var chosen = pass.saved(0), dy = pass.gradient_of_output();
        if (pass.needs(0)) pass.accumulate(0, where(chosen, dy, 0.0));
        if (pass.needs(1)) pass.accumulate(1, where(chosen, 0.0, dy));
      });
}

Var where(const Var& condition, const Var& a, double b) {
  return where(condition, a, number_beside("where", a, b));
}
Var where(const Var& condition, double a, const Var& b) {
  return where(condition, number_like("where", a, strided_operand("where", "b", b).source), b);
}

Var exp(const Var& x) { return recorded_unary("exp", {UnaryOp::exp}, x); }
Var log(const Var& x) { return recorded_unary("log", {UnaryOp::log}, x); }
Var sqrt(const Var& x) { return recorded_unary("sqrt", {UnaryOp::sqrt}, x); }
Var tanh(const Var& x) { return recorded_unary("tanh", {UnaryOp::tanh}, x); }
Var sigmoid(const Var& x) { return recorded_unary("sigmoid", {UnaryOp::sigmoid}, x); }
Var relu(const Var& x) {
  return is_whole(x) ? clamp(x, 0.0, INFINITY) : recorded_unary("relu", {UnaryOp::relu}, x);
}
Var abs(const Var& x) {
  return is_whole(x) ? maximum(x, neg(x)) : recorded_unary("abs", {UnaryOp::abs}, x);
}
Var reciprocal(const Var& x) { return recorded_unary("reciprocal", {UnaryOp::reciprocal}, x); }
Var sin(const Var& x) { return recorded_unary("sin", {UnaryOp::sin}, x); }
Var cos(const Var& x) { return recorded_unary("cos", {UnaryOp::cos}, x); }
Var erf(const Var& x) { return recorded_unary("erf", {UnaryOp::erf}, x); }
Var log1p(const Var& x) { return recorded_unary("log1p", {UnaryOp::log1p}, x); }
Var silu(const Var& x) { return recorded_unary("silu", {UnaryOp::silu}, x); }
Var floor(const Var& x) { return recorded_unary("floor", {UnaryOp::floor}, x); }
Var ceil(const Var& x) { return recorded_unary("ceil", {UnaryOp::ceil}, x); }
Var round(const Var& x) { return recorded_unary("round", {UnaryOp::round}, x); }
Var sign(const Var& x) {
  return is_whole(x) ? clamp(x, -1.0, 1.0) : recorded_unary("sign", {UnaryOp::sign}, x);
}
Var square(const Var& x) {
  return is_whole(x) ? mul(x, x) : recorded_unary("square", {UnaryOp::square}, x);
}
Var expm1(const Var& x) { return recorded_unary("expm1", {UnaryOp::expm1}, x); }
Var log2(const Var& x) { return recorded_unary("log2", {UnaryOp::log2}, x); }
Var softplus(const Var& x) { return recorded_unary("softplus", {UnaryOp::softplus}, x); }
Var hard_swish(const Var& x) { return recorded_unary("hard_swish", {UnaryOp::hard_swish}, x); }
Var tan(const Var& x) { return recorded_unary("tan", {UnaryOp::tan}, x); }
Var asin(const Var& x) { return recorded_unary("asin", {UnaryOp::asin}, x); }
Var acos(const Var& x) { return recorded_unary("acos", {UnaryOp::acos}, x); }
Var atan(const Var& x) { return recorded_unary("atan", {UnaryOp::atan}, x); }
Var sinh(const Var& x) { return recorded_unary("sinh", {UnaryOp::sinh}, x); }
Var cosh(const Var& x) { return recorded_unary("cosh", {UnaryOp::cosh}, x); }
Var elu(const Var& x, double alpha) { return recorded_unary("elu", {UnaryOp::elu, alpha}, x); }
Var leaky_relu(const Var& x, double slope) {
  return recorded_unary("leaky_relu", {UnaryOp::leaky_relu, slope}, x);
}

Var clamp(const Var& x, double low, double high) {
  const Tensor values = number_operand("clamp", "x", x);
  if (!(low <= high))
    raise<ConfigError>("clamp: low is {:g}, high is {:g}; expected low <= high", low, high);
  // Limits are numbers of the dtype, so that the slope is 0 where a result is a limit.
  const auto rounded = [dtype = values.dtype()](double bound) {
    const auto narrow = static_cast<float>(bound);
    return dtype == DType::f64    ? bound
           : dtype == DType::bf16 ? static_cast<double>(bf16(narrow))
           : dtype == DType::f16  ? static_cast<double>(f16(narrow))
                                  : narrow;
  };
  if (!is_whole(x))
    return recorded_unary("clamp", {UnaryOp::clamp, rounded(low), rounded(high)}, x);
  Var y = x;
  const auto limit = [&](double bound, Var (*is_beyond)(const Var&, const Var&)) {
    if (std::isinf(bound)) return;
    const Var last = number_like("clamp", bound, values);
    y = where(is_beyond(y, last), last, y);
  };
  limit(low, less);
  limit(high, greater);
  return y;
}

Var gelu(const Var& x, Activation form) {
  const Tensor values = floating_operand("gelu", "x", x);
  if (form == Activation::none)
    throw ConfigError("gelu: the form is none; expected gelu_tanh or gelu_erf");
  const Tensor y = empty_like(values);
  kernels::gelu_forward({values, y, form}, y.device().compute());
  return record(
      "gelu", {x}, y, {values}, form,
      [](Activation kind, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        kernels::gelu_backward({dy, pass.saved(0), dx.tensor(), kind}, pass.stream());
        dx.accumulate();
      },
      [](Activation kind, const ComposedPass& pass) {
        pass.differentiate(composed_gelu(pass.input(0, 0), kind));
      });
}

Var cast(const Var& x, DType dtype) {
  const Tensor values = operand("cast", "x", x);
  if (values.dtype() == dtype) return x;
  struct None {};
  const Tensor y = Tensor::empty(values.shape(), dtype, values.device());
  kernels::cast({values, y}, y.device().compute());
  if (!is_floating(dtype)) return without_gradient("cast", {x}, y);
  return record(
      "cast", {x}, y, {}, None{},
      [](const None&, const BackwardPass& pass) {
        const InputGradient dx(pass, 0);
        kernels::cast({pass.gradient_of_output(), dx.tensor()}, pass.stream());
        dx.accumulate();
      },
      [](const None&, const Var& dy) { return dy; });
}

}  // namespace zg
