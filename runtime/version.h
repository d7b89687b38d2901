#pragma once

#include "zerograd/runtime/api.h"

namespace zg {

ZG_API const char* version();  ///< "0.1.0", of the library that is linked

}  // namespace zg
