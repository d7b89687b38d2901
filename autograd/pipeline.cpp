#include "zerograd/autograd/pipeline.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg {

using Kind = PipelineAction::Kind;

namespace {

/// The best division of the remaining layers into the remaining stages.
struct Division {
  double max_cost = std::numeric_limits<double>::infinity();
  double squares = std::numeric_limits<double>::infinity();
  int64_t end = 0;  // end of the layers of the first of these stages
};

}  // namespace

std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, int stages, int stage,
                                             int64_t micro_batches) {
  const int64_t ahead = max_in_flight(schedule, stages, stage, micro_batches);
  std::vector<PipelineAction> order;
  order.reserve(static_cast<size_t>(2 * micro_batches));
  int64_t forwards = 0;
  while (forwards < ahead) order.push_back({Kind::forward, forwards++});
  for (int64_t done = 0; done < micro_batches; ++done) {
    order.push_back({Kind::backward, done});
    if (forwards < micro_batches) order.push_back({Kind::forward, forwards++});
  }
  return order;
}

int64_t max_in_flight(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  if (schedule == PipelineSchedule::gpipe) return micro_batches;
  return std::min<int64_t>(micro_batches, stages - stage);
}

double pipeline_bubble(int stages, int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

std::vector<int64_t> balanced_stages(std::span<const double> costs, double first, double last,
                                     int stages) {
  const auto layers = std::ssize(costs);
  if (stages < 1 || layers < stages)
    raise<ConfigError>("pipeline: expected 1 to {} stages for as many layers, got {}", layers,
                       stages);
  std::vector<double> until(costs.size() + 1, 0.0);
  for (size_t i = 0; i < costs.size(); ++i) until[i + 1] = until[i] + costs[i];
  const auto cost = [&](int stage, int64_t begin, int64_t end) {
    return until[static_cast<size_t>(end)] - until[static_cast<size_t>(begin)] +
           (stage == 0 ? first : 0.0) + (stage + 1 == stages ? last : 0.0);
  };
  // best[s][i]: the best division of layers i and later into stages s and later.
  const auto width = static_cast<size_t>(layers + 1);
  std::vector<std::vector<Division>> best(static_cast<size_t>(stages + 1),
                                          std::vector<Division>(width));
  best.back()[width - 1] = {.max_cost = 0.0, .squares = 0.0};
  const auto find_division = [&](double limit) {
    for (int stage = stages - 1; stage >= 0; --stage)
      for (int64_t begin = 0; begin < layers; ++begin) {
        Division& here = best[static_cast<size_t>(stage)][static_cast<size_t>(begin)] = {};
        for (int64_t end = begin + 1; end <= layers; ++end) {
          const Division& rest = best[static_cast<size_t>(stage) + 1][static_cast<size_t>(end)];
          const double own = cost(stage, begin, end);
          if (own > limit || rest.max_cost > limit) continue;
          const double squares = own * own + rest.squares;
          here.max_cost = std::min(here.max_cost, std::max(own, rest.max_cost));
          if (squares > here.squares) continue;
          here.squares = squares;
          here.end = end;  // among equal divisions the last one, which has the longest first stage
        }
      }
  };
  find_division(std::numeric_limits<double>::max());
  find_division(best[0][0].max_cost);
  std::vector<int64_t> borders = {0};
  for (int stage = 0; stage < stages; ++stage)
    borders.push_back(best[static_cast<size_t>(stage)][static_cast<size_t>(borders.back())].end);
  return borders;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int lower = 0, upper = 1;  // ranks in a channel

/// A micro-batch after its forward and before its backward pass.
struct Flight {
  Tape tape;
  Var input, output;
  Communicator::Ticket sent = -1;
};

/// A tensor that is being received.
struct Arrival {
  Tensor tensor;
  Communicator::Ticket ticket;
};

class Runner {
 public:
  Runner(const Mesh* mesh, PipelineSchedule schedule, const StageOutput& between,
         const Device& device, PipelineStage& stage)
      : mesh_(mesh),
        asks_before_backward_(schedule == PipelineSchedule::gpipe),
        between_(between),
        device_(device),
        stage_(stage) {}

  PipelineTimes run(const std::vector<PipelineAction>& order) {
    const Clock::time_point start = Clock::now();
    size_t i = first_to_do(order, 0);
    while (i < order.size()) {
      const std::optional<Arrival> now =
          next_ ? std::exchange(next_, std::nullopt) : start_receive(order[i]);
      const size_t following = first_to_do(order, i + 1);
      if (following < order.size()) next_ = start_receive(order[following]);
      const Tensor arrived = now ? await(*now, order[i].kind) : Tensor();
      if (order[i].kind == Kind::forward)
        go_forward(arrived, order[i].micro_batch);
      else
        go_back(arrived, order[i].micro_batch);
      i = following;
    }
    for (const Flight& flight : flights_)  // dropped micro-batches: their sends must still end
      if (flight.sent >= 0) mesh_->next.forward->wait(flight.sent);
    flights_.clear();
    if (back_.ticket >= 0) mesh_->previous.backward->wait(back_.ticket);
    times_.total = seconds_since(start);
    return times_;
  }

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// The first action from index i on that belongs to the step. Call it before waiting for the
  /// tensor of that action.
  size_t first_to_do(const std::vector<PipelineAction>& order, size_t i) {
    for (; i < order.size(); ++i) {
      const auto& [kind, micro_batch] = order[i];
      if (micro_batch >= end_) continue;
      const bool asks = kind == Kind::forward || asks_before_backward_;
      if (!asks || stage_.goes_on(micro_batch)) break;
      end_ = micro_batch;
    }
    return i;
  }

  /// Starts to receive the tensor that an action needs from another stage; absent when it needs
  /// none.
  std::optional<Arrival> start_receive(const PipelineAction& action) {
    const bool forward = action.kind == Kind::forward;
    if (forward ? is_first() : is_last()) return std::nullopt;
    const PurposeScope purpose(device_, Purpose::activation);
    const NameScope name(
        device_, forward ? "activation of the stage before" : "gradient of the stage after");
    Arrival arrival{Tensor::empty(between_.shape, between_.dtype, device_), -1};
    arrival.ticket = forward
                         ? mesh_->previous.forward->broadcast(arrival.tensor, lower, "activation")
                         : mesh_->next.backward->broadcast(arrival.tensor, upper, "gradient");
    return arrival;
  }

  Tensor await(const Arrival& arrival, Kind kind) {
    const Clock::time_point start = Clock::now();
    (kind == Kind::forward ? mesh_->previous.forward : mesh_->next.backward)->wait(arrival.ticket);
    times_.idle += seconds_since(start);
    return arrival.tensor;
  }

  void go_forward(const Tensor& arrived, int64_t micro_batch) {
    Flight flight{stage_.tape(), {}, {}};
    if (arrived) flight.input = flight.tape.variable(arrived);
    flight.output = stage_.forward(flight.tape, flight.input, micro_batch);
    if (!is_last())
      flight.sent = mesh_->next.forward->broadcast(flight.output.value(), lower, "activation");
    flights_.push_back(std::move(flight));
  }

  void go_back(const Tensor& arrived, int64_t micro_batch) {
    Flight& flight = flights_.front();
    // The gradient has arrived, so the next stage has already received the activation.
    if (flight.sent >= 0) mesh_->next.forward->wait(flight.sent);
    stage_.backward(flight.tape, flight.output, arrived, micro_batch);
    if (!is_first()) {
      if (back_.ticket >= 0) mesh_->previous.backward->wait(back_.ticket);
      back_.tensor = flight.tape.gradient(flight.input);
      back_.ticket = mesh_->previous.backward->broadcast(back_.tensor, upper, "gradient");
    }
    flights_.pop_front();
  }

  bool is_first() const { return !mesh_ || mesh_->is_first_stage(); }
  bool is_last() const { return !mesh_ || mesh_->is_last_stage(); }

  const Mesh* const mesh_;  // null: one stage
  const bool asks_before_backward_;
  const StageOutput& between_;
  const Device device_;
  PipelineStage& stage_;
  int64_t end_ = std::numeric_limits<int64_t>::max();  // index of the first micro-batch that is not
                                                       // part of the step
  std::deque<Flight> flights_;
  std::optional<Arrival> next_;
  Arrival back_{{}, -1};  // the gradient that was sent last
  PipelineTimes times_;
};

}  // namespace

PipelineTimes run_pipeline(const Mesh* mesh, PipelineSchedule schedule, int64_t micro_batches,
                           const StageOutput& between, const Device& device, PipelineStage& stage) {
  return Runner(mesh, schedule, between, device, stage)
      .run(pipeline_actions(schedule, mesh ? mesh->shape.pipeline : 1, mesh ? mesh->stage : 0,
                            micro_batches));
}

Tensor receive_activation(const Mesh& mesh, const StageOutput& between, const Device& device) {
  const Tensor arrived = Tensor::empty(between.shape, between.dtype, device);
  mesh.previous.forward->wait(mesh.previous.forward->broadcast(arrived, lower, "activation"));
  return arrived;
}

void send_activation(const Mesh& mesh, const Tensor& output) {
  mesh.next.forward->wait(mesh.next.forward->broadcast(output, lower, "activation"));
}

}  // namespace zg
