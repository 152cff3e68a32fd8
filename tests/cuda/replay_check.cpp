// Bounded replay on the GPU against the CPU: the same conversations (replay_story.h) under both forms, logits of all
// sampled rows, drafts, and what the sequences keep. The golden text model, whose stored logits say how far two right
// implementations lie apart; where MDI_SLICE names one (`mdi synth DIR --preset slice`), a checkpoint of the released
// widths too, held to the bounds of stored outputs. On the GPU, forms and chunks give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "checkpoint/safetensors.h"
#include "engine/golden/compare.h"
#include "engine/golden/limits.h"
#include "find_golden.h"
#include "harness.h"
#include "model/place.h"
#include "replay_story.h"

namespace mdi::check {

namespace {

using golden::Kind;

// The harness' contexts, which it keeps.
std::shared_ptr<Context> shared(Context& context) {
  return {&context, [](Context*) {}};
}

struct Subject {
  Harness& h;
  std::string name;
  const Model& mapped;                   // on the CPU
  const Model& placed;                   // on the GPU
  std::optional<double> reference = {};  // the root mean square of the oracle's logits from stored ones

  int64_t vocab() const { return placed.config().vocab_size; }
};

double root_mean_square(const std::vector<float>& a, const float* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(a.size(), 1)));
}

// Over all golden prompts of the checkpoint.
double from_stored(Harness& h, const Model& model, const std::filesystem::path& expected) {
  std::vector<float> found, stored;
  for (const auto& entry : std::filesystem::directory_iterator(expected)) {
    const SafetensorsFile file(entry.path());
    if (!file.contains("prefill.logits")) continue;
    const TensorView tokens = file.tensor("input.tokens"), logits = file.tensor("prefill.logits");
    const auto n = static_cast<int32_t>(tokens.elements());
    testing::Runner runner(model, shared(h.cpu()), 1, n, n);
    const auto own = runner.run({{0, 0, {tokens.as<int32_t>(), tokens.as<int32_t>() + n}}});
    if (logits.elements() != static_cast<int64_t>(own.size())) throw Error("prefill.logits", "other rows are stored");
    found.insert(found.end(), own.begin(), own.end());
    stored.insert(stored.end(), logits.as<float>(), logits.as<float>() + logits.elements());
  }
  if (found.empty()) throw Error(expected.string(), "expected stored logits, found none");
  return root_mean_square(found, stored.data());
}

void check_values(const Subject& s, const std::string& what, const std::string& shape, const std::vector<float>& found,
                  const std::vector<float>& expected, Kind kind, int64_t row) {
  if (expected.empty() && found.empty()) return;
  golden::Tolerances tolerances = golden::whole_model(kind, "", std::nullopt, 1);
  // The largest logit is judged by check_largest.
  std::erase_if(tolerances, [](const auto& t) { return t.rule == golden::Rule::kSameArgmax; });
  const auto q = golden::compare(what, golden::view(found), golden::view(expected), tolerances, row);
  s.h.expect("replay " + what, shape, q.verdict == golden::Verdict::kPass, q.tolerance + " " + q.note);
}

void check_largest(const Subject& s, const std::string& shape, const Story& found, const Story& expected, double rms) {
  const auto vocab = static_cast<std::ptrdiff_t>(s.vocab());
  int64_t rows = 0, same = 0, clear = 0, wrong = 0;
  for (auto at = expected.logits.begin(); at != expected.logits.end(); at += vocab, ++rows) {
    const auto best = std::max_element(at, at + vocab);
    const float second = std::max(best == at ? -INFINITY : *std::max_element(at, best),
                                  best + 1 == at + vocab ? -INFINITY : *std::max_element(best + 1, at + vocab));
    const auto own = found.logits.begin() + (at - expected.logits.begin());
    const bool equal = std::max_element(own, own + vocab) - own == best - at;
    same += equal ? 1 : 0;
    if (!(double{*best} - double{second} > 4 * rms)) continue;
    ++clear;
    wrong += equal ? 0 : 1;
  }
  // Where no reference says how far apart is right, the bound of stored outputs: one bf16 rounding in twenty of the
  // sublayers' outputs leaves 98% the same, and moves large logits by more than 4 rms.
  const bool right = s.reference ? wrong == 0 : 10 * same >= 9 * rows;
  s.h.expect("replay largest logit", shape, right && clear > 0,
             std::to_string(same) + " of " + std::to_string(rows) + " the same; of " + std::to_string(clear) +
                 " with a margin over 4 rms, " + std::to_string(wrong) + " differ");
}

void check_story(const Subject& s, const std::string& shape, const Story& found, const Story& expected) {
  const auto finite = [](const std::vector<float>& values) {
    return !values.empty() && std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  };
  s.h.expect("replay oracle", shape, finite(expected.logits) && finite(expected.compressed) && finite(expected.keys));
  const double rms = root_mean_square(found.logits, expected.logits.data());
  if (s.reference) {
    char text[80];
    std::snprintf(text, sizeof text, "rms %.2e from the CPU's, which is %.2e from the stored", rms, *s.reference);
    s.h.expect("replay logits of the reference", shape, rms <= 2 * *s.reference, text);
  }
  const ModelConfig& c = s.placed.config();
  check_values(s, "logits", shape, found.logits, expected.logits, Kind::kLogits, s.vocab());
  check_largest(s, shape, found, expected, rms);
  // Rows that nobody may write are NaN in both.
  check_values(s, "window rows", shape, found.windows, expected.windows, Kind::kFp8Rows, c.head_dim);
  check_values(s, "compressed rows", shape, found.compressed, expected.compressed, Kind::kFp4Rows, c.head_dim);
  check_values(s, "index keys", shape, found.keys, expected.keys, Kind::kFp4Rows, c.index_head_dim);
  check_values(s, "unfinished pairs", shape, found.pending, expected.pending, Kind::kMix, 2 * c.head_dim);
  s.h.expect("replay engram history", shape, found.history == expected.history);
  check_values(s, "draft logits", shape, found.draft_logits, expected.draft_logits, Kind::kLogits, s.vocab());
  check_values(s, "draft confidence", shape, found.confidence, expected.confidence, Kind::kConfidence,
               c.dspark_block_size);
}

Story tell(Context& context, const Model& model, const StoryOptions& options) {
  return StoryTeller(model, shared(context), options).tell();
}

std::string text(const StoryOptions& o) {
  return std::to_string(o.rows) + (o.form == ReplayForm::kFromLastSource ? " bounded" : "") + ", chunks of " +
         std::to_string(o.chunk);
}

void check_rows(const Subject& s, int32_t rows) {
  constexpr int32_t kChunk = 48, kWhole = 256;
  std::optional<Story> first;
  for (const ReplayForm form : {ReplayForm::kFromLastSource, ReplayForm::kAfterLastSource}) {
    const StoryOptions options{.rows = rows, .form = form, .chunk = kChunk};
    const Story found = tell(s.h.cuda(), s.placed, options);
    check_story(s, s.name + " " + text(options), found, tell(s.h.cpu(), s.mapped, options));
    if (s.h.small()) return;
    if (!first) first = found;
    for (const int32_t chunk : {kChunk, 7, kWhole}) {
      const StoryOptions other{.rows = rows, .form = form, .chunk = chunk};
      const std::string differs = first_difference(tell(s.h.cuda(), s.placed, other), *first);
      s.h.expect("replay bits", s.name + " " + text(other), differs.empty(), differs);
    }
  }
}

void check_model(const Subject& s, const std::vector<int32_t>& rows) {
  StoryTeller teller(s.placed, shared(s.h.cuda()), {.rows = 4, .chunk = 100});
  s.h.expect("replay stale rows show", s.name, teller.stale_rows_show());
  for (const int32_t r : rows) check_rows(s, r);
}

int run(int argc, char** argv) {
  Harness h("replay", argc, argv, int64_t{2} << 30);
  find_golden();
  {
    const Model mapped = testing::load_tiny_model();
    Model model = testing::load_tiny_model();
    const DeviceBuffer placed = place_weights(h.cuda(), model);
    const double reference = from_stored(h, mapped, testing::golden_dir() / "tiny-text" / "expected");
    check_model({h, "tiny-text", mapped, model, reference},
                h.small() ? std::vector<int32_t>{20} : std::vector<int32_t>{20, 128});
  }
  const char* wide = std::getenv("MDI_SLICE");
  if (wide != nullptr && !h.small()) {
    const Model mapped = testing::load_checkpoint(wide);
    Model model = testing::load_checkpoint(wide);
    const DeviceBuffer placed = place_weights(h.cuda(), model);
    check_model({h, "slice", mapped, model}, {128});
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
