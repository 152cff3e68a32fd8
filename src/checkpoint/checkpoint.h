// A checkpoint on disk, mapped and checked: config.json plus one safetensors file or an index with its shards.
//
// Opening reads the headers only. It refuses the checkpoint with one mdi::Error unless the files hold exactly the
// tensors of inventory(config), each with its dtype and shape. Nothing is copied: a TensorView points into the mapping,
// except that a tensor which its file does not align to its elements is copied when it is taken.
//
// A folder holds either model.safetensors or model.safetensors.index.json with the files that it names. Both at once is
// an error unless the index names just that one file. Other files of the folder are not looked at.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "core/tensor.h"

namespace mdi {

class Checkpoint {
 public:
  // Throws mdi::Error naming the file and the tensor or key.
  static Checkpoint open(const std::filesystem::path& dir);
  // The same tensors without files: `address` says where each of the inventory lies, wherever that is (nothing here
  // reads them). `name` stands for the folder in errors; files() is empty.
  static Checkpoint in_memory(ModelConfig config, std::string_view name,
                              const std::function<const void*(const TensorSpec&)>& address);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const ModelConfig& config() const;
  const std::filesystem::path& dir() const;
  const std::vector<TensorSpec>& tensors() const;           // the inventory, in its order
  const std::vector<std::filesystem::path>& files() const;  // the safetensors files, by name

  // Hands out a tensor, once: a second take of the same name is a programming error and throws. The name must be in
  // the inventory.
  TensorView take(std::string_view name);
  // Says that this build does not use the tensors of `part`, with the reason that `mdi inspect` and the log print.
  // A part may be ignored once; tensors of it that were taken before stay taken, none may be taken afterwards.
  void ignore(Part part, std::string_view reason);
  const std::vector<std::pair<Part, std::string>>& ignored() const;
  // Throws unless every tensor was taken or ignored, naming the first that was not.
  void finish() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mdi
