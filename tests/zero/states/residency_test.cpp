#include <algorithm>
#include <string>
#include <vector>

#include "tests/zero/watching.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using zero::Config;
using zero::Engine;
using zg::testing::Watching;

namespace {

/// Units a, b, ... with one parameter each. On two ranks a unit is padded to a multiple of 128
/// elements.
struct GatheredUnits {
  ParameterStore store;
  std::vector<const Unit*> units;
  std::vector<const Parameter*> parameters;

  explicit GatheredUnits(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) {
      const std::string name(1, static_cast<char>('a' + units.size()));
      units.push_back(&store.unit(name));
      parameters.push_back(&store.add(*units.back(), name + ".weight", {size}, Init::normal(0.1f)));
    }
  }
  const Unit& unit(char letter) const { return *units[static_cast<size_t>(letter - 'a')]; }
};

const std::vector<int64_t> three_units = {100, 300, 100};
const std::vector<int64_t> six_units(6, 128);

/// Acquires the units in the given order ("ab") and lists the units that each gathered: "a:ab b:".
std::string pass(Engine& engine, Watching& comm, const GatheredUnits& model,
                 const std::string& order) {
  std::string text;
  Tape tape = engine.inference_tape();
  for (const char letter : order) {
    comm.calls.clear();
    const Tape::Use use(tape, model.unit(letter));
    text += (text.empty() ? "" : " ") + std::string(1, letter) + ":";
    for (const Watching::Call& call : comm.calls) text += call.name.substr(0, call.name.find(' '));
  }
  return text;
}

Config sharded(Config config, int64_t prefetch_units = 8) {
  config.stage = 3;
  config.prefetch_units = prefetch_units;
  config.param_persistence_threshold = 0;
  return config;
}

void expect_equal(const std::string& name, const std::string& got, const std::string& expected) {
  if (got != expected) throw ShapeError(name + ": " + got + "; expected " + expected);
}

void expect_equal(const std::string& name, int64_t got, int64_t expected) {
  expect_equal(name, std::to_string(got), std::to_string(expected));
}

/// The gathers of passes in these orders, on both of two ranks.
struct Pass {
  const char *order, *gathers;
};
void check_passes(const Config& config, const std::vector<Pass>& passes,
                  const std::vector<int64_t>& sizes = three_units, int64_t prefetch_units = 8) {
  run_local(2, [&](Communicator& ranks, const Device& device) {
    const GatheredUnits model(sizes);
    Watching comm(ranks);
    Engine engine(model.store, comm, device, sharded(config, prefetch_units));
    const int64_t rest = device.memory().live();
    for (const Pass& expected : passes)
      expect_equal(std::string(expected.order) + " gathers",
                   pass(engine, comm, model, expected.order), expected.gathers);
    engine.inference_tape();  // ends the last pass
    expect_equal("bytes after the last pass", device.memory().live(), rest);
  });
}

LocalOptions ranks_with_drive() { return {.device = {.swap = {.directory = "/tmp"}}}; }

}  // namespace

TEST_CASE(
    "a pass prefetches the units that came next in the last pass, and gathers each unit once") {
  check_passes({}, {{"abc", "a:a b:b c:c"},
                    {"abc", "a:abc b: c:"},
                    {"aabbc", "a:abc a: b: b: c:"},
                    {"aabbc", "a:a a:bc b: b: c:"}});
}

TEST_CASE("prefetch follows a changed unit order from the change on, and gathers no unit twice") {
  check_passes({}, {{"abc", "a:a b:b c:c"},
                    // b was prefetched and stays until it is used.
                    {"acb", "a:abc c: b:"},
                    {"acb", "a:acb c: b:"},
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

TEST_CASE(
    "units are gathered ahead in their order while all that are not used yet fit in the prefetch "
    "bucket") {
  const auto check = [](int64_t bucket, const char* gathers,
                        const std::vector<int64_t>& sizes = six_units) {
    CAPTURE(bucket);
    check_passes({.prefetch_bucket_size = bucket},
                 {{"abcdef", "a:a b:b c:c d:d e:e f:f"}, {"abcdef", gathers}, {"abcdef", gathers}},
                 sizes);
  };
  check(127, "a:a b:b c:c d:d e:e f:f");
  check(128, "a:ab b:c c:d d:e e:f f:");
  check(255, "a:ab b:c c:d d:e e:f f:");
  check(256, "a:abc b:d c:e d:f e: f:");
  check(384, "a:abcd b:e c:f d: e: f:");
  check(640, "a:abcdef b: c: d: e: f:");
  // c has 384 elements.
  const std::vector<int64_t> one_is_large = {128, 128, 384, 128, 128, 128};
  check(383, "a:ab b: c:cde d:f e: f:", one_is_large);
  check(512, "a:abc b:d c:ef d: e: f:", one_is_large);
  check(640, "a:abcd b:e c:f d: e: f:", one_is_large);
}

TEST_CASE("at most prefetch_units units are gathered ahead") {
  const auto check = [](int64_t units, const char* gathers) {
    CAPTURE(units);
    check_passes({},
                 {{"abcdef", "a:a b:b c:c d:d e:e f:f"}, {"abcdef", gathers}, {"abcdef", gathers}},
                 six_units, units);
  };
  check(Config{}.prefetch_units, "a:ab b:c c:d d:e e:f f:");
  check(2, "a:abc b:d c:e d:f e: f:");
  check(5, "a:abcdef b: c: d: e: f:");
}

TEST_CASE("a unit that is used twice is gathered for the second use after the first") {
  const auto check = [](int64_t bucket, const char* order, const char* first, const char* next) {
    CAPTURE(order);
    check_passes({.prefetch_bucket_size = bucket}, {{order, first}, {order, next}, {order, next}},
                 six_units);
  };
  check(1000, "abccba", "a:a b:b c:c c: b:b a:a", "a:abc b: c: c:ba b: a:");
  check(128, "abccba", "a:a b:b c:c c: b:b a:a", "a:ab b:c c: c:b b:a a:");
  check(1000, "abac", "a:a b:b a:a c:c", "a:ab b:ac a: c:");
  check(1000, "abcbd", "a:a b:b c:c b:b d:d", "a:abc b: c:bd b: d:");
}

TEST_CASE(
    "the whole parameters in memory are those of the unit in use and at most the prefetch bucket") {
  for (const int64_t bucket : {0, 128, 300, 512})
    run_local(2, [&](Communicator& comm, const Device& device) {
      const GatheredUnits model(six_units);
      Engine engine(model.store, comm, device, sharded({.prefetch_bucket_size = bucket}));
      const int64_t rest = device.memory().live();
      int64_t most = 0;
      for (int round = 0; round < 3; ++round) {
        Tape tape = engine.inference_tape();
        for (const Unit* unit : model.units) {
          const Tape::Use use(tape, *unit);
          most = std::max(most, device.memory().live() - rest);
        }
      }
      expect_equal("bytes at a bucket of " + std::to_string(bucket), most,
                   (1 + bucket / 128) * arena_bytes(128 * 4));
    });
}

TEST_CASE("reads from a drive are started ahead as long as they fit in the parameter buffer") {
  for (const int ranks : {1, 2}) {
    const auto check = [&](Config config, const std::vector<int64_t>& reads) {
      config.offload.parameter = Space::file;
      run_local(
          ranks,
          [&](Communicator& comm, const Device& device) {
            const GatheredUnits model(six_units);
            Engine engine(model.store, comm, device, sharded(config));
            for (int round = 0; round < 3; ++round) {
              Tape tape = engine.inference_tape();
              for (size_t i = 0; i < model.units.size(); ++i) {
                const int64_t before = swapped(device).read;
                const Tape::Use use(tape, *model.units[i]);
                if (round > 0)
                  expect_equal("reads for " + model.units[i]->name + " on " +
                                   std::to_string(comm.size()) + " ranks",
                               (swapped(device).read - before) / 4096, reads[i]);
              }
            }
          },
          ranks_with_drive());
    };
    const int64_t shard = 128 / ranks;
    check({}, {6, 0, 0, 0, 0, 0});
    check({.prefetch_bucket_size = 300}, {3, 1, 1, 1, 0, 0});
    check({.offload = {.parameter_buffer = 1}}, {1, 1, 1, 1, 1, 1});
    check({.offload = {.parameter_buffer = 2 * shard}}, {2, 1, 1, 1, 1, 0});
    check({.offload = {.parameter_buffer = 4 * shard + 1}}, {4, 1, 1, 0, 0, 0});
    // The first two units rest on the host and take no room in the buffer.
    check({.offload = {.parameters_on_host = 2 * shard, .parameter_buffer = 2 * shard}},
          {2, 0, 0, 1, 1, 0});
  }
}

TEST_CASE(
    "units that were gathered ahead and not used are freed at the end of the pass, and gathered "
    "again when they are used") {
  for (const Space space : {Space::device, Space::host, Space::file})
    for (const int ranks : {1, 2})
      run_local(
          ranks,
          [&](Communicator& group, const Device& device) {
            const GatheredUnits model(six_units);
            Watching comm(group);
            Engine engine(model.store, comm, device, sharded({.offload = {.parameter = space}}));
            const auto live = [&] {
              return device.memory().live() + device.memory().live(Space::host);
            };
            const int64_t rest = live();
            const std::string name =
                std::string(name_of(space)) + " on " + std::to_string(ranks) + " ranks: ";
            pass(engine, comm, model, "abcdef");
            pass(engine, comm, model, "a");
            const bool shards = space != Space::device || ranks > 1;
            if ((live() > rest) != shards) throw ShapeError(name + "nothing was gathered ahead");
            comm.calls.clear();
            const Tape training = engine.tape();
            // Forward of a step releases the gradient accumulators.
            expect_equal(name + "bytes in another mode", live(),
                         rest - engine.resting_bytes().gradient);
            expect_equal(name + "collectives for unused units",
                         static_cast<int64_t>(comm.calls.size()), 0);
            const std::vector<float> values(128, 0.25f);
            engine.write(*model.parameters[1], Engine::State::master, values);
            Tape tape = engine.inference_tape();
            const Tape::Use use(tape, *model.units[1]);
            const std::vector<double> read =
                tape.parameter(*model.parameters[1]).value().to_doubles();
            if (read != std::vector<double>(128, 0.25))
              throw ShapeError(name + "value " + std::to_string(read[0]) + "; expected 0.25");
          },
          ranks_with_drive());
}
