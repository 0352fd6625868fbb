"""A fleet in virtual time: benchmarks/fleet.py with a hundred instances; a thousand in the slow suite."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("instances", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_fleet_that_starts_at_once_stays_within_quotas_and_is_current_within_two_intervals(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fleet

    numbers = fleet.Simulation(instances).run()
    print(fleet.tell(numbers))
    assert not numbers.failures
    assert numbers.started == instances
    canaries = 5 + instances // 100  # within these two minutes
    assert 0 <= numbers.start_granted - 4 * instances <= canaries, "three live keys and the report key, none twice"
    assert numbers.start_busiest_second <= fleet.KMS_QUOTA
    assert numbers.store_busiest_second <= fleet.STORE_QUOTA
    assert numbers.start_seconds < 60
    assert numbers.start_calls <= 12 * instances, "refused calls are spread, not repeated at once"
    assert numbers.converged
    assert all(seconds <= 2 * fleet.REFRESH for seconds in numbers.converged.values()), numbers.converged
