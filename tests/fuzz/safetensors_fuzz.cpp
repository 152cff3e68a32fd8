// Any bytes as a safetensors file, and as an index of such files: refused in one line, or every promise of the header
// holds.
#include <cstddef>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_index.h"
#include "fuzz.h"

namespace mdi {
namespace {

void check_file(std::string_view file) {
  const SafetensorsHeader header = parse_safetensors(file, "file");
  uint64_t covered = 0;
  for (const auto& entry : header.tensors) {
    fuzz::require(entry.begin == covered, "tensors follow one another");
    const TensorView view{file.data() + header.data_start + entry.begin, entry.dtype, entry.rank, entry.shape};
    fuzz::require(view.elements() >= 0, "elements are counted without overflow");
    fuzz::require(view.bytes() == entry.end - entry.begin, "dtype and shape fill the bytes");
    covered = entry.end;
  }
  fuzz::require(header.data_start + covered == file.size(), "every byte belongs to a tensor");
}

void check_index(std::string_view text) {
  const SafetensorsIndex index = parse_safetensors_index(text, "index");
  for (const auto& place : index.tensors) fuzz::require(place.shard < index.shards.size(), "a place is a shard");
  for (const auto& name : index.shards) {
    fuzz::require(std::filesystem::path(name).filename() == name, "a shard is a file of the folder");
  }
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  mdi::fuzz::allow_error([&] { mdi::check_file(text); });
  mdi::fuzz::allow_error([&] { mdi::check_index(text); });
  return 0;
}
