// Encoder-decoder models compute what transformers computes.

#include "tests/models/seq2seq/seq2seq_case.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;

TEST_CASE("logits, loss and every gradient of BlenderBot and BART match transformers") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const Seq2SeqFixture theirs(name);
    for (const Device& device : devices_at_every_level()) {
      CAPTURE(level_of(device));
      Seq2SeqFixtureCase test(theirs, device);
      const Seq2SeqBatch batch = theirs.batch(device);
      Tape inference = test.tape(TapeMode::inference);
      CHECK(theirs.error("logits", test.model.logits(inference, batch).value().to_doubles()) <
            1e-5);
      Tape tape = test.tape();
      const Var loss = test.model.loss(tape, batch, {});
      CHECK(theirs.error("loss", {loss.value().item()}) < 1e-6);
      tape.backward(loss);
      for (const auto& parameter : test.store.parameters()) {
        CAPTURE(parameter->name);
        const std::vector<double>& gradient = test.source.gradients[parameter.get()];
        if (!parameter->trainable)
          CHECK(gradient.empty());
        else if (has_no_gradient(parameter->name))
          for (const double value : gradient) CHECK(std::fabs(value) < 1e-6);
        else
          CHECK(theirs.error("gradient." + parameter->name, gradient) < 1e-5);
      }
    }
  }
}

TEST_CASE("the encoder's output of every token that is not padding matches transformers") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const Seq2SeqFixture theirs(name);
    Seq2SeqFixtureCase test(theirs);
    const Seq2SeqBatch batch = theirs.batch(test.device);
    Tape tape = test.tape(TapeMode::inference);
    const Var encoded = test.model.encode(tape, batch.source, batch.source_lengths);
    const std::vector<float> expected = theirs.expected.read_floats("encoded");
    const std::vector<double> got = encoded.value().to_doubles();
    const std::vector<int32_t> lengths = theirs.ids("lengths");
    const int64_t S = encoded.shape()[1], C = encoded.shape()[2];
    for (size_t row = 0; row < lengths.size(); ++row)
      for (int64_t i = 0; i < lengths[row] * C; ++i) {
        const size_t at = row * static_cast<size_t>(S * C) + static_cast<size_t>(i);
        REQUIRE(std::fabs(got[at] - double{expected[at]}) < 1e-5);
      }
  }
}

TEST_CASE("label smoothing of an encoder-decoder model matches PyTorch") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const Seq2SeqFixture theirs(name);
    Seq2SeqFixtureCase test(theirs);
    Tape tape = test.tape();
    const Var loss = test.model.loss(tape, theirs.batch(test.device), {}, {.label_smoothing = 0.1});
    CHECK(theirs.error("smoothed", {loss.value().item()}) < 1e-6);
  }
}

TEST_CASE("an AdamW step on BlenderBot and BART matches PyTorch") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const Seq2SeqFixture theirs(name);
    const Seq2SeqFolder folder(theirs.path);
    const Device device = Device::cpu();
    ParameterStore store;
    const Seq2Seq model(store, folder.model().config);
    zero::Engine engine(
        store, device,
        {.update = {.beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f}, .clip_norm = 0.0f});
    zero::load_weights(folder.weights(model.config()), engine);
    Tape tape = engine.tape();
    const Var loss = model.loss(tape, theirs.batch(device), {});
    engine.backward(tape, loss);
    engine.step(1e-3f);
    for (const auto& parameter : store.parameters()) {
      if (!parameter->trainable || has_no_gradient(parameter->name)) continue;
      CAPTURE(parameter->name);
      const std::vector<float> values = engine.read(*parameter, zero::Engine::State::master);
      CHECK(theirs.error("updated." + parameter->name, {values.begin(), values.end()}) < 1e-5);
    }
  }
}

TEST_CASE("greedy search and beam search give the ids of transformers' generate()") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const Seq2SeqFixture theirs(name);
    Seq2SeqFixtureCase test(theirs);
    const Seq2SeqFolder folder(theirs.path);
    BeamOptions options = folder.model().generation;
    CHECK(options.beams == 3);
    CHECK(options.max_length == 9);
    const auto make_tape = [&] { return test.tape(TapeMode::inference); };
    const auto generated = [&] {
      return generate(test.model, make_tape, theirs.sources(), options).rows;
    };
    CHECK(generated() == theirs.rows("beams"));
    options.beams = 1;
    CHECK(generated() == theirs.rows("greedy"));
  }
}
