#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// Parses JSON from a file. FileError, beginning with `path`, for text that is no JSON object or is
/// nested too deep. Exported for zerograd::text.
ZG_API nlohmann::json parse_json_object(const std::string& text, const std::string& path);
/// A value on one line, shortened, for error messages.
ZG_API std::string brief(const nlohmann::json& value);

}  // namespace zg::models
