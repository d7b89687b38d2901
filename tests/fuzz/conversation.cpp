#include "tests/fuzz/chats.h"
#include "tests/support/placed_message.h"
#include "zerograd/runtime/error.h"

// The same text as a file of conversations, of questions and of pairs, and as a chat format.
namespace zg::testing {
namespace {

/// An error names the file, and the line if it is one of a line.
template <class Read>
void guarded(const std::string& file, const Read& read) {
  bounded([&] {
    try {
      read();
    } catch (const Error& error) {
      const std::string message = error.what();
      if (message.find(file) == message.npos) report("an error without its file", message);
      if (!is_one_line(message)) report("not a line of text", message);
      if (message.size() > 2000) report("it is long", message);
    }
  });
}

void read_format(const std::string& text) {
  const models::ChatFormat format = models::chat_format(text, "chat.json");
  const std::string json = models::chat_format_json(format);
  if (models::chat_format_json(models::chat_format(json, "again")) != json)
    report("not what is written of it", text);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  for (const auto read : {read_conversations, read_questions, read_pairs})
    guarded(lines().path(), [&] { read(text); });
  guarded("chat.json", [&] { read_format(text); });
  return 0;
}
