#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

namespace zg::testing {

inline std::string case_of(const zero::Config& config) {
  return zero::optimizer_name(config.update) + " in " + name_of(config.compute) + ", states in " +
         name_of(config.optimizer);
}

/// Checks that each config has one hash over stages, ranks, offload and restarts, which differs
/// from those of the other configs.
inline void check_one_hash(
    const std::vector<zero::Config>& configs,
    const std::function<TrainingOutcome(const zero::Config&, const TrainingRun&)>& train) {
  using enum Space;
  const zero::OffloadOptions places[] = {{},
                                         {.optimizer = host},
                                         {.optimizer = file, .sub_group_size = 128},
                                         {.gradient = host},
                                         {.gradient = file, .optimizer = file},
                                         {.optimizer = host, .optimizer_ratio = 0.5},
                                         {.optimizer = file, .optimizer_ratio = 0.5}};
  std::map<const zero::Config*, std::string> hashes;
  std::set<std::string> different;
  for (const zero::Config& config : configs) {
    CAPTURE(case_of(config));
    hashes[&config] = train(config, {}).hash;
    CHECK(different.insert(hashes[&config]).second);  // the optimizer has an effect
  }
  for_cover(
      [&](const zero::Config& plain, int stage, int ranks, const zero::OffloadOptions& offload) {
        INFO(case_of(plain), ", stage ", stage, ", ranks ", ranks, ", ",
             name_of(offload.optimizer));
        zero::Config config = plain;
        config.stage = stage;
        config.offload = offload;
        if (stage == 3 && ranks > 1) config.offload.parameter = file;
        config.allgather_bucket_size = ranks == 3 ? 100 : 500'000'000;
        CHECK(train(config, {.ranks = ranks, .threads = 1 + ranks % 2}).hash == hashes.at(&plain));
      },
      configs, std::vector{0, 1, 2, 3}, std::vector{1, 2, 3, 4}, places);
  for (const zero::Config& plain : configs)
    for (const int stage : {0, 3}) {
      INFO(case_of(plain), ", stage ", stage);
      const TemporaryFolder folder;
      zero::Config config = plain;
      config.stage = stage;
      train(config, {.ranks = 3, .end = 2, .directory = folder.path()});
      zero::verify_checkpoint(folder / "step_2");
      config.stage = 3 - stage;
      config.offload = {.optimizer = host};
      const TrainingRun rest{.ranks = 2, .first = 2, .directory = folder.path()};
      CHECK(train(config, rest).hash == hashes.at(&plain));
    }
}

}  // namespace zg::testing
