// Chrome's trace format as its specification has it: complete events ("X") with times in microseconds; two events of
// one thread lie apart or one in the other.
#include "tessera/engine/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::timeline_test {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;

const steady_clock::time_point kZero{std::chrono::seconds(1000)};

TraceEvent event(TraceLane lane, const char* name, int begin, int end, int64_t bytes = 0) {
  return {lane, name, kZero + microseconds(begin), kZero + microseconds(end), bytes};
}

// "name thread begin duration" of each complete event, in the order of the file.
std::vector<std::string> complete_events(const json& events) {
  std::vector<std::string> found;
  for (const json& each : events) {
    if (each.at("ph") != "X") continue;
    found.push_back(each.at("name").get<std::string>() + " " + each.at("tid").dump() + " " +
                    std::to_string(each.at("ts").get<int>()) + " " + std::to_string(each.at("dur").get<int>()));
  }
  return found;
}

TEST(Timeline, EventsOfALaneShareARowWhereTheyLieApartOrInEachOther) {
  const json events =
      engine::timeline_events({event(TraceLane::kCompute, "inner", 10, 20), event(TraceLane::kCompute, "outer", 0, 50),
                               event(TraceLane::kCompute, "next", 50, 60), event(TraceLane::kGather, "a", 0, 30, 4096),
                               event(TraceLane::kGather, "b", 20, 40), event(TraceLane::kGather, "c", 30, 35)},
                              /*rank=*/3, kZero);
  EXPECT_THAT(complete_events(events), ElementsAre("outer 0 0 50", "a 1000 0 30", "inner 0 10 10", "b 1001 20 20",
                                                   "c 1000 30 5", "next 0 50 10"));
  std::set<std::string> threads;
  for (const json& each : events) {
    EXPECT_EQ(each.at("pid"), 3);
    if (each.at("name") == "thread_name") threads.insert(each.at("args").at("name"));
    if (each.at("name") == "a") {
      EXPECT_EQ(each.at("args").at("bytes"), 4096);
    }
  }
  EXPECT_THAT(threads, ElementsAre("compute", "gather", "gather 2"));
}

TEST(Timeline, NothingIsRecordedUnlessAsked) {
  { const TraceSpan span(TraceLane::kCompute, "before"); }
  start_tracing(/*max_events=*/2);
  { const TraceSpan span(TraceLane::kCompute, "first of", "two"); }
  { const TraceSpan span(TraceLane::kCompute, "second"); }
  { const TraceSpan span(TraceLane::kCompute, "too many"); }
  const Trace found = stop_tracing();
  { const TraceSpan span(TraceLane::kCompute, "after"); }
  ASSERT_EQ(found.events.size(), 2u);
  EXPECT_EQ(found.events[0].name, "first of two");
  EXPECT_EQ(found.dropped, 1u);
  start_tracing();
  EXPECT_TRUE(stop_tracing().events.empty());
}

TEST(Timeline, HoldsTheEventsOfEveryRankOnOneClock) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "timeline.json";
  test::spawn_ranks(3, [&](std::shared_ptr<comm::Group> world) {
    start_tracing();
    world->barrier("the start");
    {
      const TraceSpan span(TraceLane::kCompute, "of rank", std::to_string(world->rank()));
      world->barrier("all are inside");
    }
    engine::write_timeline(*world, path);
  });
  const json file = json::parse(std::ifstream(path));
  std::map<int, std::pair<double, double>> found;
  for (const json& each : file.at("traceEvents")) {
    if (each.at("ph") != "X") continue;
    EXPECT_EQ(each.at("name"), "of rank " + each.at("pid").dump());
    found[each.at("pid")] = {each.at("ts"), each.at("ts").get<double>() + each.at("dur").get<double>()};
  }
  ASSERT_EQ(found.size(), 3u);
  double last_begin = 0, first_end = 1e18;
  for (const auto& [rank, times] : found) {
    last_begin = std::max(last_begin, times.first);
    first_end = std::min(first_end, times.second);
  }
  EXPECT_LT(last_begin, first_end);  // all were inside at one moment
}

TEST(Timeline, AnEngineWritesItsOwn) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "timeline.json";
  test::spawn_ranks(2, [&](std::shared_ptr<comm::Group> world) {
    const auto engine = initialize(std::make_shared<test::ThreeBlocks>(), test::config_of(3, 2), {.world = world});
    EXPECT_THROW(engine->write_timeline(), Error);
    EXPECT_THROW(engine->start_timeline(folder.path() / "nowhere" / "timeline.json"), Error);
    engine->start_timeline(path);
    test::take_steps(*engine, 2);
    engine->write_timeline();
    EXPECT_THROW(engine->write_timeline(), Error);
  });
  const json file = json::parse(std::ifstream(path));
  std::map<int, int> steps_of;
  for (const json& each : file.at("traceEvents")) steps_of[each.at("pid")] += each.at("name") == "step" ? 1 : 0;
  EXPECT_EQ(steps_of, (std::map<int, int>{{0, 2}, {1, 2}}));
}

}  // namespace
}  // namespace tessera::timeline_test
