// The page of a run: envelopes of what streams, and HTML that an XML parser reads.
#include "zerograd/zero/report.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/perceptron.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/metrics.h"

namespace zg::testing {
namespace {

/// Every bucket from the values themselves.
void check_envelope(const zero::Envelope& envelope, const std::vector<double>& values,
                    int64_t first) {
  size_t at = 0;
  for (const zero::Envelope::Bucket& bucket : envelope.buckets()) {
    REQUIRE(bucket.first == first + static_cast<int64_t>(at));
    zero::Envelope::Bucket want{.first = bucket.first, .min = INFINITY, .max = -INFINITY};
    for (int64_t i = 0; i < envelope.width() && at < values.size(); ++i, ++at) {
      const double value = values[at];
      if (!std::isfinite(value)) {
        ++want.bad;
        continue;
      }
      ++want.count;
      want.min = std::min(want.min, value);
      want.max = std::max(want.max, value);
      want.sum += value;
    }
    CAPTURE(bucket.first);
    REQUIRE(bucket.count == want.count);
    REQUIRE(bucket.bad == want.bad);
    REQUIRE(bucket.sum == want.sum);
    if (want.count == 0) continue;
    REQUIRE(bucket.min == want.min);
    REQUIRE(bucket.max == want.max);
  }
  CHECK(at == values.size());
}

zero::StepRecord record_at(int64_t step, double loss) {
  return {.step = step,
          .micro_steps = 1,
          .samples = 4,
          .loss = loss,
          .grad_norm = 1.0 / static_cast<double>(1 + step),
          .rate = 1e-3,
          .loss_scale = 1,
          .skipped = step % 100 == 7,
          .tokens_per_second = 1000,
          .seconds = 0.1,
          .peak_bytes = 1,
          .host_peak_bytes = 1,
          .resumed = step == 6};
}

/// The page, after Python's XML parser has read it.
std::string checked_page(const std::string& path) {
  const std::string parse =
      "python3 -c 'import sys, xml.etree.ElementTree as t; t.parse(sys.argv[1])' " + path;
  REQUIRE_MESSAGE(std::system(parse.c_str()) == 0, path, " is not well-formed");
  const std::string page = read_text(path);
  CHECK_FALSE(contains(page, "http"));
  CHECK_FALSE(contains(page, "src="));
  CHECK(page.size() < 2 << 20);
  return page;
}

std::string checked_page(const zero::RunPage& page) {
  const TemporaryFolder folder;
  write_text(folder / "page.html", page.html());
  return checked_page(folder / "page.html");
}

}  // namespace

TEST_CASE("an envelope has the least, largest and mean value of each bucket, of 1 to 100000") {
  std::mt19937 random(7);
  for (const int64_t first : {0, 1000003})
    for (const int count : {1, 2, 10, 511, 512, 513, 1024, 1025, 100000}) {
      CAPTURE(count);
      zero::Envelope envelope;
      std::vector<double> values;
      for (int i = 0; i < count; ++i) {
        // Whole numbers, whose sums are exact.
        values.push_back(static_cast<double>(random() % 2000) - 1000.0);
        if (random() % 50 == 0) values.back() = NAN;
        if (random() % 50 == 1) values.back() = -INFINITY;
        envelope.add(first + i, values.back());
      }
      CHECK(envelope.buckets().size() <= 512);
      CHECK(envelope.buckets().size() * 2 >= std::min<size_t>(values.size(), 512));
      check_envelope(envelope, values, first);
    }
}

TEST_CASE("an envelope of sparse steps and a far step stays bounded") {
  zero::Envelope envelope;
  for (int64_t step = 0; step < 1000; ++step) envelope.add(1000 * step, 1.0);
  CHECK(envelope.width() == 2048);
  CHECK(envelope.all().count == 1000);
  envelope.add(int64_t{1} << 50, 2.0);
  CHECK(envelope.buckets().size() == 2);
  CHECK(envelope.all().sum == 1002.0);
}

TEST_CASE("ten million steps make a small page, and every curve has them all") {
  zero::RunPage page;
  zero::RunCurves& run = page.runs.emplace_back();
  constexpr int64_t steps = 10'000'000;
  for (int64_t step = 0; step < steps; ++step)
    run.add(record_at(step, step == 5'000'000 ? NAN : static_cast<double>(step % 1024)));
  CHECK(run.loss.width() == 32768);
  CHECK(run.loss.all().count == steps - 1);
  CHECK(run.loss.all().bad == 1);
  CHECK(run.skipped.all().sum == steps / 100);
  for (const zero::Envelope::Bucket& bucket : run.loss.buckets()) {
    CHECK(bucket.min == 0.0);
    CHECK(bucket.max == 1023.0);
  }
  CHECK(contains(checked_page(page), ">100000 skipped<"));
}

TEST_CASE("the page of a file of ten million steps has them all") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl", one = folder / "one.jsonl",
                    head = "{\"step\":";
  zero::MetricsFile(one, /*resumed=*/false, 0).write(record_at(0, 1.0 / 3.0));
  const std::string line = read_text(one);
  REQUIRE(line.starts_with(head + "0,"));
  std::ofstream file(path);
  for (int64_t step = 0; step < 10'000'000; ++step)
    file << head << step << std::string_view(line).substr(head.size() + 1);
  file.close();
  zero::RunPage page;
  page.runs.emplace_back().read(path);
  CHECK(page.runs[0].loss.all().count == 10'000'000);
  CHECK(checked_page(page).size() < 2 << 20);
}

TEST_CASE("a page without steps, with one, and with none that is finite is well-formed") {
  zero::RunPage page;
  checked_page(page);
  page.runs.emplace_back();
  checked_page(page);
  page.runs.front().add(record_at(0, INFINITY));
  CHECK(contains(checked_page(page), ">no finite value<"));
  page.runs.front().add(record_at(1, 2.5));
  CHECK(contains(checked_page(page), ">2.5 to 2.5, last 2.5<"));
  for (int64_t step = 2; step < 20; ++step) page.runs.front().add(record_at(step, -1e300));
  const std::string html = checked_page(page);
  CHECK(contains(html, ">1 skipped<"));
  CHECK(contains(html, ">1 restarted<"));
  CHECK(contains(html, ">not finite<"));
}

TEST_CASE("each chart of a page has the series of its name, and an origin is beside each setting") {
  zero::RunPage page{
      .settings = {{"model", "--seed", "1", "default"}, {"model", "--lr", "2", "flag"}}};
  page.runs.emplace_back().add(record_at(0, 2.5));
  const std::string html = checked_page(page);
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"loss", "2.5"},
                                    {"norm", "1"},
                                    {"rate", "0.001"},
                                    {"throughput", "1000"}})
    CHECK(contains(html, "id=\"" + name + "\" data-points=\"0,1," + value + "," + value + "," +
                             value + ";\""));
  CHECK(contains(html, "<tr class=\"default\"><th>--seed</th><td>1</td><td>default</td>"));
  CHECK(contains(html, "<tr><th>--lr</th><td>2</td><td>flag</td>"));
}

TEST_CASE("a page shows memory by purpose, its peak to the byte, and each rank's bytes by space") {
  MemoryRow row{.step = 0,
                .at = StepPoint::before_forward,
                .live = 0,
                .max = 3 << 20,
                .reserved = 4 << 20,
                .host_max = 0,
                .file_max = 0,
                .phase = "forward",
                .at_max = {1 << 20, 0, 0, 2 << 20, 0, 0},
                .spaces = {}};
  zero::RunPage page{.memory = {{"<run>", {row}}}};
  row.step = 1;
  row.reserved = 6 << 20;
  row.phase = "backward";
  page.memory.front().rows.push_back(row);
  zero::ReportedRank rank{.rank = 3, .peak = 6 << 20};
  rank.stored[static_cast<size_t>(Space::host)] = {0, 0, 5 << 19, 0, 0, 0};
  page.ranks.assign(70, rank);
  const std::string html = checked_page(page);
  CHECK(contains(html, "peak 6291456 bytes, step 1, backward"));
  CHECK(contains(html, "step 0, before_forward: activation 2097152 bytes"));
  CHECK(contains(html, "<b>&lt;run&gt;</b>"));
  CHECK(contains(html,
                 "<td>3</td><td>host</td><td class=\"n\"></td><td class=\"n\"></td>"
                 "<td class=\"n\">2.5</td>"));
  CHECK(contains(html, "<p>and 6 more ranks</p>"));
}

TEST_CASE("a page draws a step's lanes of each rank") {
  constexpr int64_t ms = 1'000'000;
  zero::ReportedTimeline timeline{.step = 7, .end_ns = 100 * ms};
  timeline.ranks.resize(66);
  zero::ReportedTimeline::Rank& rank = timeline.ranks[63];
  rank.lanes[zero::ReportedTimeline::communication] = {{25 * ms, 50 * ms}, {90 * ms, 90 * ms + 1}};
  rank.busy_ns[zero::ReportedTimeline::communication] = 25 * ms;
  const std::string html = checked_page(zero::RunPage{.timeline = timeline});
  CHECK(contains(html, "<h2>Step 7 by rank</h2>"));
  for (const char* tick : {"0 ms", "20 ms", "80 ms", "100 ms"})
    CHECK(contains(html, ">" + std::string(tick) + "</span>"));
  CHECK(contains(html, "<span style=\"left:20.0%;transform:translateX(-20.0%)\">20 ms</span>"));
  CHECK(contains(html,
                 "communication 25 ms, copies 0 ms, waits 0 ms</title>"
                 "<path class=\"lane4\" d=\"M250.0 27h250.0M900.0 27h0.5\"/>"));
  CHECK(contains(html, "<tr><td>63</td>"));
  CHECK(contains(html, "<p>and 2 more ranks</p>"));
}

TEST_CASE("a timeline has the last step of all ranks, whether they share a trace or not") {
  using Timeline = zero::ReportedTimeline;
  for (const bool is_shared : {true, false}) {
    CAPTURE(is_shared);
    const auto trace = std::make_shared<Trace>();
    Timeline got;
    run_local(2, [&](Communicator& ranks, const Device&) {
      const int rank = ranks.rank();
      const std::shared_ptr<Trace> own = is_shared ? trace : std::make_shared<Trace>();
      const auto add = [&](Trace::Kind kind, const char* name, int64_t begin, int64_t end) {
        const int64_t late = 1000 * rank;
        own->span({rank, "compute", kind, name, begin + late, end + late, {}});
      };
      add(Trace::Kind::kernel, "before", 100, 900);
      add(Trace::Kind::kernel, "matmul", 2000, 4000);
      add(Trace::Kind::op, "linear", 2000, 9000);
      add(Trace::Kind::kernel, "matmul", 3000, 5000 + 100 * rank);
      add(Trace::Kind::kernel, "gelu", 5109, 5209);
      add(Trace::Kind::wait, "gather", 10900, 11100);
      own->span({rank, "compute", Trace::Kind::phase, "step", 0, 950, {{"step", 4}}});
      own->span({rank,
                 "compute",
                 Trace::Kind::phase,
                 "step",
                 1000 + 1000 * rank,
                 11000 + 1000 * rank,
                 {{"step", 5}}});
      const Timeline mine = Timeline::of(ranks, *own);
      if (rank == 0) got = mine;
    });
    CHECK(got.step == 5);
    REQUIRE(got.ranks.size() == 2);
    for (size_t rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      const auto late =
          is_shared ? 1000 * static_cast<int64_t>(rank) : got.ranks[rank].lanes[3][0].first - 1000;
      const int64_t more = 100 * static_cast<int64_t>(rank);
      CHECK(got.ranks[rank].busy_ns[Timeline::compute] == 3100 + more);
      const Timeline::Spans joined = {{1000 + late, 4209 + late}},
                            apart = {{1000 + late, 4000 + late}, {4109 + late, 4209 + late}};
      CHECK(got.ranks[rank].lanes[Timeline::compute] == (rank == 1 ? joined : apart));
      CHECK(got.ranks[rank].lanes[Timeline::waits] == Timeline::Spans{{9900 + late, 10000 + late}});
    }
    if (is_shared) CHECK(got.end_ns == 11000);
  }
}

TEST_CASE("a page shows blocks by address and event, and the largest at the peak") {
  zero::RunPage page;
  page.blocks = {.blocks = {{0, 1 << 20, Purpose::parameter, "<weights>", "outside", -1, INT64_MAX},
                            {1 << 20, 3 << 20, Purpose::activation, "x", "forward", 0, 3},
                            {4 << 20, 1 << 19, Purpose::gradient, "dx", "backward", 1, INT64_MAX},
                            {5 << 20, 1 << 19, Purpose::gradient, "dx", "backward", 2, INT64_MAX},
                            {1 << 20, 2 << 20, Purpose::workspace, "late", "step", 4, 5}},
                 .phases = {{0, "forward"}, {1, "backward"}, {4, "step"}},
                 .events = 6};
  const std::string html = checked_page(page);
  CHECK(contains(html, "The line is at the peak, 5242880 bytes."));
  CHECK(contains(html, "x: 3145728 bytes, activation, forward to backward<"));
  CHECK(contains(html, "&lt;weights&gt;: 1048576 bytes, parameter, before the step to after the"));
  const std::string table = html.substr(html.find("the largest tensors at the peak"));
  CHECK(table.find("<td>x</td>") < table.find("<td>&lt;weights&gt;</td>"));
  CHECK(contains(table,
                 "<tr><td class=\"n\">2</td><td class=\"n\">524288</td><td>dx</td>"
                 "<td>gradient</td><td>backward</td><td>after the step</td></tr>"));
  CHECK_FALSE(contains(table, "<td>late</td>"));
  CHECK(contains(html, "<details><summary>backward</summary>"));
}

TEST_CASE("texts on a page are escaped") {
  zero::RunPage page{.title = "</title><script>alert(1)</script>"};
  page.facts = {{"a\"b", "]]>&<!--\x01\xff"}};
  page.settings = {{"<g>", "--n&", "<v>", "'flag'"}};
  page.runs.emplace_back().name = "<i>";
  page.runs.front().add(record_at(0, 1.0));
  page.note = "<note>";
  const std::string html = checked_page(page);
  for (const char* raw : {"<script>alert", "<g>", "--n&<", "<v>", "<i>", "<note>", "<!--"})
    CHECK_FALSE(contains(html, raw));
  CHECK(contains(html, "&lt;/title&gt;&lt;script&gt;alert(1)"));
  CHECK(contains(html, "]]&gt;&amp;&lt;!--\\x01\\xff"));
}

TEST_CASE("curves of a metrics file are those of its records") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  zero::RunCurves written, read;
  {
    zero::MetricsFile file(path, /*resumed=*/false, 0);
    for (int64_t step = 0; step < 9; ++step) {
      const zero::StepRecord record =
          record_at(step, step == 3   ? NAN
                          : step == 4 ? INFINITY
                                      : 1.0 / (1.0 + static_cast<double>(step)));
      file.write(record);
      if (step < 8) written.add(record);
    }
    file.write(zero::FinalRecord{.steps = 9, .skipped = 1, .param_hash = "abc"});
  }
  read.read(path, 8);
  CHECK(read.end == 8);
  CHECK(read.restarts.all().sum == 1.0);
  const auto check = [&](const char* name, zero::Envelope zero::RunCurves::*curve) {
    CAPTURE(name);
    const auto &a = (written.*curve).buckets(), &b = (read.*curve).buckets();
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(a[i].count == b[i].count);
      CHECK(a[i].bad == b[i].bad);
      CHECK(a[i].sum == b[i].sum);
    }
  };
  check("loss", &zero::RunCurves::loss);
  check("norm", &zero::RunCurves::norm);
  check("rate", &zero::RunCurves::rate);
  check("throughput", &zero::RunCurves::throughput);
  check("skipped", &zero::RunCurves::skipped);
  write_text(path, "{\"step\":0,\"loss\":1}\n{\"step\":0,\"loss\":1}\n");
  CHECK(message_of<FileError>([&] { zero::RunCurves().read(path); }) ==
        path + ":2: expected step 1 or a later one, got 0");
  write_text(path, "step,loss\n0,1\n");
  CHECK(message_of<FileError>([&] { zero::RunCurves().read(path); }) ==
        path + ":1: expected a line of --metrics, got 'step,loss'");
}

TEST_CASE("a trainer writes the page of its run by one option") {
  const TemporaryFolder folder;
  Job job{.world = 2, .options = ten_steps()};
  job.options.report = zero::ReportOptions{.path = folder / "page.html", .title = "a net"};
  const std::string with = run(job).hash;
  const std::string html = checked_page(folder / "page.html");
  CHECK(contains(html, "<title>a net</title>"));
  CHECK(contains(html, "id=\"loss\" data-points=\"0,1,"));
  CHECK(contains(html, ";9,1,"));
  CHECK(contains(html, "<td>2, ZeRO stage 0</td>"));
  job.options.trace = std::make_shared<Trace>();
  job.options.trace_first = 2;
  job.options.trace_end = 4;
  CHECK(run(job).hash == with);
  const std::string traced = checked_page(folder / "page.html");
  CHECK(contains(traced, "<h2>Step 3 by rank</h2>"));
  for (const char* rank : {"rank 0", "rank 1"}) {
    const std::string lanes = traced.substr(traced.find(std::string("<span>") + rank), 20000);
    for (const char* lane : {"lane0", "lane1", "lane2", "lane3", "lane4"})
      CHECK_MESSAGE(contains(lanes.substr(0, lanes.find("</svg>")), lane), rank, " lacks ", lane);
  }
  job.options.report->path = folder / "none/page.html";
  std::vector<std::string> warnings;
  job.hooks.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  CHECK(run(job).hash == with);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "page.html"));
  CHECK(contains(warnings[0], "the page is lost, and training goes on"));
}

}  // namespace zg::testing
