#include "tools/options/field_rows.h"
#include "tools/options/model_flags.h"

namespace zg::tools {

bool is_conversations(const std::string& source) { return source.ends_with(".jsonl"); }

Flag validation_source_flag(DataOptions& data) {
  return path_flag({"--val-data"}, "PATH.jsonl", data.validation_source, PathUse::reads,
                   "conversations to validate on, instead of the end of --data");
}

Flag chat_format_flag(DataOptions& data) {
  return path_flag({"--chat-format"}, "F", data.chat_format_path, PathUse::reads,
                   "how messages become text: a chat template, F.jinja; or F.json, {\"user\":\n"
                   "[PREFIX, SUFFIX], \"assistant\": ..., \"first\": TEXT}, with an assistant's\n"
                   "content and suffix learned [the chat template of the model's folder]");
}

Flag chat_flag(bool& chat) {
  return switch_flag({"--chat"}, chat,
                     "each line of stdin is a turn of the user and is answered, in the model's\n"
                     "own chat template; --prompt: the first turn, --length: most tokens of\n"
                     "an answer");
}

Flag pack_flag(DataOptions& data) {
  Flag flag = switch_flag({"--pack"}, data.pack,
                          "several conversations in a sequence, each by itself; else one and\n"
                          "padding [on]");
  flag.value = "on|off";
  return flag;
}

Fields conversation_fields(DataOptions& now, DataOptions& was) {
  return {
      {validation_source_flag(now),
       kept({138, "data.validation_source"}, now.validation_source, was.validation_source)
           .unless({"--val-fraction"})
           .as_path()
           .sparse()},
      {chat_format_flag(now),
       kept({139, "data.chat_format"}, now.chat_format, was.chat_format).sparse()},
      {pack_flag(now), kept({140, "data.pack"}, now.pack, was.pack).sparse()},
  };
}

Field loss_mean_field(std::optional<LossMean>& now, LossMean& was) {
  return {{{"--loss-mean"},
           "micro_batch|token",
           "a step's loss and gradient: the mean over micro-batches of the means over\n"
           "their targets, or over all targets of the step [conversations: token]",
           [&now](const std::string& name, const std::string& value) {
             now = static_cast<LossMean>(parse_choice(name, value, {"micro_batch", "token"}));
           }},
          kept({141, "run.loss_mean"}, now, was).sparse()};
}

}  // namespace zg::tools
