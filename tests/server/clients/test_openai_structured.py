"""Tools and structured output through OpenAI's Python library. The small model calls no tools by itself: what it does
here it does because the grammar leaves it nothing else."""
import json
import re
from typing import Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

SCHEMA = {"type": "object",
          "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris", "Rome"]},
                         "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "forecast", "description": "The weather of the next days",
                                           "parameters": SCHEMA, "strict": True}},
         {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {
             "type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
             "required": ["zone"], "additionalProperties": False}}}]
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]


def ask(client, **options):
    return client.chat.completions.create(**{"model": "small", "messages": QUESTION, "temperature": 0,
                                             "max_tokens": 300, "tools": TOOLS, "reasoning_effort": "none"} | options)


def check_calls(calls):
    assert calls
    for call in calls:
        schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == call.function.name)
        jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.parametrize("effort", ["none", "low"])
def test_required_calls_a_tool(client, effort):
    answer = ask(client, tool_choice="required", reasoning_effort=effort, parallel_tool_calls=False, max_tokens=800)
    choice = answer.choices[0]
    if choice.finish_reason == "length":
        pytest.skip("the model did not end its reasoning")
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    check_calls(choice.message.tool_calls)
    assert len(choice.message.tool_calls) == 1


@pytest.mark.parametrize("name", ["forecast", "clock"])
def test_named_calls_that_tool(client, name):
    answer = ask(client, tool_choice={"type": "function", "function": {"name": name}})
    calls = answer.choices[0].message.tool_calls
    assert [c.function.name for c in calls] == [name]
    check_calls(calls)


def test_streamed_calls_are_the_same(client):
    whole = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    names, arguments, ids = {}, {}, {}
    finish = None
    for chunk in ask(client, tool_choice="required", parallel_tool_calls=False, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.id:
                ids[call.index] = call.id
                names[call.index] = call.function.name
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert finish == "tool_calls" and all(ids.values())
    assert [(names[i], arguments[i]) for i in sorted(names)] == [(c.function.name, c.function.arguments) for c in whole]


def test_none_and_auto(client):
    assert not ask(client, tool_choice="none", max_tokens=40).choices[0].message.tool_calls
    answer = ask(client, tool_choice="auto", max_tokens=40).choices[0]
    if answer.message.tool_calls:
        check_calls(answer.message.tool_calls)
    else:
        assert answer.message.content


def test_a_result_goes_back(client):
    first = ask(client, tool_choice={"type": "function", "function": {"name": "forecast"}})
    message = first.choices[0].message
    history = QUESTION + [message.model_dump(exclude_none=True),
                          {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sun and 20 degrees."}]
    second = ask(client, messages=history, tool_choice="none", max_tokens=30)
    assert second.choices[0].message.content
    # The whole of the first turn is found: prompt and call, as they were generated.
    turn = first.usage.total_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= turn - 1


def test_parsed_by_pydantic(client):
    class Trip(BaseModel):
        city: Literal["Berlin", "Paris", "Rome"]
        days: int
        by_train: bool

    answer = client.chat.completions.parse(model="small", messages=QUESTION, response_format=Trip, temperature=1,
                                           seed=3, max_tokens=200, reasoning_effort="none")
    trip = answer.choices[0].message.parsed
    assert isinstance(trip, Trip) and trip.city in ("Berlin", "Paris", "Rome")


def test_json_object(client):
    answer = client.chat.completions.create(model="small", messages=QUESTION, temperature=0, max_tokens=400,
                                            response_format={"type": "json_object"}, reasoning_effort="none")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


def test_pattern_and_choice(client):
    by_pattern = ask(client, tools=openai.NOT_GIVEN, extra_body={"regex": "[0-9]{3}-[a-f]{2}"})
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", by_pattern.choices[0].message.content)
    chosen = ask(client, tools=openai.NOT_GIVEN, extra_body={"choice": ["yes", "no", "perhaps"]})
    assert chosen.choices[0].message.content in ("yes", "no", "perhaps")


def test_a_bad_schema_names_itself(client):
    bad = {"type": "json_schema", "json_schema": {"name": "bad", "strict": True, "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, tools=openai.NOT_GIVEN, response_format=bad)
    assert "response_format" in (error.value.param or "") + str(error.value)
