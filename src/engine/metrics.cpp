#include "engine/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mdi {

double Histogram::upper_bound(int bucket) { return kFirst * std::exp2(bucket / 2.0); }

void Histogram::add(double seconds) {
  int bucket = 0;
  while (bucket + 1 < kBuckets && seconds > upper_bound(bucket)) ++bucket;
  ++counts[static_cast<size_t>(bucket)];
  ++total;
  sum += seconds;
  largest = std::max(largest, seconds);
}

double Histogram::quantile(double q) const {
  if (total == 0) return 0;
  const double wanted = q * static_cast<double>(total);
  int64_t below = 0;
  for (int i = 0; i < kBuckets; ++i) {
    below += counts[static_cast<size_t>(i)];
    if (static_cast<double>(below) >= wanted && below > 0) return std::min(upper_bound(i), largest);
  }
  return largest;
}

const char* host_part_name(HostPart part) {
  switch (part) {
    case HostPart::kPlan:
      return "plan";
    case HostPart::kImages:
      return "images";
    case HostPart::kDrafts:
      return "drafts";
    case HostPart::kLaunch:
      return "launch";
    case HostPart::kMasks:
      return "masks";
    case HostPart::kWait:
      return "wait";
    case HostPart::kChoice:
      return "choice";
    case HostPart::kPublish:
      return "publish";
    case HostPart::kCount:
      break;
  }
  return "?";
}

namespace {

void line(std::string& out, const char* name, double value, const char* unit = "") {
  char text[160];
  std::snprintf(text, sizeof text, "%-24s %.6g%s\n", name, value, unit);
  out += text;
}

void times(std::string& out, const char* name, const Histogram& h) {
  char text[200];
  std::snprintf(text, sizeof text, "%-24s %lld, p50 %.2f ms, p95 %.2f ms, max %.2f ms\n", name,
                static_cast<long long>(h.total), 1e3 * h.quantile(0.5), 1e3 * h.quantile(0.95), 1e3 * h.largest);
  out += text;
}

double as_double(int64_t value) { return static_cast<double>(value); }

}  // namespace

std::string describe(const EngineMetrics& m) {
  std::string out;
  line(out, "requests", as_double(m.submitted));
  line(out, "refused: queue full", as_double(m.refused_full));
  line(out, "refused: invalid", as_double(m.refused_invalid));
  line(out, "ended: stop", as_double(m.ended_stop));
  line(out, "ended: length", as_double(m.ended_length));
  line(out, "ended: cancelled", as_double(m.ended_cancelled));
  line(out, "ended: deadline", as_double(m.ended_deadline));
  line(out, "ended: stalled", as_double(m.ended_stalled));
  line(out, "ended: error", as_double(m.ended_error));
  line(out, "ended: invalid", as_double(m.ended_invalid));
  line(out, "steps", as_double(m.steps));
  line(out, "steps recorded", as_double(m.steps_recorded));
  line(out, "steps chained", as_double(m.steps_chained));
  line(out, "rows", as_double(m.rows));
  line(out, "prefill tokens", as_double(m.prefill_tokens));
  line(out, "generated tokens", as_double(m.generated_tokens));
  line(out, "chosen on the device", as_double(m.tokens_on_device));
  line(out, "preemptions", as_double(m.preemptions));
  const double looked_up = as_double(std::max<int64_t>(m.prompt_tokens, 1));
  line(out, "prefix hit rate", 100.0 * as_double(m.hit_tokens) / looked_up, " % of prompt tokens");
  times(out, "step", m.step_seconds);
  times(out, "plan", m.plan_seconds);
  times(out, "sample", m.sample_seconds);
  times(out, "time to first token", m.first_token_seconds);
  times(out, "time per token", m.token_seconds);
  for (size_t i = 0; i < m.proposed.size(); ++i) {
    char text[120];
    std::snprintf(text, sizeof text, "draft place %zu            %lld of %lld accepted\n", i + 1,
                  static_cast<long long>(m.accepted[i]), static_cast<long long>(m.proposed[i]));
    out += text;
  }
  return out;
}

}  // namespace mdi
