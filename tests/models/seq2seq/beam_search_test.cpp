#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/models/seq2seq/beam_case.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/seq2seq/beam_search.h"

// tests/reference/make_beam_fixtures.py makes the fixtures with transformers.
using namespace zg;
using namespace zg::models;
using namespace zg::testing;
using nlohmann::json;

namespace {

/// The model of make_beam_fixtures.py. It stores the tokens of every row, as a real model stores
/// keys and values. So its logits equal those of transformers only if from_rows names the right
/// rows to continue.
class TableModel {
 public:
  explicit TableModel(const json& test_case)
      : case_(test_case),
        sources_(test_case["sources"].get<TokenRows>()),
        vocabulary_(test_case["vocabulary"]) {}

  NextLogits next_logits() {
    return [this](const BeamStep& step) { return logits(step); };
  }
  int64_t calls = 0;

 private:
  struct Row {
    size_t source;
    std::vector<int32_t> tokens;
  };

  static uint32_t mix(uint32_t h) {
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
  }

  std::vector<float> logits(const BeamStep& step) {
    const size_t rows = step.from_rows.size(), T = step.tokens.size() / rows;
    std::vector<Row> next;
    for (size_t r = 0; r < rows; ++r) {
      const auto from = static_cast<size_t>(step.from_rows[r]);
      next.push_back(calls == 0 ? Row{from, {}} : rows_.at(from));
      CHECK(next.back().tokens.size() == static_cast<size_t>(step.position));
      const auto fresh = step.tokens.subspan(r * T, T);
      next.back().tokens.insert(next.back().tokens.end(), fresh.begin(), fresh.end());
    }
    rows_ = std::move(next);
    ++calls;
    std::vector<float> result;
    for (const Row& row : rows_) append_logits(row, result);
    return result;
  }

  void append_logits(const Row& row, std::vector<float>& result) const {
    const auto first = static_cast<uint32_t>(sources_.at(row.source)[0]);
    const auto last = row.tokens.rbegin();
    const uint32_t before = row.tokens.size() > 1 ? static_cast<uint32_t>(last[1]) : vocabulary_;
    const uint32_t state = mix(mix(mix(case_["seed"].get<uint32_t>() + first) + before) +
                               static_cast<uint32_t>(last[0]));
    const size_t begin = result.size();
    for (uint32_t token = 0; token < vocabulary_; ++token)
      result.push_back(static_cast<float>(mix(state + token) >> 16) / 65536 *
                       case_["scale"].get<float>());
    for (const auto& [token, bias] : case_["bias"].items())
      result[begin + std::stoul(token)] += bias.get<float>();
    for (const json& token : case_["banned"]) result[begin + token.get<size_t>()] = -infinity;
  }

  const json& case_;
  TokenRows sources_;
  uint32_t vocabulary_;
  std::vector<Row> rows_;
};

const json& beam_fixture() {
  static const json fixture = json::parse(read_file(std::string(ZG_FIXTURES) + "beam_search.json"));
  return fixture;
}

void check_beam_case(const json& test_case) {
  TableModel model(test_case);
  check_generated(test_case, model.next_logits());
}

/// Checks the cases whose names contain `part`. There must be at least `count` of them.
void check_beam_cases(const std::string& part, int count) {
  for (const json& test_case : beam_fixture()["cases"])
    if (contains(test_case["name"].get<std::string>(), part)) {
      check_beam_case(test_case);
      --count;
    }
  CHECK(count <= 0);
}

/// Logits [rows, V] that are the same for every row.
NextLogits constant_logits(const std::vector<float>& row) {
  return [row](const BeamStep& step) {
    std::vector<float> logits;
    for (size_t i = 0; i < step.from_rows.size(); ++i)
      logits.insert(logits.end(), row.begin(), row.end());
    return logits;
  };
}

std::string beam_error(const BeamOptions& options, const std::vector<float>& row = {0, 1, 2},
                       int64_t vocabulary = 3) {
  return message_of<ConfigError>(
      [&] { beam_search(constant_logits(row), vocabulary, {{1}}, options); });
}

}  // namespace

TEST_CASE("greedy search generates the tokens of transformers, with each option") {
  check_beam_cases(", 1 beams", 30);
}

TEST_CASE("beam search generates the tokens and scores of transformers, with each option") {
  check_beam_cases(", 4 beams", 50);
  check_beam_cases(", 10 beams", 50);
}

TEST_CASE("generation with several options at once gives the tokens of transformers") {
  check_beam_cases("combination", 50);
}

TEST_CASE(
    "the first call of a beam search has a row for each source, the others one for each beam") {
  std::vector<std::vector<int64_t>> from_rows;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<int64_t> positions;
  std::vector<bool> may_reorder;
  const NextLogits constant = constant_logits({0, 3, 2, 1, -1});
  const NextLogits recording = [&](const BeamStep& step) {
    from_rows.emplace_back(step.from_rows.begin(), step.from_rows.end());
    tokens.emplace_back(step.tokens.begin(), step.tokens.end());
    positions.push_back(step.position);
    may_reorder.push_back(step.may_reorder);
    return constant(step);
  };
  BeamOptions options{.beams = 2, .start = {4, 3}, .eos = {0}, .max_new_tokens = 3};
  beam_search(recording, 5, {{1}, {2}}, options);
  CHECK(positions == std::vector<int64_t>{0, 2, 3});
  CHECK(tokens[0] == std::vector<int32_t>{4, 3, 4, 3});
  CHECK(from_rows[0] == std::vector<int64_t>{0, 1});
  CHECK(tokens[1] == std::vector<int32_t>{1, 2, 1, 2});
  CHECK(from_rows[1] == std::vector<int64_t>{0, 0, 1, 1});
  CHECK(from_rows[2].size() == 4);
  CHECK(may_reorder == std::vector<bool>{false, true, true});

  options.beams = 1;
  from_rows.clear();
  tokens.clear();
  may_reorder.clear();
  beam_search(recording, 5, {{1}, {2}}, options);
  CHECK(tokens == TokenRows{{4, 3, 4, 3}, {1, 1}, {1, 1}});
  CHECK(from_rows == std::vector<std::vector<int64_t>>{{0, 1}, {0, 1}, {0, 1}});
  CHECK(may_reorder == std::vector<bool>{false, false, false});
}

TEST_CASE("samples follow the options of generation, and a row does not depend on other rows") {
  const NextLogits logits = constant_logits({0, 1, 2, 1.5, 0.5});
  BeamOptions options{.start = {4},
                      .eos = {0},
                      .pad = 1,
                      .max_new_tokens = 6,
                      .min_new_tokens = 3,
                      .encoder_no_repeat_ngram_size = 1,
                      .sampling = SamplingOptions{.temperature = 2.0, .seed = 5}};
  const TokenRows sources(40, {2});
  const TokenRows rows = beam_search(logits, 5, sources, options).rows;
  std::set<std::vector<int32_t>> different(rows.begin(), rows.end());
  CHECK(different.size() > 20);
  bool early = false;
  for (const std::vector<int32_t>& row : rows) {
    CHECK(std::ranges::count(row, 2) == 0);
    CHECK(std::count(row.begin(), row.begin() + 4, 0) == 0);
    const auto end = std::ranges::find(row, 0);
    if (end == row.end()) continue;
    early = true;
    CHECK(std::count(end + 1, row.end(), 1) == row.end() - end - 1);
  }
  CHECK(early);
  CHECK(beam_search(logits, 5, sources, options).rows == rows);
  const TokenRows fewer = beam_search(logits, 5, {{2}, {2}}, options).rows;
  for (size_t row = 0; row < fewer.size(); ++row)
    CHECK(std::equal(fewer[row].begin(), fewer[row].end(), rows[row].begin()));
  options.sampling->temperature = 0.0;
  CHECK(beam_search(logits, 5, {{2}}, options).rows == TokenRows{{4, 3, 3, 3, 3, 3, 3}});
}

TEST_CASE("generation refuses invalid options and says field, expected and actual value") {
  const BeamOptions valid{.start = {1}, .eos = {0}};
  CHECK(beam_error(valid) == "nothing was thrown");
  const auto refused = [&](const std::string& message, auto change) {
    BeamOptions options = valid;
    change(options);
    CHECK(beam_error(options) == "beam_search: expected " + message);
  };
  refused("beams from 1 to 1024, got 0", [](BeamOptions& o) { o.beams = 0; });
  refused("return_sequences from 1 to beams, 1, got 2",
          [](BeamOptions& o) { o.return_sequences = 2; });
  refused("return_sequences from 1 to beams, 1, got 0",
          [](BeamOptions& o) { o.return_sequences = 0; });
  refused("start with the decoder's first token, got none", [](BeamOptions& o) { o.start = {}; });
  refused("start in the vocabulary, [0, 3), got 3", [](BeamOptions& o) { o.start = {3}; });
  refused("eos in the vocabulary, [0, 3), got -1", [](BeamOptions& o) { o.eos = {1, -1}; });
  refused("pad in the vocabulary, [0, 3), got 7", [](BeamOptions& o) { o.pad = 7; });
  refused("forced_bos in the vocabulary, [0, 3), got 4", [](BeamOptions& o) { o.forced_bos = 4; });
  refused("forced_eos in the vocabulary, [0, 3), got 5",
          [](BeamOptions& o) { o.forced_eos = {5}; });
  refused("max_length above the 1 tokens of start, got 1",
          [](BeamOptions& o) { o.max_length = 1; });
  refused("max_new_tokens from 1, got 0", [](BeamOptions& o) { o.max_new_tokens = 0; });
  refused("min_length from 0, got -1", [](BeamOptions& o) { o.min_length = -1; });
  refused("min_new_tokens from 0, got -2", [](BeamOptions& o) { o.min_new_tokens = -2; });
  refused("no_repeat_ngram_size from 0, got -1",
          [](BeamOptions& o) { o.no_repeat_ngram_size = -1; });
  refused("encoder_no_repeat_ngram_size from 0, got -3",
          [](BeamOptions& o) { o.encoder_no_repeat_ngram_size = -3; });
  refused("a finite length_penalty, got inf", [](BeamOptions& o) { o.length_penalty = infinity; });
  refused("beams of 1 for sampling, got 2", [](BeamOptions& o) {
    o.beams = 2;
    o.sampling = SamplingOptions{};
  });
  refused("a vocabulary of at least 4 tokens for beams > 1, got 3", [](BeamOptions& o) {
    o.beams = 2;
    o.eos = {0, 1, 2};
  });
  BeamOptions sampling = valid;
  sampling.sampling = SamplingOptions{.top_p = 2.0};
  CHECK(beam_error(sampling) == "sampling: expected top_p in (0, 1], got 2.000000");
}

TEST_CASE("generation refuses logits that no token can be chosen from") {
  for (int64_t beams : {1, 2}) {
    const BeamOptions options{.beams = beams, .start = {1}, .eos = {0}};
    CHECK(beam_error(options, {0, 1}) == "beam_search: expected logits [1, 3], got 2");
    for (const std::vector<float>& unusable : {std::vector<float>{0, not_a_number, 1},
                                               {not_a_number, 0, 1},
                                               {0, infinity, 1},
                                               {-infinity, -infinity, -infinity}})
      CHECK(contains(beam_error(options, unusable), "expected logits with a finite maximum"));
  }
  BeamOptions options{.start = {1}, .no_repeat_ngram_size = 1, .sampling = SamplingOptions{}};
  CHECK(contains(beam_error(options), "the options ban every token at position 2"));
  CHECK_ERROR(ConfigError, "expected at least one source, got none",
              beam_search(constant_logits({}), 3, {}, options));
}
