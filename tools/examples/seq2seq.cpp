// An encoder-decoder model learns to reverse words: planned, trained by two ranks at ZeRO stage 3,
// and asked for words that it has not seen.
#include <cstdio>
#include <string>
#include <vector>

#include "zerograd/zerograd.h"

using namespace zg;

constexpr int64_t longest = 6;
constexpr int32_t first_letter = 3;  // the ids before it are padding, start and end

using Rows = std::vector<std::vector<int32_t>>;

// A BlenderBot with small sizes. Its tokens are pad 0, decoder_start 1 and eos 2.
models::Seq2SeqConfig small_config() {
  models::Seq2SeqConfig config = models::Seq2SeqConfig::of(models::Seq2SeqFamily::blenderbot);
  config.width = 48;
  config.encoder_layers = config.decoder_layers = 1;
  config.encoder_heads = config.decoder_heads = 4;
  config.vocabulary = first_letter + 8;
  config.positions = longest + 2;
  config.scaled_embedding = true;
  config.dropout = 0.0f;
  return config;
}

// Word `index` of a stream, of two to six letters: the same on every rank.
std::vector<int32_t> word(const char* stream, int64_t index) {
  models::RandomStream random(/*seed=*/1, stream, static_cast<uint64_t>(index));
  std::vector<int32_t> letters;
  for (int64_t left = 2 + random.below(longest - 1); left > 0; --left)
    letters.push_back(first_letter + static_cast<int32_t>(random.below(8)));
  return letters;
}

std::vector<int32_t> reversed(const std::vector<int32_t>& letters) {
  return {letters.rbegin(), letters.rend()};
}

// Words have different lengths: the batch is padded, and the lengths hide the padding.
std::vector<Tensor> make_batch(const models::Seq2SeqConfig& config, const zero::MicroBatch& batch,
                               const Device& device) {
  Rows sources, targets;
  for (int64_t i = batch.first_sample; i < batch.first_sample + batch.samples; ++i) {
    sources.push_back(word("train", i));
    targets.push_back(reversed(sources.back()));
    targets.back().push_back(config.tokens.eos.front());
  }
  const models::Seq2SeqBatch padded =
      models::padded_batch(sources, targets, config.tokens, device, longest, longest + 1);
  return {padded.source, padded.source_lengths, padded.labels};
}

std::string text_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids)
    if (id >= first_letter) text += static_cast<char>('a' + id - first_letter);
  return text;
}

// The work of one rank. Returns how many of 20 new words are reversed.
int train(Communicator& ranks, const Device& device) {
  const models::Seq2SeqConfig config = small_config();
  ParameterStore store;
  const models::Seq2Seq model(store, config);
  zero::Engine engine(store, ranks, device, {.stage = 3, .param_persistence_threshold = 0});
  const bool prints = ranks.rank() == 0 && device.type() != Device::Type::meta;
  zero::Trainer trainer(
      engine,
      {.micro_batch = 32,
       .steps = 600,
       .schedule = {.kind = zero::ScheduleKind::cosine, .rate = 5e-3, .total_num_steps = 600}},
      {.batch = [&](const zero::MicroBatch& batch) { return make_batch(config, batch, device); },
       .forward =
           [&](Tape& tape, const zero::MicroBatch& batch) {
             return model.loss(tape,
                               {.source = batch.tensors[0],
                                .source_lengths = batch.tensors[1],
                                .labels = batch.tensors[2]},
                               {.step = batch.step, .first_sample = batch.first_sample});
           }},
      {.after_step = [&](const zero::TrainedStep& step) {
        if (prints && (step.step + 1) % 200 == 0)
          std::printf("step %d loss %.4f\n", static_cast<int>(step.step) + 1, step.loss);
      }});
  trainer.run();

  // Every rank generates, because a pass gathers parameters from all ranks. One beam is greedy
  // search.
  Rows words;
  for (int64_t i = 0; i < 20; ++i) words.push_back(word("new", i));
  if (device.type() == Device::Type::meta) return 0;  // the lengths of answers depend on values
  const models::Generated answers = models::generate(
      model, [&] { return engine.inference_tape(); }, words, models::beam_options_of(config));
  int correct = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string asked = text_of(words[i]), answer = text_of(answers.rows[i]);
    correct += answer == text_of(reversed(words[i]));
    if (prints && i < 3) std::printf("%s -> %s\n", asked.c_str(), answer.c_str());
  }
  if (prints) std::printf("%d of 20 words are reversed\n", correct);
  return correct;
}

int main() {
  int correct = 0;
  const auto program = [&](Communicator& ranks, const Device& device) {
    const int found = train(ranks, device);
    if (ranks.rank() == 0) correct = found;
  };
  const Plan plan = plan_ranks(2, program, {.device = {.threads = 1}});
  std::printf("%s\n", plan.table().c_str());
  run_ranks(2, program, {.local = {.device = {.threads = 1}}});
  return correct >= 15 ? 0 : 1;
}
