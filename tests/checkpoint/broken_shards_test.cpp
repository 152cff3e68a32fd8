// One row is one way in which a safetensors file can be broken, with the words that the error must have.
#include "broken.h"
#include "checkpoint/safetensors.h"

namespace mdi {
namespace {

using namespace test;  // the rows are made of its words

const std::vector<Broken>& broken_shards() {
  static const std::vector<Broken> cases = {
      {"empty", bytes(kShard1, [](std::string& b) { b.clear(); }), {kShard1, "only 0 bytes"}},
      {"7 bytes", bytes(kShard1, [](std::string& b) { b.resize(7); }), {kShard1, "only 7 bytes"}},
      {"length only", bytes(kShard1, [](std::string& b) { b.resize(8); }), {kShard1, "beyond the end of the file"}},
      {"cut in the header", bytes(kShard1, [](std::string& b) { b.resize(1000); }), {kShard1, "beyond the end"}},
      {"cut in the data", bytes(kShard1, [](std::string& b) { b.pop_back(); }), {kShard1, "tensor '", "outside"}},
      {"cut to the header",
       bytes(kShard1,
             [](std::string& b) {
               uint64_t length = 0;
               std::memcpy(&length, b.data(), 8);
               b.resize(8 + length);
             }),
       {kShard1, "tensor '", "0 bytes of data"}},
      {"bytes behind the last tensor",
       bytes(kShard1, [](std::string& b) { b += "12345"; }),
       {kShard1, "last 5 bytes", "belong to no tensor"}},
      {"length of 0", header_length(kShard1, 0), {kShard1, "starts with '{'"}},
      {"length over the limit", header_length(kShard1, 100'000'001), {kShard1, "100000001", "over the limit"}},
      {"length of all ones", header_length(kShard1, UINT64_MAX), {kShard1, "over the limit"}},
      {"length beyond the file", header_length(kShard1, 99'000'000), {kShard1, "beyond the end of the file"}},
      {"length too short", header_length(kShard1, 5000), {kShard1, "header that ends with '}'"}},
      {"header is a list", header_text(kShard1, [](std::string& t) { t = "[" + t + "]"; }), {kShard1, "'{'"}},
      {"header starts with a space", header_text(kShard1, [](std::string& t) { t = " " + t; }), {kShard1, "'{'"}},
      {"header padded with newlines", header_text(kShard1, [](std::string& t) { t += "\n\n"; }), {kShard1, "'}'"}},
      {"header padded with zeros",
       header_text(kShard1, [](std::string& t) { t += std::string(2, '\0'); }),
       {kShard1, "'}'"}},
      {"header of two objects", header_text(kShard1, [](std::string& t) { t += "{}"; }), {kShard1, "not valid JSON"}},
      {"header with a flipped bit",
       bytes(kShard1, [](std::string& b) { b[9] = static_cast<char>(b[9] ^ 0x80); }),
       {kShard1, "not valid JSON"}},
      {"deep nesting",
       header_text(kShard1,
                   [](std::string& t) { t = "{\"a\":" + std::string(50000, '[') + std::string(50000, ']') + "}"; }),
       {kShard1, "expected an object for 'a', found a list"}},
      {"deep shape",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = Json::array({Json::array({64}), 128});
              }),
       {kShard1, kWkv, "expected dimensions", "found a list"}},
      {"metadata is not text",
       shard(kShard1, [](Safetensors& s) { s.header["__metadata__"]["format"] = 1; }),
       {kShard1, "__metadata__", "expected a string"}},
      {"tensor twice",
       header_text(kShard1,
                   [](std::string& t) {
                     t.insert(1,
                              "\"layers.0.attn.wkv.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},");
                   }),
       {kShard1, kWkv, "appears twice"}},
      {"key of a tensor twice",
       header_text(kShard1, [](std::string& t) { replace(t, "\"dtype\":", "\"dtype\":\"U8\",\"dtype\":"); }),
       {kShard1, "tensor '", "'dtype' appears twice"}},
      {"tensor is a number",
       shard(kShard1, [](Safetensors& s) { s.header[kWkv] = 7; }),
       {kShard1, kWkv, "expected an object", "found the number 7"}},
      {"tensor is null", shard(kShard1, [](Safetensors& s) { s.header[kWkv] = nullptr; }), {kShard1, kWkv, "null"}},
      {"unknown key", tensor(kShard1, kWkv, [](Json& t) { t["strides"] = 1; }), {kShard1, kWkv, "found 'strides'"}},
      {"no dtype", tensor(kShard1, kWkv, [](Json& t) { t.erase("dtype"); }), {kShard1, kWkv, "'dtype' is missing"}},
      {"no shape", tensor(kShard1, kWkv, [](Json& t) { t.erase("shape"); }), {kShard1, kWkv, "'shape' is missing"}},
      {"no offsets",
       tensor(kShard1, kWkv, [](Json& t) { t.erase("data_offsets"); }),
       {kShard1, kWkv, "'data_offsets' is missing"}},
      {"unknown dtype",
       tensor(kShard1, kWkv, [](Json& t) { t["dtype"] = "F8_E5M2"; }),
       {kShard1, kWkv, "unknown dtype 'F8_E5M2'"}},
      {"dtype is a number", tensor(kShard1, kWkv, [](Json& t) { t["dtype"] = 8; }), {kShard1, kWkv, "'dtype'"}},
      {"negative dimension",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {-64, -128};
              }),
       {kShard1, kWkv, "found the negative number -64"}},
      {"real dimension",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {64.0, 128};
              }),
       {kShard1, kWkv, "found"}},
      {"shape is a number",
       tensor(kShard1, kWkv, [](Json& t) { t["shape"] = 8192; }),
       {kShard1, kWkv, "expected a list for 'shape'"}},
      {"five dimensions",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {64, 128, 1, 1, 1};
              }),
       {kShard1, kWkv, "at most 4 dimensions"}},
      {"dimension of 2^63",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {9223372036854775808u, 1};
              }),
       {kShard1, kWkv, "too large"}},
      {"product overflows to the right size",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {4294967296, 4294967296, 8192};
              }),
       {kShard1, kWkv, "too large"}},
      {"zero hides an overflow",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {4294967296, 4294967296, 0};
              }),
       {kShard1, kWkv, "too large"}},
      {"one offset", tensor(kShard1, kWkv, [](Json& t) { t["data_offsets"] = {0}; }), {kShard1, kWkv, "found 1"}},
      {"three offsets",
       tensor(kShard1, kWkv, [](Json& t) { t["data_offsets"].push_back(1); }),
       {kShard1, kWkv, "found 3"}},
      {"negative offset",
       tensor(kShard1, kWkv, [](Json& t) { t["data_offsets"][0] = -8; }),
       {kShard1, kWkv, "data_offsets", "found the negative number -8"}},
      {"offsets turned round",
       tensor(kShard1, kWkv, [](Json& t) { std::swap(t["data_offsets"][0], t["data_offsets"][1]); }),
       {kShard1, kWkv, "outside"}},
      {"offset of 2^64 - 1",
       tensor(kShard1, kWkv, [](Json& t) { t["data_offsets"][1] = UINT64_MAX; }),
       {kShard1, kWkv, "outside"}},
      {"offset beyond 64 bits",
       header_text(kShard1,
                   [](std::string& t) {
                     replace(t, "\"data_offsets\":[",
                             "\"data_offsets\":[9"
                             "9999999999999999999");
                   }),
       {kShard1, "does not fit 64 bits"}},
      {"over-declared",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {65, 128};
              }),
       {kShard1, kWkv, "ask for 8320 bytes, data_offsets give 8192"}},
      {"overlap",
       tensor(kShard1, kWkv,
              [](Json& t) {
                for (auto& offset : t["data_offsets"]) offset = offset.get<int64_t>() - 32;
              }),
       {kShard1, "overlap"}},
      {"two tensors on the same bytes",
       shard(kShard1,
             [](Safetensors& s) {
               s.header["layers.1.attn.wkv.weight"]["data_offsets"] = s.header[kWkv]["data_offsets"];
             }),
       {kShard1, "overlap"}},
      {"gap",
       shard(kShard1,
             [](Safetensors& s) {
               s.data.insert(0, 64, '\0');
               for (auto& [name, t] : s.header.items()) {
                 if (name == "__metadata__") continue;
                 for (auto& offset : t["data_offsets"]) offset = offset.get<int64_t>() + 64;
               }
             }),
       {kShard1, "bytes 0 to 64", "belong to no tensor"}},
      {"tensor gone", shard(kShard1, [](Safetensors& s) { s.header.erase(kWkv); }), {kShard1, "belong to no tensor"}},
      {"tensor gone with its bytes",
       shard(kShard3,
             [](Safetensors& s) {  // the last one by position
               std::string last;
               int64_t begin = -1;
               for (const auto& [name, t] : s.header.items()) {
                 if (name == "__metadata__" || t["data_offsets"][0].get<int64_t>() < begin) continue;
                 last = name;
                 begin = t["data_offsets"][0].get<int64_t>();
               }
               s.header.erase(last);
               s.data.resize(static_cast<size_t>(begin));
             }),
       {kShard3, "tensor 'layers.", "engram.embed", "is missing"}},
      {"tensor renamed",
       shard(kShard2, [](Safetensors& s) { rename_key(s.header, kHead, "lm_head.weight"); }),
       {kShard2, "lm_head.weight", "is not part of the model"}},
      {"tensor with a hostile name",
       shard(kShard2, [](Safetensors& s) { rename_key(s.header, kHead, "a\nb\x01" + std::string(5000, 'x')); }),
       {kShard2, "a?b?xxx", "...'", "is not part of the model"}},
      {"tensor too many",
       shard(kShard1,
             [](Safetensors& s) {
               s.header["layers.0.attn.extra"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
             }),
       {kShard1, "layers.0.attn.extra", "is not part of the model"}},
      {"wrong dtype of the same size",
       tensor(kShard1, kWkv, [](Json& t) { t["dtype"] = "U8"; }),
       {kShard1, kWkv, "expected F8_E4M3 [64, 128], found U8 [64, 128]"}},
      {"shape turned round",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {128, 64};
              }),
       {kShard1, kWkv, "expected F8_E4M3 [64, 128], found F8_E4M3 [128, 64]"}},
      {"shape flattened",
       tensor(kShard1, kWkv, [](Json& t) { t["shape"] = {8192}; }),
       {kShard1, kWkv, "expected F8_E4M3 [64, 128], found F8_E4M3 [8192]"}},
      {"shape with a 1 behind",
       tensor(kShard1, kWkv,
              [](Json& t) {
                t["shape"] = {64, 128, 1};
              }),
       {kShard1, kWkv, "found F8_E4M3 [64, 128, 1]"}},
      {"two tensors swapped",
       shard(kShard2, [](Safetensors& s) { swap_places(s.header[kHead], s.header["norm.weight"]); }),
       {kShard2, "ask for"}},
  };
  return cases;
}

TEST(BrokenCheckpoint, Shards) { expect_errors(broken_shards()); }

// Every bit of a header matters, but for the free text of its metadata: "format" and "pt".
TEST(BrokenCheckpoint, FlippedHeaderBitsAreSeen) {
  const ScratchDir dir;
  link_golden("tiny-text", dir.path());
  const std::string good = read_file(dir.path() / kShard3);
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  int opened = 0;
  for (size_t bit = 0; bit < 8 * (8 + length); bit += 23) {  // every third byte, each bit in turn
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    if (error_of([&] { parse_safetensors(bad, "file"); }) != "(no error)") continue;
    write_file(dir.path() / kShard3, bad);
    if (error_of([&] { Checkpoint::open(dir.path()); }) == "(no error)") ++opened;
  }
  EXPECT_LE(opened, 8);
}

}  // namespace
}  // namespace mdi
