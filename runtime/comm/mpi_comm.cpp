#include "zerograd/runtime/comm/mpi_comm.h"

#include <cstdlib>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/error.h"

namespace zg::cpu {
namespace {

/// A group of some, with a worker of its own.
class MpiSubgroup final : public MpiCommunicator {
 public:
  MpiSubgroup(std::shared_ptr<MpiWorld> world, std::shared_ptr<MpiGroup> group,
              const Device& device)
      : MpiCommunicator(std::move(world), std::move(group), device, {}) {
    TransportEndpoint own;
    const Backend* backend = backend_of(device.type());
    if (size_ > 1 && backend && backend->transports.place)
      own = backend->transports.place(device.index(), rank_ == 0);
    std::vector<TransportEndpoint> places(static_cast<size_t>(size_), own);
    if (size_ > 1 && backend && backend->transports.place) {
      const auto bytes_of = [](TransportEndpoint& place) {
        return reinterpret_cast<std::byte*>(&place);
      };
      Meeting meeting{.group = group_.get(), .last = world_->deadline()};
      meeting.place = "the making of group '" + members_.group + "'";
      world_->owner_waits(group_.get());
      world_->exchange(
          meeting, sizeof own, data_tag + static_cast<int>(group_->number),
          [&](int) { return bytes_of(own); },
          [&](int member) { return bytes_of(places[static_cast<size_t>(member)]); });
      world_->owner_waits(nullptr);
    }
    choose_transport(places);
    if (size_ > 1) worker_ = std::thread([this] { work(); });
  }

  ~MpiSubgroup() override {
    // A rank that throws reports its cause only after all its groups have ended. It leaves this
    // group first, so that peers wait for that report.
    const bool fails = std::uncaught_exceptions() > exceptions_;
    if (fails) world_->leave(group_, fails);
    stop();
    world_->owner_waits(group_.get());
    if (worker_.joinable()) worker_.join();
    world_->owner_waits(nullptr);
    if (!fails) world_->leave(group_, fails);
  }

 private:
  const int exceptions_ = std::uncaught_exceptions();
  std::thread worker_;
};

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiWorld> world, std::shared_ptr<MpiGroup> group,
                                 const Device& device, std::chrono::milliseconds watch_every)
    : QueuedCommunicator(group->own, group->members, world->step(), group->log, device,
                         watch_every),
      world_(std::move(world)),
      group_(std::move(group)),
      windows_(rank_, size_, device.type() == Device::Type::cpu) {}

std::unique_ptr<Communicator> MpiCommunicator::group(std::span<const int> members,
                                                     const std::string& name) {
  check_group(members, name);
  return std::make_unique<MpiSubgroup>(world_, world_->found(members_of(members, name)), device_);
}

void MpiCommunicator::abort(const std::string& cause) noexcept {
  world_->told();
  world_->abort(cause);
}

void MpiCommunicator::choose_transport(const std::vector<TransportEndpoint>& places) {
  transport_ = "MPI";
  const Backend* backend = backend_of(device_.type());
  if (!backend || !backend->transports.place || size_ == 1) return;
  const std::string absence = backend->transports.absence(places);
  transport_ = absence.empty() ? backend->transports.name()
                               : "MPI and memory of the host; not by NCCL: " + absence;
  if (absence.empty()) active_transport_ = backend->transports.make(places, rank_, device_.index());
}

void MpiCommunicator::run(const Job& job, Ticket ticket) {
  Meeting meeting{.group = group_.get(), .sequence = ticket, .call = &job.call};
  if (size_ > 1) {
    world_->arrive(meeting);
    note_arrival(job);
  }
  if (is_carried(job)) {
    carry(job, meeting);
  } else {
    const int tag = data_tag + static_cast<int>(group_->number);
    windows_.run(job, *stream_,
                 [&](int64_t bytes, const HostWindows::Out& out, const HostWindows::In& in) {
                   world_->exchange(meeting, bytes, tag, out, in);
                 });
  }
  world_->finished(*group_, ticket);
}

void MpiCommunicator::carry(const Job& job, Meeting& meeting) {
  meeting.carried = true;
  try {
    active_transport_->run(job, *stream_, [&](const std::function<bool()>& done) {
      bool over = false;
      meeting.awaited = [&](int) { return !(over = over || done()); };
      world_->until(meeting, 1000);
    });
  } catch (const DeviceError&) {
    world_->raise_failure_of_peer(meeting);  // this rank only felt it
    world_->raise_own(describe(std::current_exception()));
  }
}

}  // namespace zg::cpu
