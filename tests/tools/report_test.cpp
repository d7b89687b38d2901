// train --report: the page of a run.
#include <cstdlib>
#include <filesystem>

#include "tests/tools/command.h"
#include "zerograd/runtime/text/format.h"

namespace zg::testing {
namespace {

const std::string reported_run =
    "train --data sort --n-layer 2 --n-head 2 --n-embd 16 --batch-size 4 --score-samples 0 "
    "--log-interval 0 ";

/// The page, after Python's XML parser has read it.
std::string page_of(const std::string& path) {
  const std::string parse =
      "python3 -c 'import sys, xml.etree.ElementTree as t; t.parse(sys.argv[1])' '" + path + "'";
  REQUIRE_MESSAGE(std::system(parse.c_str()) == 0, path, " is not well-formed");
  const std::string page = read_file(path);
  CHECK_FALSE(contains(page, "http"));
  CHECK(page.size() < 2 << 20);
  return page;
}

/// The text between two others.
std::string between(const std::string& page, const std::string& begin, const std::string& end) {
  const size_t at = page.find(begin);
  return at == page.npos ? "" : page.substr(at, page.find(end, at) - at);
}

/// The points of a curve: "first,values,least,mean,largest;".
size_t points_in(const std::string& page, const std::string& curve) {
  const std::string points = line_after(page, "<figure class=\"chart\" id=\"" + curve + "\" ");
  return count_of(points.substr(0, points.find("\" data-width")), ";");
}

/// Each rank has computed and communicated in the step of the timeline.
void check_lanes(const std::string& page, int ranks) {
  CHECK(count_of(page, "<span>rank ") == static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = "rank " + std::to_string(rank),
                      lanes = between(page, "<span>" + name + "<", "</svg>");
    for (const char* lane : {"lane0", "lane1", "lane2", "lane3", "lane4"})
      CHECK_MESSAGE(contains(lanes, lane), name, " lacks ", lane, ": ", lanes.substr(0, 300));
  }
}

}  // namespace

TEST_CASE("the page of four ranks with an offload, a skipped step and a restart has them all") {
  const TemporaryFolder folder;
  const std::string page = folder / "page.html", save = folder / "s";
  const Outcome outcome = checked(
      zerograd(reported_run + "--ranks 4 --zero-stage 3 --offload-optimizer host --steps 8 " +
               "--eval-interval 0 --save-interval 2 --max-restarts 1 --precision bf16 " +
               "--inject rank=1,step=5,fault=throw --save " + save + " --metrics " +
               (folder / "m.jsonl") + " --report " + page));
  const std::string html = page_of(page);
  for (const char* curve : {"loss", "norm", "rate", "throughput"}) {
    CAPTURE(curve);
    CHECK(points_in(html, curve) == 8);
  }
  CHECK(contains(html, ">1 restarted<"));
  CHECK(contains(html, "<h2>Step 7 by rank</h2>"));  // the last of those after the restart
  check_lanes(html, 4);
  CHECK_FALSE(contains(html, "skipped<"));
  CHECK(contains(html, "<th>parameter hash</th><td>" + hash_of(outcome) + "</td>"));
  CHECK(contains(html, "<td>4, ZeRO stage 3</td>"));
  CHECK(contains(html, "<th>--offload-optimizer</th><td>host</td><td>flag</td>"));
  CHECK(contains(html, "<th>--seed</th><td>3407</td><td>checkpoint</td>"));
  checked(zerograd(reported_run + "--steps 4 --inject rank=0,step=2,fault=inf --report " + page +
                   " --metrics " + (folder / "skip.jsonl")));
  CHECK(contains(page_of(page), ">1 skipped<"));
  const std::string throughput = between(page_of(page), "id=\"throughput\"", "data-width");
  for (const auto& step : json_lines(folder / "skip.jsonl"))
    if (step.contains("step"))
      CHECK(contains(throughput, fmt::format("{},1,{:.5g},", step.at("step").get<int64_t>(),
                                             step.at("tokens_per_s").get<double>())));
  if (skips_mpi("the timeline of processes")) return;
  checked(mpirun("-np 2 zerograd " + reported_run + "--steps 3 --zero-stage 1 --report " + page));
  check_lanes(page_of(page), 2);
}

TEST_CASE("the peak on the page of a run is that of its plan, and both are in memory-json") {
  const TemporaryFolder folder;
  const std::string page = folder / "page.html", json = folder / "memory.json",
                    flags = "--ranks 2 --zero-stage 3 --offload-optimizer host --steps 3 ";
  const std::string run = reported_run + flags;
  checked(zerograd(run + "--memory-json " + json + " --report " + page));
  const auto record = nlohmann::json::parse(read_file(json));
  const auto& peak = record.at("ranks").at(0).at("peak");
  const std::string shown =
      "<output>peak " + peak.at("reserved").dump() + " bytes, step " + peak.at("step").dump();
  const std::string html = page_of(page);
  CHECK(contains(html, "<b>this run</b>"));
  CHECK(contains(html, "<b>its plan</b>"));
  CHECK(count_of(html, shown) == 2);
  int64_t most = 0;  // in the last step
  const auto& rows = record.at("ranks").at(0).at("rows");
  for (const auto& row : rows)
    if (row.at("step") == 2) most = std::max(most, row.at("max").get<int64_t>());
  const std::string blocks = between(html, "<h2>Memory by tensor", "</section>");
  CHECK_MESSAGE(contains(blocks, "at the peak, " + std::to_string(most) + " bytes"),
                blocks.substr(0, 400));
  CHECK(contains(blocks, "<td>small parameters</td><td>parameter</td>"));
  CHECK(count_of(html, "<td>host</td><td class=\"n\">") == 2);
  checked(zerograd("plan" + run.substr(5) + "--report " + page));
  const std::string planned = page_of(page);
  CHECK(count_of(planned, shown) == 1);
  CHECK(between(planned, "<h2>Memory by tensor", "</section>") == blocks);
  CHECK(count_of(planned, "<td>host</td><td class=\"n\">") == 2);
  CHECK(contains(planned, "<title>plan --data sort "));
  check_refused("plan --data sort --report /nowhere/page", 5, "--report: /nowhere/page");
}

TEST_CASE("earlier runs are drawn beside a run and compared in numbers, other files are refused") {
  const TemporaryFolder folder;
  const std::string page = folder / "page.html", a = folder / "a.jsonl", b = folder / "b<.jsonl",
                    own = reported_run + "--steps 3 --report " + page + " --compare-metrics ";
  checked(zerograd(reported_run + "--steps 5 --inject rank=0,step=2,fault=inf --metrics " + a));
  checked(zerograd(reported_run + "--steps 2 --lr 1e-2 --metrics " + b));
  checked(zerograd(own + a + "," + b));
  const std::string html = page_of(page);
  CHECK(points_in(html, "loss") == 3);
  for (const char* run : {"0", "1", "2"})
    CHECK(count_of(html, std::string("<path class=\"line run") + run + "\"") == 4);
  CHECK(contains(html, "data-last=\"4\""));
  CHECK(contains(html, "></i>" + (folder / "b&lt;.jsonl") + "<"));
  CHECK(contains(html, "<tr><td>this run</td><td class=\"n\">3</td>"));
  const std::string row = line_after(html, "<tr><td>" + a);
  CHECK_MESSAGE(contains(row, "<td class=\"n\">5</td>"), row);
  CHECK_MESSAGE(contains(row, "<td></td><td></td><td class=\"n\">1</td>"), row);
  check_refused(own + page + "x", 5, "--compare-metrics: " + page + "x cannot be read");
  write_file(b, "step,loss\n");
  check_refused(own + a + "," + b, 5, b + ":1: expected a line of --metrics, got 'step,loss'");
  write_file(b, "");
  check_refused(own + b, 5, b + ": expected a line of --metrics for each step, got none");
  check_refused(own + "a,b,c,d,e", 2, "--compare-metrics: expected at most 4 files, got 5");
  check_refused(reported_run + "--compare-metrics " + a, 2, "expected --report F");
  check_refused(own + page, 2, "--compare-metrics and --report: both name ");
}

TEST_CASE("the page of a finetune of adapters has validation and the moments of its adapters") {
  const TemporaryFolder folder;
  const std::string page = folder / "page.html", chat = std::string(ZG_FIXTURES) + "hf_chat";
  checked(zerograd("finetune --from-hf " + chat + " --data " + chat + "/chats.jsonl --val-data " +
                   chat + "/chats.jsonl --chat-format " + chat + "/chat_format.json --lora 2 " +
                   "--block-size 64 --batch-size 2 --steps 4 --eval-interval 2 --log-interval 0 " +
                   "--zero-stage 0 --report " + page));
  const std::string html = page_of(page);
  CHECK(points_in(html, "loss") == 4);
  CHECK(contains(html, "<title>finetune --from-hf "));
  CHECK(contains(html, "<th>--lora</th><td>2</td><td>flag</td>"));
  CHECK(contains(html, "></i>validation loss<"));
  // After 2 of 4 steps, and at the end, which is at step 3 or beyond.
  const std::string line = between(html, "<g class=\"validation\">", "</g>");
  CHECK_MESSAGE(contains(line, " d=\"M666.7 "), line);
  // Two moments of the adapters of a block, alone.
  CHECK(contains(html,
                 "<td class=\"n\">2</td><td class=\"n\">1024</td><td>block.0</td><td>optimizer"));
}

TEST_CASE("a run without steps says that it writes no page, and a restart is not in the title") {
  const TemporaryFolder folder;
  const std::string page = folder / "page.html", save = folder / "s";
  const Outcome none = checked(zerograd(reported_run + "--steps 0 --report " + page));
  CHECK(contains(none.error + none.out, "--report: " + page + " is not written: the run took no"));
  CHECK_FALSE(std::filesystem::exists(page));
  checked(
      zerograd(reported_run + "--steps 1 --save " + save + " --max-restarts 1 --report " + page));
  const std::string html = page_of(page);
  CHECK(contains(html, "--report " + page + "</title>"));
  CHECK_FALSE(contains(html, "restarted"));
  CHECK_FALSE(contains(html, "<th>position."));
  const std::string build = between(html, "<th>build of the program</th><td>", "</td>");
  CHECK_MESSAGE(build.size() == 33 + 40, build);
}

TEST_CASE("without metrics the page of a resumed run says which steps it does not have") {
  const TemporaryFolder folder;
  const std::string save = folder / "s", page = folder / "page.html";
  checked(zerograd(reported_run + "--steps 3 --save " + save));
  checked(zerograd("train --score-samples 0 --steps 5 --resume " + save + " --report " + page));
  const std::string html = page_of(page);
  CHECK(points_in(html, "loss") == 2);
  CHECK(contains(html, "Steps 0 to 2 were before this resume and are not shown"));
}

TEST_CASE("a page has texts of the command line as text, and a run that fails leaves its page") {
  const TemporaryFolder folder;
  const std::string page = folder / "<b>&.html", text = folder / "a<i>.txt";
  write_file(text, std::string(400, 'a') + std::string(400, 'b'));
  std::vector<std::string> words = words_of(
      "train --n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --batch-size 2 --steps 4 "
      "--inject rank=0,step=2,fault=throw");
  for (const std::string& word : {std::string("--data"), text, std::string("--report"), page})
    words.push_back(word);
  checked(zerograd(words), 1);
  const std::string html = page_of(page);
  CHECK(contains(html, "a&lt;i&gt;.txt"));
  CHECK_FALSE(contains(html, "<i>.txt"));
  CHECK(points_in(html, "loss") == 2);
}

TEST_CASE("a page that cannot be written is a file error, before or after the training") {
  const TemporaryFolder folder;
  check_refused(reported_run + "--steps 1 --report /nowhere/page", 5,
                "--report: /nowhere/page cannot be written");
  const Outcome outcome = checked(zerograd(reported_run + "--steps 1 --report /dev/full"), 5);
  CHECK(contains(outcome.error, "warning: --report: "));
  CHECK(contains(outcome.out, "param_hash "));
}

TEST_CASE(
    "a full disk is a warning for metrics while training goes on, and ends an audit's start") {
  const Outcome metrics = checked(zerograd(reported_run + "--steps 1 --metrics /dev/full"), 5);
  CHECK(contains(metrics.error, "warning: --metrics: writing /dev/full failed: "));
  CHECK(contains(metrics.error, "; no more of it is written, and training goes on\n"));
  CHECK_FALSE(contains(metrics.error, "error: "));
  CHECK(contains(metrics.out, "param_hash "));
  check_refused(reported_run + "--steps 1 --audit /dev/full", 5,
                "error: FileError: audit: writing /dev/full failed: No space left on "
                "device; free space there, or try a path on another disk");
}

}  // namespace zg::testing
