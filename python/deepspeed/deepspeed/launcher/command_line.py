"""Options as the launcher's programs read them: what is wrong with one is a LaunchError that names it."""

import argparse
import re

from tessera.launch_error import nearest, refused

_OF_ARGUMENT = re.compile(r"argument (?:-\w/)?(-*\w+)(?:/-*\w+)?: (.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


class OptionParser(argparse.ArgumentParser):
    """`program_argument`: the positional one that names what to run."""

    program_argument = "user_script"

    def error(self, message):
        found = _OF_ARGUMENT.match(message)
        if found:
            raise self._of_option(found[1], found[2])
        if message.startswith("the following arguments are required"):
            raise refused("no program to run", "the command line",
                          f"{self.prog} [options] train.py [its own arguments]; {self.prog} --help lists the options")
        if message.startswith("unrecognized arguments: "):
            raise self.unknown(message.partition(": ")[2].split()[0].partition("=")[0])
        raise refused(message, "the command line", f"{self.prog} --help lists the options")

    def unknown(self, name):
        options = [option for option in self._option_string_actions if option.startswith("--")]
        close = nearest(name, options)
        return refused(f"unknown option '{name}'", "the command line",
                       close if close.startswith("did") else f"{self.prog} --help lists the options")

    def _of_option(self, name, problem):
        choice = _CHOICE.match(problem)
        if choice:
            known = choice[2].replace("'", "").split(", ")
            return refused(f"{name} is '{choice[1]}'", "the command line", nearest(choice[1], known))
        if problem.startswith("expected"):
            return refused(f"{name} has no value", "the command line", f"give {name} a value")
        return refused(f"{name} {problem}", "the command line", f"see {self.prog} --help")


def whole_number(low, high=None):
    """For add_argument(type=…): a whole number in that range."""

    def read(text):
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"is '{text}', not a whole number") from None
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"is {number}: it must be "
                                             + (f"at least {low}" if high is None else f"between {low} and {high}"))
        return number

    return read
