// Training of encoder-decoder models by engine and trainer: one result for every ZeRO stage,
// number of data ranks and offload, and after a restart; a plan has the bytes of its run.

#include "tests/models/seq2seq/seq2seq_case.h"
#include "tests/support/cover.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/zero/trainer.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

/// Samples [first, first + count) of the run: texts of different lengths, and their reversals.
std::vector<Tensor> reversed_texts(const Seq2SeqConfig& config, int64_t first, int64_t count,
                                   const Device& device) {
  std::vector<std::vector<int32_t>> sources, targets;
  for (int64_t sample = first; sample < first + count; ++sample) {
    RandomStream random(/*seed=*/5, "text", sample);
    std::vector<int32_t> text;
    for (int64_t left = 1 + random.below(5); left > 0; --left)
      text.push_back(static_cast<int32_t>(3 + random.below(config.vocabulary - 3)));
    sources.push_back(text);
    targets.emplace_back(text.rbegin(), text.rend());
    targets.back().push_back(config.tokens.eos.front());
  }
  const Seq2SeqBatch batch = padded_batch(sources, targets, config.tokens, device, 6, 7);
  return {batch.source, batch.source_lengths, batch.labels};
}

struct Seq2SeqJob {
  Seq2SeqConfig config;
  int world = 1;
  zero::Config engine = {};
  int tensor = 1;  // ranks that divide the layers
  bool checkpointing = false;
  int64_t steps = 4;
  std::string folder = {};  // of checkpoints; empty: none
  bool resumes = false;
  bool hashes = true;  // a plan has no hash of a model that tensor ranks divide
};

/// The hash of the parameters after training with four micro-batches a step.
Program training_of(const Seq2SeqJob& job, std::string& hash) {
  return [&job, &hash](Communicator& ranks, const Device& device) {
    const Mesh mesh(ranks, {.data = ranks.size() / job.tensor, .tensor = job.tensor});
    ParameterStore store;
    const Seq2Seq model(store, job.config, {mesh.tensor});
    zero::Config config = job.engine;
    config.param_persistence_threshold = 0;
    zero::Engine engine(store, mesh, device, config);
    zero::TrainerOptions options{.micro_batch = 2,
                                 .accumulation = 4 / mesh.shape.data,
                                 .steps = job.steps,
                                 .schedule = {.rate = 1e-2}};
    if (!job.folder.empty()) options.checkpoints = {.path = job.folder};
    zero::Trainer trainer(
        engine, options,
        {.batch =
             [&](const zero::MicroBatch& batch) {
               return reversed_texts(job.config, batch.first_sample, batch.samples, device);
             },
         .forward =
             [&](Tape& tape, const zero::MicroBatch& batch) {
               return model.loss(
                   tape,
                   {.source = batch.tensors[0],
                    .source_lengths = batch.tensors[1],
                    .labels = batch.tensors[2]},
                   {.seed = 7, .step = batch.step, .first_sample = batch.first_sample},
                   {.checkpointing = job.checkpointing, .label_smoothing = 0.1});
             }});
    if (job.resumes && !trainer.resume(job.folder)) throw Error("resume: found no checkpoint");
    trainer.run();
    if (!job.hashes) return;
    const std::string own = engine.parameter_hash();
    if (ranks.rank() == 0) hash = own;
  };
}

std::string hash_of(const Seq2SeqJob& job, const std::string& disk = {}) {
  std::string hash;
  RunOptions options;
  options.local.device.swap.directory = disk;
  run_ranks(job.world, training_of(job, hash), options);
  return hash;
}

}  // namespace

TEST_CASE(
    "an encoder-decoder model trains to the same bits at every stage, on any ranks, with "
    "checkpointing and offload") {
  const TemporaryFolder disk;
  const std::vector<Seq2SeqConfig> configs = tiny_seq2seqs();
  std::vector<std::string> expected;
  for (const Seq2SeqConfig& config : configs) expected.push_back(hash_of({.config = config}));
  for_cover(
      [&](size_t model, int world, int stage, bool checkpointing, Space space) {
        INFO(name_of(configs[model].family), ", world ", world, ", stage ", stage, ", ",
             name_of(space));
        const zero::OffloadOptions offload{stage == 3 ? space : Space::device, space, space, space};
        CHECK(hash_of({.config = configs[model],
                       .world = world,
                       .engine = {.stage = stage, .offload = offload},
                       .checkpointing = checkpointing},
                      disk.path()) == expected[model]);
      },
      std::vector<size_t>{0, 1}, std::vector{1, 2, 4}, std::vector{0, 1, 2, 3},
      std::array{false, true}, std::vector{Space::device, Space::host, Space::file});
}

TEST_CASE("an encoder-decoder run that was stopped continues with the same bits on other ranks") {
  for (const Seq2SeqConfig& config : tiny_seq2seqs()) {
    const TemporaryFolder folder;
    const std::string expected = hash_of({.config = config});
    hash_of({.config = config, .world = 2, .steps = 2, .folder = folder / "run"});
    CHECK(hash_of({.config = config,
                   .world = 4,
                   .engine = {.stage = 3},
                   .folder = folder / "run",
                   .resumes = true}) == expected);
  }
}

namespace {

/// Models whose heads two ranks divide.
std::vector<Seq2SeqConfig> even_seq2seqs() {
  std::vector<Seq2SeqConfig> configs = tiny_seq2seqs();
  for (Seq2SeqConfig& config : configs) config.decoder_heads = 2;
  return configs;
}

}  // namespace

TEST_CASE(
    "two tensor ranks train an encoder-decoder to the same bits on any data ranks and stage") {
  const TemporaryFolder disk;
  for (const Seq2SeqConfig& config : even_seq2seqs()) {
    CAPTURE(std::string(name_of(config.family)));
    const std::string expected = hash_of({.config = config, .world = 2, .tensor = 2});
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      CHECK(hash_of({.config = config,
                     .world = 4,
                     .engine = {.stage = stage},
                     .tensor = 2,
                     .checkpointing = stage == 2}) == expected);
    }
    for (const Space space : {Space::host, Space::file})
      CHECK(hash_of({.config = config,
                     .world = 4,
                     .engine = {.stage = 3, .offload = {space, space, space, space}},
                     .tensor = 2},
                    disk.path()) == expected);
  }
}

TEST_CASE("checkpoints of an encoder-decoder load with other numbers of tensor ranks") {
  for (const Seq2SeqConfig& config : even_seq2seqs()) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", back = folder / "back";
    const Seq2SeqJob saves{.config = config, .world = 4, .tensor = 2, .steps = 2, .folder = run};
    const std::string saved = hash_of(saves);
    const auto resumed = [&](int world, int tensor, int64_t steps, const std::string& from) {
      return hash_of({.config = config,
                      .world = world,
                      .engine = {.stage = 3},
                      .tensor = tensor,
                      .steps = steps,
                      .folder = from,
                      .resumes = true});
    };
    CHECK(resumed(1, 1, 2, run) == saved);
    CHECK(resumed(2, 2, 4, run) == hash_of({.config = config, .world = 2, .tensor = 2}));
    const std::string whole = hash_of({.config = config, .steps = 2, .folder = back});
    CHECK(resumed(2, 2, 2, back) == whole);
  }
}

TEST_CASE("a plan of an encoder-decoder run equals the run, also with tensor ranks") {
  const TemporaryFolder disk;
  for (const Seq2SeqConfig& config : even_seq2seqs())
    for (const int tensor : {1, 2})
      for (const bool checkpointing : {false, true}) {
        CAPTURE(tensor);
        const Seq2SeqJob job{
            .config = config,
            .world = 2 * tensor,
            .engine = {.stage = 3, .compute = DType::bf16, .offload = {.optimizer = Space::file}},
            .tensor = tensor,
            .checkpointing = checkpointing,
            .steps = 2,
            .hashes = tensor == 1};
        std::string hash;
        const DeviceOptions device{.swap = {.directory = disk.path()}};
        check_planned(job.world, training_of(job, hash), device);
      }
}
