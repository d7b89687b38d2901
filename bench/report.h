#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "zerograd/bench.h"

namespace zg::bench {

// Single lines of table(), for a program that prints each line when it is measured, and parts of
// JSON records.

std::string table_head();
std::string lines_of_limits(const Report& report);
std::string line_of(const Row& row);
/// The line below the table that explains cache names after percentages, "312 % (L3)". Empty if no
/// row has a cache name.
std::string note_of(const std::vector<Report>& reports);

/// The machine in a record of `zerograd bench`: the CPU's instruction set and cores, or the first
/// accelerator's description and their number.
nlohmann::ordered_json machine_json(Device::Type type = Device::Type::cpu);

}  // namespace zg::bench
