#include "tools/run/evaluation.h"

#include <algorithm>

#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using models::Split;

std::string list(const std::vector<int32_t>& numbers) {
  std::string joined;
  for (int32_t number : numbers) joined += (joined.empty() ? "" : ", ") + std::to_string(number);
  return fmt::format("[{}]", joined);
}

double print_score(const Evaluation& evaluation, Split split, const char* name, int64_t batch,
                   int64_t samples, const std::function<void(const std::string&)>& print) {
  const models::Score score = models::score(evaluation.model, evaluation.make_tape,
                                            evaluation.dataset, split, samples, batch);
  for (const models::Score::Mistake& mistake : score.mistakes)
    print(fmt::format("GPT claims that {}{}{} but gt is {}", list(mistake.question),
                      evaluation.is_sort_task ? " sorted is " : " adds up to ",
                      list(mistake.answer), list(mistake.expected)));
  const double fraction = static_cast<double>(score.correct) / static_cast<double>(score.total);
  print(fmt::format("{} final score: {}/{} = {:.2f}% correct", name, score.correct, score.total,
                    100.0 * fraction));
  return fraction;
}

}  // namespace

double Evaluation::loss(int64_t batch, int64_t batches) const {
  if (dataset.epoch_samples(Split::validation) == 0)
    throw ConfigError(
        "--val-fraction: expected a validation split, got none; try 0.1, for conversations "
        "--val-data PATH.jsonl, or for documents a --split that leaves at least one whole document "
        "to validate on");
  return models::mean_loss(model, make_tape, dataset, Split::validation, device, batch, batches);
}

Evaluation::Scores Evaluation::scores(int64_t batch, int64_t samples,
                                      const std::function<void(const std::string&)>& print) const {
  const double train = print_score(*this, Split::train, "train", batch, samples, print);
  const double test = print_score(*this, Split::validation, "test", batch, samples, print);
  return {train, test};
}

void Evaluation::plan_scores(int64_t batch, int64_t samples) const {
  const int64_t count = std::min({batch, samples, dataset.epoch_samples(Split::train)});
  models::KeyValueCache cache(model.config());
  Tape tape = make_tape();
  model.next_logits(tape, Tensor::empty({count, dataset.question_length()}, DType::i32, device),
                    cache);
}

void Evaluation::print_example(const std::function<void(const std::string&)>& print) const {
  const int64_t T = dataset.block_size(), asked = dataset.question_length();
  std::vector<int32_t> ids(static_cast<size_t>(T)), targets(ids.size());
  dataset.sample(Split::validation, 0, ids.data(), targets.data());
  const std::vector<int32_t> question(ids.begin(), ids.begin() + asked);
  std::vector<int32_t> expected(ids.begin() + asked, ids.end());
  expected.push_back(targets.back());
  std::vector<int32_t> answer =
      models::generate(model, make_tape, {question}, T + 1 - asked, {.temperature = 0.0}).front();
  answer.erase(answer.begin(), answer.end() - static_cast<int64_t>(expected.size()));
  print("input sequence  : " + list(question));
  print("predicted sorted: " + list(answer));
  print("gt sort         : " + list(expected));
  print(std::string("matches         : ") + (answer == expected ? "True" : "False"));
}

}  // namespace zg::tools
