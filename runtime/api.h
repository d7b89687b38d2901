#pragma once

// ZG_API marks the functions and classes that a shared library exports.
#if defined(_WIN32)
#error "zerograd builds on Linux"
#else
#define ZG_API __attribute__((visibility("default")))
#endif

namespace zg {

ZG_API const char* version();  ///< version of the linked library: "0.2.0"

}  // namespace zg
