"""Random lives of many requests over tiny pools: the accounts balance after every step, and no answer changes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from support.engine_machine import EngineMachine

EngineMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngineMachine = EngineMachine.TestCase
