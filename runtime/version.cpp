#include "zerograd/runtime/version.h"

namespace zg {

const char* version() { return ZG_VERSION; }

}  // namespace zg
