#pragma once

// ZG_API marks what a shared library exports. The library itself is compiled with ZG_BUILDING.
#if defined(_WIN32)
#error "zerograd builds on Linux"
#else
#define ZG_API __attribute__((visibility("default")))
#endif

namespace zg {

ZG_API const char* version();  ///< "0.2.0", of the library that is linked

}  // namespace zg
