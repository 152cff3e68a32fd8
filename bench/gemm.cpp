// Dense products from stored weights beside oneDNN's own rate for the same shapes, in one run.
//
// Ours expands fp8 or fp4 weights while it multiplies, and gives a row the same bits at every number of rows. oneDNN's
// gets weights that are expanded and in its favourite order already, its own threads and its choice of kernel for each
// m.
//
// Usage: bench_gemm [THREADS]   (0, the default: one per core)
// Rows: shape, m, time of ours and of oneDNN's, GFLOP/s of both, ratio (1: as fast as oneDNN). Times are the best of
// rounds in which both take turns; the weights of a round stay in the caches that they fit in, for both.
#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/cpu/gemm_tiles.h"

namespace {

using namespace mdi;

struct Shape {
  const char* name;
  WeightKind kind;
  int64_t n, k;
};

// The released model's, and two of the small golden checkpoints'.
constexpr Shape kShapes[] = {
    {"wq_a", WeightKind::kE4M3, 1280, 5120},      {"wkv", WeightKind::kE4M3, 512, 5120},
    {"wo_b", WeightKind::kE4M3, 5120, 8192},      {"shared w1", WeightKind::kE4M3, 2304, 5120},
    {"shared w2", WeightKind::kE4M3, 5120, 2304}, {"expert w1", WeightKind::kE2M1, 2304, 5120},
    {"expert w2", WeightKind::kE2M1, 5120, 2304}, {"tiny wq_a", WeightKind::kE4M3, 128, 128},
    {"tiny w1", WeightKind::kE2M1, 64, 128},
};
constexpr int64_t kRows[] = {1, 16, 256, 4096};
constexpr double kLargestProduct = 1.2e11;  // operations; larger ones run with fewer rows
constexpr double kBlockSeconds = 0.03;
constexpr int kRounds = 5;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds per call over a block of calls, after one that warms up.
double block_time(const std::function<void()>& call) {
  call();
  const double start = seconds_now();
  int calls = 0;
  do {
    call();
    ++calls;
  } while (seconds_now() - start < kBlockSeconds);
  return (seconds_now() - start) / calls;
}

struct Stored {
  std::vector<uint8_t> data;
  std::vector<e8m0> scale;
  LinearWeight w;
  std::vector<float> expanded;  // [n, k]
};

uint32_t next_random() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

Stored make_weight(const Shape& shape) {
  Stored s;
  const bool fp8 = shape.kind == WeightKind::kE4M3;
  const int64_t blocks = shape.k / 32;
  s.data.resize(static_cast<size_t>(fp8 ? shape.n * shape.k : shape.n * shape.k / 2));
  for (uint8_t& b : s.data) {
    b = static_cast<uint8_t>(next_random());
    if (fp8 && (b & 0x7F) == 0x7F) b = 0;
  }
  s.scale.resize(static_cast<size_t>((fp8 ? (shape.n + 31) / 32 : shape.n) * blocks));
  for (e8m0& e : s.scale) e = {static_cast<uint8_t>(117 + next_random() % 4)};
  s.w = {shape.kind, s.data.data(), s.scale.data(), shape.n, shape.k};
  s.expanded.resize(static_cast<size_t>(shape.n * shape.k));
  for (int64_t i = 0; i < shape.n * shape.k; ++i) {
    const int64_t row = i / shape.k, block = i % shape.k / 32;
    const uint8_t byte = s.data[static_cast<size_t>(fp8 ? i : i / 2)];
    const float code = fp8 ? to_float(e4m3{byte}) : i % 2 == 0 ? e2m1_low(byte) : e2m1_high(byte);
    s.expanded[static_cast<size_t>(i)] =
        code * to_float(s.scale[static_cast<size_t>((fp8 ? row / 32 : row) * blocks + block)]);
  }
  return s;
}

// oneDNN with everything that it may ask for.
class Library {
 public:
  Library(const Stored& s, const std::vector<bf16>& x, int64_t m)
      : stream_(engine_), y_(static_cast<size_t>(m * s.w.n)) {
    using dnnl::memory;
    const bool bf16_operands = cpu::gemm_mode() == cpu::GemmMode::kBF16;
    const auto type = bf16_operands ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({m, s.w.k}, type, memory::format_tag::ab);
    const memory::desc b({s.w.k, s.w.n}, type, memory::format_tag::any);
    const memory::desc c({m, s.w.n}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description({a, b, c}, engine_);
    matmul_ = dnnl::matmul(description);

    std::vector<float> rows(static_cast<size_t>(m * s.w.k));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = to_float(x[i]);
    a_ = memory(a, engine_);
    b_ = memory(description.weights_desc(), engine_);
    c_ = memory(c, engine_, y_.data());
    const memory::desc rows_f32({m, s.w.k}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc weight_f32({s.w.k, s.w.n}, memory::data_type::f32, memory::format_tag::ba);
    memory from_rows(rows_f32, engine_, rows.data());
    memory from_weight(weight_f32, engine_, const_cast<float*>(s.expanded.data()));
    dnnl::reorder(from_rows, a_).execute(stream_, from_rows, a_);
    dnnl::reorder(from_weight, b_).execute(stream_, from_weight, b_);
    stream_.wait();
  }
  void run() {
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }
  const std::vector<float>& y() const { return y_; }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  dnnl::memory a_, b_, c_;
  std::vector<float> y_;
};

// Largest difference over the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, double{std::fabs(b[i])});
    error = std::max(error, std::fabs(double{a[i]} - b[i]));
  }
  return error / largest;
}

// Returns the ratio.
double measure(ThreadPool& pool, const Shape& shape, const Stored& s, int64_t m) {
  std::vector<bf16> x(static_cast<size_t>(m * shape.k));
  for (bf16& v : x) v = to_bf16(static_cast<float>(next_random() % 256) * 0x1p-7f - 1.0f);
  omp_set_num_threads(pool.size());
  Library library(s, x, m);
  std::vector<float> y(static_cast<size_t>(m * shape.n));
  const std::function<void()> call = [&] {
    cpu::gemm(pool,
              {.x = x.data(), .m = m, .ldx = shape.k, .w = s.w, .y_f32 = y.data(), .y_bf16 = nullptr, .ldy = shape.n});
  };
  double ours = std::numeric_limits<double>::infinity(), theirs = ours;
  for (int round = 0; round < kRounds; ++round) {
    ours = std::min(ours, block_time(call));
    omp_set_num_threads(pool.size());  // ours sets its threads to one
    theirs = std::min(theirs, block_time([&] { library.run(); }));
  }
  const double operations = 2.0 * static_cast<double>(m * shape.n * shape.k);
  std::printf(
      "%-10s %5lld x %5lld  %s  m %5lld  ours %11.2f us %7.1f GF/s   oneDNN %11.2f us %7.1f GF/s   ratio %5.2f\n",
      shape.name, static_cast<long long>(shape.n), static_cast<long long>(shape.k),
      shape.kind == WeightKind::kE4M3 ? "fp8" : "fp4", static_cast<long long>(m), ours * 1e6, operations / ours * 1e-9,
      theirs * 1e6, operations / theirs * 1e-9, theirs / ours);
  std::fflush(stdout);
  if (const double d = difference(y, library.y()); !(d < 1e-5)) std::printf("  the results differ by %g\n", d);
  return theirs / ours;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    mdi::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
    std::printf("%s; %d threads\n", mdi::cpu::gemm_description(), pool.size());
    double worst = std::numeric_limits<double>::infinity();
    for (const Shape& shape : kShapes) {
      const Stored s = make_weight(shape);
      for (int64_t m : kRows) {
        while (2.0 * static_cast<double>(m * shape.n * shape.k) > kLargestProduct) m /= 2;
        worst = std::min(worst, measure(pool, shape, s, m));
      }
    }
    std::printf("lowest ratio %.2f\n", worst);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
