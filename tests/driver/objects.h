#pragma once

#include <level_zero/ze_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/driver/group.h"
#include "tests/driver/memory.h"
#include "tests/driver/program.h"
#include "tests/driver/spirv.h"

// What the handles of Level Zero point to. All of it is guarded by State::mutex (state.h).
namespace zg::test_driver {

struct Device {
  int index = 0;
  char name[64] = {};  ///< "device 0", for messages
  size_t allocated = 0;
};

struct Context {};

struct PhysicalMemory {
  Device* device = nullptr;
  size_t bytes = 0;
  int mapped = 0;  ///< how often
};

struct EventPool {
  uint32_t count = 0;
  bool timestamps = false, host_visible = false;
  std::set<uint32_t> used;
};

struct Event {
  EventPool* pool = nullptr;
  uint32_t index = 0;
  bool signalled = false;
  int signals = 0, waits = 0;  ///< commands under way that will signal it, that wait for it
  uint64_t start_ns = 0, end_ns = 0;
};

/// A piece of memory that a command names.
struct Range {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct Command {
  enum class Order {
    none,     ///< runs before or after its neighbours
    barrier,  ///< after all before it and before all behind it
    wait      ///< before all behind it
  };
  std::string what;
  Order order = Order::none;
  std::function<std::string()> work;  ///< what went wrong, or nothing
  std::vector<Event*> waits;
  Event* signal = nullptr;
  std::vector<Range> memory;
};

/// What a device is to do, of one immediate list or one queue.
struct Queue {
  Device* device = nullptr;
  uint64_t number = 0;  ///< in order of making
  bool synchronous = false;
  std::deque<Command> commands;
};

struct CommandList {
  Device* device = nullptr;
  Queue* immediate = nullptr;  ///< else a list to be executed by a queue
  std::vector<Command> recorded;
  bool closed = false;
};

struct Fence {
  bool signalled = false;
};

struct BuildLog {
  std::string words;
};

struct Module {
  Device* device = nullptr;
  std::vector<std::byte> spirv;
  SpirvModule contents;
  std::shared_ptr<const Program> program;
  std::string unlinked;  ///< a function that this device lacks
};

struct ArgumentValue {
  bool set = false;
  size_t local_bytes = 0;
  std::vector<std::byte> bytes;
};

struct Kernel {
  Module* module = nullptr;
  std::shared_ptr<const Program> program;
  KernelSignature signature;
  std::vector<ArgumentValue> arguments;
  Extent group{};
};

}  // namespace zg::test_driver
