#include <cctype>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/advise.h"

namespace zg::zero {
namespace {

// Letters and digits, in lower case.
std::string letters_of(const std::string& text) {
  std::string letters;
  for (const char letter : text)
    if (std::isalnum(static_cast<unsigned char>(letter)))
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return letters;
}

}  // namespace

const Card& card_named(const std::string& name, const std::string& flag) {
  using enum Device::Type;
  // Data sheets of the makers. `wire` and `link` are 0.8 of one direction of NVLink, Infinity
  // Fabric, Xe Link, Gaudi's Ethernet or, without them, PCI Express; `host` and `disk` are one
  // rank's share, and so is `network`, 0.8 of the adapters of a usual node.
  static constexpr Card cards[] = {
      {"H100 80GB", cuda, 80, {989e12, 3350e9, 360e9, 50e9, 50e9, 3e9, 40e9}, "h100-sxm"},
      {"H200 141GB", cuda, 140, {989e12, 4800e9, 360e9, 50e9, 50e9, 3e9, 40e9}, "h200-sxm"},
      {"A100 80GB", cuda, 80, {312e12, 2039e9, 240e9, 25e9, 25e9, 2e9, 20e9}, "a100-80gb-sxm"},
      {"A100 40GB", cuda, 40, {312e12, 1555e9, 240e9, 25e9, 25e9, 2e9, 20e9}, ""},
      {"L40S", cuda, 48, {362e12, 864e9, 25e9, 25e9, 25e9, 2e9, 10e9}, ""},
      {"RTX 5090", cuda, 32, {210e12, 1792e9, 50e9, 50e9, 20e9, 2e9, 1e9}, ""},
      {"RTX 4090", cuda, 24, {165e12, 1008e9, 12e9, 25e9, 20e9, 2e9, 1e9}, ""},
      {"RTX 3090", cuda, 24, {71e12, 936e9, 12e9, 25e9, 20e9, 2e9, 1e9}, ""},
      {"TITAN RTX", cuda, 24, {130e12, 672e9, 12e9, 12e9, 20e9, 1.5e9, 1e9}, ""},
      {"MI300X", cuda, 192, {1307e12, 5300e9, 350e9, 50e9, 50e9, 3e9, 40e9}, ""},
      {"MI250X, one of two dies", cuda, 64, {191e12, 1638e9, 80e9, 25e9, 25e9, 2e9, 10e9}, ""},
      {"Max 1550, one of two tiles", hpu, 64, {419e12, 1638e9, 100e9, 25e9, 25e9, 2e9, 13e9}, ""},
      {"Gaudi 2", hpu, 96, {432e12, 2450e9, 210e9, 25e9, 25e9, 2e9, 30e9}, ""}};
  std::string names;
  for (const Card& card : cards) {
    if (!letters_of(name).empty() &&
        letters_of(card.name).find(letters_of(name)) != std::string::npos)
      return card;
    names += (names.empty() ? "" : ", ") + std::string(card.name);
  }
  raise<ConfigError>("{}: expected one of {}; got '{}'; try --device-memory SIZE", flag, names,
                     name);
}

}  // namespace zg::zero
