"""Messages, streams and errors through Anthropic's Python library. `temperature` goes in by extra_body: the library has no
argument for it any more, the API does."""
import json
import urllib.error
import urllib.request

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is a database file?"}]
GREEDY = {"extra_body": {"temperature": 0}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1500}


def ask(claude, **options):
    return claude.messages.create(**{"model": "small", "max_tokens": 24, "messages": QUESTION} | GREEDY | options)


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


def all_input(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_a_message(claude):
    message = ask(claude)
    assert message.type == "message" and message.role == "assistant" and message.model == "small"
    assert message.id.startswith("msg_") and message._request_id.startswith("req_")
    assert [b.type for b in message.content] == ["text"] and text_of(message)
    assert message.stop_reason in ("end_turn", "max_tokens") and message.stop_sequence is None
    assert message.usage.output_tokens > 0
    assert ask(claude, max_tokens=2).stop_reason == "max_tokens"


def test_both_apis_say_the_same(claude, client):
    other = client.chat.completions.create(model="small", messages=QUESTION, max_tokens=24, temperature=0,
                                           reasoning_effort="none")
    assert text_of(ask(claude)) == other.choices[0].message.content


def test_a_streamed_message_is_the_same(claude):
    whole = ask(claude)
    events = []
    with claude.messages.stream(model="small", max_tokens=24, messages=QUESTION, **GREEDY) as stream:
        for event in stream:
            events.append(event.type)
        final = stream.get_final_message()
    assert text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert all_input(final.usage) == all_input(whole.usage)
    assert events[0] == "message_start" and events[-1] == "message_stop"


def test_the_events_come_in_anthropics_order(server):
    """Read as they are sent, without the library."""
    body = {"model": "small", "stream": True, "messages": QUESTION, "temperature": 0} | THINKING
    request = urllib.request.Request(server.url + "/v1/messages", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["request-id"].startswith("req_")
        blocks = answer.read().decode().strip().split("\n\n")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        data = json.loads(data.removeprefix("data: "))
        assert data["type"] == name.removeprefix("event: ")
        events.append(data)
    types = [e["type"] for e in events]
    assert types[:2] == ["message_start", "ping"] and types[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    open_block, next_block, kinds = None, 0, []
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None and event["index"] == next_block
            open_block, last = event["index"], None
            kinds.append(event["content_block"]["type"])
        else:
            assert event["index"] == open_block
            if event["type"] == "content_block_stop":
                if kinds[-1] == "thinking":
                    assert last == "signature_delta"
                open_block, next_block = None, next_block + 1
            else:
                last = event["delta"]["type"]
    assert open_block is None and kinds[0] == "thinking"
    assert events[-2]["delta"]["stop_reason"] in ("end_turn", "max_tokens")
    assert events[-2]["usage"]["output_tokens"] > 0


def test_thinking(claude):
    message = ask(claude, **THINKING)
    block = message.content[0]
    assert block.type == "thinking" and block.thinking and len(block.signature) > 40
    with claude.messages.stream(model="small", messages=QUESTION, **THINKING, **GREEDY) as stream:
        final = stream.get_final_message()
    assert final.content[0].thinking == block.thinking
    assert final.content[0].signature == block.signature
    assert text_of(final) == text_of(message)
    assert "thinking" not in [b.type for b in ask(claude, thinking={"type": "disabled"}).content]
    assert ask(claude, thinking={"type": "adaptive"}, output_config={"effort": "low"}).content


def test_edited_thinking_is_told(claude):
    block = ask(claude, **THINKING).content[0].model_dump()

    def sent_back(block):
        history = QUESTION + [{"role": "assistant", "content": [block, {"type": "text", "text": "A file."}]},
                              {"role": "user", "content": "Why?"}]
        answer = claude.messages.with_raw_response.create(model="small", max_tokens=4, messages=history, **GREEDY)
        assert answer.parse().content
        return answer.headers.get("x-edited-thinking-blocks")

    assert sent_back(block) is None
    assert sent_back(block | {"thinking": block["thinking"] + "."}) == "1"
    assert sent_back(block | {"signature": "from elsewhere"}) == "1"
    assert sent_back({"type": "redacted_thinking", "data": "opaque"}) is None


def test_system_and_roles(claude):
    plain = ask(claude)
    told = ask(claude, system="You are brief.")
    blocks = ask(claude, system=[{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}])
    assert text_of(told) == text_of(blocks) and all_input(told.usage) == all_input(blocks.usage)
    assert all_input(told.usage) > all_input(plain.usage)
    in_parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert text_of(ask(claude, messages=in_parts)) == text_of(plain)
    two = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    one = [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}]
    assert text_of(ask(claude, messages=two)) == text_of(ask(claude, messages=one))


def test_a_prefill_is_continued(claude):
    whole = text_of(ask(claude, max_tokens=30))
    head = whole[:12]
    rest = text_of(ask(claude, messages=QUESTION + [{"role": "assistant", "content": head}], max_tokens=30))
    assert rest and not rest.startswith(head)


def test_stop_sequences(claude):
    whole = text_of(ask(claude, max_tokens=40))
    stop = whole.split()[3]
    message = ask(claude, max_tokens=40, stop_sequences=["no such text", stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert text_of(message) == whole[:whole.index(stop)]


@pytest.mark.parametrize("extra", [
    {},
    {"system": "You are brief."},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1100},
    {"tools": [{"name": "clock", "description": "The time", "input_schema": {"type": "object", "properties": {}}}]},
])
def test_count_tokens_is_what_is_used(claude, extra):
    counted = claude.messages.count_tokens(
        model="small", messages=QUESTION, **{k: v for k, v in extra.items() if k != "max_tokens"})
    assert counted.input_tokens == all_input(ask(claude, **extra).usage)


@pytest.mark.parametrize("options, param", [
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
    ({"messages": QUESTION + [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b c",
                                                                 "input": {}}]}]}, "messages[1].content[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]},
     "messages[0].content[0].tool_use_id"),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 2048}, "thinking.budget_tokens"),
    ({"tools": [{"name": "a", "type": "web_search_20250305"}]}, "tools[0].type"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"extra_body": {"temperature": 1.5}}, "temperature"),
    ({"extra_body": {"no_such_parameter": 1}}, "no_such_parameter"),
])
def test_what_is_wrong_is_named(claude, options, param):
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(claude, **options)
    body = error.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert param in body["error"]["message"]
    assert body["request_id"] == error.value.request_id


def test_other_errors(claude, server):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(claude, model="claude")
    assert error.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(claude, messages=[{"role": "user", "content": "word " * 100_000}])
    assert "context" in str(error.value)
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(server.url + "/v1/messages/nothing", b"{}", timeout=10)
    assert json.load(missing.value)["error"]["type"] == "not_found_error"
