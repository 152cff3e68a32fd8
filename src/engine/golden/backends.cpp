#include "engine/golden/backends.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mdi::golden {
namespace {

constexpr double kOfReference = 2;  // the backends' difference may be this many times the oracle's own
constexpr double kOfMargin = 4;     // a margin of this many differences is one that both must see

double rms(const std::vector<float>& a, const float* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(a.size(), 1)));
}

Quantity quantity(const Prompt& p, const char* name) {
  Quantity q;
  q.name = p.prefix + name;
  q.compared = true;
  q.verdict = Verdict::kPass;
  return q;
}

void compare_logits(const Prompt& p, const std::vector<float>& logits, const std::vector<float>& oracle,
                    double difference) {
  Quantity q = quantity(p, "backends.logits");
  const TensorView stored = p.file.get("prefill.logits", DType::kF32, {kAnySize, p.model.config().vocab_size});
  if (stored.elements() != static_cast<int64_t>(oracle.size())) throw Error(q.name, "other rows are stored");
  const double reference = rms(oracle, stored.as<float>());
  for (size_t i = 0; i < logits.size(); ++i) {
    q.largest = std::max(q.largest, std::fabs(double{logits[i]} - double{oracle[i]}));
  }
  q.mean = difference;
  if (!(difference <= kOfReference * reference)) q.verdict = Verdict::kFail;
  q.tolerance = fmt::format("rms {:.2e} from the CPU's, which is {:.2e} from the stored: {:.2f} <= {}", difference,
                            reference, difference / reference, kOfReference);
  p.report.add(std::move(q));
}

void compare_argmax(const Prompt& p, const std::vector<float>& logits, const std::vector<float>& oracle,
                    double difference) {
  Quantity q = quantity(p, "backends.argmax");
  const auto vocab = static_cast<size_t>(p.model.config().vocab_size);
  int64_t rows = 0, certain = 0, same = 0, wrong = 0;
  for (size_t at = 0; at < oracle.size(); at += vocab, ++rows) {
    const auto begin = oracle.begin() + static_cast<ptrdiff_t>(at), end = begin + static_cast<ptrdiff_t>(vocab);
    const auto best = std::max_element(begin, end);
    float second = -INFINITY;
    for (auto it = begin; it != end; ++it) {
      if (it != best) second = std::max(second, *it);
    }
    const auto own = logits.begin() + static_cast<ptrdiff_t>(at);
    const bool equal = std::max_element(own, own + static_cast<ptrdiff_t>(vocab)) - own == best - begin;
    const bool clear = double{*best} - double{second} > kOfMargin * difference;
    same += equal ? 1 : 0;
    certain += clear ? 1 : 0;
    wrong += clear && !equal ? 1 : 0;
  }
  if (wrong > 0) q.verdict = Verdict::kFail;
  q.largest = static_cast<double>(wrong);
  q.tolerance = fmt::format("{} of {} rows the same; of {} with a margin over {} rms, {} differ", same, rows, certain,
                            kOfMargin, wrong);
  p.report.add(std::move(q));
}

}  // namespace

void compare_backends(const Prompt& p, const PromptPart& tokens, const std::vector<float>& logits) {
  const Oracle& oracle = *p.oracle;
  const auto rows = static_cast<int64_t>(tokens.tokens.size());
  GoldenSequence sequence(oracle.context, oracle.model, rows, rows);
  const bool all_rows = static_cast<int64_t>(logits.size()) > p.model.config().vocab_size;
  const std::vector<float> expected = sequence.append(tokens, all_rows, {}, nullptr);
  const double difference = rms(logits, expected.data());
  if (p.file.has("prefill.logits")) compare_logits(p, logits, expected, difference);
  compare_argmax(p, logits, expected, difference);
}

}  // namespace mdi::golden
