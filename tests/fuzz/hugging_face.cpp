#include "zerograd/models/hugging_face/hugging_face.h"
#include "tests/fuzz/bounded.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/storage/safetensors_format.h"

// The same text as the config.json of a decoder and of an encoder-decoder, as
// model.safetensors.index.json, and as PEFT's adapter_config.json.
namespace zg::testing {
namespace {

template <class Read>
void guarded(const std::string& begin, const Read& read) {
  const auto check = [&](const Error& error) {
    if (!std::string(error.what()).starts_with(begin))
      report("an error without its file", error.what());
  };
  try {
    read();
  } catch (const FileError& error) {
    check(error);
  } catch (const Unsupported& error) {
    check(error);
  }
}

void read_config(const std::string& text) {
  models::HFModel model = models::hf_config(text, "config.json");
  models::read_hf_generation(text, "config.json", model);
  const models::GPTConfig& config = model.config;
  models::validate(config);
  const models::HFModel again = models::hf_config(models::hf_json(config, model.tokens), "again");
  const models::GPTConfig& back = again.config;
  if (again.tokens != model.tokens) report("not the tokens that are written", text);
  if (back.layers != config.layers || back.heads != config.heads || back.width != config.width ||
      back.vocabulary != config.vocabulary || back.block_size != config.block_size ||
      back.tied != config.tied || back.dropout != config.dropout || back.family != config.family ||
      back.position != config.position || back.embedding_norm != config.embedding_norm)
    report("not what is written of it", text);
}

void read_encoder_decoder(const std::string& text) {
  models::HFSeq2Seq model = models::hf_seq2seq(text, "config.json");
  models::read_hf_generation(text, "config.json", model);
  const models::HFSeq2Seq again = models::hf_seq2seq(models::hf_json(model.config), "config.json");
  if (again.config != model.config) report("not what is written of it", text);
}

void read_adapter(const std::string& text) {
  models::validate(models::peft_adapter(text, "adapter_config.json").lora);
}

void read_index(const std::string& text) {
  for (const auto& [tensor, file] : weight_map_from(text, "index.json"))
    if (!is_file_name(file)) report("outside the folder", file);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  bounded([&] { guarded("config.json:", [&] { read_config(text); }); });
  bounded([&] { guarded("config.json:", [&] { read_encoder_decoder(text); }); });
  bounded([&] { guarded("adapter_config.json:", [&] { read_adapter(text); }); });
  bounded([&] { guarded("index: index.json:", [&] { read_index(text); }); });
  return 0;
}
