#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zg::tools {

/// Text to tokens and back for a model that reads characters: the checkpoint carries them, so a
/// prompt needs no data file. Without characters, tokens are written as numbers: "15 2 7".
class Characters {
 public:
  /// One UTF-8 code point per token, in order of the tokens' ids.
  explicit Characters(const std::string& in_order_of_ids);

  bool empty() const { return characters_.empty(); }
  /// ConfigError naming the character, or the byte that is no UTF-8.
  std::vector<int32_t> encode(const std::string& prompt) const;
  std::string decode(int32_t token) const;
  std::string rest() const { return ""; }  ///< as TokenizedText: every token is shown at once

 private:
  std::vector<std::string> characters_;
  std::map<std::string, int32_t> ids_;
};

}  // namespace zg::tools
