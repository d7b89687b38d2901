#include "zerograd/zero/optimizer/optimizers.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/zero/matrix_toy.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::Optimizer;
using zero::OptimizerRange;
using zero::OptimizerStep;

TEST_CASE("an optimizer that declares what an engine cannot do is refused") {
  struct Declared : Optimizer {
    Declared(std::string name, std::vector<State> states, bool whole, bool all = true)
        : name_(std::move(name)), states_(std::move(states)), whole_(whole), all_(all) {}
    std::string name() const override { return name_; }
    std::vector<State> states() const override { return states_; }
    bool needs_whole() const override { return whole_; }
    bool updates(const Parameter& parameter) const override {
      return all_ || parameter.name == "wide";
    }
    void update(const OptimizerStep&, std::span<const OptimizerRange> ranges,
                Stream&) const override {
      for (const OptimizerRange& range : ranges) range["absent"];
    }
    std::string name_;
    std::vector<State> states_;
    bool whole_, all_;
  };
  const MatrixToy toy;
  const auto refusal = [&](const Declared& declared, Config config = {}) -> std::string {
    config.update.optimizer = std::make_shared<Declared>(declared);
    try {
      Engine engine(toy.store, Device::cpu(), config);
      train_step(engine, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  const auto square = [](const Shape& shape) { return shape; };
  CHECK(refusal({"a b", {}, false}) ==
        "optimizer: the name of an optimizer is 'a b'; expected letters, digits and '_', and "
        "neither 'master' nor 'gradient'");
  CHECK(refusal({"x", {{.name = "master"}}, false}) ==
        "optimizer: the name of a state is 'master'; expected letters, digits and '_', and neither "
        "'master' nor 'gradient'");
  CHECK(refusal({"x", {{.name = "s", .dtype = DType::f16}}, false}) ==
        "optimizer: the state s of x is f16; expected f32 or bf16");
  CHECK(refusal({"x", {{.name = "s", .dtype = DType::bf16, .shape = square}}, true}) ==
        "optimizer: the state s of x is bf16; expected f32");
  CHECK(refusal({"x", {{.name = "s", .shape = square}}, false}) ==
        "optimizer: the state s of x has a shape of its own, and the optimizer takes ranges of "
        "elements; expected one that needs whole parameters");
  CHECK(refusal({"x", {{.name = "s"}, {.name = "s"}}, false}) ==
        "optimizer: x declares two states 's'; expected names that differ");
  Config two;
  two.update.groups = {
      {.pattern = "tall",
       .optimizer = std::make_shared<Declared>(
           "y", std::vector<Optimizer::State>{{.name = "s", .shape = square}}, true)}};
  CHECK(
      refusal({"x", {{.name = "s"}}, false}, two) ==
      "optimizer: the state 's' of x and that of another optimizer differ: one has a shape of its "
      "own; expected another name, because checkpoints keep states by name");
  CHECK(refusal({"x", {}, false, false}) ==
        "optimizer: x does not update 'z.bias' [7]; expected an optimizer for it in "
        "Optimizer::others(), or a parameter group");
  CHECK(refusal({"x", {}, false}) ==
        "optimizer: no state 'absent'; expected a name of Optimizer::states()");
  Config narrow{.compute = DType::bf16, .optimizer = DType::bf16, .grad_accum = DType::bf16};
  narrow.update.stochastic_rounding = true;
  CHECK(refusal({"x", {}, false}, narrow) ==
        "optimizer: update.stochastic_rounding is on, and x does not write rounded values itself; "
        "expected it off, or an optimizer that is fused");
  Config muon{.update = {.rule = OptimizerRule::muon}};
  muon.update.groups = {
      {.pattern = "tall",
       .optimizer = std::make_shared<Declared>("x", std::vector<Optimizer::State>(), true)}};
  CHECK(message_of<Unsupported>([&] { Engine engine(toy.store, Device::cpu(), muon); }) ==
        "optimizer: muon gathers directions of whole parameters, and x owns them; expected one of "
        "the two in a run");
}
