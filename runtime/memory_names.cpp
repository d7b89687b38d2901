// These names are not in ledger.cpp, because code that reads settings needs them without devices.
#include "zerograd/runtime/memory.h"

namespace zg {

const char* name_of(Space space) {
  constexpr const char* names[] = {"device", "pinned", "host", "file"};
  return names[static_cast<size_t>(space)];
}

const char* name_of(Purpose purpose) {
  constexpr const char* names[] = {"parameter",  "gradient",  "optimizer",
                                   "activation", "workspace", "comm"};
  return names[static_cast<size_t>(purpose)];
}

}  // namespace zg
