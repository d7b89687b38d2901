#include "zerograd/runtime/comm/queued_comm.h"

#include <algorithm>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/comm/pace.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

std::string track_of(const Members& members) {
  return members.group.empty() ? "communication" : "communication, " + members.group;
}

}  // namespace

Communicator::Ticket QueuedCommunicator::all_gather(const Tensor& shard, const Tensor& full,
                                                    const std::string& name, Chunk chunk) {
  chunk = check_all_gather(shard, full, chunk);
  // In a variable of its own: it may throw, and GCC 12 crashes if an initialiser inside the braces
  // below throws.
  Tensor window = window_for(Collective::all_gather, full, chunk.count);
  return enqueue({.call = {.op = Collective::all_gather,
                           .dtype = shard.dtype(),
                           .count = chunk.count,
                           .name = name,
                           .input = shard.flat(chunk.begin, chunk.count)},
                  .output = full,
                  .chunk = chunk,
                  .window = std::move(window),
                  .bytes = chunk.count * size_of(shard.dtype()) * (size_ - 1)});
}

Communicator::Ticket QueuedCommunicator::reduce_scatter(const Tensor& full, const Tensor& shard,
                                                        bool fresh, Combine combine,
                                                        const std::string& name, Chunk chunk) {
  chunk = check_reduce_scatter(full, shard, chunk);
  Tensor window = window_for(Collective::reduce_scatter, full, chunk.count);
  Job job{.call = {.op = Collective::reduce_scatter,
                   .dtype = full.dtype(),
                   .count = chunk.count,
                   .name = name,
                   .input = full},
          .output = shard,
          .chunk = chunk,
          .combine = combine,
          .fresh = fresh,
          .by_library = by_library_,
          .window = std::move(window),
          .bytes = chunk.count * size_of(full.dtype()) * (size_ - 1)};
  const bool builds = device_.type() == Device::Type::hpu;  // at its first use, which takes seconds
  if ((uses_transport(job) || builds) && job.window) load_kernels(job);
  return enqueue(std::move(job));
}

// A kernel must not be loaded while a collective runs: other ranks wait, and a transport may hang.
// `combine` is called within one, so its kernels are loaded here: by calls without elements, on
// aligned and on unaligned memory.
void QueuedCommunicator::load_kernels(const Job& job) {
  const DType piece = job.call.dtype, shard = job.output.dtype();
  if (!combines_loaded_.insert({job.combine, piece, shard}).second) return;
  for (const int64_t offset : {int64_t{0}, int64_t{size_of(piece)}})
    for (const bool first : {true, false})
      job.combine(job.window.alias(offset, {0}, piece), job.window.alias(0, {0}, shard), first,
                  device_.compute());
}

Tensor QueuedCommunicator::window_for(Collective op, const Tensor& full, int64_t count) {
  const int64_t bytes = CommWindow::bytes_for(op, full, count, size_);
  if (bytes == 0) return {};
  if (!window_.covers(bytes)) {
    if (next_ > 0) wait(next_ - 1);  // queued collectives use the window
    window_.grow(device_, bytes);
  }
  return window_.tensor();
}

void QueuedCommunicator::sum_by_library() {
  if (!active_transport_) Communicator::sum_by_library();
  by_library_ = true;
}

Communicator::Ticket QueuedCommunicator::all_reduce(const Tensor& x, const std::string& name) {
  if (x.dtype() != DType::i64)
    throw DTypeError(
        std::string("all_reduce: expected i64, got ") + name_of(x.dtype()) +
        "; all_reduce() of autograd/collective.h sums floating elements in rank order");
  return enqueue({.call = {.op = Collective::all_reduce,
                           .dtype = x.dtype(),
                           .count = x.numel(),
                           .name = name,
                           .input = x},
                  .output = x,
                  .bytes = x.bytes() * (size_ - 1)});
}

Communicator::Ticket QueuedCommunicator::broadcast(const Tensor& x, int root,
                                                   const std::string& name) {
  check_root("broadcast", root);
  Tensor window = window_for(Collective::broadcast, x, x.numel());
  return enqueue({.call = {.op = Collective::broadcast,
                           .dtype = x.dtype(),
                           .count = x.numel(),
                           .name = name,
                           .root = members_[root],
                           .input = x},
                  .output = x,
                  .window = std::move(window),
                  .root = root,
                  .bytes = rank_ == root ? 0 : x.bytes()});
}

Communicator::Ticket QueuedCommunicator::barrier(const std::string& name) {
  return enqueue({.call = {.op = Collective::barrier, .dtype = DType::u8, .name = name}});
}

Communicator::Ticket QueuedCommunicator::all_to_all(const Pieces& sent, const Pieces& received,
                                                    const std::string& name) {
  check_all_to_all("all_to_all", sent, received);
  return exchange(Collective::all_to_all, sent, received, -1, name);
}

Communicator::Ticket QueuedCommunicator::scatter(const Pieces& full, const Tensor& x, int root,
                                                 const std::string& name) {
  const auto [sent, received] = pieces_of_scatter(full, x, root);
  return exchange(Collective::scatter, sent, received, members_[root], name);
}

Communicator::Ticket QueuedCommunicator::exchange(Collective op, const Pieces& sent,
                                                  const Pieces& received, int root,
                                                  const std::string& name) {
  const int64_t from_others = received.tensor.numel() - received.counts[static_cast<size_t>(rank_)];
  return enqueue({.call = {.op = op,
                           .dtype = received.tensor.dtype(),
                           .count = sent.tensor.numel() + received.tensor.numel(),
                           .name = name,
                           .root = root,
                           .input = sent.tensor,
                           .sends = sent.counts,
                           .receives = received.counts},
                  .output = received.tensor,
                  .bytes = from_others * size_of(received.tensor.dtype())});
}

template <class Ready>
void QueuedCommunicator::await(std::unique_lock<std::mutex>& lock, Ticket ticket,
                               const Ready& ready) {
  if (ready()) return;
  // The awaited ticket is still in the queue; the last job has the ticket next_ - 1.
  const Call& call = jobs_[jobs_.size() - static_cast<size_t>(next_ - ticket)].call;
  const TraceSpan span(device_.compute(), {"wait for ", name_of(call.op), " ", call.name},
                       Trace::Kind::wait);
  lock.unlock();
  owner_waits(true);
  lock.lock();
  changed_.wait(lock, ready);
  lock.unlock();
  owner_waits(false);
  lock.lock();
}

void QueuedCommunicator::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  await(lock, ticket, [&] { return done_ > ticket || failure_; });
  if (done_ <= ticket) throw_failure();
  const auto place = jobs_.size() - static_cast<size_t>(next_ - ticket);  // wraps: released
  const int64_t queued_ns = place < jobs_.size() ? jobs_[place].queued_ns : -1;
  release_jobs(ticket);
  lock.unlock();
  if (const Trace* trace = device_.trace(); trace && trace->is_watched() && queued_ns >= 0)
    trace->note({.kind = Trace::Kind::wait,
                 .stream = *stream_,
                 .track = track_of(members_),
                 .outputs = {},
                 .queued_ns = queued_ns});
}

bool QueuedCommunicator::is_done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return done_ > ticket || failure_;
}

// The device waits only for work that is queued already, so it cannot wait for ever: a transport
// ends its work when it fails or its deadline has passed.
void QueuedCommunicator::wait_on_device(Ticket ticket) {
  if (device_.trace()) return wait(ticket);  // the spans "wait" are the time that collectives cost
  std::unique_lock lock(mutex_);
  await(lock, ticket, [&] { return done_ > ticket || on_device_ > ticket || failure_; });
  if (done_ <= ticket) {
    if (failure_) throw_failure();
    end_->make_wait(device_.compute());
    DeviceState::of(device_).unconfirmed.add(this, [this, ticket] { wait(ticket); });
  }
  release_jobs(ticket);
}

// Frees the tensors of all jobs up to `ticket` on this thread. Each is finished or on the device.
void QueuedCommunicator::release_jobs(Ticket ticket) {
  while (!jobs_.empty() && jobs_.front().finished) jobs_.pop_front();
  if (jobs_.empty() || next_ - static_cast<Ticket>(jobs_.size()) > ticket) return;
  Job& job = jobs_.front();
  job.call.input = job.output = job.window = {};
}

void QueuedCommunicator::note_queued(const Job& job) {
  const auto is_on_device = [](const Tensor& tensor) {
    return tensor && tensor.buffer()->space() == Space::device;
  };
  // Memory of the host that is freed can be written again at once, memory of the device only after
  // the work that is queued.
  if (!is_on_device(job.call.input) || !is_on_device(job.output)) return;
  std::shared_ptr<StreamMark> end = backend_of(device_.type())->mark(*stream_);
  {
    const std::lock_guard lock(mutex_);
    end_ = std::move(end);
    on_device_ = done_ + 1;
  }
  changed_.notify_all();
}

Communicator::Ticket QueuedCommunicator::enqueue(Job job) {
  WireCount& count = counts_[static_cast<size_t>(job.call.op)];
  ++count.calls;
  count.bytes += job.bytes;
  if (Trace* trace = device_.trace()) {
    job.trace = trace->shared_from_this();
    job.queued_ns = trace->now_ns();
  }
  if (size_ > 1) {
    // The worker waits for the compute queue. So that errors name the group whose ranks are late,
    // the queue must not wait for another group by then.
    DeviceState::of(device_).unconfirmed.confirm(this);
    job.inputs = mark_compute(device_);
  } else {
    device_.compute().synchronize();
  }
  // So that views and tapes see it. Memory of parameters receives the same values again.
  if (job.output && job.root != rank_ && job.output.buffer()->purpose() == Purpose::activation)
    job.output.buffer()->note_write();
  std::unique_lock lock(mutex_);
  if (failure_) throw_failure();
  jobs_.push_back(std::move(job));
  const Ticket ticket = next_++;
  log_->queued(ticket, jobs_.back().call, *step_);
  if (size_ > 1) {
    lock.unlock();
    changed_.notify_all();
    owner_waits(false);
  } else {
    run_logged(jobs_.back(), ticket);
    jobs_.back().finished = true;
    ++done_;
  }
  return ticket;
}

void QueuedCommunicator::run_logged(const Job& job, Ticket ticket) {
  if (job.inputs) await_inputs(job);
  log_->started(ticket);
  const int64_t begin_ns = job.trace ? job.trace->now_ns() : 0;
  arrived_ns_ = -1;
  run(job, ticket);
  stream_->synchronize();
  if (job.trace) record(job, ticket, begin_ns);
  log_->done(ticket);
}

void QueuedCommunicator::await_inputs(const Job& job) {
  if (watch_every_.count() > 0) {
    job.inputs->make_wait(*stream_);  // on which nothing else is queued
    auto watched = std::chrono::steady_clock::now();
    for (Pace pace(1000); !backend_of(device_.type())->is_idle(*stream_); pace.rest())
      if (const auto now = std::chrono::steady_clock::now(); now >= watched + watch_every_) {
        watch();
        watched = now;
      }
  }
  job.inputs->wait();
}

void QueuedCommunicator::note_arrival(const Job& job) {
  if (job.trace) arrived_ns_ = job.trace->now_ns();
}

void QueuedCommunicator::record(const Job& job, Ticket ticket, int64_t begin_ns) const {
  const Call& call = job.call;
  Trace::Span span{.rank = device_.trace_rank(),
                   .track = track_of(members_),
                   .kind = Trace::Kind::collective,
                   .name = std::string(name_of(call.op)) + " " + call.name,
                   .begin_ns = begin_ns,
                   .end_ns = job.trace->now_ns(),
                   .arguments = {{"bytes", job.bytes},
                                 {"elements", call.count},
                                 {"dtype", name_of(call.dtype)},
                                 {"sequence", ticket},
                                 {"queued_us", (begin_ns - job.queued_ns) / 1000}}};
  if (arrived_ns_ >= 0)
    job.trace->span({.rank = span.rank,
                     .track = span.track,
                     .kind = Trace::Kind::wait,
                     .name = "wait for peers",
                     .begin_ns = begin_ns,
                     .end_ns = arrived_ns_});
  job.trace->note({.kind = span.kind,
                   .stream = *stream_,
                   .track = span.track,
                   .name = span.name,
                   .outputs = outputs_of(job),
                   .ranks = call.root < 0 ? std::span(members_.ranks) : std::span(&call.root, 1),
                   .queued_ns = job.queued_ns});
  job.trace->span(std::move(span));
}

// The elements that the collective has written, by their senders if each has sent a piece.
std::vector<Trace::Call::Output> QueuedCommunicator::outputs_of(const Job& job) const {
  std::vector<Trace::Call::Output> outputs;
  if (!job.trace->is_watched() || !job.output) return outputs;
  const int64_t count = job.chunk.count;
  switch (job.call.op) {
    case Collective::all_gather: {
      const int64_t shard = job.output.numel() / size_;
      for (int i = 0; i < size_; ++i)
        outputs.push_back({fmt::format("from rank {}", members_[i]),
                           job.output.flat(i * shard + job.chunk.begin, count)});
      return outputs;
    }
    case Collective::reduce_scatter:
      return {{"shard", job.output.flat(job.chunk.begin, count)}};
    case Collective::all_to_all:
    case Collective::scatter:
      for (int i = 0; i < size_; ++i)
        if (const Tensor piece = job.received_from(i); piece.numel() > 0)
          outputs.push_back({fmt::format("from rank {}", members_[i]), piece});
      return outputs;
    default:
      return {{"x", job.output}};
  }
}

void QueuedCommunicator::throw_failure() {
  owner_saw_failure();
  changed_.notify_all();
  std::rethrow_exception(failure_);
}

// Call it from a catch block; it locks.
void QueuedCommunicator::fail(std::unique_lock<std::mutex>& lock) {
  const std::exception_ptr error = std::current_exception();
  failed(error);
  lock.lock();
  failure_ = error;
  changed_.notify_all();
}

// Returns false if the thread must end.
bool QueuedCommunicator::await_job(std::unique_lock<std::mutex>& lock) {
  const auto ready = [&] { return stop_ || done_ < next_; };
  if (watch_every_.count() == 0) changed_.wait(lock, ready);
  while (!ready() && !changed_.wait_for(lock, watch_every_, ready)) {
    lock.unlock();
    try {
      watch();
      lock.lock();
    } catch (...) {
      fail(lock);
      return false;
    }
  }
  return done_ < next_;
}

void QueuedCommunicator::work() {
  std::unique_lock lock(mutex_);
  while (await_job(lock)) {
    // The reference stays valid: push_back on a deque keeps references, and only wait() removes
    // jobs from the front.
    Job& job = *std::ranges::find_if(jobs_, [](const Job& j) { return !j.finished; });
    const Ticket ticket = done_;
    lock.unlock();
    try {
      run_logged(job, ticket);
      lock.lock();
    } catch (...) {
      return fail(lock);
    }
    job.finished = true;
    ++done_;
    changed_.notify_all();
  }
}

Members QueuedCommunicator::members_of(std::span<const int> members,
                                       const std::string& name) const {
  Members all{.group = name};
  for (const int member : members) all.ranks.push_back(members_[member]);
  return all;
}

void QueuedCommunicator::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

void QueuedCommunicator::start_worker() {
  if (size_ > 1) worker_ = std::thread([this] { work(); });
}

void QueuedCommunicator::end_worker(const std::function<void(bool fails)>& leave) {
  const bool fails = std::uncaught_exceptions() > exceptions_;
  if (fails) leave(fails);
  stop();
  UnconfirmedCollectives& unconfirmed = DeviceState::of(device_).unconfirmed;
  const bool was_unconfirmed = unconfirmed.remove(this);
  owner_waits(true);
  if (worker_.joinable()) worker_.join();
  owner_waits(false);
  if (was_unconfirmed && failure_) unconfirmed.fail(failure_);
  if (!fails) leave(fails);
}

}  // namespace zg::cpu
