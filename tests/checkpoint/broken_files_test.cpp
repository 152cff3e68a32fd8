// One row is one way in which a checkpoint's files or its index can be broken, with the words that the error must have.
#include "broken.h"

namespace mdi {
namespace {

using namespace test;  // the rows are made of its words

const std::vector<Broken>& files_that_are_not_right() {
  static const std::vector<Broken> cases = {
      {"no config", [](const Path& d) { std::filesystem::remove(d / "config.json"); }, {"config.json", "cannot open"}},
      {"config is empty", bytes("config.json", [](std::string& b) { b.clear(); }), {"config.json", "not valid JSON"}},
      {"config cut", bytes("config.json", [](std::string& b) { b.resize(700); }), {"config.json", "not valid JSON"}},
      {"config is a folder",
       [](const Path& d) {
         std::filesystem::remove(d / "config.json");
         std::filesystem::create_directory(d / "config.json");
       },
       {"config.json", "folder"}},
      {"config of another size",
       json("config.json", [](Json& c) { c["text_config"]["moe_intermediate_size"] = 96; }),
       {"model-0000", "ffn.experts.0.w1.", "expected", "[96, ", "found", "[64, "}},
      {"config with more experts",
       json("config.json", [](Json& c) { c["text_config"]["n_routed_experts"] = 17; }),
       {kIndex, "ffn.experts.16.w1.weight", "is missing", "48 of "}},
      {"config with fewer experts",
       json("config.json", [](Json& c) { c["text_config"]["n_routed_experts"] = 15; }),
       {kIndex, "ffn.experts.15.w", "is not part of the model"}},
      {"config key gone",
       json("config.json", [](Json& c) { c["text_config"].erase("o_groups"); }),
       {"config.json", "text_config.o_groups", "is missing"}},
      {"no weights at all",
       [](const Path& d) {
         for (const char* name : {kShard1, kShard2, kShard3, kIndex}) std::filesystem::remove(d / name);
       },
       {"model.safetensors", "found neither"}},
      {"a single file beside the index",
       [](const Path& d) { std::filesystem::create_symlink(d / kShard3, d / "model.safetensors"); },
       {"holds both"}},
      {"index is gone", [](const Path& d) { std::filesystem::remove(d / kIndex); }, {"found neither"}},
      {"shard is gone", [](const Path& d) { std::filesystem::remove(d / kShard2); }, {kShard2, "cannot open"}},
      {"shard is a dead link",
       [](const Path& d) {
         std::filesystem::remove(d / kShard2);
         std::filesystem::create_symlink(d / "nowhere", d / kShard2);
       },
       {kShard2, "cannot open"}},
      {"shard is a folder",
       [](const Path& d) {
         std::filesystem::remove(d / kShard2);
         std::filesystem::create_directory(d / kShard2);
       },
       {kShard2, "found a folder"}},
      {"shard is another one's bytes",
       [](const Path& d) {
         std::filesystem::remove(d / kShard3);
         std::filesystem::create_symlink(d / kShard1, d / kShard3);
       },
       {kShard3, "tensor '", kIndex, "places it in", kShard1}},
      {"shard is a pointer file",
       bytes(kShard2, [](std::string& b) { b = "version https://example.org/v1\noid sha256:0123\nsize 2910296\n"; }),
       {kShard2, "header's length", "over the limit"}},
  };
  return cases;
}

const std::vector<Broken>& broken_indexes() {
  static const std::vector<Broken> cases = {
      {"empty", bytes(kIndex, [](std::string& b) { b.clear(); }), {kIndex, "not valid JSON"}},
      {"cut", bytes(kIndex, [](std::string& b) { b.resize(b.size() / 2); }), {kIndex, "not valid JSON"}},
      {"a list", bytes(kIndex, [](std::string& b) { b = "[" + b + "]"; }), {kIndex, "expected a JSON object"}},
      {"deep", bytes(kIndex, [](std::string& b) { b = std::string(200000, '['); }), {kIndex}},
      {"trailing garbage", bytes(kIndex, [](std::string& b) { b += "x"; }), {kIndex, "not valid JSON"}},
      {"no weight_map", json(kIndex, [](Json& i) { i.erase("weight_map"); }), {kIndex, "'weight_map' is missing"}},
      {"unknown key", json(kIndex, [](Json& i) { i["weights"] = 1; }), {kIndex, "found 'weights'"}},
      {"weight_map is a list",
       json(kIndex, [](Json& i) { i["weight_map"] = Json::array(); }),
       {kIndex, "'weight_map'", "found a list"}},
      {"place is a number",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = 2; }),
       {kIndex, kHead, "expected a file name, found the number 2"}},
      {"place leads up",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = "../model.safetensors"; }),
       {kIndex, kHead, "plain file name", "../model.safetensors"}},
      {"place is absolute",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = "/etc/x.safetensors"; }),
       {kIndex, kHead, "plain file name"}},
      {"place is empty",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = ""; }),
       {kIndex, kHead, "plain file name"}},
      {"place is the folder",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = ".."; }),
       {kIndex, kHead, "plain file name"}},
      {"place does not exist",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = "model-9.safetensors"; }),
       {"model-9.safetensors", "cannot open"}},
      {"place is another shard",
       json(kIndex, [](Json& i) { i["weight_map"][kHead] = kShard1; }),
       {kShard2, kHead, "places it in", kShard1}},
      {"tensor twice",
       bytes(kIndex,
             [](std::string& b) {
               replace(b, "\"head.weight\"", "\"head.weight\":\"" + std::string(kShard2) + "\",\"head.weight\"");
             }),
       {kIndex, kHead, "appears twice"}},
      {"tensor gone", json(kIndex, [](Json& i) { i["weight_map"].erase(kHead); }), {kIndex, kHead, "is missing"}},
      {"tensor renamed",
       json(kIndex, [](Json& i) { rename_key(i["weight_map"], kHead, "lm_head.weight"); }),
       {kIndex, "lm_head.weight", "is not part of the model"}},
      {"tensor too many",
       json(kIndex, [](Json& i) { i["weight_map"]["layers.0.attn.extra"] = kShard1; }),
       {kIndex, "layers.0.attn.extra", "is not part of the model"}},
      {"total of another size",
       json(kIndex, [](Json& i) { i["metadata"]["total_size"] = 5068169; }),
       {kIndex, "total_size", "expected 5068168", "found 5068169"}},
      {"total is a text",
       json(kIndex, [](Json& i) { i["metadata"]["total_size"] = "5068168"; }),
       {kIndex, "total_size", "expected a number"}},
      {"total is negative", json(kIndex, [](Json& i) { i["metadata"]["total_size"] = -1; }), {kIndex, "total_size"}},
  };
  return cases;
}

TEST(BrokenCheckpoint, Files) { expect_errors(files_that_are_not_right()); }
TEST(BrokenCheckpoint, Indexes) { expect_errors(broken_indexes()); }

TEST(BrokenCheckpoint, NoFolder) {
  const ScratchDir dir;
  write_file(dir.path() / "file", "x");
  expect_message(error_of([&] { Checkpoint::open(dir.path() / "absent"); }), {"absent", "no such folder"});
  expect_message(error_of([&] { Checkpoint::open(dir.path() / "file"); }), {"file", "found a file"});
}

TEST(BrokenCheckpoint, VisionTensorsWithoutVisionConfig) {
  const ScratchDir dir;
  link_golden("tiny-vision", dir.path());
  edit_json(dir.path() / "config.json", [](Json& c) { c["vision_config"] = nullptr; });
  expect_message(error_of([&] { Checkpoint::open(dir.path()); }), {kIndex, "is not part of the model"});
}

}  // namespace
}  // namespace mdi
