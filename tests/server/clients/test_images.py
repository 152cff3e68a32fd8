"""Images through both libraries, on a synthetic checkpoint with a vision tower: what it says means nothing, but equal
images give equal answers, and others others."""
import anthropic
import openai
import pytest

from conftest import make_seeing_checkpoint
from images import base64_of, data_url, png

RED, BLUE = png(200, 20, 20), png(20, 20, 200)
WORDS = "What do you see? " * 6  # shorter prompts are not worth a snapshot


def openai_parts(*images):
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(i)}} for i in images] +
             [{"type": "text", "text": WORDS}]}]


def anthropic_parts(*images):
    return [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(i)}}
        for i in images] + [{"type": "text", "text": WORDS}]}]


def ask(server, messages, **options):
    return server.openai().chat.completions.create(
        **{"model": "seeing", "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True,
           "reasoning_effort": "none"} | options)


def values(answer):
    return [(t.bytes, t.logprob) for t in answer.choices[0].logprobs.content]


def test_images_make_a_difference_and_are_found_again(seeing_server):
    red = ask(seeing_server, openai_parts(RED))
    blue = ask(seeing_server, openai_parts(BLUE))
    assert red.usage.prompt_tokens == blue.usage.prompt_tokens > 20
    assert values(red) != values(blue)
    # Equal tokens are not equal images: nothing behind the first image's place was taken from the other's.
    assert blue.usage.prompt_tokens_details.cached_tokens < 5
    again = ask(seeing_server, openai_parts(RED))
    assert values(again) == values(red)
    assert again.usage.prompt_tokens_details.cached_tokens == red.usage.prompt_tokens - 1


def test_both_apis_show_the_model_the_same(seeing_server):
    claude = seeing_server.anthropic()
    counted = claude.messages.count_tokens(model="seeing", messages=anthropic_parts(RED, BLUE))
    message = claude.messages.create(model="seeing", max_tokens=12, messages=anthropic_parts(RED, BLUE),
                                     extra_body={"temperature": 0})
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    other = ask(seeing_server, openai_parts(RED, BLUE))
    assert other.usage.prompt_tokens == counted.input_tokens
    assert other.usage.prompt_tokens_details.cached_tokens == counted.input_tokens - 1


def test_streams_are_shown_the_same(seeing_server):
    whole = ask(seeing_server, openai_parts(RED, BLUE))
    chunks = [chunk for chunk in ask(seeing_server, openai_parts(RED, BLUE), stream=True) if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    logprobs = [(t.bytes, t.logprob) for chunk in chunks if chunk.choices[0].logprobs
                for t in chunk.choices[0].logprobs.content]
    assert logprobs == values(whole)
    claude = seeing_server.anthropic()
    wanted = {"model": "seeing", "max_tokens": 12, "messages": anthropic_parts(RED, BLUE), "extra_body": {"temperature": 0}}
    message = claude.messages.create(**wanted)
    with claude.messages.stream(**wanted) as stream:
        streamed = stream.get_final_message()
    assert [block.text for block in streamed.content] == [block.text for block in message.content]
    assert streamed.usage.output_tokens == message.usage.output_tokens


def test_an_image_in_a_tool_result(seeing_server):
    claude = seeing_server.anthropic()
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]

    def messages_with(image):
        return [{"role": "user", "content": "Look."},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                                              "content": anthropic_parts(image)[0]["content"]}]}]

    def sent(image):
        return claude.messages.count_tokens(model="seeing", messages=messages_with(image), tools=tools).input_tokens

    def answered(image):
        return claude.messages.create(model="seeing", max_tokens=8, messages=messages_with(image), tools=tools,
                                      extra_body={"temperature": 0}).usage

    small, large = sent(RED), sent(png(1, 2, 3, width=700, height=40))
    assert large != small
    red = answered(RED)
    again, blue = answered(RED), answered(BLUE)
    assert red.input_tokens + red.cache_read_input_tokens == small
    assert again.cache_read_input_tokens == small - 1  # the same picture is found again, another one is not
    assert blue.cache_read_input_tokens < small - len(WORDS) // 4
    with pytest.raises(anthropic.BadRequestError) as error:
        answered(b"no image")
    assert "messages[2].content[0].content[0]" in error.value.body["error"]["message"]


@pytest.mark.parametrize("url, words", [
    ("data:image/png;base64,", "base64"),
    ("data:image/png;base64,!!!!", "base64"),
    ("data:image/png;base64," + base64_of(b"no image at all"), "image"),
    ("data:image/png;base64," + base64_of(RED[:60]), "image"),
    ("data:image/png," + "abc", "base64"),
    ("http://127.0.0.1/a.png", "fetches no images"),
    ("https://example.org/a.png", "fetches no images"),
    ("file:///etc/passwd", "data: URL"),
    ("ftp://example.org/a.png", "data: URL"),
    ("/etc/passwd", "data: URL"),
])
def test_an_image_that_cannot_be_used_is_an_error(seeing_server, url, words):
    messages = [{"role": "user", "content": "First."}, {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": [{"type": "text", "text": "This:"},
                                             {"type": "image_url", "image_url": {"url": url}}]}]
    with pytest.raises(openai.BadRequestError) as error:
        ask(seeing_server, messages)
    assert error.value.param.startswith("messages[2].content[1]")
    assert words in error.value.message


def test_the_block_at_fault_is_named(seeing_server):
    messages = anthropic_parts(RED, b"no image")
    with pytest.raises(anthropic.BadRequestError) as error:
        seeing_server.anthropic().messages.create(model="seeing", max_tokens=4, messages=messages)
    assert "messages[0].content[1].source.data" in error.value.body["error"]["message"]


def test_a_model_that_takes_text_only_says_so(server):
    with pytest.raises(openai.BadRequestError) as error:
        server.openai().chat.completions.create(model="small", messages=openai_parts(RED), max_tokens=4)
    assert "text only" in error.value.message and error.value.param == "messages[0].content[0]"
    with pytest.raises(anthropic.BadRequestError) as error:
        server.anthropic().messages.create(model="small", messages=anthropic_parts(RED), max_tokens=4)
    assert "text only" in str(error.value)


def test_remote_images_stay_outside_the_network(start_server, tmp_path_factory):
    """Allowed, they are fetched from public addresses only; none is reached here."""
    folder = tmp_path_factory.mktemp("remote") / "checkpoint"
    make_seeing_checkpoint(folder)
    server = start_server(folder, "--model-name", "seeing", "--allow-remote-images")
    for url in ("http://127.0.0.1:9/a.png", "http://localhost/a.png", "http://[::1]/a.png", "http://169.254.169.254/",
                "http://10.0.0.1/a.png", "http://0x7f000001/a.png", "http://user:word@example.org/a.png"):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        with pytest.raises(openai.BadRequestError) as error:
            ask(server, messages)
        assert "cannot be fetched" in error.value.message, url
    with pytest.raises(openai.BadRequestError):
        ask(server, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}]}])
