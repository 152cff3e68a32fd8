// --replay and --bound-last-source, for every command that prefills.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "model/replay.h"

namespace mdi {

inline void add_replay(CLI::App& command, ReplaySettings& settings) {
  CLI::Option* rows = command.add_option_function<std::string>(
      "--replay", [&settings](const std::string& value) { settings.rows = value == "exact" ? 0 : std::stoi(value); },
      "Run the layers after the last KV source on the last 128 or 140 tokens of a prompt only: faster, an "
      "approximation for longer prompts");
  rows->check(CLI::IsMember({"exact", "128", "140"}))->default_str("exact");
  command
      .add_flag_callback(
          "--bound-last-source", [&settings] { settings.form = ReplayForm::kFromLastSource; },
          "With --replay: bound the last KV source's own attention and experts, too; the same tokens, faster")
      ->needs(rows);
}

}  // namespace mdi
