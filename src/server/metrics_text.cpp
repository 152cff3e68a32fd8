#include "server/metrics_text.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <sstream>

namespace mdi {

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string number(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// One family of samples after the other.
class Text {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    out_ += std::string("# HELP ") + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
  }
  void sample(double value, const Labels& labels = {}, const char* suffix = "") {
    out_ += name_ + suffix;
    for (size_t i = 0; i < labels.size(); ++i) {
      out_ += (i == 0 ? '{' : ',') + labels[i].first + "=\"" + escaped(labels[i].second) + '"';
    }
    out_ += (labels.empty() ? " " : "} ") + number(value) + '\n';
  }
  void sample(int64_t value, const Labels& labels = {}, const char* suffix = "") {
    sample(static_cast<double>(value), labels, suffix);
  }
  void counter(const char* name, const char* help, int64_t value) {
    family(name, "counter", help);
    sample(value);
  }
  void gauge(const char* name, const char* help, double value) {
    family(name, "gauge", help);
    sample(value);
  }
  void gauge(const char* name, const char* help, int64_t value) { gauge(name, help, static_cast<double>(value)); }
  // Every second bound: powers of two from 0.1 ms on.
  void histogram(const char* name, const char* help, const Histogram& h) {
    family(name, "histogram", help);
    int64_t below = 0;
    for (int i = 0; i + 1 < Histogram::kBuckets; ++i) {
      below += h.counts[static_cast<size_t>(i)];
      if (i % 2 == 0) sample(below, {{"le", number(Histogram::upper_bound(i))}}, "_bucket");
    }
    sample(h.total, {{"le", "+Inf"}}, "_bucket");
    sample(h.sum, {}, "_sum");
    sample(h.total, {}, "_count");
  }
  std::string take() { return std::move(out_); }

 private:
  std::string name_, out_;
};

void requests(Text& t, const EngineMetrics& m) {
  t.gauge("mdi_requests_waiting", "Requests that wait to be admitted", m.waiting);
  t.gauge("mdi_requests_running", "Sequences that run", m.running);
  t.counter("mdi_requests_submitted_total", "Requests that the engine has taken", m.submitted);
  t.family("mdi_requests_refused_total", "counter", "Requests that the engine has not taken, by reason");
  t.sample(m.refused_full, {{"reason", "queue_full"}});
  t.sample(m.refused_invalid, {{"reason", "invalid"}});
  t.family("mdi_requests_ended_total", "counter", "Samples of requests that have ended, by reason");
  t.sample(m.ended_stop, {{"reason", "stop"}});
  t.sample(m.ended_length, {{"reason", "length"}});
  t.sample(m.ended_cancelled, {{"reason", "cancelled"}});
  t.sample(m.ended_deadline, {{"reason", "deadline"}});
  t.sample(m.ended_stalled, {{"reason", "stalled"}});
  t.sample(m.ended_error, {{"reason", "error"}});
  t.sample(m.ended_invalid, {{"reason", "invalid"}});
  t.counter("mdi_late_cancels_total", "Cancels of requests that had ended: ignored", m.late_cancels);
  t.counter("mdi_callback_errors_total", "Requests cancelled because their events could not be delivered",
            m.callback_errors);
  t.histogram("mdi_time_to_first_token_seconds", "From a request's arrival to its first token", m.first_token_seconds);
  t.histogram("mdi_time_per_output_token_seconds", "Between the tokens of a request", m.token_seconds);
}

void steps(Text& t, const EngineMetrics& m) {
  t.counter("mdi_prompt_tokens_total", "Prompt tokens of admitted requests", m.prompt_tokens);
  t.counter("mdi_prefill_tokens_total", "Prompt tokens that were computed, those of preempted requests again",
            m.prefill_tokens);
  t.counter("mdi_generated_tokens_total", "Tokens generated", m.generated_tokens);
  t.counter("mdi_preemptions_total", "Sequences that gave up their cache to others", m.preemptions);
  t.counter("mdi_steps_total", "Steps of the model", m.steps);
  t.counter("mdi_steps_recorded_total", "Steps launched as recorded at start", m.steps_recorded);
  t.counter("mdi_steps_chained_total", "Steps started before the host had seen the tokens of the step before",
            m.steps_chained);
  t.counter("mdi_step_rows_total", "Rows of all steps", m.rows);
  t.histogram("mdi_step_seconds", "A step as a whole", m.step_seconds);
  t.histogram("mdi_step_plan_seconds", "Planning of a step, where it was not made ahead", m.plan_seconds);
  t.histogram("mdi_step_sample_seconds", "Choice of tokens on the host after a step", m.sample_seconds);
  t.counter("mdi_images_encoded_total", "Images that the vision tower has encoded", m.images_encoded);
  t.counter("mdi_images_kept_total", "Images whose encoding was still there", m.images_kept);
  t.histogram("mdi_image_seconds", "Encoding of an image", m.image_seconds);
  t.family("mdi_draft_proposed_total", "counter", "Drafted tokens that were verified, by place in their block");
  for (size_t i = 0; i < m.proposed.size(); ++i) t.sample(m.proposed[i], {{"position", std::to_string(i)}});
  t.family("mdi_draft_accepted_total", "counter", "Drafted tokens that were accepted, by place in their block");
  for (size_t i = 0; i < m.accepted.size(); ++i) t.sample(m.accepted[i], {{"position", std::to_string(i)}});
  t.counter("mdi_draft_calls_total", "Calls of the draft layers", m.draft_calls);
  t.counter("mdi_steps_drafts_off_total", "Steps in which drafting would have been a loss", m.steps_drafts_off);
}

void stages(Text& t, const EngineMetrics& m) {
  const std::pair<const char*, const StageTimes&> kinds[] = {{"prefill", m.prefill_stages},
                                                             {"decode", m.decode_stages}};
  t.family("mdi_step_stage_seconds_total", "counter", "Time of the measured steps inside the model, by stage");
  for (const auto& [kind, times] : kinds) {
    for (size_t i = 0; i < kStages; ++i) {
      const auto stage = static_cast<Stage>(i);
      t.sample(times.seconds[stage], {{"step", kind}, {"stage", stage_name(stage)}});
    }
  }
  t.family("mdi_step_stage_steps_total", "counter", "Steps that were measured by stage");
  for (const auto& [kind, times] : kinds) t.sample(times.steps, {{"step", kind}});
  t.family("mdi_step_host_seconds_total", "counter", "Time of the engine's thread in all steps, by part");
  for (size_t i = 0; i < kHostParts; ++i) {
    t.sample(m.host_seconds[i], {{"part", host_part_name(static_cast<HostPart>(i))}});
  }
}

void cache(Text& t, const EngineMetrics& m) {
  t.counter("mdi_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache", m.hit_tokens);
  t.counter("mdi_prefix_lookups_total", "Requests that looked into the prefix cache", m.lookups);
  t.counter("mdi_prefix_hits_total", "Requests that found something there", m.hits);
  t.gauge("mdi_blocks_free", "Cache blocks that nobody holds", m.blocks_free);
  t.gauge("mdi_blocks_idle", "Cache blocks that only the prefix cache holds: free when needed", m.blocks_idle);
  t.gauge("mdi_blocks", "Cache blocks", m.blocks_total);
  t.gauge("mdi_slots_free", "Slots of sequences that are free", m.slots_free);
  t.gauge("mdi_slots", "Slots of sequences", m.slots_total);
  t.gauge("mdi_snapshots", "Snapshots of the prefix cache", m.snapshots);
  t.counter("mdi_snapshots_evicted_total", "Snapshots that made room for others", m.snapshots_evicted);
}

void service(Text& t, const ServiceCounters& s, const std::array<int64_t, 10>& early) {
  static constexpr const char* kKinds[] = {"invalid", "authentication", "not_found",       "method",      "too_large",
                                           "busy",    "internal",       "not_implemented", "unavailable", "timeout"};
  static_assert(std::size(kKinds) == std::size(ServiceCounters{}.errors));
  t.family("mdi_errors_total", "counter", "Errors answered, by kind");
  for (size_t i = 0; i < std::size(kKinds); ++i) t.sample(s.errors[i] + early[i], {{"kind", kKinds[i]}});
  t.gauge("mdi_generations", "Generations that run or wait", s.generations);
  t.gauge("mdi_jobs_waiting", "Requests that wait to be parsed", s.jobs_waiting);
  t.gauge("mdi_jobs_running", "Requests that are being parsed", s.jobs_running);
  t.counter("mdi_jobs_total", "Requests that were parsed", s.jobs_done);
  t.counter("mdi_jobs_refused_total", "Requests refused because too many waited to be parsed", s.jobs_refused);
  t.counter("mdi_grammars_compiled_total", "Grammars compiled", s.grammar.compiled);
  t.counter("mdi_grammar_hits_total", "Grammars found compiled", s.grammar.hits);
  t.counter("mdi_grammars_refused_total", "Grammars over a limit", s.grammar.refused);
}

void http(Text& t, const HttpCounters& h) {
  t.gauge("mdi_http_connections", "Connections open", h.connections);
  t.gauge("mdi_http_answering", "Requests being answered", h.answering);
  t.gauge("mdi_http_body_bytes", "Bodies of requests that are read or answered", h.bodies_bytes);
  t.gauge("mdi_http_backlog_bytes", "Bytes that clients have not taken yet", h.backlog_bytes);
  t.counter("mdi_http_accepted_total", "Connections accepted", h.accepted);
  t.family("mdi_http_refused_total", "counter", "Requests and connections that the transport refused, by reason");
  t.sample(h.refused_full, {{"reason", "connections"}});
  t.sample(h.malformed, {{"reason", "malformed"}});
  t.sample(h.refused_admit, {{"reason", "not_admitted"}});
  t.counter("mdi_http_requests_total", "Requests with complete headers", h.requests);
  t.family("mdi_http_answers_total", "counter", "Whole answers by class of status");
  for (size_t i = 1; i < std::size(h.answered); ++i) t.sample(h.answered[i], {{"code", std::to_string(i) + "xx"}});
  t.family("mdi_http_gone_total", "counter", "Answers that were not whole, by reason");
  t.sample(h.gone_hangup, {{"reason", "hangup"}});
  t.sample(h.gone_backlog, {{"reason", "backlog"}});
  t.sample(h.gone_timeout, {{"reason", "write_timeout"}});
  t.sample(h.gone_stopped, {{"reason", "shutdown"}});
  t.counter("mdi_http_abandoned_total", "Requests that a handler dropped", h.abandoned);
  t.counter("mdi_http_timeouts_total", "Connections closed because nothing came in time, or to make room", h.timeouts);
  t.counter("mdi_http_received_bytes_total", "Bytes received", h.received_bytes);
  t.counter("mdi_http_sent_bytes_total", "Bytes sent", h.sent_bytes);
}

}  // namespace

std::string metrics_text(const MetricsInput& input) {
  Text t;
  t.family("mdi_info", "gauge", "What runs here");
  t.sample(int64_t{1}, {{"version", input.version}, {"model", input.model_name}});
  t.gauge("mdi_ready", "1 while requests are taken", int64_t{input.ready ? 1 : 0});
  t.gauge("mdi_failed", "1 after a failure of the engine", int64_t{input.failed ? 1 : 0});
  requests(t, input.engine);
  steps(t, input.engine);
  stages(t, input.engine);
  cache(t, input.engine);
  service(t, input.service, input.early_errors);
  http(t, input.http);
  t.family("mdi_memory_bytes", "gauge", "Memory taken at start, by part");
  for (const auto& [part, bytes] : input.memory) t.sample(bytes, {{"part", part}});
  t.gauge("mdi_answers_memory_bytes", "Answers remembered for conversations that come back",
          input.service.memory_bytes);
  t.gauge("mdi_grammar_cache_bytes", "Compiled grammars", input.service.grammar.cached_bytes);
  t.gauge("process_start_time_seconds", "Start of the process since the epoch", input.start_time);
  t.gauge("process_resident_memory_bytes", "Resident memory", input.resident_bytes);
  t.gauge("process_open_fds", "Open file descriptors", input.open_files);
  return t.take();
}

int64_t process_resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t process_open_files() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  int64_t count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count - 3;  // ".", "..", and the folder itself
}

double process_start_time() {
  // Field 22 of stat, in ticks since the system's start (proc(5)); the name in field 2 may have spaces.
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  int64_t ticks = 0;
  std::from_chars(field.data(), field.data() + field.size(), ticks);
  std::ifstream system("/proc/stat");
  double boot = 0;
  for (std::string name; system >> name;) {
    if (name == "btime") {
      system >> boot;
      break;
    }
  }
  return boot + static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Route metrics_route(std::function<MetricsInput()> input) {
  return {.method = "GET",
          .path = "/metrics",
          .handler = [input = std::move(input)](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
            reply->send(200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(input()));
          }};
}

}  // namespace mdi
