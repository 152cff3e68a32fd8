"""Errors as OpenAI's Python library sees them: the class by the status, `param` by the member at fault."""
import urllib.error
import urllib.request

import anthropic
import openai
import pytest

from conftest import ROOT

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("options, param", [
    ({"temperature": 3}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"n": 1000}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"stop": ["x"] * 1000}, "stop"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": MESSAGES + [{"role": "user", "content": [{"type": "video"}]}]}, "messages[1].content[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "with space"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"extra_body": {"no_such_parameter": 1}}, "no_such_parameter"),
    ({"modalities": ["audio"]}, "modalities"),
])
def test_what_is_wrong_is_named(client, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": "small", "messages": MESSAGES} | options)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"
    assert param.split("[")[0] in error.value.message


def test_a_text_beyond_the_context(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "word " * 100_000}])
    assert error.value.code == "context_length_exceeded"


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="large", messages=MESSAGES)
    assert error.value.code == "model_not_found" and error.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("large")


def test_a_client_is_its_key_however_it_is_sent(start_server):
    server = start_server(ROOT / "models/small", "--model-name", "small", "--max-running-per-client", "1",
                          keys=("first-key", "second-key"))
    ask = {"model": "small", "messages": MESSAGES, "extra_body": {"ignore_eos": True}}
    with server.openai().chat.completions.create(**ask, max_tokens=6000, stream=True) as running:
        next(iter(running))
        for number in range(3):
            headers = {"Authorization": f"Bearer {number}", "x-api-key": "first-key"}
            with pytest.raises(openai.RateLimitError):
                server.openai().chat.completions.create(**ask, max_tokens=1, extra_headers=headers)
        assert server.openai(api_key="second-key").chat.completions.create(**ask, max_tokens=1).choices


def test_keys(start_server):
    page = "https://page.example"
    server = start_server(ROOT / "models/small", "--model-name", "small", "--allow-origin", page,
                          keys=("first-key", "second-key"))
    assert server.openai().models.list().data[0].id == "small"
    assert server.openai(api_key="second-key").models.list().data
    for key in ("wrong", "first-kez", "first-key2"):
        with pytest.raises(openai.AuthenticationError):
            server.openai(api_key=key).models.list()
        with pytest.raises(openai.AuthenticationError):
            server.openai(api_key=key).chat.completions.create(model="small", messages=MESSAGES)
    for origin, allowed in ((page, page), ("https://other.example", None)):
        for key, status in (("first-key", 200), ("wrong", 401)):
            request = urllib.request.Request(server.url + "/v1/models",
                                             headers={"authorization": "Bearer " + key, "origin": origin})
            try:
                answer = urllib.request.urlopen(request, timeout=10)
            except urllib.error.HTTPError as refusal:
                answer = refusal
            with answer:
                assert answer.status == status
                assert answer.headers.get_all("access-control-allow-origin") == (allowed and [allowed])
    assert server.anthropic().messages.count_tokens(model="small", messages=MESSAGES).input_tokens > 0
    with pytest.raises(anthropic.AuthenticationError) as error:
        server.anthropic(api_key="wrong").messages.create(model="small", max_tokens=4, messages=MESSAGES)
    assert error.value.body["error"]["type"] == "authentication_error"
