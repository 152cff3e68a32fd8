#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/printable.h"

namespace mdi {

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  for (const auto& [name, view] : tensors) {
    const uint64_t end = offset + view.bytes();
    header[name] = {{"dtype", dtype_name(view.dtype)},
                    {"shape", std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank)},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string json = header.dump();
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  char prefix[sizeof(length)];
  std::memcpy(prefix, &length, sizeof(length));

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(prefix, sizeof(prefix));
  file << json;
  for (const auto& [name, view] : tensors) {
    file.write(static_cast<const char*>(view.data), static_cast<std::streamsize>(view.bytes()));
  }
  file.close();
  if (!file) throw Error(printable(path.string(), 400), "cannot write the file");
}

}  // namespace mdi
