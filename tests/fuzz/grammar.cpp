#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/fuzz/chats.h"
#include "tests/models/tokenizer/tokenizer_text.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"
#include "zerograd/models/data/chat_template.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/safetensors.h"

// Documents made by a grammar, and what a reader must say of each: a valid one is accepted, one
// with a single flaw is an error.
//   fuzz_grammar READER FIRST LAST FILE...   the inputs of these seeds, from the valid documents
//   FILE
// A child process reads the inputs, so that a crash costs one input. Prints a line for each
// finding, and last: inputs, accepted, refused, crashes and hangs, wrong answers, largest memory in
// MiB.
namespace zg::testing {
namespace {

using Json = nlohmann::ordered_json;
using models::Tokenizer;

struct Input {
  std::string text, what;
  enum { valid, flawed, any } is = valid;
};

struct Reader {
  std::function<void(const std::string& text)> read;
  std::set<std::string> free;   ///< keys whose values have no effect, with what they contain
  std::set<std::string> names;  ///< keys with a list of known texts
  std::set<std::string> reals;  ///< keys that take any number
  std::set<std::string> types;  ///< keys that take values of several types
  bool has_lines = false;
  bool unique_keys = false;  ///< otherwise the last of two counts, as in Python
  std::function<void(Json&)> finish = [](Json&) {};
  Input (*from_text)(std::string document, Draws& draws) = nullptr;  ///< it is not JSON
};

void read_config(const std::string& text) {
  if (text.find("is_encoder_decoder") != text.npos)
    models::hf_seq2seq(text, "config.json");
  else
    models::validate(models::hf_config(text, "config.json").config);
}

const TemporaryFolder folder;  // removed by the parent process

void read_tokenizer_config(const std::string& text) {
  write_file(folder / "tokenizer.json", read_file("tests/fuzz/corpus/tokenizer/llama"));
  write_file(folder / "tokenizer_config.json", text);
  const Tokenizer tokenizer = models::load_tokenizer(folder.path());
  models::special_tokens_of(tokenizer);
  models::chat_template_of(tokenizer);
  models::folder_chat_template(folder.path());
}

void render(const std::string& text) {
  models::ChatRenderer renderer({.text = text,
                                 .variables = R"({"bos_token": "<s>", "eos_token": "</s>"})",
                                 .date = "2024-07-26"},
                                models::ChatRenderer::Text::chat, /*seconds=*/1);
  renderer.render(R"({"messages": [{"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b"}]})",
                  "row");
}

Input damaged(std::string text, Draws& draws) {
  for (uint64_t times = 1 + draws.below(8); times > 0 && !text.empty(); --times) {
    const size_t at = draws.below(text.size());
    if (draws.below(2))
      text[at] = static_cast<char>(draws.next());
    else
      text.insert(at, text.substr(draws.below(text.size()), draws.below(40)));
  }
  return {text, "damaged bytes", Input::any};
}

/// A template of chats, with at most one thing that jinja2 refuses.
Input template_of(std::string text, Draws& draws) {
  static const std::vector<std::string> bad = {
      "{{ ''.__class__.__mro__ }}", "{{ messages | no_such_filter }}", "{{ messages.append(1) }}",
      "{{ no_such_function() }}", "{{ 'x' * 99999999999 }}", "{% include 'x' %}",
      "{% import 'os' as os %}", "{{ raise_exception('no') }}", "{{ namespace(_x=1)._x }}",
      "{% no_such_tag %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 1 / 0 }}",
      "{% for i in range(999999) %}{% endfor %}", "{% endfor %}", "{% if true %}", "{{ ( }}",
      "{{ '%999999999d' % 1 }}", "{{ cycler.__init__.__globals__ }}",
      // Takes the whole second.
      "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"};
  const uint64_t kind = draws.below(8);
  if (kind == 0) return {text, "the document"};
  if (kind <= 3) {
    const std::string& added = bad[draws.below(50) ? draws.below(bad.size() - 1) : bad.size() - 1];
    return {added + text, added, Input::flawed};
  }
  if (kind <= 5) {
    static const std::regex end_of_block(R"(\{%-? *end(for|if|macro|generation) *-?%\})");
    std::vector<std::smatch> ends(std::sregex_iterator(text.begin(), text.end(), end_of_block), {});
    const std::smatch& end = draws.one_of(ends);
    const std::string what = "without " + end.str();
    return {text.erase(static_cast<size_t>(end.position()), static_cast<size_t>(end.length())),
            what, Input::flawed};
  }
  return damaged(std::move(text), draws);
}

// Without its own keys a file of algorithms has a wrong checksum, which would hide other flaws.
void add_checksum(Json& file) {
  file.erase("checksum");
  const std::string body = file.dump(-1, ' ', true, Json::error_handler_t::replace);
  file["checksum"] = checksum(std::as_bytes(std::span(body)));
}

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all = {
      {"config",
       {.read = read_config,
        .free = {"architectures",
                 "initializer_range",
                 "transformers_version",
                 "use_cache",
                 "torch_dtype",
                 "dtype",
                 "summary_type",
                 "n_ctx",
                 "_name_or_path",
                 "id2label",
                 "label2id",
                 "classifier_dropout",
                 "embd_pdrop",
                 "offset_alibi",
                 "slow_but_exact",
                 "eos_token_id",
                 "bos_token_id",
                 "init_std",
                 "forced_eos_token_id",
                 "reorder_and_upcast_attn"},
        .names = {"model_type", "activation_function", "hidden_act"},
        .reals = {"rope_theta", "layer_norm_epsilon", "attn_pdrop", "resid_pdrop",
                  "attention_dropout", "activation_dropout", "dropout", "hidden_dropout",
                  "encoder_layerdrop", "decoder_layerdrop"}}},
      {"index",
       {.read = [](const std::string& text) { weight_map_from(text, "index.json"); },
        .free = {"metadata", "total_size"}}},
      {"tokenizer",
       {.read = [](const std::string& text) { models::tokenizer_from_json(text, "t.json"); },
        .free = {"version", "truncation", "padding", "type_id", "tokens", "pair", "trim_offsets",
                 "id", "use_regex", "fuse_unk"},
        .names = {"type", "behavior", "prepend_scheme"}}},
      {"tokenizer_config",
       {.read = read_tokenizer_config,
        .free = {"__type", "add_bos_token", "clean_up_tokenization_spaces", "model_max_length",
                 "tokenizer_class"},
        .types = {"bos_token", "chat_template", "extra_special_tokens"}}},
      {"jinja", {.read = render, .from_text = template_of}},
      {"template",
       {.read = [](const std::string& text) { models::chat_format(text, "chat.json"); },
        .unique_keys = true}},
      {"adapter",
       {.read = [](const std::string& text) { models::peft_adapter(text, "adapter.json"); },
        .free = {"auto_mapping", "ensure_weight_tying", "eva_config", "fan_in_fan_out",
                 "inference_mode", "megatron_config", "megatron_core", "peft_version",
                 "qalora_group_size", "revision", "init_lora_weights", "alpha_pattern",
                 "loftq_config", "rank_pattern"},
        .names = {"peft_type", "task_type", "bias"},
        .reals = {"lora_alpha"}}},
      {"jsonl",
       {.read = read_conversations, .free = {"weight"}, .names = {"role"}, .has_lines = true}},
      {"questions", {.read = read_questions, .free = {"ind", "split", "ctx"}, .has_lines = true}},
      {"pairs", {.read = read_pairs, .has_lines = true}},
      {"peaks",
       {.read = [](const std::string& text) { Peaks::parse(text, "peaks.json"); },
        .names = {"schema", "dtype", "class"},
        .reals = {"bandwidth", "operations", "multiprocessors", "f64", "f32", "bf16", "f16",
                  "launch_seconds", "call_seconds", "wait_seconds", "collective_seconds",
                  "collective_bandwidth"},
        .unique_keys = true}},
      {"algorithms",
       {.read = [](const std::string& text) { MatmulAlgorithms::parse(text, "a.json"); },
        .names = {"schema", "operands", "sums", "vector"},
        .reals = {"seconds", "first_seconds"},
        .unique_keys = true,
        .finish = add_checksum}},
  };
  return all;
}

/// A value of a document. Items of a list have the key of the list.
struct Place {
  Json* value;
  std::string key;
  Json* object;  ///< the innermost one around it
  bool is_free;
};

void collect(Json& value, const Place& at, const Reader& reader, std::vector<Place>& places) {
  if (!at.key.empty()) places.push_back(at);
  if (value.is_object())
    for (auto& [name, member] : value.items())
      collect(member, {&member, name, &value, at.is_free || reader.free.contains(name)}, reader,
              places);
  else if (value.is_array())
    for (Json& item : value) collect(item, {&item, at.key, at.object, at.is_free}, reader, places);
}

// Marks a place whose text no library writes.
constexpr const char* mark = "(mark)";

std::string with_mark(Json file, const Reader& reader, const std::string& written) {
  reader.finish(file);
  std::string text = file.dump();
  return text.replace(text.find('"' + std::string(mark) + '"'), 2 + std::strlen(mark), written);
}

Input input_of(const Reader& reader, Json file, Draws& draws) {
  std::vector<Place> places;
  collect(file, {&file, "", nullptr, false}, reader, places);
  const Place place = draws.one_of(places);
  const std::string was = place.value->dump();
  const auto written = [&] {
    reader.finish(file);
    return file.dump(reader.has_lines ? -1 : static_cast<int>(draws.below(4)) - 1);
  };
  const auto changed = [&](const Json& value, bool is_flaw) {
    *place.value = value;
    return Input{written(), place.key + ": " + was + " becomes " + value.dump(),
                 is_flaw && !place.is_free ? Input::flawed : Input::any};
  };
  const uint64_t kind = draws.below(10);
  if (kind == 0) return {written(), "the document"};
  if (kind <= 2) {
    static const std::vector<Json> others = {
        true, 7, "x", Json::array(), Json::object(), Json::array({Json::array({1})})};
    const Json& other = draws.one_of(others);
    const bool same = other.type_name() == std::string(place.value->type_name());
    return changed(other, !same && !place.value->is_null() && !reader.types.contains(place.key) &&
                              !(other == 7 && reader.reals.contains(place.key)));
  }
  if (kind == 3) {
    static const std::vector<Json> numbers = {-1, 1.5, 1e300, INT64_MIN, UINT64_MAX, -0.5};
    return changed(draws.one_of(numbers),
                   place.value->is_number() && !reader.reals.contains(place.key));
  }
  if (kind == 4)
    return changed("no such name", place.value->is_string() && reader.names.contains(place.key));
  if (kind == 5) {
    (*place.object)[place.key + "?"] = mark;
    std::string text = with_mark(file, reader, "1");
    const std::string twice = Json(place.key + "?").dump();
    if (text.find(twice) == text.npos) return {text, "an unknown key", Input::any};
    return {text.replace(text.find(twice), twice.size(), Json(place.key).dump()),
            place.key + " twice", reader.unique_keys ? Input::flawed : Input::any};
  }
  if (kind == 6) {
    static const std::vector<std::string> raw(
        {"1e999", "NaN", "tru", "01", "-", "\"\xff\"", "\"\\ud800\"", "\"a\nb\"", "'x'", "1,",
         std::string(100000, '['), std::string(2000, '[') + std::string(2000, ']')});
    const std::string& text = draws.one_of(raw);
    *place.value = mark;
    return {with_mark(file, reader, text), place.key + " becomes " + text.substr(0, 20),
            Input::flawed};
  }
  std::string text = written();
  if (kind == 7)
    return {text.insert(draws.below(text.size() + 1), 1, '\0'), "a NUL", Input::flawed};
  if (kind == 8)
    return {text.substr(0, 1 + draws.below(text.size() - 1)), "the begin of the document",
            Input::flawed};
  return damaged(std::move(text), draws);
}

struct Counts {
  int64_t next, accepted, refused, wrong;
};

void run(const Reader& reader, const std::vector<Json>& files, Counts& counts, int64_t last) {
  // By the clock. A template has a second of processor time, and another process renders it.
  const unsigned seconds = reader.from_text ? 60 : 10;
  while (counts.next <= last) {
    const int64_t seed = counts.next++;
    Draws draws(static_cast<uint64_t>(seed));
    const Json& file = draws.one_of(files);
    Input input = reader.from_text ? reader.from_text(file, draws) : input_of(reader, file, draws);
    if (reader.has_lines) input.text = files[0].dump() + "\n" + input.text + "\n";
    std::string message = "it is accepted";
    alarm(seconds);
    try {
      reader.read(input.text);
    } catch (const Error& error) {
      message = error.what();
    }
    alarm(0);
    const bool accepted = message == "it is accepted";
    ++(accepted ? counts.accepted : counts.refused);
    if (input.is == Input::any || accepted == (input.is == Input::valid)) continue;
    ++counts.wrong;
    std::printf("seed %lld: %s: %s\n", static_cast<long long>(seed), input.what.c_str(),
                message.c_str());
  }
}

}  // namespace
}  // namespace zg::testing

int main(int argc, char** argv) {
  using namespace zg::testing;
  if (argc < 5 || !readers().contains(argv[1])) return 2;
  const Reader& reader = readers().at(argv[1]);
  std::vector<Json> files;
  for (int i = 4; i < argc; ++i) {
    const std::string text = read_file(argv[i]);
    files.push_back(reader.from_text ? Json(text) : Json::parse(text));
  }
  auto& counts = *static_cast<Counts*>(
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int64_t first = std::atoll(argv[2]), last = std::atoll(argv[3]);
  counts.next = first;
  int64_t struck = 0;
  rusage usage{};
  while (counts.next <= last) {
    std::fflush(stdout);
    if (fork() == 0) {
      run(reader, files, counts, last);
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    wait4(-1, &status, 0, &usage);
    if (status == 0) continue;
    ++struck;
    std::printf("seed %lld: a crash or more than 10 s\n", static_cast<long long>(counts.next - 1));
  }
  std::printf("%lld %lld %lld %lld %lld %ld\n", static_cast<long long>(last - first + 1),
              static_cast<long long>(counts.accepted), static_cast<long long>(counts.refused),
              static_cast<long long>(struck), static_cast<long long>(counts.wrong),
              usage.ru_maxrss / 1024);
  return struck + counts.wrong > 0;
}
