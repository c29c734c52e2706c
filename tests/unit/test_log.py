"""Log lines: their form, level, and that no secret gets into one."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from proxy import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = list(logging.getLogger().handlers)
    stream = io.StringIO()
    log.configure("json", "info", stream)
    yield stream
    log.configure("json", "info")
    logging.getLogger().handlers[:] = before


def test_json_lines(stream: io.StringIO):
    log.configure("json", "info", stream, {"process": "worker", "worker": 1})
    log.get_logger("accept").bind(client=7).info("client_connected", user="ann", tls=True)
    [line] = stream.getvalue().splitlines()
    event = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.pop("time"))
    assert event == {
        "event": "client_connected",
        "level": "info",
        "component": "accept",
        "process": "worker",
        "worker": 1,
        "client": 7,
        "user": "ann",
        "tls": True,
    }


def test_secrets_are_blanked(stream: io.StringIO):
    names = ("password", "secret", "params", "key", "client_key", "db_password", "values")
    log.get_logger("x").info("e", **dict.fromkeys(names, "geheim"), nested={"password": "geheim", "user": "ann"})
    assert "geheim" not in stream.getvalue()
    assert json.loads(stream.getvalue())["nested"] == {"password": "***", "user": "ann"}


def test_levels_apply_to_loggers_made_before(stream: io.StringIO):
    logger = log.get_logger("x")
    logger.debug("unseen")
    log.configure("json", "debug", stream)
    logger.debug("seen")
    log.configure("json", "error", stream)
    logger.warning("unseen")
    logger.info("unseen")
    logger.error("seen")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["seen", "seen"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_name_cant_forge_a_line(stream: io.StringIO, form: str):
    log.configure(form, "info", stream)
    log.get_logger("x").warning("login_failed", user="a\n{}\x1b[2J\u2028b")
    [line] = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\\n" in line


def test_console_lines(stream: io.StringIO):
    log.configure("console", "info", stream)
    log.get_logger("pool").info("server_opened", node="db1")
    assert re.search(r"info.*server_opened.*component=pool.*node=db1", stream.getvalue())


def test_an_error_with_its_traceback_is_one_line(stream: io.StringIO):
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log.get_logger("x").error("task_failed", exc_info=True)
    [line] = stream.getvalue().splitlines()
    assert "RuntimeError: broken" in json.loads(line)["exception"]


def test_libraries_log_in_the_same_form(stream: io.StringIO):
    logging.getLogger("asyncio").error("Task was %s", "destroyed")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["component"], event["level"]) == ("Task was destroyed", "asyncio", "error")


def test_a_closed_stream_is_no_fault(stream: io.StringIO):
    stream.close()
    log.get_logger("x").error("e")
