#include "zerograd/zero/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>

#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

// An independent reader of event files that checks every byte it reads.
class Bytes {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  bool done() const { return at_ == bytes_.size(); }
  template <class T>
  T fixed() {
    T value{};
    const std::string taken = take(sizeof value);
    std::memcpy(&value, taken.data(), sizeof value);  // assumes a little-endian machine
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string take(size_t count) {
    REQUIRE(bytes_.size() - at_ >= count);
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

uint32_t masked(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

struct Event {
  double wall_time = 0.0;
  int64_t step = 0;
  std::string file_version;
  std::map<std::string, float> values;
};

std::pair<std::string, float> value_in(Bytes bytes) {
  std::pair<std::string, float> value;
  while (!bytes.done()) {
    const uint64_t key = bytes.varint();
    REQUIRE((key == (1 << 3 | 2) || key == (2 << 3 | 5)));
    if (key == (1 << 3 | 2)) value.first = bytes.take(bytes.varint());
    if (key == (2 << 3 | 5)) value.second = bytes.fixed<float>();
  }
  return value;
}

Event event_in(Bytes bytes) {
  Event event;
  while (!bytes.done()) {
    const uint64_t key = bytes.varint();
    if (key == (1 << 3 | 1)) {
      event.wall_time = bytes.fixed<double>();
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<int64_t>(bytes.varint());
    } else if (key == (3 << 3 | 2)) {
      event.file_version = bytes.take(bytes.varint());
    } else {
      REQUIRE(key == (5 << 3 | 2));
      Bytes summary(bytes.take(bytes.varint()));
      while (!summary.done()) {
        REQUIRE(summary.varint() == (1 << 3 | 2));
        event.values.insert(value_in(Bytes(summary.take(summary.varint()))));
      }
    }
  }
  return event;
}

std::vector<Event> events_in(const std::string& path) {
  Bytes file(read_file(path));
  std::vector<Event> events;
  while (!file.done()) {
    const std::string length = file.take(8);
    CHECK(file.fixed<uint32_t>() == masked(length));
    const std::string data = file.take(Bytes(length).fixed<uint64_t>());
    CHECK(file.fixed<uint32_t>() == masked(data));
    events.push_back(event_in(Bytes(data)));
  }
  return events;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

const std::string tensorboard_run =
    "train --data sort --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 --n-head 1 "
    "--n-embd 16 --batch-size 2 ";

}  // namespace

TEST_CASE("CRC-32C has the values of RFC 3720") {
  std::string up, down;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i);
  down.assign(up.rbegin(), up.rend());
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(crc32c(up) == 0x46dd794e);
  CHECK(crc32c(down) == 0x113fdb5c);
  // An iSCSI read command, B.4's last.
  const unsigned char read[] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                                0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  CHECK(crc32c({reinterpret_cast<const char*>(read), sizeof read}) == 0xd9963a56);
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
}

TEST_CASE(
    "tensorboard: an event file starts with its version and has every scalar by steps and "
    "samples") {
  const TemporaryFolder folder;
  const double begin = static_cast<double>(std::time(nullptr));
  zero::MetricsBoard file(folder / "deep/down");
  file.write({.step = 6,
              .micro_steps = 2,
              .samples = 1024,
              .loss = 1.5,
              .grad_norm = 0.25,
              .rate = 1e-4,
              .loss_scale = 0,
              .seconds = 0.125},
             {.steps = 7, .samples = 300000000000});
  file.write(zero::MetricsBoard::Validation{NAN}, {.steps = 7, .samples = 300});
  const std::string name = std::filesystem::path(file.path()).filename();
  CHECK(name.starts_with("events.out.tfevents.1"));
  CHECK(name.ends_with("." + std::to_string(getpid()) + ".0"));
  const std::vector<Event> events = events_in(file.path());
  REQUIRE(events.size() == 5);
  for (const Event& event : events) CHECK(event.wall_time >= begin);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[1].step == 7);
  CHECK(events[1].values ==
        std::map<std::string, float>{{"lm-loss-training/lm loss", 1.5f},
                                     {"learning-rate/learning-rate", 1e-4f},
                                     {"batch-size/batch-size", 1024.0f},
                                     {"grad-norm/grad-norm", 0.25f},
                                     {"loss-scale/loss-scale", 0.0f},
                                     {"iteration-time/iteration-time", 0.125f}});
  CHECK(events[2].step == 300000000000);
  CHECK(events[2].values.size() == events[1].values.size());
  for (const auto& [tag, value] : events[1].values)
    CHECK(events[2].values.at(tag + " vs samples") == value);
  CHECK(events[3].step == 7);
  CHECK(std::isnan(events[3].values.at("lm-loss-validation/lm loss validation")));
  CHECK(events[4].step == 300);
  // Another of the same second.
  const zero::MetricsBoard other(folder / "deep/down");
  CHECK(other.path() != file.path());
  CHECK_THROWS_AS(zero::MetricsBoard("/proc/nowhere"), FileError);
}

TEST_CASE("tensorboard: a run's events equal its metrics, and a resumed run starts another file") {
  const TemporaryFolder folder;
  const std::string board = folder / "board", save = folder / "saved", metrics = folder / "metrics";
  const std::string flags = " --tensorboard-dir " + board + " --metrics " + metrics;
  checked(zerograd(tensorboard_run +
                   "--ranks 2 --train-batch-size 8 --rampup-batch-size 4 4 8 --steps 4 "
                   "--precision bf16 --eval-interval 2 --eval-batches 1 --save " +
                   save + flags));
  const auto check = [&](const std::string& file, size_t first, int64_t samples) {
    std::vector<nlohmann::json> lines;
    for (const nlohmann::json& line : json_lines(metrics))
      if (line.contains("loss")) lines.push_back(line);
    size_t step = first;
    for (const Event& event : events_in(file)) {
      if (!event.values.count("lm-loss-training/lm loss")) continue;
      const auto& line = lines.at(step++);
      samples += line.at("samples").get<int64_t>();
      CHECK(event.step == static_cast<int64_t>(step));
      const std::pair<const char*, const char*> same[] = {
          {"lm-loss-training/lm loss", "loss"},    {"learning-rate/learning-rate", "lr"},
          {"batch-size/batch-size", "samples"},    {"grad-norm/grad-norm", "grad_norm"},
          {"loss-scale/loss-scale", "loss_scale"}, {"iteration-time/iteration-time", "step_s"}};
      for (const auto& [tag, key] : same)
        CHECK(event.values.at(tag) == static_cast<float>(line.at(key).get<double>()));
    }
    CHECK(step == lines.size());
    return samples;
  };
  std::vector<std::string> files = files_in(board);
  REQUIRE(files.size() == 1);
  const int64_t samples = check(files[0], 0, 0);
  CHECK(samples == 4 + 4 + 8 + 8);
  const std::vector<Event> events = events_in(files[0]);
  CHECK(events.back().step == samples);
  int validations = 0;
  for (const Event& event : events)
    validations += static_cast<int>(event.values.count("lm-loss-validation/lm loss validation"));
  CHECK(validations == 2);
  const std::string first = files[0];
  checked(zerograd("train --ranks 2 --steps 6 --score-samples 0 --resume " + save + flags));
  files = files_in(board);
  REQUIRE(files.size() == 2);
  check(files[files[0] == first ? 1 : 0], 4, samples);
  CHECK(contains(
      zerograd("plan" + tensorboard_run.substr(5) + "--steps 1 --tensorboard-dir " + board).error,
      "without effect: --tensorboard-dir"));
  CHECK(files_in(board).size() == 2);
}

TEST_CASE("tensorboard: the event file of a killed run has whole records only") {
  const TemporaryFolder folder;
  const std::string board = folder / "board";
  zerograd_signalled(
      tensorboard_run + "--steps 1000000 --log-interval 1 --tensorboard-dir " + board,
      "iter 3:", SIGKILL);
  REQUIRE(files_in(board).size() == 1);
  CHECK(events_in(files_in(board)[0]).size() >= 7);  // the version's, and two for each of 3 steps
}

TEST_CASE(
    "tensorboard: on a full disk the event file ends with a whole record and the run trains on") {
  const SmallDisk disk(3 * 4096);
  if (!disk.reason().empty()) return;
  const Outcome outcome =
      checked(zerograd(tensorboard_run + "--steps 40 --tensorboard-dir " + disk.path()), 5);
  CHECK(contains(outcome.error, "warning: --tensorboard-dir: writing "));
  CHECK(contains(outcome.error, "; no more of it is written, and training goes on\n"));
  CHECK(line_after(outcome.out, "param_hash ") == hash_of(tensorboard_run + "--steps 40"));
  const std::vector<Event> events = events_in(files_in(disk.path()).at(0));
  CHECK(events.size() > 3);
  CHECK(events.size() < 81);
}

TEST_CASE("tensorboard: a folder that cannot be made is an error before the run starts") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  const Outcome outcome = checked(
      zerograd(tensorboard_run + "--steps 1 --tensorboard-dir " + (folder / "file") + "/board"), 5);
  CHECK(outcome.out.empty());
  CHECK(contains(outcome.error, "error: FileError: "));
}

}  // namespace zg::testing
