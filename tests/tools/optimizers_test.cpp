#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

// The optimizers by the command: one hash however the work is divided, exact plans, and a
// checkpoint that says which optimizer it is from.
using namespace zg;
using namespace zg::testing;

namespace {

const std::string optimizer_run =
    " --data sort --model-type gpt-nano --steps 3 --batch-size 2 --threads 1 --score-samples 0 "
    "--log-interval 0 --optimizer ";

}  // namespace

TEST_CASE(
    "each optimizer gives one hash over ranks, stages, pipelines, offload and a continued run") {
  const TemporaryFolder folder;
  std::string last = hash_of("train" + optimizer_run + "adamw --grad-accum 4");
  const std::string layouts[] = {
      " --ranks 2 --zero-stage 3 --grad-accum 2", " --ranks 4 --zero-stage 1",
      " --ranks 4 --pipeline-parallel 2 --zero-stage 3 --grad-accum 2",
      " --zero-stage 3 --offload-optimizer nvme --grad-accum 4 --nvme-path " + folder.path()};
  int chosen = 0;
  for (const std::string optimizer :
       {"adam", "lion", "sgd", "sgd --momentum 0.9", "sgd --momentum 0.9 --nesterov", "muon",
        "muon --parameter-groups *.h.1.*:optimizer=adamw;*:decay=0", "adafactor",
        "adafactor --adafactor-beta2-decay -0.5 --adafactor-clip 1.5 --adafactor-eps2 0.5 --lr 0.1",
        "adamw --parameter-groups *.h.0.*:rate=0.5;*.bias:rate=2,decay=0.1"}) {
    CAPTURE(optimizer);
    const std::string run = "train" + optimizer_run + optimizer;
    const std::string alone = hash_of(run + " --grad-accum 4");
    CHECK(alone.size() == 32);
    CHECK(alone != last);
    last = alone;
    // Two of the layouts; tests/zero has every optimizer in every stage.
    for (const int more : {0, 1})
      CHECK(hash_of(run + layouts[static_cast<size_t>(chosen + more) % 4]) == alone);
    ++chosen;
    const std::string save = folder / alone;
    hash_of(run + " --grad-accum 4 --steps 2 --save " + save);
    CHECK(hash_of("train --resume " + save +
                  " --steps 3 --ranks 2 --threads 1 --score-samples 0 --log-interval 0") == alone);
  }
}

TEST_CASE("plan predicts the memory of each optimizer's run to the byte") {
  for (const char* optimizer : {"lion", "sgd", "sgd --momentum 0.9", "muon", "adafactor",
                                "adamw --parameter-groups *wte*:rate=0.1",
                                "muon --parameter-groups *c_fc*:optimizer=adamw"})
    check_plan_is_run(optimizer_run + optimizer +
                      " --ranks 2 --zero-stage 2 --precision bf16 --cpu-offload");
}

TEST_CASE("settings that the chosen optimizer does not have are refused") {
  const TemporaryFolder folder;
  const std::string config = folder / "c.json";
  const std::string run = "train --data sort --model-type gpt-nano --steps 1 --score-samples 0 ";
  const std::string sgd = "the optimizer is sgd; expected adamw, adam, lion or muon";
  const std::pair<std::string, std::string> rows[] = {
      {"--optimizer sgd --betas 0.9,0.95", "--betas: " + sgd},
      {"--optimizer sgd --adam-beta2 0.95", "--adam-beta2: " + sgd},
      {"--optimizer adamw --momentum 0", "--momentum: the optimizer is adamw; expected sgd"},
      {"--optimizer lion --nesterov=off", "--nesterov: the optimizer is lion; expected sgd"},
      {"--optimizer lion --muon-rate original",
       "--muon-rate: the optimizer is lion; expected muon; leave the flag out"},
      {"--optimizer muon --adafactor-clip 2",
       "--adafactor-clip: the optimizer is muon; expected adafactor; leave the flag out"},
      {"--optimizer adafactor --betas 0.9,0.95",
       "--betas: the optimizer is adafactor; expected adamw, adam, lion or muon"},
      {"--optimizer adafactor --adam-eps 1e-6", "--adam-eps: the optimizer is adafactor"},
      {"--optimizer adafactor --adafactor-beta2-decay 0.5",
       "--adafactor-beta2-decay: expected a number of 0 or less"},
      {"--optimizer adafactor --adafactor-clip 0.5",
       "--adafactor-clip: expected a number of 1 or more"},
      {"--parameter-groups *.bias:lr=2",
       "--parameter-groups: got '*.bias:lr=2'; expected "
       "PATTERN:rate=R,decay=D"},
      {"--parameter-groups *.wieght:rate=2",
       "parameter group 1 '*.wieght' decides for no parameter; expected a pattern of names like "
       "'transformer."},
      {"--optimizer muon --momentum 0.5",
       "expected sgd, or momentum 0; try update.muon.momentum (--muon-momentum)"},
      {"--optimizer lion --adam-eps 1e-6", "--adam-eps: the optimizer is lion; expected adamw"},
  };
  for (const auto& [flags, words] : rows) check_refused(run + flags, 2, words);
  const std::string divided = " --ranks 3 --tensor-parallel 3";
  check_refused(run + "--optimizer muon" + divided, 6,
                "the optimizer is muon, and tensor ranks divide the parameter");
  check_refused(run + "--optimizer adafactor" + divided, 6,
                "the optimizer is adafactor, and tensor ranks divide the");
  write_file(config, R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.5}},
    "train_batch_size": 2})");
  check_refused(run + "--betas 0.9,0.95 --config " + config, 2, "--betas: " + sgd);
  checked(zerograd(run + "--config " + config));
}

TEST_CASE(
    "a config without optimizer keeps the checkpoint's, and --optimizer with the config's type "
    "keeps it") {
  const TemporaryFolder folder;
  const std::string config = folder / "c.json", save = folder / "run";
  write_file(config, R"({"train_micro_batch_size_per_gpu": 2})");
  const std::string end = " --score-samples 0 --log-interval 0 --threads 1 --steps 4 ";
  const std::string nesterov = optimizer_run + "sgd --momentum 0.9 --nesterov";
  const std::string whole = hash_of("train" + nesterov + end);
  hash_of("train" + nesterov + " --save " + save);
  CHECK(hash_of("train --resume " + save + end + "--config " + config) == whole);

  write_file(config, R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD",
    "params": {"lr": 0.25, "momentum": 0.5}}})");
  const std::string data = "train --data sort --model-type gpt-nano" + end + "--config " + config;
  const std::string of_config = hash_of(data);
  CHECK(hash_of(data + " --optimizer sgd") == of_config);
  CHECK(hash_of(data + " --optimizer sgd --momentum 0.25") != of_config);
}
