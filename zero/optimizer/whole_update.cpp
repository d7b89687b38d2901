#include "zerograd/zero/optimizer/whole_update.h"

#include <algorithm>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/zero/states/residency.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

class WholeUpdate {
 public:
  WholeUpdate(const GatheredOptimizer::Update& update, const WholeRule& rule)
      : storage_(update.storage),
        rule_(rule),
        step_(update.step),
        config_(update.config),
        device_(update.device),
        comm_(update.comm),
        host_(device_),
        by_host_(is_updated_by_host(storage_)),
        stream_(by_host_ ? static_cast<Stream&>(host_) : device_.compute()),
        states_(states_of(storage_)),
        own_numel_(whole_in(storage_)) {
    const FlatUnit& flat = storage_.trainable.flat;
    const bool gathers = storage_.state_numel < flat.padded;
    const PurposeScope purpose(device_, Purpose::optimizer);
    const NameScope name(device_, storage_.name + " directions");
    directions_ = Tensor::zeros({gathers ? flat.padded : flat.whole_end}, rule.directions, device_);
    device_.compute().synchronize();  // chunks may be copied into it on another stream
  }

  void run(const Tensor& all_sums) {
    write_directions(all_sums);
    gather_directions();
    rule_.make_steps(directions_);
    update_parameters();
  }

 private:
  enum Lane : size_t { state, second, direction };

  /// This rank's directions [begin, begin + numel), relative to its states.
  Streaming::Lane direction_lane(int64_t begin, int64_t numel, bool loads) const {
    return {.tensor = directions_.flat(storage_.state_begin + begin, numel),
            .loads = loads,
            .saves = !loads,
            .to_host = by_host_,
            .unit = storage_.name,
            .state = "directions"};
  }
  Streaming::Lane state_lane(size_t index, int64_t begin, int64_t numel) const {
    Streaming::Lane lane = lane_of(storage_, states_, index);
    lane.tensor = part_of(storage_, states_, index, begin, numel);
    return lane;
  }

  /// Calls f(begin, numel) for the chunks of this rank's whole parameters.
  template <class F>
  void for_each_chunk(const F& f) const {
    const int64_t step = step_of(storage_, config_);
    for (int64_t begin = 0; begin < own_numel_; begin += step)
      f(begin, std::min(step, own_numel_ - begin));
  }
  Streaming stream(std::vector<Streaming::Part> parts) const {
    const PurposeScope purpose(device_, Purpose::optimizer);
    const NameScope name(device_, "states on their way");
    return Streaming(std::move(parts), device_);
  }

  void write_directions(const Tensor& all_sums) {
    std::vector<Streaming::Part> parts;
    for_each_chunk([&](int64_t begin, int64_t numel) {
      Streaming::Lane read = state_lane(rule_.state, begin, numel);
      read.saves = read.saves && rule_.state != masters_lane;
      Streaming::Lane gradient = state_lane(sums_lane(storage_), begin, numel);
      if (all_sums) gradient.tensor = all_sums.flat(begin, numel);
      parts.push_back({read, gradient, direction_lane(begin, numel, /*loads=*/false)});
    });
    Streaming streaming = stream(parts);
    int64_t begin = 0;
    for (const Streaming::Part& part : parts) {
      const std::vector<Tensor>& tensors = streaming.next();
      if (part[direction].moves()) fill_zero(tensors[direction], stream_);
      rule_.direct({.begin = begin,
                    .state = tensors[state],
                    .gradient = tensors[second],
                    .direction = tensors[direction],
                    .stream = stream_});
      begin += part[direction].tensor.numel();
      streaming.keep();
    }
    streaming.finish();
  }

  void gather_directions() {
    if (storage_.state_numel == storage_.trainable.flat.padded) return;
    std::vector<Communicator::Ticket> tickets;
    gather_in_buckets(directions_.flat(storage_.state_begin, storage_.state_numel), directions_,
                      storage_.name + " directions", config_.allgather_bucket_size, comm_, tickets);
    comm_.wait(tickets.back());
  }

  void update_parameters() {
    device_.compute().synchronize();  // the steps may be copied on another stream
    std::vector<Streaming::Part> parts;
    for_each_chunk([&](int64_t begin, int64_t numel) {
      parts.push_back({state_lane(masters_lane, begin, numel),
                       state_lane(values_lane(storage_), begin, numel),
                       direction_lane(begin, numel, /*loads=*/true)});
    });
    Streaming streaming = stream(parts);
    int64_t begin = 0;
    for (const Streaming::Part& part : parts) {
      const std::vector<Tensor>& tensors = streaming.next();
      if (!step_.skipped)
        update_chunk(begin, tensors);
      else if (part[second].moves())
        kernels::cast({.x = tensors[state], .y = tensors[second]}, stream_);
      begin += part[direction].tensor.numel();
      streaming.keep();
    }
    streaming.finish();
  }

  void update_chunk(int64_t begin, const std::vector<Tensor>& tensors) {
    StateTensors states(states_.size());
    states[masters_lane] = tensors[state];
    states[values_lane(storage_)] = tensors[second];
    std::vector<OptimizerRange> ranges;
    append(storage_, {.begin = begin, .numel = tensors[direction].numel()}, tensors[direction],
           states, config_.update, ranges);
    for (OptimizerRange& range : ranges) range.states.clear();
    kernels::optimizer_update({.tensors = tensors_of(ranges),
                               .rule = UpdateRule::sgd,
                               .rate = step_.rate,
                               .step = step_.step,
                               .rounding_seed = step_.rounding_seed},
                              stream_);
  }

  Storage& storage_;
  const WholeRule& rule_;
  const OptimizerStep& step_;
  const Config& config_;
  const Device device_;
  Communicator& comm_;
  HostStream host_;
  const bool by_host_;
  Stream& stream_;  // where the states are updated
  const StateTensors states_;
  const int64_t own_numel_;  // of whole parameters, among this rank's states
  Tensor directions_;        // then the steps: of the whole unit
};

}  // namespace

std::vector<FlatUnit::Piece> whole_pieces(const FlatUnit& flat) {
  return flat.within(0, flat.whole_end);
}

void update_whole(const GatheredOptimizer::Update& update, const WholeRule& rule) {
  WholeUpdate(update, rule).run(update.all_sums);
}

}  // namespace zg::zero
