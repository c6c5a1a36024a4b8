import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from headway.engine.template_process import _WORKER, TemplateLimits, TemplateProcess
from headway.errors import InvalidRequest, TemplateError

LIMITS = TemplateLimits(time_s=0.5, max_output_chars=10_000, max_memory_bytes=256 << 20)
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def process(request):
    process = TemplateProcess(request.param, LIMITS)
    yield process
    process.close()


def with_source(*sources: str):
    return pytest.mark.parametrize("process", sources, indirect=True)


@with_source("{{ messages[0].content }} {{ extra }}")
def test_variables_reach_the_template(process):
    assert process.render(MESSAGES | {"extra": "é🦙\ue000\n"}) == "hi é🦙\ue000\n"
    assert process.variables() == {"messages", "extra"}


@with_source(
    "{% if spin %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}ok"
)
def test_a_template_that_runs_too_long_is_stopped_and_the_next_render_works(process):
    for _ in range(2):
        with pytest.raises(TemplateError, match=r"longer than 0\.5 s"):
            process.render({"spin": True})
        assert process.render({"spin": False}) == "ok"


@with_source(
    "{{ 'a' * 10000000000 }}",
    "{% for i in range(1000) %}{{ 'a' * 100 }}{% endfor %}",
    "{% for i in range(10000000) %}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{{ undefined.attribute }}",
    "{{ 1 / 0 }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
)
def test_a_hostile_or_broken_template_is_an_error_of_its_own(process):
    for _ in range(2):
        with pytest.raises(TemplateError):
            process.render(MESSAGES)


@with_source("{{ messages ", "{% unknown %}", "{% for x in y %}")
def test_a_template_that_does_not_parse_is_refused_with_its_line(process):
    with pytest.raises(TemplateError, match=r"broken.*line 1"):
        process.render(MESSAGES)


def test_a_source_over_the_limit_is_refused_with_the_numbers():
    with pytest.raises(TemplateError, match="1001 characters; at most 1000"):
        TemplateProcess("a" * 1001, TemplateLimits(max_source_chars=1000)).variables()


@with_source("ok{{ x }}")
def test_a_process_that_was_killed_is_replaced(process):
    assert process.render({}) == "ok"
    os.kill(process._worker._process.pid, signal.SIGKILL)
    process._worker._process.wait()
    assert process.render({}) == "ok"


@with_source("ok")
def test_closing_ends_the_process(process):
    process.render({})
    child = process._worker._process
    process.close()
    assert child.poll() is not None


@with_source("{{ x }}")
def test_variables_that_are_not_json_are_a_bad_request(process):
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    for value in (nested, object(), b"x"):
        with pytest.raises(InvalidRequest):
            process.render({"x": value})
    assert process.render({"x": 1}) == "1"


def test_large_texts_pass_both_ways():
    process = TemplateProcess("{{ x }}", TemplateLimits(time_s=20))
    text = "é\n" * 500_000
    assert process.render({"x": text}) == text
    process.close()


def test_a_worker_without_a_parent_ends_by_itself():
    source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    first = {"source": source, "max_output_chars": 1, "max_memory_bytes": 1 << 30, "max_time_s": 0.2}
    lines = f"{json.dumps(first)}\n{{}}\n"
    ended = subprocess.run([sys.executable, _WORKER], input=lines, text=True, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGALRM


def test_a_slow_render_that_ended_in_an_error_leaves_no_timer_behind():
    first = {"source": "{{ raise_exception('no') }}", "max_output_chars": 1, "max_memory_bytes": 1 << 30}
    worker = subprocess.Popen(
        [sys.executable, _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    worker.stdin.write(f"{json.dumps(first | {'max_time_s': 0.3})}\n{{}}\n")
    answers = [json.loads(worker.stdout.readline()) for _ in range(2)]
    assert answers == [{"variables": []}, {"error": "no"}]
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(timeout=0.6)
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()


@with_source("{{ x }}")
def test_threads_get_their_own_answers(process):
    wrong = []

    def work(name: str) -> None:
        wrong.extend(1 for _ in range(50) if process.render({"x": name}) != name)

    threads = [threading.Thread(target=work, args=(f"thread {index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
