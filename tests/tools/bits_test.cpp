#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string run =
    "train --data sort --score-samples 0 --log-interval 0 --threads 1 --steps 3 --batch-size 4 ";

}  // namespace

TEST_CASE("train gives one hash at every instruction set") {
  const std::string models[] = {
      "--model-type gpt-nano", "--model-type bloom --n-layer 2 --n-head 3 --n-embd 48 --untied",
      "--model-type llama --n-layer 2 --n-head 4 --num-query-groups 2 --n-embd 56",
      "--model-type gemma3 --n-layer 2 --n-head 2 --n-embd 40"};
  for (const std::string& model : models)
    for (const char* precision : {"f32", "bf16", "f16"}) {
      std::string expected;
      for (const Isa isa : available_levels()) {
        if (isa > Isa::avx512_bf16) continue;
        const ScopedVariable level("ZG_CPU_ISA", name_of(isa));
        const std::string hash = hash_of(called(run + model + " --precision " + precision));
        CAPTURE(model);
        CAPTURE(precision);
        CAPTURE(name_of(isa));
        if (expected.empty()) expected = hash;
        CHECK(hash == expected);
      }
    }
}

TEST_CASE("generate gives one text at every instruction set") {
  const TemporaryFolder folder;
  hash_of(called(run + "--model-type gpt-nano --save " + (folder / "c")));
  std::vector<std::string> texts;
  for (const Isa isa : available_levels()) {
    if (isa > Isa::avx512_bf16) continue;
    const ScopedVariable level("ZG_CPU_ISA", name_of(isa));
    for (const char* precision : {"f32", "bf16"})
      texts.push_back(checked(called("generate " + (folder / "c") +
                                     " --prompt 210 --length 4 --dtype " + precision))
                          .out);
  }
  for (size_t i = 2; i < texts.size(); ++i) CHECK(texts[i] == texts[i % 2]);
}

TEST_CASE("a run with other bits than its checkpoint says so") {
  const TemporaryFolder folder;
  hash_of(called(run + "--model-type gpt-nano --save " + (folder / "c")));
  const Outcome resumed = called(
      "train --log-interval 0 --score-samples 0 --steps 4 --bits fast --resume " + (folder / "c"));
  CHECK(resumed.status == 0);
  CHECK(contains(resumed.out + resumed.error,
                 "changed: run.bits: \"portable\" in the checkpoint, \"fast\" now"));
  const Outcome same =
      called("train --log-interval 0 --score-samples 0 --steps 5 --resume " + (folder / "c"));
  CHECK(same.status == 0);
}

}  // namespace zg::testing
