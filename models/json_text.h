#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace zg::models {

/// Of text that others wrote. FileError, beginning with `path`, for what is no JSON object or is
/// nested too deep.
nlohmann::json parse_json_object(const std::string& text, const std::string& path);
/// On one line, shortened: for errors.
std::string brief(const nlohmann::json& value);

}  // namespace zg::models
