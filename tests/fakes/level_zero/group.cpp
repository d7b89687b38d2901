#include "tests/fakes/level_zero/group.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "tests/fakes/cuda/fiber.h"
#include "tests/fakes/level_zero/settings.h"

// Runs a work-group on one system thread, with one fiber for each work-item. After a barrier the
// work-item that arrived last continues, or one chosen by a seed. An operation that the programming
// model forbids ends the kernel; the message has the group and how many work-items wait where.
namespace zg::test_driver {
namespace {

using emulator::Fiber;

/// The value that a lane passes to a sub-group operation. Aligned for any vector type.
struct alignas(64) Slot {
  std::byte bytes[64];
};

struct WorkItem {
  enum class State : uint8_t { ready, at_barrier, meeting, done };
  zg_item item;
  uint32_t flat = 0;
  State state = State::ready;
  uint8_t turn = 0;  ///< which of two slots: a slower lane may still read the other one
  const void* place = nullptr;
  const char* operation = "";
  Fiber fiber;
};

class Group {
 public:
  explicit Group(const Work& work)
      : work_(work),
        size_(work.local[0] * work.local[1] * work.local[2]),
        items_(work.meets ? size_ : 1),
        slots_(work.meets ? 2 * size_ : 0),
        random_(work.seed) {
    const unsigned most = work.sub_group;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      WorkItem& w = items_[i];
      w.flat = i;
      w.item = {};
      for (int d = 0; d < 3; ++d) {
        w.item.groups[d] = work.groups[d];
        w.item.local_size[d] = work.local[d];
      }
      w.item.local_id[0] = i % work.local[0];
      w.item.local_id[1] = i / work.local[0] % work.local[1];
      w.item.local_id[2] = i / work.local[0] / work.local[1];
      w.item.sub_group = i / most;
      w.item.sub_groups = (size_ + most - 1) / most;
      w.item.lane = i % most;
      w.item.broken_products = settings().products == 2;
      w.item.lanes = std::min(most, size_ - i / most * most);
    }
    waiting_.resize((size_ + most - 1) / most);
  }

  std::string run(uint64_t number) {
    const Extent index{static_cast<uint32_t>(number % work_.groups[0]),
                       static_cast<uint32_t>(number / work_.groups[0] % work_.groups[1]),
                       static_cast<uint32_t>(number / work_.groups[0] / work_.groups[1])};
    for (WorkItem& w : items_) std::copy(index.begin(), index.end(), w.item.group_id);
    work_.poison();
    if (const size_t bytes = static_cast<std::byte*>(work_.dynamic_local[1]) -
                             static_cast<std::byte*>(work_.dynamic_local[0]))
      std::memset(work_.dynamic_local[0], 0xff, bytes);
    work_.meets ? run_fibers() : run_rows();
    if (error_.empty()) return {};
    return error_ + " in group " + std::to_string(index[0]) + "," + std::to_string(index[1]) + "," +
           std::to_string(index[2]) + " of " + work_.kernel;
  }

  void barrier(const void* place) {
    WorkItem& me = *current_;
    me.state = WorkItem::State::at_barrier;
    me.place = place;
    me.operation = "barrier";
    if (++at_barrier_ < size_) return leave(false);
    for (const WorkItem& w : items_) {
      if (w.place != place) return stop("work-items wait at different barriers" + who_waits());
    }
    at_barrier_ = 0;
    for (WorkItem& w : items_) make_ready(w, me);
  }

  const void* meet(const void* value, unsigned bytes, const char* operation, const void* place) {
    WorkItem& me = *current_;
    me.turn ^= 1;
    std::memcpy(slot(me.turn, me.flat), value, bytes);
    me.state = WorkItem::State::meeting;
    me.place = place;
    me.operation = operation;
    const uint32_t first = me.flat - me.item.lane;
    if (++waiting_[me.item.sub_group] < me.item.lanes) {
      leave(false);
    } else {
      for (uint32_t i = first; i < first + me.item.lanes; ++i) {
        if (items_[i].place != place)
          stop("lanes of a sub-group meet in different operations" + who_waits());
      }
      waiting_[me.item.sub_group] = 0;
      for (uint32_t i = first; i < first + me.item.lanes; ++i) make_ready(items_[i], me);
    }
    return slot(me.turn, first);
  }

  /// Ends the kernel from within a fiber, which is not resumed.
  void stop(const std::string& words) {
    error_ = words;
    Fiber::change(&current_->fiber, nullptr, true);
  }

 private:
  void run_rows() {
    WorkItem& w = items_[0];
    *work_.running = &w.item;
    for (uint32_t z = 0; z < work_.local[2]; ++z) {
      for (uint32_t y = 0; y < work_.local[1]; ++y) {
        w.item.local_id[1] = y;
        w.item.local_id[2] = z;
        work_.row(work_.arguments);
      }
    }
  }

  void run_fibers() {
    at_barrier_ = done_ = 0;
    std::fill(waiting_.begin(), waiting_.end(), 0);
    ready_.clear();
    for (WorkItem& w : items_) {
      w.fiber.prepare(&enter);
      w.state = WorkItem::State::ready;
      ready_.push_back(size_ - 1 - w.flat);
    }
    current_ = take();
    Fiber::change(nullptr, &current_->fiber, false);
  }

  static void enter();

  /// Switches to the next fiber because the running one waits or has returned.
  void leave(bool is_done) {
    WorkItem& me = *current_;
    if (ready_.empty()) {
      if (done_ < size_) return stop("divergent barrier or sub-group operation" + who_waits());
      return Fiber::change(&me.fiber, nullptr, true);
    }
    current_ = take();
    Fiber::change(&me.fiber, &current_->fiber, is_done);
  }

  WorkItem* take() {
    if (work_.seed) std::swap(ready_[random_() % ready_.size()], ready_.back());
    WorkItem& next = items_[ready_.back()];
    ready_.pop_back();
    *work_.running = &next.item;
    return &next;
  }

  void make_ready(WorkItem& w, const WorkItem& but) {
    w.state = WorkItem::State::ready;
    if (&w != &but) ready_.push_back(w.flat);
  }

  std::byte* slot(unsigned turn, uint32_t flat) {
    return slots_[size_t{turn} * size_ + flat].bytes;
  }

  std::string who_waits() const {
    std::map<std::pair<std::string, const void*>, int> waits;
    for (const WorkItem& w : items_) {
      if (w.state == WorkItem::State::done) ++waits[{"have returned", nullptr}];
      if (w.state == WorkItem::State::at_barrier || w.state == WorkItem::State::meeting)
        ++waits[{std::string("wait at ") + w.operation, w.place}];
    }
    std::string words;
    for (const auto& [where, count] : waits)
      words += (words.empty() ? ": " : "; ") + std::to_string(count) + " x " + where.first;
    return words;
  }

  const Work& work_;
  const uint32_t size_;
  std::vector<WorkItem> items_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> waiting_;  ///< by sub-group: lanes that wait
  std::vector<uint32_t> ready_;
  uint32_t at_barrier_ = 0, done_ = 0;
  WorkItem* current_ = nullptr;
  std::string error_;
  std::minstd_rand random_;
};

thread_local Group* running = nullptr;

void Group::enter() {
  Fiber::entered();
  Group& group = *running;
  WorkItem& me = *group.current_;
  group.work_.item(group.work_.arguments);
  me.state = WorkItem::State::done;
  ++group.done_;
  group.leave(true);
}

}  // namespace

const Hooks hooks{
    [](const void* place) { running->barrier(place); },
    [](const void* value, unsigned bytes, const char* operation, const void* place) {
      return running->meet(value, bytes, operation, place);
    },
    [](const char* words) { running->stop(words); },
};

std::string run_groups(const Work& work, uint64_t first, uint64_t last) {
  Group group(work);
  running = &group;
  const uint64_t all = uint64_t{work.groups[0]} * work.groups[1] * work.groups[2];
  // Groups may run in any order. A step coprime to the count visits each group exactly once.
  uint64_t step = 1;
  if (work.seed && all > 1) {
    step = work.seed % all;
    while (std::gcd(step, all) != 1) ++step;
  }
  std::string error;
  for (uint64_t i = first; i < last && error.empty(); ++i)
    error = group.run((i * step + work.seed) % all);
  running = nullptr;
  return error;
}

}  // namespace zg::test_driver
