#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "zerograd/runtime/api.h"

namespace zg {

/// Base of everything the library throws. A message holds the operation, what was expected, what
/// came, and the next step where it is known. Errors are thrown before work is launched.
class ZG_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual const char* type() const noexcept { return "Error"; }  ///< "ShapeError", for reports
  /// An error of the same type with another message; null: a derived type that does not override
  /// this.
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

ZG_ERROR_TYPE(ShapeError);   ///< extents that do not fit together
ZG_ERROR_TYPE(DTypeError);   ///< an element type that the operation does not take
ZG_ERROR_TYPE(ConfigError);  ///< flags, configs and arguments out of range; exit status 2
ZG_ERROR_TYPE(Unsupported);  ///< a combination that this build does not offer; exit status 6
ZG_ERROR_TYPE(OutOfMemory);  ///< a device or host cap, itemised; exit status 3
ZG_ERROR_TYPE(DeviceError);  ///< a device or driver failed
ZG_ERROR_TYPE(CommError);    ///< a peer failed, stalled or diverged; exit status 4
ZG_ERROR_TYPE(NotResident);  ///< a parameter was read outside its unit
ZG_ERROR_TYPE(FileError);    ///< a file is missing, short, or not what it claims; exit status 5
ZG_ERROR_TYPE(TapeError);    ///< a Var of another tape, or a tape whose backward has run
ZG_ERROR_TYPE(PlanError);    ///< a run differs from its plan, or a program that a plan cannot end

#undef ZG_ERROR_TYPE

}  // namespace zg
