// BlenderBot and BART generate what transformers generates with them.

#include "tests/models/seq2seq/beam_case.h"
#include "tests/models/seq2seq/seq2seq_case.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;
using nlohmann::json;

TEST_CASE("BlenderBot and BART generate the tokens of transformers with 1, 4 and 10 beams") {
  const json fixture = json::parse(read_file(std::string(ZG_FIXTURES) + "beam_models.json"));
  int count = 0;
  for (const char* name : seq2seq_fixtures) {
    Seq2SeqFixtureCase test{Seq2SeqFixture(name)};
    for (const json& test_case : fixture["cases"]) {
      if (test_case["model"] != name) continue;
      const auto sources = test_case["sources"].get<TokenRows>();
      std::vector<int32_t> ids;
      for (const std::vector<int32_t>& row : sources) ids.insert(ids.end(), row.begin(), row.end());
      const auto rows = static_cast<int64_t>(sources.size());
      const auto lengths = test_case["lengths"].get<std::vector<int32_t>>();
      const NextLogits next_logits = next_logits_of(
          test.model, [&] { return test.tape(TapeMode::inference); },
          Tensor::from(ids, {rows, static_cast<int64_t>(sources[0].size())}, test.device),
          Tensor::from(lengths, {rows}, test.device));
      // The logits, of magnitude 10 at most, differ by rounding in both programs: 1e-6 relative.
      check_generated(test_case, next_logits, 1e-5f);
      ++count;
    }
  }
  CHECK(count >= 24);
}
