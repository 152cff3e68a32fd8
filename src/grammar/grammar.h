// Structured output: which tokens may come next so that the answer follows a schema, a pattern, or the tool-call format
// (spec chat-format.md sections 5 and 6). The matching is XGrammar's.
//
// Control tokens are never part of a text: a grammar accepts them only where the format puts them, and their letters
// spelled out in other tokens are text, as ChatParser reads them. An answer whose grammar is complete can only go on
// with the end-of-sentence token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace mdi {

// One function that the model may call.
struct GrammarTool {
  std::string name;
  std::string parameters;  // JSON Schema of its arguments (an object); empty: any arguments
  // The arguments follow the schema, and a keyword that cannot be enforced is an error. Otherwise the call is
  // well-formed: any parameter names, any values.
  bool strict = false;
};

struct GrammarSpec {
  // What the answer's content is.
  enum class Kind : uint8_t {
    kNone,        // any text
    kJsonObject,  // any JSON object
    kJsonSchema,  // JSON that `schema` describes
    kRegex,       // text that `pattern` matches as a whole
    kChoice,      // one of `choices`
  };
  enum class ToolChoice : uint8_t {
    kFree,      // nothing said about tools: the request has none
    kNone,      // tool calls never begin
    kAuto,      // content, then calls or the end. With a kind other than kNone: either the content or calls
    kRequired,  // calls at once, at least one
    kNamed,     // one call of `tool_name` at once
  };

  Kind kind = Kind::kNone;
  std::string schema;  // JSON Schema
  // As OpenAI's strict: a keyword that cannot be enforced is an error naming it and its place. Otherwise such keywords
  // are passed over (schema_rules.h has the list).
  bool strict = false;
  std::string pattern;
  std::vector<std::string> choices;

  ToolChoice tool_choice = ToolChoice::kFree;
  std::vector<GrammarTool> tools;
  std::string tool_name;  // kNamed
  bool parallel = true;   // more than one call in an answer
};

// Whether the spec says anything: if not, no compiler is needed and Request::allowed stays empty.
bool constrains(const GrammarSpec& spec);

// What is refused before any work is done for it, and what the work itself may take. All are per spec, except the last.
struct GrammarLimits {
  size_t max_bytes = size_t{256} << 10;  // of all schemas, patterns and choices together
  int max_depth = 32;                    // of nested schemas, JSON values and pattern groups
  // States by our own count (GrammarRules::cost), and the characters of a pattern with repetitions inside one another
  // multiplied out. A pattern's counts go up to 128.
  int64_t max_cost = 100'000, max_unrolled = 2'000;
  int64_t max_repeat = 10'000;  // minLength, maxLength, minItems, ...
  int max_tools = 128;
  int max_choices = 4'096;
  double max_compile_seconds = 0.9;  // of the compiling thread's own time; ten times as long by the clock
  // Of the thread's own time, for one mask: tried out when compiling. In use a grammar has as much for all masks of all
  // its requests, and gets some back with each of them; beyond that they fail.
  double max_mask_seconds = 0.25, back_mask_seconds = 0.02;
  double refuse_seconds = 600;                 // for so long a grammar that was too slow is not tried again
  int max_stuck = 4;                           // compilations that ran out of time and have not ended yet; one a client
  size_t max_cache_bytes = size_t{128} << 20;  // of compiled grammars that are kept (least recently used go first)
};

// Immutable once made; shared by any number of requests and threads.
class CompiledGrammar;

// Which tokens may follow `generated` (see engine/penalties.h `AllowedTokens`, which has this type). A pure function of
// the tokens: states are remembered by prefix, so a call costs what the tokens behind the nearest remembered prefix
// cost. Any thread may call it, one at a time. `bits` must be all zero and of the model's vocabulary. Throws mdi::Error
// where the answer cannot go on: calls took more time than they may, or nothing can follow; `where` is that of
// GrammarCompiler::compile. Time decides whether it throws, never what it returns.
using GrammarMask = std::function<bool(std::span<const int32_t> generated, std::span<uint32_t> bits)>;

struct GrammarCounters {
  int64_t compiled = 0, hits = 0, refused = 0;  // refused: by a limit
  int64_t cached = 0, cached_bytes = 0;
  int64_t stuck = 0;  // compilations out of time that still run
};

// Not now: what the compiler is busy with keeps it from compiling this. what(): a sentence.
struct GrammarBusy : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Compilations of all compilers that run now. One cannot be stopped, and goes on when its compiler has ended: a process
// with any of them ends by _Exit().
int64_t running_compilations();

// Any number of threads may use one compiler at once.
class GrammarCompiler {
 public:
  // vocab: the model's, at least the tokenizer's; bits of the ids beyond the tokenizer's stay 0. eos ends an answer;
  // the tokenizer must have it. The tokenizer must outlive the compiler and what it compiled.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t eos, GrammarLimits limits = {});
  ~GrammarCompiler();  // stop(); waits for nobody
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Blocks for as long as it takes, within max_compile_seconds: for a worker thread, never for the step loop. Throws
  // mdi::Error whose `where` is the part of the request at fault ("response_format", "regex", "choice", "tools[2]
  // (NAME)"): what is wrong with it, or which limit it exceeds. Throws GrammarBusy while a compilation of the same
  // client, or too many of others, have run out of time and not ended, unless this one is small; and after stop().
  std::shared_ptr<const CompiledGrammar> compile(const GrammarSpec& spec, const std::string& client = {});
  // From any thread: compile() returns at once.
  void stop();

  GrammarCounters counters() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// For one request, all its samples. reasoning: the prompt ended inside <think> (EncodedChat::reasoning): nothing is
// constrained up to </think>, except that the end-of-sentence token may not come there if the grammar asks for
// something. to_the_end: that token comes only where nothing else may. Returned bits are of the model's vocabulary.
GrammarMask make_mask(std::shared_ptr<const CompiledGrammar> grammar, bool reasoning, bool to_the_end = false);

// Whether some of its last masks took more than some milliseconds. From any thread.
bool masks_are_slow(const CompiledGrammar& grammar);

}  // namespace mdi
