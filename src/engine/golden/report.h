// What a check found: one quantity a line, and the verdict over all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mdi::golden {

enum class Verdict : uint8_t {
  kPass,
  kFail,
  kSkip,
  kInfo,  // measured, and judged nowhere or elsewhere
};

struct Quantity {
  std::string name;  // "tiny-text/prompt0/prefill.logits"
  Verdict verdict = Verdict::kFail;
  double largest = 0, mean = 0;  // differences from the stored values; meaningless unless `compared`
  bool compared = false;
  std::string tolerance;  // what was demanded and what was measured: "rel 1.2e-03 <= 4.0e-03"
  std::string note;       // why it was skipped or failed, or where the largest difference lies
};

class Report {
 public:
  // Called with each quantity that is added, in order, for output that does not wait for the end.
  std::function<void(const Quantity&)> on_quantity;
  // Prefixes of the names that are wanted; none: all. A prefix without '/' may also begin behind any '/' of a name.
  std::vector<std::string> only;

  // Whether a quantity of this name, and whether any name that begins with this, is wanted.
  bool wants(std::string_view name) const;
  bool may_want(std::string_view prefix) const;

  // Adds the quantity if it is wanted.
  void add(Quantity quantity);
  void skip(std::string name, std::string reason);
  void fail(std::string name, std::string reason);

  const std::vector<Quantity>& quantities() const { return quantities_; }
  int64_t count(Verdict verdict) const;
  // Something passed and nothing failed.
  bool passed() const;

 private:
  std::vector<Quantity> quantities_;
};

const char* verdict_name(Verdict verdict);  // "PASS", "FAIL", "SKIP", "INFO"

// "name  largest  mean  tolerance  PASS", in columns; the note follows where it says more (always when verbose).
std::string report_line(const Quantity& quantity, bool verbose);
// "1203 passed, 0 failed, 41 skipped"
std::string report_summary(const Report& report);
// {"quantities": [{"name", "verdict", "largest", "mean", "tolerance", "note"}...], "passed", "failed", "skipped",
// "ok"}. Differences that are not finite numbers are strings.
std::string report_json(const Report& report);

}  // namespace mdi::golden
