"""The official client against the live server, as its users write it."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from fake_engine import ANSWER, CONTEXT, refusal
from headway.core.admission import RefusalReason
from headway.errors import RequestFailed
from live_server import LiveServer, live_server

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    server.engine.refusal = server.engine.failure = None
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="fake", messages=MESSAGES, n=2, seed=1, logprobs=True, top_logprobs=2, user="me", metadata={"a": "b"}
    )
    assert [choice.message.content for choice in reply.choices] == [f"{ANSWER} #1", f"{ANSWER} #2"]
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    entries = reply.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == f"{ANSWER} #1"
    assert reply._request_id


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == [] and last.usage.completion_tokens == len(ANSWER.encode())


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="fake", prompt=["a", "b"], logprobs=1, max_tokens=3)
    assert [choice.text for choice in whole.choices] == ["Hel", "Hel"]
    assert whole.choices[0].logprobs.text_offset == [0, 1, 2]


def test_completions_stream(server: LiveServer, client: openai.OpenAI) -> None:
    # Not strict: the client's type forbids the null finish_reason that every real stream of completions has.
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        pieces = list(client.completions.create(model="fake", prompt="a", stream=True, max_tokens=3))
    assert "".join(piece.choices[0].text for piece in pieces) == "Hel"
    assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, "length"]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "headway"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_have_their_classes(client: openai.OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=CONTEXT, stream=True)
    assert bad.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(model="fake", messages=MESSAGES, response_format={"type": "json_object"})
    assert unsupported.value.param == "response_format"
    server.engine.refusal = refusal(RefusalReason.QUEUE_FULL, "server.limits.max_waiting_requests", 1, "full")
    with pytest.raises(openai.InternalServerError) as full:
        client.chat.completions.create(model="fake", messages=MESSAGES)
    assert full.value.status_code == 503


def test_a_final_refusal_is_not_retried_and_a_temporary_one_is(server: LiveServer, client: openai.OpenAI) -> None:
    patient = client.with_options(max_retries=1)
    for reason, attempts in ((RefusalReason.TOO_LONG, 1), (RefusalReason.QUEUE_FULL, 2)):
        server.engine.requests.clear()
        server.engine.refusal = refusal(reason, "a.setting", 1, "no", retry_after_s=0.1)
        with pytest.raises(openai.APIStatusError):
            patient.chat.completions.create(model="fake", messages=MESSAGES)
        assert len(server.engine.requests) == attempts


def test_a_stream_that_fails_raises(client: openai.OpenAI, server: LiveServer) -> None:
    server.engine.failure, server.engine.fail_at = RequestFailed("x"), 4
    stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError):
        list(stream)


def test_async(server: LiveServer, client: openai.OpenAI) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            whole = await client.chat.completions.create(model="fake", messages=MESSAGES)
            return streamed, whole.choices[0].message.content

    assert asyncio.run(ask()) == (ANSWER, ANSWER)
