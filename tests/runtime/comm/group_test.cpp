#include <string>
#include <vector>

#include "tests/runtime/comm/ranks.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/comm/communicator.h"

using namespace zg;
using namespace zg::testing;

namespace {

Tensor value(double number, const Device& device, int64_t numel = 3) {
  return Tensor::full({numel}, number, DType::f32, device);
}

bool holds(const Tensor& x, float number) {
  return x.to_host<float>() == std::vector<float>(static_cast<size_t>(x.numel()), number);
}

constexpr int64_t shard_numel = 11;

/// This rank's shard after two folds over `comm`, of numbers that depend on `seed` and on the rank,
/// and whose sums depend on the order of addition.
std::vector<float> folded(Communicator& comm, int seed, const Device& device) {
  const Tensor full = Tensor::empty({shard_numel * comm.size()}, DType::f32, device);
  for (int64_t i = 0; i < full.numel(); ++i)
    full.data<float>()[i] = static_cast<float>((i * 7 + 3 * seed + comm.rank()) % 13 - 6) *
                            (comm.rank() % 2 ? 1e8f : 1.1f);
  const Tensor shard = value(0.5, device, shard_numel);
  comm.wait(comm.reduce_scatter(full, shard, true, add_floats, "g", {0, 4}));
  comm.wait(comm.reduce_scatter(full, shard, false, add_floats, "g", {3, 8}));
  return shard.to_host<float>();
}

}  // namespace

TEST_CASE("a broadcast brings the root's tensor to every rank, of any type, at any world size") {
  for (const int ranks : {1, 2, 3, 8})
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      for (int root = 0; root < ranks; ++root)
        for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
          const Tensor x = Tensor::full({2, 3}, comm.rank() + 1.0, dtype, device);
          comm.wait(comm.broadcast(x, root, "x"));
          expect(x.to_doubles() == std::vector<double>(6, root + 1.0), "value");
        }
      const WireCount count = comm.wire()[static_cast<size_t>(Collective::broadcast)];
      expect(count.calls == 4 * ranks, "calls");
      expect(count.bytes == (ranks - 1) * 6 * (4 + 2 + 8 + 1), "bytes");
    });
}

TEST_CASE("broadcast refuses a root that is not a rank before it queues anything") {
  run_local(2, [](Communicator& comm, const Device& device) {
    const Tensor x = value(1, device);
    for (const int root : {-1, 2})
      expect(message_of<ConfigError>([&] { comm.broadcast(x, root, "x"); }) ==
                 "broadcast: expected a root in [0, 2), got " + std::to_string(root),
             "refused");
    comm.wait(comm.barrier("end"));
  });
}

TEST_CASE("a group's ranks are numbered by their order in the list of members") {
  run_local(5, [](Communicator& comm, const Device& device) {
    const std::vector<int> members = comm.rank() % 2 ? std::vector{3, 1} : std::vector{4, 0, 2};
    const auto group = comm.group(members, "parity");
    expect(members[static_cast<size_t>(group->rank())] == comm.rank(), "number");
    expect(group->size() == static_cast<int>(members.size()), "size");
    const Tensor shard = value(comm.rank(), device, 1);
    const Tensor full = Tensor::zeros({group->size()}, DType::f32, device);
    group->wait(group->all_gather(shard, full, "ranks"));
    expect(full.to_host<float>() == std::vector<float>(members.begin(), members.end()), "gather");
    group->wait(group->broadcast(shard, group->size() - 1, "last"));
    expect(holds(shard, static_cast<float>(members.back())), "broadcast");
    // Groups are made of groups, too.
    const int all[] = {group->size() - 1, 0};
    if (group->rank() != 0 && group->rank() + 1 != group->size()) return;
    const auto ends = group->group(all, "ends");
    const Tensor x = value(comm.rank(), device);
    ends->wait(ends->broadcast(x, 0, "x"));
    expect(holds(x, static_cast<float>(members.back())), "ends");
  });
}

TEST_CASE("a group waits only for its own members, and groups do not wait for each other") {
  run_local(2, [](Communicator& comm, const Device& device) {
    const int both[] = {0, 1};
    const auto first = comm.group(both, "first"), second = comm.group(both, "second");
    const Tensor x = value(comm.rank(), device), y = value(comm.rank(), device);
    // Rank 1 calls the collective of the first group only after those of the second group and of
    // all ranks are done.
    if (comm.rank() == 0) {
      const auto early = first->broadcast(x, 1, "x");
      second->wait(second->broadcast(y, 0, "y"));
      comm.wait(comm.barrier("all"));
      first->wait(early);
    } else {
      second->wait(second->broadcast(y, 0, "y"));
      comm.wait(comm.barrier("all"));
      first->wait(first->broadcast(x, 1, "x"));
    }
    expect(holds(x, 1) && holds(y, 0), "values");
  });
}

TEST_CASE(
    "two ranks can send many broadcasts ahead in both directions at once and receive them in "
    "order") {
  run_local(2, [](Communicator& comm, const Device& device) {
    const int both[] = {0, 1};
    const auto forward = comm.group(both, "forward"), backward = comm.group(both, "backward");
    std::vector<Tensor> sent, received;
    Communicator::Ticket last_sent = 0, last_received = 0;
    const auto& out = comm.rank() == 0 ? forward : backward;
    const auto& in = comm.rank() == 0 ? backward : forward;
    for (int i = 0; i < 30; ++i) {
      sent.push_back(value(100 * comm.rank() + i, device));
      received.push_back(value(-1, device));
      last_sent = out->broadcast(sent.back(), out->rank(), "micro-batch " + std::to_string(i));
      last_received =
          in->broadcast(received.back(), 1 - in->rank(), "micro-batch " + std::to_string(i));
    }
    in->wait(last_received);
    out->wait(last_sent);
    for (size_t i = 0; i < received.size(); ++i)
      expect(
          holds(received[i], static_cast<float>(100 * (1 - comm.rank())) + static_cast<float>(i)),
          "order");
  });
}

TEST_CASE("folding gradients in a data group gives the bits of a world of the group's size") {
  std::vector<std::vector<float>> world(2), groups(6);
  for (int seed = 0; seed < 3; ++seed) {
    run_local(2, [&](Communicator& comm, const Device& device) {
      world[static_cast<size_t>(comm.rank())] = folded(comm, seed, device);
    });
    run_local(6, [&](Communicator& comm, const Device& device) {
      const int members[] = {comm.rank() % 3, comm.rank() % 3 + 3};
      const auto data = comm.group(members, "data");
      groups[static_cast<size_t>(comm.rank())] = folded(*data, seed, device);
    });
    for (size_t rank = 0; rank < 6; ++rank) CHECK(groups[rank] == world[rank / 3]);
  }
}

TEST_CASE(
    "each group counts its own received bytes, and a counting communicator gives the same counts") {
  const auto use = [](Communicator& all, const Device& device) {
    const int members[] = {2, 0, 1};
    const auto group = all.rank() < 3 ? all.group(members, "three") : nullptr;
    all.wait(all.barrier("all"));
    std::vector<WireCounts> counts = {all.wire()};
    if (!group) return counts;
    const Tensor shard = value(1, device, 5), full = value(1, device, 15);
    const Tensor integers = Tensor::full({4}, 1, DType::i64, device);
    group->wait(group->all_gather(shard, full, "x"));
    group->wait(group->reduce_scatter(full, shard, true, add_floats, "g", {1, 3}));
    group->wait(group->all_reduce(integers, "limbs"));
    group->wait(group->broadcast(shard, 1, "h"));
    group->wait(group->barrier("end"));
    const int64_t own = group->rank();
    const Pieces sent{value(1, device, 3 * own), {own, own, own}};
    group->wait(group->all_to_all(sent, {value(0, device, 3), {0, 1, 2}}, "tokens"));
    group->wait(
        group->scatter({value(1, device, 6), {1, 2, 3}}, value(0, device, own + 1), 1, "p"));
    counts.push_back(group->wire());
    return counts;
  };
  run_local(4, [&](Communicator& comm, const Device& device) {
    const auto real = use(comm, device);
    const auto counting = counting_communicator(comm.rank(), 4);
    const auto counted = use(*counting, Device::meta(comm.rank()));
    for (size_t group = 0; group < real.size(); ++group)
      for (size_t kind = 0; kind < collective_count; ++kind) {
        expect(real[group][kind].calls == counted[group][kind].calls, "calls");
        expect(real[group][kind].bytes == counted[group][kind].bytes, "bytes");
      }
    if (comm.rank() == 3) return;
    const auto bytes = [&](Collective kind) { return real[1][static_cast<size_t>(kind)].bytes; };
    expect(bytes(Collective::all_gather) == 2 * 5 * 4, "gathered");
    expect(bytes(Collective::reduce_scatter) == 2 * 3 * 4, "reduced");
    expect(bytes(Collective::broadcast) == (comm.rank() == 0 ? 0 : 5 * 4), "broadcast");
    expect(real[0][static_cast<size_t>(Collective::broadcast)].calls == 0, "of all");
    const int place[] = {1, 2, 0};  // in the group
    const int64_t own = place[comm.rank()];
    expect(bytes(Collective::all_to_all) == (3 - own) * 4, "pieces");
    expect(bytes(Collective::scatter) == (own == 1 ? 0 : (own + 1) * 4), "parts");
  });
}

TEST_CASE("group() refuses an invalid list of members and a group that already exists") {
  const auto refused = [](Communicator& comm, const std::vector<int>& members,
                          const std::string& name) {
    return message_of<ConfigError>([&] { comm.group(members, name); });
  };
  const std::string wanted = "; expected ranks in [0, 2), each once, rank 0 among them";
  const auto check_all = [&](Communicator& comm) {
    expect(refused(comm, {0, 2}, "a") == "group 'a': there is no rank 2" + wanted, "outside");
    expect(refused(comm, {0, -1}, "a") == "group 'a': there is no rank -1" + wanted, "negative");
    expect(refused(comm, {0, 1, 0}, "a") == "group 'a': rank 0 is there twice" + wanted, "twice");
    expect(refused(comm, {1}, "a") == "group 'a': rank 0 is not a member" + wanted, "member");
    expect(refused(comm, {}, "a") == "group 'a': rank 0 is not a member" + wanted, "empty");
    expect(refused(comm, {0, 1}, "") == "group '': it has no name" + wanted, "name");
  };
  check_all(*counting_communicator(0, 2));
  run_local(2, [&](Communicator& comm, const Device&) {
    if (comm.rank() == 0) check_all(comm);
    const std::vector<int> both = {0, 1};
    {
      const auto group = comm.group(both, "both");
      expect(refused(comm, both, "both") == "group 'both': rank " + std::to_string(comm.rank()) +
                                                " is in it already; expected a new name",
             "again");
      const auto other = comm.group(std::vector{1, 0}, "both");  // other members are another group
      other->wait(other->barrier("end"));
      group->wait(group->barrier("end"));
    }
    comm.wait(comm.barrier("both have ended it"));
    const auto again = comm.group(both, "both");
    again->wait(again->barrier("end"));
  });
}
