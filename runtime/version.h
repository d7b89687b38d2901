#pragma once

#include "zerograd/runtime/api.h"

namespace zg {

ZG_API const char* version();  ///< "0.2.0", of the library that is linked

}  // namespace zg
