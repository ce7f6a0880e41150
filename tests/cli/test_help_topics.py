"""`sublaplace help`: the guides in the terminal."""

from __future__ import annotations

import pytest
from cli.cli_tools import Tool

from sublaplace_cli import guide


def test_without_a_topic_all_are_listed(tmp_path):
    done = Tool(tmp_path)("help", cwd=tmp_path)
    assert done.code == 0
    for name, summary in guide.TOPICS.items():
        assert f"{name:<10} {summary}" in done.out


@pytest.mark.parametrize("topic", guide.TOPICS)
def test_a_topic_is_shown_as_it_is_in_a_pipe(tmp_path, topic):
    done = Tool(tmp_path)("help", topic, cwd=tmp_path)
    assert (done.code, done.out) == (0, guide.text_of(topic))


def test_an_unknown_topic_is_refused_with_a_suggestion(tmp_path):
    done = Tool(tmp_path)("help", "prior", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "there is no help on 'prior'" in done.err
    assert "priors" in done.err
