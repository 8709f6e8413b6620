#include "tessera/comm/communication_facts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/base/slurm_step.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm::communication_facts_test {
namespace {

using testing::HasSubstr;

std::string value_of(const std::string& name) {
  for (const Fact& fact : communication_facts()) {
    if (fact.name == name) return fact.value;
  }
  return "";
}

TEST(CommunicationFacts, DebiansLineForTheHostsNameIsWarnedOfWhereThereIsAnotherAddress) {
  EXPECT_THAT(host_address_fact("127.0.1.1", {"10.0.0.5"}).warning.value_or(""), HasSubstr("use 10.0.0.5"));
  EXPECT_FALSE(host_address_fact("10.0.0.5", {"10.0.0.5"}).warning);
  EXPECT_FALSE(host_address_fact("127.0.0.1", {}).warning);  // a machine without a network
  EXPECT_THAT(host_address_fact("", {"10.0.0.5"}).warning.value_or(""), HasSubstr("does not resolve"));
}

TEST(CommunicationFacts, ALaunchersVariablesAreRecognised) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(launcher_of_environment(), "");
  EXPECT_THAT(value_of("this process"), HasSubstr("alone"));
  setenv("SLURM_PROCID", "1", 1);
  setenv("SLURM_NTASKS", "4", 1);
  setenv("SLURM_LOCALID", "1", 1);
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_JOB_NODELIST", "gpu[03-05]", 1);
  EXPECT_EQ(launcher_of_environment(), "Slurm");
  EXPECT_THAT(value_of("this process"), HasSubstr("rank 1 of 4"));
  EXPECT_THAT(value_of("this process"), HasSubstr(fmt::format("gpu03:{}", slurm_port(0, 0))));
  for (const char* name : {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_JOB_NODELIST"})
    unsetenv(name);
}

TEST(CommunicationFacts, ABackendThatCannotBeUsedSaysWhy) {
  EXPECT_EQ(value_of("gloo"), "usable");
  EXPECT_THAT(value_of("mpi"), HasSubstr("no: "));  // tests are not started by mpirun
  setenv("TESSERA_BACKEND", "carrier-pigeon", 1);
  std::string warning;
  for (const Fact& fact : communication_facts())
    warning += fact.name == "TESSERA_BACKEND" ? fact.warning.value_or("") : "";
  unsetenv("TESSERA_BACKEND");
  EXPECT_THAT(warning, HasSubstr("no such backend"));
  EXPECT_EQ(value_of("nccl"), "no: TESSERA_NCCL_LIBRARY names no library");
  setenv("TESSERA_NCCL_LIBRARY", "off", 1);
  EXPECT_EQ(value_of("nccl"), "no: TESSERA_NCCL_LIBRARY names no library");
  unsetenv("TESSERA_NCCL_LIBRARY");
}

}  // namespace
}  // namespace tessera::comm::communication_facts_test
