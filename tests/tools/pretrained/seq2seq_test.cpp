#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/options/run_spec.h"
#include "tools/run/inputs.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/zero/checkpoint/consolidate.h"
#include "zerograd/zero/engine.h"

// Encoder-decoder models in the command: pairs, checkpoints, plans, folders of Hugging Face's.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string blenderbot_fixture = std::string(ZG_FIXTURES) + "hf_blenderbot";
const std::string bart_fixture = std::string(ZG_FIXTURES) + "hf_bart";

/// Pairs of texts, and a tokenizer whose first tokens are <pad>, <s> and </s>.
struct PairCase {
  TemporaryFolder folder;
  std::string pairs = folder / "pairs.jsonl", tokenizer = folder / "tokenizer";

  PairCase() {
    std::string lines, text;
    for (int i = 0; i < 40; ++i) {
      std::string source = "tell me of " + std::to_string(i * i);
      const std::string target =
          i % 3 ? "it is a number" : "it has " + std::to_string(i) + " for a root";
      if (i % 4 == 0) source += ", please, and be quick";
      lines += json{{"source", source}, {"target", target}}.dump() + "\n";
      text += source + " " + target + "\n";
    }
    write_file(pairs, lines);
    models::save_tokenizer(
        models::train_tokenizer(text, {.vocabulary = 300, .added = {"<pad>", "<s>", "</s>"}}),
        tokenizer);
  }
  std::string data() const { return " --data " + pairs + " --tokenizer " + tokenizer + " "; }
  /// A step has 8 pairs, in micro-batches of 4.
  std::string train(const std::string& flags, const std::string& type = "blenderbot") const {
    return "train --model-type " + type +
           " --n-layer 1 --n-head 2 --n-embd 16 --block-size 32 --batch-size 4 "
           "--train-batch-size 8 --log-interval 0 --lr 1e-3" +
           data() + flags;
  }
};

/// Pairs of token numbers, for the fixtures, which have no tokenizer.
std::string write_number_pairs(const TemporaryFolder& folder) {
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    const std::string a = std::to_string(4 + i), b = std::to_string(5 + 2 * i % 30);
    const std::string longer = i % 2 ? a + " " + b : a + " " + b + " " + a;
    lines += json{{"source", longer}, {"target", b + " " + a}}.dump() + "\n";
  }
  write_file(folder / "numbers.jsonl", lines);
  return folder / "numbers.jsonl";
}

/// The answers of the library, as token numbers, to one source.
std::vector<std::vector<int32_t>> library_answers(
    const std::string& path, const std::vector<int32_t>& source,
    const std::function<void(models::BeamOptions&)>& change) {
  const models::Seq2SeqFolder folder(path);
  ParameterStore store;
  const models::Seq2Seq model(store, folder.model().config);
  zero::Engine engine(store, Device::cpu(0, {.threads = 1}));
  zero::load_weights(folder.weights(model.config()), engine);
  models::BeamOptions options = folder.model().generation;
  change(options);
  return models::generate(
             model, [&] { return engine.inference_tape(); }, {source}, options)
      .rows;
}

}  // namespace

TEST_CASE("pairs: the hash of a run is the same at every ZeRO stage and number of ranks") {
  const PairCase c;
  const std::string expected = hash_of(c.train("--steps 3 --label-smoothing 0.1"));
  for (const char* flags :
       {"--ranks 2 --zero-stage 0", "--ranks 2 --zero-stage 1", "--ranks 2 --zero-stage 2",
        "--ranks 2 --zero-stage 3 --cpu-offload", "--zero-stage 2 --activation-checkpoint",
        "--ranks 2 --zero-stage 3 --activation-checkpoint --param-persistence-threshold 0"}) {
    CAPTURE(flags);
    CHECK(hash_of(c.train("--steps 3 --label-smoothing 0.1 " + std::string(flags))) == expected);
  }
  // Each of these flags changes the training.
  for (const char* flags :
       {"",
        "--label-smoothing 0.1 --source-prefix bot:", "--label-smoothing 0.1 --max-target-length 4",
        "--label-smoothing 0.1 --n-train 9", "--label-smoothing 0.1 --max-source-length 5"})
    CHECK(hash_of(c.train("--steps 3 " + std::string(flags))) != expected);
  for (const char* precision : {"bf16", "f16"}) {
    const std::string flags = std::string("--steps 2 --precision ") + precision;
    CHECK(hash_of(c.train(flags)) == hash_of(c.train(flags + " --ranks 2 --zero-stage 3")));
  }
}

TEST_CASE("pairs: a resumed run has the bits of an uninterrupted one, on other ranks and stages") {
  const PairCase c;
  for (const char* type : {"blenderbot", "bart"}) {
    CAPTURE(type);
    const std::string save = c.folder / type, flags = "--source-prefix bot: --label-smoothing 0.1 ";
    const Outcome whole = zerograd(c.train(flags + "--steps 4", type));
    CAPTURE(whole.error);
    const std::string expected = hash_of(whole);
    hash_of(c.train(flags + "--steps 2 --ranks 2 --zero-stage 3 --save " + save, type));
    const std::string resume = "train --resume " + save + " --steps 4 --log-interval 0";
    const Outcome resumed = zerograd(resume);
    CAPTURE(resumed.error);
    CHECK(hash_of(resumed) == expected);
    CHECK(line_after(resumed.out, "val loss ") == line_after(whole.out, "val loss "));
    CHECK(hash_of(resume + " --ranks 2 --zero-stage 1") == expected);
    check_refused(resume + " --n-layer 2", 2, "--n-layer: " + save);
    check_refused(resume + " --block-size 31", 2, "--block-size: expected the 32 positions of");
    const Outcome changed = zerograd(resume + " --label-smoothing 0 --dropout 0 --block-size 32");
    CHECK(contains(changed.error, "changed: run.label_smoothing: 0.1"));
    CHECK(contains(changed.error, "changed: run.dropout: 0.1"));
    CHECK(hash_of(changed) != hash_of(resume + " --label-smoothing 0"));
  }
}

TEST_CASE("pairs: a replay begins from a checkpoint") {
  const PairCase c;
  const std::string audit = c.folder / "audit",
                    saves = " --save-interval 1 --save-top-k -1 --save ";
  checked(zerograd(
      c.train("--steps 2 --audit " + audit + saves + (c.folder / "saved"), /*type=*/"bart")));
  CHECK(contains(checked(zerograd("audit " + audit + " --replay 1..1")).out, "equal: step 1 of "));
}

TEST_CASE("pairs: plan gives the bytes of train, with and without data") {
  const PairCase c;
  const std::string planned = c.folder / "planned", ran = c.folder / "ran";
  for (const char* flags :
       {"--ranks 2 --zero-stage 2 --eval-interval 2", "--ranks 2 --zero-stage 3 --cpu-offload",
        "--activation-checkpoint --precision f16", "--pad-to-max-length --max-source-length 20",
        "--ranks 2 --tensor-parallel 2 --label-smoothing 0.1 --eval-interval 2",
        "--ranks 4 --tensor-parallel 2 --sequence-parallel --zero-stage 3 --precision bf16"}) {
    check_plan_is_run(c.train(std::string(flags) + " --steps 3 --threads 1").substr(5));
  }
  const std::string lengths = " --max-source-length 20 --max-target-length 12 --threads 1 ";
  checked(
      zerograd("plan --model-type blenderbot --n-layer 1 --n-head 2 --n-embd 16 --block-size 32 "
               "--vocab-size 300 --batch-size 4 --train-batch-size 8 --lr 1e-3 --memory-json " +
               planned + lengths));
  checked(zerograd(
      c.train("--vocab-size 300 --pad-to-max-length --steps 3 --memory-json " + ran + lengths)));
  CHECK(json::parse(read_file(planned)) == json::parse(read_file(ran)));
  const Outcome named = checked(zerograd(
      "plan --model-type blenderbot-400m --ranks 2 --zero-stage 2 --precision f16 --batch-size 8 "
      "--max-source-length 128 --max-target-length 64"));
  CHECK(contains(named.out, "number of parameters: 364"));
}

TEST_CASE("pairs: tensor ranks have the losses of one rank, and the same bits on any data ranks") {
  const PairCase c;
  for (const char* type : {"blenderbot", "bart"}) {
    CAPTURE(type);
    const std::string run = "--steps 8 --label-smoothing 0.1 ";
    const Curve one = curve_of(c.train(run + "--dropout 0", type));
    for (const char* share : {"--ranks 2 --tensor-parallel 2",
                              "--ranks 4 --tensor-parallel 2 --zero-stage 2 --sequence-parallel"}) {
      CAPTURE(share);
      const Curve shared = curve_of(c.train(run + "--dropout 0 " + share, type));
      REQUIRE(shared.losses.size() == 8);
      for (size_t step = 0; step < 8; ++step) {
        CAPTURE(step);
        CHECK(shared.losses[step].get<double>() ==
              doctest::Approx(one.losses[step].get<double>()).epsilon(1e-5));
        CHECK(shared.norms[step].get<double>() ==
              doctest::Approx(one.norms[step].get<double>()).epsilon(1e-4));
      }
    }
    const std::string two = run + "--tensor-parallel 2 ";
    const Curve pair = curve_of(c.train(two + "--ranks 2", type));
    for (const char* share : {"--ranks 4 --zero-stage 1", "--ranks 4 --zero-stage 3 --cpu-offload",
                              "--ranks 2 --activation-checkpoint"})
      CHECK(curve_of(c.train(two + share, type)) == pair);
  }
}

TEST_CASE("pairs: checkpoints and folders load on other tensor ranks, which validate alike") {
  const PairCase c;
  const std::string save = c.folder / "two", hf = c.folder / "hf", one = c.folder / "one";
  const Outcome trained = zerograd(
      c.train("--steps 4 --lr 1e-2 --ranks 4 --tensor-parallel 2 --zero-stage 3 --save " + save));
  CAPTURE(trained.error);
  const std::string hash = hash_of(trained), loss = line_after(trained.out, "val loss ");
  const auto near = [&](const std::string& other) {
    CHECK(std::stod(other) == doctest::Approx(std::stod(loss)).epsilon(1e-4));
  };
  near(line_after(zerograd("eval " + save + " --batch-size 4").out, "val loss "));
  const std::string resume = "train --steps 4 --resume ";
  CHECK(hash_of(resume + save + " --save " + one) == hash);
  CHECK(hash_of(resume + save + " --ranks 2 --tensor-parallel 2") == hash);
  CHECK(hash_of("train --steps 6 --resume " + save + " --ranks 2 --tensor-parallel 2") ==
        hash_of("train --steps 6 --resume " + save + " --ranks 4 --tensor-parallel 2"));
  CHECK(hash_of("export " + save + " --hf " + hf) == hash);
  for (const char* share : {"", " --ranks 2 --tensor-parallel 2"}) {
    const Outcome read = zerograd("train --from-hf " + hf + " --steps 0 --data " + c.pairs + share);
    CHECK(hash_of(read) == hash);
    near(line_after(read.out, "val loss "));
    CHECK(hash_of(c.train("--steps 0 --init " + save + share)) == hash);
  }
  check_refused(c.train("--steps 1 --ranks 4 --tensor-parallel 4"), 2,
                "seq2seq: tensor ranks: expected a divisor of the 2 encoder heads (1, 2), got 4");
  check_refused(c.train("--steps 1 --ranks 2 --tensor-parallel 2 --sequence-parallel "
                        "--block-size 31"),
                2, "seq2seq: sequence parallel: expected positions that 2 tensor ranks divide");
}

TEST_CASE("pairs: --init takes weights of the same model, and names what differs") {
  const PairCase c;
  const std::string save = c.folder / "save", file = c.folder / "file.safetensors";
  const std::string hash = hash_of(c.train("--steps 2 --save " + save));
  CHECK(hash_of("consolidate " + save + " " + file) == hash);
  for (const std::string& path : {save, file}) {
    CHECK(hash_of(c.train("--steps 0 --dropout 0.3 --init " + path)) == hash);
    const std::string own = c.train("--steps 0 --vocab-size 300 --init " + path);
    CHECK(hash_of(own + " --ranks 2 --zero-stage 3") == hash);
    for (const auto& [flags, part] :
         {std::pair{"--n-layer 2", "encoder_layers is 1, expected 2"},
          std::pair{"--n-layer 2",
                    "; try --model-type blenderbot --n-layer 1 --n-head 2 --n-embd 16 "
                    "--vocab-size 300 --block-size 32"},
          std::pair{"--n-head 4", "encoder_attention_heads is 2, expected 4"},
          std::pair{"--block-size 40", "max_position_embeddings is 32, expected 40; try"},
          std::pair{"--vocab-size 310", "vocab_size is 300, expected 310; try"},
          std::pair{"--model-type bart", "model_type is \"blenderbot\", expected \"bart\""}})
      check_refused(c.train("--steps 0 " + std::string(flags) + " --init " + path), 5, part);
    check_refused("train --data sort --steps 0 --init " + path, 5,
                  "has an encoder-decoder model; expected this run's decoder-only model");
  }
  // The fixture has encoders and decoders of different sizes, which no flags describe.
  const std::string other = c.folder / "other", sort = c.folder / "sort";
  hash_of("train --from-hf " + bart_fixture + " --steps 0 --save " + other);
  check_refused(c.train("--steps 0 --init " + other), 5, "; try export --hf DIR and --from-hf DIR");
  hash_of("train --data sort --steps 0 --score-samples 0 --save " + sort);
  check_refused(c.train("--steps 0 --init " + sort), 5, "has a decoder-only model");
}

TEST_CASE("pairs: eval, generate, consolidate and export read the checkpoint alone") {
  const PairCase c;
  for (const char* type : {"blenderbot", "bart"}) {
    CAPTURE(type);
    const std::string save = c.folder / type, hf = save + "-hf", file = save + ".safetensors";
    const Outcome trained =
        zerograd(c.train("--steps 30 --lr 1e-2 --source-prefix bot: --save " + save, type));
    const std::string hash = hash_of(trained), loss = line_after(trained.out, "val loss ");
    CHECK(!loss.empty());
    const std::string tokenizer = c.tokenizer, moved = c.tokenizer + "-moved";
    fs::rename(tokenizer, moved);
    const std::string eval = "eval " + save + " --batch-size 4";
    CHECK(line_after(zerograd(eval).out, "val loss ") == loss);
    CHECK(line_after(zerograd(eval + " --pad-to-max-length").out, "val loss ") == loss);
    for (const char* flags :
         {" --max-source-length 3", " --max-target-length 3", " --source-prefix you:"})
      CHECK(line_after(zerograd(eval + flags).out, "val loss ") != loss);
    checked(zerograd("verify " + save));
    CHECK(hash_of("consolidate " + save + " " + file) == hash);
    CHECK(line_after(zerograd("eval " + file + " --batch-size 4").out, "val loss ") == loss);
    CHECK(hash_of("consolidate --split " + file + " " + save + "-split --ranks 2") == hash);
    CHECK(hash_of("export " + save + "-split --hf " + hf) == hash);
    CHECK(hash_of("export " + save + " --hf " + hf) == hash);
    CHECK(line_after(zerograd("eval " + hf + " --batch-size 4 --data " + c.pairs).out,
                     "val loss ") != "");

    // The folder's tokenizer adds the tokens around a text, and is read without them.
    const json written = json::parse(read_file(hf + "/tokenizer.json"));
    CHECK(written.at("post_processor").at("type") == "TemplateProcessing");
    const size_t around = std::string(type) == "bart" ? 2 : 1;
    CHECK(written.at("post_processor").at("single").size() == around + 1);
    CHECK(json::parse(read_file(hf + "/tokenizer_config.json")).at("eos_token") == "</s>");
    CHECK(hash_of("train --from-hf " + hf + " --steps 0 --data " + c.pairs) == hash);
    CHECK(hash_of("train --from-hf " + hf + " --steps 0 --save " + save + "-again") == hash);
    CHECK(hash_of("consolidate " + hf + " " + save + "2.safetensors") == hash);

    const models::Tokenizer words = models::load_tokenizer(moved);
    std::vector<int32_t> source = words.encode("bot:tell me of 9");
    if (std::string(type) == "bart") source.insert(source.begin(), 1);
    source.push_back(2);
    for (const int64_t beams : {1, 4}) {
      std::string expected;
      for (std::vector<int32_t> row :
           library_answers(hf, source, [&](models::BeamOptions& options) {
             options.beams = beams;
             options.max_length = 12;
             options.min_length = 3;
             options.no_repeat_ngram_size = 2;
             options.length_penalty = 0.65;
             options.early_stopping = models::EarlyStopping::yes;
           })) {
        std::erase_if(row, [](int32_t id) { return id <= 2; });
        expected += words.decode(row) + "\n";
      }
      const Outcome answered = checked(zerograd(
          {"generate", save, "--prompt", "tell me of 9", "--num-beams", std::to_string(beams),
           "--max-length", "12", "--min-length", "3", "--no-repeat-ngram-size", "2",
           "--length-penalty", "0.65", "--early-stopping", "true"}));
      CHECK(answered.out == expected);
    }
    fs::rename(moved, tokenizer);
  }
}

TEST_CASE("pairs: answers are shown without any special token of the tokenizer") {
  const models::Tokenizer words = models::train_tokenizer(
      "a b", {.vocabulary = 261, .added = {"<pad>", "<s>", "</s>", "<mask>"}});
  models::Seq2SeqConfig config = models::Seq2SeqConfig::of(models::Seq2SeqFamily::bart);
  config.tokens = {.pad = 0, .decoder_start = 2, .bos = 1, .eos = {2}};
  const tools::PairText text(config, &words, "here");
  std::vector<int32_t> ids = text.encode("a b", 9);
  ids.insert(ids.begin() + 2, words.id_of_added("<mask>").value());
  CHECK(text.decode(ids) == "a b");
}

TEST_CASE("pairs: a folder of transformers is trained on token numbers and keeps its generation") {
  const TemporaryFolder folder;
  const std::string pairs = write_number_pairs(folder);
  for (const std::string& fixture : {blenderbot_fixture, bart_fixture}) {
    CAPTURE(fixture);
    const std::string name = fixture == bart_fixture ? "bart" : "blenderbot";
    const std::string save = folder / name, hf = save + "-hf";
    const std::string train = "train --from-hf " + fixture + " --data " + pairs +
                              " --batch-size 2 --train-batch-size 4 "
                              "--log-interval 0 ";
    const std::string start = hash_of(train + "--steps 0");
    CHECK(hash_of("train --from-hf " + fixture + " --steps 0 --save " + save + "-start") == start);
    const std::string expected = hash_of(train + "--steps 2");
    CHECK(expected != start);
    CHECK(hash_of(train + "--steps 2 --ranks 2 --zero-stage 3 --save " + save) == expected);
    CHECK(hash_of("export " + save + " --hf " + hf) == expected);
    const models::HFSeq2Seq written = models::Seq2SeqFolder(hf).model(),
                            read = models::Seq2SeqFolder(fixture).model();
    CHECK(models::hf_json(written.config) == models::hf_json(read.config));
    CHECK(models::hf_generation_json(written.config, written.generation) ==
          models::hf_generation_json(read.config, read.generation));
    const std::vector<int32_t> ids = {7, 9, 11};
    std::vector<int32_t> source = ids;
    if (name == "bart") source.insert(source.begin(), 0);
    source.push_back(2);
    std::string numbers;
    for (const std::vector<int32_t>& row :
         library_answers(hf, source, [](models::BeamOptions&) {})) {
      std::string line;
      for (const int32_t id : row)
        if (id > 2) line += (line.empty() ? "" : " ") + std::to_string(id);
      numbers += line + "\n";
    }
    const Outcome answered = zerograd({"generate", save, "--prompt", "7 9 11"});
    CAPTURE(answered.error);
    CHECK(answered.out == numbers);
    const Outcome shorter = checked(zerograd(train + "--block-size 10 --steps 1"));
    CHECK(contains(shorter.error, "the first 10 are used"));
    check_refused(train + "--block-size 99", 2, "--block-size: expected at most the");
    check_refused(train + "--n-layer 3", 2, "defines the model");
  }
}

TEST_CASE("pairs: --dropout 0 turns off every dropout of a folder's model") {
  const TemporaryFolder folder;
  const std::string model = folder / "bart";
  std::filesystem::copy(bart_fixture, model);
  edit_json(model + "/config.json", [](json& all) {
    for (const char* key : {"dropout", "attention_dropout", "activation_dropout"}) all[key] = 0.25;
  });
  const std::string run = "train --from-hf " + model + " --data " + write_number_pairs(folder) +
                          " --order sequential --batch-size 4 --steps 1 --log-interval 0 ";
  CHECK(hash_of(run + "--seed 1") != hash_of(run + "--seed 2"));
  CHECK(hash_of(run + "--seed 1 --dropout 0") == hash_of(run + "--seed 2 --dropout 0"));
}

TEST_CASE("pairs: settings of a decoder have no fields of pairs, and of pairs are read back") {
  tools::RunSpec settings{.model = {.vocabulary = 3, .block_size = 11}, .micro_batch = 4};
  const std::string decoder = tools::to_json(settings);
  for (const char* field : {"seq2seq", "generation", "max_source", "pad_to_max", "label_smoothing"})
    CHECK(!contains(decoder, field));
  settings.seq2seq.config =
      models::hf_json(models::Seq2SeqFolder(blenderbot_fixture).model().config);
  settings.seq2seq.max_source = settings.seq2seq.max_target = 16;
  const std::string pairs = tools::to_json(settings);
  CHECK(tools::to_json(tools::settings_from_json(pairs, "c")) == pairs);
  settings.seq2seq.max_target = 17;
  CHECK_ERROR(FileError, "max_target: expected 1 to 16, got 17",
              tools::settings_from_json(tools::to_json(settings), "c"));
}

TEST_CASE("pairs: what a model or its data cannot do is refused with the flag") {
  const PairCase c;
  const std::string license = ZG_CONFIGS "../../LICENSE";
  const struct {
    std::string flags;
    int status;
    const char* part;
  } refused[] = {
      {"--pipeline-parallel 2 --ranks 2", 6, "--pipeline-parallel: ranks share the data"},
      {"--tied", 6, "--tied: encoder-decoder models have no such setting"},
      {"--init x", 5, "x"},
      {"--max-source-length 33", 2, "--max-source-length: expected at most the 32 positions"},
      {"--n-train 37", 2, "--n-train: expected at most the 36 training pairs"},
      {"--n-val 5", 2, "--n-val: expected at most the 4 validation pairs"},
      {"--vocab-size 100", 2, "--vocab-size: expected at least"},
      {"--sample-interval 1", 2, "--sample-interval: expected data PATH.txt"},
      {"--score-samples 5", 2, "--score-samples: expected data sort or adder"},
      {"--split 9,1,0", 2, "--split: expected data PREFIX"},
      {"--num-beams 4", 6, "generate has --num-beams"},
      {"--autotuning tune", 6, "tune predicts times of decoder-only models"},
  };
  for (const auto& [flags, status, part] : refused) {
    CAPTURE(flags);
    check_refused(c.train("--steps 1 " + flags), status, part);
  }
  const std::string model =
      "train --steps 1 --model-type bart --n-layer 1 --n-head 2 --n-embd 16 --vocab-size 300 ";
  check_refused(model + "--data sort", 2, "an encoder-decoder model learns pairs");
  check_refused(model + "--data " + license, 5, "an encoder-decoder model learns pairs");
  check_refused(model + "--data " + c.pairs, 2, "neither characters nor a tokenizer");
  check_refused("train --steps 1 --model-type bart --data " + c.pairs, 2,
                "--model-type bart: expected --n-layer, --n-head and --n-embd with it");
  check_refused(
      "train --steps 1 --model-type bart --n-layer 1 --n-head 2 --n-embd 16 --data " + c.pairs, 2,
      "--vocab-size: expected it, or --tokenizer");
  for (const char* flag :
       {"--source-prefix x", "--max-source-length 8", "--max-target-length 8",
        "--pad-to-max-length", "--label-smoothing 0.1", "--n-train 3", "--n-val 3"}) {
    CAPTURE(flag);
    check_refused("train --data sort --steps 1 " + std::string(flag), 2,
                  "expected an encoder-decoder model, whose data is pairs");
  }
  const std::string save = c.folder / "save";
  hash_of(c.train("--steps 1 --save " + save));
  check_refused("eval " + save + " --score-samples 5", 2, "--score-samples: it has no effect");
  check_refused("generate " + save + " --prompt x --seed 3", 2, "--seed: nothing is drawn");
  check_refused("generate " + save + " --prompt x --length 3 --max-length 4", 2,
                "--max-length: expected one of it and --length");
  check_refused("generate " + save + " --prompt x --test-performance", 6, "--test-performance: ");
  check_refused("generate " + save + " --prompt x --length 99", 2, "expected at most the model's");
  check_refused("train --resume " + save + " --steps 2 --pipeline-parallel 2 --ranks 2", 6,
                "--pipeline-parallel: ");
  check_refused("eval " + save + " --max-target-length 33", 2,
                "--max-target-length: expected at most the 32 positions of the model, got 33");
  check_refused("bench step --model-type blenderbot-400m", 6, "zerograd bench seq2seq");
  check_refused("bench generate --model-type blenderbot-400m", 6, "zerograd bench seq2seq");
  const std::string sort = c.folder / "sort";
  hash_of("train --data sort --steps 1 --score-samples 0 --save " + sort);
  check_refused("generate " + sort + " --prompt 1 --num-beams 2", 2,
                "--num-beams: expected an encoder-decoder model");
  check_refused("eval " + sort + " --max-source-length 5", 2,
                "--max-source-length: expected an encoder-decoder model");
}

}  // namespace zg::testing
