#pragma once

#include <string>

#include "tools/config/check.h"

namespace zg::tools {

/// The value as the row's type, with pydantic's kindness: "true" and 1 are booleans, 2e8 and "15"
/// whole numbers, 50000000.0 too. ConfigError, beginning with `where`.
Setting coerced(const Row& row, const Value& value, const std::string& where);

/// The row's default. It must have one.
Setting default_of(const Row& row, Compat compat);

/// Whether an `only` row is content with it.
bool is_default(const Setting& setting, Compat compat);

}  // namespace zg::tools
