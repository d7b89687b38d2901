#include "zerograd/models/data/conversation_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

/// The conversations of a split, and which of them each sample has.
struct ConversationDataset::Samples {
  std::vector<Conversation> conversations;
  std::vector<std::vector<int64_t>> samples;
  Counts counts;

  Samples(std::vector<Conversation> all, const ConversationOptions& options, Order order);

 private:
  void keep(Conversation conversation, int64_t most);
  void pack(int64_t block_size, Order order);
};

namespace {

/// The number of a sample's tokens that a conversation takes.
int64_t length_of(const Conversation& conversation) { return std::ssize(conversation.tokens) - 1; }

int64_t targets_in(const Conversation& conversation) {
  return std::count(conversation.is_target.begin() + 1, conversation.is_target.end(), true);
}

}  // namespace

ConversationDataset::Samples::Samples(std::vector<Conversation> all,
                                      const ConversationOptions& options, Order order) {
  for (Conversation& conversation : all) keep(std::move(conversation), options.block_size + 1);
  if (options.pack)
    pack(options.block_size, order);
  else
    for (int64_t i = 0; i < counts.conversations; ++i) samples.push_back({i});
}

void ConversationDataset::Samples::keep(Conversation conversation, int64_t most) {
  if (conversation.tokens.size() != conversation.is_target.size())
    raise<ConfigError>("conversations: {} tokens and {} of is_target; expected as many",
                       conversation.tokens.size(), conversation.is_target.size());
  const bool is_cut = std::ssize(conversation.tokens) > most;
  if (is_cut) {
    conversation.tokens.resize(static_cast<size_t>(most));
    conversation.is_target.resize(static_cast<size_t>(most));
  }
  const int64_t targets = conversation.tokens.size() < 2 ? 0 : targets_in(conversation);
  if (targets == 0) {
    ++counts.left_out;
    return;
  }
  ++counts.conversations;
  counts.cut += is_cut ? 1 : 0;
  counts.tokens += length_of(conversation);
  counts.targets += targets;
  conversations.push_back(std::move(conversation));
}

void ConversationDataset::Samples::pack(int64_t block_size, Order order) {
  std::vector<int64_t> by_turn(conversations.size());
  std::iota(by_turn.begin(), by_turn.end(), 0);
  const auto length = [&](int64_t i) { return length_of(conversations[static_cast<size_t>(i)]); };
  if (order == Order::random)
    std::ranges::stable_sort(by_turn, [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<int64_t> lengths;
  lengths.reserve(by_turn.size());
  for (const int64_t i : by_turn) lengths.push_back(length(i));
  samples = best_fit(lengths, block_size);
  for (std::vector<int64_t>& sample : samples)
    for (int64_t& item : sample) item = by_turn[static_cast<size_t>(item)];
}

std::vector<std::vector<int64_t>> best_fit(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<std::vector<int64_t>> bins;
  std::set<std::pair<int64_t, int64_t>> rooms;  // the room in a bin, and the bin's index
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1 || lengths[i] > capacity)
      raise<ConfigError>("best_fit: length {} is {}; expected 1 to the capacity {}", i, lengths[i],
                         capacity);
    const auto fullest = rooms.lower_bound({lengths[i], 0});
    std::pair<int64_t, int64_t> bin{capacity, std::ssize(bins)};
    if (fullest == rooms.end()) {
      bins.emplace_back();
    } else {
      bin = *fullest;
      rooms.erase(fullest);
    }
    bins[static_cast<size_t>(bin.second)].push_back(static_cast<int64_t>(i));
    rooms.emplace(bin.first - lengths[i], bin.second);
  }
  return bins;
}

std::vector<Conversation> split_off(std::vector<Conversation>& conversations, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0))
    raise<ConfigError>(
        "conversations: the validation fraction is {}; expected a number from 0 to 1", fraction);
  const auto count = std::ssize(conversations);
  const int64_t most = fraction < 1.0 ? std::max<int64_t>(0, count - 1) : count;
  const int64_t part =
      std::clamp<int64_t>(std::llround(static_cast<double>(count) * fraction), 0, most);
  const auto first = conversations.end() - part;
  std::vector<Conversation> taken(std::make_move_iterator(first),
                                  std::make_move_iterator(conversations.end()));
  conversations.erase(first, conversations.end());
  return taken;
}

ConversationDataset::ConversationDataset(std::vector<Conversation> training,
                                         std::vector<Conversation> validation,
                                         const ConversationOptions& options)
    : options_(options) {
  if (options.block_size < 1)
    raise<ConfigError>("conversations: block_size is {}; expected 1 or more", options.block_size);
  const auto all = static_cast<int64_t>(training.size() + validation.size());
  int64_t longest = 0;
  for (const std::vector<Conversation>* part : {&training, &validation})
    for (const Conversation& conversation : *part)
      longest = std::max(longest, std::ssize(conversation.tokens));
  training_ = std::make_unique<const Samples>(std::move(training), options, options.order);
  validation_ = std::make_unique<const Samples>(std::move(validation), options, options.order);
  if (training_->samples.empty() && validation_->samples.empty())
    raise<ConfigError>(
        "conversations: none of {} has a target within the first {} tokens (the longest has {}); "
        "expected a larger block size than {}, or shorter prompts",
        all, options.block_size + 1, longest, options.block_size);
  int32_t smallest = 0, largest = 0;
  for (const Samples* part : {training_.get(), validation_.get()})
    for (const Conversation& conversation : part->conversations) {
      const auto [low, high] =
          std::minmax_element(conversation.tokens.begin(), conversation.tokens.end());
      smallest = std::min(smallest, *low);
      largest = std::max(largest, *high);
    }
  vocabulary_ = options.vocabulary > 0 ? options.vocabulary : int64_t{largest} + 1;
  if (smallest < 0 || largest >= vocabulary_)
    raise<ConfigError>("conversations: token {}; expected 0 to {}, the vocabulary",
                       smallest < 0 ? smallest : largest, vocabulary_ - 1);
}

ConversationDataset::~ConversationDataset() = default;

const ConversationDataset::Samples& ConversationDataset::of(Split split) const {
  return split == Split::train ? *training_ : *validation_;
}

const ConversationDataset::Counts& ConversationDataset::counts(Split split) const {
  return of(split).counts;
}

int64_t ConversationDataset::vocabulary() const { return vocabulary_; }
int64_t ConversationDataset::block_size() const { return options_.block_size; }
bool ConversationDataset::has_documents() const { return options_.pack; }
bool ConversationDataset::is_text() const { return options_.codec != nullptr; }

int64_t ConversationDataset::epoch_samples(Split split) const {
  return static_cast<int64_t>(of(split).samples.size());
}

const std::vector<int64_t>& ConversationDataset::conversations(Split split, int64_t index) const {
  const int64_t count = epoch_samples(split);
  if (count == 0)
    raise<ConfigError>("conversations: there are none to {}",
                       split == Split::train ? "train on" : "validate on");
  int64_t place = index % count;
  if (split == Split::train && options_.order == Order::random)
    place = Permutation(options_.seed, "conversations", static_cast<uint64_t>(index / count),
                        count)(place);
  return of(split).samples[static_cast<size_t>(place)];
}

void ConversationDataset::sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const {
  std::fill_n(ids, block_size(), 0);
  std::fill_n(targets, block_size(), -1);
  for (const int64_t item : conversations(split, index)) {
    const Conversation& conversation = of(split).conversations[static_cast<size_t>(item)];
    const size_t length = conversation.tokens.size() - 1;
    for (size_t t = 0; t < length; ++t) {
      *ids++ = conversation.tokens[t];
      *targets++ = conversation.is_target[t + 1] ? conversation.tokens[t + 1] : -1;
    }
  }
}

int64_t ConversationDataset::targets(Split split, int64_t index) const {
  int64_t sum = 0;
  for (const int64_t item : conversations(split, index))
    sum += targets_in(of(split).conversations[static_cast<size_t>(item)]);
  return sum;
}

void ConversationDataset::document_starts(Split split, int64_t index, int32_t* starts) const {
  if (!options_.pack) return Dataset::document_starts(split, index, starts);
  int64_t first = 0;
  for (const int64_t item : conversations(split, index)) {
    const int64_t length = length_of(of(split).conversations[static_cast<size_t>(item)]);
    std::fill_n(starts + first, length, static_cast<int32_t>(first));
    first += length;
  }
  std::fill(starts + first, starts + block_size(), static_cast<int32_t>(first));
}

std::vector<int32_t> ConversationDataset::encode(const std::string& text) const {
  return is_text() ? options_.codec->encode(text) : Dataset::encode(text);
}

std::string ConversationDataset::decode(const std::vector<int32_t>& ids) const {
  return is_text() ? options_.codec->decode(ids) : Dataset::decode(ids);
}

}  // namespace zg::models
