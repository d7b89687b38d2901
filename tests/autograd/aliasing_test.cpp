#include <cmath>

#include "tests/autograd/fake_source.h"
#include "tests/autograd/op_check.h"

// Gradients are added in place where nothing else uses their memory. These tests build graphs in
// which ops, reshapes, parameters and the caller's seeds share it, and compare with derivatives
// that are carried forward beside the values. All numbers are small integers in f64: exact.
using namespace zg;
using namespace zg::testing;

namespace {

using Numbers = std::vector<double>;

/// A value and its derivatives with respect to every element of every leaf.
struct Expected {
  Shape shape;
  Numbers values;
  std::vector<Numbers> slopes;  ///< by element of the leaves
};

enum class Op : uint8_t { add, subtract, multiply, negate, twice, reshape, rows, first_row };
constexpr const char* op_names[] = {"add",   "sub",     "mul",  "neg",
                                    "twice", "reshape", "rows", "add_first_row"};
constexpr Op every_op[] = {Op::add,   Op::subtract, Op::multiply, Op::negate,
                           Op::twice, Op::reshape,  Op::rows,     Op::first_row};

struct Node {
  Op op;
  size_t a, b;  ///< operands; a alone of unary ops
};

constexpr int64_t rows = 2, columns = 3, elements = rows * columns;
const Shape matrix{rows, columns}, turned{columns, rows};

/// f(values and, with true, slopes) made of those of a and b by the same linear rule.
template <class F>
Expected linear(const Expected& a, const Expected& b, const Shape& shape, const F& f) {
  Expected y{.shape = shape, .values = f(a.values, b.values), .slopes = {}};
  for (size_t i = 0; i < a.slopes.size(); ++i) y.slopes.push_back(f(a.slopes[i], b.slopes[i]));
  return y;
}

Expected expected(Op op, const Expected& a, const Expected& b) {
  const auto each = [&](double by_a, double by_b) {
    return linear(a, b, a.shape, [=](const Numbers& x, const Numbers& y) {
      Numbers z(x.size());
      for (size_t i = 0; i < x.size(); ++i) z[i] = by_a * x[i] + by_b * y[i];
      return z;
    });
  };
  switch (op) {
    case Op::add:
      return each(1, 1);
    case Op::subtract:
      return each(1, -1);
    case Op::negate:
      return each(-1, 0);
    case Op::twice:
      return each(2, 0);
    case Op::reshape: {
      Expected y = a;
      y.shape = a.shape == matrix ? turned : matrix;
      return y;
    }
    case Op::rows:  // the first row of a over the others of b
      return linear(a, b, a.shape, [&](const Numbers& x, const Numbers& y) {
        Numbers z = y;
        std::copy(x.begin(), x.begin() + a.shape[1], z.begin());
        return z;
      });
    case Op::first_row:  // a plus b's first row, broadcast
      return linear(a, b, a.shape, [&](const Numbers& x, const Numbers& y) {
        Numbers z = x;
        for (size_t i = 0; i < z.size(); ++i) z[i] += y[i % static_cast<size_t>(a.shape[1])];
        return z;
      });
    case Op::multiply:
      break;
  }
  Expected y{.shape = a.shape, .values = a.values, .slopes = a.slopes};
  for (size_t i = 0; i < y.values.size(); ++i) {
    y.values[i] = a.values[i] * b.values[i];
    for (size_t leaf = 0; leaf < y.slopes.size(); ++leaf)
      y.slopes[leaf][i] = a.slopes[leaf][i] * b.values[i] + a.values[i] * b.slopes[leaf][i];
  }
  return y;
}

Var record_op(Op op, const Var& a, const Var& b) {
  switch (op) {
    case Op::add:
      return add(a, b);
    case Op::subtract:
      return sub(a, b);
    case Op::multiply:
      return mul(a, b);
    case Op::negate:
      return neg(a);
    case Op::twice:
      return mul(a, 2.0);
    case Op::reshape:
      return reshape(a, a.shape() == matrix ? turned : matrix);
    case Op::rows: {
      const Var parts[] = {slice(a, 0, 0, 1), slice(b, 0, 1, b.shape()[0])};
      return concat(parts, 0);
    }
    case Op::first_row:
      return add(a, slice(b, 0, 0, 1));
  }
  return {};
}

bool is_unary(Op op) { return op == Op::negate || op == Op::twice || op == Op::reshape; }

/// Leaves come first, then a node for each op; the gradients of some nodes are given.
struct Graph {
  size_t variables = 2, parameters = 0;
  std::vector<Node> nodes = {};
  std::vector<size_t> outputs = {};

  size_t leaves() const { return variables + parameters; }
  std::string text() const {
    std::string lines;
    for (size_t i = 0; i < leaves(); ++i)
      lines += "n" + std::to_string(i) + (i < variables ? " = variable" : " = parameter") + "; ";
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto& [op, a, b] = nodes[i];
      lines += "n" + std::to_string(leaves() + i) + " = " + op_names[static_cast<size_t>(op)] +
               "(n" + std::to_string(a) + (is_unary(op) ? "" : ", n" + std::to_string(b)) + "); ";
    }
    lines += "outputs";
    for (const size_t output : outputs) lines += " n" + std::to_string(output);
    return lines;
  }
};

Numbers integers(size_t count, uint64_t seed) {
  Numbers values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<double>(Philox::block({static_cast<uint32_t>(i)}, seed)[0] % 7) - 3.0;
  return values;
}

std::vector<Expected> expectation(const Graph& graph, uint64_t seed) {
  std::vector<Expected> all;
  for (size_t leaf = 0; leaf < graph.leaves(); ++leaf) {
    Expected& made = all.emplace_back(Expected{matrix, integers(elements, seed * 100 + leaf), {}});
    made.slopes.assign(graph.leaves() * elements, Numbers(elements));
    for (size_t i = 0; i < elements; ++i) made.slopes[leaf * elements + i][i] = 1.0;
  }
  for (const auto& [op, a, b] : graph.nodes) all.push_back(expected(op, all[a], all[b]));
  return all;
}

/// Runs the graph on a tape; "" or what differs from the expectation.
std::string difference(const Graph& graph, uint64_t seed) {
  const std::vector<Expected> wanted = expectation(graph, seed);
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  std::vector<const Parameter*> parameters;
  for (size_t i = 0; i < graph.parameters; ++i)
    parameters.push_back(&store.add(unit, "p" + std::to_string(i), matrix, Init::zeros()));
  FakeSource source(store, shared_device());
  for (size_t i = 0; i < graph.parameters; ++i)
    source.at_rest(*parameters[i]) = wanted[graph.variables + i].values;

  Tape tape(shared_device(), &source);
  std::vector<Var> vars;
  const auto tensor = [](const Numbers& values, const Shape& shape) {
    return Tensor::from(values, shape, shared_device());
  };
  for (size_t i = 0; i < graph.variables; ++i)
    vars.push_back(tape.variable(tensor(wanted[i].values, matrix)));
  {
    const Tape::Use use(tape, unit);
    for (const Parameter* parameter : parameters) vars.push_back(tape.parameter(*parameter));
    for (const auto& [op, a, b] : graph.nodes) vars.push_back(record_op(op, vars[a], vars[b]));
  }
  std::vector<Var> outputs;
  std::vector<Tensor> seeds;
  std::vector<Numbers> seed_values;
  for (const size_t output : graph.outputs) {
    seed_values.push_back(integers(elements, seed * 100 + 50 + seeds.size()));
    seeds.push_back(tensor(seed_values.back(), wanted[output].shape));
    outputs.push_back(vars[output]);
  }
  tape.backward(outputs, seeds);

  const auto differs = [](const std::string& what, const Numbers& got, const Numbers& expected) {
    for (size_t i = 0; i < expected.size(); ++i)
      if (i >= got.size() || got[i] != expected[i])
        return what + ": element " + std::to_string(i) + " is " +
               (i < got.size() ? std::to_string(got[i]) : "absent") + "; expected " +
               std::to_string(expected[i]);
    return std::string();
  };
  std::string found;
  for (size_t leaf = 0; leaf < graph.leaves() && found.empty(); ++leaf) {
    Numbers gradient(elements);
    for (size_t i = 0; i < elements; ++i)
      for (size_t output = 0; output < outputs.size(); ++output)
        for (size_t k = 0; k < elements; ++k)
          gradient[i] +=
              seed_values[output][k] * wanted[graph.outputs[output]].slopes[leaf * elements + i][k];
    const std::string name = "gradient of n" + std::to_string(leaf);
    Numbers got(elements);  // an absent gradient is zero
    if (leaf >= graph.variables) {
      const auto reduced = source.gradients.find(parameters[leaf - graph.variables]);
      if (reduced != source.gradients.end()) got = reduced->second;
    } else if (const Tensor own = tape.gradient(vars[leaf])) {
      got = own.to_doubles();
    }
    found = differs(name, got, gradient);
  }
  for (size_t i = 0; i < seeds.size() && found.empty(); ++i)
    found = differs("the caller's gradient of output " + std::to_string(i), seeds[i].to_doubles(),
                    seed_values[i]);
  // The source has taken a parameter's bytes back, and those of its reshapes.
  std::vector<bool> is_gone(vars.size());
  for (size_t i = 0; i < vars.size() && found.empty(); ++i) {
    is_gone[i] = i >= graph.variables && i < graph.leaves();
    if (i >= graph.leaves() && graph.nodes[i - graph.leaves()].op == Op::reshape)
      is_gone[i] = is_gone[graph.nodes[i - graph.leaves()].a];
    if (!is_gone[i])
      found =
          differs("value of n" + std::to_string(i), vars[i].value().to_doubles(), wanted[i].values);
  }
  return found;
}

/// Numbers in [0, bound) from a seed.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  size_t below(size_t bound) {
    return Philox::block({count_++, 77}, seed_)[0] % static_cast<uint32_t>(bound);
  }

 private:
  const uint64_t seed_;
  uint32_t count_ = 0;
};

double largest(const Expected& x) {
  double most = 0.0;
  for (const double value : x.values) most = std::max(most, std::fabs(value));
  for (const Numbers& slopes : x.slopes)
    for (const double slope : slopes) most = std::max(most, std::fabs(slope));
  return most;
}

/// Up to 12 ops, mostly on what was made last, so that gradients pass through many hands.
Graph random_graph(uint64_t seed) {
  Draw draw(seed);
  Graph graph{.variables = 1 + draw.below(3), .parameters = draw.below(3)};
  std::vector<Expected> made = expectation(graph, seed);
  const size_t count = 2 + draw.below(11);
  for (size_t i = 0; i < count; ++i) {
    const auto operand = [&] {
      return draw.below(2) == 0 ? draw.below(made.size())
                                : made.size() - 1 - draw.below(std::min<size_t>(3, made.size()));
    };
    Node node{every_op[draw.below(std::size(every_op))], operand(), operand()};
    if (made[node.a].shape != made[node.b].shape) node.b = node.a;
    Expected result = expected(node.op, made[node.a], made[node.b]);
    if (largest(result) > 0x1p40) {
      node.op = Op::add;
      result = expected(node.op, made[node.a], made[node.b]);
    }
    graph.nodes.push_back(node);
    made.push_back(std::move(result));
  }
  graph.outputs.push_back(made.size() - 1);
  for (size_t more = draw.below(3); more > 0; --more)
    graph.outputs.push_back(graph.leaves() + draw.below(graph.nodes.size()));
  return graph;
}

}  // namespace

TEST_CASE("backward does not add in place into a gradient tensor that two ops share") {
  const auto full = [](double value) {
    return Tensor::full({1}, value, DType::f64, shared_device());
  };
  Tape tape(shared_device());
  const Var h = tape.variable(full(6.0)), b = tape.variable(full(5.0));
  tape.backward(sum(add(h, mul(h, b))));
  CHECK(tape.gradient(h).item() == 6.0);
  CHECK(tape.gradient(b).item() == 6.0);
}

TEST_CASE("every graph of three sums and products has exact gradients") {
  int graphs = 0;
  std::string wrong;
  for (const Op last : {Op::add, Op::multiply})
    for (const Op middle : {Op::add, Op::multiply})
      for (const Op first : {Op::add, Op::multiply})
        for (size_t choice = 0; choice < 4 * 9 * 16 && wrong.empty(); ++choice) {
          const size_t a = choice % 4, b = choice / 4 % 9, c = choice / 36;
          const Graph graph{
              .nodes = {{first, a % 2, a / 2}, {middle, b % 3, b / 3}, {last, c % 4, c / 4}},
              .outputs = {4, 3}};
          const std::string found = difference(graph, 7);
          if (!found.empty()) wrong = graph.text() + ": " + found;
          ++graphs;
        }
  CHECK(wrong == "");
  CHECK(graphs == 8 * 576);
}

TEST_CASE("random graphs of ops, parameters and several outputs have exact gradients") {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Graph graph = random_graph(seed);
    const std::string found = difference(graph, seed);
    if (found.empty()) continue;
    FAIL_CHECK("seed " << seed << ": " << graph.text() << ": " << found);
    break;
  }
}
