#include "tools/data_flags.h"

#include "tools/flags.h"

namespace zg::tools {
namespace {

// Megatron's: up to three weights; what is left out is 0.
void read_split(const std::string& name, const std::string& value, std::array<double, 3>& split) {
  constexpr Range weight{0.0, 1e12, false, false, "up to three weights from 0, like 949,50,1"};
  std::array<double, 3> weights{};
  size_t begin = 0;
  for (size_t i = 0; begin <= value.size(); ++i) {
    const size_t end = std::min(value.find_first_of(",/", begin), value.size());
    const std::string number = i < weights.size() ? value.substr(begin, end - begin) : value;
    weights[std::min<size_t>(i, 2)] = parse_number(name, number, weight);
    begin = end + 1;
  }
  split = weights;
}

}  // namespace

Flag source_flag(DataOptions& data) {
  return text_flag({"--data", "--data-path"}, "D", data.source,
                   "sort, adder, a text PATH.txt, tokens PATH.bin, or the PREFIX of\n"
                   "Megatron's PREFIX.bin and PREFIX.idx");
}

std::vector<Flag> held_out_flags(DataOptions& data) {
  return {number_flag({"--val-fraction"}, data.validation_fraction, below_one,
                      "the end of a text or token file that is held out"),
          {{"--split"},
           "A,B,C",
           "weights of training, validation and test in the documents of a PREFIX,\n"
           "as Megatron cuts them; the third part is in neither [969,30,1]",
           [&data](const std::string& name, const std::string& value) {
             read_split(name, value, data.split);
           }}};
}

Flag tokenizer_flag(DataOptions& data) {
  return text_flag({"--tokenizer"}, "PATH", data.tokenizer,
                   "byte-level BPE for text, and for what tokens mean: a tokenizer.json, or a\n"
                   "folder with one or with vocab.json and merges.txt");
}

}  // namespace zg::tools
