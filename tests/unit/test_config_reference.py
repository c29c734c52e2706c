"""The reference page and the examples are complete and current."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from proxy.config import reference
from proxy.config.load import load
from proxy.config.schema import Config
from proxy.config.settings import NAME, ROOT, leaves

ROOT_DIRECTORY = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT_DIRECTORY / reference.EXAMPLE


def test_the_reference_page_is_what_the_schema_gives():
    assert (ROOT_DIRECTORY / reference.REFERENCE).read_text() == reference.reference()


def test_the_example_is_what_the_schema_gives():
    assert EXAMPLE.read_text() == reference.example()


def test_the_example_loads_as_it_is():
    config = load(EXAMPLE, environ={})
    assert msgspec.structs.replace(config, nodes={}) == Config()


def test_the_example_has_every_setting_with_its_default():
    text = EXAMPLE.read_text()
    everything = tomllib.loads(re.sub(r"^#(?=\[|\w+ = )", "", text, flags=re.MULTILINE))
    unset = re.findall(r"^# (\w+) is not set$", text, flags=re.MULTILINE)
    for path, setting in leaves(ROOT):
        section = everything
        for part in path[:-1]:
            section = next(iter(section.values())) if part == NAME else section[part]
        if setting.default is None:
            assert setting.name in unset
        elif not setting.required:
            assert setting.read(section[setting.name]) == setting.default, path


def test_the_minimal_file_is_short_and_loads():
    path = ROOT_DIRECTORY / "config/minimal.toml"
    assert len(path.read_text().splitlines()) <= 10
    assert load(path, environ={}).nodes["db1"].host == "127.0.0.1"
