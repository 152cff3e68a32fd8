"""Tools through Anthropic's Python library, and the conversation that comes back with all that was generated."""
import json

import jsonschema
import pytest

SCHEMA = {"type": "object",
          "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris", "Rome"]},
                         "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"name": "forecast", "description": "The weather of the next days", "input_schema": SCHEMA, "strict": True},
         {"name": "clock", "strict": True, "input_schema": {
             "type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
             "required": ["zone"], "additionalProperties": False}}]
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]
GREEDY = {"extra_body": {"temperature": 0}}


def options(**more):
    return {"model": "small", "max_tokens": 300, "messages": QUESTION, "tools": TOOLS} | GREEDY | more


def calls_of(message):
    calls = [b for b in message.content if b.type == "tool_use"]
    for call in calls:
        jsonschema.validate(call.input, next(t["input_schema"] for t in TOOLS if t["name"] == call.name))
    return calls


def all_input(usage):
    return usage.input_tokens + usage.cache_read_input_tokens


def test_any_calls_a_tool(claude):
    message = claude.messages.create(**options(tool_choice={"type": "any", "disable_parallel_tool_use": True}))
    assert message.stop_reason == "tool_use"
    calls = calls_of(message)
    assert len(calls) == 1 and calls[0].id.startswith("toolu_")


@pytest.mark.parametrize("name", ["forecast", "clock"])
def test_tool_calls_that_tool(claude, name):
    message = claude.messages.create(**options(tool_choice={"type": "tool", "name": name}))
    assert [c.name for c in calls_of(message)] == [name]


def test_none_and_auto(claude):
    message = claude.messages.create(**options(tool_choice={"type": "none"}, max_tokens=40))
    assert not calls_of(message)
    assert claude.messages.create(**options(tool_choice={"type": "auto"}, max_tokens=40)).content


def test_a_streamed_call_is_the_same(claude):
    choice = {"type": "tool", "name": "forecast"}
    whole = calls_of(claude.messages.create(**options(tool_choice=choice)))
    with claude.messages.stream(**options(tool_choice=choice)) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message()
    assert pieces
    assert [(c.name, c.input) for c in calls_of(final)] == [(c.name, c.input) for c in whole]
    assert final.stop_reason == "tool_use"


def test_a_structured_answer(claude):
    message = claude.messages.create(model="small", max_tokens=200, messages=QUESTION,
                                     output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, **GREEDY)
    jsonschema.validate(json.loads(message.content[0].text), SCHEMA)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
def test_a_conversation_hits_the_cache_by_its_whole_last_turn(claude, streamed, thinking):
    """Three turns, each sent back as the library gave it: thinking with its signature, call, result."""
    def ask(messages, **more):
        settings = options(messages=messages, **more)
        if thinking:
            settings |= {"thinking": {"type": "adaptive"}, "max_tokens": 900, "extra_body": {"temperature": 1}}
        if not streamed:
            return claude.messages.create(**settings)
        with claude.messages.stream(**settings) as stream:
            return stream.get_final_message()

    words = f"streamed {streamed}, thinking {thinking}: what is the weather in Rome? " + "Please be quick. " * 12
    messages = [{"role": "user", "content": words}]
    turn = 0
    for number in range(3):
        # Another tool than the turn before: of two equal answers the memory of tokens knows the later one only.
        choice = {"type": "tool", "name": ("forecast", "clock")[number % 2]}
        answer = ask(messages, tool_choice=choice)
        if number > 0:
            # All of the last turn: its prompt and what was generated, but for its last token, which was never run.
            assert answer.usage.cache_read_input_tokens == turn - 1
        for _ in range(8):
            if answer.stop_reason == "tool_use":
                break
            assert thinking, "without reasoning the grammar ends the call"
            answer = ask(messages, tool_choice=choice)
        assert answer.stop_reason == "tool_use", "the model never ended its reasoning"
        turn = all_input(answer.usage) + answer.usage.output_tokens
        call = calls_of(answer)[0]
        kinds = [b.type for b in answer.content]
        assert kinds == (["thinking", "tool_use"] if thinking else ["tool_use"])
        result = {"type": "tool_result", "tool_use_id": call.id, "is_error": number == 1,
                  "content": [{"type": "text", "text": "Sun and 20 degrees."}]}
        messages += [{"role": "assistant", "content": [b.model_dump() for b in answer.content]},
                     {"role": "user", "content": [result, {"type": "text", "text": "And the day after?"}]}]
