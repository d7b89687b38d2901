// train --report: the page of a run.
#include <cstdlib>

#include "tests/tools/command.h"

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

/// The points of a curve: "first,values,least,mean,largest;".
size_t points_in(const std::string& page, const std::string& curve) {
  const std::string points = line_after(page, "<figure class=\"chart\" id=\"" + curve + "\" ");
  return count_of(points.substr(0, points.find("\" data-width")), ";");
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
  CHECK_FALSE(contains(html, "skipped<"));
  CHECK(contains(html, "<th>parameter hash</th><td>" + hash_of(outcome) + "</td>"));
  CHECK(contains(html, "<td>4, ZeRO stage 3</td>"));
  CHECK(contains(html, "<th>--offload-optimizer</th><td>host</td><td>flag</td>"));
  CHECK(contains(html, "<th>--seed</th><td>3407</td><td>checkpoint</td>"));
  checked(zerograd(reported_run + "--steps 4 --inject rank=0,step=2,fault=inf --report " + page));
  CHECK(contains(page_of(page), ">1 skipped<"));
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
  CHECK(count_of(html, "<td>host</td><td class=\"n\">") == 2);
  checked(zerograd("plan" + run.substr(5) + "--report " + page));
  const std::string planned = page_of(page);
  CHECK(count_of(planned, shown) == 1);
  CHECK(count_of(planned, "<td>host</td><td class=\"n\">") == 2);
  CHECK(contains(planned, "<title>plan --data sort "));
  check_refused("plan --data sort --report /nowhere/page", 5, "--report: /nowhere/page");
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

}  // namespace zg::testing
