#pragma once

#include "tests/zero/toy.h"

namespace zg::testing {

/// Three units, for the optimizers that need whole parameters. Muon updates the hidden matrices
/// `wide`, `tall`, `plain`, which has no weight decay, and `alone`. Adam updates `bias`, `gain` and
/// `table`, which has two axes but is not a hidden matrix. The hidden matrix `frozen` is not
/// trained.
struct MatrixToy {
  ParameterStore store;
  const Unit& first = store.unit("first");
  const Unit& second = store.unit("second");
  const Unit& third = store.unit("third");
  const Parameter& bias = store.add(first, "z.bias", {7}, Init::zeros());
  const Parameter& table =
      store.add(first, "a.table", {5, 20}, Init::normal(0.5f), {.decay = true});
  const Parameter& wide = store.add(first, "wide", {5, 31}, Init::normal(0.5f), matrix(true));
  const Parameter& tall = store.add(second, "tall", {40, 24}, Init::normal(0.5f), matrix(true));
  const Parameter& plain = store.add(second, "plain", {24, 24}, Init::normal(0.5f), matrix(false));
  const Parameter& gain = store.add(second, "gain", {129}, Init::ones());
  const Parameter& frozen = store.add(second, "frozen", {3, 4}, Init::normal(0.1f),
                                      {.decay = true, .trainable = false, .hidden_matrix = true});
  const Parameter& alone = store.add(third, "alone", {9, 17}, Init::normal(0.5f), matrix(true));

  static ParameterStore::Options matrix(bool decay) {
    return {.decay = decay, .hidden_matrix = true};
  }
};

}  // namespace zg::testing
