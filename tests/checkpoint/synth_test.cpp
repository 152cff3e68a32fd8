// Synthetic checkpoints: they open, they are the same every time, and a writer that dies leaves nothing that looks
// whole.
#include "checkpoint/synth.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config_json.h"
#include "checkpoint/engram_token_map.h"
#include "checkpoint/synth_presets.h"
#include "core/error.h"

namespace mdi {
namespace {

namespace fs = std::filesystem;

class Synth : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/synth_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    dir_ = root_ / "model";
    partial_ = root_ / "model.partial";
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path root_, dir_, partial_;
};

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// All files of a folder in one text.
std::string contents(const fs::path& dir) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir)) files.insert(entry.path());
  std::string all;
  for (const auto& file : files) all += file.filename().string() + "\n" + read(file);
  return all;
}

// A configuration as a reader sees it: what means nothing (the drafts' sizes without drafts) is gone.
std::string normal(const ModelConfig& config) { return config_json(parse_config(config_json(config), "config.json")); }

// Takes every tensor, so that finish() is content.
void open_whole(const fs::path& dir) {
  Checkpoint checkpoint = Checkpoint::open(dir);
  const std::vector<TensorSpec> tensors = checkpoint.tensors();
  for (const TensorSpec& t : tensors) {
    const TensorView view = checkpoint.take(t.name);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(view.data) % dtype_size(t.dtype), 0u) << t.name;
  }
  checkpoint.finish();
}

std::string error_of(const fs::path& dir, const ModelConfig& config, const SynthOptions& options) {
  try {
    write_synthetic_checkpoint(dir, config, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }

TEST_F(Synth, TinyIsTheGoldenShape) {
  const auto golden = load_config(fs::path(MDI_SOURCE_DIR) / "tests/data/golden/tiny-text");
  EXPECT_EQ(config_json(golden), normal(synth_preset("tiny")));
  const SynthResult r = write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
  EXPECT_EQ(r.tensors, 1202u);
  EXPECT_EQ(r.bytes, 5068168u);  // metadata.total_size of the golden index
  EXPECT_EQ(config_json(load_config(dir_)), config_json(golden));
  open_whole(dir_);
  EXPECT_FALSE(fs::exists(partial_));
}

TEST_F(Synth, TinyVisionIsTheGoldenShapeToo) {
  const auto golden = load_config(fs::path(MDI_SOURCE_DIR) / "tests/data/golden/tiny-vision");
  EXPECT_EQ(config_json(golden), normal(synth_preset("tiny-vision")));
  write_synthetic_checkpoint(dir_, synth_preset("tiny-vision"), {});
  open_whole(dir_);
}

TEST_F(Synth, TokenMapCoversEveryCompressedId) {
  const ModelConfig config = synth_preset("tiny");
  write_synthetic_checkpoint(dir_, config, {});
  const auto map = load_engram_token_map(dir_ / "engram_token_map.json", config);
  ASSERT_EQ(map.size(), 512u);
  EXPECT_EQ(std::set<int32_t>(map.begin(), map.end()).size(), 300u);
}

TEST_F(Synth, SameSeedSameBytesAtAnyThreadCount) {
  const ModelConfig config = synth_preset("tiny");
  SynthOptions options;
  options.traits = {.seed = 7, .trained = true};
  options.threads = 1;
  write_synthetic_checkpoint(root_ / "a", config, options);
  options.threads = 3;
  write_synthetic_checkpoint(root_ / "b", config, options);
  options.traits.seed = 8;
  write_synthetic_checkpoint(root_ / "c", config, options);
  const std::string a = contents(root_ / "a");
  EXPECT_EQ(a, contents(root_ / "b"));
  EXPECT_NE(a, contents(root_ / "c"));
}

TEST_F(Synth, ReleasedSizeAsHoles) {
  SynthOptions options;
  options.holes = true;
  const ModelConfig config = synth_preset("released");
  const SynthResult r = write_synthetic_checkpoint(dir_, config, options);
  EXPECT_EQ(r.files, 48u);
  EXPECT_EQ(r.tensors, 96085u);
  EXPECT_EQ(r.bytes, 510286023000u);
  // The published index of the same tensors has this size.
  EXPECT_EQ(fs::file_size(dir_ / "model.safetensors.index.json"), 7470294u);
  uint64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    struct stat s {};
    ASSERT_EQ(stat(entry.path().c_str(), &s), 0);
    on_disk += static_cast<uint64_t>(s.st_blocks) * 512;
  }
  EXPECT_LT(on_disk, 64u << 20);
  const Checkpoint checkpoint = Checkpoint::open(dir_);
  EXPECT_EQ(checkpoint.tensors().size(), 96085u);
}

TEST_F(Synth, ReleasedShardsHoldWhatTheSpecSays) {
  const auto shards = shard_tensors(synth_preset("released"));
  ASSERT_EQ(shards.size(), 48u);
  EXPECT_EQ(shards[0].size(), 263u);    // vision and aligner
  EXPECT_EQ(shards[1].size(), 4u);      // embedding, image delimiters
  EXPECT_EQ(shards[2].size(), 2334u);   // a plain layer
  EXPECT_EQ(shards[4].size(), 2342u);   // layer 2, full
  EXPECT_EQ(shards[22].size(), 2341u);  // layer 20, full without a gate
  EXPECT_EQ(shards[26].size(), 2337u);  // layer 24, reindex
  EXPECT_EQ(shards[42].size(), 2u);     // head, norm
  EXPECT_EQ(shards[46].size(), 6u);     // engram of layer 1
  EXPECT_EQ(shards[47].size(), 6u);
}

TEST_F(Synth, OverridesKeepTheConfigurationValid) {
  for (const std::string_view name : {"tiny", "tiny-vision", "slice", "released"}) {
    for (const int layers : {3, 4, 5, 8, 12}) {
      for (const int drafts : {0, 1, 4}) {
        ModelConfig config = synth_preset(name);
        ShapeOverrides o;
        o.layers = layers;
        o.draft_layers = drafts;
        o.experts = 16;
        o.vocab = 640;
        o.engram_vocab = 100;
        o.no_vision = drafts == 4;
        apply_overrides(config, o);
        EXPECT_NO_THROW(normal(config)) << name << " " << layers << " " << drafts;
      }
    }
  }
  ModelConfig config = synth_preset("tiny");
  apply_overrides(config, {.layers = 3, .draft_layers = 0, .vocab = 128});
  write_synthetic_checkpoint(dir_, config, {});
  open_whole(dir_);
}

TEST_F(Synth, OverridesOutOfRangeNameTheOption) {
  ModelConfig config = synth_preset("tiny");
  const auto message = [&config](const ShapeOverrides& o) -> std::string {
    try {
      apply_overrides(config, o);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_TRUE(contains(message({.layers = 0}), "--layers"));
  EXPECT_TRUE(contains(message({.draft_layers = -1}), "--draft-layers"));
  EXPECT_TRUE(contains(message({.experts = 2}), "--experts"));
  EXPECT_TRUE(contains(message({.vocab = 3}), "--vocab"));
  EXPECT_TRUE(contains(message({.engram_vocab = 0}), "--engram-vocab"));
  EXPECT_THROW(synth_preset("huge"), Error);
}

TEST_F(Synth, AnInvalidShapeWritesNothing) {
  ModelConfig config = synth_preset("tiny");
  config.dim = 100;
  EXPECT_NE(error_of(dir_, config, {}), "no error");
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(Synth, AFolderWithFilesIsRefusedAnEmptyOneIsNot) {
  fs::create_directory(dir_);
  write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
  const std::string before = contents(dir_);
  SynthOptions other;
  other.traits.seed = 1;
  EXPECT_TRUE(contains(error_of(dir_, synth_preset("tiny"), other), "not empty"));
  EXPECT_EQ(contents(dir_), before);
  other.force = true;
  write_synthetic_checkpoint(dir_, synth_preset("tiny"), other);
  EXPECT_NE(contents(dir_), before);
  open_whole(dir_);
  std::ofstream(dir_ / "thesis.txt") << "the only copy";
  EXPECT_TRUE(contains(error_of(dir_, synth_preset("tiny"), other), "thesis.txt"));
  EXPECT_EQ(read(dir_ / "thesis.txt"), "the only copy");
  EXPECT_FALSE(fs::exists(partial_));
  std::ofstream(root_ / "file") << "x";
  EXPECT_TRUE(contains(error_of(root_ / "file", synth_preset("tiny"), other), "not a folder"));
}

TEST_F(Synth, TooLittleRoomIsSaidBeforeAnythingIsWritten) {
  SynthOptions options;
  options.free_bytes = 5000000;
  EXPECT_TRUE(contains(error_of(dir_, synth_preset("tiny"), options), "the disk is too small"));
  EXPECT_TRUE(fs::is_empty(root_));
  // Holes need no room.
  options.free_bytes = 64 << 20;
  options.holes = true;
  write_synthetic_checkpoint(dir_, synth_preset("released"), options);
  EXPECT_TRUE(fs::exists(dir_));
}

// Runs `body` in a process of its own; returns its wait status.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(Synth, AWriteThatFailsHalfwayLeavesNothing) {
  const int status = in_child([this] {
    // Stands for a disk that becomes full: writes beyond 200 kB of a file fail.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200000, 200000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = error_of(dir_, synth_preset("tiny"), {});
    _exit(contains(message, "model-0") && contains(message, "could not") ? 0 : 1);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(Synth, TwoWritersOfOneFolderDoNotMix) {
  fs::create_directory(partial_);
  const int fd = open(partial_.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(contains(error_of(dir_, synth_preset("tiny"), {}), "another process"));
  EXPECT_TRUE(fs::exists(partial_));
  close(fd);
  write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
  EXPECT_FALSE(fs::exists(partial_));
}

// Killed at any moment, the writer leaves either no folder or a whole checkpoint, and the next run is not hindered.
TEST_F(Synth, KilledAtAnyMoment) {
  int killed = 0, whole = 0;
  for (int attempt = 0; attempt < 24; ++attempt) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(attempt * 4));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    if (fs::exists(dir_)) {
      open_whole(dir_);
      fs::remove_all(dir_);
      ++whole;
    } else {
      EXPECT_THROW(Checkpoint::open(dir_), Error);
    }
  }
  EXPECT_GT(killed, 0);
  write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
  open_whole(dir_);
  EXPECT_FALSE(fs::exists(partial_));
  RecordProperty("killed", killed);
  RecordProperty("whole", whole);
}

// As above in the middle of writing for certain: the child is killed once it reports that half of the bytes are there.
TEST_F(Synth, KilledHalfway) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    SynthOptions options;
    options.progress = [&](uint64_t done, uint64_t total) {
      if (done < total / 2) return;
      const char c = 'x';
      if (write(pipe_ends[1], &c, 1) != 1) _exit(2);
      pause();
    };
    write_synthetic_checkpoint(dir_, synth_preset("tiny"), options);
    _exit(1);
  }
  char c = 0;
  ASSERT_EQ(::read(pipe_ends[0], &c, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(dir_));
  EXPECT_TRUE(fs::exists(partial_));
  EXPECT_FALSE(fs::exists(partial_ / "config.json"));
  EXPECT_THROW(Checkpoint::open(partial_), Error);
  write_synthetic_checkpoint(dir_, synth_preset("tiny"), {});
  open_whole(dir_);
  EXPECT_FALSE(fs::exists(partial_));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace mdi
