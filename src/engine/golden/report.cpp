#include "engine/golden/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace mdi::golden {
namespace {

bool begins(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

nlohmann::ordered_json number(double v) {
  if (std::isfinite(v)) return v;
  return fmt::format("{}", v);
}

}  // namespace

bool Report::wants(std::string_view name) const {
  if (only.empty()) return true;
  return std::any_of(only.begin(), only.end(), [&](const std::string& prefix) {
    if (begins(name, prefix)) return true;
    if (prefix.find('/') != std::string::npos) return false;
    for (size_t at = name.find('/'); at != std::string_view::npos; at = name.find('/', at + 1)) {
      if (begins(name.substr(at + 1), prefix)) return true;
    }
    return false;
  });
}

bool Report::may_want(std::string_view prefix) const {
  if (only.empty()) return true;
  return std::any_of(only.begin(), only.end(), [&](const std::string& wanted) {
    return wanted.find('/') == std::string::npos || begins(prefix, wanted) || begins(wanted, prefix);
  });
}

void Report::add(Quantity quantity) {
  if (!wants(quantity.name)) return;
  quantities_.push_back(std::move(quantity));
  if (on_quantity) on_quantity(quantities_.back());
}

void Report::skip(std::string name, std::string reason) {
  Quantity q;
  q.name = std::move(name);
  q.verdict = Verdict::kSkip;
  q.note = std::move(reason);
  add(std::move(q));
}

void Report::fail(std::string name, std::string reason) {
  Quantity q;
  q.name = std::move(name);
  q.verdict = Verdict::kFail;
  q.note = std::move(reason);
  add(std::move(q));
}

int64_t Report::count(Verdict verdict) const {
  return std::count_if(quantities_.begin(), quantities_.end(), [&](const Quantity& q) { return q.verdict == verdict; });
}

bool Report::passed() const { return count(Verdict::kPass) > 0 && count(Verdict::kFail) == 0; }

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "PASS";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kSkip:
      return "SKIP";
    case Verdict::kInfo:
      return "INFO";
  }
  return "";
}

std::string report_line(const Quantity& q, bool verbose) {
  std::string line = q.compared ? fmt::format("{:<56} {:>9.2e} {:>9.2e}  {}  {}", q.name, q.largest, q.mean,
                                              q.tolerance, verdict_name(q.verdict))
                                : fmt::format("{:<56} {:>9} {:>9}  {}", q.name, "-", "-", verdict_name(q.verdict));
  if (!q.note.empty() && (verbose || q.verdict != Verdict::kPass)) line += "  (" + q.note + ")";
  return line;
}

std::string report_summary(const Report& report) {
  return fmt::format("{} passed, {} failed, {} skipped", report.count(Verdict::kPass), report.count(Verdict::kFail),
                     report.count(Verdict::kSkip));
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json out;
  out["quantities"] = nlohmann::ordered_json::array();
  for (const Quantity& q : report.quantities()) {
    nlohmann::ordered_json entry;
    entry["name"] = q.name;
    entry["verdict"] = verdict_name(q.verdict);
    if (q.compared) {
      entry["largest"] = number(q.largest);
      entry["mean"] = number(q.mean);
      entry["tolerance"] = q.tolerance;
    }
    if (!q.note.empty()) entry["note"] = q.note;
    out["quantities"].push_back(std::move(entry));
  }
  out["passed"] = report.count(Verdict::kPass);
  out["failed"] = report.count(Verdict::kFail);
  out["skipped"] = report.count(Verdict::kSkip);
  out["ok"] = report.passed();
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace mdi::golden
