// Answers checked by a JSON Schema validator that knows nothing of the program (Python's jsonschema).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mdi {

class ValidatedAnswers {
 public:
  void add(const std::string& schema, const std::string& instance) {
    lines_.push_back(nlohmann::json{{"schema", nlohmann::json::parse(schema)}, {"instance", instance}}.dump());
  }
  size_t size() const { return lines_.size(); }

  // Fails the test for each answer that its schema does not allow.
  void check(const std::string& name) const {
    const auto file = std::filesystem::path(MDI_TEST_DATA_DIR) / ("grammar_" + name + ".jsonl");
    {
      std::ofstream out(file);
      for (const std::string& line : lines_) out << line << '\n';
    }
    const std::string root = MDI_SOURCE_DIR;
    const std::string command = "'" + root + "/tools/python.sh' >&2 && '" + root + "/build/python/bin/python' '" +
                                root + "/tests/grammar/validate.py' '" + file.string() + "' >&2";
    EXPECT_EQ(std::system(command.c_str()), 0);  // NOLINT: fixed paths of the build
  }

 private:
  std::vector<std::string> lines_;
};

}  // namespace mdi
