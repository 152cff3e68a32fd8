#include "checkpoint/checkpoint.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "support.h"

namespace mdi {
namespace {

using test::Json;
using test::Path;

TEST(Checkpoint, OpensTheGoldenOnes) {
  const Checkpoint text = Checkpoint::open(test::golden("tiny-text"));
  EXPECT_EQ(text.config().n_layers, 8);
  EXPECT_EQ(text.tensors().size(), 1202u);
  EXPECT_EQ(text.files().size(), 3u);
  const Checkpoint vision = Checkpoint::open(test::golden("tiny-vision"));
  EXPECT_TRUE(vision.config().has_vision);
  EXPECT_EQ(vision.tensors().size(), 444u);
}

TEST(Checkpoint, HandsOutTheBytesOfTheFile) {
  Checkpoint checkpoint = Checkpoint::open(test::golden("tiny-text"));
  for (const char* shard :
       {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
    const test::Safetensors file = test::split_safetensors(test::golden("tiny-text") / shard);
    for (const auto& [name, entry] : file.header.items()) {
      if (name == "__metadata__") continue;
      const TensorView view = checkpoint.take(name);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      ASSERT_EQ(view.bytes(), end - begin) << name;
      EXPECT_EQ(std::memcmp(view.data, file.data.data() + begin, end - begin), 0) << name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % dtype_size(view.dtype), 0u) << name;
    }
  }
  checkpoint.finish();
}

TEST(Checkpoint, EveryTensorIsTakenOnceOrIgnored) {
  Checkpoint checkpoint = Checkpoint::open(test::golden("tiny-vision"));
  const auto error = [&](const std::function<void()>& action) { return test::error_of(action); };
  test::expect_message(error([&] { checkpoint.finish(); }), {"embed.weight", "neither used nor named", "444 were not"});
  test::expect_message(error([&] { checkpoint.take("lm_head.weight"); }), {"lm_head.weight", "not part of this model"});
  checkpoint.take("vision.norm.weight");
  test::expect_message(error([&] { checkpoint.take("vision.norm.weight"); }), {"vision.norm.weight", "second time"});
  checkpoint.ignore(Part::kVision, "text only");
  test::expect_message(error([&] { checkpoint.take("aligner.w1.bias"); }), {"aligner.w1.bias", "ignored"});
  test::expect_message(error([&] { checkpoint.ignore(Part::kVision, "again"); }), {"vision", "second time"});
  ASSERT_EQ(checkpoint.ignored().size(), 1u);
  EXPECT_EQ(checkpoint.ignored()[0].second, "text only");
  for (const auto& spec : checkpoint.tensors()) {
    if (spec.part != Part::kVision && spec.name != "norm.weight") checkpoint.take(spec.name);
  }
  test::expect_message(error([&] { checkpoint.finish(); }), {"norm.weight", "1 were not"});
  const Checkpoint moved = [&] {
    checkpoint.take("norm.weight");
    return std::move(checkpoint);
  }();
  moved.finish();
}

TEST(Checkpoint, OpensFlatConfigs) {
  for (const auto& [name, flat] :
       {std::pair("tiny-text", "tiny_text_flat.json"), {"tiny-vision", "tiny_vision_flat.json"}}) {
    const test::ScratchDir dir;
    test::link_golden(name, dir.path());
    test::write_file(dir.path() / "config.json", test::read_file(test::data_dir() / "config" / flat));
    EXPECT_EQ(Checkpoint::open(dir.path()).files().size(), 3u);
  }
}

// One file that holds all tensors of tiny-text.
void write_single(const Path& path) {
  std::vector<SafetensorsFile> shards;
  std::vector<NamedTensor> tensors;
  for (int i = 1; i <= 3; ++i) {
    shards.emplace_back(test::golden("tiny-text") / ("model-0000" + std::to_string(i) + "-of-00003.safetensors"));
    for (const auto& entry : shards.back().header().tensors) tensors.push_back({entry.name, shards.back().view(entry)});
  }
  write_safetensors(path, tensors);
}

TEST(Checkpoint, OpensASingleFile) {
  const test::ScratchDir dir;
  std::filesystem::copy_file(test::golden("tiny-text") / "config.json", dir.path() / "config.json");
  write_single(dir.path() / "model.safetensors");
  const Checkpoint single = Checkpoint::open(dir.path());
  EXPECT_EQ(single.files().size(), 1u);

  // An index beside it may say the same again...
  Json index;
  for (const auto& spec : single.tensors()) index["weight_map"][spec.name] = "model.safetensors";
  test::write_file(dir.path() / "model.safetensors.index.json", index.dump());
  EXPECT_EQ(Checkpoint::open(dir.path()).files().size(), 1u);

  // ... but not something else.
  index["weight_map"]["norm.weight"] = "model-2.safetensors";
  test::write_file(dir.path() / "model.safetensors.index.json", index.dump());
  test::expect_message(test::error_of([&] { Checkpoint::open(dir.path()); }), {"holds both"});
}

TEST(Checkpoint, NeedsNoTotalSizeAndIgnoresOtherFiles) {
  const test::ScratchDir dir;
  test::link_golden("tiny-text", dir.path());
  test::edit_json(dir.path() / "model.safetensors.index.json", [](Json& i) { i.erase("metadata"); });
  test::write_file(dir.path() / "other.safetensors", "not one");
  EXPECT_EQ(Checkpoint::open(dir.path()).tensors().size(), 1202u);
}

TEST(Checkpoint, AlignsTensorsThatLieAskew) {
  const test::ScratchDir dir;
  test::link_golden("tiny-text", dir.path());
  const Path shard = dir.path() / "model-00002-of-00003.safetensors";
  test::Safetensors file = test::split_safetensors(shard);
  std::string header = file.header.dump();
  header.append(1 + (8 - header.size() % 8) % 8, ' ');  // the data start at an odd byte
  test::write_file(shard, test::safetensors_bytes(header, file.data));

  Checkpoint askew = Checkpoint::open(dir.path());
  Checkpoint straight = Checkpoint::open(test::golden("tiny-text"));
  for (const auto& spec : askew.tensors()) {
    const TensorView a = askew.take(spec.name), b = straight.take(spec.name);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(a.data) % dtype_size(a.dtype), 0u) << spec.name;
    ASSERT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << spec.name;
  }
}

}  // namespace
}  // namespace mdi
