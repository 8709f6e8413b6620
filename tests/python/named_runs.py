"""The functions of a program that a test runs as several ranks:

    run = NamedRuns()

    @run
    def losses(): …

    if __name__ == "__main__":
        run.print_results(sys.argv[1:])      of those named, or of all: {"<function>": what rank 0 got}, as JSON
"""

import json

import torch
import torch.distributed as dist


class NamedRuns(dict):
    def __call__(self, function):
        self[function.__name__] = function
        return function

    def print_results(self, names=()):
        """In torch.distributed's group, which this ends. Each run begins with the same random numbers."""
        results = {}
        for name in names or self:
            torch.manual_seed(0)
            results[name] = self[name]()
        if dist.get_rank() == 0:
            print(json.dumps(results), flush=True)
        dist.barrier()
        dist.destroy_process_group()
