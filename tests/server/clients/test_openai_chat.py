"""Chat, streaming, completions and models through OpenAI's Python library."""
import asyncio
import itertools

from conftest import wait_until

QUESTION = [{"role": "user", "content": "What is a database file?"}]
PLAIN = {"reasoning_effort": "none"}


def ask(client, messages=QUESTION, **options):
    return client.chat.completions.create(
        **{"model": "small", "messages": messages, "temperature": 0, "max_tokens": 24} | PLAIN | options)


def joined(chunks, name="content"):
    return "".join(getattr(c.choices[0].delta, name, None) or "" for c in chunks if c.choices)


def test_models(client):
    models = client.models.list()
    assert [m.id for m in models.data] == ["small"]
    assert client.models.retrieve("small").object == "model"


def test_plain_and_streamed_answers_are_the_same(client):
    whole = ask(client)
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-")
    assert whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert joined(chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_reasoning_is_apart_and_is_taken_back(client):
    first = ask(client, reasoning_effort="low", max_tokens=200)
    message = first.choices[0].message
    assert message.reasoning_content
    assert first.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(ask(client, reasoning_effort="low", max_tokens=200, stream=True))
    assert joined(chunks, "reasoning_content") == message.reasoning_content
    history = QUESTION + [{"role": "assistant", "content": message.content or "",
                           "reasoning_content": message.reasoning_content},
                          {"role": "user", "content": "And then?"}]
    assert ask(client, history, reasoning_effort="low").choices[0].message is not None


def test_32_at_once_get_what_they_get_alone(server):
    questions = [f"What is the number {i} in words?" for i in range(32)]

    async def all_of_them():
        async with server.async_openai() as client:
            async def one(text):
                stream = await client.chat.completions.create(
                    model="small", messages=[{"role": "user", "content": text}], temperature=0, max_tokens=12,
                    stream=True, **PLAIN)
                return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

            return await asyncio.gather(*(one(text) for text in questions))

    together = asyncio.run(all_of_them())
    for text, answer in list(zip(questions, together))[::8]:
        alone = ask(server.openai(), [{"role": "user", "content": text}], max_tokens=12)
        assert answer == alone.choices[0].message.content, text


def test_samples_and_seeds(client):
    options = {"temperature": 1.0, "seed": 7, "max_tokens": 16}
    first = ask(client, n=3, **options)
    again = ask(client, n=3, **options)
    texts = [c.message.content for c in first.choices]
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert texts == [c.message.content for c in again.choices]
    assert len(set(texts)) > 1, "three samples are all the same"
    assert ask(client, **options | {"seed": 8}).choices[0].message.content not in texts[:1]
    streamed = ["", "", ""]
    for chunk in ask(client, n=3, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_stop_ends_before_the_string(client):
    whole = ask(client, max_tokens=40).choices[0].message.content
    stop = whole.split()[3]
    assert len(stop) > 1
    stopped = ask(client, max_tokens=40, stop=[stop])
    assert stopped.choices[0].message.content == whole[:whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert joined(ask(client, max_tokens=40, stop=stop, stream=True)) == whole[:whole.index(stop)]


def test_logprobs(client):
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=8)
    tokens = answer.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        # Greedy: what was chosen is the most likely.
        assert token.top_logprobs[0].logprob == token.logprob
    chunks = ask(client, logprobs=True, top_logprobs=3, max_tokens=8, stream=True)
    streamed = itertools.chain.from_iterable(
        c.choices[0].logprobs.content for c in chunks if c.choices and c.choices[0].logprobs)
    assert [t.token for t in streamed] == [t.token for t in tokens]


def test_completions(client):
    prompt = "The database file is"
    whole = client.completions.create(model="small", prompt=prompt, temperature=0, max_tokens=12)
    assert whole.object == "text_completion" and whole.choices[0].text
    parts = list(client.completions.create(model="small", prompt=prompt, temperature=0, max_tokens=12, stream=True))
    assert "".join(c.choices[0].text for c in parts if c.choices) == whole.choices[0].text
    both = client.completions.create(model="small", prompt=[prompt, "A second text"], temperature=0, max_tokens=12)
    assert len(both.choices) == 2 and both.choices[0].text == whole.choices[0].text


def test_the_conversation_that_comes_back_is_found_in_the_cache(client):
    # Shorter ones are not worth a snapshot.
    messages = [{"role": "user", "content": QUESTION[0]["content"] + " Tell me more about it. " * 12}]
    for _ in range(2):
        first = ask(client, messages, max_tokens=48)
        messages += [{"role": "assistant", "content": first.choices[0].message.content},
                     {"role": "user", "content": "Where is it kept? " * 12}]
        second = ask(client, messages, max_tokens=48)
        # All of the last turn; its last token only if it was an accepted draft, for no other last token is ever run.
        assert first.usage.total_tokens - second.usage.prompt_tokens_details.cached_tokens in (0, 1)
        messages += [{"role": "assistant", "content": second.choices[0].message.content},
                     {"role": "user", "content": "And then? " * 20}]


def test_hanging_up_stops_the_work(server):
    client = server.openai()
    before = server.metric("mdi_requests_ended_total", reason="cancelled")
    with ask(client, max_tokens=4000, temperature=1, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert wait_until(lambda: server.metric("mdi_requests_running") >= 1)
    assert wait_until(lambda: server.metric("mdi_requests_ended_total", reason="cancelled") == before + 1)
    assert wait_until(lambda: server.metric("mdi_requests_running") == 0)
    metrics = server.metrics()
    free, idle, total = (metrics[(f"mdi_blocks{kind}", ())] for kind in ("_free", "_idle", ""))
    assert free + idle == total
