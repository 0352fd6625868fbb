"""What a run of the whole suite says at its end, also where the tests ran in other processes."""


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
