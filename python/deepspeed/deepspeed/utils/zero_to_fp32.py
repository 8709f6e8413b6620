"""Placeholder."""

import glob
import os
import re


def get_optim_files(d):
    return sorted(glob.glob(os.path.join(d, "*_optim_states.pt")),
                  key=lambda s: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", s)])
