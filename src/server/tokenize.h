// POST /tokenize and /detokenize: what a prompt or a conversation is in tokens, and back.
#pragma once

#include <memory>

#include "http/server.h"

namespace mdi {

class Service;

// {"prompt"} or a conversation as /v1/chat/completions takes it ->
// {"count", "max_model_len", "tokens", "token_strs" where return_token_strs}
void tokenize(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply);
// {"tokens"} -> {"prompt"}
void detokenize(Service& service, const HttpRequest& http, const std::shared_ptr<HttpReply>& reply);

}  // namespace mdi
