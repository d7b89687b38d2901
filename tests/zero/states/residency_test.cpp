#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/zero/watching.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using zero::Config;
using zero::Engine;
using zg::testing::Watching;

namespace {

struct GatheredUnits {
  ParameterStore store;
  const Unit& a = store.unit("a");
  const Unit& b = store.unit("b");
  const Unit& c = store.unit("c");
  GatheredUnits() {
    store.add(a, "a.weight", {100}, Init::normal(0.1f));
    store.add(b, "b.weight", {3, 100}, Init::normal(0.1f));
    store.add(c, "c.weight", {100}, Init::normal(0.1f));
  }
};

/// Acquires the units in the given order ("ab") and lists the units that each gathered: "a:ab b:".
std::string pass(Engine& engine, Watching& comm, const GatheredUnits& model, const char* order) {
  std::string text;
  Tape tape = engine.inference_tape();
  for (const char* letter = order; *letter; ++letter) {
    comm.calls.clear();
    const Unit& unit = *letter == 'a' ? model.a : *letter == 'b' ? model.b : model.c;
    const Tape::Use use(tape, unit);
    text += (text.empty() ? "" : " ") + std::string(1, *letter) + ":";
    for (const Watching::Call& call : comm.calls) text += call.name.substr(0, call.name.find(' '));
  }
  return text;
}

/// The gathers of passes in these orders, on both of two ranks.
struct Pass {
  const char *order, *gathers;
};
void check_passes(Config config, const std::vector<Pass>& passes) {
  config.stage = 3;
  config.param_persistence_threshold = 0;
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const GatheredUnits model;
    Watching comm(ranks);
    Engine engine(model.store, comm, device, config);
    const int64_t rest = device.memory().live();
    for (const Pass& expected : passes) {
      const std::string gathers = pass(engine, comm, model, expected.order);
      if (gathers != expected.gathers)
        throw ShapeError(std::string(expected.order) + " gathers " + gathers + "; expected " +
                         expected.gathers);
    }
    engine.inference_tape();  // ends the last pass
    if (device.memory().live() != rest) throw ShapeError("something stayed whole");
  });
}

}  // namespace

TEST_CASE(
    "a pass prefetches the unit that came next in the last pass, and gathers each unit once") {
  check_passes({}, {{"abc", "a:a b:b c:c"},
                    {"abc", "a:ab b:c c:"},
                    {"aabbc", "a:ab a: b: b: c:c"},
                    {"aabbc", "a:a a:b b: b:c c:"}});
}

TEST_CASE("prefetch follows a changed unit order from the change on, and gathers no unit twice") {
  check_passes({}, {{"abc", "a:a b:b c:c"},
                    // b was prefetched and stays until it is used.
                    {"acb", "a:ab c:c b:"},
                    {"acb", "a:ac c:b b:"},
                    {"ba", "b:b a:a"},
                    {"b", "b:ba"},
                    {"ab", "a:a b:b"},
                    {"abc", "a:ab b: c:c"}});
}

TEST_CASE("without overlap, and beyond the prefetch bucket, a unit is gathered when it is opened") {
  check_passes({.overlap_comm = false}, {{"abc", "a:a b:b c:c"}, {"abc", "a:a b:b c:c"}});
  check_passes({.prefetch_bucket_size = 0}, {{"abc", "a:a b:b c:c"}, {"abc", "a:a b:b c:c"}});
  check_passes({.prefetch_bucket_size = 200}, {{"abc", "a:a b:b c:c"}, {"abc", "a:a b:bc c:"}});
}
