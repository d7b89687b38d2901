#include <cmath>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/file_io.h"

// Conversations in the command: finetune, train, plan and eval of decoders.
namespace zg::testing {
namespace {

using nlohmann::json;

const std::string hf_chat = std::string(ZG_FIXTURES) + "hf_chat";
const std::string chat_flags = " --chat-format " + hf_chat + "/chat_format.json ";

/// 32 conversations of both forms and of many lengths.
std::string write_chats(const TemporaryFolder& folder) {
  std::string lines;
  for (int i = 0; i < 32; ++i) {
    const std::string number = std::to_string(i * i);
    if (i % 2) {
      lines += json{{"prompt", "Say " + number + ": "}, {"response", number}}.dump() + "\n";
      continue;
    }
    json messages = {{{"role", "user"}, {"content", "Who are " + number}},
                     {{"role", "assistant"}, {"content", "I am " + number}}};
    for (int turn = 0; turn < i % 5; ++turn) {
      messages.push_back({{"role", "user"}, {"content", "and?"}});
      messages.push_back({{"role", "assistant"}, {"content", std::string(3, 'o')}});
    }
    lines += json{{"messages", messages}}.dump() + "\n";
  }
  write_file(folder / "chats.jsonl", lines);
  return folder / "chats.jsonl";
}

/// A step has 4 sequences.
std::string finetune_line(const std::string& chats, const std::string& flags) {
  return "finetune --from-hf " + hf_chat + " --data " + chats + chat_flags +
         "--block-size 64 --batch-size 1 --train-batch-size 4 --steps 4 --threads 1 "
         "--log-interval 0 --lr 1e-2 " +
         flags;
}

double val_loss_of(const std::string& line) {
  return std::stod(line_after(checked(zerograd(line)).out, "val loss "));
}

}  // namespace

TEST_CASE("finetune has one hash over ranks, stages, offload, pipelines and restarts") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  const Curve alone = curve_of(finetune_line(chats, ""));
  CHECK(alone.losses.size() == 4);
  CHECK(alone.losses.back().get<double>() < alone.losses.front().get<double>());
  for (const std::string layout :
       {"--ranks 2 --zero-stage 0", "--ranks 2 --zero-stage 2", "--ranks 4 --zero-stage 3",
        "--ranks 4 --pipeline-parallel 2 --zero-stage 1", "--zero-stage 3 --cpu-offload --ranks 2",
        "--activation-checkpoint",
        "--zero-stage 3 --offload-optimizer nvme --offload-param nvme --nvme-path "}) {
    CAPTURE(layout);
    const std::string flags = layout + (layout.back() == ' ' ? folder.path() : "");
    CHECK(curve_of(finetune_line(chats, flags)) == alone);
  }
  const std::string save = folder / "run";
  checked(zerograd(finetune_line(chats, "--exit-interval 2 --save " + save)));
  const std::string rest = " --resume " + save + " --steps 4 --threads 1 --log-interval 0 ";
  CHECK(hash_of("finetune" + rest + "--ranks 2 --zero-stage 3") == alone.hash);
  CHECK(hash_of("train" + rest) == alone.hash);
}

TEST_CASE("tensor and pipeline ranks see packed conversations as one rank does") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  // Rotary positions of the fixture, and learned ones of a fresh GPT with the fixture's tokenizer.
  const std::string learned = "train --n-layer 2 --n-head 2 --n-embd 16 --dropout 0 --tokenizer " +
                              hf_chat + " --data " + chats + chat_flags +
                              "--block-size 64 --batch-size 1 --train-batch-size 4 --steps 2 "
                              "--threads 1 --log-interval 0 ";
  for (const std::string& line : {finetune_line(chats, "--lr 1e-4 "), learned}) {
    CAPTURE(line);
    const Curve alone = curve_of(line);
    const double loss = val_loss_of(line);
    CHECK(val_loss_of(line + "--ranks 2 --pipeline-parallel 2") == loss);
    const bool has_heads = line == learned;  // the fixture has one key-value head
    for (const std::string flags : {"", " --sequence-parallel"}) {
      if (!has_heads) continue;
      const std::string split = line + "--ranks 2 --tensor-parallel 2" + flags;
      const Curve shared = curve_of(split);
      for (size_t step = 0; step < alone.losses.size(); ++step)
        CHECK(shared.losses[step].get<double>() ==
              doctest::Approx(alone.losses[step].get<double>()).epsilon(1e-5));
      CHECK(val_loss_of(split) == doctest::Approx(loss).epsilon(1e-4));
    }
  }
}

TEST_CASE("plan predicts the memory of finetune to the byte") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  for (const std::string flags :
       {"", "--pack off", "--ranks 2 --zero-stage 3 --eval-interval 2 ",
        "--loss-mean micro_batch --activation-checkpoint", "--ranks 2 --pipeline-parallel 2"})
    check_plan_is_run(finetune_line(chats, flags).substr(8));
  // With all defaults that the data has.
  check_plan_is_run(" --from-hf " + hf_chat + " --data " + chats + chat_flags + "--steps 3");
}

TEST_CASE("the first loss of finetune is that of transformers, packed or not") {
  const TemporaryFolder folder;
  const json each = json::parse(read_file(hf_chat + "/expected.json"));
  double sum = 0.0, targets = 0.0;
  for (const json& chat : each) {
    double own = 0.0;
    for (const json& is_target : chat["is_target"]) own += is_target.get<double>();
    sum += chat["loss"].get<double>() * own;
    targets += own;
  }
  for (const std::string flags :
       {"--batch-size 2 --grad-accum 1", "--batch-size 1 --grad-accum 6 --pack off",
        "--batch-size 3 --grad-accum 2 --pack off"}) {
    CAPTURE(flags);
    const Curve curve = curve_of(
        "finetune --from-hf " + hf_chat + " --data " + hf_chat + "/chats.jsonl" + chat_flags +
        "--val-fraction 0 --block-size 80 --steps 1 --log-interval 0 " + flags);
    CHECK(curve.losses.at(0).get<double>() == doctest::Approx(sum / targets).epsilon(1e-6));
  }
}

TEST_CASE("eval of conversations prints the loss of a response's token and the perplexity") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder), save = folder / "run";
  const std::string held_out = hf_chat + "/chats.jsonl";
  const Outcome trained = checked(zerograd(
      finetune_line(chats, "--eval-batches 0 --val-data " + held_out + " --save " + save)));
  const double loss = std::stod(line_after(trained.out, "val loss "));
  CHECK(contains(trained.error, "0 validation") == false);
  const Outcome again = checked(zerograd("eval " + save));
  CHECK(std::stod(line_after(again.out, "val loss ")) == loss);
  CHECK(std::stod(line_after(again.out, "perplexity ")) ==
        doctest::Approx(std::exp(loss)).epsilon(1e-3));
  for (const std::string& flags :
       std::vector<std::string>{" --pack off", " --batch-size 1", " --batch-size 5 --pack off",
                                " --val-data " + held_out})
    CHECK(val_loss_of("eval " + save + flags) == doctest::Approx(loss).epsilon(1e-4));
  CHECK(val_loss_of("eval " + save + " --data " + chats) != doctest::Approx(loss).epsilon(1e-4));
  // A folder of transformers: the losses of the fixture.
  const json each = json::parse(read_file(hf_chat + "/expected.json"));
  write_file(folder / "one.jsonl", read_file(held_out).substr(0, read_file(held_out).find('\n')));
  CHECK(val_loss_of("eval " + hf_chat + " --val-data " + folder / "one.jsonl" + chat_flags) ==
        doctest::Approx(each[0]["loss"].get<double>()).epsilon(1e-4));
  check_refused("eval " + save + " --val-data " + held_out + " --val-fraction 0.5", 2,
                "--val-data: expected one of --val-fraction and --val-data, got both");
}

TEST_CASE("a continued run reports changed contents of its validation data") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder), save = folder / "run",
                    held_out = folder / "held_out.jsonl";
  write_file(held_out, read_file(hf_chat + "/chats.jsonl"));
  const std::string own = finetune_line(chats, "--val-data " + held_out);
  checked(zerograd(own + " --save " + save));
  const std::string resume = "train --steps 5 --resume " + save;
  CHECK_FALSE(contains(zerograd(resume).error, "has other contents"));
  write_file(held_out, read_file(chats));
  CHECK(contains(zerograd(resume).error, "changed: data: " + held_out + " has other contents"));
  write_file(held_out, json{{"prompt", std::string(200, 'x')}, {"response", "y"}}.dump());
  check_refused(own + " --eval-interval 1", 2,
                "--val-data: no conversation of " + held_out + " has a target in its first 65");
}

TEST_CASE("a block longer than a model was trained on is reported") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  const json config = json::parse(read_file(hf_chat + "/config.json"));
  const int64_t positions = config.at("max_position_embeddings").get<int64_t>();
  const std::string line = "finetune --from-hf " + hf_chat + " --data " + chats + chat_flags +
                           "--batch-size 1 --steps 1 --block-size ";
  CHECK(contains(zerograd(line + std::to_string(positions + 8)).error,
                 "note: --block-size " + std::to_string(positions + 8) + ": " + hf_chat +
                     " was trained with " + std::to_string(positions) +
                     " positions, not with the rotary"));
  CHECK_FALSE(contains(zerograd(line + std::to_string(positions)).error, "was trained with"));
}

TEST_CASE("finetune refuses lines, roles and files that it cannot learn, and names them") {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.jsonl";
  const std::string good = "{\"prompt\": \"a\", \"response\": \"b\"}\n";
  const std::string start = "finetune --from-hf " + hf_chat + " --steps 1 --data " + path;
  write_file(path, good + "{\"prompt\": \"a\"\n");
  check_refused(start, 5, path + ":2:15: is not JSON: ");
  write_file(path, good + "{\"prompt\": \"\x80\"}\n");
  check_refused(start, 5, path + ":2:13: invalid UTF-8");
  write_file(path, good + "{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}\n");
  check_refused(start + chat_flags, 5, path + ":2: messages[0].role: expected a role of the chat");
  check_refused(start, 5, path + ":2: messages: expected one or more that are learned, got none");
  const std::string plain = folder / "plain";  // no chat template
  std::filesystem::copy(hf_chat, plain);
  std::filesystem::remove(plain + "/chat_template.jinja");
  check_refused("finetune --from-hf " + plain + " --steps 1 --data " + path, 6,
                path + ":2: messages: there is no chat format that says how roles become text; " +
                    plain + " has no chat template; try --chat-format F.jinja");
  check_refused(start + " --chat-format " + path, 5,
                "--chat-format: " + path + ":2:1: is not JSON");
  check_refused(start + " --chat-format nowhere.json", 5, "--chat-format: open: nowhere.json");
  write_file(path, "\n");
  check_refused(start, 2, path + ": no conversations");
  check_refused("finetune --from-hf " + hf_chat + " --data nowhere.jsonl", 5, "nowhere.jsonl");
  write_file(path, "{\"prompt\": \"a long prompt\", \"response\": \"b\"}\n");
  check_refused(start + " --block-size 3", 2, "none of 1 has a target within the first 4 tokens");
}

TEST_CASE("finetune takes conversations and a trained model of decoders alone") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  check_refused("finetune --data " + chats, 2, "finetune: expected a trained model, got none");
  check_refused("finetune --from-hf " + hf_chat + " --data sort", 2,
                "--data: finetune learns conversations; expected PATH.jsonl");
  check_refused("finetune --data " + chats + " --from-hf " + ZG_FIXTURES + "hf_blenderbot", 2,
                "finetune: expected a decoder, got an encoder-decoder model");
  check_refused("finetune --autotuning run --data " + chats + " --from-hf " + hf_chat, 6,
                "try zerograd tune with the same flags");
  for (const std::string flag : {"--pack off", "--chat-format f", "--val-data f.jsonl"})
    check_refused("train --data sort --steps 1 " + flag, flag[2] == 'c' ? 5 : 2,
                  flag[2] == 'c' ? "f" : "expected conversations, --data PATH.jsonl");
  check_refused(finetune_line(chats, "--val-data f.jsonl --val-fraction 0.1"), 5, "f.jsonl");
  check_refused(finetune_line(chats, "--loss-mean sum"), 2, "--loss-mean: expected");
}

TEST_CASE("conversations beyond the block size are counted in a note") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder);
  const Outcome outcome = checked(zerograd(finetune_line(chats, "--block-size 20")));
  const std::string note = line_after(outcome.error, "note: ");
  CHECK(contains(note, "of 32 conversations are longer than the block size 20"));
  CHECK(!contains(zerograd(finetune_line(chats, "--block-size 128")).error, "block size 128"));
}

TEST_CASE("a file of one line and epochs shorter than a batch can be fine-tuned on") {
  const TemporaryFolder folder;
  const std::string path = folder / "one.jsonl";
  write_file(path, "{\"prompt\": \"a\", \"response\": \"b\"}");
  const std::string line = "finetune --from-hf " + hf_chat + " --data " + path + " --block-size 8 ";
  checked(zerograd(line + "--batch-size 4 --steps 2 --metrics " + folder / "m"));
  CHECK(json_lines(folder / "m").size() == 3);
  // Three epochs of one sequence are less than a batch of 8, and the run takes one step.
  checked(zerograd(line + "--metrics " + folder / "n"));
  CHECK(json_lines(folder / "n").back()["steps"] == 1);
  CHECK(contains(zerograd(line).error, "note: 3 epochs have 3 sequences, fewer than the"));
  CHECK(contains(zerograd(line + "--batch-size 2").error,
                 "note: steps of 2 sequences use only 2 of the 3 sequences of 3 epochs"));
}

TEST_CASE("an assistant may say nothing but its suffix") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const json silent = {
      {"messages",
       {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", ""}}}}};
  write_file(path, silent.dump() + "\n");
  checked(zerograd(finetune_line(path, "--steps 1")));
}

TEST_CASE("generate stops at the end token that fine-tuning taught, and does not print it") {
  const TemporaryFolder folder;
  const std::string path = folder / "one.jsonl", save = folder / "save";
  write_file(path, "{\"prompt\": \"ab\", \"response\": \"c\"}\n");
  checked(zerograd("finetune --from-hf " + hf_chat + " --data " + path +
                   " --block-size 16 --batch-size 1 --steps 80 --lr 2e-2 --threads 1 --save " +
                   save));
  const Outcome text = zerograd("generate " + save + " --temperature 0 --length 40 --prompt ab");
  CHECK(text.error == "");
  CHECK(text.out == "abc\n");
}

TEST_CASE(
    "finetune learns chats by the folder's template, which its checkpoint keeps with a date") {
  const TemporaryFolder folder;
  const std::string model = folder / "model", save = folder / "save", out = folder / "out";
  std::filesystem::copy(hf_chat, model);
  const std::string jinja =
      "{{ strftime_now('%Y') }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  write_file(model + "/chat_template.jinja", jinja);
  json messages = json::array();
  for (const char* turn : {"ab", "c", "de", "f"})
    messages.push_back({{"role", messages.size() % 2 ? "assistant" : "user"}, {"content", turn}});
  const std::string chats = folder / "chats.jsonl";
  write_file(chats, json{{"messages", messages}, {"id", 1}}.dump() + "\n");
  const Outcome run = checked(
      zerograd("finetune --from-hf " + model + " --data " + chats +
               " --block-size 64 --batch-size 1 --steps 80 --lr 2e-2 --threads 1 --save " + save));
  CHECK(contains(run.error, "note: " + chats + ": without effect: id (1)"));
  CHECK(contains(zerograd("eval " + model + " --val-data " + chats).out, "val loss "));
  // The checkpoint needs neither the folder nor today's date.
  std::filesystem::remove_all(model);
  CHECK(contains(read_file(save + "/step_80/manifest.json"), "strftime_now"));
  checked(zerograd("train --resume " + save + " --save " + save + " --steps 81"));
  checked(zerograd("export " + save + " --hf " + out));
  CHECK(read_file(out + "/chat_template.jinja") == jinja);
  // An answer ends with the token that the template writes behind answers. Empty lines are no
  // turns.
  write_file(folder / "talk", "printf 'ab\\n\\nde\\n' | " ZG_COMMAND " generate " + save +
                                  " --chat --temperature 0 --length 9\n");
  const Outcome talk = program("sh " + folder / "talk");
  CHECK(talk.error == "");
  CHECK(talk.out == "c\nf\n");
  // The folder's generation_config.json gives the defaults of a chat, too, with one note.
  const json vocabulary = json::parse(read_file(out + "/tokenizer.json"))["model"]["vocab"];
  edit_json(out + "/generation_config.json", [&](json& all) {
    all.update({{"do_sample", false}, {"num_beams", 2}, {"max_new_tokens", 1}});
    all["suppress_tokens"] = {vocabulary.at("c"), vocabulary.at("f")};
  });
  write_file(folder / "talk", "printf 'ab\\nde\\n' | " ZG_COMMAND " generate " + out + " --chat\n");
  const Outcome ruled = checked(program("sh " + folder / "talk"));
  CHECK(ruled.error == "note: generation_config.json: without effect: num_beams\n");
  CHECK(ruled.out.size() < 9);
  CHECK(ruled.out.find_first_of("cf") == std::string::npos);
  // The date and the variables of a template can be given.
  write_file(folder / "f.json", json{{"template", "{{ name + strftime_now('%F') }}" + jinja},
                                     {"date", "2001-02-03"},
                                     {"variables", {{"name", "n"}}}}
                                    .dump());
  const std::string second = folder / "second";
  hash_of("finetune --from-hf " + hf_chat + " --data " + chats + " --chat-format " +
          folder / "f.json" + " --steps 1 --batch-size 1 --save " + second);
  CHECK(contains(read_file(second + "/step_1/manifest.json"), "2001-02-03"));
  check_refused("generate " + save + " --prompt a --chat-format f.json", 2,
                "--chat-format: expected --chat with it, got none");
}

TEST_CASE("export writes the chat template of a folder, of --tokenizer and of adapters' base") {
  const TemporaryFolder folder;
  const std::string chats = write_chats(folder), whole = folder / "whole", lora = folder / "lora";
  hash_of(finetune_line(chats, "--save " + whole));
  hash_of(finetune_line(chats, "--lora 2 --save " + lora));
  const std::string written = read_file(hf_chat + "/chat_template.jinja");
  int count = 0;
  const auto template_after = [&](const std::string& what) {
    const std::string out = folder / ("out" + std::to_string(count++));
    checked(zerograd("export " + what + " --hf " + out));
    return path_exists(out + "/chat_template.jinja") ? read_file(out + "/chat_template.jinja") : "";
  };
  CHECK(template_after(hf_chat) == written);
  CHECK(template_after(lora + " --merge") == written);
  CHECK(template_after(whole + " --tokenizer " + hf_chat) == written);
  CHECK(template_after(whole) == written);
}

TEST_CASE("finetune states its defaults, which a config and flags replace") {
  const Outcome help = checked(zerograd("finetune --help"));
  for (const char* part : {"usage: zerograd finetune", "--epochs 3", "[2e-05]", "--loss-mean",
                           "--chat-format", "--val-data"})
    CHECK(contains(help.out, part));
  const TemporaryFolder folder;
  const std::string path = folder / "one.jsonl", config = folder / "ds.json";
  write_file(path,
             "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"c\", \"response\": \"d\"}");
  const std::string line = "finetune --from-hf " + hf_chat + " --data " + path +
                           " --block-size 3 --batch-size 1 --val-fraction 0 --pack off --metrics ";
  const auto rate = [&](const std::string& flags) {
    checked(zerograd(line + folder / "m" + flags));
    return json_lines(folder / "m").at(0)["lr"].get<double>();
  };
  CHECK(rate("") == doctest::Approx(2e-5));
  CHECK(json_lines(folder / "m").back()["steps"] == 6);
  CHECK(rate(" --train-samples 4") == doctest::Approx(2e-5));
  CHECK(json_lines(folder / "m").back()["steps"] == 4);
  CHECK(rate(" --lr 1e-3") == doctest::Approx(1e-3));
  write_file(config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", "
             "\"params\": {\"lr\": 0.5}}}");
  CHECK(rate(" --config " + config) == doctest::Approx(0.5));
}

TEST_CASE("train learns conversations with a fresh model, and its mean is kept in a checkpoint") {
  const TemporaryFolder folder;
  const std::string path = folder / "numbers.jsonl", save = folder / "run";
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    const std::string a = std::to_string(i % 9), b = std::to_string((i * 5) % 9);
    lines += "{\"prompt\": \"" + a + " " + b + "\", \"response\": \"" + b + " " + a +
             (i % 3 ? " 9" : "") + "\"}\n";
  }
  write_file(path, lines);
  const std::string fresh =
      "train --model-type qwen2 --n-layer 1 --n-head 2 --n-embd 16 --block-size 12 --batch-size 2 "
      "--grad-accum 2 --log-interval 0 --steps 4 --data " +
      path;
  const std::string token = hash_of(fresh), micro = hash_of(fresh + " --loss-mean micro_batch");
  CHECK(token == hash_of(fresh + " --loss-mean token"));
  CHECK(token != micro);
  checked(zerograd(fresh + " --loss-mean micro_batch --steps 2 --save " + save));
  CHECK(hash_of("train --log-interval 0 --steps 4 --resume " + save) == micro);
  const Outcome changed =
      zerograd("train --log-interval 0 --steps 4 --loss-mean token --resume " + save);
  CHECK(contains(changed.error, "run.loss_mean: \"micro_batch\" in the checkpoint, \"token\" now"));
  // Another kind of data: the mean over tokens equals that over micro-batches of equal size.
  const Curve text =
      curve_of("train --data sort --score-samples 0 --steps 2 --batch-size 2 --grad-accum 2");
  const Curve by_token = curve_of(
      "train --data sort --score-samples 0 --steps 2 --batch-size 2 --grad-accum 2 --loss-mean "
      "token");
  CHECK(text.hash == by_token.hash);
}

}  // namespace zg::testing
