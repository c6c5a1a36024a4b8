import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_engine import ANSWER, BOS, CONTEXT, FakeEngine, refusal
from headway.config import LimitsConfig, ServerConfig
from headway.core.admission import RefusalReason
from headway.errors import EngineStopped, RequestFailed
from live_server import LiveServer, live_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
LIMITS = LimitsConfig(max_body_bytes=20_000, max_messages=50)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with live_server(ServerConfig(port=0, limits=LIMITS)) as server:
        yield server


@pytest.fixture
def engine(shared: LiveServer) -> Iterator[FakeEngine]:
    """The shared server's engine, with whatever a test sets put back."""
    before = dict(vars(shared.engine))
    yield shared.engine
    vars(shared.engine).update(before)


@pytest.fixture
def client(shared: LiveServer) -> Iterator[httpx.Client]:
    with shared.client() as client:
        yield client


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return {**({"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}), **fields}


def events(response: httpx.Response) -> list[Any]:
    """The parsed events of a stream; holds what every stream must be."""
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    blocks = response.text.removesuffix("data: [DONE]\n\n").split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["message"]
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 10}, {"n": 3, "seed": 7}, {"logprobs": True}])
def test_stream_equals_whole(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    if path == COMPLETIONS and "logprobs" in fields:
        fields = {"logprobs": 2}
    whole = client.post(path, json=body_for(path, **fields)).json()
    stream = client.post(path, json=body_for(path, stream=True, stream_options={"include_usage": True}, **fields))
    *chunks, usage = events(stream)
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        text = "".join(c["delta"].get("content", "") if path == CHAT else c["text"] for c in mine)
        assert text == (choice["message"]["content"] if path == CHAT else choice["text"])
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]


def test_a_whole_chat_answer(client: httpx.Client, engine: FakeEngine) -> None:
    engine.cached_tokens = 4
    response = client.post(CHAT, json=body_for(CHAT, model="fake"), headers={"X-Request-Id": "my-id.1"})
    body = response.json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    assert body["id"].startswith("chatcmpl-") and body["model"] == "fake" and body["object"] == "chat.completion"
    assert body["system_fingerprint"].startswith("hw-")
    usage = body["usage"]
    assert usage["completion_tokens"] == len(ANSWER.encode())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert response.headers["x-request-id"] == "my-id.1" and engine.requests[-1].label == "my-id.1"


def test_choices_with_a_seed_differ_and_repeat(client: httpx.Client) -> None:
    def texts() -> list[str]:
        choices = client.post(COMPLETIONS, json=body_for(COMPLETIONS, n=3, seed=1)).json()["choices"]
        return [choice["text"] for choice in choices]

    assert len(set(texts())) == 3 and texts() == texts()


def test_echo_and_several_prompts(client: httpx.Client) -> None:
    body = {"prompt": ["a", [98]], "n": 2, "echo": True, "max_tokens": 1}
    choices = client.post(COMPLETIONS, json=body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["aH", "aH", "bH", "bH"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


def test_nothing_but_data_lines_before_done(client: httpx.Client) -> None:
    response = client.post(CHAT, json=body_for(CHAT, stream=True))
    first, *rest = events(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in chunk for chunk in [first, *rest])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
class TestRefusedBeforeHeaders:
    def test_a_bad_field(self, client: httpx.Client, path: str, stream: bool) -> None:
        for fields in ({"temperature": "hot"}, {"logit_bias": {"AI": -100}}, {"tools": [{}]}, {"colour": 1}):
            response = client.post(path, json=body_for(path, stream=stream, **fields))
            assert error_of(response, 400)["param"] == next(iter(fields))
            assert response.headers["x-should-retry"] == "false"

    def test_a_prompt_that_is_too_long(self, client: httpx.Client, path: str, stream: bool) -> None:
        error = error_of(client.post(path, json=body_for(path, stream=stream, max_tokens=CONTEXT)), 400)
        assert error["code"] == "context_length_exceeded" and error["numbers"]["limit"] == CONTEXT

    def test_a_full_queue(self, client: httpx.Client, engine: FakeEngine, path: str, stream: bool) -> None:
        setting = "server.limits.max_waiting_requests"
        engine.refusal = refusal(RefusalReason.QUEUE_FULL, setting, 9, "9 requests are waiting.", retry_after_s=2.2)
        response = client.post(path, json=body_for(path, stream=stream))
        assert error_of(response, 503)["numbers"]["setting"] == setting
        assert response.headers["retry-after"] == "3" and "x-should-retry" not in response.headers

    def test_another_model(self, client: httpx.Client, path: str, stream: bool) -> None:
        error = error_of(client.post(path, json=body_for(path, stream=stream, model="gpt-4o")), 404)
        assert error["code"] == "model_not_found"

    def test_an_engine_that_fails_at_the_first_token(
        self, client: httpx.Client, engine: FakeEngine, path: str, stream: bool
    ) -> None:
        engine.failure = RequestFailed("at 0x7f00 in /srv/secret: prompt text")
        response = client.post(path, json=body_for(path, stream=stream))
        assert error_of(response, 500)["code"] == "request_failed"
        assert "0x7f00" not in response.text and "secret" not in response.text
        assert engine.running == []

    def test_an_engine_that_has_stopped(
        self, client: httpx.Client, engine: FakeEngine, path: str, stream: bool
    ) -> None:
        engine.failure = EngineStopped("gone")
        response = client.post(path, json=body_for(path, stream=stream))
        assert error_of(response, 503)["code"] == "engine_stopped" and int(response.headers["retry-after"]) > 0

    def test_an_error_nobody_foresaw(self, client: httpx.Client, engine: FakeEngine, path: str, stream: bool) -> None:
        engine.failure = ZeroDivisionError("secret")
        response = client.post(path, json=body_for(path, stream=stream))
        assert error_of(response, 500)["code"] == "internal_error"
        assert "secret" not in response.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"191222": -100}},
        {"logit_bias": {"65": 101}},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"temperature": -0.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": 2},
        {"stop_token_ids": [258]},
        {"presence_penalty": 3},
        {"repetition_penalty": 0},
        {"min_tokens": -1},
        {"seed": 1 << 64},
        {"stop": [""]},
    ],
)
def test_values_out_of_range_are_named(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    (name,) = fields
    assert error_of(client.post(path, json=body_for(path, **fields)), 400)["param"] == name


@pytest.mark.parametrize("prompt", [[-1], [258], [65, 2**70], [[1], [999]]])
def test_prompt_ids_out_of_range(client: httpx.Client, prompt: Any) -> None:
    assert error_of(client.post(COMPLETIONS, json={"prompt": prompt}), 400)["param"] == "prompt"


def test_a_refused_choice_withdraws_those_before_it(client: httpx.Client, engine: FakeEngine) -> None:
    admitted = engine.stats().num_admitted
    prompts = ["a", "b" * CONTEXT]
    error_of(client.post(COMPLETIONS, json={"prompt": prompts}), 400)
    stats = engine.stats()
    assert (stats.num_admitted - admitted, stats.num_running) == (1, 0)


def test_template_errors_are_the_clients(client: httpx.Client) -> None:
    error = error_of(client.post(CHAT, json={"messages": [{"role": "assistant", "content": "x"}]}), 400)
    assert (error["code"], error["param"]) == ("template_error", "messages")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"a":', {}, 400),
        (b'{"a":', {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {"content-type": "text/plain; charset=utf-8"}, 415),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"{}", {}, 400),
        (b"\xff", {}, 400),
        (b'{"x":"' + b"y" * 20_000 + b'"}', {}, 413),
    ],
)
def test_bad_bodies(client: httpx.Client, path: str, content: bytes, headers: dict[str, str], status: int) -> None:
    error_of(client.post(path, content=content, headers=headers), status)


def test_a_body_without_a_length_is_bounded_while_it_is_read(client: httpx.Client) -> None:
    error = error_of(client.post(CHAT, content=(b"x" * 1000 for _ in range(25))), 413)
    assert "20000" in error["message"] and "server.limits.max_body_bytes" in error["message"]


def test_a_missing_content_type_is_json(client: httpx.Client) -> None:
    request = client.build_request("POST", CHAT, content=json.dumps(body_for(CHAT)))
    request.headers.pop("content-type", None)
    assert client.send(request).status_code == 200
    assert client.post(CHAT, content=request.content, headers={"content-type": "application/x+json"}).status_code == 200


def test_too_many_messages(client: httpx.Client) -> None:
    error = error_of(client.post(CHAT, json={"messages": MESSAGES * 51}), 400)
    assert error["param"] == "messages" and "51" in error["message"] and "50" in error["message"]


@pytest.mark.parametrize("messages", [[], None, "hi", [{}], [[]], [{"role": "user"}]])
def test_bad_messages(client: httpx.Client, messages: Any) -> None:
    for path in (CHAT, "/tokenize"):
        error_of(client.post(path, json={"messages": messages}), 400)


def test_the_faulty_message_is_named(client: httpx.Client) -> None:
    bad = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
    error = error_of(client.post(CHAT, json={"messages": [*MESSAGES, bad]}), 400)
    assert error["param"] == "messages[1].content" and "image_url" in error["message"]


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    assert error_of(client.get("/v1/nope"), 404)["code"] == "not_found"
    response = client.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"
    assert error_of(client.post("/health"), 405)


def test_bad_request_id(client: httpx.Client) -> None:
    for label in ("a" * 129, "a b", "a/b"):
        assert error_of(client.post(CHAT, json=body_for(CHAT), headers={"X-Request-Id": label}), 400)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_request_says_whose_it_is_and_how_urgent(engine: FakeEngine, client: httpx.Client, path: str) -> None:
    headers = {"X-Headway-Tenant": "shop", "X-Headway-Class": "interactive"}
    assert client.post(path, json=body_for(path, n=2), headers=headers).status_code == 200
    assert {(r.tenant, r.request_class) for r in engine.requests[-2:]} == {("shop", "interactive")}
    assert client.post(path, json=body_for(path)).status_code == 200
    assert (engine.requests[-1].tenant, engine.requests[-1].request_class) == ("", "")
    for header in headers:
        error = error_of(client.post(path, json=body_for(path), headers={header: "a b"}), 400)
        assert error["param"] == header


def test_models(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert client.get("/v1/models/fake").json() == model
    assert (model["id"], model["object"], model["revision"], model["quantisation"]) == ("fake", "model", "r1", "Q8")
    assert (model["max_model_len"], model["digest"]) == (CONTEXT, "ab" * 32)
    assert model["sampling_defaults"]["temperature"] == 1.0
    assert error_of(client.get("/v1/models/hf:org/other"), 404)["code"] == "model_not_found"


def test_tokenize_and_detokenize(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": "é"}).json()
    assert tokens == {"count": 3, "max_model_len": CONTEXT, "tokens": [BOS, 0xC3, 0xA9]}
    plain = client.post("/tokenize", json={"prompt": "é", "add_special_tokens": False}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": plain}).json() == {"prompt": "é"}
    assert client.post("/detokenize", json={"tokens": [BOS, 65]}).json() == {"prompt": "<s>A"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    chat = client.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert bytes(chat[1:]) == b"[user]hi\n[assistant]"
    for body in ({}, {"prompt": "a", "messages": MESSAGES}, {"prompt": 5}, {"prompt": "a", "n": 2}):
        error_of(client.post("/tokenize", json=body), 400)


@pytest.mark.parametrize("tokens", [[-1], [258], [2**80], [True], ["1"], [1.5], "12", None, [[1]]])
def test_ids_out_of_range_have_no_text(client: httpx.Client, tokens: Any) -> None:
    assert error_of(client.post("/detokenize", json={"tokens": tokens}), 400)["param"].startswith("tokens")


def test_health_and_readiness(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json()["status"] == "ready"
    engine.fault = "out of memory"
    response = client.get("/ready")
    assert "out of memory" in error_of(response, 503)["message"] and "retry-after" in response.headers
    assert client.get("/health").status_code == 200


def test_the_openapi_page_describes_every_body(client: httpx.Client) -> None:
    page = client.get("/openapi.json").json()
    for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
        schema = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["additionalProperties"] is False and "$ref" not in json.dumps(schema)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["messages", "prompt", "stop", "logit_bias", "n", "stream", "stream_options", "max_tokens", "seed", "logprobs"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), path=st.sampled_from([CHAT, COMPLETIONS]))
def test_no_body_makes_a_server_error(client: httpx.Client, fields: dict[str, Any], path: str) -> None:
    content = json.dumps({**body_for(path), **fields})
    assert client.post(path, content=content).status_code in (200, 400, 413)
