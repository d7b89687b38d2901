#include "zerograd/runtime/trace.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "tests/support/trace_events.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/swap.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

struct TracedRun {
  std::vector<TraceEvent> events;
  std::vector<WireCounts> wire;  ///< by rank
  std::vector<SwapCount> disk;
};

/// Three steps of the toy, all of them traced.
TracedRun traced_run(const Config& config, int ranks) {
  const TemporaryFolder folder;
  const auto trace = std::make_shared<Trace>();
  TracedRun run{.events = {},
                .wire = std::vector<WireCounts>(static_cast<size_t>(ranks)),
                .disk = std::vector<SwapCount>(static_cast<size_t>(ranks))};
  run_local(ranks,
            [&](Communicator& comm, const Device& device) {
              const Toy toy;
              Engine engine(toy.store, comm, device, config);
              const SwapCount before = swapped(device);
              const WireCounts wire_before = comm.wire();
              device.set_trace(trace, comm.rank());
              for (int64_t step = 0; step < 3; ++step) train_step(engine, 2 * step + comm.rank());
              device.set_trace(nullptr);
              WireCounts& wire = run.wire[static_cast<size_t>(comm.rank())] = comm.wire();
              for (size_t c = 0; c < wire.size(); ++c) {
                wire[c].calls -= wire_before[c].calls;
                wire[c].bytes -= wire_before[c].bytes;
              }
              const SwapCount after = swapped(device);
              run.disk[static_cast<size_t>(comm.rank())] = {
                  .read = after.read - before.read, .written = after.written - before.written};
            },
            {.device = {.swap = {.directory = "/tmp"}}});
  trace->write(folder / "trace.json");
  run.events = trace_events(folder / "trace.json");
  return run;
}

/// The names of the spans of one category on one track of a rank.
std::set<std::string> names_on(const TracedRun& run, int rank, const std::string& track,
                               const std::string& category) {
  std::set<std::string> names;
  for (const TraceEvent& event : run.events)
    if (event.rank == rank && event.track == track && event.category == category)
      names.insert(event.name);
  return names;
}

/// Calls and bytes of the collectives in a rank's spans.
WireCounts wire_in(const TracedRun& run, int rank) {
  WireCounts counts{};
  for (const TraceEvent& event : run.events) {
    if (event.rank != rank || event.category != "collective") continue;
    for (int c = 0; c < collective_count; ++c)
      if (event.name.starts_with(name_of(static_cast<Collective>(c)) + std::string(" "))) {
        ++counts[static_cast<size_t>(c)].calls;
        counts[static_cast<size_t>(c)].bytes += event.arguments.at("bytes").get<int64_t>();
      }
  }
  return counts;
}

void check_wire(const TracedRun& run) {
  for (size_t rank = 0; rank < run.wire.size(); ++rank) {
    const WireCounts traced = wire_in(run, static_cast<int>(rank));
    for (int c = 0; c < collective_count; ++c) {
      INFO("rank ", rank, ", ", std::string(name_of(static_cast<Collective>(c))));
      CHECK(traced[static_cast<size_t>(c)].calls == run.wire[rank][static_cast<size_t>(c)].calls);
      CHECK(traced[static_cast<size_t>(c)].bytes == run.wire[rank][static_cast<size_t>(c)].bytes);
    }
  }
}

}  // namespace

TEST_CASE("a trace of stage 3 with offload has every collective that the ranks ran, by unit") {
  using Names = std::set<std::string>;
  for (const bool overlaps : {true, false}) {
    CAPTURE(overlaps);
    const TracedRun run = traced_run({.stage = 3,
                                      .compute = DType::bf16,
                                      .offload = {.parameter = Space::host,
                                                  .gradient = Space::host,
                                                  .optimizer = Space::host,
                                                  .activation = Space::host},
                                      .overlap_comm = overlaps,
                                      .reduce_bucket_size = 100,  // several buckets of a unit
                                      .allgather_bucket_size = 70,
                                      .param_persistence_threshold = 10},
                                     2);
    CHECK(misnested(run.events) == "");
    check_wire(run);
    CHECK(run.wire[0][static_cast<size_t>(Collective::all_gather)].bytes > 0);
    CHECK(run.wire[0][static_cast<size_t>(Collective::reduce_scatter)].bytes > 0);
    for (const int rank : {0, 1}) {
      CAPTURE(rank);
      CHECK(names_on(run, rank, "communication", "collective") ==
            Names{"all_gather first values", "all_gather second values",
                  "all_gather small parameters values", "reduce_scatter first gradients",
                  "reduce_scatter second gradients", "reduce_scatter small parameters gradients",
                  "all_reduce gradient norm"});
      CHECK(names_on(run, rank, "communication", "wait") == Names{"wait for peers"});
      CHECK(names_on(run, rank, "compute", "unit") == Names{"first", "second"});
      CHECK(names_on(run, rank, "compute", "op") == Names{"distance"});
      CHECK(names_on(run, rank, "copies", "copy") ==
            Names{"activation of first", "activation of second", "activation of distance"});
    }
  }
}

TEST_CASE("a trace of states on a disk has every transfer, by unit and state") {
  using Names = std::set<std::string>;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TracedRun run = traced_run({.stage = 3,
                                      .compute = DType::bf16,
                                      .offload = {.parameter = Space::file,
                                                  .gradient = Space::file,
                                                  .optimizer = Space::file,
                                                  .activation = Space::file,
                                                  .sub_group_size = 64},
                                      .param_persistence_threshold = 0},
                                     ranks);
    CHECK(misnested(run.events) == "");
    check_wire(run);
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      Names expected;
      for (const std::string unit : {"first", "second"}) {
        for (const std::string state : {"masters", "moment1", "moment2", "gradients"})
          expected.insert("read " + unit + " " + state);
        for (const std::string state : {"masters", "moment1", "moment2", "gradients", "values"})
          expected.insert("write " + unit + " " + state);
        expected.insert("read " + unit + " values");
        expected.insert("write " + unit);  // an activation, with the name of the running unit
      }
      expected.insert("read distance");
      CHECK(names_on(run, rank, "disk", "copy") == expected);
      // Transfers move whole blocks of 4096 bytes: at most one extra block at each end of a span.
      int64_t bytes[2] = {}, spans[2] = {};
      for (const TraceEvent& event : run.events)
        if (event.rank == rank && event.track == "disk") {
          const bool writes = event.name.starts_with("write ");
          bytes[writes] += event.arguments.at("bytes").get<int64_t>();
          ++spans[writes];
        }
      const auto& [read, written] = run.disk[static_cast<size_t>(rank)];
      for (const bool writes : {false, true}) {
        CAPTURE(writes);
        const int64_t moved = writes ? written : read;
        CHECK(bytes[writes] > 0);
        CHECK(bytes[writes] <= moved);
        CHECK(moved < bytes[writes] + 2 * file_granule * spans[writes]);
      }
    }
  }
}

TEST_CASE("a trace shows which call a rank waits for when its peer is late") {
  // Whether rank 0 waits depends on the machine: rank 1 starts its collective 20 ms after rank 0
  // has started its own, and on a busy machine rank 0 may not wait yet. So the test makes up to 20
  // attempts.
  bool seen = false;
  for (int round = 0; round < 20 && !seen; ++round) {
    const auto trace = std::make_shared<Trace>();
    std::atomic<bool> waits = false;
    run_local(2, [&](Communicator& comm, const Device& device) {
      device.set_trace(trace, comm.rank());
      const std::vector<int> both = {0, 1};
      const auto group = comm.group(both, "pair");
      const Tensor shard = Tensor::full({50}, 1.0, DType::f32, device);
      const Tensor full = Tensor::empty({100}, DType::f32, device);
      if (comm.rank() == 1) {
        while (!waits) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      const auto ticket = group->all_gather(shard, full, "block.0 values");
      if (comm.rank() == 0) waits = true;
      group->wait(ticket);
      device.set_trace(nullptr);
    });
    for (const Trace::Span& span : trace->spans()) {
      if (span.kind == Trace::Kind::collective) {
        CHECK(span.track == "communication, pair");
        CHECK(span.name == "all_gather block.0 values");
        REQUIRE(span.find("bytes"));
        CHECK(std::get<int64_t>(*span.find("bytes")) == 200);
        CHECK(std::get<std::string>(*span.find("dtype")) == "f32");
        CHECK(std::get<int64_t>(*span.find("elements")) == 50);
        CHECK(std::get<int64_t>(*span.find("queued_us")) >= 0);
      }
      seen = seen || (span.rank == 0 && span.kind == Trace::Kind::wait && span.track == "compute" &&
                      span.name == "wait for all_gather block.0 values" &&
                      span.end_ns - span.begin_ns > 1'000'000);
    }
  }
  CHECK(seen);
}

TEST_CASE(
    "training has the same bits with and without a trace, and untraced steps record no spans") {
  std::string hashes[2];
  for (const bool traces : {false, true}) {
    const auto trace = std::make_shared<Trace>();
    run_local(2, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = 3, .param_persistence_threshold = 0});
      for (int64_t step = 0; step < 4; ++step) {
        if (traces && step == 2) device.set_trace(trace, comm.rank());
        train_step(engine, 2 * step + comm.rank());
        device.set_trace(nullptr);
      }
      const std::string hash = engine.parameter_hash();
      if (comm.rank() == 0) hashes[traces] = hash;
    });
    CHECK(trace->is_empty() != traces);
    size_t updates = 0;
    for (const Trace::Span& span : trace->spans()) updates += span.name == "optimizer_update";
    CHECK(updates == (traces ? 2 : 0));  // one step on two ranks
  }
  CHECK(hashes[0] == hashes[1]);
}
