#include <sstream>
#include <string>

#include "tools/options/fields.h"

namespace zg::testing {
namespace {

using tools::Source;
using tools::TrainOptions;

/// The line of a setting, with one space between its columns.
std::string line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string joined;
    for (std::string word; words >> word;) joined += (joined.empty() ? "" : " ") + word;
    if (joined.starts_with(name + " ")) return joined;
  }
  return "no line of " + name;
}

void give(TrainOptions& options, const char* name, const char* value) {
  flag_named(name, options).set(name, value);
  options.given.insert(name);
}

}  // namespace

TEST_CASE("explain: a flag comes before a config, a config before a checkpoint or a folder") {
  TrainOptions options;
  give(options, "--lr", "0.25");
  give(options, "--betas", "0.5,0.75");
  for (const char* name : {"--clip", "--zero-stage"}) {  // as a config does
    options.given.insert(name);
    options.sources[name] = Source::config;
  }
  options.defaulted.insert("--zero-stage");
  options.engine.clip_norm = 3.0f;
  tools::RunSpec saved;
  saved.schedule.rate = 0.125;
  saved.engine.clip_norm = 4.0f;
  saved.engine.stage = 2;
  saved.engine.update.weight_decay = 0.5f;
  saved.model.width = 24;
  tools::adopt(saved, options);
  tools::RunSpec spec = options;
  spec.micro_batch = 7;
  const std::string text = tools::explain_settings(options, spec);
  CHECK(line_of(text, "--lr") == "--lr 0.25 flag");
  CHECK(line_of(text, "--adam-beta1") == "--adam-beta1 0.5 flag --betas");
  CHECK(line_of(text, "--clip") == "--clip 3 config");
  CHECK(line_of(text, "--optimizer") == "--optimizer adamw checkpoint");
  CHECK(line_of(text, "--precision") == "--precision f32 checkpoint");
  CHECK(line_of(text, "--zero-stage") == "--zero-stage 2 checkpoint");
  CHECK(line_of(text, "--weight-decay") == "--weight-decay 0.5 checkpoint");
  CHECK(line_of(text, "--n-embd") == "--n-embd 24 checkpoint");
  CHECK(line_of(text, "run.micro_batch") == "run.micro_batch 7 derived");
  CHECK(line_of(text, "--metrics") == "--metrics - default");
  CHECK(line_of(text, "--progress") == "--progress auto default");
  TrainOptions of_config;
  give(of_config, "--betas", "0.5,0.75");
  of_config.sources["--betas"] = Source::config;
  of_config.sources["--precision"] = Source::config;
  give(of_config, "--clip", "1");
  of_config.sources["--clip"] = Source::config;
  of_config.defaulted.insert("--clip");
  of_config.engine.loss_scaling.hysteresis = 5;
  const std::string configured = tools::explain_settings(of_config, of_config);
  CHECK(line_of(configured, "--adam-beta1") == "--adam-beta1 0.5 config");
  CHECK(line_of(configured, "run.hysteresis") == "run.hysteresis 5 config");
  CHECK(line_of(configured, "--clip") == "--clip 1 config's default");
  TrainOptions of_folder;
  give(of_folder, "--n-head", "4");
  tools::adopt_model(saved, of_folder);
  const std::string other = tools::explain_settings(of_folder, of_folder);
  CHECK(line_of(other, "--n-embd") == "--n-embd 24 folder");
  CHECK(line_of(other, "--n-head") == "--n-head 4 flag");
  CHECK(line_of(other, "--weight-decay") == "--weight-decay 0.1 default");
}

TEST_CASE("explain: each setting has one line, and another spelling of a flag has none") {
  const TrainOptions options;
  const std::string text = tools::explain_settings(options, options);
  for (const tools::Field* field : tools::stored_fields()) {
    CAPTURE(field->name());
    const bool is_position = field->name().starts_with("position.");
    CHECK(line_of(text, field->name()).starts_with(field->name() + " ") != is_position);
  }
  for (const char* name : {"--untied", "--betas", "--lr-scheduler-type", "--strategy",
                           "--restarted", "--universal-checkpoint", "--with-tracking"})
    CHECK(line_of(text, name) == std::string("no line of ") + name);
  TrainOptions restarted;
  give(restarted, "--restarted", "1");
  give(restarted, "--universal-checkpoint", "on");
  const std::string given = tools::explain_settings(restarted, restarted);
  CHECK(line_of(given, "--restarted") == "no line of --restarted");
  CHECK(line_of(given, "--universal-checkpoint") == "--universal-checkpoint on flag");
}

}  // namespace zg::testing
