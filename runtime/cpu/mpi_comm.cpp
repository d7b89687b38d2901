#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "runtime/backend.h"
#include "runtime/cpu/host_windows.h"
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
      : ProcessCommunicator(
            place.rank, all_ranks(place.size), std::make_shared<std::atomic<int64_t>>(0),
            std::make_shared<CollectiveLog>(place.rank, place.size), device, watch_every),
        dumps_(options.dump_collectives),
        told_to_end_(options.told_to_end),
        timeout_(options.timeout_s),
        same_(options.same),
        windows_(place.rank, place.size, device.type() == Device::Type::cpu),
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
  std::unique_ptr<Communicator> group(std::span<const int>, const std::string& name) override {
    throw Unsupported("group '" + name + "': ranks are processes; try ranks as threads");
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
    bool carried = false;   // by accelerators, which do not say who is missing
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
    const Backend* backend = backend_of(device_.type());
    if (backend && backend->carriers.place)
      own.place = backend->carriers.place(device_.index(), rank_ == 0);
    std::vector<Hello> hellos(peers_.size(), own);
    const Meeting meeting{.deadline = deadline()};
    exchange(
        meeting, sizeof own, hello_tag, [&](int) { return &own; },
        [&](int peer) { return &hellos[at(peer)]; });
    for (int peer = 0; peer < size_; ++peer)
      for (size_t i = 0; i < same_.size(); ++i)
        if (std::strcmp(hellos[at(peer)].same[i], hellos[0].same[i]) != 0)
          throw ConfigError(difference(same_[i].first, peer, hellos[at(peer)], hellos[0]));
    choose_carrier(hellos);
    for (const int peer : others_) {
      Peer& other = peers_[at(peer)];
      other.process = hellos[at(peer)].process;
      other.visible = own.process.same_host(other.process) && other.process.alive();
    }
  }

  void choose_carrier(const std::vector<Hello>& hellos) {
    transport_ = "MPI";
    const Backend* backend = backend_of(device_.type());
    if (!backend || !backend->carriers.place) return;
    std::vector<CarrierPlace> places;
    for (const Hello& hello : hellos) places.push_back(hello.place);
    const std::string absence = backend->carriers.absence(places);
    transport_ = absence.empty() ? backend->carriers.name()
                                 : "MPI and memory of the host; not by NCCL: " + absence;
    if (absence.empty()) carrier_ = backend->carriers.make(places, rank_, device_.index());
  }

  // Every rank comes here, or one that waits in a collective says that this one left too early.
  void leave() {
    notice_ = {.kind = Notice::Kind::left, .step = *step_};
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
    if (is_carried(job)) {
      carry(job, meeting);
    } else {
      windows_.run(job, *stream_,
                   [&](int64_t bytes, const HostWindows::Out& out, const HostWindows::In& in) {
                     exchange(meeting, bytes, data_tag, out, in);
                   });
    }
    finished_ = ticket;
  }

  void arrive(const Meeting& meeting) {
    const Call& call = *meeting.call;
    notice_ = {.kind = Notice::Kind::arrived,
               .sequence = meeting.sequence,
               .step = *step_,
               .count = call.count,
               .root = call.root,
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
      if (!other.agrees(calls[at(rank_)]))
        fail(disagreement(meeting.sequence, members_, *step_, calls));
  }

  void carry(const Job& job, Meeting& meeting) {
    meeting.carried = true;
    try {
      carrier_->run(job, *stream_, [&](const std::function<bool()>& done) {
        bool over = false;
        until(meeting, 1000, [&](int) { return !(over = over || done()); });
      });
    } catch (const DeviceError&) {
      raise_failure(meeting);  // of a peer: this rank only felt it
      raise_own(describe(std::current_exception()));
    }
  }

  /// Sends out(peer) to and receives in(peer) from every peer.
  template <class Out, class In>
  void exchange(const Meeting& meeting, int64_t bytes, int tag, const Out& out, const In& in) {
    for (const int peer : others_) {
      receives_[at(peer)] = in(peer) ? wire::receive(peer, tag, in(peer), bytes) : wire::Message{};
      sends_[at(peer)] = out(peer) ? wire::send(peer, tag, out(peer), bytes) : wire::Message{};
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
      if (meeting.carried && answers(meeting, now > last)) last = std::max(last, now + pause);
      if (now <= patient_until && !given_up) continue;
      if (meeting.carried) forgive_who_waits(meeting.sequence);
      const char* verb = meeting.arriving ? "arrive" : "finish";
      fail(given_up ? unfinished(missing_, verb, place_of(meeting))
                    : absence(missing_, verb, timeout_.count(), place_of(meeting)));
    }
  }

  /// When one has waited too long, all who wait say so, once. Whether this rank does so now.
  bool answers(const Meeting& meeting, bool late) {
    const auto waits = [&](const Peer& peer) { return peer.waits_in >= meeting.sequence; };
    if (said_to_wait_ >= meeting.sequence) return false;
    if (!late && std::none_of(peers_.begin(), peers_.end(), waits)) return false;
    said_to_wait_ = meeting.sequence;
    notice_ = {.kind = Notice::Kind::waits, .sequence = meeting.sequence, .step = *step_};
    tell(notice_, pause);
    return true;
  }

  /// Those who said nothing are missing; if there are none, all are.
  void forgive_who_waits(int64_t sequence) {
    const auto waits = [&](int peer) { return peers_[at(peer)].waits_in >= sequence; };
    if (std::all_of(missing_.begin(), missing_.end(), waits))
      missing_.insert(std::lower_bound(missing_.begin(), missing_.end(), rank_), rank_);
    else
      std::erase_if(missing_, waits);
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
      case Notice::Kind::waits:
        from.waits_in = notice.sequence;
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

  void owner_waits(bool) override {}

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
    raise_own(cause);
  }

  [[noreturn]] void raise_own(const std::string& cause) {
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
    last_words_ = {.kind = kind, .sequence = finished_, .step = *step_};
    last_words_.set_text(text);
    tell(last_words_, 300ms);
  }

  std::string own_failure(const std::string& cause) const {
    return failure_of(rank_, *step_, last_, cause);
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
           (meeting.call ? "" : std::to_string(*step_));
  }

  std::string place_of(const Meeting& meeting) const {
    return meeting.call ? where(*meeting.call, meeting.sequence, {}, *step_)
                        : std::string("the end or the beginning of the run");
  }

  const bool dumps_;
  const std::function<bool()> told_to_end_;
  const std::chrono::duration<double> timeout_;
  const std::vector<std::pair<std::string, std::string>> same_;
  std::atomic<bool> aborts_ = false;
  std::atomic<bool> is_up_ = false;         // MPI has started
  std::string cause_;                       // of this rank's abort; by mutex_
  bool connected_ = false, ended_ = false;  // by mutex_

  // The worker's own.
  HostWindows windows_;
  std::vector<Peer> peers_;
  std::vector<int> others_;                      // every rank but this one
  std::vector<int> missing_;                     // of them, those that until() waits for
  Notice notice_, last_words_;                   // on their way
  std::vector<wire::Message> sends_, receives_;  // of an exchange
  int64_t finished_ = -1, said_to_wait_ = -1;
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
