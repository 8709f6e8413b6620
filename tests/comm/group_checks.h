// What a group must do over any backend: each check is the body of one rank. group_test runs them in
// forked ranks, mpi_ranks_tool in ranks that mpirun started.
#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace tessera::comm {
class Group;
}

namespace tessera::test {

using World = std::shared_ptr<comm::Group>;

// In worlds of any size.
void collectives_agree_with_their_formulas(World world);
void collectives_of_device_agree_with_their_formulas(World world, at::Device device);
void texts_come_in_rank_order(World world);

// In worlds of any size: every mesh of three axes over its first 1, 2, … all ranks; the groups of one axis and of two
// run different collectives at once, and end them in different orders on each rank.
void groups_of_every_mesh_exchange_at_once(World world);

// In a world of two.
void all_gather_works_in_place(World world);
void channels_may_interleave_differently(World world);

// In a world of three.
void messages_between_two_ranks_come_in_order(World world);

// For tests of failures, in a world of two or more: rank 0 gathers another unit than the others.
void ranks_diverge(World world);

// Rank 1 kills itself, the others wait for it.
void rank_1_dies(World world);

}  // namespace tessera::test
