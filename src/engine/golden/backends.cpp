#include "engine/golden/backends.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/golden/backend_layers.h"

namespace mdi::golden {
namespace {

constexpr double kOfReference = 2;  // the backends' difference may be this many times the oracle's own
constexpr double kOfMargin = 4;     // a margin of this many differences is one that both must see
constexpr int64_t kDecoded = 16;    // steps behind each prompt

double squares(const std::vector<float>& a, const float* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  return sum;
}

double rms(double sum, int64_t count) { return std::sqrt(sum / static_cast<double>(std::max<int64_t>(count, 1))); }

Quantity quantity(std::string name, Verdict verdict) {
  Quantity q;
  q.name = std::move(name);
  q.compared = true;
  q.verdict = verdict;
  return q;
}

// The difference and the oracle's own, as one line.
std::string rms_text(double difference, double reference, const char* relation) {
  return fmt::format("rms {:.2e} from the CPU's, which is {:.2e} from the stored: {:.2f}{}", difference, reference,
                     difference / reference, relation);
}

void add_logits(const Prompt& p, const std::vector<float>& logits, const std::vector<float>& oracle) {
  FolderDifference& folder = p.oracle->folder;
  const double difference = squares(logits, oracle.data());
  const auto count = static_cast<int64_t>(logits.size());
  folder.all_squares += difference;
  folder.all_logits += count;
  if (!p.file.has("prefill.logits")) return;
  const TensorView stored = p.file.get("prefill.logits", DType::kF32, {kAnySize, p.model.config().vocab_size});
  if (stored.elements() != count) throw Error(p.prefix + "backends.logits", "other rows are stored");
  const double reference = squares(oracle, stored.as<float>());
  folder.squares += difference;
  folder.stored_squares += reference;
  folder.logits += count;
  Quantity q = quantity(p.prefix + "backends.logits", Verdict::kInfo);
  for (size_t i = 0; i < logits.size(); ++i) {
    q.largest = std::max(q.largest, std::fabs(double{logits[i]} - double{oracle[i]}));
  }
  q.mean = rms(difference, count);
  q.tolerance = rms_text(q.mean, rms(reference, count), "");
  p.report.add(std::move(q));
}

// row: the place of the first one in its sequence.
void add_rows(const Prompt& p, const std::vector<float>& logits, const std::vector<float>& oracle, int64_t row) {
  const auto vocab = static_cast<ptrdiff_t>(p.model.config().vocab_size);
  for (auto begin = oracle.begin(); begin != oracle.end(); begin += vocab, ++row) {
    const auto best = std::max_element(begin, begin + vocab);
    float second = -INFINITY;
    for (auto it = begin; it != begin + vocab; ++it) {
      if (it != best) second = std::max(second, *it);
    }
    const auto own = logits.begin() + (begin - oracle.begin());
    p.oracle->folder.rows.push_back({.margin = double{*best} - double{second},
                                     .same = std::max_element(own, own + vocab) - own == best - begin,
                                     .where = fmt::format("{} row {}", p.file_name, row)});
  }
}

// Goes on behind the prompt, whose last logits the oracle has left in `expected`, one token a step: both backends are
// fed what the oracle finds largest, so that one different choice does not end the comparison.
void compare_decoding(const Prompt& p, const PromptPart& tokens, GoldenSequence& oracle, std::vector<float> expected) {
  const auto rows = static_cast<int64_t>(tokens.tokens.size());
  const auto vocab = static_cast<ptrdiff_t>(p.model.config().vocab_size);
  GoldenSequence sequence(p.context, p.model, rows + kDecoded, rows);
  sequence.append(tokens, false, {}, nullptr);
  double difference = 0;
  for (int64_t i = 0; i < kDecoded; ++i) {
    const auto last = expected.cend() - vocab;
    const auto token = static_cast<int32_t>(std::max_element(last, expected.cend()) - last);
    const PromptPart next{.tokens = {&token, 1}};
    expected = oracle.append(next, false, {}, nullptr);
    const std::vector<float> logits = sequence.append(next, false, {}, nullptr);
    difference += squares(logits, expected.data());
    add_rows(p, logits, expected, rows + i);
  }
  p.oracle->folder.all_squares += difference;
  p.oracle->folder.all_logits += kDecoded * vocab;
  Quantity q = quantity(p.prefix + "backends.decode", Verdict::kInfo);
  q.largest = q.mean = rms(difference, kDecoded * vocab);
  q.tolerance = fmt::format("rms {:.2e} from the CPU's over {} steps of one token", q.mean, kDecoded);
  p.report.add(std::move(q));
}

}  // namespace

void compare_backends(const Prompt& p, const PromptPart& tokens, const std::vector<float>& logits,
                      const Recording& run) {
  const Oracle& oracle = *p.oracle;
  const auto rows = static_cast<int64_t>(tokens.tokens.size());
  GoldenSequence sequence(oracle.context, oracle.model, rows + kDecoded, rows);
  const bool all_rows = static_cast<int64_t>(logits.size()) > p.model.config().vocab_size;
  Recording expected_run;
  std::vector<float> expected = sequence.append(tokens, all_rows, {}, &expected_run);
  if (expected.size() != logits.size()) throw Error(p.prefix + "backends", "expected as many logits of both backends");
  add_logits(p, logits, expected);
  add_rows(p, logits, expected, all_rows ? 0 : rows - 1);
  report_first_difference(p, run, expected_run);
  compare_fed_layers(p, tokens, expected_run);
  compare_decoding(p, tokens, sequence, std::move(expected));
}

void report_folder(const FolderDifference& folder, const std::string& prefix, Report& report) {
  if (folder.rows.empty()) return;
  if (folder.logits > 0) {
    const double difference = rms(folder.squares, folder.logits);
    const double reference = rms(folder.stored_squares, folder.logits);
    const bool holds = difference <= kOfReference * reference;
    Quantity q = quantity(prefix + "backends.logits", holds ? Verdict::kPass : Verdict::kFail);
    q.largest = q.mean = difference;
    q.tolerance = rms_text(difference, reference, holds ? " <= 2" : " > 2");
    report.add(std::move(q));
  }
  const double limit = kOfMargin * rms(folder.all_squares, folder.all_logits);
  int64_t same = 0, clear = 0, wrong = 0;
  std::string first;
  for (const FolderDifference::Row& row : folder.rows) {
    same += row.same ? 1 : 0;
    if (!(row.margin > limit)) continue;
    ++clear;
    if (row.same || wrong++ > 0) continue;
    first = fmt::format("{} differs, its margin is {:.2e}", row.where, row.margin);
  }
  Quantity q = quantity(prefix + "backends.argmax", wrong == 0 ? Verdict::kPass : Verdict::kFail);
  q.largest = static_cast<double>(wrong);
  q.tolerance = fmt::format("{} of {} rows the same; of {} with a margin over {} rms ({:.2e}), {} differ", same,
                            folder.rows.size(), clear, kOfMargin, limit, wrong);
  q.note = std::move(first);
  report.add(std::move(q));
}

}  // namespace mdi::golden
