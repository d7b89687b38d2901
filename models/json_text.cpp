#include "zerograd/models/json_text.h"

#include <nlohmann/json.hpp>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

using nlohmann::json;

json parse_json_object(const std::string& text, const std::string& path) {
  constexpr int deepest = 64;  // the JSON writer recurses to the depth of the object
  const auto fail = [&](const std::string& what) { throw FileError(path + ": " + what); };
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > deepest) fail(fmt::format("is nested deeper than {} levels", deepest));
    return true;
  };
  json root;
  try {
    root = json::parse(text, check_depth);
  } catch (const json::parse_error& error) {
    fail(fmt::format("is not JSON at byte {}", error.byte));
  } catch (const json::exception& error) {  // a number beyond any double
    fail(std::string("is not JSON: ") + error.what());
  }
  if (!root.is_object()) fail("expected a JSON object");
  return root;
}

std::string brief(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace zg::models
