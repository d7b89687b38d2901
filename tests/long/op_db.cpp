// Ops on samples of PyTorch's op_db, for tests/long/op-db. Reads one JSON object a line from
// standard input: the op's name in `calls`, its tensors and arguments, and the gradients of its
// results. Prints a line for each: the results and the gradients of the tensors, or the error, with
// "refused" if it is a zg::Error.
// Floats are written as the bits of doubles.
#include <bit>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"

using namespace zg;

namespace {

using json = nlohmann::json;
using In = std::vector<Var>;
using Call = std::function<std::vector<Var>(const In&, const json&)>;

/// f of an array as a list in braces.
template <class T, class F>
auto with_list(const json& a, const F& f) {
  const auto v = a.is_number() ? std::vector<T>{a.get<T>()} : a.get<std::vector<T>>();
  using List = std::initializer_list<T>;
  switch (v.size()) {
    case 0:
      return f(List{});
    case 1:
      return f(List{v[0]});
    case 2:
      return f(List{v[0], v[1]});
    case 3:
      return f(List{v[0], v[1], v[2]});
    case 4:
      return f(List{v[0], v[1], v[2], v[3]});
    case 5:
      return f(List{v[0], v[1], v[2], v[3], v[4]});
    default:
      return f(List{v.at(0), v.at(1), v.at(2), v.at(3), v.at(4), v.at(5)});
  }
}
Axes axes_of(const json& a) {
  return with_list<int>(a, [](std::initializer_list<int> axes) { return Axes(axes); });
}

Shape shape_of(const json& a) {
  const auto extents = a.get<std::vector<int64_t>>();
  return Shape(std::span(extents));
}

/// The number of rows and that of columns, or one for both.
Pair2d pair(const json& a) {
  return a.is_number() ? Pair2d(a.get<int64_t>()) : Pair2d(a.at(0).get<int64_t>(), a.back());
}
Var third(const In& in) { return in.size() > 2 ? in[2] : Var(); }

Reduction reduction(const json& a) { return Reduction(a.get<int>()); }
Var negate(const Var& x) { return neg(x); }
Var clamp(const Var& x) { return x; }  // never called, see the rows
In picked(const PickedElements& x) { return {x.values, Var(x.indices)}; }
Var slice_scatter(const Var& x, const Var& source, const json& a) {
  std::vector<AxisRange> ranges(static_cast<size_t>(x.shape().rank()));
  AxisRange& range = ranges[static_cast<size_t>(x.shape().axis(a[0]))];
  if (!a[1].is_null()) range.begin = a[1];
  if (!a[2].is_null()) range.end = a[2];
  range.step = a[3];
  return slice_scatter(x, source, ranges);
}

const std::map<std::string, Call>& calls() {
  static const std::map<std::string, Call> rows = {
#define ZG_ROW(name, ...) \
  {#name, [](const In& in, [[maybe_unused]] const json& a) -> In { return __VA_ARGS__; }},
#define ZG_UNARY(name, ...) ZG_ROW(name, (void(a), In{name(in[0])}))
#define ZG_PAIR(name) ZG_ROW(name, (void(a), In{name(in[0], in[1])}))
#define ZG_NUMBER(name) \
  ZG_ROW(name, {in.size() > 1 ? name(in[0], in[1]) : name(in[0], double(a[0]))})
#define ZG_WITH(name, ...) ZG_ROW(name, {name(in[0], __VA_ARGS__)})
#define ZG_REDUCE(name) ZG_WITH(name, axes_of(a[0]), bool(a[1]))
      // clang-format off
      ZG_UNARY(exp2) ZG_UNARY(rsqrt) ZG_UNARY(logsigmoid) ZG_UNARY(logical_not) ZG_UNARY(isnan)
      ZG_UNARY(isfinite) ZG_NUMBER(add) ZG_NUMBER(sub) ZG_NUMBER(mul) ZG_NUMBER(div) ZG_NUMBER(pow)
      ZG_NUMBER(remainder) ZG_NUMBER(equal) ZG_NUMBER(not_equal) ZG_NUMBER(less) ZG_NUMBER(less_equal)
      ZG_NUMBER(greater) ZG_NUMBER(greater_equal) ZG_PAIR(maximum) ZG_PAIR(minimum) ZG_PAIR(logaddexp)
      ZG_PAIR(logical_and) ZG_PAIR(logical_or) ZG_PAIR(matmul) ZG_PAIR(outer) ZG_REDUCE(sum)
      ZG_REDUCE(mean) ZG_REDUCE(max) ZG_REDUCE(min) ZG_REDUCE(logsumexp) ZG_REDUCE(prod) ZG_REDUCE(any)
      ZG_REDUCE(all)
      ZG_ROW(var, {zg::var(in[0], axes_of(a[0]), a[2], a[1])})
      ZG_ROW(std, {zg::std(in[0], axes_of(a[0]), a[2], a[1])})
      ZG_WITH(elu, a[0])
      ZG_WITH(leaky_relu, a[0])
      ZG_WITH(gelu, a[0] == "tanh" ? Activation::gelu_tanh : Activation::gelu_erf)
      ZG_WITH(clamp, a[0], a[1])
      ZG_WITH(where, in[1], in[2])
      ZG_WITH(masked_fill, in[1], a[0])
      ZG_WITH(argmax, a[0], a[1])
      ZG_WITH(argmin, a[0], a[1])
      ZG_WITH(softmax, a[0])
      ZG_WITH(log_softmax, a[0])
      ZG_WITH(cumsum, a[0])
      ZG_WITH(cumprod, a[0])
      ZG_WITH(logcumsumexp, a[0])
      ZG_WITH(flip, axes_of(a[0]))
      ZG_WITH(roll, a[0], a[1])
      ZG_WITH(diag, a[0])
      ZG_WITH(index_select, a[0], in[1].value())
      ZG_WITH(take, (void(a), in[1].value()))
      ZG_ROW(einsum, {einsum(a[0], in)})
      ZG_WITH(tensordot, in[1], axes_of(a[0]), axes_of(a[1]))
      ZG_PAIR(dot)
      ZG_WITH(norm, a[0].is_null() ? INFINITY : a[0].get<double>(), axes_of(a[1]), bool(a[2]))
      ZG_ROW(meshgrid, (void(a), meshgrid(in)))
      ZG_ROW(full_like, {Var(full_like(in[0].value(), a[0]))})
      ZG_ROW(permute, {with_list<int>(a[0], [&](auto axes) { return permute(in[0], axes); })})
      ZG_ROW(repeat, {with_list<int64_t>(a[0], [&](auto counts) { return repeat(in[0], counts); })})
      ZG_ROW(reshape, {with_list<int64_t>(a[0], [&](auto extents) { return reshape(in[0], extents); })})
      ZG_ROW(multinomial, {Var(multinomial(in[0].value(), a[0], a[1], 1, "draw"))})
      ZG_WITH(broadcast_to, shape_of(a[0]))
      ZG_WITH(transpose, a[0], a[1])
      ZG_WITH(squeeze, a[0])
      ZG_WITH(unsqueeze, a[0])
      ZG_WITH(slice, a[0], a[1], a[2])
      ZG_ROW(concat, {concat(in, a[0])})
      ZG_ROW(stack, {stack(in, a[0])})
      ZG_ROW(split, split(in[0], a[0].get<std::vector<int64_t>>(), a[1]))
      ZG_WITH(pad, -1, a[0], a[1], a[2].get<double>())
      ZG_WITH(tril, a[0])
      ZG_WITH(triu, a[0])
      ZG_WITH(gather, a[0], in[1].value())
      ZG_WITH(scatter_add, a[0], in[1].value(), in[2])
      ZG_ROW(topk, picked(topk(in[0], a[0], a[1], a[2])))
      ZG_ROW(sort, picked(sort(in[0], a[0], a[1])))
      ZG_ROW(argsort, {Var(argsort(in[0], a[0], a[1]))})
      ZG_ROW(cummax, picked(cummax(in[0], a[0])))
      ZG_ROW(cummin, picked(cummin(in[0], a[0])))
      ZG_WITH(index_add, a[0], in[1].value(), mul(in[2], a[1].get<double>()))
      ZG_ROW(nonzero, (void(a), In{Var(nonzero(in[0]))}))
      ZG_WITH(masked_select, (void(a), in[1]))
      ZG_WITH(slice_scatter, in[1], a)
      ZG_WITH(linear, (void(a), in[1]), third(in))
      ZG_WITH(conv1d, in[1], third(in), {a[0], a[1], a[2], a[3]})
      ZG_WITH(conv2d, in[1], third(in), {pair(a[0]), pair(a[1]), pair(a[2]), a[3]})
      ZG_WITH(conv_transpose1d, in[1], third(in), {a[0], a[1], a[4], a[2], a[3]})
      ZG_WITH(conv_transpose2d, in[1], third(in), {pair(a[0]), pair(a[1]), pair(a[4]), pair(a[2]), a[3]})
      ZG_WITH(avg_pool1d, a[0], a[1], a[2], a[3])
      ZG_WITH(avg_pool2d, pair(a[0]), pair(a[1]), pair(a[2]), a[3])
      ZG_WITH(max_pool1d, a[0], a[1], a[2], a[3])
      ZG_WITH(max_pool2d, pair(a[0]), pair(a[1]), pair(a[2]), pair(a[3]))
      ZG_WITH(group_norm, a[0], bool(a[2]) ? in[1] : Var(), bool(a[3]) ? in.back() : Var(), a[1])
      ZG_WITH(layer_norm, in[1], in[2], a[0])
      ZG_WITH(rms_norm, in[1], a[0])
      ZG_ROW(embedding, (void(a), In{embedding(in[1].value(), in[0])}))
      ZG_ROW(one_hot, {Var(one_hot(in[0].value(), a[0], DType::i64))})
      ZG_WITH(cross_entropy, in[1].value(), CrossEntropyOptions{a[1], a[2], reduction(a[0])})
      ZG_WITH(binary_cross_entropy, in[1], reduction(a[0]))
      ZG_WITH(kl_divergence, in[1], reduction(a[0]), a[1])
      ZG_WITH(mse, in[1], reduction(a[0])) ZG_WITH(huber, in[1], a[0], reduction(a[1]))
      ZG_WITH(attention, in[1], in[2], AttentionOptions{.causal = a[0], .scale = a[1]})
      // The first of two rows with one name counts: the ops that take numbers are above.
#include "zerograd/kernels/elementwise/formulas.inc"
      // clang-format on
  };
  return rows;
}

Tensor tensor_of(const json& from) {
  const Shape shape = shape_of(from.at("shape"));
  const std::string name = from.at("dtype");
  const Device device = Device::cpu(0, {.threads = 1});
  if (name == "i64" || name == "i32" || name == "bool") {
    const Var whole = Tensor::from(from.at("values").get<std::vector<int64_t>>(), shape, device);
    const DType dtype = name == "i64" ? DType::i64 : name == "i32" ? DType::i32 : DType::boolean;
    return cast(whole, dtype).value();
  }
  std::vector<double> values;
  for (const int64_t bits : from.at("values")) values.push_back(std::bit_cast<double>(bits));
  const DType dtype = name == "f64" ? DType::f64 : name == "f32" ? DType::f32 : DType::bf16;
  return cast(Var(Tensor::from(values, shape, device)), dtype).value();
}

json json_of(const Tensor& x) {
  std::vector<int64_t> bits;
  for (const double value : x.to_doubles()) bits.push_back(std::bit_cast<int64_t>(value));
  std::vector<int64_t> extents;
  for (int i = 0; i < x.shape().rank(); ++i) extents.push_back(x.extent(i));
  return {{"shape", extents}, {"values", bits}};
}

json result_of(const json& sample) {
  Tape tape(Device::cpu(0, {.threads = 1}));
  In in;
  for (const json& tensor : sample.at("tensors")) {
    const Tensor values = tensor_of(tensor);
    in.push_back(tensor.at("gradient") ? tape.variable(values) : tape.constant(values));
  }
  const auto call = calls().find(sample.at("op").get<std::string>());
  if (call == calls().end()) return {{"error", "op_db.cpp has no row of this op"}};
  const In results = call->second(in, sample.at("arguments"));
  json line = {{"results", json::array()}, {"gradients", json::array()}};
  for (const Var& y : results) line["results"].push_back(json_of(y.value()));
  std::vector<Var> losses;
  std::vector<Tensor> seeds;
  for (size_t i = 0; i < results.size(); ++i)
    if (const json& dy = sample.at("dy")[i]; !dy.is_null() && results[i].needs_gradient()) {
      losses.push_back(results[i]);
      seeds.push_back(cast(Var(tensor_of(dy)), results[i].dtype()).value());
    }
  if (!losses.empty()) tape.backward(losses, seeds);
  for (const Var& x : in)
    line["gradients"].push_back(!losses.empty() && x.needs_gradient() ? json_of(tape.gradient(x))
                                                                      : json());
  return line;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json result;
    try {
      result = result_of(json::parse(line));
    } catch (const Error& error) {
      result = {{"error", error.what()}, {"refused", true}};
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump() << '\n';
  }
}
