#include <algorithm>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

// Llama's family by the command: the same bits however the work is divided, plans that are exact,
// and a way to transformers and back.
using namespace zg;
using namespace zg::testing;

namespace {

const std::string small_family =
    " --data sort --n-layer 2 --n-head 4 --n-embd 32 --intermediate-size 40 "
    "--steps 3 --batch-size 2 --threads 1 --score-samples 0 --log-interval 0 --model-type ";
/// GPT-NeoX has no grouped queries.
const std::string families[] = {"gpt_neox",
                                "llama --num-query-groups 2",
                                "mistral --num-query-groups 2 --sliding-window 4",
                                "qwen2 --num-query-groups 2",
                                "qwen3 --num-query-groups 2 --head-dim 12",
                                "olmo2 --num-query-groups 2",
                                "gemma3 --num-query-groups 2 --head-dim 12 --sliding-window 4",
                                "phi3 --num-query-groups 2"};

}  // namespace

TEST_CASE(
    "families with rotary positions train to one hash over ranks, stages, pipelines and offload") {
  const TemporaryFolder folder;
  const std::string layouts[] = {
      " --ranks 2 --zero-stage 3 --grad-accum 2", " --ranks 4 --zero-stage 1",
      " --ranks 4 --pipeline-parallel 2 --zero-stage 3 --grad-accum 2",
      " --zero-stage 3 --offload-optimizer nvme --offload-param nvme --grad-accum 4 --nvme-path " +
          folder.path()};
  int chosen = 0;
  for (const std::string& family : families) {
    CAPTURE(family);
    const std::string run = "train" + small_family + family;
    const std::string alone = hash_of(run + " --grad-accum 4");
    CHECK(alone.size() == 32);
    for (const int more : {0, 1})  // two of the layouts
      CHECK(hash_of(run + layouts[static_cast<size_t>(chosen + more) % 4]) == alone);
    ++chosen;
    const std::string save = folder / family.substr(0, 5);
    hash_of(run + " --grad-accum 4 --steps 2 --save " + save);
    CHECK(hash_of("train --resume " + save +
                  " --steps 3 --ranks 2 --threads 1 --score-samples 0 --log-interval 0") == alone);
  }
}

TEST_CASE("plan predicts the memory of families with rotary positions to the byte") {
  for (const std::string& family : families)
    check_plan_is_run(small_family + family + " --ranks 2 --zero-stage 3");
}

TEST_CASE("a model of Llama's family is exported, read back and continues a prompt") {
  const TemporaryFolder folder;
  const std::string save = folder / "run", hf = folder / "hf";
  const std::string hash = hash_of("train" + small_family + families[1] + " --save " + save);
  CHECK(hash_of("export " + save + " --hf " + hf) == hash);
  checked(zerograd("generate " + save + " --prompt 210021 --length 5 --temperature 0"));
  CHECK(contains(read_file(hf + "/config.json"), "\"model_type\": \"llama\""));
  CHECK(hash_of("train --from-hf " + hf + " --steps 0 --save " + folder / "back") == hash);
}

TEST_CASE("export writes the model that was trained, or refuses it by the field's name") {
  const TemporaryFolder folder;
  const std::string sizes =
      "train --data sort --n-layer 1 --n-head 2 --n-embd 8 --steps 1 "
      "--batch-size 2 --threads 1 --score-samples 0 --log-interval 0";
  struct Setting {
    const char *flag, *field;
    std::vector<std::string> families;  ///< those that have it in transformers
  };
  const Setting settings[] = {
      {"--sliding-window 3", "window is 3", {"mistral", "qwen2", "qwen3", "gemma3", "phi3"}},
      {"--head-dim 6",
       "head_size is 6",
       {"llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma3", "phi3"}},
      {"--intermediate-size 20",
       "hidden is 20",
       {"gpt", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma3", "phi3"}},
      {"--norm-epsilon 0.5",
       "",
       {"gpt", "bloom", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma3", "phi3"}},
  };
  int run = 0;
  for (const std::string family :
       {"gpt", "bloom", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma3", "phi3"})
    for (const Setting& setting : settings) {
      INFO("family ", family, ", flag ", setting.flag);
      const std::string save = folder / std::to_string(++run), hf = save + "_hf";
      const std::string type = family == "gpt" ? "" : " --model-type " + family;
      const std::string hash =
          hash_of(fmt::format("{}{} {} --save {}", sizes, type, setting.flag, save));
      const Outcome exported = zerograd("export " + save + " --hf " + hf);
      CAPTURE(exported.error);
      if (std::ranges::find(setting.families, family) == setting.families.end()) {
        CHECK(exported.status == 6);
        CHECK(contains(exported.error, setting.field));
        CHECK_FALSE(path_exists(hf));
        continue;
      }
      CHECK(exported.status == 0);
      const auto loss_of = [](const std::string& model) {
        return line_after(
            zerograd("eval " + model + " --data sort --score-samples 0 --eval-batches 4").out,
            "val loss ");
      };
      CHECK(loss_of(save).size() == std::string("1.2345").size());
      CHECK(loss_of(hf) == loss_of(save));
      CHECK(hash_of("train --data sort --log-interval 0 --score-samples 0 --from-hf " + hf +
                    " --steps 0") == hash);
    }
  CHECK(contains(zerograd(sizes + " --rotary-base 500").error,
                 "--rotary-base: expected a model with rotary positions"));
}

TEST_CASE(
    "--init refuses weights of a model with other ropes, norms, windows and heads, by the flag") {
  const TemporaryFolder folder;
  const std::string run = "train" + small_family + "qwen3 --num-query-groups 2 --steps 0 ";
  const std::string own = "--rotary-base 500 --norm-epsilon 0.25 --sliding-window 5 --head-dim 12 ";
  const std::string save = folder / "save";
  const std::string hash = hash_of(run + own + "--save " + save);
  CHECK(hash_of(run + own + "--init " + save) == hash);
  for (const std::string flag :
       {"--norm-epsilon 0.25", "--rotary-base 500", "--sliding-window 5", "--kv-channels 12"})
    check_refused(run + "--init " + save, 5, flag);
  check_refused(run + "--norm-epsilon 0.25 --sliding-window 5 --head-dim 12 --init " + save, 5,
                "; try --rotary-base 500");
}
