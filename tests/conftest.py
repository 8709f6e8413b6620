"""`make test` runs a sample of the tests with many or long cases: those that `@pytest.mark.sample` names. `--whole` runs them all."""

import collections

import pytest


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run the cases, too, that are not in a test's sample")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            cases[item.getparent(pytest.Module).nodeid, item.originalname].append(item)
    left_out = set()
    for (module, name), some in cases.items():
        wanted = some[0].get_closest_marker("sample").args
        ids = {getattr(getattr(item, "callspec", None), "id", ""): item for item in some}
        if missing := set(wanted) - ids.keys():
            if not any("::" in argument for argument in config.args):
                raise pytest.UsageError(f"{module}: {name} has no case {', '.join(sorted(missing))}; its cases: {', '.join(ids)}")
        left_out |= {item for case, item in ids.items() if case not in wanted}
    if left_out and not config.getoption("whole"):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
