#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "zerograd/runtime/api.h"

namespace zg {

/// Base class of all exceptions of the library. A message names the operation, the expected value,
/// the actual value and, where it is known, what to try. Errors are thrown before work is launched.
class ZG_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual const char* type() const noexcept { return "Error"; }  ///< "ShapeError", for reports
  /// An error of the same type with another message. Null if a derived type does not override this.
  virtual std::exception_ptr with_message(const std::string& message) const {
    return typeid(*this) == typeid(Error) ? std::make_exception_ptr(Error(message)) : nullptr;
  }
};

#define ZG_ERROR_TYPE(Name)                                                      \
  class ZG_API Name final : public Error {                                       \
   public:                                                                       \
    using Error::Error;                                                          \
    const char* type() const noexcept override { return #Name; }                 \
    std::exception_ptr with_message(const std::string& message) const override { \
      return std::make_exception_ptr(Name(message));                             \
    }                                                                            \
  }

ZG_ERROR_TYPE(ShapeError);   ///< shapes that do not fit together
ZG_ERROR_TYPE(DTypeError);   ///< an element type that the operation does not accept
ZG_ERROR_TYPE(ConfigError);  ///< a flag, a config or an argument is wrong; exit status 2
ZG_ERROR_TYPE(Unsupported);  ///< this build or device does not support it; exit status 6
/// A memory limit would be exceeded; lists the memory in use; exit status 3.
ZG_ERROR_TYPE(OutOfMemory);
ZG_ERROR_TYPE(DeviceError);  ///< a device or driver failed
ZG_ERROR_TYPE(CommError);    ///< a rank failed, stalled or made another call; exit status 4
ZG_ERROR_TYPE(NotResident);  ///< a parameter was read outside a Tape::Use of its unit
ZG_ERROR_TYPE(FileError);    ///< a file is missing, damaged or cannot be written; exit status 5
ZG_ERROR_TYPE(TapeError);    ///< a Var of another tape, or a tape whose backward has run
ZG_ERROR_TYPE(PlanError);    ///< a run differs from its plan, or planning the program does not end

#undef ZG_ERROR_TYPE

}  // namespace zg
