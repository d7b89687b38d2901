#pragma once

#include <string>
#include <vector>

namespace zg::tools {

// Each subcommand takes its arguments without its own name and returns the exit status. Errors are
// thrown.
int train(const std::vector<std::string>& arguments);
int finetune(const std::vector<std::string>& arguments);
int plan(const std::vector<std::string>& arguments);
int tune(const std::vector<std::string>& arguments);
int eval(const std::vector<std::string>& arguments);
int generate(const std::vector<std::string>& arguments);
// `plan eval` and `plan generate`: predict the memory, without reading weights.
int eval(const std::vector<std::string>& arguments, bool only_planned);
int generate(const std::vector<std::string>& arguments, bool only_planned);
int launch(const std::vector<std::string>& arguments);
int consolidate(const std::vector<std::string>& arguments);
int export_weights(const std::vector<std::string>& arguments);
int verify(const std::vector<std::string>& arguments);
int tokenize(const std::vector<std::string>& arguments);
int bench(const std::vector<std::string>& arguments);
int info(const std::vector<std::string>& arguments);

}  // namespace zg::tools
