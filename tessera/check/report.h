// What a check found, for people and as JSON. Text only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/check/clocks.h"
#include "tessera/check/collectives.h"
#include "tessera/check/finding.h"
#include "tessera/check/host_card.h"
#include "tessera/check/links.h"
#include "tessera/check/same_files.h"

namespace tessera::check {

struct CheckResult {
  std::vector<HostCard> cards = {};  // in rank order
  std::vector<ClockOffset> clocks = {};
  std::vector<CheckedFile> files = {};
  std::vector<CollectiveResult> collectives = {};
  std::vector<LinkSpeed> links = {};
  Findings findings = {};

  bool has_problem() const;
};

std::string report_text(const CheckResult& result);
nlohmann::json report_json(const CheckResult& result);

}  // namespace tessera::check
