#include "zerograd/models/module.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::nn {

Module::Module(const ParallelStore& root) : root_(std::make_shared<const ParallelStore>(root)) {}

namespace {

Module* require_parent(Module* parent, const std::string& name) {
  if (parent) return parent;
  raise<ConfigError>("module '{}': the parent is null; expected `this` of the module around it",
                     name);
}

}  // namespace

Module::Module(Module* parent, const std::string& name)
    : unit_(require_parent(parent, name)->unit_),
      name_(parent->name_ + (parent->name_.empty() || name.empty() ? "" : ".") + name) {
  if (!parent->root_) {
    const auto store = std::make_shared<ParameterStore>();
    parent->root_ = std::shared_ptr<const ParallelStore>(
        new ParallelStore(*store), [store](const ParallelStore* root) { delete root; });
  }
  root_ = parent->root_;
}

Module::Module(const Module&) = default;
Module::Module(Module&&) noexcept = default;
Module& Module::operator=(const Module&) = default;
Module& Module::operator=(Module&&) noexcept = default;
Module::~Module() = default;

const ParallelStore& Module::root() const {
  if (!root_)
    throw ConfigError(
        "module: it has no parts and no parameters; expected some; make its layers members with "
        "`this` as their parent: nn::Linear out{this, \"out\", {.in = 8, .out = 8}}");
  return *root_;
}
ParameterStore& Module::store() const { return root().store; }

const TensorParallel& Module::parallel() const {
  static const TensorParallel one;
  return root_ ? root_->parallel : one;
}

void Module::be_unit() {
  if (!unit_) unit_ = &store().unit(name_.empty() ? "model" : name_);
}

Module Module::in_unit(const std::string& unit_name) {
  Module place(this, "");
  if (!unit_) place.unit_ = &place.store().unit(unit_name);
  return place;
}

const Parameter& Module::add(const std::string& parameter, const Shape& shape, Init init,
                             const ParameterStore::Options& options) {
  const std::string parameter_name = Module(this, parameter).name();
  be_unit();
  return root().whole(*unit_, parameter_name, shape, init, options);
}

TensorParallel Pass::parallel_of(const Module& module) const {
  const TensorParallel& parallel = module.parallel();
  return {parallel.ranks, parallel.sequence && !all_tokens, parallel.groups};
}

Call::Call(const Module& module, Tape on)
    : tape(std::move(on)), pass(tape.get<Pass>()), parallel(pass.parallel_of(module)) {
  if (module.unit() && !tape.is_open(*module.unit())) use_.emplace(tape, *module.unit());
}

DropoutKey Call::key(uint32_t site) const {
  return {.seed = pass.place.seed,
          .step = static_cast<uint32_t>(pass.place.step),
          .sample = static_cast<uint32_t>(pass.place.first_sample),
          .site = site};
}

DropoutKey Call::key(uint32_t site, int axis, int64_t begin, int64_t whole) const {
  DropoutKey slice = key(site);
  slice.axis = axis;
  slice.begin = begin;
  slice.whole = whole;
  return slice;
}

DropoutKey Call::key(uint32_t site, const Var& x) const {
  if (!parallel.sequence || parallel.size() == 1) return key(site);
  const int64_t tokens = x.shape()[1];
  return key(site, 1, parallel.rank() * tokens, parallel.size() * tokens);
}

Dropout::Dropout(Module* parent, const std::string& name)
    : Module(parent, name), site(static_cast<uint32_t>(hash_name(this->name().c_str()))) {
  if (!root().dropouts->insert(this->name()).second)
    raise<ConfigError>(
        "dropout: '{}' exists already, and would drop the same elements; expected a name of its "
        "own, or one layer that is called twice",
        this->name());
}

Var Dropout::operator()(const Var& x) const {
  if (name().empty())
    throw ConfigError(
        "dropout: the layer was default-constructed; expected one with a parent and a name");
  const Call call(*this, x);
  return zg::dropout(x, call.pass.dropout, call.key(site, x));
}

}  // namespace zg::nn
