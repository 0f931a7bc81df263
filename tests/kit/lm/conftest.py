import os

import pytest


@pytest.fixture
def flushed(monkeypatch):
    """What is flushed and renamed during a test, in order: "file", "rename", "folder"."""
    events, fsync, replace = [], os.fsync, os.replace

    def spy_fsync(descriptor):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b))[1])
    return events
