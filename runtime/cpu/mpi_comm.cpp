#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "runtime/cpu/mpi_comm.h"
#include "runtime/cpu/mpi_peer.h"
#include "runtime/error.h"

namespace zg::cpu {
namespace {

using Clock = std::chrono::steady_clock;
/// One rank as a process. Its worker is the only thread that calls MPI, from start to end.
class MpiCommunicator final : public ProcessCommunicator {
 public:
  MpiCommunicator(const ProcessPlace& place, const ProcessOptions& options, const Device& device)
      : ProcessCommunicator(place.rank, place.size,
                            std::make_shared<CollectiveLog>(place.rank, place.size), device,
                            watch_every),
        dumps_(options.dump_collectives),
        told_to_end_(options.told_to_end),
        timeout_(options.timeout_s),
        same_(options.same),
        window_(window_bytes),
        outgoing_(device.type() == Device::Type::cpu ? 0 : window_bytes),
        peers_(static_cast<size_t>(place.size)),
        sends_(peers_.size()),
        receives_(peers_.size()) {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) others_.push_back(peer);
    worker_ = std::thread([this] { serve(); });
    await_end_or([this] { return connected_; }, 2, "MPI did not start");
    if (connected_) return;
    worker_.join();
    std::rethrow_exception(failure_);
  }

  ~MpiCommunicator() override {
    if (!worker_.joinable()) return;
    stop();
    worker_.join();
  }

  void finish() override {
    stop();
    await_end_or([] { return false; }, 3, "MPI did not end");
    worker_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  void abort(const std::string& cause) noexcept override {
    std::unique_lock lock(mutex_);
    told_ = true;
    if (failure_ || ended_) return;
    cause_ = cause;
    aborts_ = true;
    changed_.wait_for(lock, 1s, [&] { return failure_ || ended_; });
  }
  void set_step(int64_t step) override {
    QueuedCommunicator::set_step(step);
    step_ = step;
  }
  void dump() override {
    if (dumps_) log_->dump();
  }

 private:
  /// A collective that ranks meet in; sequence -1: none, the rank computes.
  struct Meeting {
    int64_t sequence = -1;
    const Call* call = nullptr;
    Clock::time_point deadline = Clock::time_point::max();
    bool arriving = false;  // else it is under way
  };

  size_t at(int peer) const { return static_cast<size_t>(peer); }

  // --- the worker's life

  void serve() {
    try {
      connect();
      {
        std::lock_guard lock(mutex_);
        connected_ = true;
      }
      changed_.notify_all();
      work();
      if (!failed_here()) leave();
    } catch (...) {
      std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    if (connected_ && failed_here()) await_owner();
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  }

  bool failed_here() {
    std::lock_guard lock(mutex_);
    return failure_ != nullptr;
  }

  void connect() {
    wire::start(size_);
    is_up_ = true;
    greet();
    for (const int peer : others_) receive(peers_[at(peer)]);
  }

  void greet() {
    Hello own{.process = ProcessId::own()};
    for (size_t i = 0; i < std::min(same_.size(), std::size(own.same)); ++i)
      std::snprintf(own.same[i], sizeof own.same[i], "%s", same_[i].second.c_str());
    std::vector<Hello> hellos(peers_.size(), own);
    const Meeting meeting{.deadline = deadline()};
    exchange(
        meeting, sizeof own, hello_tag, [&](int) { return &own; },
        [&](int peer) { return &hellos[at(peer)]; });
    for (int peer = 0; peer < size_; ++peer)
      for (size_t i = 0; i < same_.size(); ++i)
        if (std::strcmp(hellos[at(peer)].same[i], hellos[0].same[i]) != 0)
          throw ConfigError(difference(same_[i].first, peer, hellos[at(peer)], hellos[0]));
    for (const int peer : others_) {
      Peer& other = peers_[at(peer)];
      other.process = hellos[at(peer)].process;
      other.visible = own.process.same_host(other.process) && other.process.alive();
    }
  }

  // Every rank comes here, or one that waits in a collective says that this one left too early.
  void leave() {
    notice_ = {.kind = Notice::Kind::left, .step = step_};
    tell(notice_, patience());
    until({.deadline = deadline()}, 0, [this](int peer) { return !peers_[at(peer)].left; });
    for (Peer& peer : peers_) wire::cancel(peer.receiving);
    wire::stop();
  }

  // An owner that computes on would see the failure at its next collective, one that stalls never.
  void await_owner() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, grace, [this] { return told_ || stop_; })) return;
    end_process(describe(failure_) + "\nrank " + std::to_string(rank_) +
                " is still in its own code and cannot be ended from outside; ending the process");
  }

  [[noreturn]] void end_process(const std::string& text) {
    dump();
    std::fprintf(stderr, "error: %s\n", text.c_str());
    std::fflush(nullptr);
    std::_Exit(4);
  }

  // MPI_Init and MPI_Finalize have no deadlines of their own.
  template <class Done>
  void await_end_or(const Done& done, double timeouts, const char* what) {
    std::unique_lock lock(mutex_);
    const auto start = Clock::now();
    const auto longest = std::chrono::duration<double>(timeouts * timeout_.count() + 1);
    const auto over = [&] { return ended_ || done(); };
    while (!changed_.wait_for(lock, watch_every, over)) {
      const bool told = !is_up_ && told_to_end_ && told_to_end_();
      if (!told && Clock::now() - start < longest) continue;
      end_process("CommError: rank " + std::to_string(rank_) + "/" + std::to_string(size_) +
                  " ends: " + what +
                  (told ? " before a peer failed, and the launcher ends this process"
                        : " within the timeout"));
    }
  }

  Clock::duration patience() const { return std::chrono::duration_cast<Clock::duration>(timeout_); }
  Clock::time_point deadline() const { return Clock::now() + patience(); }

  // --- collectives

  void run(const Job& job, Ticket ticket) override {
    Meeting meeting{
        .sequence = ticket, .call = &job.call, .deadline = deadline(), .arriving = true};
    last_ = named(job.call, ticket);
    arrive(meeting);
    meeting.arriving = false;
    switch (job.call.op) {
      case Collective::all_gather:
        gather(job, meeting);
        break;
      case Collective::reduce_scatter:
        combine(job, meeting);
        break;
      case Collective::all_reduce:
        sum(job, meeting);
        break;
      case Collective::barrier:
        break;
    }
    finished_ = ticket;
  }

  void arrive(const Meeting& meeting) {
    const Call& call = *meeting.call;
    notice_ = {.kind = Notice::Kind::arrived,
               .sequence = meeting.sequence,
               .step = step_,
               .count = call.count,
               .op = call.op,
               .dtype = call.dtype};
    notice_.set_text(call.name);
    tell(notice_, patience());
    until(meeting, 50, [this](int peer) { return peers_[at(peer)].arrivals.empty(); });
    std::vector<Call> calls(peers_.size());
    calls[at(rank_)] = notice_.call();  // a name that was cut is cut alike
    for (const int peer : others_) {
      calls[at(peer)] = peers_[at(peer)].arrivals.front().call();
      peers_[at(peer)].arrivals.pop_front();
    }
    for (const Call& other : calls)
      if (!other.agrees(calls[at(rank_)])) fail(disagreement(meeting.sequence, step_, calls));
  }

  void gather(const Job& job, const Meeting& meeting) {
    const int64_t shard_numel = job.output.numel() / size_;
    const auto place = [&](int peer) {
      return job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count).raw();
    };
    const std::byte* shard = job.call.input.raw();
    const int64_t bytes = job.call.input.bytes();
    if (place(rank_) != shard) stream_->copy(place(rank_), shard, static_cast<size_t>(bytes));
    if (!host_reaches(job.call.input) || !host_reaches(job.output))
      return through_window(
          meeting, bytes, [&](int) { return shard; },
          [&](int peer, int64_t offset, const std::byte* from, size_t length) {
            stream_->copy(place(peer) + offset, from, length);
          });
    for (int64_t begin = 0; begin < bytes; begin += largest_message)
      exchange(
          meeting, std::min(largest_message, bytes - begin), data_tag,
          [&](int) { return shard + begin; }, [&](int peer) { return place(peer) + begin; });
  }

  /// Peers' pieces of `bytes` each, by way of the window: in(peer, begin, from, bytes) takes them.
  template <class Out, class In>
  void through_window(const Meeting& meeting, int64_t bytes, const Out& out, const In& in) {
    const int64_t share = window_bytes / (size_ - 1) / 64 * 64;
    const auto slot = [&](std::vector<std::byte>& window, int peer) {
      return window.data() + (peer - (peer > rank_)) * share;
    };
    for (int64_t begin = 0; begin < bytes; begin += share) {
      const int64_t length = std::min(share, bytes - begin);
      for (const int peer : others_)
        if (!outgoing_.empty())
          stream_->copy(slot(outgoing_, peer), out(peer) + begin, static_cast<size_t>(length));
      stream_->synchronize();
      exchange(
          meeting, length, data_tag,
          [&](int peer) { return outgoing_.empty() ? out(peer) + begin : slot(outgoing_, peer); },
          [&](int peer) { return slot(window_, peer); });
      for (const int peer : others_)
        in(peer, begin, slot(window_, peer), static_cast<size_t>(length));
    }
  }

  // A peer's piece of `full` is sent to it, and its piece for this rank takes the place: no bytes
  // beyond the tensors are needed, and the fold is that of ranks that are threads.
  void combine(const Job& job, const Meeting& meeting) {
    const auto& [begin, numel] = job.chunk;
    const auto piece = [&](int peer) {
      return job.call.input.flat(peer * job.output.numel() + begin, numel);
    };
    through_window(
        meeting, piece(0).bytes(), [&](int peer) { return piece(peer).raw(); },
        [&](int peer, int64_t offset, const std::byte* from, size_t bytes) {
          stream_->copy(piece(peer).raw() + offset, from, bytes);
        });
    const Tensor place = job.output.flat(begin, numel);
    for (int peer = 0; peer < size_; ++peer)
      job.combine(piece(peer), place, job.fresh && peer == 0, *stream_);
  }

  void sum(const Job& job, const Meeting& meeting) {
    const auto bytes_of_sums = static_cast<size_t>(job.output.bytes());
    std::vector<int64_t> sums(bytes_of_sums / sizeof(int64_t));
    stream_->copy(sums.data(), job.output.raw(), bytes_of_sums);
    through_window(
        meeting, job.output.bytes(), [&](int) { return job.output.raw(); },
        [&](int, int64_t offset, const std::byte* from, size_t bytes) {
          const auto* values = reinterpret_cast<const int64_t*>(from);
          for (size_t i = 0; i < bytes / sizeof(int64_t); ++i)
            sums[static_cast<size_t>(offset) / sizeof(int64_t) + i] += values[i];
        });
    stream_->copy(job.output.raw(), sums.data(), bytes_of_sums);
  }

  /// Sends out(peer) to and receives in(peer) from every peer.
  template <class Out, class In>
  void exchange(const Meeting& meeting, int64_t bytes, int tag, const Out& out, const In& in) {
    for (const int peer : others_) {
      receives_[at(peer)] = wire::receive(peer, tag, in(peer), bytes);
      sends_[at(peer)] = wire::send(peer, tag, out(peer), bytes);
    }
    // All have arrived, so this is work rather than waiting: it moves only while MPI is called.
    until(meeting, 1000 + bytes / 1024, [&](int peer) {
      const bool received = wire::complete(receives_[at(peer)]);
      return !wire::complete(sends_[at(peer)]) || !received;
    });
  }

  /// Returns when awaited(peer) holds for no peer. Throws CommError when that cannot be any more.
  template <class Awaited>
  void until(const Meeting& meeting, int64_t yields, const Awaited& awaited) {
    Pace pace(yields);
    Clock::time_point last = meeting.deadline, polled = Clock::now();
    for (;; pace.rest()) {
      take_notices();
      const Clock::time_point now = Clock::now();
      // Whoever was stopped itself has not heard its peers, who may have been there long ago.
      if (now > polled + pause) last = std::max(last, now + pause);
      polled = now;
      missing_.clear();
      for (const int peer : others_)
        if (awaited(peer)) missing_.push_back(peer);
      if (missing_.empty()) return;
      raise_failure(meeting);
      if (aborts_) raise_abort();
      for (const int peer : missing_)
        if (meeting.arriving && peers_[at(peer)].left)
          fail(early_return(peer, peers_[at(peer)].step, place_of(meeting)));
      look_for_dead(meeting, missing_);
      const bool given_up = soon_killed(now);
      // Of several, some may wait for the one that stopped, and are about to say which.
      const auto patient_until = missing_.size() > 1 ? last + pause : last;
      if (now <= patient_until && !given_up) continue;
      const char* verb = meeting.arriving ? "arrive" : "finish";
      fail(given_up ? unfinished(missing_, verb, place_of(meeting))
                    : absence(missing_, verb, timeout_.count(), place_of(meeting)));
    }
  }

  // What can still be said is said while there is time.
  bool soon_killed(Clock::time_point now) {
    if (!told_to_end_ || !told_to_end_()) return false;
    if (told_at_ == Clock::time_point{}) told_at_ = now;
    return now > told_at_ + grace;
  }

  // --- news of peers

  void receive(Peer& from) {
    const int peer = static_cast<int>(&from - peers_.data());
    from.receiving = wire::receive(peer, notice_tag, &from.incoming, sizeof from.incoming);
  }

  void take_notices() {
    for (Peer& peer : peers_)
      while (peer.receiving.pending && wire::complete(peer.receiving)) {
        take(peer, peer.incoming);
        receive(peer);
      }
  }

  void take(Peer& from, const Notice& notice) {
    from.step = notice.step;
    switch (notice.kind) {
      case Notice::Kind::arrived:
        from.arrivals.push_back(notice);
        break;
      case Notice::Kind::left:
        from.left = true;
        break;
      case Notice::Kind::failed:
      case Notice::Kind::aborted:
        if (!cause_of_end_.empty()) break;
        cause_of_end_ = notice.text;
        adds_place_ = notice.kind == Notice::Kind::aborted;
        ended_after_ = notice.sequence;
        break;
    }
  }

  /// To every peer. Small messages are on their way at once, but for peers that do not listen any
  /// more: for those it is waited so long.
  void tell(const Notice& notice, Clock::duration longest) {
    const Clock::time_point end = Clock::now() + longest;
    for (const int peer : others_)
      peers_[at(peer)].sending = wire::send(peer, notice_tag, &notice, notice.bytes());
    const auto sent = [](Peer& peer) { return wire::complete(peer.sending); };
    for (Pace pace(50); !std::all_of(peers_.begin(), peers_.end(), sent); pace.rest())
      if (Clock::now() > end) return;
  }

  void watch() override {
    take_notices();
    raise_failure({});
    if (aborts_) raise_abort();
    look_for_dead({}, others_);
  }

  void failed(const std::exception_ptr& error) override {
    if (!is_comm_error(error)) announce(Notice::Kind::aborted, own_failure(describe(error)));
  }

  /// What all ranks have done by then succeeds on all, whatever failed since.
  void raise_failure(const Meeting& meeting) {
    if (cause_of_end_.empty() || (meeting.sequence >= 0 && ended_after_ >= meeting.sequence))
      return;
    throw CommError(cause_of_end_ + (adds_place_ ? doing(meeting) : ""));
  }

  [[noreturn]] void raise_abort() {
    std::string cause;
    {
      std::lock_guard lock(mutex_);
      cause = cause_;
    }
    const std::string text = own_failure(cause);
    announce(Notice::Kind::aborted, text);
    throw CommError(text);
  }

  [[noreturn]] void fail(const std::string& text) {
    announce(Notice::Kind::failed, text);
    throw CommError(text);
  }

  void announce(Notice::Kind kind, const std::string& text) {
    cause_of_end_ = text;
    last_words_ = {.kind = kind, .sequence = finished_, .step = step_};
    last_words_.set_text(text);
    tell(last_words_, 300ms);
  }

  std::string own_failure(const std::string& cause) const {
    return failure_of(rank_, step_, last_, cause);
  }

  /// Twice not seen is gone: what a peer said before it went has arrived by then.
  void look_for_dead(const Meeting& meeting, const std::vector<int>& ranks) {
    if (Clock::now() < looked_ + look_every) return;
    looked_ = Clock::now();
    for (const int peer : ranks) {
      Peer& other = peers_[at(peer)];
      if (!other.visible || other.left || other.process.alive()) continue;
      if (++other.misses < 2) continue;
      fail(gone(peer, other) + doing(meeting));
    }
  }

  std::string doing(const Meeting& meeting) const {
    return "; rank " + std::to_string(rank_) +
           (meeting.call    ? " waits in " + place_of(meeting)
            : last_.empty() ? " computes before its first collective, in step "
                            : " computes after " + last_ + ", in step ") +
           (meeting.call ? "" : std::to_string(step_));
  }

  std::string place_of(const Meeting& meeting) const {
    return meeting.call ? where(*meeting.call, meeting.sequence, step_)
                        : std::string("the end or the beginning of the run");
  }

  const bool dumps_;
  const std::function<bool()> told_to_end_;
  const std::chrono::duration<double> timeout_;
  const std::vector<std::pair<std::string, std::string>> same_;
  std::atomic<int64_t> step_ = 0;
  std::atomic<bool> aborts_ = false;
  std::atomic<bool> is_up_ = false;         // MPI has started
  std::string cause_;                       // of this rank's abort; by mutex_
  bool connected_ = false, ended_ = false;  // by mutex_

  // The worker's own.
  std::vector<std::byte> window_;    // for what comes,
  std::vector<std::byte> outgoing_;  // and on the way from an accelerator's memory for what goes
  std::vector<Peer> peers_;
  std::vector<int> others_;                      // every rank but this one
  std::vector<int> missing_;                     // of them, those that until() waits for
  Notice notice_, last_words_;                   // on their way
  std::vector<wire::Message> sends_, receives_;  // of an exchange
  int64_t finished_ = -1;
  std::string last_;  // the collective that this rank was in
  std::string cause_of_end_;
  Clock::time_point told_at_{};
  bool adds_place_ = false;
  int64_t ended_after_ = -1;  // the last collective that the rank which failed has finished
  Clock::time_point looked_{};
  std::thread worker_;
};

}  // namespace

std::unique_ptr<ProcessCommunicator> make_mpi_communicator(const ProcessPlace& place,
                                                           const ProcessOptions& options,
                                                           const Device& device) {
  return std::make_unique<MpiCommunicator>(place, options, device);
}

}  // namespace zg::cpu
