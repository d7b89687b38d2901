#pragma once

#include <string>

#include "tests/fuzz/bounded.h"
#include "tests/support/placed_message.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {

/// Loads a fuzzed text. An error of load() must have a position and a next step.
template <class Load>
int load_text(const std::string& text, const std::string& file, const Load& load) {
  bounded([&] {
    try {
      load(text);
    } catch (const Error& error) {
      if (const std::string flaw = flaw_of(error.what(), file, text); !flaw.empty())
        report(flaw, error.what());
    }
  });
  return 0;
}

}  // namespace zg::testing
