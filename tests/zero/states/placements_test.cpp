#include <stdexcept>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using enum Space;
using zero::Config;
using zero::Engine;

namespace {

/// Units of 1000, 2000 and 1000 elements: 1024, 2048 and 1024 with padding.
struct PlacedUnits {
  ParameterStore store;
  const Unit& a = store.unit("a");
  const Unit& b = store.unit("b");
  const Unit& c = store.unit("c");
  PlacedUnits() {
    store.add(a, "a.weight", {1000}, Init::normal(0.1f));
    store.add(b, "b.weight", {2000}, Init::normal(0.1f));
    store.add(c, "c.weight", {1000}, Init::normal(0.1f));
  }
};

Config with(const zero::OffloadOptions& offload) {
  return {.stage = 3, .offload = offload, .param_persistence_threshold = 0};
}

/// How many f32 elements are allocated in `space` for `purpose`.
int64_t elements(const Device& device, Space space, Purpose purpose) {
  return device.memory().live_by_purpose(space)[static_cast<size_t>(purpose)] / 4;
}

Device with_drive() { return Device::cpu(0, {.swap = {.directory = "/tmp"}}); }

}  // namespace

TEST_CASE(
    "optimizer_ratio offloads optimizer states of whole units, from the first, to at least that "
    "share") {
  const struct {
    double ratio;
    int64_t on_host;  ///< elements of the units that are offloaded, with padding
  } cases[] = {{0.0, 0}, {0.2, 1024}, {0.25, 1024}, {0.5, 1024 + 2048}, {0.8, 4096}, {1.0, 4096}};
  for (const auto& [ratio, on_host] : cases) {
    CAPTURE(ratio);
    const PlacedUnits model;
    const Device cpu = Device::cpu();
    const Engine engine(model.store, cpu, with({.optimizer = host, .optimizer_ratio = ratio}));
    CHECK(elements(cpu, host, Purpose::optimizer) == 2 * on_host);  // two moments
    CHECK(elements(cpu, Space::device, Purpose::optimizer) == 2 * (4096 - on_host));
  }
}

TEST_CASE(
    "optimizer_ratio counts trainable elements only, because frozen ones have no optimizer "
    "states") {
  ParameterStore store;
  store.add(store.unit("frozen"), "frozen", {1000}, Init::zeros(), {.trainable = false});
  store.add(store.unit("a"), "a", {1000}, Init::zeros());
  store.add(store.unit("b"), "b", {1000}, Init::zeros());
  const Device cpu = Device::cpu();
  const Engine engine(store, cpu, with({.optimizer = host, .optimizer_ratio = 0.5}));
  CHECK(elements(cpu, host, Purpose::optimizer) == 2 * 1024);
  CHECK(elements(cpu, Space::device, Purpose::optimizer) == 2 * 1024);
}

TEST_CASE(
    "with parameters on disk, a unit that fits in the rest of parameters_on_host is on the host "
    "instead") {
  const struct {
    int64_t limit, on_host;
  } cases[] = {{0, 0}, {999, 0}, {1000, 1024}, {2500, 2048}, {3000, 3072}, {4000, 4096}};
  for (const auto& [limit, on_host] : cases) {
    CAPTURE(limit);
    const PlacedUnits model;
    const Device cpu = with_drive();
    const Engine engine(model.store, cpu, with({.parameter = file, .parameters_on_host = limit}));
    CHECK(elements(cpu, host, Purpose::parameter) == on_host);
    // A file's ranges are rounded up to whole blocks. The padded units are multiples of a block.
    CHECK(elements(cpu, file, Purpose::parameter) == 4096 - on_host);
  }
}

TEST_CASE(
    "units are read ahead from disk only as far as they fit into parameter_buffer beside the unit "
    "in use") {
  const struct {
    int64_t buffer;  ///< parameter_buffer
    int64_t ahead;   ///< elements of b's and c's shards on the host while a is used
  } cases[] = {{1, 0},
               {512 + 1023, 0},
               {512 + 1024, 1024},
               {512 + 1024 + 511, 1024},
               {512 + 1024 + 512, 1024 + 512},
               {500'000'000, 1024 + 512}};
  for (const auto& [buffer, ahead] : cases) {
    CAPTURE(buffer);
    run_local(
        2,
        [&, buffer = buffer, ahead = ahead](Communicator& comm, const Device& cpu) {
          const PlacedUnits model;
          Config config = with({.parameter = file, .parameter_buffer = buffer});
          config.prefetch_units = 8;
          Engine engine(model.store, comm, cpu, config);
          // Pass 0 records the order of the units. Pass 1 reads ahead in that order.
          for (int pass = 0; pass < 2; ++pass) {
            Tape tape = engine.inference_tape();
            for (const Unit* unit : {&model.a, &model.b, &model.c}) {
              const Tape::Use use(tape, *unit);
              if (pass == 1 && unit == &model.a && elements(cpu, host, Purpose::parameter) != ahead)
                throw std::runtime_error("another number of elements was read ahead");
            }
          }
        },
        {.device = {.swap = {.directory = "/tmp"}}});
  }
}

TEST_CASE("offload options out of range are refused") {
  const PlacedUnits model;
  const Device cpu = Device::cpu();
  for (const zero::OffloadOptions& offload :
       {zero::OffloadOptions{.optimizer_ratio = -0.1}, zero::OffloadOptions{.optimizer_ratio = 1.1},
        zero::OffloadOptions{.parameters_on_host = -1},
        zero::OffloadOptions{.parameter_buffer = 0}})
    CHECK_THROWS_AS(Engine(model.store, cpu, with(offload)), ConfigError);
}
