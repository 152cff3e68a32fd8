// The one exception type of setup, files and requests. The hot path does not throw.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace mdi {

// what(): one line, "where: message", for example
//   "model-00002-of-00048.safetensors: tensor 'layers.3.attn.wkv.weight': expected shape [512, 5120], found [512,
//   2560]".
// `where` names the file, key, tensor or request that is at fault; `message` says what was expected and what was found.
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view message)
      : std::runtime_error(std::string(where) + ": " + std::string(message)) {}
};

}  // namespace mdi
