"""For the whole suite: how hypothesis searches, and what a run says at its end, also of tests in other processes."""

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, nothing about the code: speed is measured in benchmarks/.
settings.register_profile("mcpkeys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mcpkeys")


def pytest_collection_modifyitems(items):
    """The longest first, by the limit that each has been given: or the last worker ends long after the others."""
    items.sort(key=_limit, reverse=True)


def _limit(item):
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker else 0


def pytest_terminal_summary(terminalreporter):
    lines = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "summary" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("what was searched")
        for line in lines:
            terminalreporter.write_line(line)
