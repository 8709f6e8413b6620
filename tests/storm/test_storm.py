"""A part of `make storm`, always the same one."""

import damage
import disk
import hosts
import kills
import pytest
import stops
from outcomes import Storm

SEED = 20
FRACTION = 0.1
MINUTES = 5  # of each test; one takes about one


@pytest.fixture
def storm():
    return Storm(SEED, MINUTES)


def require_all_held(storm):
    assert not any(part.cut_short for part in storm.parts), f"more than {MINUTES} minutes: {storm.last_line()}"
    assert storm.parts[0].outcomes and storm.failed() == 0, storm.markdown()


@pytest.mark.sample("0")
@pytest.mark.parametrize("chain", range(5))
def test_kills(storm, place, chain):
    kills.run(storm, place, kills.KILLS_OF_A_CHAIN, first_chain=chain)
    require_all_held(storm)


def test_processes_that_are_stopped(storm, place):
    stops.run(storm, place, FRACTION)
    require_all_held(storm)


def test_a_disk_that_fails(storm, place):
    disk.run(storm, place, FRACTION)
    require_all_held(storm)


def test_files_that_are_damaged(storm, place):
    damage.run(storm, place, FRACTION)
    require_all_held(storm)


def test_hosts_that_are_lost(storm, place):
    if reason := hosts.why_not():
        pytest.skip(reason)
    hosts.run(storm, place, 5)
    require_all_held(storm)
