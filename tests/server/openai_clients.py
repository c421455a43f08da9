"""Asks a server with OpenAI's own client in all four ways: `python openai_clients.py URL`."""

import asyncio
import sys

from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

URL = sys.argv[1] + "/v1"
MODEL = "edgewise:edge"  # it says the same every time
MESSAGES = [{"role": "user", "content": "Tell me about copper."}]


def sync() -> str:
    client = OpenAI(base_url=URL, api_key="none")
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2, seed=1, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].bytes
    assert answer.usage.total_tokens > answer.usage.prompt_tokens > 0
    text = answer.choices[0].message.content

    # An answer goes back as it came.
    history = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "And iron?"}]
    assert client.chat.completions.create(model=MODEL, messages=history).choices

    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == text, (streamed, text)

    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as events:
        assert events.get_final_completion().choices[0].message.content == text

    done = client.completions.create(model=MODEL, prompt="The word copper", max_tokens=5)
    assert done.choices[0].finish_reason == "length"
    assert "edgewise" in [model.id for model in client.models.list()]
    for error, more in ((NotFoundError, {"model": "x"}), (BadRequestError, {"n": 2})):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES} | more)
        except error as raised:
            assert raised.body["type"] == "invalid_request_error"  # noqa: PT017
        else:
            raise AssertionError(more)
    return text


async def asynchronous() -> str:
    async with AsyncOpenAI(base_url=URL, api_key="none") as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(model=MODEL, messages=MESSAGES) for _ in range(4))
        )
        texts = {answer.choices[0].message.content for answer in answers}
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert texts == {streamed}, (texts, streamed)
    return streamed


assert sync() == asyncio.run(asynchronous())
