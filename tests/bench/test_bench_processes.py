"""bench/harness/processes.py: waits end and name what they waited for, and nothing is left behind. And the spread of ratios."""

import os
import sys
import time

import pytest
from harness.processes import Failure, Process, Ranks
from harness.rounds import turns
from harness.samples import Samples


def python(name, code):
    return Process(name, [sys.executable, "-c", code], os.environ)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_it_answers():
    with python("echo", "while True: print(input() * 2, flush=True)") as process:
        assert process.ask("ab") == "abab"


def test_a_wait_names_what_it_waits_for():
    with pytest.raises(Failure) as failure, python("sleeper", "import time; time.sleep(60)") as process:
        process.answer("its first step", seconds=0.2)
    assert str(failure.value) == "sleeper did not reach its first step within 0.2 s"


def test_one_that_ends_says_why():
    with pytest.raises(Failure) as failure, python("broken", "raise ValueError('no such thing')") as process:
        process.answer("its first step")
    assert str(failure.value) == "broken ended before its first step: ValueError: no such thing"


def test_a_rank_that_ends_is_told_at_once_though_others_wait():
    code = "import os, time; time.sleep(60 if os.environ['RANK'] == '0' else 0); raise SystemExit('error: rank 1 is out of luck')"
    begin = time.monotonic()
    with pytest.raises(Failure) as failure, Ranks("case", [sys.executable, "-c", code], os.environ, 2) as ranks:
        ranks.answers("its first step")
    assert str(failure.value) == "case, rank 1 ended before its first step: error: rank 1 is out of luck"
    assert time.monotonic() - begin < 30  # not rank 0's minute


def test_nothing_is_left_of_a_process_and_its_children():
    code = ("import subprocess, time\n"
            "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
            "time.sleep(60)")
    with pytest.raises(KeyboardInterrupt), python("parent", code) as process:
        child = int(process.answer("its child"))
        assert is_alive(child)
        raise KeyboardInterrupt
    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)


def test_all_take_a_turn_in_each_round_and_warm_ups_are_not_numbered():
    seen = list(turns("ab", rounds=2))
    assert [number for number, _ in seen] == [None, None, 0, 0, 1, 1]
    assert [{case for number, case in seen if number == round_} for round_ in (None, 0, 1)] == [{"a", "b"}] * 3


def test_a_ratio_is_one_within_a_round():
    samples = Samples()
    for number, (ours, theirs) in enumerate([(1, 2), (10, 30), (5, 5)]):  # 2, 3, 1
        samples.add("setting", "ours", {"s": ours}, number)
        samples.add("setting", "theirs", {"s": theirs}, number)
    samples.add("setting", "theirs", {"s": 1000}, 3)  # ours failed in this round
    assert samples.ratio("setting", "s", "theirs", "ours") == (1.5, 2, 2.5)
    assert samples.ratio("setting", "s", "ours", "absent") is None
