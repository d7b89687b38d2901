#include "zerograd/runtime/api.h"

namespace zg {

const char* version() { return ZG_VERSION; }

}  // namespace zg
