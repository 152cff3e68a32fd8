// The golden folder passes, and a damaged expectation does not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "core/error.h"
#include "engine/golden/compare.h"
#include "engine/golden/folder.h"
#include "engine/golden/ops.h"

namespace mdi::golden {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(MDI_SOURCE_DIR) / "tests/data/golden";

// A folder of this test process alone.
class Scratch {
 public:
  Scratch() : dir_(fs::temp_directory_path() / ("mdi-check-test-" + std::to_string(getpid()))) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  const fs::path& dir() const { return dir_; }

 private:
  fs::path dir_;
};

Report check(const fs::path& dir, std::vector<std::string> only = {}) {
  Report report;
  report.only = std::move(only);
  check_folder(dir, 1, report);
  return report;
}

std::string failures(const Report& report) {
  std::string text;
  for (const Quantity& q : report.quantities()) {
    if (q.verdict == Verdict::kFail) text += report_line(q, true) + "\n";
  }
  return text;
}

const Quantity* find(const Report& report, const std::string& name) {
  for (const Quantity& q : report.quantities()) {
    if (q.name == name) return &q;
  }
  return nullptr;
}

// Changes one value of a tensor: the middle one, to something that none of its neighbours comes near.
void damage(const fs::path& file, const std::string& tensor) {
  uint64_t at = 0;
  std::string bytes;
  {
    const SafetensorsFile stored(file);
    const auto& entries = stored.header().tensors;
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == tensor; });
    ASSERT_NE(entry, entries.end()) << tensor;
    const TensorView t = stored.view(*entry);
    const int64_t middle = t.elements() / 2;
    const size_t size = dtype_size(t.dtype);
    at = stored.header().data_start + entry->begin + static_cast<uint64_t>(middle) * size;
    bytes.assign(static_cast<const char*>(t.data) + static_cast<size_t>(middle) * size, size);
    // Stored floats end in their sign and exponent: the change is one of scale. Integers move by one or flip.
    float largest = 1;
    if (t.dtype == DType::kF32 || t.dtype == DType::kBF16) {
      std::vector<std::byte> copy(t.bytes());
      std::memcpy(copy.data(), t.data, copy.size());
      TensorView aligned = t;
      aligned.data = copy.data();
      for (int64_t i = 0; i < t.elements(); ++i) {
        const double v = std::abs(element(aligned, i));
        if (std::isfinite(v)) largest = std::max(largest, static_cast<float>(v));
      }
    }
    const float moved = 16 * largest;
    if (t.dtype == DType::kF32) {
      std::memcpy(bytes.data(), &moved, size);
    } else if (t.dtype == DType::kBF16) {
      const bf16 v = to_bf16(moved);
      std::memcpy(bytes.data(), &v, size);
    } else {
      bytes[0] = static_cast<char>(bytes[0] ^ 1);
    }
  }
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(at));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good());
}

TEST(Check, TheGoldenFolderPasses) {
  const Report report = check(kGolden);
  EXPECT_EQ(failures(report), "");
  EXPECT_TRUE(report.passed());
  EXPECT_GT(report.count(Verdict::kPass), 1200);
  for (const Quantity& q : report.quantities()) {
    if (q.verdict != Verdict::kSkip) continue;
    EXPECT_EQ(q.note.find("nothing compares"), std::string::npos) << q.name;
    EXPECT_EQ(q.note.find("behind a failure"), std::string::npos) << q.name;
  }
}

TEST(Check, EveryStoredResultOfAnOperatorCounts) {
  const Scratch scratch;
  const fs::path ops = kGolden / "ops", copy = scratch.dir() / "ops.safetensors";
  fs::copy_file(ops / "params.json", scratch.dir() / "params.json");
  const SafetensorsFile stored(ops / "ops.safetensors");
  ThreadPool pool(1);
  Report intact;
  check_ops(ops / "ops.safetensors", ops / "params.json", "", pool, intact);
  ASSERT_EQ(failures(intact), "");
  int damaged = 0;
  for (const Quantity& q : intact.quantities()) {
    if (!stored.contains(q.name)) continue;  // a second comparison with a tensor that has a line of its own
    fs::copy_file(ops / "ops.safetensors", copy, fs::copy_options::overwrite_existing);
    damage(copy, q.name);
    Report report;
    report.only = {q.name.substr(0, q.name.find('.', q.name.find('.') + 1) + 1)};
    check_ops(copy, scratch.dir() / "params.json", "", pool, report);
    EXPECT_GT(report.count(Verdict::kFail), 0) << q.name;
    EXPECT_FALSE(report.passed()) << q.name;
    ++damaged;
  }
  EXPECT_GT(damaged, 120);
}

// One checkpoint folder by itself, whose prompt file is a copy that may be damaged.
fs::path linked_checkpoint(const Scratch& scratch, const char* checkpoint, const char* prompt) {
  const fs::path from = kGolden / checkpoint, to = scratch.dir() / "checkpoint";
  fs::remove_all(to);
  fs::create_directories(to / "expected");
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    if (entry.is_regular_file()) fs::create_symlink(entry.path(), to / entry.path().filename());
  }
  const std::string file = std::string(prompt) + ".safetensors";
  fs::copy_file(from / "expected" / file, to / "expected" / file);
  return to;
}

TEST(Check, ADamagedExpectationOfAPromptFails) {
  const Scratch scratch;
  // Tensor, and the part of the check that must notice.
  const std::array<std::pair<const char*, const char*>, 19> cases = {{
      {"prefill.embed_out", "prefill."},
      {"prefill.logits", "prefill."},
      {"prefill.next_token", "prefill."},
      {"prefill.final_hidden", "prefill."},
      {"prefill.layers.1.engram_hash_ids", "prefill."},
      {"prefill.layers.1.engram_out", "fed."},
      {"prefill.layers.3.attn_out", "fed."},
      {"prefill.layers.4.ffn_out", "fed."},
      {"prefill.layers.5.hc_ffn_comb", "fed."},
      {"prefill.layers.5.gate_indices", "fed."},
      {"prefill.layers.5.topk_idxs", "fed."},
      {"prefill.layers.4.compressed_kv", "fed."},
      {"prefill.layers.2.index_k", "fed."},
      {"prefill.layers.6.window_kv", "fed."},
      {"decode.logits", "decode."},
      {"dspark.logits", "dspark."},
      {"dspark.confidence", "dspark."},
      {"dspark.prefill.stage1.window_kv", "dspark."},
      {"greedy.tokens", "greedy."},
  }};
  for (const auto& [tensor, part] : cases) {
    const fs::path dir = linked_checkpoint(scratch, "tiny-text", "prompt2");
    damage(dir / "expected/prompt2.safetensors", tensor);
    const Report report = check(dir, {"prompt2/" + std::string(part)});
    EXPECT_GT(report.count(Verdict::kFail), 0) << tensor;
  }
}

TEST(Check, ADamagedExpectationOfAnImageFails) {
  const Scratch scratch;
  for (const char* part : {"rgb", "grid", "prepared_rgb", "patches", "patch_embed", "vit_out", "aligner_out"}) {
    const fs::path dir = linked_checkpoint(scratch, "tiny-vision", "vision");
    damage(dir / "expected/vision.safetensors", std::string("image0.") + part);
    const Report report = check(dir, {"vision/image0"});
    EXPECT_NE(failures(report).find(std::string("vision/image0.") + part), std::string::npos) << failures(report);
  }
}

TEST(Check, ADamagedWeightFails) {
  const Scratch scratch;
  const fs::path dir = linked_checkpoint(scratch, "tiny-text", "prompt2");
  ASSERT_TRUE(check(dir, {"prompt2/fed."}).passed());
  for (const fs::directory_entry& entry : fs::directory_iterator(kGolden / "tiny-text")) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard(entry.path());
    if (!shard.contains("layers.3.attn.attn_sink")) continue;
    const fs::path copy = dir / entry.path().filename();
    fs::remove(copy);
    fs::copy_file(entry.path(), copy);
    damage(copy, "layers.3.attn.attn_sink");
  }
  const Report report = check(dir, {"prompt2/fed."});
  EXPECT_NE(failures(report).find("fed.layers.3.attn_out"), std::string::npos) << failures(report);
}

TEST(Check, FilesThatTheManifestListsMustBeThere) {
  const Scratch scratch;
  fs::create_directories(scratch.dir() / "ops");
  for (const char* file : {"ops.safetensors", "params.json"}) {
    fs::copy_file(kGolden / "ops" / file, scratch.dir() / "ops" / file);
  }
  EXPECT_TRUE(check(scratch.dir()).passed()) << "without a manifest, what is there";
  fs::copy_file(kGolden / "manifest.json", scratch.dir() / "manifest.json");
  const Report report = check(scratch.dir());
  EXPECT_NE(failures(report).find("manifest/tiny-text/expected/prompt0.safetensors"), std::string::npos);
  EXPECT_EQ(find(report, "manifest/ops/ops.safetensors")->verdict, Verdict::kPass);
}

TEST(Check, OtherNamesAreFoundByWhatIsInThem) {
  const Scratch scratch;
  const fs::path cases = scratch.dir() / "single-operators", model = scratch.dir() / "model-b";
  fs::create_directories(cases);
  fs::create_directories(model / "expected");
  fs::copy_file(kGolden / "ops/ops.safetensors", cases / "cases.safetensors");
  fs::copy_file(kGolden / "ops/params.json", cases / "params.json");
  for (const fs::directory_entry& entry : fs::directory_iterator(kGolden / "tiny-text")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "two_runs.json") fs::create_symlink(entry.path(), model / name);
  }
  fs::copy_file(kGolden / "tiny-text/expected/prompt2.safetensors", model / "expected/short.safetensors");
  const Report report = check(scratch.dir());
  EXPECT_EQ(failures(report), "");
  EXPECT_NE(find(report, "single-operators/sparse_attn.case0.out"), nullptr);
  EXPECT_NE(find(report, "model-b/short/fed.layers.7.out"), nullptr);
}

TEST(Check, NothingToCheckIsNotPassed) {
  const Scratch scratch;
  EXPECT_FALSE(check(scratch.dir()).passed());
  EXPECT_THROW(check(scratch.dir() / "nothing"), Error);
  EXPECT_FALSE(check(kGolden, {"no/such"}).passed());
}

TEST(Check, UnknownOperatorsAreSkippedAndIncompleteCasesFail) {
  const Scratch scratch;
  const std::vector<bf16> x(64);
  const std::vector<NamedTensor> tensors = {{"frobnicate.case0.x", view(x, {2, 32})},
                                            {"rmsnorm.case0.x", view(x, {2, 32})},
                                            {"sparse_attn.case7.q", view(x, {64})}};
  write_safetensors(scratch.dir() / "ops.safetensors", tensors);
  const Report report = check(scratch.dir());
  EXPECT_EQ(find(report, "frobnicate.case0")->verdict, Verdict::kSkip);
  EXPECT_EQ(find(report, "rmsnorm.case0")->verdict, Verdict::kFail);
  EXPECT_NE(find(report, "rmsnorm.case0")->note.find("rmsnorm.case0.weight"), std::string::npos);
  EXPECT_EQ(find(report, "sparse_attn.case7")->verdict, Verdict::kFail);
  EXPECT_FALSE(report.passed());
}

TEST(Check, DamagedFilesAreFailuresNotCrashes) {
  const Scratch scratch;
  fs::create_directories(scratch.dir() / "broken/expected");
  std::ofstream(scratch.dir() / "broken/config.json") << "{}";
  std::ofstream(scratch.dir() / "manifest.json") << R"({"files": {"../x.safetensors": {}, "y.safetensors": 3}})";
  std::ofstream(scratch.dir() / "ops.safetensors") << "not one";
  const Report report = check(scratch.dir());
  EXPECT_EQ(report.count(Verdict::kFail), 4) << failures(report);
}

}  // namespace
}  // namespace mdi::golden
