// Choosing tokens on the GPU against the host's choice, token by token: every combination of filters over random rows,
// rows with many equal logits, with -inf, NaN and nothing finite, at vocabularies of all sizes.
#include <limits>

#include "harness.h"
#include "kernels/cpu/sample.h"
#include "kernels/cuda/stages.h"
#include "kernels/sample_math.h"
#include "random_data.h"

namespace mdi::check {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Kind { kRandom, kNarrow, kTied, kEqual, kHoles, kNotFinite };
constexpr Kind kKinds[] = {Kind::kRandom, Kind::kNarrow, Kind::kTied, Kind::kEqual, Kind::kHoles, Kind::kNotFinite};
const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"random", "narrow", "tied", "all equal", "-inf and NaN", "not finite"};
  return kNames[static_cast<int>(kind)];
}

std::vector<float> logits_of(Random& random, int64_t rows, int64_t vocab, Kind kind) {
  std::vector<float> logits = random_floats(random, rows, vocab, Rows::kGaussian, kind == Kind::kNarrow ? 0.01f : 4.0f);
  for (size_t i = 0; i < logits.size(); ++i) {
    float& l = logits[i];
    if (kind == Kind::kTied) l = static_cast<float>(static_cast<int>(l));
    if (kind == Kind::kEqual) l = -7.25f;
    if (kind == Kind::kHoles && random.below(3) != 0) l = random.below(2) == 0 ? -kInf : kNan;
    if (kind == Kind::kNotFinite) {
      const auto row = static_cast<int64_t>(i) / vocab;
      l = row % 3 == 0 ? kNan : row % 3 == 1 ? -kInf : random.below(8) == 0 ? kInf : l;
    }
  }
  return logits;
}

std::vector<SampleRow> rows_of(Random& random, int64_t vocab) {
  std::vector<SampleRow> rows;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 20.0f}) {
    for (const int32_t top_k : {0, 1, 2, 40, static_cast<int32_t>(vocab) / 2, static_cast<int32_t>(vocab) + 5}) {
      for (const float top_p : {1.0f, 0.99f, 0.6f, 0.02f}) {
        for (const float min_p : {0.0f, 0.01f, 0.7f}) {
          rows.push_back({.seed = random.next(),
                          .sequence = random.next() % 4,
                          .position = random.next() % (1u << 20),
                          .exponent = sampling::exponent_of(temperature),
                          .top_p = top_p,
                          .min_p = min_p,
                          .top_k = top_k,
                          .wanted = random.below(16) != 0 ? 1 : 0});
        }
      }
    }
  }
  return rows;
}

void check_sample(Harness& h, Random& random, int64_t vocab, Kind kind) {
  Mirror<SampleRow> rows(rows_of(random, vocab));
  const auto count = static_cast<int32_t>(rows.host.size());
  Mirror<float> logits(logits_of(random, count, vocab, kind));
  Mirror<int32_t> chosen(std::vector<int32_t>(static_cast<size_t>(count), -77));
  cuda::sample(h.cuda(), {.rows = count,
                          .vocab = vocab,
                          .logits = logits.device.data(),
                          .row = rows.device.data(),
                          .chosen = chosen.device.data()});
  cpu::sample(h.cpu(), {.rows = count,
                        .vocab = vocab,
                        .logits = logits.host.data(),
                        .row = rows.host.data(),
                        .chosen = chosen.host.data()});
  h.report("sample", std::to_string(count) + " rows of " + std::to_string(vocab) + ", " + name_of(kind),
           compare_bits(chosen));
}

void check_place(Harness& h) {
  const Mirror<int32_t> place(std::vector<int32_t>{4, 0, 2}), source(std::vector<int32_t>{1, 2, 0});
  const Mirror<int32_t> chosen(std::vector<int32_t>{11, kNotFinite, 13});
  Mirror<int32_t> token(std::vector<int32_t>{90, 91, 92, 93, 94});
  const auto args = [&](const int32_t* p, const int32_t* s, const int32_t* c, int32_t* t) {
    return PlaceTokensArgs{.count = 3, .place = p, .source = s, .chosen = c, .token = t};
  };
  cuda::place_tokens(h.cuda(),
                     args(place.device.data(), source.device.data(), chosen.device.data(), token.device.data()));
  cpu::place_tokens(h.cpu(), args(place.host.data(), source.host.data(), chosen.host.data(), token.host.data()));
  h.report("place_tokens", "3 of 5", compare_bits(token));
}

void time_sample(Harness& h, Random& random, int32_t count) {
  constexpr int64_t kVocab = 129280;
  const DeviceArray<float> logits(random_floats(random, count, kVocab, Rows::kGaussian, 3.0f));
  const DeviceArray<int32_t> chosen(static_cast<size_t>(count));
  const auto time = [&](const char* name, float temperature, int32_t top_k, float top_p, float min_p) {
    std::vector<SampleRow> rows(static_cast<size_t>(count));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = {.seed = 1,
                 .sequence = 0,
                 .position = i,
                 .exponent = sampling::exponent_of(temperature),
                 .top_p = top_p,
                 .min_p = min_p,
                 .top_k = top_k};
    }
    const DeviceArray<SampleRow> params(rows);
    h.time("sample", std::to_string(count) + " rows, " + name, {.bytes = 4.0 * count * kVocab}, [&](int) {
      cuda::sample(
          h.cuda(),
          {.rows = count, .vocab = kVocab, .logits = logits.data(), .row = params.data(), .chosen = chosen.data()});
    });
  };
  time("greedy", 0, 0, 1, 0);
  time("no filter", 1, 0, 1, 0);
  time("top-k 40", 1, 40, 1, 0);
  time("top-p 0.95", 1, 0, 0.95f, 0);
  time("all filters", 1, 100, 0.95f, 0.02f);
}

int run(int argc, char** argv) {
  Harness h("sample", argc, argv, int64_t{1} << 20);
  Random random(3);
  if (h.wants("sample")) {
    const std::vector<int64_t> vocabs =
        h.small() ? std::vector<int64_t>{5, 130} : std::vector<int64_t>{1, 2, 37, 512, 4096, 32003, 129280};
    for (const int64_t vocab : vocabs) {
      for (const Kind kind : kKinds) check_sample(h, random, vocab, kind);
    }
    check_place(h);
  }
  if (h.timing()) {
    for (const int32_t rows : {1, 64, 256}) time_sample(h, random, rows);
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
