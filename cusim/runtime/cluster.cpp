// PTX ISA, 9.7.13.4 "barrier.cluster"; 5.1.7 "Shared State Space".
#include "cluster.h"

#include <algorithm>

#include "block.h"
#include "fault.h"
#include "launch.h"

namespace cusim {

Block& Cluster::other(unsigned rank, const Site& site) const {
  if (rank >= blocks.size()) fault(&site, "block %u of a cluster of %zu", rank, blocks.size());
  if (phase == 0 && rank != block->rank) {
    fault(&site, "block %u of the cluster may not have begun: its threads have not met yet", rank);
  }
  if (blocks[rank]->done()) fault(&site, "block %u of the cluster has ended", rank);
  return *blocks[rank];
}

bool Cluster::deliver() {
  const size_t count = blocks.size();
  const size_t first = launch->order == Order::Random ? random_below(unsigned(count)) : 0;
  const auto in_turn = [&](size_t i) {
    return launch->order == Order::Reversed ? count - 1 - i : (first + i) % count;
  };
  for (size_t to = 0; to < count; to++) {
    for (size_t from = 0; from < count; from++) {
      Block& begun_by = *blocks[in_turn(from)];
      const auto rank = unsigned(in_turn(to));
      if (begun_by.bulk.under_way_to(rank) == 0) continue;
      block = &begun_by;
      block->bulk.deliver_to(rank);
      return true;
    }
  }
  return false;
}

void Cluster::count() {
  const auto arrived = [](const Block* each) { return each->all_arrived(); };
  const auto done = [](const Block* each) { return each->done(); };
  if (std::all_of(blocks.begin(), blocks.end(), done)) return;
  if (!std::all_of(blocks.begin(), blocks.end(), arrived)) return;
  phase++;
  for (Block* each : blocks) each->release_cluster();
}

unsigned cluster_rank() { return block->rank; }

void cluster_arrive(bool releases, Site site) { block->cluster_arrive(releases, site); }

void cluster_wait(Site site) { block->cluster_wait(site); }

const void* of_block(const void* shared, unsigned rank, Site site) {
  if (!in_shared_memory(shared, 1)) fault(&site, "%p is not in shared memory", shared);
  return block->cluster->other(rank, site).place(shared);
}

}  // namespace cusim
