#include "checkpoint/engram_primes.h"

#include <algorithm>
#include <cmath>

namespace mdi {
namespace {

// Primes in ascending order from a number on: a sieve of one window at a time, so that the cost is the numbers walked
// over and not a division by every small prime for each.
class PrimeStream {
 public:
  explicit PrimeStream(int64_t first) : low_(std::max<int64_t>(first, 2)) { sieve(); }

  int64_t next() {
    for (;;) {
      for (; at_ < kWindow; ++at_) {
        if (!composite_[static_cast<size_t>(at_)]) return low_ + at_++;
      }
      low_ += kWindow;
      sieve();
    }
  }

 private:
  static constexpr int64_t kWindow = 1 << 15;

  void sieve() {
    composite_.assign(static_cast<size_t>(kWindow), false);
    at_ = 0;
    const int64_t high = low_ + kWindow;
    extend_divisors(static_cast<int64_t>(std::sqrt(static_cast<double>(high))) + 1);
    for (const int64_t p : divisors_) {
      if (p * p >= high) break;
      for (int64_t n = std::max(p * p, (low_ + p - 1) / p * p); n < high; n += p) {
        composite_[static_cast<size_t>(n - low_)] = true;
      }
    }
  }

  void extend_divisors(int64_t limit) {
    if (limit <= divisor_limit_) return;
    divisor_limit_ = limit + 1024;
    std::vector<bool> composite(static_cast<size_t>(divisor_limit_ + 1), false);
    divisors_.clear();
    for (int64_t p = 2; p <= divisor_limit_; ++p) {
      if (composite[static_cast<size_t>(p)]) continue;
      divisors_.push_back(p);
      for (int64_t n = p * p; n <= divisor_limit_; n += p) composite[static_cast<size_t>(n)] = true;
    }
  }

  int64_t low_;
  int64_t at_ = 0;
  std::vector<bool> composite_;
  int64_t divisor_limit_ = 0;
  std::vector<int64_t> divisors_;
};

}  // namespace

std::vector<std::vector<std::vector<int64_t>>> engram_primes(const ModelConfig& config) {
  std::vector<std::vector<std::vector<int64_t>>> primes(config.engram_layer_ids.size());
  PrimeStream stream(config.engram_vocab_size);
  for (auto& layer : primes) {
    layer.resize(static_cast<size_t>(std::max(config.engram_max_ngram_size - 1, 0)));
    for (auto& heads : layer) {
      for (int head = 0; head < config.engram_n_heads; ++head) heads.push_back(stream.next());
    }
  }
  return primes;
}

}  // namespace mdi
