#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/runtime/text/format.h"

// Sums of products over named axes, made of permute, matmul and element-wise products.
namespace zg {
namespace {

/// A tensor whose axis i has the letter labels[i]; the axes of a product are merged. Digits are the
/// axes of an ellipsis.
struct Labelled {
  Var x;
  std::string labels;

  int axis_of(char label) const { return static_cast<int>(labels.find(label)); }
};

bool has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

int64_t elements(const std::string& labels, const std::map<char, int64_t>& extents) {
  int64_t count = 1;
  for (const char label : labels) count *= extents.at(label);
  return count;
}

/// With the axes in another order, then as `shape`. Axes that stay neighbours move as one, so that
/// an intermediate result may have more than Shape::max_rank.
Var arranged(const Labelled& a, const std::string& order, const Shape& shape,
             const std::map<char, int64_t>& extents) {
  std::vector<std::string> runs;
  for (const char label : order)
    if (!runs.empty() && a.labels.find(runs.back() + label) != std::string::npos)
      runs.back() += label;
    else
      runs.emplace_back(1, label);
  if (runs.size() < 2) return reshape(a.x, shape);
  std::vector<std::string> from = runs;
  std::ranges::sort(from, {}, [&](const std::string& run) { return a.labels.find(run); });
  std::vector<int64_t> sizes;
  for (const std::string& run : from) sizes.push_back(elements(run, extents));
  const Shape merged = named("einsum", [&] { return Shape(sizes); });
  AxisOrder axes{.rank = merged.rank()};
  for (size_t i = 0; i < runs.size(); ++i)
    axes.order[i] = static_cast<int>(std::ranges::find(from, runs[i]) - from.begin());
  const Var whole = merged == a.x.shape() ? a.x : reshape(a.x, merged);
  return reshape(permuted("einsum", whole, axes), shape);
}

/// The elements at which two axes with the same label have the same index.
Labelled with_diagonal(const Labelled& a, size_t first, size_t second) {
  std::vector<int64_t> extents;
  AxisOrder axes{.rank = a.x.shape().rank()};
  int at = 0;
  std::string labels;
  for (int i = 0; i < axes.rank; ++i) {
    if (i == static_cast<int>(first) || i == static_cast<int>(second)) continue;
    axes.order[static_cast<size_t>(at++)] = i;
    extents.push_back(a.x.shape()[i]);
    labels += a.labels[static_cast<size_t>(i)];
  }
  axes.order[static_cast<size_t>(at)] = static_cast<int>(first);
  axes.order[static_cast<size_t>(at + 1)] = static_cast<int>(second);
  const int64_t n = a.x.shape()[static_cast<int>(first)];
  extents.push_back(n * n);
  const Var pairs = reshape(permuted("einsum", a.x, axes), Shape(extents));
  const Var places = mul(Var(arange(0, n, DType::i64, a.x.device())), n + 1.0);
  return {index_select(pairs, -1, places.value()), labels + a.labels[first]};
}

/// Sums over the axes whose labels are not in `kept`.
Labelled summed(const Labelled& a, const std::string& kept) {
  Labelled left = a;
  for (const char label : a.labels)
    if (!has(kept, label)) {
      left.x = sum(left.x, left.axis_of(label));
      left.labels.erase(static_cast<size_t>(left.axis_of(label)), 1);
    }
  return left;
}

/// The product of two operands, summed over the labels that `kept` lacks.
Labelled product(Labelled a, Labelled b, const std::string& kept,
                 const std::map<char, int64_t>& extents) {
  a = summed(a, kept + b.labels);
  b = summed(b, kept + a.labels);
  std::string both, of_a, of_b, inner;
  for (const char label : a.labels)
    (!has(b.labels, label) ? of_a : has(kept, label) ? both : inner) += label;
  for (const char label : b.labels)
    if (!has(a.labels, label)) of_b += label;
  const int64_t M = elements(of_a, extents), N = elements(of_b, extents);
  const int64_t K = elements(inner, extents);
  // Shared axes stay apart if the rank allows it: to merge them may take a copy.
  std::vector<int64_t> batch;
  for (const char label : both) batch.push_back(extents.at(label));
  if (batch.size() + 2 > Shape::max_rank) batch = {elements(both, extents)};
  const auto with = [&](int64_t rows, int64_t columns) {
    std::vector<int64_t> all = batch;
    all.insert(all.end(), {rows, columns});
    return Shape(all);
  };
  const Var left = arranged(a, both + of_a + inner, with(M, K), extents);
  const Var right = arranged(b, both + inner + of_b, with(K, N), extents);
  return {inner.empty() ? mul(left, right) : matmul(left, right), both + of_a + of_b};
}

/// "ij" of rank 2, "...i" of rank 3 as "10i": an ellipsis has the digits of its axes, from the
/// last.
std::string labels_of(const std::string& equation, std::string term, int ellipsis) {
  const size_t dots = term.find("...");
  if (dots != std::string::npos) term.erase(dots, 3);
  for (const char label : term)
    if (!(label >= 'a' && label <= 'z') && !(label >= 'A' && label <= 'Z'))
      raise<ConfigError>(
          "einsum: '{}' has '{}'; expected letters, ',', '...' and '->', as in \"bij,bjk->bik\"",
          equation, label);
  for (int i = 0; dots != std::string::npos && i < ellipsis; ++i)
    term.insert(dots, 1, static_cast<char>('0' + i));
  return term;
}

void check_vectors(const char* op, const Var& a, const Var& b) {
  for (const auto& [name, x] : {std::pair{"a", &a}, {"b", &b}})
    if (const Shape shape = number_operand(op, name, *x).shape(); shape.rank() != 1)
      refuse_shape(op, name, shape, "rank 1");
}

}  // namespace

Var einsum(const std::string& equation, std::span<const Var> operands) {
  std::string text;
  for (const char c : equation)
    if (c != ' ') text += c;
  const size_t arrow = text.find("->");
  std::vector<std::string> terms{""};
  for (const char c : text.substr(0, arrow))
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  if (terms.size() != operands.size())
    raise<ConfigError>("einsum: '{}' has {} operands; expected {}, as many as given", equation,
                       terms.size(), operands.size());
  std::vector<Labelled> parts;
  std::map<char, int64_t> extents;
  std::map<char, int> uses;
  int ellipsis = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const StridedOperand operand = strided_operand("einsum", "an operand", operands[i]);
    check_floating("einsum", "an operand", operand.source.dtype());
    check_alike("einsum", "the first operand", strided_operand("einsum", "", operands[0]).source,
                "another", operand.source);
    const Shape shape = operand.layout.shape;
    const bool dots = terms[i].find("...") != std::string::npos;
    const int named = static_cast<int>(terms[i].size()) - (dots ? 3 : 0);
    if (shape.rank() < named || (!dots && shape.rank() != named))
      refuse_shape("einsum", "an operand", shape, fmt::format("rank {} for '{}'", named, terms[i]));
    if (dots) ellipsis = std::max(ellipsis, shape.rank() - named);
    parts.push_back({operands[i], labels_of(equation, terms[i], shape.rank() - named)});
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const char label = parts.back().labels[static_cast<size_t>(axis)];
      ++uses[label];
      int64_t& extent = extents.try_emplace(label, shape[axis]).first->second;
      if (extent == 1) extent = shape[axis];
      if (shape[axis] != extent && shape[axis] != 1)
        refuse_shape("einsum", "an operand", shape,
                     fmt::format("extent {} for '{}' of '{}'", extent, label, equation));
    }
  }
  std::string result;
  if (arrow != std::string::npos) {
    result = labels_of(equation, text.substr(arrow + 2), ellipsis);
  } else {
    result = labels_of(equation, "...", ellipsis);
    for (const auto& [label, count] : uses)
      if (count == 1 && label > '9') result += label;
  }
  for (const char label : result)
    if (!uses.contains(label) || std::ranges::count(result, label) > 1)
      raise<ConfigError>(
          "einsum: the result of '{}' has '{}'; expected labels of operands, each once", equation,
          label);
  for (Labelled& part : parts) {
    Shape shape = part.x.shape();
    for (int axis = 0; axis < shape.rank(); ++axis)
      shape = shape.with(axis, extents.at(part.labels[static_cast<size_t>(axis)]));
    part.x = broadcast_to(part.x, shape);
    for (size_t i = 0; i < part.labels.size(); ++i)
      if (const size_t other = part.labels.find(part.labels[i], i + 1); other != std::string::npos)
        part = with_diagonal(part, i, other), i = static_cast<size_t>(-1);
  }
  Labelled y = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string kept = result;
    for (size_t later = i + 1; later < parts.size(); ++later) kept += parts[later].labels;
    y = product(y, parts[i], kept, extents);
  }
  y = summed(y, result);
  std::vector<int64_t> shape;
  for (const char label : result) shape.push_back(extents.at(label));
  return arranged(y, result, named("einsum", [&] { return Shape(shape); }), extents);
}

Var tensordot(const Var& a, const Var& b, const Axes& axes_of_a, const Axes& axes_of_b) {
  const Tensor left_operand = floating_operand("tensordot", "a", a);
  const Tensor right_operand = floating_operand("tensordot", "b", b);
  check_alike("tensordot", "a", left_operand, "b", right_operand);
  const Shape of_a = left_operand.shape(), of_b = right_operand.shape();
  if (axes_of_a.size() != axes_of_b.size())
    raise<ConfigError>("tensordot: {} axes of a and {} of b; expected as many", axes_of_a.size(),
                       axes_of_b.size());
  std::string left = std::string("abcdef").substr(0, static_cast<size_t>(of_a.rank())),
              right = std::string("ghijkl").substr(0, static_cast<size_t>(of_b.rank())), result;
  std::string summed;
  for (auto i = axes_of_a.begin(), j = axes_of_b.begin(); i != axes_of_a.end(); ++i, ++j) {
    const char label = left[static_cast<size_t>(axis_of("tensordot", of_a, *i))];
    char& other = right[static_cast<size_t>(axis_of("tensordot", of_b, *j))];
    if (has(summed, label) || has(summed, other))
      raise<ShapeError>(
          "tensordot: axis {} of a or {} of b is given twice; expected each axis once", *i, *j);
    other = label;
    summed += label;
  }
  for (const char label : left + right)
    if (!has(left, label) || !has(right, label)) result += label;
  return named("tensordot", [&] {
    return einsum(left + "," + right + "->" + result, std::vector{a, b});
  });
}

Var dot(const Var& a, const Var& b) {
  check_vectors("dot", a, b);
  if (a.shape() != b.shape()) refuse_shape("dot", "b", b.shape(), a.shape().str());
  return named("dot", [&] { return is_whole(a) ? sum(mul(a, b)) : einsum("i,i->", {a, b}); });
}

Var outer(const Var& a, const Var& b) {
  check_vectors("outer", a, b);
  const Var column = unsqueeze(a, 1), row = unsqueeze(b, 0);
  return named("outer", [&] { return mul(column, row); });
}

}  // namespace zg
